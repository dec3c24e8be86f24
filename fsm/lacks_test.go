package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A node that refuses a type because its runtime is not there is asked no more
// until it registers anew.
func TestANodeThatLacksARuntime(t *testing.T) {
	refusal := func(w *world, code string) Command {
		return report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), Refused: true, Code: code, Message: "Runtime not available: container",
		})
	}
	for _, f := range []fact{
		{"is no candidate for the type", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, CodeRuntimeNotOffered))
			is(t, "lacks", fmt.Sprint(w.node("a").Lacks), "[container]")
			is(t, "runs", w.node("a").Runs("container"), false)
			is(t, "status", w.workload("web").Status, StatusFailed)
			w.ok(put("other"))
			skipped(t, w.do(w.assign("other", "a")), "a", "container")
		}},
		{"is one again when it registers, with the same facts even", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, CodeRuntimeNotOffered))
			is(t, "nothing to say", w.node("a").SameFacts(register("a").GetRegisterNode()), false)
			w.ok(register("a"))
			is(t, "runs", w.node("a").Runs("container"), true)
		}},
		{"another refusal says nothing of the runtime", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(refusal(w, "INVALID_SPECIFICATION"))
			is(t, "runs", w.node("a").Runs("container"), true)
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}
