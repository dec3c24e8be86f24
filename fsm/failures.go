package fsm

import (
	"slices"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/order"
)

// The failures of a workload are counted until it has run without interruption for a while. A report that the
// workload runs does not reset the count: a workload that starts and exits in a loop would then never be
// given up. The planner decides how long a workload must run.

// failed reports whether the workload has failures that have not been cleared.
func (r *Retry) failed() bool { return r.Attempts != 0 || r.FirstFailureAt != 0 || r.Terminal }

// ReportsPresent reports whether the last report of the node is about the present order. For a job, a report about a former
// order that asked for the same instance counts too: a job that has ended does not run again because its order was renewed.
func (w *Workload) ReportsPresent() bool {
	return w.Acknowledged && w.Actual.Generation == w.Generation || w.Demand.Job != nil && w.reportedSame()
}

// Completed reports whether w, whose desired state is Running, has exited with success and its restart
// policy does not restart it. The workload stays assigned to its node. Only a restart that a person
// requests starts it again.
func (w *Workload) Completed() bool {
	return w.Desired == DesiredRunning && w.Node != "" && w.ReportsPresent() &&
		w.Actual.State == ActualStopped && w.Actual.Code == CodeCompleted &&
		(w.Demand.Job == nil || w.Actual.Exit == nil || w.Demand.Job.Succeeds(w.Actual.Exit.Code))
}

// EndedForGood reports whether w is Completed, or is a service that ended with an error and is given up because its
// restart policy does not start it again. The workload stays assigned to its node: on another node it would run a
// second time.
func (w *Workload) EndedForGood() bool {
	return w.Completed() || w.Desired == DesiredRunning && w.Node != "" && w.Retry.Terminal && w.Demand.Job == nil &&
		w.Actual.Generation == w.Generation && w.Actual.State == ActualFailed && w.Actual.Terminal && w.Actual.Exit != nil
}

// Working reports whether the agent of w is carrying out the present order: it pulls an image, stops the
// former instance, or waits for a dependency. The deadline of the order does not run meanwhile, because the
// agent bounds each of these steps itself.
func (w *Workload) Working() bool { return w.Status == StatusPending && w.working() }

func (w *Workload) working() bool {
	return w.Acknowledged && w.Actual.Generation == w.Generation && w.Actual.State == ActualPending && w.Actual.Code == CodeWorking
}

// observed updates the failure counters after a report about w. state is the report, and restarts
// is the engine's restart count in the report before it. If the count has grown, the time without
// interruption starts again.
func (r *Retry) observed(w *Workload, restarts int32, state Actual, clock int64) {
	switch {
	case state == ActualStopped && w.Desired == DesiredStopped, w.Completed():
		*r = Retry{MaxAttempts: r.MaxAttempts}
	case state == ActualRunning && w.Desired == DesiredRunning:
		r.NextAt = 0 // a running workload needs no retry
		switch {
		case !r.failed():
			r.StableSince = 0
		case r.StableSince == 0 || restarts < w.Actual.RestartCount:
			r.StableSince = clock
		}
	case state != ActualNone:
		r.StableSince = 0
		if state == ActualFailed && r.FirstFailureAt == 0 {
			r.FirstFailureAt = clock
		}
	}
}

// nodeChanged updates the failure counters of w after its node was lost or has returned. The time for which w has run
// without interruption starts again, because it is unknown whether w ran meanwhile.
func (r *Retry) nodeChanged(w *Workload, up bool, clock int64) {
	switch {
	case !up:
		r.StableSince = 0
	case !r.failed() || !w.Acknowledged:
	case w.AcknowledgedAt != 0 && w.Actual.State == ActualRunning && w.Actual.Generation == w.Generation && w.Desired == DesiredRunning:
		r.StableSince = clock
	}
}

// noRetry returns why a retry of w would not help: w is in its desired state, or is getting there
// without a failure. "" means that a retry may help.
func (t *Tx) noRetry(w *Workload) string {
	n := t.nodeOf(w)
	told := w.Acknowledged && w.Actual.Generation == w.Generation
	switch {
	case n == nil && !w.Finished(): // the node was removed, so a retry places the workload again
		return ""
	case w.Finished() && !w.Result.Succeeded:
		return "" // a retry starts a failed job again
	case w.Completed(), w.Finished():
		return "the workload has completed: to run it again: persysctl restart " + w.ID
	case told && w.Desired == DesiredStopped && stopped(w.Actual.State):
		return "the workload is stopped: start it instead"
	case told && w.Desired == DesiredRunning && w.Actual.State == ActualRunning && w.Actual.Health != Unhealthy && n.Up:
		return "the workload runs: there is nothing to retry; to restart it: persysctl restart " + w.ID
	case told && w.Actual.State == ActualRunning && !n.Up:
		return "its node " + n.ID + " is down: a retry cannot reach it"
	case w.Retry.failed() || told && w.Actual.State != ActualPending && w.Actual.State != ActualNone:
		return ""
	}
	return "the workload has not failed: there is nothing to retry yet"
}

// forgiveFailures clears the failures of workloads that, according to the planner, have run for long enough.
func (t *Tx) forgiveFailures(b *commandv1.ForgiveFailures) (res Result) {
	for _, f := range b.GetWorkloads() {
		old, why := t.planned(f.GetWorkload(), f.GetIfGeneration())
		if why == "" && old.Retry.StableSince == 0 {
			why = "workload " + strconv.Quote(old.ID) + " does not run, or has not failed"
		}
		if why != "" {
			res.skip(why)
			continue
		}
		w := *old
		w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
		w.Actions = nil
		w.Reason = reasonOf(&w, t.nodeOf(&w), t.r.info.Clock)
		t.putWorkload(old, &w)
		t.event(Event{
			Type: EventWorkloadStable, Workload: w.ID, Node: w.Node,
			Details: []Label{{"attempts", strconv.Itoa(int(old.Retry.Attempts))}},
		})
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// overdue reports whether u, an explanation that the planner proposes, says that the deletion of w timed out:
// w is being deleted, and u has the code DeleteTimeout and the present generation of w. Other explanations
// are not stored for a workload that is being deleted.
func (t *Tx) overdue(w *Workload, u *commandv1.Unplaced) bool {
	return w.Desired == DesiredDeleted && w.Generation == order.GenerationOf(u.GetIfGeneration()) &&
		u.GetCode() == CodeDeleteTimeout
}

// Limits of the number and the texts of the finished tasks of agents that the state records.
const (
	MaxActions     = 20  // largest number of recorded tasks per workload
	maxActionError = 256 // bytes
	maxActionID    = 256 // bytes
	maxAuditTasks  = 64  // largest number of remembered tasks that ended in the same second; a further one might become an event twice
)

// recordActions turns the finished tasks of a node into events. If the command names a workload,
// it stores the tasks in the record of that workload instead.
func (t *Tx) recordActions(b *commandv1.RecordActions) (res Result) {
	n, ok := t.r.nodes.Get(b.GetNode())
	if !ok {
		return noNode(b.GetNode())
	}
	actions := make([]AgentAction, 0, len(b.GetActions()))
	for _, p := range b.GetActions() {
		a := actionOf(p)
		a.TaskID, a.Workload = clipTo(a.TaskID, maxActionID), clipTo(a.Workload, 128)
		a.Type, a.Status, a.Error = clipTo(a.Type, 64), clipTo(a.Status, 64), clipTo(a.Error, maxActionError)
		actions = append(actions, a)
	}
	if id := b.GetWorkload(); id != "" {
		old, ok := t.r.workloads.Get(id)
		_, left := t.r.residuals.Get(pair(n.ID, id))
		if !ok || old.Node != n.ID && !left {
			res.skip("workload " + strconv.Quote(id) + " is not on node " + strconv.Quote(n.ID))
		} else if kept := slices.Clone(actions[:min(len(actions), MaxActions)]); !slices.Equal(kept, old.Actions) {
			w := *old
			w.Actions = nil
			if len(kept) > 0 {
				w.Actions = kept
			}
			t.putWorkload(old, &w)
		}
	}
	// A command that names a workload lists only the tasks of that workload. Make no audit events from it, because
	// the list lacks other tasks of the node.
	if b.GetWorkload() == "" {
		slices.Reverse(actions) // events are added from the oldest to the newest
		t.auditActions(n.ID, actions)
	}
	return res
}

// auditActions adds an event for each task of a node that ended after the last recorded task.
func (t *Tx) auditActions(node string, actions []AgentAction) {
	was := &NodeAudit{Node: node}
	if old, ok := t.r.audits.Get(node); ok {
		was = old
	}
	now := &NodeAudit{Node: node, EndedAt: was.EndedAt, Tasks: slices.Clone(was.Tasks)}
	changed := false
	for i := range actions {
		a := &actions[i]
		if a.EndedAt <= 0 || a.EndedAt < was.EndedAt || a.EndedAt == was.EndedAt && slices.Contains(was.Tasks, a.TaskID) {
			continue
		}
		changed = true
		t.event(Event{
			Type: EventAgentAction, Workload: a.Workload, Node: node, Reason: a.Status, Message: a.Error,
			Details: details(Label{"action", a.Type}, Label{"ended_at", strconv.FormatInt(a.EndedAt, 10)}, Label{"task_id", a.TaskID}),
		})
		if a.EndedAt > now.EndedAt {
			now.EndedAt, now.Tasks = a.EndedAt, nil
		}
		if i, known := slices.BinarySearch(now.Tasks, a.TaskID); a.EndedAt == now.EndedAt && !known && len(now.Tasks) < maxAuditTasks {
			now.Tasks = slices.Insert(now.Tasks, i, a.TaskID)
		}
	}
	if !changed {
		return
	}
	own(t, &t.r.audits, ownAudits).Set(node, now)
	t.auditFold(now)
}

// dropAudit removes the record that says which finished tasks of a node have become events, when
// the node is removed.
func (t *Tx) dropAudit(node string) {
	if _, ok := t.r.audits.Get(node); ok {
		own(t, &t.r.audits, ownAudits).Delete(node)
		t.auditFold(&NodeAudit{Node: node})
	}
}

// auditFold folds a change of a node's recorded tasks into the digest.
func (t *Tx) auditFold(a *NodeAudit) {
	var e encoder
	e.str("audit/" + a.Node)
	e.i64(a.EndedAt)
	e.strs(a.Tasks)
	t.sideFold = append(t.sideFold, e...)
}

// NodeAudit returns the record that says up to which time the finished tasks of a node have become events.
func (s State) NodeAudit(node string) (*NodeAudit, bool) { return s.r.audits.Get(node) }

// Knows reports whether a task needs no new event: the task has become an event already, or has not ended.
func (a *NodeAudit) Knows(x *commandv1.AgentAction) bool {
	return x.GetEndedAt() <= 0 || a != nil && (x.GetEndedAt() < a.EndedAt || x.GetEndedAt() == a.EndedAt && slices.Contains(a.Tasks, clipTo(x.GetTaskId(), maxActionID)))
}

// AuditedUntil returns the Unix second in which the last recorded task of a node ended, on the
// clock of the agent; 0 if none is recorded.
func (s State) AuditedUntil(node string) int64 {
	if a, ok := s.r.audits.Get(node); ok {
		return a.EndedAt
	}
	return 0
}
