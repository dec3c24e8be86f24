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

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/child"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/stack"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) {
	child.Serve(stack.Task)
	goleak.VerifyTestMain(m)
}

// group is a group of replicas with a simulated replicated log in memory. Each replica has its own server. A replica
// applies an entry at once, except while the test holds the replica back.
type group struct {
	t        testing.TB
	replicas []*replica

	mu      sync.Mutex
	state   fsm.State
	index   uint64
	leader  int // index of the leader in the group; -1 = no leader
	changed chan struct{}
	history []*commandv1.Command // all committed commands
}

// replica is one replica of a group. It implements the interfaces Replica and Leader for its server.
type replica struct {
	g      *group
	self   Peer
	store  *store.Store
	server *Server
	addr   string

	autoscaled sched.Autoscaled // result of AutoscaleOf

	conn *grpc.ClientConn

	stopServer func()

	mu         sync.Mutex
	lagging    bool
	before     func(ctx context.Context) error // called by Propose and Confirm first; they return its error
	after      error                           // error that Propose returns although it has committed the command
	local      string                          // why this replica itself cannot accept writes; "" = it can
	contact    time.Time
	idle       bool // this replica leads, but its leadership term has not begun
	beats      []sched.Heartbeat
	callers    []string
	transfers  []string
	removals   []string
	moves      map[string]sched.MoveReport // reports about moves of volumes, by node
	registered int

	hollow bool // for benchmarks: the replica accepts all commands and applies none
}

const (
	holdWrites = 400 * time.Millisecond
	holdReads  = 150 * time.Millisecond
)

// newGroup runs n replicas, with nodes a and b in their state. The first replica leads.
func newGroup(t testing.TB, n int, tune ...func(i int, c *Config)) *group {
	t.Helper()
	g := &group{t: t, state: fsm.New(), leader: 0, changed: make(chan struct{})}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("s%d", i)
		r := &replica{
			g: g, store: store.New(g.state), addr: l.Addr().String(), contact: time.Now(),
			self: Peer{ID: "id-" + name, Name: name, GRPCAddr: l.Addr().String()},
		}
		cfg := Config{
			Replica: r, Leader: r, Keys: keys{key}, HoldWrites: holdWrites, HoldReads: holdReads,
			Version: "test", Shard: "blue", AuditCommands: true,
		}
		cfg.Agents = NewAgents(r.store, nil, cfg.Keys)
		for _, f := range tune {
			f(i, &cfg)
		}
		if r.server, err = NewServer(cfg); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.server.GRPC().Serve(l) }()
		stop := sync.OnceFunc(func() {
			r.server.Close(100 * time.Millisecond)
			served(t, <-done)
			cfg.Agents.Close()
		})
		r.stopServer = stop
		t.Cleanup(stop)
		g.replicas = append(g.replicas, r)
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	for _, r := range g.replicas {
		g.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: r.self.ID, Name: r.self.Name, GrpcAddr: r.addr}}})
	}
	for _, n := range []string{"a", "b"} {
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: n, Endpoint: "127.0.0.1:1", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
		}}})
	}
	return g
}

type keys struct{ key *pki.Key }

func (k keys) Key() (*pki.Key, error) {
	if k.key == nil {
		return nil, errors.New("this replica has no cluster key")
	}
	return k.key, nil
}

func (k keys) Offered() (*pki.Key, bool, error) {
	key, err := k.Key()
	return key, false, err
}

func (k keys) Held(id string) *pki.Key {
	if k.key != nil && k.key.ID() == id {
		return k.key
	}
	return nil
}

func (k keys) Prepare() (string, error) {
	key, err := pki.NewKey()
	if err != nil {
		return "", err
	}
	return key.ID(), nil
}

func (k keys) Keep(*pki.Key) error  { return nil }
func (k keys) Discard(string) error { return nil }

// commit applies commands as one log entry, on all replicas that the test does not hold back.
func (g *group) commit(cmds []fsm.Command) []fsm.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.index++
	tx := g.state.Begin()
	var results []fsm.Result
	var changes []fsm.Change
	for _, c := range cmds {
		r, ch := tx.Apply(fsm.Meta{Index: g.index, Term: 1}, c)
		results, changes = append(results, r), append(changes, ch...)
	}
	g.history = append(g.history, cmds...)
	g.state = tx.Commit()
	for _, r := range g.replicas {
		r.mu.Lock()
		if !r.lagging {
			r.store.Publish(g.state, changes)
		}
		r.mu.Unlock()
	}
	return results
}

// do commits one command, and fails the test if the command is refused.
func (g *group) do(c *commandv1.Command) fsm.Result {
	g.t.Helper()
	if c.Head == nil {
		c.Head = &commandv1.Head{At: time.Now().UnixNano(), By: "test"}
	}
	if c.GetAssign() != nil || c.GetReport() != nil || c.GetSetNodeStates() != nil || c.GetEvict() != nil || c.GetReportVolumes() != nil {
		c.Head.Epoch = &commandv1.Epoch{Incarnation: 1, Term: 1}
	}
	r := g.commit([]fsm.Command{c})[0]
	if r.Err() != nil {
		g.t.Fatalf("%v: %v", c, r.Err())
	}
	return r
}

func (g *group) mode(m fsm.Mode) {
	g.t.Helper()
	g.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: string(m), Reason: "etcd is away"}}})
}

// place assigns a workload to a node.
func (g *group) place(id, node string) {
	g.t.Helper()
	g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: id, Spec: []byte{}, Content: fmt.Sprintf("c1:%064x", len(id)), Desired: "Running", Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1},
	}}}}})
	if node != "" {
		g.assign(id, node)
	}
}

func (g *group) assign(id, node string) {
	g.t.Helper()
	w, _ := g.now().Workload(id)
	g.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{{
		Workload: id, Node: node, IfGeneration: fsm.GenerationPB(w.Generation),
	}}}}})
}

// put applies a request through the API and assigns its workloads to a node.
func (g *group) put(t testing.TB, req *controlv1.ApplyWorkloadRequest, node string) {
	t.Helper()
	r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	if err != nil || !r.GetSuccess() {
		t.Fatalf("apply %s: %v %s", req.GetWorkloadId(), err, r.GetErrorMessage())
	}
	for _, id := range r.GetWorkloadIds() {
		g.assign(id, node)
	}
}

// elect makes replica i the leader; with -1 there is no leader.
func (g *group) elect(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leader = i
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *group) puts() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.history {
		if c.GetPutWorkloads() != nil {
			n++
		}
	}
	return n
}

// lastBy returns the identity of the caller that the last committed command names as its author.
func (g *group) lastBy() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.history[len(g.history)-1].GetHead().GetBy()
}

func (g *group) view() fsm.View { return g.now() }

func (g *group) now() fsm.State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

func (r *replica) leads() bool {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.leader >= 0 && r.g.replicas[r.g.leader] == r
}

func (r *replica) set(fn func(*replica)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r)
}

// loseFirstAnswer makes the next proposal commit but return an unknown outcome. Later proposals do not
// commit; they return the error that the function second returns.
func (r *replica) loseFirstAnswer(second func() error) {
	first := true
	r.set(func(r *replica) {
		r.after = ErrUnknownOutcome
		r.before = func(context.Context) error {
			if first {
				first = false
				return nil
			}
			r.set(func(r *replica) { r.after = nil })
			return second()
		}
	})
}

func (r *replica) gate(ctx context.Context) error {
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	if !r.leads() {
		return fmt.Errorf("%w: it follows", ErrNotLeader)
	}
	return nil
}

func (r *replica) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	if r.hollow {
		return []fsm.Result{{Index: 9, Items: []fsm.Item{{ID: cmds[0].GetPutWorkloads().GetWorkloads()[0].GetId(), Revision: "c1-0123456789abcdef"}}}}, nil
	}
	if err := r.gate(ctx); err != nil {
		return nil, err
	}
	results := r.g.commit(cmds)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.after != nil {
		return nil, r.after
	}
	return results, nil
}

func (r *replica) Confirm(ctx context.Context) (uint64, error) {
	if err := r.gate(ctx); err != nil {
		return 0, err
	}
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.index, nil
}

func (r *replica) Store() *store.Store { return r.store }
func (r *replica) Self() Peer          { return r.self }

func (r *replica) Leader() (Peer, bool) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.g.leader < 0 {
		return Peer{}, false
	}
	return r.g.replicas[r.g.leader].self, true
}

func (r *replica) LeaderChanged() <-chan struct{} {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.changed
}

func (r *replica) LastContact() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.contact
}

func (r *replica) Frozen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local
}

func (r *replica) Describe(out *clusterv1.StatusResponse) {
	if to, ok := r.Leader(); ok {
		out.LeaderId = to.ID
	}
}

func (r *replica) TransferLeadership(_ context.Context, to string) error {
	r.set(func(r *replica) { r.transfers = append(r.transfers, to) })
	for i, other := range r.g.replicas {
		if other.self.ID == to {
			r.g.elect(i)
		}
	}
	return nil
}

func (r *replica) Restore(_ context.Context, build func(fsm.State) (fsm.State, error)) (uint64, error) {
	g := r.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leader < 0 || g.replicas[g.leader] != r {
		return 0, ErrNotLeader
	}
	next, err := build(g.state)
	if err != nil {
		return 0, err
	}
	g.state, g.index = next, next.Info().Index
	for _, o := range g.replicas {
		o.store.Restore(next)
	}
	return g.index, nil
}

func (r *replica) RemoveReplica(_ context.Context, id string, _ bool) error {
	r.set(func(r *replica) { r.removals = append(r.removals, id) })
	return nil
}

func (r *replica) Dismiss(_ context.Context, id string) error {
	r.set(func(r *replica) { r.removals = append(r.removals, "leave "+id) })
	return nil
}

// The methods below implement Leader.

var errIdle = errors.New("the leadership term has not begun")

func (r *replica) lease() (sched.Lease, error) {
	if r.idle {
		return sched.Lease{}, errIdle
	}
	return sched.Lease{
		Interval: int64(3 * time.Second), Duration: int64(10 * time.Second), ExpiresAt: time.Now().Add(10 * time.Second).UnixNano(),
		Drain: r.store.View().Info().Mode.Frozen(), Epoch: fsm.Epoch{Incarnation: 1, Term: 1},
	}, nil
}

func (r *replica) Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beats = append(r.beats, hb)
	r.callers = append(r.callers, callOf(ctx).id.ID)
	return r.lease()
}

func (r *replica) Registered(ctx context.Context, node string) (sched.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registered++
	r.callers = append(r.callers, callOf(ctx).id.ID)
	return r.lease()
}

func (r *replica) LeaseOf(string) (int64, int64, bool) { return 0, 0, false }

func (r *replica) MoveReportOf(node, _ string) (sched.MoveReport, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.moves[node]
	return x, ok
}

func (r *replica) WorkloadUsageOf(string, string) (sched.WorkloadUsage, bool) {
	return sched.WorkloadUsage{}, false
}

func (r *replica) AutoscaleOf(string) (sched.Autoscaled, bool) {
	return r.autoscaled, r.autoscaled.At != 0
}

func (r *replica) PoolsUsedOf(string) map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.beats) == 0 {
		return nil
	}
	return r.beats[len(r.beats)-1].PoolsUsed
}

func (r *replica) UsageOf(string) (sched.NodeUsage, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.beats) == 0 {
		return sched.NodeUsage{}, false
	}
	return r.beats[len(r.beats)-1].Used, true
}

func (r *replica) lastBeat(t testing.TB) sched.Heartbeat {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.beats) == 0 {
		t.Fatal("the heartbeat must reach the leader's loop, but did not")
	}
	return r.beats[len(r.beats)-1]
}

// client returns a gRPC connection, without TLS, to the server of this replica.
func (r *replica) client(t testing.TB) *grpc.ClientConn {
	t.Helper()
	if r.conn == nil {
		c, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		r.conn = c
	}
	return r.conn
}

func (g *group) control(i int) controlv1.AgentControlClient {
	return controlv1.NewAgentControlClient(g.replicas[i].client(g.t))
}

func (g *group) cluster(i int) clusterv1.ClusterClient {
	return clusterv1.NewClusterClient(g.replicas[i].client(g.t))
}

func ctxFor(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	t.Cleanup(cancel)
	return ctx
}

func with(t testing.TB, pairs ...string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(ctxFor(t), pairs...)
}

// web returns a valid request that applies one container.
func web(id string) *controlv1.ApplyWorkloadRequest {
	return &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: &controlv1.WorkloadSpec{
		Type:      "container",
		Resources: &controlv1.ResourceRequirements{CpuMillicores: 100, MemoryMb: 64},
		Workload:  &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "nginx:1"}},
	}}
}

func requestID(t testing.TB) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// says checks that an error has this gRPC code, and that its text contains part.
func says(t testing.TB, err error, want codes.Code, part string) {
	t.Helper()
	code(t, err, want)
	if !strings.Contains(fmt.Sprint(err), part) {
		t.Errorf("the error must contain %q, but is: %v", part, err)
	}
}

func code(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("code is %s, want %s: %v", got, want, err)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
