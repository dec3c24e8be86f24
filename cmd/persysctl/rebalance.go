package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

type rebalanceOptions struct {
	preview  bool
	maxMoves uint32
	minGain  percentFlag
}

// percentFlag is a whole number of percent, such as 10%.
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
		Use: "rebalance", Short: "Show which workloads would move to even out the load of the nodes",
		Long: `Show which workloads would move to even out the load of the nodes, for example after a node
has joined. Nothing is changed.

A workload moves only if placement would choose the other node, and if that node is better
by at least --min-gain, in percent of a node: because it has less load (with the placement
policy binpack: more), or because preferred rules hold there. These workloads never move:
exclusive ones, those with local data or a writable folder of the host, jobs, members of
system workloads, and workloads that fail or are being updated.`,
		Example: "  persysctl rebalance --preview\n  persysctl rebalance --preview --min-gain 20% -o wide",
		Args:    args(0, 0, ""),
		RunE:    c.online(func(ctx context.Context, _ []string) error { return c.previewRebalance(ctx, o) }),
	}
	f := cmd.Flags()
	f.BoolVar(&o.preview, "preview", false, "only show the moves (the default)")
	f.Uint32Var(&o.maxMoves, "max-moves", 0, "largest number of moves, 1 to 1000 (default 1000)")
	f.Var(&o.minGain, "min-gain", "smallest gain of a move in percent of a node")
	return cmd
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
		writeLines(c.out, []string{now + ". No move is worth it."})
	} else {
		writeLines(c.out, []string{now + "; after " + screen.Plural(len(r.GetMoves()), "move") + " " + imbalanceText(r.GetAfter()) + "."})
		c.print(moveTable(r.GetMoves()))
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
