package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func TestConcurrentProposalsGetTheirOwnResults(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	entries := leader.prop.entries.Load()
	const callers, rounds = 64, 40
	var wg sync.WaitGroup
	for c := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for r := range rounds {
				ids := []string{fmt.Sprintf("w-%d-%d", c, r)}
				if r%4 == 0 {
					ids = append(ids, fmt.Sprintf("x-%d-%d", c, r), fmt.Sprintf("y-%d-%d", c, r))
				}
				var cmds []fsm.Command
				for _, id := range ids {
					cmds = append(cmds, put(id, int64(r)))
				}
				var res []fsm.Result
				leader := g.atLeader(fmt.Sprintf("put %v", ids), func(l *Node) (err error) {
					res, err = l.Propose(timeout(t, 20*time.Second), cmds...)
					return err
				})
				if len(res) != len(ids) {
					t.Errorf("Propose of the commands for workloads %v returned %d results, want one for each command", ids, len(res))
					return
				}
				view := leader.Store().View()
				for i, id := range ids {
					if len(res[i].Items) != 1 || res[i].Items[0].ID != id {
						t.Errorf("the command for workload %s must get its own result, but got %+v", id, res[i])
					}
					if value(view, id) != int64(r) {
						t.Errorf("workload %s must be in the store after Propose, but is not", id)
					}
				}
			}
		}()
	}
	wg.Wait()
	used := leader.prop.entries.Load() - entries
	t.Logf("%d calls of Propose were written in %d log entries", callers*rounds, used)
	if used > callers*rounds/4 {
		t.Errorf("%d calls of Propose were written in %d log entries, want at least 4 calls per entry", callers*rounds, used)
	}
}

func TestCommandsOverTheLimitAreRefused(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	if _, err := n.Propose(timeout(t, patience), putSized("big", 1, commandLimit)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Propose of one command of over 1 MiB returned %v, want ErrTooLarge", err)
	}
	if r, err := n.Propose(timeout(t, patience), putSized("alone", 1, 500<<10)); err != nil || r[0].Err() != nil {
		t.Errorf("Propose of one command of 500 KiB returned %v and error %v, want success", r, err)
	}
	before := n.prop.entries.Load()
	var many []fsm.Command
	for i := range 10 {
		many = append(many, putSized(fmt.Sprintf("m%d", i), 1, 100<<10))
	}
	r, err := n.Propose(timeout(t, patience), many...)
	if err != nil || len(r) != 10 {
		t.Fatalf("Propose of a call of 1 MiB returned %d results and error %v, want 10 results", len(r), err)
	}
	for i := range r {
		if r[i].Items[0].ID != fmt.Sprintf("m%d", i) {
			t.Errorf("result number %d is that of the command for workload %s, want the results in the order of the commands", i, r[i].Items[0].ID)
		}
	}
	if used := n.prop.entries.Load() - before; used != 5 {
		t.Errorf("ten commands of 100 KiB made %d log entries, want 5", used)
	}
	if r, err := n.Propose(context.Background()); err != nil || len(r) != 0 {
		t.Errorf("Propose without commands returned %v, error %v; want no results and no error", r, err)
	}
}

func TestProposeWhileClosing(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				_, err := n.Propose(timeout(t, patience), put(fmt.Sprintf("w%d", c), int64(i)))
				if err == nil {
					continue
				}
				if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnknownOutcome) && !errors.Is(err, ErrNotLeader) {
					t.Error(err)
				}
				return
			}
		}()
	}
	testbed.Until(t, "load", func() bool { return n.prop.commands.Load() > 100 })
	g.close(0)
	wg.Wait()
}

// bench measures concurrent callers of Propose on three replicas in one process.
func bench(b *testing.B, callers int, cfg func(int, *Config)) {
	cmds := make([]fsm.Command, 4096)
	for i := range cmds {
		cmds[i] = putSized(fmt.Sprintf("w%d", i), int64(i), 180)
	}
	benchWith(b, callers, cfg, cmds)
}

func benchWith(b *testing.B, callers int, cfg func(int, *Config), cmds []fsm.Command) {
	g := newGroup(b, 3)
	g.cfg = func(i int, c *Config) {
		c.Timing = Timing{FastGossip: true, Stabilize: 200 * time.Millisecond, Reconcile: 200 * time.Millisecond}
		if cfg != nil {
			cfg(i, c)
		}
	}
	leader := g.form()
	entries, term := leader.prop.entries.Load(), leader.raft.CurrentTerm()
	var left atomic.Int64
	left.Store(int64(b.N))
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			at := rand.N(len(cmds))
			ctx := context.Background()
			for left.Add(-1) >= 0 {
				if _, err := leader.Propose(ctx, cmds[at%len(cmds)]); err != nil {
					b.Error(err)
					return
				}
				at++
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	// Report the CPU time that the replicas and the callers used. On a busy machine it varies less than
	// the number of commands per second.
	b.ReportMetric(float64(cpu)/float64(b.N)/1e3, "cpu-µs/command")
	b.ReportMetric(float64(b.N)/float64(leader.prop.entries.Load()-entries+1), "commands/entry")
	if now := leader.raft.CurrentTerm(); now != term {
		b.Errorf("there must be no election under load, but the Raft term is %d and was %d before", now, term)
	}
}

func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 256, 1024} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { bench(b, callers, nil) })
	}
}

// BenchmarkProposeBarrier measures Propose with barrier commands, which change nothing in the
// state, so that it shows the cost of Raft and the queue alone.
func BenchmarkProposeBarrier(b *testing.B) {
	barrier := &commandv1.Command{Head: &commandv1.Head{At: 1, By: strings.Repeat("b", 240)}, Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}
	benchWith(b, 256, nil, []fsm.Command{barrier})
}

func BenchmarkInFlight(b *testing.B) {
	for _, k := range []int{1, 2, 3} {
		b.Run(fmt.Sprintf("window=%d", k), func(b *testing.B) {
			bench(b, 256, func(_ int, c *Config) { c.Timing.InFlight = k })
		})
	}
}
