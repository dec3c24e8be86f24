package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// fakeAgent is an agent that answers with functions that the test sets. It records the requests.
type fakeAgent struct {
	agentv1.UnimplementedAgentServiceServer
	addr string

	mu      sync.Mutex
	apply   func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error)
	remove  func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error)
	status  func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error)
	actions func(*agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error)
	usage   func(*agentv1.ListUsageRequest) (*agentv1.ListUsageResponse, error)
	probe   func(*agentv1.ProbeNetworkRequest) (*agentv1.ProbeNetworkResponse, error)
	trace   func(*agentv1.TraceConnectionRequest) (*agentv1.TraceConnectionResponse, error)
	list    func(*agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error)
	logs    func(*agentv1.LogsRequest, grpc.ServerStreamingServer[agentv1.LogChunk]) error
	volumes func(*agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error)
	held    []*agentv1.VolumeInfo
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

func (f *fakeAgent) ListUsage(ctx context.Context, r *agentv1.ListUsageRequest) (*agentv1.ListUsageResponse, error) {
	if f.usage == nil {
		return f.UnimplementedAgentServiceServer.ListUsage(ctx, r)
	}
	return f.usage(r)
}

func (f *fakeAgent) ProbeNetwork(ctx context.Context, r *agentv1.ProbeNetworkRequest) (*agentv1.ProbeNetworkResponse, error) {
	if f.probe == nil {
		return f.UnimplementedAgentServiceServer.ProbeNetwork(ctx, r)
	}
	return f.probe(r)
}

func (f *fakeAgent) TraceConnection(ctx context.Context, r *agentv1.TraceConnectionRequest) (*agentv1.TraceConnectionResponse, error) {
	if f.trace == nil {
		return f.UnimplementedAgentServiceServer.TraceConnection(ctx, r)
	}
	return f.trace(r)
}

func (f *fakeAgent) ListWorkloads(_ context.Context, r *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	return f.list(r)
}

func (f *fakeAgent) ListVolumes(context.Context, *agentv1.ListVolumesRequest) (*agentv1.ListVolumesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &agentv1.ListVolumesResponse{Volumes: f.held}, nil
}

func (f *fakeAgent) DeleteVolume(_ context.Context, r *agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error) {
	return f.volumes(r)
}

func (f *fakeAgent) Logs(r *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
	if f.logs == nil {
		return f.UnimplementedAgentServiceServer.Logs(r, s)
	}
	return f.logs(r, s)
}

// agentWorld returns a group of replicas, the fake agent of node n, a client of agents, and an order for the workload
// web, which is assigned to node n.
func agentWorld(t *testing.T, protocol uint32) (*group, *fakeAgent, *Agents, sched.Order) {
	t.Helper()
	g := newGroup(t, 1)
	f := g.agent(t, protocol)
	_, err := g.control(0).ApplyWorkload(ctxFor(t), web("web"))
	ok(t, err)
	g.assign("web", "n")
	w, _ := g.view().Workload("web")
	a := g.replicas[0].server.agents
	return g, f, a, sched.Order{Op: sched.OpApply, Node: "n", Workload: "web", Generation: w.Generation}
}

// served checks how the server of a test ended. Serve returns an error also when a short test stops the server before
// Serve has begun.
func served(t testing.TB, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		t.Error(err)
	}
}

// agent starts a fake agent for node n.
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
		served(t, <-done)
	})
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container", "compose"}, Protocol: protocol, AgentVersion: "v9", MemoryFiles: protocol > 0,
	}}})
	return f
}

var epoch = fsm.Epoch{Incarnation: 1, Term: 7}

func TestDeliverApplyReportsTheAgentsAnswer(t *testing.T) {
	for _, c := range []struct {
		fact   string
		answer func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error)
		want   sched.Ack
		fails  bool
	}{
		{"a queued order is accepted", func(r *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true, Status: &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING, Message: "queued"}}, nil
		}, sched.Ack{Accepted: true, State: fsm.ActualPending, Message: "queued"}, false},
		{"an answer without a status means that the order is accepted", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}, sched.Ack{Accepted: true}, false},
		{"an order that the agent skips, because it has carried it out already, counts as accepted", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Skipped: true, Status: &agentv1.WorkloadStatus{ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING}}, nil
		}, sched.Ack{Accepted: true, Skipped: true, State: fsm.ActualRunning}, false},
		{"an order that the agent does not apply counts as refused, with the failure class of the agent's answer", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "bad image", Status: &agentv1.WorkloadStatus{Metadata: map[string]string{"failure_reason": "INVALID_IMAGE"}}}, nil
		}, sched.Ack{Refused: true, Code: "INVALID_IMAGE", Message: "bad image"}, false},
		{"an agent without the runtime is recognised by the text of its answer", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "Runtime not available: container"}, nil
		}, sched.Ack{Refused: true, Code: fsm.CodeRuntimeNotOffered, Message: "Runtime not available: container"}, false},
		{"an order that the agent ran at once and that failed may be retried", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "Failed to apply workload: registry: i/o timeout"}, nil
		}, sched.Ack{Refused: true, Code: "RUNTIME_ERROR", Message: "Failed to apply workload: registry: i/o timeout"}, false},
		{"an agent without the runtime is recognised by its answer to an order that failed at once", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "failed to apply workload: runtime not available: vm"}, nil
		}, sched.Ack{Refused: true, Code: fsm.CodeRuntimeNotOffered, Message: "failed to apply workload: runtime not available: vm"}, false},
		{"an order that the agent calls invalid is refused and not retried", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Message: "invalid request: spec is required"}, nil
		}, sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "invalid request: spec is required"}, false},
		{"an agent's error InvalidArgument counts as a refusal of the order", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no")
		}, sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "no"}, false},
		{"an order that the agent refuses because of a newer epoch is neither accepted nor refused", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Fenced: true, Message: "a newer epoch"}, nil
		}, sched.Ack{Fenced: true, Message: "a newer epoch"}, false},
		{"any other error of the agent means that the outcome of the order is not known", func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return nil, status.Error(codes.Internal, "disk")
		}, sched.Ack{}, true},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, f, a, o := agentWorld(t, 1)
			f.apply = c.answer
			ack, err := a.Deliver(ctxFor(t), epoch, o)
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
	t.Run("an order with an older generation than the workload has is not sent to the agent", func(t *testing.T) {
		_, f, a, o := agentWorld(t, 1)
		o.Generation.Sequence--
		ack, err := a.Deliver(ctxFor(t), epoch, o)
		ok(t, err)
		is(t, "fenced", ack.Fenced, true)
		is(t, "sent", len(f.applies), 0)
	})
	t.Run("an order for a node that the state does not have returns an error", func(t *testing.T) {
		_, _, a, o := agentWorld(t, 1)
		o.Node = "x"
		_, err := a.Deliver(ctxFor(t), epoch, o)
		is(t, "failed", err != nil, true)
	})
	t.Run("an order to a node without a listener fails at once", func(t *testing.T) {
		g, _, a, o := agentWorld(t, 1)
		o.Node = "a" // no agent listens at the endpoint of node a
		g.place("x", "a")
		w, _ := g.view().Workload("x")
		o.Workload, o.Generation = "x", w.Generation
		began := time.Now()
		_, err := a.Deliver(ctxFor(t), epoch, o)
		is(t, "failed", err != nil, true)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the order to a node without a listening agent failed only after %s, want a failure at once", took)
		}
	})
	t.Run("no node is dialled after Close", func(t *testing.T) {
		_, _, a, o := agentWorld(t, 1)
		a.Close()
		_, err := a.Deliver(ctxFor(t), epoch, o)
		is(t, "failed", err != nil, true)
	})
}

func TestDeliverDeleteReportsTheAgentsAnswer(t *testing.T) {
	success := func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
		return &agentv1.DeleteWorkloadResponse{Success: true}, nil
	}
	for _, c := range []struct {
		fact     string
		protocol uint32
		remove   func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error)
		status   func(poll int) (*agentv1.GetWorkloadStatusResponse, error)
		want     sched.Ack
		fails    bool
		polled   bool
	}{
		{"an agent of this version accepts a delete and reports later that the workload no longer exists", 1, success, nil, sched.Ack{Accepted: true}, false, false},
		{"an agent of this version has no instance of the workload to delete", 1, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return &agentv1.DeleteWorkloadResponse{Success: true, Absent: true}, nil
		}, nil, sched.Ack{Accepted: true, Gone: true}, false, false},
		{"an agent of this version refuses the delete as fenced", 1, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return &agentv1.DeleteWorkloadResponse{Fenced: true, Message: "newer"}, nil
		}, nil, sched.Ack{Fenced: true, Message: "newer"}, false, false},
		{"if a legacy v1 agent's status call fails, the outcome of the delete is not known", 0, success, func(int) (*agentv1.GetWorkloadStatusResponse, error) {
			return nil, status.Error(codes.Unavailable, "host not found")
		}, sched.Ack{Accepted: true}, true, true},
		{"a delete that a legacy v1 agent refuses because it does not know the workload counts as done", 0, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return nil, errors.New("workload not found")
		}, nil, sched.Ack{Accepted: true, Gone: true}, false, false},
		{"a delete that a legacy v1 agent answers with the text \"not found\" counts as done", 0, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
			return &agentv1.DeleteWorkloadResponse{Message: "failed to delete workload: workload not found"}, nil
		}, nil, sched.Ack{Accepted: true, Gone: true}, false, false},
		{"if the delete call to a legacy v1 agent fails, the outcome is not known", 0, func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
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
			ack, err := a.Deliver(ctxFor(t), epoch, o)
			is(t, "failed", err != nil, c.fails)
			is(t, "answer", ack, c.want)
			is(t, "polled", f.polls > 0, c.polled)
			is(t, "generation", f.removes[0].GetGeneration().GetSequence(), o.Generation.Sequence)
		})
	}
}

// TestDeliverDeleteToLegacyAgent: a legacy v1 agent carries out a delete in a task, and no call waits for the
// end of that task. The scheduler learns of the end from the status of the workload or from the newest task of
// the workload. A status that names no workload does not prove that the delete has ended.
func TestDeliverDeleteToLegacyAgent(t *testing.T) {
	const (
		failed, pending  = agentv1.ActualState_ACTUAL_STATE_FAILED, agentv1.ActualState_ACTUAL_STATE_PENDING
		stopped, unknown = agentv1.ActualState_ACTUAL_STATE_STOPPED, agentv1.ActualState_ACTUAL_STATE_UNKNOWN
		running          = agentv1.ActualState_ACTUAL_STATE_RUNNING
	)
	type seen struct {
		state         agentv1.ActualState
		task, message string
		action        string // type, status and error of the agent's newest task; "" = the agent keeps no history
	}
	none := seen{message: "nothing"}
	for _, c := range []struct {
		fact  string
		looks []seen
		gone  bool
		sends int // expected number of deletes sent after one call of Deliver per element of looks
	}{
		{"a workload that has no status any more is gone", []seen{{pending, "delete-web-1", "", ""}, {pending, "delete-web-1", "", ""}, none}, true, 1},
		{"a second delete that failed with \"workload not found\" means that the workload is gone", []seen{{failed, "delete-web-2", "workload not found", ""}}, true, 1},
		{"a failed apply does not mean that the workload is gone", []seen{{failed, "apply-web-1", "image not found", ""}}, false, 1},
		{"a workload with status Stopped is gone if its delete task is completed", []seen{{stopped, "", "no containers", "delete_workload/completed/"}}, true, 1},
		{"a workload with status Unknown is gone if its delete task is completed", []seen{{unknown, "", "container not found", "delete_workload/completed/"}}, true, 1},
		{"a workload with status Stopped is gone if its delete task failed with \"workload not found\"", []seen{{stopped, "", "no containers", "delete_workload/failed/workload not found"}}, true, 1},
		{"a workload with status Stopped is gone if the agent has no tasks of it", []seen{{stopped, "", "no containers", ""}}, true, 1},
		{"a workload with status Unknown is gone if the agent has no tasks of it", []seen{{unknown, "", "container not found", ""}}, true, 1},
		{"a workload whose delete task still runs is not gone", []seen{{stopped, "", "", "delete_workload/running/"}, {stopped, "", "", "delete_workload/pending/"}}, false, 1},
		{"a delete whose task failed is sent again", []seen{{stopped, "", "", "delete_workload/failed/disk"}, {stopped, "", "", "delete_workload/failed/disk"}}, false, 2},
		{"a workload that runs although its delete task is completed is deleted again", []seen{{running, "", "", "delete_workload/completed/"}, {running, "", "", "delete_workload/completed/"}}, false, 2},
		{"a workload that was applied after the delete is not gone", []seen{{stopped, "", "no containers", "apply_workload/completed/"}}, false, 1},
		{"a workload with status Unknown after an engine timeout does not count as gone", []seen{{unknown, "", "docker: timeout", ""}}, false, 1},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, f, a, o := agentWorld(t, 0)
			o.Op = sched.OpDelete
			f.remove = func(*agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
				return &agentv1.DeleteWorkloadResponse{Success: true}, nil
			}
			for i, look := range c.looks {
				f.status = func(*agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
					if look == none {
						return nil, errors.New("Status Not Found for workload web")
					}
					return &agentv1.GetWorkloadStatusResponse{Status: &agentv1.WorkloadStatus{ActualState: look.state, Message: look.message, Metadata: map[string]string{"task_id": look.task}}}, nil
				}
				f.actions = nil
				if look.action != "" {
					part := strings.SplitN(look.action, "/", 3)
					f.actions = func(r *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
						is(t, "asked", fmt.Sprintln(r.GetWorkloadId(), r.GetNewestFirst()), "web true\n")
						return &agentv1.ListActionsResponse{Actions: []*agentv1.AgentAction{{ActionType: part[0], Status: part[1], Error: part[2]}}}, nil
					}
				}
				polls := f.polls
				ack, err := a.Deliver(ctxFor(t), epoch, o)
				ok(t, err)
				is(t, "accepted", ack.Accepted, true)
				is(t, "gone", ack.Gone, c.gone && i == len(c.looks)-1)
				if f.polls > polls+2 {
					t.Errorf("one call of Deliver must ask the agent for the workload's status at most twice, but asked %d times", f.polls-polls)
				}
			}
			is(t, "deletes sent", len(f.removes), c.sends)
			is(t, "remembered", a.wasSent(o), !c.gone)
		})
	}
}

func TestActionsAndLogs(t *testing.T) {
	t.Run("the agent's task history is returned", func(t *testing.T) {
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
	t.Run("the task history of an agent that keeps no history is empty", func(t *testing.T) {
		g, _, _, _ := agentWorld(t, 0)
		r, err := g.cluster(0).ListActions(ctxFor(t), &clusterv1.ListActionsRequest{WorkloadId: "web"})
		ok(t, err)
		is(t, "actions", len(r.GetActions()), 0)
	})
	t.Run("the log of the agent is returned", func(t *testing.T) {
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
		{"the error about an agent that cannot stream logs names the agent's version", "web", codes.FailedPrecondition, "v9"},
		{"the log of an unknown workload is not found", "x", codes.NotFound, "x"},
		{"a workload that is on no node has no log", "idle", codes.FailedPrecondition, "why idle"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g, _, _, _ := agentWorld(t, 0)
			g.place("idle", "")
			s, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: c.id})
			ok(t, err)
			_, err = s.Recv()
			code(t, err, c.code)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("the log stream returned error %v, want an error that contains %q", err, c.says)
			}
		})
	}
}

// TestLogOfAFinishedJob: a job has finished and its container is gone. The call Logs must return the end of the output
// that the job's record holds.
func TestLogOfAFinishedJob(t *testing.T) {
	ended := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		fact, output string
		req          *clusterv1.LogsRequest
		want         string
		code         codes.Code
	}{
		{"the whole output", "one\ntwo\nthree\n", &clusterv1.LogsRequest{}, "one\ntwo\nthree\n", codes.OK},
		{"a log that is followed ends, because the job has finished", "one\ntwo", &clusterv1.LogsRequest{Follow: true, TailLines: -1}, "one\ntwo\n", codes.OK},
		{"the last lines", "one\ntwo\nthree\n", &clusterv1.LogsRequest{TailLines: 2}, "two\nthree\n", codes.OK},
		{"more lines are requested than the log has", "one\n", &clusterv1.LogsRequest{TailLines: 1 << 40}, "one\n", codes.OK},
		{"only output later than the end of the job is requested", "one\n", &clusterv1.LogsRequest{SinceUnixSeconds: ended.Unix() + 1}, "", codes.OK},
		{"a job without output", "", &clusterv1.LogsRequest{}, "persysctl get job", codes.FailedPrecondition},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g, _, _, _ := agentWorld(t, 1)
			put := &commandv1.WorkloadPut{
				Id: "job", Spec: []byte{}, Content: fmt.Sprintf("c1:%064x", 1), Desired: "Running",
				Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1, Job: &commandv1.Job{}},
			}
			g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{put}}}})
			g.assign("job", "n")
			w, _ := g.view().Workload("job")
			g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
				Workload: "job", Node: "n", Generation: fsm.GenerationPB(w.Generation), Acknowledged: true, State: "Stopped", Code: fsm.CodeCompleted,
				Exit: &commandv1.Exit{EndedAt: ended.UnixNano(), Output: c.output},
			}}}}})
			end := &commandv1.JobEnd{Workload: "job", IfGeneration: fsm.GenerationPB(w.Generation), Succeeded: true}
			g.do(&commandv1.Command{
				Head: &commandv1.Head{At: time.Now().UnixNano(), By: "test", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}},
				Body: &commandv1.Command_FinishJobs{FinishJobs: &commandv1.FinishJobs{Ends: []*commandv1.JobEnd{end}}},
			})
			c.req.WorkloadId = "job"
			s, err := g.cluster(0).Logs(ctxFor(t), c.req)
			ok(t, err)
			var all strings.Builder
			for err == nil {
				var m *clusterv1.LogChunk
				if m, err = s.Recv(); err == nil {
					all.Write(m.GetData())
				}
			}
			if c.code != codes.OK {
				code(t, err, c.code)
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("the log of a job without output returned error %v, want an error that contains %q", err, c.want)
				}
				return
			}
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			is(t, "log", all.String(), c.want)
		})
	}
}
