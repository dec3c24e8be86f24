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
)

func TestInspect(t *testing.T) {
	failed := &agentv1.WorkloadStatus{
		Id: "web", RevisionId: "r1", ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED, UpdatedAt: 5, RestartCount: 2,
		Metadata: map[string]string{"failure_reason": "INVALID_IMAGE", "failure_message": "no such image", "retry_terminal": "true"},
		Ports:    []*agentv1.PortMapping{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}, {HostPort: -1}},
	}
	t.Run("a list is read as it is", func(t *testing.T) {
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
	t.Run("a node may have much", func(t *testing.T) {
		_, f, a, _ := agentWorld(t, 0)
		f.list = func(*agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
			all := make([]*agentv1.WorkloadStatus, 2000)
			for i := range all {
				all[i] = &agentv1.WorkloadStatus{Id: fmt.Sprint("w", i), Message: strings.Repeat("x", maxReportMessage)}
			}
			return &agentv1.ListWorkloadsResponse{Workloads: all}, nil
		}
		got, err := a.List(ctxFor(t), "n")
		ok(t, err)
		is(t, "entries", len(got), 2000)
	})
	t.Run("an unknown node is an error", func(t *testing.T) {
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
		{"what is there is told", failed, nil, true, false},
		{"not found is nothing", nil, errors.New("status not found: web"), false, false},
		{"a failed second delete is nothing", &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED,
			Message: "workload not found", Metadata: map[string]string{"task_id": "delete-web-2"}}, nil, false, false},
		{"no answer says nothing", nil, status.Error(codes.Unavailable, "host not found"), false, true},
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
	t.Run("actions are bounded, and what has not happened has no time", func(t *testing.T) {
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
	t.Run("an agent without a history has none", func(t *testing.T) {
		_, _, a, _ := agentWorld(t, 0)
		got, err := a.Actions(ctxFor(t), "n", "web", 2)
		ok(t, err)
		is(t, "actions", len(got), 0)
	})
}
