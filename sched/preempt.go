package sched

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// roomPatience is how long a workload waits for the resources of workloads that leave a node, before more
// workloads are evicted for it.
const roomPatience = 120 * second

// preempt makes room for a workload with a priority above zero that fits on no node. If enough workloads are
// already leaving a node, it waits for that node. Otherwise it evicts workloads of lower rank (fsm.Rank) from
// one node: the lowest priorities, then the fewest workloads. If that node does not release the resources in
// time, another node is tried; the wait doubles each time. The room on the node stays reserved for w: in this
// step by preempt, in later steps because higher priorities are placed first. preempt returns a text about
// the eviction that the workload waits for; "" if no room can be made.
func (p *planner) preempt(w *fsm.Workload) string {
	best, ok := p.clearance(w, p.State.RankOf(w))
	if !ok {
		waits := p.limitText(w)
		p.c.limits = p.c.limits || waits != ""
		p.wake(p.preemptions.again)
		return waits
	}
	waits := p.waitsFor(w, best)
	for _, v := range best.victims {
		message := fmt.Sprintf("makes room for %s in namespace %s, whose priority %d is above %d", w.ID, w.In(), w.Demand.Priority, v.Demand.Priority)
		if !p.evict(v, fsm.CodePreempted, message, false) {
			break
		}
		e := p.evicted[len(p.evicted)-1]
		e.PreemptedBy, e.PreemptedAt = w.ID, p.Now
		p.preemptions.made++
	}
	p.keepRoom(w.Demand, best.slot)
	return waits
}

// clearance finds a way to make room for a workload: the node, and the workloads to evict from it.
func (p *planner) clearance(w *fsm.Workload, rank fsm.Rank) (best plan, ok bool) {
	p.preemptions.again, p.preemptions.most = 0, 0
	if w.Demand.Priority <= 0 || w.Demand.Surge { // a member that exists only during an update evicts nothing
		return plan{}, false
	}
	if avoids := p.subject(w).avoids; len(avoids) > 0 {
		if best, ok = p.clearanceExcept(w, rank, avoids); ok {
			return best, true
		}
	}
	return p.clearanceExcept(w, rank, nil)
}

// clearanceExcept finds a way to make room for a workload on a node that is not one of the given nodes.
func (p *planner) clearanceExcept(w *fsm.Workload, rank fsm.Rank, nodes []string) (best plan, ok bool) {
	at := hash(p.c.nodes.seed, w.ID)
	p.c.prepare(p.State, subjectOf(w), w.Demand)
	defer p.c.release()
	p.c.nodes.exclude(nodes)
	best, until := p.awaited(w.Demand, at)
	if best.slot >= 0 && p.Now < until {
		p.wake(until)
	} else if fresh := p.cheapest(w.Demand, rank, at); fresh.slot >= 0 {
		best = fresh
	}
	return best, best.slot >= 0
}

// waitsFor returns a text about the workloads that leave a node to make room for w: the workloads to evict
// or, if there are none, all workloads that are already leaving the node.
func (p *planner) waitsFor(w *fsm.Workload, best plan) string {
	node := p.c.nodes.recs[best.slot].ID
	var leaving []string
	p.State.Residuals(node, func(r *fsm.Residual) bool {
		if v, ok := p.State.Workload(r.Workload); ok && v.PreemptedBy == w.ID {
			leaving = append(leaving, v.ID)
		}
		return true
	})
	leaving = append(leaving, ids(best.victims)...)
	if len(leaving) == 0 {
		return "waits for room on node " + node
	}
	slices.Sort(leaving)
	return "takes the place of " + named(leaving) + " on node " + node
}

// namedVictims is the largest number of workloads that a message names.
const namedVictims = 5

func named(ids []string) string {
	if more := len(ids) - namedVictims; more > 0 {
		return strings.Join(ids[:namedVictims], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(ids, ", ")
}

func ids(list []*fsm.Workload) []string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = w.ID
	}
	return out
}

// outlook returns a text about the eviction that an unplaced workload would wait for. If room could
// only be made with a higher maximum priority of the workload's namespace, the text says so. The
// text is "" if no room can be made at all.
func (p *planner) outlook(w *fsm.Workload) string {
	rank := p.State.RankOf(w)
	best, ok := p.clearance(w, rank)
	if ok {
		return p.waitsFor(w, best)
	}
	if limit := p.limitText(w); limit != "" {
		return limit
	}
	if best, ok = p.clearance(w, rank.Everywhere()); !ok {
		return ""
	}
	kept := slices.DeleteFunc(slices.Clone(best.victims), rank.Above)
	return fmt.Sprintf("priority %d does not count against %s on node %s, in another namespace; an admin may grant it: persysctl namespace set %s --max-priority %d",
		w.Demand.Priority, named(ids(kept)), p.c.nodes.recs[best.slot].ID, w.In(), w.Demand.Priority)
}

// makeRoom simulates a preemption for `persysctl plan`. It returns the node and the workloads that would be
// evicted from it, and reserves the room for the workload.
func (p *planner) makeRoom(w *fsm.Workload) (node NodeID, evicted []string) {
	best, ok := p.clearance(w, p.State.RankOf(w))
	if !ok {
		return "", nil
	}
	p.preemptions.made += len(best.victims)
	for _, v := range best.victims {
		p.mark(v.ID)
		left := amounts(v.Demand)
		p.c.nodes.take(&left, best.slot, -1)
	}
	p.keepRoom(w.Demand, best.slot)
	return p.c.nodes.recs[best.slot].ID, ids(best.victims)
}

// awaited returns the best node that will have room for demand d once the workloads that are already
// leaving it are gone, and the time until which to wait for that. at is the hash that decides between
// equal nodes.
func (p *planner) awaited(d *fsm.Demand, at uint64) (best plan, until int64) {
	best.slot = -1
	var newest int64 // time of the latest eviction on a node where workloads are leaving
	made := 0        // number of nodes that still have residuals of preempted workloads
	for _, node := range p.c.leaving.sorted() {
		s, ok := p.c.nodes.slotOf[node]
		if !ok || p.State.Alloc(node).Residuals == 0 {
			continue
		}
		if c, ok := p.clear(d, fsm.Rank{}, s, false); ok {
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

// cheapest returns the best way to make room for a demand by evictions: a node and the workloads to evict
// from it.
func (p *planner) cheapest(d *fsm.Demand, rank fsm.Rank, at uint64) (best plan) {
	best.slot = -1
	for i := range p.c.nodes.recs {
		if c, ok := p.clear(d, rank, int32(i), true); ok {
			c.dist = p.c.nodes.ring[i] - at
			best.improve(c)
		}
	}
	return best
}

// plan is one way to make room: a node and the workloads to evict from it.
type plan struct {
	slot    int32
	victims []*fsm.Workload
	dist    uint64
}

// improve replaces plan b by plan c if c is better: c evicts lower priorities; if these are equal,
// fewer workloads; if that is equal too, its node comes first in the order that decides between
// equal nodes.
func (b *plan) improve(c plan) {
	if b.slot < 0 || cmp.Or(
		cmp.Compare(c.worst(), b.worst()),
		cmp.Compare(len(c.victims), len(b.victims)),
		cmp.Compare(c.dist, b.dist),
		cmp.Compare(c.slot, b.slot)) < 0 {
		*b = c
	}
}

// worst returns the highest priority among the workloads that a plan evicts: plans with a lower one
// are better.
func (b *plan) worst() int64 {
	worst := int64(-1) << 32
	for _, v := range b.victims {
		worst = max(worst, int64(v.Demand.Priority))
	}
	return worst
}

// clear returns the smallest set of workloads of lower rank to evict from a node, so that the demand fits
// once these workloads and those that are already leaving are gone. With evict false, the set must be empty.
// With evict true, workloads that have been leaving for longer than roomPatience are assumed to stay.
func (p *planner) clear(d *fsm.Demand, rank fsm.Rank, s int32, evict bool) (plan, bool) {
	x := p.c.nodes
	n := x.recs[s]
	if d.CPU > x.cpu[s] || d.Memory > x.mem[s] || !x.ready.has(s) || x.hot[s].place < 0 || x.static(x.in, d, s).filter != passes || x.rules.rejects(s) {
		return plan{}, false
	}
	for i := range x.networks {
		if x.networks[i].rejects(n) != passes {
			return plan{}, false
		}
	}
	cpu, mem, disk := x.hot[s].freeCPU-d.CPU, x.hot[s].freeMem-d.Memory, int64(0)
	pool := x.pool(s, d.Pool)
	if pool != nil {
		disk = pool.total - pool.used - d.Disk
	} else if d.Disk > 0 || d.Pool != "" {
		return plan{}, false
	}
	devices := make([]int64, len(d.Devices)) // free devices of each kind once the demand is there
	for i, want := range d.Devices {
		total, used := x.countDevices(s, want.Name)
		if want.Lacks(total, total) {
			return plan{}, false
		}
		if want.Count > 0 {
			devices[i] = total - used - want.Count
		}
	}
	free := func(o *fsm.Demand, sign int64) {
		for i := range devices {
			if d.Devices[i].Count > 0 {
				devices[i] += sign * fsm.DevicesShared(o.Devices, d.Devices[i].Name)
			}
		}
		cpu += sign * o.CPU
		mem += sign * o.Memory
		if o.Disk > 0 && x.pool(s, o.Pool) == pool {
			disk += sign * o.Disk
		}
	}
	enough := func() bool {
		return (d.CPU == 0 || cpu >= 0) && (d.Memory == 0 || mem >= 0) && (d.Disk == 0 || disk >= 0) &&
			!slices.ContainsFunc(devices, func(left int64) bool { return left < 0 })
	}
	p.State.Residuals(n.ID, func(r *fsm.Residual) bool {
		if !evict || r.Since >= p.Now-roomPatience {
			free(&r.Demand, +1)
		}
		return true
	})

	var holders []string // workloads on this node that hold ports of demand d
	for _, port := range d.Ports {
		if fsm.PortUser(p.State, n, port) != "" {
			return plan{}, false
		}
		holder, on := p.State.PortHolder(n.Engine(), port)
		if holder == "" {
			if b, ok := x.ports[port]; ok && b.has(s) {
				return plan{}, false // a workload that this step has placed takes the port
			}
			continue
		}
		if on != n.ID {
			return plan{}, false
		}
		// A workload that no longer wants the port holds it until its previous instance is gone. It releases the port soon, unless
		// it is held on this node: then it gets no order, and the previous instance stays.
		if h, ok := p.State.Workload(holder); ok && h.Node == on && (h.Wants(port) || holds(h.Reason.Code)) {
			holders = append(holders, holder)
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
		// A workload that this step changes cannot be evicted in it, but a text about the limits names it as before.
		if rank.Above(v) && v.Preemptible(n) && !p.cooling(v) && (!p.done[v.ID] || p.preemptions.free) {
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
	// The demand may require to be near certain workloads (affinity). Do not evict the last of
	// these, because the demand would not fit without it.
	needs := x.rules.needs(s)
	spare := func(v *fsm.Workload, sign int32) bool {
		sets := p.c.setsOf[v.ID].sets
		for i := range needs {
			if e := &needs[i]; slices.Contains(sets, e.set) {
				e.n -= sign
			}
		}
		return !slices.ContainsFunc(needs, func(e need) bool { return e.n <= 0 })
	}
	must := func(v *fsm.Workload) bool { return slices.Contains(holders, v.ID) }
	var victims []*fsm.Workload
	found := 0
	for _, v := range lower {
		if must(v) {
			if !spare(v, 1) {
				return plan{}, false
			}
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
			if !spare(v, 1) {
				spare(v, -1)
				continue
			}
			victims = append(victims, v)
			free(v.Demand, +1)
		}
	}
	if !enough() {
		return plan{}, false
	}
	// Workloads that were chosen later may release enough, so that one chosen earlier need not be evicted.
	// Remove such workloads from the list.
	for i := len(victims) - 1; i >= 0; i-- {
		v := victims[i]
		if free(v.Demand, -1); !must(v) && enough() {
			victims = slices.Delete(victims, i, i+1)
		} else {
			free(v.Demand, +1)
		}
	}
	if !p.allows(len(victims)) {
		return plan{}, false
	}
	return plan{slot: s, victims: victims}, true
}
