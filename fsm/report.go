package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// report applies reports of nodes about workloads. It skips items about unknown workloads and
// former generations. An item without news changes nothing.
func (t *Tx) report(b *commandv1.Report) (res Result) {
	for _, r := range b.GetReports() {
		if !t.reportOne(r) {
			res.Skipped++
		}
	}
	return res
}

// reportOne applies one item. It returns false if the item is skipped.
func (t *Tx) reportOne(r *commandv1.WorkloadReport) bool {
	said := GenerationOf(r.GetGeneration())
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
		return t.deletedReturned(r) || known // else an orphan: reported, and left to people
	}
	if old.NewerThanState(said, t.r.info) {
		return t.catchUp(old, r) || known
	}
	if old.Node == "" || old.Node != r.GetNode() {
		return t.leftBehind(old, r) || known
	}
	// A legacy v1 peer sends no generation. Believe it once the present order is accepted; before
	// that its report may be about the former order.
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

// CodeLeftBehind is the reason of a residual that a report revealed: a node that was fenced or
// removed has returned and still runs the workload.
const CodeLeftBehind = "LeftBehind"

// LeftOn reports whether a report of node n shows that it still runs w at a former generation
// although w belongs elsewhere. A report without a generation, from a legacy v1 peer, shows
// nothing: it may be about an order that is on its way.
func (w *Workload) LeftOn(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && w.Node != n.ID && !said.IsZero() && said.Less(w.Generation) && present(state)
}

// present reports whether an actual state means that the node has something of the workload.
func present(state Actual) bool {
	switch state {
	case ActualPending, ActualRunning, ActualStopped, ActualFailed, ActualUnknown:
		return true
	}
	return false
}

// leftBehind adds a residual for an instance of w that a node still has, so that the node is
// told to stop it. A fence or a removal drops residuals because nothing runs there; that ends
// when the machine returns with its disk.
func (t *Tx) leftBehind(w *Workload, r *commandv1.WorkloadReport) bool {
	n, _ := t.r.nodes.Get(r.GetNode())
	if r.GetGone() || r.GetRefused() || !w.LeftOn(n, GenerationOf(r.GetGeneration()), Actual(r.GetState())) {
		return false
	}
	if _, ok := t.r.residuals.Get(pair(n.ID, w.ID)); ok {
		return false
	}
	t.putResidual(&Residual{
		Node:     n.ID,
		Workload: w.ID,
		// Not below any generation that the node may run. A later assignment to it has a higher one.
		Generation: w.Generation,
		Engine:     n.Engine(),
		Demand:     *w.Demand,
		Since:      t.r.info.Clock,
		Reason:     CodeLeftBehind,
	})
	return true
}

// observe stores an accepted report and derives status and reason.
func (t *Tx) observe(old *Workload, r *commandv1.WorkloadReport, state Actual) {
	n, _ := t.r.nodes.Get(old.Node)
	clock := t.r.info.Clock
	w := *old
	w.Acknowledged = true
	if !r.GetRefused() {
		w.Unguarded = false
	}
	if !old.Acknowledged {
		w.AcknowledgedAt = clock
	}
	if state != ActualNone {
		w.Actual = &Observation{
			State:        state,
			Generation:   old.Generation,
			Code:         r.GetCode(),
			Message:      r.GetMessage(),
			Failure:      r.GetFailureReason(),
			Retryable:    r.GetRetryable(),
			RestartCount: r.GetRestartCount(),
			Addresses:    convert(r.GetAddresses(), func(s string) string { return s }),
			Ports:        convert(r.GetPorts(), portBindingOf),
			At:           r.GetObservedAt(),
			Health:       r.GetHealth(),
		}
		if r.GetRefused() && w.Actual.Code == "" {
			w.Actual.Code = CodeApplyRefused
		}
		if r.GetRefused() {
			n = t.lacks(n, &w)
		}
	}
	if old.Acknowledged && observationEqual(old.Actual, w.Actual) {
		return
	}
	if w.Desired != DesiredStopped || state != ActualRunning { // an instance that runs on keeps its ports
		w.portsAfter(state, r.GetRefused())
	}
	if w.Desired == DesiredStopped && stopped(state) {
		w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
	} else {
		w.Retry.observed(&w, old.Actual.RestartCount, state, clock)
	}
	// During a back-off and after a final verdict the planner has set the reason, which stays.
	// Otherwise the reason follows from this report.
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

// observationEqual compares two observations without the clock of the agent.
func observationEqual(a, b *Observation) bool {
	return a.State == b.State && a.Generation == b.Generation && a.Code == b.Code && a.Message == b.Message &&
		a.Failure == b.Failure && a.Retryable == b.Retryable && a.RestartCount == b.RestartCount && a.Health == b.Health &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Ports, b.Ports)
}

func portBindingOf(p *commandv1.PortBinding) PortBinding {
	return PortBinding{uint16(p.GetHostPort()), uint16(p.GetContainerPort()), p.GetProtocol()}
}

func portBindingPB(p PortBinding) *commandv1.PortBinding {
	return &commandv1.PortBinding{HostPort: uint32(p.HostPort), ContainerPort: uint32(p.ContainerPort), Protocol: p.Protocol}
}
