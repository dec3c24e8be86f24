package sched

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/persys/compute/fsm"
)

// roomPatience is how long the resources of leaving workloads are waited for before more
// workloads are evicted.
const roomPatience = 120 * second

// preempt makes room for a workload with a priority above zero that fits nowhere. If enough
// workloads are leaving a node already, it waits for that node. Otherwise it evicts
// workloads of strictly lower priority from one node: the lowest priorities, then the
// fewest. If a node does not release the resources in time, another node is tried; the
// wait doubles each time. The room stays reserved in this step and, because higher
// priorities are placed first, in the next ones. It returns the node, "" if there is none.
func (p *planner) preempt(w *fsm.Workload) NodeID {
	d, x := w.Demand, p.c.nodes
	if d.Priority <= 0 {
		return ""
	}
	at := hash(x.seed, w.ID)
	best, until := p.awaited(d, at)
	if best.slot >= 0 && p.Now < until {
		p.wake(until)
	} else if fresh := p.cheapest(d, at); fresh.slot >= 0 {
		best = fresh
	}
	if best.slot < 0 {
		return ""
	}
	node := x.recs[best.slot].ID
	for _, v := range best.victims {
		if !p.evict(v, fsm.CodePreempted, fmt.Sprintf("makes room for %s, whose priority %d is above %d", w.ID, d.Priority, v.Demand.Priority), false) {
			break
		}
	}
	room := amounts(d)
	p.c.promise(p.State, "", &room, best.slot)
	return node
}

// awaited returns the best node from which enough workloads are leaving already, and until
// when it is waited for.
func (p *planner) awaited(d *fsm.Demand, at uint64) (best plan, until int64) {
	best.slot = -1
	var newest int64 // latest eviction from such nodes
	made := 0        // nodes from which workloads were preempted before
	for _, node := range p.c.leaving.sorted() {
		s, ok := p.c.nodes.slotOf[node]
		if !ok || p.State.Alloc(node).Residuals == 0 {
			continue
		}
		if c, ok := p.clear(d, s, false); ok {
			c.dist = p.c.nodes.ring[s] - at
			best.improve(c)
			preempted := 0
			p.State.Residuals(node, func(r *fsm.Residual) bool {
				newest = max(newest, r.Since)
				if r.Reason == fsm.CodePreempted {
					preempted = 1
				}
				return true
			})
			made += preempted
		}
	}
	return best, newest + roomPatience<<min(max(made-1, 0), 10)
}

// cheapest returns the best node to evict workloads from.
func (p *planner) cheapest(d *fsm.Demand, at uint64) (best plan) {
	best.slot = -1
	for i := range p.c.nodes.recs {
		if c, ok := p.clear(d, int32(i), true); ok {
			c.dist = p.c.nodes.ring[i] - at
			best.improve(c)
		}
	}
	return best
}

// plan is one way to make room.
type plan struct {
	slot    int32
	victims []*fsm.Workload
	dist    uint64
}

// improve keeps the better of two plans: lower priorities, then fewer workloads.
func (b *plan) improve(c plan) {
	if b.slot < 0 || cmp.Or(
		cmp.Compare(c.worst(), b.worst()),
		cmp.Compare(len(c.victims), len(b.victims)),
		cmp.Compare(c.dist, b.dist),
		cmp.Compare(c.slot, b.slot)) < 0 {
		*b = c
	}
}

// worst is the highest priority that a plan evicts.
func (b *plan) worst() int64 {
	worst := int64(-1) << 32
	for _, v := range b.victims {
		worst = max(worst, int64(v.Demand.Priority))
	}
	return worst
}

// clear returns the smallest set of workloads to evict from a node so that a demand fits
// once they and the leaving workloads are gone. With evict false the set must be empty.
// With evict true, workloads that have been leaving for longer than roomPatience do not
// count as gone.
func (p *planner) clear(d *fsm.Demand, s int32, evict bool) (plan, bool) {
	x := p.c.nodes
	n := x.recs[s]
	if d.CPU > x.cpu[s] || d.Memory > x.mem[s] || !x.ready.has(s) || static(d, n).filter != passes {
		return plan{}, false
	}
	cpu, mem, disk := x.hot[s].freeCPU-d.CPU, x.hot[s].freeMem-d.Memory, int64(0)
	pool := x.pool(s, d.Pool)
	if pool != nil {
		disk = pool.total - pool.used - d.Disk
	} else if d.Disk > 0 || d.Pool != "" {
		return plan{}, false
	}
	free := func(o *fsm.Demand, sign int64) {
		cpu += sign * o.CPU
		mem += sign * o.Memory
		if o.Disk > 0 && x.pool(s, o.Pool) == pool {
			disk += sign * o.Disk
		}
	}
	enough := func() bool {
		return (d.CPU == 0 || cpu >= 0) && (d.Memory == 0 || mem >= 0) && (d.Disk == 0 || disk >= 0)
	}
	p.State.Residuals(n.ID, func(r *fsm.Residual) bool {
		if !evict || r.Since >= p.Now-roomPatience {
			free(&r.Demand, +1)
		}
		return true
	})

	var holders []string // of the ports, all on this node
	for _, port := range d.Ports {
		holder, on := p.State.PortHolder(n.Engine(), port)
		if holder == "" {
			if b, ok := x.ports[port]; ok && b.has(s) {
				return plan{}, false // promised in this step
			}
			continue
		}
		if on != n.ID {
			return plan{}, false
		}
		if h, ok := p.State.Workload(holder); ok && h.Node == on && h.Wants(port) {
			holders = append(holders, holder) // any other holder is leaving
		}
	}
	if enough() && len(holders) == 0 {
		return plan{slot: s}, true
	}
	if !evict {
		return plan{}, false
	}
	var lower []*fsm.Workload
	p.State.WorkloadsOn(n.ID, func(v *fsm.Workload) bool {
		if v.Demand.Priority < d.Priority && !p.done[v.ID] {
			lower = append(lower, v)
		}
		return true
	})
	slices.SortFunc(lower, func(a, b *fsm.Workload) int {
		return cmp.Or(cmp.Compare(a.Demand.Priority, b.Demand.Priority),
			cmp.Compare(b.Generation.Incarnation, a.Generation.Incarnation),
			cmp.Compare(b.Generation.Sequence, a.Generation.Sequence),
			cmp.Compare(a.ID, b.ID))
	})
	must := func(v *fsm.Workload) bool { return slices.Contains(holders, v.ID) }
	var victims []*fsm.Workload
	found := 0
	for _, v := range lower {
		if must(v) {
			victims = append(victims, v)
			free(v.Demand, +1)
			found++
		}
	}
	if found < len(slices.Compact(slices.Sorted(slices.Values(holders)))) {
		return plan{}, false
	}
	for _, v := range lower {
		if enough() {
			break
		}
		if !must(v) {
			victims = append(victims, v)
			free(v.Demand, +1)
		}
	}
	if !enough() {
		return plan{}, false
	}
	// Later victims may have made earlier ones unnecessary.
	for i := len(victims) - 1; i >= 0; i-- {
		v := victims[i]
		if free(v.Demand, -1); !must(v) && enough() {
			victims = slices.Delete(victims, i, i+1)
		} else {
			free(v.Demand, +1)
		}
	}
	return plan{slot: s, victims: victims}, true
}
