package sched

import (
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// Explanation says where a workload is placed, or why it is unplaced.
type Explanation struct {
	Workload string
	Node     NodeID // chosen or present node; "" = none
	Code     string // reason code of a workload that is unplaced or waits
	Message  string // in words; for an unplaced workload the summary of reasons
	Fit      int    // nodes that pass every filter
	Total    int    // nodes
	Counts   []Count
	Score    Score     // of Node
	Nodes    []Verdict // only from Explain: fitting nodes best first, then rejected ones by id
}

// Count is the number of nodes that one reason rejected.
type Count struct {
	Filter string // e.g. "CPU", "taints"
	Reason string // e.g. "taint dedicated=gpu"
	Nodes  int
}

// Verdict is the result of filters and score for one node.
type Verdict struct {
	Node    NodeID
	Fits    bool
	Current bool   // the workload is there
	Filter  string // the filter that rejected it
	Reason  string // with figures
	Score   Score  // when it fits
}

// Explain answers `persysctl why` and `why-not`: the verdict of every node on a workload, as
// if it were placed now. Of a placed workload, the resources that it uses count as free.
func Explain(v fsm.View, w *fsm.Workload, t Tuning) Explanation {
	t = t.withDefaults()
	cand := NodesOf(v, t)
	c, x := cand.c, cand.c.nodes
	p := &planner{World: World{State: v, Tuning: t}, c: c}
	d := w.Demand
	e := Explanation{Workload: w.ID, Node: w.Node, Code: w.Reason.Code, Message: w.Reason.Message, Total: len(x.recs)}
	freed := *d
	freed.Ports = nil
	if s, ok := x.slotOf[w.Node]; ok {
		x.take(&freed, s, -1)
	}
	q := x.query(v, w.ID, d)
	own := slices.Clone(x.busy)
	slots := c.countMembers(v, w.ID, d)
	back, from, code, wait := int32(-1), (*fsm.Residual)(nil), "", ""
	if w.Node == "" && w.Desired == fsm.DesiredRunning {
		back, from, code, wait = p.former(w)
	}
	var sum tally
	sum.total = len(x.recs)
	for i, n := range x.recs {
		s := int32(i)
		x.busy = x.exceptOwn(v, w, n, own)
		r := x.reject(d, s)
		if from != nil {
			switch {
			case s == back:
				r = rejection{}
			case r.filter == passes:
				r = rejection{filter: stopping, key: from.Node}
			}
		}
		verdict := Verdict{Node: n.ID, Fits: r.filter == passes, Current: n.ID == w.Node}
		if verdict.Fits {
			verdict.Score = x.scoreOf(d, s)
			sum.fit++
			q.offer(s, verdict.Score.Total)
		} else {
			verdict.Filter, verdict.Reason = filterNames[r.filter], x.sentence(v, d, s, r)
			sum.add(r)
		}
		if verdict.Current {
			e.Score = x.scoreOf(d, s)
		}
		e.Nodes = append(e.Nodes, verdict)
	}
	for _, s := range slots {
		x.hot[s].members = 0
	}
	sum.sort()
	e.Fit, e.Counts = sum.fit, sum.counts()
	slices.SortFunc(e.Nodes, func(a, b Verdict) int {
		switch {
		case a.Fits != b.Fits:
			if a.Fits {
				return -1
			}
			return 1
		case a.Fits && a.Score.Total != b.Score.Total:
			if a.Score.Total < b.Score.Total {
				return -1
			}
			return 1
		case a.Fits:
			if da, db := x.ring[x.slotOf[a.Node]]-q.at, x.ring[x.slotOf[b.Node]]-q.at; da != db {
				if da < db {
					return -1
				}
				return 1
			}
		}
		return strings.Compare(a.Node, b.Node)
	})
	if w.Node == "" && w.Desired == fsm.DesiredRunning {
		switch {
		case wait != "":
			e.Code, e.Message = code, wait
		case sum.fit == 0:
			e.Code, e.Message = fsm.CodeUnplaced, sum.message()
		}
	}
	return e
}

// exceptOwn leaves out the host ports that the workload itself holds on a node.
func (x *nodeIndex) exceptOwn(v fsm.View, w *fsm.Workload, n *fsm.Node, all []bitset) []bitset {
	if len(all) == 0 {
		return nil
	}
	out := slices.Clone(all)
	for i, port := range w.Demand.Ports {
		if holder, on := v.PortHolder(n.Engine(), port); holder == w.ID && on == n.ID {
			out[i] = x.nobody
		}
	}
	return out
}

// Move is where a plan would place one workload.
type Move struct {
	Workload string
	To       NodeID // "" = it would stay unplaced
	Message  string // why it would
}

// PlanDrain returns the moves that draining a node would cause, highest priority first.
// Each move sees the earlier ones. Nothing is proposed.
func PlanDrain(v fsm.View, node NodeID, t Tuning) []Move {
	cand := NodesOf(v, t)
	x := cand.c.nodes
	if s, ok := x.slotOf[node]; ok {
		x.unlist(s)
		x.unlisted = draining
	}
	var all []*fsm.Workload
	v.WorkloadsOn(node, func(w *fsm.Workload) bool {
		if w.Desired == fsm.DesiredRunning {
			all = append(all, w)
		}
		return true
	})
	slices.SortFunc(all, func(a, b *fsm.Workload) int {
		if a.Demand.Priority != b.Demand.Priority {
			if a.Demand.Priority > b.Demand.Priority {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
	moves := make([]Move, 0, len(all))
	for _, w := range all {
		to, e := Place(*w.Demand, cand.For(w.ID))
		if to != "" {
			cand.For(w.ID).Take(*w.Demand, to)
		}
		moves = append(moves, Move{Workload: w.ID, To: to, Message: e.Message})
	}
	return moves
}

// PlanPlace returns where workloads would be placed now, in this order. Each move sees the
// earlier ones. A workload with a node stays there if it may and there is room. Nothing is
// proposed.
func PlanPlace(v fsm.View, workloads []*fsm.Workload, t Tuning) []Move {
	t = t.withDefaults()
	cand := NodesOf(v, t)
	p := &planner{World: World{State: v, Tuning: t}, c: cand.c}
	moves := make([]Move, 0, len(workloads))
	for _, w := range workloads {
		if p.stays(w) {
			moves = append(moves, Move{Workload: w.ID, To: w.Node})
			continue
		}
		to, e := Place(*w.Demand, cand.For(w.ID))
		if to != "" {
			cand.For(w.ID).Take(*w.Demand, to)
		}
		moves = append(moves, Move{Workload: w.ID, To: to, Message: e.Message})
	}
	return moves
}

// stays reports whether a workload with a changed demand may stay on its node. If so, the
// new demand is promised there instead of the present one.
func (p *planner) stays(w *fsm.Workload) bool {
	x := p.c.nodes
	s, known := x.slotOf[w.Node]
	if !known {
		return false
	}
	code, _, _ := p.mustLeave(w, x.recs[s])
	bound := code == fsm.CodeAwaitFailover || code == fsm.CodeAwaitStop // to a node that is lost
	if code != "" && !bound {
		return false
	}
	after := amounts(w.Demand)
	var before fsm.Demand
	if have, ok := p.State.Workload(w.ID); ok {
		before = amounts(have.Demand)
	}
	x.prepare(p.State, &after)
	x.take(&before, s, -1)
	if !bound && x.room(&after, s) != passes {
		x.take(&before, s, +1)
		return false
	}
	x.take(&after, s, +1)
	return true
}
