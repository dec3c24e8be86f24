package sched

import (
	"fmt"
	"math"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// permanent reports whether failures with this code end only with another specification, so that no retry can
// help (contract, semantics section 9). advice says what the user has to change.
func permanent(code string) (advice string, ok bool) {
	switch code {
	case "INVALID_IMAGE":
		return "change the image", true
	case "INVALID_SPECIFICATION":
		return "correct the specification", true
	case "INVALID_CONFIGURATION":
		return "correct the configuration", true
	case "CLOUD_INIT_INVALID":
		return "correct the cloud-init data", true
	}
	return "", false
}

// passing reports whether failures with this code have a cause outside of the workload that may end
// by itself, such as a registry that cannot be reached. A workload that fails for such a cause is
// retried without a limit.
func passing(code string) bool {
	switch code {
	case "IMAGE_PULL_TIMEOUT", "IMAGE_PULL_AUTH_FAILED", "NETWORK_TIMEOUT", "NETWORK_UNREACHABLE", "DNS_RESOLUTION_FAILED",
		"INSUFFICIENT_RESOURCES", "STORAGE_FULL", "PORT_BIND_CONFLICT", "RUNTIME_UNHEALTHY", "RUNTIME_RESOURCE_MISSING",
		"STORAGE_PROVISION_FAILED", "STORAGE_ATTACH_FAILED", "NAME_CONFLICT", "IMAGE_NOT_ON_NODE":
		return true
	}
	return false
}

// hopeless reports whether no retry can help a workload that does not run: its agent has reported a permanent
// failure, or that it has given up (contract, semantics section 7). advice says what the user has to do.
func hopeless(w *fsm.Workload) (advice string, ok bool) {
	if w.Actual.State == fsm.ActualRunning || w.Actual.Generation != w.Generation || passing(w.Actual.Code) {
		return "", false
	}
	if advice, ok = permanent(w.Actual.Code); !ok && w.Actual.Terminal {
		return "the agent of node " + w.Node + " has given the workload up; once the cause is gone: persysctl retry " + w.ID, true
	}
	return advice, ok
}

// agentRetries reports whether the agent retries workload w by itself. It returns false for a
// legacy v1 agent, which gives up after a few attempts.
func (p *planner) agentRetries(w *fsm.Workload) bool {
	if w.Actual.State != fsm.ActualPending || w.Actual.Generation != w.Generation || !passing(w.Actual.Code) {
		return false
	}
	n, ok := p.State.Node(w.Node)
	return ok && n.Facts.Protocol != 0
}

// engineSilent reports whether the agent of w has carried out the present order, and cannot see now whether w runs, because the
// engine does not answer. That is no failure of w: the agent reports the state of w, and repairs it, when the engine answers
// again. Another order would not reach the engine either. engineSilent returns false for a legacy v1 agent.
func (p *planner) engineSilent(w *fsm.Workload) bool {
	if w.Actual.State != fsm.ActualUnknown || w.Actual.Generation != w.Generation || w.Actual.Code != "RUNTIME_UNHEALTHY" {
		return false
	}
	n, ok := p.State.Node(w.Node)
	return ok && n.Facts.Protocol != 0
}

// retry evaluates one workload on a node that is up, by the reconcile table (contract, semantics section 5;
// TestReconcileTable):
//
//   - A workload that should run and is Failed or Stopped is applied again.
//   - A Missing workload is applied again only after MissingGrace, because its agent may repair it
//     before.
//   - An accepted workload that does not run within the apply timeout has failed.
//   - An Unknown workload has failed at once if its agent reports a cause that no retry
//     ends. A Pending workload gets the apply timeout, because its agent may be working on
//     an order that is newer than the cause.
//   - A Pending workload has no time limit while its agent works on it, or retries it because the cause of the
//     failure may end by itself.
//   - An Unknown workload has no time limit while the engine does not answer its agent.
//   - A completed workload is not started again.
//   - Reports about an earlier generation are ignored.
func (p *planner) retry(w *fsm.Workload) (acted bool, due int64) {
	if w.Desired == fsm.DesiredStopped {
		return p.stop(w)
	}
	if w.Desired != fsm.DesiredRunning || !w.Acknowledged {
		return false, 0
	}
	if w.Retry.StableSince != 0 && w.Demand.Job == nil { // the attempts of a job count even if each runs for long
		return p.forgive(w)
	}
	if w.Retry.Terminal || w.Retry.NextAt != 0 {
		return false, 0
	}
	late := false
	_, final := hopeless(w)
	switch state := w.Actual.State; {
	case w.Completed(), w.Working(), p.agentRetries(w), p.engineSilent(w):
		return false, 0
	case final && state == fsm.ActualUnknown:
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

// stop evaluates one workload that is to be stopped and whose node accepted the order. The stop is ordered
// again if it failed, was refused, or takes too long. A workload that is Stopped, Missing or Failed does not
// run, so its stop has succeeded.
func (p *planner) stop(w *fsm.Workload) (acted bool, due int64) {
	if !w.Acknowledged || w.Retry.Terminal || w.Retry.NextAt != 0 {
		return false, 0
	}
	switch {
	case stopped(w), w.Working():
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

// stopped reports whether the node of w has reported that w does not run, in a report about the present
// order.
func stopped(w *fsm.Workload) bool {
	state := w.Actual.State
	return w.Acknowledged && w.Actual.Generation == w.Generation &&
		(state == fsm.ActualStopped || state == fsm.ActualMissing || state == fsm.ActualFailed)
}

// failure counts one failure of a workload. It proposes the next try, or gives the workload up.
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

// deadline returns the time by which an accepted workload must have reached its desired state, in Unix
// nanoseconds; 0 = never.
func (p *planner) deadline(w *fsm.Workload) int64 {
	limit := p.Tuning.ApplyLimit(w)
	if limit <= 0 {
		return 0
	}
	since := w.AcknowledgedAt
	if since == 0 {
		since = w.UpdatedAt // it is unknown when the agent accepted the order, so count from the last change: a late deadline is safer than an early one
	}
	return since + limit
}

// ApplyLimit returns the time limit from the acceptance of an order for w to running or stopped, in
// nanoseconds; 0 = no limit.
func (t *Tuning) ApplyLimit(w *fsm.Workload) int64 {
	if w.Demand.Type == "vm" {
		return t.VMApplyTimeout
	}
	return t.ApplyTimeout
}

// forgive clears the failures of a workload that has run for FailureGrace.
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

// maxDoublings limits how often the backoff doubles, because some workloads are retried without
// end.
const maxDoublings = 16

// backoff counts one failure and chooses the wait before the next attempt: a pseudo-random time below a bound
// that grows exponentially (full jitter). After MaxAttempts the workload is given up, but not within
// FailureGrace of its first failure. A workload whose failure has a temporary cause is not given up. A stop
// is never given up: once its attempts are used up, the reason says so, and the stop is ordered again after
// each RetryMax.
func (p *planner) backoff(w *fsm.Workload, late bool) *commandv1.Retry {
	stops := w.Desired == fsm.DesiredStopped
	what := string(w.Actual.State) + prefixed(": ", w.Actual.Code) + prefixed(": ", w.Actual.Message)
	if late {
		goal := "got it running"
		if stops {
			goal = "stopped it"
		}
		what = fmt.Sprintf("%s: node %s accepted the order and has not %s after %d s%s", fsm.CodeApplyTimeout, w.Node, goal,
			p.Tuning.ApplyLimit(w)/second, prefixed(": ", w.Actual.Message))
	}
	r := &commandv1.Retry{Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation)}
	if advice, ok := hopeless(w); ok && !stops {
		r.Attempts, r.Terminal, r.Code = w.Retry.Attempts+1, true, fsm.CodePermanentFailure
		r.Message = what + "; a retry cannot help: " + advice
		return r
	}
	most := w.Retry.MaxAttempts
	if most <= 0 {
		most = p.Tuning.MaxAttempts
	}
	n := w.Retry.Attempts + 1
	if !late && !stops && passing(w.Actual.Code) {
		n = min(n, maxDoublings)
		wait := p.jitter(w, n)
		r.Attempts, r.NextAt, r.Code = n, p.Now+wait, fsm.CodeBackoff
		r.Message = fmt.Sprintf("%s; it is tried again as long as the workload shall run, next in %d.%d s", what, wait/second, wait%second*10/second)
		return r
	}
	if n >= most && w.Demand.Job != nil && !stops {
		r.Attempts, r.Terminal, r.Code = n, true, fsm.CodeExhausted
		r.Message = fmt.Sprintf("%s; %d of %d attempts used", what, n, most)
		return r
	}
	if n >= most {
		begun := w.Retry.FirstFailureAt
		if begun == 0 {
			begun = p.Now
		}
		if stops && p.Now-begun >= p.Tuning.FailureGrace {
			r.Attempts, r.NextAt, r.Code = n, p.Now+p.Tuning.RetryMax, fsm.CodeExhausted
			r.Message = fmt.Sprintf("%s; %d attempts to stop it failed, a stop is tried every %d s; to stop it at once: persysctl stop %s",
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

// jitter returns the wait after failure n in nanoseconds, evenly distributed over [minBackoff, min(RetryMax,
// RetryBase·2^(n−1))]. It uses a hash instead of a random number, so that the same step always gives the same
// wait.
func (p *planner) jitter(w *fsm.Workload, n int32) int64 {
	bound := p.Tuning.RetryMax
	if shift := n - 1; shift < 30 && p.Tuning.RetryBase <= bound>>shift {
		bound = p.Tuning.RetryBase << shift
	}
	h := hash(p.Tuning.Seed, w.ID) ^ mix(w.Generation.Incarnation^mix(w.Generation.Sequence^mix(uint64(n))))
	share := float64(mix(h)>>11) / (1 << 53)
	return max(minBackoff, int64(share*float64(bound)))
}

// retryDue proposes new orders for workloads whose backoff has ended. A workload on a node that is down
// waits for the node.
func (p *planner) retryDue() {
	p.State.RetryDue(math.MaxInt64, func(w *fsm.Workload) bool {
		if w.Retry.NextAt > p.Now {
			p.wake(w.Retry.NextAt)
			return false
		}
		if p.done[w.ID] || p.held[w.ID] || w.Node == "" || w.Desired == fsm.DesiredDeleted || !p.reachable(w.Node) {
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
