package plan

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/persys/compute/agent/workload"
)

// Table is our nftables table. A change replaces the whole table in one transaction, so that no packet is
// checked by an incomplete table.
type Table struct {
	Sets   []Set
	Chains []Chain
}

// Set is a named set.
type Set struct {
	Name string
	Kind SetKind
	// Elements are the sorted elements of the set: addresses, or names of interfaces.
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

// Rule is one rule. It applies to packets for which all Matches hold.
type Rule struct {
	Matches []Match
	Verdict Verdict
	To      netip.Addr // new source address of the verdict SNAT
	// Comment is the purpose of the rule. The kernel stores the comment together with a hash of the rule's
	// text (Mark). The agent recognises its own rules by that hash when it reads the table from the kernel.
	Comment string
}

// Verdict is the action of a rule on a packet.
type Verdict string

// The verdicts, as nft writes them.
const (
	Accept     Verdict = "accept"
	Drop       Verdict = "drop"
	Masquerade Verdict = "masquerade"
	SNAT       Verdict = "snat ip to"
	ClampMSS   Verdict = "tcp option maxseg size set rt mtu"
	Reset      Verdict = "reject with tcp reset"
	Reject     Verdict = "reject with icmpx port-unreachable"
)

// Match is one condition of a rule.
type Match struct {
	Kind MatchKind
	Not  bool
	// Name is the interface for InInterface and OutInterface, and the name of an nftables set for the
	// kinds whose names end with Set.
	Name   string
	Prefix netip.Prefix // the prefix that the kinds Source and Destination compare
	Port   uint16       // UDPPort
}

// MatchKind is the property of a packet that a Match compares.
type MatchKind int

// The kinds of matches. NoWayBack matches an IPv4 packet if the machine would send a reply to its source
// through another interface than the one that received the packet.
const (
	InInterface MatchKind = iota
	OutInterface
	InInterfaceSet
	OutInterfaceSet
	Source      // IPv4 source in Prefix
	Destination // IPv4 destination in Prefix
	Source4Set  // IPv4 source in the set Name
	Source6Set  // IPv6 source in the set Name
	UDPPort     // destination port
	Established // connection tracking: established or related
	Translated  // connection tracking: the destination was translated, as for a published port
	NoWayBack   // IPv4 only
	ICMP        // IPv4 only
	TCP
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
	case Destination:
		return "ip daddr " + op + m.Prefix.String()
	case TCP:
		return "meta l4proto tcp"
	case Source4Set:
		return "ip saddr " + op + "@" + m.Name
	case Source6Set:
		return "ip6 saddr " + op + "@" + m.Name
	case UDPPort:
		return fmt.Sprintf("udp dport %s%d", op, m.Port)
	case Established:
		return "ct state established,related"
	case Translated:
		if m.Not {
			return "ct status & dnat == 0"
		}
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
	words = append(words, string(r.Verdict))
	if r.Verdict == SNAT {
		words = append(words, r.To.String())
	}
	return strings.Join(words, " ")
}

// Mark returns the comment with which the rule is stored in the kernel: its purpose and a hash, together at
// most 127 bytes.
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

// Stored returns the table in the form in which it is read from the kernel: each rule has only the comment that
// Mark returns, and no matches or verdict.
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

// same reports whether t, the table that the machine must have, equals seen, a table that was read from the
// kernel in the form of Stored.
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

// OwnerPrefix is the prefix of the name of an empty nftables set in the table. The rest of the name says to
// which agent the table belongs.
const OwnerPrefix = "owner_"

// Owner returns the name of the set that marks a table of the agent with the alias (Input.Alias).
func Owner(alias string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(alias)) // writing to a hash never fails
	return fmt.Sprintf("%s%08x", OwnerPrefix, h.Sum32())
}

// ofAnother returns the name of the table's owner set (see Owner) if the table belongs to another agent
// than the one with the alias. It returns "" if the table belongs to that agent or names no owner.
func (t *Table) ofAnother(alias string) string {
	if t == nil {
		return ""
	}
	for _, s := range t.Sets {
		if strings.HasPrefix(s.Name, OwnerPrefix) && s.Name != Owner(alias) {
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

// Priorities of our chains. Our forward and input chains run before those of the engine, which have
// priority 0. A packet that they drop is dropped; a packet that they accept is still checked by the chains
// of other programs.
const (
	rawPriority    = -300
	manglePriority = -150
	filterPriority = -5
	natPriority    = 100
	// ingressPriority is lower than the priority of the container engine's chains, so that our chains run
	// first. Otherwise the engine's chains would set another source address.
	ingressPriority = 90
)

// table returns the table for a view. alias names the agent; bridges are the sorted names of the bridges
// that the machine has or will get. table returns nil if there is no bridge.
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

	t := &Table{Sets: []Set{{Name: bridgeSet, Kind: InterfaceSet, Elements: bridges}, {Name: Owner(alias), Kind: InterfaceSet},
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
	host := Chain{Name: "host", Type: "filter", Hook: "output", Priority: filterPriority}
	outside := Chain{Name: "outside", Type: "nat", Hook: "postrouting", Priority: natPriority}
	ingress := Chain{Name: "ingress", Type: "nat", Hook: "postrouting", Priority: ingressPriority}
	for _, n := range v.Networks {
		name := Bridge(n.ID)
		member := Match{Kind: Source, Prefix: n.CIDR}
		source.Rules = append(source.Rules, rule(fmt.Sprintf("network %d: only addresses of this node", n.ID), Drop,
			in(name), member, not(Match{Kind: Source, Prefix: n.Slice})))
		members.Rules = append(members.Rules,
			rule(fmt.Sprintf("network %d: its members on this node", n.ID), Accept, in(name), out(name), member),
			rule(fmt.Sprintf("network %d: its members on other nodes", n.ID), Accept, in(Device), out(name), member))
		for _, s := range n.Services {
			comment, service := fmt.Sprintf("network %d: services without an instance", n.ID), Match{Kind: Destination, Prefix: s}
			refuse := []Rule{rule(comment, Reset, out(Device), service, Match{Kind: TCP}), rule(comment, Reject, out(Device), service)}
			members.Rules = append(members.Rules, refuse...)
			host.Rules = append(host.Rules, refuse...)
		}
		if n.Ingress { // instances on other nodes must answer through this node
			ingress.Rules = append(ingress.Rules, Rule{
				Matches: []Match{out(Device), {Kind: Destination, Prefix: n.CIDR}, not(member), {Kind: Translated}},
				Verdict: SNAT, To: Gateway(n.Slice), Comment: fmt.Sprintf("network %d: ports in ingress mode", n.ID),
			})
		}
		outside.Rules = append(outside.Rules, rule(fmt.Sprintf("network %d: to other machines", n.ID), Masquerade,
			Match{Kind: Source, Prefix: n.Slice}, not(intoBridges), not(out(Device))))
	}
	if len(ingress.Rules) > 0 { // DOCKER-USER accepts all packets to peers then, see userRules
		members.Rules = append(members.Rules, rule("only members, and clients of published ports, send to peers", Drop,
			out(Device), not(fromBridges), not(Match{Kind: Translated})))
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
	t.Chains = []Chain{clamp, host, members, outside, source, tunnel} // sorted by name, as observed tables are
	if len(ingress.Rules) > 0 {
		t.Chains = slices.Insert(t.Chains, 2, ingress)
	}
	return t
}
