package leader

import (
	"context"
	"log/slog"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// Config holds the settings of the leader and the components that it uses.
type Config struct {
	control.Settings // New sets the field Inspect if there is an Inspector

	Inspector Inspector           // nil: agents are not read
	Scaler    Scaler              // nil: no group is scaled
	Clock     func() control.Time // source of time; nil = the clocks of this machine
	Logger    *slog.Logger        // nil: nothing is logged
	Metrics   Metrics             // nil: nothing is counted
}

// Proposer puts commands into the Raft log. *cluster.Node implements it.
type Proposer interface {
	Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error)
	// Confirm returns nil if this replica led at a moment after the call began.
	Confirm(ctx context.Context) (uint64, error)
}

// Agents delivers one order to one agent. It returns an error only if it is unknown whether the agent
// accepted the order; if the agent refuses the order, the answer is an Ack.
type Agents interface {
	Deliver(ctx context.Context, epoch fsm.Epoch, o sched.Order) (sched.Ack, error)
}

// Scaler sets the number of members of a group with an autoscaler to count, but only if the group
// has from members at present.
type Scaler interface {
	Autoscale(ctx context.Context, group string, from, count int, reason string) error
}

// Inspector reads workloads and tasks from agents. It changes nothing.
type Inspector interface {
	// List returns all workloads of a node.
	List(ctx context.Context, node string) ([]sched.Reported, error)
	// Look returns one workload of a node; the bool is false if the node does not have it.
	Look(ctx context.Context, node, workload string) (sched.Reported, bool, error)
	// Actions returns the recent tasks of a node's agent about one workload, or all of them if workload is
	// "", newest first. It returns none for agents that keep no history.
	Actions(ctx context.Context, node, workload string, limit int) ([]*commandv1.AgentAction, error)
}

// Metrics receives the figures of a leader. Its methods may be called from any goroutine.
type Metrics interface {
	// Step counts one planning step: its duration and its numbers of commands and orders.
	Step(took time.Duration, commands, orders int)
	// Flush counts one commit of workload reports.
	Flush(reports int)
	// Paused counts a pause of this process and its length. It is also called when the wall clock was set: d is the
	// change, below 0 if it was set back.
	Paused(d time.Duration)
	// Result counts the outcome of one decision of the planner: action is the name of a
	// command or, for an order, apply or delete.
	Result(action string, ok bool)
	// Trouble counts a planning step of which it is unknown whether its commands are in the log.
	Trouble()
}

type noMetrics struct{}

func (noMetrics) Step(time.Duration, int, int) {}
func (noMetrics) Flush(int)                    {}
func (noMetrics) Paused(time.Duration)         {}
func (noMetrics) Result(string, bool)          {}
func (noMetrics) Trouble()                     {}

func (c Config) withDefaults() Config {
	c.Settings = c.Settings.WithDefaults()
	c.Inspect = c.Inspector != nil
	if c.Clock == nil {
		c.Clock = machineClock()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	return c
}

// machineClock reads both clocks of this machine at once.
func machineClock() func() control.Time {
	start := time.Now()
	return func() control.Time {
		now := time.Now()
		return control.Time{Wall: now.UnixNano(), Mono: int64(now.Sub(start))}
	}
}
