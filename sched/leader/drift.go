package leader

import (
	"context"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// rounds is drift detection: every node is asked once in DriftInterval for what it
// has, each at its own moment of the interval, and what differs from the state is
// noted. A new difference counts once a second look has seen it as well.
type rounds struct {
	s *stint

	mu     sync.Mutex
	asking map[string]bool
	again  map[string]suspicion // second looks that are to come
}

// suspicion is what a first look found, and when to look again.
type suspicion struct {
	at    time.Time
	found []sched.Difference
}

const (
	// driftSlots is in how many parts an interval is cut. Nodes are spread over the
	// first driftSpread of them, so that second looks, too, end inside the interval.
	driftSlots  = 64
	driftSpread = 58
	// lookAgain is after how long a second look is taken: longer than a report
	// takes from an agent into the state.
	lookAgain = 2 * time.Second
)

func newRounds(s *stint) *rounds {
	return &rounds{s: s, asking: map[string]bool{}, again: map[string]suspicion{}}
}

// run goes round until ctx ends.
func (r *rounds) run(ctx context.Context) {
	if r.s.cfg.Inspector == nil || r.s.cfg.DriftInterval <= 0 {
		return
	}
	every := max(r.s.cfg.DriftInterval/driftSlots, 10*time.Millisecond)
	t := time.NewTicker(every)
	defer t.Stop()
	for slot := uint32(0); ; slot++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.turn(slot % driftSlots)
		}
	}
}

// turn asks the nodes of one part of the interval, and those that are to be
// looked at again.
func (r *rounds) turn(slot uint32) {
	view := r.s.store.View()
	if view.Info().Mode.Frozen() || !knowsFailures(view) {
		return
	}
	now := time.Now()
	var due []string
	shared := map[string][]string{} // nodes by endpoint
	view.Nodes("", func(n *fsm.Node) bool {
		if n.Up {
			shared[n.Facts.Endpoint] = append(shared[n.Facts.Endpoint], n.ID)
		}
		return true
	})
	view.Nodes("", func(n *fsm.Node) bool {
		r.mu.Lock()
		s, suspected := r.again[n.ID]
		r.mu.Unlock()
		switch {
		case !n.Up:
		case suspected && !now.Before(s.at), !suspected && slotOf(n.ID) == slot && r.speaks(shared, n):
			due = append(due, n.ID)
		}
		return true
	})
	for _, id := range due {
		r.ask(id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, s := range r.again {
		if now.Sub(s.at) > time.Minute { // of a node that went away meanwhile
			delete(r.again, id)
		}
	}
}

func slotOf(node string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // a hash never fails
	return h.Sum32() % driftSpread
}

// speaks reports whether n is the one to ask at its endpoint: of several nodes
// that name the same one, the last that was heard.
func (r *rounds) speaks(shared map[string][]string, n *fsm.Node) bool {
	mine, _, _ := r.s.table.get(n.ID)
	for _, other := range shared[n.Facts.Endpoint] {
		if o, _, ok := r.s.table.get(other); ok && other != n.ID && (o.heard > mine.heard || o.heard == mine.heard && other < n.ID) {
			return false
		}
	}
	return true
}

// ask looks at one node, unless that is under way.
func (r *rounds) ask(node string) {
	r.mu.Lock()
	busy := r.asking[node]
	first, second := r.again[node]
	if !busy {
		r.asking[node] = true
		delete(r.again, node)
	}
	r.mu.Unlock()
	if busy {
		return
	}
	done := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.asking, node)
	}
	ok := r.s.inspect.start(func(ctx context.Context) {
		defer done()
		r.look(ctx, node, first.found, second)
	})
	if !ok {
		done()
	}
}

// look compares one node with the state.
func (r *rounds) look(ctx context.Context, node string, first []sched.Difference, second bool) {
	s := r.s
	began := time.Now()
	listed, err := s.cfg.Inspector.List(ctx, node)
	if err != nil {
		s.cfg.Logger.Debug("what the node has was not read", "node", node, "err", err)
		return
	}
	view := s.store.View()
	n, ok := view.Node(node)
	if !ok || !n.Up || view.Info().Mode.Frozen() {
		return
	}
	if !second { // a round has one first look, whatever that finds
		defer s.audit(ctx, node)
	}
	found := sched.Compare(view, n, listed, func(workload string) bool { return s.orders.busy(node, workload) })
	switch {
	case second:
		found = sched.Confirmed(view, node, first, found)
	case sched.Unknown(view, node, found):
		r.mu.Lock()
		r.again[node] = suspicion{began.Add(lookAgain), found}
		r.mu.Unlock()
		return
	}
	r.settle(ctx, view, n, listed, found)
}

// settle notes what was found, and reports what follows from it.
func (r *rounds) settle(ctx context.Context, view fsm.View, n *fsm.Node, listed []sched.Reported, found []sched.Difference) {
	s := r.s
	if c := sched.Drifts(view, n.ID, found, s.planned()); c != nil {
		ok := s.propose(ctx, []fsm.Command{{Head: s.head(), Body: &commandv1.Command_SetDrifts{SetDrifts: c}}})
		if !ok {
			return // the next round finds it again
		}
	}
	for _, rep := range Remedies(view, n, listed, found) {
		if rep.GetState() == string(fsm.ActualMissing) {
			rep.ObservedAt = s.planned()
		}
		s.reports.add(s.cfg.FlushItems, rep)
	}
}

// Remedies are the reports that end differences: what is missing is reported as
// missing, after which the planner gives its node SCHEDULER_MISSING_GRACE_PERIOD,
// and what is in another state is reported in that one. The simulator uses it, too.
func Remedies(view fsm.View, n *fsm.Node, listed []sched.Reported, found []sched.Difference) (out []*commandv1.WorkloadReport) {
	for i := range found {
		d := &found[i]
		w, ok := view.Workload(d.Workload)
		if !ok || w.Node != n.ID || !w.Acknowledged {
			continue
		}
		switch d.Type {
		case fsm.DriftMissing:
			if w.Actual.State != fsm.ActualMissing {
				out = append(out, lost(n, w))
			}
		case fsm.DriftState:
			at := slices.IndexFunc(listed, func(r sched.Reported) bool { return r.Workload == d.Workload })
			if at < 0 {
				continue
			}
			if rep := Judge(view, n, &listed[at]); rep != nil {
				out = append(out, rep)
			}
		}
	}
	return out
}
