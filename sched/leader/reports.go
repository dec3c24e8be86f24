package leader

import (
	"context"
	"slices"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// reports collects what nodes said and the state does not hold yet: the latest
// word per node and workload wins.
type reports struct {
	mu      sync.Mutex
	pending map[reportKey]*commandv1.WorkloadReport
	order   []reportKey
	some    chan struct{} // capacity 1: at least one waits
	full    chan struct{} // capacity 1: FlushItems wait
}

type reportKey struct{ node, workload string }

func newReports() *reports {
	return &reports{
		pending: map[reportKey]*commandv1.WorkloadReport{},
		some:    make(chan struct{}, 1),
		full:    make(chan struct{}, 1),
	}
}

func (r *reports) add(limit int, items ...*commandv1.WorkloadReport) {
	if len(items) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		k := reportKey{it.GetNode(), it.GetWorkload()}
		old, ok := r.pending[k]
		if !ok {
			r.order = append(r.order, k)
		} else if keepOld(old, it) {
			continue
		}
		r.pending[k] = it
	}
	nudge(r.some)
	if len(r.order) >= limit {
		nudge(r.full)
	}
}

// nudge leaves one token in a channel of capacity one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keepOld reports whether what waits says more than the newcomer: a word about a
// later generation, a final "gone" of the same one, or how it runs where the
// newcomer is only the answer to the order that was overtaken by it.
func keepOld(old, it *commandv1.WorkloadReport) bool {
	og, ng := generation(old.GetGeneration()), generation(it.GetGeneration())
	if og != ng {
		return ng.Less(og) && !ng.IsZero()
	}
	return old.GetGone() && !it.GetGone() || accepts(it) && !old.GetAcknowledged()
}

// accepts tells the answer to an order from what a node says by itself.
func accepts(r *commandv1.WorkloadReport) bool { return r.GetAcknowledged() && !r.GetRefused() }

func generation(g *commandv1.Generation) fsm.Generation {
	return fsm.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()}
}

func protoGeneration(g fsm.Generation) *commandv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

// reportBytes bounds the reports of one command, so that it stays below a log batch.
const reportBytes = 192 << 10

// take removes up to limit reports, oldest first, that fit into one command.
func (r *reports) take(limit int) []*commandv1.WorkloadReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*commandv1.WorkloadReport
	size := 0
	for _, k := range r.order[:min(limit, len(r.order))] {
		it := r.pending[k]
		if size += it.SizeVT(); len(out) > 0 && size > reportBytes {
			break
		}
		out = append(out, it)
		delete(r.pending, k)
	}
	r.order = slices.Delete(r.order, 0, len(out))
	return out
}

// digest compares a heartbeat with the state and keeps what differs.
func (s *stint) digest(view fsm.View, node *fsm.Node, hb *sched.Heartbeat) {
	var out []*commandv1.WorkloadReport
	seen := make(map[string]bool, len(hb.Reports))
	for i := range hb.Reports {
		r := &hb.Reports[i]
		// What is named at a former generation lacks the accepted order all the same:
		// its agent has lost its file, and this is left over.
		w, ok := view.Workload(r.Workload)
		seen[r.Workload] = !ok || r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(w.Generation)
		if rep := Judge(view, node, r); rep != nil {
			out = append(out, rep)
		}
	}
	if hb.Full {
		out = append(out, s.missing(view, node, seen, hb.Reports)...)
	}
	s.reports.add(s.cfg.FlushItems, out...)
}

// Judge returns the report to commit for one reported workload, nil if it tells
// nothing new or nothing that concerns the state. The simulator judges by it, too.
func Judge(view fsm.View, node *fsm.Node, r *sched.Reported) *commandv1.WorkloadReport {
	w, known := view.Workload(r.Workload)
	if r.Gone {
		res, left := view.Residual(node.ID, r.Workload)
		if left && (r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(res.Generation)) {
			return report(node.ID, r)
		}
		if known && w.Node == node.ID && w.Acknowledged && r.Observation.Generation == w.Generation {
			return report(node.ID, r)
		}
		return nil
	}
	if !known {
		// What was deleted and is still there is to go, unless that is asked for already.
		_, asked := view.Residual(node.ID, r.Workload)
		if g, ok := view.Tombstone(r.Workload); ok && !asked && g.StillRunsOn(node, r.Observation.Generation, r.Observation.State) {
			return report(node.ID, r)
		}
		return nil
	}
	if w.NewerThanState(r.Observation.Generation, view.Info()) {
		return report(node.ID, r) // the state went back: a backup, or a lost quorum
	}
	if w.Node != node.ID {
		// What it has left over is to be stopped, unless that is asked for already.
		_, left := view.Residual(node.ID, r.Workload)
		if !left && w.LeftOn(node, r.Observation.Generation, r.Observation.State) {
			return report(node.ID, r)
		}
		return nil
	}
	g := r.Observation.Generation
	switch {
	case g == w.Generation:
	case g.IsZero() && w.Acknowledged:
	default:
		return nil // it speaks of an older order
	}
	if w.Acknowledged && sameObservation(w.Actual, &r.Observation, w.Generation) {
		return nil
	}
	return report(node.ID, r)
}

// sameObservation ignores when it was observed.
func sameObservation(have, got *fsm.Observation, present fsm.Generation) bool {
	spoke := have.Generation == got.Generation || (got.Generation.IsZero() && have.Generation == present)
	return spoke && have.State == got.State && have.Code == got.Code && have.Message == got.Message &&
		have.Failure == got.Failure && have.Retryable == got.Retryable && have.RestartCount == got.RestartCount && have.Health == got.Health &&
		slices.Equal(have.Addresses, got.Addresses) && slices.Equal(have.Ports, got.Ports)
}

// missing reports what a complete list does not name although the state expects
// it. Only acknowledged generations count, and none whose order was answered a
// moment ago: the list may be older than the answer. One that is older still
// costs a word, not a move: the planner waits for MissingGrace.
func (s *stint) missing(view fsm.View, node *fsm.Node, seen map[string]bool, listed []sched.Reported) []*commandv1.WorkloadReport {
	var out []*commandv1.WorkloadReport
	view.WorkloadsOn(node.ID, func(w *fsm.Workload) bool {
		if seen[w.ID] || !w.Acknowledged || s.orders.busy(node.ID, w.ID) {
			return true
		}
		if rep := Lost(node, w, listed); rep != nil {
			rep.ObservedAt = s.planned()
			out = append(out, rep)
		}
		return true
	})
	return out
}

// Lost is the report of a workload that its node accepted and does not name in a
// complete list at this generation, nil if that is known. It is missing, unless it
// is to be stopped and runs at a former one: then it runs, and its agent has lost
// the order. The simulator uses it, too.
func Lost(node *fsm.Node, w *fsm.Workload, listed []sched.Reported) *commandv1.WorkloadReport {
	rep := lost(node, w)
	if w.Desired == fsm.DesiredStopped && slices.ContainsFunc(listed, func(r sched.Reported) bool {
		return r.Workload == w.ID && !r.Gone && r.Observation.State == fsm.ActualRunning
	}) {
		rep.State, rep.Message = string(fsm.ActualRunning), "node "+node.ID+" runs it and no longer knows that it is to be stopped"
	}
	if w.Actual.State == fsm.Actual(rep.State) && w.Actual.Generation == w.Generation &&
		(w.Actual.State == fsm.ActualMissing || w.Actual.Code == rep.Code) {
		return nil
	}
	return rep
}

// lost is the report that a node does not have a workload that it accepted.
func lost(node *fsm.Node, w *fsm.Workload) *commandv1.WorkloadReport {
	return &commandv1.WorkloadReport{
		Workload:   w.ID,
		Node:       node.ID,
		Generation: protoGeneration(w.Generation),
		State:      string(fsm.ActualMissing),
		Code:       fsm.CodeMissing,
		Message:    "node " + node.ID + " no longer reports it",
		Retryable:  true,
	}
}

func report(node string, r *sched.Reported) *commandv1.WorkloadReport {
	o := &r.Observation
	out := &commandv1.WorkloadReport{
		Workload:      r.Workload,
		Node:          node,
		Generation:    protoGeneration(o.Generation),
		State:         string(o.State),
		Gone:          r.Gone,
		FailureReason: o.Failure,
		Code:          o.Code,
		Message:       o.Message,
		Retryable:     o.Retryable,
		RestartCount:  o.RestartCount,
		Addresses:     o.Addresses,
		ObservedAt:    o.At,
		Health:        o.Health,
	}
	for _, p := range o.Ports {
		out.Ports = append(out.Ports, &commandv1.PortBinding{
			HostPort: uint32(p.HostPort), ContainerPort: uint32(p.ContainerPort), Protocol: p.Protocol,
		})
	}
	return out
}

// flushLoop commits waiting reports: the first at once, more of them FlushEvery
// after the last flush, or as soon as FlushItems wait.
func (s *stint) flushLoop(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reports.some:
		}
		t.Reset(max(0, s.cfg.FlushEvery-time.Since(last)))
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.reports.full:
		}
		last = time.Now()
		for {
			batch := s.reports.take(s.cfg.FlushItems)
			if len(batch) == 0 {
				break
			}
			s.commit(ctx, batch)
		}
	}
}

// commit proposes one batch. If its fate is unknown it is dropped, and the nodes
// it came from are asked for their complete lists.
func (s *stint) commit(ctx context.Context, batch []*commandv1.WorkloadReport) {
	view := s.store.View()
	batch = slices.DeleteFunc(batch, func(r *commandv1.WorkloadReport) bool {
		// What the node said by itself may have been committed since the order
		// was answered, and is the later word.
		w, ok := view.Workload(r.GetWorkload())
		return accepts(r) && ok && w.Acknowledged && w.Generation == generation(r.GetGeneration())
	})
	if len(batch) == 0 {
		return
	}
	s.cfg.Metrics.Flush(len(batch))
	cmd := &commandv1.Command{
		Head: s.head(),
		Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: batch}},
	}
	if !s.propose(ctx, []fsm.Command{cmd}) {
		for _, r := range batch {
			s.table.forgetReports(r.GetNode())
		}
	}
}
