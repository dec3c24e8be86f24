package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// A node may be unable to run a workload for a cause of its own: a program of the host holds the port, the disk is
// full, a device or the image is missing. Its agent tries again and again, and after a few attempts reports that
// another node may be tried. The workload then moves, if another node has room and the limit of its moves
// (fsm.Reschedule) is not reached. It avoids the nodes that it left, until the interval of the limit is over or no
// other node fits; then it returns to the node that it left longest ago, but only after a pause. A workload that
// cannot move stays, and its agent goes on trying.

// returnAfter is the shortest time between two moves if the second one returns the workload to a node that it
// left within the interval of its limit.
const returnAfter = 300 * second

// subjectAt returns what a search for a node needs to know about w (see subject), including the nodes that w
// avoids at the time now.
func subjectAt(w *fsm.Workload, now int64) subject {
	who := subjectOf(w)
	for _, f := range w.LeftSince(now - w.Demand.MoveLimit().Interval) {
		who.avoids = append(who.avoids, f.Node)
	}
	return who
}

// subject is subjectAt at the present time. It also excludes the nodes on which moves of volumes do not permit w.
func (p *planner) subject(w *fsm.Workload) subject {
	who := subjectAt(w, p.Now)
	who.never = fsm.NodesInMoves(p.State, w)
	return who
}

// exclude makes the present search for a node ignore the given nodes.
func (x *nodeIndex) exclude(nodes []string) {
	for _, id := range nodes {
		s, ok := x.slotOf[id]
		if !ok {
			continue
		}
		h := &x.hot[s]
		if h.members == 0 && h.place == 0 {
			x.slots = append(x.slots, s)
		}
		h.place = -1
	}
}

// elsewhere is the decision about a workload that its node cannot run: to which node it moves, or
// why it stays.
type elsewhere struct {
	to    int32  // slot of a node that has room; -1 = the workload stays
	stays string // why the workload stays; "" if it moves or has not failed
	waits bool   // the workload stays because no node takes it
	due   int64  // when the decision may change although no node has changed, Unix nanoseconds; 0 = never
}

// elsewhere decides whether w moves off node n, which is up but cannot run w. It reserves nothing
// on the node that it finds.
func (p *planner) elsewhere(w *fsm.Workload, n *fsm.Node) elsewhere {
	if !w.FailsOnNode() {
		return elsewhere{to: -1}
	}
	limit := w.Demand.MoveLimit()
	left := w.LeftSince(p.Now - limit.Interval)
	e := elsewhere{to: -1}
	if len(left) > 0 {
		e.due = left[0].At + limit.Interval
	}
	switch {
	case w.Demand.Exclusive:
		e.stays = "it is exclusive, and an exclusive workload keeps its node"
	case w.IsMember():
		e.stays = "it is a member of a system workload, which belongs to its node"
	case w.BoundByData(n):
		e.stays = w.KeptByData(n)
	case limit.Attempts == 0 && w.Demand.Reschedule == nil:
		e.stays = "it can write to folders of its host, and such a workload moves only if its specification has reschedule"
	case limit.Attempts == 0:
		e.stays = "reschedule.attempts is 0"
	case len(left) >= int(limit.Attempts):
		e.due = left[len(left)-int(limit.Attempts)].At + limit.Interval
		e.stays = fmt.Sprintf("it was moved %d times within %s, and reschedule allows %d; it may move again after %s",
			len(left), span(limit.Interval), limit.Attempts, clock(e.due))
	default:
		e.to = p.another(w, left)
		if back := p.returnsAt(left, limit); e.to < 0 && back != 0 {
			if back <= p.Now {
				e.to = p.another(w, nil)
			} else {
				e.due = earlier(e.due, back)
			}
		}
		if e.to < 0 {
			e.waits, e.stays = true, "no other node takes it"+prefixed("; it left ", leftText(left))
		}
	}
	return e
}

// returnsAt returns the time from which on a workload may move back to one of the nodes that it left within the
// interval of its limit; 0 if it left none.
func (p *planner) returnsAt(left []fsm.NodeFailure, limit fsm.Reschedule) int64 {
	if len(left) == 0 {
		return 0
	}
	return left[len(left)-1].At + max(limit.Interval/int64(limit.Attempts), returnAfter)
}

// another returns the slot of a node that has room for a workload: neither its present node nor one of those in left.
// It prefers nodes that the workload has never left, then the one that it left longest ago. It returns -1 if there is
// none.
func (p *planner) another(w *fsm.Workload, left []fsm.NodeFailure) int32 {
	if p.hopeless(w) {
		return -1
	}
	who := subjectOf(w)
	who.never = append(fsm.NodesInMoves(p.State, w), w.Node)
	for _, f := range left {
		who.never = append(who.never, f.Node)
	}
	for _, f := range slices.Backward(w.FailedOn) {
		if !slices.Contains(who.never, f.Node) && !slices.Contains(who.avoids, f.Node) {
			who.avoids = append(who.avoids, f.Node)
		}
	}
	p.key = append(append(p.key, 11), strings.Join(who.never, " ")...)
	if p.failed[string(p.key)] {
		return -1
	}
	for {
		q := p.c.findExcept(p.State, who, w.Demand, who.avoids)
		if q.best >= 0 {
			return q.best
		}
		if len(who.avoids) == 0 {
			p.failed[string(p.key)] = true
			return -1
		}
		who.avoids = who.avoids[:len(who.avoids)-1]
	}
}

// moveOn evicts w from node n, which cannot run w, if w may move to another node. Otherwise it
// returns the time at which the workload is to be evaluated again. A workload that no node takes is
// evaluated again once a node has changed.
func (p *planner) moveOn(w *fsm.Workload, n *fsm.Node) (acted bool, due int64) {
	e := p.elsewhere(w, n)
	if e.waits {
		p.c.stuck.add(w.ID)
	}
	if e.to < 0 {
		return false, e.due
	}
	p.keepRoom(w.Demand, e.to)
	p.evict(w, fsm.CodeFailedOnNode, "node "+n.ID+" cannot run it"+prefixed(": ", w.Actual.Code)+prefixed(": ", w.Actual.Message), false)
	return true, 0
}

// movesText returns a text for `persysctl why`: which nodes a workload left because they could not run it, and
// whether it leaves its present node.
func (p *planner) movesText(w *fsm.Workload) string {
	n, ok := p.State.Node(w.Node)
	leaves := ""
	if ok {
		leaves, _, _ = p.mustLeave(w, n)
	}
	if ok && n.Up && leaves == "" && w.FailsOnNode() {
		switch e := p.elsewhere(w, n); {
		case p.State.Info().Mode.Frozen():
			return "it stays on node " + n.ID + " while the mode of the control plane is " + string(p.State.Info().Mode)
		case e.stays != "":
			return "it stays on node " + n.ID + " and is tried there again: " + e.stays
		case e.to >= 0:
			return "it moves to another node, because node " + n.ID + " cannot run it"
		}
	}
	left := prefixed("it left ", leftText(w.LeftSince(p.Now-w.Demand.MoveLimit().Interval)))
	if m := w.Moved; m != nil {
		left = strings.TrimPrefix(left+"; it left node "+m.From+" for node "+m.To+" at "+clock(m.At)+" to even out the load, gain "+percent(m.Gain), "; ")
	}
	return left
}

// leftText lists nodes that a workload left, e.g. "node a at 2026-11-27 10:00 UTC (STORAGE_FULL: no space left)".
// Explanations have no relative times, because the clock of the state stands still while nothing is committed.
func leftText(left []fsm.NodeFailure) string {
	texts := make([]string, len(left))
	for i, f := range left {
		texts[i] = "node " + f.Node + " at " + clock(f.At) + bracketed(f.Code+prefixed(": ", f.Message))
	}
	return strings.Join(texts, ", ")
}

// span formats a duration in nanoseconds, e.g. "90 s" or "5 min".
func span(d int64) string {
	switch s := max(0, d) / second; {
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 7200:
		return fmt.Sprintf("%d min", s/60)
	default:
		return fmt.Sprintf("%d h", s/3600)
	}
}
