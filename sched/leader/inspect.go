package leader

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// Inspector reads what agents have and what they did. It changes nothing.
type Inspector interface {
	// List gives everything that a node has.
	List(ctx context.Context, node string) ([]sched.Reported, error)
	// Look gives one workload of a node; false means that the node has nothing of it.
	Look(ctx context.Context, node, workload string) (sched.Reported, bool, error)
	// Actions gives the tasks of one workload, or of all if it is "", newest
	// first; none from agents that keep no history.
	Actions(ctx context.Context, node, workload string, limit int) ([]*commandv1.AgentAction, error)
}

// inspections are the reads of agents in one stint: bounded in all, each with a
// deadline, and none of them waited for by the loop.
type inspections struct {
	s     *stint
	slots chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	waiting int
	// Workloads on agents that do not push, between acceptance and outcome; true =
	// being asked.
	polls map[string]bool
}

// maxWaiting is how many inspections wait for a slot; more are let go, and come
// back by the next step, poll or round.
const maxWaiting = 1024

func newInspections(s *stint) *inspections {
	return &inspections{s: s, slots: make(chan struct{}, s.cfg.Inspections), polls: map[string]bool{}}
}

// start runs one inspection with a slot and a deadline; false if it cannot.
func (i *inspections) start(fn func(ctx context.Context)) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.waiting >= maxWaiting {
		return false
	}
	i.waiting++
	i.wg.Go(func() {
		got := false
		select {
		case i.slots <- struct{}{}:
			got = true
			defer func() { <-i.slots }()
		case <-i.s.ctx.Done():
		}
		i.mu.Lock()
		i.waiting--
		i.mu.Unlock()
		if !got {
			return
		}
		ctx, cancel := context.WithTimeout(i.s.ctx, i.s.cfg.OrderDeadline)
		defer cancel()
		fn(ctx)
	})
	return true
}

// close waits for every inspection; the stint's context has ended.
func (i *inspections) close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.wg.Wait()
}

// knowsFailures reports whether the cluster keeps what inspections find.
func knowsFailures(view fsm.View) bool { return view.Info().FeatureLevel >= 5 }

// inquire asks agents what they did about workloads that they were too late with.
func (i *inspections) inquire(list []sched.Inquiry) {
	if i.s.cfg.Inspector == nil || !knowsFailures(i.s.store.View()) {
		return
	}
	for _, q := range list {
		i.start(func(ctx context.Context) {
			acts, err := i.s.cfg.Inspector.Actions(ctx, q.Node, q.Workload, fsm.MaxActions)
			if err != nil {
				i.s.cfg.Logger.Warn("the agent's actions were not read", "workload", q.Workload, "node", q.Node, "err", err)
				return
			}
			// What the node did is told first, as a whole: before feature level 6 the log takes
			// what one workload's tasks say as said of all.
			i.s.audit(ctx, q.Node)
			if len(acts) > 0 {
				i.s.recordActions(ctx, q.Node, q.Workload, acts)
			}
		})
	}
}

func (s *stint) recordActions(ctx context.Context, node, workload string, acts []*commandv1.AgentAction) bool {
	return s.propose(ctx, []fsm.Command{{
		Head: s.head(),
		Body: &commandv1.Command_RecordActions{RecordActions: &commandv1.RecordActions{Node: node, Workload: workload, Actions: acts}},
	}})
}

const (
	// auditPage is how many tasks of a node are read at first, and told by one command;
	// auditMost is how many are read at most.
	auditPage = 100
	auditMost = 16 * auditPage
	// auditBefore is how many seconds a task may have waited and run. Agents list tasks by
	// when they were made, and what counts is when they ended.
	auditBefore = 600
)

// audit makes events of the tasks that a node has ended since the last known ones. Agents
// list the newest ones and know no pages: more are asked for as long as what was not read may
// be unknown. Of a node of which nothing is known the newest are enough.
func (s *stint) audit(ctx context.Context, node string) {
	var acts []*commandv1.AgentAction
	known, _ := s.store.View().NodeAudit(node)
	for limit := auditPage; ; limit *= 4 {
		var err error
		if acts, err = s.cfg.Inspector.Actions(ctx, node, "", limit); err != nil {
			s.cfg.Logger.Debug("the agent's actions were not read", "node", node, "err", err)
			return
		}
		if known == nil || len(acts) < limit || acts[limit-1].GetCreatedAt() < known.EndedAt-auditBefore {
			break
		}
		if limit >= auditMost {
			s.cfg.Logger.Warn("the agent did more than is read at once; its older tasks become no events", "node", node, "read", limit)
			break
		}
	}
	acts = slices.DeleteFunc(acts, known.Knows)
	// The first to end is told first: what ended before a task that was told counts as known.
	slices.SortStableFunc(acts, func(a, b *commandv1.AgentAction) int { return cmp.Compare(b.GetEndedAt(), a.GetEndedAt()) })
	for len(acts) > 0 {
		rest := max(0, len(acts)-auditPage)
		if !s.recordActions(ctx, node, "", acts[rest:]) {
			return // the next round finds them again
		}
		acts = acts[:rest]
	}
}

// awaited reports whether w is on an agent that does not push and has accepted
// it, and has not said yet what came of it.
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

// observe follows the feed: what is to be polled from now on.
func (i *inspections) observe(n news) {
	if i.s.cfg.Inspector == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	add := func(w *fsm.Workload) {
		if _, ok := i.polls[w.ID]; !ok && awaited(n.view, w) {
			i.polls[w.ID] = false
		}
	}
	if n.fresh {
		n.view.Nodes("", func(node *fsm.Node) bool {
			if node.Facts.Protocol == 0 {
				n.view.WorkloadsOn(node.ID, func(w *fsm.Workload) bool { add(w); return true })
			}
			return true
		})
		return
	}
	for j := range n.changes {
		if w := n.changes[j].NewWorkload(); w != nil {
			add(w)
		}
	}
}

// pollLoop asks agents that do not push what became of what they accepted.
func (i *inspections) pollLoop(ctx context.Context) {
	if i.s.cfg.Inspector == nil {
		return
	}
	t := time.NewTicker(i.s.cfg.PollEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			i.poll()
		}
	}
}

func (i *inspections) poll() {
	view := i.s.store.View()
	if view.Info().Mode.Frozen() {
		return
	}
	i.mu.Lock()
	var due []*fsm.Workload
	for id, busy := range i.polls {
		switch w, ok := view.Workload(id); {
		case busy:
		case !ok || !awaited(view, w):
			delete(i.polls, id)
		default:
			i.polls[id] = true
			due = append(due, w)
		}
	}
	i.mu.Unlock()
	slices.SortFunc(due, func(a, b *fsm.Workload) int {
		return cmp.Or(cmp.Compare(a.AcknowledgedAt, b.AcknowledgedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, w := range due {
		done := func() {
			i.mu.Lock()
			defer i.mu.Unlock()
			if _, ok := i.polls[w.ID]; ok {
				i.polls[w.ID] = false
			}
		}
		ok := i.start(func(ctx context.Context) {
			defer done()
			i.ask(ctx, w)
		})
		if !ok {
			done()
		}
	}
}

// ask polls one workload; what it says is judged as a heartbeat is.
func (i *inspections) ask(ctx context.Context, w *fsm.Workload) {
	got, there, err := i.s.cfg.Inspector.Look(ctx, w.Node, w.ID)
	if err != nil {
		i.s.cfg.Logger.Debug("the agent was not asked", "workload", w.ID, "node", w.Node, "err", err)
		return
	}
	view := i.s.store.View()
	now, ok := view.Workload(w.ID)
	node, known := view.Node(w.Node)
	if !ok || !known || now.Generation != w.Generation {
		return // a later order; the answer is about the former one
	}
	if !there {
		rep := lost(node, now)
		rep.ObservedAt = i.s.planned()
		i.s.reports.add(i.s.cfg.FlushItems, rep)
		return
	}
	if rep := Judge(view, node, &got); rep != nil {
		i.s.reports.add(i.s.cfg.FlushItems, rep)
	}
}
