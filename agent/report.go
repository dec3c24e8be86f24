package agent

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
)

// report is what the agent says of one workload. Published statuses are never changed.
type report struct {
	status  *agentv1.WorkloadStatus
	class   driver.Class // why it failed, or what is being retried
	since   time.Time    // when the actual state last changed
	retryAt time.Time    // of the next local attempt
}

func (r report) equal(other report) bool {
	return r.class == other.class && r.retryAt.Equal(other.retryAt) && proto.Equal(r.status, other.status)
}

// assess makes the report of a workload; now only dates it.
func (a *Agent) assess(w *workload, now time.Time) report {
	e := a.engines[w.kind]
	st := &agentv1.WorkloadStatus{Id: w.id, Type: kindType(w.kind)}
	r := report{status: st}
	if o := w.observed; o != nil {
		st.Metadata = maps.Clone(o.Metadata)
		st.RestartCount = int32(o.RestartCount)
		st.Health = string(o.Health)
		// Behind ports that the host forwards is a network that is known on this machine only: others
		// reach the workload at the node's address.
		if st.Ports = bound(o.Ports); len(st.Ports) == 0 {
			st.Addresses = slices.Clone(o.Addresses)
		}
	}
	if st.Metadata == nil {
		st.Metadata = map[string]string{}
	}
	if in := w.intent; in != nil {
		st.RevisionId = in.RevisionID
		st.DesiredState = desiredState(in)
		st.CreatedAt = unix(in.CreatedAt)
		st.Generation = generationProto(in.Generation)
		a.judge(&r, w, e, now)
		if limit := in.diskLimit(); limit > 0 && w.observed != nil {
			st.Metadata["disk_limit"] = diskShown(limit, w.observed.DiskCapped)
		}
	} else {
		o := w.observed
		st.RevisionId, st.Content, st.Generation = o.Revision, o.Content, generationProto(o.Generation)
		st.ActualState = actualState(o.State)
		st.Message = "runs here without an order; left alone"
		r.class = o.Class
	}
	if w.task.open() {
		st.Metadata["task_id"], st.Metadata["task_status"] = w.task.ID, w.task.Status
	}
	// What programs say may be anything, and one string that is not UTF-8 keeps a whole heartbeat from being sent.
	st.Message = valid(st.Message)
	for key, value := range st.Metadata {
		st.Metadata[key] = valid(value)
	}
	r.since = now
	if old := w.report.status; old != nil {
		st.UpdatedAt = old.UpdatedAt
		if old.ActualState == st.ActualState {
			r.since = w.report.since
		}
	}
	return r
}

// valid is text with what is not UTF-8 in it replaced.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

// waitsMessage is reported with Stopped, which makes the schedulers order the workload again.
const waitsMessage = "exclusive: waits for the scheduler's order after a restart"

// lapsedMessage is the same for what was stopped with the lease.
const lapsedMessage = "exclusive: stopped when the node's lease ended; waits for the scheduler's next order"

// judge fills the state of an ordered workload.
func (a *Agent) judge(r *report, w *workload, e *engine, now time.Time) {
	st, in, f := r.status, w.intent, w.fail
	match := in.observed(w.observed)
	fits := match.state != driver.Absent && (match.content == in.EngineContent || match.current)
	switch {
	case fits:
		st.Content = in.Content
		if st.Content == "" {
			st.Content = in.EngineContent
		}
	case w.observed != nil:
		st.Content = match.content
	}
	note := func() {
		text := driver.Bound(f.Message)
		r.class, st.Message, r.retryAt = f.Class, text, f.Next
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
	switch {
	case in.Deleting:
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_PENDING, "being deleted"
		if f.Message != "" {
			note()
			st.Metadata["last_delete_error"] = driver.Bound(f.Message)
		}
	case w.task.open():
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_PENDING, "queued"
		if w.task.Status == taskRunning {
			st.Message = cmp.Or(w.busy, "in work")
		}
		if e != nil && e.trouble != "" {
			st.Message = "waits for the runtime: " + e.trouble
			r.class = driver.RuntimeUnhealthy
		}
	case e == nil:
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_FAILED
		st.Message, r.class = "runtime not available: "+string(w.kind), driver.RuntimeError
	case e.trouble != "" || !e.listed:
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_UNKNOWN
		st.Message, r.class = "runtime: "+e.cause(), driver.RuntimeUnhealthy
	case match.state == driver.Running && fits && in.running():
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_RUNNING, w.observed.Message
		if a.checks != nil && in.spec.GetHealthCheck() != nil {
			st.Message, st.Health = a.healthOf(w)
		}
	case w.lapsed && in.running():
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_STOPPED, lapsedMessage
	case w.waits && in.running() && !(f.Final && f.Next.IsZero()):
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_STOPPED, waitsMessage
	case f.Final && !in.running() && match.state == driver.Running:
		note() // it was to be stopped, and could not be
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_RUNNING
	case f.Final && in.running():
		note()
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_FAILED
		if match.state == driver.Running && !fits {
			st.Message += "; the former revision still runs"
		}
	case f.Attempts > 0 && (in.running() || match.state == driver.Running):
		note()
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_PENDING
	case w.observed == nil && in.running():
		st.ActualState, st.Message = agentv1.ActualState_ACTUAL_STATE_PENDING, "missing, to be created"
	case w.observed == nil:
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_STOPPED
	default:
		o := w.observed.Under(in.running())
		st.ActualState, st.Message, r.class = actualState(o.State), o.Message, o.Class
	}
}

// bound lists the ports that the host forwards, each once however many addresses it is bound on, in
// a fixed order.
func bound(ports []driver.Port) []*agentv1.PortMapping {
	var out []*agentv1.PortMapping
	for _, p := range ports {
		m := &agentv1.PortMapping{HostPort: int32(p.HostPort), ContainerPort: int32(p.Port), Protocol: p.Protocol}
		if p.HostPort > 0 && !slices.ContainsFunc(out, func(o *agentv1.PortMapping) bool { return proto.Equal(o, m) }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(x, y *agentv1.PortMapping) int {
		return cmp.Or(cmp.Compare(x.ContainerPort, y.ContainerPort), cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.HostPort, y.HostPort))
	})
	return out
}

func actualState(s driver.State) agentv1.ActualState {
	switch s {
	case driver.Pending:
		return agentv1.ActualState_ACTUAL_STATE_PENDING
	case driver.Running:
		return agentv1.ActualState_ACTUAL_STATE_RUNNING
	case driver.Stopped:
		return agentv1.ActualState_ACTUAL_STATE_STOPPED
	case driver.Failed:
		return agentv1.ActualState_ACTUAL_STATE_FAILED
	}
	return agentv1.ActualState_ACTUAL_STATE_UNKNOWN
}

// publish renews a workload's report and, if it changed, makes it due for a heartbeat and for the
// file. It is called with mu held.
func (a *Agent) publish(w *workload, now time.Time) {
	a.check(w)
	next := a.assess(w, now)
	if w.report.status != nil && next.equal(w.report) {
		return
	}
	next.status.UpdatedAt = now.Unix()
	if next.status.ActualState == agentv1.ActualState_ACTUAL_STATE_FAILED &&
		w.report.status.GetActualState() != agentv1.ActualState_ACTUAL_STATE_FAILED {
		a.metrics.failed(next.class)
	}
	w.report = next
	a.version++
	w.version = a.version
	if w.intent != nil {
		a.unsaved[w.id] = true
		nudge(a.unkept)
	}
	a.signal()
}

func (w *workload) save() savedStatus {
	st := w.report.status
	return savedStatus{
		ID: w.id, Type: w.kind, RevisionID: st.RevisionId, DesiredState: w.intent.DesiredState,
		ActualState: stateWord(st.ActualState), Message: st.Message,
		CreatedAt: w.intent.CreatedAt, UpdatedAt: time.Unix(st.UpdatedAt, 0).UTC(),
		Metadata: st.Metadata, Failure: w.fail,
	}
}

// report is what was last said, until the engine has been asked.
func (s savedStatus) report(in *intent) report {
	st := &agentv1.WorkloadStatus{
		Id: in.ID, Type: kindType(in.Type), RevisionId: in.RevisionID, Message: s.Message,
		ActualState: agentv1.ActualState(agentv1.ActualState_value["ACTUAL_STATE_"+strings.ToUpper(s.ActualState)]),
		CreatedAt:   unix(in.CreatedAt), UpdatedAt: unix(s.UpdatedAt), Metadata: s.Metadata,
		Generation: generationProto(in.Generation), DesiredState: desiredState(in),
	}
	if st.ActualState == agentv1.ActualState_ACTUAL_STATE_UNSPECIFIED {
		st.ActualState = agentv1.ActualState_ACTUAL_STATE_UNKNOWN
	}
	return report{status: st, class: s.Failure.Class, since: s.UpdatedAt, retryAt: s.Failure.Next}
}

// stateWord is the word of the file and of metrics.
func stateWord(s agentv1.ActualState) string { return strings.ToLower(stateName(s)) }

// stateName is the word of the control API.
func stateName(s agentv1.ActualState) string {
	switch s {
	case agentv1.ActualState_ACTUAL_STATE_PENDING:
		return "Pending"
	case agentv1.ActualState_ACTUAL_STATE_RUNNING:
		return "Running"
	case agentv1.ActualState_ACTUAL_STATE_STOPPED:
		return "Stopped"
	case agentv1.ActualState_ACTUAL_STATE_FAILED:
		return "Failed"
	}
	return "Unknown"
}

// control is the report as the control API says it.
func (w *workload) control() *controlv1.WorkloadStatus {
	st, r := w.report.status, w.report
	out := &controlv1.WorkloadStatus{
		WorkloadId: st.Id, State: stateName(st.ActualState), Message: st.Message,
		LastTransition: timestamppb.New(r.since), RevisionId: st.RevisionId,
		RestartCount: st.RestartCount, Addresses: st.Addresses, Content: st.Content, Health: st.Health,
	}
	for _, p := range st.Ports {
		out.Ports = append(out.Ports, &controlv1.Port{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: p.Protocol})
	}
	if g := st.Generation; g != nil {
		out.Generation = &controlv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
	}
	switch st.DesiredState {
	case agentv1.DesiredState_DESIRED_STATE_RUNNING:
		out.DesiredState = "Running"
	case agentv1.DesiredState_DESIRED_STATE_STOPPED:
		out.DesiredState = "Stopped"
	}
	if !w.seen.IsZero() {
		out.ObservedAt = timestamppb.New(w.seen)
	}
	if r.class != "" {
		out.Reason = &controlv1.ReasonDetail{
			Code: string(r.class), Message: st.Message, LastTransition: timestamppb.New(r.since),
			Retryable: !r.class.Permanent(),
		}
		if !r.retryAt.IsZero() {
			out.Reason.NextRetryAt = timestamppb.New(r.retryAt)
		}
		if st.ActualState == agentv1.ActualState_ACTUAL_STATE_FAILED {
			out.FailureReason = controlv1.FailureReason(controlv1.FailureReason_value[r.class.FailureReason(w.kind)])
		}
	}
	return out
}

func (t *tombstone) control() *controlv1.WorkloadStatus {
	out := &controlv1.WorkloadStatus{
		WorkloadId: t.ID, State: "Unknown", Message: "deleted", Absent: true,
		LastTransition: timestamppb.New(t.DeletedAt),
	}
	if g := t.Generation; g != (driver.Generation{}) {
		out.Generation = &controlv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
	}
	return out
}

// tombstoneReported is how long a full heartbeat repeats what was deleted.
const tombstoneReported = 10 * time.Minute

// changes are the reports newer than a version, or all of them, by id; and the version they bring
// a reader to. A legacy v1 scheduler (ours is false) would take a tombstone or an instance without
// order for a workload of this node, so it is told only of what was ordered.
func (a *Agent) changes(full, ours bool, after uint64, now time.Time) ([]*controlv1.WorkloadStatus, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*controlv1.WorkloadStatus
	for _, w := range a.workloads {
		if w.report.status != nil && (full || w.version > after) && (ours || w.intent != nil) {
			out = append(out, w.control())
		}
	}
	for _, t := range a.tombs {
		if !ours || !t.Done || a.workloads[t.ID] != nil {
			continue
		}
		if t.version > after || full && now.Sub(t.DeletedAt) < tombstoneReported {
			out = append(out, t.control())
		}
	}
	slices.SortFunc(out, func(x, y *controlv1.WorkloadStatus) int { return cmp.Compare(x.WorkloadId, y.WorkloadId) })
	shorten(out)
	return out, a.version
}

// shorten leaves each message its share of a MiB, if they are more together: when a disk fails, everything on it
// has a long one, and a heartbeat that is too long to be sent loses the node.
func shorten(list []*controlv1.WorkloadStatus) {
	const mostWords = 1 << 20
	total := 0
	for _, s := range list {
		total += len(s.Message) + len(s.GetReason().GetMessage())
	}
	if total <= mostWords {
		return
	}
	share := mostWords / len(list) / 2 // of the two that say the same
	for _, s := range list {
		s.Message = driver.Tail(s.Message, share)
		if s.Reason != nil {
			s.Reason.Message = driver.Tail(s.Reason.Message, share)
		}
	}
}

// statuses answers ListWorkloads, by id.
func (a *Agent) statuses(kind agentv1.WorkloadType) []*agentv1.WorkloadStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*agentv1.WorkloadStatus
	for _, w := range a.workloads {
		if st := w.report.status; st != nil && (kind == agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED || st.Type == kind) {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(x, y *agentv1.WorkloadStatus) int { return cmp.Compare(x.Id, y.Id) })
	return out
}
