package control

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order"
	"github.com/persys/compute/sched"
)

// reports collects workload reports that are not committed yet. A new report of a node about a workload
// replaces the earlier one.
type reports struct {
	pending  map[reportKey]*commandv1.WorkloadReport
	order    []reportKey // keys of the waiting reports, oldest first
	flushing bool        // a flush (commit of waiting reports) is under way, which also commits new reports
	timer    *timer      // starts the next flush
	last     int64       // when the last flush began, on the monotonic clock
}

type reportKey struct{ node, workload string }

func (r *reports) init(last int64) {
	r.pending, r.last = map[reportKey]*commandv1.WorkloadReport{}, last
}

// report adds reports to the next flush; nil reports are skipped. If the last flush is longer ago than
// FlushEvery, the reports are committed at once. Otherwise they wait until FlushEvery is over, or until
// FlushItems reports wait.
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

// keepOld reports whether the waiting report (old) is kept and the new report (it) is dropped. This happens in
// three cases: old is about a later generation; old reports "gone" for the same generation; or the node sent
// old by itself, and the new report is only the late answer to an order.
func keepOld(old, it *commandv1.WorkloadReport) bool {
	og, ng := order.GenerationOf(old.GetGeneration()), order.GenerationOf(it.GetGeneration())
	if og != ng {
		return ng.Less(og) && !ng.IsZero()
	}
	return old.GetGone() && !it.GetGone() || accepts(it) && !old.GetAcknowledged()
}

// accepts reports whether report r comes from the answer to an order. Other reports come from heartbeats or
// from lists of workloads.
func accepts(r *commandv1.WorkloadReport) bool { return r.GetAcknowledged() && !r.GetRefused() }

// reportBytes is the maximum size in bytes of the reports of one command, which keeps the command below the
// limit of a log batch.
const reportBytes = 192 << 10

// take removes the oldest waiting reports, up to limit and only as many as fit into one command, and returns
// them.
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

// flushNext commits the waiting reports batch by batch. If it is unknown whether a batch is in the log, the
// batch is dropped, and its nodes are asked for their complete lists of workloads.
func (t *Term) flushNext() {
	for {
		batch := t.reports.take(t.cfg.FlushItems)
		if len(batch) == 0 {
			t.reports.flushing = false
			return
		}
		batch = slices.DeleteFunc(batch, func(r *commandv1.WorkloadReport) bool {
			// The state already knows that the node accepted this order, from a later report of the
			// node. So skip the older answer to the order.
			w, ok := t.view.Workload(r.GetWorkload())
			return accepts(r) && ok && w.Acknowledged && w.Generation == order.GenerationOf(r.GetGeneration())
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

// heartbeatDiff compares a heartbeat with the state and queues a report for each difference.
func (t *Term) heartbeatDiff(node *fsm.Node, hb *sched.Heartbeat) {
	seen := make(map[string]bool, len(hb.Reports))
	for i := range hb.Reports {
		r := &hb.Reports[i]
		// The agent accepted the present order, but reports an earlier generation: it has lost its
		// state file, and an earlier order started the instance.
		w, ok := t.view.Workload(r.Workload)
		seen[r.Workload] = !ok || r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(w.Generation)
		if !t.unsure(node, w, r) {
			t.report(reportDiff(t.view, node, r))
		}
	}
	if !hb.Full {
		return
	}
	// A workload counts as missing only if the node has acknowledged its order and the complete list does not
	// name it. If the node answered an order about the workload a moment ago, the workload is skipped, because
	// the list may be older than the answer. A workload that is reported as missing by mistake is not moved,
	// because the planner first waits for MissingGrace.
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

// volumesDiff compares the volumes in a heartbeat with their records, and proposes the report if it would change them. A report
// that is lost is repeated with the next full heartbeat.
func (t *Term) volumesDiff(hb *sched.Heartbeat) {
	if hb.Volumes == nil || !fsm.ChangesVolumes(t.view, hb.Volumes) {
		return
	}
	t.propose(func(error) {}, &commandv1.Command{Head: t.head(), Body: &commandv1.Command_ReportVolumes{ReportVolumes: hb.Volumes}})
}

// unsure reports whether a status in a heartbeat may be about the instance of the previous order. A legacy v1
// agent accepts an order, answers Pending, and then stops the previous instance. Meanwhile its heartbeats
// report the workload as Running, without a revision. Only polls read the revision and the task, so heartbeats
// are ignored for the first half of the time that an apply may take. After that the leader uses heartbeats
// again, before the planner would treat the order as failed. In a frozen mode the leader does not poll, so it
// uses heartbeats at once.
func (t *Term) unsure(n *fsm.Node, w *fsm.Workload, r *sched.Reported) bool {
	if !t.cfg.Inspect || t.view.Info().Mode.Frozen() || w == nil || w.Node != n.ID || !awaited(t.view, w) || r.Observation.State != fsm.ActualRunning {
		return false
	}
	limit := t.cfg.Tuning.ApplyLimit(w)
	return limit <= 0 || t.planned() < w.AcknowledgedAt+limit/2
}

// reportDiff returns the report to commit about one workload that a node has reported; nil if there
// is nothing new to commit.
func reportDiff(view fsm.View, node *fsm.Node, r *sched.Reported) *commandv1.WorkloadReport {
	w, known := view.Workload(r.Workload)
	if r.Gone {
		res, left := view.Residual(node.ID, r.Workload)
		if left && (r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(res.Generation)) {
			return report(node.ID, r)
		}
		if known && (w.Node == node.ID && w.Acknowledged && r.Observation.Generation == w.Generation ||
			r.Observation.Exit != nil && w.AwaitsExit(node.ID, r.Observation.Generation)) {
			return report(node.ID, r)
		}
		return nil
	}
	if !known {
		// A deleted workload that still runs must be removed from the node, unless the state already has a record
		// of it (a residual), for which the leader orders the removal.
		_, ordered := view.Residual(node.ID, r.Workload)
		if g, ok := view.Tombstone(r.Workload); ok && !ordered && g.StillRunsOn(node, r.Observation.Generation, r.Observation.State) {
			return report(node.ID, r)
		}
		return nil
	}
	if w.NewerThanState(r.Observation.Generation, view.Info()) {
		return report(node.ID, r) // the state was restored, or recovered from a lost quorum, and is older than the order that the node has
	}
	if w.Node != node.ID {
		// An instance from an earlier placement must be removed from the node, unless the state already has a
		// record of it (a residual), for which the leader orders the removal.
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
		return nil // the report is about an earlier order
	}
	if w.Acknowledged && sameObservation(w.Actual, &r.Observation, w.Generation) {
		return nil
	}
	return report(node.ID, r)
}

// sameObservation reports whether observation got has nothing new compared with observation have. A
// legacy v1 agent sends no generation, so its report is taken to be about present, the generation
// of the workload.
func sameObservation(have, got *fsm.Observation, present fsm.Generation) bool {
	told := *got
	if told.Generation.IsZero() && have.Generation == present {
		told.Generation = present
	}
	return have.Same(&told)
}

// missingReport returns the report for a workload whose order the node accepted, but which the node does not
// list at this generation; nil if the state has that report already. It reports the workload as Missing, with
// one exception: if the workload should be stopped and runs at an earlier generation, it is reported as
// Running, because the agent has lost the order to stop it.
func missingReport(node *fsm.Node, w *fsm.Workload, listed []sched.Reported) *commandv1.WorkloadReport {
	rep := missing(node, w)
	if w.Desired == fsm.DesiredStopped && slices.ContainsFunc(listed, func(r sched.Reported) bool {
		return r.Workload == w.ID && !r.Gone && r.Observation.State == fsm.ActualRunning
	}) {
		rep.State, rep.Message = string(fsm.ActualRunning), "node "+node.ID+" runs it, but no longer knows that it has to stop it"
	}
	if w.Actual.State == fsm.Actual(rep.State) && w.Actual.Generation == w.Generation &&
		(w.Actual.State == fsm.ActualMissing || w.Actual.Code == rep.Code) {
		return nil
	}
	return rep
}

// missing returns a report by which the leader records that a node no longer has a workload whose
// order it accepted.
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

// answerReport returns the report that follows from an agent's answer to an order; nil if the answer changes
// nothing. at is the time in Unix nanoseconds.
func answerReport(view fsm.View, o sched.Order, ack sched.Ack, at int64) *commandv1.WorkloadReport {
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
		switch w, ok := view.Workload(o.Workload); {
		case ack.State == fsm.ActualNone:
			r.State = string(fsm.ActualPending)
		case ack.Skipped && (ack.State == fsm.ActualStopped || ack.State == fsm.ActualFailed) && ok && w.Desired == fsm.DesiredRunning:
			// The agent has carried out this order before, for example for the previous leader, and the
			// instance has ended. This answer does not say whether it succeeded, so take the result from the
			// heartbeat.
			r.State = ""
		}
	default:
		return nil
	}
	return r
}

// report encodes the report r of a node as a message for the log.
func report(node string, r *sched.Reported) *commandv1.WorkloadReport {
	out := r.Observation.Report(r.Workload, node)
	out.Gone = r.Gone
	return out
}
