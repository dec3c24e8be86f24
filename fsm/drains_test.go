package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// drainBy drains a node and lets running jobs end there for a number of seconds.
func drainBy(id string, seconds uint32) Command {
	c := drain(id, true)
	c.GetDrainNode().DeadlineSeconds = &seconds
	return c
}

func drainDeadlinesScenario(w *world) {
	w.do(register("a"))
	w.do(put("pack", job()))
	w.do(w.assign("pack", "a"))
	w.run("pack")
	w.do(drainBy("a", 60))
	w.do(w.evict("pack", CodeDraining, false))
	w.do(drain("a", true))
	w.do(drainBy("a", bounds.MaxDrainDeadline+1))
	w.do(drainBy("a", 30))
	w.do(drain("a", false))
	w.do(drain("a", true))
	w.do(drainBy("a", 60))
	w.wait(minute)
	w.do(w.evict("pack", CodeDraining, false))
	w.do(drainBy("a", 0))
}

// endedDrainsScenario drains node a, ends the drain, and then commits one decision of each kind that was
// planned for the drain.
func endedDrainsScenario(w *world) {
	w.do(register("a"))
	w.do(put("web"))
	w.do(w.assign("web", "a"))
	w.run("web")
	w.do(put("log", systemPut))
	w.do(placeMembers(w.member("log", "a")))
	leaves := func() {
		gone := w.noMember("log", "a")
		gone.Code = CodeDraining
		w.do(placeMembers(gone))
		w.do(evict(&commandv1.Eviction{Workload: "web", IfGeneration: w.generation("web"), Code: CodeDraining, IfDraining: true}))
	}
	w.do(drain("a", true))
	w.do(drain("a", false))
	leaves()
	w.do(drain("a", true))
	leaves()
}

// TestEndedDrains: decisions for a drain that has ended are dropped. An eviction without if_draining needs no drain.
func TestEndedDrains(t *testing.T) {
	w := formed(t)
	endedDrainsScenario(w)
	is(t, `node of workload "web"`, w.workload("web").Node, "")
	_, member := w.s.Workload("log-a")
	is(t, `the member of the system workload on node "a" has a record`, member, false)

	w = formed(t)
	w.ok(register("a"))
	w.running("web", "a")
	e := &commandv1.Eviction{Workload: "web", IfGeneration: w.generation("web"), Code: CodeDraining, IfDraining: true}
	skipped(t, w.do(evict(e)), "node a is no longer draining")
	e.IfDraining = false
	w.ok(evict(e))
}

// TestDrainDeadlines: node a is drained, and the job pack runs there.
func TestDrainDeadlines(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a running job is not evicted before the deadline", func(t *testing.T, w *world) {
			w.now = w.node("a").JobsUntil - 2*second // each command advances the clock by a second
			skipped(t, w.do(w.evict("pack", CodeDraining, false)), "may end there until")
			is(t, `node of workload "pack"`, w.workload("pack").Node, "a")
			w.ok(w.evict("pack", CodeDraining, false))
			is(t, `node of workload "pack"`, w.workload("pack").Node, "")
		}},
		{"a failed attempt is counted before the job is evicted, and the job keeps the count", func(t *testing.T, w *world) {
			w.ok(w.ended("pack", 1))
			skipped(t, w.do(w.evict("pack", CodeDraining, false)), "may end there until")
			w.ok(w.retry("pack", 1, w.now+minute, false))
			w.ok(w.evict("pack", CodeDraining, false))
			is(t, `number of counted failures of workload "pack"`, w.workload("pack").Retry.Attempts, 1)
		}},
		{"an eviction for another reason needs no deadline", func(t *testing.T, w *world) {
			w.ok(w.evict("pack", CodeTainted, false))
		}},
		{"a service is evicted at once", func(t *testing.T, w *world) {
			w.ok(w.evict("web", CodeDraining, false))
		}},
		{"a new deadline counts from its command, and a drain command without a deadline keeps the present deadline", func(t *testing.T, w *world) {
			was := w.node("a").JobsUntil
			is(t, "verdict on the repeated command", w.do(drain("a", true)).Kind, AlreadyDone)
			is(t, `JobsUntil of node "a"`, w.node("a").JobsUntil, was)
			w.wait(second)
			w.ok(drainBy("a", 60))
			is(t, `JobsUntil of node "a"`, w.node("a").JobsUntil, w.now+minute)
			w.ok(drainBy("a", 0))
			is(t, `JobsUntil of node "a"`, w.node("a").JobsUntil, 0)
			w.ok(w.evict("pack", CodeDraining, false))
		}},
		{"the end of a drain removes the deadline, and a new drain without a deadline has none", func(t *testing.T, w *world) {
			w.ok(drain("a", false))
			is(t, `JobsUntil of node "a"`, w.node("a").JobsUntil, 0)
			w.ok(drain("a", true))
			is(t, `JobsUntil of node "a"`, w.node("a").JobsUntil, 0)
		}},
		{"the event says until when jobs may end", func(t *testing.T, w *world) {
			w.wait(second)
			w.ok(drainBy("a", 60))
			if e := w.eventOf(EventNodeDraining); !strings.Contains(e.Message, "running jobs may end there until ") {
				t.Errorf("the message of event NodeDraining is %q, want it to say until when running jobs may end there", e.Message)
			}
		}},
		{"a deadline that is too long is refused", func(t *testing.T, w *world) {
			refused(t, w.do(drainBy("a", bounds.MaxDrainDeadline+1)), Invalid, "deadline_seconds", "2592000")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(register("a"))
			w.ok(put("pack", job()))
			w.ok(put("web"))
			w.ok(w.assign("pack", "a"))
			w.ok(w.assign("web", "a"))
			w.run("pack")
			w.run("web")
			w.ok(drainBy("a", 60))
			c.run(t, w)
		})
	}
}

// TestAJobThatSucceededIsNotEvicted: the planner decides to evict a job, and before the eviction is
// committed, the node reports that the job has succeeded. The eviction is skipped, because the job would run
// a second time.
func TestAJobThatSucceededIsNotEvicted(t *testing.T) {
	tolerant := job(func(j *commandv1.Job) { j.SuccessCodes = []int32{0, 3} })
	for code, stays := range map[int32]bool{0: true, 3: true, 1: false} {
		w := formed(t)
		w.ok(register("a"))
		w.running("pack", "a", tolerant)
		w.ok(drain("a", true))
		w.ok(w.ended("pack", code))
		evicted := w.evict("pack", CodeDraining, false)
		if !stays {
			w.ok(evicted)
			continue
		}
		skipped(t, w.do(evicted), "has succeeded on node a")
		w.ok(finishJob(w.generation("pack"), "pack", true))
	}
}

// TestAJobThatSucceededIsNotRetried: the planner has counted a failure, for example because the order took too long. The node
// reports the success of the job before the decision is committed.
func TestAJobThatSucceededIsNotRetried(t *testing.T) {
	tolerant := job(func(j *commandv1.Job) { j.SuccessCodes = []int32{0, 3} })
	for code, skips := range map[int32]bool{0: true, 3: true, 1: false} {
		w := formed(t)
		w.ok(register("a"))
		w.running("pack", "a", tolerant)
		w.ok(w.ended("pack", code))
		for name, retry := range map[string]*commandv1.Command{
			"now": w.retry("pack", 1, 0, false), "later": w.retry("pack", 1, 1<<60, false), "never": w.retry("pack", 1, 0, true),
		} {
			before := w.workload("pack")
			if !skips {
				w.ok(w.retry("pack", 1, 0, false))
				break
			}
			skipped(t, w.do(retry), "has succeeded on node a")
			is(t, name+": generation", w.workload("pack").Generation, before.Generation)
			is(t, name+": given up", w.workload("pack").Retry.Terminal, false)
		}
		if skips {
			w.ok(finishJob(w.generation("pack"), "pack", true))
		}
	}
}

// TestARetryAsksForANewRun: the exit of a job was counted as a failure. The node must run the job again, also if a user changes
// the priority before the retry. Before the exit is counted, a new priority asks for the same run.
func TestARetryAsksForANewRun(t *testing.T) {
	priority := demand(func(d *commandv1.Demand) { d.Priority = 7 })
	for _, c := range []struct {
		name string
		same bool
		next func(w *world)
	}{
		{"a retry", false, func(w *world) { w.ok(w.retry("pack", 1, 0, false)) }},
		{"a new priority", true, func(w *world) { w.ok(put("pack", job(), priority)) }},
		{"a new priority during the back-off", false, func(w *world) {
			w.ok(w.retry("pack", 1, 1<<60, false))
			w.ok(put("pack", job(), priority))
		}},
	} {
		w := formed(t)
		w.ok(register("a"))
		w.running("pack", "a", job())
		w.ok(w.ended("pack", 1))
		c.next(w)
		is(t, c.name+" asks for the same run", !w.workload("pack").SameSince.IsZero(), c.same)
	}
}

// TestAJobThatWasKilledIsEvicted: the container of a job used too much memory, and ended with an exit code that would otherwise
// mean success. The planner does not finish this job, so it must be able to move it.
func TestAJobThatWasKilledIsEvicted(t *testing.T) {
	w := formed(t)
	w.ok(register("a"))
	w.running("pack", "a", job(func(j *commandv1.Job) { j.SuccessCodes = []int32{0, 137} }))
	w.ok(drain("a", true))
	w.ok(report(&commandv1.WorkloadReport{
		Workload: "pack", Node: "a", Generation: w.generation("pack"), State: "Failed", Code: "RESOURCE_QUOTA_EXCEEDED", Acknowledged: true,
		Exit: &commandv1.Exit{Code: 137, StartedAt: w.now, EndedAt: w.now + second}, ObservedAt: w.now,
	}))
	w.ok(w.evict("pack", CodeDraining, false))
}

// TestADrainKeepsAJobWhoseOrderIsRenewed: a job runs on node a, which is draining. Its order changes, and the node has
// not accepted the present order.
func TestADrainKeepsAJobWhoseOrderIsRenewed(t *testing.T) {
	priority := func(n int32) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.Priority = n })
	}
	for _, c := range []struct {
		name  string
		moves bool
		renew func(w *world)
	}{
		{"a change of the priority keeps the job on its node", false, func(w *world) { w.ok(put("pack", job(), priority(7))) }},
		{"two changes of the priority keep the job on its node", false, func(w *world) {
			w.ok(put("pack", job(), priority(7)))
			w.ok(put("pack", job(), priority(8)))
		}},
		{"a change of the priority while the reported state is Unknown keeps the job on its node", false, func(w *world) {
			w.ok(w.says("pack", "Unknown"))
			w.ok(put("pack", job(), priority(7)))
		}},
		{"the repair of a drift keeps the job on its node", false, func(w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{
				Repairs: []*commandv1.DriftRepair{{Workload: "pack", Node: "a", IfGeneration: w.generation("pack")}}}}})
		}},
		{"a retry of a job that still runs keeps the job on its node", false, func(w *world) { w.ok(w.retry("pack", 1, 0, false)) }},
		{"a retry of a job that has failed lets the drain move the job", true, func(w *world) {
			w.ok(w.ended("pack", 1))
			w.ok(w.retry("pack", 1, 0, false))
		}},
		{"a change of the specification lets the drain move the job", true, func(w *world) { w.ok(put("pack", job(), content("c1:another"))) }},
		{"a change of the specification, and then of the priority lets the drain move the job", true, func(w *world) {
			w.ok(put("pack", job(), content("c1:another")))
			w.ok(put("pack", job(), content("c1:another"), priority(7)))
		}},
		{"a change of the specification that the node accepted, and then of the priority keeps the job on its node", false, func(w *world) {
			w.ok(put("pack", job(), content("c1:another")))
			w.run("pack")
			w.ok(put("pack", job(), content("c1:another"), priority(7)))
		}},
		{"a restart by a person lets the drain move the job", true, func(w *world) { w.ok(userRetry("pack")) }},
		{"a change of the priority before the node has accepted the first order lets the drain move the job", true, func(w *world) {
			w.ok(drain("a", false))
			w.ok(w.evict("pack", CodeTainted, true))
			w.bind("pack", "a")
			w.ok(drainBy("a", 60))
			w.ok(put("pack", job(), priority(7)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(register("a"))
			w.running("pack", "a", job())
			w.ok(drainBy("a", 60))
			w.wait(second)
			c.renew(w)
			is(t, `the order of workload "pack" is acknowledged`, w.workload("pack").Acknowledged, false)
			w.stays(t, "pack", !c.moves)
		})
	}
}

// stays checks whether the drain leaves the workload on its node. If want is true, the eviction must be
// refused because the job may end there.
func (w *world) stays(t *testing.T, id string, want bool) {
	t.Helper()
	res := w.do(w.evict(id, CodeDraining, false))
	is(t, "the job stays on its node", w.workload(id).Node != "", want)
	if want {
		skipped(t, res, "may end there until")
	}
}

// TestADrainMovesAJobThatDoesNotStart: node a is draining and has accepted the order of a job. The drain
// moves the job if the next report says that it cannot start, and keeps it if it may run.
func TestADrainMovesAJobThatDoesNotStart(t *testing.T) {
	for _, c := range []struct {
		state, code string
		stays       bool
	}{
		{"Running", "", true},
		{"Unknown", "RUNTIME_UNHEALTHY", true},
		{"Pending", CodeWorking, true},
		{"Pending", "", true}, // the agent has only accepted the order
		{"Pending", "IMAGE_PULL_FAILED", false},
		{"Pending", "RUNTIME_UNHEALTHY", true}, // the engine does not answer, so an instance of a former order may run
	} {
		t.Run(c.state+" "+c.code, func(t *testing.T) {
			w := formed(t)
			w.ok(register("a"))
			w.place("pack", "a", job())
			w.ok(drainBy("a", 60))
			w.ok(report(&commandv1.WorkloadReport{
				Workload: "pack", Node: "a", Generation: w.generation("pack"), State: c.state, Code: c.code, Retryable: true, Acknowledged: true, ObservedAt: w.now,
			}))
			w.stays(t, "pack", c.stays)
		})
	}
}

// If a job has succeeded, and its order is renewed before the leader records its end, the job still counts as
// completed.
func TestARenewedOrderKeepsTheSuccessOfAJob(t *testing.T) {
	w := formed(t)
	w.ok(register("a"))
	w.running("pack", "a", job())
	w.ok(report(&commandv1.WorkloadReport{
		Workload: "pack", Node: "a", Generation: w.generation("pack"), State: "Stopped", Code: CodeCompleted, Acknowledged: true, ObservedAt: w.now,
	}))
	w.ok(put("pack", job(), priority(7)))
	is(t, `the order of workload "pack" is acknowledged`, w.workload("pack").Acknowledged, false)
	is(t, `workload "pack" has completed`, w.workload("pack").Completed(), true)
	w.ok(put("pack", job(), priority(7), content("c1:other")))
	is(t, "the job counts as completed after its content was changed", w.workload("pack").Completed(), false)
}

// If the engine of a job's node does not answer, the job stays until the deadline of the drain. This holds
// even if the planner has counted a failure because the order took too long.
func TestADrainKeepsAJobWhoseEngineIsSilent(t *testing.T) {
	w := formed(t)
	w.ok(register("a"))
	w.running("pack", "a", job())
	w.ok(drainBy("a", 60))
	w.ok(report(&commandv1.WorkloadReport{
		Workload: "pack", Node: "a", Generation: w.generation("pack"), State: "Unknown", Code: "RUNTIME_UNHEALTHY", Retryable: true, Acknowledged: true, ObservedAt: w.now,
	}))
	w.ok(w.retry("pack", 1, w.now+10*second, false))
	w.stays(t, "pack", true)
}

// TestADrainKeepsAJobThatIsFoundAfterARestore: in the restored state a job has no node, but a draining node reports that it
// runs the job. The drain must let it end there.
func TestADrainKeepsAJobThatIsFoundAfterARestore(t *testing.T) {
	w := formed(t, "a")
	w.ok(put("pack", job()))
	backup := w.s
	w.bind("pack", "a")
	w.run("pack")
	said := w.says("pack", "Running")
	w = w.withState(restored(t, backup, formedAgain(w).s))
	w.ok(drainBy("a", 60))
	w.ok(said)
	p := w.workload("pack")
	is(t, `node of workload "pack"`, p.Node, "a")
	is(t, `the order of workload "pack" is acknowledged`, p.Acknowledged, false)
	w.stays(t, "pack", true)
}

// TestARestoreKeepsAJobWhoseOrderIsRenewed: after a backup, a running job gets a renewed order. The backup is
// restored, and a drain lets the job end on its node.
func TestARestoreKeepsAJobWhoseOrderIsRenewed(t *testing.T) {
	w := formed(t, "a")
	w.running("pack", "a", job())
	backup := w.s
	w.ok(w.retry("pack", 1, 0, false))
	w = w.withState(restored(t, backup, w.s))
	w.ok(drainBy("a", 60))
	w.stays(t, "pack", true)
}

// TestARestoreKeepsTheDeadlineOfADrain: a backup is restored into a new cluster, in which node a has
// registered. The cases differ in which of the two states drains the node.
func TestARestoreKeepsTheDeadlineOfADrain(t *testing.T) {
	for _, c := range []struct {
		name            string
		backup, present uint32 // deadline of the drain in the backup and in the present state, in seconds; 0 = the node is not draining there
		want            int64  // seconds from the drain command until JobsUntil
	}{
		{"a node that is draining keeps its own deadline", 600, 60, 60},
		{"a node that is not draining gets the drain of the backup with its deadline", 600, 0, 600},
		{"a node that only the present state drains keeps its deadline", 0, 60, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a")
			w.ok(cordon("a", true))
			at := w.now
			if c.backup > 0 {
				w.ok(drainBy("a", c.backup))
				at = w.s.Info().Clock
			}
			fresh := formedAgain(w)
			fresh.ok(register("a"))
			if c.present > 0 {
				fresh.ok(drainBy("a", c.present))
				at = fresh.s.Info().Clock
			}
			n := w.withState(restored(t, w.s, fresh.s)).node("a")
			is(t, "the node is draining after the restore", n.Draining, true)
			is(t, "time until which jobs may end on the draining node", n.JobsUntil, at+c.want*second)
		})
	}
}
