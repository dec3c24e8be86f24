package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func TestAssignWorkloads(t *testing.T) {
	prove(t, []fact{
		{"Assign binds the workload with a new generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			before := w.workload("web").Generation
			res := w.ok(w.assign("web", "a"))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusScheduled)
			is(t, `node of workload "web"`, wl.Node, "a")
			is(t, "the workload has a newer generation than before", before.Less(wl.Generation), true)
			is(t, "generation in item 0 of the result", res.Items[0].Generation, wl.Generation)
			is(t, `AssignedAt of workload "web"`, wl.AssignedAt, w.now)
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 1000)
			is(t, "number of workloads that wait for a placement", w.s.PendingCount(), 0)
			is(t, "node of the event WorkloadScheduled", w.eventOf(EventWorkloadScheduled).Node, "a")
		}},
		{"Assign after an eviction makes a Rescheduled event", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.evict("web", CodeDraining, false))
			w.bind("web", "b")
			is(t, "detail of the event Rescheduled", w.eventOf(EventRescheduled).Details[0], Label{"previous_node", "a"})
		}},
		{"Assign skips an item for another generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			c := w.assign("web", "a")
			w.ok(put("web", content("c1:ffff")))
			skipped(t, w.do(c), "web", "generation")
		}},
		{"Assign skips an unknown workload", func(t *testing.T, w *world) {
			skipped(t, w.do(assign(&commandv1.Assignment{Workload: "web", Node: "a"})), "web")
		}},
		{"Assign skips an unknown node", func(t *testing.T, w *world) {
			w.ok(put("web"))
			skipped(t, w.do(w.assign("web", "z")), "z")
		}},
		{"Assign skips a workload that is placed already", func(t *testing.T, w *world) {
			w.place("web", "a")
			skipped(t, w.do(w.assign("web", "b")), "web", "a")
		}},
		{"Assign skips a workload with desired state Stopped", func(t *testing.T, w *world) {
			w.ok(put("web", desired("Stopped")))
			skipped(t, w.do(w.assign("web", "a")), "Stopped")
		}},
		{"Assign skips a cordoned node", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(cordon("a", true))
			skipped(t, w.do(w.assign("web", "a")), "not schedulable")
		}},
		{"Assign skips a lost node", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(nodeState("a", false))
			skipped(t, w.do(w.assign("web", "a")), "not schedulable")
		}},
		{"Assign skips a node that does not run the workload type", func(t *testing.T, w *world) {
			w.ok(put("vm", demand(func(d *commandv1.Demand) { d.Type = "vm" })))
			skipped(t, w.do(w.assign("vm", "a")), "type vm")
		}},
		{"Assign skips a node with too little free CPU", func(t *testing.T, w *world) {
			w.place("big", "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3500 }))
			w.ok(put("web"))
			skipped(t, w.do(w.assign("web", "a")), "1000 millicores")
		}},
		{"Assign skips a node with too little free memory", func(t *testing.T, w *world) {
			w.place("big", "a", demand(func(d *commandv1.Demand) { d.MemoryMib = 4000 }))
			w.ok(put("web"))
			skipped(t, w.do(w.assign("web", "a")), "512 MiB")
		}},
		{"Assign skips a node with too little free disk", func(t *testing.T, w *world) {
			w.place("big", "a", demand(func(d *commandv1.Demand) { d.DiskGb = 80 }))
			w.ok(put("db", demand(func(d *commandv1.Demand) { d.DiskGb = 30; d.StoragePool = "main" })))
			skipped(t, w.do(w.assign("db", "a")), "30 GB", "main")
		}},
		{"Assign skips a node without the storage pool", func(t *testing.T, w *world) {
			w.ok(put("db", demand(func(d *commandv1.Demand) { d.DiskGb = 1; d.StoragePool = "fast" })))
			skipped(t, w.do(w.assign("db", "a")), "fast")
		}},
		{"Assign fills a node to the last millicore", func(t *testing.T, w *world) {
			for _, id := range []string{"w1", "w2", "w3", "w4"} {
				w.place(id, "a")
			}
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 4000)
			is(t, `Workloads reserved on node "a"`, w.s.Alloc("a").Workloads, 4)
		}},
		{"a workload with a demand of zero fits on a full node", func(t *testing.T, w *world) {
			w.place("big", "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 4000 }))
			w.place("tiny", "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 0 }))
		}},
		{"Assign counts the residuals of the node", func(t *testing.T, w *world) {
			w.place("big", "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3500 }))
			w.ok(w.evict("big", CodeDraining, false))
			w.ok(put("web"))
			skipped(t, w.do(w.assign("web", "a")), "millicores")
		}},
		{"two items of one command do not use the same capacity", func(t *testing.T, w *world) {
			big := demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 })
			w.ok(put("x", big))
			w.ok(put("y", big))
			x, y := w.assign("x", "a").GetAssign().Assignments[0], w.assign("y", "a").GetAssign().Assignments[0]
			res := w.do(assign(x, y))
			is(t, "number of skipped items of the command", res.Skipped, 1)
			is(t, "workload in item 0 of the result", res.Items[0].ID, "x")
		}},
		{"a workload can use the capacity of its own residual", func(t *testing.T, w *world) {
			w.place("big", "a", hostPort(80), demand(func(d *commandv1.Demand) { d.CpuMillicores = 3500; d.DiskGb = 90 }))
			w.ok(w.evict("big", CodeDraining, false))
			w.bind("big", "a")
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 3500)
		}},
		{"Assign skips a node where another workload holds the host port", func(t *testing.T, w *world) {
			w.place("one", "a", hostPort(80))
			w.ok(put("two", hostPort(80)))
			skipped(t, w.do(w.assign("two", "a")), "80/tcp", "one")
			w.bind("two", "b")
		}},
		{"Assign skips a node whose engine holds the host port for a workload on another node", func(t *testing.T, w *world) {
			w.ok(register("c", engine("e")))
			w.ok(register("d", engine("e")))
			w.place("one", "c", hostPort(80))
			w.ok(put("two", hostPort(80)))
			skipped(t, w.do(w.assign("two", "d")), "80/tcp", "one", "c")
		}},
		{"Assign skips a node on whose engine the workload itself still holds the port elsewhere", func(t *testing.T, w *world) {
			w.ok(register("c", engine("e")))
			w.ok(register("d", engine("e")))
			w.place("one", "c", hostPort(80))
			w.ok(w.evict("one", CodeDraining, false))
			skipped(t, w.do(w.assign("one", "d")), "80/tcp", "one", "c")
		}},
		{"Assign skips a node where a residual holds the host port", func(t *testing.T, w *world) {
			w.place("one", "a", hostPort(80))
			w.ok(remove("one", true))
			w.ok(put("two", hostPort(80)))
			skipped(t, w.do(w.assign("two", "a")), "80/tcp", "one")
			w.ok(gone("one", "a", nil))
			w.bind("two", "a")
		}},
		{"an update that demands a held port does not become its holder", func(t *testing.T, w *world) {
			w.place("late", "a")
			w.place("holder", "a", hostPort(80))
			w.ok(put("late", hostPort(80)))
			id, _ := w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp"})
			is(t, `workload that holds port 80 after the update of "late"`, id, "holder")
			w.ok(w.evict("holder", CodeDraining, true))
			id, _ = w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp"})
			is(t, `workload that holds port 80 after "holder" has left the node`, id, "late")
		}},
		{"an exclusive workload waits for all of its residuals", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(w.evict("db", CodeDraining, false))
			skipped(t, w.do(w.assign("db", "b")), "db", "exclusive")
			skipped(t, w.do(w.assign("db", "a")), "db", "exclusive")
			w.ok(gone("db", "a", nil))
			w.bind("db", "b")
		}},
	})
}

func TestEvictWorkloads(t *testing.T) {
	prove(t, []fact{
		{"Evict unbinds the workload and leaves a residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			before := w.workload("web").Generation
			w.ok(w.evict("web", CodeDraining, false))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusPending)
			is(t, `previous node of workload "web"`, wl.PreviousNode, "a")
			is(t, `reason code of workload "web"`, wl.Reason.Code, CodeDraining)
			is(t, "the workload has a newer generation than before", before.Less(wl.Generation), true)
			r, _ := w.s.Residual("a", "web")
			is(t, "generation of the residual", r.Generation, wl.Generation)
			is(t, "node of the event WorkloadEvicted", w.eventOf(EventWorkloadEvicted).Node, "a")
		}},
		{"an eviction from a lost node clears the failures", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.retry("web", 4, w.now+minute, false))
			w.ok(w.evict("web", CodeNodeLost, false))
			is(t, `Retry of workload "web"`, w.workload("web").Retry, Retry{MaxAttempts: DefaultMaxAttempts})
			is(t, "time of the next retry in the state", w.s.NextRetry(), 0)
		}},
		{"an eviction with gone leaves no residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.evict("web", CodeMissing, true))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
		}},
		{"an exclusive workload is not evicted as gone while its node may run it", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			skipped(t, w.do(w.evict("db", CodeNodeLost, true)), "db", "fenced")
			w.ok(nodeState("a", false))
			skipped(t, w.do(w.evict("db", CodeNodeLost, true)), "db", "fenced")
		}},
		{"an exclusive workload that its node reports missing may still run there", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(w.says("db", "Missing"))
			skipped(t, w.do(w.evict("db", CodeMissing, true)), "db", "fenced")
			w.ok(w.evict("db", CodeDraining, false))
			skipped(t, w.do(w.assign("db", "b")), "db", "may still run elsewhere")
			w.do(report(&commandv1.WorkloadReport{Workload: "db", Node: "a", Generation: w.generation("db"), State: "Missing"}))
			skipped(t, w.do(w.assign("db", "b")), "db", "may still run elsewhere")
			w.ok(gone("db", "a", w.generation("db")))
			w.bind("db", "b")
		}},
		{"a stopped workload is unplaced and stays stopped", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(setDesired("web", "Stopped"))
			w.ok(w.evict("web", CodeDraining, false))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusStopped)
		}},
		{"Evict skips an item for another generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			c := w.evict("web", CodeDraining, false)
			w.ok(put("web", content("c1:ffff")))
			skipped(t, w.do(c), "generation")
		}},
		{"Evict skips an unplaced workload", func(t *testing.T, w *world) {
			w.ok(put("web"))
			skipped(t, w.do(w.evict("web", CodeDraining, false)), "no node")
		}},
	})
}

func TestScheduleRetries(t *testing.T) {
	prove(t, []fact{
		{"a retry at a later time puts the workload into RetryPending", func(t *testing.T, w *world) {
			w.place("web", "a")
			at := w.now + minute
			w.ok(w.retry("web", 2, at, false))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusRetryPending)
			is(t, `number of counted failures of workload "web"`, wl.Retry.Attempts, 2)
			is(t, `reason code of workload "web"`, wl.Reason.Code, CodeBackoff)
			is(t, "time of the next retry in the state", w.s.NextRetry(), at)
			due := 0
			w.s.RetryDue(at-1, func(*Workload) bool { due++; return true })
			is(t, "number of retries that are due 1 ns before that time", due, 0)
			w.s.RetryDue(at, func(*Workload) bool { due++; return true })
			is(t, "number of retries that are due at that time", due, 1)
		}},
		{"a retry that is due now gets a new generation of the same revision", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.says("web", "Failed"))
			before := *w.workload("web")
			w.ok(w.retry("web", 3, 0, false))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusScheduled)
			is(t, "the workload has a newer generation than before", before.Generation.Less(wl.Generation), true)
			is(t, `revision of workload "web"`, wl.Revision(), before.Revision())
			is(t, "detail of the event RetryTriggered", w.eventOf(EventRetryTriggered).Details[0], Label{"attempts", "3"})
		}},
		{"the last retry is terminal", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.retry("web", 5, 0, true))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
			is(t, `workload "web" is given up`, w.workload("web").Retry.Terminal, true)
			is(t, "detail of the event WorkloadFailed", w.eventOf(EventWorkloadFailed).Details[0], Label{"attempts", "5"})
		}},
		{"a workload that runs after its last retry is Running, and its verdict stays until the failures are cleared", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.retry("web", 5, 0, true))
			w.run("web")
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			is(t, `workload "web" is given up`, w.workload("web").Retry.Terminal, true)
		}},
		{"ScheduleRetries skips an item for another generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			c := w.retry("web", 1, 0, false)
			w.ok(w.retry("web", 1, 0, false))
			skipped(t, w.do(c), "generation")
		}},
		{"ScheduleRetries skips an unplaced workload", func(t *testing.T, w *world) {
			w.ok(put("web"))
			skipped(t, w.do(w.retry("web", 1, 0, false)), "no node")
		}},
	})
}

func TestExplainUnplaced(t *testing.T) {
	prove(t, []fact{
		{"ExplainUnplaced stores code and message", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(explain("web", CodeUnplaced, "2 nodes lack memory", w.generation("web")))
			is(t, `message of the reason of workload "web"`, w.workload("web").Reason.Message, "2 nodes lack memory")
			is(t, "message of the event WorkloadUnplaced", w.eventOf(EventWorkloadUnplaced).Message, "2 nodes lack memory")
		}},
		{"an explanation that is already stored changes nothing", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(explain("web", CodeUnplaced, "none", w.generation("web")))
			w.ok(explain("web", CodeUnplaced, "none", w.generation("web")))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"ExplainUnplaced skips an item for another generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			skipped(t, w.do(explain("web", CodeUnplaced, "none", nil)), "generation")
		}},
		{"a delivery failure of an accepted generation is skipped", func(t *testing.T, w *world) {
			w.place("web", "a")
			told := explain("web", CodeDispatchFailed, "the order could not be delivered", w.generation("web"))
			w.ok(told)
			is(t, `reason code of workload "web" before its order is accepted`, w.workload("web").Reason.Code, CodeDispatchFailed)
			w.ok(w.says("web", "Failed"))
			w.ok(w.retry("web", 1, 0, true))
			why := w.workload("web").Reason
			skipped(t, w.do(told), "accepted the order")
			is(t, `reason of workload "web" after it was given up`, w.workload("web").Reason, why)
		}},
		{"an explanation keeps the generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			g := w.workload("web").Generation
			w.ok(explain("web", CodeUnplaced, "none", w.generation("web")))
			is(t, `generation of workload "web"`, w.workload("web").Generation, g)
		}},
	})
}

func TestReportsOfNodes(t *testing.T) {
	of := func(w *world, id string, fn func(*commandv1.WorkloadReport)) Command {
		r := &commandv1.WorkloadReport{Workload: id, Node: w.workload(id).Node, Generation: w.generation(id)}
		fn(r)
		return report(r)
	}
	prove(t, []fact{
		{"an acknowledgement without a state makes the workload Pending", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.Acknowledged = true }))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
		}},
		{"a reported state of the present generation acknowledges the generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
			n := 0
			w.s.Unacknowledged(func(*Workload) bool { n++; return true })
			is(t, "number of workloads whose order is not acknowledged", n, 0)
		}},
		{"an acknowledged update is Updating until the new generation runs", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(put("web", content("c1:ffff")))
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.Acknowledged = true }))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUpdating)
			w.run("web")
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
		}},
		{"addresses and ports are kept", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) {
				r.State, r.Addresses = "Running", []string{"10.0.0.7"}
				r.Ports = []*commandv1.PortBinding{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
			}))
			is(t, `reported address of workload "web"`, w.workload("web").Actual.Addresses[0], "10.0.0.7")
			is(t, `reported port of workload "web"`, w.workload("web").Actual.Ports[0], PortBinding{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"})
		}},
		{"the same report at another time changes nothing", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.run("web")
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"a report of a former generation is skipped", func(t *testing.T, w *world) {
			w.place("web", "a")
			c := w.says("web", "Running")
			w.ok(put("web", content("c1:ffff")))
			is(t, "number of skipped items of the command", w.do(c).Skipped, 1)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusScheduled)
		}},
		{"a report of another node is skipped", func(t *testing.T, w *world) {
			w.place("web", "a")
			is(t, "number of skipped items of the command", w.do(of(w, "web", func(r *commandv1.WorkloadReport) { r.Node, r.State = "b", "Running" })).Skipped, 1)
		}},
		{"a report of an unknown workload is skipped", func(t *testing.T, w *world) {
			is(t, "number of skipped items of the command", w.do(report(&commandv1.WorkloadReport{Workload: "web", Node: "a", State: "Running"})).Skipped, 1)
		}},
		{"a report of an unknown state is skipped", func(t *testing.T, w *world) {
			w.place("web", "a")
			is(t, "number of skipped items of the command", w.do(w.says("web", "Dancing")).Skipped, 1)
		}},
		{"reports of a legacy v1 agent, which sends no generations, count after the agent accepted the order", func(t *testing.T, w *world) {
			w.place("web", "a")
			running := func(r *commandv1.WorkloadReport) { r.Generation, r.State = nil, "Running" }
			is(t, "number of skipped reports before the agent has accepted the order", w.do(of(w, "web", running)).Skipped, 1)
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.Generation, r.Acknowledged = nil, true }))
			w.ok(of(w, "web", running))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
		}},
		{"a failure has the agent's code", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) {
				r.State, r.Code, r.Message, r.Retryable = "Failed", "RUNTIME_ERROR", "exit 1", true
			}))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusFailed)
			is(t, `reason of workload "web"`, wl.Reason, Reason{"RUNTIME_ERROR", "exit 1", w.now, true})
			is(t, `time of the first failure of workload "web"`, wl.Retry.FirstFailureAt, w.now)
			is(t, "detail of the event WorkloadState", w.eventOf(EventWorkloadState).Details[1], Label{"to", "Failed"})
		}},
		{"a second failure keeps the time of the first failure", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.says("web", "Failed"))
			at := w.now
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.State, r.Message = "Failed", "again" }))
			is(t, `time of the first failure of workload "web"`, w.workload("web").Retry.FirstFailureAt, at)
		}},
		{"a repeated failure does not end a backoff", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.says("web", "Failed"))
			w.ok(w.retry("web", 1, w.now+minute, false))
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.State, r.Message = "Failed", "again" }))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRetryPending)
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeBackoff)
		}},
		{"success ends a backoff and keeps the failure count", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.says("web", "Failed"))
			w.ok(w.retry("web", 1, w.now+minute, false))
			w.run("web")
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			is(t, `time of the next attempt of workload "web"`, w.workload("web").Retry.NextAt, 0)
			is(t, `number of counted failures of workload "web"`, w.workload("web").Retry.Attempts, 1)
			is(t, `reason of workload "web"`, w.workload("web").Reason, Reason{})
		}},
		{"a refused order is a failure", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.Refused, r.Message = true, "no such image" }))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusFailed)
			is(t, `reason code of workload "web"`, wl.Reason.Code, CodeApplyRefused)
			is(t, `the order of workload "web" is acknowledged`, wl.Acknowledged, true)
		}},
		{"an assigned workload that is reported gone is Missing and stays bound", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(of(w, "web", func(r *commandv1.WorkloadReport) { r.Gone = true }))
			wl := w.workload("web")
			is(t, `reported state of workload "web"`, wl.Actual.State, ActualMissing)
			is(t, `status of workload "web"`, wl.Status, StatusPending)
			is(t, `reason code of workload "web"`, wl.Reason.Code, CodeMissing)
			is(t, `node of workload "web"`, wl.Node, "a")
		}},
		{"a gone report of an older generation keeps the residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			old := w.generation("web")
			w.ok(w.evict("web", CodeDraining, false))
			is(t, "number of skipped items of the command", w.do(gone("web", "a", old)).Skipped, 1)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"a gone report without a generation clears the residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.evict("web", CodeDraining, false))
			w.ok(gone("web", "a", nil))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
		}},
		{"a late report of a lost node leaves the status Unknown", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(nodeState("a", false))
			w.ok(w.says("web", "Failed"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUnknown)
			w.ok(nodeState("a", true))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
		}},
	})
}

func TestAFencedNodeReturns(t *testing.T) {
	// back builds this history: workload db ran on node a, node a was lost and fenced, db was placed
	// on node b, and node a registered again.
	back := func(w *world, opts ...func(*commandv1.WorkloadPut)) (former *commandv1.Generation) {
		w.place("db", "a", opts...)
		w.run("db")
		former = w.generation("db")
		w.ok(nodeState("a", false))
		w.ok(fence("a"))
		w.ok(w.evict("db", CodeNodeLost, true))
		w.bind("db", "b")
		w.run("db")
		w.ok(register("a"))
		return former
	}
	said := func(g *commandv1.Generation, state string) Command {
		return report(&commandv1.WorkloadReport{Workload: "db", Node: "a", Generation: g, State: state})
	}
	for _, state := range []string{"Pending", "Running", "Stopped", "Failed", "Unknown"} {
		prove(t, []fact{{"an instance reported as " + state + " is a residual until it is gone", func(t *testing.T, w *world) {
			former := back(w, exclusive, hostPort(80))
			w.ok(said(former, state))
			r, ok := w.s.Residual("a", "db")
			is(t, "there is a residual of the workload", ok, true)
			is(t, `generation of the residual of workload "db" on node "a"`, r.Generation, w.workload("db").Generation)
			is(t, `reason of the residual of workload "db" on node "a"`, r.Reason, CodeLeftBehind)
			is(t, `node of workload "db"`, w.workload("db").Node, "b")
			is(t, `reported state of workload "db"`, w.workload("db").Actual.State, ActualRunning)
			w.ok(gone("db", "a", GenerationPB(r.Generation)))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
			is(t, `node of workload "db"`, w.workload("db").Node, "b")
		}}})
	}
	prove(t, []fact{
		{"a second report of the instance changes nothing", func(t *testing.T, w *world) {
			former := back(w)
			w.ok(said(former, "Running"))
			w.do(said(former, "Failed"))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"an unplaced exclusive workload is not placed until its residual is gone", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			former := w.generation("db")
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			w.ok(w.evict("db", CodeNodeLost, true))
			w.ok(register("a"))
			w.ok(said(former, "Running"))
			is(t, "number of skipped items of the command", w.do(w.assign("db", "b")).Skipped, 1)
			w.ok(gone("db", "a", nil))
			w.bind("db", "b")
		}},
		{"an instance on a node that was removed and registered again is a residual", func(t *testing.T, w *world) {
			w.place("db", "a")
			former := w.generation("db")
			w.ok(nodeState("a", false))
			w.ok(removeNode("a", false))
			w.bind("db", "b")
			w.ok(register("a"))
			w.ok(said(former, "Running"))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"a workload that is being deleted waits for its residual", func(t *testing.T, w *world) {
			former := back(w)
			w.ok(remove("db", false))
			w.ok(said(former, "Running"))
			w.ok(gone("db", "b", nil))
			is(t, `status of workload "db"`, w.workload("db").Status, StatusDeleting)
			w.ok(gone("db", "a", nil))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
	})
	for _, c := range []struct {
		name string
		said func(w *world, former *commandv1.Generation) Command
	}{
		{"an instance that is gone", func(_ *world, g *commandv1.Generation) Command { return gone("db", "a", g) }},
		{"the state Missing", func(_ *world, g *commandv1.Generation) Command { return said(g, "Missing") }},
		{"no state", func(_ *world, g *commandv1.Generation) Command { return said(g, "") }},
		{"a running instance without a generation", func(*world, *commandv1.Generation) Command { return said(nil, "Running") }},
		{"a running instance of the present generation", func(w *world, _ *commandv1.Generation) Command { return said(w.generation("db"), "Running") }},
		{"a running instance while the node is down", func(w *world, g *commandv1.Generation) Command {
			w.ok(nodeState("a", false))
			return said(g, "Running")
		}},
	} {
		prove(t, []fact{{"a node to which the workload is not assigned gets no residual after a report of " + c.name, func(t *testing.T, w *world) {
			former := back(w)
			is(t, "number of skipped items of the command", w.do(c.said(w, former)).Skipped, 1)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
		}}})
	}
}
