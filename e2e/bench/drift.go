package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/sched/leader"
)

const (
	driftNodes    = 1000
	driftEach     = 50 // workloads of one node
	driftOdd      = 10 // every tenth node has an orphan
	driftInterval = 30 * time.Second
)

// drift1k lets a leader compare 1,000 simulated nodes with the state over gRPC,
// at the default interval: the figure is when the last difference is on record. Every
// tenth node has an orphan, which a second look has to confirm. Leader and agents
// share the process, so the CPU is that of both.
func drift1k(ctx context.Context, _ *env) (result, error) {
	agents, err := serveDriftAgents()
	if err != nil {
		return result{}, err
	}
	defer agents.server.Stop()
	log, err := driftWorld(agents.port)
	if err != nil {
		return result{}, err
	}
	agents.view = log.store.View()
	client := rpc.NewAgents(log.store, nil, nil)
	defer client.Close()
	loop := leader.New(leader.Config{DriftInterval: driftInterval, Inspector: client, LegacyLease: time.Hour}, log, client, log.store)
	ctx, stop := context.WithTimeout(ctx, 2*driftInterval)
	defer stop()
	ended := make(chan error, 1)
	cpu, began := processCPU(), time.Now()
	go func() { ended <- loop.Run(ctx, log.store.View().Info().Epoch()) }()
	for agents.heard() < driftNodes && ctx.Err() == nil {
		wait(ctx, 5*time.Millisecond)
	}
	took, used := time.Since(began), processCPU()-cpu
	for log.store.View().DriftCount() < driftNodes/driftOdd && ctx.Err() == nil {
		wait(ctx, 5*time.Millisecond)
	}
	noted, found := time.Since(began), log.store.View().DriftCount()
	stop()
	if err := <-ended; err != nil {
		return result{}, err
	}
	if n := agents.heard(); n < driftNodes || found < driftNodes/driftOdd {
		return result{}, fmt.Errorf("after %s %d of %d nodes were asked, and %d of %d drifts noted", noted, n, driftNodes, found, driftNodes/driftOdd)
	}
	return result{ours: noted.Seconds(), unit: "s", goal: driftInterval.Seconds(), lower: true,
		note: fmt.Sprintf("%d nodes of %d workloads; %.2f s of CPU for leader and agents, %.1f %% of a core; the last node was asked after %.1f s, the last of %d orphans on record after %.1f s",
			driftNodes, driftEach, used, 100*used/took.Seconds(), took.Seconds(), found, noted.Seconds())}, nil
}

// processCPU is what this process has used, seconds.
func processCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// driftAgents is one server that is the agent of every node: each has an address
// of its own in 127.0.0.0/8.
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
	go func() { _ = a.server.Serve(l) }() // ends with Stop
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

// memoryLog commits in memory: what is measured is the comparison, not Raft.
type memoryLog struct {
	store *store.Store
	mu    sync.Mutex
	state fsm.State
	index uint64
}

// Propose implements leader.Proposer.
func (l *memoryLog) Propose(_ context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	tx := l.state.Begin()
	var out []fsm.Result
	for _, c := range cmds {
		r, _ := tx.Apply(fsm.Meta{Index: l.index, Term: 1}, c)
		out = append(out, r)
	}
	changes := tx.Changes()
	l.state = tx.Commit()
	l.store.Publish(l.state, changes)
	return out, nil
}

// Confirm implements leader.Proposer.
func (l *memoryLog) Confirm(context.Context) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index, nil
}

// driftWorld is a state whose nodes run what they ought to.
func driftWorld(port int) (*memoryLog, error) {
	l := &memoryLog{store: store.New(fsm.New()), state: fsm.New()}
	do := func(c *commandv1.Command) error {
		c.Head = &commandv1.Head{At: time.Now().UnixNano(), By: "bench", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}}
		r, err := l.Propose(context.Background(), c)
		if err != nil {
			return err
		}
		return r[0].Err()
	}
	cmds := []*commandv1.Command{
		{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "bench", Incarnation: 1}}},
		{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: "r1", FeatureLevel: fsm.FeatureLevel}}},
		{Body: &commandv1.Command_SetFeatureLevel{SetFeatureLevel: &commandv1.SetFeatureLevel{Level: fsm.FeatureLevel}}},
	}
	for _, c := range cmds {
		if err := do(c); err != nil {
			return nil, err
		}
	}
	for i := range driftNodes {
		id, host := driftNode(i)
		err := do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: fmt.Sprintf("%s:%d", host, port), CpuMillicores: 64_000, MemoryMib: 65_536, Types: []string{"container"},
		}}})
		if err != nil {
			return nil, err
		}
		if err := fill(do, l, id); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// fill places the workloads of one node and lets it report them as running.
func fill(do func(*commandv1.Command) error, l *memoryLog, node string) error {
	puts := &commandv1.PutWorkloads{}
	for j := range driftEach {
		id := fmt.Sprintf("%s-w%02d", node, j)
		puts.Workloads = append(puts.Workloads, &commandv1.WorkloadPut{
			Id: id, Spec: []byte(id), Content: fmt.Sprintf("c1:%064x", j), Desired: "Running", Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10},
		})
	}
	if err := do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: puts}}); err != nil {
		return err
	}
	generation := func(id string) *commandv1.Generation {
		w, _ := l.store.View().Workload(id)
		return &commandv1.Generation{Incarnation: w.Generation.Incarnation, Sequence: w.Generation.Sequence}
	}
	assign, said := &commandv1.Assign{}, &commandv1.Report{}
	for _, p := range puts.Workloads {
		assign.Assignments = append(assign.Assignments, &commandv1.Assignment{Workload: p.Id, Node: node, IfGeneration: generation(p.Id)})
	}
	if err := do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: assign}}); err != nil {
		return err
	}
	for _, p := range puts.Workloads {
		said.Reports = append(said.Reports, &commandv1.WorkloadReport{Workload: p.Id, Node: node, Generation: generation(p.Id), State: "Running", Acknowledged: true})
	}
	return do(&commandv1.Command{Body: &commandv1.Command_Report{Report: said}})
}
