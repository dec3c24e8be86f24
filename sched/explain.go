package sched

import (
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// Explanation says where a workload is placed, or why it is on no node.
type Explanation struct {
	Workload string
	Node     NodeID // the chosen node; for a placed workload, its present node; "" = none
	Code     string // reason code if the workload is unplaced or waits
	Message  string // text for people; for an unplaced workload, the summary of reasons
	Moves    string // which nodes the workload left because they could not run it, or why it stays on such a node; "" = none
	Fit      int    // number of nodes that pass every filter of the planner
	Total    int    // number of nodes
	Counts   []Count
	Score    Score     // score of Node
	Nodes    []Verdict // one verdict per node, set only by Explain: fitting nodes best first, then rejected nodes by id
}

// Count is the number of nodes that were rejected for one reason.
type Count struct {
	Filter string // name of the filter, e.g. "CPU" or "taints"
	Field  string // field of the workload file that would have to change, e.g. "resources.cpu"; empty if no change of the file helps
	Reason string // reason without figures, e.g. "taint dedicated=gpu"
	Nodes  int
}

// Verdict is the result of filters and score for one node.
type Verdict struct {
	Node    NodeID
	Fits    bool
	Current bool   // the workload is on this node
	Filter  string // the filter that rejected the node; "" if the node fits
	Reason  string // why the filter rejected the node, in words with figures
	Score   Score  // score of the node; only if the node fits
	Rules   []RuleCost
}

// Explain answers `persysctl why` and `why-not`. It evaluates every node for a workload, as if the workload
// were placed now. If w has a node, the resources that it reserves there are treated as free.
func Explain(v fsm.View, w *fsm.Workload, t Tuning) Explanation {
	t = t.withDefaults()
	p := planning(v, t)
	c, x := p.c, p.c.nodes
	d := w.Demand
	e := Explanation{Workload: w.ID, Node: w.Node, Code: w.Reason.Code, Message: w.Reason.Message, Total: len(x.recs)}
	freed := *d
	freed.Ports = nil
	if s, ok := x.slotOf[w.Node]; ok {
		x.take(&freed, s, -1)
	}
	back, from, code, wait := int32(-1), (*fsm.Residual)(nil), "", ""
	if w.Node == "" && w.Desired == fsm.DesiredRunning {
		back, from, code, wait = p.former(w)
	}
	left := w.LeftSince(p.Now - d.MoveLimit().Interval)
	if who := p.subject(w); len(left) > 0 && c.findExcept(v, who, d, append(who.avoids, w.Node)).best < 0 {
		left = nil // no other node fits, so these nodes are not avoided
	}
	q := c.prepare(v, subjectOf(w), d)
	own := slices.Clone(x.busy)
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
		failed := slices.IndexFunc(left, func(f fsm.NodeFailure) bool { return f.Node == n.ID })
		if failed >= 0 && n.ID != w.Node && r.filter == passes {
			r = rejection{filter: failedThere, key: left[failed].Code}
		}
		verdict := Verdict{Node: n.ID, Fits: r.filter == passes, Current: n.ID == w.Node}
		if verdict.Fits {
			verdict.Score, verdict.Rules = x.scoreOf(d, s), x.ruleCosts(d, s)
			sum.fit++
			q.offer(s, verdict.Score.Total)
		} else {
			verdict.Filter, verdict.Reason = filterNames[r.filter], x.sentence(v, d, s, r)
			if r.filter == failedThere {
				f := left[failed]
				verdict.Reason = "it could not run here at " + clock(f.At) + bracketed(f.Code+prefixed(": ", f.Message)) + ", and another node fits"
			}
			sum.add(r)
		}
		if verdict.Current {
			e.Score = x.scoreOf(d, s)
		}
		e.Nodes = append(e.Nodes, verdict)
	}
	c.release()
	e.Moves = p.movesText(w)
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
			e.Code, e.Message = code, wait+displaced(w)
		case sum.fit == 0:
			e.Code, e.Message = fsm.CodeUnplaced, sum.message()+prefixed("; ", p.outlook(w))+displaced(w)
		}
	}
	return e
}

// planning returns a planner with which functions such as Explain answer questions about a view.
// Nothing that it decides is proposed.
func planning(v fsm.View, t Tuning) *planner {
	p := &planner{World: World{State: v, Now: v.Info().Clock, Tuning: t.withDefaults()}, c: NodesOf(v, t).c}
	v.Residuals("", func(r *fsm.Residual) bool {
		p.c.leaving.add(r.Node)
		return true
	})
	return p
}

// exceptOwn removes the ports that the workload itself holds on the node from the taken ports.
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

// Move says to which node one workload would move.
type Move struct {
	Workload string
	To       NodeID   // the node that the workload would get: its present node if it would stay; "" = no node has room
	Message  string   // why the workload would stay, or why no node has room
	Data     []string // local data on the present node that keeps the workload there or would be left behind
	Preempts []string // workloads of lower priority that would be evicted to make room

	StaysUntil int64 // until when a running job may stay on its draining node to end there, Unix nanoseconds; 0 = it is no such job
}

// PlanDrain returns the moves that draining a node would cause, highest priority first. Each move takes the
// earlier moves into account. With discard, local data binds no workload to the node. Running jobs may stay until
// jobsUntil, Unix nanoseconds, to end there; 0 = they move at once. No command is proposed.
func PlanDrain(v fsm.View, node NodeID, discard bool, jobsUntil int64, t Tuning) []Move {
	p := planning(v, t)
	x := p.c.nodes
	n, known := v.Node(node)
	var drained fsm.Node
	if known {
		drained = *n
		drained.Draining, drained.JobsUntil = true, jobsUntil
	}
	if s, ok := x.slotOf[node]; ok {
		x.unlist(s)
		x.unlisted = draining
	}
	var all []*fsm.Workload
	v.WorkloadsOn(node, func(w *fsm.Workload) bool {
		if w.Desired == fsm.DesiredRunning || w.Desired == fsm.DesiredStopped && known && w.BoundByData(n) && !discard {
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
		m := Move{Workload: w.ID, To: node}
		if known {
			m.Data = w.DataOn(n)
		}
		if known && w.FinishesOn(&drained, p.Now) {
			m.Message, m.StaysUntil = drained.EndsText(), jobsUntil
			moves = append(moves, m)
			continue
		}
		if known && !discard && w.BoundByData(n) {
			m.Message = "stays, because only this node has " + fsm.DataText(m.Data)
			moves = append(moves, m)
			continue
		}
		if w.IsMember() {
			m.Message = "is a member of system workload " + w.Owner + ", and is deleted once the other workloads have left"
			moves = append(moves, m)
			continue
		}
		if w.Completed() {
			m.Message = "has completed, and would run again on another node"
			moves = append(moves, m)
			continue
		}
		p.next(w, &m, runs(w), "runs on, because no other node takes it: ")
		moves = append(moves, m)
	}
	return moves
}

// PlanPlace returns where the workloads would be placed now, in the order of the list. Each
// placement takes the earlier ones into account. A workload that has a node stays on it if the node
// may still run it and has room for it, or if the workload is held on the node (moves.go). No
// command is proposed.
func PlanPlace(v fsm.View, workloads []*fsm.Workload, t Tuning) []Move {
	p := planning(v, t)
	moves := make([]Move, 0, len(workloads))
	for _, w := range workloads {
		moves = append(moves, p.move(w))
	}
	return moves
}

// next finds the next node of a workload for a plan. If no node has room and held is set, the workload stays on
// its node, and the message begins with the text in the argument stays.
func (p *planner) next(w *fsm.Workload, m *Move, held bool, stays string) {
	cand := Candidates{c: p.c, view: p.State, who: p.subject(w)}
	to, e := Place(*w.Demand, cand)
	if to != "" {
		cand.Take(*w.Demand, to)
		m.To = to
		return
	}
	hint := p.outlook(w) // call outlook first, because makeRoom changes the counts
	if to, m.Preempts = p.makeRoom(w); to != "" {
		m.To = to
		if len(m.Preempts) == 0 {
			m.Message = hint
		}
		return
	}
	if held {
		m.Message = stays + e.Message + prefixed("; ", hint)
		return
	}
	m.To, m.Message = "", e.Message+prefixed("; ", hint)
}

// move finds the node of one workload for PlanPlace.
func (p *planner) move(w *fsm.Workload) Move {
	m := Move{Workload: w.ID, To: w.Node}
	misfit, stays := p.stays(w)
	n, placed := p.State.Node(w.Node)
	if stays {
		if placed && w.FinishesOn(n, p.Now) {
			m.Message, m.StaysUntil = n.EndsText(), n.JobsUntil
		}
		return m
	}
	if placed {
		m.Data = w.DataOn(n)
		if w.BoundByData(n) {
			m.Message = misfit + "; " + w.KeptByData(n)
			return m
		}
	}
	held := placed && n.Up && runs(w)
	p.next(w, &m, held, misfit+"; it would run on unchanged, because no other node takes it: ")
	if held && m.To == w.Node {
		m.Data = nil
	}
	return m
}

// stays reports whether a workload with a changed demand may stay on its node. If it may stay, its
// new demand is added to what its node has reserved in this plan. Otherwise misfit is the reason.
func (p *planner) stays(w *fsm.Workload) (misfit string, stays bool) {
	x := p.c.nodes
	s, known := x.slotOf[w.Node]
	if !known {
		return "", false
	}
	code, message, _ := p.mustLeave(w, x.recs[s])
	bound := code == fsm.CodeAwaitFailover || code == fsm.CodeAwaitStop || code == fsm.CodeHoldsData // the workload is bound to its node, which is lost
	if code != "" && !bound {
		return message, false
	}
	after := amounts(w.Demand)
	var before fsm.Demand
	if have, ok := p.State.Workload(w.ID); ok {
		before = amounts(have.Demand)
	}
	x.prepare(p.State, w.In(), &after)
	x.take(&before, s, -1)
	if !bound {
		if f := x.room(&after, s); f != passes {
			x.take(&before, s, +1)
			return "node " + w.Node + " has too little " + x.roomRejection(&after, s, f).short() + " for the changed workload", false
		}
	}
	x.take(&after, s, +1)
	return "", true
}
