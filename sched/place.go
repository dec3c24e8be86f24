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

// Candidates are the nodes from which Place chooses, with the demands that Take has reserved on them.
type Candidates struct {
	c    *Cache
	view fsm.View
	who  subject
}

// NodesOf returns the nodes of a view as candidates. It copies what the filters need, so its cost
// grows with the number of nodes.
func NodesOf(v fsm.View, t Tuning) Candidates {
	c := &Cache{groups: map[string]*group{}, memberOf: map[string]membership{}, sets: map[string]*group{}, setsOf: map[string]member{}}
	c.nodes = newNodeIndex(v, t.withDefaults())
	return Candidates{c: c, view: v}
}

// For returns the candidates for a given workload, whose id decides among equal nodes.
func (n Candidates) For(workload string) Candidates {
	n.who = subject{id: workload, namespace: fsm.DefaultNamespace}
	if w, ok := n.view.Workload(workload); ok {
		n.who = subjectAt(w, n.view.Info().Clock)
	}
	return n
}

// Take reserves a demand on a node for the placements that follow. It returns false for an unknown node.
func (n Candidates) Take(d fsm.Demand, node NodeID) bool {
	s, ok := n.c.nodes.slotOf[node]
	if ok {
		n.c.promise(n.view, n.who, &d, s)
	}
	return ok
}

// Place returns the best node that passes every filter for a demand; "" if there is none. The Explanation
// holds the score of the node, or counts the rejected nodes by reason. Place reserves nothing on the node;
// Take does.
func Place(d fsm.Demand, nodes Candidates) (NodeID, Explanation) {
	q := nodes.c.find(nodes.view, nodes.who, &d)
	if q.best < 0 {
		nodes.c.prepare(nodes.view, nodes.who, &d)
		t := nodes.c.nodes.tally(&d)
		nodes.c.release()
		return "", Explanation{Workload: nodes.who.id, Code: fsm.CodeUnplaced, Message: t.message(), Total: t.total, Counts: t.counts()}
	}
	id := nodes.c.nodes.recs[q.best].ID
	return id, Explanation{Workload: nodes.who.id, Node: id, Score: q.result}
}

// find searches all nodes for the best one. It takes a node that the workload avoids only if no other node fits.
func (c *Cache) find(v fsm.View, who subject, d *fsm.Demand) query {
	if len(who.avoids) > 0 {
		if q := c.findExcept(v, who, d, who.avoids); q.best >= 0 {
			return q
		}
	}
	return c.findExcept(v, who, d, nil)
}

func (c *Cache) findExcept(v fsm.View, who subject, d *fsm.Demand, nodes []string) query {
	q := c.prepare(v, who, d)
	c.nodes.exclude(who.never)
	c.nodes.exclude(nodes)
	q.search(c.nodes.slots)
	if q.best >= 0 {
		q.result = c.nodes.scoreOf(d, q.best)
	}
	c.release()
	return q
}

// prepare prepares the search for a demand: its ports, the members of its group on each node, and its placement
// rules. The caller must call release afterwards.
func (c *Cache) prepare(v fsm.View, who subject, d *fsm.Demand) query {
	q := c.nodes.query(v, who, d)
	c.countMembers(v, who.id, d)
	c.apply(v, who, &q)
	return q
}

// countMembers stores in hot.members of each node how many other members of the demand's group it has, and
// lists the nodes that have any.
func (c *Cache) countMembers(v fsm.View, id string, d *fsm.Demand) {
	x := c.nodes
	x.slots = x.slots[:0]
	if d.Group == "" {
		return
	}
	g := c.groupOf(v, d.Group) // call this before memberOf is read, because the first call for a group fills memberOf
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
}

// promise reserves a demand on a node in the arrays. The state does not have this reservation yet,
// so the next step reads the node's record again.
func (c *Cache) promise(v fsm.View, who subject, d *fsm.Demand, s int32) {
	c.nodes.take(d, s, +1)
	c.version++
	node := c.nodes.recs[s].ID
	c.touch(node, d)
	for _, name := range d.Networks {
		if n, ok := v.Network(who.namespace, name); ok {
			if _, has := n.SliceOf(node); !has && !slices.Contains(c.nodes.sliced[n.ID], node) {
				c.nodes.sliced[n.ID] = append(c.nodes.sliced[n.ID], node)
			}
		}
	}
	if who.id == "" {
		return
	}
	if d.Group != "" {
		c.groupOf(v, d.Group)
		c.join(who.id, membership{d.Group, s})
	}
	c.loadRepelling(v)
	c.enter(who, d, s)
	c.promised = append(c.promised, promised{who, d, s})
}

// place places the pending workloads, highest priority first. Each placement takes the earlier ones into
// account.
//
// As long as no node changes, a workload that fitted on no node still fits on none. Then only the open
// workloads are evaluated: those that changed, or for which the state has no explanation yet. If one of them
// would be placed or would preempt, all pending workloads are evaluated.
func (p *planner) place() {
	c := p.c
	p.retryPreemptions()
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

// placeOpen evaluates the open workloads: pending workloads that changed, and pending workloads without a recorded
// explanation. It begins with the highest priority. When it reaches a workload that can be placed or can preempt
// others, it stops before that workload and returns true.
func (p *planner) placeOpen(tried map[string]bool) bool {
	c := p.c
	var list []*fsm.Workload
	c.open.keep(func(id string) bool {
		w, ok := p.State.Workload(id)
		if ok = ok && w.WantsPlace() && !c.settled(w); ok {
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

// wouldMove reports whether placeOne would place a workload or evict others to make room for it.
func (p *planner) wouldMove(w *fsm.Workload) bool {
	if v := p.c.verdicts[w.ID]; v.of(w, p.c.version) {
		return false
	}
	if at := deadlineOfJob(w); at != 0 && at <= p.Now || p.awaitsTurn(w) != "" {
		return false
	}
	if w.Demand.Priority > 0 {
		return true // the workload may have to preempt others
	}
	at, _, _, wait := p.former(w)
	if wait != "" || at >= 0 {
		return at >= 0
	}
	return !p.hopeless(w) && p.c.find(p.State, p.subject(w), w.Demand).best >= 0
}

// settled reports whether the planner already knows that pending workload w fits on no node, so that w
// need not be evaluated again before w or a node changes.
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
	c.limited.set(w.ID, 0)
	if at := deadlineOfJob(w); at != 0 && at <= p.Now || p.done[w.ID] {
		return // this step ends the job, or deletes the member of a system workload
	}
	if wait := p.awaitsTurn(w); wait != "" {
		// A member of a job group that waits for the group's limit of parallel members need not be
		// evaluated in each step: when another member leaves its node, the version of the cache
		// changes, and this result is no longer valid.
		c.verdicts[w.ID] = verdict{modified: w.ModifyIndex, version: c.version, said: !p.explain(w, fsm.CodeAwaitTurn, wait)}
		return
	}
	if !known {
		at, from, code, wait := p.former(w)
		if wait != "" {
			p.explain(w, code, wait+displaced(w))
			return
		}
		if at >= 0 {
			p.assign(w, at, "it may still run there", from)
			return
		}
		if !p.hopeless(w) {
			who := p.subject(w)
			q := c.find(p.State, who, w.Demand)
			if q.best >= 0 {
				p.assign(w, q.best, fmt.Sprintf("score %d", q.result.Total), nil)
				return
			}
			if len(who.never) > 0 {
				who.never = nil
				if q := c.find(p.State, who, w.Demand); q.best >= 0 {
					p.explain(w, fsm.CodeUnplaced, fsm.MovesInto(p.State, w, c.nodes.recs[q.best].ID)+"; no other node fits, so the workload is placed when the move has ended")
					return
				}
			}
			p.failed[string(p.key)] = true
		}
	}
	// No node has room for the workload. If only the counts in the message have changed, do not commit
	// the new message each time.
	said := true
	summary := p.summary(w) // compute the summary first, because preempt changes the counts
	if w.Demand.Priority > 0 {
		summary += prefixed("; ", p.preempt(w))
		c.limited.set(w.ID, p.preemptions.again)
	}
	summary += displaced(w)
	same := w.Reason.Code == fsm.CodeUnplaced && w.Reason.Message == summary
	if until := w.Reason.At + explainEvery; !same && w.Reason.Code == fsm.CodeUnplaced && until > p.Now {
		p.wake(until)
		said = false
	} else if p.explain(w, fsm.CodeUnplaced, summary) {
		said = false
	}
	if w.Demand.Priority > 0 && len(p.done) > 0 {
		// A workload that this step moves cannot be preempted in this step. The state machine may refuse the move, so
		// look for workloads to preempt again in the next step.
		said = false
	}
	c.verdicts[w.ID] = verdict{modified: w.ModifyIndex, version: c.version, said: said}
}

// hopeless reports whether the planner has found, since nodes last changed, that an equal demand
// fits on no node. It leaves the key of the demand in p.key.
func (p *planner) hopeless(w *fsm.Workload) bool {
	if p.failed == nil || p.failedAt != p.c.version {
		p.failed, p.failedAt = map[string]bool{}, p.c.version
	}
	p.key = p.c.appendDemandKey(p.key[:0], subjectOf(w), w.Demand)
	return p.failed[string(p.key)]
}

// appendDemandKey encodes everything that decides whether a demand fits on a node. Without rules, the group is
// left out, because it only decides which fitting node is chosen.
func (c *Cache) appendDemandKey(b []byte, who subject, d *fsm.Demand) []byte {
	b = binary.AppendVarint(b, d.CPU)
	b = binary.AppendVarint(b, d.Memory)
	b = binary.AppendVarint(b, d.Disk)
	b = append(append(b, d.Pool...), 0)
	for _, p := range d.Ports {
		b = binary.BigEndian.AppendUint16(append(append(b, p.Protocol...), 1), p.Port)
		b = append(append(b, p.Address...), 1)
	}
	for i := range d.Devices {
		b = binary.AppendVarint(append(append(b, d.Devices[i].Name...), 3), d.Devices[i].Count)
	}
	for i, n := range d.Networks {
		if i == 0 {
			b = append(append(b, who.namespace...), 1)
		}
		b = append(append(b, n...), 1)
	}
	return c.nodes.appendClassKey(c.appendSubject(append(b, 2), who, d), c.nodes.pooled[who.namespace], d)
}

// former looks at the nodes that may still run an instance of w (its residuals). It returns the node (at,
// from) on which w may be placed again without a restart, or the reason (code, wait) why w has to wait.
// Only an exclusive workload waits for nodes that are down.
func (p *planner) former(w *fsm.Workload) (at int32, from *fsm.Residual, code, wait string) {
	live := 0
	p.State.ResidualsOf(w.ID, func(r *fsm.Residual) bool {
		n, ok := p.State.Node(r.Node)
		if ok && (n.Up && !forgotten(w, r) || w.Demand.Exclusive && !n.Fenced) {
			live++
			from = r
		}
		return true
	})
	if live == 0 {
		return -1, nil, "", ""
	}
	if live == 1 && p.mayReturn(w, from) && fsm.MovesInto(p.State, w, from.Node) == "" {
		return p.c.nodes.slotOf[from.Node], from, "", ""
	}
	n, _ := p.State.Node(from.Node)
	if !n.Up {
		return -1, from, fsm.CodeAwaitFailover, awaitFence(n.ID)
	}
	return -1, from, fsm.CodeAwaitStop, "waits until node " + n.ID + " has stopped it" + bracketed(from.Reason)
}

// forgotten reports whether residual r (a record that a node may still run an instance) belongs to an
// earlier workload with the same id as w, which a person deleted with --force. The node may still run that
// workload, but this does not delay the placement of w.
func forgotten(w *fsm.Workload, r *fsm.Residual) bool {
	return r.Reason == fsm.CodeDeleting && w.CreatedAt > r.Since
}

// displaced returns the text that ends the message of a pending workload that was preempted.
func displaced(w *fsm.Workload) string {
	if w.PreemptedBy == "" {
		return ""
	}
	return "; it left node " + w.PreviousNode + " to make room for " + w.PreemptedBy
}

func bracketed(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// mayReturn reports whether a workload may be placed on the node that still runs it, which saves a restart.
func (p *planner) mayReturn(w *fsm.Workload, r *fsm.Residual) bool {
	x := p.c.nodes
	s, ok := x.slotOf[r.Node]
	if !ok || w.Demand.Exclusive || !x.ready.has(s) {
		return false
	}
	// A workload that still runs on its former node may be placed there again only if it had to leave because the node
	// was lost, draining or tainted. If it was preempted or did not fit, it must first be stopped on that node.
	if r.Reason != fsm.CodeNodeLost && !leavesNode(r.Reason) {
		return false
	}
	if x.static(x.pooled[w.In()], w.Demand, s).filter != passes || p.awaitedPort(w, x.recs[s]) {
		return false
	}
	p.c.prepare(p.State, subjectOf(w), w.Demand)
	defer p.c.release()
	if x.rules.rejects(s) {
		return false
	}
	x.busy = x.exceptOwn(p.State, w, x.recs[s], x.busy)
	left := amounts(&r.Demand)
	x.take(&left, s, -1)
	ok = x.room(w.Demand, s) == passes
	x.take(&left, s, +1)
	return ok
}

// awaitedPort reports whether another workload on the engine of node n demands a host port that w still holds
// there. If w returned to n, it would hold the port again.
func (p *planner) awaitedPort(w *fsm.Workload, n *fsm.Node) (awaited bool) {
	for _, port := range w.Demand.Ports {
		for _, s := range p.c.nodes.engines[n.Engine()] {
			p.State.WorkloadsOn(p.c.nodes.recs[s].ID, func(v *fsm.Workload) bool {
				awaited = v.Wants(port)
				return !awaited
			})
			if awaited {
				return true
			}
		}
	}
	return false
}

// amounts returns the CPU, memory, disk and devices of a demand as a demand without host ports.
func amounts(d *fsm.Demand) fsm.Demand {
	return fsm.Demand{CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Pool: d.Pool, Devices: d.Devices}
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
	p.c.promise(p.State, subjectOf(w), w.Demand, s)
	p.mark(w.ID)
	if _, ok := p.turns[w.Demand.Group]; ok && w.Demand.Job != nil {
		p.turns[w.Demand.Group]++
	}
	p.assigned = append(p.assigned, &commandv1.Assignment{
		Workload: w.ID, Node: node, IfGeneration: fsm.GenerationPB(w.Generation), Reason: why,
	})
	p.note("Assign", w.ID, node, why)
}

// explain proposes to record a reason, unless the record of the workload has that reason already.
// It returns true if the record lacks the reason.
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

// summary returns the message of an unplaced workload, such as "0/3 nodes fit: 2 memory, 1 taint". It is computed
// once for all workloads with the same demand.
func (p *planner) summary(w *fsm.Workload) string {
	if p.tallies == nil || p.tallyAt != p.c.version {
		p.tallies, p.tallyAt = map[string]string{}, p.c.version
	}
	p.key = p.c.appendDemandKey(p.key[:0], subjectOf(w), w.Demand)
	m, ok := p.tallies[string(p.key)]
	if !ok {
		p.c.prepare(p.State, subjectOf(w), w.Demand)
		t := p.c.nodes.tally(w.Demand)
		p.c.release()
		m = t.message()
		p.tallies[string(p.key)] = m
	}
	return m
}

// tally holds, for each reason, how many nodes are rejected; only the first filter that rejects a
// node is counted.
type tally struct {
	total, fit int
	by         []tallied
}

type tallied struct {
	r rejection
	n int
}

// tally counts the nodes that reject a demand. The caller must have called prepare for the demand.
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

// reject returns the first filter that rejects a node for the present demand.
func (x *nodeIndex) reject(d *fsm.Demand, s int32) rejection {
	if !x.ready.has(s) {
		if r := readiness(x.recs[s]); r.filter != passes {
			return r
		}
		return rejection{filter: x.unlisted}
	}
	if r := x.static(x.in, d, s); r.filter != passes {
		return r
	}
	if x.rules.rejects(s) {
		return x.ruleRejection(s)
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

// message returns the summary for the record of a workload, e.g. "0/5 nodes fit: 3 CPU, 2 taint
// dedicated=gpu".
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

// maxReasons is the maximum number of reasons that a summary lists.
const maxReasons = 8

func (t *tally) counts() []Count {
	out := make([]Count, len(t.by))
	for i, e := range t.by {
		out[i] = Count{Filter: filterNames[e.r.filter], Field: filterFields[e.r.filter], Reason: e.r.short(), Nodes: e.n}
	}
	return out
}
