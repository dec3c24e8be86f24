package control

import (
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// balancing is the leader's state for the moves that it makes without a request by a person. A new leader
// starts without it: the records of the workloads have the times of their moves, so the limits still hold.
type balancing struct {
	busy bool
	idle uint64 // index of the state in which the last search found no move
}

// beginBalance starts the timer of the searches.
func (t *Term) beginBalance() { t.after(sched.BalanceEvery, t.balance) }

// balance issues the effect Balance, a search for moves that even out the load of the nodes, and proposes the moves that
// the search finds. It does nothing if the cluster's policy allows the leader no moves.
func (t *Term) balance() {
	t.after(sched.BalanceEvery, t.balance)
	b, view := &t.balancing, t.view
	if view.Info().Rebalance.PerHour == 0 || b.busy || view.Info().Index == b.idle {
		return
	}
	b.busy = true
	t.emit(Balance{
		ID: t.await(func(answer Input) {
			moves := answer.(Balanced).Moves
			if t.view.Info().Rebalance != view.Info().Rebalance {
				b.busy = false // a person has changed the policy since; the next search follows it
				return
			}
			if len(moves) == 0 {
				b.busy, b.idle = false, view.Info().Index
				return
			}
			c := sched.MoveCommand(moves)
			c.Head = t.head()
			t.propose(func(error) { b.busy = false }, c)
		}),
		View: view, Tuning: t.cfg.Tuning, Now: t.planned(),
	})
}

// Balance asks the caller to search for moves of workloads that even out the load of the nodes:
// sched.StandingMoves(View, Tuning, Now). The search may take some hundred milliseconds.
type Balance struct {
	ID     ID
	View   fsm.View
	Tuning sched.Tuning
	Now    int64 // Unix nanoseconds
}

// Balanced is the answer to the effect Balance.
type Balanced struct {
	ID    ID
	Moves []sched.BalanceMove
}

func (Balance) effect() {}
func (Balanced) input() {}
