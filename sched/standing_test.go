package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// setBalance lets the leader move at most perHour workloads an hour by itself to even out the load of the nodes, at most
// atOnce at the same time, and each for a gain of at least 10 % of a node.
func (w *world) setBalance(perHour, atOnce uint32) {
	w.do(&commandv1.Command{Body: &commandv1.Command_SetRebalancePolicy{SetRebalancePolicy: &commandv1.SetRebalancePolicy{
		Policy: &commandv1.RebalancePolicy{PerHour: perHour, AtOnce: atOnce, MinGainPercent: 10},
	}}})
}

// unbalanced returns a world in which six workloads run on node a, and node b is empty.
func unbalanced(t *testing.T) *world {
	w := newWorld(t)
	w.setBalance(3, 2)
	w.node("a")
	w.many(6)
	w.settle()
	w.now += 2 * minute
	w.node("b")
	return w
}

// moveNow applies the command for the given moves, and returns how many of them the state machine
// accepted.
func (w *world) moveNow(moves []BalanceMove) (n int) {
	w.t.Helper()
	if len(moves) == 0 {
		return 0
	}
	for _, it := range w.do(MoveCommand(moves)).Items {
		if it.Kind == fsm.OK {
			n++
		} else {
			w.t.Fatalf("the state machine skipped a move with reason: %s", it.Reason)
		}
	}
	return n
}

// found returns the moves that the leader would make now to even out the load, or the reason why it
// makes none.
func (w *world) found() ([]BalanceMove, string) {
	_, waits := StandingBalance(w.state, w.now)
	return StandingMoves(w.state, w.tuning, w.now, nil), waits
}

// TestStandingBalanceWaits: the leader moves nothing by itself unless the policy says so and the cluster is calm.
func TestStandingBalanceWaits(t *testing.T) {
	tests := []struct {
		name string
		then func(w *world)
		why  string
	}{
		{"the leader moves workloads in a calm cluster", func(*world) {}, ""},
		{"the leader moves nothing if the policy allows no moves", func(w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_SetRebalancePolicy{SetRebalancePolicy: &commandv1.SetRebalancePolicy{}}})
		}, "off"},
		{"the leader moves nothing while a node is draining", func(w *world) { w.node("c"); w.drain("c", true) }, "node c is draining"},
		{"the leader moves nothing while a node is lost", func(w *world) {
			w.node("c")
			w.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "c"}}}}})
		}, "node c is lost"},
		{"the leader moves nothing while a workload has no node", func(w *world) { w.apply("large", demand(func(d *commandv1.Demand) { d.CpuMillicores = 100_000 })) }, "until workload large has a node"},
		{"the leader moves nothing in a frozen mode", func(w *world) { w.setMode("degraded") }, "end of mode degraded"},
		{"the leader moves nothing while a group is being updated", func(w *world) {
			put := func(v int) {
				b := &commandv1.PutWorkloads{GroupOf: "g", Update: &commandv1.UpdatePolicy{MaxParallel: 1, MinHealthy: second, HealthyDeadline: 60 * second}}
				for i := range 2 {
					b.Workloads = append(b.Workloads, &commandv1.WorkloadPut{
						Id: fmt.Sprintf("g-%d", i), Content: fmt.Sprintf("c1:%064d", v), Desired: "Running", Demand: &commandv1.Demand{Type: "container", Group: "g"},
					})
				}
				w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: b}})
			}
			put(1)
			w.settle()
			put(2)
		}, "end of the update of g"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := unbalanced(t)
			tt.then(w)
			moves, waits := w.found()
			if tt.why == "" && waits == "" && len(moves) == 2 {
				return
			}
			if tt.why == "" || !strings.Contains(waits, tt.why) || len(moves) > 0 {
				t.Errorf("the leader finds %d moves and gives %q as the reason to wait, want the reason %q (empty: 2 moves)", len(moves), waits, tt.why)
			}
		})
	}
}

// TestStandingBalanceKeepsItsLimits: the leader has at most AtOnce moves in progress and makes at
// most PerHour moves within an hour. It moves no workload that was just placed. A move that does
// not end is treated as in progress for ten minutes only.
func TestStandingBalanceKeepsItsLimits(t *testing.T) {
	w := unbalanced(t)
	w.apply("young")
	w.settle()
	moves, _ := w.found()
	if strings.Contains(lines(moves), "young") {
		t.Errorf("workload young was placed a moment ago and must not be moved, but the moves are %s", lines(moves))
	}
	w = unbalanced(t)
	w.many(12)
	w.settle()
	w.now += 2 * minute
	w.node("c")
	first, _ := w.found()
	if n := w.moveNow(first); n != 2 {
		t.Fatalf("the leader makes %d moves at first, want 2, the limit AtOnce", n)
	}
	if moves, waits := w.found(); len(moves) > 0 || !strings.Contains(waits, "end of 2 moves") {
		t.Errorf("while two workloads move, the leader finds the moves %q and gives %q as the reason to wait; want no move, and the reason that 2 moves have not ended", lines(moves), waits)
	}
	w.settle()
	for _, m := range first {
		if x := w.get(m.Workload); x.Node != m.To {
			t.Errorf("workload %s must have moved to node %s, but is on node %q", x.ID, m.To, x.Node)
		}
	}
	w.say(first[0].Workload, "Pending") // the move has not ended
	second, waits := w.found()
	if n := w.moveNow(second); n != 1 {
		t.Fatalf("while one of two moves has not ended, the leader makes %d moves, want 1 (%s)", n, waits)
	}
	w.settle()
	if moves, waits := w.found(); len(moves) > 0 || !strings.Contains(waits, "3 workloads were moved within the last hour") {
		t.Errorf("after three moves within an hour, the leader finds the moves %q and gives %q as the reason to wait; want no move, and the reason that the hour has its 3 moves", lines(moves), waits)
	}
	w.setBalance(100, 1)
	w.say(first[0].Workload, "Pending")
	if _, waits := w.found(); !strings.Contains(waits, "end of 1 moves") {
		t.Errorf("a move that has not ended must count for AtOnce, but the reason to wait is %q", waits)
	}
	w.now = w.get(first[0].Workload).Moved.At + balanceMoveEnds
	if _, waits := w.found(); waits != "" {
		t.Errorf("a move that has not ended after ten minutes must not count for AtOnce any more, but the reason to wait is %q", waits)
	}
}

// TestWhyTellsTheMove: `persysctl why` shows the last move by which the leader evened out the load
// with a workload.
func TestWhyTellsTheMove(t *testing.T) {
	w := unbalanced(t)
	moves, _ := w.found()
	w.moveNow(moves[:1])
	w.settle()
	e := Explain(w.state, w.get(moves[0].Workload), w.tuning)
	if want := "it left node a for node b at "; !strings.Contains(e.Moves, want) || !strings.Contains(e.Moves, "to even out the load, gain ") {
		t.Errorf("persysctl why says %q about moves, want a text that contains %q", e.Moves, want)
	}
}

// BenchmarkRebalance measures one search of the leader in a cluster of 50,000 workloads and 5,000
// nodes, of which a tenth have just joined.
func BenchmarkRebalance(b *testing.B) {
	w := newWorld(b)
	w.setBalance(1000, 50)
	const nodes, workloads = 4500, 50_000
	for i := range nodes {
		w.node(fmt.Sprintf("n%04d", i))
	}
	list := make([]*commandv1.WorkloadPut, 0, 1000)
	id := 0
	for id < workloads {
		list = list[:0]
		var assigned []*commandv1.Assignment
		var reports []*commandv1.WorkloadReport
		for range 1000 {
			list = append(list, &commandv1.WorkloadPut{
				Id: fmt.Sprintf("w%05d", id), Content: "c1:1", Desired: "Running",
				Demand: &commandv1.Demand{Type: "container", CpuMillicores: int64(100 + id%7*40), MemoryMib: 256, Group: fmt.Sprintf("g%d", id/5)},
			})
			id++
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: list}}})
		for _, p := range list {
			x := w.get(p.GetId())
			assigned = append(assigned, &commandv1.Assignment{Workload: x.ID, Node: fmt.Sprintf("n%04d", (id-1000+len(assigned))%nodes), IfGeneration: fsm.GenerationPB(x.Generation)})
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: assigned}}})
		for _, p := range list {
			x := w.get(p.GetId())
			reports = append(reports, &commandv1.WorkloadReport{Workload: x.ID, Node: x.Node, Generation: fsm.GenerationPB(x.Generation), Acknowledged: true, State: "Running", ObservedAt: w.now})
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: reports}}})
	}
	for i := range 500 {
		w.node(fmt.Sprintf("new%03d", i))
	}
	w.now += 2 * minute
	b.ResetTimer()
	for b.Loop() {
		if n := len(StandingMoves(w.state, w.tuning, w.now, nil)); n != 50 {
			b.Fatalf("%d moves, want 50", n)
		}
	}
}
