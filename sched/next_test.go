package sched

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func sortOrders(o []Order) {
	slices.SortFunc(o, func(a, b Order) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Op, b.Op),
			cmp.Compare(a.Generation.Sequence, b.Generation.Sequence))
	})
}

func TestAConvergedWorldYieldsNothing(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.settle()
	if got := w.get("web"); got.Node != "a" || got.Status != fsm.StatusRunning {
		t.Fatalf("workload web is %s on node %q, want it running on node \"a\"", got.Status, got.Node)
	}
	if s := w.plain(); len(s.Commands)+len(s.Orders) != 0 {
		t.Fatalf("in a converged world the planner must propose nothing, but proposes %+v", s)
	}
}

func TestSpreadIsEven(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"a", "b", "c"} {
		w.node(n)
	}
	for i := range 9 {
		w.apply("w"+string(rune('0'+i)), demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib = int64(i%2)*100, 0 }))
	}
	w.settle()
	for _, n := range []string{"a", "b", "c"} {
		if got := w.state.Alloc(n).Workloads; got != 3 {
			t.Errorf("node %s has %d workloads, want 3", n, got)
		}
	}
}

func TestBinPackFillsOneNodeFirst(t *testing.T) {
	w := newWorld(t)
	w.tuning.Policy = BinPack
	for _, n := range []string{"a", "b", "c"} {
		w.node(n)
	}
	for i := range 9 {
		w.apply("w" + string(rune('0'+i)))
	}
	w.settle()
	var got []int
	for _, n := range []string{"a", "b", "c"} {
		got = append(got, w.state.Alloc(n).Workloads)
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{0, 1, 8}) {
		t.Errorf("the numbers of workloads on the nodes are %v, want 8 on one node and 1 on another", got)
	}
}

func TestMembersOfAGroupAreSpreadOverNodes(t *testing.T) {
	w := newWorld(t)
	w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores, n.MemoryMib = 64000, 256000 })
	w.node("b")
	w.node("c")
	for i := range 3 {
		w.apply("g-"+string(rune('0'+i)), demand(func(d *commandv1.Demand) { d.Group = "g" }))
	}
	w.settle()
	for _, n := range []string{"a", "b", "c"} {
		if got := w.state.Alloc(n).Workloads; got != 1 {
			t.Errorf("node %s has %d members, want 1", n, got)
		}
	}
}

// TestALateHeartbeatDoesNotMarkAFencedNodeUp: a late heartbeat of a fenced node must not mark the node as up.
func TestALateHeartbeatDoesNotMarkAFencedNodeUp(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.heard["a"] = false
	w.settle()
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.heard["a"] = true
	if step := w.plan(); len(step.Commands) > 0 {
		t.Errorf("the planner proposes %v for a fenced node, want nothing", step.Commands)
	}
}

func TestALostNodesWorkloadsMove(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.apply("vm", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
	w.settle()
	w.node("b")
	w.heard["a"] = false
	w.settle()
	if got := w.get("web"); got.Node != "b" || got.PreviousNode != "a" {
		t.Errorf("workload web is on node %q, its previous node is %q; want node \"b\", and node \"a\" before", got.Node, got.PreviousNode)
	}
	vm := w.get("vm")
	if vm.Node != "a" || vm.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(vm.Reason.Message, "persysctl node fence a") {
		t.Errorf("the exclusive workload is on node %q with reason %+v, want node \"a\" and the reason AwaitFailover with the fence command", vm.Node, vm.Reason)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.settle()
	if got := w.get("vm"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("after the fence the workload is %s on %q, want it running on node b", got.Status, got.Node)
	}
}

// If a fencer stops a workload when the lease of its node ends, the workload is placed on another node only after the
// fence bound, which is the longest time that the fencer may take, has passed on the clock of the present leader.
func TestWorkloadMovesAfterTheFenceBound(t *testing.T) {
	stop := demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" })
	fencing := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.downSince = map[string]int64{}
	w.node("plain")
	w.apply("db", stop)
	w.settle()
	if got := w.get("db"); got.Node != "" || !strings.Contains(got.Reason.Message, "fencer") {
		t.Fatalf("the workload is on %q, reason %+v: a node without a fencer must not get the workload, and the reason must say so", got.Node, got.Reason)
	}
	w.node("a", fencing)
	w.settle()
	if got := w.get("db"); got.Node != "a" || got.Status != fsm.StatusRunning {
		t.Fatalf("the workload is %s on %q, want it to run on node a", got.Status, got.Node)
	}
	w.node("b", fencing)
	lost := w.now
	w.heard["a"], w.downSince["a"] = false, lost
	w.settle()
	for _, c := range []struct {
		what  string
		after int64
		since int64 // DownSince: the time since which the leader knows that the node is down
		want  string
	}{
		{"before the fence bound has passed", 5 * second, lost, "a"},
		{"under a new leader that has just learned that the node is lost", 60 * second, lost + 59*second, "a"},
		{"under a leader that does not know when the node was lost", 600 * second, 0, "a"},
		{"after the fence bound has passed", 600 * second, lost + 585*second, "b"},
	} {
		w.now, w.downSince["a"] = lost+c.after, c.since
		w.cache = NewCache() // a new leader begins with an empty cache
		w.settle()
		if got := w.get("db"); got.Node != c.want {
			t.Fatalf("%s the workload is on node %q, want node %q; its reason is %+v", c.what, got.Node, c.want, got.Reason)
		}
	}
	if left := residualsOf(w, "db"); left != 0 {
		t.Errorf("the fencer has stopped db, so the state must have no residual of it, but has %d", left)
	}
	// The planner must request a step for the time when the fence bound is over.
	w.heard["b"], w.downSince["b"] = false, w.now
	w.settle()
	if at := w.plan().WakeAt; at == 0 || at > w.now+15*second {
		t.Errorf("the planner wants its next step at %d ns, want it at most 15 s after %d ns", at, w.now)
	}
	// The leader's clock offset (the lead of the planner's clock over the wall clock) has become smaller,
	// and so has DownSince, which includes it. The cache must not keep the deadline that it computed before.
	w.now += 6 * second
	w.plan()
	w.downSince["b"] -= second / 10
	if cached, plain := w.plan(), w.plain(); cached.WakeAt != plain.WakeAt {
		t.Errorf("WakeAt is %d with a cache and %d without a cache, want the same time", cached.WakeAt, plain.WakeAt)
	}
}

// A step with a cache must have the same WakeAt as a step without a cache. In both, WakeAt must
// ignore the deadlines of orders on a lost node.
func TestLostNodeHasNoOrderDeadlines(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w := newWorld(t)
		w.node("a")
		w.apply("db")
		w.settle()
		w.say("db", "Pending")
		w.plan()
		w.now = w.get("db").AcknowledgedAt + w.tuning.ApplyTimeout - second/2
		w.heard["a"] = !lost
		plain := w.plain().WakeAt
		if got := w.plan().WakeAt; got != plain {
			t.Errorf("while the node is lost (%t), the planner wants its next step in %+d ns with a cache and in %+d ns without a cache, want the same time", lost, got-w.now, plain-w.now)
		}
	}
}

func residualsOf(w *world, id string) (n int) {
	w.state.ResidualsOf(id, func(*fsm.Residual) bool { n++; return true })
	return n
}

// If the desired state of a running workload changes to Stopped, the planner must not take it for stopping
// before its node has accepted that order.
func TestAChangeToStopCountsOnceItIsAccepted(t *testing.T) {
	fencing := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.downSince = map[string]int64{}
	w.node("a", fencing)
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "keep" }))
	w.settle()
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" }))
	w.node("b", fencing)
	w.heard["a"], w.downSince["a"] = false, w.now
	w.settle()
	w.now += 3600 * second
	w.settle()
	if got := w.get("db"); got.Node != "a" || got.Reason.Code != fsm.CodeAwaitFailover {
		t.Errorf("the workload is on %q, reason %+v: want reason AwaitFailover, because node a never received the stop", got.Node, got.Reason)
	}
}

// Workloads that need a fencer are moved from a node that no longer has one.
func TestWorkloadsLeaveNodeWithoutFencer(t *testing.T) {
	fencing := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.node("a", fencing)
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" }))
	w.settle()
	w.node("b", fencing)
	w.node("a")
	w.settle()
	if got := w.get("db"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("the workload is %s on %q, want it to run on node b", got.Status, got.Node)
	}
}

func TestALostWorkloadGoesBackWithoutARestartWhenItsNodeReturns(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.settle()
	w.heard["a"] = false
	w.settle()
	if got := w.get("web"); got.Node != "" || got.Reason.Code != fsm.CodeUnplaced || got.Reason.Message != "0/1 nodes fit: 1 not ready" {
		t.Fatalf("web is on %q with reason %+v, want it unplaced because node a is not ready", got.Node, got.Reason)
	}
	w.heard["a"] = true
	for range 20 {
		w.step()
		for o := range w.sent {
			if o.Op == OpDelete {
				t.Fatal("the running instance must be kept, but the planner ordered its deletion")
			}
		}
		w.answer()
	}
	if got := w.get("web"); got.Node != "a" || got.Status != fsm.StatusRunning {
		t.Fatalf("web is %s on %q, want it running on node a", got.Status, got.Node)
	}
}

func TestADrainWaitsForTheStop(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.settle()
	w.node("b")
	w.drain("a", true)
	for range 5 {
		w.step() // the agent of node a does not answer
	}
	got := w.get("web")
	if got.Node != "" || got.Reason.Code != fsm.CodeAwaitStop || !strings.Contains(got.Reason.Message, "node a has stopped it (Draining)") {
		t.Fatalf("web is on %q with reason %+v, want it unplaced with the reason AwaitStop", got.Node, got.Reason)
	}
	w.answer()
	w.settle()
	if got := w.get("web"); got.Node != "b" {
		t.Fatalf("web is on %q, want node b", got.Node)
	}
}

func TestALostTypeOrLabelMovesAWorkload(t *testing.T) {
	for _, c := range []struct {
		name, code string
		demand     func(*commandv1.Demand)
		change     func(*commandv1.RegisterNode)
	}{
		{"a workload leaves a node that no longer offers its type", fsm.CodeRuntimeNotOffered, func(*commandv1.Demand) {}, func(n *commandv1.RegisterNode) { n.Types = []string{"vm"} }},
		{"a workload leaves a node that has lost a required label", CodeConstraintChanged,
			func(d *commandv1.Demand) { d.Labels = []*commandv1.Label{{Key: "zone", Value: "x"}} },
			func(n *commandv1.RegisterNode) { n.Labels = nil }},
		{"a workload leaves a node that has lost the label of a constraint", CodeConstraintChanged,
			func(d *commandv1.Demand) {
				d.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "in", Values: []string{"x", "y"}}}
			},
			func(n *commandv1.RegisterNode) { n.Labels = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			zone := func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: "x"}} }
			w.node("a", zone)
			w.apply("web", demand(c.demand))
			w.settle()
			w.node("b", zone)
			w.node("a", zone, c.change)
			s := w.plan()
			ev := s.Commands[0].GetEvict().GetEvictions()
			if len(ev) != 1 || ev[0].GetCode() != c.code {
				t.Fatalf("the planner proposed %v, want one eviction with the reason code %s", s.Commands, c.code)
			}
		})
	}
}

func TestAnUpdateThatOverfillsANodeMovesOnlyTheUpdated(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("x", demand(func(d *commandv1.Demand) { d.CpuMillicores = 1500 }))
	w.apply("y", demand(func(d *commandv1.Demand) { d.CpuMillicores = 1500 }))
	w.settle()
	w.node("b")
	w.apply("x", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 }))
	w.settle()
	if got := w.get("y"); got.Node != "a" {
		t.Errorf("workload y must stay on node a, but is on %q", got.Node)
	}
	if got := w.get("x"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("workload x is %s on %q, want it running on node b", got.Status, got.Node)
	}
}

func TestSmallerNodeKeepsRunningWorkloads(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("x", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 }))
	w.settle()
	w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2000 })
	if s := w.plan(); len(s.Commands) != 0 {
		t.Fatalf("the planner proposed %v, want nothing", s.Commands)
	}
}

func TestFrozenModePlansOnlyNodeStates(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.node("b")
	w.apply("web")
	w.settle()
	w.apply("new")
	at := w.get("web").Node
	w.heard[at] = false
	w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "degraded", Reason: "test"}}})
	for range 3 {
		w.step()
	}
	if n, _ := w.state.Node(at); n.Up {
		t.Error("the planner must mark the lost node as down, but it is still up")
	}
	if w.get("web").Node != at || w.get("new").Node != "" || len(w.sent) != 0 {
		t.Error("in a frozen mode no workload may be moved, placed or ordered, but one was")
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "normal"}}})
	w.settle()
	if got := w.get("web"); got.Node == at || got.Node == "" {
		t.Errorf("after the thaw web is on %q, want it on another node", got.Node)
	}
}

func TestRetriesOfFailedWorkloads(t *testing.T) {
	t.Run("a failing workload backs off and is given up after the grace", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.fails["web"] = "RUNTIME_ERROR"
		begun := w.now
		for range 2000 {
			if !w.step() {
				if w.get("web").Retry.Terminal {
					break
				}
				w.now += second
			}
			w.answer()
		}
		got := w.get("web")
		if !got.Retry.Terminal || got.Reason.Code != fsm.CodeExhausted || got.Status != fsm.StatusFailed {
			t.Fatalf("web is %s, retry %+v, reason %+v, want it failed and given up with the reason Exhausted", got.Status, got.Retry, got.Reason)
		}
		if w.now-begun < w.tuning.FailureGrace {
			t.Errorf("the workload must not be given up within the failure grace, but was after %d s", (w.now-begun)/second)
		}
	})
	for _, code := range []string{"INVALID_IMAGE", "INVALID_SPECIFICATION", "INVALID_CONFIGURATION", "CLOUD_INIT_INVALID"} {
		t.Run(code+" is not retried", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.fails["web"] = code
			w.settle()
			got := w.get("web")
			if !got.Retry.Terminal || got.Reason.Code != fsm.CodePermanentFailure || !strings.Contains(got.Reason.Message, "a retry cannot help: ") {
				t.Fatalf("the retry is %+v, the reason %+v, want it given up with the reason PermanentFailure", got.Retry, got.Reason)
			}
		})
	}
	for _, state := range []fsm.Actual{fsm.ActualFailed, fsm.ActualStopped, fsm.ActualUnknown, fsm.ActualMissing} {
		for what, cause := range map[string]func(*commandv1.WorkloadReport){
			"INVALID_IMAGE": func(r *commandv1.WorkloadReport) { r.Code = "INVALID_IMAGE" },
			"a failure that the agent reports as terminal": func(r *commandv1.WorkloadReport) { r.Code, r.Terminal = "RUNTIME_ERROR", true },
			"a terminal failure without a failure class":   func(r *commandv1.WorkloadReport) { r.Terminal = true },
		} {
			t.Run(fmt.Sprintf("%s of a %s workload is not retried", what, state), func(t *testing.T) {
				w := newWorld(t)
				w.node("a", func(n *commandv1.RegisterNode) { n.Protocol, n.InstanceId = 0, "" })
				w.apply("web")
				w.settle()
				r := &commandv1.WorkloadReport{Workload: "web", Node: "a", Acknowledged: true, State: string(state), Message: "no such thing"}
				cause(r)
				w.report(r)
				generation := w.get("web").Generation
				for end := w.now + 2*w.tuning.MissingGrace + 10*second; w.now < end; w.now += second {
					w.step()
				}
				got := w.get("web")
				if !got.Retry.Terminal || got.Generation != generation || got.Status != fsm.StatusFailed || !strings.Contains(got.Reason.Message, "no such thing") {
					t.Fatalf("web is %s, retry %+v, reason %+v, want it failed and given up at the same generation, with the agent's message", got.Status, got.Retry, got.Reason)
				}
			})
		}
	}
	t.Run("a Pending workload with the cause of an earlier failure gets the apply timeout", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", func(n *commandv1.RegisterNode) { n.Protocol, n.InstanceId = 0, "" })
		w.apply("web")
		w.settle()
		w.report(&commandv1.WorkloadReport{Workload: "web", Node: "a", Acknowledged: true, State: "Pending", Code: "INVALID_IMAGE"})
		for end := w.now + w.tuning.ApplyTimeout - 5*second; w.now < end; w.now += second {
			if w.step(); w.get("web").Retry.Terminal {
				t.Fatalf("web must be retried, but was given up with reason %+v", w.get("web").Reason)
			}
		}
		for end := w.now + 10*second; w.now < end; w.now += second {
			w.step()
		}
		if got := w.get("web"); !got.Retry.Terminal || got.Reason.Code != fsm.CodePermanentFailure {
			t.Fatalf("the retry is %+v, the reason %+v, want it given up with the reason PermanentFailure", got.Retry, got.Reason)
		}
	})
	t.Run("failures are cleared once the workload has run for the grace", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.fails["web"] = "RUNTIME_ERROR"
		for w.get("web").Retry.Attempts == 0 {
			w.step()
			w.answer()
		}
		delete(w.fails, "web")
		w.settle()
		got := w.get("web")
		if got.Status != fsm.StatusRunning || got.Retry.Attempts == 0 {
			t.Fatalf("before the grace web is %s, retry %+v, want it running, with its failed attempts still counted", got.Status, got.Retry)
		}
		if s := w.plan(); s.WakeAt > got.Retry.StableSince+w.tuning.FailureGrace {
			t.Fatalf("the planner must wake up when the failure grace has passed, but wakes %d s after web began to run", (s.WakeAt-got.Retry.StableSince)/second)
		}
		w.now = got.Retry.StableSince + w.tuning.FailureGrace
		w.settle()
		if got := w.get("web"); got.Status != fsm.StatusRunning || got.Retry.Attempts != 0 {
			t.Fatalf("after the grace web is %s, retry %+v, want it running, with its failures cleared", got.Status, got.Retry)
		}
	})
	t.Run("a crash loop is given up", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		begun, runs := w.now, 0
		for !w.get("web").Retry.Terminal {
			if w.now-begun > 15*60*second {
				t.Fatalf("web must have been given up within a quarter of an hour, but its retry is %+v", w.get("web").Retry)
			}
			w.step()
			w.answer()
			if x := w.get("web"); x.Actual.State == fsm.ActualRunning { // the instance of web ends 3 s later
				runs++
				w.now += 3 * second
				w.say("web", "Failed")
				continue
			}
			w.now += second
		}
		if got := w.get("web"); got.Reason.Code != fsm.CodeExhausted || runs < 5 {
			t.Fatalf("web was started %d times, then given up with reason %+v, want at least 5 starts and the reason Exhausted", runs, got.Reason)
		}
		w.now += 3600 * second
		if s := w.plan(); len(s.Commands)+len(s.Orders) != 0 {
			t.Fatalf("an hour later the step is %+v, want nothing to do", s)
		}
	})
	t.Run("a Missing workload gets the grace before it is retried", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		g := w.get("web").Generation
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
			{Workload: "web", Node: "a", State: "Missing", Generation: fsm.GenerationPB(g)}}}}})
		s := w.plan()
		if len(s.Commands) != 0 {
			t.Fatalf("the planner must wait for the agent first, but proposed at once %v", s.Commands)
		}
		w.now += w.tuning.MissingGrace
		if s := w.plan(); len(s.Commands) != 1 || len(s.Commands[0].GetScheduleRetries().GetRetries()) != 1 {
			t.Fatalf("after the grace the planner proposed %v, want one retry", s.Commands)
		}
	})
}

func TestDeadlinesOfOrders(t *testing.T) {
	for _, c := range []struct {
		kind  string
		limit int64
	}{{"container", 45 * second}, {"compose", 45 * second}, {"vm", 240 * second}} {
		t.Run("an accepted "+c.kind+" that does not reach its desired state in time has failed", func(t *testing.T) {
			w := newWorld(t)
			w.node("a", func(n *commandv1.RegisterNode) { n.Types = []string{c.kind} })
			w.apply("web", demand(func(d *commandv1.Demand) { d.Type = c.kind }))
			for w.get("web").Node == "" {
				w.step()
			}
			w.say("web", "Pending")
			at := w.get("web").AcknowledgedAt
			s := w.plan()
			if len(s.Commands) != 0 || s.WakeAt > at+c.limit {
				t.Fatalf("at once the step is %+v, want no command, and a next step at the deadline", s)
			}
			w.now = at + c.limit - 1
			if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
				t.Fatalf("before the deadline the step is %+v, want no command and no inquiry", s)
			}
			w.now = at + c.limit
			s = w.plan()
			if len(s.Commands) != 1 || len(s.Inquiries) != 1 || s.Inquiries[0] != (Inquiry{"a", "web"}) {
				t.Fatalf("after the deadline the step is %+v, want one command, and one inquiry about web at node a", s)
			}
			r := s.Commands[0].GetScheduleRetries().GetRetries()[0]
			if r.GetAttempts() != 1 || r.GetNextAt() <= w.now || !strings.Contains(r.GetMessage(), fmt.Sprintf("after %d s", c.limit/second)) {
				t.Fatalf("the retry is %+v, want 1 attempt, a later next attempt, and the missed deadline in its message", r)
			}
		})
	}
	t.Run("a slow delete is reported once, with the next command", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
		begun := w.now
		w.step() // the order is sent, and the agent does not answer
		if s := w.plan(); len(s.Commands) != 0 || s.WakeAt > begun+w.tuning.DeleteTimeout {
			t.Fatalf("at once the step is %+v, want no command, and a next step at the deadline", s)
		}
		w.now = begun + w.tuning.DeleteTimeout
		if s := w.plain(); len(s.Inquiries) != 1 {
			t.Fatalf("after the deadline the step is %+v, want one inquiry", s)
		}
		w.step()
		if got := w.get("web"); got.Reason.Code != fsm.CodeDeleteTimeout || !strings.Contains(got.Reason.Message, "persysctl delete web --force") {
			t.Fatalf("the reason is %+v, want DeleteTimeout with the command persysctl delete web --force", got.Reason)
		}
		if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
			t.Fatalf("the step after the report is %+v, want no command and no inquiry", s)
		}
		w.answer()
		if _, ok := w.state.Workload("web"); ok {
			t.Fatal("the record of the workload must be removed after its node deleted it, but still exists")
		}
	})
	t.Run("a running workload has no deadline", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.now += 3600 * second
		if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
			t.Fatalf("the step for a running workload is %+v, want no command and no inquiry", s)
		}
	})
}

func TestJitterIsBoundedAndSpread(t *testing.T) {
	p := &planner{World: World{Tuning: DefaultTuning()}}
	var low, high int
	for i := range 1000 {
		w := &fsm.Workload{ID: "w", Generation: fsm.Generation{Incarnation: 1, Sequence: uint64(i)}}
		for n := int32(1); n < 12; n++ {
			bound := min(p.Tuning.RetryMax, p.Tuning.RetryBase<<(n-1))
			got := p.jitter(w, n)
			if got < minBackoff || got > bound {
				t.Fatalf("the wait before attempt %d is %d ns, want it between minBackoff and the bound of %d ns", n, got, bound)
			}
			if got < bound/2 {
				low++
			} else {
				high++
			}
		}
	}
	if low < 4000 || high < 4000 {
		t.Errorf("%d waits are in the lower half of their range and %d in the upper half, want at least 4000 in each", low, high)
	}
}

func TestHigherPriorityIsPlacedFirst(t *testing.T) {
	w := newWorld(t)
	big := func(d *commandv1.Demand) { d.CpuMillicores = 3000 }
	w.apply("old", demand(big))
	w.apply("new", demand(big), demand(func(d *commandv1.Demand) { d.Priority = 5 }))
	w.node("a")
	w.settle()
	if w.get("new").Node != "a" || w.get("old").Node != "" {
		t.Fatalf("workload new is on node %q and workload old on node %q, want new on node \"a\" and old evicted", w.get("new").Node, w.get("old").Node)
	}
}

// TestAnUnplacedWorkloadIsRetriedForLessDemandOrANewNode: a workload fits on no node. After a change of its
// specification with the same demand, the planner must not search again. It must search again after a change
// that lowers the demand, and when a node joins.
func TestAnUnplacedWorkloadIsRetriedForLessDemandOrANewNode(t *testing.T) {
	w := newWorld(t)
	w.node("small")
	needs := func(cpu int64) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.CpuMillicores = cpu })
	}
	w.apply("web", needs(1_000_000))
	w.settle()
	open := func() bool { return w.cache.open.contains("web") }
	changed := func(spec string, cpu int64) {
		w.apply("web", needs(cpu), func(p *commandv1.WorkloadPut) { p.Spec = []byte(spec) })
		w.cache.sync(&World{State: w.state, Tuning: w.tuning, Changes: w.changes})
	}
	changed("spec 2", 1_000_000)
	if open() || w.get("web").Reason.Code != fsm.CodeUnplaced {
		t.Fatalf("the planner must not try to place the same demand again: %+v", w.get("web").Reason)
	}
	changed("spec 3", 900_000)
	if !open() {
		t.Fatal("the planner must try again to place a workload whose demand became lower")
	}
	w.settle()
	changed("spec 4", 900_000)
	if open() {
		t.Fatal("the planner must not try to place the same demand again")
	}
	w.node("large", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2_000_000 })
	w.settle()
	if got := w.get("web"); got.Node != "large" {
		t.Fatalf("the workload is on %q, reason %s, want it on node large", got.Node, got.Reason.Message)
	}
}

func TestAStepIsBounded(t *testing.T) {
	w := newWorld(t)
	w.tuning.MaxCommands = 2
	w.node("a")
	for i := range 5 {
		w.apply("w" + string(rune('0'+i)))
	}
	s := w.plan()
	if got := len(s.Commands[0].GetAssign().GetAssignments()); got != 2 || s.WakeAt != w.now {
		t.Fatalf("the step has %d assignments and asks for the next step in %d ns, want 2 assignments, and the next step at once", got, s.WakeAt-w.now)
	}
	w.settle()
	if got := w.state.Alloc("a").Workloads; got != 5 {
		t.Fatalf("after all steps %d workloads are placed, want 5", got)
	}
}

func TestAnExclusiveWorkloadWhoseDrainingNodeIsLostAwaitsTheFence(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("vm", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
	w.settle()
	w.node("b")
	w.drain("a", true)
	w.step() // the workload is evicted; node a has not stopped it yet
	w.sent = map[Order]bool{}
	w.heard["a"] = false
	w.settle()
	got := w.get("vm")
	if got.Node != "" || got.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(got.Reason.Message, "persysctl node fence a") {
		t.Fatalf("the workload is on %q, reason %+v, want it unplaced with the reason AwaitFailover and the fence command", got.Node, got.Reason)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.settle()
	if got := w.get("vm"); got.Node != "b" {
		t.Fatalf("after the fence the workload is on %q, reason %+v, want node b", got.Node, got.Reason)
	}
}

// While an instance that its node must still remove (a residual) holds a port, a conflict between other
// workloads about that port is hidden. The planner must find the conflict once the instance is gone.
func TestAPortConflictBehindAResidualIsSeen(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"a", "b", "c"} {
		w.node(n)
	}
	on := func(node string) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) {
			d.Constraints = []*commandv1.Constraint{{Key: "node.id", Op: "=", Values: []string{node}}}
		})
	}
	w.apply("first", on("a"), demand(port(80, "tcp")))
	w.apply("second", on("a"))
	w.apply("third", on("a"))
	w.settle()
	// The workload named first moves from node a to b, and a must still stop its former instance, which
	// holds the port. Then two other workloads demand the port.
	w.apply("first", on("b"), demand(port(80, "tcp")))
	w.step()
	w.apply("second", demand(port(80, "tcp")))
	w.apply("third", demand(port(80, "tcp")))
	for range 4 {
		w.step()
		slow := map[Order]bool{}
		for _, o := range sortedOrders(w.sent) {
			if o.Op == OpDelete && o.Workload == "first" {
				slow[o] = true
				delete(w.sent, o)
			}
		}
		w.answer()
		for o := range slow {
			w.sent[o] = true
		}
	}
	if _, ok := w.state.Residual("a", "first"); !ok || w.get("third").Reason.Code != fsm.CodeAwaitStop {
		t.Fatal("the residual must still exist, and workloads must wait for it")
	}
	w.answer()
	w.settle()
	seen := map[string]string{}
	for _, id := range []string{"first", "second", "third"} {
		n := w.get(id).Node
		if n == "" || seen[n] != "" {
			t.Errorf("workload %q is on node %q beside workload %q with reason %+v, want each workload on a node of its own", id, n, seen[n], w.get(id).Reason)
		}
		seen[n] = id
	}
}

// If the runtime of a workload type is missing on a node, workloads of that type are moved away. The node is
// used for the type again once its agent has registered again.
func TestWorkloadsLeaveNodeWithoutRuntime(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.step()
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
		Workload: "web", Node: "a", Generation: fsm.GenerationPB(w.get("web").Generation), Refused: true, Code: fsm.CodeRuntimeNotOffered}}}}})
	w.sent = map[Order]bool{}
	w.settle()
	if got := w.get("web"); got.Node != "" || !strings.Contains(got.Reason.Message, "type container") {
		t.Fatalf("the workload is on %q, reason %+v, want it unplaced, because the node lacks type container", got.Node, got.Reason)
	}
	w.node("b")
	w.settle()
	if got := w.get("web"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Fatalf("the workload is on %q, reason %+v, want it running on node b", got.Node, got.Reason)
	}
	w.node("a")
	if n, _ := w.state.Node("a"); !n.Runs("container") {
		t.Error("the record of node a must be cleared of its missing runtime after it registered again")
	}
}
