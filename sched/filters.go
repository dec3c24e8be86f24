package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// filter is a rule that may reject a node, in the order of evaluation.
type filter uint8

const (
	passes filter = iota
	notUp
	draining
	cordoned
	wrongType
	noDriver
	noLabel
	constraint
	taint
	shortCPU
	shortMemory
	shortDisk
	noPool
	portTaken
	stopping // another node may still run the workload
	noFencer
)

var filterNames = [...]string{
	"", "readiness", "readiness", "readiness", "workload type", "storage driver", "labels", "constraints", "taints",
	"CPU", "memory", "disk", "disk", "host ports", "former instance", "fencer",
}

// Taint effects.
const (
	noSchedule       = "NoSchedule"
	preferNoSchedule = "PreferNoSchedule"
)

// rejection is the reason why a node was rejected, without figures. Summaries count by it.
// It is comparable.
type rejection struct {
	filter     filter
	key, value string
}

// short is the text for summaries. It holds no figures that change by themselves.
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
	case portTaken:
		return "port " + r.key
	case stopping:
		return "former instance not gone"
	case noFencer:
		return "no fencer for on_lost_lease=stop"
	}
	return ""
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// readiness is the first filter: down, draining and cordoned nodes get nothing new.
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

// static applies the filters that need only the facts of a node: type, storage drivers,
// labels, constraints, NoSchedule taints, and the fencer that on_lost_lease=stop needs
// (sched/DESIGN.md).
func static(d *fsm.Demand, n *fsm.Node) rejection {
	if r := fits(d, n); r.filter != passes {
		return r
	}
	if guarded(d) && !n.Facts.SelfFencing {
		return rejection{filter: noFencer}
	}
	for _, t := range n.Facts.Taints {
		if t.Effect == noSchedule && !tolerated(t, d.Tolerations) {
			return rejection{taint, t.Key, t.Value}
		}
	}
	return rejection{}
}

func guarded(d *fsm.Demand) bool { return d.Exclusive && d.OnLostLease == fsm.OnLostLeaseStop }

// fits is static without taints and fencer, which reject only new workloads. A placed
// workload that does not fit any more is moved.
func fits(d *fsm.Demand, n *fsm.Node) rejection {
	if !offers(n, d.Type) {
		return rejection{filter: wrongType, key: d.Type}
	}
	for _, s := range d.StorageDrivers {
		if !slices.Contains(n.Facts.StorageDrivers, s) {
			return rejection{filter: noDriver, key: s}
		}
	}
	for _, l := range d.Labels {
		if v, ok := labelOf(n, l.Key); !ok || v != l.Value {
			return rejection{noLabel, l.Key, l.Value}
		}
	}
	for i := range d.Constraints {
		if c := &d.Constraints[i]; !satisfies(c, n) {
			return rejection{filter: constraint, key: constraintText(c)}
		}
	}
	return rejection{}
}

// offers reports whether a node runs a workload type. A node that registered no types is a
// legacy v1 peer: it runs everything but VMs.
func offers(n *fsm.Node, kind string) bool { return n.Runs(kind) }

// nodeIDKey is a label that every node has implicitly.
const nodeIDKey = "node.id"

func labelOf(n *fsm.Node, key string) (string, bool) {
	if key == nodeIDKey {
		return n.ID, true
	}
	for _, l := range n.Facts.Labels {
		if l.Key == key {
			return l.Value, true
		}
	}
	return "", false
}

// satisfies judges one constraint. An absent label equals nothing, so != and
// not-in hold for it. An unknown operator holds for no node.
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

// tolerated reports whether any toleration matches a taint. In a toleration an
// empty value or effect matches any.
func tolerated(t fsm.Taint, tolerations []fsm.Taint) bool {
	for _, o := range tolerations {
		if o.Key == t.Key && (o.Value == "" || o.Value == t.Value) && (o.Effect == "" || o.Effect == t.Effect) {
			return true
		}
	}
	return false
}

// avoids reports whether a node has a PreferNoSchedule taint that d does not tolerate.
func avoids(d *fsm.Demand, n *fsm.Node) bool {
	for _, t := range n.Facts.Taints {
		if t.Effect == preferNoSchedule && !tolerated(t, d.Tolerations) {
			return true
		}
	}
	return false
}

// room applies the filters that depend on promised resources: CPU, memory, disk and host
// ports. It runs for every candidate and allocates nothing. It needs prepare before.
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
	for _, b := range x.busy {
		if b.has(s) {
			return portTaken
		}
	}
	return passes
}

// roomRejection is the rejection for a result of room.
func (x *nodeIndex) roomRejection(d *fsm.Demand, s int32, f filter) rejection {
	r := rejection{filter: f}
	switch f {
	case shortDisk, noPool:
		r.key = d.Pool
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

func portText(p fsm.HostPort) string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

// prepare sets the storage pool and the host ports that room looks at.
func (x *nodeIndex) prepare(v fsm.View, d *fsm.Demand) {
	x.wantPool = anyPool
	if d.Pool != "" {
		x.wantPool = x.poolID(d.Pool)
	}
	x.busy = x.busy[:0]
	for _, p := range d.Ports {
		x.busy = append(x.busy, x.portUse(v, p))
	}
}

// sentence is a rejection in words, with figures.
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
	case noLabel:
		return "label: needs " + r.key + "=" + r.value + ", " + labelText(n, r.key)
	case constraint:
		for i := range d.Constraints {
			if c := &d.Constraints[i]; constraintText(c) == r.key {
				return "constraint: needs " + r.key + ", " + labelText(n, c.Key)
			}
		}
	case taint:
		return "taint: " + r.key + prefixed("=", r.value) + ":" + noSchedule + " is not tolerated"
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
	case portTaken:
		for _, p := range d.Ports {
			if portText(p) == r.key {
				w, at := v.PortHolder(n.Engine(), p)
				if w == "" {
					return "host port " + r.key + " is promised to another workload"
				}
				return "host port " + r.key + " is held by " + w + " on " + at
			}
		}
	case noFencer:
		return "fencer: on_lost_lease is stop, and the node has no fencer that stops the workload when the lease ends (self_fencing)"
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
