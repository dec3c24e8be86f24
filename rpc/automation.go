package rpc

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// SubmitAutomationSuggestion implements the call of control.v1. It checks the suggestion and, if it is valid, carries
// it out like a call of a user. A suggestion to change the number of members is accepted only if the workload's
// namespace allows such suggestions.
func (s *Server) SubmitAutomationSuggestion(ctx context.Context, req *controlv1.SubmitAutomationSuggestionRequest) (*controlv1.SubmitAutomationSuggestionResponse, error) {
	out := &controlv1.SubmitAutomationSuggestionResponse{Decision: "rejected", DecidedAt: timestamppb.New(s.now())}
	reject := func(reason string) (*controlv1.SubmitAutomationSuggestionResponse, error) {
		out.Reason = reason
		return out, nil
	}
	sug := req.GetSuggestion()
	id := strings.TrimSpace(sug.GetTargetWorkload())
	if why := s.frozenBeforeLog(id != ""); why != "" {
		return reject(why)
	}
	if sug == nil {
		return nil, errorf(KindInvalid, "suggestion must be set")
	}
	if id == "" {
		return reject("target_workload must not be blank")
	}
	var cmds []fsm.Command
	var err error
	switch sug.GetActionType() {
	case controlv1.AutomationActionType_AUTOMATION_ACTION_SET_DESIRED_STATE:
		desired := spec.DesiredState(sug.GetDesiredState())
		out.AppliedAction = "set_desired_state"
		cmds, err = s.desireCommands(ctx, id, desired, "", req.GetRequestId())
	case controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD:
		out.AppliedAction = "retry_workload"
		cmds, err = s.retryCommands(ctx, id, false, "", req.GetRequestId())
	case controlv1.AutomationActionType_AUTOMATION_ACTION_DELETE_WORKLOAD:
		out.AppliedAction = "delete_workload"
		cmds, err = s.deleteCommands(ctx, id, false, false, "", req.GetRequestId())
	case controlv1.AutomationActionType_AUTOMATION_ACTION_SCALE_REPLICAS:
		out.AppliedAction = "scale_replicas"
		c, mistake, e := s.suggestedScale(ctx, id, req.GetRequestId(), sug)
		if mistake != "" {
			out.AppliedAction = ""
			return reject(mistake)
		}
		cmds, err = []fsm.Command{c}, e
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
		if r.Kind == fsm.OtherRequest {
			return nil, r.Err()
		}
		if err := r.Err(); err != nil {
			out.AppliedAction = ""
			return reject(err.Error())
		}
	}
	out.Accepted, out.Decision, out.Reason = true, "accepted", sug.GetReason()
	return out, nil
}
