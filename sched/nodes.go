package sched

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
)

// Load is measured in parts. A part is a millionth of a node.
const (
	whole       = 1_000_000 // the load of a full node, in parts
	perWorkload = 10        // load that each workload adds, in parts, so that workloads without demands are spread too
	noTotals    = 1_000_000_000
)

// maxClasses is the maximum number of cached demand classes. When it is reached, all of them are dropped.
const maxClasses = 512

// nodeIndex holds every node in parallel arrays, indexed by slot. The slot of a node is its number in these
// arrays. Slots are sorted by a hash of the node's id and form a ring. Among equal nodes, a workload gets the
// first node clockwise from its own hash. So the choice does not depend on the order of registration, and
// equal nodes share the load.
type nodeIndex struct {
	policy Policy
	seed   uint64

	recs   []*fsm.Node
	slotOf map[string]int32
	ring   []uint64 // hash of the node id; the array is sorted by it

	cpu, usedCPU []int64 // CPU in millicores
	mem, usedMem []int64 // memory in MiB
	disk         []int64 // disk in GB, of all pools together
	usedDisk     []int64
	pools        [][]pool
	devices      [][]devices               // counted devices, by node
	policies     [][]*policy.Policy        // policies that are bound to the labels of each node
	bound        []*policy.Policy          // all policies that are bound to a node
	pooled       map[string]*fsm.Namespace // the namespaces that require labels of their nodes
	workloads    []int32
	hot          []hot

	ready    bitset // slots of the nodes that may get new workloads
	unlisted filter // the reason why a schedulable node may be missing from ready
	nobody   bitset // an empty set that never changes

	sizes    []size
	added    []int64 // scratch: share of a node that the present demand takes, for each size class
	bySize   map[size]int32
	shapes   []shape
	byShape  map[string]int32
	few      []string         // sorted keys of labels that have few different values; only these labels are part of a shape
	poolIDs  map[string]int32 // number of each storage pool name, for fast comparisons
	wantPool int32            // storage pool of the present demand: anyPool, or a pool number
	in       *fsm.Namespace   // namespace of the present demand; nil if it requires no labels of its nodes

	classes map[string]*class

	engines map[string][]int32
	ports   map[fsm.HostPort]bitset         // for each port that any demand has named: the slots of nodes on which the port is in use
	alike   map[fsm.HostPort][]fsm.HostPort // known ports by number and protocol; those with different addresses may collide

	key      []byte              // scratch: key of the present demand's class
	busy     []bitset            // scratch: for each port of the present demand, the slots where the port is taken; see prepare
	slots    []int32             // scratch: listed slots, see search
	networks []joined            // scratch: networks of the present demand; see prepare
	now      int64               // time of the step, Unix nanoseconds; 0 = the clock of the state
	sliced   map[uint32][]string // by network: nodes without a slice to which this step has assigned a member

	rules      rules // scratch: the rules of the present demand, see rules.go
	topologies map[string]*topology
	listings   uint64 // changes whenever a node begins or ceases to be ready
}

type pool struct {
	name        string
	total, used int64 // GB
}

// devices is the number of devices of one kind that a node has, or that are in use on it.
type devices struct {
	name        string
	total, used int64
}

// countDevices returns how many devices of a node a demand for the device name may use (total), and how many of these
// devices are reserved (used).
func (x *nodeIndex) countDevices(s int32, name string) (total, used int64) {
	for i := range x.devices[s] {
		d := &x.devices[s][i]
		if fsm.Offers(d.name, name) {
			total += d.total
		}
		if fsm.Shares(d.name, name) {
			used += d.used
		}
	}
	return total, used
}

// lacksDevices reports whether a node does not have the devices that a workload demands.
func (x *nodeIndex) lacksDevices(s int32, want fsm.DeviceCount) bool {
	total, used := x.countDevices(s, want.Name)
	return want.Lacks(total-used, total)
}

// takeDevices adds the numbers of devices in list to those that are reserved on a node, or subtracts them (sign -1).
func (x *nodeIndex) takeDevices(s int32, list []fsm.DeviceCount, sign int64) {
	x.devices[s] = takeDevices(x.devices[s], list, sign)
}

func takeDevices(have []devices, list []fsm.DeviceCount, sign int64) []devices {
	for _, d := range list {
		i := slices.IndexFunc(have, func(h devices) bool { return h.name == d.Name })
		if i < 0 {
			i, have = len(have), append(have, devices{name: d.Name})
		}
		have[i].used += sign * d.Count
	}
	return have
}

// overbooked reports whether more devices with a name are reserved than a node has. A node with several kinds of GPUs
// may give GPUs of any kind from each of them.
func overbooked(have []devices, name string) bool {
	var left int64
	for _, d := range have {
		if fsm.Offers(d.name, name) {
			left += d.total - d.used
		}
	}
	return left < 0
}

// hot holds those fields of a node that the search reads, next to each other in memory.
type hot struct {
	freeCPU, freeMem int64
	freeDisk         int64  // free GB of the node's first storage pool
	firstPool        int32  // number of the node's first storage pool in poolIDs; noPools if the node has none
	members          int32  // scratch: number of members of the present demand's group on the node
	place            int32  // scratch: verdict of the rules by host: 0 = none, -1 = rejected, n > 0 = costs n-1 parts
	load             uint32 // load in parts (millionths of a node), see loadOf
	shape            int32
}

const (
	anyPool = -1
	noPools = -2
)

// size is a size class of nodes: nodes whose totals of CPU, memory and disk are equal after
// roundDown belong to one class.
type size struct{ cpu, mem, disk int64 }

// shape holds, sorted by load, the schedulable nodes that have the same size class, workload types, storage
// drivers, taints and common labels. Most demands allow all nodes of a shape or none, so a search skips whole
// shapes.
type shape struct {
	size  int32
	order order
}

// class holds the result of the static filters (type, drivers, labels, constraints, taints) for every node.
// Demands with the same requirements share a class.
type class struct {
	allowed bitset
	avoid   bitset  // allowed nodes that have a PreferNoSchedule taint which the demand does not tolerate
	count   int     // number of nodes in the set allowed
	avoided int     // number of nodes in avoid
	plain   []int32 // for each shape: number of nodes in the set allowed but not in avoid
	shunned []int32 // for each shape: number of nodes in the set avoid
	soft    []int32 // for each slot: weights of the preferred node affinities that the node does not satisfy; nil = none

	eligible map[*topology]eligible
}

// fewValues is the largest number of different values that a label may have on all nodes to be part of a shape.
// maxShapes is the largest number of shapes.
const (
	fewValues = 8
	maxShapes = 256
)

func newNodeIndex(v fsm.View, t Tuning) *nodeIndex {
	x := &nodeIndex{
		policy:  t.Policy,
		seed:    t.Seed,
		bySize:  map[size]int32{},
		byShape: map[string]int32{},
		poolIDs: map[string]int32{},
		classes: map[string]*class{},
		sliced:  map[uint32][]string{},
		engines: map[string][]int32{},
		ports:   map[fsm.HostPort]bitset{},
		alike:   map[fsm.HostPort][]fsm.HostPort{},

		pooled:     pooledNamespaces(v),
		topologies: map[string]*topology{},
	}
	n := v.NodeCount()
	x.recs = make([]*fsm.Node, 0, n)
	hashes := make(map[string]uint64, n)
	v.Nodes("", func(r *fsm.Node) bool {
		x.recs = append(x.recs, r)
		hashes[r.ID] = hash(t.Seed, r.ID)
		return true
	})
	n = len(x.recs)
	slices.SortFunc(x.recs, func(a, b *fsm.Node) int {
		return cmp.Or(cmp.Compare(hashes[a.ID], hashes[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	x.slotOf = make(map[string]int32, n)
	x.ring = make([]uint64, n)
	x.cpu, x.usedCPU = make([]int64, n), make([]int64, n)
	x.mem, x.usedMem = make([]int64, n), make([]int64, n)
	x.disk, x.usedDisk = make([]int64, n), make([]int64, n)
	x.pools = make([][]pool, n)
	x.devices = make([][]devices, n)
	x.policies = make([][]*policy.Policy, n)
	x.workloads = make([]int32, n)
	x.hot = make([]hot, n)
	x.few = fewLabels(x.recs)
	x.ready, x.nobody = newBitset(n), newBitset(n)
	x.unlisted = notUp // this step has marked the node as down
	for i, r := range x.recs {
		s := int32(i)
		x.slotOf[r.ID] = s
		x.ring[s] = hashes[r.ID]
		x.setFacts(s, r)
		x.setPolicies(v, s)
		x.setAlloc(s, v.Alloc(r.ID))
		if r.Schedulable() {
			x.list(s)
		}
		x.engines[r.Engine()] = append(x.engines[r.Engine()], s)
	}
	return x
}

// setFacts copies the registered facts of a node into the arrays.
func (x *nodeIndex) setFacts(s int32, r *fsm.Node) {
	x.recs[s] = r
	x.cpu[s], x.mem[s], x.disk[s] = r.Facts.CPU, r.Facts.Memory, 0
	x.pools[s] = make([]pool, len(r.Facts.Pools))
	for i, p := range r.Facts.Pools {
		x.pools[s][i] = pool{name: p.Name, total: p.Total}
		x.disk[s] += p.Total
	}
	x.devices[s] = nil
	for _, d := range r.Facts.Devices {
		x.devices[s] = append(x.devices[s], devices{name: d.Name, total: d.Count})
	}
	x.hot[s].firstPool = noPools
	if len(x.pools[s]) > 0 {
		x.hot[s].firstPool = x.poolID(x.pools[s][0].name)
	}
	x.hot[s].shape = x.shapeOf(s)
}

// setPolicies copies into the arrays which policies apply to a node, by its labels.
func (x *nodeIndex) setPolicies(v fsm.View, s int32) {
	x.policies[s] = v.NodePolicies(x.recs[s])
	for _, p := range x.policies[s] {
		if !slices.Contains(x.bound, p) {
			x.bound = append(x.bound, p)
		}
	}
}

// fewLabels returns the keys of labels that have few different values on all nodes.
func fewLabels(recs []*fsm.Node) []string {
	values := map[string][]string{}
	var keys []string
	for _, r := range recs {
		for _, l := range r.Labels() {
			v, ok := values[l.Key]
			if !ok {
				keys = append(keys, l.Key)
			}
			if len(v) <= fewValues && !slices.Contains(v, l.Value) {
				values[l.Key] = append(v, l.Value)
			}
		}
	}
	slices.Sort(keys)
	return slices.DeleteFunc(keys, func(k string) bool { return len(values[k]) > fewValues })
}

// pooledNamespaces returns, by name, the namespaces whose workloads may run only on nodes with
// certain labels.
func pooledNamespaces(v fsm.View) map[string]*fsm.Namespace {
	out := map[string]*fsm.Namespace{}
	v.Namespaces(func(n *fsm.Namespace) bool {
		if len(n.NodeLabels) > 0 {
			out[n.Name] = n
		}
		return true
	})
	return out
}

func (x *nodeIndex) poolID(name string) int32 {
	id, ok := x.poolIDs[name]
	if !ok {
		id = int32(len(x.poolIDs))
		x.poolIDs[name] = id
	}
	return id
}

func (x *nodeIndex) shapeOf(s int32) int32 {
	z := size{roundDown(x.cpu[s]), roundDown(x.mem[s]), roundDown(x.disk[s])}
	zi, ok := x.bySize[z]
	if !ok {
		zi = int32(len(x.sizes))
		x.bySize[z] = zi
		x.sizes = append(x.sizes, z)
		x.added = append(x.added, 0)
	}
	f := &x.recs[s].Facts
	b := binary.AppendUvarint(x.key[:0], uint64(zi))
	str := func(s string) { b = append(append(b, s...), 0) }
	if len(x.shapes) < maxShapes {
		for _, t := range f.Types {
			str(t)
		}
		b = append(b, 1)
		for _, d := range f.StorageDrivers {
			str(d)
		}
		b = append(b, 2)
		for _, t := range x.recs[s].Taints() {
			str(t.Key)
			str(t.Value)
			str(t.Effect)
		}
		b = append(b, 3)
		for _, l := range x.recs[s].Labels() {
			if slices.Contains(x.few, l.Key) {
				str(l.Key)
				str(l.Value)
			}
		}
	}
	x.key = b
	i, ok := x.byShape[string(b)]
	if !ok {
		i = int32(len(x.shapes))
		x.byShape[string(b)] = i
		x.shapes = append(x.shapes, shape{size: zi})
	}
	return i
}

// setAlloc copies the reserved resources of a node into the arrays.
func (x *nodeIndex) setAlloc(s int32, a fsm.Alloc) {
	x.usedCPU[s], x.usedMem[s], x.usedDisk[s] = a.CPU, a.Memory, 0
	x.workloads[s] = int32(a.Workloads)
	for i := range x.pools[s] {
		x.pools[s][i].used = 0
	}
	for _, u := range a.Disk {
		x.usedDisk[s] += u.GB
		if p := x.pool(s, u.Pool); p != nil {
			p.used = u.GB
		}
	}
	for i := range x.devices[s] {
		x.devices[s][i].used = 0
	}
	x.takeDevices(s, a.Devices, +1)
	x.weigh(s)
}

// weigh computes the fields in hot of a node, such as its load and its free CPU, from its totals
// and its reserved resources.
func (x *nodeIndex) weigh(s int32) {
	h := &x.hot[s]
	h.freeCPU, h.freeMem = x.cpu[s]-x.usedCPU[s], x.mem[s]-x.usedMem[s]
	if ps := x.pools[s]; len(ps) > 0 {
		h.freeDisk = ps[0].total - ps[0].used
	}
	h.load = x.loadOf(s)
}

// pool returns a storage pool of a node by its name; "" means the first pool.
func (x *nodeIndex) pool(s int32, name string) *pool {
	ps := x.pools[s]
	if name == "" && len(ps) > 0 {
		return &ps[0]
	}
	for i := range ps {
		if ps[i].name == name {
			return &ps[i]
		}
	}
	return nil
}

// loadOf returns the load of a node in parts: the mean reserved share of CPU, memory and disk, as far as the
// node offers them, plus perWorkload for each workload.
func (x *nodeIndex) loadOf(s int32) uint32 {
	var sum, n int64
	add := func(used, total int64) {
		if total > 0 {
			sum += min(max(used, 0), 100*total) * whole / total
			n++
		}
	}
	add(x.usedCPU[s], x.cpu[s])
	add(x.usedMem[s], x.mem[s])
	add(x.usedDisk[s], x.disk[s])
	if n == 0 {
		return uint32(noTotals + int64(x.workloads[s])*perWorkload)
	}
	return uint32(sum/n + int64(x.workloads[s])*perWorkload)
}

// list adds a node to the sorted lists of nodes that may get new workloads. unlist removes it.
func (x *nodeIndex) list(s int32) {
	x.ready.set(s)
	x.listings++
	x.shapes[x.hot[s].shape].order.insert(x, s)
}

func (x *nodeIndex) unlist(s int32) {
	if x.ready.has(s) {
		x.ready.clear(s)
		x.listings++
		x.shapes[x.hot[s].shape].order.remove(x, s)
	}
}

// refresh reads the record of one node again. It reports whether a change matters for placement.
func (x *nodeIndex) refresh(v fsm.View, s int32) bool {
	r, ok := v.Node(x.recs[s].ID)
	if !ok {
		return true // the node arrays are out of date; the caller rebuilds them
	}
	old := x.recs[s]
	a := v.Alloc(r.ID)
	listed := x.ready.has(s)
	if old == r && listed == r.Schedulable() && x.sameAlloc(s, a) {
		return false
	}
	listings := x.listings
	x.unlist(s)
	if old != r {
		was := x.hot[s].shape
		x.setFacts(s, r)
		x.setPolicies(v, s)
		if was != x.hot[s].shape || !sameStatic(old, r) {
			clear(x.classes)
		}
		if !slices.Equal(old.Labels(), r.Labels()) {
			clear(x.topologies)
		}
	}
	x.setAlloc(s, a)
	if r.Schedulable() {
		x.list(s)
	}
	if listed == x.ready.has(s) {
		x.listings = listings
	}
	return true
}

func (x *nodeIndex) sameAlloc(s int32, a fsm.Alloc) bool {
	if x.usedCPU[s] != a.CPU || x.usedMem[s] != a.Memory || x.workloads[s] != int32(a.Workloads) {
		return false
	}
	held := 0
	for _, d := range x.devices[s] {
		if d.used == 0 {
			continue
		}
		if held++; !slices.Contains(a.Devices, fsm.DeviceCount{Name: d.name, Count: d.used}) {
			return false
		}
	}
	if held != len(a.Devices) {
		return false
	}
	var disk int64
	for _, u := range a.Disk {
		disk += u.GB
		if p := x.pool(s, u.Pool); p != nil && p.used != u.GB {
			return false
		}
	}
	return disk == x.usedDisk[s]
}

// sameStatic reports whether the static filters (those that read only the facts of a node) give the same
// result for two versions of a node.
func sameStatic(a, b *fsm.Node) bool {
	f, g := &a.Facts, &b.Facts
	return slices.Equal(f.Types, g.Types) && slices.Equal(a.Lacks, b.Lacks) && slices.Equal(f.StorageDrivers, g.StorageDrivers) &&
		slices.Equal(a.Labels(), b.Labels()) && slices.Equal(a.Taints(), b.Taints()) && f.SelfFencing == g.SelfFencing
}

// take reserves a demand on a node (sign +1) or releases it (-1), in the arrays and for the present
// step only.
func (x *nodeIndex) take(d *fsm.Demand, s int32, sign int64) {
	listed := x.ready.has(s)
	o := &x.shapes[x.hot[s].shape].order
	if listed {
		o.remove(x, s)
	}
	x.usedCPU[s] += sign * d.CPU
	x.usedMem[s] += sign * d.Memory
	if d.Disk != 0 {
		x.usedDisk[s] += sign * d.Disk
		if p := x.pool(s, d.Pool); p != nil {
			p.used += sign * d.Disk
		}
	}
	if len(d.Devices) > 0 {
		x.takeDevices(s, d.Devices, sign)
	}
	x.workloads[s] += int32(sign)
	x.weigh(s)
	if listed {
		o.insert(x, s)
	}
	for _, p := range d.Ports {
		for _, q := range x.alike[anyAddress(p)] {
			if !p.Collides(q) {
				continue
			}
			for _, e := range x.engines[x.recs[s].Engine()] {
				x.ports[q].put(e, sign > 0)
			}
		}
	}
}

func anyAddress(p fsm.HostPort) fsm.HostPort {
	p.Address = ""
	return p
}

// portUse returns the slots of the nodes on which host port p is taken. For a port that no demand has
// named before, it reads the use on every engine.
func (x *nodeIndex) portUse(v fsm.View, p fsm.HostPort) bitset {
	b, ok := x.ports[p]
	if !ok {
		b = newBitset(len(x.recs))
		for s, r := range x.recs {
			b.put(int32(s), portUsed(v, r, p))
		}
		x.ports[p] = b
		x.alike[anyAddress(p)] = append(x.alike[anyAddress(p)], p)
	}
	return b
}

// refreshPort reads again whether a port, and the ports that collide with it, are taken on one engine.
func (x *nodeIndex) refreshPort(v fsm.View, engine string, p fsm.HostPort) {
	for _, q := range x.alike[anyAddress(p)] {
		if !p.Collides(q) {
			continue
		}
		for _, s := range x.engines[engine] {
			x.ports[q].put(s, portUsed(v, x.recs[s], q))
		}
	}
}

// portUsed reports whether a host port of a node is reserved for a workload or used by a program of the cluster.
func portUsed(v fsm.View, n *fsm.Node, p fsm.HostPort) bool {
	w, _ := v.PortHolder(n.Engine(), p)
	return w != "" || fsm.PortUser(v, n, p) != ""
}

// classOf returns the class of a demand, and builds it if there is none yet.
func (x *nodeIndex) classOf(in *fsm.Namespace, d *fsm.Demand) *class {
	x.key = x.appendClassKey(x.key[:0], in, d)
	if c, ok := x.classes[string(x.key)]; ok {
		return c
	}
	if len(x.classes) >= maxClasses {
		clear(x.classes)
	}
	n := len(x.recs)
	c := &class{
		allowed: newBitset(n), avoid: newBitset(n),
		plain: make([]int32, len(x.shapes)), shunned: make([]int32, len(x.shapes)),
	}
	for i, r := range x.recs {
		s := int32(i)
		if x.static(in, d, s).filter != passes {
			continue
		}
		c.allowed.set(s)
		c.count++
		if _, ok := avoids(d, r); ok {
			c.avoid.set(s)
			c.avoided++
			c.shunned[x.hot[s].shape]++
		} else {
			c.plain[x.hot[s].shape]++
		}
	}
	if prefersNodes(d) {
		c.soft = make([]int32, n)
		for i, r := range x.recs {
			c.soft[i] = softOf(d, r)
		}
	}
	x.classes[string(x.key)] = c
	return c
}

// appendClassKey encodes what the static filters read: the labels that the namespace requires, and fields of the
// demand.
func (x *nodeIndex) appendClassKey(b []byte, in *fsm.Namespace, d *fsm.Demand) []byte {
	str := func(s string) { b = append(append(b, s...), 0) }
	str(d.Type)
	if in != nil {
		b = append(b, 7)
		str(in.Name) // rejection messages name the namespace, so two namespaces do not share a class
		for _, l := range in.NodeLabels {
			str(l.Key)
			str(l.Value)
		}
		b = append(b, 8)
	}
	for _, s := range d.StorageDrivers {
		str(s)
	}
	b = append(b, 1)
	for _, l := range d.Labels {
		str(l.Key)
		str(l.Value)
	}
	b = append(b, 2)
	for i := range d.Constraints {
		c := &d.Constraints[i]
		str(c.Key)
		str(c.Op)
		for _, v := range c.Values {
			str(v)
		}
		b = append(b, 3)
	}
	b = append(b, 4)
	if stopsOnLostLease(d) {
		b = append(b, 5)
	}
	if len(d.Networks) > 0 {
		b = append(b, 9)
	}
	if d.MemoryFiles {
		b = append(b, 10)
	}
	for _, t := range d.Tolerations {
		str(t.Key)
		str(t.Value)
		str(t.Effect)
	}
	b = appendNodeRules(b, d)
	for _, p := range x.bound {
		b = append(b, 6)
		if bad := policy.Judge(p, d.Judged()); len(bad) > 0 {
			str(bad[0].Rule)
		}
	}
	return b
}

// roundDown keeps the three highest bits of a total and clears the others, so that 4000 becomes 3584: there
// are four size classes between two powers of two. 0 stays 0.
func roundDown(total int64) int64 {
	if total <= 0 {
		return 0
	}
	if drop := bits.Len64(uint64(total)) - 3; drop > 0 {
		return total >> drop << drop
	}
	return total
}

// hash turns a seed and strings into 64 evenly distributed bits: FNV-1a, followed by a finalizer.
func hash(seed uint64, parts ...string) uint64 {
	h := uint64(14695981039346656037) ^ seed*0x9e3779b97f4a7c15
	for _, p := range parts {
		for i := range len(p) {
			h = (h ^ uint64(p[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return mix(h)
}

func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// bitset is a set of slots.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(s int32) bool { return b[s>>6]>>(uint(s)&63)&1 != 0 }
func (b bitset) set(s int32)      { b[s>>6] |= 1 << (uint(s) & 63) }
func (b bitset) clear(s int32)    { b[s>>6] &^= 1 << (uint(s) & 63) }

func (b bitset) put(s int32, on bool) {
	if on {
		b.set(s)
	} else {
		b.clear(s)
	}
}
