package control

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// inspections runs the calls by which the leader reads workloads or tasks from agents, at most
// cfg.Inspections at a time. Planning never waits for a read.
type inspections struct {
	running int
	waiting []func()

	// polls holds workloads whose orders agents of protocol 0 (legacy v1 peers) have accepted and whose
	// outcomes are not known yet. The value is true while the workload is being read.
	polls btree.Map[string, bool]
	timer *timer
}

// maxWaiting is the maximum number of reads that wait for their turn. Further ones are dropped; the next
// planning step, poll or drift round starts them again.
const maxWaiting = 1024

// inspect runs fn, which reads an agent, as soon as fewer than cfg.Inspections reads are running. It
// returns false if too many reads wait already. fn must lead to exactly one call of inspected.
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

// inspected is called when the read of an agent has ended. It starts the next read that waits.
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

// inquire reads from agents the recent tasks about workloads whose orders were not carried out in
// time.
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
	// auditPage is the number of tasks of a node that the first read requests and that one command records.
	// auditMost is the largest number of tasks that are read from one node.
	auditPage = 100
	auditMost = 16 * auditPage
	// auditBefore is the longest time in seconds from the creation of a task to its end that is expected.
	// Agents list tasks in the order of creation, but the leader records them in the order of their ends. So
	// the leader also reads tasks that were created this long before the last recorded end.
	auditBefore = 600
)

// audit records events for those tasks of a node that ended after the last recorded task. An agent can only
// list its newest tasks, not pages of them. So audit reads again with a higher limit as long as the list may
// lack tasks that are not recorded. If no task of the node is recorded yet, the newest ones are enough.
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
		// The task that ended last comes first, because recordPages begins with the last page. Tasks must be
		// recorded in the order in which they ended, because the state stores only the time of the last one:
		// every task that ended earlier is assumed to be recorded.
		slices.SortStableFunc(acts, func(a, b *commandv1.AgentAction) int { return cmp.Compare(b.GetEndedAt(), a.GetEndedAt()) })
		t.recordPages(node, acts, then)
	})
}

// recordPages records tasks page by page, the last page of acts first. If a page is lost, the next audit
// finds the tasks of that page and of the later ones again.
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

// awaited reports whether the leader has to ask the agent of w again and again for the result of its order. A
// legacy v1 agent (protocol 0) does not report by itself that it has carried an accepted order out.
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

// beginPolls begins to poll every workload of a view whose result its agent does not report by
// itself (awaited).
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

// poll begins to ask the agent for the state of workload w, if the leader waits for a result that the agent does not
// report by itself; see the function awaited.
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

// runPolls reads every polled workload from its agent once.
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

// runsFormer reports whether a legacy v1 agent runs another revision of w than the one in its order.
func runsFormer(w *fsm.Workload, r *sched.Reported) bool {
	return r.Observation.State == fsm.ActualRunning && r.Revision != "" && r.Revision != w.Revision() && !w.RunsAdopted()
}

// look reads one workload from its agent. The answer is handled like a report in a heartbeat.
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
		case got.Err != nil || !ok || !known || now.Generation != w.Generation: // no answer, or an answer about an earlier order
		case !got.Found:
			rep := missing(node, now)
			rep.ObservedAt = t.planned()
			t.report(rep)
		case runsFormer(now, &got.Report): // the agent has not begun to carry out the order
		default:
			t.report(reportDiff(t.view, node, &got.Report))
		}
	})})
}
