package sim

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// balancePolicy draws the cluster's policy for rebalancing by the leader; nil without the fault Rebalancing.
func (w *world) balancePolicy() *commandv1.RebalancePolicy {
	if !w.has(Rebalancing) {
		return nil
	}
	return &commandv1.RebalancePolicy{PerHour: pick(&w.clock, []uint32{4, 20}), AtOnce: pick(&w.clock, []uint32{1, 3}), MinGainPercent: 10}
}

// balance carries out the effect Balance, a search for moves. With the sabotage StaleMoves the search uses the state
// that the previous search used, as if it were outdated.
func (l *leadership) balance(e control.Balance) {
	w := l.w
	view := e.View
	if w.cfg.Sabotage == StaleMoves {
		if w.lastBalance == nil {
			w.lastBalance = view
		}
		view, w.lastBalance = w.lastBalance, view
	}
	moves := sched.StandingMoves(view, e.Tuning, e.Now, nil)
	l.after(w.between(1, 300)*ms, func() { l.step(control.Balanced{ID: e.ID, Moves: moves}) })
}

// refresh changes moves that were found in an old state so that the checks of the state machine take
// them for new ones.
func (w *world) refresh(b *commandv1.MoveWorkloads) {
	for _, m := range b.GetMoves() {
		from, to := w.truth.Alloc(m.GetFrom()), w.truth.Alloc(m.GetTo())
		m.FromReserved, m.ToReserved = from.Reserved().PB(), to.Reserved().PB()
		if x, ok := w.truth.Workload(m.GetWorkload()); ok {
			m.IfGeneration = fsm.GenerationPB(x.Generation)
		}
	}
}

// moved is the last move of a workload that evened out the load. Its create index distinguishes the
// workload from a later one with the same id.
type moved struct {
	create uint64
	at     int64
}

const hour = 3600 * sec

// rebalanced checks the promises of rebalancing for each move that a command makes:
//
//   - Exclusive workloads, jobs and workloads with local data never move, and no workload moves twice within an hour.
//   - At most one member of a group is moving at a time.
//   - With the placement policy spread, each move makes the loads of the nodes more even (lowers their cost).
//     Members of groups are not checked, because a member may also move to get away from other members.
func (w *world) rebalanced(before, after fsm.State, b *commandv1.MoveWorkloads, res fsm.Result) {
	at := after.Info().Clock
	left, came := map[string]float64{}, map[string]float64{}
	for i, m := range b.GetMoves() {
		if i >= len(res.Items) || res.Items[i].Kind != fsm.OK {
			continue
		}
		x, _ := before.Workload(m.GetWorkload())
		from, _ := before.Node(x.Node)
		to, ok := before.Node(m.GetTo())
		w.report.Balanced++
		w.balancedAt = w.now
		last := w.oracle.balanced[x.ID]
		w.oracle.balanced[x.ID] = moved{x.CreateIndex, at}
		switch {
		case x.Demand.Exclusive || x.Demand.Job != nil || len(x.DataOn(from)) > 0:
			w.violate("rebalance", x.ID, x.Node, "it is moved to even out the load, exclusive %t, job %t, local data %v", x.Demand.Exclusive, x.Demand.Job != nil, x.DataOn(from))
		case last.create == x.CreateIndex && at-last.at < hour:
			w.violate("rebalance", x.ID, x.Node, "it is moved to even out the load again after %d s", (at-last.at)/sec)
		case !ok || !to.Schedulable() || !x.Available():
			w.violate("rebalance", x.ID, x.Node, "it is moved to even out the load, available %t, to %+v", x.Available(), to)
		}
		before.Group(x.Demand.Group, func(y *fsm.Workload) bool {
			if y, _ := after.Workload(y.ID); x.Demand.Group != "" && y != nil && y.ID != x.ID && y.Desired == fsm.DesiredRunning && !y.Available() {
				w.violate("rebalance", x.ID, x.Node, "it is moved to even out the load while %s of its group is not available", y.ID)
			}
			return true
		})
		if w.report.Violation != nil {
			return
		}
		here, there := share(from, x.Demand), share(to, x.Demand)
		if x.Demand.Group == "" && w.users.settings.Tuning.Policy != sched.BinPack {
			a, b := load(before, from)-left[from.ID]+came[from.ID], load(before, to)-left[to.ID]+came[to.ID]
			cost := sizeOf(before, to)*((b+there)*(b+there)-b*b) - sizeOf(before, from)*(a*a-(a-here)*(a-here))
			if cost > 1e-5 {
				w.violate("rebalance", x.ID, x.Node, "the move to %s raises the cost by %f: load %.3f here, of which the workload is %.3f; load %.3f there, to which it adds %.3f", to.ID, cost, a, here, b, there)
			}
		}
		left[from.ID], came[to.ID] = left[from.ID]+here, came[to.ID]+there
	}
}

// share returns which part of the capacity of a node a demand takes, from 0 to 1.
func share(n *fsm.Node, d *fsm.Demand) float64 {
	return (float64(d.CPU)/float64(n.Facts.CPU) + float64(d.Memory)/float64(n.Facts.Memory)) / 2
}

// load returns which part of the capacity of a node is reserved.
func load(s fsm.State, n *fsm.Node) float64 {
	a := s.Alloc(n.ID)
	return share(n, &fsm.Demand{CPU: a.CPU, Memory: a.Memory})
}

// sizeOf returns the size of a node divided by the mean size of all nodes.
func sizeOf(s fsm.State, n *fsm.Node) float64 {
	var cpu, mem, nodes float64
	s.Nodes("", func(n *fsm.Node) bool {
		cpu, mem, nodes = cpu+float64(n.Facts.CPU), mem+float64(n.Facts.Memory), nodes+1
		return true
	})
	return (float64(n.Facts.CPU)*nodes/cpu + float64(n.Facts.Memory)*nodes/mem) / 2
}
