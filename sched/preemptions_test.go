package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"pgregory.net/rapid"
)

func pendingOf(w *world) (out []*fsm.Workload) {
	w.state.Pending(func(x *fsm.Workload) bool {
		out = append(out, x)
		return true
	})
	return out
}

func prioritized(priority int32, cpu int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Priority, d.CpuMillicores, d.MemoryMib = priority, cpu, 0 })
}

// TestLimitsOfPreemption: the cool-down and the budget delay preemptions, and the reason of the waiting
// workload says so. In each case, low runs on node a, which has 4000 millicores.
func TestLimitsOfPreemption(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a workload that was preempted is not preempted again before the cool-down is over", func(t *testing.T, w *world) {
			w.apply("high", prioritized(5, 3000))
			w.settle()
			first := w.get("low").PreemptedAt
			if first == 0 {
				t.Fatal("low must be preempted")
			}
			w.cordon("a", true)
			w.node("b")
			w.settle()
			w.on(t, "low", "b")
			w.apply("higher", prioritized(6, 3000))
			w.now = first + w.tuning.PreemptionCooldown - second
			for range 5 {
				w.step()
				w.answer()
			}
			w.on(t, "low", "b")
			w.now = first + w.tuning.PreemptionCooldown
			w.settle()
			w.on(t, "higher", "b")
		}},
		{"the reason names the workload, the limits and the time", func(t *testing.T, w *world) {
			w.apply("high", prioritized(5, 3000))
			w.settle()
			w.node("b")
			w.cordon("a", true)
			w.settle()
			w.apply("higher", prioritized(6, 3000))
			w.step()
			const want = "it may not take the place of low on node b yet: within 5 min at most 100 workloads are preempted, and none twice; next attempt at "
			if got := w.get("higher").Reason.Message; !strings.Contains(got, want+"20") {
				t.Errorf("the reason of workload higher is %q, want one that contains %q", got, want)
			}
			if got := Explain(w.state, w.get("higher"), w.tuning).Message; !strings.Contains(got, want) {
				t.Errorf("why says %q, want %q", got, want)
			}
		}},
		{"the budget limits the preemptions within the cool-down", func(t *testing.T, w *world) {
			w.tuning.PreemptionBudget = 1
			w.node("b")
			w.apply("low2", prioritized(0, 3000))
			w.settle()
			begun := w.now
			w.apply("high", prioritized(5, 3000))
			w.apply("high2", prioritized(5, 3000))
			for range 8 {
				w.step()
				w.answer()
			}
			if low, low2 := w.get("low").Node, w.get("low2").Node; (low == "") == (low2 == "") {
				t.Fatalf("workload low is on node %q and low2 on node %q, want exactly one of them preempted", low, low2)
			}
			w.now = begun + w.tuning.PreemptionCooldown - second
			w.step()
			if low, low2 := w.get("low").Node, w.get("low2").Node; (low == "") == (low2 == "") {
				t.Fatalf("workload low is on node %q and low2 on node %q, want exactly one of them preempted", low, low2)
			}
			w.now += 20 * second
			w.settle()
			if w.get("high").Node == "" || w.get("high2").Node == "" {
				t.Errorf("workload high is on node %q and high2 on node %q, want both placed", w.get("high").Node, w.get("high2").Node)
			}
		}},
		{"a set that is larger than the budget is never evicted", func(t *testing.T, w *world) {
			w.tuning.PreemptionBudget = 1
			w.apply("low", prioritized(0, 2000))
			w.apply("low2", prioritized(0, 2000))
			w.settle()
			w.apply("high", prioritized(5, 4000))
			w.settle()
			w.on(t, "low", "a")
			w.on(t, "low2", "a")
			if got := w.get("high").Reason.Message; !strings.Contains(got, "2 would have to leave: SCHEDULER_PREEMPTION_BUDGET") {
				t.Errorf("the reason of workload high is %q, want one that names SCHEDULER_PREEMPTION_BUDGET", got)
			}
		}},
		{"a plan keeps to the budget", func(t *testing.T, w *world) {
			w.tuning.PreemptionBudget = 1
			w.node("b")
			w.apply("low2", prioritized(0, 3000))
			w.settle()
			var named int
			w.apply("high", prioritized(5, 3000))
			w.apply("high2", prioritized(5, 3000))
			for _, m := range PlanPlace(w.state, pendingOf(w), w.tuning) {
				named += len(m.Preempts)
			}
			if named != 1 {
				t.Errorf("the plan names %d workloads to preempt, want 1, the budget", named)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("low", prioritized(0, 3000))
			w.settle()
			c.run(t, w)
			if err := w.state.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPreemptionEnds: with random priorities and nodes that come and go, the planner in the end proposes nothing
// more, no workload is preempted twice within the cool-down, and the preemptions within any cool-down stay within
// the budget.
func TestPreemptionEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.tuning.PreemptionBudget = rapid.IntRange(1, 4).Draw(r, "budget")
		made := map[string]int64{}
		var times []int64
		count := func() {
			w.state.Preempted(0, func(x *fsm.Workload) bool {
				last, at := made[x.ID], x.PreemptedAt
				switch {
				case at == last:
					return true
				case last != 0 && at < last+w.tuning.PreemptionCooldown:
					r.Fatalf("workload %s must not be preempted twice within the cool-down, but was within %d s", x.ID, (at-last)/second)
				}
				made[x.ID] = at
				times = append(times, at)
				return true
			})
			within := 0
			for _, at := range times {
				if at > w.now-w.tuning.PreemptionCooldown {
					within++
				}
			}
			if within > w.tuning.PreemptionBudget {
				r.Fatalf("%d workloads were preempted within the cool-down, want at most the budget of %d", within, w.tuning.PreemptionBudget)
			}
		}
		for range rapid.IntRange(4, 16).Draw(r, "changes") {
			node := fmt.Sprintf("n%d", rapid.IntRange(1, 3).Draw(r, "node"))
			switch rapid.IntRange(0, 4).Draw(r, "change") {
			case 0:
				w.node(node)
			case 1:
				on := rapid.Bool().Draw(r, "cordon")
				w.try(&commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: node, On: on}}})
			default:
				id := fmt.Sprintf("w%d", rapid.IntRange(1, 8).Draw(r, "workload"))
				w.apply(id, prioritized(rapid.Int32Range(0, 4).Draw(r, "priority"), rapid.Int64Range(1, 4).Draw(r, "cpu")*1000))
			}
			for range 40 {
				if !w.step() {
					break
				}
				count()
				w.answer()
			}
			w.now += rapid.Int64Range(0, 200).Draw(r, "time") * second
		}
		w.settle()
		count()
	})
}
