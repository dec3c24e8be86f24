package sched

import (
	"cmp"
	"slices"

	"github.com/persys/compute/fsm"
)

// Cache makes Next fast: it keeps the nodes in arrays and queues of records to look at.
// Everything in it follows from the state, so it may be dropped at any time. It belongs to
// one goroutine and to one gapless sequence of views and their changes.
type Cache struct {
	built  bool
	tuning Tuning
	index  uint64 // of the view that it matches

	nodes   *nodeIndex
	version uint64 // advances whenever a placement might have another result

	workloads workQueue // to be looked at, by the evict and retry passes
	capacity  workQueue // nodes whose promises may exceed what they have
	stale     []string  // nodes to read again
	stalePort []portRef // host ports to ask about again
	due       deadlines // workloads to be looked at again at a time

	groups    map[string]*group
	memberOf  map[string]membership // only of groups in use
	leaving   workQueue             // nodes that have residuals
	regrouped []string              // workloads counted where the state may not have them

	verdicts map[string]verdict // of pending workloads that no node can take
	open     workQueue          // changed or unsettled workloads; some may not be pending
	openAt   uint64             // version at which every pending workload not in open was settled
}

type portRef struct {
	engine string
	port   fsm.HostPort
}

// group counts the members of one group by node.
type group struct{ on []memberCount }

type memberCount struct{ slot, n int32 }

type membership struct {
	group string
	slot  int32
}

// verdict says that no node could take a workload at a version of the cache.
type verdict struct {
	modified uint64
	version  uint64
	said     bool // the record carries the explanation
}

// of reports whether v is about this revision of the record and this version of the cache.
func (v verdict) of(w *fsm.Workload, version uint64) bool {
	return v.version != 0 && v.version == version && v.modified == w.ModifyIndex
}

// NewCache makes an empty Cache; the first step fills it.
func NewCache() *Cache { return &Cache{} }

// build reads the whole view.
func (c *Cache) build(w *World) {
	v := w.State
	*c = Cache{
		built:    true,
		tuning:   w.Tuning,
		index:    v.Info().Index,
		nodes:    newNodeIndex(v, w.Tuning),
		version:  c.version + 1,
		groups:   map[string]*group{},
		memberOf: map[string]membership{},
		verdicts: map[string]verdict{},
	}
	c.workloads.expect(v.WorkloadCount())
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.Node != "" {
			c.workloads.add(w.ID)
		}
		return true
	})
	v.Nodes("", func(n *fsm.Node) bool {
		c.capacity.add(n.ID)
		return true
	})
	v.Residuals("", func(r *fsm.Residual) bool {
		c.leaving.add(r.Node)
		return true
	})
}

// sync brings the cache up to the view. A change only names a record to read again, so
// seeing one twice does no harm.
func (c *Cache) sync(w *World) {
	v := w.State
	if !c.built || c.tuning != w.Tuning || v.Info().Index < c.index {
		c.build(w)
		return
	}
	c.index = v.Info().Index
	rebuild := v.NodeCount() != len(c.nodes.recs)
	for i := range w.Changes {
		ch := &w.Changes[i]
		switch ch.Table {
		case fsm.TableNode:
			rebuild = c.nodeChanged(v, ch) || rebuild
		case fsm.TableWorkload:
			c.workloadChanged(v, ch)
		case fsm.TableResidual:
			c.residualChanged(v, ch)
		}
	}
	if rebuild {
		c.nodes = newNodeIndex(v, w.Tuning)
		c.version++
		clear(c.groups) // they count by slot
		clear(c.memberOf)
		for _, id := range c.stale {
			c.capacity.add(id)
		}
		c.stale, c.stalePort = nil, nil
		return
	}
	for _, p := range c.stalePort {
		c.nodes.refreshPort(v, p.engine, p.port)
		c.version++
	}
	for _, id := range c.stale {
		if s, ok := c.nodes.slotOf[id]; ok && c.nodes.refresh(v, s) {
			c.version++
			c.capacity.add(id)
		}
	}
	c.stale, c.stalePort = c.stale[:0], c.stalePort[:0]
}

// nodeChanged reports whether the node arrays must be built anew: a node was added or
// removed, or has another engine.
func (c *Cache) nodeChanged(v fsm.View, ch *fsm.Change) bool {
	id := ch.Key
	c.recheck(v, id)
	switch was, now := ch.OldNode(), ch.NewNode(); {
	case was == nil || now == nil:
		c.capacity.add(id)
		return true
	case was.Engine() != now.Engine():
		// The workloads of both engines now compete for other host ports.
		c.capacity.add(id)
		v.Nodes("", func(n *fsm.Node) bool {
			if e := n.Engine(); e == was.Engine() || e == now.Engine() {
				c.recheck(v, n.ID)
			}
			return true
		})
		return true
	}
	c.stale = append(c.stale, id)
	return false
}

// recheck has every workload on a node looked at again.
func (c *Cache) recheck(v fsm.View, node string) {
	v.WorkloadsOn(node, func(w *fsm.Workload) bool {
		c.workloads.add(w.ID)
		return true
	})
}

func (c *Cache) workloadChanged(v fsm.View, ch *fsm.Change) {
	if c.stillUnplaced(ch) {
		return
	}
	if !waits(ch) {
		c.workloads.add(ch.Key)
	}
	c.open.add(ch.Key)
	for _, w := range [...]*fsm.Workload{ch.OldWorkload(), ch.NewWorkload()} {
		if w != nil && w.Node != "" {
			c.touch(w.Node, w.Demand)
			c.touchFormer(v, w)
			if !w.Acknowledged {
				c.capacity.add(w.Node)
			}
		}
	}
	if o, n := ch.OldWorkload(), ch.NewWorkload(); o != nil && n != nil && n.Node != "" && o.Demand.Priority != n.Demand.Priority {
		c.version++ // other workloads may preempt it now, or no longer
	}
	c.regroup(v, ch.Key)
}

// waits reports whether a workload is pending after a change and was not placed before it.
// Such changes do not concern the passes that look at placed workloads.
func waits(ch *fsm.Change) bool {
	o, n := ch.OldWorkload(), ch.NewWorkload()
	return n != nil && n.Node == "" && n.Desired == fsm.DesiredRunning && (o == nil || o.Node == "")
}

// stillUnplaced reports whether a change leaves demand and explanation of an unplaced
// workload as they were; then its verdict still holds.
func (c *Cache) stillUnplaced(ch *fsm.Change) bool {
	o, n := ch.OldWorkload(), ch.NewWorkload()
	if o == nil || !waits(ch) || o.Demand != n.Demand || o.Reason != n.Reason || !c.settled(o) {
		return false
	}
	c.verdicts[n.ID] = verdict{modified: n.ModifyIndex, version: c.version, said: true}
	return true
}

// touch marks a node, and those of its host ports that a demand names, to be read again.
func (c *Cache) touch(node string, d *fsm.Demand) {
	if n := len(c.stale); n == 0 || c.stale[n-1] != node {
		c.stale = append(c.stale, node)
	}
	if len(d.Ports) == 0 {
		return
	}
	if s, ok := c.nodes.slotOf[node]; ok {
		engine := c.nodes.recs[s].Engine()
		for _, p := range d.Ports {
			c.stalePort = append(c.stalePort, portRef{engine, p})
		}
	}
}

// touchFormer marks the host ports that a workload still holds for the revision that it
// replaces. While the workload held them, conflicts between other workloads about these
// ports did not show, so the ports must be evaluated again.
func (c *Cache) touchFormer(v fsm.View, w *fsm.Workload) {
	s, ok := c.nodes.slotOf[w.Node]
	if !ok || len(w.FormerPorts) == 0 {
		return
	}
	engine := c.nodes.recs[s].Engine()
	for _, p := range w.FormerPorts {
		c.stalePort = append(c.stalePort, portRef{engine, p})
	}
	for _, s := range c.nodes.engines[engine] {
		c.recheck(v, c.nodes.recs[s].ID)
	}
}

func (c *Cache) residualChanged(v fsm.View, ch *fsm.Change) {
	c.version++
	for _, r := range [...]*fsm.Residual{ch.OldResidual(), ch.NewResidual()} {
		if r == nil {
			continue
		}
		c.leaving.add(r.Node)
		c.touch(r.Node, &r.Demand)
		for _, p := range r.Demand.Ports {
			c.stalePort = append(c.stalePort, portRef{r.Engine, p})
		}
	}
	if r := ch.OldResidual(); r != nil && len(r.Demand.Ports) > 0 {
		// While it held a port, conflicts between others about the port could not be seen.
		for _, s := range c.nodes.engines[r.Engine] {
			c.recheck(v, c.nodes.recs[s].ID)
		}
	}
}

// groupOf counts the members of a group, reading the view the first time.
func (c *Cache) groupOf(v fsm.View, name string) *group {
	g, ok := c.groups[name]
	if !ok {
		g = &group{}
		c.groups[name] = g
		v.Group(name, func(w *fsm.Workload) bool {
			if s, ok := c.nodes.slotOf[w.Node]; ok {
				c.memberOf[w.ID] = membership{name, s}
				g.add(s, 1)
			}
			return true
		})
	}
	return g
}

// withhold gives a node no more work in this step; the next step reads the node again.
func (c *Cache) withhold(node string) {
	if s, ok := c.nodes.slotOf[node]; ok && c.nodes.ready.has(s) {
		c.nodes.unlist(s)
		c.version++
		c.stale = append(c.stale, node)
	}
}

// regroup counts one workload where it is now.
func (c *Cache) regroup(v fsm.View, id string) {
	if len(c.groups) == 0 {
		return
	}
	now := membership{}
	if w, ok := v.Workload(id); ok && w.Node != "" && w.Demand.Group != "" {
		if _, ok := c.groups[w.Demand.Group]; ok {
			if s, ok := c.nodes.slotOf[w.Node]; ok {
				now = membership{w.Demand.Group, s}
			}
		}
	}
	c.join(id, now)
}

func (c *Cache) join(id string, now membership) {
	was, ok := c.memberOf[id]
	if was == now {
		return
	}
	if ok {
		c.groups[was.group].add(was.slot, -1)
		delete(c.memberOf, id)
	}
	if now.group != "" {
		c.groups[now.group].add(now.slot, 1)
		c.memberOf[id] = now
	}
}

func (g *group) add(slot, n int32) {
	i, ok := slices.BinarySearchFunc(g.on, slot, func(m memberCount, s int32) int { return cmp.Compare(m.slot, s) })
	if !ok {
		g.on = slices.Insert(g.on, i, memberCount{slot: slot})
	}
	if g.on[i].n += n; g.on[i].n == 0 {
		g.on = slices.Delete(g.on, i, i+1)
	}
}

// pop queues every workload whose deadline is at or before now.
func (c *Cache) pop(now int64) {
	for {
		at, id := c.due.next()
		if at == 0 || at > now {
			return
		}
		c.due.set(id, 0)
		c.workloads.add(id)
	}
}
