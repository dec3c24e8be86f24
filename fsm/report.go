package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/order"
)

// report applies reports of nodes about their workloads. It skips items about unknown workloads, and items
// about former generations. A repeated report changes nothing.
func (t *Tx) report(b *commandv1.Report) (res Result) {
	for _, r := range b.GetReports() {
		if !t.reportOne(r) {
			res.Skipped++
		}
	}
	return res
}

// reportOne applies the report about one workload. It returns false if the report is skipped.
func (t *Tx) reportOne(r *commandv1.WorkloadReport) bool {
	said := order.GenerationOf(r.GetGeneration())
	known := false
	if r.GetGone() {
		res, ok := t.r.residuals.Get(pair(r.GetNode(), r.GetWorkload()))
		if ok && (said.IsZero() || !said.Less(res.Generation)) {
			known = true
			t.dropResidual(res)
			t.settle(res.Workload)
		}
	}
	old, ok := t.r.workloads.Get(r.GetWorkload())
	if !ok {
		return t.deletedReturned(r) || known // an instance without a record is an orphan: drift detection finds it, and a person decides about it
	}
	if old.AwaitsExit(r.GetNode(), said) && r.GetExit() != nil {
		t.exited(old, exitOf(r.GetExit()))
		return true
	}
	if old.NewerThanState(said, t.r.info) {
		return t.catchUp(old, r) || known
	}
	if old.Node == "" || old.Node != r.GetNode() {
		return t.leftBehind(old, r) || known
	}
	// A legacy v1 agent sends no generation, so its report may be about the former order. So the
	// report is used only if the agent has accepted the present order.
	accepts := r.GetAcknowledged() || r.GetRefused()
	if said != old.Generation && !(said.IsZero() && (old.Acknowledged || accepts)) {
		return known
	}
	state := Actual(r.GetState())
	switch {
	case r.GetRefused() && old.Desired == DesiredStopped:
		state = old.afterRefusal()
	case r.GetRefused():
		state = ActualFailed
	case r.GetGone():
		state = ActualMissing
	case state == ActualNone && accepts:
	case state == ActualPending, state == ActualRunning, state == ActualStopped,
		state == ActualFailed, state == ActualUnknown, state == ActualMissing:
	default:
		return known
	}
	t.observe(old, r, state)
	return true
}

// CodeLeftBehind is the reason code of a residual (an instance that a node has to remove) that the leader
// learned of from a report: a node that was fenced or removed has returned and still runs the workload.
const CodeLeftBehind = "LeftBehind"

// LeftOn reports whether a report of node n shows that n still runs a former generation of w, although w is
// not assigned to n. said is the reported generation, state the reported state. If said is unset, the report
// comes from a legacy v1 agent and proves nothing: that agent may report before it has received its present
// order.
func (w *Workload) LeftOn(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && w.Node != n.ID && !said.IsZero() && said.Less(w.Generation) && present(state)
}

// present reports whether the node still has an instance of a workload that it reports in state s.
func present(state Actual) bool {
	switch state {
	case ActualPending, ActualRunning, ActualStopped, ActualFailed, ActualUnknown:
		return true
	}
	return false
}

// leftBehind adds a residual (a record of an instance that a node must remove) for an instance of w
// on a node to which w is not assigned, so that the leader orders the node to remove the instance.
// This happens after an operator has fenced or removed the node: both delete the node's residuals,
// but the machine may return with its disk and run the instance again.
func (t *Tx) leftBehind(w *Workload, r *commandv1.WorkloadReport) bool {
	n, _ := t.r.nodes.Get(r.GetNode())
	if r.GetGone() || r.GetRefused() || !w.LeftOn(n, order.GenerationOf(r.GetGeneration()), Actual(r.GetState())) {
		return false
	}
	if _, ok := t.r.residuals.Get(pair(n.ID, w.ID)); ok {
		return false
	}
	t.putResidual(&Residual{
		Node:     n.ID,
		Workload: w.ID,
		// This generation covers the instance on the node, whose generation is not higher. A later
		// assignment to the node gets a higher generation, so it is not removed.
		Generation: w.Generation,
		Engine:     n.Engine(),
		Demand:     *w.Demand,
		Since:      t.r.info.Clock,
		Reason:     CodeLeftBehind,

		KeepVolumes: w.KeepVolumes,
	})
	return true
}

// observe stores an accepted report in the record of the workload, and computes status and reason again.
func (t *Tx) observe(old *Workload, r *commandv1.WorkloadReport, state Actual) {
	n, _ := t.r.nodes.Get(old.Node)
	clock := t.r.info.Clock
	w := *old
	w.Acknowledged = true
	if !r.GetRefused() {
		w.MayOutliveLease = false
		w.stake()
		t.holdVolumes(old)
		w.settleDiscard(n)
	}
	if !old.Acknowledged {
		w.AcknowledgedAt = clock
	}
	if state != ActualNone {
		w.Actual = observationOf(r)
		w.Actual.State, w.Actual.Generation = state, old.Generation
		if r.GetRefused() && w.Actual.Code == "" {
			w.Actual.Code = CodeApplyRefused
		}
		if r.GetRefused() {
			n = t.lacks(n, &w)
		}
	}
	if old.Acknowledged && old.Actual.Same(w.Actual) {
		return
	}
	if old.Working() && !w.working() {
		w.AcknowledgedAt = clock
		if !old.Retry.failed() {
			t.started(&w)
		}
	}
	if w.Desired != DesiredStopped || state != ActualRunning { // an instance that still runs keeps its host ports reserved
		w.portsAfter(state, r.GetRefused())
	}
	if w.Desired == DesiredStopped && stopped(state) {
		w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
	} else {
		w.Retry.observed(&w, old.Actual.RestartCount, state, clock)
	}
	// While the workload waits for a retry, and after it was given up, the reason that the planner has set is
	// kept. Otherwise the reason follows from this report.
	if w.Retry.NextAt == 0 && !w.Retry.Terminal {
		if reason := t.reason(&w, n); reason.Code != old.Reason.Code || reason.Message != old.Reason.Message {
			w.Reason = reason
		}
	}
	t.putWorkload(old, &w)
	if w.Status != old.Status {
		t.event(Event{
			Type: EventWorkloadState, Workload: w.ID, Node: w.Node, Reason: w.Reason.Code, Message: w.Reason.Message,
			Details: []Label{{"from", string(old.Status)}, {"to", string(w.Status)}},
		})
	}
}

// Same reports whether the observations a and b are equal, ignoring the times on the agent's clock.
func (a *Observation) Same(b *Observation) bool {
	return a.State == b.State && a.Generation == b.Generation && a.Code == b.Code && a.Message == b.Message &&
		a.Failure == b.Failure && a.Retryable == b.Retryable && a.Terminal == b.Terminal && a.TryElsewhere == b.TryElsewhere && a.RestartCount == b.RestartCount && a.Health == b.Health &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Ports, b.Ports) && a.Exit.equal(b.Exit)
}

// Report encodes an observation as a report for a command or a snapshot. In a snapshot, workload and node are
// empty, because the record that contains the report names them.
func (o *Observation) Report(workload, node string) *commandv1.WorkloadReport {
	return &commandv1.WorkloadReport{
		Workload: workload, Node: node, Generation: GenerationPB(o.Generation), State: string(o.State), FailureReason: o.Failure,
		Code: o.Code, Message: o.Message, Retryable: o.Retryable, Terminal: o.Terminal, RestartCount: o.RestartCount,
		Addresses: o.Addresses, Ports: convert(o.Ports, portBindingPB), ObservedAt: o.At, Health: o.Health, Exit: exitPB(o.Exit),
		TryElsewhere: o.TryElsewhere,
	}
}

// observationOf decodes a report into an observation.
func observationOf(r *commandv1.WorkloadReport) *Observation {
	return &Observation{
		State: Actual(r.GetState()), Generation: order.GenerationOf(r.GetGeneration()), Code: r.GetCode(), Message: r.GetMessage(),
		Failure: r.GetFailureReason(), Retryable: r.GetRetryable(), Terminal: r.GetTerminal(), RestartCount: r.GetRestartCount(),
		Addresses: convert(r.GetAddresses(), func(s string) string { return s }),
		Ports:     convert(r.GetPorts(), portBindingOf), At: r.GetObservedAt(), Health: r.GetHealth(),
		Exit: exitOf(r.GetExit()), TryElsewhere: r.GetTryElsewhere(),
	}
}

func portBindingOf(p *commandv1.PortBinding) PortBinding {
	return PortBinding{uint16(p.GetHostPort()), uint16(p.GetContainerPort()), p.GetProtocol(), p.GetAddress()}
}

func portBindingPB(p PortBinding) *commandv1.PortBinding {
	return &commandv1.PortBinding{HostPort: uint32(p.HostPort), ContainerPort: uint32(p.ContainerPort), Protocol: p.Protocol, Address: p.Address}
}
