package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

type rebalanceOptions struct {
	preview, apply bool
	maxMoves       uint32
	minGain        percentFlag
	waiting
}

// percentFlag is the value of a flag that takes whole percent, such as 10%.
type percentFlag uint32

func (p *percentFlag) String() string { return fmt.Sprintf("%d%%", *p) }
func (p *percentFlag) Type() string   { return "PERCENT" }
func (p *percentFlag) Set(text string) error {
	var n uint32
	if _, err := fmt.Sscanf(text+"\n", "%d%%\n", &n); err != nil || n < 1 || n > 100 {
		return fmt.Errorf("%q must be a number of percent from 1%% to 100%%, such as 10%%", text)
	}
	*p = percentFlag(n)
	return nil
}

func (c *cli) rebalanceCommand() *cobra.Command {
	o := rebalanceOptions{minGain: 10}
	cmd := &cobra.Command{
		Use: "rebalance", Short: "Move workloads to even out the load of the nodes, or show which would move",
		Long: `Show which workloads would move to even out the load of the nodes, for example after a node
has joined. With --apply they are moved: each is stopped on its node and started on another.

A workload moves only if placement would choose the other node, and if that node is better
by at least --min-gain, in percent of a node: because it has less load (with the placement
policy binpack: more), or because preferred rules hold there. These workloads never move:
exclusive ones, those with local data, those bound to their host (by a writable folder, a
device, a namespace or a network of its engine), jobs, members of system workloads, and
workloads that fail or are being updated. No workload moves twice within an hour.

Of a group one member moves at a time, so --apply moves at most one of each group. With
--wait it goes on, round by round, until no move is worth it or --max-moves is reached. It
ends with an error if a move was dropped, because the cluster had changed meanwhile.`,
		Example: "  persysctl rebalance --preview\n  persysctl rebalance --apply --wait\n  persysctl rebalance --apply --max-moves 5 --min-gain 20%",
		Args:    args(0, 0, ""),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			switch {
			case o.wait && !o.apply:
				return usagef("--wait needs --apply")
			case o.maxMoves > mostMoves:
				return usagef("--max-moves %d is not in 1..%d", o.maxMoves, mostMoves)
			case o.apply:
				return c.applyRebalance(ctx, o)
			}
			return c.previewRebalance(ctx, o)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.preview, "preview", false, "only show the moves (the default)")
	f.BoolVar(&o.apply, "apply", false, "make the moves")
	f.Uint32Var(&o.maxMoves, "max-moves", 0, "largest number of moves, 1 to 1000 (default 1000)")
	f.Var(&o.minGain, "min-gain", "smallest gain of a move in percent of a node")
	f.BoolVar(&o.wait, "wait", false, "make all moves, round by round, and wait until the workloads run on their new nodes")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "time limit of --wait")
	cmd.MarkFlagsMutuallyExclusive("preview", "apply")
	cmd.AddCommand(c.rebalancePolicyCommand())
	return cmd
}

func (c *cli) rebalancePolicyCommand() *cobra.Command {
	set, off := clusterv1.RebalancePolicy{}, false
	minGain := percentFlag(10)
	cmd := &cobra.Command{
		Use: "policy", Short: "Show or set how many workloads the leader may move by itself",
		Long: `Show how many workloads the leader may move by itself to even out the load of the nodes, and
whether it does so now. With --per-hour the leader may; the other flags limit its moves further,
and each call sets all three. With --off, the default of a new cluster, it moves none by itself.

The policy belongs to the cluster, so it also holds under the next leader. The leader waits while
a node drains or is lost, an update is in progress, or a workload has no node.`,
		Example: "  persysctl rebalance policy\n  persysctl rebalance policy --per-hour 20 --at-once 2 --min-gain 15%\n  persysctl rebalance policy --off",
		Args:    args(0, 0, ""),
	}
	f := cmd.Flags()
	f.Uint32Var(&set.PerHour, "per-hour", 0, "largest number of moves within an hour, 1 to 10000")
	f.Uint32Var(&set.AtOnce, "at-once", 1, "largest number of moves that have not ended, 1 to 250")
	f.Var(&minGain, "min-gain", "smallest gain of a move in percent of a node")
	f.BoolVar(&off, "off", false, "the leader moves no workload by itself")
	cmd.MarkFlagsMutuallyExclusive("off", "per-hour")
	cmd.RunE = c.online(func(ctx context.Context, _ []string) error {
		given := f.Changed("per-hour")
		switch {
		case off && (f.Changed("at-once") || f.Changed("min-gain")):
			return usagef("--off cannot be combined with --at-once or --min-gain")
		case !given && (f.Changed("at-once") || f.Changed("min-gain")):
			return usagef("--at-once and --min-gain need --per-hour")
		case given && set.PerHour == 0:
			return usagef("--per-hour 0 is not in 1..10000; to end the moves: persysctl rebalance policy --off")
		case !given && !off:
			r, err := c.cluster.GetRebalancePolicy(ctx, &clusterv1.GetRebalancePolicyRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { writeLines(c.out, policyLines(r)) })
		case off:
			set.AtOnce = 0
		default:
			set.MinGainPercent = uint32(minGain)
		}
		r, err := change(ctx, c, c.cluster.SetRebalancePolicy, &clusterv1.SetRebalancePolicyRequest{Policy: &set})
		if err != nil {
			return err
		}
		return c.emit(r, func() { writeLines(c.out, []string{policyText(r.GetPolicy())}) })
	})
	return cmd
}

func policyLines(r *clusterv1.GetRebalancePolicyResponse) []string {
	out := []string{policyText(r.GetPolicy())}
	if standing := r.GetStanding(); standing != "on" && standing != "off" {
		out = append(out, "Now: "+screen.Clean(standing)+".")
	}
	return out
}

func policyText(p *clusterv1.RebalancePolicy) string {
	if p.GetPerHour() == 0 {
		return "The leader moves no workload by itself."
	}
	return fmt.Sprintf("The leader may move %s an hour by itself, %d at once, for a gain of at least %d %%.",
		screen.Plural(int(p.GetPerHour()), "workload"), p.GetAtOnce(), p.GetMinGainPercent())
}

const (
	mostMoves    = 1000 // maximum value of --max-moves
	movesOfRound = 250  // maximum number of moves in one call
)

// applyRebalance makes one round of moves. With --wait it waits until these moves have ended and makes
// further rounds, until no move has the required gain. With -o json or yaml the moves are printed even if a
// later round fails.
func (c *cli) applyRebalance(ctx context.Context, o rebalanceOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	all := &clusterv1.ApplyRebalanceResponse{}
	if err := c.rebalanceRounds(ctx, o, all); err != nil {
		if c.machine() && len(all.GetMoves())+len(all.GetDropped()) > 0 {
			if printing := c.emitMessage(all); printing != nil { // print the moves that were made before the error
				return errors.Join(err, printing)
			}
		}
		return err
	}
	dropped := slices.DeleteFunc(slices.Clone(all.GetDropped()), func(d *clusterv1.RebalanceMove) bool {
		return slices.ContainsFunc(all.GetMoves(), func(m *clusterv1.RebalanceMove) bool { return m.GetWorkloadId() == d.GetWorkloadId() })
	})
	switch {
	case c.machine():
		if err := c.emitMessage(all); err != nil {
			return err
		}
	case len(all.GetMoves())+len(all.GetDropped()) == 0:
		writeLines(c.out, []string{"No move has the required gain."})
	case o.wait:
		writeLines(c.out, []string{fmt.Sprintf("%s done.", screen.Plural(len(all.GetMoves()), "move"))})
	}
	if o.wait && len(dropped) > 0 {
		d := dropped[0]
		return failf(exitFailed, "persysctl rebalance --preview", "%s dropped; the first: %s: %s", wereMoves(len(dropped)), d.GetWorkloadId(), screen.Clean(d.GetReason()))
	}
	return nil
}

// rebalanceRounds makes the rounds of a rebalance and adds their moves to all.
func (c *cli) rebalanceRounds(ctx context.Context, o rebalanceOptions, all *clusterv1.ApplyRebalanceResponse) error {
	left := cmp.Or(o.maxMoves, mostMoves)
	late := time.After(o.timeout)
	for left > 0 {
		r, err := change(ctx, c, c.cluster.ApplyRebalance, &clusterv1.ApplyRebalanceRequest{MaxMoves: min(left, movesOfRound), MinGainPercent: uint32(o.minGain)})
		if err != nil {
			return err
		}
		left -= min(left, uint32(len(r.GetMoves())))
		all.Moves, all.Dropped, all.Index = append(all.Moves, r.GetMoves()...), append(all.Dropped, r.GetDropped()...), r.GetIndex()
		if !c.machine() {
			c.showRound(r)
		}
		if len(r.GetMoves()) == 0 || !o.wait {
			return nil
		}
		goals := map[string]goal{}
		for _, m := range r.GetMoves() {
			goals[m.GetWorkloadId()] = goalPlaced()
		}
		if err := c.awaitAll(ctx, goals, r.GetIndex(), o.timeout, late); err != nil {
			return err
		}
	}
	return nil
}

func wereMoves(n int) string {
	if n == 1 {
		return "1 move was"
	}
	return fmt.Sprintf("%d moves were", n)
}

// goalPlaced is reached when a workload runs on a node again, is deleted, or has completed.
func goalPlaced() goal {
	return goal{name: "moved", gone: true, met: func(w *controlv1.WorkloadView) bool {
		return (w.GetAssignedNodeId() != "" || w.GetDesiredState() != "Running") && w.GetStatus() == w.GetDesiredState() && healthy(w) || completed(w)
	}}
}

// showRound prints the moves of one round.
func (c *cli) showRound(r *clusterv1.ApplyRebalanceResponse) {
	if n := len(r.GetMoves()); n > 0 {
		writeLines(c.out, []string{"Moving " + screen.Plural(n, "workload") + ":"})
		c.print(moveTable(r.GetMoves()))
	}
	for _, d := range r.GetDropped() {
		fmt.Fprintf(c.err, "%s is not moved: %s\n", screen.Clean(d.GetWorkloadId()), screen.Clean(d.GetReason()))
	}
}

func (c *cli) previewRebalance(ctx context.Context, o rebalanceOptions) error {
	r, err := c.cluster.PreviewRebalance(ctx, &clusterv1.PreviewRebalanceRequest{MaxMoves: o.maxMoves, MinGainPercent: uint32(o.minGain)})
	if err != nil {
		return err
	}
	return c.emit(r, func() { c.showRebalance(r) })
}

func (c *cli) showRebalance(r *clusterv1.PreviewRebalanceResponse) {
	now := "Imbalance " + imbalanceText(r.GetBefore())
	if len(r.GetMoves()) == 0 {
		writeLines(c.out, []string{now + ". No move has the required gain."})
	} else {
		writeLines(c.out, []string{now + "; after " + screen.Plural(len(r.GetMoves()), "move") + " " + imbalanceText(r.GetAfter()) + "."})
		c.print(moveTable(r.GetMoves()))
	}
	if standing := r.GetStanding(); standing != "" && standing != "off" {
		fmt.Fprintf(c.err, "Moves by the leader itself: %s\n", screen.Clean(standing))
	}
	for _, i := range r.GetImmovable() {
		fmt.Fprintf(c.err, "%s: %s\n", stays(int(i.GetWorkloads())), i.GetReason())
	}
}

func stays(n int) string {
	if n == 1 {
		return "1 workload stays"
	}
	return fmt.Sprintf("%d workloads stay", n)
}

// imbalanceText describes an imbalance, such as "31.2 % (loads from 0.0 % to 62.5 %)".
func imbalanceText(i *clusterv1.Imbalance) string {
	return fmt.Sprintf("%.1f %% (loads from %.1f %% to %.1f %%)", i.GetDeviationPercent(), i.GetLowestPercent(), i.GetHighestPercent())
}

func moveTable(moves []*clusterv1.RebalanceMove) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle},
		screen.Column{Title: "FROM", Gives: 2, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "TO", Gives: 2, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "GAIN"}, screen.Column{Title: "REASON", Gives: 3, Least: 16})
	for _, m := range moves {
		t.Add(screen.Text(m.GetWorkloadId()), screen.Text(m.GetFromNodeId()), screen.Text(m.GetToNodeId()),
			screen.Text(fmt.Sprintf("%.1f %%", m.GetGainPercent())), screen.Text(m.GetReason()))
	}
	return t
}
