package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func drifted(node, workload, kind string) *commandv1.Drift {
	return &commandv1.Drift{Node: node, Workload: workload, Type: kind, SchedulerStatus: "Running", AgentStatus: "Stopped", Action: ActionInvestigate}
}

func setDrifts(open []*commandv1.Drift, closed ...*commandv1.Drift) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{Open: open, Closed: closed}}}
}

func adopt(node, workload string, opts ...func(*commandv1.WorkloadPut)) Command {
	a := &commandv1.AdoptDrift{Node: node, Workload: workload}
	if len(opts) > 0 {
		a.Put = put(workload, opts...).GetPutWorkloads().Workloads[0]
	}
	return &commandv1.Command{Body: &commandv1.Command_AdoptDrift{AdoptDrift: a}}
}

func dropOrphan(node, workload string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: node, Workload: workload}}}
}

func TestSetDrifts(t *testing.T) {
	provePlaced(t, []fact{
		{"a drift makes one event when it is detected and one when it is resolved", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "ghost", DriftOrphan)}))
			begun := w.now
			e := w.eventOf(EventDriftDetected)
			is(t, "reason of the event DriftDetected", e.Reason, DriftOrphan)
			is(t, "resolved in the event DriftDetected", e.Details[3], Label{"resolved", "false"})
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "ghost", DriftOrphan)}))
			is(t, "number of records that the last command changed", len(w.last), 0)
			changed := drifted("a", "ghost", DriftOrphan)
			changed.AgentStatus = "Failed"
			w.ok(setDrifts([]*commandv1.Drift{changed}))
			is(t, "number of events of the last command", len(w.events()), 0)
			is(t, "number of records that the last command changed", len(w.last), 1)
			is(t, "status of the agent in the drift before and after the command", w.last[0].OldDrift().AgentStatus+", "+w.last[0].NewDrift().AgentStatus, "Stopped, Failed")
			d, _ := w.s.Drift("a", "ghost", DriftOrphan)
			is(t, "status of the agent in the drift", d.AgentStatus, "Failed")
			is(t, "time at which the drift was detected", d.DetectedAt, begun)
			w.ok(setDrifts(nil, drifted("a", "ghost", DriftOrphan)))
			is(t, "resolved in the event DriftResolved", w.eventOf(EventDriftResolved).Details[3], Label{"resolved", "true"})
			if m := w.eventOf(EventDriftResolved).Message; !strings.HasPrefix(m, "node a no longer has an orphan of this name, after ") || !strings.HasSuffix(m, " s") {
				t.Errorf("the event about the closed drift is %q, want it to say that node a no longer has an orphan of this name", m)
			}
			is(t, "number of open drifts", w.s.DriftCount(), 0)
			w.ok(setDrifts(nil, drifted("a", "ghost", DriftOrphan)))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"the repair of a drift gives the workload a new generation of the same revision", func(t *testing.T, w *world) {
			w.run("web")
			before := *w.workload("web")
			c := setDrifts([]*commandv1.Drift{drifted("a", "web", DriftRevision)})
			c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: "web", Node: "a", IfGeneration: w.generation("web")}}
			w.ok(c)
			now := w.workload("web")
			is(t, "the workload has a newer generation than before", before.Generation.Less(now.Generation), true)
			is(t, `revision of workload "web"`, now.Revision(), before.Revision())
			is(t, `the order of workload "web" is acknowledged`, now.Acknowledged, false)
			skipped(t, w.do(c), "generation")
		}},
		{"a workload whose retries are exhausted is not repaired, and reports of its node still count", func(t *testing.T, w *world) {
			w.ok(w.says("web", "Failed"))
			w.ok(w.retry("web", 5, 0, true))
			runs := w.says("web", "Running")
			c := setDrifts([]*commandv1.Drift{drifted("a", "web", DriftRevision)})
			c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: "web", Node: "a", IfGeneration: w.generation("web")}}
			skipped(t, w.do(c), "given up")
			w.ok(runs)
			is(t, "runs again", w.workload("web").Status, StatusRunning)
		}},
		{"the repair of a drift on another node is skipped", func(t *testing.T, w *world) {
			c := setDrifts(nil)
			c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: "web", Node: "b", IfGeneration: w.generation("web")}}
			skipped(t, w.do(c), "is not on node")
		}},
		{"an unknown node is skipped", func(t *testing.T, w *world) {
			skipped(t, w.do(setDrifts([]*commandv1.Drift{drifted("none", "x", DriftOrphan)})), "none")
		}},
		{"an unknown kind is skipped", func(t *testing.T, w *world) {
			skipped(t, w.do(setDrifts([]*commandv1.Drift{drifted("a", "x", "odd")})), "odd")
		}},
		{"an invalid workload name is skipped", func(t *testing.T, w *world) {
			skipped(t, w.do(setDrifts([]*commandv1.Drift{drifted("a", "x/y", DriftOrphan)})), "x/y")
		}},
		{"removing a node resolves its drifts", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "ghost", DriftOrphan), drifted("b", "ghost", DriftOrphan)}))
			w.ok(removeNode("a", true))
			w.eventOf(EventDriftResolved)
			is(t, "number of open drifts", w.s.DriftCount(), 1)
		}},
	})
}

func atRevision(d *commandv1.Drift, revision string) *commandv1.Drift {
	d.Revision = revision
	return d
}

func TestAdoptDrift(t *testing.T) {
	provePlaced(t, []fact{
		{"adopting an unknown workload needs a specification", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "ghost", DriftOrphan)}))
			refused(t, w.do(adopt("b", "ghost")), Invalid, "persysctl drift adopt b ghost -f FILE")
			res := w.ok(adopt("b", "ghost", hostPort(80)))
			is(t, "workload in item 0 of the result", res.Items[0].ID, "ghost")
			is(t, `node of workload "ghost"`, w.workload("ghost").Node, "b")
			is(t, `status of workload "ghost"`, w.workload("ghost").Status, StatusScheduled)
			is(t, "reason of the event WorkloadScheduled", w.eventOf(EventWorkloadScheduled).Reason, CodeAdopted)
			w.eventOf(EventDriftResolved)
			is(t, "number of open drifts", w.s.DriftCount(), 0)
		}},
		{"the instance of a legacy v1 agent counts as the given specification", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{atRevision(drifted("b", "ghost", DriftOrphan), "rev-7")}))
			w.ok(adopt("b", "ghost", hostPort(80)))
			is(t, `revision of workload "ghost"`, w.workload("ghost").Revision(), "rev-7")
			w.ok(put("ghost", hostPort(80), content("c1:changed")))
			is(t, `revision of workload "ghost" after its specification changed`, w.workload("ghost").Revision(), "c1-changed")
		}},
		{"the instance of a legacy v1 agent that schedulers ordered has the revision of its content", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{atRevision(drifted("b", "ghost", DriftOrphan), "c1-fedcba9876543210")}))
			w.ok(adopt("b", "ghost", hostPort(80)))
			is(t, `revision of workload "ghost"`, w.workload("ghost").Revision(), "c1-0123456789abcdef")
		}},
		{"a known specification of a workload replaces the instance of a legacy v1 agent", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{atRevision(drifted("b", "web", DriftOrphan), "rev-7")}))
			w.ok(adopt("b", "web"))
			is(t, `revision of workload "web"`, w.workload("web").Revision(), "c1-0123456789abcdef")
		}},
		{"a revision that is too long is not adopted", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{atRevision(drifted("b", "ghost", DriftOrphan), strings.Repeat("x", MaxAdopted+1))}))
			w.ok(adopt("b", "ghost", hostPort(80)))
			is(t, `revision of workload "ghost"`, w.workload("ghost").Revision(), "c1-0123456789abcdef")
		}},
		{"a known workload moves to the node where it was found", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "web", DriftOrphan)}))
			w.ok(adopt("b", "web"))
			is(t, `node of workload "web"`, w.workload("web").Node, "b")
			_, left := w.s.Residual("a", "web")
			is(t, `there is a residual of workload "web" on node "a"`, left, true)
		}},
		{"a workload adopted with other ports still holds its ports on the former node", func(t *testing.T, w *world) {
			w.ok(put("web", hostPort(80)))
			w.run("web")
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "web", DriftOrphan)}))
			w.ok(adopt("b", "web", hostPort(81), content("c1:other")))
			holder, on := w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp"})
			is(t, "workload and node for which host port 80 is reserved", holder+" on "+on, "web on a")
			w.ok(put("other", hostPort(80)))
			skipped(t, w.do(w.assign("other", "a")), "80/tcp")
		}},
		{"a workload adopted on a node with its residual still holds the ports of the residual", func(t *testing.T, w *world) {
			w.ok(put("web", hostPort(80)))
			w.run("web")
			w.ok(w.evict("web", CodeDraining, false))
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "web", DriftOrphan)}))
			w.ok(adopt("a", "web", hostPort(81), content("c1:other")))
			holder, on := w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp"})
			is(t, "workload and node for which host port 80 is reserved", holder+" on "+on, "web on a")
		}},
		{"an exclusive workload that is placed on another node is not adopted", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "db", DriftOrphan)}))
			refused(t, w.do(adopt("b", "db")), Conflict, "exclusive", "node \"a\"")
		}},
		{"a workload that is being deleted is not adopted", func(t *testing.T, w *world) {
			w.ok(remove("web", false))
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "web", DriftOrphan)}))
			refused(t, w.do(adopt("b", "web")), Conflict, "persysctl drift delete b web")
		}},
		{"a full node adopts nothing", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "big", DriftOrphan)}))
			refused(t, w.do(adopt("b", "big", demand(func(d *commandv1.Demand) { d.CpuMillicores = 9000 }))), NoCapacity, "9000 millicores")
			_, ok := w.s.Workload("big")
			is(t, "the workload has a record", ok, false)
		}},
		{"a workload that is no orphan cannot be adopted", func(t *testing.T, w *world) {
			refused(t, w.do(adopt("b", "none")), NotFound, "persysctl drift list")
			refused(t, w.do(adopt("none", "none")), NotFound, "none")
		}},
	})
}

func TestDropOrphan(t *testing.T) {
	provePlaced(t, []fact{
		{"the residual orders the node to delete the orphan and ends when the orphan is gone", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "ghost", DriftOrphan)}))
			w.ok(dropOrphan("b", "ghost"))
			r, ok := w.s.Residual("b", "ghost")
			is(t, `there is a residual of workload "ghost" on node "b"`, ok && r.Reason == CodeOrphanDeleted, true)
			d, _ := w.s.Drift("b", "ghost", DriftOrphan)
			is(t, "action of the drift", d.Action, ActionDeleteOrphan)
			is(t, "verdict on the repeated command", w.do(dropOrphan("b", "ghost")).Kind, AlreadyDone)
			w.ok(gone("ghost", "b", GenerationPB(r.Generation)))
			_, ok = w.s.Residual("b", "ghost")
			is(t, `there is a residual of workload "ghost" on node "b"`, ok, false)
		}},
		{"a workload that is placed on the node is not dropped", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "web", DriftOrphan)}))
			refused(t, w.do(dropOrphan("a", "web")), Conflict, "persysctl delete web")
		}},
		{"a node that is down refuses the drop", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "ghost", DriftOrphan)}))
			w.ok(nodeState("b", false))
			refused(t, w.do(dropOrphan("b", "ghost")), NotReady, "NotReady")
		}},
		{"an orphan with an invalid id must be removed by hand", func(t *testing.T, w *world) {
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "not an id", DriftOrphan)}))
			refused(t, w.do(dropOrphan("b", "not an id")), Invalid, "by hand")
		}},
	})
}

// adoptedOrphans is a scenario of the golden corpus: orphans (instances without a record) on nodes
// with legacy v1 agents are adopted as workloads.
func adoptedOrphans(w *world) {
	w.do(register("a"))
	w.do(setDrifts([]*commandv1.Drift{atRevision(drifted("a", "ghost", DriftOrphan), "rev-7"), atRevision(drifted("a", "ours", DriftOrphan), "c1-ff"), drifted("a", "none", DriftOrphan)}))
	w.do(setDrifts([]*commandv1.Drift{atRevision(drifted("a", "ghost", DriftOrphan), "rev-8")}))
	w.do(adopt("a", "ghost"))
	w.do(adopt("a", "ghost", hostPort(80)))
	w.do(adopt("a", "ours", hostPort(81)))
	w.do(adopt("a", "none", hostPort(82)))
	w.do(w.says("ghost", "Running"))
	w.do(put("ghost", content("c1:changed")))
}
