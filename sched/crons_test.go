package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// cron returns an option that makes a workload a cron with a start time in each minute.
func cron(set ...func(*commandv1.Cron)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		c := &commandv1.Cron{Schedule: "* * * * *", Concurrency: fsm.ConcurrencyAllow, KeepSucceeded: 1000, KeepFailed: 1000}
		for _, f := range set {
			f(c)
		}
		p.Demand.Job, p.Demand.Template = &commandv1.Job{}, &commandv1.Template{Kind: fsm.TemplateCron, Cron: c}
	}
}

const minute = 60 * second

// runs returns the times of all runs that a cron ever created, in minutes after the start of the
// test. It finds them in the events of the state.
func (w *world) runs(id string) (out []string) {
	w.state.Events(0, func(e *fsm.Event) bool {
		if e.Workload == id && e.Type == fsm.EventCronFired {
			at, err := time.Parse(runTime, strings.TrimPrefix(e.Message, "run "+id+"-"))
			if err != nil {
				w.t.Fatalf("event %q: %v", e.Message, err)
			}
			out = append(out, fmt.Sprint((at.UnixNano()-cronStart)/minute))
		}
		return true
	})
	return out
}

func (w *world) events(kind string) (n int) {
	w.state.Events(0, func(e *fsm.Event) bool {
		if e.Type == kind {
			n++
		}
		return true
	})
	return n
}

// cronStart is a full minute.
const cronStart = testStart - testStart%minute + minute

func (w *world) setMode(mode string) {
	w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: mode, Reason: "test"}}})
}

// TestCronsFire: exactly one run is created for each start time of a schedule.
func TestCronsFire(t *testing.T) {
	at := func(m float64) int64 { return cronStart + int64(m*float64(minute)) }
	for _, c := range []struct {
		fact   string
		set    func(*commandv1.Cron)
		fn     func(w *world)
		want   string
		events map[string]int
	}{
		{"a cron of each minute gets a run in each minute", nil, func(w *world) {
			for m := 0.0; m <= 5; m += 0.25 {
				w.now = at(m)
				w.settle()
			}
		}, "1 2 3 4 5", nil},
		{"a change of the leader at each start time loses no run and repeats none", nil, func(w *world) {
			for m := 1.0; m <= 4; m++ {
				w.now = at(m)
				w.plan() // planned, but the leader dies before the command is in the log
				w.cache = NewCache()
				w.settle()
			}
		}, "1 2 3 4", nil},
		{"a step that two leaders propose creates one run", nil, func(w *world) {
			w.now = at(1)
			step := w.plan()
			w.settle()
			for _, cmd := range step.Commands {
				w.try(cmd)
			}
			w.settle()
		}, "1", nil},
		{"a next leader whose clock is behind creates each run once", nil, func(w *world) {
			w.now = at(2)
			w.settle()
			w.cache = NewCache()
			for m := 0.5; m <= 3; m += 0.5 { // the planner's clock is never behind the clock of the state
				w.now = max(at(m), w.state.Info().Clock)
				w.settle()
			}
		}, "1 2 3", nil},
		{"a next leader whose clock is ahead creates each run once", nil, func(w *world) {
			w.now = at(1)
			w.settle()
			w.cache = NewCache()
			w.now = at(4)
			w.settle()
			w.settle()
		}, "1 2 3 4", nil},
		{"times that came during a frozen mode get their runs afterwards", nil, func(w *world) {
			w.setMode("degraded")
			w.now = at(2.5)
			w.settle()
			w.setMode("normal")
			w.settle()
		}, "1 2", nil},
		{"concurrency allow runs the newest 60 missed times", nil, func(w *world) {
			w.now = at(100)
			w.settle()
			w.settle()
		}, "41..100", map[string]int{fsm.EventCronMissed: 1}},
		{"only times within the starting deadline get runs", func(c *commandv1.Cron) { c.StartingDeadline = 2 * minute }, func(w *world) {
			w.now = at(10.5)
			w.settle()
		}, "9 10", map[string]int{fsm.EventCronMissed: 1}},
		{"no run is created if all times are later than the starting deadline", func(c *commandv1.Cron) { c.StartingDeadline = 20 * second }, func(w *world) {
			w.now = at(10.5)
			w.settle()
			w.now = at(11)
			w.settle()
		}, "11", map[string]int{fsm.EventCronMissed: 1}},
		{"concurrency forbid runs the latest missed time only", func(c *commandv1.Cron) { c.Concurrency = fsm.ConcurrencyForbid }, func(w *world) {
			w.now = at(10)
			w.settle()
		}, "10", map[string]int{fsm.EventCronMissed: 1}},
		{"concurrency forbid skips a start time while a run is active", func(c *commandv1.Cron) { c.Concurrency = fsm.ConcurrencyForbid }, func(w *world) {
			for m := 1.0; m <= 3; m++ {
				w.now = at(m)
				w.settle()
			}
			w.exits("nightly-"+time.Unix(0, at(1)).UTC().Format(runTime), 0)
			w.settle()
			w.now = at(4)
			w.settle()
		}, "1 4", map[string]int{fsm.EventCronSkipped: 2}},
		{"concurrency replace ends the active run", func(c *commandv1.Cron) { c.Concurrency = fsm.ConcurrencyReplace }, func(w *world) {
			for m := 1.0; m <= 3; m++ {
				w.now = at(m)
				w.settle()
			}
		}, "1 2 3", map[string]int{fsm.EventJobFailed: 2}},
		{"times that came while a cron was suspended get no runs", nil, func(w *world) {
			desire := func(to string) {
				w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "nightly", Desired: to}}})
			}
			w.now = at(1)
			w.settle()
			desire("Stopped")
			w.now = at(5.5)
			w.settle()
			desire("Running")
			w.settle()
			w.now = at(6)
			w.settle()
		}, "1 6", nil},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := newWorld(t)
			w.tuning.MaxCommands = 500
			w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores, n.MemoryMib = 100_000, 1_000_000 })
			w.now = cronStart
			set := func(*commandv1.Cron) {}
			if c.set != nil {
				set = c.set
			}
			w.apply("nightly", cron(set))
			w.settle()
			c.fn(w)
			got := strings.Join(w.runs("nightly"), " ")
			want := c.want
			if from, to, ok := strings.Cut(want, ".."); ok {
				var a, b int
				fmt.Sscan(from, &a)
				fmt.Sscan(to, &b)
				var all []string
				for i := a; i <= b; i++ {
					all = append(all, fmt.Sprint(i))
				}
				want = strings.Join(all, " ")
			}
			if got != want {
				t.Fatalf("the cron had runs at the minutes %s after the start, want %s", got, want)
			}
			for kind, n := range c.events {
				if got := w.events(kind); got != n {
					t.Errorf("the history has %d events %s, want %d", got, kind, n)
				}
			}
		})
	}
}

// TestCronKeepsTheNewestRuns: after each run, the runs beyond keep_succeeded and keep_failed are deleted.
func TestCronKeepsTheNewestRuns(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.now = cronStart
	w.apply("nightly", func(p *commandv1.WorkloadPut) {
		cron(func(c *commandv1.Cron) { c.KeepSucceeded, c.KeepFailed = 2, 1 })(p)
		p.MaxAttempts = 1
	})
	w.settle()
	var want []string
	for m := range 8 {
		w.now = cronStart + int64(m+1)*minute
		w.settle()
		id := "nightly-" + time.Unix(0, w.now).UTC().Format(runTime)
		w.exits(id, int32(m%2))
		w.settle()
		w.settle()
		if m >= 4 && m%2 == 0 || m == 7 {
			want = append(want, id)
		}
	}
	var got []string
	w.state.Children("nightly", func(c *fsm.Workload) bool { got = append(got, c.ID); return true })
	if !slices.Equal(got, want) {
		t.Fatalf("kept runs %v, must be %v", got, want)
	}
}

// TestParameterizedJobKeepsTheNewestRuns: of a parameterized job's runs, the newest 1,000 that succeeded stay, and
// the run that failed stays too.
func TestParameterizedJobKeepsTheNewestRuns(t *testing.T) {
	w := newWorld(t)
	w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores, n.MemoryMib = 1_000_000, 1_000_000 })
	w.apply("encode", func(p *commandv1.WorkloadPut) {
		p.Demand.Job, p.Demand.Template, p.MaxAttempts = &commandv1.Job{}, &commandv1.Template{Kind: fsm.TemplateDispatch}, 1
	})
	const batch = 501
	for b := range 2 {
		w.now += minute
		for i := range batch {
			id := fmt.Sprintf("encode-%d-%03d", b, i)
			w.do(&commandv1.Command{Body: &commandv1.Command_StartRun{StartRun: &commandv1.StartRun{Template: "encode", Run: id, Key: id}}})
		}
		w.settle()
		for i := range batch {
			code := int32(0)
			if i == 0 && b == 0 {
				code = 1
			}
			w.exits(fmt.Sprintf("encode-%d-%03d", b, i), code)
		}
		w.settle()
	}
	var got []string
	w.state.Children("encode", func(c *fsm.Workload) bool { got = append(got, c.ID); return true })
	if len(got) != 2*batch-1 || got[0] != "encode-0-000" || got[1] != "encode-0-002" {
		t.Fatalf("%d runs are kept, the first two are %v; want the newest 1,000 that succeeded and the one that failed", len(got), got[:2])
	}
}

// TestCronWakesThePlanner: a step tells the leader to plan again at the next time of a cron.
func TestCronWakesThePlanner(t *testing.T) {
	w := newWorld(t)
	w.now = cronStart
	w.apply("nightly", cron())
	w.step() // the first time is chosen
	w.step()
	w.now += minute - 2*second
	step := w.plan()
	if at := step.WakeAt; at != cronStart+minute {
		t.Fatalf("the planner wants its next step at %d ns, want it at %d ns, the start time of the cron; it gives the reasons %v", at, cronStart+minute, step.Why)
	}
}
