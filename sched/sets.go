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

// appendTarget encodes what a rule names, in a namespace.
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

// eachTarget calls fn for every target of a rule that matches a workload. fn must not keep the key.
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

// names reports whether a rule names the workload itself, with others.
func names(a *fsm.Affinity, d *fsm.Demand) bool {
	return a.Group != "" && a.Group == d.Group || a.Tag.Key != "" && slices.Contains(d.Tags, a.Tag)
}

// member says in which sets a placed workload is counted, and on which slot.
type member struct {
	slot int32
	sets []*group
}

// promised is a workload that this step has placed: the state does not have the placement yet.
type promised struct {
	who  subject
	d    *fsm.Demand
	slot int32
}

// setOf returns the set of the placed workloads that a target names. It is counted when it is used for the first
// time.
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
			// It stays on the slot on which it is counted: rebalancing may have moved it since the view.
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

// indexPromised enters the workloads that this step has placed into c.untracked, under each rule target that
// they match and that has no set yet.
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

// repelling is one required anti-affinity of placed workloads: by label by, they must not share a topology
// domain with a certain target.
type repelling struct {
	by     string
	inside bool   // the workloads in set are themselves part of the target
	set    *group // workloads that have the rule
}

// loadRepelling counts, once, the placed workloads that have a required anti-affinity. It is called for every
// placement, because such a rule also keeps away workloads that have no rules themselves.
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

// holders returns the set of the workloads that have this required anti-affinity to a target. Workloads that
// are themselves part of the target (inside) have a set of their own.
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

// enter counts a workload on a slot in every set that has it. A slot of -1 removes the workload from its sets.
// It reports whether the sets changed.
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

// recountSets counts a workload again in the sets, on its node in the view.
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
