package mirror

import (
	"errors"
	"time"

	"github.com/persys/compute/fsm"
)

// State is the state of the mirror.
type State string

// States of the mirror.
const (
	Starting    State = "starting"    // etcd was not read yet
	Healthy     State = "healthy"     // etcd answers and the mirror is up to date
	Unreachable State = "unreachable" // etcd does not answer its probes
	Failing     State = "failing"     // etcd answers but writes fail, e.g. NOSPACE
	Emptied     State = "emptied"     // attached before; has neither cursor nor data now
	Foreign     State = "foreign"     // holds data that is not of this cluster
)

// Health is a state with its reason and the time at which it began.
type Health struct {
	State  State
	Reason string
	Since  time.Time
}

// Facts are the other inputs of ModeFor.
type Facts struct {
	Attached bool // the state machine holds MirrorAttached
	Required bool // ETCD_ENDPOINTS is set
	Empty    bool // the state machine holds no workloads
}

// ModeFor returns the mode for the health of the mirror, and the reason. ok is false
// if the mode must not change. The rules are in fsm/DESIGN.md.
func ModeFor(h Health, f Facts) (mode fsm.Mode, reason string, ok bool) {
	switch h.State {
	case Healthy:
		return fsm.ModeNormal, "", true
	case Unreachable, Failing:
		if f.Attached || f.Required {
			return fsm.ModeDegraded, h.Reason, true
		}
		return fsm.ModeNormal, "", true
	case Emptied:
		return fsm.ModeRecovery, h.Reason, true
	case Foreign:
		if f.Attached || f.Required || f.Empty {
			return fsm.ModeRecovery, h.Reason, true
		}
		return fsm.ModeNormal, "", true
	}
	return "", "", false
}

// Consecutive failed and successful probes that change the state.
const (
	failsUntilAway = 2
	oksUntilBack   = 2
)

// judge derives the Health from probes and sessions. The clock is its only input from
// outside.
type judge struct {
	now func() time.Time

	fails, oks int   // consecutive probes
	probeErr   error // error of the last failed probe
	writeErr   error // error of the last session; nil if it did not fail
	cond       error // ErrEmptied or ErrForeignData, wrapped
	synced     bool  // the last session wrote the whole state
	health     Health
}

func newJudge(now func() time.Time) judge {
	return judge{now: now, health: Health{State: Starting, Since: now()}}
}

// probed records the result of a probe. This method and the next three report whether
// the state changed.
func (j *judge) probed(err error) bool {
	if err != nil {
		j.fails, j.oks, j.probeErr = j.fails+1, 0, err
	} else {
		j.fails, j.oks = 0, j.oks+1
	}
	return j.decide()
}

// failed records that a read or write failed or timed out.
func (j *judge) failed(err error) bool {
	j.writeErr, j.synced = err, false
	return j.decide()
}

// found records that etcd holds contents that only an operator may replace.
func (j *judge) found(cond error) bool {
	j.cond, j.writeErr, j.synced = cond, nil, false
	return j.decide()
}

// caughtUp records that etcd holds the state.
func (j *judge) caughtUp() bool {
	j.cond, j.writeErr, j.synced = nil, nil, true
	return j.decide()
}

func (j *judge) decide() bool {
	h := j.health
	switch {
	case j.fails >= failsUntilAway:
		h.State, h.Reason = Unreachable, "etcd does not answer: "+j.probeErr.Error()
	case errors.Is(j.cond, ErrEmptied):
		h.State, h.Reason = Emptied, j.cond.Error()
	case j.cond != nil:
		h.State, h.Reason = Foreign, j.cond.Error()
	case j.writeErr != nil && h.State == Unreachable && transient(j.writeErr):
		// The write failed because etcd was unreachable. Keep that state until the next write.
	case j.writeErr != nil:
		h.State, h.Reason = Failing, "etcd fails: "+j.writeErr.Error()
	case !j.synced:
		// No new result: after an outage, a write must succeed before the state is healthy.
	case (h.State == Unreachable || h.State == Failing) && j.oks < oksUntilBack:
	default:
		h.State, h.Reason = Healthy, ""
	}
	if h.State == j.health.State {
		j.health.Reason = h.Reason
		return false
	}
	h.Since = j.now()
	j.health = h
	return true
}
