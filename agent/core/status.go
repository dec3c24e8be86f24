package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Status is the agent's report of one workload. A published Status is immutable.
type Status struct {
	ID           string
	Kind         workload.Kind
	Revision     string
	Content      string
	Generation   workload.Generation
	DesiredState string         // running, stopped; empty without an order
	State        workload.State // Pending, Running, Stopped, Failed or Unknown
	Message      string
	Class        workload.Class // class of the failure that is final or retried
	Health       string
	RestartCount int
	Addresses    []string
	Ports        []workload.Port // ports forwarded by the host, without duplicates
	Metadata     map[string]string
	CreatedAt    time.Time
	UpdatedAt    time.Time // when the report last changed; whole seconds
	Since        time.Time // when State last changed
	RetryAt      time.Time // time of the next attempt
}

// same reports whether both reports are equal, apart from UpdatedAt and Since.
func (s *Status) same(o *Status) bool {
	return s.Kind == o.Kind && s.Revision == o.Revision && s.Content == o.Content && s.Generation == o.Generation &&
		s.DesiredState == o.DesiredState && s.State == o.State && s.Message == o.Message && s.Class == o.Class &&
		s.Health == o.Health && s.RestartCount == o.RestartCount && slices.Equal(s.Addresses, o.Addresses) &&
		slices.Equal(s.Ports, o.Ports) && maps.Equal(s.Metadata, o.Metadata) && s.CreatedAt.Equal(o.CreatedAt) &&
		s.RetryAt.Equal(o.RetryAt)
}

// waitsMessage is reported with state Stopped. The schedulers then order the workload again.
const waitsMessage = "exclusive: waits for the scheduler's order after a restart"

// lapsedMessage is reported with state Stopped for a workload whose lease has ended.
const lapsedMessage = "exclusive: stopped when the node's lease ended; waits for the scheduler's next order"

// healthPrefix starts the message of a running workload with a health check. The state of the check
// follows, and the reason in parentheses if there is one.
const healthPrefix = "running, health check: "

// publish updates the report of a workload. A changed report is sent with the next heartbeat and
// stored.
func (x *step) publish(w *Workload) {
	if w.Intent == nil && w.Observed == nil {
		return
	}
	w = x.edit(w)
	x.watch(w)
	next := x.assess(w)
	if w.Status != nil && next.same(w.Status) {
		return
	}
	next.UpdatedAt = x.now.Truncate(time.Second)
	if next.State == workload.Failed && (w.Status == nil || w.Status.State != workload.Failed) {
		x.do(TurnedFailed{next.Class})
	}
	w.Status = next
	x.Version++
	w.version = x.Version
	if w.Intent != nil {
		x.do(Changed{w.ID})
	} else {
		x.do(Changed{})
	}
}

// watch starts or ends the health check of a workload.
func (x *step) watch(w *Workload) {
	in, o := w.Intent, w.Observed
	instance := ""
	if in != nil && !in.Deleting && in.Running() && o != nil && o.State == workload.Running && in.Traits.HealthCheck != "" {
		instance = o.RuntimeID + " " + o.StartedAt.String() + " " + in.Traits.HealthCheck
	}
	if instance == w.watched && (instance == "" || o == w.checkedOn ||
		slices.Equal(o.Addresses, w.checkedOn.Addresses) && slices.Equal(o.Ports, w.checkedOn.Ports)) {
		return
	}
	if instance != w.watched {
		w.health, w.detail = "", ""
	}
	w.watched, w.checkedOn = instance, o
	if instance == "" {
		x.do(Unwatch{w.ID})
	} else {
		x.do(Watch{Instance: instance, Intent: in, Observed: o})
	}
}

// assess makes the report of a workload.
func (x *step) assess(w *Workload) *Status {
	st := &Status{ID: w.ID, Kind: w.Kind, Metadata: map[string]string{}, Since: x.now}
	if o := w.Observed; o != nil {
		if o.Metadata != nil {
			st.Metadata = maps.Clone(o.Metadata)
		}
		st.RestartCount, st.Health = o.RestartCount, string(o.Health)
		// With forwarded ports, the instance's network is private to this machine, and clients use
		// the node's address.
		if st.Ports = forwarded(o.Ports); len(st.Ports) == 0 {
			st.Addresses = slices.Clone(o.Addresses)
		}
	}
	if in := w.Intent; in != nil {
		st.Revision, st.DesiredState, st.CreatedAt, st.Generation = in.RevisionID, in.DesiredState, in.CreatedAt, in.Generation
		x.judge(st, w)
		if limit := in.Traits.DiskLimit; limit > 0 && w.Observed != nil {
			by := "measured"
			if w.Observed.DiskCapped {
				by = "kept by the engine"
			}
			st.Metadata["disk_limit"] = fmt.Sprintf("%d GiB, %s", limit>>30, by)
		}
	} else {
		o := w.Observed
		st.Revision, st.Content, st.Generation, st.Class = o.Revision, o.Content, o.Generation, o.Class
		st.State, st.Message = o.State, "runs here without an order; left alone"
	}
	if w.Task.Open() {
		st.Metadata["task_id"], st.Metadata["task_status"] = w.Task.ID, w.Task.Status
	}
	// protobuf refuses to marshal a heartbeat that contains invalid UTF-8.
	st.Message = Valid(st.Message)
	for _, key := range slices.Sorted(maps.Keys(st.Metadata)) {
		st.Metadata[key] = Valid(st.Metadata[key])
	}
	if old := w.Status; old != nil {
		st.UpdatedAt = old.UpdatedAt
		if old.State == st.State {
			st.Since = old.Since
		}
	}
	return st
}

// judge sets the state of an ordered workload.
func (x *step) judge(st *Status, w *Workload) {
	in, f := w.Intent, w.Failure
	e, engine := x.Engine(w.Kind)
	match := in.observed(w.Observed)
	fits := match.state != workload.Absent && (match.content == in.EngineContent || match.current)
	switch {
	case fits:
		st.Content = cmp.Or(in.Content, in.EngineContent)
	case w.Observed != nil:
		st.Content = match.content
	}
	switch {
	case in.Deleting:
		st.State, st.Message = workload.Pending, "being deleted"
		if f.Message != "" {
			st.failure(f)
			st.Metadata["last_delete_error"] = workload.Bound(f.Message)
		}
	case w.Task.Open():
		st.State, st.Message = workload.Pending, "queued"
		if w.Task.Status == TaskRunning {
			st.Message = cmp.Or(w.busy, "in work")
		}
		if e.Trouble != "" {
			st.Message, st.Class = "waits for the runtime: "+e.Trouble, workload.RuntimeUnhealthy
		}
	case !engine:
		st.State, st.Message, st.Class = workload.Failed, "runtime not available: "+string(w.Kind), workload.RuntimeError
	case e.Trouble != "" || !e.Listed:
		st.State, st.Message, st.Class = workload.Unknown, "runtime: "+e.Cause(), workload.RuntimeUnhealthy
	case match.state == workload.Running && fits && in.Running():
		st.State, st.Message = workload.Running, w.Observed.Message
		if w.watched != "" {
			st.Message, st.Health = w.healthNow()
		}
	case w.memory.lapsed && in.Running():
		st.State, st.Message = workload.Stopped, lapsedMessage
	case w.memory.waits && in.Running() && !(f.Final && f.Next.IsZero()):
		st.State, st.Message = workload.Stopped, waitsMessage
	case f.Final && !in.Running() && match.state == workload.Running:
		st.failure(f) // the stop failed
		st.State = workload.Running
	case f.Final && in.Running():
		st.failure(f)
		st.State = workload.Failed
		if match.state == workload.Running && !fits {
			st.Message += "; the former revision still runs"
		}
	case f.Attempts > 0 && (in.Running() || match.state == workload.Running):
		st.failure(f)
		st.State = workload.Pending
	case w.Observed == nil && in.Running():
		st.State, st.Message = workload.Pending, "missing, to be created"
	case w.Observed == nil:
		st.State = workload.Stopped
	default:
		o := w.Observed.Under(in.Running())
		st.State, st.Message, st.Class = o.State, o.Message, o.Class
	}
}

// failure adds a failure to the report.
func (st *Status) failure(f Failure) {
	text := workload.Bound(f.Message)
	st.Class, st.Message, st.RetryAt = f.Class, text, f.Next
	m := st.Metadata
	m["failure_reason"], m["failure_message"], m["last_error"] = string(f.Class), text, text
	m["last_failure_at"] = f.At.UTC().Format(time.RFC3339)
	m["retry_attempts"] = strconv.Itoa(f.Attempts)
	if !f.Next.IsZero() {
		m["next_retry_time"] = f.Next.UTC().Format(time.RFC3339)
	}
	if f.Class.Permanent() {
		m["retry_terminal"], m["retry_terminal_reason"] = "true", text
	}
}

// healthNow returns the message and the health of a workload with a health check. The health is the
// worse of that check and of the image's own check.
func (w *Workload) healthNow() (message, health string) {
	state := cmp.Or(w.health, string(workload.Starting))
	message = healthPrefix + state
	if w.detail != "" {
		message += " (" + w.detail + ")"
	}
	if w.Observed.Health != "" {
		message = w.Observed.Message + "; " + message
	}
	return message, cmp.Or(string(workload.Health(state).Worse(w.Observed.Health)), state)
}

// forwarded returns the ports that the host forwards, sorted and without duplicates.
func forwarded(ports []workload.Port) (out []workload.Port) {
	for _, p := range ports {
		if p.HostPort > 0 {
			out = append(out, workload.Port{HostPort: p.HostPort, Port: p.Port, Protocol: p.Protocol})
		}
	}
	slices.SortFunc(out, func(x, y workload.Port) int {
		return cmp.Or(cmp.Compare(x.Port, y.Port), cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.HostPort, y.HostPort))
	})
	return slices.Compact(out)
}
