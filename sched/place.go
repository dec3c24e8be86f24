package sched

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Candidates are the nodes as a placement sees them, with the demands promised by Take.
type Candidates struct {
	c    *Cache
	view fsm.View
	id   string
}

// NodesOf returns the nodes of a view. It reads all of them once.
func NodesOf(v fsm.View, t Tuning) Candidates {
	c := &Cache{groups: map[string]*group{}, memberOf: map[string]membership{}}
	c.nodes = newNodeIndex(v, t.withDefaults())
	return Candidates{c: c, view: v}
}

// For sets the workload to be placed; its id decides among equal nodes.
func (n Candidates) For(workload string) Candidates {
	n.id = workload
	return n
}

// Take promises a demand on a node, for the placements that follow. It reports
// false for an unknown node.
func (n Candidates) Take(d fsm.Demand, node NodeID) bool {
	s, ok := n.c.nodes.slotOf[node]
	if ok {
		n.c.promise(n.view, n.id, &d, s)
	}
	return ok
}

// Place returns the best node for a demand of those that pass every filter; "" if none
// does. The explanation has the score, or counts the reasons. It promises nothing, see
// Take.
func Place(d fsm.Demand, nodes Candidates) (NodeID, Explanation) {
	q := nodes.c.find(nodes.view, nodes.id, &d)
	if q.best < 0 {
		t := nodes.c.nodes.tally(&d)
		return "", Explanation{Workload: nodes.id, Code: fsm.CodeUnplaced, Message: t.message(), Total: t.total, Counts: t.counts()}
	}
	id := nodes.c.nodes.recs[q.best].ID
	return id, Explanation{Workload: nodes.id, Node: id, Score: q.result}
}

// find searches all nodes, counting the members of the demand's group first.
func (c *Cache) find(v fsm.View, id string, d *fsm.Demand) query {
	x := c.nodes
	q := x.query(v, id, d)
	slots := c.countMembers(v, id, d)
	q.search(slots)
	if q.best >= 0 {
		q.result = x.scoreOf(d, q.best)
	}
	for _, s := range slots {
		x.hot[s].members = 0
	}
	return q
}

// countMembers counts the other members of the group by slot, in hot.members, and returns
// the slots that have any.
func (c *Cache) countMembers(v fsm.View, id string, d *fsm.Demand) []int32 {
	x := c.nodes
	x.slots = x.slots[:0]
	if d.Group == "" {
		return x.slots
	}
	g := c.groupOf(v, d.Group) // the first time, it fills memberOf
	own := c.memberOf[id]
	for _, m := range g.on {
		n := m.n
		if own.group == d.Group && own.slot == m.slot {
			n--
		}
		if n > 0 {
			x.hot[m.slot].members = n
			x.slots = append(x.slots, m.slot)
		}
	}
	return x.slots
}

// promise adds a demand to the arrays. The state does not have it yet, so the next step
// reads the node again.
func (c *Cache) promise(v fsm.View, id string, d *fsm.Demand, s int32) {
	c.nodes.take(d, s, +1)
	c.version++
	node := c.nodes.recs[s].ID
	c.touch(node, d)
	if d.Group != "" && id != "" {
		c.groupOf(v, d.Group)
		c.join(id, membership{d.Group, s})
		c.regrouped = append(c.regrouped, id)
	}
}

// place places the pending workloads, highest priority first. Each placement sees the
// demands of the earlier ones.
//
// While the nodes are unchanged, a workload that found no node finds none again. Then only
// the open workloads are evaluated: those that changed, or whose explanation is not
// recorded yet. If one of them would be placed or would preempt, all pending workloads are
// evaluated.
func (p *planner) place() {
	c := p.c
	for _, id := range c.regrouped {
		c.regroup(p.State, id)
	}
	c.regrouped = c.regrouped[:0]
	tried := map[string]bool{}
	if c.openAt == c.version && !p.placeOpen(tried) {
		return
	}
	before := c.version
	c.open.take()
	p.State.Pending(func(w *fsm.Workload) bool {
		if !tried[w.ID] {
			p.placeOne(w)
		}
		if !c.settled(w) {
			c.open.add(w.ID)
		}
		return true
	})
	c.openAt = 0
	if c.version == before {
		c.openAt = before
	}
}

// placeOpen evaluates the open workloads in the order of Pending. If one of them would be
// placed or would preempt, it stops before that and reports true.
func (p *planner) placeOpen(tried map[string]bool) bool {
	c := p.c
	var list []*fsm.Workload
	c.open.keep(func(id string) bool {
		w, ok := p.State.Workload(id)
		if ok = ok && w.Node == "" && w.Desired == fsm.DesiredRunning && !c.settled(w); ok {
			list = append(list, w)
		}
		return ok
	})
	slices.SortFunc(list, func(a, b *fsm.Workload) int {
		return cmp.Or(cmp.Compare(b.Demand.Priority, a.Demand.Priority),
			cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	for _, w := range list {
		if p.wouldMove(w) {
			return true
		}
		p.placeOne(w)
		tried[w.ID] = true
	}
	return false
}

// wouldMove reports whether placeOne would place a workload or preempt others for it.
func (p *planner) wouldMove(w *fsm.Workload) bool {
	if v := p.c.verdicts[w.ID]; v.of(w, p.c.version) {
		return false
	}
	if w.Demand.Priority > 0 {
		return true // it may preempt others
	}
	at, _, _, wait := p.former(w)
	if wait != "" || at >= 0 {
		return at >= 0
	}
	return !p.hopeless(w.Demand) && p.c.find(p.State, w.ID, w.Demand).best >= 0
}

// settled reports whether a pending workload need not be evaluated until it or a node
// changes.
func (c *Cache) settled(w *fsm.Workload) bool {
	v := c.verdicts[w.ID]
	return v.of(w, c.version) && v.said
}

func (p *planner) placeOne(w *fsm.Workload) {
	c := p.c
	old := c.verdicts[w.ID]
	known := old.of(w, c.version)
	if known && old.said {
		return
	}
	if !known {
		at, from, code, wait := p.former(w)
		if wait != "" {
			p.explain(w, code, wait)
			return
		}
		if at >= 0 {
			p.assign(w, at, "it may still run there", from)
			return
		}
		if !p.hopeless(w.Demand) {
			if q := c.find(p.State, w.ID, w.Demand); q.best >= 0 {
				p.assign(w, q.best, fmt.Sprintf("score %d", q.result.Total), nil)
				return
			}
			p.failed[string(p.key)] = true
		}
	}
	// No node can take it. A message in which only the counts differ is not committed each
	// time.
	said := true
	summary := p.summary(w) // before room is made, which changes the counts
	if w.Demand.Priority > 0 {
		if node := p.preempt(w); node != "" {
			summary += "; waits for room on node " + node
		}
	}
	same := w.Reason.Code == fsm.CodeUnplaced && w.Reason.Message == summary
	if until := w.Reason.At + explainEvery; !same && w.Reason.Code == fsm.CodeUnplaced && until > p.Now {
		p.wake(until)
		said = false
	} else if p.explain(w, fsm.CodeUnplaced, summary) {
		said = false
	}
	if w.Demand.Priority > 0 && len(p.done) > 0 {
		said = false // workloads that move in this step were no candidates for preemption and may stay after all
	}
	c.verdicts[w.ID] = verdict{modified: w.ModifyIndex, version: c.version, said: said}
}

// hopeless reports whether an equal demand found no node at this version of the cache. It
// leaves the key of the demand in p.key.
func (p *planner) hopeless(d *fsm.Demand) bool {
	if p.failed == nil || p.failedAt != p.c.version {
		p.failed, p.failedAt = map[string]bool{}, p.c.version
	}
	p.key = appendDemandKey(p.key[:0], d)
	return p.failed[string(p.key)]
}

// appendDemandKey encodes everything that decides whether a demand finds a node. The group
// only decides which node.
func appendDemandKey(b []byte, d *fsm.Demand) []byte {
	b = binary.AppendVarint(b, d.CPU)
	b = binary.AppendVarint(b, d.Memory)
	b = binary.AppendVarint(b, d.Disk)
	b = append(append(b, d.Pool...), 0)
	for _, p := range d.Ports {
		b = binary.BigEndian.AppendUint16(append(append(b, p.Protocol...), 1), p.Port)
	}
	return appendClassKey(append(b, 2), d)
}

// former looks for other nodes that may still run a workload. It returns the node that may
// keep it, or why the workload has to wait. Unless the workload is exclusive, nodes that
// are down are not waited for.
func (p *planner) former(w *fsm.Workload) (at int32, from *fsm.Residual, code, wait string) {
	live := 0
	p.State.ResidualsOf(w.ID, func(r *fsm.Residual) bool {
		n, ok := p.State.Node(r.Node)
		if ok && (n.Up || w.Demand.Exclusive && !n.Fenced) {
			live++
			from = r
		}
		return true
	})
	if live == 0 {
		return -1, nil, "", ""
	}
	if live == 1 && p.mayReturn(w, from) {
		return p.c.nodes.slotOf[from.Node], from, "", ""
	}
	n, _ := p.State.Node(from.Node)
	if !n.Up {
		return -1, from, fsm.CodeAwaitFailover, awaitFence(n.ID)
	}
	return -1, from, fsm.CodeAwaitStop, "waits until node " + n.ID + " has stopped it" + bracketed(from.Reason)
}

func bracketed(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// mayReturn reports whether a workload may go back to the node that still has it, which
// saves a restart.
func (p *planner) mayReturn(w *fsm.Workload, r *fsm.Residual) bool {
	x := p.c.nodes
	s, ok := x.slotOf[r.Node]
	if !ok || w.Demand.Exclusive || !x.ready.has(s) {
		return false
	}
	// Only workloads that left a lost or drained node may return. A workload that was
	// preempted or did not fit must be gone before its node is considered again.
	if r.Reason != fsm.CodeNodeLost && r.Reason != fsm.CodeDraining {
		return false
	}
	if static(w.Demand, x.recs[s]).filter != passes {
		return false
	}
	x.prepare(p.State, w.Demand)
	x.busy = x.exceptOwn(p.State, w, x.recs[s], x.busy)
	left := amounts(&r.Demand)
	x.take(&left, s, -1)
	ok = x.room(w.Demand, s) == passes
	x.take(&left, s, +1)
	return ok
}

// amounts is a demand without its host ports.
func amounts(d *fsm.Demand) fsm.Demand {
	return fsm.Demand{CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Pool: d.Pool}
}

func (p *planner) assign(w *fsm.Workload, s int32, why string, own *fsm.Residual) {
	if !p.spend() {
		return
	}
	x := p.c.nodes
	node := x.recs[s].ID
	if own != nil {
		left := amounts(&own.Demand)
		x.take(&left, s, -1)
	}
	p.c.promise(p.State, w.ID, w.Demand, s)
	p.mark(w.ID)
	p.assigned = append(p.assigned, &commandv1.Assignment{
		Workload: w.ID, Node: node, IfGeneration: fsm.GenerationPB(w.Generation), Reason: why,
	})
	p.note("Assign", w.ID, node, why)
}

// explain proposes a reason unless the record has it, and reports whether the record lacks
// it.
func (p *planner) explain(w *fsm.Workload, code, message string) bool {
	if w.Reason.Code == code && w.Reason.Message == message {
		return false
	}
	if p.spend() {
		p.unplaced = append(p.unplaced, &commandv1.Unplaced{
			Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation), Code: code, Message: message,
		})
		p.note(code, w.ID, w.Node, message)
	}
	return true
}

// summary is the message that counts the reasons; equal demands share it.
func (p *planner) summary(w *fsm.Workload) string {
	if p.tallies == nil || p.tallyAt != p.c.version {
		p.tallies, p.tallyAt = map[string]string{}, p.c.version
	}
	p.key = appendDemandKey(p.key[:0], w.Demand)
	m, ok := p.tallies[string(p.key)]
	if !ok {
		p.c.nodes.prepare(p.State, w.Demand)
		t := p.c.nodes.tally(w.Demand)
		m = t.message()
		p.tallies[string(p.key)] = m
	}
	return m
}

// tally counts rejections over all nodes by their first failing filter.
type tally struct {
	total, fit int
	by         []tallied
}

type tallied struct {
	r rejection
	n int
}

// tally needs prepare for the same demand before.
func (x *nodeIndex) tally(d *fsm.Demand) tally {
	t := tally{total: len(x.recs)}
	for i := range x.recs {
		if r := x.reject(d, int32(i)); r.filter == passes {
			t.fit++
		} else {
			t.add(r)
		}
	}
	t.sort()
	return t
}

func (t *tally) sort() {
	slices.SortFunc(t.by, func(a, b tallied) int {
		if a.n != b.n {
			return b.n - a.n
		}
		return strings.Compare(a.r.short(), b.r.short())
	})
}

// reject returns the first filter that a node fails.
func (x *nodeIndex) reject(d *fsm.Demand, s int32) rejection {
	if !x.ready.has(s) {
		if r := readiness(x.recs[s]); r.filter != passes {
			return r
		}
		return rejection{filter: x.unlisted}
	}
	if r := static(d, x.recs[s]); r.filter != passes {
		return r
	}
	if f := x.room(d, s); f != passes {
		return x.roomRejection(d, s, f)
	}
	return rejection{}
}

func (t *tally) add(r rejection) {
	for i := range t.by {
		if t.by[i].r == r {
			t.by[i].n++
			return
		}
	}
	t.by = append(t.by, tallied{r, 1})
}

// message is the summary that records carry, e.g. "0/5 nodes fit: 3 CPU, 2
// taint dedicated=gpu".
func (t *tally) message() string {
	if t.total == 0 {
		return "0/0 nodes fit: no node is registered"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d nodes fit", t.fit, t.total)
	for i, e := range t.by {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
		if i == maxReasons && len(t.by) > maxReasons+1 {
			rest := 0
			for _, e := range t.by[i:] {
				rest += e.n
			}
			fmt.Fprintf(&b, "%d for %d other reasons", rest, len(t.by)-i)
			break
		}
		fmt.Fprintf(&b, "%d %s", e.n, e.r.short())
	}
	return b.String()
}

// maxReasons bounds a summary.
const maxReasons = 8

func (t *tally) counts() []Count {
	out := make([]Count, len(t.by))
	for i, e := range t.by {
		out[i] = Count{Filter: filterNames[e.r.filter], Reason: e.r.short(), Nodes: e.n}
	}
	return out
}
