package control

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// inspections are the reads of agents: Inspections at a time, and planning waits for none
// of them.
type inspections struct {
	running int
	waiting []func()

	// polls are the workloads on agents of protocol 0 between acceptance and outcome;
	// true = a read is under way.
	polls btree.Map[string, bool]
	timer *timer
}

// maxWaiting is how many inspections wait for their turn. More are dropped; the next
// planning step, poll or round starts them again.
const maxWaiting = 1024

// inspect runs fn in its turn and reports whether there is room for it. fn must lead to
// one call of inspected.
func (t *Term) inspect(fn func()) bool {
	i := &t.reads
	switch {
	case i.running < t.cfg.Inspections:
		i.running++
		fn()
	case len(i.waiting) < maxWaiting:
		i.waiting = append(i.waiting, fn)
	default:
		return false
	}
	return true
}

// inspected ends one inspection and begins the next.
func (t *Term) inspected() {
	i := &t.reads
	if len(i.waiting) == 0 {
		i.running--
		return
	}
	next := i.waiting[0]
	i.waiting[0] = nil
	i.waiting = i.waiting[1:]
	next()
}

// inquire reads the actions of agents about workloads that missed a deadline.
func (t *Term) inquire(list []sched.Inquiry) {
	if !t.cfg.Inspect {
		return
	}
	for _, q := range list {
		t.inspect(func() {
			t.readActions(q.Node, q.Workload, fsm.MaxActions, func(acts []*commandv1.AgentAction, err error) {
				if err != nil {
					t.inspected()
					return
				}
				t.audit(q.Node, auditPage, func() {
					if len(acts) == 0 {
						t.inspected()
						return
					}
					t.recordActions(q.Node, q.Workload, acts, func(error) { t.inspected() })
				})
			})
		})
	}
}

func (t *Term) readActions(node, workload string, limit int, then func([]*commandv1.AgentAction, error)) {
	t.emit(ReadActions{
		ID:   t.await(func(in Input) { then(in.(ActionsRead).Actions, in.(ActionsRead).Err) }),
		Node: node, Workload: workload, Limit: limit,
	})
}

func (t *Term) recordActions(node, workload string, acts []*commandv1.AgentAction, then func(error)) {
	t.propose(then, &commandv1.Command{
		Head: t.head(),
		Body: &commandv1.Command_RecordActions{RecordActions: &commandv1.RecordActions{Node: node, Workload: workload, Actions: acts}},
	})
}

const (
	// auditPage is how many tasks of a node are read at first, and recorded by one
	// command; auditMost is how many are read at most.
	auditPage = 100
	auditMost = 16 * auditPage
	// auditBefore is how many seconds a task may have waited and run. Agents list tasks
	// by creation time; events are ordered by when the tasks ended.
	auditBefore = 600
)

// audit records events of the tasks that a node has ended since the last recorded ones.
// Agents list the newest tasks and have no pages: limit grows as long as unread tasks may
// be unrecorded. Of a node without recorded tasks the newest ones are enough.
func (t *Term) audit(node string, limit int, then func()) {
	t.readActions(node, "", limit, func(acts []*commandv1.AgentAction, err error) {
		if err != nil {
			then()
			return
		}
		known, _ := t.view.NodeAudit(node)
		if known != nil && len(acts) >= limit && acts[limit-1].GetCreatedAt() >= known.EndedAt-auditBefore {
			if limit < auditMost {
				t.audit(node, limit*4, then)
				return
			}
			t.emit(AuditTruncated{Node: node, Read: limit})
		}
		acts = slices.DeleteFunc(acts, known.Knows)
		// The first to end is recorded first: what ended before a recorded task counts
		// as recorded.
		slices.SortStableFunc(acts, func(a, b *commandv1.AgentAction) int { return cmp.Compare(b.GetEndedAt(), a.GetEndedAt()) })
		t.recordPages(node, acts, then)
	})
}

// recordPages records tasks page by page, the last page first. If one is lost, the next
// audit finds it and the later ones again.
func (t *Term) recordPages(node string, acts []*commandv1.AgentAction, then func()) {
	if len(acts) == 0 {
		then()
		return
	}
	from := max(0, len(acts)-auditPage)
	t.recordActions(node, "", acts[from:], func(err error) {
		if err != nil {
			then()
			return
		}
		t.recordPages(node, acts[:from], then)
	})
}

// awaited reports whether w is on an agent of protocol 0 that has accepted it and whose
// outcome is not known yet.
func awaited(view fsm.View, w *fsm.Workload) bool {
	if w.Node == "" || !w.Acknowledged || w.Retry.Terminal || w.Retry.NextAt != 0 || w.Desired == fsm.DesiredDeleted {
		return false
	}
	n, ok := view.Node(w.Node)
	if !ok || !n.Up || n.Facts.Protocol != 0 {
		return false
	}
	switch w.Actual.State {
	case fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualMissing:
		return w.Actual.Generation != w.Generation
	}
	return true
}

// beginPolls polls every awaited workload of a view.
func (t *Term) beginPolls(view fsm.View) {
	if !t.cfg.Inspect {
		return
	}
	view.Nodes("", func(n *fsm.Node) bool {
		if n.Facts.Protocol == 0 {
			view.WorkloadsOn(n.ID, func(w *fsm.Workload) bool { t.poll(view, w); return true })
		}
		return true
	})
}

// poll polls a workload from now on if it is awaited.
func (t *Term) poll(view fsm.View, w *fsm.Workload) {
	i := &t.reads
	if !t.cfg.Inspect || !awaited(view, w) {
		return
	}
	if _, ok := i.polls.Get(w.ID); !ok {
		i.polls.Set(w.ID, false)
		t.nextPolls()
	}
}

func (t *Term) nextPolls() {
	i := &t.reads
	if i.polls.Len() > 0 && (i.timer == nil || i.timer.pos < 0) {
		i.timer = t.after(t.cfg.PollEvery, t.runPolls)
	}
}

// runPolls reads every polled workload once.
func (t *Term) runPolls() {
	i := &t.reads
	var due []*fsm.Workload
	var done []string
	if !t.view.Info().Mode.Frozen() {
		i.polls.Scan(func(id string, busy bool) bool {
			switch w, ok := t.view.Workload(id); {
			case busy:
			case !ok || !awaited(t.view, w):
				done = append(done, id)
			default:
				due = append(due, w)
			}
			return true
		})
	}
	for _, id := range done {
		i.polls.Delete(id)
	}
	slices.SortFunc(due, func(a, b *fsm.Workload) int {
		return cmp.Or(cmp.Compare(a.AcknowledgedAt, b.AcknowledgedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, w := range due {
		i.polls.Set(w.ID, t.inspect(func() { t.look(w) }))
	}
	t.nextPolls()
}

// look reads one workload; the answer is treated as a heartbeat's report.
func (t *Term) look(w *fsm.Workload) {
	t.emit(Look{Node: w.Node, Workload: w.ID, ID: t.await(func(in Input) {
		got := in.(Looked)
		if _, ok := t.reads.polls.Get(w.ID); ok {
			t.reads.polls.Set(w.ID, false)
		}
		defer t.inspected()
		now, ok := t.view.Workload(w.ID)
		node, known := t.view.Node(w.Node)
		switch {
		case got.Err != nil || !ok || !known || now.Generation != w.Generation: // an answer about an earlier order
		case !got.Found:
			rep := missing(node, now)
			rep.ObservedAt = t.planned()
			t.report(rep)
		default:
			t.report(reportDiff(t.view, node, &got.Report))
		}
	})})
}
