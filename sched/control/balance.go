package control

import (
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// balancing is the leader's own rebalancing. It remembers nothing that another leader needs: the records of the
// workloads have the times of their moves.
type balancing struct {
	busy bool
	idle uint64 // index of the state in which the last search found no move
}

// beginBalance starts the leader's own rebalancing, if the settings have one.
func (t *Term) beginBalance() {
	if t.cfg.Tuning.Balance.PerHour > 0 {
		t.after(sched.BalanceEvery, t.balance)
	}
}

// balance asks for a search for moves, and proposes the moves that it finds.
func (t *Term) balance() {
	t.after(sched.BalanceEvery, t.balance)
	b, view := &t.balancing, t.view
	if b.busy || view.Info().Index == b.idle {
		return
	}
	b.busy = true
	t.emit(Balance{
		ID: t.await(func(answer Input) {
			moves := answer.(Balanced).Moves
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

// Balance asks for the moves that the leader makes by itself: sched.StandingMoves(View, Tuning, Now). The search may
// take some hundred milliseconds.
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
