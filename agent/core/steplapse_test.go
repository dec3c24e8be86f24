package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// leasedJob is a history in which the agent has started a job with on_lost_lease: stop under a lease.
type leasedJob struct {
	*history
	seen workload.Observed // the instance on the engine
}

func once(o *Order) { leasedOrder(o); o.Traits.RestartPolicy = "no" }

// renew sends a message to the fencer. The fencer's answer has this number of lapses. The end of the lease in
// the answer is end, or, if end is 0, the one that the message contained.
func (h *history) renew(lapses uint64, end time.Duration) *history {
	h.t.Helper()
	h.step(FencerDue{})
	for _, e := range h.effects {
		if r, ok := e.(Renew); ok {
			if end == 0 {
				end = r.Renewal.Deadline
			}
			return h.step(FencerAnswered{Sent: r.Renewal, Status: lease.Status{Deadline: end, Lapses: lapses, Leased: r.Renewal.Leased}})
		}
	}
	h.t.Fatal("the core sends no message to the fencer")
	return h
}

func startedLeasedJob(t *testing.T) *leasedJob {
	t.Helper()
	h := newHistory(t, withFencer)
	h.step(Leased{h.clock + time.Minute}).step(order(5, 7, once))
	h.renew(0, 0).step(order(5, 7, once)).look(workload.Absent)
	start := h.act()
	if start == nil {
		start = h.renew(0, 0).act()
	}
	if start == nil || start.Verb != Ensure {
		t.Fatalf("the core's action is %+v, want the start of the job", start)
	}
	j := &leasedJob{history: h, seen: workload.Observed{ID: "db", State: workload.Running, Content: start.Intent.EngineContent,
		Generation: start.Intent.Generation, RuntimeID: "r1", StartedAt: h.now}}
	h.step(Done{Act: start})
	j.looks()
	return j
}

// looks answers each inspection, and carries out each halt, until the core is idle.
func (j *leasedJob) looks() {
	j.t.Helper()
	for a := j.act(); a != nil; a = j.act() {
		switch a.Verb {
		case Look:
			o := j.seen
			j.step(Done{Act: a, Observed: &o, Began: j.now})
		case Halt:
			j.end(0, j.now)
			j.step(Done{Act: a})
		default:
			j.t.Fatalf("the core began the action %s, want no start", a.Verb)
		}
	}
}

func (j *leasedJob) end(code int, at time.Time) {
	j.seen.State, j.seen.ExitCode, j.seen.FinishedAt = workload.Stopped, code, at
	if code != 0 {
		j.seen.State = workload.Failed
	}
}

func (j *leasedJob) list() {
	j.t.Helper()
	j.step(Listed{Kind: workload.Container, Bound: j.s.engines[0].Bound, Began: j.now, Seen: []workload.Observed{j.seen}})
	j.looks()
}

// restart ends the agent's process and starts another one, with what the state file keeps. The fencer's first answer is st.
func (j *leasedJob) restart(st lease.Status) {
	j.t.Helper()
	w := j.s.Get("db")
	saved := Saved{Intents: []*Intent{w.Intent}, Meta: j.s.Meta,
		Status: map[string]SavedStatus{"db": {Status: w.Status, Failure: w.Failure, Healing: w.Healing}}}
	for t := range j.s.Tasks() {
		saved.Tasks = append(saved.Tasks, t)
	}
	j.s = Restore(j.s.Settings, saved, j.now)
	j.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	j.step(FencerMet{Status: st})
	j.step(Start{})
	j.looks()
	j.list()
}

// The lease of a job ends. If the job had ended by itself before, its report keeps the exit. If the fencer or
// the agent stopped the job because of the lease, the report has no exit: the job waits for a newer order. In
// all cases the agent does not start the job again.
func TestStepKeepsTheEndOfAJobWhenTheLeaseEnds(t *testing.T) {
	job := lease.Workload{Kind: workload.Container, ID: "db"}
	for _, c := range []struct {
		name string
		do   func(j *leasedJob)
		code int  // exit code of the job
		ends bool // the job is reported with its exit
	}{
		{"the job succeeded before the lease ended, and the agent had observed this", func(j *leasedJob) {
			j.end(0, j.now)
			j.list()
			j.renew(1, j.clock)
			j.looks()
		}, 0, true},
		{"the job failed before the lease ended, and the agent had observed this", func(j *leasedJob) {
			j.end(3, j.now)
			j.list()
			j.renew(1, j.clock)
			j.looks()
		}, 3, true},
		{"the job succeeded before the lease ended, and no fencer answers", func(j *leasedJob) {
			j.end(0, j.now)
			j.list()
			j.now, j.clock = j.now.Add(time.Hour), j.clock+time.Hour
			j.step(FencerDue{})
			j.step(FencerAnswered{Sent: lease.Renewal{Leased: []lease.Workload{job}}, Problem: "no answer"})
			j.looks()
		}, 0, true},
		{"the job succeeded before the lease ended, and the agent observes this after the lease ended", func(j *leasedJob) {
			j.end(0, j.now)
			j.renew(1, j.clock+1)
			j.looks()
		}, 0, true},
		{"the fencer stops the job", func(j *leasedJob) {
			end := j.clock
			j.end(0, j.now.Add(time.Second))
			j.now, j.clock = j.now.Add(time.Second), j.clock+time.Second
			j.renew(1, end)
			j.looks()
		}, 0, false},
		{"the agent stops the job", func(j *leasedJob) {
			j.renew(1, j.clock)
			j.looks()
		}, 0, false},
		{"the agent stops the job, and the clock of the machine is set back", func(j *leasedJob) {
			j.renew(1, j.clock)
			for a := j.act(); a != nil; a = j.act() {
				if a.Verb == Halt {
					j.end(0, j.now.Add(-time.Hour))
					j.step(Done{Act: a})
					continue
				}
				o := j.seen
				j.step(Done{Act: a, Observed: &o, Began: j.now})
			}
		}, 0, false},
		{"the job succeeds while the agent is down, before the lease ends", func(j *leasedJob) {
			j.end(0, j.now)
			j.restart(lease.Status{Deadline: j.clock + time.Second, Lapses: 1, Lapsed: true})
		}, 0, true},
		{"the fencer stops the job while the agent is down", func(j *leasedJob) {
			j.end(0, j.now.Add(time.Second))
			j.restart(lease.Status{Deadline: j.clock, Lapses: 1, Lapsed: true})
		}, 0, false},
		{"the agent stops the job and restarts, and a later lease has ended", func(j *leasedJob) {
			j.renew(1, j.clock)
			j.looks()
			j.now, j.clock = j.now.Add(time.Minute), j.clock+time.Minute
			j.restart(lease.Status{Deadline: j.clock, Lapses: 2, Lapsed: true})
		}, 0, false},
		{"a newer order runs the job again, and the lease ends before the start", func(j *leasedJob) {
			j.end(3, j.now)
			j.list()
			j.step(Leased{j.clock + time.Minute})
			j.renew(0, 0)
			look := j.step(order(6, 7, once)).act()
			if look == nil || look.Verb != Look {
				j.t.Fatalf("after the newer order the core's action is %+v, want a Look", look)
			}
			j.renew(1, j.clock)
			o := j.seen
			j.step(Done{Act: look, Observed: &o, Began: j.now})
			j.looks()
		}, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := startedLeasedJob(t)
			c.do(j)
			j.list()
			w := j.s.Get("db")
			if !w.memory.lapsed {
				t.Error("the workload may start without a newer order")
			}
			want, reason := workload.Stopped, ReasonCompleted
			if c.code != 0 {
				want, reason = workload.Failed, ""
			}
			st := w.Status
			switch {
			case c.ends && (st.State != want || st.Reason != reason || st.Exit.EndedAt.IsZero() || st.Exit.Code != c.code || w.Task.Open()):
				t.Errorf("the job that ended before the lease is reported as %+v, want %s with the exit code %d", st, want, c.code)
			case !c.ends && (st.Message != lapsedMessage || !st.Exit.EndedAt.IsZero() || st.Reason != ""):
				t.Errorf("the job that was stopped because of the lease is reported as %+v, want that it waits for an order, without an exit", st)
			}
			// The instance of a job that has ended is removed by somebody, and the lease is renewed: the job does not start.
			j.step(Leased{j.clock + time.Hour})
			j.renew(j.s.fencer.lapses, 0)
			j.step(Listed{Kind: workload.Container, Bound: j.s.engines[0].Bound, Began: j.now})
			if a := j.act(); a != nil && a.Verb == Look {
				j.step(Done{Act: a, Began: j.now})
			}
			if a := j.renew(j.s.fencer.lapses, 0).act(); a != nil {
				t.Errorf("the instance of the job was removed by somebody, and the core began the action %s, want none", a.Verb)
			}
		})
	}
}

// A newer order arrives while the agent stops a job whose lease has ended. The agent starts the job again
// after the stop, and does not report the stop as the end of the job.
func TestStepStartsALapsedJobThatIsBeingStopped(t *testing.T) {
	j := startedLeasedJob(t)
	j.renew(1, j.clock)
	for a := j.act(); a != nil && a.Verb == Look; a = j.act() {
		o := j.seen
		j.step(Done{Act: a, Observed: &o, Began: j.now})
	}
	halt := j.act()
	if halt == nil || halt.Verb != Halt {
		t.Fatalf("the core's action is %+v, want Halt, the stop of the job", halt)
	}
	j.step(Leased{j.clock + time.Hour})
	j.renew(1, 0)
	j.step(order(6, 7, once))
	j.renew(1, 0)
	if a := j.step(order(6, 7, once)).answer(); a.Intent == nil || a.Skipped {
		t.Fatalf("the answer to the newer order is %+v, want that it is queued", a)
	}
	j.end(0, j.now)
	j.step(Done{Act: halt})
	o := j.seen
	a := j.step(Done{Act: j.act(), Observed: &o, Began: j.now}).act()
	if a == nil {
		a = j.renew(1, 0).act()
	}
	if a == nil || a.Verb != Ensure {
		t.Errorf("after the stop the core's action is %+v, want the start; the report is %+v", a, j.s.Get("db").Status)
	}
}

// The schedulers retry a failed job with an order of a newer generation. The agent starts the former instance again, which
// keeps the former generation in its labels, and is killed before it has stored that the order is carried out. The instance
// ends while the agent is down. The next process reports this end if the instance was started after the order arrived.
func TestStepReportsARetriedJobThatTheAgentStartedBeforeItWasKilled(t *testing.T) {
	ordered := time.Unix(1000, 0)
	for _, c := range []struct {
		name      string
		exclusive bool
		kind      workload.Kind
		started   time.Duration // start of the instance, after the order
		restart   bool          // a restart that the order asks for is pending
		code      int
		do        Verb   // the core's action; Nothing if there is none
		says      string // the message of the report, if the job is not reported with its exit
	}{
		{"an exclusive job succeeded", true, workload.Container, time.Second, false, 0, Nothing, ""},
		{"an exclusive job failed", true, workload.Container, time.Second, false, 3, Nothing, ""},
		{"a job succeeded", false, workload.Container, time.Second, false, 0, Nothing, ""},
		{"a job failed", false, workload.Container, time.Second, false, 3, Nothing, ""},
		{"an exclusive job was not started after the order arrived", true, workload.Container, -time.Minute, false, 3, Nothing, waitsMessage},
		{"a job was not started after the order arrived", false, workload.Container, -time.Minute, false, 3, Ensure, ""},
		{"an exclusive job was started, and its ordered restart is still pending", true, workload.Container, time.Second, true, 0, Nothing, waitsMessage},
		{"some services of a stack may not have been started", false, workload.Compose, time.Second, false, 3, Ensure, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Intent{ID: "db", Type: c.kind, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x", Exclusive: c.exclusive,
				Restart: c.restart, Generation: workload.Generation{Incarnation: 1, Sequence: 6}, Traits: Traits{RestartPolicy: "no", Job: true}}
			h := &history{t: t, now: ordered.Add(time.Minute), clock: 1000 * time.Second}
			h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8},
				Saved{Intents: []*Intent{in}, Tasks: []*Task{NewTask(ActionApply, "db", ordered)}, Meta: Meta{InstanceID: "i1"}}, h.now)
			h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{c.kind}})
			e, _ := h.s.Engine(c.kind)
			o := workload.Observed{ID: "db", State: workload.Stopped, Content: "c1:a", Generation: workload.Generation{Incarnation: 1, Sequence: 5}, RuntimeID: "r1",
				ExitCode: c.code, StartedAt: ordered.Add(c.started), FinishedAt: ordered.Add(c.started + time.Second)}
			if c.code != 0 {
				o.State = workload.Failed
			}
			do := Nothing
			for _, ev := range []Event{Listed{Kind: c.kind, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{o}}, Start{}} {
				for h.step(ev); h.act() != nil; {
					if do = h.act().Verb; do != Look {
						break
					}
					seen := o
					do = Nothing
					h.step(Done{Act: h.act(), Observed: &seen, Began: h.now})
				}
			}
			if do != c.do {
				t.Fatalf("after the restart of the agent the core began the action %s, want %s", do, c.do)
			}
			w := h.s.Get("db")
			switch st := w.Status; {
			case c.says != "" && (st.Message != c.says || !st.Exit.EndedAt.IsZero()):
				t.Errorf("the job is reported as %+v, want the message %q and no exit", st, c.says)
			case c.says == "" && c.do == Nothing && (st.State != o.State || st.Exit.EndedAt.IsZero() || st.Exit.Code != c.code):
				t.Errorf("the job is reported as %+v, want its exit code %d", st, c.code)
			case c.says == "" && c.do == Nothing && c.code == 0 && w.Task.Status != TaskCompleted:
				t.Errorf("the job succeeded, but the task of its order is %+v, want a completed task", w.Task)
			}
		})
	}
}
