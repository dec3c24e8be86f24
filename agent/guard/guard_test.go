package guard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

// deafEnv makes this program a guard that listens in the folder it names and takes nothing.
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

var db = Workload{driver.Container, "db"}

func TestLease(t *testing.T) {
	vm := Workload{driver.VM, "vm"}
	me := Process{PID: 7, Start: 1}
	held := func() *lease {
		return &lease{Deadline: 100, Guarded: []Workload{db}}
	}
	for _, c := range []struct {
		name      string
		have      *lease
		in        Feed
		now       time.Duration
		deadline  time.Duration
		lapses    uint64
		lapsed    bool
		guarded   []Workload
		condemned []Workload
	}{
		{"a later end is taken over", held(), Feed{Deadline: 200, Guarded: []Workload{db}}, 50, 200, 0, false, []Workload{db}, nil},
		{"an earlier end changes nothing", held(), Feed{Deadline: 60, Guarded: []Workload{db}}, 50, 100, 0, false, []Workload{db}, nil},
		{"one more workload under the same lease", held(), Feed{Guarded: []Workload{vm, db}}, 50, 100, 0, false, []Workload{db, vm}, nil},
		{"one that was removed", held(), Feed{Guarded: nil}, 50, 100, 0, false, nil, nil},
		{"an end that comes too late: it has lapsed", held(), Feed{Deadline: 200, Guarded: []Workload{db}}, 100, 100, 1, true, nil, []Workload{db}},
		{"without confirmation nothing begins anew", &lease{Deadline: 100, Lapses: 1, Lapsed: true, Condemned: []Workload{db}},
			Feed{Deadline: 300, Guarded: []Workload{db}}, 150, 100, 1, true, nil, []Workload{db}},
		{"confirmed: what lapsed is stopped all the same", &lease{Deadline: 100, Lapses: 1, Lapsed: true, Condemned: []Workload{db}},
			Feed{Deadline: 300, Lapses: 1, Guarded: []Workload{vm}}, 150, 300, 1, false, []Workload{vm}, []Workload{db}},
		{"confirmed, and ordered anew", &lease{Deadline: 100, Lapses: 1, Lapsed: true, Condemned: []Workload{db}},
			Feed{Deadline: 300, Lapses: 1, Guarded: []Workload{db}}, 150, 300, 1, false, []Workload{db}, nil},
		{"confirmed, but the new lease has ended as well", &lease{Deadline: 100, Lapses: 1, Lapsed: true},
			Feed{Deadline: 140, Lapses: 1, Guarded: []Workload{db}}, 150, 140, 2, true, nil, []Workload{db}},
		{"a lapse that nobody has seen is not confirmed ahead", &lease{Deadline: 100, Guarded: []Workload{db}},
			Feed{Deadline: 300, Lapses: 9, Guarded: []Workload{db}}, 50, 300, 0, false, []Workload{db}, nil},
		{"who asks changes nothing", held(), Feed{Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"an agent with another file ends it", &lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Feed{Instance: "two", Ask: true}, 50, 100, 1, true, nil, []Workload{db}},
		{"and does not drop what it has never heard of", &lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Feed{Instance: "two"}, 50, 100, 1, true, nil, []Workload{db}},
		{"the same file in another process goes on", &lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Feed{Instance: "one", Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"nothing guarded, nothing lapses", &lease{Deadline: 100}, Feed{}, 500, 100, 0, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Agent = me
			c.have.feed(c.in, c.now)
			l := c.have
			if l.Deadline != c.deadline || l.Lapses != c.lapses || l.Lapsed != c.lapsed ||
				!slices.Equal(l.Guarded, c.guarded) || !slices.Equal(l.Condemned, c.condemned) || l.Agent != me {
				t.Errorf("got %+v", l)
			}
		})
	}
}

// engine counts what runs, and when it was stopped.
type engine struct {
	mu      sync.Mutex
	running map[Workload]bool
	stopped map[Workload]time.Duration
	deaf    bool // cannot say what runs
}

func (e *engine) Running(_ context.Context, _ string, of []Workload) (out []Workload, err error) {
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

func (e *engine) Halt(_ context.Context, _ string, w Workload, _ time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, w)
	e.stopped[w] = Now()
	return nil
}

func (e *engine) start(w Workload) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[w] = true
	delete(e.stopped, w)
}

func (e *engine) at(w Workload) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped[w]
}

// rig is a folder with an engine, and guards that are ended with the test.
type rig struct {
	*testing.T
	dir    string
	engine *engine
	client *Client
	boot   string
	agent  Process
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
		engine: &engine{running: map[Workload]bool{db: true}, stopped: map[Workload]time.Duration{}}}
	r.client = &Client{Dir: r.dir, Version: "v1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	t.Cleanup(r.client.Close)
	return r
}

// guard runs one until the test ends, or stop is called.
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

func (r *rig) feed(in Feed) State {
	r.Helper()
	in.Agent, in.Boot, in.Cluster = r.agent, r.boot, "c1"
	var st State
	testbed.Within(r, testbed.Patience, "feed of a guard that may just be starting", func() (err error) {
		st, err = r.client.Feed(r.Context(), in)
		return err
	})
	return st
}

// victim is a process that stands for an agent.
func (r *rig) victim() Process {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }() // killed, by us or by the guard
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
	st := r.feed(Feed{Deadline: deadline, Guarded: []Workload{db}})
	if st.Deadline != deadline || len(st.Guarded) != 1 || st.Grace != 100*time.Millisecond {
		t.Fatalf("%+v", st)
	}
	later := Now() + 1200*time.Millisecond
	r.feed(Feed{Deadline: later, Guarded: []Workload{db}})
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	if late := r.engine.at(db) - later; late < 0 || late > 700*time.Millisecond {
		t.Errorf("stopped %s after the deadline", late)
	}
	st = r.feed(Feed{Deadline: Now() + time.Hour, Guarded: []Workload{db}})
	if !st.Lapsed || st.Lapses != 1 {
		t.Fatalf("%+v: the lapse is not told", st)
	}
	// What an engine starts late is stopped as well, until the agent has confirmed.
	r.engine.start(db)
	testbed.Until(r, "stopped again", func() bool { return r.engine.at(db) > 0 })
	st = r.feed(Feed{Deadline: Now() + time.Hour, Lapses: 1})
	if st.Lapsed {
		t.Fatalf("%+v: confirmed, and it still counts as lapsed", st)
	}
	testbed.Until(r, "the condemned are forgotten", func() bool {
		have, err := load(r.dir, r.boot)
		return err == nil && have.idle()
	})
	r.engine.start(db)
	if st := r.feed(Feed{Lapses: 1, Deadline: Now() + time.Hour, Guarded: []Workload{db}}); st.Lapsed || st.Lapses != 1 || len(st.Guarded) != 1 {
		t.Errorf("%+v: ordered anew, and not guarded", st)
	}
	if r.engine.at(db) != 0 {
		t.Error("what was ordered anew was stopped")
	}
}

func TestItKillsAnAgentThatDoesNotConfirm(t *testing.T) {
	r := newRig(t)
	r.guard()
	r.agent = r.victim()
	if err := syscall.Kill(r.agent.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.feed(Feed{Deadline: Now() + 300*time.Millisecond, Guarded: []Workload{db}})
	testbed.Until(r, "killed", func() bool { return !r.agent.Alive() })
	if r.engine.at(db) == 0 {
		t.Error("the agent was killed before the workload was stopped")
	}
}

func TestAnAgentThatComesBackLaterHasItsTimeToConfirm(t *testing.T) {
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
	r.feed(Feed{Deadline: deadline, Guarded: []Workload{db}})
	if err := r.agent.Kill(); err != nil {
		t.Fatal(err)
	}
	testbed.Until(r, "the lapse is long over", func() bool { return Now() > deadline+KillAfter+4*tick })
	r.agent = r.victim()
	r.feed(Feed{Ask: true})
	came := Now()
	testbed.Until(r, "it is given its time", func() bool {
		if !r.agent.Alive() {
			t.Fatalf("killed after %s", Now()-came)
		}
		return Now() > came+4*tick
	})
	r.feed(Feed{Lapses: 1})
	testbed.Until(r, "it has confirmed, and lives", func() bool { return r.agent.Alive() && Now() > came+KillAfter+2*tick })
}

func TestAnotherProcessOfTheSameIDIsNotKilled(t *testing.T) {
	r := newRig(t)
	p := r.victim()
	other := Process{PID: p.PID, Start: p.Start - 1}
	if err := other.Kill(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("killing it: %v", err)
	}
	if !p.Alive() || other.Alive() {
		t.Error("the wrong one is alive")
	}
}

func TestTheSecondTakesOver(t *testing.T) {
	r := newRig(t)
	stop, _ := r.guard()
	first := r.feed(Feed{Deadline: Now() + 2*time.Second, Guarded: []Workload{db}})
	_, one := r.guard()
	_, other := r.guard()
	var err error
	select { // whichever came later
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
	if late := r.engine.at(db) - first.Deadline; late < 0 || late > SecondWaits+time.Second {
		t.Errorf("stopped %s after the deadline", late)
	}
	if st := r.feed(Feed{}); st.Lapses != 1 {
		t.Errorf("%+v: the second does not answer as the first", st)
	}
}

func TestItGoesOnFromItsFile(t *testing.T) {
	r := newRig(t)
	stop, _ := r.guard()
	deadline := Now() + time.Second
	r.feed(Feed{Deadline: deadline, Guarded: []Workload{db}})
	r.client.Close()
	stop()
	r.engine.mu.Lock()
	r.engine.deaf = true // what cannot be seen is stopped all the same
	r.engine.mu.Unlock()
	r.guard()
	if st := r.feed(Feed{Ask: true}); st.Deadline != deadline || len(st.Guarded) != 1 {
		t.Errorf("%+v: it does not know what it was told", st)
	}
	testbed.Until(r, "stopped", func() bool { return r.engine.at(db) > 0 })
	// The file of another start of the machine says nothing.
	if have, err := load(r.dir, "another boot"); err != nil || !have.idle() {
		t.Errorf("%+v, %v", have, err)
	}
}

func TestItEndsWithItsSecondWhenNobodyNeedsIt(t *testing.T) {
	r := newRig(t)
	second := make(chan Process, 8)
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
	r.feed(Feed{Deadline: Now() + 500*time.Millisecond, Guarded: []Workload{db}})
	p := <-second
	if err := r.agent.Kill(); err != nil {
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
	if p.Alive() {
		t.Error("its second goes on")
	}
}

// TestAGuardThatNeverAnswersIsKilled: by an agent that has only just started, too.
func TestAGuardThatNeverAnswersIsKilled(t *testing.T) {
	r := newRig(t)
	// A process that listens as a guard does and takes nothing: this test's own, started anew.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), deafEnv+"="+r.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	testbed.Until(r, "it listens", func() bool { // which is later than that the socket has a name
		probe := Client{Dir: r.dir}
		defer probe.Close()
		return probe.dial() == nil
	})
	r.client.Start = func() error { return errors.New("this test has no other") }
	for range 2 {
		if _, err := r.client.Feed(t.Context(), Feed{Agent: r.agent, Boot: r.boot, Ask: true}); err == nil {
			t.Fatal("it answers")
		}
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("it was not killed")
	}
}
