package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
)

// rules reads and writes nftables. It writes with the library google/nftables. That library cannot decode
// all expressions of a rule, so reading does not use it: rules reads only the comments, which identify the
// rules.
type rules struct {
	conn *nftables.Conn
	read *netlink.Conn
}

const (
	// buffers is the size of the sockets' buffers in bytes. With the default size, the kernel carries out a
	// transaction of a few hundred elements, but its answer does not fit into the buffer and is lost.
	buffers = 8 << 20
	// elementsPerMessage is the maximum number of set elements in one message to the kernel, because the
	// length field of their list has only 16 bits.
	elementsPerMessage = 500
)

func openRules() (*rules, error) {
	enlarge := func(c *netlink.Conn) error { return errors.Join(c.SetReadBuffer(buffers), c.SetWriteBuffer(buffers)) }
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(enlarge))
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for nftables: %w", err)
	}
	read, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = enlarge(read)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening a netlink socket for nftables: %w", err), conn.CloseLasting())
	}
	return &rules{conn: conn, read: read}, nil
}

func (r *rules) Close() {
	_ = r.conn.CloseLasting()
	_ = r.read.Close()
}

var (
	ourTable  = &nftables.Table{Family: nftables.TableFamilyINet, Name: plan.TableName}
	userTable = &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"}
	userChain = &nftables.Chain{Name: plan.UserChain, Table: userTable}
)

var hooks = map[string]*nftables.ChainHook{
	"prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "postrouting": nftables.ChainHookPostrouting, "output": nftables.ChainHookOutput,
}

// Table returns our table, in the form of plan.Table.Stored; nil if there is none.
func (r *rules) Table() (*plan.Table, error) {
	tables, err := r.conn.ListTablesOfFamily(ourTable.Family)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == ourTable.Name }) {
		return nil, nil
	}
	out := &plan.Table{}
	sets, err := r.conn.GetSets(ourTable)
	if err != nil {
		return nil, fmt.Errorf("listing the nftables sets: %w", err)
	}
	for _, s := range sets {
		elements, err := r.conn.GetSetElements(s)
		if err != nil {
			return nil, fmt.Errorf("reading the nftables set %s: %w", s.Name, err)
		}
		out.Sets = append(out.Sets, readSet(s, elements))
	}
	chains, err := r.conn.ListChainsOfTableFamily(ourTable.Family)
	if err != nil {
		return nil, fmt.Errorf("listing the nftables chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name != ourTable.Name {
			continue
		}
		list, err := r.comments(ourTable, c.Name)
		if err != nil {
			return nil, fmt.Errorf("reading the nftables chain %s: %w", c.Name, err)
		}
		chain := plan.Chain{Name: c.Name, Type: string(c.Type)}
		if c.Hooknum != nil {
			for name, hook := range hooks {
				if *hook == *c.Hooknum {
					chain.Hook = name
				}
			}
		}
		if c.Priority != nil {
			chain.Priority = int(*c.Priority)
		}
		if c.Policy != nil && *c.Policy != nftables.ChainPolicyAccept {
			chain.Type += " policy drop" // no chain of plan.Table has this type, so the table counts as changed
		}
		for _, rule := range list {
			chain.Rules = append(chain.Rules, plan.Rule{Comment: rule.comment})
		}
		out.Chains = append(out.Chains, chain)
	}
	slices.SortFunc(out.Sets, func(a, b plan.Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(out.Chains, func(a, b plan.Chain) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func readSet(s *nftables.Set, elements []nftables.SetElement) plan.Set {
	out := plan.Set{Name: s.Name, Kind: plan.SetKind(s.KeyType.Name)}
	switch out.Kind {
	case plan.IPv4Set, plan.IPv6Set:
		list := make([]netip.Addr, 0, len(elements))
		for _, e := range elements {
			a, _ := netip.AddrFromSlice(e.Key)
			list = append(list, a)
		}
		slices.SortFunc(list, netip.Addr.Compare)
		for _, a := range list {
			out.Elements = append(out.Elements, a.String())
		}
	default:
		for _, e := range elements {
			name, _, _ := bytes.Cut(e.Key, []byte{0})
			out.Elements = append(out.Elements, string(name))
		}
		slices.Sort(out.Elements)
	}
	return out
}

// storedRule is a rule of the kernel.
type storedRule struct {
	handle  uint64
	comment string
}

// comments lists the rules of a chain. A chain that does not exist has none.
func (r *rules) comments(t *nftables.Table, chain string) ([]storedRule, error) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(t.Name), 0)},
		{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)},
	})
	if err != nil {
		return nil, err
	}
	replies, err := r.read.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, gone(err)
	}
	var out []storedRule
	for _, m := range replies {
		if len(m.Data) < 4 {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return nil, err
		}
		ad.ByteOrder = binary.BigEndian
		var rule storedRule
		in := ""
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_CHAIN:
				in = ad.String()
			case unix.NFTA_RULE_HANDLE:
				rule.handle = ad.Uint64()
			case unix.NFTA_RULE_USERDATA:
				rule.comment, _ = userdata.GetString(ad.Bytes(), userdata.TypeComment)
			}
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
		if in == chain {
			out = append(out, rule)
		}
	}
	return out, nil
}

// Replace replaces our table by t in one transaction. If t is nil, it removes our table.
func (r *rules) Replace(t *plan.Table) error {
	r.conn.AddTable(ourTable) // the delete below would fail if there were no table
	r.conn.DelTable(ourTable)
	if t == nil {
		return r.conn.Flush()
	}
	r.conn.AddTable(ourTable)
	sets := map[string]*nftables.Set{}
	for i, s := range t.Sets {
		set := &nftables.Set{Table: ourTable, Name: s.Name, ID: uint32(i + 1)}
		switch s.Kind {
		case plan.IPv4Set:
			set.KeyType = nftables.TypeIPAddr
		case plan.IPv6Set:
			set.KeyType = nftables.TypeIP6Addr
		case plan.InterfaceSet:
			set.KeyType = nftables.TypeIFName
		}
		if err := r.conn.AddSet(set, nil); err != nil {
			return err
		}
		for part := range slices.Chunk(s.Elements, elementsPerMessage) {
			elements := make([]nftables.SetElement, len(part))
			for i, text := range part {
				elements[i].Key = interfaceName(text)
				if s.Kind != plan.InterfaceSet {
					a, err := netip.ParseAddr(text)
					if err != nil {
						return err
					}
					elements[i].Key = a.AsSlice()
				}
			}
			if err := r.conn.SetAddElements(set, elements); err != nil {
				return err
			}
		}
		sets[s.Name] = set
	}
	accept := nftables.ChainPolicyAccept
	for _, c := range t.Chains {
		chain := r.conn.AddChain(&nftables.Chain{
			Name: c.Name, Table: ourTable, Type: nftables.ChainType(c.Type), Hooknum: hooks[c.Hook],
			Priority: nftables.ChainPriorityRef(nftables.ChainPriority(c.Priority)), Policy: &accept,
		})
		for _, rule := range c.Rules {
			r.conn.AddRule(&nftables.Rule{Table: ourTable, Chain: chain, Exprs: expressions(rule, sets), UserData: userdata.AppendString(nil, userdata.TypeComment, rule.Mark())})
		}
	}
	return r.conn.Flush()
}

// userMark returns the comment and the matches with which a UserRule is written to the chain DOCKER-USER.
func userMark(r plan.UserRule) (comment string, matches []plan.Match) {
	switch in, out := r.Interfaces(); {
	case in != "" && out != "":
		return "persys: VXLAN to " + out, []plan.Match{{Kind: plan.InInterface, Name: in}, {Kind: plan.OutInterface, Name: out}}
	case out != "":
		return "persys: ingress to " + out, []plan.Match{{Kind: plan.OutInterface, Name: out}}
	default:
		return "persys: ingress from " + in, []plan.Match{{Kind: plan.InInterface, Name: in}}
	}
}

// UserChain returns our rules in DOCKER-USER, sorted, and whether that chain exists in nftables.
func (r *rules) UserChain() (ours []plan.UserRule, exists bool, err error) {
	chains, err := r.conn.ListChainsOfTableFamily(userTable.Family)
	if err != nil {
		return nil, false, err
	}
	if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == plan.UserChain && c.Table.Name == userTable.Name }) {
		return nil, false, nil
	}
	list, err := r.comments(userTable, plan.UserChain)
	if err != nil {
		return nil, true, err
	}
	for _, rule := range list {
		for prefix, of := range map[string]func(string) plan.UserRule{
			"persys: VXLAN to ": plan.FromPeersTo, "persys: ingress to ": plan.AllTo, "persys: ingress from ": plan.AllFrom,
		} {
			if name, ok := strings.CutPrefix(rule.comment, prefix); ok {
				ours = append(ours, of(name))
			}
		}
	}
	slices.Sort(ours)
	return ours, true, nil
}

// Accept adds a rule at the head of DOCKER-USER. The rule uses neither a named set nor connection tracking, because
// iptables-save leaves out such conditions.
func (r *rules) Accept(of plan.UserRule) error {
	comment, matches := userMark(of)
	r.conn.InsertRule(&nftables.Rule{
		Table: userTable, Chain: userChain, Exprs: expressions(plan.Rule{Matches: matches, Verdict: plan.Accept}, nil), UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
	})
	return r.conn.Flush()
}

// DropAccept removes all copies of a rule from DOCKER-USER.
func (r *rules) DropAccept(of plan.UserRule) error {
	list, err := r.comments(userTable, plan.UserChain)
	if err != nil {
		return err
	}
	comment, _ := userMark(of)
	for _, rule := range list {
		if rule.comment == comment {
			if err := r.conn.DelRule(&nftables.Rule{Table: userTable, Chain: userChain, Handle: rule.handle}); err != nil {
				return err
			}
		}
	}
	return gone(r.conn.Flush())
}

// expressions translates a rule into the kernel's expressions. For each match, the value from the packet is
// loaded into register 1 and compared there.
func expressions(rule plan.Rule, sets map[string]*nftables.Set) []expr.Any {
	var out []expr.Any
	add := func(e ...expr.Any) { out = append(out, e...) }
	compare := func(m plan.Match, data []byte) {
		op := expr.CmpOpEq
		if m.Not {
			op = expr.CmpOpNeq
		}
		add(&expr.Cmp{Op: op, Register: 1, Data: data})
	}
	lookup := func(m plan.Match) {
		add(&expr.Lookup{SourceRegister: 1, SetName: m.Name, SetID: sets[m.Name].ID, Invert: m.Not})
	}
	meta := func(key expr.MetaKey, data ...byte) {
		add(&expr.Meta{Key: key, Register: 1})
		if data != nil {
			add(&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data})
		}
	}
	network := func(offset, length uint32) {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length})
	}
	bit := func(mask, want []byte, equal expr.CmpOp) {
		add(&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
			&expr.Cmp{Op: equal, Register: 1, Data: want})
	}
	for _, m := range rule.Matches {
		switch m.Kind {
		case plan.InInterface:
			meta(expr.MetaKeyIIFNAME)
			compare(m, interfaceName(m.Name))
		case plan.OutInterface:
			meta(expr.MetaKeyOIFNAME)
			compare(m, interfaceName(m.Name))
		case plan.InInterfaceSet:
			meta(expr.MetaKeyIIFNAME)
			lookup(m)
		case plan.OutInterfaceSet:
			meta(expr.MetaKeyOIFNAME)
			lookup(m)
		case plan.Source:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
			network(12, 4)
			mask := toNet(m.Prefix).Mask
			add(&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)})
			compare(m, m.Prefix.Addr().AsSlice())
		case plan.Destination:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
			network(16, 4)
			add(&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: toNet(m.Prefix).Mask, Xor: make([]byte, 4)})
			compare(m, m.Prefix.Addr().AsSlice())
		case plan.TCP:
			meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)
		case plan.Source4Set:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
			network(12, 4)
			lookup(m)
		case plan.Source6Set:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV6)
			network(8, 16)
			lookup(m)
		case plan.UDPPort:
			meta(expr.MetaKeyL4PROTO, unix.IPPROTO_UDP)
			add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
			compare(m, binaryutil.BigEndian.PutUint16(m.Port))
		case plan.Established:
			add(&expr.Ct{Key: expr.CtKeySTATE, Register: 1})
			bit(binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), make([]byte, 4), expr.CmpOpNeq)
		case plan.Translated:
			add(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1})
			set := expr.CmpOpNeq
			if m.Not {
				set = expr.CmpOpEq
			}
			bit(binaryutil.NativeEndian.PutUint32(statusDNAT), make([]byte, 4), set)
		case plan.NoWayBack:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
			add(&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true})
			compare(m, make([]byte, 4))
		case plan.ICMP:
			meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
			meta(expr.MetaKeyL4PROTO, unix.IPPROTO_ICMP)
		case plan.OpeningPacket:
			meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)
			add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1})
			bit([]byte{tcpSYN | tcpRST}, []byte{tcpSYN}, expr.CmpOpEq)
		}
	}
	switch rule.Verdict {
	case plan.Accept:
		add(&expr.Verdict{Kind: expr.VerdictAccept})
	case plan.Drop:
		add(&expr.Verdict{Kind: expr.VerdictDrop})
	case plan.Reset:
		add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	case plan.Reject:
		add(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	case plan.SNAT:
		add(&expr.Immediate{Register: 1, Data: rule.To.AsSlice()}, &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1})
	case plan.Masquerade:
		add(&expr.Masq{})
	case plan.ClampMSS:
		add(&expr.Rt{Register: 1, Key: expr.RtTCPMSS}, &expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: 1, Type: tcpOptionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt})
	}
	return out
}

const (
	statusDNAT   = 1 << 5 // IPS_DST_NAT of the kernel's connection tracking
	tcpSYN       = 2
	tcpRST       = 4
	tcpOptionMSS = 2
)

// interfaceName returns an interface name in the kernel's form: 16 bytes, padded with zeros.
func interfaceName(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out[:unix.IFNAMSIZ-1], name)
	return out
}
