package mirror

import (
	"errors"
	"time"

	"github.com/persys/compute/fsm"
)

// State is what is known of the mirror.
type State string

// The states.
const (
	Starting    State = "starting"    // not looked at yet
	Healthy     State = "healthy"     // etcd answers and the mirror follows
	Unreachable State = "unreachable" // etcd does not answer its probes
	Failing     State = "failing"     // etcd answers and does not take writes, e.g. NOSPACE
	Emptied     State = "emptied"     // attached before; neither cursor nor data is left
	Foreign     State = "foreign"     // holds what is not this cluster's to replace
)

// Health is a state, since when, and a sentence that says why.
type Health struct {
	State  State
	Reason string
	Since  time.Time
}

// Facts are what ModeFor needs to know besides.
type Facts struct {
	Attached bool // the state machine holds MirrorAttached
	Required bool // ETCD_ENDPOINTS is set
	Empty    bool // the state machine holds no workloads
}

// ModeFor is the mode that the mirror's health asks for, with the reason; ok is
// false when it asks for none. The rules are those of fsm/DESIGN.md.
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

// How many probes in a row turn the judgement, each way.
const (
	failsUntilAway = 2
	oksUntilBack   = 2
)

// judge turns what was observed into a Health. It is pure but for the clock.
type judge struct {
	now func() time.Time

	fails, oks int   // probes in a row
	probeErr   error // of the newest failed probe
	writeErr   error // of the newest session, nil while none failed
	cond       error // ErrEmptied or ErrForeignData, wrapped
	synced     bool  // the newest session caught up
	health     Health
}

func newJudge(now func() time.Time) judge {
	return judge{now: now, health: Health{State: Starting, Since: now()}}
}

// probed takes in the outcome of a probe, as the other methods do theirs; all
// report whether the judgement changed.
func (j *judge) probed(err error) bool {
	if err != nil {
		j.fails, j.oks, j.probeErr = j.fails+1, 0, err
	} else {
		j.fails, j.oks = 0, j.oks+1
	}
	return j.decide()
}

// failed: a read or write did not succeed within its bound.
func (j *judge) failed(err error) bool {
	j.writeErr, j.synced = err, false
	return j.decide()
}

// found: etcd holds what must not be touched without an operator's word.
func (j *judge) found(cond error) bool {
	j.cond, j.writeErr, j.synced = cond, nil, false
	return j.decide()
}

// caughtUp: etcd holds the state.
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
		// It failed because etcd was away; until it is tried again that is all.
	case j.writeErr != nil:
		h.State, h.Reason = Failing, "etcd fails: "+j.writeErr.Error()
	case !j.synced:
		// Nothing is known anew: an etcd that answers again has to take writes first.
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
