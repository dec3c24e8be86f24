package plan

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/persys/compute/agent/workload"
)

// Table is our nftables table. It is always replaced as a whole, in one transaction, so that no packet meets half of
// it.
type Table struct {
	Sets   []Set
	Chains []Chain
}

// Set is a named set.
type Set struct {
	Name string
	Kind SetKind
	// Elements are addresses or names of interfaces, sorted.
	Elements []string
}

// SetKind is the type of a set's elements.
type SetKind string

// The kinds of sets, as nft writes them.
const (
	IPv4Set      SetKind = "ipv4_addr"
	IPv6Set      SetKind = "ipv6_addr"
	InterfaceSet SetKind = "ifname"
)

// Chain is a base chain with the policy accept.
type Chain struct {
	Name     string
	Type     string // filter or nat
	Hook     string // as nft writes it
	Priority int
	Rules    []Rule
}

// Rule is one rule. Its matches must all hold.
type Rule struct {
	Matches []Match
	Verdict Verdict
	// Comment says what the rule is for. Together with a hash of the rule's text it is stored in the kernel, and
	// recognises the rule.
	Comment string
}

// Verdict is what a rule does with a packet.
type Verdict string

// The verdicts, as nft writes them.
const (
	Accept     Verdict = "accept"
	Drop       Verdict = "drop"
	Masquerade Verdict = "masquerade"
	ClampMSS   Verdict = "tcp option maxseg size set rt mtu"
)

// Match is one condition of a rule.
type Match struct {
	Kind MatchKind
	Not  bool
	// Name is the interface of InInterface and OutInterface, and the set of the kinds that end with Set.
	Name   string
	Prefix netip.Prefix // Source
	Port   uint16       // UDPPort
}

// MatchKind selects what a Match looks at.
type MatchKind int

// The kinds of matches. NoWayBack holds for an IPv4 packet whose source the machine would not answer through the
// interface on which the packet came.
const (
	InInterface MatchKind = iota
	OutInterface
	InInterfaceSet
	OutInterfaceSet
	Source        // IPv4 source in Prefix
	Source4Set    // IPv4 source in the set Name
	Source6Set    // IPv6 source in the set Name
	UDPPort       // destination port
	Established   // connection tracking: established or related
	Translated    // connection tracking: the destination was translated, as for a published port
	NoWayBack     // IPv4 only
	ICMP          // IPv4 only
	OpeningPacket // TCP SYN without RST
)

// String returns a match as nft writes it.
func (m Match) String() string {
	op := ""
	if m.Not {
		op = "!= "
	}
	switch m.Kind {
	case InInterface:
		return fmt.Sprintf("iifname %s%q", op, m.Name)
	case OutInterface:
		return fmt.Sprintf("oifname %s%q", op, m.Name)
	case InInterfaceSet:
		return "iifname " + op + "@" + m.Name
	case OutInterfaceSet:
		return "oifname " + op + "@" + m.Name
	case Source:
		return "ip saddr " + op + m.Prefix.String()
	case Source4Set:
		return "ip saddr " + op + "@" + m.Name
	case Source6Set:
		return "ip6 saddr " + op + "@" + m.Name
	case UDPPort:
		return fmt.Sprintf("udp dport %s%d", op, m.Port)
	case Established:
		return "ct state established,related"
	case Translated:
		return "ct status dnat"
	case NoWayBack:
		return "meta nfproto ipv4 fib saddr . iif oif missing"
	case ICMP:
		return "meta nfproto ipv4 meta l4proto icmp"
	case OpeningPacket:
		return "tcp flags & (syn | rst) == syn"
	}
	return "?"
}

// String returns a rule as nft writes it, without its comment.
func (r Rule) String() string {
	var words []string
	for _, m := range r.Matches {
		words = append(words, m.String())
	}
	return strings.Join(append(words, string(r.Verdict)), " ")
}

// Mark returns the comment that is stored in the kernel: at most 127 bytes.
func (r Rule) Mark() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.String())) // writing to a hash never fails
	return fmt.Sprintf("%.100s [%08x]", r.Comment, h.Sum32())
}

// String returns the table as nft writes it.
func (t *Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for _, s := range t.Sets {
		fmt.Fprintf(&b, "\tset %s { type %s; elements = { %s } }\n", s.Name, s.Kind, strings.Join(s.Elements, ", "))
	}
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s { type %s hook %s priority %d; policy accept;\n", c.Name, c.Type, c.Hook, c.Priority)
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", r, r.Mark())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}")
	return b.String()
}

// Stored returns the table as the kernel gives it back: rules are known by their marks only.
func (t *Table) Stored() *Table {
	if t == nil {
		return nil
	}
	out := &Table{Sets: t.Sets}
	for _, c := range t.Chains {
		rules := make([]Rule, len(c.Rules))
		for i, r := range c.Rules {
			rules[i] = Rule{Comment: r.Mark()}
		}
		c.Rules = rules
		out.Chains = append(out.Chains, c)
	}
	return out
}

// same compares a wanted table with an observed one, see Stored.
func (t *Table) same(seen *Table) bool {
	if t == nil || seen == nil {
		return t == nil && seen == nil
	}
	t = t.Stored()
	sameSet := func(a, b Set) bool {
		return a.Name == b.Name && a.Kind == b.Kind && slices.Equal(a.Elements, b.Elements)
	}
	sameChain := func(a, b Chain) bool {
		return a.Name == b.Name && a.Type == b.Type && a.Hook == b.Hook && a.Priority == b.Priority &&
			slices.EqualFunc(a.Rules, b.Rules, func(x, y Rule) bool { return x.Comment == y.Comment })
	}
	return slices.EqualFunc(t.Sets, seen.Sets, sameSet) && slices.EqualFunc(t.Chains, seen.Chains, sameChain)
}

const bridgeSet, peerSet4, peerSet6 = "bridges", "peers4", "peers6"

// ownerPrefix begins the name of an empty set that says to which agent the table belongs.
const ownerPrefix = "owner_"

// owner returns the name of that set for the agent with an alias, see Input.
func owner(alias string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(alias)) // writing to a hash never fails
	return fmt.Sprintf("%s%08x", ownerPrefix, h.Sum32())
}

// ofAnother returns the owner's set of a table that belongs to another agent than the one with an alias; "" if the
// table belongs to this one or names no owner.
func (t *Table) ofAnother(alias string) string {
	if t == nil {
		return ""
	}
	for _, s := range t.Sets {
		if strings.HasPrefix(s.Name, ownerPrefix) && s.Name != owner(alias) {
			return s.Name
		}
	}
	return ""
}

// set returns the elements of a set; nil if there is no table or no such set.
func (t *Table) set(name string) []string {
	if t == nil {
		return nil
	}
	for _, s := range t.Sets {
		if s.Name == name {
			return s.Elements
		}
	}
	return nil
}

// Priorities of our chains. The forward and input chains come before those of the engine (0). A drop in them is
// final; an accept leaves the decision to the chains of other programs.
const (
	rawPriority    = -300
	manglePriority = -150
	filterPriority = -5
	natPriority    = 100
)

// table returns the table of the agent with an alias for a view and the bridges that the machine has or is about to
// get, sorted. It returns nil if there is no bridge.
func table(alias string, v workload.NetworkView, bridges []string) *Table {
	if len(bridges) == 0 {
		return nil
	}
	in := func(name string) Match { return Match{Kind: InInterface, Name: name} }
	out := func(name string) Match { return Match{Kind: OutInterface, Name: name} }
	intoBridges, fromBridges := Match{Kind: OutInterfaceSet, Name: bridgeSet}, Match{Kind: InInterfaceSet, Name: bridgeSet}
	not := func(m Match) Match { m.Not = true; return m }
	rule := func(comment string, verdict Verdict, matches ...Match) Rule {
		return Rule{Matches: matches, Verdict: verdict, Comment: comment}
	}
	established, noWayBack := Match{Kind: Established}, Match{Kind: NoWayBack}

	t := &Table{Sets: []Set{{Name: bridgeSet, Kind: InterfaceSet, Elements: bridges}, {Name: owner(alias), Kind: InterfaceSet},
		{Name: peerSet4, Kind: IPv4Set}, {Name: peerSet6, Kind: IPv6Set}}}
	peers := make([]netip.Addr, 0, len(v.Peers))
	for _, p := range v.Peers {
		peers = append(peers, p.Address)
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	for _, p := range slices.Compact(peers) {
		set := &t.Sets[2]
		if p.Is6() {
			set = &t.Sets[3]
		}
		set.Elements = append(set.Elements, p.String())
	}

	source := Chain{Name: "source", Type: "filter", Hook: "prerouting", Priority: rawPriority, Rules: []Rule{
		rule("containers use only their own addresses", Drop, fromBridges, noWayBack),
		rule("peers use only addresses of their slices", Drop, in(Device), noWayBack),
	}}
	clamp := Chain{Name: "clamp", Type: "filter", Hook: "forward", Priority: manglePriority, Rules: []Rule{
		rule("segments fit the tunnel", ClampMSS, out(Device), Match{Kind: OpeningPacket}),
	}}
	members := Chain{Name: "members", Type: "filter", Hook: "forward", Priority: filterPriority, Rules: []Rule{
		rule("open connections", Accept, established),
	}}
	outside := Chain{Name: "outside", Type: "nat", Hook: "postrouting", Priority: natPriority}
	for _, n := range v.Networks {
		name := Bridge(n.ID)
		member := Match{Kind: Source, Prefix: n.CIDR}
		source.Rules = append(source.Rules, rule(fmt.Sprintf("network %d: only addresses of this node", n.ID), Drop,
			in(name), member, not(Match{Kind: Source, Prefix: n.Slice})))
		members.Rules = append(members.Rules,
			rule(fmt.Sprintf("network %d: its members on this node", n.ID), Accept, in(name), out(name), member),
			rule(fmt.Sprintf("network %d: its members on other nodes", n.ID), Accept, in(Device), out(name), member))
		outside.Rules = append(outside.Rules, rule(fmt.Sprintf("network %d: to other machines", n.ID), Masquerade,
			Match{Kind: Source, Prefix: n.Slice}, not(intoBridges), not(out(Device))))
	}
	members.Rules = append(members.Rules,
		rule("published ports", Accept, intoBridges, not(in(Device)), Match{Kind: Translated}),
		rule("nobody else reaches containers", Drop, intoBridges),
		rule("peers do not route through this node", Drop, in(Device)),
	)
	tunnel := Chain{Name: "tunnel", Type: "filter", Hook: "input", Priority: filterPriority, Rules: []Rule{
		rule("peers", Accept, Match{Kind: UDPPort, Port: v.Port}, Match{Kind: Source4Set, Name: peerSet4}),
		rule("peers", Accept, Match{Kind: UDPPort, Port: v.Port}, Match{Kind: Source6Set, Name: peerSet6}),
		rule("VXLAN only from peers", Drop, Match{Kind: UDPPort, Port: v.Port}),
		rule("open connections", Accept, in(Device), established),
		rule("pings of peers", Accept, in(Device), Match{Kind: ICMP}),
		rule("containers of peers do not reach this machine", Drop, in(Device)),
	}}
	t.Chains = []Chain{clamp, members, outside, source, tunnel} // sorted by name, as observed tables are
	return t
}
