package message

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/workload"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/order/wire"
)

// Reports returns the reports of workloads for a heartbeat, ordered by id: all of them if full is set, and otherwise
// those that are newer than the version given as after. It also returns the version of the newest report. epochs is
// false for a legacy v1 scheduler (see core.State.Changes).
func Reports(s core.State, full, epochs bool, after uint64, now time.Time) ([]*controlv1.WorkloadStatus, uint64) {
	var out []*controlv1.WorkloadStatus
	changed, gone := s.Changes(full, epochs, after, now)
	for _, w := range changed {
		out = append(out, report(w))
	}
	for _, t := range gone {
		st := &controlv1.WorkloadStatus{
			WorkloadId: t.ID, State: "Unknown", Message: "deleted", Absent: true,
			LastTransition: timestamppb.New(t.DeletedAt), Generation: wire.Control(t.Generation),
		}
		if t.Exit != nil {
			st.Exit = exit(*t.Exit)
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(x, y *controlv1.WorkloadStatus) int { return cmp.Compare(x.WorkloadId, y.WorkloadId) })
	shorten(out)
	return out, s.Version
}

// report converts the status of a workload to a message of the control API.
func report(w *core.Workload) *controlv1.WorkloadStatus {
	st := w.Status
	out := &controlv1.WorkloadStatus{
		WorkloadId: st.ID, State: stateName(st.State), Message: st.Message,
		LastTransition: timestamppb.New(st.Since), RevisionId: st.Revision,
		RestartCount: int32(st.RestartCount), Addresses: st.Addresses, Content: st.Content, Health: st.Health,
		Generation: wire.Control(st.Generation), TryElsewhere: st.TryElsewhere, Terminal: st.Metadata["retry_terminal"] == "true",
	}
	for _, p := range st.Ports {
		out.Ports = append(out.Ports, &controlv1.Port{HostPort: int32(p.HostPort), ContainerPort: int32(p.Port), Protocol: p.Protocol, Address: p.HostIP})
	}
	if x := st.Exit; !x.EndedAt.IsZero() {
		out.Exit = exit(x)
	}
	switch st.DesiredState {
	case "running":
		out.DesiredState = "Running"
	case "stopped":
		out.DesiredState = "Stopped"
	}
	if !w.Seen.IsZero() {
		out.ObservedAt = timestamppb.New(w.Seen)
	}
	if st.Reason != "" {
		out.Reason = &controlv1.ReasonDetail{Code: st.Reason, Message: st.Message, LastTransition: timestamppb.New(st.Since)}
	}
	if st.Class != "" {
		out.Reason = &controlv1.ReasonDetail{
			Code: string(st.Class), Message: st.Message, LastTransition: timestamppb.New(st.Since), Retryable: st.Class.Cause() != workload.Final,
		}
		if !st.RetryAt.IsZero() {
			out.Reason.NextRetryAt = timestamppb.New(st.RetryAt)
		}
		if st.State == workload.Failed {
			out.FailureReason = controlv1.FailureReason(controlv1.FailureReason_value[st.Class.FailureReason(st.Kind)])
		}
	}
	return out
}

func exit(x core.Exit) *controlv1.Exit {
	out := &controlv1.Exit{Code: int32(x.Code), EndedAt: timestamppb.New(x.EndedAt), Output: x.Output}
	if !x.StartedAt.IsZero() {
		out.StartedAt = timestamppb.New(x.StartedAt)
	}
	return out
}

func stateName(s workload.State) string {
	switch s {
	case workload.Pending, workload.Running, workload.Stopped, workload.Failed:
		return string(s)
	}
	return "Unknown"
}

// shorten cuts the messages in the reports of a heartbeat if all of them together exceed a MiB. When a disk
// fails, every workload on it may have a long message. If the heartbeat became too long to be sent, the
// schedulers would consider the node lost.
func shorten(list []*controlv1.WorkloadStatus) {
	const mostWords = 1 << 20
	total := 0
	for _, s := range list {
		total += len(s.Message) + len(s.GetReason().GetMessage())
	}
	if total <= mostWords {
		return
	}
	share := mostWords / len(list) / 2 // a report may contain its text twice: in Message and in Reason.Message
	for _, s := range list {
		s.Message = workload.Tail(s.Message, share)
		if s.Reason != nil {
			s.Reason.Message = workload.Tail(s.Reason.Message, share)
		}
	}
}
