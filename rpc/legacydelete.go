package rpc

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
)

// A legacy v1 agent queues a delete and never reports its end, so the leader asks again and again whether the
// delete has ended. No call waits for the end of a delete, so a delete that never ends cannot delay other orders.

// deletion is the state of a delete on a legacy v1 agent: not carried out, still running, or ended (the agent does not
// have the workload any more).
type deletion int

const (
	deleteOpen deletion = iota // the agent did not carry out the delete, which must be sent again
	deleteRuns                 // the agent is still carrying out the delete
	deleteGone                 // the agent does not have the workload
)

// maxDeletes is the maximum number of deletes that are remembered. If there are more, some are forgotten, and the
// leader sends these deletes once more.
const maxDeletes = 4096

// sent records that delete order o was sent, if yes is true. Otherwise it removes this record.
func (a *Agents) sent(o sched.Order, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !yes {
		delete(a.deletes, o)
		return
	}
	if len(a.deletes) >= maxDeletes {
		clear(a.deletes)
	}
	a.deletes[o] = true
}

func (a *Agents) wasSent(o sched.Order) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.deletes[o]
}

// removing returns what the leader is told about delete order o: that the delete has ended, or that it still runs. A
// legacy v1 agent has already answered the delete call, but carries the delete out later.
func (a *Agents) removing(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, o sched.Order, ack sched.Ack) (sched.Ack, error) {
	if !ack.Accepted && message.SaysGone(ack.Message) {
		a.sent(o, false)
		return sched.Ack{Accepted: true, Gone: true}, nil
	}
	if !ack.Accepted {
		return ack, nil
	}
	a.sent(o, true)
	done, err := a.deleted(ctx, c, o.Workload)
	if err != nil {
		return sched.Ack{Accepted: true}, fmt.Errorf("delete on node %s: %w", n.ID, err)
	}
	if done == deleteGone {
		a.sent(o, false)
	}
	return sched.Ack{Accepted: true, Gone: done == deleteGone, Message: ack.Message}, nil
}

// deleted finds out the state of the last delete of a workload on a legacy v1 agent. It must be called after
// a delete was sent, because it looks at the agent's newest task. If a status call and a delete run at the same time,
// the agent may keep the status of a workload that it has deleted. It then refreshes this status from its engine for
// ever: Stopped "no containers", or Unknown "container not found".
func (a *Agents) deleted(ctx context.Context, c agentv1.AgentServiceClient, id string) (deletion, error) {
	resp, err := c.GetWorkloadStatus(ctx, &agentv1.GetWorkloadStatusRequest{Id: id})
	switch {
	case err != nil && notFound(err):
		return deleteGone, nil
	case status.Code(err) == codes.DeadlineExceeded:
		return deleteRuns, nil // the agent may have noticed the deadline of the call before this client did
	case err != nil:
		return deleteOpen, err
	case message.DeletedMeanwhile(resp.GetStatus()):
		return deleteGone, nil
	}
	st := resp.GetStatus()
	switch st.GetActualState() {
	case agentv1.ActualState_ACTUAL_STATE_PENDING:
		if strings.HasPrefix(st.GetMetadata()["task_id"], "delete-") {
			return deleteRuns, nil
		}
		return deleteOpen, nil
	case agentv1.ActualState_ACTUAL_STATE_RUNNING:
		return deleteOpen, nil
	}
	history, err := c.ListActions(ctx, &agentv1.ListActionsRequest{WorkloadId: id, Limit: 1, NewestFirst: true})
	if err != nil && !unimplemented(err) {
		return deleteOpen, err
	}
	if len(history.GetActions()) == 0 { // the agent keeps no task history, or has restarted since the delete
		if message.NothingLeft(st) {
			return deleteGone, nil
		}
		return deleteOpen, nil
	}
	switch last := history.GetActions()[0]; {
	case last.GetActionType() != "delete_workload":
		return deleteOpen, nil
	case last.GetStatus() == "completed", message.SaysGone(last.GetError()):
		return deleteGone, nil
	case last.GetStatus() == "pending", last.GetStatus() == "running":
		return deleteRuns, nil
	}
	return deleteOpen, nil
}
