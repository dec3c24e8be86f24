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

// TestDrainDeadlines: node a is drained, and the job pack runs there.
func TestDrainDeadlines(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a running job is not evicted before the deadline", func(t *testing.T, w *world) {
			w.now = w.node("a").JobsUntil - 2*second // each command advances the clock by a second
			skipped(t, w.do(w.evict("pack", CodeDraining, false)), "may end there until")
			is(t, "node", w.workload("pack").Node, "a")
			w.ok(w.evict("pack", CodeDraining, false))
			is(t, "node", w.workload("pack").Node, "")
		}},
		{"a failed attempt is counted before the job is evicted, and the count goes with it", func(t *testing.T, w *world) {
			w.ok(w.ended("pack", 1))
			skipped(t, w.do(w.evict("pack", CodeDraining, false)), "may end there until")
			w.ok(w.retry("pack", 1, w.now+minute, false))
			w.ok(w.evict("pack", CodeDraining, false))
			is(t, "attempts", w.workload("pack").Retry.Attempts, 1)
		}},
		{"an eviction for another reason needs no deadline", func(t *testing.T, w *world) {
			w.ok(w.evict("pack", CodeTainted, false))
		}},
		{"a service is evicted at once", func(t *testing.T, w *world) {
			w.ok(w.evict("web", CodeDraining, false))
		}},
		{"another deadline counts from its command, and none keeps the present one", func(t *testing.T, w *world) {
			was := w.node("a").JobsUntil
			is(t, "same", w.do(drain("a", true)).Kind, AlreadyDone)
			is(t, "until", w.node("a").JobsUntil, was)
			w.wait(second)
			w.ok(drainBy("a", 60))
			is(t, "until", w.node("a").JobsUntil, w.now+minute)
			w.ok(drainBy("a", 0))
			is(t, "until", w.node("a").JobsUntil, 0)
			w.ok(w.evict("pack", CodeDraining, false))
		}},
		{"the end of the drain ends the deadline, and a drain without one has none", func(t *testing.T, w *world) {
			w.ok(drain("a", false))
			is(t, "until", w.node("a").JobsUntil, 0)
			w.ok(drain("a", true))
			is(t, "until", w.node("a").JobsUntil, 0)
		}},
		{"the event says until when jobs may end", func(t *testing.T, w *world) {
			w.wait(second)
			w.ok(drainBy("a", 60))
			if e := w.eventOf(EventNodeDraining); !strings.Contains(e.Message, "running jobs may end there until ") {
				t.Errorf("the message of the event is %q", e.Message)
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

// TestADrainKeepsAJobWhoseOrderIsRenewed: a job runs on node a, which is draining. Its order changes, and the node has
// not accepted the present order.
func TestADrainKeepsAJobWhoseOrderIsRenewed(t *testing.T) {
	priority := demand(func(d *commandv1.Demand) { d.Priority = 7 })
	for _, c := range []struct {
		name  string
		moves bool
		renew func(w *world)
	}{
		{"another priority", false, func(w *world) { w.ok(put("pack", job(), priority, using("signal secret/db"))) }},
		{"a signal for a new version of a secret", false, func(w *world) { w.ok(putObject(KindSecret, "db", "b", "")) }},
		{"the repair of a drift", false, func(w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{
				Repairs: []*commandv1.DriftRepair{{Workload: "pack", Node: "a", IfGeneration: w.generation("pack")}}}}})
		}},
		{"another attempt of a job that runs after all", false, func(w *world) { w.ok(w.retry("pack", 1, 0, false)) }},
		{"another attempt of a job whose state is unknown", false, func(w *world) {
			w.ok(w.says("pack", "Unknown"))
			w.ok(w.retry("pack", 1, 0, false))
		}},
		{"another attempt of a job that has failed", true, func(w *world) {
			w.ok(w.ended("pack", 1))
			w.ok(w.retry("pack", 1, 0, false))
		}},
		{"another specification", true, func(w *world) {
			w.ok(put("pack", job(), content("c1:another"), using("signal secret/db")))
		}},
		{"another priority after another specification that the node accepted", false, func(w *world) {
			w.ok(put("pack", job(), content("c1:another"), using("signal secret/db")))
			w.run("pack")
			w.ok(put("pack", job(), priority, content("c1:another"), using("signal secret/db")))
		}},
		{"another priority before the node has accepted the first order", true, func(w *world) {
			w.ok(drain("a", false))
			w.ok(w.evict("pack", CodeTainted, true))
			w.bind("pack", "a")
			w.ok(drainBy("a", 60))
			w.ok(put("pack", job(), priority, using("signal secret/db")))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(register("a"))
			w.running("pack", "a", job(), using("signal secret/db"))
			w.ok(drainBy("a", 60))
			w.wait(second)
			c.renew(w)
			is(t, "acknowledged", w.workload("pack").Acknowledged, false)
			res := w.do(w.evict("pack", CodeDraining, false))
			is(t, "moves", w.workload("pack").Node == "", c.moves)
			if !c.moves {
				skipped(t, res, "may end there until")
			}
		})
	}
}

// TestADrainKeepsAJobThatIsFoundAfterARestore: after a restore, a draining node reports a job that the restored state
// has on no node.
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
	is(t, "node", p.Node, "a")
	is(t, "acknowledged", p.Acknowledged, false)
	skipped(t, w.do(w.evict("pack", CodeDraining, false)), "may end there until")
}
