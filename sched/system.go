package sched

import (
	"fmt"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// refusedAgain is how long a member that the state machine refused to create, for example because of a quota, is
// not proposed again.
const refusedAgain = 30 * second

// systems holds the work queues of the pass over system workloads.
type systems struct {
	known     []string  // ids of all system workloads, sorted
	templates workQueue // system workloads to evaluate on every node
	nodes     workQueue // nodes to evaluate for every system workload
}

// changed is called when record w of workload id replaces record old. It queues the system
// workloads whose members the change may affect, and the nodes of these members.
func (s *systems) changed(id string, x *nodeIndex, old, w *fsm.Workload) {
	if old != nil && old.IsSystem() || w != nil && w.IsSystem() {
		if w == nil {
			if at, ok := slices.BinarySearch(s.known, id); ok {
				s.known = slices.Delete(s.known, at, at+1)
			}
			return
		}
		s.add(id)
	}
	if len(s.known) == 0 {
		return
	}
	for _, w := range [...]*fsm.Workload{old, w} {
		if w == nil {
			continue
		}
		if w.IsMember() {
			s.nodes.add(w.Run.Node)
		} else {
			s.left(x, w.Node)
		}
	}
}

func (s *systems) add(id string) {
	if at, ok := slices.BinarySearch(s.known, id); !ok {
		s.known = slices.Insert(s.known, at, id)
	}
	s.templates.add(id)
}

// left queues a node that an instance may have left, if the node is draining: once no other workload is left on
// it, the members of system workloads leave it too.
func (s *systems) left(x *nodeIndex, node string) {
	if at, ok := x.slotOf[node]; ok && len(s.known) > 0 && x.recs[at].Draining {
		s.nodes.add(node)
	}
}

// placeMembers creates the missing members of system workloads, and deletes the members of nodes
// that were removed, that no longer pass the filters, or that are draining and have no other
// workload left. A member of a lost node stays.
func (p *planner) placeMembers() {
	s := &p.c.systems
	if len(s.known) == 0 {
		s.nodes.take()
		s.templates.take()
		return
	}
	templates, nodes := s.templates.take(), s.nodes.take()
	for _, id := range templates {
		p.State.Nodes("", func(n *fsm.Node) bool {
			p.placeMember(id, n.ID)
			return true
		})
		p.State.Children(id, func(m *fsm.Workload) bool {
			if m.IsMember() {
				if _, ok := p.State.Node(m.Run.Node); !ok {
					p.placeMember(id, m.Run.Node)
				}
			}
			return true
		})
	}
	for _, node := range nodes {
		for _, id := range s.known {
			if _, done := slices.BinarySearch(templates, id); !done {
				p.placeMember(id, node)
			}
		}
	}
}

// placeMember proposes to create or to delete the member that a system workload (template) has on one node. The
// node stays in the queue until the state shows the change.
func (p *planner) placeMember(template, node string) {
	of, ok := p.State.Workload(template)
	if !ok || !of.IsSystem() || of.Desired == fsm.DesiredDeleted || p.lost[node] || p.back[node] {
		return
	}
	m, has := fsm.MemberOf(p.State, template, node)
	if has && m.Desired == fsm.DesiredDeleted {
		return // the change that ends the delete queues the node again
	}
	n, known := p.State.Node(node)
	code, why, at := "", "", int64(0)
	switch {
	case !known && has:
		why = "the node was removed"
	case !known || !n.Up:
		return
	case has:
		code, why, at = p.memberLeaves(of, m, n)
	case of.Desired != fsm.DesiredRunning || readiness(n).filter != passes:
		return
	case p.c.nodes.static(p.c.nodes.pooled[of.In()], of.Demand, p.c.nodes.slotOf[node]).filter != passes:
		return
	case of.Reason.Code == fsm.CodeNotCreated && of.Reason.At+refusedAgain > p.Now:
		at = of.Reason.At + refusedAgain
	}
	if at > 0 {
		p.c.systems.nodes.add(node)
		p.wake(at)
	}
	if has && why == "" || at > 0 {
		return
	}
	p.c.systems.nodes.add(node)
	if !p.spend() {
		return
	}
	action := "CreateMember"
	if has {
		action = "DeleteMember"
		p.mark(m.ID)
		p.rest(m)
	}
	p.members = append(p.members, &commandv1.MemberChange{
		Template: template, IfGeneration: fsm.GenerationPB(of.Generation), Node: node, Delete: has, Message: why, Code: code,
	})
	p.note(action, template, node, why)
}

// memberLeaves returns why a member must leave its node, which is up; "" if it stays. code is CodeDraining if the cause is
// a drain. at is when the member may have to leave because of a taint; 0 = no such time is known.
func (p *planner) memberLeaves(of, m *fsm.Workload, n *fsm.Node) (code, why string, at int64) {
	if m.Finished() {
		return "", "", 0 // its result stays, and says that the job has run on this node
	}
	if n.Draining && !m.FinishesOn(n, p.Now) {
		if other := p.stillOn(n.ID); other != "" {
			return "", "", 0
		}
		return fsm.CodeDraining, "the node is draining and has no other workload left", 0
	}
	if t, due := evicts(of.Demand, n); due > 0 {
		if due > p.Now {
			return "", "", due
		}
		return "", "taint " + t.String() + " is not tolerated", 0
	}
	if r := fits(nil, of.Demand, n); r.filter != passes {
		return "", fmt.Sprintf("the node no longer matches: %s", r.short()), 0
	}
	// If only the node pool of the namespace has changed, a member with local data stays: its owner did not ask
	// for the loss of that data. All members stay if the pool has no node: its labels are probably misspelt.
	pool := p.c.nodes.pooled[of.In()]
	r := fits(pool, of.Demand, n)
	switch {
	case r.filter == passes || len(m.DataOn(n)) > 0:
		return "", "", 0
	case p.emptyPool(pool):
		return "", "", p.Now + emptyPoolAgain
	}
	return "", fmt.Sprintf("the node no longer matches: %s", r.short()), 0
}

// emptyPoolAgain is after how long the members outside of a node pool without nodes are evaluated again.
const emptyPoolAgain = 30 * second

// emptyPool reports whether no node carries the labels that a namespace requires.
func (p *planner) emptyPool(of *fsm.Namespace) bool {
	if of == nil {
		return false
	}
	empty, known := p.emptyPools[of.Name]
	if !known {
		empty = true
		p.State.Nodes("", func(n *fsm.Node) bool {
			_, empty = n.MissesLabel(of.NodeLabels)
			return empty
		})
		if p.emptyPools == nil {
			p.emptyPools = map[string]bool{}
		}
		p.emptyPools[of.Name] = empty
	}
	return empty
}

// stillOn returns a workload that a draining node has, or is stopping, and that is not a member of a system
// workload; "" if there is none.
func (p *planner) stillOn(node string) (other string) {
	p.State.WorkloadsOn(node, func(w *fsm.Workload) bool {
		if !w.IsMember() && w.Desired == fsm.DesiredRunning && !w.Completed() && w.Reason.Code != fsm.CodeHoldsData {
			other = w.ID
		}
		return other == ""
	})
	if other != "" {
		return other
	}
	p.State.Residuals(node, func(r *fsm.Residual) bool {
		if w, ok := p.State.Workload(r.Workload); !ok || !w.IsMember() {
			other = r.Workload
		}
		return other == ""
	})
	return other
}

// leavesLast reports whether w stays on its draining node until all ordinary workloads have left,
// because w is a member of a system workload. The run of a job may then still end before the deadline of the drain.
func leavesLast(w *fsm.Workload, n *fsm.Node, now int64) bool {
	return w.IsMember() && n.Up && n.Draining && !w.FinishesOn(n, now)
}

// MembersText returns a text such as "one member on each of 3 of 5 nodes": how many nodes have a member of the given
// system workload, or would get one.
func MembersText(v fsm.View, of *fsm.Workload, t Tuning) string {
	n := 0
	MemberNodes(v, of, t, func(*fsm.Node, *fsm.Workload) { n++ })
	return fmt.Sprintf("one member on each of %d of %d nodes", n, v.NodeCount())
}

// MemberNodes calls fn for every node that has a member of a system workload and keeps it, or would get one; member is nil
// if it does not exist yet.
func MemberNodes(v fsm.View, of *fsm.Workload, t Tuning, fn func(n *fsm.Node, member *fsm.Workload)) {
	x := newNodeIndex(v, t.withDefaults())
	in := x.pooled[of.In()]
	v.Nodes("", func(n *fsm.Node) bool {
		member, has := fsm.MemberOf(v, of.ID, n.ID)
		if has && (!n.Up || fits(in, of.Demand, n).filter == passes) || readiness(n).filter == passes && x.static(in, of.Demand, x.slotOf[n.ID]).filter == passes {
			fn(n, member)
		}
		return true
	})
}
