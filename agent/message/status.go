package message

import (
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order/wire"
)

// Status converts the core's report of a workload to a message of the agent API.
func Status(st *core.Status) *agentv1.WorkloadStatus {
	out := &agentv1.WorkloadStatus{
		Id: st.ID, Type: spec.TypeOf(st.Kind), RevisionId: st.Revision, Content: st.Content, Generation: wire.Agent(st.Generation),
		DesiredState: desiredState(st.DesiredState), ActualState: actualState(st.State), Message: st.Message, Health: st.Health,
		RestartCount: int32(st.RestartCount), Addresses: st.Addresses, Metadata: st.Metadata,
		CreatedAt: unix(st.CreatedAt), UpdatedAt: unix(st.UpdatedAt),
	}
	if x := st.Exit; !x.EndedAt.IsZero() {
		out.Exit = &agentv1.Exit{Code: int32(x.Code), EndedAt: x.EndedAt.UnixNano(), Output: x.Output}
		if !x.StartedAt.IsZero() {
			out.Exit.StartedAt = x.StartedAt.UnixNano()
		}
	}
	for _, p := range st.Ports {
		out.Ports = append(out.Ports, &agentv1.PortMapping{HostPort: int32(p.HostPort), ContainerPort: int32(p.Port), Protocol: p.Protocol, Address: p.HostIP})
	}
	return out
}

// Statuses returns the reports of the workloads of a type, ordered by id. For UNSPECIFIED it returns the
// reports of all workloads.
func Statuses(s core.State, kind agentv1.WorkloadType) (out []*agentv1.WorkloadStatus) {
	for w := range s.Workloads() {
		if st := w.Status; st != nil && (kind == agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED || spec.TypeOf(st.Kind) == kind) {
			out = append(out, Status(st))
		}
	}
	return out
}

func actualState(s workload.State) agentv1.ActualState {
	switch s {
	case workload.Pending:
		return agentv1.ActualState_ACTUAL_STATE_PENDING
	case workload.Running:
		return agentv1.ActualState_ACTUAL_STATE_RUNNING
	case workload.Stopped:
		return agentv1.ActualState_ACTUAL_STATE_STOPPED
	case workload.Failed:
		return agentv1.ActualState_ACTUAL_STATE_FAILED
	}
	return agentv1.ActualState_ACTUAL_STATE_UNKNOWN
}

func desiredState(text string) agentv1.DesiredState {
	switch text {
	case "running":
		return agentv1.DesiredState_DESIRED_STATE_RUNNING
	case "stopped":
		return agentv1.DesiredState_DESIRED_STATE_STOPPED
	}
	return agentv1.DesiredState_DESIRED_STATE_UNSPECIFIED
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// Applied returns the response to an order to run or stop a workload that the core did not find unavailable
// (core.Answer.Unavailable). highest is the highest epoch that the agent has seen.
func Applied(req *agentv1.ApplyWorkloadRequest, answer core.Answer, highest core.Epoch) *agentv1.ApplyWorkloadResponse {
	switch {
	case answer.Refusal != nil:
		return applyRefused(req, answer.Refusal, highest)
	case answer.Skipped:
		return &agentv1.ApplyWorkloadResponse{Applied: true, Skipped: true, Message: answer.Message, Status: Status(answer.Status)}
	}
	in, t := answer.Intent, answer.Task
	return &agentv1.ApplyWorkloadResponse{
		Applied: true, Message: answer.Message,
		Status: &agentv1.WorkloadStatus{
			Id: in.ID, Type: spec.TypeOf(in.Type), RevisionId: in.RevisionID, DesiredState: desiredState(in.DesiredState),
			ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING, Message: answer.Message,
			CreatedAt: unix(in.CreatedAt), UpdatedAt: in.UpdatedAt.Unix(),
			Metadata:   map[string]string{"task_id": t.ID, "task_status": t.Status},
			Generation: wire.Agent(in.Generation), Content: in.Content,
		},
	}
}

func applyRefused(req *agentv1.ApplyWorkloadRequest, no *core.Refusal, highest core.Epoch) *agentv1.ApplyWorkloadResponse {
	out := &agentv1.ApplyWorkloadResponse{Message: no.Message, Fenced: no.Fenced}
	if no.Class != "" {
		out.Status = &agentv1.WorkloadStatus{
			Id: req.GetId(), Type: req.GetType(), RevisionId: req.GetRevisionId(), Message: no.Message,
			ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED,
			Metadata:    map[string]string{"failure_reason": string(no.Class), "failure_message": no.Message},
		}
	}
	if no.Fenced {
		out.HighestEpoch = epochOf(highest)
	}
	return out
}

// Deleted returns the response to a delete. highest is the highest epoch that the agent has seen.
func Deleted(answer core.Answer, highest core.Epoch) *agentv1.DeleteWorkloadResponse {
	no := answer.Refusal
	if no == nil {
		return &agentv1.DeleteWorkloadResponse{Success: true, Absent: answer.Absent, Message: answer.Message}
	}
	out := &agentv1.DeleteWorkloadResponse{Message: no.Message, Fenced: no.Fenced}
	if no.Fenced {
		out.HighestEpoch = epochOf(highest)
	}
	return out
}

// epochOf converts an epoch. It returns nil for the zero epoch, which the agent has before the first order of a leader.
func epochOf(e core.Epoch) *agentv1.Epoch {
	if !e.Owned() {
		return nil
	}
	return &agentv1.Epoch{ClusterId: e.ClusterID, Shard: e.Shard, Incarnation: e.Incarnation, Term: e.Term}
}
