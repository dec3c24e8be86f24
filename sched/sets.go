package sched

import (
	"slices"

	"github.com/persys/compute/fsm"
)

// The rules of workloads name other workloads: by id, group or tag. For each target that a rule has named, a set
// counts the placed workloads by node, and follows every change.

// subject identifies the workload that is being placed, so that rules of other workloads can match it, and
// lists the nodes that it avoids.
type subject struct {
	id, namespace string
	avoids        []string // ids of nodes that are chosen only if no other node fits
	never         []string // ids of nodes that are not chosen at all
}

func subjectOf(w *fsm.Workload) subject { return subject{id: w.ID, namespace: w.In()} }

// appendTarget encodes the target of a rule: the workload, group or tag that the rule names, and the namespace.
func appendTarget(b []byte, namespace string, kind byte, name, value string) []byte {
	b = append(append(b, kind), namespace...)
	b = append(append(b, 0), name...)
	if kind == byTag {
		b = append(append(b, '='), value...)
	}
	return b
}

// Kinds of targets.
const (
	byID    = 'w'
	byGroup = 'g'
	byTag   = 't'
)

func appendRuleTarget(b []byte, namespace string, a *fsm.Affinity) []byte {
	switch {
	case a.Workload != "":
		return appendTarget(b, namespace, byID, a.Workload, "")
	case a.Group != "":
		return appendTarget(b, namespace, byGroup, a.Group, "")
	}
	return appendTarget(b, namespace, byTag, a.Tag.Key, a.Tag.Value)
}

// eachTarget calls fn with the key of everything by which a rule can name a workload: its id, its
// group and its tags. fn must not keep the key.
func (c *Cache) eachTarget(who subject, d *fsm.Demand, fn func(key []byte)) {
	b := c.target[:0]
	if who.id != "" {
		b = appendTarget(b[:0], who.namespace, byID, who.id, "")
		fn(b)
	}
	if d.Group != "" {
		b = appendTarget(b[:0], who.namespace, byGroup, d.Group, "")
		fn(b)
	}
	for _, t := range d.Tags {
		b = appendTarget(b[:0], who.namespace, byTag, t.Key, t.Value)
		fn(b)
	}
	c.target = b
}

// names reports whether affinity a of a workload with demand d applies to this workload itself, for
// example because it names the workload's own group.
func names(a *fsm.Affinity, d *fsm.Demand) bool {
	return a.Group != "" && a.Group == d.Group || a.Tag.Key != "" && slices.Contains(d.Tags, a.Tag)
}

// member says in which sets a placed workload is counted, and on which slot.
type member struct {
	slot int32
	sets []*group
}

// promised is a workload that this step has placed; the state does not have the placement yet.
type promised struct {
	who  subject
	d    *fsm.Demand
	slot int32
}

// setOf returns the set of the placed workloads that affinity a names, with their number on each node. At the
// first use of a set, the workloads are counted; later the set follows all changes.
func (c *Cache) setOf(v fsm.View, namespace string, a *fsm.Affinity) *group {
	c.target = appendRuleTarget(c.target[:0], namespace, a)
	if g, ok := c.sets[string(c.target)]; ok {
		return g
	}
	key := string(c.target)
	c.indexPromised()
	g := &group{}
	c.sets[key] = g
	count := func(w *fsm.Workload) bool {
		switch m, counted := c.setsOf[w.ID]; {
		case w.In() != namespace || w.Node == "":
		case counted:
			// Do not use the node in the view: rebalancing may have moved the workload since then. Use the
			// slot on which the other sets have it.
			if c.enter(subjectOf(w), w.Demand, m.slot) {
				c.version++
			}
		default:
			c.recountSets(v, w.ID)
		}
		return true
	}
	switch {
	case a.Workload != "":
		if w, ok := v.Workload(a.Workload); ok {
			count(w)
		}
	case a.Group != "":
		v.Group(a.Group, count)
	default:
		v.Ruled(count)
	}
	for _, i := range c.untracked[key] {
		p := &c.promised[i]
		c.enter(p.who, p.d, p.slot)
	}
	delete(c.untracked, key)
	return g
}

// indexPromised stores in c.untracked the workloads that this step has placed, under each target of rules
// (id, group or tag) that they match and for which the cache has no set yet. A set that is counted later
// must include them.
func (c *Cache) indexPromised() {
	if c.untracked == nil {
		c.untracked = map[string][]int{}
	}
	for ; c.indexed < len(c.promised); c.indexed++ {
		p := &c.promised[c.indexed]
		c.eachTarget(p.who, p.d, func(key []byte) {
			if _, ok := c.sets[string(key)]; !ok {
				c.untracked[string(key)] = append(c.untracked[string(key)], c.indexed)
			}
		})
	}
}

// repelling is one required anti-affinity of placed workloads: they must not be in the same topology
// domain as certain other workloads. by is the label whose values are the domains.
type repelling struct {
	by     string
	inside bool   // the workloads in set are themselves part of the target
	set    *group // workloads that have the rule
}

// loadRepelling counts the placed workloads that have a required anti-affinity, only at the first call. It is
// called for every placement, because such a rule also keeps away workloads that have no rules themselves.
func (c *Cache) loadRepelling(v fsm.View) {
	if c.repelled != nil {
		return
	}
	c.repelled = map[string][]repelling{}
	v.Ruled(func(w *fsm.Workload) bool {
		if w.Demand.Placement.Repels() {
			c.recountSets(v, w.ID)
		}
		return true
	})
}

// holders returns the set of the workloads that have the required anti-affinity a. A workload to which its own
// rule applies (inside), for example because it is a member of the group that the rule names, is in a separate
// set.
func (c *Cache) holders(namespace string, a *fsm.Affinity, inside bool) *group {
	c.target = appendRuleTarget(c.target[:0], namespace, a)
	for _, r := range c.repelled[string(c.target)] {
		if r.by == a.By && r.inside == inside {
			return r.set
		}
	}
	g := &group{}
	c.repelled[string(c.target)] = append(c.repelled[string(c.target)], repelling{a.By, inside, g})
	return g
}

// enter records in every set to which a workload belongs that it is on the node with this slot. A slot of -1
// removes the workload from its sets. It reports whether the sets changed.
func (c *Cache) enter(who subject, d *fsm.Demand, slot int32) bool {
	was, counted := c.setsOf[who.id]
	var sets []*group
	if slot >= 0 {
		c.eachTarget(who, d, func(key []byte) {
			if g, ok := c.sets[string(key)]; ok {
				sets = append(sets, g)
			}
		})
		if c.repelled != nil && d.Placement.Repels() {
			for i := range d.Placement.Affinities {
				if a := &d.Placement.Affinities[i]; a.Anti && a.Must && a.By != "" {
					if g := c.holders(who.namespace, a, names(a, d)); !slices.Contains(sets, g) {
						sets = append(sets, g)
					}
				}
			}
		}
	}
	if counted == (len(sets) > 0) && (!counted || was.slot == slot && slices.Equal(was.sets, sets)) {
		return false
	}
	for _, g := range was.sets {
		g.add(was.slot, -1)
	}
	for _, g := range sets {
		g.add(slot, 1)
	}
	if len(sets) == 0 {
		delete(c.setsOf, who.id)
	} else {
		c.setsOf[who.id] = member{slot, sets}
	}
	return true
}

// recountSets updates the sets to which a workload belongs to its node in the view.
func (c *Cache) recountSets(v fsm.View, id string) {
	w, ok := v.Workload(id)
	if len(c.sets) == 0 && len(c.setsOf) == 0 && (!ok || c.repelled == nil || !w.Demand.Placement.Repels()) {
		return
	}
	slot := int32(-1)
	who, d := subject{id: id}, (*fsm.Demand)(nil)
	if ok {
		who, d = subjectOf(w), w.Demand
		if s, known := c.nodes.slotOf[w.Node]; known {
			slot = s
		}
	}
	if c.enter(who, d, slot) {
		c.version++
	}
}
