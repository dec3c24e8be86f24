package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	fence "github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// guardGrace is how long the guards of these tests wait for a container to stop by itself.
const guardGrace = time.Second

// supervisor stands for systemd: it runs the guard of an agent as
// deploy/systemd/persys-guard.service says. It kills the process group of a guard that exits and
// starts it again, and kills a guard that misses its watchdog.
type supervisor struct {
	agent    *harness.Agent
	guard    *harness.Process
	restart  time.Duration
	watchdog time.Duration
	notify   *net.UnixConn
	heard    atomic.Int64 // Unix nanoseconds of the last watchdog message
	restarts atomic.Int64
	stop     context.CancelFunc
	done     chan struct{}
}

// unit reads the [Service] section of a systemd unit. The last value of a key wins.
func unit(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "deploy", "systemd", name))
	must(t, err)
	defer f.Close()
	out := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = value
		}
	}
	return out
}

func supervise(t *testing.T, c *harness.Cluster, a *harness.Agent, bin string) *supervisor {
	t.Helper()
	u := unit(t, "persys-guard.service")
	seconds := func(key string) time.Duration {
		text := u[key]
		if strings.Trim(text, "0123456789") == "" {
			text += "s"
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		return d
	}
	command := strings.Fields(u["ExecStart"])
	if len(command) != 2 || u["Restart"] != "always" || u["WatchdogSignal"] != "SIGKILL" || u["KillSignal"] != "SIGKILL" || u["Type"] != "notify" {
		t.Fatalf("the unit differs from the supervisor of this test: %v", u)
	}
	s := &supervisor{agent: a, restart: seconds("RestartSec"), watchdog: seconds("WatchdogSec"), done: make(chan struct{})}
	path := filepath.Join(c.Dir, a.NodeID+".notify")
	var err error
	s.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	s.guard = &harness.Process{
		Name: a.NodeID + "-guard", Path: bin, Args: command[1:], Log: filepath.Join(c.Dir, "logs", a.NodeID+"-guard.log"),
		Env: append([]string{"NOTIFY_SOCKET=" + path, fmt.Sprintf("WATCHDOG_USEC=%d", s.watchdog.Microseconds())}, a.Env...),
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.hear()
	go s.run(ctx, t)
	t.Cleanup(func() {
		for _, p := range s.guard.Alarms() {
			t.Errorf("a guard is broken: %s", p)
		}
		if t.Failed() {
			t.Logf("the guard of %s:\n%s", a.NodeID, s.guard.Tail(40))
		}
	})
	return s
}

func (s *supervisor) hear() {
	buf := make([]byte, 4096)
	for {
		n, err := s.notify.Read(buf)
		if err != nil {
			return
		}
		if strings.Contains(string(buf[:n]), "WATCHDOG=1") {
			s.heard.Store(time.Now().UnixNano())
		}
	}
}

func (s *supervisor) run(ctx context.Context, t *testing.T) {
	defer close(s.done)
	for ctx.Err() == nil {
		s.heard.Store(time.Now().UnixNano())
		if err := s.guard.Start(); err != nil {
			t.Errorf("starting the guard: %v", err)
			return
		}
		look := time.NewTicker(50 * time.Millisecond)
		for ended := false; !ended; {
			select {
			case <-s.guard.Done():
				ended = true
			case <-ctx.Done():
				_ = s.guard.Kill()
			case <-look.C:
				if time.Since(time.Unix(0, s.heard.Load())) > s.watchdog {
					_ = s.guard.Kill()
				}
			}
		}
		look.Stop()
		// The control group of the unit.
		if err := s.agent.SignalGuards(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		s.restarts.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(s.restart):
		}
	}
}

func (s *supervisor) close() {
	s.stop()
	<-s.done
	_ = s.notify.Close()
}

// fencing waits until a node is Ready, has a guard and a standby, and has reported so after a time.
func fencing(t *testing.T, control controlv1.AgentControlClient, a *harness.Agent, since time.Time) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, a.NodeID+" with a guard and its second", func(ctx context.Context) error {
		n, err := control.GetNode(ctx, &controlv1.GetNodeRequest{NodeId: a.NodeID})
		if err != nil {
			return err
		}
		v := n.GetNode()
		heard := v.GetLastHeartbeat().AsTime()
		if v.GetStatus() != "Ready" || !v.GetSelfFencing() || len(a.Guards()) != 2 || heard.Before(since) {
			return fmt.Errorf("%s (%s), self_fencing %t, guards %v, heard %s ago",
				v.GetStatus(), v.GetStatusReason(), v.GetSelfFencing(), a.Guards(), time.Since(heard))
		}
		return nil
	}))
}

// runEnded waits for the end of a run of db and returns its time.
func runEnded(t *testing.T, runs *harness.Runs, held harness.Run, limit time.Duration, what string) (stopped time.Time) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), limit, what+": the end of db on "+held.Node, func(context.Context) error {
		list, err := runs.Of("db")
		if err != nil {
			return testbed.Final(err)
		}
		for _, r := range list {
			if r.Container == held.Container && r.From.Equal(held.From) {
				stopped = r.To
			}
		}
		if stopped.IsZero() {
			return errors.New("it still runs")
		}
		return nil
	}))
	return stopped
}

// TestGuard moves an exclusive container with on_lost_lease: stop from node to node on a real
// engine, while agents, guards and leaders are killed or paused. The container never runs twice at
// one time, and it stops within the bound that the schedulers rely on. The guards of one node are
// started by its agent, those of the other by a supervisor, as in production: there the agent and
// both guards may die at once.
func TestGuard(t *testing.T) {
	e, image := theEngine(t)
	bins := raced(t)
	c := start(t, harness.Options{Binaries: bins, SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	runs := e.Watch(t.Context(), id)
	defer runs.Close()
	env := map[string]string{"PERSYS_GUARD_GRACE": guardGrace.String()}
	own := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Env: env}))
	watched := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Env: map[string]string{
		"PERSYS_GUARD_GRACE": guardGrace.String(), "PERSYS_GUARD": "external",
	}}))
	super := supervise(t, c, watched, bins.Agent)
	t.Cleanup(func() { // before the containers are removed: agents start guards again
		for _, a := range c.Agents {
			if err := a.Kill(); err != nil {
				t.Error(err)
			}
		}
		super.close()
		for _, a := range c.Agents {
			if err := a.SignalGuards(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	})
	for _, a := range c.Agents {
		must(t, a.Start())
	}
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	for _, a := range c.Agents {
		fencing(t, control, a, time.Time{})
	}
	_, err := admin.CordonNode(t.Context(), &clusterv1.CordonNodeRequest{NodeId: watched.NodeID, On: true})
	must(t, err)
	spec := container(image)
	spec.Exclusive, spec.OnLostLease = true, "stop"
	apply(t, c, "db", spec)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(own.NodeID)))
	_, err = admin.CordonNode(t.Context(), &clusterv1.CordonNodeRequest{NodeId: watched.NodeID})
	must(t, err)

	leader := func() *harness.Scheduler {
		t.Helper()
		return c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), settle))]
	}
	first := func(sig syscall.Signal) {
		t.Helper()
		must(t, syscall.Kill(got[int](t)(own.FirstGuard()), sig))
	}
	for _, round := range []struct {
		what   string
		on     *harness.Agent
		strike func() (leader *harness.Scheduler)
	}{
		{"the agent is killed", own, func() *harness.Scheduler {
			must(t, own.Kill())
			return nil
		}},
		{"agent and both guards are killed, and a supervisor is there", watched, func() *harness.Scheduler {
			must(t, errors.Join(watched.Pause(), watched.SignalGuards(syscall.SIGSTOP))) // all at the same time
			must(t, errors.Join(watched.SignalGuards(syscall.SIGKILL), watched.Kill()))
			return nil
		}},
		{"agent paused, its first guard and the leader killed", own, func() *harness.Scheduler {
			l := leader()
			must(t, own.Pause())
			first(syscall.SIGKILL)
			must(t, l.Kill())
			return l
		}},
		{"agent and both guards and the leader paused, and a supervisor is there", watched, func() *harness.Scheduler {
			l := leader()
			must(t, errors.Join(watched.Pause(), watched.SignalGuards(syscall.SIGSTOP), l.Pause()))
			return l
		}},
		{"agent killed, its first guard paused", own, func() *harness.Scheduler {
			must(t, own.Kill())
			first(syscall.SIGSTOP)
			return nil
		}},
	} {
		other := own
		if round.on == own {
			other = watched
		}
		before := got[[]harness.Run](t)(runs.Of("db"))
		held := before[len(before)-1]
		if held.Node != round.on.NodeID || !held.To.IsZero() {
			t.Fatalf("%s: it runs %+v", round.what, held)
		}
		at := time.Now()
		hurt := round.strike()
		struck := time.Now()
		// The last lease was requested before the fault, at most one interval earlier plus the
		// delay of a busy machine.
		limit := lease + fence.Bound(guardGrace)
		stopped := runEnded(t, runs, held, limit+settle, round.what)
		if early := stopped.Sub(at); early < lease-interval-500*time.Millisecond {
			t.Errorf("%s: stopped after %s: the lease of %s had not ended", round.what, early, lease)
		}
		if late := stopped.Sub(struck); late > limit {
			t.Errorf("%s: stopped after %s, more than lease and fence bound (%s)", round.what, late, limit)
		}
		if hurt != nil && hurt.Running() { // a deposed leader that does not know it
			must(t, hurt.Continue())
		} else if hurt != nil {
			must(t, hurt.Start())
		}
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", 2*settle, runningOn(other.NodeID)))
		now := got[[]harness.Run](t)(runs.Of("db"))
		t.Logf("%s: stopped after %s, ran on the other node after %s", round.what,
			stopped.Sub(at).Round(10*time.Millisecond), now[len(now)-1].From.Sub(at).Round(10*time.Millisecond))
		// The guard has killed the paused agent, which might have continued with a start.
		must(t, testbed.Poll(t.Context(), settle, round.what+": the end of the agent", func(context.Context) error {
			if round.on.Running() {
				return errors.New("it is still there")
			}
			return nil
		}))
		must(t, round.on.Start())
		fencing(t, control, round.on, time.Time{})
	}
	list := got[[]harness.Run](t)(runs.Of("db"))
	for _, pair := range harness.Overlaps(list) {
		t.Errorf("it ran twice at one time: %+v", pair)
	}
	if super.restarts.Load() < 2 {
		t.Errorf("the supervisor has started %d guards anew, want one for each time that all were lost", super.restarts.Load())
	}
}
