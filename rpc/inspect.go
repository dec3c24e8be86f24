package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
)

// The methods below read from agents for the leader (leader.Inspector). Their requests carry no epoch (the number of
// the leader, by which agents refuse orders of a deposed leader): a deposed leader may read too, because it cannot
// commit anything.

func (a *Agents) agentOf(node string) (*fsm.Node, agentv1.AgentServiceClient, error) {
	n, ok := a.store.View().Node(node)
	if !ok {
		return nil, nil, fmt.Errorf("node %s is not registered", node)
	}
	c, err := a.conn(n)
	return n, c, err
}

// List implements leader.Inspector: it lists the instances on a node.
func (a *Agents) List(ctx context.Context, node string) ([]sched.Reported, error) {
	n, c, err := a.agentOf(node)
	if err != nil {
		return nil, err
	}
	resp, err := c.ListWorkloads(ctx, &agentv1.ListWorkloadsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list on node %s: %w", node, err)
	}
	out := make([]sched.Reported, 0, len(resp.GetWorkloads()))
	for _, st := range resp.GetWorkloads() {
		out = append(out, message.Listed(st, n.Facts.Protocol == 0))
	}
	return out, nil
}

// Look implements leader.Inspector: it reads the status of one workload from the agent of a node. It
// returns false if the agent does not have the workload.
func (a *Agents) Look(ctx context.Context, node, workload string) (sched.Reported, bool, error) {
	n, c, err := a.agentOf(node)
	if err != nil {
		return sched.Reported{}, false, err
	}
	resp, err := c.GetWorkloadStatus(ctx, &agentv1.GetWorkloadStatusRequest{Id: workload})
	switch {
	case err != nil && notFound(err):
		return sched.Reported{}, false, nil
	case err != nil:
		return sched.Reported{}, false, fmt.Errorf("status on node %s: %w", node, err)
	case message.DeletedMeanwhile(resp.GetStatus()):
		return sched.Reported{}, false, nil
	}
	return message.Listed(resp.GetStatus(), n.Facts.Protocol == 0), true, nil
}

// Actions implements leader.Inspector: it reads the agent's task history of a workload.
func (a *Agents) Actions(ctx context.Context, node, workload string, limit int) ([]*commandv1.AgentAction, error) {
	n, ok := a.store.View().Node(node)
	if !ok {
		return nil, fmt.Errorf("node %s is not registered", node)
	}
	acts, err := a.actions(ctx, n, workload, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("actions on node %s: %w", node, err)
	}
	if limit > 0 && len(acts) > limit {
		acts = acts[:limit] // legacy v1 agents may return more than the limit
	}
	out := make([]*commandv1.AgentAction, 0, len(acts))
	for _, x := range acts {
		out = append(out, &commandv1.AgentAction{
			TaskId: x.GetTaskId(), Workload: x.GetWorkloadId(), ActionType: x.GetActionType(), Status: x.GetStatus(), Error: clip(x.GetError(), message.MaxMessage),
			// Legacy v1 agents send a large negative number for a time that has not come yet.
			CreatedAt: max(0, x.GetCreatedAt()), StartedAt: max(0, x.GetStartedAt()), EndedAt: max(0, x.GetEndedAt()),
		})
	}
	return out, nil
}

// unimplemented reports whether err means that an agent does not have the call.
func unimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
