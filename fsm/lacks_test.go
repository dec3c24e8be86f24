package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// TestNodeWithoutRuntimeIsNoCandidate: a node that refused an order because it lacks the runtime for the workload type
// gets no workloads of that type until it registers again.
func TestNodeWithoutRuntimeIsNoCandidate(t *testing.T) {
	refusal := func(w *world, code string) Command {
		return report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), Refused: true, Code: code, Message: "Runtime not available: container",
		})
	}
	for _, f := range []fact{
		{"the node is not a candidate for the type", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, CodeRuntimeNotOffered))
			is(t, `workload types that node "a" lacks`, fmt.Sprint(w.node("a").Lacks), "[container]")
			is(t, `node "a" runs type container`, w.node("a").Runs("container"), false)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
			w.ok(put("other"))
			skipped(t, w.do(w.assign("other", "a")), "a", "container")
		}},
		{"a registration with the same facts makes the node a candidate again", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, CodeRuntimeNotOffered))
			is(t, "a registration with the same facts changes nothing", w.node("a").SameFacts(register("a").GetRegisterNode()), false)
			w.ok(register("a"))
			is(t, `node "a" runs type container`, w.node("a").Runs("container"), true)
		}},
		{"a refusal with another code does not affect the runtime", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, "INVALID_SPECIFICATION"))
			is(t, `node "a" runs type container`, w.node("a").Runs("container"), true)
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}
