package rpc

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
)

func TestInspectShowsTheAgentsStatus(t *testing.T) {
	failed := &agentv1.WorkloadStatus{
		Id: "web", RevisionId: "r1", ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED, UpdatedAt: 5, RestartCount: 2,
		Metadata: map[string]string{"failure_reason": "INVALID_IMAGE", "failure_message": "no such image", "retry_terminal": "true"},
		Ports:    []*agentv1.PortMapping{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}, {HostPort: -1}},
	}
	t.Run("the list of instances from an agent is converted to reports", func(t *testing.T) {
		_, f, a, _ := agentWorld(t, 0)
		f.list = func(*agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
			return &agentv1.ListWorkloadsResponse{Workloads: []*agentv1.WorkloadStatus{failed, {
				Id: "own", ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING, Generation: &agentv1.Generation{Incarnation: 1, Sequence: 7},
			}}}, nil
		}
		got, err := a.List(ctxFor(t), "n")
		ok(t, err)
		is(t, "entries", len(got), 2)
		o := got[0].Observation
		is(t, "first", fmt.Sprint(got[0].Workload, got[0].Revision, o.State, o.Code, o.Message, o.Retryable, o.RestartCount, o.At, len(o.Ports)),
			"webr1FailedINVALID_IMAGEno such imagefalse 2 5000000000 1")
		is(t, "generation", got[1].Observation.Generation, fsm.Generation{Incarnation: 1, Sequence: 7})
	})
	t.Run("the list of an agent may have 2000 instances", func(t *testing.T) {
		_, f, a, _ := agentWorld(t, 0)
		f.list = func(*agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
			all := make([]*agentv1.WorkloadStatus, 2000)
			for i := range all {
				all[i] = &agentv1.WorkloadStatus{Id: fmt.Sprint("w", i), Message: strings.Repeat("x", message.MaxMessage)}
			}
			return &agentv1.ListWorkloadsResponse{Workloads: all}, nil
		}
		got, err := a.List(ctxFor(t), "n")
		ok(t, err)
		is(t, "entries", len(got), 2000)
	})
	t.Run("a list of the instances on an unknown node returns an error", func(t *testing.T) {
		_, _, a, _ := agentWorld(t, 0)
		_, err := a.List(ctxFor(t), "x")
		is(t, "failed", err != nil, true)
	})
	for _, c := range []struct {
		fact  string
		st    *agentv1.WorkloadStatus
		err   error
		there bool
		fails bool
	}{
		{"the agent returns the status of a workload that it has", failed, nil, true, false},
		{"the answer not found means that the agent does not have the workload", nil, errors.New("status not found: web"), false, false},
		{"a failed second delete means that the agent does not have the workload", &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED,
			Message: "workload not found", Metadata: map[string]string{"task_id": "delete-web-2"}}, nil, false, false},
		{"an agent that cannot be reached causes an error", nil, status.Error(codes.Unavailable, "host not found"), false, true},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, f, a, _ := agentWorld(t, 0)
			f.status = func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
				return &agentv1.GetWorkloadStatusResponse{Status: c.st}, c.err
			}
			_, there, err := a.Look(ctxFor(t), "n", "web")
			is(t, "there", there, c.there)
			is(t, "failed", err != nil, c.fails)
		})
	}
	t.Run("the cause in the metadata of a legacy v1 agent is used in every state", func(t *testing.T) {
		meta := map[string]string{"failure_reason": "INVALID_IMAGE", "last_error": "manifest unknown", "retry_terminal": "true"}
		for _, c := range []struct {
			fact     string
			protocol uint32
			state    agentv1.ActualState
			message  string
			meta     map[string]string
			want     string // expected failure class, whether the failure is final, and the message
		}{
			{"failed", 0, agentv1.ActualState_ACTUAL_STATE_FAILED, "", meta, "INVALID_IMAGE true manifest unknown"},
			{"a failed workload with a message", 0, agentv1.ActualState_ACTUAL_STATE_FAILED, "no image", meta, "INVALID_IMAGE true no image"},
			{"stopped", 0, agentv1.ActualState_ACTUAL_STATE_STOPPED, "no containers", meta, "INVALID_IMAGE true manifest unknown"},
			{"unknown", 0, agentv1.ActualState_ACTUAL_STATE_UNKNOWN, "container not found", meta, "INVALID_IMAGE true manifest unknown"},
			{"pending", 0, agentv1.ActualState_ACTUAL_STATE_PENDING, "queued", meta, "INVALID_IMAGE true manifest unknown"},
			{"a workload without a state", 0, 0, "", meta, "INVALID_IMAGE true manifest unknown"},
			{"a workload in state Unknown with only an error text", 0, agentv1.ActualState_ACTUAL_STATE_UNKNOWN, "container not found", map[string]string{"last_error": "exec failed"}, " false exec failed"},
			{"a running workload with the cause of an earlier failure", 0, agentv1.ActualState_ACTUAL_STATE_RUNNING, "", meta, " false "},
			{"a stopped workload without a cause", 0, agentv1.ActualState_ACTUAL_STATE_STOPPED, "exited", nil, " false exited"},
			{"a workload in state Unknown on an agent of this project, which sends the failure class itself", 1, agentv1.ActualState_ACTUAL_STATE_UNKNOWN, "asking", meta, " false asking"},
		} {
			_, f, a, _ := agentWorld(t, c.protocol)
			f.status = func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
				return &agentv1.GetWorkloadStatusResponse{Status: &agentv1.WorkloadStatus{Id: "web", ActualState: c.state, Message: c.message, Metadata: c.meta}}, nil
			}
			got, _, err := a.Look(ctxFor(t), "n", "web")
			ok(t, err)
			o := got.Observation
			is(t, c.fact, fmt.Sprint(o.Code, " ", o.Terminal, " ", o.Message), c.want)
		}
	})
	t.Run("the number of actions is limited, and an unfinished step has no end time", func(t *testing.T) {
		_, f, a, _ := agentWorld(t, 0)
		f.actions = func(r *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
			one := &agentv1.AgentAction{TaskId: "apply-web-1", WorkloadId: "web", Status: "running", CreatedAt: 3, EndedAt: -62135596800}
			return &agentv1.ListActionsResponse{Actions: []*agentv1.AgentAction{one, one, one}}, nil
		}
		got, err := a.Actions(ctxFor(t), "n", "web", 2)
		ok(t, err)
		is(t, "actions", len(got), 2)
		is(t, "times", fmt.Sprint(got[0].GetCreatedAt(), got[0].GetEndedAt()), "3 0")
	})
	t.Run("the task history of an agent that keeps no history is empty", func(t *testing.T) {
		_, _, a, _ := agentWorld(t, 0)
		got, err := a.Actions(ctxFor(t), "n", "web", 2)
		ok(t, err)
		is(t, "actions", len(got), 0)
	})
}
