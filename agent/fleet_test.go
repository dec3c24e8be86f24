package agent

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
)

// The benchmarks of the schedulers run a hundred simulated agents in one process. So this test checks that one
// agent needs no more memory and goroutines than such a benchmark can afford.
func TestAHundredAgentsInOneProcess(t *testing.T) {
	const agents, workloads = 100, 5
	engine, err := sim.NewEngine(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := leader()
	dir := t.TempDir()
	measure := func() (memory uint64, goroutines int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse, runtime.NumGoroutine()
	}
	memory, goroutines := measure()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, agents)
	var fleet []*rig
	for i := range agents {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{t: t, engine: engine, hooks: &hooks{}}
		r.cfg = Config{
			NodeID: fmt.Sprintf("node-%03d", i), StatePath: fmt.Sprintf("%s/%03d.db", dir, i), Volatile: true,
			Control: s, Listener: listener, Advertise: listener.Addr().String(), Host: testHost, Logger: newRig(t).cfg.Logger,
		}
		a, err := New(r.cfg, func(b Binding) ([]driver.Driver, error) {
			return []driver.Driver{engine.Driver(driver.Identity{ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns})}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.a, r.api = a, a.API()
		fleet = append(fleet, r)
		go func() { ended <- a.Run(ctx) }()
	}
	begin := time.Now()
	for i, r := range fleet {
		r.until(func() bool { return r.a.Session().Registered }, func() string { return "the agent does not register" })
		for n := range workloads {
			if out := r.apply(fmt.Sprintf("w-%d-%d", i, n), "sim/run", by(1), at(1)); !out.Applied {
				t.Fatal(out)
			}
		}
	}
	for i, r := range fleet {
		for n := range workloads {
			r.reaches(fmt.Sprintf("w-%d-%d", i, n), running)
		}
	}
	took := time.Since(begin)
	s.mu.Lock()
	s.beats, s.beatAt, s.registers = nil, nil, nil // free the test's own memory, so that only the agents are measured
	s.mu.Unlock()
	after, routines := measure()
	perAgent := (int64(after) - int64(memory)) / agents
	t.Logf("%d agents with %d workloads each need %d KiB and %.1f goroutines per agent; all workloads ran after %s",
		agents, workloads, perAgent>>10, float64(routines-goroutines)/agents, took.Round(time.Millisecond))
	if perAgent >= 1<<20 {
		t.Errorf("an agent needs %d KiB of memory, want less than 1024", perAgent>>10)
	}
	if n := (routines - goroutines) / agents; n > 15 {
		t.Errorf("an agent has %d goroutines, want at most 15", n)
	}
	cancel()
	for range agents {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
