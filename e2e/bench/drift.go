package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/sched/control"
	"github.com/persys/compute/sched/leader"
)

const (
	driftNodes    = 1000
	driftEach     = 50 // number of workloads on each node
	driftOdd      = 10 // every tenth node runs an orphan
	driftInterval = 30 * time.Second
)

// drift1k runs one round of drift detection, in which the leader inspects 1,000 simulated nodes over gRPC, at
// the default interval. Every tenth node runs an instance that the state does not have (an orphan). The
// leader records it as drift after a second inspection has found it too. The result is the time until the
// last drift is recorded. Leader and agents share this process, so the CPU figure covers both.
func drift1k(ctx context.Context, _ *env) (result, error) {
	agents, err := serveDriftAgents()
	if err != nil {
		return result{}, err
	}
	defer agents.server.Stop()
	w, err := driftWorld(agents.port)
	if err != nil {
		return result{}, err
	}
	agents.view = w.view()
	client := rpc.NewAgents(w.store, nil, nil)
	defer client.Close()
	loop := leader.New(leader.Config{Settings: control.Settings{DriftInterval: driftInterval, LegacyLease: time.Hour}, Inspector: client}, w, client, w.store)
	ctx, stop := context.WithTimeout(ctx, 2*driftInterval)
	defer stop()
	ended := make(chan error, 1)
	cpu, began := processCPU(), time.Now()
	go func() { ended <- loop.Run(ctx, w.view().Info().Epoch()) }()
	for agents.heard() < driftNodes && ctx.Err() == nil {
		wait(ctx, 5*time.Millisecond)
	}
	took, used := time.Since(began), processCPU()-cpu
	for w.view().DriftCount() < driftNodes/driftOdd && ctx.Err() == nil {
		wait(ctx, 5*time.Millisecond)
	}
	noted, found := time.Since(began), w.view().DriftCount()
	stop()
	if err := <-ended; err != nil {
		return result{}, err
	}
	if n := agents.heard(); n < driftNodes || found < driftNodes/driftOdd {
		return result{}, fmt.Errorf("after %s, %d of %d nodes were inspected and %d of %d drifts recorded", noted, n, driftNodes, found, driftNodes/driftOdd)
	}
	return result{ours: noted.Seconds(), unit: "s", goal: driftInterval.Seconds(), lower: true,
		note: fmt.Sprintf("%d nodes of %d workloads; %.2f s of CPU for leader and agents, %.1f %% of a core; the last node was asked after %.1f s, the last of %d orphans on record after %.1f s",
			driftNodes, driftEach, used, 100*used/took.Seconds(), took.Seconds(), found, noted.Seconds())}, nil
}

// driftAgents is one server for the agents of all nodes, each of which has its own address in
// 127.0.0.0/8.
type driftAgents struct {
	agentv1.UnimplementedAgentServiceServer
	server *grpc.Server
	port   int
	view   fsm.View

	mu    sync.Mutex
	asked map[string]bool
}

func serveDriftAgents() (*driftAgents, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	if l, err = net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port)); err != nil {
		return nil, err
	}
	a := &driftAgents{server: grpc.NewServer(), port: port, asked: map[string]bool{}}
	agentv1.RegisterAgentServiceServer(a.server, a)
	go func() { _ = a.server.Serve(l) }() // Serve returns after Stop
	return a, nil
}

func (a *driftAgents) heard() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

func driftNode(i int) (id, host string) {
	return fmt.Sprintf("node-%04d", i), fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250)
}

func (a *driftAgents) ListWorkloads(ctx context.Context, _ *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	p, _ := peer.FromContext(ctx)
	ip := p.LocalAddr.(*net.TCPAddr).IP.To4()
	i := 250*int(ip[2]) + int(ip[3]) - 1
	id, _ := driftNode(i)
	out := &agentv1.ListWorkloadsResponse{}
	a.view.WorkloadsOn(id, func(w *fsm.Workload) bool {
		out.Workloads = append(out.Workloads, &agentv1.WorkloadStatus{
			Id: w.ID, RevisionId: w.Revision(), ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING, UpdatedAt: 1,
			Metadata: map[string]string{"container.id": "0123456789ab", "container.state": "running", "container.image": "nginx:1.27"},
		})
		return true
	})
	if i%driftOdd == 0 {
		out.Workloads = append(out.Workloads, &agentv1.WorkloadStatus{Id: "ghost", ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[id] = true
	return out, nil
}

func (a *driftAgents) ListActions(context.Context, *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	return &agentv1.ListActionsResponse{}, nil
}

// driftWorld returns the state of the benchmark, in which every workload runs on its node. The agents of all
// nodes listen on the given port.
func driftWorld(port int) (*world, error) {
	w, err := newWorld()
	for i := 0; i < driftNodes && err == nil; i++ {
		id, host := driftNode(i)
		ids := numbered(id+"-w%02d", 0, driftEach)
		err = w.register(&commandv1.RegisterNode{Id: id, Endpoint: fmt.Sprintf("%s:%d", host, port), CpuMillicores: 64_000, MemoryMib: 65_536, Types: []string{"container"}})
		if err == nil {
			err = w.workloads([]byte(id), 10, 10, ids...)
		}
		if err == nil {
			err = w.assign(ids, func(int) string { return id })
		}
		var reports []*commandv1.WorkloadReport
		for _, id := range ids {
			reports = append(reports, w.running(id))
		}
		if err == nil {
			err = w.report(reports...)
		}
	}
	return w, err
}
