package sched

import (
	"fmt"
	"math"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

const portConflict = "PORT_BIND_CONFLICT"

// permanent reports whether a failure class is permanent, so that no retry can help
// (contract, semantics section 9). advice says what the user has to change.
func permanent(code string) (advice string, ok bool) {
	switch code {
	case "INVALID_IMAGE":
		return "change the image", true
	case "INVALID_SPECIFICATION":
		return "correct the specification", true
	case "INVALID_CONFIGURATION":
		return "correct the configuration", true
	case portConflict:
		return "choose another host port", true
	case "CLOUD_INIT_INVALID":
		return "correct the cloud-init data", true
	}
	return "", false
}

// retry evaluates one workload on a node that is up, by the reconcile table (contract,
// semantics section 5; TestReconcileTable):
//
//   - a workload that should run and is Failed or Stopped is applied again;
//   - a Missing one is applied again after MissingGrace, so that its agent may repair it
//     first;
//   - an accepted one that does not run in time has failed;
//   - reports about a former generation do not count.
func (p *planner) retry(w *fsm.Workload) (acted bool, due int64) {
	if w.Desired == fsm.DesiredStopped {
		return p.stop(w)
	}
	if w.Desired != fsm.DesiredRunning || !w.Acknowledged {
		return false, 0
	}
	if w.Retry.StableSince != 0 {
		return p.forgive(w)
	}
	if w.Retry.Terminal || w.Retry.NextAt != 0 {
		return false, 0
	}
	late := false
	switch state := w.Actual.State; {
	case w.Actual.Generation != w.Generation, state == fsm.ActualPending, state == fsm.ActualUnknown, state == fsm.ActualNone:
		at := p.deadline(w)
		if at == 0 || at > p.Now {
			return false, at
		}
		late = true
	case state == fsm.ActualFailed, state == fsm.ActualStopped:
	case state == fsm.ActualMissing:
		if at := w.UpdatedAt + p.Tuning.MissingGrace; at > p.Now {
			return false, at
		}
	default:
		return false, 0
	}
	return p.failure(w, late)
}

// stop evaluates one workload that is to be stopped and whose node accepted the order. The
// stop is ordered again if it failed, was refused, or takes too long. A workload that is
// Stopped, Missing or Failed does not run and needs nothing.
func (p *planner) stop(w *fsm.Workload) (acted bool, due int64) {
	if !w.Acknowledged || w.Retry.Terminal || w.Retry.NextAt != 0 {
		return false, 0
	}
	switch {
	case stopped(w):
		return false, 0
	case w.Actual.Generation == w.Generation && w.Actual.State == fsm.ActualRunning && w.Actual.Code != "":
		return p.failure(w, false)
	}
	at := p.deadline(w)
	if at == 0 || at > p.Now {
		return false, at
	}
	return p.failure(w, true)
}

// stopped reports whether the node of w has reported, about the present order, that w does
// not run.
func stopped(w *fsm.Workload) bool {
	state := w.Actual.State
	return w.Acknowledged && w.Actual.Generation == w.Generation &&
		(state == fsm.ActualStopped || state == fsm.ActualMissing || state == fsm.ActualFailed)
}

// failure counts one failure and proposes the next try, or to give up.
func (p *planner) failure(w *fsm.Workload, late bool) (acted bool, due int64) {
	if !p.spend() {
		return true, 0
	}
	r := p.backoff(w, late)
	if late {
		p.step.Inquiries = append(p.step.Inquiries, Inquiry{w.Node, w.ID})
	}
	p.retries = append(p.retries, r)
	p.mark(w.ID)
	action := "RetryScheduled"
	switch {
	case r.Terminal:
		action = "GiveUp"
	case w.Desired == fsm.DesiredStopped:
		action = "StopFailed"
	}
	p.note(action, w.ID, w.Node, r.Message)
	return true, 0
}

// deadline is when an accepted workload must have reached its desired state; 0 = never.
func (p *planner) deadline(w *fsm.Workload) int64 {
	limit := p.Tuning.applyLimit(w)
	if limit <= 0 {
		return 0
	}
	since := w.AcknowledgedAt
	if since == 0 {
		since = w.UpdatedAt // the time of acceptance is unknown: late rather than early
	}
	return since + limit
}

func (t *Tuning) applyLimit(w *fsm.Workload) int64 {
	if w.Demand.Type == "vm" {
		return t.VMApplyTimeout
	}
	return t.ApplyTimeout
}

// forgive resets the failures of a workload that has run for FailureGrace.
func (p *planner) forgive(w *fsm.Workload) (acted bool, due int64) {
	if at := w.Retry.StableSince + p.Tuning.FailureGrace; at > p.Now {
		return false, at
	}
	if !p.spend() {
		return true, 0
	}
	p.forgiven = append(p.forgiven, &commandv1.Forgiveness{Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation)})
	p.mark(w.ID)
	p.note("Forgive", w.ID, w.Node, fmt.Sprintf("has run for %d s after %d failures", p.Tuning.FailureGrace/second, w.Retry.Attempts))
	return true, 0
}

// backoff counts one failure and draws the wait before the next attempt: full jitter over
// an exponentially growing bound. After MaxAttempts the workload is given up, but not
// within FailureGrace of its first failure. A stop is never given up: once its attempts
// are used up, its reason says so and it is ordered again every RetryMax.
func (p *planner) backoff(w *fsm.Workload, late bool) *commandv1.Retry {
	stops := w.Desired == fsm.DesiredStopped
	what := string(w.Actual.State) + prefixed(": ", w.Actual.Code) + prefixed(": ", w.Actual.Message)
	if late {
		goal := "got it running"
		if stops {
			goal = "stopped it"
		}
		what = fmt.Sprintf("%s: node %s accepted it and has not %s after %d s%s", fsm.CodeApplyTimeout, w.Node, goal,
			p.Tuning.applyLimit(w)/second, prefixed(": ", w.Actual.Message))
	}
	r := &commandv1.Retry{Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation)}
	if advice, ok := permanent(w.Actual.Code); ok && !stops && w.Actual.State == fsm.ActualFailed && !p.portLeaves(w) {
		r.Attempts, r.Terminal, r.Code = w.Retry.Attempts+1, true, fsm.CodePermanentFailure
		r.Message = what + "; a retry cannot help: " + advice
		return r
	}
	most := w.Retry.MaxAttempts
	if most <= 0 {
		most = p.Tuning.MaxAttempts
	}
	n := w.Retry.Attempts + 1
	if n >= most {
		begun := w.Retry.FirstFailureAt
		if begun == 0 {
			begun = p.Now
		}
		if stops && p.Now-begun >= p.Tuning.FailureGrace {
			r.Attempts, r.NextAt, r.Code = n, p.Now+p.Tuning.RetryMax, fsm.CodeExhausted
			r.Message = fmt.Sprintf("%s; %d attempts to stop it failed, it is tried every %d s; to stop it at once: persysctl stop %s",
				what, n, p.Tuning.RetryMax/second, w.ID)
			return r
		}
		if p.Now-begun >= p.Tuning.FailureGrace {
			r.Attempts, r.Terminal, r.Code = n, true, fsm.CodeExhausted
			r.Message = fmt.Sprintf("%s; %d of %d attempts used", what, n, most)
			return r
		}
		n = max(1, most-1)
	}
	wait := p.jitter(w, n)
	r.Attempts, r.NextAt, r.Code = n, p.Now+wait, fsm.CodeBackoff
	r.Message = fmt.Sprintf("%s; attempt %d of %d failed, next in %d.%d s", what, n, most,
		wait/second, wait%second*10/second)
	return r
}

// portLeaves reports whether a host port could not be bound because of a workload that is
// leaving the node and that was not known when the order was given. A workload that was
// left behind may bind other ports than its latest specification names.
func (p *planner) portLeaves(w *fsm.Workload) bool {
	if w.Actual.Code != portConflict {
		return false
	}
	n, ok := p.State.Node(w.Node)
	if !ok {
		return false
	}
	for _, port := range w.Demand.Ports {
		holder, on := p.State.PortHolder(n.Engine(), port)
		h, placed := p.State.Workload(holder)
		if holder != "" && holder != w.ID && !(placed && h.Node == on && h.Wants(port)) {
			return true
		}
	}
	found := false
	p.State.Residuals(n.ID, func(r *fsm.Residual) bool {
		found = r.Reason == fsm.CodeLeftBehind
		return !found
	})
	return found
}

// jitter draws evenly from [minBackoff, min(RetryMax, RetryBase·2^(n−1))]. It draws by a
// hash, so that the same step always gives the same wait.
func (p *planner) jitter(w *fsm.Workload, n int32) int64 {
	bound := p.Tuning.RetryMax
	if shift := n - 1; shift < 30 && p.Tuning.RetryBase <= bound>>shift {
		bound = p.Tuning.RetryBase << shift
	}
	h := hash(p.Tuning.Seed, w.ID) ^ mix(w.Generation.Incarnation^mix(w.Generation.Sequence^mix(uint64(n))))
	share := float64(mix(h)>>11) / (1 << 53)
	return max(minBackoff, int64(share*float64(bound)))
}

// retryDue gives the orders whose backoff has ended again. A workload on a node that is
// down waits for the node.
func (p *planner) retryDue() {
	p.State.RetryDue(math.MaxInt64, func(w *fsm.Workload) bool {
		if w.Retry.NextAt > p.Now {
			p.wake(w.Retry.NextAt)
			return false
		}
		if p.done[w.ID] || w.Node == "" || w.Desired == fsm.DesiredDeleted || !p.reachable(w.Node) {
			return true
		}
		if !p.spend() {
			return false
		}
		p.mark(w.ID)
		p.retries = append(p.retries, &commandv1.Retry{
			Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation), Attempts: w.Retry.Attempts,
			Message: fmt.Sprintf("attempt %d", w.Retry.Attempts+1),
		})
		p.note("Retry", w.ID, w.Node, fmt.Sprintf("attempt %d", w.Retry.Attempts+1))
		return true
	})
}
