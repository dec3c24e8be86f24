package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// fakeAgent answers with functions of a test and records the requests.
type fakeAgent struct {
	agentv1.UnimplementedAgentServiceServer
	addr string

	mu      sync.Mutex
	apply   func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error)
	remove  func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error)
	status  func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error)
	actions func(*agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error)
	list    func(*agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error)
	logs    func(*agentv1.LogsRequest, grpc.ServerStreamingServer[agentv1.LogChunk]) error
	exec    func(grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error
	applies []*agentv1.ApplyWorkloadRequest
	removes []*agentv1.DeleteWorkloadRequest
	polls   int
}

func (f *fakeAgent) ApplyWorkload(_ context.Context, r *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applies = append(f.applies, r)
	return f.apply(r)
}

func (f *fakeAgent) applied() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.applies)
}

func (f *fakeAgent) DeleteWorkload(_ context.Context, r *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removes = append(f.removes, r)
	return f.remove(r)
}

func (f *fakeAgent) GetWorkloadStatus(_ context.Context, r *agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.polls++
	return f.status(r)
}

func (f *fakeAgent) ListActions(ctx context.Context, r *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	if f.actions == nil {
		return f.UnimplementedAgentServiceServer.ListActions(ctx, r)
	}
	return f.actions(r)
}

func (f *fakeAgent) ListWorkloads(_ context.Context, r *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	return f.list(r)
}

func (f *fakeAgent) Logs(r *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
	if f.logs == nil {
		return f.UnimplementedAgentServiceServer.Logs(r, s)
	}
	return f.logs(r, s)
}

// agentWorld is a group whose node n has a fake agent with workload web.
func agentWorld(t *testing.T, protocol uint32) (*group, *fakeAgent, *Agents, sched.Order) {
	t.Helper()
	g := newGroup(t, 1)
	f := g.agent(t, protocol)
	_, err := g.control(0).ApplyWorkload(ctxFor(t), web("web"))
	ok(t, err)
	g.assign("web", "n")
	w, _ := g.view().Workload("web")
	a := g.replicas[0].server.agents
	a.poll = 5 * time.Millisecond
	return g, f, a, sched.Order{Op: sched.OpApply, Node: "n", Workload: "web", Generation: w.Generation}
}

// agent serves a fake agent of node n.
func (g *group) agent(t *testing.T, protocol uint32) *fakeAgent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	f := &fakeAgent{addr: l.Addr().String()}
	srv := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(srv, f)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: protocol, AgentVersion: "v9",
	}}})
	return f
}

var stint = fsm.Epoch{Incarnation: 1, Term: 7}

func TestDeliverApply(t *testing.T) {
	for _, c := range []struct {
		fact   string
		answer func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error)
		want   sched.Ack
		fails  bool
	}{
		{"queued is accepted", func(r *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true, Status: &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING, Message: "queued"}}, nil
		}, sched.Ack{Accepted: true, State: fsm.ActualPending, Message: "queued"}, false},
		{"accepted without a status is accepted", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}, sched.Ack{Accepted: true}, false},
		{"skipped is accepted", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Skipped: true, Status: &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING}}, nil
		}, sched.Ack{Accepted: true, Skipped: true, State: fsm.ActualRunning}, false},
		{"not applied is refused, with its class", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "bad image", Status: &agentv1.WorkloadStatus{Metadata: map[string]string{"failure_reason": "INVALID_IMAGE"}}}, nil
		}, sched.Ack{Refused: true, Code: "INVALID_IMAGE", Message: "bad image"}, false},
		{"a missing runtime is read from the text", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "Runtime not available: container"}, nil
		}, sched.Ack{Refused: true, Code: fsm.CodeRuntimeNotOffered, Message: "Runtime not available: container"}, false},
		{"what failed to run there and then may run later", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "Failed to apply workload: registry: i/o timeout"}, nil
		}, sched.Ack{Refused: true, Code: "RUNTIME_ERROR", Message: "Failed to apply workload: registry: i/o timeout"}, false},
		{"a missing runtime is one there and then, too", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "failed to apply workload: runtime not available: vm"}, nil
		}, sched.Ack{Refused: true, Code: fsm.CodeRuntimeNotOffered, Message: "failed to apply workload: runtime not available: vm"}, false},
		{"what is wrong with the request stays wrong", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "invalid request: spec is required"}, nil
		}, sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "invalid request: spec is required"}, false},
		{"an invalid argument is refused", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no")
		}, sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "no"}, false},
		{"a fence is neither", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Fenced: true, Message: "a newer epoch"}, nil
		}, sched.Ack{Fenced: true, Message: "a newer epoch"}, false},
		{"any other error says nothing", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return nil, status.Error(codes.Internal, "disk")
		}, sched.Ack{}, true},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, f, a, o := agentWorld(t, 1)
			f.apply = c.answer
			ack, err := a.Deliver(ctxFor(t), stint, o)
			is(t, "failed", err != nil, c.fails)
			is(t, "answer", ack, c.want)
			r := f.applies[0]
			is(t, "id", r.GetId(), "web")
			is(t, "node", r.GetNodeId(), "n")
			is(t, "epoch", fmt.Sprint(r.GetEpoch().GetClusterId(), r.GetEpoch().GetIncarnation(), r.GetEpoch().GetTerm()), "c11 7")
			is(t, "generation", r.GetGeneration().GetSequence(), o.Generation.Sequence)
			is(t, "image", r.GetSpec().GetContainer().GetImage() != "", true)
		})
	}
	t.Run("an order that is out of date is not sent", func(t *testing.T) {
		_, f, a, o := agentWorld(t, 1)
		o.Generation.Sequence--
		ack, err := a.Deliver(ctxFor(t), stint, o)
		ok(t, err)
		is(t, "fenced", ack.Fenced, true)
		is(t, "sent", len(f.applies), 0)
	})
	t.Run("an unknown node is an error", func(t *testing.T) {
		_, _, a, o := agentWorld(t, 1)
		o.Node = "x"
		_, err := a.Deliver(ctxFor(t), stint, o)
		is(t, "failed", err != nil, true)
	})
	t.Run("a node where nobody listens fails at once", func(t *testing.T) {
		g, _, a, o := agentWorld(t, 1)
		o.Node = "a" // port 1
		g.place("x", "a")
		w, _ := g.view().Workload("x")
		o.Workload, o.Generation = "x", w.Generation
		began := time.Now()
		_, err := a.Deliver(ctxFor(t), stint, o)
		is(t, "failed", err != nil, true)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
	t.Run("after Close nothing is dialled", func(t *testing.T) {
		_, _, a, o := agentWorld(t, 1)
		a.Close()
		_, err := a.Deliver(ctxFor(t), stint, o)
		is(t, "failed", err != nil, true)
	})
}

func TestDeliverDelete(t *testing.T) {
	success := func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
		return &agentv1.DeleteWorkloadResponse{Success: true}, nil
	}
	state := func(s agentv1.ActualState, task, message string) *agentv1.GetWorkloadStatusResponse {
		return &agentv1.GetWorkloadStatusResponse{Status: &agentv1.WorkloadStatus{ActualState: s, Message: message, Metadata: map[string]string{"task_id": task}}}
	}
	const failed, pending = agentv1.ActualState_ACTUAL_STATE_FAILED, agentv1.ActualState_ACTUAL_STATE_PENDING
	for _, c := range []struct {
		fact     string
		protocol uint32
		remove   func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error)
		status   func(poll int) (*agentv1.GetWorkloadStatusResponse, error)
		want     sched.Ack
		fails    bool
		polled   bool
	}{
		{"our agent says later that it is gone", 1, success, nil, sched.Ack{Accepted: true}, false, false},
		{"our agent says that nothing was there", 1, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return &agentv1.DeleteWorkloadResponse{Success: true, Absent: true}, nil
		}, nil, sched.Ack{Accepted: true, Gone: true}, false, false},
		{"our agent refuses by a fence", 1, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return &agentv1.DeleteWorkloadResponse{Fenced: true, Message: "newer"}, nil
		}, nil, sched.Ack{Fenced: true, Message: "newer"}, false, false},
		{"an existing agent is asked until its status is not found", 0, success, func(poll int) (*agentv1.GetWorkloadStatusResponse, error) {
			if poll < 3 {
				return state(pending, "delete-web-1", "deleting"), nil
			}
			return nil, errors.New("Status Not Found for workload web")
		}, sched.Ack{Accepted: true, Gone: true}, false, true},
		{"an existing agent's failed second delete means gone", 0, success, func(int) (*agentv1.GetWorkloadStatusResponse, error) {
			return state(failed, "delete-web-2", "workload not found"), nil
		}, sched.Ack{Accepted: true, Gone: true}, false, true},
		{"an existing agent's failed apply does not mean gone", 0, success, func(poll int) (*agentv1.GetWorkloadStatusResponse, error) {
			if poll < 3 {
				return state(failed, "apply-web-1", "image not found"), nil
			}
			return nil, status.Error(codes.NotFound, "status not found")
		}, sched.Ack{Accepted: true, Gone: true}, false, true},
		{"an error of the status says nothing", 0, success, func(int) (*agentv1.GetWorkloadStatusResponse, error) {
			return nil, status.Error(codes.Unavailable, "host not found")
		}, sched.Ack{Accepted: true}, true, true},
		{"a delete of what is not found is gone", 0, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return nil, errors.New("workload not found")
		}, nil, sched.Ack{Accepted: true, Gone: true}, false, false},
		{"a delete that fails says nothing", 0, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return nil, status.Error(codes.Unavailable, "name not found by the resolver")
		}, nil, sched.Ack{}, true, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, f, a, o := agentWorld(t, c.protocol)
			o.Op = sched.OpDelete
			f.remove = c.remove
			f.status = func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
				return c.status(f.polls)
			}
			ack, err := a.Deliver(ctxFor(t), stint, o)
			is(t, "failed", err != nil, c.fails)
			is(t, "answer", ack, c.want)
			is(t, "polled", f.polls > 0, c.polled)
			is(t, "generation", f.removes[0].GetGeneration().GetSequence(), o.Generation.Sequence)
		})
	}
	t.Run("an existing agent that takes its time is asked again by another order", func(t *testing.T) {
		_, f, a, o := agentWorld(t, 0)
		o.Op = sched.OpDelete
		f.remove = success
		f.status = func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
			return state(pending, "delete-web-1", ""), nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		ack, err := a.Deliver(ctx, stint, o)
		ok(t, err)
		is(t, "answer", ack, sched.Ack{Accepted: true})
	})
}

func TestActionsAndLogs(t *testing.T) {
	t.Run("the history is passed on", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 0)
		f.actions = func(r *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
			is(t, "asked", fmt.Sprint(r.GetWorkloadId(), r.GetLimit(), r.GetNewestFirst()), "web5 true")
			return &agentv1.ListActionsResponse{Actions: []*agentv1.AgentAction{{TaskId: "apply-web-1", CreatedAt: 100, StartedAt: -62135596800}}}, nil
		}
		r, err := g.cluster(0).ListActions(ctxFor(t), &clusterv1.ListActionsRequest{WorkloadId: "web", Limit: 5})
		ok(t, err)
		is(t, "node", r.GetNodeId(), "n")
		is(t, "created", r.GetActions()[0].GetCreatedAt().GetSeconds(), 100)
		is(t, "started", r.GetActions()[0].GetStartedAt() == nil, true)
	})
	t.Run("an agent that keeps no history has none", func(t *testing.T) {
		g, _, _, _ := agentWorld(t, 0)
		r, err := g.cluster(0).ListActions(ctxFor(t), &clusterv1.ListActionsRequest{WorkloadId: "web"})
		ok(t, err)
		is(t, "actions", len(r.GetActions()), 0)
	})
	t.Run("a log is passed through", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		f.logs = func(r *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
			for _, line := range []string{"one ", "two ", r.GetId()} {
				if err := s.Send(&agentv1.LogChunk{Data: []byte(line), Stream: "stdout"}); err != nil {
					return err
				}
			}
			return nil
		}
		s, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: "web"})
		ok(t, err)
		var all strings.Builder
		for {
			c, err := s.Recv()
			if err != nil {
				break
			}
			all.Write(c.GetData())
		}
		is(t, "log", all.String(), "one two web")
	})
	for _, c := range []struct {
		fact, id string
		code     codes.Code
		says     string
	}{
		{"an agent without logs is named", "web", codes.FailedPrecondition, "v9"},
		{"an unknown workload is not found", "x", codes.NotFound, "x"},
		{"an unplaced workload has no log", "idle", codes.FailedPrecondition, "why idle"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g, _, _, _ := agentWorld(t, 0)
			g.place("idle", "")
			s, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: c.id})
			ok(t, err)
			_, err = s.Recv()
			code(t, err, c.code)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, want something of %q", err, c.says)
			}
		})
	}
}
