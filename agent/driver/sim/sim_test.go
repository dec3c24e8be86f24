package sim_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/sim"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func container(image string, change ...func(*agentv1.ContainerSpec)) *agentv1.WorkloadSpec {
	c := &agentv1.ContainerSpec{Image: image}
	for _, f := range change {
		f(c)
	}
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: c}}
}

func engine(t testing.TB, opt sim.Options) *sim.Engine {
	t.Helper()
	e, err := sim.NewEngine(opt)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// full returns the driver of an engine whose folder is on a small file system, and functions that fill this
// file system and empty it.
func full(t *testing.T, node string) (driver.Driver, func(), func()) {
	dir := filepath.Join(t.TempDir(), "small")
	drivertest.Small(t, dir, 1<<20)
	fill, empty := drivertest.Fill(t, dir)
	return engine(t, sim.Options{Dir: filepath.Join(dir, "engine")}).Driver(driver.Identity{ClusterID: "c1", NodeID: node}), fill, empty
}

func TestConformance(t *testing.T) {
	// If the engine is stored in a folder, every driver opens that folder as a new Engine, as a restarted
	// agent does. If it is in memory, all drivers share one Engine.
	memory, dir := engine(t, sim.Options{}), t.TempDir()
	for name, open := range map[string]func(*testing.T) *sim.Engine{
		"memory": func(*testing.T) *sim.Engine { return memory },
		"folder": func(t *testing.T) *sim.Engine { return engine(t, sim.Options{Dir: dir}) },
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness{
				Cluster: "c1",
				Open: func(t *testing.T, node string) driver.Driver {
					return open(t).Driver(driver.Identity{ClusterID: "c1", NodeID: node})
				},
				Steady:  func(version int) *agentv1.WorkloadSpec { return container(fmt.Sprintf("app:v%d", version)) },
				LogLine: "sim: started app",
				Commands: &drivertest.Commands{
					Say: func(out, err string, code int) []string {
						return []string{"sh", "-c", fmt.Sprintf("echo %s; err %s; exit %d", out, err, code)}
					},
					Cat: []string{"cat"}, Wait: []string{"sh", "-c", "echo waiting; sleep 600"}, Size: []string{"size"},
				},
				Crash: func(code int) *agentv1.WorkloadSpec {
					if code == 0 {
						return container("sim/exit")
					}
					return container(fmt.Sprintf("sim/crash:%d", code))
				},
				Missing: func() *agentv1.WorkloadSpec { return container("sim/missing") },
				Stranger: func(t *testing.T, id driver.ID) func() {
					e := open(t)
					if err := e.Occupy(string(id)); err != nil {
						t.Fatal(err)
					}
					return func() {
						if ok, err := e.Vacate(string(id)); !ok || err != nil {
							t.Errorf("the driver changed or removed the stranger's instance (%v)", err)
						}
					}
				},
				Outage: func(t *testing.T, node string) (driver.Driver, func(), func()) {
					e := open(t)
					down := func(reason string) func() {
						return func() {
							if err := e.SetDown(reason); err != nil {
								t.Error(err)
							}
						}
					}
					return e.Driver(driver.Identity{ClusterID: "c1", NodeID: node}), down("told to"), down("")
				},
				Full:     full,
				Away:     2 * time.Second,
				Patience: 10 * time.Second,
			})
			if pairs := overlaps(t, open(t)); len(pairs) > 0 {
				for _, p := range pairs {
					if p[0].NodeID == p[1].NodeID {
						t.Errorf("two runs of one workload on the same node overlap in time: %+v", p)
					}
				}
			}
		})
	}
}

func overlaps(t *testing.T, e *sim.Engine) [][2]sim.Run {
	t.Helper()
	runs, err := e.Runs()
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) == 0 {
		t.Fatal("no runs")
	}
	return sim.Overlaps(runs)
}

// clock is a clock that advances only when the test tells it to.
type clock struct {
	mu  sync.Mutex
	now time.Duration
}

func (c *clock) mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) set(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = d
}

// rig is a driver on a simulated engine whose clock advances only when the test tells it to.
type rig struct {
	*testing.T
	*clock
	e *sim.Engine
	d *sim.Driver
}

func newRig(t *testing.T) *rig {
	c := &clock{now: time.Hour}
	e := engine(t, sim.Options{Mono: c.mono, EngineID: "engine-1"})
	return &rig{t, c, e, e.Driver(driver.Identity{ClusterID: "c1", NodeID: "n1"})}
}

func spec(id string, body *agentv1.WorkloadSpec) driver.Spec {
	return driver.Spec{
		ID: driver.ID(id), Revision: "r1", Content: "c1:" + id, ClusterID: "c1", NodeID: "n1",
		Generation: driver.Generation{Incarnation: 1, Sequence: 1}, Running: true, Body: body,
	}
}

func (r *rig) ensure(s driver.Spec) {
	r.Helper()
	if err := r.d.Ensure(context.Background(), s); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) state(id string) driver.Observed {
	r.Helper()
	all, err := r.d.List(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	for _, o := range all {
		if o.ID == driver.ID(id) {
			return o
		}
	}
	return driver.Observed{State: driver.Absent}
}

func TestImagesOfTheSimulatorBehaveAsNamed(t *testing.T) {
	restart := func(policy string, retries int32) func(*agentv1.ContainerSpec) {
		return func(c *agentv1.ContainerSpec) {
			c.RestartPolicy = &agentv1.RestartPolicy{Policy: policy, MaxRetryCount: retries}
		}
	}
	env := func(pairs ...string) func(*agentv1.ContainerSpec) {
		return func(c *agentv1.ContainerSpec) {
			c.Env = map[string]string{}
			for _, p := range pairs {
				k, v, _ := strings.Cut(p, "=")
				c.Env[k] = v
			}
		}
	}
	type moment struct {
		after    time.Duration
		state    driver.State
		restarts int
		code     int
	}
	ms := time.Millisecond
	for name, c := range map[string]struct {
		body *agentv1.WorkloadSpec
		want []moment
	}{
		"any image runs": {container("nginx:1"), []moment{{0, driver.Running, 0, 0}, {time.Hour, driver.Running, 0, 0}}},
		"slow": {container("sim/slow:5s"), []moment{
			{0, driver.Pending, 0, 0}, {4999 * ms, driver.Pending, 0, 0}, {5 * time.Second, driver.Running, 0, 0}}},
		"crash":                     {container("sim/crash:3"), []moment{{49 * ms, driver.Running, 0, 0}, {50 * ms, driver.Failed, 0, 3}}},
		"crash with the tag latest": {container("sim/crash:latest"), []moment{{50 * ms, driver.Failed, 0, 1}}},
		"exit":                      {container("sim/exit"), []moment{{49 * ms, driver.Running, 0, 0}, {50 * ms, driver.Stopped, 0, 0}}},
		"variables": {container("x", env("SIM_START_DELAY=1s", "SIM_CRASH_AFTER=2s", "SIM_EXIT_CODE=9")), []moment{
			{999 * ms, driver.Pending, 0, 0}, {2999 * ms, driver.Running, 0, 0}, {3 * time.Second, driver.Failed, 0, 9}}},
		"always": {container("sim/crash:2", restart("always", 0)), []moment{
			{49 * ms, driver.Running, 0, 0}, {50 * ms, driver.Pending, 0, 2}, {149 * ms, driver.Pending, 0, 2},
			{150 * ms, driver.Running, 1, 2}, {200 * ms, driver.Pending, 1, 2}, {1500 * ms, driver.Running, 10, 2}}},
		"a crashing workload with policy on-failure is given up after 2 restarts": {container("sim/crash:2", restart("on-failure", 2)), []moment{
			{320 * ms, driver.Running, 2, 2}, {350 * ms, driver.Failed, 2, 2}, {time.Hour, driver.Failed, 2, 2}}},
		"a workload with policy on-failure is not restarted after exit code 0": {container("sim/exit", restart("on-failure", 0)), []moment{{time.Second, driver.Stopped, 0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			start := r.mono()
			r.ensure(spec("w", c.body))
			for _, m := range c.want {
				r.set(start + m.after)
				o := r.state("w")
				if o.State != m.state || o.RestartCount != m.restarts || o.ExitCode != m.code {
					t.Errorf("after %s the workload is %s with %d restarts and exit code %d; want %s, %d restarts and exit code %d",
						m.after, o.State, o.RestartCount, o.ExitCode, m.state, m.restarts, m.code)
				}
			}
		})
	}
}

// TestABusyWorkloadUsesMore: a workload with the image sim/busy reports the CPU use in the image's tag; other
// workloads report one percent of a core.
func TestABusyWorkloadUsesMore(t *testing.T) {
	r := newRig(t)
	r.ensure(spec("calm", container("sim/any")))
	r.ensure(spec("busy", container("sim/busy:50")))
	calm, busy := r.state("calm"), r.state("busy")
	calm.StartedAt = time.Now().Add(-time.Hour)
	busy.StartedAt = calm.StartedAt
	use, err := r.d.Usage(t.Context(), []driver.Observed{calm, busy})
	if err != nil || len(use) != 2 {
		t.Fatalf("Usage returned %v, error %v; want the usage of two workloads", use, err)
	}
	if use[1].CPU != 50*use[0].CPU {
		t.Errorf("the workload with sim/busy used %s of CPU time, the other workload %s; want 50 times as much", use[1].CPU, use[0].CPU)
	}
}

func TestInvalidSpecificationsAreRefused(t *testing.T) {
	env := func(k, v string) *agentv1.WorkloadSpec {
		return container("x", func(c *agentv1.ContainerSpec) { c.Env = map[string]string{k: v} })
	}
	for _, c := range []struct {
		names string
		class driver.Class
		body  *agentv1.WorkloadSpec
	}{
		{"sim/missing", driver.InvalidImage, container("sim/missing")},
		{"sim/fail", driver.StorageFull, container("sim/fail:storage_full")},
		{"sim/fail", driver.InvalidSpecification, container("sim/fail:NONSENSE")},
		{"sim/slow", driver.InvalidSpecification, container("sim/slow:long")},
		{"sim/crash", driver.InvalidSpecification, container("sim/crash:-1")},
		{"image", driver.InvalidSpecification, container("")},
		{"x", driver.DNSResolutionFailed, env("SIM_FAIL", "DNS_RESOLUTION_FAILED")},
		{"SIM_START_DELAY", driver.InvalidSpecification, env("SIM_START_DELAY", "-1s")},
		{"SIM_EXIT_CODE", driver.InvalidSpecification, env("SIM_EXIT_CODE", "256")},
		{"container", driver.InvalidSpecification, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{}}}},
		{"ports[0]", driver.InvalidSpecification, container("x", func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{ContainerPort: 0}}
		})},
	} {
		r := newRig(t)
		err := r.d.Ensure(context.Background(), spec("w", c.body))
		if driver.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.names) {
			t.Errorf("Ensure with an invalid %s returned class %s: %v; want class %s", c.names, driver.ClassOf(err), err, c.class)
		}
	}
}

func TestAFlakyImageFailsThenStarts(t *testing.T) {
	r := newRig(t)
	s := spec("w", container("sim/flaky:2"))
	for i, want := range []driver.Class{driver.RuntimeError, driver.RuntimeError, ""} {
		if got := driver.ClassOf(r.d.Ensure(context.Background(), s)); got != want {
			t.Errorf("call %d of Ensure for a workload with sim/flaky returned class %q, want %q", i+1, got, want)
		}
	}
}

func TestHostPortsAreExclusive(t *testing.T) {
	r := newRig(t)
	body := func(host int32) *agentv1.WorkloadSpec {
		return container("x", func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{HostPort: host, ContainerPort: 80}}
		})
	}
	r.ensure(spec("a", body(8080)))
	b := spec("b", body(8080))
	err := r.d.Ensure(context.Background(), b)
	if driver.ClassOf(err) != driver.PortBindConflict || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("a second workload with the same host port returned class %s: %v; want PORT_BIND_CONFLICT", driver.ClassOf(err), err)
	}
	if o := r.state("b"); o.State != driver.Failed || o.Class != driver.PortBindConflict {
		t.Errorf("a workload whose host port is in use is %s, class %s; want Failed with PortBindConflict", o.State, o.Class)
	}
	if err := r.d.Halt(context.Background(), "a", 0); err != nil {
		t.Fatal(err)
	}
	r.ensure(b)
	r.ensure(spec("c", body(0)))
	r.ensure(spec("d", body(0)))
	c, d := r.state("c").Ports, r.state("d").Ports
	if len(c) != 1 || len(d) != 1 || c[0].HostPort == 0 || c[0].HostPort == d[0].HostPort {
		t.Errorf("two workloads got the ephemeral host ports %+v and %+v, want different ones", c, d)
	}
}

func TestCallsFailDuringAnOutage(t *testing.T) {
	r := newRig(t)
	r.ensure(spec("w", container("x")))
	if err := r.e.SetDown("pulled the plug"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.d.List(context.Background()); driver.ClassOf(err) != driver.RuntimeUnhealthy {
		t.Errorf("List during an outage returned %v, error %v; want RUNTIME_UNHEALTHY", got, err)
	}
	if c, err := r.d.Probe(context.Background()); c.Healthy || c.Reason == "" || err == nil {
		t.Errorf("Probe during an outage returned %+v, error %v; want an unhealthy engine", c, err)
	}
	if err := r.e.SetDown(""); err != nil {
		t.Fatal(err)
	}
	if o := r.state("w"); o.State != driver.Running {
		t.Errorf("after the outage the workload is %s, want Running", o.State)
	}
}

func TestKillAndPowerOff(t *testing.T) {
	r := newRig(t)
	r.ensure(spec("a", container("x")))
	r.ensure(spec("b", container("x")))
	if err := r.e.Kill("a", 9); err != nil {
		t.Fatal(err)
	}
	if a, b := r.state("a"), r.state("b"); a.State != driver.Failed || a.ExitCode != 9 || b.State != driver.Running {
		t.Errorf("after Kill of a, a is %s with code %d and b is %s; want Failed, the code, and Running", a.State, a.ExitCode, b.State)
	}
	if err := r.e.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if b := r.state("b"); b.ExitCode != 137 || !strings.Contains(b.Message, "powered off") {
		t.Errorf("after PowerOff, b has exit code %d and message %q; want 137", b.ExitCode, b.Message)
	}
}

func TestAStubbornWorkloadIsKilled(t *testing.T) {
	e := engine(t, sim.Options{})
	d := e.Driver(driver.Identity{ClusterID: "c1", NodeID: "n1"})
	ctx := context.Background()
	if err := d.Ensure(ctx, spec("w", container("sim/stubborn"))); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := d.Halt(ctx, "w", 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	all, err := d.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || all[0].ExitCode != 137 {
		t.Errorf("Halt took %s and the exit code is %d; want the grace period and 137", took, all[0].ExitCode)
	}
}

// Two processes that share an engine's folder (here: two Engines on one folder) see the same workloads and
// the same run log.
func TestFolderIsShared(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	one := engine(t, sim.Options{Dir: dir}).Driver(driver.Identity{ClusterID: "c1", NodeID: "n1"})
	two := engine(t, sim.Options{Dir: dir}).Driver(driver.Identity{ClusterID: "c1", NodeID: "n2"})
	a, _ := one.Probe(ctx)
	b, _ := two.Probe(ctx)
	if a.EngineID == "" || a.EngineID != b.EngineID {
		t.Errorf("two engines on one folder have the ids %q and %q, want the same", a.EngineID, b.EngineID)
	}
	s := spec("w", container("x"))
	if err := one.Ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	s.NodeID = "n2"
	if err := two.Ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	runs, err := sim.ReadRuns(dir)
	if err != nil || len(runs) != 2 {
		t.Fatalf("the run log has %+v, error %v; want two runs: one on each node", runs, err)
	}
	pairs := sim.Overlaps(runs)
	if len(pairs) != 1 || pairs[0][0].NodeID != "n1" || pairs[0][1].NodeID != "n2" {
		t.Errorf("Overlaps returned %+v, want one pair: the runs on n1 and n2", pairs)
	}
}

func TestOverlapsFindsConcurrentRuns(t *testing.T) {
	run := func(node string, from, to time.Duration) sim.Run {
		return sim.Run{Workload: "w", ClusterID: "c", NodeID: node, From: from, To: to}
	}
	other := run("b", 5, 15)
	other.Workload = "v"
	for name, c := range map[string]struct {
		runs []sim.Run
		want int
	}{
		"runs one after the other":                {[]sim.Run{run("a", 0, 10), run("b", 10, 20)}, 0},
		"runs that overlap":                       {[]sim.Run{run("a", 0, 10), run("b", 9, 20)}, 1},
		"overlapping runs in another order":       {[]sim.Run{run("b", 9, 20), run("a", 0, 10)}, 1},
		"one run that has not ended":              {[]sim.Run{run("a", 0, 0), run("b", 10, 20), run("c", 30, 40)}, 2},
		"overlapping runs of different workloads": {[]sim.Run{run("a", 0, 10), other}, 0},
	} {
		if got := sim.Overlaps(c.runs); len(got) != c.want {
			t.Errorf("%s: Overlaps returned %d pairs %+v, want %d", name, len(got), got, c.want)
		}
	}
}

func TestRunEndsByItself(t *testing.T) {
	r := newRig(t)
	r.ensure(spec("w", container("sim/crash:1")))
	r.set(r.mono() + time.Minute)
	runs, err := r.e.Runs()
	if err != nil || len(runs) != 1 || runs[0].To-runs[0].From != 50*time.Millisecond {
		t.Errorf("the run log has %+v, error %v; want one run of 50ms", runs, err)
	}
	r.ensure(spec("w", container("sim/crash:1")))
	if runs, _ = r.e.Runs(); len(runs) != 2 || runs[1].To != 0 {
		t.Errorf("the run log has %+v, want a second run that has not ended", runs)
	}
}

func TestThousandsOfSimulatedWorkloadsAreCheap(t *testing.T) {
	e := engine(t, sim.Options{})
	d := e.Driver(driver.Identity{ClusterID: "c1", NodeID: "n1"})
	ctx := context.Background()
	const count = 5000
	start := time.Now()
	for i := range count {
		if err := d.Ensure(ctx, spec(fmt.Sprintf("w-%d", i), container("x"))); err != nil {
			t.Fatal(err)
		}
	}
	all, err := d.List(ctx)
	if err != nil || len(all) != count {
		t.Fatalf("List returned %d workloads, error %v; want all", len(all), err)
	}
	t.Logf("time for making and listing %d workloads: %s", count, time.Since(start))
}
