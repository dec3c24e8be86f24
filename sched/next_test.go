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
		t.Fatalf("web is %s on %q", got.Status, got.Node)
	}
	if s := w.plain(); len(s.Commands)+len(s.Orders) != 0 {
		t.Fatalf("a converged world yields %+v", s)
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
		t.Errorf("nodes have %v workloads, want 8 on one, 1 on another", got)
	}
}

func TestAGroupSpreads(t *testing.T) {
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

// A late heartbeat of a fenced node does not mark it up.
func TestAFencedNodeDoesNotReturnByBeingHeard(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.heard["a"] = false
	w.settle()
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.heard["a"] = true
	if step := w.plan(); len(step.Commands) > 0 {
		t.Errorf("a step proposes %v", step.Commands)
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
		t.Errorf("web is on %q, was on %q", got.Node, got.PreviousNode)
	}
	vm := w.get("vm")
	if vm.Node != "a" || vm.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(vm.Reason.Message, "persysctl node fence a") {
		t.Errorf("the exclusive workload is on %q: %+v", vm.Node, vm.Reason)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.settle()
	if got := w.get("vm"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("after the fence it is %s on %q", got.Status, got.Node)
	}
}

// A workload that a fencer stops when the lease ends is placed again once the fence bound is
// over, counted by the clock of the leader that waits, and never before.
func TestWorkloadMovesAfterTheFenceBound(t *testing.T) {
	stop := demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" })
	guard := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.downSince = map[string]int64{}
	w.node("plain")
	w.apply("db", stop)
	w.settle()
	if got := w.get("db"); got.Node != "" || !strings.Contains(got.Reason.Message, "fencer") {
		t.Fatalf("on %q, %+v: a node without a fencer must not get it, and the reason must say so", got.Node, got.Reason)
	}
	w.node("a", guard)
	w.settle()
	if got := w.get("db"); got.Node != "a" || got.Status != fsm.StatusRunning {
		t.Fatalf("%s on %q, want it to run on a", got.Status, got.Node)
	}
	w.node("b", guard)
	lost := w.now
	w.heard["a"], w.downSince["a"] = false, lost
	w.settle()
	for _, c := range []struct {
		what  string
		after int64
		since int64 // DownSince, as a leader knows it
		want  string
	}{
		{"before the bound", 5 * second, lost, "a"},
		{"a new leader that learned of it just now", 60 * second, lost + 59*second, "a"},
		{"a leader that does not know when the node was lost", 600 * second, 0, "a"},
		{"after the bound", 600 * second, lost + 585*second, "b"},
	} {
		w.now, w.downSince["a"] = lost+c.after, c.since
		w.cache = NewCache() // as a new leader has it
		w.settle()
		if got := w.get("db"); got.Node != c.want {
			t.Fatalf("%s: it is on %q, want %q (%+v)", c.what, got.Node, c.want, got.Reason)
		}
	}
	if left := residualsOf(w, "db"); left != 0 {
		t.Errorf("%d residuals of a workload that is known to be gone", left)
	}
	// The planner asks to be woken when the bound is over.
	w.heard["b"], w.downSince["b"] = false, w.now
	w.settle()
	if at := w.plan().WakeAt; at == 0 || at > w.now+15*second {
		t.Errorf("the next step is at %d, want it within 15 s of %d", at, w.now)
	}
	// While the leader's clock offset shrinks, so does DownSince; the cache holds no old
	// deadline.
	w.now += 6 * second
	w.plan()
	w.downSince["b"] -= second / 10
	if cached, plain := w.plan(), w.plain(); cached.WakeAt != plain.WakeAt {
		t.Errorf("the next step is at %d with a cache and at %d without", cached.WakeAt, plain.WakeAt)
	}
}

// A step with a cache has the same WakeAt as one without: the deadlines of orders on a lost
// node do not count.
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
			t.Errorf("lost %t: the next step is at %+d ns with a cache and at %+d ns without", lost, got-w.now, plain-w.now)
		}
	}
}

func residualsOf(w *world, id string) (n int) {
	w.state.ResidualsOf(id, func(*fsm.Residual) bool { n++; return true })
	return n
}

// Only accepted orders count: a workload whose stop was not accepted does not count as
// stopped.
func TestAChangeToStopCountsOnceItIsAccepted(t *testing.T) {
	guard := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.downSince = map[string]int64{}
	w.node("a", guard)
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "keep" }))
	w.settle()
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" }))
	w.node("b", guard)
	w.heard["a"], w.downSince["a"] = false, w.now
	w.settle()
	w.now += 3600 * second
	w.settle()
	if got := w.get("db"); got.Node != "a" || got.Reason.Code != fsm.CodeAwaitFailover {
		t.Errorf("on %q, %+v: want it to await the fence, because a never heard of the change", got.Node, got.Reason)
	}
}

// Workloads that need a fencer leave a node that no longer has one.
func TestANodeWithoutItsFencerIsLeft(t *testing.T) {
	guard := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 15 }
	w := newWorld(t)
	w.node("a", guard)
	w.apply("db", demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, "stop" }))
	w.settle()
	w.node("b", guard)
	w.node("a")
	w.settle()
	if got := w.get("db"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("%s on %q, want it to run on b", got.Status, got.Node)
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
		t.Fatalf("web is on %q: %+v", got.Node, got.Reason)
	}
	w.heard["a"] = true
	for range 20 {
		w.step()
		for o := range w.sent {
			if o.Op == OpDelete {
				t.Fatal("the running instance was ordered gone")
			}
		}
		w.answer()
	}
	if got := w.get("web"); got.Node != "a" || got.Status != fsm.StatusRunning {
		t.Fatalf("web is %s on %q", got.Status, got.Node)
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
		w.step() // no answers: the agent of a says nothing
	}
	got := w.get("web")
	if got.Node != "" || got.Reason.Code != fsm.CodeAwaitStop || !strings.Contains(got.Reason.Message, "node a has stopped it (Draining)") {
		t.Fatalf("web is on %q: %+v", got.Node, got.Reason)
	}
	w.answer()
	w.settle()
	if got := w.get("web"); got.Node != "b" {
		t.Fatalf("web is on %q", got.Node)
	}
}

func TestALostTypeOrLabelMovesAWorkload(t *testing.T) {
	for _, c := range []struct {
		name, code string
		demand     func(*commandv1.Demand)
		change     func(*commandv1.RegisterNode)
	}{
		{"type", fsm.CodeRuntimeNotOffered, func(*commandv1.Demand) {}, func(n *commandv1.RegisterNode) { n.Types = []string{"vm"} }},
		{"label", CodeConstraintChanged,
			func(d *commandv1.Demand) { d.Labels = []*commandv1.Label{{Key: "zone", Value: "x"}} },
			func(n *commandv1.RegisterNode) { n.Labels = nil }},
		{"constraint", CodeConstraintChanged,
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
			w.node("a", zone, c.change)
			s := w.plan()
			ev := s.Commands[0].GetEvict().GetEvictions()
			if len(ev) != 1 || ev[0].GetCode() != c.code {
				t.Fatalf("planned %v", s.Commands)
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
		t.Errorf("y moved to %q", got.Node)
	}
	if got := w.get("x"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Errorf("x is %s on %q", got.Status, got.Node)
	}
}

func TestANodeThatShrinksKeepsWhatRuns(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("x", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 }))
	w.settle()
	w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2000 })
	if s := w.plan(); len(s.Commands) != 0 {
		t.Fatalf("planned %v", s.Commands)
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
		t.Error("the lost node is still up")
	}
	if w.get("web").Node != at || w.get("new").Node != "" || len(w.sent) != 0 {
		t.Error("something moved in a frozen mode")
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "normal"}}})
	w.settle()
	if got := w.get("web"); got.Node == at || got.Node == "" {
		t.Errorf("after the thaw web is on %q", got.Node)
	}
}

func TestRetries(t *testing.T) {
	t.Run("back off and give up after the grace", func(t *testing.T) {
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
			t.Fatalf("%s %+v %+v", got.Status, got.Retry, got.Reason)
		}
		if w.now-begun < w.tuning.FailureGrace {
			t.Errorf("gave up after %d s, within the grace", (w.now-begun)/second)
		}
	})
	for _, code := range []string{"INVALID_IMAGE", "INVALID_SPECIFICATION", "INVALID_CONFIGURATION", "PORT_BIND_CONFLICT", "CLOUD_INIT_INVALID"} {
		t.Run(code+" is not retried", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.fails["web"] = code
			w.settle()
			got := w.get("web")
			if !got.Retry.Terminal || got.Reason.Code != fsm.CodePermanentFailure || !strings.Contains(got.Reason.Message, "a retry cannot help: ") {
				t.Fatalf("%+v %+v", got.Retry, got.Reason)
			}
		})
	}
	t.Run("success forgets the failures once it has lasted", func(t *testing.T) {
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
			t.Fatalf("at once: %s %+v", got.Status, got.Retry)
		}
		if s := w.plan(); s.WakeAt > got.Retry.StableSince+w.tuning.FailureGrace {
			t.Fatalf("wakes %d s after it began to run", (s.WakeAt-got.Retry.StableSince)/second)
		}
		w.now = got.Retry.StableSince + w.tuning.FailureGrace
		w.settle()
		if got := w.get("web"); got.Status != fsm.StatusRunning || got.Retry.Attempts != 0 {
			t.Fatalf("after the grace: %s %+v", got.Status, got.Retry)
		}
	})
	t.Run("a crash loop is given up", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		begun, runs := w.now, 0
		for !w.get("web").Retry.Terminal {
			if w.now-begun > 15*60*second {
				t.Fatalf("after a quarter of an hour: %+v", w.get("web").Retry)
			}
			w.step()
			w.answer()
			if x := w.get("web"); x.Actual.State == fsm.ActualRunning { // and ends 3 s later
				runs++
				w.now += 3 * second
				w.say("web", "Failed")
				continue
			}
			w.now += second
		}
		if got := w.get("web"); got.Reason.Code != fsm.CodeExhausted || runs < 5 {
			t.Fatalf("%d runs, then %+v", runs, got.Reason)
		}
		w.now += 3600 * second
		if s := w.plan(); len(s.Commands)+len(s.Orders) != 0 {
			t.Fatalf("an hour later: %+v", s)
		}
	})
	t.Run("a missing one is given time", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		g := w.get("web").Generation
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
			{Workload: "web", Node: "a", State: "Missing", Generation: fsm.GenerationPB(g)}}}}})
		s := w.plan()
		if len(s.Commands) != 0 {
			t.Fatalf("planned at once: %v", s.Commands)
		}
		w.now += w.tuning.MissingGrace
		if s := w.plan(); len(s.Commands) != 1 || len(s.Commands[0].GetScheduleRetries().GetRetries()) != 1 {
			t.Fatalf("after the grace: %v", s.Commands)
		}
	})
}

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		kind  string
		limit int64
	}{{"container", 45 * second}, {"compose", 45 * second}, {"vm", 240 * second}} {
		t.Run("an accepted "+c.kind+" that does not get there has failed", func(t *testing.T) {
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
				t.Fatalf("at once: %+v", s)
			}
			w.now = at + c.limit - 1
			if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
				t.Fatalf("too early: %+v", s)
			}
			w.now = at + c.limit
			s = w.plan()
			if len(s.Commands) != 1 || len(s.Inquiries) != 1 || s.Inquiries[0] != (Inquiry{"a", "web"}) {
				t.Fatalf("in time: %+v", s)
			}
			r := s.Commands[0].GetScheduleRetries().GetRetries()[0]
			if r.GetAttempts() != 1 || r.GetNextAt() <= w.now || !strings.Contains(r.GetMessage(), fmt.Sprintf("after %d s", c.limit/second)) {
				t.Fatalf("%+v", r)
			}
		})
	}
	t.Run("a delete that takes too long is said once, with what to type", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
		begun := w.now
		w.step() // the order goes out, and nobody answers
		if s := w.plan(); len(s.Commands) != 0 || s.WakeAt > begun+w.tuning.DeleteTimeout {
			t.Fatalf("at once: %+v", s)
		}
		w.now = begun + w.tuning.DeleteTimeout
		if s := w.plain(); len(s.Inquiries) != 1 {
			t.Fatalf("in time: %+v", s)
		}
		w.step()
		if got := w.get("web"); got.Reason.Code != fsm.CodeDeleteTimeout || !strings.Contains(got.Reason.Message, "persysctl delete web --force") {
			t.Fatalf("%+v", got.Reason)
		}
		if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
			t.Fatalf("again: %+v", s)
		}
		w.answer()
		if _, ok := w.state.Workload("web"); ok {
			t.Fatal("it is still there after its node let it go")
		}
	})
	t.Run("what runs, and what is to be stopped, has none", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.now += 3600 * second
		if s := w.plan(); len(s.Commands)+len(s.Inquiries) != 0 {
			t.Fatalf("%+v", s)
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
				t.Fatalf("attempt %d waits %d, bound %d", n, got, bound)
			}
			if got < bound/2 {
				low++
			} else {
				high++
			}
		}
	}
	if low < 4000 || high < 4000 {
		t.Errorf("%d below and %d above the middle: not even", low, high)
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
		t.Fatalf("new on %q, old on %q", w.get("new").Node, w.get("old").Node)
	}
}

// TestAVerdictStandsForTheSameDemand: an unplaced workload is not tried again because its
// specification changed, but as soon as it demands less or a node is added.
func TestAVerdictStandsForTheSameDemand(t *testing.T) {
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
		t.Fatalf("the same demand is tried again: %+v", w.get("web").Reason)
	}
	changed("spec 3", 900_000)
	if !open() {
		t.Fatal("another demand is not tried")
	}
	w.settle()
	changed("spec 4", 900_000)
	if open() {
		t.Fatal("the same demand is tried again")
	}
	w.node("large", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2_000_000 })
	w.settle()
	if got := w.get("web"); got.Node != "large" {
		t.Fatalf("on %q: %s", got.Node, got.Reason.Message)
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
		t.Fatalf("%d assignments, wake at %d", got, s.WakeAt-w.now)
	}
	w.settle()
	if got := w.state.Alloc("a").Workloads; got != 5 {
		t.Fatalf("%d placed", got)
	}
}

func TestAnExclusiveWorkloadWhoseDrainingNodeIsLostAwaitsTheFence(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("vm", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
	w.settle()
	w.node("b")
	w.drain("a", true)
	w.step() // evicted; a has not stopped it yet
	w.sent = map[Order]bool{}
	w.heard["a"] = false
	w.settle()
	got := w.get("vm")
	if got.Node != "" || got.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(got.Reason.Message, "persysctl node fence a") {
		t.Fatalf("on %q: %+v", got.Node, got.Reason)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	w.settle()
	if got := w.get("vm"); got.Node != "b" {
		t.Fatalf("after the fence on %q: %+v", got.Node, got.Reason)
	}
}

// While a residual holds a port, a conflict between others about the port is not seen. It
// is seen once the residual is gone.
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
	// first leaves a but is not gone; the others come to want its port.
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
		t.Fatal("the residual must still be there, and be waited for")
	}
	w.answer()
	w.settle()
	seen := map[string]string{}
	for _, id := range []string{"first", "second", "third"} {
		n := w.get(id).Node
		if n == "" || seen[n] != "" {
			t.Errorf("%s is on %q beside %q: %+v", id, n, seen[n], w.get(id).Reason)
		}
		seen[n] = id
	}
}

// Workloads of a type whose runtime is missing leave the node until its agent registers
// again.
func TestANodeWithoutTheRuntimeIsLeft(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.step()
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
		Workload: "web", Node: "a", Generation: fsm.GenerationPB(w.get("web").Generation), Refused: true, Code: fsm.CodeRuntimeNotOffered}}}}})
	w.sent = map[Order]bool{}
	w.settle()
	if got := w.get("web"); got.Node != "" || !strings.Contains(got.Reason.Message, "type container") {
		t.Fatalf("on %q: %+v", got.Node, got.Reason)
	}
	w.node("b")
	w.settle()
	if got := w.get("web"); got.Node != "b" || got.Status != fsm.StatusRunning {
		t.Fatalf("on %q: %+v", got.Node, got.Reason)
	}
	w.node("a")
	if n, _ := w.state.Node("a"); !n.Runs("container") {
		t.Error("a has registered anew and is not asked")
	}
}
