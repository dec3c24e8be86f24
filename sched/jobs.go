package sched

import (
	"cmp"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// endJobs ends the jobs that have succeeded, have used up their retries or have passed their
// deadline, and deletes the finished jobs whose TTL has passed. It evaluates the workloads that
// changed or whose time has come. The set p.over gets all of these jobs, even if the command for a
// job does not fit into this step.
func (p *planner) endJobs() {
	for _, id := range p.c.workloads.sorted() {
		w, ok := p.State.Workload(id)
		if !ok || w.Demand.Job == nil || w.Desired != fsm.DesiredRunning {
			continue
		}
		end := p.endOf(w)
		if end == nil && !p.expires(w) {
			continue
		}
		if p.over == nil {
			p.over = map[string]bool{}
		}
		p.over[id] = true
		if p.lost[w.Node] || p.back[w.Node] || !p.spend() {
			continue
		}
		p.mark(id)
		if end == nil {
			p.expired = append(p.expired, &commandv1.JobExpiry{Workload: id, IfGeneration: fsm.GenerationPB(w.Generation)})
			p.note("ExpireJob", id, w.Node, fmt.Sprintf("finished %d s ago", (p.Now-w.Result.At)/second))
			continue
		}
		end.Workload, end.IfGeneration = id, fsm.GenerationPB(w.Generation)
		p.ended = append(p.ended, end)
		p.note("FinishJob", id, w.Node, end.Message)
	}
}

// endOf returns the end of a job; nil if the job goes on or has finished. If the node has reported
// a result, this result is used even if the deadline has passed.
func (p *planner) endOf(w *fsm.Workload) *commandv1.JobEnd {
	switch {
	case w.Finished():
		return nil
	case w.Completed() || w.ExitedAsWanted() || p.endedOnLegacy(w):
		message := "ended with success"
		if x := w.Actual.Exit; x != nil {
			message = fmt.Sprintf("ended with exit code %d", x.Code)
		}
		return &commandv1.JobEnd{Succeeded: true, Message: message}
	case w.Retry.Terminal:
		return &commandv1.JobEnd{Code: w.Retry.Verdict.Code, Message: w.Retry.Verdict.Message}
	}
	if at := deadlineOfJob(w); at != 0 && at <= p.Now {
		message := fmt.Sprintf("did not finish within its deadline of %d s", w.Demand.Job.Deadline/second)
		return &commandv1.JobEnd{Code: fsm.CodeDeadlineExceeded, Message: message}
	}
	return nil
}

// endedOnLegacy reports whether the legacy v1 agent of a job says that the job has succeeded.
func (p *planner) endedOnLegacy(w *fsm.Workload) bool {
	return w.Node != "" && w.ReportsPresent() && w.Actual.Exit == nil && w.Actual.State == fsm.ActualStopped && w.Actual.Code == "" && p.legacy(w.Node)
}

// legacy reports whether a node has a legacy v1 agent. Such an agent reports no exit codes, and the state
// Stopped only for a container that ended with exit code 0.
func (p *planner) legacy(node string) bool {
	n, ok := p.State.Node(node)
	return ok && n.Facts.Protocol == 0
}

// deadlineOfJob returns the time at which an unfinished job is given up; 0 if it has no deadline or has not
// started.
func deadlineOfJob(w *fsm.Workload) int64 {
	if w.Demand.Job == nil || w.Demand.Job.Deadline == 0 || w.JobSince == 0 || !w.Active() {
		return 0
	}
	return w.JobSince + w.Demand.Job.Deadline
}

// expires reports whether the TTL of a finished job has passed.
func (p *planner) expires(w *fsm.Workload) bool {
	at := w.ExpiresAt()
	return at != 0 && at <= p.Now
}

// nextOfJob returns the time at which the planner must look at a job again: its deadline, or the end of its
// TTL; 0 if there is none.
func nextOfJob(w *fsm.Workload) int64 {
	return cmp.Or(w.ExpiresAt(), deadlineOfJob(w))
}

// awaitsTurn returns why a member of a job group may not be placed yet: as many members as the
// job's parallelism allows have a node. "" means that the member may be placed.
func (p *planner) awaitsTurn(w *fsm.Workload) string {
	j := w.Demand.Job
	if j == nil || j.Parallelism == 0 || w.Demand.Group == "" {
		return ""
	}
	if p.active(w.Demand.Group) < int(j.Parallelism) {
		return ""
	}
	return fmt.Sprintf("waits for its turn: job %s runs at most %d at the same time", w.Demand.Group, j.Parallelism)
}

// turnOf returns the group whose parallelism w uses: of a job group, at most parallelism unfinished members
// have a node at a time. It returns "" if w is not such a member.
func turnOf(w *fsm.Workload) string {
	if w.Node == "" || w.Demand.Job == nil || !w.Active() {
		return ""
	}
	return w.Demand.Group
}

// onLostNode reports whether m is a member of a job on every node and its node is lost. Such a member stays bound to that
// node, which may never return, so it must not keep the turn of the other members.
func (p *planner) onLostNode(m *fsm.Workload) bool {
	if !m.IsMember() {
		return false
	}
	n, ok := p.State.Node(m.Node)
	return !ok || !n.Up || p.lost[m.Node]
}

// active returns how many unfinished jobs of a group have a node, including those that this step has placed.
func (p *planner) active(group string) int {
	n, ok := p.turns[group]
	if !ok {
		p.State.Group(group, func(m *fsm.Workload) bool {
			if turnOf(m) == group && !p.onLostNode(m) {
				n++
			}
			return true
		})
		if p.turns == nil {
			p.turns = map[string]int{}
		}
		p.turns[group] = n
	}
	return n
}
