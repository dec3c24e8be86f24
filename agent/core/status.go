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

// Status is the agent's report of one workload. A Status that is part of a State is never changed; a change
// makes a new Status.
type Status struct {
	ID           string
	Kind         workload.Kind
	Revision     string
	Content      string
	Generation   workload.Generation
	DesiredState string         // desired state: "running" or "stopped"; empty without an order
	State        workload.State // Pending, Running, Stopped, Failed or Unknown
	Message      string
	Class        workload.Class // class of the last failure, whether or not it is retried
	Reason       string         // why the state is not the desired one although nothing failed: ReasonCompleted, ReasonWorking or ""
	Health       string
	RestartCount int
	Addresses    []string
	Ports        []workload.Port // ports that the host forwards to the instance, without duplicates
	Metadata     map[string]string
	CreatedAt    time.Time
	UpdatedAt    time.Time // when the report last changed; whole seconds
	Since        time.Time // when State last changed
	RetryAt      time.Time // time of the next attempt
	Exit         Exit      // how the instance ended; the zero value if it has not ended
	TryElsewhere bool      // no instance runs, the cause of the failure belongs to this node, and the agent has tried often enough
}

// Exit is how an instance ended.
type Exit struct {
	Code               int
	StartedAt, EndedAt time.Time
	Output             string // last lines of output of a container of a job
}

// same reports whether s and o are equal, apart from UpdatedAt and Since.
func (s *Status) same(o *Status) bool {
	return s.Kind == o.Kind && s.Revision == o.Revision && s.Content == o.Content && s.Generation == o.Generation &&
		s.DesiredState == o.DesiredState && s.State == o.State && s.Message == o.Message && s.Class == o.Class && s.Reason == o.Reason &&
		s.Health == o.Health && s.RestartCount == o.RestartCount && slices.Equal(s.Addresses, o.Addresses) &&
		slices.Equal(s.Ports, o.Ports) && maps.Equal(s.Metadata, o.Metadata) && s.CreatedAt.Equal(o.CreatedAt) &&
		s.RetryAt.Equal(o.RetryAt) && s.Exit == o.Exit && s.TryElsewhere == o.TryElsewhere
}

// ReasonCompleted: the workload has ended with success, and its restart policy does not start it again.
const ReasonCompleted = "Completed"

// ReasonWorking is the reason of a workload whose agent is carrying the order out. The message says what the
// agent does or waits for. The schedulers do not give up a workload with this reason, because the agent itself
// ends an action that makes no progress.
const ReasonWorking = "Working"

// waitsMessage is reported with state Stopped for an exclusive workload after a restart of the agent. The
// schedulers then order the workload again.
const waitsMessage = "exclusive: waits for the scheduler's order after a restart"

// lapsedMessage is reported with state Stopped for a workload that was stopped because the lease of this node
// has ended.
const lapsedMessage = "exclusive: stopped when the node's lease ended; waits for the scheduler's next order"

// healthPrefix starts the message of a running workload with a health check. The state of the check
// follows, and the reason in parentheses if there is one.
const healthPrefix = "running, health check: "

// publish updates the report of a workload. If the report changed, it is stored and sent with the next
// heartbeat.
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
		instance = in.checkOf(o)
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

// checkOf returns a text that identifies a health check and the run of the instance for which it is made.
func (in *Intent) checkOf(o *workload.Observed) string {
	return o.RuntimeID + " " + o.StartedAt.String() + " " + in.Traits.HealthCheck
}

// assess makes the report of a workload.
func (x *step) assess(w *Workload) *Status {
	st := &Status{ID: w.ID, Kind: w.Kind, Metadata: map[string]string{}, Since: x.now}
	if o := w.Observed; o != nil {
		if o.Metadata != nil {
			st.Metadata = maps.Clone(o.Metadata)
		}
		st.RestartCount, st.Health = o.RestartCount, string(o.Health)
		if n := w.Healing.of(o); n > 0 {
			st.RestartCount += n
			st.Metadata["health_restarts"] = strconv.Itoa(n)
		}
		// If the host forwards ports, the instance's network is private to this machine, and clients use the
		// node's address.
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
				by = "enforced by the engine"
			}
			st.Metadata["disk_limit"] = fmt.Sprintf("%d GiB, %s", limit>>30, by)
		}
	} else {
		o := w.Observed
		st.Revision, st.Content, st.Generation, st.Class = o.Revision, o.Content, o.Generation, o.Class
		st.State, st.Message = o.State, "an instance with our labels but without an order; the agent leaves it as it is"
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

// judge sets the state in the report st from the order of the workload w and its observed instance.
func (x *step) judge(st *Status, w *Workload) {
	in, f := w.Intent, w.Failure
	e, engine := x.Engine(w.Kind)
	match := in.observed(w.Observed)
	fits := in.fits(match)
	runs := match.state == workload.Running || match.state == workload.Failed && match.partly
	switch {
	case fits:
		st.Content = cmp.Or(in.Content, in.EngineContent)
	case w.Observed != nil:
		st.Content = match.content
	}
	switch {
	case in.Deleting:
		st.State, st.Message = workload.Pending, "being deleted"
		st.now(w.busy)
		if f.Message != "" {
			st.failure(f)
			st.Metadata["last_delete_error"] = workload.Bound(f.Message)
		}
	case w.Task.Open():
		st.State, st.Message = workload.Pending, "queued"
		if w.Task.Status == TaskRunning {
			st.Message = cmp.Or(w.busy, "in work")
		}
		if st.Reason = ReasonWorking; e.Trouble != "" {
			st.Reason, st.Message, st.Class = "", "waits for the runtime: "+e.Trouble, workload.RuntimeUnhealthy
		}
	case !engine:
		st.State, st.Message, st.Class = workload.Failed, "runtime not available: "+string(w.Kind), workload.RuntimeError
	case e.Trouble != "" || !e.Listed:
		st.State, st.Message, st.Class = workload.Unknown, "runtime: "+e.Cause(), workload.RuntimeUnhealthy
	case in.Running() && x.heals(w.ID):
		st.State, st.Reason, st.Message = workload.Pending, ReasonWorking, "restarting it, because it is unhealthy: "+w.healed
	case match.state == workload.Running && fits && in.Running():
		st.State, st.Message = workload.Running, w.Observed.Message
		if w.watched != "" {
			st.Message, st.Health = w.healthNow()
		}
	case w.memory.lapsed && in.Running() && !w.finished():
		st.State, st.Message = workload.Stopped, lapsedMessage
	case w.memory.waits && in.Running() && !(f.Final && f.Next.IsZero()) && !(fits && w.completed()):
		st.State, st.Message = workload.Stopped, waitsMessage
	case f.Final && !in.Running() && runs:
		st.failure(f) // the workload still runs, because stopping it failed
		st.State = workload.Running
	case f.Final && in.Running():
		st.failure(f)
		st.State = workload.Failed
		st.former(match.state == workload.Running && !fits)
		if fits && (in.Traits.neverAgain() || w.Observed.KeepEnded && !in.Traits.Job) && w.hasRun() {
			st.Message += neverAgain
			st.terminal()
		}
	case f.Attempts > 0 && (in.Running() || runs):
		st.failure(f)
		st.State = workload.Pending
		st.former(match.state == workload.Running && !fits && in.Running())
		st.now(w.busy)
		st.TryElsewhere = in.Running() && f.OfNode >= x.Policy.Limit && w.idle() && w.busy == "" // a slow pull is no failure
	case w.Observed == nil && in.Running():
		st.State, st.Message = workload.Pending, "the instance is missing and will be created"
		st.now(w.busy)
	case in.Running() && in.Restart && w.idle():
		st.State, st.Message = workload.Pending, "waits for its restart"
		st.now(w.busy)
	case w.Observed == nil:
		st.State = workload.Stopped
	default:
		o := w.Observed.Under(in.Running())
		st.State, st.Message, st.Class = o.State, o.Message, o.Class
		if w.completed() {
			st.Reason = ReasonCompleted
			st.Message += neverAgain
		}
	}
	// Schedulers take a report with an exit as the end of the workload, which then never leaves its node. So a stack
	// of which other services still run has an exit only if the stack is a job.
	if o := w.Observed; fits && w.ended() && (in.Traits.Job || !o.PartlyRunning) && (st.Reason == ReasonCompleted || st.State == workload.Failed && o.State == workload.Failed) {
		st.Exit = exitOf(o)
	}
}

// exitOf returns how an instance that is not running ended.
func exitOf(o *workload.Observed) Exit {
	return Exit{Code: o.ExitCode, StartedAt: o.StartedAt, EndedAt: o.FinishedAt, Output: Valid(o.Output)}
}

// ended reports whether the instance ended by itself, in the run that the last order asked for. ended is false
// if the agent stopped the instance, if a start has failed since, or if a forced restart is pending.
func (w *Workload) ended() bool {
	return (w.Intent == nil || !w.Intent.Restart) && w.Observed != nil && !w.Observed.FinishedAt.IsZero() && w.Failure.Attempts == 0 && w.Failure.Ended == mark(w.Observed)
}

// completed reports whether the instance has ended with success and its restart policy does not start it
// again. The end of an instance with a former specification, which the agent replaces, does not count, and neither does an end
// before a forced restart.
func (w *Workload) completed() bool {
	in, o := w.Intent, w.Observed
	return in.Running() && !in.Restart && o != nil && o.State == workload.Stopped && in.fits(in.observed(o)) && in.keepsEnded(o) && w.Failure.Ended != "" && w.Failure.Attempts == 0
}

// hasRun reports whether the run that the present order asked for has ended by itself, with success or not, and the
// restart policy does not start it again. A repetition of the order (sent, for example, because its acknowledgement
// was lost) must not run a job a second time. For another run, schedulers send an order with a newer generation.
// Legacy v1 schedulers have no generations.
func (w *Workload) hasRun() bool {
	in := w.Intent
	return in.Running() && in.Generation != (workload.Generation{}) && in.keepsEnded(w.Observed) && w.ended()
}

// finished reports whether the instance of the present order has ended by itself, with success or not, and its restart
// policy does not start it again. The end of an instance from before the order does not count.
func (w *Workload) finished() bool {
	in, o := w.Intent, w.Observed
	return in.Running() && in.fits(in.observed(o)) && in.keepsEnded(o) && w.ended() && (o.FinishedAt.After(w.ordered()) || in.ranFor(o, w.ordered()))
}

// follows reports whether the intent in is that of the present order of the workload, or of a repetition of
// this order with the same generation. w may be nil.
func (w *Workload) follows(in *Intent) bool {
	switch {
	case w == nil || w.Intent == nil || in == nil:
		return false
	case w.Intent == in:
		return true
	}
	return in.Generation != (workload.Generation{}) && w.Intent.Generation == in.Generation && w.Intent.sameOrder(in)
}

// idle reports whether no instance of the workload runs. A stack with a failed service may still have
// running services. A paused container is listed as stopped, but has not ended.
func (w *Workload) idle() bool {
	o := w.Observed
	switch {
	case len(w.Intent.PreviousTypes) > 0:
		return false
	case o == nil:
		return true
	case o.State != workload.Stopped && (o.State != workload.Failed || w.Kind == workload.Compose):
		return false
	}
	return o.StartedAt.IsZero() || !o.FinishedAt.IsZero()
}

// former adds the note to the message of a report that the instance of the previous revision still runs. It
// adds nothing if runs is false.
func (st *Status) former(runs bool) {
	if runs {
		st.Message += "; the former revision still runs"
	}
}

// now adds to the message of a report the driver's present activity (busy), such as the pull of an image.
func (st *Status) now(busy string) {
	if busy != "" {
		st.Message += "; now: " + busy
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
	if f.Class.Cause() == workload.Final {
		st.terminal()
	}
}

// neverAgain is the end of the message about an instance that has ended and that its restart policy does
// not start again.
const neverAgain = "; its restart policy does not start it again"

// terminal tells the schedulers that no retry helps.
func (st *Status) terminal() {
	st.Metadata["retry_terminal"], st.Metadata["retry_terminal_reason"] = "true", st.Message
}

// healthNow returns the message and the health of a workload with a health check. The health is the worse of
// two results: that of the health check in the order and that of the health check in the image.
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
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y workload.Port) int {
		return cmp.Or(cmp.Compare(x.Port, y.Port), cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.HostPort, y.HostPort), cmp.Compare(x.HostIP, y.HostIP))
	})
	return slices.Compact(out)
}
