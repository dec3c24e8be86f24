package mirror

import (
	"errors"
	"time"

	"github.com/persys/compute/fsm"
)

// State is the state of the mirror.
type State string

// The states of the mirror.
const (
	Starting    State = "starting"    // etcd was not read yet
	Healthy     State = "healthy"     // etcd answers and the mirror is up to date
	Unreachable State = "unreachable" // etcd does not answer its probes
	Failing     State = "failing"     // etcd answers but writes fail, e.g. NOSPACE
	Emptied     State = "emptied"     // etcd was attached before and has neither cursor nor data now
	Foreign     State = "foreign"     // etcd holds data that does not belong to this cluster
	Other       State = "other"       // another etcd answers than the one that is attached
)

// Health is a State of the mirror with its reason and the time at which it began.
type Health struct {
	State  State
	Reason string
	Since  time.Time
}

// Facts are the facts about the cluster that ModeFor needs besides the Health of the mirror.
type Facts struct {
	Attached bool // the replicated state has a record that an etcd was attached
	Required bool // ETCD_ENDPOINTS is set
	Empty    bool // the replicated state has no workloads
}

// ModeFor returns the mode for the health of the mirror, and the reason. ok is false
// if the mode must not change. The rules are in fsm/DESIGN.md.
func ModeFor(h Health, f Facts) (mode fsm.Mode, reason string, ok bool) {
	switch h.State {
	case Healthy:
		return fsm.ModeNormal, "", true
	case Unreachable, Failing, Other:
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

// Numbers of failed probes in a row, and of successful probes in a row, that change the state of the mirror.
const (
	failsUntilAway = 2
	oksUntilBack   = 2
)

// judge computes the Health from the results of probes and sessions. Besides these it reads only the clock.
type judge struct {
	now func() time.Time

	fails, oks int   // numbers of consecutive failed and successful probes
	probeErr   error // error of the last probe, if that probe failed
	writeErr   error // error of the last session; nil if it did not fail
	cond       error // ErrEmptied, ErrForeignData or ErrOtherEtcd, wrapped; nil if etcd may be written
	synced     bool  // the last session has written the whole state to etcd
	health     Health
}

func newJudge(now func() time.Time) judge {
	return judge{now: now, health: Health{State: Starting, Since: now()}}
}

// probed records the result of a probe. It reports whether the state of the mirror changed.
func (j *judge) probed(err error) bool {
	if err != nil {
		j.fails, j.oks, j.probeErr = j.fails+1, 0, err
	} else {
		j.fails, j.oks = 0, j.oks+1
	}
	return j.decide()
}

// failed records that a session's read or write of etcd failed or timed out.
func (j *judge) failed(err error) bool {
	j.writeErr, j.synced = err, false
	return j.decide()
}

// found records that only an operator may replace the contents of etcd. cond says why, for example
// because they belong to another cluster.
func (j *judge) found(cond error) bool {
	j.cond, j.writeErr, j.synced = cond, nil, false
	return j.decide()
}

// caughtUp records that etcd holds the whole state.
func (j *judge) caughtUp() bool {
	j.cond, j.writeErr, j.synced = nil, nil, true
	return j.decide()
}

func (j *judge) decide() bool {
	h := j.health
	switch {
	case j.fails >= failsUntilAway:
		h.State, h.Reason = Unreachable, "etcd does not answer: "+j.probeErr.Error()
	case errors.Is(j.cond, ErrOtherEtcd):
		h.State, h.Reason = Other, j.cond.Error()
	case errors.Is(j.cond, ErrEmptied):
		h.State, h.Reason = Emptied, j.cond.Error()
	case j.cond != nil:
		h.State, h.Reason = Foreign, j.cond.Error()
	case j.writeErr != nil && h.State == Unreachable && transient(j.writeErr):
		// The last write failed because etcd was unreachable. The state stays Unreachable until the next
		// write.
	case j.writeErr != nil:
		h.State, h.Reason = Failing, "etcd fails: "+j.writeErr.Error()
	case !j.synced:
		// After an outage, successful probes alone do not make the mirror healthy: a session must also have
		// written the whole state.
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
