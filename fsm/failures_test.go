package fsm

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func (w *world) forgive(id string) Command {
	f := &commandv1.Forgiveness{Workload: id}
	if wl, ok := w.s.Workload(id); ok {
		f.IfGeneration = GenerationPB(wl.Generation)
	}
	return &commandv1.Command{Body: &commandv1.Command_ForgiveFailures{ForgiveFailures: &commandv1.ForgiveFailures{
		Workloads: []*commandv1.Forgiveness{f},
	}}}
}

func actions(node, workload string, list ...*commandv1.AgentAction) Command {
	return &commandv1.Command{Body: &commandv1.Command_RecordActions{RecordActions: &commandv1.RecordActions{
		Node: node, Workload: workload, Actions: list,
	}}}
}

func action(task, workload string, ended int64) *commandv1.AgentAction {
	return &commandv1.AgentAction{
		TaskId: task, Workload: workload, ActionType: "apply_workload", Status: "failed", Error: "no such image",
		CreatedAt: 1, StartedAt: 2, EndedAt: ended,
	}
}

// provePlaced runs the given subtests, each on a new state in which workload web is assigned to node a.
func provePlaced(t *testing.T, facts []fact) {
	t.Helper()
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			w.place("web", "a")
			f.run(t, w)
		})
	}
}

func TestFailureCountersOfWorkloads(t *testing.T) {
	fail := func(w *world, attempts int32) {
		w.ok(w.says("web", "Failed"))
		w.ok(w.retry("web", attempts, 0, false))
	}
	provePlaced(t, []fact{
		{"a workload that has run for a while clears its failures", func(t *testing.T, w *world) {
			fail(w, 1)
			first := w.workload("web").Retry.FirstFailureAt
			w.run("web")
			since := w.now
			r := w.workload("web").Retry
			is(t, `number of counted failures of workload "web"`, r.Attempts, 1)
			is(t, `time of the first failure of workload "web"`, r.FirstFailureAt, first)
			is(t, `StableSince of workload "web"`, r.StableSince, since)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			w.ok(w.forgive("web"))
			is(t, `Retry of workload "web"`, w.workload("web").Retry, Retry{MaxAttempts: DefaultMaxAttempts})
			is(t, "detail of the event WorkloadStable", w.eventOf(EventWorkloadStable).Details[0], Label{"attempts", "1"})
		}},
		{"a failure before the stable time ends adds to the count", func(t *testing.T, w *world) {
			fail(w, 1)
			first := w.workload("web").Retry.FirstFailureAt
			w.run("web")
			fail(w, 2)
			r := w.workload("web").Retry
			is(t, `number of counted failures of workload "web"`, r.Attempts, 2)
			is(t, `time of the first failure of workload "web"`, r.FirstFailureAt, first)
			is(t, `StableSince of workload "web"`, r.StableSince, 0)
			skipped(t, w.do(w.forgive("web")), "does not run")
		}},
		{"a restart by the engine restarts the stable time", func(t *testing.T, w *world) {
			fail(w, 1)
			w.run("web")
			again := w.says("web", "Running")
			again.GetReport().Reports[0].RestartCount = 1
			w.ok(again)
			is(t, `StableSince of workload "web"`, w.workload("web").Retry.StableSince, w.now)
		}},
		{"a workload without failures is skipped", func(t *testing.T, w *world) {
			w.run("web")
			is(t, `StableSince of workload "web"`, w.workload("web").Retry.StableSince, 0)
			skipped(t, w.do(w.forgive("web")), "has not failed")
		}},
		{"a stop by the user clears the failures", func(t *testing.T, w *world) {
			fail(w, 1)
			w.run("web")
			w.ok(setDesired("web", "Stopped"))
			is(t, `Retry of workload "web"`, w.workload("web").Retry, Retry{MaxAttempts: DefaultMaxAttempts})
		}},
		{"a backoff ends when the workload runs", func(t *testing.T, w *world) {
			w.ok(w.says("web", "Failed"))
			w.ok(w.retry("web", 1, w.now+minute, false))
			w.run("web")
			is(t, `time of the next attempt of workload "web"`, w.workload("web").Retry.NextAt, 0)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
		}},
		{"an item of another generation is skipped", func(t *testing.T, w *world) {
			fail(w, 1)
			w.run("web")
			c := w.forgive("web")
			c.GetForgiveFailures().Workloads[0].IfGeneration.Sequence--
			skipped(t, w.do(c), "generation")
		}},
	})
}

func TestVerdictAfterExhaustedRetries(t *testing.T) {
	exhaust := func(w *world) {
		w.ok(w.says("web", "Failed"))
		c := w.retry("web", 5, 0, true)
		c.GetScheduleRetries().Retries[0].Code, c.GetScheduleRetries().Retries[0].Message = CodeExhausted, "5 of 5 attempts used"
		w.ok(c)
	}
	exhausted := func(t *testing.T, w *world) {
		t.Helper()
		is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeExhausted)
		is(t, `message of the reason of workload "web"`, w.workload("web").Reason.Message, "5 of 5 attempts used")
	}
	provePlaced(t, []fact{
		{"later reports of the node keep the verdict", func(t *testing.T, w *world) {
			exhaust(w)
			is(t, "reason of the event WorkloadFailed", w.eventOf(EventWorkloadFailed).Reason, CodeExhausted)
			c := w.says("web", "Failed")
			c.GetReport().Reports[0].Message = "exit code 3"
			w.ok(c)
			exhausted(t, w)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
		}},
		{"loss and return of the node keep the verdict", func(t *testing.T, w *world) {
			exhaust(w)
			w.ok(nodeState("a", false))
			is(t, `reason code of workload "web" while its node is lost`, w.workload("web").Reason.Code, CodeNodeLost)
			w.ok(nodeState("a", true))
			exhausted(t, w)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
		}},
		{"a running workload keeps the verdict until its failures are cleared", func(t *testing.T, w *world) {
			exhaust(w)
			w.run("web")
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			exhausted(t, w)
			w.ok(w.forgive("web"))
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, "")
			is(t, `Verdict of workload "web"`, w.workload("web").Retry.Verdict, Verdict{})
		}},
		{"the stable time restarts when the lost node of a running workload returns", func(t *testing.T, w *world) {
			exhaust(w)
			w.run("web")
			w.ok(nodeState("a", false))
			is(t, `StableSince of workload "web"`, w.workload("web").Retry.StableSince, 0)
			w.ok(nodeState("a", true))
			is(t, `StableSince of workload "web" after its node has returned`, w.workload("web").Retry.StableSince, w.now)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
		}},
		{"a new specification clears the verdict", func(t *testing.T, w *world) {
			exhaust(w)
			w.ok(put("web", content("c1:another")))
			is(t, `Verdict of workload "web"`, w.workload("web").Retry.Verdict, Verdict{})
		}},
		{"a retry by hand clears the verdict", func(t *testing.T, w *world) {
			exhaust(w)
			w.ok(userRetry("web"))
			is(t, `Verdict of workload "web"`, w.workload("web").Retry.Verdict, Verdict{})
		}},
	})
}

func TestDeleteTimeoutIsRecorded(t *testing.T) {
	late := func(w *world) Command {
		return explain("web", CodeDeleteTimeout, "node a has not let it go for 60 s", w.generation("web"))
	}
	provePlaced(t, []fact{
		{"the record has the reason, and a repetition changes nothing", func(t *testing.T, w *world) {
			w.ok(remove("web", false))
			w.ok(late(w))
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeDeleteTimeout)
			w.ok(late(w))
			is(t, "number of records that the last command changed", len(w.last), 0)
			w.ok(actions("a", "web", action("t1", "web", 5)))
			is(t, `number of recorded tasks of workload "web"`, len(w.workload("web").Actions), 1)
		}},
		{"a workload that is being deleted gets no other reason", func(t *testing.T, w *world) {
			w.ok(remove("web", false))
			skipped(t, w.do(explain("web", CodeUnplaced, "none", w.generation("web"))), "being deleted")
		}},
		{"another generation is skipped", func(t *testing.T, w *world) {
			c := late(w)
			w.ok(remove("web", false))
			skipped(t, w.do(c), "generation")
		}},
	})
}

func TestAcknowledgedAt(t *testing.T) {
	provePlaced(t, []fact{
		{"AcknowledgedAt is the time at which the node accepted the present generation", func(t *testing.T, w *world) {
			is(t, "AcknowledgedAt before the node has accepted the order", w.workload("web").AcknowledgedAt, 0)
			w.ok(w.says("web", "Pending"))
			at := w.now
			w.run("web")
			is(t, "AcknowledgedAt after the node has accepted the order", w.workload("web").AcknowledgedAt, at)
			w.ok(put("web", content("c1:another")))
			is(t, "AcknowledgedAt after a new order", w.workload("web").AcknowledgedAt, 0)
		}},
	})
}

func TestRecordActions(t *testing.T) {
	tasks := func(w *world) (out string) {
		for _, c := range w.last {
			if c.Table == TableEvent && c.NewEvent().Type == EventAgentAction {
				for _, d := range c.NewEvent().Details {
					if d.Key == "task_id" {
						out += " " + d.Value
					}
				}
			}
		}
		return strings.TrimSpace(out)
	}
	provePlaced(t, []fact{
		{"each ended task makes one event, the oldest first", func(t *testing.T, w *world) {
			w.ok(actions("a", "", action("t3", "web", 0), action("t2", "web", 7), action("t1", "db", 5)))
			is(t, "recorded tasks, newest first", tasks(w), "t1 t2")
			e := w.eventOf(EventAgentAction)
			is(t, "workload of the event", e.Workload, "db")
			is(t, "node of the event AgentAction", e.Node, "a")
			is(t, "status of the task in the event", e.Reason, "failed")
			is(t, "error of the task in the event", e.Message, "no such image")
			is(t, `AuditedUntil of node "a"`, w.s.AuditedUntil("a"), 7)
			w.ok(actions("a", "", action("t3", "web", 9), action("t4", "web", 7), action("t2", "web", 7), action("t1", "db", 5)))
			is(t, "recorded tasks, newest first", tasks(w), "t4 t3")
			w.ok(actions("a", "", action("t3", "web", 9)))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"the record keeps the newest 20 actions and clips long texts", func(t *testing.T, w *world) {
			var list []*commandv1.AgentAction
			for i := range 30 {
				a := action(fmt.Sprint("t", i), "web", int64(100-i))
				a.Error = strings.Repeat("x", 1000)
				list = append(list, a)
			}
			w.ok(actions("a", "web", list...))
			got := w.workload("web").Actions
			is(t, `number of recorded tasks of workload "web"`, len(got), MaxActions)
			is(t, "id of the newest recorded task", got[0].TaskID, "t0")
			is(t, "bytes of the recorded error of the task", len(got[0].Error), maxActionError)
			w.ok(actions("a", "web", list...))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"actions are cleared with the failures", func(t *testing.T, w *world) {
			w.ok(w.retry("web", 1, 0, false))
			w.ok(actions("a", "web", action("t1", "web", 5)))
			w.run("web")
			w.ok(w.forgive("web"))
			is(t, `number of recorded tasks of workload "web"`, len(w.workload("web").Actions), 0)
		}},
		{"actions of a node that does not own the workload are not stored", func(t *testing.T, w *world) {
			skipped(t, w.do(actions("b", "web", action("t1", "web", 5))), "is not on node")
			is(t, `number of recorded tasks of workload "web"`, len(w.workload("web").Actions), 0)
		}},
		{"actions of one workload do not affect other workloads", func(t *testing.T, w *world) {
			w.ok(actions("a", "web", action("t2", "web", 9)))
			is(t, `number of recorded tasks of workload "web"`, len(w.workload("web").Actions), 1)
			w.ok(actions("a", "", action("t2", "web", 9), action("t1", "db", 5)))
			is(t, "recorded tasks, newest first", tasks(w), "t1 t2")
		}},
		{"actions of an unknown node are refused", func(t *testing.T, w *world) {
			refused(t, w.do(actions("none", "", action("t1", "web", 5))), NotFound, "none")
		}},
		{"actions are cleared when the node is removed", func(t *testing.T, w *world) {
			w.ok(actions("a", "", action("t1", "web", 5)))
			w.ok(removeNode("a", true))
			is(t, `AuditedUntil of node "a"`, w.s.AuditedUntil("a"), 0)
		}},
	})
}
