package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errUnknown   = errors.New("test: the command may or may not have been committed")
	errNotLeader = errors.New("not the leader")
)

// fakeLog is a log of one replica in memory.
type fakeLog struct {
	st *store.Store

	mu       sync.Mutex
	index    uint64
	term     uint64
	last     fsm.State
	fail     error // error that Propose returns; with errUnknown it also applies the commands
	deaf     error // error that Confirm returns
	slow     time.Duration
	arms     map[string]int // number of applied commands, by command name
	entries  [][]fsm.Command
	confirms int
}

func (l *fakeLog) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	sleep(ctx, l.delay())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l.fail != nil && !errors.Is(l.fail, errUnknown) {
		return nil, l.fail
	}
	l.index++
	tx := l.last.Begin()
	var results []fsm.Result
	var changes []fsm.Change
	for _, c := range cmds {
		r, ch := tx.Apply(fsm.Meta{Index: l.index, Term: l.term}, c)
		results, changes = append(results, r), append(changes, ch...)
		if r.Err() == nil {
			l.arms[fsm.ArmName(c)]++
		}
	}
	l.entries = append(l.entries, cmds)
	l.last = tx.Commit()
	l.st.Publish(l.last, changes)
	return results, l.fail
}

func (l *fakeLog) Confirm(ctx context.Context) (uint64, error) {
	sleep(ctx, l.delay())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if l.deaf != nil {
		return 0, l.deaf
	}
	l.confirms++
	return l.index, nil
}

func (l *fakeLog) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slow
}

// set changes how the fake log behaves.
func (l *fakeLog) set(fn func(*fakeLog)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(l)
}

func (l *fakeLog) count(arm string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.arms[arm]
}

func (l *fakeLog) confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.confirms
}

// delivery is one order that an agent received.
type delivery struct {
	sched.Order
	epoch fsm.Epoch
	at    time.Time
}

// fakeAgents accepts every order, unless a test sets an answer for the node.
type fakeAgents struct {
	mu      sync.Mutex
	seen    []delivery
	answer  map[string]func(ctx context.Context, o sched.Order) (sched.Ack, error)
	flying  map[string]int
	most    map[string]int
	current int
	peak    int
}

func (a *fakeAgents) Deliver(ctx context.Context, epoch fsm.Epoch, o sched.Order) (sched.Ack, error) {
	a.mu.Lock()
	a.seen = append(a.seen, delivery{o, epoch, time.Now()})
	a.flying[o.Node]++
	a.current++
	a.most[o.Node] = max(a.most[o.Node], a.flying[o.Node])
	a.peak = max(a.peak, a.current)
	fn := a.answer[o.Node]
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.flying[o.Node]--
		a.current--
		a.mu.Unlock()
	}()
	if fn != nil {
		return fn(ctx, o)
	}
	return sched.Ack{Accepted: true, Gone: o.Op == sched.OpDelete, State: fsm.ActualPending}, nil
}

func (a *fakeAgents) on(node string, fn func(ctx context.Context, o sched.Order) (sched.Ack, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer[node] = fn
}

func (a *fakeAgents) got(node string) (out []delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.seen {
		if d.Node == node {
			out = append(out, d)
		}
	}
	return out
}

func dead(ctx context.Context, _ sched.Order) (sched.Ack, error) {
	<-ctx.Done()
	return sched.Ack{}, ctx.Err()
}

func broken(context.Context, sched.Order) (sched.Ack, error) {
	return sched.Ack{}, errors.New("connection refused")
}

// world is a leader with a fake log and fake agents. It runs under testing/synctest, where time
// passes only while every goroutine waits.
type world struct {
	t      *testing.T
	log    *fakeLog
	agents *fakeAgents
	loop   *Loop
	ahead  atomic.Int64 // nanoseconds by which the leader's wall clock is ahead of the synctest clock
	missed atomic.Int64 // nanoseconds for which the leader's process seems to have been paused
	stop   func()
	ended  chan struct{}
}

// inWorld runs fn, a test of a leader, in a cluster with the named nodes. The functions tune change
// the settings.
func inWorld(t *testing.T, nodes []string, fn func(w *world), tune ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := store.New(fsm.New())
		w := &world{
			t:   t,
			log: &fakeLog{st: st, last: fsm.New(), term: 1, arms: map[string]int{}},
			agents: &fakeAgents{
				answer: map[string]func(context.Context, sched.Order) (sched.Ack, error){},
				flying: map[string]int{}, most: map[string]int{},
			},
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
		for _, n := range nodes {
			w.register(n)
		}
		start := time.Now()
		cfg := Config{Clock: func() control.Time {
			missed := w.missed.Load()
			return control.Time{
				Wall: time.Now().UnixNano() + w.ahead.Load() + missed,
				Mono: int64(time.Since(start)) + missed,
			}
		}}
		for _, f := range tune {
			f(&cfg)
		}
		w.loop = New(cfg, w.log, w.agents, st)
		w.lead()
		defer w.resign()
		fn(w)
	})
}

func (w *world) epoch() fsm.Epoch {
	return fsm.Epoch{Incarnation: w.view().Info().Incarnation, Term: w.log.term}
}

// restored ends the term, gives the state a new incarnation as a restore does, and begins another term.
func (w *world) restored() {
	w.resign()
	w.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 2}}})
	w.lead()
	w.settle()
}

// lead begins a leadership term and waits until its first steps are done.
func (w *world) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	w.ended = make(chan struct{})
	w.stop = cancel
	ended := w.ended
	go func() {
		defer close(ended)
		if err := w.loop.Run(ctx, w.epoch()); err != nil {
			w.t.Errorf("Run of the leader returned %v, want nil", err)
		}
	}()
	w.settle()
}

// resign ends the leadership term of the test's leader and waits until its goroutines have ended.
func (w *world) resign() {
	w.stop()
	<-w.ended
}

// settle waits 20 ms, in which the leader does all pending work.
func (w *world) settle() { w.pass(20 * time.Millisecond) }

// pass lets the time d pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// do applies a command of the test.
func (w *world) do(c *commandv1.Command) fsm.Result {
	w.t.Helper()
	if c.Head == nil {
		c.Head = &commandv1.Head{At: time.Now().UnixNano() + w.ahead.Load() + w.missed.Load(), By: "test"}
	}
	fail, slow := error(nil), time.Duration(0)
	w.log.set(func(l *fakeLog) { fail, slow, l.fail, l.slow = l.fail, l.slow, nil, 0 })
	r, err := w.log.Propose(context.Background(), c)
	w.log.set(func(l *fakeLog) { l.fail, l.slow = fail, slow })
	if err != nil || r[0].Err() != nil {
		w.t.Fatalf("command %v must be accepted, but returned error %v and result %v", c, err, r)
	}
	return r[0]
}

func (w *world) register(id string, opts ...func(*commandv1.RegisterNode)) {
	w.t.Helper()
	n := &commandv1.RegisterNode{
		Id: id, Endpoint: "10.0.0.1:50051", CpuMillicores: 64_000, MemoryMib: 65_536,
		Types: []string{"container"}, Protocol: 1, InstanceId: "i-" + id,
	}
	for _, f := range opts {
		f(n)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: n}})
}

func legacy(n *commandv1.RegisterNode) { n.Protocol = 0 }

// put stores a workload that should run.
func (w *world) put(id string, opts ...func(*commandv1.WorkloadPut)) {
	w.t.Helper()
	p := &commandv1.WorkloadPut{
		Id: id, Spec: []byte(id), Content: "c1:" + fmt.Sprintf("%064x", time.Now().UnixNano()), Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10},
	}
	for _, f := range opts {
		f(p)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{p}}}})
}

func (w *world) mode(m fsm.Mode) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: string(m), Reason: "test"}}})
}

func (w *world) view() fsm.View { return w.log.st.View() }

func (w *world) node(id string) *fsm.Node {
	w.t.Helper()
	n, ok := w.view().Node(id)
	if !ok {
		w.t.Fatalf("the state has no node %s", id)
	}
	return n
}

func (w *world) workload(id string) *fsm.Workload {
	w.t.Helper()
	n, ok := w.view().Workload(id)
	if !ok {
		w.t.Fatalf("the state has no workload %s", id)
	}
	return n
}

// beat sends a heartbeat and returns the lease in the answer.
func (w *world) beat(hb sched.Heartbeat) sched.Lease {
	w.t.Helper()
	lease, err := w.loop.Heartbeat(context.Background(), hb)
	if err != nil {
		// Errorf, because some heartbeats are sent by other goroutines, which must not call Fatalf.
		w.t.Errorf("the heartbeat of node %s must be answered, but returned error %v", hb.Node, err)
	}
	return lease
}

// alive makes nodes send heartbeats in the background for the time d.
func (w *world) alive(d time.Duration, nodes ...string) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, n := range nodes {
			w.beat(sched.Heartbeat{Node: n})
		}
		w.pass(min(3*time.Second, max(0, time.Until(end))))
	}
}

// running returns the report that a workload runs at its present generation.
func (w *world) running(id string) sched.Reported {
	return sched.Reported{Workload: id, Observation: fsm.Observation{State: fsm.ActualRunning, Generation: w.workload(id).Generation}}
}

func (w *world) expires(node string) time.Duration {
	w.t.Helper()
	end, _, ok := w.loop.LeaseOf(node)
	if !ok {
		w.t.Fatalf("node %s must have a lease, but has none", node)
	}
	return time.Duration(end - time.Now().UnixNano() - w.ahead.Load() - w.missed.Load())
}

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// about fails the test unless two durations are nearly equal. They may differ by the 20 ms that
// settle waits, and by the time that a planning step adds.
func about(t testing.TB, what string, got, want time.Duration) {
	t.Helper()
	if d := (got - want).Abs(); d > 60*time.Millisecond {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// sleep waits for the time d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
