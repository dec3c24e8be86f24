package sched

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func TestPreemption(t *testing.T) {
	prio := func(p int32, cpu int64) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.Priority, d.CpuMillicores, d.MemoryMib = p, cpu, 0 })
	}
	t.Run("the lowest priority makes room", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", prio(0, 2000))
		w.apply("mid", prio(3, 2000))
		w.settle()
		w.apply("high", prio(5, 1500))
		w.settle()
		if w.get("high").Node != "a" || w.get("mid").Node != "a" || w.get("low").Node != "" {
			t.Fatalf("high on %q, mid on %q, low on %q", w.get("high").Node, w.get("mid").Node, w.get("low").Node)
		}
	})
	t.Run("not for an equal priority", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("first", prio(5, 3000))
		w.settle()
		w.apply("second", prio(5, 3000))
		w.settle()
		if w.get("first").Node != "a" || w.get("second").Node != "" {
			t.Fatal("an equal was preempted")
		}
	})
	t.Run("not if it would not help", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", prio(0, 1000))
		w.settle()
		w.apply("high", prio(5, 5000))
		w.settle()
		if w.get("low").Node != "a" {
			t.Fatal("preempted in vain")
		}
	})
	t.Run("once is enough while the victim stops, and nobody slips in", func(t *testing.T) {
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
			w.step() // no agent answers
		}
		if evicted != 1 {
			t.Fatalf("%d evictions, want 1", evicted)
		}
		w.answer()
		w.settle()
		if w.get("high").Node == "" {
			t.Fatalf("high is unplaced: %+v", w.get("high").Reason)
		}
	})
	t.Run("a port holder of lower priority makes room", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("low", demand(port(80, "tcp")))
		w.settle()
		w.apply("high", prio(1, 100), demand(port(80, "tcp")))
		w.settle()
		if w.get("high").Node != "a" || w.get("low").Node != "" {
			t.Fatalf("high on %q, low on %q", w.get("high").Node, w.get("low").Node)
		}
	})
}

// stuck lets time pass in which no agent carries out a delete, until done.
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

// Nodes that are up but do not carry out a delete neither keep a higher priority from running
// elsewhere for ever, nor cause the eviction of everything else.
func TestRoomThatNeverComes(t *testing.T) {
	w := newWorld(t)
	big := demand(func(d *commandv1.Demand) { d.CpuMillicores = 4000 })
	nodes := []string{"a", "b", "c", "d", "e", "f"}
	for _, id := range nodes {
		w.node(id)
		w.apply("low-"+id, big)
	}
	w.settle()
	w.apply("high", big, demand(func(d *commandv1.Demand) { d.Priority = 5 }))
	var evicted []int64 // after how many seconds
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
		t.Errorf("evicted after %v s; high is %s (%s)", evicted, w.get("high").Status, w.get("high").Reason.Message)
	}
}

// Residuals on the only suitable node do not keep other workloads from being evicted there.
func TestRoomBesideWhatDoesNotGo(t *testing.T) {
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
		t.Errorf("low is evicted after %d s (-1: never); high is %s (%s)", evicted, w.get("high").Status, w.get("high").Reason.Message)
	}
}
