package message

import (
	"errors"
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Applied converts an agent's response to an order to run or stop a workload. It returns an error if the order must be
// sent again.
func Applied(resp *agentv1.ApplyWorkloadResponse) (sched.Ack, error) {
	st := resp.GetStatus()
	ack := sched.Ack{Message: resp.GetMessage(), Skipped: resp.GetSkipped(), Fenced: resp.GetFenced()}
	switch {
	case ack.Fenced:
	case resp.GetApplied() || resp.GetSkipped():
		ack.Accepted = true
		if st != nil {
			ack.State = spec.ActualOf(st.GetActualState())
		}
		ack.Message = st.GetMessage()
	case strings.Contains(resp.GetMessage(), "is draining"):
		// The node's drain has ended, but the agent learns of the end only from the answer to its next heartbeat.
		return sched.Ack{}, errors.New(resp.GetMessage())
	default:
		ack.Refused = true
		ack.Code = classOf(st, resp.GetMessage())
	}
	return Bounded(ack), nil
}

// Bounded shortens an agent's answer to the limits of a status.
func Bounded(ack sched.Ack) sched.Ack {
	ack.Code, ack.Message = bounds.Clip(ack.Code, MaxCode), bounds.Clip(ack.Message, MaxMessage)
	return ack
}

// classOf returns the failure class of an apply that the agent refused. Legacy v1 agents send the class in
// the metadata, or only within the message (contract/wire-agent.md).
func classOf(st *agentv1.WorkloadStatus, message string) string {
	if c := st.GetMetadata()["failure_reason"]; c != "" {
		return c
	}
	switch message = strings.ToLower(message); {
	case strings.Contains(message, "runtime not available"):
		return fsm.CodeRuntimeNotOffered
	case strings.HasPrefix(message, "failed to apply workload:"):
		// The task queue of the legacy v1 agent was full, so it ran the apply at once, and the apply
		// failed. The cause may be temporary, such as an unreachable registry or a full disk.
		return "RUNTIME_ERROR"
	}
	return "INVALID_SPECIFICATION"
}

// Deleted converts an agent's response to a delete.
func Deleted(resp *agentv1.DeleteWorkloadResponse) sched.Ack {
	return sched.Ack{Accepted: resp.GetSuccess(), Gone: resp.GetAbsent(), Fenced: resp.GetFenced(), Message: resp.GetMessage()}
}
