package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
)

// Placement looks only at workloads without a node, so a node that joins the cluster gets no workload until a
// user applies a new one. Rebalancing moves workloads that run. Two conditions must hold for a move (ADR 62):
//
//   - Gain: the placement score of the new node is better than that of the present node by at least a
//     threshold. Both scores are computed as if the workload were on neither node.
//   - Cost: the cost of the whole cluster falls. The cost depends only on which workload is on which node. Each
//     move lowers it, so no series of moves returns to an earlier state, and every series ends. See cost.
//
// The new node is always the one that placement chooses, because a workload that has left its node is placed by
// the same search.

// BalanceLimits are the limits of one rebalancing: one search for moves of workloads that even out
// the load of the nodes.
type BalanceLimits struct {
	Moves   int   // maximum number of moves
	MinGain int64 // smallest gain of a move, in millionths of a node; at least 1
	// OneOfGroup allows at most one move for each group, so that all moves can be made at the same
	// time without a second unavailable member.
	OneOfGroup bool
	// Now is the present time in Unix nanoseconds. If the clock of the state is ahead of Now, the
	// planner uses that clock.
	Now int64
	// MinAge excludes workloads that were placed less than this time ago, in nanoseconds.
	MinAge int64
	// Evaluations is the maximum number of workloads for which Rebalance searches another node; 0 means the default,
	// 200,000. If the limit ends the search, a later search may find more moves.
	Evaluations int
	// Stop is called between two searches and ends the rebalancing when it returns true; it may be nil. In that
	// case the result has the moves that were found until then.
	Stop func() bool
}

// WholeNode is the load of a full node, in the unit of gains and loads.
const WholeNode = whole

// MaxBalanceMoves is the largest number of moves of one rebalancing.
const MaxBalanceMoves = 1000

// maxEvaluations is the default of BalanceLimits.Evaluations, so that a rebalancing ends within seconds in every
// cluster.
const maxEvaluations = 200_000

// BalanceMove is one move of a rebalancing. Gain is in millionths of a node.
type BalanceMove struct {
	Workload     string
	From, To     NodeID
	Gain         int64
	Reason       string
	generation   fsm.Generation
	fromReserved fsm.Reserved // in the state from which the moves were computed
	toReserved   fsm.Reserved
	toKeys       uint64 // hash of the labels and taints of To
}

// MoveCommand returns the command that carries out moves of one rebalancing with OneOfGroup, at most
// fsm.MaxBalanceMoves of them. The caller must add the head of the command.
func MoveCommand(moves []BalanceMove) fsm.Command {
	b := &commandv1.MoveWorkloads{}
	for _, m := range moves {
		b.Moves = append(b.Moves, &commandv1.WorkloadMove{
			Workload: m.Workload, IfGeneration: fsm.GenerationPB(m.generation), From: m.From, To: m.To, Gain: m.Gain,
			Reason: fmt.Sprintf("gain %s; %s", percent(m.Gain), m.Reason), FromReserved: m.fromReserved.PB(), ToReserved: m.toReserved.PB(),
			ToKeys: m.toKeys,
		})
	}
	return &commandv1.Command{Body: &commandv1.Command_MoveWorkloads{MoveWorkloads: b}}
}

// Imbalance describes how unevenly the ready nodes are loaded. The load of a node is the mean reserved share of its
// CPU, memory and disk. All values are millionths of a node.
type Imbalance struct {
	Deviation int64 // standard deviation, each node counted by its size
	Low, High int64
}

// Balance is the result of Rebalance.
type Balance struct {
	Moves         []BalanceMove
	Before, After Imbalance // After is the imbalance once all moves are done
	Movable       int       // number of workloads that may move
	Unmovable     []Unmovable
}

// Unmovable says how many running workloads may not move for one reason.
type Unmovable struct {
	Reason    string
	Workloads int
}

// Rebalance returns moves that even out the load of the nodes, or after which preferred placement rules hold that
// placement could not satisfy before. Each move takes the earlier ones into account. A workload has at most one move.
// Nothing is proposed.
func Rebalance(v fsm.View, l BalanceLimits, t Tuning) Balance {
	p := planning(v, t)
	p.Now = max(p.Now, l.Now)
	b := p.newBalancing(l)
	out := Balance{Before: p.c.nodes.imbalance()}
	byNode := b.candidates(&out)
	for len(out.Moves) < l.Moves && !b.ends() {
		before := len(out.Moves)
		slices.SortStableFunc(byNode, func(x, y *nodeWork) int {
			return cmp.Compare(p.c.nodes.hot[y.slot].load, p.c.nodes.hot[x.slot].load)
		})
		for _, n := range byNode {
			if len(out.Moves) == l.Moves {
				break
			}
			if m, i := b.bestOf(n.spread); i >= 0 {
				n.spread = slices.Delete(n.spread, i, i+1)
				out.Moves = append(out.Moves, b.carryOut(m))
			}
		}
		// Workloads that prefer full nodes leave the emptiest node first.
		for _, n := range slices.Backward(byNode) {
			if len(out.Moves) == l.Moves {
				break
			}
			if m, i := b.bestOf(n.bin); i >= 0 {
				n.bin = slices.Delete(n.bin, i, i+1)
				out.Moves = append(out.Moves, b.carryOut(m))
			}
		}
		if len(out.Moves) == before {
			break
		}
	}
	out.After = p.c.nodes.imbalance()
	return out
}

// nodeWork holds the workloads of one node that may move, by policy.
type nodeWork struct {
	slot        int32
	spread, bin []*fsm.Workload
}

// candidates returns the workloads that may move, by node, and counts the others by the reason why
// they may not.
func (b *balancing) candidates(out *Balance) (byNode []*nodeWork) {
	p, x := b.p, b.p.c.nodes
	reasons := map[string]int{}
	why := func(text string) {
		i, ok := reasons[text]
		if !ok {
			i = len(out.Unmovable)
			reasons[text] = i
			out.Unmovable = append(out.Unmovable, Unmovable{Reason: text})
		}
		out.Unmovable[i].Workloads++
	}
	nodes := make([]*nodeWork, len(x.recs))
	p.State.Workloads("", func(w *fsm.Workload) bool {
		if w.Node == "" || w.Desired != fsm.DesiredRunning {
			return true
		}
		s, known := x.slotOf[w.Node]
		if !known {
			return true
		}
		if text := b.stays(w, s); text != "" {
			why(text)
			return true
		}
		out.Movable++
		if nodes[s] == nil {
			nodes[s] = &nodeWork{slot: s}
			byNode = append(byNode, nodes[s])
		}
		if x.packs(w.Demand) {
			nodes[s].bin = append(nodes[s].bin, w)
		} else {
			nodes[s].spread = append(nodes[s].spread, w)
		}
		return true
	})
	slices.SortFunc(byNode, func(a, b *nodeWork) int { return cmp.Compare(a.slot, b.slot) })
	slices.SortFunc(out.Unmovable, func(a, b Unmovable) int {
		return cmp.Or(cmp.Compare(b.Workloads, a.Workloads), strings.Compare(a.Reason, b.Reason))
	})
	return byNode
}

// balancing evaluates moves for one view.
type balancing struct {
	p           *planner
	limits      BalanceLimits
	weight      []int64           // size of each node, in thousandths of the average node
	packed      []int64           // for each slot: load of the workloads that prefer full nodes
	holders     map[string][]near // placed workloads with affinities to other workloads, by target
	groups      map[string]string // result of fsm.GroupWaits, by group
	moved       map[string]int32  // slots of the workloads that this rebalancing has moved
	movedOf     map[string]bool   // groups of these workloads
	unsettled   map[int32]bool    // nodes whose load does not yet reflect workloads that leave or arrive
	evaluations int
	stopped     bool
}

// ends reports whether the rebalancing must end: it has reached its limit of searches, or limits.Stop returned true.
func (b *balancing) ends() bool {
	b.stopped = b.stopped || b.evaluations >= cmp.Or(b.limits.Evaluations, maxEvaluations) || b.limits.Stop != nil && b.limits.Stop()
	return b.stopped
}

// near is one affinity of a placed workload to other workloads, which a move of these may break or
// satisfy.
type near struct {
	w *fsm.Workload
	a *fsm.Affinity
}

func (p *planner) newBalancing(l BalanceLimits) *balancing {
	x := p.c.nodes
	b := &balancing{
		p: p, limits: l, weight: x.weights(), packed: make([]int64, len(x.recs)),
		holders: map[string][]near{}, groups: map[string]string{}, moved: map[string]int32{}, movedOf: map[string]bool{},
		unsettled: map[int32]bool{},
	}
	b.settleLoads()
	p.State.Workloads("", func(w *fsm.Workload) bool {
		s, placed := x.slotOf[w.Node]
		if !placed {
			return true
		}
		if x.packs(w.Demand) {
			b.packed[s] += x.share(w.Demand, s)
		}
		if w.Demand.Placement == nil {
			return true
		}
		for i := range w.Demand.Placement.Affinities {
			if a := &w.Demand.Placement.Affinities[i]; a.By != "" {
				key := string(appendRuleTarget(nil, w.In(), a))
				b.holders[key] = append(b.holders[key], near{w, a})
			}
		}
		return true
	})
	return b
}

// settleLoads reserves room for the workloads that have left a node and wait until it has stopped them, and
// finds the nodes whose load is about to change: those that still run such workloads, and those that such
// workloads will probably get. Nothing leaves these nodes, because their load may be lower than it seems.
func (b *balancing) settleLoads() {
	p, x := b.p, b.p.c.nodes
	before := make([]uint32, len(x.recs))
	for s := range x.recs {
		before[s] = x.hot[s].load
	}
	p.reserveLeft()
	for s, n := range x.recs {
		if a := p.State.Alloc(n.ID); a.Residuals > 0 || x.hot[s].load != before[s] {
			b.unsettled[int32(s)] = true
		}
	}
}

// weights returns the size of each node in thousandths of the average node, from 1 to 100,000.
func (x *nodeIndex) weights() []int64 {
	n := int64(len(x.recs))
	sum, parts := make([]int64, n), make([]int64, n)
	for _, totals := range [][]int64{x.cpu, x.mem, x.disk} {
		all := int64(0)
		for _, t := range totals {
			all += t
		}
		for i, t := range totals {
			if mean := all / n; t > 0 && mean > 0 {
				sum[i] += min(1000*t/mean, 100_000)
				parts[i]++
			}
		}
	}
	for i := range sum {
		sum[i] = max(1, sum[i]/max(1, parts[i]))
	}
	return sum
}

// share returns by how much a demand raises the load of the node with slot s.
func (x *nodeIndex) share(d *fsm.Demand, s int32) int64 {
	z := size{x.cpu[s], x.mem[s], x.disk[s]}
	return z.added(d) + perWorkload
}

// imbalance returns figures about how unevenly the nodes that may get new workloads are loaded.
func (x *nodeIndex) imbalance() (out Imbalance) {
	weights := x.weights()
	var all, mean, square float64
	for i := range x.recs {
		load := int64(x.hot[i].load)
		if !x.ready.has(int32(i)) || load >= noTotals {
			continue
		}
		if all == 0 || load < out.Low {
			out.Low = load
		}
		out.High = max(out.High, load)
		w := float64(weights[i])
		all, mean, square = all+w, mean+w*float64(load), square+w*float64(load)*float64(load)
	}
	if all > 0 {
		mean /= all
		out.Deviation = int64(math.Sqrt(max(0, square/all-mean*mean)))
	}
	return out
}

// stays returns why workload w, on the node with slot s, may not be moved now; "" if it may.
func (b *balancing) stays(w *fsm.Workload, s int32) string {
	p := b.p
	if why := fsm.Immovable(p.State, w, p.Now); why != "" {
		return why
	}
	if code, _, _ := p.mustLeave(w, p.c.nodes.recs[s]); code != "" {
		return "the workload leaves its node for another reason"
	}
	if why := boundToHost(w.Demand); why != "" {
		return why
	}
	if b.unsettled[s] {
		return "the workload's node still stops other workloads, or is about to get some"
	}
	if b.limits.MinAge > 0 && w.AssignedAt+b.limits.MinAge > p.Now {
		return "the workload was placed a short time ago"
	}
	g := w.Demand.Group
	why, ok := b.groups[g]
	if !ok {
		why = fsm.GroupWaits(p.State, g)
		b.groups[g] = why
	}
	return why
}

// boundToHost returns why a workload depends on its machine, so that it is not moved only to balance the load; "" if it
// does not. The planner does not know whether another machine has the same device, or the other container.
func boundToHost(d *fsm.Demand) string {
	for _, a := range d.Asks {
		switch {
		case a.Rule == policy.RuleDevice && fsm.DevicesNamed(d.Devices, a.Value) == 0: // counted devices are filters of placement
			return "it uses a device of its host"
		case a.Rule == policy.RuleHostNS:
			return "it shares a namespace with its host or with another container"
		case a.Rule == policy.RuleEngineSocket:
			return "it uses the container engine of its host"
		case a.Rule == policy.RuleDisk:
			return "it uses a file of its host"
		case a.Rule == policy.RuleNetwork && d.Type != "vm":
			return "it uses a network of its host's engine"
		}
	}
	return ""
}

// weighed is one possible move with its effect on the cost of the cluster and on the placement score.
type weighed struct {
	w        *fsm.Workload
	from, to int32
	gain     int64
	cost     int64 // change of the cost of the cluster
	here     Score // score of the present node, as if the workload were not on it
	there    Score
	broken   bool // the present node does not satisfy a required rule about other workloads
}

// bestOf returns the possible move that lowers the cost most, and its index; -1 if no workload of the list may move.
func (b *balancing) bestOf(list []*fsm.Workload) (best weighed, at int) {
	at = -1
	for i, w := range list {
		if b.ends() {
			break
		}
		if b.limits.OneOfGroup && b.movedOf[w.Demand.Group] {
			continue
		}
		m, ok := b.weigh(w)
		if ok && (at < 0 || m.cost < best.cost || m.cost == best.cost && m.gain > best.gain) {
			best, at = m, i
		}
	}
	return best, at
}

// weigh evaluates the move of a workload to the node that placement would choose. It returns false if the move gains
// less than the minimum or does not lower the cost of the cluster.
func (b *balancing) weigh(w *fsm.Workload) (weighed, bool) {
	p, c, x := b.p, b.p.c, b.p.c.nodes
	m := weighed{w: w, from: x.slotOf[w.Node]}
	if int64(x.hot[m.from].load) >= noTotals || b.hopeless(w, m.from) {
		return m, false
	}
	b.evaluations++
	freed := amounts(w.Demand)
	x.take(&freed, m.from, -1)
	who := p.subject(w)
	q := c.prepare(p.State, who, w.Demand)
	m.here = x.scoreOf(w.Demand, m.from)
	m.broken = x.rules.rejects(m.from)
	m.here.Rules = x.rules.lenient(m.from)
	m.here.Total = base(q.bin, m.here.Load+m.here.Added) + m.here.Group + m.here.Taint + m.here.Rules
	x.exclude(append(who.avoids, w.Node))
	q.search(x.slots)
	own := int64(0)
	if m.to = q.best; m.to >= 0 {
		m.there = x.scoreOf(w.Demand, m.to)
		m.gain = m.here.Total - m.there.Total
		own = x.rules.own(m.to) - x.rules.own(m.from)
	}
	c.release()
	x.take(&freed, m.from, +1)
	if m.to < 0 || m.gain < max(1, b.limits.MinGain) || int64(x.hot[m.to].load) >= noTotals {
		return m, false
	}
	m.cost = own + m.there.Group - m.here.Group + m.there.Taint - m.here.Taint + b.loadCost(w, m.from, m.to) +
		b.spreadCost(w, m.from, m.to) + b.othersCost(w, m.from, m.to)
	return m, m.cost < 0
}

// hopeless reports whether no move of w can reach the minimum gain. It is used only for workloads without
// placement rules, whose score depends on the load alone; for others it returns false.
func (b *balancing) hopeless(w *fsm.Workload, from int32) bool {
	x, d := b.p.c.nodes, w.Demand
	b.p.c.loadRepelling(b.p.State)
	if _, avoided := avoids(d, x.recs[from]); avoided || d.Placement != nil || len(b.p.c.repelled) > 0 || x.packs(d) {
		return false
	}
	if d.Group != "" && b.p.c.groupOf(b.p.State, d.Group).at(from) > 1 {
		return false
	}
	low := int64(math.MaxInt64)
	for i := range x.shapes {
		if o := &x.shapes[i].order; len(o.chunks) > 0 {
			low = min(low, o.low)
		}
	}
	// share uses rounded node sizes, so it may be wrong by up to a quarter. Add this quarter, so
	// that no possible gain is taken for too small.
	return int64(x.hot[from].load)+x.share(d, from)/4-low < b.limits.MinGain
}

// cost is the function that each move lowers. It is the sum of
//
//   - for each node, its size × (load² − 2 × packed²), where packed is the load of the workloads that prefer full
//     nodes: the first term falls if the load becomes more even, the second if these workloads gather;
//   - for each two members of a group on one node, the weight of a group member in a score;
//   - for each group with spread rules, and each value of their label, the square of the number of members;
//   - for each affinity that does not hold, its weight, and for each workload on a node with a PreferNoSchedule taint
//     that it does not tolerate, the weight of such a taint.
//
// All terms are integers, and the sum has a lower bound.

// loadTerm returns the first term of the cost for one node.
func (b *balancing) loadTerm(load, packed int64, s int32) int64 {
	load, packed = min(load, 2*whole), min(packed, 2*whole)
	return (load*load - 2*packed*packed) / whole * b.weight[s] / 1000
}

func (b *balancing) loadCost(w *fsm.Workload, from, to int32) int64 {
	x := b.p.c.nodes
	load := func(s int32) int64 { return int64(x.hot[s].load) }
	cost := -b.loadTerm(load(from), b.packed[from], from) - b.loadTerm(load(to), b.packed[to], to)
	outOf, into := int64(0), int64(0)
	if x.packs(w.Demand) {
		outOf, into = x.share(w.Demand, from), x.share(w.Demand, to)
	}
	d := amounts(w.Demand)
	x.take(&d, from, -1)
	x.take(&d, to, +1)
	cost += b.loadTerm(load(from), b.packed[from]-outOf, from) + b.loadTerm(load(to), b.packed[to]+into, to)
	x.take(&d, to, -1)
	x.take(&d, from, +1)
	return cost
}

// spreadCost returns how the cost changes by the spread rules of the group. The rules of the group's first
// member apply to the whole group.
func (b *balancing) spreadCost(w *fsm.Workload, from, to int32) (cost int64) {
	p, x := b.p, b.p.c.nodes
	if w.Demand.Group == "" {
		return 0
	}
	var rules *fsm.Placement
	p.State.Group(w.Demand.Group, func(m *fsm.Workload) bool {
		rules = m.Demand.Placement
		return false
	})
	if rules == nil {
		return 0
	}
	g := p.c.groupOf(p.State, w.Demand.Group)
	for i := range rules.Spread {
		t := x.topologyOf(rules.Spread[i].By)
		if t == nil {
			cost += int64(g.at(to)-g.at(from)+1) * perExcess
			continue
		}
		a, b := t.of[from], t.of[to]
		if a == b {
			continue
		}
		n := g.byValue(t)
		switch {
		case a == 0:
			cost += int64(n[b])*perExcess - maxSpread
		case b == 0:
			cost += maxSpread - int64(n[a]-1)*perExcess
		default:
			cost += int64(n[b]-n[a]+1) * perExcess
		}
	}
	return cost
}

// maxSpread is the part of the cost that a member adds if its node lacks the label of a spread rule. No uneven
// distribution over nodes with the label costs as much.
const maxSpread = 2000 * perExcess

// othersCost returns by how much a move of w between two nodes changes the part of the cluster's cost that comes from
// other workloads with an affinity to w.
func (b *balancing) othersCost(w *fsm.Workload, from, to int32) (cost int64) {
	if len(b.holders) == 0 {
		return 0
	}
	p, x := b.p, b.p.c.nodes
	var list []near
	p.c.eachTarget(subjectOf(w), w.Demand, func(key []byte) { list = append(list, b.holders[string(key)]...) })
	for _, h := range list {
		if h.w.ID == w.ID {
			continue
		}
		at := b.slotOf(h.w)
		e := term{kind: notNear, t: x.topologyOf(h.a.By), set: p.c.setOf(p.State, h.w.In(), h.a), own: -1, cost: int64(h.a.Weight) * perWeight}
		if h.a.Anti {
			e.kind = tooNear
		}
		if h.a.Must {
			e.cost = whole
		}
		if own := p.c.setsOf[h.w.ID]; slices.Contains(own.sets, e.set) {
			e.own = own.slot
		}
		labelled := e.t == nil || e.t.of[at] != 0
		before := e.at(at)
		after := before
		if e.together(at, from) {
			after--
		}
		if e.together(at, to) {
			after++
		}
		cost += e.judge(after, labelled) - e.judge(before, labelled)
	}
	return cost
}

// slotOf returns the slot (index in the arrays of nodes) of the node of w, as it is after the moves
// that this rebalancing has already chosen.
func (b *balancing) slotOf(w *fsm.Workload) int32 {
	if s, ok := b.moved[w.ID]; ok {
		return s
	}
	return b.p.c.nodes.slotOf[w.Node]
}

// together reports whether the nodes of two slots are in the same topology domain of a rule.
func (e *term) together(a, b int32) bool {
	return e.t == nil && a == b || e.t != nil && e.t.of[a] == e.t.of[b] && e.t.of[a] != 0
}

// lenient returns the cost of a node by all rules, as if all required rules were preferred ones.
func (r *rules) lenient(s int32) (sum int64) {
	for i := range r.terms {
		sum += r.terms[i].lenient(s)
	}
	if r.soft != nil {
		sum += int64(r.soft[s])
	}
	return sum
}

// own returns the part of the result of lenient that comes from affinities in the specification of
// the workload itself, not from rules of others.
func (r *rules) own(s int32) (sum int64) {
	for i := range r.terms {
		if e := &r.terms[i]; e.kind == notNear || e.kind == tooNear {
			sum += e.lenient(s)
		}
	}
	if r.soft != nil {
		sum += int64(r.soft[s])
	}
	return sum
}

// lenient returns the cost of a node by a rule as if it were preferred. A required affinity that does not hold costs a
// whole node.
func (e *term) lenient(s int32) int64 {
	soft := *e
	if soft.must = false; e.must && e.kind != unevenSpread {
		soft.cost = whole
	}
	return soft.on(s)
}

// carryOut makes a move in the arrays, so that later moves take it into account.
func (b *balancing) carryOut(m weighed) BalanceMove {
	p, x := b.p, b.p.c.nodes
	out := b.describe(m)
	if x.packs(m.w.Demand) {
		b.packed[m.from] -= x.share(m.w.Demand, m.from)
		b.packed[m.to] += x.share(m.w.Demand, m.to)
	}
	freed := amounts(m.w.Demand)
	x.take(&freed, m.from, -1)
	p.c.promise(p.State, subjectOf(m.w), m.w.Demand, m.to)
	b.moved[m.w.ID] = m.to
	if g := m.w.Demand.Group; g != "" {
		b.movedOf[g] = true
	}
	return out
}

// describe returns a move with its reason: the loads, and how much other parts of the score add to the gain.
func (b *balancing) describe(m weighed) BalanceMove {
	x := b.p.c.nodes
	reason := "load " + percent(int64(x.hot[m.from].load)) + " here, " + percent(int64(x.hot[m.to].load)) + " there"
	add := func(gain int64, text string) {
		if gain != 0 {
			reason += fmt.Sprintf("; %+.1f %% for %s", percentOf(gain), text)
		}
	}
	add(m.here.Group-m.there.Group, "members of its group on the node")
	add(m.here.Taint-m.there.Taint, "taints")
	add(m.here.Rules-m.there.Rules, "spread and affinities")
	if m.broken {
		reason += "; a required rule does not hold here any more"
	}
	from, to := x.recs[m.from].ID, x.recs[m.to].ID
	fromAlloc, toAlloc := b.p.State.Alloc(from), b.p.State.Alloc(to)
	return BalanceMove{
		Workload: m.w.ID, From: from, To: to, Gain: m.gain, Reason: reason,
		generation: m.w.Generation, fromReserved: fromAlloc.Reserved(), toReserved: toAlloc.Reserved(),
		toKeys: x.recs[m.to].KeysHash(),
	}
}

// percent formats a part of a node, such as 0.123 as "12.3 %".
func percent(parts int64) string { return fmt.Sprintf("%.1f %%", percentOf(parts)) }

func percentOf(parts int64) float64 { return float64(parts) / (whole / 100) }
