package dnsserver

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/persys/compute/fsm"
)

// Builder keeps a zone up to date with the state. Only one goroutine may use a Builder; its zones may be used
// by any number.
type Builder struct {
	plan  *plan
	hints Hints
	view  fsm.View
	table *table

	schedulerNames []name // scheduler names that have records in the zone
	servers        []server

	nodes     map[string]*node       // registered nodes by id
	labels    map[string][]*node     // nodes by DNS label, sorted by id; several only if their ids have the same label
	reverse   map[netip.Addr][]*node // nodes by address, sorted by id
	instances map[string]*instance   // running instances by workload id
	services  map[string]*service    // services by DNS label
	dirty     map[string]struct{}    // labels of the services whose records must be made again
	// dirtyAddrs are the addresses whose PTR records must be made again at the end of the present update.
	dirtyAddrs map[netip.Addr]struct{}
}

// NewBuilder returns a Builder with the zone of the state v. Errors name the invalid fields of cfg.
func NewBuilder(cfg Config, v fsm.View, h Hints) (*Builder, error) {
	p, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	b := &Builder{plan: p, hints: h}
	b.Rebuild(v)
	return b, nil
}

// Rebuild makes the zone again from the state v. It is called after a snapshot is restored, or when the
// change feed no longer reaches back far enough.
func (b *Builder) Rebuild(v fsm.View) {
	b.view = v
	b.table = newTable()
	b.schedulerNames, b.servers = nil, nil
	b.nodes = make(map[string]*node, v.NodeCount())
	b.labels = make(map[string][]*node, v.NodeCount())
	b.reverse = make(map[netip.Addr][]*node, v.NodeCount())
	b.instances = make(map[string]*instance, v.StatusCount(fsm.StatusRunning))
	b.services = make(map[string]*service, v.StatusCount(fsm.StatusRunning))
	b.dirty = map[string]struct{}{}
	b.dirtyAddrs = map[netip.Addr]struct{}{}
	for _, apex := range b.plan.apexes {
		b.table.put(&entry{name: apex, apex: true})
	}
	for _, apex := range b.plan.apexes {
		b.link(apex)
	}
	b.placeSchedulers()
	v.Nodes("", func(n *fsm.Node) bool {
		b.placeNode(n.ID)
		return true
	})
	b.renderReverses()
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.Status == fsm.StatusRunning {
			b.placeInstance(w.ID)
		}
		return true
	})
	b.renderServices()
}

// Update applies changes of the feed; v is the state after the last of them. Changes may come twice and in any order:
// from a change Update takes only which object has changed, and reads the object from v.
func (b *Builder) Update(v fsm.View, changes []fsm.Change) {
	b.view = v
	schedulers := false
	nodes, workloads := map[string]struct{}{}, map[string]struct{}{}
	for i := range changes {
		switch c := &changes[i]; c.Table {
		case fsm.TableReplica:
			schedulers = true
		case fsm.TableNode:
			nodes[c.Key] = struct{}{}
		case fsm.TableWorkload:
			// The zone contains only workloads that serve (that run and pass their health checks). So skip a workload
			// that serves neither before nor after the change.
			if was, now := c.OldWorkload(), c.NewWorkload(); was != nil && serving(was) || now != nil && serving(now) {
				workloads[c.Key] = struct{}{}
			}
		}
	}
	if schedulers {
		b.placeSchedulers()
	}
	for id := range nodes {
		if b.placeNode(id) {
			// The records of workloads on the node contain the node's address, so they change too.
			v.WorkloadsOn(id, func(w *fsm.Workload) bool {
				workloads[w.ID] = struct{}{}
				return true
			})
		}
	}
	b.renderReverses()
	for id := range workloads {
		b.placeInstance(id)
	}
	b.renderServices()
}

// SetHints replaces the hints and makes the records of the schedulers again.
func (b *Builder) SetHints(h Hints) {
	b.hints = h
	b.placeSchedulers()
}

// Zone returns the newest zone. It never changes.
func (b *Builder) Zone() *Zone {
	z := &Zone{
		plan: b.plan, seed: b.table.seed, root: b.table.root, names: b.table.len,
		index: b.view.Info().Index, servers: b.servers,
	}
	if b.hints.Partitioned {
		z.cap = b.plan.ttl.short
	}
	b.table.seal()
	return z
}

// set replaces the records of a name; an empty list removes the name. If standalone is true, the name becomes
// the apex of a zone.
func (b *Builder) set(n name, sets []rrset, standalone bool) {
	old := b.table.get(n)
	if old == nil && len(sets) == 0 {
		return
	}
	e := &entry{name: n, sets: sets}
	if old != nil {
		e.sub, e.apex, e.zone = old.sub, old.apex, old.zone
	}
	if standalone {
		e.apex = len(sets) > 0
	} else if old == nil {
		e.zone = b.zoneOf(n)
	}
	b.table.put(e)
	if standalone {
		return
	}
	switch {
	case old == nil:
		b.link(n)
	case e.empty():
		b.unlink(n)
	}
}

// zoneOf returns the offset in the name n at which the name of its zone (the apex) starts.
func (b *Builder) zoneOf(n name) uint8 {
	for _, apex := range b.plan.apexes {
		if n.within(apex) {
			return uint8(len(n) - len(apex))
		}
	}
	return 0
}

func (b *Builder) inZone(n name) bool {
	return slices.ContainsFunc(b.plan.apexes, n.within)
}

// link creates the missing ancestors of a new name as names without records (empty non-terminals, RFC 4592,
// 2.2.2).
func (b *Builder) link(n name) {
	for n = n.parent(); b.inZone(n); n = n.parent() {
		old := b.table.get(n)
		e := &entry{name: n, zone: b.zoneOf(n)}
		if old != nil {
			*e = *old
		}
		e.sub++
		b.table.put(e)
		if old != nil {
			return
		}
	}
}

// unlink removes the ancestors of a removed name that have no other descendants.
func (b *Builder) unlink(n name) {
	for n = n.parent(); b.inZone(n); n = n.parent() {
		e := *b.table.get(n)
		e.sub--
		b.table.put(&e)
		if !e.empty() {
			return
		}
	}
}

// endpoint is the address of a listener: an IP address, or a host name that another DNS server
// resolves (used as an SRV target, never as a CNAME).
type endpoint struct {
	addr netip.Addr
	host name
	port uint16 // port number; 0 = unknown
}

// parseEndpoint reads "host:port" or "host". It returns the zero endpoint for an unreachable address
// such as 0.0.0.0.
func parseEndpoint(s string) endpoint {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, ""
	}
	var e endpoint
	if p, err := strconv.ParseUint(port, 10, 16); err == nil {
		e.port = uint16(p)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if e.addr = usable(a); !e.addr.IsValid() {
			return endpoint{}
		}
		return e
	}
	if e.host, err = parseName(host); err != nil {
		return endpoint{}
	}
	return e
}

// usable returns a in the form that DNS records use: without an IPv6 zone (interface name). It returns the
// zero Addr for an unspecified or multicast address.
func usable(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}
	}
	return a
}

// appendOne appends a to list, unless a is invalid or already in list.
func appendOne(list []netip.Addr, a netip.Addr) []netip.Addr {
	if !a.IsValid() || slices.Contains(list, a) {
		return list
	}
	return append(list, a)
}
