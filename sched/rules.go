package sched

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/persys/compute/fsm"
)

// Weights of rules in a score, in parts (millionths of a node). A preferred affinity of weight 100 that a node
// does not satisfy costs as much as the load of a fully reserved node. Each member beyond the allowed
// difference of a preferred spread costs half as much.
const (
	perWeight = whole / 100
	perExcess = whole / 2
	maxCost   = math.MaxInt32 / 2
)

// topology holds the values of one label over all nodes. Nodes with the same value form one topology domain.
type topology struct {
	key    string
	of     []int32 // for each slot: number of its value; 0 = the node does not have the label
	values []string
}

// topologyOf returns the values of a label, or nil for fsm.ByHost, where each node is a topology domain of its
// own.
func (x *nodeIndex) topologyOf(key string) *topology {
	if key == fsm.ByHost {
		return nil
	}
	if t, ok := x.topologies[key]; ok {
		return t
	}
	t := &topology{key: key, of: make([]int32, len(x.recs)), values: []string{""}}
	numbers := map[string]int32{}
	for i, n := range x.recs {
		v, ok := labelOf(n, key)
		if !ok {
			continue
		}
		number, ok := numbers[v]
		if !ok {
			number = int32(len(t.values))
			numbers[v] = number
			t.values = append(t.values, v)
		}
		t.of[i] = number
	}
	x.topologies[key] = t
	return t
}

// eligible holds, for each value of a label, how many nodes a spread rule may use: the ready nodes
// that pass the static filters of a class.
type eligible struct {
	listings uint64  // nodeIndex.listings at which they were counted
	n        []int32 // for each value of the topology
	all      int32
}

func (x *nodeIndex) eligibleIn(q *query, t *topology) eligible {
	c := q.in
	if c != nil {
		if e, ok := c.eligible[t]; ok && e.listings == x.listings {
			return e
		}
	}
	e := eligible{listings: x.listings}
	if t != nil {
		e.n = make([]int32, len(t.values))
	}
	count := func(s int32) {
		if x.ready.has(s) {
			e.all++
			if t != nil {
				e.n[t.of[s]]++
			}
		}
	}
	if c == nil {
		names, _ := pinned(q.d)
		for _, id := range names {
			if s, ok := x.slotOf[id]; ok && x.static(x.in, q.d, s).filter == passes {
				count(s)
			}
		}
		return e
	}
	for i := range x.recs {
		if c.allowed.has(int32(i)) {
			count(int32(i))
		}
	}
	if c.eligible == nil {
		c.eligible = map[*topology]eligible{}
	}
	c.eligible[t] = e
	return e
}

// A term is one rule of the present demand about other workloads, with the numbers of these
// workloads in each topology domain.
type term struct {
	kind  filter         // unevenSpread, notNear, tooNear or repelled
	rules *fsm.Placement // the rules of which this is one; nil for repelled
	index int            // index of the rule in rules.Spread or rules.Affinities
	must  bool
	cost  int64 // preferred rule: millionths that are added to the score of a node that does not satisfy the rule
	t     *topology
	set   *group
	own   int32 // slot on which the workload itself is counted in set; -1 = it is not in set
	skew  int32
	low   int32  // spread: the lowest number of members at an eligible value
	holds bool   // affinity: the workload matches its own rule, and no other placed workload does
	by    string // repelled: the label of the rule
}

// field returns the name of the rule's field in the specification, such as spread[0].
func (e *term) field() string {
	switch {
	case e.rules == nil:
		return "anti_affinity of another workload"
	case e.kind == unevenSpread:
		return "spread[" + strconv.Itoa(e.index) + "]"
	}
	return affinityField(e.rules, e.index)
}

func (e *term) target() string { return targetText(&e.rules.Affinities[e.index]) }

// at returns how many workloads to which the term's rule applies, other than the workload itself, are in the
// topology domain of the node with slot s.
func (e *term) at(s int32) (n int32) {
	if e.set == nil {
		return 0
	}
	if e.t == nil {
		if n = e.set.at(s); e.own == s {
			n--
		}
		return n
	}
	v := e.t.of[s]
	if v == 0 {
		return 0
	}
	return e.atValue(v, e.set.byValue(e.t))
}

func (e *term) atValue(v int32, counts []int32) int32 {
	if n := counts[v]; e.own < 0 || e.t.of[e.own] != v {
		return n
	}
	return counts[v] - 1
}

// judge returns the number that a rule adds to the score of the nodes in one topology domain; -1 means that the
// rule rejects these nodes. n is the number of workloads in the domain that the rule names. labelled is false
// for a node without the label of the term.
func (e *term) judge(n int32, labelled bool) int64 {
	var cost int64
	switch e.kind {
	case unevenSpread:
		excess := int64(n + 1 - e.low - e.skew)
		if !labelled {
			excess = max(1, excess)
		}
		cost = max(0, excess) * perExcess
	case notNear:
		if n == 0 && !(e.holds && labelled) {
			cost = e.cost
		}
	default:
		if n > 0 {
			cost = e.cost
		}
	}
	if cost > 0 && e.must {
		return -1
	}
	return min(cost, maxCost)
}

// on returns what this rule adds to the score of the node with slot s; -1 means that the rule
// rejects the node.
func (e *term) on(s int32) int64 { return e.judge(e.at(s), e.t == nil || e.t.of[s] != 0) }

// rules holds the rules of the present demand about other workloads. It is empty for most demands.
type rules struct {
	terms      []term
	dims       []dim
	soft       []int32           // class.soft
	elsewhere  int64             // cost of nodes that are not listed
	onlyListed bool              // nodes that are not listed are rejected
	differ     bool              // unlisted nodes that are not rejected may differ in cost
	setsOf     map[string]member // Cache.setsOf, by which text names the workloads of a set
	ids        []string          // the keys of setsOf, sorted; nil until firstAt needs them
	who        string            // id of the workload that is placed
}

// dim is the sum of all rules (terms) about one label. cost has an entry for each value of the label: what the
// rules add to the score of a node with that value, or -1 if they reject the node.
type dim struct {
	t    *topology
	cost []int64
}

// needs returns the required affinities that hold on a node only because of members in its topology domain,
// each with the number of these members.
func (r *rules) needs(s int32) (out []need) {
	for i := range r.terms {
		if e := &r.terms[i]; e.must && e.kind == notNear {
			if n := e.at(s); n > 0 {
				out = append(out, need{e.set, n})
			}
		}
	}
	return out
}

// need is a required affinity that holds on a node, with the number of workloads in the node's
// topology domain to which it refers.
type need struct {
	set *group
	n   int32
}

// byLabel returns what the rules about node labels add to the score of the node with slot s, including
// preferred affinities to nodes; -1 means that a rule rejects the node.
func (r *rules) byLabel(s int32) (sum int64) {
	for i := range r.dims {
		d := &r.dims[i]
		c := d.cost[d.t.of[s]]
		if c < 0 {
			return -1
		}
		sum += c
	}
	if r.soft != nil {
		sum += int64(r.soft[s])
	}
	return sum
}

// verdict returns what all rules together add to the score of the node with slot s; -1 means that a
// rule rejects the node.
func (r *rules) verdict(s int32) int64 {
	if len(r.terms) == 0 && r.soft == nil {
		return 0
	}
	label, host := r.byLabel(s), r.byHost(s)
	if label < 0 || host < 0 {
		return -1
	}
	return label + host
}

// byHost returns what the rules with topology "host" (each node is a domain of its own) add to the
// score of the node with slot s; -1 means that a rule rejects the node.
func (r *rules) byHost(s int32) (sum int64) {
	for i := range r.terms {
		e := &r.terms[i]
		if e.t != nil {
			continue
		}
		c := e.on(s)
		if c < 0 {
			return -1
		}
		sum += c
	}
	return sum
}

func (r *rules) rejects(s int32) bool { return r.verdict(s) < 0 }
func (r *rules) cost(s int32) int64   { return max(0, r.verdict(s)) }

// apply prepares the placement rules of a demand for a search. It also lists the nodes with workloads that
// a rule with topology "host" names, because the search judges these nodes one by one.
func (c *Cache) apply(v fsm.View, who subject, q *query) {
	x, d, r := c.nodes, q.d, &c.nodes.rules
	c.loadRepelling(v)
	if q.in != nil {
		r.soft = q.in.soft
	} else if prefersNodes(d) {
		r.soft = make([]int32, len(x.recs))
		for i, n := range x.recs {
			r.soft[i] = softOf(d, n)
		}
	}
	r.differ = r.soft != nil
	if d.Placement == nil && len(c.repelled) == 0 {
		return
	}
	r.setsOf, r.who = c.setsOf, who.id
	add := func(e term) { r.terms = append(r.terms, e) }
	if p := d.Placement; p != nil {
		for i := range p.Spread {
			s := &p.Spread[i]
			e := term{kind: unevenSpread, rules: p, index: i, must: s.Must, t: x.topologyOf(s.By), skew: s.MaxSkew}
			if d.Group != "" {
				e.set = c.setOf(v, who.namespace, &fsm.Affinity{Group: d.Group})
			}
			add(e)
		}
		for i := range p.Affinities {
			a := &p.Affinities[i]
			if a.By == "" {
				continue // an affinity to nodes: the static filters and class.soft judge it
			}
			e := term{
				kind: notNear, rules: p, index: i, must: a.Must, cost: int64(a.Weight) * perWeight,
				t: x.topologyOf(a.By), set: c.setOf(v, who.namespace, a), holds: names(a, d),
			}
			if a.Must {
				e.cost = 1
			}
			if a.Anti {
				e.kind = tooNear
			}
			add(e)
		}
	}
	if len(c.repelled) > 0 {
		c.eachTarget(who, d, func(key []byte) {
			for _, k := range c.repelled[string(key)] {
				if k.inside && d.Placement.Repels() && c.avoidsToo(d, who.namespace, key, k.by) {
					continue // the workload's own rule is stricter, because it counts all workloads of the target
				}
				add(term{kind: repelled, must: true, cost: 1, t: x.topologyOf(k.by), set: k.set, by: k.by})
			}
		})
	}
	own := c.setsOf[who.id] // read this only now, because setOf above may have counted the workload in another set
	for i := range r.terms {
		r.terms[i].bind(x, q, own)
	}
	r.compile(x)
}

// bind sets those fields of a term that exclude the workload itself from the counts; own says on
// which node and in which sets it is counted.
func (e *term) bind(x *nodeIndex, q *query, own member) {
	e.own = -1
	if e.set != nil && slices.Contains(own.sets, e.set) {
		e.own = own.slot
	}
	if e.kind == unevenSpread {
		e.low = x.lowest(q, e)
	}
	if e.kind == notNear && e.holds {
		n := int32(0)
		if e.set != nil {
			n = e.set.total
		}
		if e.own >= 0 {
			n--
		}
		e.holds = n == 0
	}
}

// avoidsToo reports whether demand d has a required anti-affinity, too, to the workloads that key identifies in the
// namespace. by is the node label that both rules use: nodes with the same value of the label count as one place.
func (c *Cache) avoidsToo(d *fsm.Demand, namespace string, key []byte, by string) bool {
	for i := range d.Placement.Affinities {
		if a := &d.Placement.Affinities[i]; a.Anti && a.Must && a.By == by {
			c.other = appendRuleTarget(c.other[:0], namespace, a)
			if string(c.other) == string(key) {
				return true
			}
		}
	}
	return false
}

// affinityField names a rule as the specification does: affinity and anti_affinity are lists of their own.
func affinityField(p *fsm.Placement, i int) string {
	n := 0
	for j := range i {
		if p.Affinities[j].Anti == p.Affinities[i].Anti {
			n++
		}
	}
	if p.Affinities[i].Anti {
		return "anti_affinity[" + strconv.Itoa(n) + "]"
	}
	return "affinity[" + strconv.Itoa(n) + "]"
}

func targetText(a *fsm.Affinity) string {
	switch {
	case a.Node.Key != "":
		return "nodes with " + constraintText(&a.Node)
	case a.Workload != "":
		return "workload " + a.Workload
	case a.Group != "":
		return "group " + a.Group
	}
	return "tag " + a.Tag.Key + "=" + a.Tag.Value
}

// lowest returns, for a spread rule, the lowest number of members in a topology domain. It looks
// only at domains with at least one node on which the workload could be placed.
func (x *nodeIndex) lowest(q *query, e *term) int32 {
	el := x.eligibleIn(q, e.t)
	low := int32(math.MaxInt32)
	if e.t == nil {
		seen := int32(0)
		if e.set != nil {
			for _, m := range e.set.on {
				if x.ready.has(m.slot) && q.allows(m.slot) {
					seen++
					low = min(low, e.at(m.slot))
				}
			}
		}
		if seen < el.all || low == math.MaxInt32 {
			return 0
		}
		return low
	}
	var counts []int32
	if e.set != nil {
		counts = e.set.byValue(e.t)
	}
	for v := 1; v < len(el.n); v++ {
		if el.n[v] == 0 {
			continue
		}
		if counts == nil {
			return 0
		}
		low = min(low, e.atValue(int32(v), counts))
	}
	if low == math.MaxInt32 {
		return 0
	}
	return low
}

// allows reports whether the node with slot s passes the static filters (those that read only the
// facts of a node) for the demand.
func (q *query) allows(s int32) bool {
	if q.in == nil {
		return q.x.static(q.x.in, q.d, s).filter == passes
	}
	return q.in.allowed.has(s)
}

// compile computes in advance what the terms cost for each value of a label and for each listed node, so
// that a search judges a node fast.
func (r *rules) compile(x *nodeIndex) {
	near := false
	for i := range r.terms {
		e := &r.terms[i]
		if e.t != nil {
			d := r.dim(e.t)
			var counts []int32
			if e.set != nil {
				counts = e.set.byValue(e.t)
			}
			for v := range d.cost {
				n := int32(0)
				if v > 0 && counts != nil {
					n = e.atValue(int32(v), counts)
				}
				if c := e.judge(n, v > 0); c < 0 || d.cost[v] < 0 {
					d.cost[v] = -1
				} else if d.cost[v] += c; c > 0 {
					r.differ = true
				}
			}
			continue
		}
		switch c := e.judge(0, true); {
		case c < 0:
			r.onlyListed = true
		default:
			r.elsewhere += c
		}
		near = near || e.kind == notNear || e.kind == unevenSpread && e.low > 0
		if e.set == nil {
			continue
		}
		for _, m := range e.set.on {
			h := &x.hot[m.slot]
			if h.members == 0 && h.place == 0 {
				x.slots = append(x.slots, m.slot)
			}
			n := m.n
			if m.slot == e.own {
				n--
			}
			if c := e.judge(n, true); c < 0 || h.place < 0 {
				h.place = -1
			} else {
				h.place = int32(min(int64(max(1, h.place))+c, maxCost))
			}
		}
	}
	if near {
		// An affinity term costs or rejects nodes without members. So judge each listed node by all terms,
		// including those that did not list it.
		for _, s := range x.slots {
			x.hot[s].place = -1
			if c := r.byHost(s); c >= 0 {
				x.hot[s].place = int32(min(c, maxCost)) + 1
			}
		}
	}
}

func (r *rules) dim(t *topology) *dim {
	for i := range r.dims {
		if r.dims[i].t == t {
			return &r.dims[i]
		}
	}
	if n := len(r.dims); n < cap(r.dims) {
		r.dims = r.dims[:n+1] // use the memory of an earlier demand again
	} else {
		r.dims = append(r.dims, dim{})
	}
	d := &r.dims[len(r.dims)-1]
	d.t = t
	if cap(d.cost) < len(t.values) {
		d.cost = make([]int64, len(t.values))
	}
	d.cost = d.cost[:len(t.values)]
	clear(d.cost)
	return d
}

// release forgets the rules of the present demand and the listed nodes.
func (c *Cache) release() {
	x := c.nodes
	for _, s := range x.slots {
		x.hot[s].members, x.hot[s].place = 0, 0
	}
	x.slots = x.slots[:0]
	r := &x.rules
	clear(r.terms)
	*r = rules{terms: r.terms[:0], dims: r.dims[:0]}
}

// ruleRejection returns the first rule that rejects a node.
func (x *nodeIndex) ruleRejection(s int32) rejection {
	for i := range x.rules.terms {
		e := &x.rules.terms[i]
		if e.on(s) >= 0 {
			continue
		}
		r := rejection{filter: e.kind, key: e.field()}
		if e.t != nil {
			r.value = e.t.key
		}
		if e.kind == repelled {
			r.key = e.by
		}
		return r
	}
	return rejection{}
}

// firstAt returns the id of the first other workload, in the order of ids, that a term counts in the topology domain of
// the node with slot s.
func (x *nodeIndex) firstAt(e *term, s int32) string {
	if x.rules.ids == nil {
		x.rules.ids = slices.Sorted(maps.Keys(x.rules.setsOf))
	}
	for _, id := range x.rules.ids {
		m := x.rules.setsOf[id]
		same := m.slot == s || e.t != nil && e.t.of[m.slot] == e.t.of[s]
		if same && id != x.rules.who && slices.Contains(m.sets, e.set) {
			return id
		}
	}
	return "?" // the set counts no other workload there: the caller asks only about nodes that this term rejects
}

// ruleSentence describes in words and figures why a rule rejects a node.
func (x *nodeIndex) ruleSentence(s int32, r rejection) string {
	for i := range x.rules.terms {
		e := &x.rules.terms[i]
		if e.kind != r.filter || e.field() != r.key && e.kind != repelled {
			continue
		}
		if e.on(s) < 0 {
			return e.text(x, s)
		}
	}
	return r.short()
}

// text describes whether a node satisfies a rule, with the counts that decide it.
func (e *term) text(x *nodeIndex, s int32) string {
	place := "this node"
	if e.t != nil {
		if e.t.of[s] == 0 {
			return e.field() + ": the node has no label " + e.t.key
		}
		place = e.t.key + "=" + e.t.values[e.t.of[s]]
	}
	n := e.at(s)
	switch e.kind {
	case unevenSpread:
		return fmt.Sprintf("%s: %s has %d members of the group, the place with the fewest has %d, and max_skew is %d", e.field(), place, n, e.low, e.skew)
	case notNear:
		return fmt.Sprintf("%s: %s is not at %s", e.field(), e.target(), place)
	case repelled:
		return "anti_affinity (by " + e.by + ") of workload " + x.firstAt(e, s) + " keeps this workload away from " + place + "; change that rule, or the group or tag by which it names this workload"
	}
	return fmt.Sprintf("%s: %s is at %s", e.field(), e.target(), place)
}

// ruleCosts lists the preferred rules that a node does not satisfy, and a taint of the node that workloads should avoid,
// with their costs.
func (x *nodeIndex) ruleCosts(d *fsm.Demand, s int32) (out []RuleCost) {
	for i := range x.rules.terms {
		e := &x.rules.terms[i]
		if c := e.on(s); c > 0 {
			out = append(out, RuleCost{c, e.text(x, s)})
		}
	}
	if t, ok := avoids(d, x.recs[s]); ok {
		out = append(out, RuleCost{perAvoid, "tolerations: the taint " + t.Key + prefixed("=", t.Value) + ":" + t.Effect + " is not tolerated"})
	}
	if d.Placement != nil {
		for i := range d.Placement.Affinities {
			if a := &d.Placement.Affinities[i]; softCost(a, x.recs[s]) > 0 {
				out = append(out, RuleCost{softCost(a, x.recs[s]), affinityField(d.Placement, i) + ": " + targetText(a) + ", " + labelText(x.recs[s], a.Node.Key)})
			}
		}
	}
	return out
}

// RuleCost is one preferred rule that a node does not satisfy.
type RuleCost struct {
	Parts int64 // in millionths of a node
	Text  string
}

// prefersNodes reports whether a demand has preferred affinities to nodes.
func prefersNodes(d *fsm.Demand) bool {
	return d.Placement != nil && slices.ContainsFunc(d.Placement.Affinities, func(a fsm.Affinity) bool { return a.Node.Key != "" && !a.Must })
}

// softCost returns what a node costs because it does not satisfy one preferred affinity to nodes.
func softCost(a *fsm.Affinity, n *fsm.Node) int64 {
	if a.Node.Key == "" || a.Must || satisfies(&a.Node, n) != a.Anti {
		return 0
	}
	return int64(a.Weight) * perWeight
}

func softOf(d *fsm.Demand, n *fsm.Node) (sum int32) {
	for i := range d.Placement.Affinities {
		sum += int32(softCost(&d.Placement.Affinities[i], n))
	}
	return sum
}

// misplaced returns the first required affinity to nodes that a node does not satisfy.
func misplaced(d *fsm.Demand, n *fsm.Node) rejection {
	if d.Placement == nil {
		return rejection{}
	}
	for i := range d.Placement.Affinities {
		if a := &d.Placement.Affinities[i]; a.Node.Key != "" && a.Must && satisfies(&a.Node, n) == a.Anti {
			return rejection{wrongNode, affinityField(d.Placement, i), constraintText(&a.Node)}
		}
	}
	return rejection{}
}

// appendNodeRules encodes the rules of a demand about nodes, for the key of its class.
func appendNodeRules(b []byte, d *fsm.Demand) []byte {
	if d.Placement == nil {
		return b
	}
	for i := range d.Placement.Affinities {
		a := &d.Placement.Affinities[i]
		if a.Node.Key == "" {
			continue
		}
		b = append(b, 7, byte(a.Weight), boolByte(a.Must)|boolByte(a.Anti)<<1)
		for _, s := range append([]string{a.Node.Key, a.Node.Op}, a.Node.Values...) {
			b = append(append(b, s...), 0)
		}
	}
	return b
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// appendSubject appends to b the part of a cache key (see appendDemandKey) on which rules about other workloads
// depend: namespace, group and tags of the workload, by which such rules can name it, and its own spread and
// affinity rules. The id is part of the key only if a set counts the workload already (see sets.go), or if a
// required anti-affinity of a placed workload names it. If a set counts the workload later, c.version
// increases, and the results under the key without the id are not used any more.
func (c *Cache) appendSubject(b []byte, who subject, d *fsm.Demand) []byte {
	if d.Placement == nil && len(c.repelled) == 0 {
		return b
	}
	str := func(s string) { b = append(append(b, s...), 0) }
	b = append(b, 8)
	str(who.namespace)
	str(d.Group)
	for _, t := range d.Tags {
		str(t.Key)
		str(t.Value)
	}
	c.target = appendTarget(c.target[:0], who.namespace, byID, who.id, "")
	_, named := c.repelled[string(c.target)]
	if _, counted := c.setsOf[who.id]; counted || named {
		str(who.id)
	}
	if p := d.Placement; p != nil {
		b = append(b, 9)
		for i := range p.Spread {
			s := &p.Spread[i]
			str(s.By)
			b = append(b, byte(s.MaxSkew), byte(s.MaxSkew>>8), boolByte(s.Must))
		}
		for i := range p.Affinities {
			if a := &p.Affinities[i]; a.By != "" {
				str(a.By)
				b = append(b, boolByte(a.Must)|boolByte(a.Anti)<<1)
				b = append(appendRuleTarget(b, "", a), 0)
			}
		}
	}
	return b
}

// ruleShort returns a rejection by a placement rule as text for summaries. The text names the field of the
// specification that would have to change.
func ruleShort(r rejection) string {
	switch r.filter {
	case wrongNode:
		return r.key + " (" + r.value + ")"
	case repelled:
		return "anti_affinity of another workload by " + strings.TrimSpace(r.key)
	}
	if r.value == "" {
		return r.key + " by host"
	}
	return r.key + " by " + r.value
}
