package fsm

import (
	"strings"
	"testing"

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
