package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

const (
	beatAgents   = 10_000
	beatEvery    = 10 * time.Second
	beatConns    = 64  // connections that the simulated agents share
	registerMany = 512 // number of concurrent registrations
	beatWindow   = 30 * time.Second
)

// heartbeat10k registers 10,000 simulated agents, 512 at a time. They then send a heartbeat every 10 s and
// answer the leader's drift detection. The result is the CPU time of the leader over 30 s. The leader must
// not change.
func heartbeat10k(ctx context.Context, e *env) (result, error) {
	return withGroup(ctx, e, func(g *group) (result, error) {
		lead, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		first, err := g.Status(ctx, lead.Index)
		if err != nil {
			return result{}, err
		}
		conns, done, err := dialAll(lead.GRPC, beatConns)
		if err != nil {
			return result{}, err
		}
		defer done()
		clients := make([]controlv1.AgentControlClient, len(conns))
		for i, c := range conns {
			clients[i] = controlv1.NewAgentControlClient(c)
		}
		endpoint, end, err := emptyAgents()
		if err != nil {
			return result{}, err
		}
		defer end()
		began := time.Now()
		slowest, err := registerAll(ctx, clients, endpoint)
		if err != nil {
			return result{}, err
		}
		registered := time.Since(began)
		then, err := g.steady(ctx, first, lead.Index, "registering")
		if err != nil {
			return result{}, err
		}

		bctx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		var beats, failures atomic.Int64
		for i := range beatAgents {
			wg.Go(func() { beat(bctx, clients[i%len(clients)], i, &beats, &failures) })
		}
		wait(ctx, beatEvery+2*time.Second) // wait for the first heartbeat of every agent
		from := beats.Load()
		used, err := usageOf(ctx, beatWindow, lead.PID())
		if err != nil {
			return result{}, err
		}
		rate := float64(beats.Load()-from) / beatWindow.Seconds()
		if _, err := g.steady(ctx, first, lead.Index, "heartbeats"); err != nil {
			return result{}, err
		}
		if n := failures.Load(); n > 0 {
			return result{}, fmt.Errorf("%d heartbeats of the simulated agents failed", n)
		}
		if rate < 0.9*beatAgents/beatEvery.Seconds() {
			return result{}, fmt.Errorf("only %.0f heartbeats per second were answered", rate)
		}
		return result{ours: used[0].seconds / beatWindow.Seconds(), unit: "cores", goal: 0.5, lower: true,
			note: fmt.Sprintf("the leader at %.0f heartbeats/s; %d agents had registered in %.1f s, %d at a time and in %d log entries, the slowest in %.2f s, without an election",
				rate, beatAgents, registered.Seconds(), registerMany, then.GetLastIndex()-first.GetLastIndex(), slowest.Seconds())}, nil
	})
}

// steady returns the status of the leader. It returns an error if the leader or the Raft term differs from
// that in the earlier status first, because then an election has taken place. during names the period in the
// error.
func (g *group) steady(ctx context.Context, first *clusterv1.StatusResponse, leader int, during string) (*clusterv1.StatusResponse, error) {
	last, err := g.Status(ctx, leader)
	if err == nil && (first.GetTerm() != last.GetTerm() || first.GetLeaderId() != last.GetLeaderId()) {
		err = fmt.Errorf("the leader changed during %s: term %d, then %d", during, first.GetTerm(), last.GetTerm())
	}
	return last, err
}

// registerAll registers every agent and returns the duration of the slowest call.
func registerAll(ctx context.Context, clients []controlv1.AgentControlClient, endpoint string) (time.Duration, error) {
	next := make(chan int)
	var slowest atomic.Int64
	failed := make(chan error, registerMany)
	var wg sync.WaitGroup
	for range registerMany {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				if _, err := register(ctx, clients[i%len(clients)], beatID(i), i, endpoint); err != nil {
					select {
					case failed <- fmt.Errorf("registering agent %d: %w", i, err):
					default:
					}
					continue
				}
				for took := int64(time.Since(began)); ; {
					old := slowest.Load()
					if took <= old || slowest.CompareAndSwap(old, took) {
						break
					}
				}
			}
		})
	}
	for i := range beatAgents {
		next <- i
	}
	close(next)
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
	}
	return time.Duration(slowest.Load()), ctx.Err()
}

// emptyAgents starts one server that answers the leader's calls in place of all simulated agents, which
// have no workloads. It runs until the function end is called. Without this server the leader, which calls
// every agent for drift detection, would dial unreachable agents again and again.
func emptyAgents() (endpoint string, end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	agents := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(agents, emptyAgent{})
	go func() { _ = agents.Serve(l) }() // Serve returns after Stop
	return l.Addr().String(), agents.Stop, nil
}

// emptyAgent is an agent without workloads.
type emptyAgent struct {
	agentv1.UnimplementedAgentServiceServer
}

func (emptyAgent) ListWorkloads(context.Context, *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	return &agentv1.ListWorkloadsResponse{}, nil
}

func (emptyAgent) ListActions(context.Context, *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	return &agentv1.ListActionsResponse{}, nil
}

func beatID(i int) string { return fmt.Sprintf("beat-%05d", i) }

// register registers the i-th agent under an id and returns the interval of its heartbeats.
func register(ctx context.Context, c controlv1.AgentControlClient, id string, i int, endpoint string) (every time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	reg, err := c.RegisterNode(ctx, &controlv1.RegisterNodeRequest{
		NodeId: id, GrpcEndpoint: endpoint, Timestamp: timestamppb.Now(),
		Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 4000, MemoryTotalMb: 8192, Protocol: 1, MemoryFiles: true,
			SupportedWorkloadTypes: []string{"container"}, EngineId: fmt.Sprint("engine-", i)},
	})
	if err == nil && !reg.GetAccepted() {
		err = fmt.Errorf("node %s was refused: %s", id, reg.GetReason())
	}
	return time.Duration(reg.GetHeartbeatIntervalSeconds()) * time.Second, err
}

// heartbeat sends a heartbeat of an agent without workloads.
func heartbeat(ctx context.Context, c controlv1.AgentControlClient, id string) error {
	_, err := c.Heartbeat(ctx, &controlv1.HeartbeatRequest{NodeId: id, Full: true, Timestamp: timestamppb.Now(),
		Usage: &controlv1.NodeUsage{CpuUsedMillicores: 100, MemoryUsedMb: 512}})
	return err
}

// beat sends the heartbeats of one agent. The agent's number determines when in the interval it sends
// them.
func beat(ctx context.Context, c controlv1.AgentControlClient, i int, beats, failures *atomic.Int64) {
	wait(ctx, beatEvery*time.Duration(i)/beatAgents)
	for ctx.Err() == nil {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, beatEvery)
		err := heartbeat(call, c, beatID(i))
		cancel()
		if err == nil {
			beats.Add(1)
		} else if ctx.Err() == nil {
			failures.Add(1)
		}
		wait(ctx, beatEvery-time.Since(began))
	}
}
