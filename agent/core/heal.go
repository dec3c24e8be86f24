package core

import (
	"cmp"
	"time"

	"github.com/persys/compute/agent/workload"
)

// An order may say that a workload is restarted when it becomes unhealthy (on_unhealthy: restart). The first
// restart happens at once. The delay before each further restart grows as the delay before retries of failed
// actions does. Such a restart does not count as a failed action, so the workload never becomes Failed because
// of it. It is counted only in the number of restarts.

// OnUnhealthyRestart is the value of Order.OnUnhealthy with which an unhealthy workload is restarted.
const OnUnhealthyRestart = "restart"

// Healing counts how often an instance was restarted because it was unhealthy. The zero value means never.
type Healing struct {
	Instance string    `json:"instance,omitempty"` // RuntimeID of the instance
	Restarts int       `json:"restarts,omitempty"`
	Row      int       `json:"row,omitempty"` // number of restarts since the last long healthy run
	At       time.Time `json:"at,omitzero"`   // time of the last restart
}

// of returns how often the instance o was restarted because it was unhealthy.
func (h Healing) of(o *workload.Observed) int {
	if o == nil || o.RuntimeID != h.Instance {
		return 0
	}
	return h.Restarts
}

// unhealthy reports whether the instance is unhealthy and its order requires a restart in this case. The
// instance is unhealthy if the health check of the order or the engine's own health check fails.
func (w *Workload) unhealthy() bool {
	in, o := w.Intent, w.Observed
	if in == nil || in.OnUnhealthy != OnUnhealthyRestart || in.Deleting || !in.Running() || o == nil || o.State != workload.Running {
		return false
	}
	// Ignore a health result that belongs to an earlier run of the instance, before it was started again.
	return w.watched == in.checkOf(o) && w.health == string(workload.Unhealthy) || o.Health == workload.Unhealthy
}

// healing reports whether the restart of an unhealthy instance has begun and no action has started the instance since.
// A failed action or a restart of the agent may have interrupted it.
func (in *Intent) healing() bool {
	return in.Heal && in.Running() && in.OnUnhealthy == OnUnhealthyRestart
}

// heals reports whether an unhealthy workload is being restarted now.
func (s State) heals(id string) bool {
	j, _ := s.jobs.Get(id)
	return j.act != nil && j.act.Heals || j.cover != nil && j.cover.Heals
}

// healAt returns the time before which an unhealthy workload is not restarted again.
func (p Policy) healAt(w *Workload) time.Time {
	if h := w.Healing; h.Row > 0 && w.Observed != nil && h.Instance == w.Observed.RuntimeID {
		return h.At.Add(p.delay(h.Row))
	}
	return time.Time{}
}

// heal counts the restart of an unhealthy instance that begins now, because the delay before the next such
// restart grows with their number.
func (x *step) heal(w *Workload) {
	o := w.Observed
	h := w.Healing
	if h.Instance != o.RuntimeID {
		h = Healing{Instance: o.RuntimeID}
	}
	if h.Row > 0 && x.now.Sub(h.At) >= x.Policy.delay(h.Row)+x.Policy.Stable {
		h.Row = 0
	}
	h.Restarts, h.Row, h.At = h.Restarts+1, h.Row+1, x.now
	w.Healing = h
	next := *w.Intent
	next.Heal = true
	w.Intent = &next
	x.write(true).Intents = append(x.store.Intents, &next)
	w.healed = cmp.Or(w.detail, o.Message, "its health check fails")
	x.notice(true, "restarting an unhealthy workload", "workload", w.ID, "cause", w.healed, "restarts", h.Restarts)
}

// healed notes that an action has started the instance since its restart for health began.
func (x *step) healed(w *Workload) {
	next := *w.Intent
	next.Heal = false
	w.Intent = &next
	x.write(false).Intents = append(x.store.Intents, &next)
}
