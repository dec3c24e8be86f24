package control

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// reports collects the workload reports that the state does not hold yet. The latest
// report per node and workload wins.
type reports struct {
	pending  map[reportKey]*commandv1.WorkloadReport
	order    []reportKey // oldest first
	flushing bool        // a flush is under way: what arrives joins it
	timer    *timer      // of the next flush
	last     int64       // when the last flush began, monotonic
}

type reportKey struct{ node, workload string }

func (r *reports) init(last int64) {
	r.pending, r.last = map[reportKey]*commandv1.WorkloadReport{}, last
}

// report adds reports to the next flush; nil ones are left out. The first of a window is
// committed at once, later ones FlushEvery after the last flush, or as soon as FlushItems
// wait.
func (t *Term) report(items ...*commandv1.WorkloadReport) {
	r := &t.reports
	for _, it := range items {
		if it != nil {
			r.add(it)
		}
	}
	if len(r.order) == 0 || r.flushing {
		return
	}
	wait := t.until(r.last + int64(t.cfg.FlushEvery))
	if len(r.order) >= t.cfg.FlushItems {
		wait = 0
	}
	if due := t.now.Mono + int64(wait); r.timer == nil || r.timer.pos < 0 || due < r.timer.at {
		t.stop(r.timer)
		r.timer = t.after(wait, t.flush)
	}
}

func (r *reports) add(it *commandv1.WorkloadReport) {
	k := reportKey{it.GetNode(), it.GetWorkload()}
	old, ok := r.pending[k]
	if !ok {
		r.order = append(r.order, k)
	} else if keepOld(old, it) {
		return
	}
	r.pending[k] = it
}

// keepOld reports whether the waiting report says more than the new one: it is about a
// later generation, or says "gone" of the same one, or says how the workload runs where
// the new one is only the answer to its order, which it has overtaken.
func keepOld(old, it *commandv1.WorkloadReport) bool {
	og, ng := fsm.GenerationOf(old.GetGeneration()), fsm.GenerationOf(it.GetGeneration())
	if og != ng {
		return ng.Less(og) && !ng.IsZero()
	}
	return old.GetGone() && !it.GetGone() || accepts(it) && !old.GetAcknowledged()
}

// accepts tells the answer to an order from a report that a node sends by itself.
func accepts(r *commandv1.WorkloadReport) bool { return r.GetAcknowledged() && !r.GetRefused() }

// reportBytes bounds the reports of one command, so that it stays below a log batch.
const reportBytes = 192 << 10

// take removes up to limit reports, oldest first, that fit into one command.
func (r *reports) take(limit int) []*commandv1.WorkloadReport {
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

func (t *Term) flush() {
	t.reports.flushing, t.reports.last = true, t.now.Mono
	t.flushNext()
}

// flushNext commits one batch, and the next ones until none is left. If the outcome of a
// batch is unknown it is dropped, and its nodes are asked for their complete lists.
func (t *Term) flushNext() {
	for {
		batch := t.reports.take(t.cfg.FlushItems)
		if len(batch) == 0 {
			t.reports.flushing = false
			return
		}
		batch = slices.DeleteFunc(batch, func(r *commandv1.WorkloadReport) bool {
			// A report that the node sent by itself may have been committed since the
			// order was answered, and is the later one.
			w, ok := t.view.Workload(r.GetWorkload())
			return accepts(r) && ok && w.Acknowledged && w.Generation == fsm.GenerationOf(r.GetGeneration())
		})
		if len(batch) == 0 {
			continue
		}
		t.emit(Propose{
			ID: t.await(func(in Input) {
				if in.(Proposed).Err != nil {
					for _, r := range batch {
						t.live.askForAll(r.GetNode())
					}
				}
				t.flushNext()
			}),
			Commands: []fsm.Command{{
				Head: t.head(),
				Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: batch}},
			}},
			Reports: len(batch),
		})
		return
	}
}

// heartbeatDiff compares a heartbeat with the state and keeps the differences.
func (t *Term) heartbeatDiff(node *fsm.Node, hb *sched.Heartbeat) {
	seen := make(map[string]bool, len(hb.Reports))
	for i := range hb.Reports {
		r := &hb.Reports[i]
		// An agent that reports a former generation lacks the accepted order: it has
		// lost its file, and the workload is left over.
		w, ok := t.view.Workload(r.Workload)
		seen[r.Workload] = !ok || r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(w.Generation)
		t.report(reportDiff(t.view, node, r))
	}
	if !hb.Full {
		return
	}
	// Of workloads that a complete list does not name, only acknowledged ones count, and
	// none whose order was answered a moment ago: the list may be older than the answer.
	// A list that is older still costs a report, not a move: the planner waits for
	// MissingGrace.
	t.view.WorkloadsOn(node.ID, func(w *fsm.Workload) bool {
		if seen[w.ID] || !w.Acknowledged || t.orders.busy(node.ID, w.ID) {
			return true
		}
		if rep := missingReport(node, w, hb.Reports); rep != nil {
			rep.ObservedAt = t.planned()
			t.report(rep)
		}
		return true
	})
}

// reportDiff returns the report to commit for one reported workload, nil if it says
// nothing new or does not concern the state.
func reportDiff(view fsm.View, node *fsm.Node, r *sched.Reported) *commandv1.WorkloadReport {
	w, known := view.Workload(r.Workload)
	if r.Gone {
		res, left := view.Residual(node.ID, r.Workload)
		if left && (r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(res.Generation)) {
			return protoReport(node.ID, r)
		}
		if known && w.Node == node.ID && w.Acknowledged && r.Observation.Generation == w.Generation {
			return protoReport(node.ID, r)
		}
		return nil
	}
	if !known {
		// A deleted workload that still runs is to be deleted there, unless that is
		// ordered already.
		_, ordered := view.Residual(node.ID, r.Workload)
		if g, ok := view.Tombstone(r.Workload); ok && !ordered && g.StillRunsOn(node, r.Observation.Generation, r.Observation.State) {
			return protoReport(node.ID, r)
		}
		return nil
	}
	if w.NewerThanState(r.Observation.Generation, view.Info()) {
		return protoReport(node.ID, r) // the state went back: a backup, or a lost quorum
	}
	if w.Node != node.ID {
		// A workload left over from an earlier placement is to be deleted there, unless
		// that is ordered already.
		_, left := view.Residual(node.ID, r.Workload)
		if !left && w.LeftOn(node, r.Observation.Generation, r.Observation.State) {
			return protoReport(node.ID, r)
		}
		return nil
	}
	g := r.Observation.Generation
	switch {
	case g == w.Generation:
	case g.IsZero() && w.Acknowledged:
	default:
		return nil // about an earlier order
	}
	if w.Acknowledged && sameObservation(w.Actual, &r.Observation, w.Generation) {
		return nil
	}
	return protoReport(node.ID, r)
}

// sameObservation compares two observations except for their times. present is the
// workload's generation.
func sameObservation(have, got *fsm.Observation, present fsm.Generation) bool {
	sameGeneration := have.Generation == got.Generation || (got.Generation.IsZero() && have.Generation == present)
	return sameGeneration && have.State == got.State && have.Code == got.Code && have.Message == got.Message &&
		have.Failure == got.Failure && have.Retryable == got.Retryable && have.RestartCount == got.RestartCount && have.Health == got.Health &&
		slices.Equal(have.Addresses, got.Addresses) && slices.Equal(have.Ports, got.Ports)
}

// missingReport is the report of a workload that its node accepted and does not name in
// a complete list at this generation, nil if the state knows that. It is missing, unless
// it is to be stopped and runs at a former generation: then it runs, and its agent has
// lost the order.
func missingReport(node *fsm.Node, w *fsm.Workload, listed []sched.Reported) *commandv1.WorkloadReport {
	rep := missing(node, w)
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

// missing is the report that a node does not have a workload that it accepted.
func missing(node *fsm.Node, w *fsm.Workload) *commandv1.WorkloadReport {
	return &commandv1.WorkloadReport{
		Workload:   w.ID,
		Node:       node.ID,
		Generation: fsm.GenerationPB(w.Generation),
		State:      string(fsm.ActualMissing),
		Code:       fsm.CodeMissing,
		Message:    "node " + node.ID + " no longer reports it",
		Retryable:  true,
	}
}

// answerReport is the report that follows from the answer to an order, nil if the answer
// decides nothing. at is Unix nanoseconds.
func answerReport(o sched.Order, ack sched.Ack, at int64) *commandv1.WorkloadReport {
	r := &commandv1.WorkloadReport{
		Workload: o.Workload, Node: o.Node, Generation: fsm.GenerationPB(o.Generation), Code: ack.Code, Message: ack.Message, ObservedAt: at,
	}
	switch {
	case o.Op == sched.OpDelete:
		if !ack.Gone {
			return nil
		}
		r.Gone = true
	case ack.Refused:
		r.Refused, r.State = true, string(fsm.ActualFailed)
	case ack.Accepted:
		r.Acknowledged, r.State = true, string(ack.State)
		if ack.State == fsm.ActualNone {
			r.State = string(fsm.ActualPending)
		}
	default:
		return nil
	}
	return r
}

func protoReport(node string, r *sched.Reported) *commandv1.WorkloadReport {
	o := &r.Observation
	out := &commandv1.WorkloadReport{
		Workload:      r.Workload,
		Node:          node,
		Generation:    fsm.GenerationPB(o.Generation),
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
