package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one agent on one simulated engine. If the agent is stopped, its state file and the engine stay as
// they are, as after a kill of the process.
type rig struct {
	t      testing.TB
	engine *sim.Engine
	cfg    Config
	hooks  *hooks
	make   Factory // driver factory; nil for the default factory

	a    *Agent
	api  agentv1.AgentServiceServer
	stop func() error
}

// hooks are functions that the driver calls before it calls the simulated engine. A nil hook does nothing. If
// a hook returns an error, the driver's call returns that error.
type hooks struct {
	mu     sync.Mutex
	ensure func(driver.Spec) error
	during func(context.Context, driver.Spec) // called before the simulated driver ensures an instance, with the context of that call
	remove func(driver.ID) error
	looked func(driver.ID) // called after the engine has reported an instance and before the agent gets the report
	calls  []string
}

func (h *hooks) set(fn func(*hooks)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn(h)
}

func (h *hooks) count(call string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, c := range h.calls {
		if c == call {
			n++
		}
	}
	return n
}

type hooked struct {
	driver.Driver
	*hooks
}

func (d hooked) Ensure(ctx context.Context, spec driver.Spec) error {
	d.mu.Lock()
	fn, during := d.ensure, d.during
	d.calls = append(d.calls, "ensure "+string(spec.ID))
	d.mu.Unlock()
	if during != nil {
		during(ctx, spec)
	}
	if fn != nil {
		if err := fn(spec); err != nil {
			return err
		}
	}
	return d.Driver.Ensure(ctx, spec)
}

func (d hooked) Halt(ctx context.Context, id driver.ID, grace time.Duration) error {
	d.mu.Lock()
	d.calls = append(d.calls, "halt "+string(id))
	d.mu.Unlock()
	return d.Driver.Halt(ctx, id, grace)
}

func (d hooked) Remove(ctx context.Context, id driver.ID) error {
	d.mu.Lock()
	fn := d.remove
	d.calls = append(d.calls, "remove "+string(id))
	d.mu.Unlock()
	if fn != nil {
		if err := fn(id); err != nil {
			return err
		}
	}
	return d.Driver.Remove(ctx, id)
}

func (d hooked) Leave(ctx context.Context, id driver.ID, volumes bool) error {
	d.mu.Lock()
	d.calls = append(d.calls, "leave "+string(id))
	if volumes {
		d.calls = append(d.calls, "keep volumes of "+string(id))
	}
	d.mu.Unlock()
	return d.Remove(ctx, id)
}

func (d hooked) RemoveInstance(ctx context.Context, id driver.ID) error {
	d.mu.Lock()
	d.calls = append(d.calls, "remove instance "+string(id))
	d.mu.Unlock()
	return d.Remove(ctx, id)
}

func (d hooked) Look(ctx context.Context, id driver.ID) (*driver.Observed, error) {
	d.mu.Lock()
	fn := d.looked
	d.calls = append(d.calls, "look "+string(id))
	d.mu.Unlock()
	o, err := d.Driver.(driver.Looker).Look(ctx, id)
	if fn != nil {
		fn(id)
	}
	return o, err
}

func (d hooked) List(ctx context.Context) ([]driver.Observed, error) {
	d.mu.Lock()
	d.calls = append(d.calls, "list")
	d.mu.Unlock()
	return d.Driver.List(ctx)
}

func (d hooked) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	return d.Driver.(driver.Meter).Usage(ctx, of)
}

func (d hooked) Exec(ctx context.Context, id driver.ID, o driver.ExecOptions) (driver.Session, error) {
	return d.Driver.(driver.Execer).Exec(ctx, id, o)
}

func (d hooked) Console(ctx context.Context, id driver.ID, o driver.ConsoleOptions) (driver.Session, error) {
	return d.Driver.(driver.Consoler).Console(ctx, id, o)
}

var testHost = host.Fixed{
	Total: host.Totals{CPUMillicores: 4000, MemoryMB: 8192, DiskGB: 100},
	Used:  host.Usage{CPUMillicores: 500, MemoryMB: 1024, DiskGB: 10, CPUPercent: 12.5, MemoryPercent: 12.5, DiskPercent: 10, NetReceived: 11, NetSent: 12},
}

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	start := time.Now()
	engine, err := sim.NewEngine(sim.Options{EngineID: "engine-1", Mono: func() time.Duration { return time.Since(start) + 1 }})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, engine: engine, hooks: &hooks{}, cfg: Config{
		NodeID: "node-a", StatePath: filepath.Join(t.TempDir(), "state.db"), Host: testHost,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Advertise: "127.0.0.1:50051",
	}}
	if testing.Verbose() && os.Getenv("AGENT_TEST_LOG") != "" {
		r.cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for _, fn := range change {
		fn(&r.cfg)
	}
	return r
}

// under is an option that connects the agent to schedulers.
func under(c Control) func(*Config) { return func(cfg *Config) { cfg.Control = c } }

func (r *rig) factory(b Binding) ([]driver.Driver, error) {
	return []driver.Driver{hooked{r.engine.Driver(driver.Identity{ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns}), r.hooks}}, nil
}

// start runs the agent until the test ends or stop is called.
func (r *rig) start() *rig {
	r.t.Helper()
	made := r.make
	if made == nil {
		made = r.factory
	}
	a, err := New(r.cfg, made)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	r.a, r.api = a, a.API()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	r.t.Cleanup(r.halt)
	r.t.Helper()
	select {
	case <-a.runner.FirstSweep():
	case <-time.After(30 * time.Second):
		r.t.Fatal("the agent did not look at its engines within 30 s")
	}
	return r
}

func (r *rig) halt() {
	if err := r.stop(); err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

func (r *rig) restart() *rig {
	r.halt()
	return r.start()
}

// crash starts another agent on a copy of the current state file, as after a kill of the process.
func (r *rig) crash() *rig {
	r.t.Helper()
	next := *r
	next.cfg.StatePath = filepath.Join(r.t.TempDir(), "state.db")
	for _, suffix := range []string{"", ".key"} {
		data, err := os.ReadFile(r.cfg.StatePath + suffix)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(next.cfg.StatePath+suffix, data, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	next.hooks = &hooks{}
	return next.start()
}

func container(image string) *agentv1.WorkloadSpec {
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{Image: image}}}
}

type option func(*agentv1.ApplyWorkloadRequest)

func content(c string) option { return func(r *agentv1.ApplyWorkloadRequest) { r.Content = c } }
func revision(v string) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.RevisionId = v }
}
func at(sequence uint64) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.Generation = gen(sequence) }
}
func by(term uint64) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.Epoch = epoch(term) }
}
func stopped(r *agentv1.ApplyWorkloadRequest) {
	r.DesiredState = agentv1.DesiredState_DESIRED_STATE_STOPPED
}

func gen(sequence uint64) *agentv1.Generation {
	return &agentv1.Generation{Incarnation: 1, Sequence: sequence}
}

func epoch(term uint64) *agentv1.Epoch {
	return &agentv1.Epoch{ClusterId: "c1", Incarnation: 1, Term: term}
}

func (r *rig) apply(id, image string, options ...option) *agentv1.ApplyWorkloadResponse {
	r.t.Helper()
	req := &agentv1.ApplyWorkloadRequest{
		Id: id, Type: agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER, RevisionId: "rev-1", Spec: container(image),
		DesiredState: agentv1.DesiredState_DESIRED_STATE_RUNNING,
	}
	for _, o := range options {
		o(req)
	}
	out, err := r.api.ApplyWorkload(context.Background(), req)
	if err != nil {
		r.t.Fatalf("ApplyWorkload(%s): %v", id, err)
	}
	return out
}

func (r *rig) delete(id string, change ...func(*agentv1.DeleteWorkloadRequest)) *agentv1.DeleteWorkloadResponse {
	r.t.Helper()
	req := &agentv1.DeleteWorkloadRequest{Id: id}
	for _, fn := range change {
		fn(req)
	}
	out, err := r.api.DeleteWorkload(context.Background(), req)
	if err != nil {
		r.t.Fatalf("DeleteWorkload(%s): %v", id, err)
	}
	return out
}

// observed returns the instance of a workload on the simulated engine, even if the instance has no labels.
func (r *rig) observed(id string) *driver.Observed {
	r.t.Helper()
	for _, cluster := range []string{"c1", Unbound} {
		d := r.engine.Driver(driver.Identity{ClusterID: cluster, NodeID: r.cfg.NodeID, Owns: func(driver.ID) bool { return true }})
		list, err := d.List(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, o := range list {
			if string(o.ID) == id {
				return &o
			}
		}
	}
	return nil
}

// do sends an event to the core.
func (r *rig) do(e core.Event) {
	r.t.Helper()
	if _, err := r.a.runner.Do(e); err != nil {
		r.t.Fatal(err)
	}
}

// leased gives the agent a lease that ends at until, as the answer to a heartbeat does.
func (r *rig) leased(until time.Duration) {
	r.t.Helper()
	r.do(core.Leased{Until: until})
}

// progress reports the current activity of a driver to the core.
func (r *rig) progress(id driver.ID, text string) { r.do(core.Progress{ID: string(id), Text: text}) }

func (r *rig) status(id string) *agentv1.WorkloadStatus {
	out, err := r.api.GetWorkloadStatus(context.Background(), &agentv1.GetWorkloadStatusRequest{Id: id})
	if err != nil {
		return nil
	}
	return out.Status
}

func (r *rig) reaches(id string, want agentv1.ActualState) *agentv1.WorkloadStatus {
	r.t.Helper()
	var st *agentv1.WorkloadStatus
	r.until(func() bool { st = r.status(id); return st.GetActualState() == want },
		func() string { return fmt.Sprintf("workload %s: want %s, have %v", id, want, st) })
	return st
}

func (r *rig) gone(id string) {
	r.t.Helper()
	r.until(func() bool { return r.status(id) == nil && r.observed(id) == nil },
		func() string { return fmt.Sprintf("workload %s: still there: %v", id, r.status(id)) })
}

// until calls ok again and again until ok returns true. After a time limit it fails the test with the text that
// why returns. In a synctest bubble this takes no real time.
func (r *rig) until(ok func() bool, why func() string) {
	r.t.Helper()
	testbed.Within(r.t, testbed.Patience, "the agent", func() error {
		if !ok() {
			return errors.New(why())
		}
		return nil
	})
}

const (
	running = agentv1.ActualState_ACTUAL_STATE_RUNNING
	halted  = agentv1.ActualState_ACTUAL_STATE_STOPPED
	failing = agentv1.ActualState_ACTUAL_STATE_FAILED
	pending = agentv1.ActualState_ACTUAL_STATE_PENDING
	unknown = agentv1.ActualState_ACTUAL_STATE_UNKNOWN
)

// schedulers are a server of the control API in this process. The functions that answer its calls may be
// replaced under mu.
type schedulers struct {
	mu         sync.Mutex
	registers  []*controlv1.RegisterNodeRequest
	beats      []*controlv1.HeartbeatRequest
	beatAt     []time.Time
	onRegister func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error)
	onBeat     func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error)
}

func controlEpoch(cluster string, term uint64) *controlv1.Epoch {
	return &controlv1.Epoch{ClusterId: cluster, Incarnation: 1, Term: term}
}

// leader returns schedulers that answer as schedulers of this version do: cluster c1, term 1, heartbeat
// interval 3 s, lease 10 s.
func leader() *schedulers {
	return &schedulers{
		onRegister: func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
			return &controlv1.RegisterNodeResponse{
				Accepted: true, Reason: "registered", HeartbeatIntervalSeconds: 3, LeaseSeconds: 10, ClusterId: "c1", Epoch: controlEpoch("c1", 1),
			}, nil
		},
		onBeat: func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(1), nil },
	}
}

// existing returns schedulers that answer as legacy v1 schedulers do: without epochs and leases.
func existing() *schedulers {
	return &schedulers{
		onRegister: func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
			return &controlv1.RegisterNodeResponse{Accepted: true, HeartbeatIntervalSeconds: 3}, nil
		},
		onBeat: func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			return &controlv1.HeartbeatResponse{Acknowledged: true}, nil
		},
	}
}

func beatOK(term uint64) *controlv1.HeartbeatResponse {
	return &controlv1.HeartbeatResponse{
		Acknowledged: true, HeartbeatIntervalSeconds: 3, LeaseSeconds: 10, Epoch: controlEpoch("c1", term),
	}
}

func (s *schedulers) RegisterNode(ctx context.Context, in *controlv1.RegisterNodeRequest, _ ...grpc.CallOption) (*controlv1.RegisterNodeResponse, error) {
	s.mu.Lock()
	s.registers = append(s.registers, in)
	fn := s.onRegister
	s.mu.Unlock()
	return fn(in)
}

func (s *schedulers) Heartbeat(ctx context.Context, in *controlv1.HeartbeatRequest, _ ...grpc.CallOption) (*controlv1.HeartbeatResponse, error) {
	s.mu.Lock()
	s.beats = append(s.beats, in)
	s.beatAt = append(s.beatAt, time.Now())
	fn := s.onBeat
	s.mu.Unlock()
	return fn(in)
}

func (s *schedulers) answer(fn func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onBeat = fn
}

// said returns the heartbeats that the agent has sent so far, and how often it has registered.
func (s *schedulers) said() ([]*controlv1.HeartbeatRequest, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*controlv1.HeartbeatRequest(nil), s.beats...), len(s.registers)
}
