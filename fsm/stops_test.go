package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/order"
)

func TestRefusedStopLeavesTheWorkloadRunning(t *testing.T) {
	refusal := func(w *world) Command {
		return report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), Refused: true, Code: "RUNTIME_ERROR", Message: "busy",
		})
	}
	t.Run("a workload whose node refuses to stop it is Running", func(t *testing.T) {
		w := formed(t, "a")
		w.place("web", "a", hostPort(80))
		w.run("web")
		w.ok(put("web", hostPort(443), func(p *commandv1.WorkloadPut) { p.Desired = "Stopped" }))
		w.ok(refusal(w))
		x := w.workload("web")
		is(t, `reported state of workload "web"`, x.Actual.State, ActualRunning)
		is(t, `status of workload "web"`, x.Status, StatusRunning)
		is(t, `reason code of workload "web"`, x.Reason.Code+" "+x.Reason.Message, "RUNTIME_ERROR node a has not stopped it: busy")
		is(t, `number of former ports of workload "web"`, len(x.FormerPorts), 1)
		w.ok(w.says("web", "Stopped"))
		is(t, `number of former ports of workload "web" after the stop`, len(w.workload("web").FormerPorts), 0)
	})
	t.Run("a refused stop of a workload that never ran gives the state Unknown", func(t *testing.T) {
		w := formed(t, "a")
		w.place("web", "a")
		w.ok(setDesired("web", "Stopped"))
		w.ok(refusal(w))
		is(t, `reported state of workload "web"`, w.workload("web").Actual.State, ActualUnknown)
	})
	t.Run("starting a failed workload orders it again, and starting a running one is AlreadyDone", func(t *testing.T) {
		w := formed(t, "a")
		w.place("web", "a")
		w.run("web")
		is(t, "verdict on a start while the workload runs", w.do(setDesired("web", "Running")).Kind, AlreadyDone)
		w.ok(w.says("web", "Failed"))
		w.ok(w.retry("web", 5, 0, true))
		g := w.generation("web")
		is(t, `status of workload "web" after it was given up`, w.workload("web").Status, StatusFailed)
		is(t, "verdict on a start after the workload was given up", w.do(setDesired("web", "Running")).Kind, OK)
		x := w.workload("web")
		is(t, `Retry of workload "web"`, x.Retry, Retry{MaxAttempts: DefaultMaxAttempts})
		is(t, `workload "web" has a newer order that is not acknowledged`, order.GenerationOf(g).Less(x.Generation) && !x.Acknowledged, true)
	})
}
