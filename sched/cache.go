package sched

import (
	"cmp"
	"slices"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/schedule"
)

// Cache makes Next fast: it keeps the nodes in arrays and queues of records to evaluate. Its content follows
// from the state, so it may be dropped at any time. Only one goroutine may use it. Each view must be newer than the
// one before, and World.Changes must have every change between the two.
type Cache struct {
	built  bool
	tuning Tuning
	index  uint64 // log index of the newest view in the cache

	nodes   *nodeIndex
	version uint64 // incremented whenever the outcome of a placement may change

	workloads workQueue                     // placed workloads that the evict and retry passes must evaluate
	capacity  workQueue                     // nodes that may have more resources reserved than they offer
	stale     []string                      // ids of nodes whose records must be read again
	stalePort []portRef                     // host ports whose holders must be read again
	schedules map[string]*schedule.Schedule // parsed schedules of crons, by expression and zone; nil if not valid
	zones     map[string]*time.Location     // time zones of crons, by name; nil if not known
	due       deadlines                     // when workloads must be evaluated again

	groups   map[string]*group
	memberOf map[string]membership // group and node slot of each workload, only for groups that the planner has counted
	leaving  workQueue             // nodes that have residuals: instances that a node has yet to remove
	promised []promised            // workloads that the previous step placed; their groups and sets must be counted again

	sets      map[string]*group      // for each target that a rule names: the placed workloads that match it, see setOf
	setsOf    map[string]member      // sets of each placed workload
	untracked map[string][]int       // promised workloads by rule target, for targets without a set; see indexPromised
	indexed   int                    // number of promised workloads that untracked has
	repelled  map[string][]repelling // placed workloads with required anti-affinities, by the target of the rule; nil = not counted yet
	target    []byte                 // scratch: key of sets
	other     []byte                 // scratch: another key of sets

	systems systems // system workloads, see system.go

	stuck   workQueue // workloads that their node cannot run and that no other node takes, see elsewhere.go
	stuckAt uint64    // version of the cache at which the stuck workloads were last queued

	verdicts map[string]verdict // for each pending workload that fits on no node: the version of the cache at which this was found
	open     workQueue          // workloads to evaluate: they changed or have no valid verdict; some may not be pending
	limits   bool               // since the last change of version, the limits of preemption have delayed a pending workload
	limited  deadlines          // pending workloads that may not preempt yet: when they are evaluated again
	openAt   uint64             // version of the cache at which every pending workload outside of open was evaluated

	slicesKnown bool  // sliceDue is up to date
	sliceDue    int64 // earliest time at which a slice of a network may be taken back from its node, or given to another node; 0 = none
}

type portRef struct {
	engine string
	port   fsm.HostPort
}

// group has, for each node, how many members of one group it has, or how many of another set of
// placed workloads that a rule names.
type group struct {
	on     []memberCount
	total  int32
	values []valueCounts // counts by the values of labels, for rules
}

// valueCounts has the number of members of a group at each value of a label.
type valueCounts struct {
	t *topology
	n []int32
}

type memberCount struct{ slot, n int32 }

type membership struct {
	group string
	slot  int32
}

// verdict records that a workload fitted on no node at a certain version of the cache.
type verdict struct {
	modified uint64
	version  uint64
	said     bool // the record of the workload already explains why no node fits
}

// of reports whether verdict v is still valid: neither record w nor the cache has changed since v was reached.
func (v verdict) of(w *fsm.Workload, version uint64) bool {
	return v.version != 0 && v.version == version && v.modified == w.ModifyIndex
}

// NewCache makes an empty Cache; the first step fills it.
func NewCache() *Cache { return &Cache{} }

// build fills the cache from the whole view.
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
		sets:     map[string]*group{},
		setsOf:   map[string]member{},
	}
	c.workloads.expect(v.WorkloadCount())
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.Node != "" || w.Demand.Job != nil {
			c.workloads.add(w.ID)
		}
		if w.IsSystem() {
			c.systems.add(w.ID)
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

// sync updates the cache to the newest view. A change only says which record must be read again, so it does
// no harm if the cache sees a change twice.
func (c *Cache) sync(w *World) {
	v := w.State
	if !c.built || c.tuning != w.Tuning || v.Info().Index < c.index {
		c.build(w)
		return
	}
	c.index = v.Info().Index
	clear(c.nodes.sliced)
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
		case fsm.TableMove:
			c.moveChanged(ch)
		case fsm.TablePolicy, fsm.TableReplica: // schedulers use ports of their machines
			rebuild = true
		case fsm.TableNetwork:
			c.version++ // nodes for which the network had no slice may fit now
			c.slicesKnown = false
		case fsm.TableNamespace:
			c.version++ // the set of preemptible workloads may have changed
			c.namespaceChanged(v, ch)
		}
	}
	if rebuild {
		c.nodes = newNodeIndex(v, w.Tuning)
		c.version++
		clear(c.groups) // drop the member counts of groups: they are stored by node slot, and the nodes have new slots
		clear(c.memberOf)
		clear(c.sets)
		clear(c.setsOf)
		c.repelled = nil
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

// namespaceChanged acts if the labels that a namespace requires of nodes have changed: it reads the required
// labels of all namespaces again, and queues the placed workloads of that namespace and all system workloads.
func (c *Cache) namespaceChanged(v fsm.View, ch *fsm.Change) {
	var was, now []fsm.Label
	if n := ch.OldNamespace(); n != nil {
		was = n.NodeLabels
	}
	if n := ch.NewNamespace(); n != nil {
		now = n.NodeLabels
	}
	if slices.Equal(was, now) {
		return
	}
	c.nodes.pooled = pooledNamespaces(v)
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.In() == ch.Key && w.Node != "" {
			c.workloads.add(w.ID)
			c.capacity.add(w.Node) // the capacity check did not count workloads that had to leave, and these may now stay
		}
		return true
	})
	for _, id := range slices.Clone(c.systems.known) {
		c.systems.add(id)
	}
}

// nodeChanged queues what must be evaluated again after a change of a node. It reports whether the arrays of
// nodes must be rebuilt: a node was added or removed, has another engine, or its agent listens at other ports.
func (c *Cache) nodeChanged(v fsm.View, ch *fsm.Change) bool {
	id := ch.Key
	c.recheck(v, id)
	if len(c.systems.known) > 0 {
		c.systems.nodes.add(id)
	}
	switch was, now := ch.OldNode(), ch.NewNode(); {
	case was == nil || now == nil:
		c.capacity.add(id)
		return true
	case was.Engine() != now.Engine():
		// The node has another engine now. All nodes of one engine share their host ports, so workloads on the
		// nodes of the old and of the new engine may have gained or lost port conflicts.
		c.capacity.add(id)
		v.Nodes("", func(n *fsm.Node) bool {
			if e := n.Engine(); e == was.Engine() || e == now.Engine() {
				c.recheck(v, n.ID)
			}
			return true
		})
		return true
	case !was.Facts.SameListeners(&now.Facts):
		c.stale = append(c.stale, id)
		return true
	}
	c.stale = append(c.stale, id)
	return false
}

// moveChanged reads the reserved resources of the nodes of a move of volumes again.
func (c *Cache) moveChanged(ch *fsm.Change) {
	for _, m := range []*fsm.Move{ch.OldMove(), ch.NewMove()} {
		if m != nil {
			c.stale = append(c.stale, m.From, m.To)
			c.workloads.add(m.Workload)
		}
	}
}

// recheck queues every workload on a node to be evaluated again. It also queues the node for a check of its capacity: the
// last check did not count workloads that had to leave the node, and these may stay now.
func (c *Cache) recheck(v fsm.View, node string) {
	c.capacity.add(node)
	v.WorkloadsOn(node, func(w *fsm.Workload) bool {
		c.workloads.add(w.ID)
		return true
	})
}

func (c *Cache) workloadChanged(v fsm.View, ch *fsm.Change) {
	c.systems.changed(ch.Key, c.nodes, ch.OldWorkload(), ch.NewWorkload())
	if c.stillUnplaced(ch) {
		return
	}
	if !waits(ch) || isJob(ch.OldWorkload()) || isJob(ch.NewWorkload()) {
		c.workloads.add(ch.Key)
	}
	c.open.add(ch.Key)
	c.limited.set(ch.Key, 0)
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
		c.version++ // the priority decides whether the workload may be preempted
	}
	if o, n := ch.OldWorkload(), ch.NewWorkload(); c.limits && o != nil && n != nil && n.Node != "" &&
		(o.Generation != n.Generation || o.Preemptible(nil) != n.Preemptible(nil)) {
		c.version, c.limits = c.version+1, false // preemption evicts the newest generations first, so a new generation changes its choice
	}
	if o, n := ch.OldWorkload(), ch.NewWorkload(); o != nil && n != nil && turnOf(o) != turnOf(n) {
		c.version++ // the members of a job group that wait for their turn, or no longer need to, must be evaluated again
	}
	c.regroup(v, ch.Key)
}

// isJob reports whether w, which may be nil, is a job.
func isJob(w *fsm.Workload) bool { return w != nil && w.Demand.Job != nil }

// waits reports whether a workload was unplaced before a change and is pending after it. Such a
// change concerns only the placement pass, not the passes that evaluate placed workloads.
func waits(ch *fsm.Change) bool {
	o, n := ch.OldWorkload(), ch.NewWorkload()
	return n != nil && n.WantsPlace() && (o == nil || o.Node == "")
}

// stillUnplaced reports whether a change leaves the demand and the reason of an unplaced workload
// as they were. The cached result that the workload fits on no node then stays valid.
func (c *Cache) stillUnplaced(ch *fsm.Change) bool {
	o, n := ch.OldWorkload(), ch.NewWorkload()
	if o == nil || !waits(ch) || o.Demand != n.Demand || o.JobSince != n.JobSince || o.Reason != n.Reason || !c.settled(o) {
		return false
	}
	c.verdicts[n.ID] = verdict{modified: n.ModifyIndex, version: c.version, said: true}
	return true
}

// touch marks the entries of a node in the cache as outdated: its free resources and the host ports
// that d demands are read again from the state.
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

// touchFormer is called when ports that a workload had before its last change may have become free. It marks
// them to be read again, and queues the workloads on the engine: while such a port was reserved, conflicts of
// other workloads about it were hidden, and may appear now.
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
		c.systems.left(c.nodes, r.Node)
		c.touch(r.Node, &r.Demand)
		for _, p := range r.Demand.Ports {
			c.stalePort = append(c.stalePort, portRef{r.Engine, p})
		}
	}
	if r := ch.OldResidual(); r != nil && len(r.Demand.Ports) > 0 {
		// The residual (an instance that the node had to remove) is gone. While it held a port, conflicts
		// between other workloads about that port were hidden. They may appear now.
		for _, s := range c.nodes.engines[r.Engine] {
			c.recheck(v, c.nodes.recs[s].ID)
		}
	}
}

// groupOf returns the numbers of members of a group on each node. At the first use of a group it counts them
// from the view; later changes update the numbers.
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

// withhold excludes a node from the placements of the present step. The next step reads the record of the
// node again.
func (c *Cache) withhold(node string) {
	if s, ok := c.nodes.slotOf[node]; ok && c.nodes.ready.has(s) {
		c.nodes.unlist(s)
		c.version++
		c.stale = append(c.stale, node)
	}
}

// recount corrects the numbers of group members per node for workloads that the previous step
// placed: the state machine may have refused a placement.
func (c *Cache) recount(v fsm.View) {
	done := c.promised
	c.promised, c.untracked, c.indexed = nil, nil, 0
	for _, p := range done {
		c.regroup(v, p.who.id)
	}
	clear(done)
	c.promised = done[:0]
}

// regroup corrects the numbers of members per node, for the group of a workload and its sets (see Cache.sets),
// when the workload has changed its node.
func (c *Cache) regroup(v fsm.View, id string) {
	c.recountSets(v, id)
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
	g.total += n
	for _, c := range g.values {
		c.n[c.t.of[slot]] += n
	}
}

// at returns the number of members on the node with this slot (its position in the arrays of
// nodes).
func (g *group) at(slot int32) int32 {
	i, ok := slices.BinarySearchFunc(g.on, slot, func(m memberCount, s int32) int { return cmp.Compare(m.slot, s) })
	if !ok {
		return 0
	}
	return g.on[i].n
}

// byValue returns the number of members at each value of a label. The group keeps the counts.
func (g *group) byValue(t *topology) []int32 {
	for _, c := range g.values {
		if c.t == t {
			return c.n
		}
	}
	n := make([]int32, len(t.values))
	for _, m := range g.on {
		n[t.of[m.slot]] += m.n
	}
	g.values = slices.DeleteFunc(g.values, func(c valueCounts) bool { return c.t.key == t.key }) // labels of nodes have changed
	g.values = append(g.values, valueCounts{t, n})
	return n
}

// pop moves every workload whose time for another evaluation has come from the timers into the
// queue.
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
