package server

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

// actions returns the tasks that match a request.
func actions(s core.State, req *agentv1.ListActionsRequest) (out []*agentv1.AgentAction) {
	list := s.Tasks()
	if req.GetNewestFirst() {
		list = s.TasksNewestFirst()
	}
	for t := range list {
		wanted := true
		for _, f := range [][2]string{{req.GetWorkloadId(), t.Workload}, {req.GetActionType(), t.Action}, {req.GetStatus(), t.Status}} {
			wanted = wanted && (f[0] == "" || f[0] == f[1])
		}
		if !wanted {
			continue
		}
		out = append(out, action(t))
		if limit := int(req.GetLimit()); limit > 0 && len(out) >= limit {
			break
		}
	}
	return out
}

func action(t *core.Task) *agentv1.AgentAction {
	return &agentv1.AgentAction{
		TaskId: t.ID, WorkloadId: t.Workload, ActionType: t.Action, Status: t.Status, Error: t.Error,
		CreatedAt: unix(t.CreatedAt), StartedAt: unix(t.StartedAt), EndedAt: unix(t.EndedAt),
	}
}
