package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func TestPreemptionOfLowerPriorities(t *testing.T) {
	prio := func(p int32, cpu int64) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.Priority, d.CpuMillicores, d.MemoryMib = p, cpu, 0 })
	}
	t.Run("the workload of the lowest priority is preempted", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", prio(0, 2000))
		w.apply("mid", prio(3, 2000))
		w.settle()
		w.apply("high", prio(5, 1500))
		w.settle()
		if w.get("high").Node != "a" || w.get("mid").Node != "a" || w.get("low").Node != "" {
			t.Fatalf("workload high is on node %q, mid on node %q and low on node %q; want high and mid on node \"a\", and low evicted", w.get("high").Node, w.get("mid").Node, w.get("low").Node)
		}
	})
	t.Run("an equal priority preempts no workload", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("first", prio(5, 3000))
		w.settle()
		w.apply("second", prio(5, 3000))
		w.settle()
		if w.get("first").Node != "a" || w.get("second").Node != "" {
			t.Fatal("a workload of equal priority must not be preempted, but was")
		}
	})
	t.Run("no workload is preempted if that would not make enough room", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", prio(0, 1000))
		w.settle()
		w.apply("high", prio(5, 5000))
		w.settle()
		if w.get("low").Node != "a" {
			t.Fatal("workload low must not be preempted, because that would not make enough room, but was")
		}
	})
	t.Run("one eviction is enough, and no other workload takes the room", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.node("b")
		for _, id := range []string{"v1", "v2"} {
			w.apply(id, prio(0, 3000))
		}
		w.settle()
		w.apply("high", prio(5, 4000))
		w.apply("small", prio(0, 1000), demand(func(d *commandv1.Demand) {}))
		var evicted int
		for range 6 {
			s := w.plain()
			for _, c := range s.Commands {
				evicted += len(c.GetEvict().GetEvictions())
			}
			w.step() // the agents answer no orders, so the evicted workloads are not stopped
		}
		if evicted != 1 {
			t.Fatalf("%d workloads were evicted for workload high, want 1", evicted)
		}
		w.answer()
		w.settle()
		if w.get("high").Node == "" {
			t.Fatalf("workload high must be placed, but is not; its reason is %+v", w.get("high").Reason)
		}
	})
	t.Run("a port holder of lower priority is preempted", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", demand(port(80, "tcp")))
		w.settle()
		w.apply("high", prio(1, 100), demand(port(80, "tcp")))
		w.settle()
		if w.get("high").Node != "a" || w.get("low").Node != "" {
			t.Fatalf("workload high is on node %q and low on node %q, want high on node \"a\" and low evicted", w.get("high").Node, w.get("low").Node)
		}
	})
}

func (w *world) namespace(name string, maxPriority int32) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: name, MaxPriority: maxPriority}}})
}

// of returns an option that sets namespace, priority and CPU demand of a workload.
func of(namespace string, priority int32, cpu int64) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Namespace = namespace
		p.Demand.Priority, p.Demand.CpuMillicores, p.Demand.MemoryMib = priority, cpu, 0
	}
}

// TestPreemptionAcrossNamespaces: a workload preempts workloads of other namespaces as if its priority
// were at most the maximum priority of its own namespace.
func TestPreemptionAcrossNamespaces(t *testing.T) {
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.namespace("bank", 0)
		w.namespace("shop", 0)
		w.apply("vault", of("bank", 0, 3000))
		w.settle()
		return w
	}
	t.Run("another namespace is not preempted without max_priority", func(t *testing.T) {
		w := begin(t)
		w.apply("cart", of("shop", 5, 3000))
		w.settle()
		w.on(t, "vault", "a")
		if x := w.get("cart"); x.Node != "" || x.Reason.Message != "0/1 nodes fit: 1 CPU" {
			t.Errorf("workload cart is on node %q with reason %+v, want it unplaced without a preemption", x.Node, x.Reason)
		}
		e := Explain(w.state, w.get("cart"), w.tuning)
		if want := "persysctl namespace set shop --max-priority 5"; !strings.Contains(e.Message, want) || !strings.Contains(e.Message, "vault on node a") {
			t.Errorf("Explain returned %s, want the command that raises the maximum priority", e.Message)
		}
		if m := PlanPlace(w.state, []*fsm.Workload{w.get("cart")}, w.tuning)[0]; m.To != "" || m.Preempts != nil || !strings.Contains(m.Message, "--max-priority 5") {
			t.Errorf("PlanPlace returned %+v, want no node and the advice --max-priority 5", m)
		}
	})
	t.Run("another namespace is preempted as soon as max_priority is set", func(t *testing.T) {
		w := begin(t)
		w.apply("cart", of("shop", 5, 3000))
		w.settle()
		w.namespace("shop", 5)
		if m := PlanPlace(w.state, []*fsm.Workload{w.get("cart")}, w.tuning)[0]; m.To != "a" || !slices.Equal(m.Preempts, []string{"vault"}) {
			t.Errorf("PlanPlace returned %+v, want node a and the preemption of vault", m)
		}
		if e := Explain(w.state, w.get("cart"), w.tuning); e.Message != "0/1 nodes fit: 1 CPU; takes the place of vault on node a" {
			t.Errorf("Explain returned %s, want that cart takes the place of vault", e.Message)
		}
		w.now += explainEvery
		w.step()
		if x := w.get("cart"); x.Reason.Message != "0/1 nodes fit: 1 CPU; takes the place of vault on node a" {
			t.Errorf("workload cart has reason %+v, want that it takes the place of vault", x.Reason)
		}
		w.settle()
		w.on(t, "cart", "a")
		x := w.get("vault")
		if x.Node != "" || x.PreemptedBy != "cart" || x.Reason.Message != "0/1 nodes fit: 1 CPU; it left node a to make room for cart" {
			t.Errorf("workload vault is on node %q with reason %+v, want it evicted to make room for cart", x.Node, x.Reason)
		}
		if e := Explain(w.state, x, w.tuning); e.Message != x.Reason.Message {
			t.Errorf("Explain returned %s, want the message in the record of vault", e.Message)
		}
	})
	t.Run("priorities count in other namespaces only up to max_priority", func(t *testing.T) {
		w := begin(t)
		w.namespace("shop", 3)
		w.apply("vault", of("bank", 3, 3000))
		w.settle()
		w.apply("cart", of("shop", 900, 3000))
		w.settle()
		w.on(t, "vault", "a")
	})
	t.Run("the same namespace is preempted without max_priority", func(t *testing.T) {
		w := begin(t)
		w.apply("cart", of("bank", 1, 3000))
		w.settle()
		w.on(t, "cart", "a")
	})
	t.Run("no exclusive workload and no workload with local data is preempted", func(t *testing.T) {
		for name, keeps := range map[string]func(*commandv1.WorkloadPut){"data": withData, "exclusive": demand(func(d *commandv1.Demand) { d.Exclusive = true })} {
			w := newWorld(t)
			w.node("a")
			w.apply("old", cpu(3000), keeps)
			w.settle()
			w.apply("high", of("", 1000, 3000))
			w.settle()
			w.on(t, "old", "a")
			if m := PlanPlace(w.state, []*fsm.Workload{w.get("high")}, w.tuning)[0]; m.To != "" {
				t.Errorf("for a victim with the property %q, PlanPlace returned %+v, want no node", name, m)
			}
		}
	})
}

// TestPlansNameVictims: the plan (dry run) of an apply or of a drain lists the workloads that would
// be evicted, each of them exactly once.
func TestPlansNameVictims(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.node("b")
	w.cordon("b", true)
	w.apply("low", of("", 0, 2000))
	w.apply("mid", of("", 1, 2000))
	w.settle()
	next := func(id string) *fsm.Workload {
		return &fsm.Workload{ID: id, Desired: fsm.DesiredRunning, Actual: &fsm.Observation{}, Demand: &fsm.Demand{Type: "container", CPU: 2000, Priority: 5}}
	}
	moves := PlanPlace(w.state, []*fsm.Workload{next("x"), next("y"), next("z")}, w.tuning)
	for i, want := range []string{"a [low]", "a [mid]", " []"} {
		if got := fmt.Sprintf("%s %v", moves[i].To, moves[i].Preempts); got != want {
			t.Errorf("the plan for workload %s is %q, want %q (message: %s)", moves[i].Workload, got, want, moves[i].Message)
		}
	}
	w.cordon("b", false)
	w.apply("high", of("", 5, 4000))
	w.settle()
	w.on(t, "high", "b")
	moves = PlanDrain(w.state, "b", false, 0, w.tuning)
	if m := moves[0]; m.To != "a" || !slices.Equal(m.Preempts, []string{"low", "mid"}) {
		t.Errorf("PlanDrain returned %+v, want node a and the preemption of low and mid", m)
	}
	w.drain("b", true)
	w.settle()
	w.on(t, "high", "a")
}

// stuck lets the given number of seconds pass, or until done returns true. Meanwhile no agent
// carries out a delete.
func (w *world) stuck(seconds int64, done func(after int64) bool) {
	for after := range seconds {
		w.step()
		clear(w.sent)
		w.now += second
		if done(after) {
			return
		}
	}
}

// If nodes are up but do not carry out a delete, a workload of higher priority must still get to run on
// another node in the end, and not all other workloads may be evicted for it.
func TestNodesThatDoNotDeleteDelayNoWorkload(t *testing.T) {
	w := newWorld(t)
	big := demand(func(d *commandv1.Demand) { d.CpuMillicores = 4000 })
	nodes := []string{"a", "b", "c", "d", "e", "f"}
	for _, id := range nodes {
		w.node(id)
		w.apply("low-"+id, big)
	}
	w.settle()
	w.apply("high", big, demand(func(d *commandv1.Demand) { d.Priority = 5 }))
	var evicted []int64 // seconds until each eviction happened
	w.stuck(1500, func(after int64) bool {
		n := 0
		for _, id := range nodes {
			if w.get("low-"+id).Node == "" {
				n++
			}
		}
		for len(evicted) < n {
			evicted = append(evicted, after)
		}
		return false
	})
	if len(evicted) != 4 || evicted[0] > 2 || evicted[1] < 120 || evicted[2] < evicted[1]+240 || evicted[3] < evicted[2]+480 {
		t.Errorf("evictions happened after %v s, want 4 evictions with growing waits; workload high is %s (%s)", evicted, w.get("high").Status, w.get("high").Reason.Message)
	}
}

// If the only suitable node must still remove instances that left it (residuals), other workloads
// can be evicted from it all the same.
func TestResidualsDoNotPreventAnEviction(t *testing.T) {
	w := newWorld(t)
	half := demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 })
	w.node("a")
	w.apply("stuck", half)
	w.apply("low", half, demand(func(d *commandv1.Demand) { d.Priority = 1 }))
	w.settle()
	w.apply("high", half, demand(func(d *commandv1.Demand) { d.Priority = 5 }))
	evicted := int64(-1)
	w.stuck(300, func(after int64) bool {
		if w.get("low").Node == "" {
			evicted = after
		}
		return evicted >= 0
	})
	if evicted < 120 {
		t.Errorf("workload low must be evicted after 120 s or later, but was evicted after %d s (-1: never); workload high is %s (%s)", evicted, w.get("high").Status, w.get("high").Reason.Message)
	}
}
