package fsm

import (
	"slices"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Failures count from the first one until the workload has run for a while. That it runs is no success yet: one that starts and ends in
// a loop would begin anew each time, and never be given up. How long is long
// enough is the planner's to say.

// failed reports whether failures count.
func (r *Retry) failed() bool { return r.Attempts != 0 || r.FirstFailureAt != 0 || r.Terminal }

// observed counts what a node said of w. restarts is the engine's count that was
// known before: one that starts it again by itself begins its time anew.
func (r *Retry) observed(w *Workload, restarts int32, state Actual, clock int64) {
	switch {
	case state == ActualStopped && w.Desired == DesiredStopped:
		*r = Retry{MaxAttempts: r.MaxAttempts}
	case state == ActualRunning && w.Desired == DesiredRunning:
		r.NextAt = 0 // it runs: there is nothing to try again
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

// nodeChanged is observed for a node that was lost, or is heard again: whether
// what it has went on to run meanwhile is not known.
func (r *Retry) nodeChanged(w *Workload, up bool, clock int64) {
	switch {
	case !up:
		r.StableSince = 0
	case !r.failed() || !w.Acknowledged:
	case w.AcknowledgedAt != 0 && w.Actual.State == ActualRunning && w.Actual.Generation == w.Generation && w.Desired == DesiredRunning:
		r.StableSince = clock
	}
}

// forgiveFailures ends the count of failures of what has run for long enough.
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

// overdue reports whether u says of a workload that is being deleted that a node
// does not let it go in time: all that there is to say of such a record.
func (t *Tx) overdue(w *Workload, u *commandv1.Unplaced) bool {
	return w.Desired == DesiredDeleted && w.Generation == GenerationOf(u.GetIfGeneration()) &&
		u.GetCode() == CodeDeleteTimeout
}

// Bounds of what is kept of an agent's tasks.
const (
	MaxActions     = 20  // of one workload
	maxActionError = 256 // bytes
	maxActionID    = 256 // bytes
	maxAuditTasks  = 64  // known tasks of one second; more of them might be told twice
)

// recordActions makes events of the tasks of a node that ended, or keeps those of the
// workload that they were asked about.
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
	if b.GetWorkload() == "" { // the tasks of one workload do not show which others ended before them
		slices.Reverse(actions) // events tell the oldest first
		t.auditActions(n.ID, actions)
	}
	return res
}

// auditActions appends the tasks of a node that ended since the last known one.
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

// dropAudit forgets what is known of a node's tasks.
func (t *Tx) dropAudit(node string) {
	if _, ok := t.r.audits.Get(node); ok {
		own(t, &t.r.audits, ownAudits).Delete(node)
		t.auditFold(&NodeAudit{Node: node})
	}
}

// auditFold takes a change of the table into the digest.
func (t *Tx) auditFold(a *NodeAudit) {
	var e encoder
	e.str("audit/" + a.Node)
	e.i64(a.EndedAt)
	e.strs(a.Tasks)
	t.sideFold = append(t.sideFold, e...)
}

// NodeAudit returns up to where the tasks of a node are known.
func (s State) NodeAudit(node string) (*NodeAudit, bool) { return s.r.audits.Get(node) }

// Knows reports whether a task has become an event, or has not ended yet.
func (a *NodeAudit) Knows(x *commandv1.AgentAction) bool {
	return x.GetEndedAt() <= 0 || a != nil && (x.GetEndedAt() < a.EndedAt || x.GetEndedAt() == a.EndedAt && slices.Contains(a.Tasks, clipTo(x.GetTaskId(), maxActionID)))
}

// AuditedUntil is the Unix second in which the last known task of a node ended,
// on the agent's clock; 0 = none is known.
func (s State) AuditedUntil(node string) int64 {
	if a, ok := s.r.audits.Get(node); ok {
		return a.EndedAt
	}
	return 0
}
