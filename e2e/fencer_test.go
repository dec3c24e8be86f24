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

// fencerGrace is how long the fencers of these tests wait for a container to stop by itself.
const fencerGrace = time.Second

// supervisor does the work of systemd for a fencer, the process that stops exclusive workloads when the
// lease of the node ends. It runs the fencer of an agent as deploy/systemd/persys-fencer.service says. If a
// fencer exits, the supervisor kills the fencer's process group and starts the fencer again. If a fencer
// does not notify its watchdog in time, the supervisor kills it.
type supervisor struct {
	agent    *harness.Agent
	fencer   *harness.Process
	restart  time.Duration
	watchdog time.Duration
	notify   *net.UnixConn
	heard    atomic.Int64 // Unix nanoseconds of the last watchdog message
	restarts atomic.Int64
	stop     context.CancelFunc
	done     chan struct{}
}

// unit returns the keys and values of the [Service] section of a unit file in deploy/systemd. If a key occurs
// several times, it has the last value.
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
	u := unit(t, "persys-fencer.service")
	seconds := func(key string) time.Duration {
		text := u[key]
		if strings.Trim(text, "0123456789") == "" {
			text += "s"
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("systemd setting %s: %v", key, err)
		}
		return d
	}
	command := strings.Fields(u["ExecStart"])
	if len(command) != 2 || u["Restart"] != "always" || u["WatchdogSignal"] != "SIGKILL" || u["KillSignal"] != "SIGKILL" || u["Type"] != "notify" {
		t.Fatalf("the systemd unit of the fencer has settings that the supervisor of this test does not imitate: %v", u)
	}
	s := &supervisor{agent: a, restart: seconds("RestartSec"), watchdog: seconds("WatchdogSec"), done: make(chan struct{})}
	path := filepath.Join(c.Dir, a.NodeID+".notify")
	var err error
	s.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	s.fencer = &harness.Process{
		Name: a.NodeID + "-fencer", Path: bin, Args: command[1:], Log: filepath.Join(c.Dir, "logs", a.NodeID+"-fencer.log"),
		Env: append([]string{"NOTIFY_SOCKET=" + path, fmt.Sprintf("WATCHDOG_USEC=%d", s.watchdog.Microseconds())}, a.Env...),
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.hear()
	go s.run(ctx, t)
	t.Cleanup(func() {
		for _, p := range s.fencer.Alarms() {
			t.Errorf("the log of a fencer has a panic or a data race: %s", p)
		}
		if t.Failed() {
			t.Logf("the log of the fencer of %s:\n%s", a.NodeID, s.fencer.Tail(40))
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
		if err := s.fencer.Start(); err != nil {
			t.Errorf("starting the fencer: %v", err)
			return
		}
		look := time.NewTicker(50 * time.Millisecond)
		for ended := false; !ended; {
			select {
			case <-s.fencer.Done():
				ended = true
			case <-ctx.Done():
				_ = s.fencer.Kill()
			case <-look.C:
				if time.Since(time.Unix(0, s.heard.Load())) > s.watchdog {
					_ = s.fencer.Kill()
				}
			}
		}
		look.Stop()
		// When a fencer has exited, systemd kills all other processes of the unit's control group. Do the same with
		// the fencers of this agent.
		if err := s.agent.SignalFencers(syscall.SIGKILL); err != nil {
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

// fencing waits until a node is Ready and has reported, after the time since, that it has a fencer and a standby
// fencer.
func fencing(t *testing.T, control controlv1.AgentControlClient, a *harness.Agent, since time.Time) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, a.NodeID+" with a fencer and a standby fencer", func(ctx context.Context) error {
		n, err := control.GetNode(ctx, &controlv1.GetNodeRequest{NodeId: a.NodeID})
		if err != nil {
			return err
		}
		v := n.GetNode()
		heard := v.GetLastHeartbeat().AsTime()
		if v.GetStatus() != "Ready" || !v.GetSelfFencing() || len(a.Fencers()) != 2 || heard.Before(since) {
			return fmt.Errorf("the node has status %s (%s), want Ready with self-fencing; self_fencing %t, fencers %v, last heartbeat %s ago",
				v.GetStatus(), v.GetStatusReason(), v.GetSelfFencing(), a.Fencers(), time.Since(heard))
		}
		return nil
	}))
}

// runEnded waits until a run of the container of workload db has ended, and returns the time of the end.
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
			return errors.New("the container still runs")
		}
		return nil
	}))
	return stopped
}

// TestFencer moves an exclusive container with on_lost_lease: stop from node to node on a real engine, while
// agents, fencers and leaders are killed or paused. The container never runs twice at the same time, and it
// stops within the fence bound, after which the schedulers start it elsewhere. On one node the agent starts
// the fencers. On the other node a supervisor does, as in production, so that agent and both fencers may die
// at once.
func TestFencer(t *testing.T) {
	e, image := theEngine(t)
	bins := raced(t)
	c := start(t, harness.Options{Binaries: bins, SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	runs := e.Watch(t.Context(), id)
	defer runs.Close()
	env := map[string]string{"PERSYS_FENCER_GRACE": fencerGrace.String()}
	own := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Env: env}))
	watched := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Env: map[string]string{
		"PERSYS_FENCER_GRACE": fencerGrace.String(), "PERSYS_FENCER": "external",
	}}))
	super := supervise(t, c, watched, bins.Agent)
	t.Cleanup(func() { // kill agents before containers are removed, because agents start fencers again
		for _, a := range c.Agents {
			if err := a.Kill(); err != nil {
				t.Error(err)
			}
		}
		super.close()
		for _, a := range c.Agents {
			if err := a.SignalFencers(syscall.SIGKILL); err != nil {
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
		must(t, syscall.Kill(got[int](t)(own.FirstFencer()), sig))
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
		{"agent and both fencers are killed, and a supervisor runs", watched, func() *harness.Scheduler {
			must(t, errors.Join(watched.Pause(), watched.SignalFencers(syscall.SIGSTOP))) // pause agent and fencers at the same time
			must(t, errors.Join(watched.SignalFencers(syscall.SIGKILL), watched.Kill()))
			return nil
		}},
		{"agent paused, its first fencer and the leader killed", own, func() *harness.Scheduler {
			l := leader()
			must(t, own.Pause())
			first(syscall.SIGKILL)
			must(t, l.Kill())
			return l
		}},
		{"agent, both fencers and the leader are paused, and a supervisor runs", watched, func() *harness.Scheduler {
			l := leader()
			must(t, errors.Join(watched.Pause(), watched.SignalFencers(syscall.SIGSTOP), l.Pause()))
			return l
		}},
		{"agent killed, its first fencer paused", own, func() *harness.Scheduler {
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
			t.Fatalf("%s: before the fault the last run of the workload is %+v, want an open run on the node of this case", round.what, held)
		}
		at := time.Now()
		hurt := round.strike()
		struck := time.Now()
		// The last lease began when the agent sent its last heartbeat: before the fault by at most one
		// heartbeat interval, plus a delay if the machine is busy.
		limit := lease + fence.Bound(fencerGrace)
		stopped := runEnded(t, runs, held, limit+settle, round.what)
		if early := stopped.Sub(at); early < lease-interval-500*time.Millisecond {
			t.Errorf("%s: the container stopped %s after the fault, before the lease of %s ended", round.what, early, lease)
		}
		if late := stopped.Sub(struck); late > limit {
			t.Errorf("%s: the container stopped %s after the fault; want at most the lease and the time that fencers need (%s)", round.what, late, limit)
		}
		if hurt != nil && hurt.Running() { // if a paused leader continues, it may believe for a moment that it still leads
			must(t, hurt.Continue())
		} else if hurt != nil {
			must(t, hurt.Start())
		}
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", 2*settle, runningOn(other.NodeID)))
		now := got[[]harness.Run](t)(runs.Of("db"))
		t.Logf("%s: the container stopped after %s and ran on the other node after %s", round.what,
			stopped.Sub(at).Round(10*time.Millisecond), now[len(now)-1].From.Sub(at).Round(10*time.Millisecond))
		// The fencer must have killed the paused agent. Otherwise the agent could continue after the pause and
		// start the container that it was about to start before.
		must(t, testbed.Poll(t.Context(), settle, round.what+": the end of the agent", func(context.Context) error {
			if round.on.Running() {
				return errors.New("the agent still runs, want that its fencer has killed it")
			}
			return nil
		}))
		must(t, round.on.Start())
		fencing(t, control, round.on, time.Time{})
	}
	list := got[[]harness.Run](t)(runs.Of("db"))
	for _, pair := range harness.Overlaps(list) {
		t.Errorf("the workload ran twice at the same time: %+v", pair)
	}
	if super.restarts.Load() < 2 {
		t.Errorf("the supervisor has started fencers %d times, want once for each time that all were lost", super.restarts.Load())
	}
}
