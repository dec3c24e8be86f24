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

// deafEnv names a folder in which this program listens as a fencer that never answers.
const deafEnv = "GUARD_TEST_DEAF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(deafEnv); dir != "" {
		if _, err := listen(dir); err != nil {
			panic(err)
		}
		time.Sleep(time.Minute) // until it is killed
		return
	}
	goleak.VerifyTestMain(m)
}

var db = lease.Workload{Kind: driver.Container, ID: "db"}

// engine records running workloads, and when each was stopped.
type engine struct {
	mu      sync.Mutex
	running map[lease.Workload]bool
	stopped map[lease.Workload]time.Duration
	deaf    bool // does not answer
	slow    bool // answers late
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

// rig is a folder with an engine, and fencers that end with the test.
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

// guard runs a fencer until the test ends, or stop is called.
func (r *rig) guard() (stop func(), ended chan error) {
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
	testbed.Within(r, testbed.Patience, "feed of a guard that may just be starting", func() (err error) {
		st, err = r.client.Renew(r.Context(), in)
		return err
	})
	return st
}

// victim is a process that stands for an agent.
func (r *rig) victim() lease.Process {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }() // killed by the test or by the fencer
	r.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	p, err := processOf(cmd.Process.Pid)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func TestItStopsAtTheDeadlineAndNotBefore(t *testing.T) {
	r := newRig(t)
	r.guard()
	deadline := Now() + 700*time.Millisecond
	st := r.feed(lease.Renewal{Deadline: deadline, Guarded: []lease.Workload{db}})
	if st.Deadline != deadline || len(st.Guarded) != 1 || st.Grace != 100*time.Millisecond {
		t.Fatalf("%+v", st)
	}
	later := Now() + 1200*time.Millisecond
	r.feed(lease.Renewal{Deadline: later, Guarded: []lease.Workload{db}})
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - later; late < 0 || late > 700*time.Millisecond {
		t.Errorf("stopped %s after the deadline", late)
	}
	st = r.feed(lease.Renewal{Deadline: Now() + time.Hour, Guarded: []lease.Workload{db}})
	if !st.Lapsed || st.Lapses != 1 {
		t.Fatalf("%+v: the lapse is not told", st)
	}
	// An instance that starts late is stopped as well, until the agent has confirmed.
	r.engine.start(db)
	testbed.Until(r, "stopped again", func() bool { return r.engine.at(db) > 0 })
	st = r.feed(lease.Renewal{Deadline: Now() + time.Hour, Lapses: 1})
	if st.Lapsed {
		t.Fatalf("%+v: confirmed, and it still counts as lapsed", st)
	}
	testbed.Until(r, "the condemned are forgotten", func() bool {
		have, err := load(r.dir, r.boot)
		return err == nil && have.Idle()
	})
	r.engine.start(db)
	if st := r.feed(lease.Renewal{Lapses: 1, Deadline: Now() + time.Hour, Guarded: []lease.Workload{db}}); st.Lapsed || st.Lapses != 1 || len(st.Guarded) != 1 {
		t.Errorf("%+v: ordered anew, and not guarded", st)
	}
	if r.engine.at(db) != 0 {
		t.Error("what was ordered anew was stopped")
	}
}

// The fencer does not wait for a slow engine: everything is stopped within the bound.
func TestItStopsInTimeWithASlowEngine(t *testing.T) {
	r := newRig(t)
	r.engine.slow, r.agent = true, r.victim()
	r.guard()
	deadline := Now() + time.Second
	r.feed(lease.Renewal{Deadline: deadline, Guarded: []lease.Workload{db}})
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - deadline; late > lease.Bound(100*time.Millisecond) {
		t.Errorf("stopped %s after the end of the lease", late)
	}
}

func TestItKillsAnAgentThatDoesNotConfirm(t *testing.T) {
	r := newRig(t)
	r.guard()
	r.agent = r.victim()
	if err := syscall.Kill(r.agent.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.feed(lease.Renewal{Deadline: Now() + 300*time.Millisecond, Guarded: []lease.Workload{db}})
	testbed.Until(r, "killed", func() bool { return !Alive(r.agent) })
	if r.engine.at(db) == 0 {
		t.Error("the agent was killed before the workload was stopped")
	}
}

func TestARestartedAgentHasTimeToConfirm(t *testing.T) {
	t.Run("from one guard", func(t *testing.T) { comesBackLater(t, 1) })
	t.Run("from two", func(t *testing.T) { comesBackLater(t, 2) })
}

func comesBackLater(t *testing.T, guards int) {
	r := newRig(t)
	for range guards {
		r.guard()
	}
	r.agent = r.victim()
	deadline := Now() + 100*time.Millisecond
	r.feed(lease.Renewal{Deadline: deadline, Guarded: []lease.Workload{db}})
	if err := Kill(r.agent); err != nil {
		t.Fatal(err)
	}
	testbed.Until(r, "the lapse is long over", func() bool { return Now() > deadline+lease.KillAfter+4*tick })
	r.agent = r.victim()
	r.feed(lease.Renewal{Ask: true})
	came := Now()
	testbed.Until(r, "it is given its time", func() bool {
		if !Alive(r.agent) {
			t.Fatalf("killed after %s", Now()-came)
		}
		return Now() > came+4*tick
	})
	r.feed(lease.Renewal{Lapses: 1})
	testbed.Until(r, "it has confirmed, and lives", func() bool { return Alive(r.agent) && Now() > came+lease.KillAfter+2*tick })
}

func TestAnotherProcessOfTheSameIDIsNotKilled(t *testing.T) {
	r := newRig(t)
	p := r.victim()
	other := lease.Process{PID: p.PID, Start: p.Start - 1}
	if err := Kill(other); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("killing it: %v", err)
	}
	if !Alive(p) || Alive(other) {
		t.Error("the wrong one is alive")
	}
}

func TestTheSecondTakesOver(t *testing.T) {
	r := newRig(t)
	stop, _ := r.guard()
	first := r.feed(lease.Renewal{Deadline: Now() + 2*time.Second, Guarded: []lease.Workload{db}})
	_, one := r.guard()
	_, other := r.guard()
	var err error
	select { // the one that started later
	case err = <-one:
	case err = <-other:
	case <-time.After(5 * time.Second):
	}
	if !errors.Is(err, ErrEnough) {
		t.Errorf("a third guard: %v, want that there are enough", err)
	}
	r.client.Close()
	stop()
	testbed.Until(r, "stopped by the second", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - first.Deadline; late < 0 || late > lease.SecondWaits+time.Second {
		t.Errorf("stopped %s after the deadline", late)
	}
	if st := r.feed(lease.Renewal{}); st.Lapses != 1 {
		t.Errorf("%+v: the second does not answer as the first", st)
	}
}

func TestItGoesOnFromItsFile(t *testing.T) {
	r := newRig(t)
	stop, _ := r.guard()
	deadline := Now() + time.Second
	r.feed(lease.Renewal{Deadline: deadline, Guarded: []lease.Workload{db}})
	r.client.Close()
	stop()
	r.engine.mu.Lock()
	r.engine.deaf = true // instances that cannot be seen are stopped all the same
	r.engine.mu.Unlock()
	if err := os.WriteFile(filepath.Join(r.dir, leaseFile+".1.new"), []byte("{"), 0o600); err != nil { // left by a fencer that was killed while it wrote
		t.Fatal(err)
	}
	r.guard()
	if st := r.feed(lease.Renewal{Ask: true}); st.Deadline != deadline || len(st.Guarded) != 1 {
		t.Errorf("%+v: it does not know what it was told", st)
	}
	if _, err := os.Stat(filepath.Join(r.dir, leaseFile+".1.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a guard that was killed left is still there (%v)", err)
	}
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	// A file of another start of the machine is ignored.
	if have, err := load(r.dir, "another boot"); err != nil || !have.Idle() {
		t.Errorf("%+v, %v", have, err)
	}
	// So is a file that was not written completely before a power loss.
	for _, left := range []string{"", "\x00\x00"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, leaseFile), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if have, err := load(dir, r.boot); err != nil || !have.Idle() {
			t.Errorf("%q is %+v, %v", left, have, err)
		}
	}
}

// A renewal that cannot be stored changes nothing, because the second fencer cannot know it.
func TestARenewalThatIsNotStoredChangesNothing(t *testing.T) {
	vm := lease.Workload{Kind: driver.VM, ID: "vm"}
	have := func() lease.Lease {
		return lease.Lease{Boot: "b", Lapses: 1, Lapsed: true, Instance: "i", ToStop: []lease.Workload{db, vm}}
	}
	g := &Fencer{opt: Options{Dir: t.TempDir() + "/lost"}, boot: "b", state: lease.State{Lease: have()}}
	in := lease.Renewal{Boot: "b", Instance: "i", Lapses: 1, Deadline: Now() + time.Hour, Guarded: []lease.Workload{db}}
	if out := g.take(in); out.Error == "" {
		t.Fatal("it was stored in a folder that is not there")
	}
	if !reflect.DeepEqual(g.state.Lease, have()) {
		t.Errorf("want %+v, have %+v", have(), g.state.Lease)
	}
}

func TestAnIdleFencerEndsWithItsSecond(t *testing.T) {
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
	r.feed(lease.Renewal{Deadline: Now() + 500*time.Millisecond, Guarded: []lease.Workload{db}})
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
		t.Fatal("it never ends")
	}
	if r.engine.at(db) == 0 {
		t.Error("it ended before it had stopped what it guarded")
	}
	if Alive(p) {
		t.Error("its second goes on")
	}
}

// An agent that has just started kills a fencer that never answers, too.
func TestAFencerThatNeverAnswersIsKilled(t *testing.T) {
	r := newRig(t)
	// A process that listens and never answers: this test binary, started again.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), deafEnv+"="+r.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	testbed.Until(r, "it listens", func() bool { // the name of the socket appears earlier
		probe := Client{Dir: r.dir}
		defer probe.Close()
		return probe.dial() == nil
	})
	r.client.Start = func() error { return errors.New("this test has no other") }
	for range 2 {
		if _, err := r.client.Renew(t.Context(), lease.Renewal{Agent: r.agent, Boot: r.boot, Ask: true}); err == nil {
			t.Fatal("it answers")
		}
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("it was not killed")
	}
}

// only is a driver of one kind on which a workload runs until it is halted.
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

// A workload whose runtime the fencer lacks is not known to be stopped. The fencer finds a runtime that is
// installed later.
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
		t.Fatalf("%v, %v: of a container that is gone", out, err)
	}
	if out, err := d.Running(t.Context(), "c1", []lease.Workload{vm}); err == nil {
		t.Errorf("without a runtime for machines it says that %v run", out)
	}
	if d.Halt(t.Context(), "c1", vm, 0) == nil {
		t.Error("a machine was halted without a runtime")
	}
	kinds = append(kinds, driver.VM)
	if out, err := d.Running(t.Context(), "c1", []lease.Workload{vm}); err != nil || !slices.Equal(out, []lease.Workload{vm}) {
		t.Errorf("%v, %v; want the machine", out, err)
	}
	// Drivers in use stay open, drivers that were made twice are closed.
	kept := map[driver.Kind]int{}
	for i, o := range made {
		if !o.closed {
			kept[o.kind]++
		}
		if i == 0 && o.closed {
			t.Error("the driver that was used first is closed")
		}
	}
	if want := map[driver.Kind]int{driver.Container: 1, driver.VM: 1}; !maps.Equal(kept, want) {
		t.Errorf("open are %v, want %v", kept, want)
	}
}
