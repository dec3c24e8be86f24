package main

import (
	"context"
	"errors"
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
	rotateNodes = 100
	rotateUsers = 1000
	rotateRuns  = 5
	rotateWait  = time.Minute
)

// secretRotate puts new versions of a secret that 1,000 workloads on 100 simulated nodes use with on_change: signal. The
// result is the longest time from the put until the agents have every order with the new value.
func secretRotate(ctx context.Context, e *env) (result, error) {
	return withGroup(ctx, e, func(g *group) (result, error) {
		lead, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		conns, done, err := dialAll(lead.GRPC, 4)
		if err != nil {
			return result{}, err
		}
		defer done()
		agents := &rotateAgents{values: map[string]string{}, server: grpc.NewServer()}
		port, err := agents.serve()
		if err != nil {
			return result{}, err
		}
		defer agents.server.Stop()
		bctx, stop := context.WithCancel(ctx)
		var beats sync.WaitGroup
		defer beats.Wait()
		defer stop()
		for i := range rotateNodes {
			id, host := driftNode(i)
			c := controlv1.NewAgentControlClient(conns[i%len(conns)])
			every, err := register(ctx, c, id, i, fmt.Sprintf("%s:%d", host, port))
			if err != nil {
				return result{}, err
			}
			beats.Go(func() { agents.beat(bctx, c, id, every) })
		}
		admin := clusterv1.NewClusterClient(conns[0])
		put := func(value string) (time.Duration, error) {
			began := time.Now()
			_, err := admin.PutObject(ctx, &clusterv1.PutObjectRequest{Kind: "secret", Name: "db", Data: []byte(value)})
			return time.Since(began), err
		}
		if _, err := put("value 0"); err != nil {
			return result{}, err
		}
		spec := &controlv1.WorkloadSpec{Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 10, MemoryMb: 16},
			Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "nginx:1.27", OnChange: "signal SIGHUP", Secrets: []*controlv1.ObjectFile{{Source: "db"}}}}}
		if err := applySmall(ctx, admin, spec, numbered("rotate-%04d", 0, rotateUsers)...); err != nil {
			return result{}, err
		}
		if err := agents.all(ctx, "value 0"); err != nil {
			return result{}, err
		}
		var slowest, call time.Duration
		for i := range rotateRuns {
			value := fmt.Sprint("value ", i+1)
			began := time.Now()
			answered, err := put(value)
			if err == nil {
				err = agents.all(ctx, value)
			}
			if err != nil {
				return result{}, err
			}
			slowest, call = max(slowest, time.Since(began)), max(call, answered)
		}
		if n := agents.failures.Load(); n > 0 {
			return result{}, fmt.Errorf("%d heartbeats of the simulated agents failed", n)
		}
		return result{ours: slowest.Seconds(), unit: "s", goal: 2, lower: true,
			note: fmt.Sprintf("the slowest of %d rotations; the put itself was answered within %.0f ms; %d workloads on %d nodes, three schedulers on disk, agents in the benchmark's process",
				rotateRuns, float64(call.Milliseconds()), rotateUsers, rotateNodes)}, nil
	})
}

// rotateAgents is one server for the agents of all nodes, each of which has its own address in 127.0.0.0/8. It accepts
// every order and keeps the value in it.
type rotateAgents struct {
	agentv1.UnimplementedAgentServiceServer
	server   *grpc.Server
	failures atomic.Int64

	mu     sync.Mutex
	values map[string]string // by workload
}

func (a *rotateAgents) serve() (port int, err error) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		return 0, err
	}
	agentv1.RegisterAgentServiceServer(a.server, a)
	go func() { _ = a.server.Serve(l) }() // Serve returns after Stop
	return l.Addr().(*net.TCPAddr).Port, nil
}

// beat sends the heartbeats of one node, so that it stays ready.
func (a *rotateAgents) beat(ctx context.Context, c controlv1.AgentControlClient, id string, every time.Duration) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, every)
		_, err := c.Heartbeat(call, &controlv1.HeartbeatRequest{NodeId: id, Timestamp: timestamppb.Now(), Usage: &controlv1.NodeUsage{}})
		cancel()
		if err != nil && ctx.Err() == nil {
			a.failures.Add(1)
		}
		wait(ctx, every)
	}
}

// all waits until the simulated agents have an order with the given value of the secret for every workload.
func (a *rotateAgents) all(ctx context.Context, value string) error {
	ctx, cancel := context.WithTimeout(ctx, rotateWait)
	defer cancel()
	have := func() (n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, v := range a.values {
			if v == value {
				n++
			}
		}
		return n
	}
	for have() < rotateUsers {
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%d of %d workloads have the new value %q", have(), rotateUsers, value), ctx.Err())
		}
		wait(ctx, time.Millisecond)
	}
	return nil
}

// ApplyWorkload implements agent.v1.
func (a *rotateAgents) ApplyWorkload(_ context.Context, req *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	files := req.GetSpec().GetContainer().GetMemoryFiles()
	if len(files) != 1 || files[0].GetSignal() != "SIGHUP" {
		return nil, fmt.Errorf("the order of %s has %d files, want one file with the signal SIGHUP", req.GetId(), len(files))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.values[req.GetId()] = string(files[0].GetData())
	return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
}

// ListWorkloads implements agent.v1.
func (*rotateAgents) ListWorkloads(context.Context, *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	return &agentv1.ListWorkloadsResponse{}, nil
}

// ListActions implements agent.v1.
func (*rotateAgents) ListActions(context.Context, *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	return &agentv1.ListActionsResponse{}, nil
}
