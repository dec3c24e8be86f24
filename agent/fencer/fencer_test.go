package fencer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/testbed"
)

// deafEnv is a variable that names a folder. If it is set, this test binary runs as a fake fencer: it
// listens on the socket in that folder and never answers.
const deafEnv = "FENCER_TEST_DEAF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(deafEnv); dir != "" {
		if _, err := listen(dir); err != nil {
			panic(err)
		}
		time.Sleep(time.Minute) // this is a child process that its test kills; if the test dies, the child ends after a minute
		return
	}
	goleak.VerifyTestMain(m)
}

var db = lease.Workload{Kind: driver.Container, ID: "db"}

// engine is a fake Runtime that records which workloads run and when each was stopped.
type engine struct {
	mu      sync.Mutex
	running map[lease.Workload]bool
	stopped map[lease.Workload]time.Duration
	deaf    bool // while deaf is true the fake engine does not answer
	slow    bool // the engine answers late
}

func (e *engine) Running(ctx context.Context, _ string, of []lease.Workload) (out []lease.Workload, err error) {
	if e.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf {
		return nil, errors.New("the engine does not answer")
	}
	for _, w := range of {
		if e.running[w] {
			out = append(out, w)
		}
	}
	return out, nil
}

func (e *engine) Halt(_ context.Context, _ string, w lease.Workload, _ time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, w)
	e.stopped[w] = Now()
	return nil
}

func (e *engine) start(w lease.Workload) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[w] = true
	delete(e.stopped, w)
}

func (e *engine) at(w lease.Workload) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped[w]
}

// rig is the fixture of a test: the folder of the fencers, a fake engine, and fencers that end with the test.
type rig struct {
	*testing.T
	dir    string
	engine *engine
	client *Client
	boot   string
	agent  lease.Process
}

func newRig(t *testing.T) *rig {
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, dir: t.TempDir(), boot: boot, agent: self,
		engine: &engine{running: map[lease.Workload]bool{db: true}, stopped: map[lease.Workload]time.Duration{}}}
	r.client = &Client{Dir: r.dir, Version: "v1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	t.Cleanup(r.client.Close)
	return r
}

// fencer runs a fencer until the test ends, or stop is called.
func (r *rig) fencer() (stop func(), ended chan error) {
	ctx, cancel := context.WithCancel(r.Context())
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- Run(ctx, Options{Dir: r.dir, Runtime: r.engine, Grace: 100 * time.Millisecond, Version: "v1", UntilIdle: true, Logger: r.client.Logger})
	}()
	stop = func() { cancel(); <-done }
	r.Cleanup(stop)
	return stop, ended
}

func (r *rig) feed(in lease.Renewal) lease.Status {
	r.Helper()
	in.Agent, in.Boot, in.Cluster = r.agent, r.boot, "c1"
	var st lease.Status
	testbed.Within(r, testbed.Patience, "the fencer answers a renewal", func() (err error) {
		st, err = r.client.Renew(r.Context(), in)
		return err
	})
	return st
}

// victim starts a process and returns it. A test passes it to the fencers as the agent, so that they kill it
// instead.
func (r *rig) victim() lease.Process {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }() // the process is killed by the test or by the fencer
	r.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	p, err := processOf(cmd.Process.Pid)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func TestTheFencerStopsWorkloadsAtTheDeadlineAndNotBefore(t *testing.T) {
	r := newRig(t)
	r.fencer()
	deadline := Now() + 700*time.Millisecond
	st := r.feed(lease.Renewal{Deadline: deadline, Leased: []lease.Workload{db}})
	if st.Deadline != deadline || len(st.Leased) != 1 || st.Grace != 100*time.Millisecond {
		t.Fatalf("after a renewal the fencer's status is %+v, want the deadline of the renewal, one leased workload and the grace of the fencer's options", st)
	}
	later := Now() + 1200*time.Millisecond
	r.feed(lease.Renewal{Deadline: later, Leased: []lease.Workload{db}})
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - later; late < 0 || late > 700*time.Millisecond {
		t.Errorf("the workload was stopped %s after the deadline, want within 700 ms", late)
	}
	st = r.feed(lease.Renewal{Deadline: Now() + time.Hour, Leased: []lease.Workload{db}})
	if !st.Lapsed || st.Lapses != 1 {
		t.Fatalf("the fencer's status does not report the end of the lease: %+v", st)
	}
	// After the end of the lease the engine starts the workload once more. The fencer must stop it again,
	// because the agent has not confirmed the end of the lease yet.
	r.engine.start(db)
	testbed.Until(r, "stopped again", func() bool { return r.engine.at(db) > 0 })
	st = r.feed(lease.Renewal{Deadline: Now() + time.Hour, Lapses: 1})
	if st.Lapsed {
		t.Fatalf("the agent confirmed the end of the lease and sent a new deadline, but the fencer's status still has Lapsed: %+v", st)
	}
	testbed.Until(r, "the fencer forgets the stopped workloads", func() bool {
		have, err := load(r.dir, r.boot)
		return err == nil && have.Idle()
	})
	r.engine.start(db)
	if st := r.feed(lease.Renewal{Lapses: 1, Deadline: Now() + time.Hour, Leased: []lease.Workload{db}}); st.Lapsed || st.Lapses != 1 || len(st.Leased) != 1 {
		t.Errorf("the workload was ordered again after the lapse, but the fencer's status %+v does not list it as leased", st)
	}
	if r.engine.at(db) != 0 {
		t.Error("the fencer stopped a workload that was ordered again under the new lease")
	}
}

// One engine answers slowly. The fencer does not wait for it: every workload is stopped within the time
// lease.Bound after the end of the lease.
func TestTheFencerStopsWorkloadsInTimeWithASlowEngine(t *testing.T) {
	r := newRig(t)
	r.engine.slow, r.agent = true, r.victim()
	r.fencer()
	deadline := Now() + time.Second
	r.feed(lease.Renewal{Deadline: deadline, Leased: []lease.Workload{db}})
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - deadline; late > lease.Bound(100*time.Millisecond) {
		t.Errorf("the workload was stopped %s after the end of the lease, want within lease.Bound", late)
	}
}

func TestTheFencerKillsAnAgentThatDoesNotConfirm(t *testing.T) {
	r := newRig(t)
	r.fencer()
	r.agent = r.victim()
	if err := syscall.Kill(r.agent.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.feed(lease.Renewal{Deadline: Now() + 300*time.Millisecond, Leased: []lease.Workload{db}})
	testbed.Until(r, "killed", func() bool { return !Alive(r.agent) })
	if r.engine.at(db) == 0 {
		t.Error("the fencer killed the paused agent before it stopped the leased workload")
	}
}

func TestARestartedAgentHasTimeToConfirm(t *testing.T) {
	t.Run("one fencer runs", func(t *testing.T) { comesBackLater(t, 1) })
	t.Run("two fencers run", func(t *testing.T) { comesBackLater(t, 2) })
}

func comesBackLater(t *testing.T, fencers int) {
	r := newRig(t)
	for range fencers {
		r.fencer()
	}
	r.agent = r.victim()
	deadline := Now() + 100*time.Millisecond
	r.feed(lease.Renewal{Deadline: deadline, Leased: []lease.Workload{db}})
	if err := Kill(r.agent); err != nil {
		t.Fatal(err)
	}
	testbed.Until(r, "the time in which an agent must confirm is over", func() bool { return Now() > deadline+lease.KillAfter+4*tick })
	r.agent = r.victim()
	r.feed(lease.Renewal{Ask: true})
	came := Now()
	testbed.Until(r, "the restarted agent has some time to confirm the end of the lease", func() bool {
		if !Alive(r.agent) {
			t.Fatalf("the restarted agent was killed %s after its start, before it had time to confirm", Now()-came)
		}
		return Now() > came+4*tick
	})
	r.feed(lease.Renewal{Lapses: 1})
	testbed.Until(r, "the agent, which has confirmed the end of the lease, stays alive", func() bool { return Alive(r.agent) && Now() > came+lease.KillAfter+2*tick })
}

func TestAnotherProcessOfTheSameIDIsNotKilled(t *testing.T) {
	r := newRig(t)
	p := r.victim()
	other := lease.Process{PID: p.PID, Start: p.Start - 1}
	if err := Kill(other); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Kill of a process whose id another process has now returned %v, want ErrProcessDone", err)
	}
	if !Alive(p) || Alive(other) {
		t.Error("Kill ended another process that has the same process id")
	}
}

func TestSecondFencerTakesOver(t *testing.T) {
	r := newRig(t)
	stop, _ := r.fencer()
	first := r.feed(lease.Renewal{Deadline: Now() + 2*time.Second, Leased: []lease.Workload{db}})
	_, one := r.fencer()
	_, other := r.fencer()
	var err error
	select { // of the two fencers that were started, one is the third fencer and must fail
	case err = <-one:
	case err = <-other:
	case <-time.After(5 * time.Second):
	}
	if !errors.Is(err, ErrEnough) {
		t.Errorf("a third fencer returned %v, want ErrEnough", err)
	}
	r.client.Close()
	stop()
	testbed.Until(r, "the workload is stopped by the second fencer", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - first.Deadline; late < 0 || late > lease.SecondWaits+time.Second {
		t.Errorf("the workload was stopped %s after the deadline, want it within lease.SecondWaits and one more second", late)
	}
	if st := r.feed(lease.Renewal{}); st.Lapses != 1 {
		t.Errorf("the second fencer did not take over; the status is %+v", st)
	}
}

func TestFencerContinuesFromItsFile(t *testing.T) {
	r := newRig(t)
	stop, _ := r.fencer()
	deadline := Now() + time.Second
	r.feed(lease.Renewal{Deadline: deadline, Leased: []lease.Workload{db}})
	r.client.Close()
	stop()
	r.engine.mu.Lock()
	r.engine.deaf = true // the fencer must stop an instance even if the engine does not report it
	r.engine.mu.Unlock()
	if err := os.WriteFile(filepath.Join(r.dir, leaseFile+".1.new"), []byte("{"), 0o600); err != nil { // a file that was left by a fencer that was killed while it wrote the file
		t.Fatal(err)
	}
	r.fencer()
	if st := r.feed(lease.Renewal{Ask: true}); st.Deadline != deadline || len(st.Leased) != 1 {
		t.Errorf("the restarted fencer has status %+v, want the deadline and the workload that the agent sent to the fencer before", st)
	}
	if _, err := os.Stat(filepath.Join(r.dir, leaseFile+".1.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary lease file that a killed fencer left was not removed (error %v)", err)
	}
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	// A lease file that was written before the machine's last start is ignored.
	if have, err := load(r.dir, "another boot"); err != nil || !have.Idle() {
		t.Errorf("a lease file from before the machine's last start was loaded as %+v, error %v; want an empty lease", have, err)
	}
	// A lease file that was not written completely before a power loss is ignored too.
	for _, left := range []string{"", "\x00\x00"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, leaseFile), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if have, err := load(dir, r.boot); err != nil || !have.Idle() {
			t.Errorf("a lease file with content %q was loaded as %+v, %v, want an empty lease", left, have, err)
		}
	}
}

// If the fencer cannot write a renewal of the lease to the lease file, it refuses the renewal and keeps the old
// lease, because the second fencer cannot know of the new one.
func TestARenewalThatIsNotStoredChangesNothing(t *testing.T) {
	vm := lease.Workload{Kind: driver.VM, ID: "vm"}
	have := func() lease.Lease {
		return lease.Lease{Boot: "b", Lapses: 1, Lapsed: true, Instance: "i", ToStop: []lease.Workload{db, vm}}
	}
	g := &Fencer{opt: Options{Dir: t.TempDir() + "/lost"}, boot: "b", state: lease.State{Lease: have()}}
	in := lease.Renewal{Boot: "b", Instance: "i", Lapses: 1, Deadline: Now() + time.Hour, Leased: []lease.Workload{db}}
	if out := g.take(in); out.Error == "" {
		t.Fatal("a renewal must fail if the folder of the lease is missing")
	}
	if !reflect.DeepEqual(g.state.Lease, have()) {
		t.Errorf("a renewal that was not stored changed the lease: want %+v, have %+v", have(), g.state.Lease)
	}
}

func TestBothFencersEndWhenTheyAreIdle(t *testing.T) {
	r := newRig(t)
	second := make(chan lease.Process, 8)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- Run(ctx, Options{Dir: r.dir, Runtime: r.engine, Version: "v1", UntilIdle: true, IdleFor: 300 * time.Millisecond, Logger: r.client.Logger,
			Second: func() (*os.Process, error) {
				cmd := exec.Command("sleep", "60")
				err := cmd.Start()
				if err == nil {
					p, err := processOf(cmd.Process.Pid)
					if err != nil {
						return nil, err
					}
					second <- p
				}
				return cmd.Process, err
			}})
	}()
	r.agent = r.victim()
	r.feed(lease.Renewal{Deadline: Now() + 500*time.Millisecond, Leased: []lease.Workload{db}})
	p := <-second
	if err := Kill(r.agent); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the idle fencer does not end")
	}
	if r.engine.at(db) == 0 {
		t.Error("the fencer ended before it had stopped the leased workloads")
	}
	if Alive(p) {
		t.Error("the first fencer ended because it was idle, but its second fencer still runs")
	}
}

// An agent that has just started kills a first fencer that never answers, so that another fencer takes
// over.
func TestAFencerThatNeverAnswersIsKilled(t *testing.T) {
	r := newRig(t)
	// The fencer that never answers is this test binary, started again with deafEnv.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), deafEnv+"="+r.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	testbed.Until(r, "the fencer listens", func() bool { // the socket's name appears before the fencer listens
		probe := Client{Dir: r.dir}
		defer probe.Close()
		return probe.dial() == nil
	})
	r.client.Start = func() error { return errors.New("the fake start function of this test starts no fencer") }
	for range 2 {
		if _, err := r.client.Renew(t.Context(), lease.Renewal{Agent: r.agent, Boot: r.boot, Ask: true}); err == nil {
			t.Fatal("Renew returned no error although the fencer never answers")
		}
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the agent did not kill the fencer that never answers")
	}
}

// only is a fake driver of one kind. Its engine has one workload, which runs until Halt is called.
type only struct {
	driver.Driver
	kind   driver.Kind
	id     driver.ID
	closed bool
}

func (o *only) Kind() driver.Kind { return o.kind }

func (o *only) List(context.Context) ([]driver.Observed, error) {
	return []driver.Observed{{ID: o.id, State: driver.Running}}, nil
}

func (o *only) Halt(context.Context, driver.ID, time.Duration) error {
	o.id = "gone"
	return nil
}

func (o *only) Close() error {
	o.closed = true
	return nil
}

// As long as the fencer has no driver for a workload's engine, it assumes that the workload may run. It
// also uses an engine that is installed after the fencer started.
func TestARuntimeThatIsInstalledLater(t *testing.T) {
	vm := lease.Workload{Kind: driver.VM, ID: "vm"}
	kinds := []driver.Kind{driver.Container}
	var made []*only
	d := &Drivers{New: func(string) (out []driver.Driver, err error) {
		for _, k := range kinds {
			o := &only{kind: k, id: vm.ID}
			made, out = append(made, o), append(out, o)
		}
		return out, nil
	}}
	if out, err := d.Running(t.Context(), "c1", []lease.Workload{db}); err != nil || len(out) != 0 {
		t.Fatalf("for a container that its engine does not list Running returned %v, error %v; want none", out, err)
	}
	if out, err := d.Running(t.Context(), "c1", []lease.Workload{vm}); err == nil {
		t.Errorf("without a driver for virtual machines, Running returned %v and no error, want an error", out)
	}
	if d.Halt(t.Context(), "c1", vm, 0) == nil {
		t.Error("Halt of a virtual machine succeeded without a driver for virtual machines")
	}
	kinds = append(kinds, driver.VM)
	if out, err := d.Running(t.Context(), "c1", []lease.Workload{vm}); err != nil || !slices.Equal(out, []lease.Workload{vm}) {
		t.Errorf("after the driver for virtual machines was added, Running returned %v, error %v; want the virtual machine", out, err)
	}
	// Drivers that the fencer uses stay open; a second driver of the same kind is closed.
	kept := map[driver.Kind]int{}
	for i, o := range made {
		if !o.closed {
			kept[o.kind]++
		}
		if i == 0 && o.closed {
			t.Error("the fencer closed the first container driver, which it still uses")
		}
	}
	if want := map[driver.Kind]int{driver.Container: 1, driver.VM: 1}; !maps.Equal(kept, want) {
		t.Errorf("the numbers of open drivers by kind are %v, want %v", kept, want)
	}
}
