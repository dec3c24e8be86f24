package persysctl

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) driftCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drift", Short: "List differences between nodes and schedulers, and resolve orphans",
		Long: `List differences between the nodes and the schedulers' state, and resolve orphans. Most
differences are repaired automatically. An orphan is a workload that a node runs without
an order; it is left alone until you adopt or delete it.`,
		Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.driftListCommand(), c.driftAdoptCommand(), c.driftDeleteCommand())
	return cmd
}

func (c *cli) driftListCommand() *cobra.Command {
	req := &clusterv1.ListDriftsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the present differences", Aliases: []string{"ls"},
		Example: "  persysctl drift list\n  persysctl drift list --node node-a --type orphan_on_agent",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListDrifts, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showDrifts(r.GetDrifts()) })
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.NodeId, "node", "", "only differences of this node")
	f.StringVar(&req.WorkloadId, "workload", "", "only differences of this workload")
	f.StringVar(&req.Type, "type", "", "only this type: orphan_on_agent, state_mismatch, revision_mismatch or missing_on_agent")
	return c.watchable(cmd)
}

func (c *cli) showDrifts(list []*clusterv1.Drift) {
	if len(list) == 0 {
		writeLines(c.out, []string{"Nothing differs."})
		return
	}
	columns := []screen.Column{
		{Title: "NODE", Gives: 2, Least: 8, Keeps: screen.Middle}, {Title: "WORKLOAD", Gives: 1, Least: 10, Keeps: screen.Middle}, {Title: "TYPE"},
		{Title: "EXPECTED", Gives: 3, Least: 8}, {Title: "FOUND", Gives: 3, Least: 8}, {Title: "SINCE"},
	}
	if c.output == outWide {
		columns = append(columns, screen.Column{Title: "ACTION"}, screen.Column{Title: "REPAIRS"})
	}
	t := screen.NewTable(columns...)
	orphans := 0
	for _, d := range list {
		style := screen.Warn
		if d.GetType() == "orphan_on_agent" {
			style = screen.Bad
			orphans++
		}
		row := []screen.Cell{
			screen.Text(d.GetNodeId()), screen.Text(d.GetWorkloadId()), screen.Styled(d.GetType(), style),
			screen.Text(cmp.Or(d.GetSchedulerStatus(), screen.None)), screen.Text(cmp.Or(d.GetAgentStatus(), screen.None)), screen.Text(c.age(d.GetDetectedAt())),
		}
		if c.output == outWide {
			row = append(row, screen.Text(d.GetAction()), screen.Text(fmt.Sprint(d.GetRepairs())))
		}
		t.Add(row...)
	}
	c.print(t)
	if orphans > 0 {
		writeLines(c.out, []string{"", screen.Plural(orphans, "orphan") + " left alone: persysctl drift adopt|delete NODE WORKLOAD"})
	}
}

func (c *cli) driftAdoptCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use: "adopt NODE WORKLOAD", Short: "Adopt an orphan: make it a workload on its node",
		Long: `Adopt an orphan: make it a workload on its node. If the schedulers have no workload of
that name, give the file of its specification with -f. The running instance is replaced
only if it differs from the specification.`,
		Example: "  persysctl drift adopt node-a web\n  persysctl drift adopt node-a web -f web.yaml",
		Args:    args(2, 2, "NODE", "WORKLOAD"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.AdoptDriftRequest{NodeId: args[0], WorkloadId: args[1]}
			if len(o.files) > 0 {
				list, err := c.parse(ctx, o)
				if err != nil {
					return err
				}
				if len(list) != 1 {
					return failf(exitUsage, "", "%s given, but an orphan is exactly one workload", screen.Plural(len(list), "workload"))
				}
				if err := c.place(list); err != nil {
					return err
				}
				req.Workload = list[0]
			}
			r, err := change(ctx, c, c.cluster.AdoptDrift, req)
			if err != nil {
				return err
			}
			c.done(args[1], "adopted on "+args[0], r)
			return nil
		}),
	}
	cmd.Flags().StringArrayVarP(&o.files, "file", "f", nil, "file with the specification, or - for standard input")
	return cmd
}

func (c *cli) driftDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NODE WORKLOAD", Short: "Stop an orphan and remove it from its node", Aliases: []string{"rm"},
		Example: "  persysctl drift delete node-a web",
		Args:    args(2, 2, "NODE", "WORKLOAD"), ValidArgsFunction: c.completeNode,
	}
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		node, what := args[0], args[1]
		if !yes {
			if err := c.confirm(fmt.Sprintf("Delete %s on %s, with its data?", what, node)); err != nil {
				return err
			}
		}
		r, err := change(ctx, c, c.cluster.DeleteDrift, &clusterv1.DeleteDriftRequest{NodeId: node, WorkloadId: what})
		if err != nil {
			return err
		}
		c.done(what, "deleting on "+node, r)
		return nil
	})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
