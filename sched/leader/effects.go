package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

const (
	proposeTimeout = 10 * time.Second // time limit of a proposal
	confirmTimeout = 3 * time.Second  // time limit of a Confirm; a leader that needs longer is about to be deposed
)

// carryOut carries out an effect of the term. An effect that takes time runs on its own goroutine, and its
// answer becomes an input of the term.
func (t *term) carryOut(e control.Effect) {
	switch e := e.(type) {
	case control.Plan:
		t.run(0, func(context.Context) control.Input { return t.plan(e) })
	case control.Propose:
		t.run(proposeTimeout, func(ctx context.Context) control.Input { return t.propose(ctx, e) })
	case control.Confirm:
		t.run(confirmTimeout, func(ctx context.Context) control.Input {
			_, err := t.log.Confirm(ctx)
			return control.Confirmed{ID: e.ID, Err: err}
		})
	case control.Deliver:
		t.run(max(e.Within, 1), func(ctx context.Context) control.Input { return t.deliver(ctx, e) })
	case control.List:
		t.run(t.cfg.OrderDeadline, func(ctx context.Context) control.Input {
			reports, err := t.cfg.Inspector.List(ctx, e.Node)
			t.unread(err, "node", e.Node)
			return control.Listed{ID: e.ID, Reports: reports, Err: err}
		})
	case control.Look:
		t.run(t.cfg.OrderDeadline, func(ctx context.Context) control.Input {
			r, found, err := t.cfg.Inspector.Look(ctx, e.Node, e.Workload)
			t.unread(err, "workload", e.Workload, "node", e.Node)
			return control.Looked{ID: e.ID, Report: r, Found: found, Err: err}
		})
	case control.ReadActions:
		t.run(t.cfg.OrderDeadline, func(ctx context.Context) control.Input {
			acts, err := t.cfg.Inspector.Actions(ctx, e.Node, e.Workload, e.Limit)
			t.unread(err, "workload", e.Workload, "node", e.Node)
			return control.ActionsRead{ID: e.ID, Actions: acts, Err: err}
		})
	case control.Scale:
		t.run(proposeTimeout, func(ctx context.Context) control.Input { return control.Scaled{ID: e.ID, Err: t.scale(ctx, e)} })
	case control.Balance:
		t.run(0, func(ctx context.Context) control.Input {
			moves := sched.StandingMoves(e.View, e.Tuning, e.Now, func() bool { return ctx.Err() != nil })
			for _, m := range moves {
				t.cfg.Logger.Info("moves a workload to even out the load", "workload", m.Workload, "from", m.From, "to", m.To, "reason", m.Reason, "epoch", t.epoch.String())
			}
			return control.Balanced{ID: e.ID, Moves: moves}
		})
	case control.Paused:
		t.cfg.Metrics.Paused(e.By)
		t.cfg.Logger.Warn("this process was paused, or its clock was set; every lease ends later by the length of the pause",
			"by", e.By.Round(time.Millisecond), "epoch", t.epoch.String())
	case control.ClockBehind:
		t.cfg.Logger.Warn("the state was written by a clock that is ahead of this replica's; recorded times are later than the real time until this clock has caught up: check that the clocks of all replicas are synchronised",
			"by", e.By.Round(time.Millisecond), "epoch", t.epoch.String())
	case control.Undelivered:
		attrs := []any{"workload", e.Order.Workload, "node", e.Order.Node, "epoch", t.epoch.String(), "try", e.Try}
		if e.Err != nil {
			t.cfg.Logger.Warn("order not delivered", append(attrs, "err", e.Err)...)
		} else {
			t.cfg.Logger.Warn("the agent refused an order because it has seen a newer epoch or generation", append(attrs, "message", e.Message)...)
		}
	case control.PlanLost:
		t.cfg.Metrics.Trouble()
	case control.AuditTruncated:
		t.cfg.Logger.Warn("the agent has more finished tasks than one read returns; the older tasks do not become events", "node", e.Node, "read", e.Read)
	}
}

// run carries out one effect on its own goroutine. within is the time limit; 0 = none.
func (t *term) run(within time.Duration, fn func(context.Context) control.Input) {
	t.wg.Go(func() {
		ctx, cancel := t.ctx, context.CancelFunc(func() {})
		if within > 0 {
			ctx, cancel = context.WithTimeout(t.ctx, within)
		}
		defer cancel()
		if in := fn(ctx); t.ctx.Err() == nil { // the term has ended and accepts no more answers
			t.step(in)
		}
	})
}

// plan carries out the effect Plan: one planning step.
func (t *term) plan(e control.Plan) control.Input {
	began := time.Now()
	step := sched.Next(e.World, e.Cache)
	took := time.Since(began)
	t.cfg.Metrics.Step(took, len(step.Commands), len(step.Orders))
	if t.cfg.Logger.Enabled(t.ctx, slog.LevelDebug) {
		for _, n := range step.Why {
			t.cfg.Logger.Debug("planned", "workload", n.Workload, "node", n.Node, "action", n.Action, "detail", n.Detail)
		}
	}
	return control.Planned{Step: step, Took: took}
}

// propose puts commands into the log. If the state machine refuses a command, that is not an error.
func (t *term) propose(ctx context.Context, e control.Propose) control.Input {
	if e.Reports > 0 {
		t.cfg.Metrics.Flush(e.Reports)
	}
	results, err := t.log.Propose(ctx, e.Commands...)
	if err != nil {
		if t.ctx.Err() == nil {
			t.cfg.Logger.Warn("the planner's commands could not be committed", "epoch", t.epoch.String(), "err", err)
		}
		return control.Proposed{ID: e.ID, Err: err}
	}
	for i, r := range results {
		t.cfg.Metrics.Result(fsm.ArmName(e.Commands[i]), r.Err() == nil)
		if r.Err() != nil {
			t.cfg.Logger.Info("planner command refused", "epoch", t.epoch.String(), "index", r.Index,
				"command", fmt.Sprintf("%T", e.Commands[i].GetBody()), "reason", r.Reason)
		}
	}
	return control.Proposed{ID: e.ID}
}

// scale carries out the effect Scale.
func (t *term) scale(ctx context.Context, e control.Scale) error {
	if t.cfg.Scaler == nil {
		return errors.New("this scheduler cannot scale groups")
	}
	err := t.cfg.Scaler.Autoscale(ctx, e.Group, e.From, e.Count, e.Reason)
	t.cfg.Metrics.Result("autoscale", err == nil)
	log := t.cfg.Logger.With("group", e.Group, "from", e.From, "to", e.Count, "epoch", t.epoch.String(), "reason", e.Reason)
	if err != nil && t.ctx.Err() == nil {
		log.Warn("autoscaling failed", "err", err)
	} else if err == nil {
		log.Info("autoscaled")
	}
	return err
}

// deliver carries out the effect Deliver: it sends one order to its agent.
func (t *term) deliver(ctx context.Context, e control.Deliver) control.Input {
	o, action := e.Order, "apply"
	if o.Op == sched.OpDelete {
		action = "delete"
	}
	ack, err := t.agents.Deliver(ctx, e.Epoch, o)
	t.cfg.Metrics.Result(action, err == nil && !ack.Refused && !ack.Fenced)
	if err == nil && !ack.Fenced {
		t.cfg.Logger.Debug("order delivered", "workload", o.Workload, "node", o.Node, "epoch", e.Epoch.String(), "generation", o.Generation.String(),
			"action", action, "accepted", ack.Accepted, "refused", ack.Refused, "gone", ack.Gone)
	}
	return control.Delivered{ID: e.ID, Ack: ack, Err: err}
}

// unread logs that a read of an agent failed.
func (t *term) unread(err error, about ...any) {
	if err != nil {
		t.cfg.Logger.Debug("cannot read from an agent", append(about, "err", err)...)
	}
}
