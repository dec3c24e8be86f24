package sched

import (
	"testing"

	"github.com/persys/compute/agent/workload"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Schedulers and agents are upgraded separately, so each has its own table that gives every failure class a
// cause. This test checks that the two tables agree.
func TestCausesAgreeWithThoseOfAgents(t *testing.T) {
	for _, class := range workload.Classes() {
		_, final := permanent(string(class))
		if final != (class.Cause() == workload.Final) || passing(string(class)) != (class.Cause() == workload.Passing) {
			t.Errorf("failure class %s has the cause %d in the agents' table, but the planner treats the class as permanent: %t, as temporary: %t", class, class.Cause(), final, passing(string(class)))
		}
	}
}

// A workload whose failure has a temporary cause is retried without a limit. A completed workload
// is not started again.
func TestRetriesByCause(t *testing.T) {
	for _, code := range []string{"NETWORK_UNREACHABLE", "PORT_BIND_CONFLICT", "STORAGE_FULL", "NAME_CONFLICT", "RUNTIME_RESOURCE_MISSING"} {
		t.Run(code+": a workload with this failure is retried without a limit", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.fails["web"] = code
			tried := fsm.Generation{}
			for end := w.now + 3600*second; w.now < end; {
				if !w.step() {
					w.now += second
				}
				w.answer()
				if w.get("web").Retry.Terminal {
					t.Fatalf("web has a temporary failure and must be retried, but was given up: %+v", w.get("web").Reason)
				}
				if w.now < end-2*w.tuning.RetryMax {
					tried = w.get("web").Generation
				}
			}
			if got := w.get("web"); got.Generation == tried {
				t.Fatalf("web must be retried within %d s, but was not: %+v", 2*w.tuning.RetryMax/second, got.Retry)
			}
		})
		t.Run(code+": a workload with this failure, which its agent retries by itself, has no time limit", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.settle()
			w.report(&commandv1.WorkloadReport{Workload: "web", Node: "a", State: "Pending", Code: code, Message: "not yet"})
			generation := w.get("web").Generation
			for end := w.now + 3600*second; w.now < end; w.now += 10 * second {
				w.step()
			}
			if got := w.get("web"); got.Generation != generation || got.Retry.Attempts != 0 || got.Reason.Code != code {
				t.Fatalf("the retry is %+v, the reason %+v, want the same order, no failed attempts and the reason that the agent reports", got.Retry, got.Reason)
			}
		})
	}
	for _, desired := range []string{"Running", "Stopped"} {
		t.Run("desired state "+desired+": a workload has no deadline while its agent works on the order", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: desired}}})
			works := func(code, message string) {
				w.report(&commandv1.WorkloadReport{Workload: "web", Node: "a", State: "Pending", Code: code, Message: message})
			}
			works(fsm.CodeWorking, "pulling app: 1 of 9 GB")
			generation := w.get("web").Generation
			pass := func(d int64) {
				for end := w.now + d; w.now < end; w.now += 10 * second {
					w.step()
				}
			}
			pass(3600 * second)
			if got := w.get("web"); got.Generation != generation || got.Retry.Attempts != 0 || got.Reason.Code != fsm.CodeWorking || got.Reason.Message != "pulling app: 1 of 9 GB" {
				t.Fatalf("while the agent works on the order, the retry is %+v and the reason %+v; want no failed attempts and the reason that the agent reports", got.Retry, got.Reason)
			}
			// The agent no longer reports that it works on the order. The deadline of the order begins now.
			works("", "restarting")
			pass(w.tuning.ApplyTimeout - 10*second)
			if got := w.get("web"); got.Retry.Attempts != 0 {
				t.Fatalf("before the deadline no attempt may count as failed, but the retry is %+v and the reason %+v", got.Retry, got.Reason)
			}
			pass(20 * second)
			if got := w.get("web"); got.Retry.Attempts != 1 {
				t.Fatalf("after the deadline one attempt must count as failed, but the retry is %+v and the reason %+v", got.Retry, got.Reason)
			}
		})
	}
	for what, end := range map[string]*commandv1.WorkloadReport{
		"a workload that has completed is not started again":                  {State: "Stopped", Code: fsm.CodeCompleted, Message: "exited with code 0"},
		"a service that failed, and is never restarted, is not started again": {State: "Failed", Code: "RUNTIME_ERROR", Terminal: true, Exit: &commandv1.Exit{Code: 1}},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.node("b")
			w.apply("job")
			w.settle()
			home := w.get("job").Node
			end.Workload, end.Node = "job", home
			w.report(end)
			w.settle()
			before := w.get("job")
			w.do(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: home, On: true}}})
			w.heard[home] = false
			w.settle()
			for end := w.now + 600*second; w.now < end; w.now += 10 * second {
				w.step()
			}
			if got := w.get("job"); got.Generation != before.Generation || got.Node != home || got.Retry.Attempts != before.Retry.Attempts {
				t.Fatalf("the workload is on node %q with retry %+v and reason %+v, want it on its node without a further attempt to start", got.Node, got.Retry, got.Reason)
			}
		})
	}
}
