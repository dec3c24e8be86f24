package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
)

// filter is a rule by which the planner may reject a node. The constants are in the order of evaluation.
type filter uint8

const (
	passes filter = iota
	notUp
	draining
	cordoned
	wrongType
	noDriver
	outsidePool // the node does not carry the labels that the namespace requires
	noLabel
	constraint
	taint
	shortCPU
	shortMemory
	shortDisk
	noPool
	shortDevice
	portTaken
	stopping    // the previous node may still run an instance of the workload
	failedThere // the workload left the node because it could not run there
	noFencer
	noMemory     // the agent of the node keeps no files in memory
	barred       // a policy of the node does not allow the workload
	noNetworks   // the node cannot take part in networks that span nodes
	networkGone  // a network of the workload does not exist
	smallMTU     // a network of the workload has a larger MTU than the node allows
	noSlice      // a network of the workload has no slice left for the node
	wrongNode    // a required affinity to nodes does not hold
	unevenSpread // the filters from here on are rules about other workloads, see rules.go
	notNear
	tooNear
	repelled
)

var filterNames = [...]string{
	"", "readiness", "readiness", "readiness", "workload type", "storage driver", "namespace", "labels", "constraints", "taints",
	"CPU", "memory", "disk", "disk", "devices", "host ports", "former instance", "earlier failure", "fencer", "files in memory", "policy",
	"networks", "networks", "networks", "networks",
	"affinity", "spread", "affinity", "anti-affinity", "anti-affinity",
}

// rejection is the reason why a node was rejected for a demand, without the amounts that are missing. It
// is comparable, so that summaries can count equal reasons.
type rejection struct {
	filter     filter
	key, value string
}

// filterFields holds for each filter the field of a workload file that a user would change so that the filter lets more
// nodes pass; "" if only a change of the node or of another object helps.
var filterFields = [...]string{
	wrongType: "type", noDriver: "managed_volumes", noLabel: "labels", constraint: "constraints", taint: "tolerations",
	shortCPU: "resources.cpu", shortMemory: "resources.memory", shortDisk: "resources.disk", noPool: "resources.disk", shortDevice: "resources.devices, gpus",
	portTaken: "ports", noFencer: "on_lost_lease", noMemory: "secrets, configs", networkGone: "networks", smallMTU: "networks", noSlice: "networks",
	noNetworks: "networks", wrongNode: "affinity", unevenSpread: "spread", notNear: "affinity", tooNear: "anti_affinity", repelled: "",
}

// short returns a rejection as text for summaries. It has no figures, because these change from step to step.
func (r rejection) short() string {
	switch r.filter {
	case notUp:
		return "not ready"
	case draining:
		return "draining"
	case cordoned:
		return "cordoned"
	case wrongType:
		return "type " + r.key
	case noDriver:
		return "storage driver " + r.key
	case outsidePool:
		return "label " + r.key + " for namespace " + r.value
	case noLabel:
		return "label " + r.key + "=" + r.value
	case constraint:
		return "constraint " + r.key
	case taint:
		if r.value == "" {
			return "taint " + r.key
		}
		return "taint " + r.key + "=" + r.value
	case shortCPU:
		return "CPU"
	case shortMemory:
		return "memory"
	case shortDisk:
		return "disk" + prefixed(" in pool ", r.key)
	case noPool:
		return "no storage pool" + prefixed(" ", r.key)
	case shortDevice:
		return "device " + r.key
	case portTaken:
		return "port " + r.key
	case stopping:
		return "former instance not gone"
	case failedThere:
		return "earlier failure" + bracketed(r.key)
	case noFencer:
		return "no fencer for on_lost_lease=stop"
	case noMemory:
		return "keeps no secrets and configs in memory"
	case noNetworks:
		return "cannot take part in networks"
	case networkGone:
		return "network " + r.key + " does not exist"
	case smallMTU:
		return "MTU of network " + r.key
	case noSlice:
		return "no slice left in network " + r.key
	case barred:
		return "policy " + r.key + " (rule " + r.value + ")"
	case wrongNode, unevenSpread, notNear, tooNear, repelled:
		return ruleShort(r)
	}
	return ""
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// readiness is the first filter: a node that is down, draining or cordoned gets no new workloads.
func readiness(n *fsm.Node) rejection {
	switch {
	case !n.Up:
		return rejection{filter: notUp}
	case n.Draining:
		return rejection{filter: draining}
	case n.Cordoned:
		return rejection{filter: cordoned}
	}
	return rejection{}
}

// static applies the filters that need only the facts of a node: type, storage drivers, the labels that the
// namespace of the workload requires, labels, constraints, taints, the fencer that on_lost_lease=stop needs
// (sched/DESIGN.md), and the policies that are bound to the labels of the node.
func (x *nodeIndex) static(in *fsm.Namespace, d *fsm.Demand, s int32) rejection {
	n := x.recs[s]
	if r := fits(in, d, n); r.filter != passes {
		return r
	}
	if stopsOnLostLease(d) && !n.Facts.SelfFencing {
		return rejection{filter: noFencer}
	}
	if t, ok := repels(d, n); ok {
		return rejection{taint, t.Key, t.Value}
	}
	if d.MemoryFiles && !n.Facts.MemoryFiles {
		return rejection{filter: noMemory}
	}
	if len(d.Networks) > 0 && n.Facts.Networking.Lacks() != "" {
		return rejection{filter: noNetworks}
	}
	for _, p := range x.policies[s] {
		if bad := policy.Judge(p, d.Judged()); len(bad) > 0 {
			return rejection{barred, p.Name, bad[0].Rule}
		}
	}
	return rejection{}
}

func stopsOnLostLease(d *fsm.Demand) bool { return d.Exclusive && d.OnLostLease == fsm.OnLostLeaseStop }

// fits applies the static filters except taints, fencer and policies, which reject only new
// workloads. A placed workload that no longer passes the filters of fits is moved. in is the namespace of the
// workload; nil if it requires no labels of its nodes.
func fits(in *fsm.Namespace, d *fsm.Demand, n *fsm.Node) rejection {
	if !offers(n, d.Type) {
		return rejection{filter: wrongType, key: d.Type}
	}
	for _, s := range d.StorageDrivers {
		if !slices.Contains(n.Facts.StorageDrivers, s) {
			return rejection{filter: noDriver, key: s}
		}
	}
	if in != nil {
		if l, misses := n.MissesLabel(in.NodeLabels); misses {
			return rejection{outsidePool, l.Key + "=" + l.Value, in.Name}
		}
	}
	if l, misses := n.MissesLabel(d.Labels); misses {
		return rejection{noLabel, l.Key, l.Value}
	}
	for i := range d.Constraints {
		if c := &d.Constraints[i]; !satisfies(c, n) {
			return rejection{filter: constraint, key: constraintText(c)}
		}
	}
	return misplaced(d, n)
}

// offers reports whether a node runs a workload type. A node that registered no types is a
// legacy v1 peer: it runs everything but VMs.
func offers(n *fsm.Node, kind string) bool { return n.Runs(kind) }

func labelOf(n *fsm.Node, key string) (string, bool) { return n.Label(key) }

// satisfies reports whether a node satisfies one constraint. The operators != and not-in are also satisfied
// if the label is absent. No node satisfies an unknown operator.
func satisfies(c *fsm.Constraint, n *fsm.Node) bool {
	v, ok := labelOf(n, c.Key)
	switch c.Op {
	case "=", "in":
		return ok && slices.Contains(c.Values, v)
	case "!=", "not-in":
		return !ok || !slices.Contains(c.Values, v)
	case "exists":
		return ok
	case "not-exists":
		return !ok
	}
	return false
}

func constraintText(c *fsm.Constraint) string {
	switch c.Op {
	case "exists", "not-exists":
		return c.Key + " " + c.Op
	case "=", "!=":
		return c.Key + c.Op + strings.Join(c.Values, ",")
	}
	return c.Key + " " + c.Op + " (" + strings.Join(c.Values, ", ") + ")"
}

// tolerated reports whether any toleration matches a taint. In a toleration an empty value or effect matches
// any value or effect.
func tolerated(t fsm.Taint, tolerations []fsm.Taint) bool {
	for _, o := range tolerations {
		if (o.Key == t.Key || o.Key == fsm.AnyTaint) && (o.Value == "" || o.Value == t.Value) && (o.Effect == "" || o.Effect == t.Effect) {
			return true
		}
	}
	return false
}

// repels returns the first taint of node n that keeps new workloads with demand d away.
func repels(d *fsm.Demand, n *fsm.Node) (fsm.Taint, bool) {
	for _, t := range n.Taints() {
		if (t.Effect == fsm.TaintNoSchedule || t.Effect == fsm.TaintNoExecute) && !tolerated(t, d.Tolerations) {
			return t, true
		}
	}
	return fsm.Taint{}, false
}

// evicts returns the NoExecute taint of a node that makes a workload with demand d leave first, and
// the time by which it has to leave, in Unix nanoseconds; 0 = no such taint.
func evicts(d *fsm.Demand, n *fsm.Node) (first fsm.Taint, at int64) {
	for _, t := range n.Taints() {
		if t.Effect != fsm.TaintNoExecute || tolerated(t, d.Tolerations) {
			continue
		}
		if due := t.Since + int64(t.Seconds)*second; at == 0 || due < at {
			first, at = t, due
		}
	}
	return first, at
}

// avoids reports whether a node has a PreferNoSchedule taint that d does not tolerate, and returns the first.
func avoids(d *fsm.Demand, n *fsm.Node) (fsm.Taint, bool) {
	for _, t := range n.Taints() {
		if t.Effect == fsm.TaintPreferNoSchedule && !tolerated(t, d.Tolerations) {
			return t, true
		}
	}
	return fsm.Taint{}, false
}

// room applies the filters for resources that can be used up: CPU, memory, disk and host ports. It runs for
// every candidate and allocates no memory. The caller must have called prepare for the demand.
func (x *nodeIndex) room(d *fsm.Demand, s int32) filter {
	h := &x.hot[s]
	if d.CPU > 0 && d.CPU > h.freeCPU {
		return shortCPU
	}
	if d.Memory > 0 && d.Memory > h.freeMem {
		return shortMemory
	}
	switch {
	case d.Disk <= 0 && d.Pool == "":
	case h.firstPool == noPools:
		return noPool
	case x.wantPool == anyPool || x.wantPool == h.firstPool:
		if d.Disk > 0 && d.Disk > h.freeDisk {
			return shortDisk
		}
	default:
		p := x.pool(s, d.Pool)
		if p == nil {
			return noPool
		}
		if d.Disk > 0 && d.Disk > p.total-p.used {
			return shortDisk
		}
	}
	for i := range d.Devices {
		if x.lacksDevices(s, d.Devices[i]) {
			return shortDevice
		}
	}
	for _, b := range x.busy {
		if b.has(s) {
			return portTaken
		}
	}
	for i := range x.networks {
		if f := x.networks[i].rejects(x.recs[s]); f != passes {
			return f
		}
	}
	return passes
}

// joined is a network that the workload to be placed uses, with what the filters need to know about
// it.
type joined struct {
	name string
	of   *fsm.Network // nil if it does not exist
	full bool         // no further node can get a slice
	by   []string     // nodes without a slice to which this step has assigned a member
}

func (j *joined) rejects(n *fsm.Node) filter {
	if j.of == nil {
		return networkGone
	}
	if j.of.MTU > n.Facts.Networking.MTU {
		return smallMTU
	}
	if j.full && !slices.Contains(j.by, n.ID) {
		if _, has := j.of.SliceOf(n.ID); !has {
			return noSlice
		}
	}
	return passes
}

// roomRejection turns the result of the method room into a rejection for explanations.
func (x *nodeIndex) roomRejection(d *fsm.Demand, s int32, f filter) rejection {
	r := rejection{filter: f}
	switch f {
	case shortDisk, noPool:
		r.key = d.Pool
	case networkGone, smallMTU, noSlice:
		for i := range x.networks {
			if j := &x.networks[i]; j.rejects(x.recs[s]) == f {
				r.key = j.name
				break
			}
		}
	case shortDevice:
		for _, want := range d.Devices {
			if x.lacksDevices(s, want) {
				r.key = want.Name
				break
			}
		}
	case portTaken:
		for i, b := range x.busy {
			if b.has(s) {
				r.key = portText(d.Ports[i])
				break
			}
		}
	}
	return r
}

func portText(p fsm.HostPort) string {
	text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	switch {
	case strings.ContainsRune(p.Address, ':'):
		text = "[" + p.Address + "]:" + text
	case p.Address != "":
		text = p.Address + ":" + text
	}
	return text
}

// prepare looks up the storage pool, the host ports and the networks of a demand, which room then checks for each
// node. namespace is that of the workload.
func (x *nodeIndex) prepare(v fsm.View, namespace string, d *fsm.Demand) {
	x.networks = x.networks[:0]
	for _, name := range d.Networks {
		j := joined{name: name}
		if n, ok := v.Network(namespace, name); ok {
			j.of, j.by = n, x.sliced[n.ID]
			j.full = n.Room(max(x.now, v.Info().Clock)) <= len(j.by)
		}
		x.networks = append(x.networks, j)
	}
	x.wantPool = anyPool
	if d.Pool != "" {
		x.wantPool = x.poolID(d.Pool)
	}
	x.busy = x.busy[:0]
	for _, p := range d.Ports {
		x.busy = append(x.busy, x.portUse(v, p))
	}
}

// sentence describes the rejection of a node in words, with figures.
func (x *nodeIndex) sentence(v fsm.View, d *fsm.Demand, s int32, r rejection) string {
	n := x.recs[s]
	amount := func(what, unit string, need, total, used int64) string {
		return fmt.Sprintf("%s: needs %d %s, %d free of %d (%d promised)", what, need, unit, max(0, total-used), total, used)
	}
	switch r.filter {
	case notUp:
		return "the node is not ready" + prefixed(": ", n.Reason)
	case draining:
		return "the node is draining"
	case cordoned:
		return "the node is cordoned"
	case wrongType:
		if slices.Contains(n.Lacks, r.key) {
			return "workload type: the node refused " + r.key + ", because its runtime is missing; it is tried again after the agent has registered again"
		}
		if len(n.Facts.Types) == 0 {
			return "workload type: needs " + r.key + ", the node offers container, compose"
		}
		return "workload type: needs " + r.key + ", the node offers " + list(n.Facts.Types)
	case noDriver:
		return "storage driver: needs " + r.key + ", the node offers " + list(n.Facts.StorageDrivers)
	case outsidePool:
		key, _, _ := strings.Cut(r.key, "=")
		return "namespace: " + r.value + " requires nodes with " + r.key + ", " + labelText(n, key) +
			"; an admin may set the label of the node (persysctl node label), or node_labels of the namespace (persysctl namespace set " + r.value + " --nodes)"
	case noLabel:
		return "label: needs " + r.key + "=" + r.value + ", " + labelText(n, r.key)
	case constraint:
		for i := range d.Constraints {
			if c := &d.Constraints[i]; constraintText(c) == r.key {
				return "constraint: needs " + r.key + ", " + labelText(n, c.Key)
			}
		}
	case wrongNode:
		for i := range d.Placement.Affinities {
			if a := &d.Placement.Affinities[i]; affinityField(d.Placement, i) == r.key {
				return r.key + ": must have " + r.value + ", " + labelText(n, a.Node.Key)
			}
		}
	case unevenSpread, notNear, tooNear, repelled:
		return x.ruleSentence(s, r)
	case taint:
		if t, ok := repels(d, n); ok {
			return "taint: " + t.Key + prefixed("=", t.Value) + ":" + t.Effect + " is not tolerated"
		}
	case shortCPU:
		return amount("CPU", "millicores", d.CPU, x.cpu[s], x.usedCPU[s])
	case shortMemory:
		return amount("memory", "MiB", d.Memory, x.mem[s], x.usedMem[s])
	case shortDisk:
		p := x.pool(s, d.Pool)
		return amount("disk in pool "+p.name, "GB", d.Disk, p.total, p.used)
	case noPool:
		names := make([]string, len(x.pools[s]))
		for i, p := range x.pools[s] {
			names[i] = p.name
		}
		if d.Pool == "" {
			return fmt.Sprintf("disk: needs %d GB, the node offers no storage pool", d.Disk)
		}
		return "disk: needs pool " + d.Pool + ", the node offers " + list(names)
	case shortDevice:
		total, used := x.countDevices(s, r.key)
		if total == 0 {
			return "devices: needs " + r.key + ", the node has none (PERSYS_NODE_DEVICES of its agent, or CDI devices of its engine)"
		}
		return amount("devices "+r.key, "devices", fsm.DevicesNamed(d.Devices, r.key), total, used)
	case portTaken:
		for _, p := range d.Ports {
			if portText(p) == r.key {
				if user := fsm.PortUser(v, n, p); user != "" {
					return "host port " + r.key + " is used by " + user + " on this node"
				}
				w, at := v.PortHolder(n.Engine(), p)
				if w == "" {
					return "host port " + r.key + " is promised to another workload"
				}
				return "host port " + r.key + " is held by " + w + " on " + at
			}
		}
	case noFencer:
		return "fencer: on_lost_lease is stop, and the node has no fencer that stops the workload when the lease ends (self_fencing)"
	case noMemory:
		return "files in memory: the agent of the node does not know secrets and configs as files, or the machine has no tmpfs at /run or /dev/shm"
	case noNetworks:
		return "networks: the node cannot take part in networks: " + n.Facts.Networking.Lacks()
	case networkGone:
		return "networks: " + r.key + " does not exist; create it (persysctl network create) or take it out of the specification"
	case smallMTU:
		for i := range x.networks {
			if j := &x.networks[i]; j.name == r.key && j.of != nil {
				return fmt.Sprintf("networks: %s has MTU %d, the node allows at most %d", r.key, j.of.MTU, n.Facts.Networking.MTU)
			}
		}
	case noSlice:
		return "networks: no slice left in network " + r.key + " for a further node; its subnet is too small for the nodes that have members"
	case barred:
		for _, p := range x.policies[s] {
			if bad := policy.Judge(p, d.Judged()); p.Name == r.key && len(bad) > 0 {
				return bad[0].String()
			}
		}
	case stopping:
		return "its former instance on " + r.key + " is not known to be gone"
	}
	return r.short()
}

func labelText(n *fsm.Node, key string) string {
	if v, ok := labelOf(n, key); ok {
		return "the node has " + key + "=" + v
	}
	return "the node has no label " + key
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
