package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// fact is a subtest whose name states a property of the state machine. It gets the state of a cluster c1 with the nodes
// a and b.
type fact struct {
	name string
	run  func(t *testing.T, w *world)
}

func prove(t *testing.T, facts []fact) {
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}

func is[V comparable](t *testing.T, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// refused checks that the command was refused with this kind and with a reason that contains each of names.
func refused(t *testing.T, res Result, kind Kind, names ...string) {
	t.Helper()
	is(t, "verdict on the command", res.Kind, kind)
	for _, n := range names {
		if !strings.Contains(res.Reason, n) {
			t.Errorf("the reason of the refusal is %q, want it to contain %q", res.Reason, n)
		}
	}
}

// skipped checks that the only item of a planner command was skipped with a reason that contains each of names.
func skipped(t *testing.T, res Result, names ...string) {
	t.Helper()
	is(t, "number of skipped items of the command", res.Skipped, 1)
	refused(t, res, OK, names...)
}

func TestPutWorkloads(t *testing.T) {
	prove(t, []fact{
		{"a new workload is Pending", func(t *testing.T, w *world) {
			res := w.ok(put("web"))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusPending)
			is(t, "generation in item 0 of the result", res.Items[0].Generation, wl.Generation)
			is(t, "revision in item 0 of the result", res.Items[0].Revision, "c1-0123456789abcdef")
			is(t, `MaxAttempts of workload "web"`, wl.Retry.MaxAttempts, DefaultMaxAttempts)
			is(t, "number of workloads that wait for a placement", w.s.PendingCount(), 1)
			is(t, "events of the last command", strings.Join(w.events(), " "), EventWorkloadCreated)
		}},
		{"a new workload with desired state Stopped waits for no node", func(t *testing.T, w *world) {
			w.ok(put("web", desired("Stopped")))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusStopped)
			is(t, "number of workloads that wait for a placement", w.s.PendingCount(), 0)
		}},
		{"an identical put changes nothing and keeps the generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			g := w.workload("web").Generation
			res := w.ok(put("web"))
			is(t, "item 0 of the result is Unchanged", res.Items[0].Unchanged, true)
			is(t, `generation of workload "web"`, w.workload("web").Generation, g)
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"a new caller revision alone is stored without a new generation", func(t *testing.T, w *world) {
			w.ok(put("web"))
			g := w.workload("web").Generation
			res := w.ok(put("web", func(p *commandv1.WorkloadPut) { p.CallerRevision = "rev-2" }))
			is(t, "item 0 of the result is Unchanged", res.Items[0].Unchanged, true)
			is(t, `caller revision of workload "web"`, w.workload("web").CallerRevision, "rev-2")
			is(t, `generation of workload "web"`, w.workload("web").Generation, g)
		}},
		{"changed content under the same caller revision gets a new generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			before := w.workload("web").Generation
			w.ok(put("web", content("c1:ffff")))
			wl := w.workload("web")
			is(t, "the workload has a newer generation than before", before.Less(wl.Generation), true)
			is(t, `the order of workload "web" is acknowledged`, wl.Acknowledged, false)
			is(t, `status of workload "web"`, wl.Status, StatusUpdating)
			is(t, `node of workload "web"`, wl.Node, "a")
		}},
		{"changed content of a workload that does not run yet is Scheduled", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(put("web", content("c1:ffff")))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusScheduled)
		}},
		{"changed demand alone gets a new generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(put("web", demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 })))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUpdating)
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 2000)
		}},
		{"a change keeps the Unplaced reason while the demand is the same", func(t *testing.T, w *world) {
			w.ok(put("web"))
			explain := func() Command {
				return &commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{
					Workloads: []*commandv1.Unplaced{{Workload: "web", IfGeneration: w.generation("web"), Code: CodeUnplaced, Message: "0/2 nodes fit"}},
				}}}
			}
			w.ok(explain())
			w.ok(put("web", content("c1:ffff")))
			is(t, "message of the reason while the demand is the same", w.workload("web").Reason.Message, "0/2 nodes fit")
			w.ok(put("web", demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 })))
			is(t, "reason after a change of the demand", w.workload("web").Reason, Reason{})
		}},
		{"a smaller count deletes generated members and no other workload of the group", func(t *testing.T, w *world) {
			grouped := demand(func(d *commandv1.Demand) { d.Group = "web" })
			member := func(id string) *commandv1.WorkloadPut { return put(id, grouped).GetPutWorkloads().Workloads[0] }
			w.ok(put("web-canary", grouped))
			w.ok(puts("web", member("web-0"), member("web-1"), member("web-2")))
			w.ok(puts("web", member("web-0")))
			var left []string
			w.s.Group("web", func(wl *Workload) bool {
				left = append(left, wl.ID)
				return true
			})
			is(t, "members that are not being deleted", strings.Join(left, " "), "web-0 web-canary")
		}},
		{"a change clears the failures", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.retry("web", 3, w.now+minute, false))
			w.ok(put("web", content("c1:ffff")))
			is(t, `Retry of workload "web"`, w.workload("web").Retry, Retry{MaxAttempts: DefaultMaxAttempts})
			is(t, `reason of workload "web"`, w.workload("web").Reason, Reason{})
		}},
		{"a put cancels the deletion of a workload and keeps its residuals", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			w.ok(put("web"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"one invalid workload refuses the whole command", func(t *testing.T, w *world) {
			good := put("web").GetPutWorkloads().Workloads[0]
			bad := put("db", desired("Paused")).GetPutWorkloads().Workloads[0]
			refused(t, w.do(puts("", good, bad)), Invalid, "db", "desired", "Paused")
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
		{"a put of fewer members deletes the other members of the group", func(t *testing.T, w *world) {
			member := func(id string) *commandv1.WorkloadPut {
				return put(id, demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
			}
			w.ok(puts("g", member("g-0"), member("g-1")))
			w.bind("g-1", "a")
			w.ok(puts("g", member("g-0")))
			is(t, `status of member "g-0", which the put lists`, w.workload("g-0").Status, StatusPending)
			is(t, `status of member "g-1", which the put does not list`, w.workload("g-1").Status, StatusDeleting)
		}},
		{"an empty group deletes all members", func(t *testing.T, w *world) {
			w.ok(put("g-0", demand(func(d *commandv1.Demand) { d.Group = "g" })))
			w.ok(puts("g"))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
		{"all workloads of one command get the same generation", func(t *testing.T, w *world) {
			seq := w.s.Info().Sequence
			w.ok(puts("", put("x").GetPutWorkloads().Workloads[0], put("y").GetPutWorkloads().Workloads[0]))
			is(t, "Sequence in the state", w.s.Info().Sequence, seq+1)
			is(t, `generation of workload "x"`, w.workload("x").Generation, w.workload("y").Generation)
		}},
		{"the status stays Unknown while the node is lost", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(nodeState("a", false))
			w.ok(put("web", content("c1:ffff")))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUnknown)
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeNodeLost)
		}},
	})
}

func TestPutRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		cmd   Command
		names []string
	}{
		{"nothing", puts(""), []string{"workloads"}},
		{"a malformed id is refused", put("-web"), []string{"id", "-web"}},
		{"an id of 129 bytes is refused", put(strings.Repeat("x", 129)), []string{"id"}},
		{"the same id twice is refused", puts("", put("x").GetPutWorkloads().Workloads[0], put("x").GetPutWorkloads().Workloads[0]), []string{"workloads[1].id", "x"}},
		{"a workload without content is refused", put("web", content("")), []string{"content"}},
		{"a specification over the size limit is refused", put("web", func(p *commandv1.WorkloadPut) { p.Spec = make([]byte, bounds.MaxSpec+1) }), []string{"spec", "1048577"}},
		{"a negative number of attempts is refused", put("web", func(p *commandv1.WorkloadPut) { p.MaxAttempts = -1 }), []string{"max_attempts", "-1"}},
		{"a demand without a type is refused", put("web", demand(func(d *commandv1.Demand) { d.Type = "" })), []string{"demand.type"}},
		{"a negative amount of CPU is refused", put("web", demand(func(d *commandv1.Demand) { d.CpuMillicores = -1 })), []string{"cpu_millicores", "-1"}},
		{"an amount of memory over the limit is refused", put("web", demand(func(d *commandv1.Demand) { d.MemoryMib = bounds.MaxMemory + 1 })), []string{"memory_mib"}},
		{"a negative amount of disk is refused", put("web", demand(func(d *commandv1.Demand) { d.DiskGb = -5 })), []string{"disk_gb", "-5"}},
		{"an unknown lease policy is refused", put("web", demand(func(d *commandv1.Demand) { d.OnLostLease = "hope" })), []string{"on_lost_lease", "hope"}},
		{"port 0 is refused", put("web", hostPort(0)), []string{"host_ports[0].port", "0"}},
		{"port 65536 is refused", put("web", hostPort(65536)), []string{"65536"}},
		{"the same port twice is refused", put("web", hostPort(80), hostPort(80)), []string{"host_ports[1]", "80/tcp"}},
		{"an unknown protocol is refused", put("web", demand(func(d *commandv1.Demand) { d.HostPorts = []*commandv1.Port{{Port: 1, Protocol: "sctp"}} })), []string{"sctp"}},
		{"an unknown operator is refused", put("web", demand(func(d *commandv1.Demand) { d.Constraints = []*commandv1.Constraint{{Key: "k", Op: "~"}} })), []string{"constraints[0].op", "~"}},
		{"a malformed group is refused", put("web", demand(func(d *commandv1.Demand) { d.Group = "a/b" })), []string{"demand.group", "a/b"}},
		{"a workload outside the group is refused", puts("g", put("web").GetPutWorkloads().Workloads[0]), []string{"demand.group", "g"}},
		{"a malformed group_of is refused", puts("a b"), []string{"group_of", "a b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			refused(t, w.do(c.cmd), Invalid, c.names...)
			is(t, "number of records that the last command changed", len(w.last), 0)
		})
	}
}

func TestSetDesired(t *testing.T) {
	prove(t, []fact{
		{"stopping a running workload gets a new generation", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(setDesired("web", "Stopped"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUpdating)
			w.ok(w.says("web", "Stopped"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusStopped)
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
		{"an unplaced workload stops at once", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(setDesired("web", "Stopped"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusStopped)
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeUserStop)
		}},
		{"starting an unplaced workload makes it Pending", func(t *testing.T, w *world) {
			w.ok(put("web", desired("Stopped")))
			w.ok(setDesired("web", "Running"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
		}},
		{"a request for the present desired state is AlreadyDone", func(t *testing.T, w *world) {
			w.ok(put("web"))
			res := w.do(setDesired("web", "Running"))
			is(t, "verdict on the command", res.Kind, AlreadyDone)
			is(t, "item 0 of the result is Unchanged", res.Items[0].Unchanged, true)
			is(t, "error of a result of kind AlreadyDone", res.Err(), nil)
		}},
		{"the desired state Deleted deletes the workload", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(setDesired("web", "Deleted"))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
		{"an unknown state is refused", func(t *testing.T, w *world) {
			w.ok(put("web"))
			refused(t, w.do(setDesired("web", "Paused")), Invalid, "desired", "Paused")
		}},
		{"an unknown workload is not found", func(t *testing.T, w *world) {
			refused(t, w.do(setDesired("web", "Running")), NotFound, "web")
		}},
		{"a workload that is being deleted cannot be started", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			refused(t, w.do(setDesired("web", "Running")), Conflict, "web")
		}},
	})
}

func TestDeleteWorkload(t *testing.T) {
	prove(t, []fact{
		{"an unplaced workload is deleted at once", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(remove("web", false))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
			is(t, "events of the last command", strings.Join(w.events(), " "), EventWorkloadDeleted)
		}},
		{"a placed workload is deleted when its node reports it gone", func(t *testing.T, w *world) {
			w.place("web", "a")
			res := w.ok(remove("web", false))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusDeleting)
			is(t, `node of workload "web"`, wl.Node, "")
			r, ok := w.s.Residual("a", "web")
			is(t, "there is a residual of the workload", ok, true)
			is(t, `generation of the residual of workload "web" on node "a"`, r.Generation, res.Items[0].Generation)
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 1000)
			w.ok(gone("web", "a", GenerationPB(r.Generation)))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
			is(t, `CPU reserved on node "a"`, w.s.Alloc("a").CPU, 0)
		}},
		{"force deletes the record and keeps a residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", true))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"force deletes a workload that is being deleted", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			w.ok(remove("web", true))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
		{"a second delete is AlreadyDone", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			is(t, "verdict on the command", w.do(remove("web", false)).Kind, AlreadyDone)
		}},
		{"an unknown workload is not found", func(t *testing.T, w *world) {
			refused(t, w.do(remove("web", false)), NotFound, "web")
		}},
		{"a workload on a fenced node leaves no residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			w.ok(remove("web", false))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
		{"the record is deleted with its last residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.evict("web", CodeDraining, false))
			w.bind("web", "b")
			w.ok(remove("web", false))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 2)
			w.ok(gone("web", "a", nil))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusDeleting)
			w.ok(gone("web", "b", nil))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
		}},
	})
}

func TestRetryWorkload(t *testing.T) {
	as := func(c Command) Command { return c }
	unhealthy := func(c Command) Command {
		c.GetReport().Reports[0].Health = Unhealthy
		return c
	}
	prove(t, []fact{
		{"a placed workload gets a new revision", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.retry("web", 5, 0, true))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusFailed)
			res := w.ok(userRetry("web"))
			wl := w.workload("web")
			is(t, `status of workload "web"`, wl.Status, StatusScheduled)
			is(t, `workload "web" is given up`, wl.Retry.Terminal, false)
			is(t, `number of counted failures of workload "web"`, wl.Retry.Attempts, 0)
			is(t, "revision in item 0 of the result", res.Items[0].Revision, "c1-0123456789abcdef-r1")
			is(t, "reason of the event RetryTriggered", w.eventOf(EventRetryTriggered).Reason, CodeUserRetry)
		}},
		{"an unplaced workload is Pending", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(userRetry("web"))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
		}},
		{"a stopped, unplaced workload stays stopped", func(t *testing.T, w *world) {
			w.ok(put("web", desired("Stopped")))
			is(t, "verdict on the command", w.do(userRetry("web")).Kind, AlreadyDone)
		}},
		{"an unknown workload is not found", func(t *testing.T, w *world) {
			refused(t, w.do(userRetry("web")), NotFound, "web")
		}},
		{"a retry of a healthy workload changes nothing", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			before := *w.workload("web")
			for range 3 {
				res := w.do(retryIfNeeded("web"))
				is(t, "verdict on the command", res.Kind, AlreadyDone)
				is(t, "the reason names the command persysctl restart web", strings.Contains(res.Reason, "persysctl restart web"), true)
			}
			is(t, `generation of workload "web"`, w.workload("web").Generation, before.Generation)
			is(t, `number of forced restarts of workload "web"`, w.workload("web").Restarts, 0)
			w.ok(userRetry("web"))
			is(t, "a requested restart restarts the workload", w.workload("web").Restarts, 1)
		}},
		{"a retry of a workload that is being started changes nothing", func(t *testing.T, w *world) {
			w.place("web", "a")
			is(t, "verdict on a retry before the node has the order", w.do(retryIfNeeded("web")).Kind, AlreadyDone)
			w.ok(w.says("web", "Pending"))
			is(t, "verdict on a retry while the workload is Pending", w.do(retryIfNeeded("web")).Kind, AlreadyDone)
		}},
		{"a retry of a workload that was stopped changes nothing", func(t *testing.T, w *world) {
			w.place("web", "a", desired("Running"))
			w.ok(setDesired("web", "Stopped"))
			w.ok(w.says("web", "Stopped"))
			is(t, "verdict on the command", w.do(retryIfNeeded("web")).Kind, AlreadyDone)
		}},
		{"a retry helps a workload that failed, ended, is missing, unhealthy or waits", func(t *testing.T, w *world) {
			for _, c := range []struct {
				state string
				with  func(Command) Command
			}{
				{"Failed", as}, {"Stopped", as}, {"Missing", as}, {"Unknown", as}, {"Running", unhealthy},
			} {
				id := "web-" + strings.ToLower(c.state)
				w.place(id, "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 1 }))
				w.ok(c.with(w.says(id, c.state)))
				is(t, c.state, w.do(retryIfNeeded(id)).Kind, OK)
				is(t, "restarts of "+id, w.workload(id).Restarts, 1)
			}
			w.place("later", "a")
			w.ok(w.says("later", "Failed"))
			w.ok(w.retry("later", 2, w.now+100, false))
			is(t, "verdict on a retry of a workload that waits for its backoff", w.do(retryIfNeeded("later")).Kind, OK)
			w.ok(put("nowhere"))
			is(t, "verdict on a retry of a workload without a node", w.do(retryIfNeeded("nowhere")).Kind, OK)
		}},
		{"a running workload on a lost node is not restarted when the node returns", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(nodeState("a", false))
			is(t, "verdict on the command", w.do(retryIfNeeded("web")).Kind, AlreadyDone)
		}},
		{"a workload that is being deleted is not retried", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			refused(t, w.do(userRetry("web")), Conflict, "web")
		}},
	})
}

func TestClusterCommands(t *testing.T) {
	prove(t, []fact{
		{"a second InitCluster with the same id begins a new incarnation", func(t *testing.T, w *world) {
			before := w.s.Info().Incarnation
			w.ok(initCluster("c1"))
			is(t, "Incarnation in the state", w.s.Info().Incarnation, before+1)
		}},
		{"InitCluster accepts a later incarnation that the command gives", func(t *testing.T, w *world) {
			c := initCluster("c1")
			c.GetInitCluster().Incarnation = 5000
			w.ok(c)
			is(t, "Incarnation in the state", w.s.Info().Incarnation, 5000)
		}},
		{"a new incarnation makes every later generation newer", func(t *testing.T, w *world) {
			w.ok(put("x"))
			w.ok(initCluster("c1"))
			w.ok(put("y"))
			is(t, "generation of x is below that of y, which the new incarnation issued", w.workload("x").Generation.Less(w.workload("y").Generation), true)
		}},
		{"another cluster id is a conflict", func(t *testing.T, w *world) {
			refused(t, w.do(initCluster("c2")), Conflict, "c1", "c2")
		}},
		{"a malformed cluster id is refused", func(t *testing.T, w *world) {
			refused(t, w.do(initCluster("a b")), Invalid, "cluster_id", "a b")
		}},
		{"a cluster without a shard gets the default shard", func(t *testing.T, w *world) {
			is(t, "Shard in the state", w.s.Info().Shard, "default")
		}},
		{"the state stores the reason and the time of a mode", func(t *testing.T, w *world) {
			w.ok(setMode("degraded", "etcd is away"))
			info := w.s.Info()
			is(t, "mode of the control plane", info.Mode, ModeDegraded)
			is(t, "reason of the mode", info.ModeReason, "etcd is away")
			is(t, "time at which the mode changed", info.ModeChangedAt, w.now)
			is(t, "detail of the event ModeChanged", w.eventOf(EventModeChanged).Details[0], Label{"previous", "normal"})
		}},
		{"the same mode and reason is AlreadyDone", func(t *testing.T, w *world) {
			is(t, "verdict on the command", w.do(setMode("normal", "")).Kind, AlreadyDone)
		}},
		{"a new reason for the same mode keeps the time of the mode", func(t *testing.T, w *world) {
			w.ok(setMode("degraded", "one"))
			at := w.s.Info().ModeChangedAt
			w.ok(setMode("degraded", "two"))
			is(t, "ModeChangedAt in the state", w.s.Info().ModeChangedAt, at)
			is(t, "number of events of the last command", len(w.events()), 0)
		}},
		{"a mode that a person set is pinned until it is unpinned", func(t *testing.T, w *world) {
			w.ok(pinMode("degraded", "maintenance"))
			is(t, "ModePinned in the state", w.s.Info().ModePinned, true)
			is(t, "verdict on the repeated command", w.do(pinMode("degraded", "maintenance")).Kind, AlreadyDone)
			refused(t, w.do(setMode("normal", "")), Conflict, "pinned")
			w.ok(pinMode("recovery", "another word"))
			w.ok(unpinMode("normal", ""))
			is(t, "ModePinned in the state", w.s.Info().ModePinned, false)
			is(t, "mode of the control plane", w.s.Info().Mode, ModeNormal)
		}},
		{"a second attachment of the same etcd changes nothing", func(t *testing.T, w *world) {
			w.ok(attached(7))
			is(t, "MirrorEtcd in the state", w.s.Info().MirrorEtcd, uint64(7))
			is(t, "message of the event MirrorAttached", w.eventOf(EventMirrorAttached).Message, "7")
			is(t, "verdict on the repeated command", w.do(attached(7)).Kind, AlreadyDone)
			refused(t, w.do(attached(8)), Conflict, "attached to etcd cluster 7", "persysctl mirror detach")
			is(t, "MirrorEtcd in the state", w.s.Info().MirrorEtcd, uint64(7))
		}},
		{"another etcd is attached only after a detach", func(t *testing.T, w *world) {
			w.ok(attachMirror(7, "a:2379", "b:2379"))
			is(t, "MirrorEndpoints in the state", w.s.Info().MirrorEndpoints, "a:2379,b:2379")
			is(t, "etcd with a complete mirror after another etcd was attached", w.s.Info().MirrorEtcd, uint64(0))
			is(t, "verdict on the repeated command", w.do(attachMirror(7, "a:2379", "b:2379")).Kind, AlreadyDone)
			w.ok(attachMirror(7, "c:2379"))
			is(t, "MirrorEndpoints in the state", w.s.Info().MirrorEndpoints, "c:2379")
			refused(t, w.do(attachMirror(8, "c:2379")), Conflict, "attached to etcd cluster 7", "persysctl mirror detach")
			refused(t, w.do(attached(8)), Conflict, "attached to etcd cluster 7")
			w.ok(attached(7))
			w.ok(detachMirror())
			is(t, "message of the event MirrorDetached", w.eventOf(EventMirrorDetached).Message, "7")
			is(t, "verdict on the repeated command", w.do(detachMirror()).Kind, AlreadyDone)
			is(t, "attached etcd after a detach", w.s.Info().MirrorPin+w.s.Info().MirrorEtcd, uint64(0))
			w.ok(attachMirror(8, "c:2379"))
		}},
		{"attaching a mirror needs endpoints", func(t *testing.T, w *world) {
			refused(t, w.do(attachMirror(7)), Invalid, "endpoints: 0 are given")
			refused(t, w.do(attachMirror(7, "a:1,b:1")), Invalid, "without a comma")
			refused(t, w.do(attachMirror(7, strings.Repeat("a", 300))), Invalid, "256 bytes")
			refused(t, w.do(attachMirror(0, "a:1")), Invalid, "etcd_cluster_id")
		}},
		{"attaching a mirror needs the id of the etcd cluster", func(t *testing.T, w *world) {
			refused(t, w.do(attached(0)), Invalid, "etcd_cluster_id")
		}},
		{"an unknown mode is refused", func(t *testing.T, w *world) {
			refused(t, w.do(setMode("odd", "")), Invalid, "mode", "odd")
		}},
		{"a replica joins once", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 1))
			is(t, "number of events of the last command", len(w.events()), 1)
			is(t, "verdict on the command", w.do(putReplica("r1", 1)).Kind, AlreadyDone)
		}},
		{"a replica without an id is refused", func(t *testing.T, w *world) {
			refused(t, w.do(putReplica("", 1)), Invalid, "id")
		}},
		{"the beginning and the end of a repair are events", func(t *testing.T, w *world) {
			w.ok(repaired("r1", "r0", false))
			is(t, "damaged in the event ReplicaDamaged", w.eventOf(EventReplicaDamaged).Details[1], Label{"damage", "entry 3 fails its checksum"})
			is(t, "before in the event ReplicaDamaged", w.eventOf(EventReplicaDamaged).Details[2], Label{"previous", "r0"})
			w.ok(repaired("r1", "r0", true))
			is(t, "repaired", w.eventOf(EventReplicaRepaired).Message, "name-r1")
			is(t, "verdict on the command", w.do(repaired("r1", "r0", true)).Kind, AlreadyDone)
			count := len(w.events())
			c := repaired("r1", "r0", true)
			c.GetPutReplica().RaftAddr = "elsewhere:1"
			w.ok(c)
			is(t, "number of events of the last command", len(w.events()), count)
		}},
		{"a repair must name the former id of the replica", func(t *testing.T, w *world) {
			refused(t, w.do(repaired("r1", "", true)), Invalid, "repair.of")
			c := repaired("r1", "r0", true)
			c.GetPutReplica().Repair.Damage = strings.Repeat("x", MaxRepairDamage+1)
			refused(t, w.do(c), Invalid, "repair.damage", "1025 bytes")
			c = repaired("r1", "r0", true)
			c.GetPutReplica().Repair.Aside = strings.Repeat("x", MaxRepairAside+1)
			refused(t, w.do(c), Invalid, "repair.aside", "129 bytes")
		}},
		{"a replica leaves", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 1))
			w.ok(removeReplica("r1"))
			_, ok := w.s.Replica("r1")
			is(t, "the replica that left has a record", ok, false)
		}},
		{"an unknown replica is not found", func(t *testing.T, w *world) {
			refused(t, w.do(removeReplica("r9")), NotFound, "r9")
		}},
		{"a barrier changes no record", func(t *testing.T, w *world) {
			index := w.s.Info().Index
			w.ok(barrier())
			is(t, "number of records that the last command changed", len(w.last), 0)
			is(t, "Index in the state", w.s.Info().Index, index+1)
		}},
		{"the clock never goes back", func(t *testing.T, w *world) {
			clock := w.s.Info().Clock
			c := barrier()
			c.Head = &commandv1.Head{At: clock - minute}
			w.ok(c)
			is(t, "Clock in the state", w.s.Info().Clock, clock)
		}},
		{"the state takes index and term from the log entry", func(t *testing.T, w *world) {
			s, _, _ := w.s.Apply(Meta{Index: 777, Term: 9}, barrier())
			is(t, "epoch of the state", s.Info().Epoch(), Epoch{s.Info().Incarnation, 9})
			is(t, "Index in the state", s.Info().Index, 777)
		}},
		{"a command without a body is unsupported", func(t *testing.T, w *world) {
			refused(t, w.do(&commandv1.Command{}), Unsupported, "body")
		}},
		{"only the newest events are kept", func(t *testing.T, w *world) {
			tx := w.s.Begin()
			for i := range MaxEvents + 10 {
				tx.Apply(Meta{uint64(100 + i), 1}, cordon("a", i%2 == 0))
			}
			s := tx.Commit()
			is(t, "number of kept events", s.r.events.Len(), MaxEvents)
			is(t, "violations that Check finds", s.Check(), nil)
			first := uint64(0)
			s.Events(0, func(e *Event) bool { first = e.Seq; return false })
			is(t, "number of the oldest kept event", first, s.Info().EventSeq-MaxEvents+1)
		}},
		{"the message of an event is cut", func(t *testing.T, w *world) {
			w.ok(setMode("degraded", strings.Repeat("é", MaxEventMessage)))
			is(t, "message of the event ModeChanged", w.eventOf(EventModeChanged).Message, strings.Repeat("é", MaxEventMessage/2))
		}},
	})
	t.Run("an uninitialised state accepts only InitCluster and barriers", func(t *testing.T) {
		w := uninitialised(t)
		refused(t, w.do(put("web")), Unsupported, "put_workloads", "feature level 1")
		is(t, "verdict on a barrier", w.do(barrier()).Kind, OK)
		w.ok(initCluster("c1"))
		w.ok(put("web"))
	})
}

func TestPlannerCommandsNeedThePresentEpoch(t *testing.T) {
	for _, c := range []struct {
		name  string
		epoch *commandv1.Epoch
		want  Kind
	}{
		{"a command of the present epoch is accepted", &commandv1.Epoch{Incarnation: 1000, Term: 1}, OK},
		{"a command without an epoch is refused as stale", nil, StaleEpoch},
		{"a command of another term is refused as stale", &commandv1.Epoch{Incarnation: 1000, Term: 2}, StaleEpoch},
		{"a command of another incarnation is refused as stale", &commandv1.Epoch{Incarnation: 999, Term: 1}, StaleEpoch},
	} {
		for _, cmd := range []Command{assign(), evict(), nodeState("a", true), report(), explain("x", "", "", nil),
			{Body: &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{}}},
			{Body: &commandv1.Command_ForgiveFailures{ForgiveFailures: &commandv1.ForgiveFailures{}}}, actions("a", ""), setDrifts(nil)} {
			t.Run(ArmName(cmd)+": "+c.name, func(t *testing.T) {
				w := formed(t, "a")
				cmd.Head = &commandv1.Head{Epoch: c.epoch, At: w.now}
				is(t, "verdict on the command", w.do(cmd).Kind, c.want)
			})
		}
	}
}
