package rpc

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// SubmitAutomationSuggestion implements control.v1. It checks the suggestion and, if it is valid,
// carries it out like a user's call. Scaling is rejected, because the size of a group is part of
// its specification.
func (s *Server) SubmitAutomationSuggestion(ctx context.Context, req *controlv1.SubmitAutomationSuggestionRequest) (*controlv1.SubmitAutomationSuggestionResponse, error) {
	out := &controlv1.SubmitAutomationSuggestionResponse{Decision: "rejected", DecidedAt: timestamppb.New(s.now())}
	reject := func(reason string) (*controlv1.SubmitAutomationSuggestionResponse, error) {
		out.Reason = reason
		return out, nil
	}
	if why := s.frozen(); why != "" {
		return reject(why)
	}
	sug := req.GetSuggestion()
	if sug == nil {
		return nil, errorf(KindInvalid, "suggestion must be set")
	}
	id := strings.TrimSpace(sug.GetTargetWorkload())
	if id == "" {
		return reject("target_workload must not be blank")
	}
	var cmds []fsm.Command
	var err error
	switch sug.GetActionType() {
	case controlv1.AutomationActionType_AUTOMATION_ACTION_SET_DESIRED_STATE:
		desired := spec.DesiredState(sug.GetDesiredState())
		out.AppliedAction = "set_desired_state"
		cmds, err = s.desireCommands(ctx, id, desired, req.GetRequestId())
	case controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD:
		out.AppliedAction = "retry_workload"
		cmds, err = s.each(ctx, id, req.GetRequestId(), func(id string) *commandv1.Command {
			return &commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id}}}
		})
	case controlv1.AutomationActionType_AUTOMATION_ACTION_DELETE_WORKLOAD:
		out.AppliedAction = "delete_workload"
		cmds, err = s.deleteCommands(ctx, id, false, req.GetRequestId())
	case controlv1.AutomationActionType_AUTOMATION_ACTION_SCALE_REPLICAS:
		return reject("scaling by suggestion is not supported: change count in the spec and apply it")
	default:
		return reject("action_type " + sug.GetActionType().String() + " is unknown")
	}
	if err != nil {
		return nil, err
	}
	results, err := s.replica.Propose(ctx, cmds...)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		if err := r.Err(); err != nil {
			out.AppliedAction = ""
			return reject(err.Error())
		}
	}
	out.Accepted, out.Decision, out.Reason = true, "accepted", sug.GetReason()
	return out, nil
}
