package server

import (
	"time"

	"github.com/persys/compute/agent/core"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

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
