package overlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
)

// Balancer writes the nftables table of services (plan.ServiceTable) and deletes entries of the kernel's connection
// tracking. Its methods are called by one goroutine at a time.
type Balancer struct {
	// Owner is the name of the nftables set that marks the table as one of this agent (plan.Owner makes the
	// name).
	Owner string
	// Bridged is true if the kernel's connection tracking sees packets between the ports of a bridge (between
	// containers of this machine).
	Bridged bool

	rules   *rules
	flows   *netlink.Handle
	sockets *sockets
	tables  serviceTables
	// have is the content of the kernel's table as far as this process knows; nil if it is unknown. sizes
	// holds the names of the chains slots_K and ports_K in the table.
	have  *plan.Balance
	sizes map[string]bool
	// former holds the ports in ingress mode that were in the table at any time since the last call of Forget.
	// Their connection tracking entries may have to be deleted.
	former map[workload.IngressPort]bool
}

// OpenBalancer returns a Balancer. It opens the netlink sockets in the network namespace of the calling thread.
func OpenBalancer() (*Balancer, error) {
	rules, err := openRules()
	if err != nil {
		return nil, err
	}
	flows, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		rules.Close()
		return nil, fmt.Errorf("opening a netlink socket for connection tracking: %w", err)
	}
	sockets, err := openSockets()
	if err != nil {
		rules.Close()
		flows.Close()
		return nil, err
	}
	return &Balancer{rules: rules, flows: flows, sockets: sockets, tables: newServiceTables(), former: map[workload.IngressPort]bool{}}, nil
}

func (b *Balancer) Close() {
	b.sockets.Close()
	b.rules.Close()
	b.flows.Close()
}

// serviceTables holds the definitions of the nftables table for services (plan.ServiceTable), and of its sets
// and maps.
type serviceTables struct {
	table                        *nftables.Table
	blocks, own, services, slots *nftables.Set
	ports, portSlots, inside     *nftables.Set
}

func newServiceTables() serviceTables {
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: plan.ServiceTable}
	set := func(id uint32, name string, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, ID: id, Name: name, KeyType: nftables.MustConcatSetType(key...), Concatenation: len(key) > 1}
	}
	t := serviceTables{
		table: table, blocks: set(1, "blocks", nftables.TypeIFName, nftables.TypeIPAddr), own: set(2, "own", nftables.TypeIPAddr, nftables.TypeIPAddr),
		services: set(3, "services", nftables.TypeIPAddr), slots: set(4, "slots", nftables.TypeIPAddr, nftables.TypeMark),
		ports: set(6, "ports", nftables.TypeInetProto, nftables.TypeInetService), inside: set(8, "inside", nftables.TypeIPAddr),
		portSlots: set(7, "port_slots", nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark),
	}
	t.ports.IsMap, t.ports.DataType = true, nftables.TypeVerdict
	t.portSlots.IsMap, t.portSlots.DataType = true, nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	t.services.IsMap, t.services.DataType = true, nftables.TypeVerdict
	t.slots.IsMap, t.slots.DataType = true, nftables.TypeIPAddr
	return t
}

// serviceBits is the prefix length of the blocks that hold service addresses (plan.Block). The rule of the
// chain prerouting compares this many bits of an address.
const serviceBits = 26

// 32-bit registers of nftables.
const (
	reg0 = unix.NFT_REG32_00 + iota
	reg1
	reg2
	reg3
	reg4
)

const (
	hairpinRule = "an instance calls its own service"
	bridgeRule  = "clients on the bridge of the instance"
)

// chains returns the chains whose rules never change. The chains prerouting and output must run before those of
// the container engine, which have priority -100.
func (b *Balancer) chains() []*nftables.Chain {
	base := func(name string, hook *nftables.ChainHook, priority int) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: b.tables.table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority))}
	}
	const before, after = -105, 95
	return []*nftables.Chain{
		{Name: "balance", Table: b.tables.table}, {Name: "ingress", Table: b.tables.table},
		base("prerouting", nftables.ChainHookPrerouting, before), base("output", nftables.ChainHookOutput, before), base("hairpin", nftables.ChainHookPostrouting, after),
	}
}

// fixedRule is a rule that never changes, with its comment.
type fixedRule struct {
	comment string
	exprs   []expr.Any
}

// fixed returns the rules of a chain with fixed rules.
func (b *Balancer) fixed(chain string) []fixedRule {
	source := &expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	destination := func(register uint32) *expr.Payload {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	}
	goTo := func(chain string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }
	in := func(s *nftables.Set, not bool) *expr.Lookup {
		return &expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID, Invert: not}
	}
	verdict := func(s *nftables.Set) *expr.Lookup {
		return &expr.Lookup{SourceRegister: reg0, DestRegister: 0, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}
	}
	switch chain {
	case "balance":
		return []fixedRule{{"one element for each service", []expr.Any{destination(reg0), verdict(b.tables.services)}}}
	case "ingress":
		return []fixedRule{{"one element for each port in ingress mode", append(portKey(), verdict(b.tables.ports))}}
	case "prerouting":
		mask := toNet(netip.PrefixFrom(netip.AddrFrom4([4]byte{}), serviceBits)).Mask
		return []fixedRule{
			{"the addresses of this machine, except those in networks", []expr.Any{
				&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
				destination(reg0), in(b.tables.inside, true), goTo("ingress"),
			}},
			{"containers reach the services of their networks", []expr.Any{
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0}, destination(reg4),
				&expr.Bitwise{SourceRegister: reg4, DestRegister: reg4, Len: 4, Mask: mask, Xor: make([]byte, 4)}, in(b.tables.blocks, false), goTo("balance"),
			}},
		}
	case "output":
		return []fixedRule{
			{"this machine reaches its own addresses, except those in networks and 127.0.0.0/8", []expr.Any{
				&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
				destination(reg0), in(b.tables.inside, true),
				&expr.Bitwise{SourceRegister: reg0, DestRegister: reg1, Len: 4, Mask: []byte{255, 0, 0, 0}, Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{127, 0, 0, 0}}, goTo("ingress"),
			}},
			{"this machine reaches all services", []expr.Any{goTo("balance")}},
		}
	}
	if b.Bridged {
		return []fixedRule{{hairpinRule, []expr.Any{source, destination(reg1), in(b.tables.own, false), &expr.Masq{}}}}
	}
	// Without connection tracking on the bridge, the instance would answer the client from its own address
	// and not from the address of the service. So give packets to the instance an address of this machine as
	// their source: the instance then answers to this machine.
	translated := make([]byte, 4)
	return []fixedRule{{bridgeRule, []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(statusDNAT), Xor: translated},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: translated},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(bridgePrefix)},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(bridgePrefix)}, &expr.Masq{},
	}}}
}

// portKey loads the protocol of a packet into reg0 and its destination port into reg1.
func portKey() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg0},
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// bridgePrefix is the prefix of the names of our bridges.
const bridgePrefix = "ps"

func sizeChain(slots int) string { return fmt.Sprintf("slots_%d", slots) }

func portChain(slots int) string { return fmt.Sprintf("ports_%d", slots) }

// addSize adds the chain slots_K or ports_K of this name with its rule, if the table does not have
// it.
func (b *Balancer) addSize(name string, rule []expr.Any) {
	if b.sizes[name] {
		return
	}
	b.sizes[name] = true
	chain := b.rules.conn.AddChain(&nftables.Chain{Name: name, Table: b.tables.table})
	b.rules.conn.AddRule(&nftables.Rule{Table: b.tables.table, Chain: chain, Exprs: rule})
}

// ofService returns the rule that translates the address of a service to the address of a random
// instance.
func (b *Balancer) ofService(slots int) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Numgen{Register: reg1, Modulus: uint32(slots), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: b.tables.slots.Name, SetID: b.tables.slots.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg0},
	}
}

// ofPort returns the rule that translates a port in ingress mode to the address and port of a
// random instance.
func (b *Balancer) ofPort(slots int) []expr.Any {
	return append(portKey(),
		&expr.Numgen{Register: reg2, Modulus: uint32(slots), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: b.tables.portSlots.Name, SetID: b.tables.portSlots.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg0, RegProtoMin: reg1, Specified: true})
}

// Apply changes the table so that it has the content want. It writes only the differences from the present
// content. If the present content is not known, it replaces the table. In both cases it uses one transaction.
// Open connections are not affected.
func (b *Balancer) Apply(want plan.Balance) error {
	if b.have == nil {
		return b.replace(want)
	}
	change := b.have.To(want)
	if change.Empty() {
		return nil
	}
	if err := b.write(change); err != nil {
		b.have = nil
		return err
	}
	b.have = &want
	return nil
}

// replace replaces the table of services in the kernel by a new one with the content want.
func (b *Balancer) replace(want plan.Balance) error {
	c := b.rules.conn
	c.AddTable(b.tables.table) // make sure that the table exists, because the delete of a missing table fails
	c.DelTable(b.tables.table)
	c.AddTable(b.tables.table)
	for _, s := range []*nftables.Set{b.tables.blocks, b.tables.own, b.tables.services, b.tables.slots, b.tables.ports, b.tables.portSlots, b.tables.inside,
		{Table: b.tables.table, ID: 5, Name: b.Owner, KeyType: nftables.TypeIFName}} {
		if err := c.AddSet(s, nil); err != nil {
			return err
		}
	}
	for _, chain := range b.chains() {
		c.AddChain(chain)
	}
	for _, chain := range b.chains() {
		for _, r := range b.fixed(chain.Name) {
			c.AddRule(&nftables.Rule{Table: b.tables.table, Chain: chain, Exprs: r.exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment)})
		}
	}
	b.sizes = map[string]bool{}
	if err := b.write(plan.Balance{}.To(want)); err != nil {
		return err
	}
	b.have = &want
	return nil
}

// Drop removes the table, if there is one.
func (b *Balancer) Drop() error {
	b.have = nil
	b.rules.conn.AddTable(b.tables.table)
	b.rules.conn.DelTable(b.tables.table)
	return b.rules.conn.Flush()
}

// write adds the map elements that a change removes and adds to the nftables transaction, and commits the
// transaction.
func (b *Balancer) write(change plan.BalanceChange) error {
	for _, s := range change.AddSizes {
		b.addSize(sizeChain(s.Slots), b.ofService(s.Slots))
	}
	for _, s := range change.AddPorts {
		b.addSize(portChain(s.Slots), b.ofPort(s.Slots))
		b.former[s.Front] = true
	}
	t := b.tables
	err := errors.Join(
		b.elements(t.ports, false, convertTo(change.DropPorts, portSizeElement)), b.elements(t.portSlots, false, convertTo(change.DropPortSlots, portSlotElement)),
		b.elements(t.inside, false, convertTo(change.DropInside, insideElement)), b.elements(t.inside, true, convertTo(change.AddInside, insideElement)),
		b.elements(t.portSlots, true, convertTo(change.AddPortSlots, portSlotElement)), b.elements(t.ports, true, convertTo(change.AddPorts, portSizeElement)),
		b.elements(t.services, false, convertTo(change.DropSizes, sizeElement)), b.elements(t.slots, false, convertTo(change.DropSlots, slotElement)),
		b.elements(t.blocks, false, convertTo(change.DropBlocks, blockElement)), b.elements(t.own, false, convertTo(change.DropOwn, ownElement)),
		b.elements(t.blocks, true, convertTo(change.AddBlocks, blockElement)), b.elements(t.own, true, convertTo(change.AddOwn, ownElement)),
		b.elements(t.slots, true, convertTo(change.AddSlots, slotElement)), b.elements(t.services, true, convertTo(change.AddSizes, sizeElement)))
	return errors.Join(err, b.rules.conn.Flush())
}

func (b *Balancer) elements(s *nftables.Set, add bool, list []nftables.SetElement) error {
	for part := range slices.Chunk(list, elementsPerMessage) {
		var err error
		if add {
			err = b.rules.conn.SetAddElements(s, part)
		} else {
			err = b.rules.conn.SetDeleteElements(s, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func convertTo[T any](list []T, f func(T) nftables.SetElement) []nftables.SetElement {
	out := make([]nftables.SetElement, len(list))
	for i, x := range list {
		out[i] = f(x)
	}
	return out
}

func sizeElement(s plan.Size) nftables.SetElement {
	return nftables.SetElement{Key: s.Front.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: sizeChain(s.Slots)}}
}

func slotElement(s plan.Slot) nftables.SetElement {
	return nftables.SetElement{Key: append(s.Front.AsSlice(), binaryutil.NativeEndian.PutUint32(s.Number)...), Val: s.Instance.AsSlice()}
}

func blockElement(x plan.Block) nftables.SetElement {
	return nftables.SetElement{Key: append(interfaceName(x.Bridge), x.Prefix.Addr().AsSlice()...)}
}

func ownElement(a netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: append(a.AsSlice(), a.AsSlice()...)}
}

func insideElement(a netip.Addr) nftables.SetElement { return nftables.SetElement{Key: a.AsSlice()} }

// portKeyOf returns protocol and port in the form that they have in nftables registers, four bytes
// each.
func portKeyOf(p workload.IngressPort) []byte {
	key := []byte{unix.IPPROTO_TCP, 0, 0, 0, byte(p.Port >> 8), byte(p.Port), 0, 0}
	if p.UDP {
		key[0] = unix.IPPROTO_UDP
	}
	return key
}

// portOfKey returns the port from a key that begins with the bytes of portKeyOf.
func portOfKey(key []byte) workload.IngressPort {
	return workload.IngressPort{Port: uint16(key[4])<<8 | uint16(key[5]), UDP: key[0] == unix.IPPROTO_UDP}
}

func portSizeElement(s plan.PortSize) nftables.SetElement {
	return nftables.SetElement{Key: portKeyOf(s.Front), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: portChain(s.Slots)}}
}

func portSlotElement(s plan.PortSlot) nftables.SetElement {
	value := append(s.Instance.Addr().AsSlice(), byte(s.Instance.Port()>>8), byte(s.Instance.Port()), 0, 0)
	return nftables.SetElement{Key: append(portKeyOf(s.Front), binaryutil.NativeEndian.PutUint32(s.Number)...), Val: value}
}

// Exists reports whether the kernel has a table of services. other is the owner set of the agent to which
// that table belongs; "" if it does not belong to another agent.
func (b *Balancer) Exists() (exists bool, other string, err error) {
	tables, err := b.rules.conn.ListTablesOfFamily(b.tables.table.Family)
	if err != nil {
		return false, "", err
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == plan.ServiceTable }) {
		return false, "", nil
	}
	sets, err := b.rules.conn.GetSets(b.tables.table)
	if err != nil {
		return true, "", err
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Name, plan.OwnerPrefix) && s.Name != b.Owner {
			other = s.Name
		}
	}
	return true, other, nil
}

// Read reads the table from the kernel, so that Apply can write only differences. If another program changed
// the table in a way that Apply cannot repair, Read marks the content as unknown, and the next Apply replaces
// the table.
func (b *Balancer) Read() error {
	b.have = nil
	exists, _, err := b.Exists()
	if err != nil || !exists {
		return err
	}
	chains, err := b.rules.conn.ListChainsOfTableFamily(b.tables.table.Family)
	if err != nil {
		return err
	}
	seen, sizes := map[string]bool{}, map[string]bool{}
	for _, c := range chains {
		if c.Table.Name != plan.ServiceTable {
			continue
		}
		list, err := b.rules.comments(b.tables.table, c.Name)
		if err != nil {
			return err
		}
		if strings.HasPrefix(c.Name, "slots_") || strings.HasPrefix(c.Name, "ports_") {
			if len(list) != 1 {
				return nil
			}
			sizes[c.Name] = true
			continue
		}
		if !slices.EqualFunc(list, b.fixed(c.Name), func(x storedRule, y fixedRule) bool { return x.comment == y.comment }) {
			return nil
		}
		seen[c.Name] = true
	}
	for _, c := range b.chains() {
		if !seen[c.Name] {
			return nil
		}
	}
	var have plan.Balance
	if have, err = b.content(); err != nil {
		return err
	}
	for _, x := range have.Services {
		if !sizes[sizeChain(len(x.Endpoints))] {
			return nil
		}
	}
	for _, x := range have.Ports {
		if !sizes[portChain(len(x.Endpoints))] {
			return nil
		}
		b.former[x.IngressPort] = true
	}
	b.have, b.sizes = &have, sizes
	return nil
}

// content reads the elements of the table's maps and sets from the kernel. The map services can be derived from
// the map slots, so content only checks that both have the same services.
func (b *Balancer) content() (out plan.Balance, err error) {
	read := func(s *nftables.Set, each func(e nftables.SetElement)) {
		list, fault := b.rules.conn.GetSetElements(s)
		err = cmp.Or(err, fault)
		for _, e := range list {
			each(e)
		}
	}
	address := func(raw []byte) netip.Addr {
		a, _ := netip.AddrFromSlice(raw)
		return a
	}
	var slots []plan.Slot
	read(b.tables.slots, func(e nftables.SetElement) {
		if len(e.Key) == 8 {
			slots = append(slots, plan.Slot{Front: address(e.Key[:4]), Number: binaryutil.NativeEndian.Uint32(e.Key[4:]), Instance: address(e.Val)})
		}
	})
	gap := eachFront("slots", slots, netip.Addr.Compare, func(at netip.Addr, instances []netip.Addr) {
		out.Services = append(out.Services, workload.NetworkService{Address: at, Endpoints: instances})
	})
	if gap != nil {
		return out, gap
	}
	services := 0
	read(b.tables.services, func(e nftables.SetElement) {
		services++
		if len(endpoints(out, address(e.Key))) == 0 {
			err = cmp.Or(err, fmt.Errorf("the map services has %s without slots", address(e.Key)))
		}
	})
	if err == nil && services != len(out.Services) {
		err = fmt.Errorf("the map services has %d elements, but the map slots has slots of %d services", services, len(out.Services))
	}
	if err == nil {
		err = portContent(b, &out, read)
	}
	read(b.tables.inside, func(e nftables.SetElement) { out.Inside = append(out.Inside, address(e.Key)) })
	slices.SortFunc(out.Inside, netip.Addr.Compare)
	read(b.tables.own, func(e nftables.SetElement) {
		if len(e.Key) == 8 {
			out.Own = append(out.Own, address(e.Key[:4]))
		}
	})
	read(b.tables.blocks, func(e nftables.SetElement) {
		if len(e.Key) == unix.IFNAMSIZ+4 {
			name, _, _ := strings.Cut(string(e.Key[:unix.IFNAMSIZ]), "\x00")
			out.Blocks = append(out.Blocks, plan.Block{Bridge: name, Prefix: netip.PrefixFrom(address(e.Key[unix.IFNAMSIZ:]), serviceBits)})
		}
	})
	slices.SortFunc(out.Own, netip.Addr.Compare)
	plan.SortBlocks(out.Blocks)
	return out, err
}

// eachFront calls fn for each front (a service or a port in ingress mode) in a map of slots, in the order of compare,
// with the front's instances in the order of their slots. It returns an error if the slots of a front are not
// numbered without gaps.
func eachFront[F, I any](name string, slots []plan.SlotOf[F, I], compare func(F, F) int, fn func(F, []I)) error {
	slices.SortFunc(slots, func(x, y plan.SlotOf[F, I]) int {
		return cmp.Or(compare(x.Front, y.Front), cmp.Compare(x.Number, y.Number))
	})
	for len(slots) > 0 {
		at := slots[0].Front
		var instances []I
		for ; len(slots) > 0 && compare(slots[0].Front, at) == 0; slots = slots[1:] {
			if int(slots[0].Number) != len(instances) {
				return fmt.Errorf("the map %s has no slot %d of %v", name, len(instances), at)
			}
			instances = append(instances, slots[0].Instance)
		}
		fn(at, instances)
	}
	return nil
}

// portContent reads the ports in ingress mode. The map ports can be derived from the map port_slots, so
// portContent only checks that both have the same ports.
func portContent(b *Balancer, out *plan.Balance, read func(*nftables.Set, func(nftables.SetElement))) (err error) {
	var slots []plan.PortSlot
	read(b.tables.portSlots, func(e nftables.SetElement) {
		if len(e.Key) == 12 && len(e.Val) >= 6 {
			a, _ := netip.AddrFromSlice(e.Val[:4])
			slots = append(slots, plan.PortSlot{Front: portOfKey(e.Key), Number: binaryutil.NativeEndian.Uint32(e.Key[8:]), Instance: netip.AddrPortFrom(a, uint16(e.Val[4])<<8|uint16(e.Val[5]))})
		}
	})
	gap := eachFront("port_slots", slots, workload.IngressPort.Compare, func(at workload.IngressPort, instances []netip.AddrPort) {
		out.Ports = append(out.Ports, workload.NetworkIngress{IngressPort: at, Endpoints: instances})
	})
	if gap != nil {
		return gap
	}
	ports := 0
	read(b.tables.ports, func(e nftables.SetElement) {
		ports++
		if len(e.Key) != 8 || !slices.ContainsFunc(out.Ports, func(x workload.NetworkIngress) bool { return x.IngressPort == portOfKey(e.Key) }) {
			err = cmp.Or(err, fmt.Errorf("the map ports has %x without slots", e.Key))
		}
	})
	if err == nil && ports != len(out.Ports) {
		err = fmt.Errorf("the map ports has %d elements, but the map port_slots has slots of %d ports", ports, len(out.Ports))
	}
	return err
}

// Forget deletes the connection tracking entries of services and of ports in ingress mode for which plan.Stale or
// plan.StalePort returns true. It returns the number of deleted entries.
func (b *Balancer) Forget(s workload.ServiceView) (int, error) {
	if b.have == nil {
		return 0, nil
	}
	n, err := b.flows.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, staleFlows{s, *b.have, b.former})
	if err == nil {
		b.former = map[workload.IngressPort]bool{}
		for _, x := range b.have.Ports {
			b.former[x.IngressPort] = true
		}
	}
	return int(n), err
}

// staleFlows selects tracked connections.
type staleFlows struct {
	view  workload.ServiceView
	have  plan.Balance
	ports map[workload.IngressPort]bool // ports in ingress mode, also former ones
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter: it reports whether a tracked connection must be
// deleted.
func (f staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	asked, instance := toAddr(flow.Forward.DstIP), toAddr(flow.Reverse.SrcIP)
	tcp := flow.Forward.Protocol == unix.IPPROTO_TCP
	if f.have.Has(asked) {
		return asked != instance && plan.Stale(f.view, asked, instance, tcp)
	}
	at := workload.IngressPort{Port: flow.Forward.DstPort, UDP: flow.Forward.Protocol == unix.IPPROTO_UDP}
	if !tcp && !at.UDP || !f.ports[at] {
		return false
	}
	if asked == instance && toAddr(flow.Reverse.DstIP) != toAddr(flow.Forward.SrcIP) {
		return false // not a connection to an ingress port: a container calls another machine, with this machine's source address
	}
	return plan.StalePort(f.view, f.have, at, netip.AddrPortFrom(instance, flow.Reverse.SrcPort))
}

// left reports whether tracked connections may have to be deleted after the table changed from was to next: an
// instance left a service or port, a service or port was removed, or a port got its first instance.
func left(was *plan.Balance, next plan.Balance) bool {
	if was == nil {
		return true
	}
	c := was.To(next)
	return len(c.DropSlots)+len(c.DropPortSlots)+len(c.AddPorts) > 0
}

// endpoints returns the addresses of the instances of a service, whose address is service; nil if it has none.
func endpoints(b plan.Balance, service netip.Addr) []netip.Addr {
	i, found := slices.BinarySearchFunc(b.Services, service, func(x workload.NetworkService, a netip.Addr) int { return x.Address.Compare(a) })
	if !found {
		return nil
	}
	return b.Services[i].Endpoints
}
