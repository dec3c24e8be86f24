package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) driftCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drift", Short: "Show where nodes differ from the schedulers, and decide about orphans",
		Long: `Show where what nodes have differs from what the schedulers know. Most of it is
repaired by itself. An orphan, which a node has and is not to have, is left alone
until a person says what it is: adopt it, or delete it.`,
		Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.driftListCommand(), c.driftAdoptCommand(), c.driftDeleteCommand())
	return cmd
}

func (c *cli) driftListCommand() *cobra.Command {
	req := &clusterv1.ListDriftsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the differences that there are now", Aliases: []string{"ls"},
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
	f.StringVar(&req.NodeId, "node", "", "only of this node")
	f.StringVar(&req.WorkloadId, "workload", "", "only of this workload")
	f.StringVar(&req.Type, "type", "", "only of this kind: orphan_on_agent, state_mismatch, revision_mismatch or missing_on_agent")
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
			screen.Text(orText(d.GetSchedulerStatus(), screen.None)), screen.Text(orText(d.GetAgentStatus(), screen.None)), screen.Text(c.age(d.GetDetectedAt())),
		}
		if c.output == outWide {
			row = append(row, screen.Text(d.GetAction()), screen.Text(fmt.Sprint(d.GetRepairs())))
		}
		t.Add(row...)
	}
	c.print(t)
	if orphans > 0 {
		writeLines(c.out, []string{"", plural(orphans, "orphan") + " left alone: persysctl drift adopt|delete NODE WORKLOAD"})
	}
}

func (c *cli) driftAdoptCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use: "adopt NODE WORKLOAD", Short: "Make an orphan the workload of the node that has it",
		Long: `Make an orphan the workload of the node that has it. If the schedulers know no
workload of that name, -f names the file with its specification. The node gets a
new order; what runs there is replaced only where it differs.`,
		Example: "  persysctl drift adopt node-a web\n  persysctl drift adopt node-a web -f web.yaml",
		Args:    args(2, 2, "NODE", "WORKLOAD"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.AdoptDriftRequest{NodeId: args[0], WorkloadId: args[1]}
			if len(o.files) > 0 {
				list, err := c.parse(o)
				if err != nil {
					return err
				}
				if len(list) != 1 {
					return failf(exitUsage, "", "%s are given, an orphan is one", plural(len(list), "workload"))
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

// deletes makes cmd delete one thing on one node, whose names are its arguments; question has both,
// the thing first. said is what an answer means: that it is gone, or that its node has yet to do it.
func (c *cli) deletes(cmd *cobra.Command, question, said string, do func(ctx context.Context, node, what string) (message, error)) *cobra.Command {
	var yes bool
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		node, what := args[0], args[1]
		if !yes {
			if err := c.confirm(fmt.Sprintf(question, what, node)); err != nil {
				return err
			}
		}
		r, err := do(ctx, node, what)
		if err != nil {
			return err
		}
		c.done(what, said+" on "+node, r)
		return nil
	})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (c *cli) driftDeleteCommand() *cobra.Command {
	return c.deletes(&cobra.Command{
		Use: "delete NODE WORKLOAD", Short: "Have a node stop and remove an orphan", Aliases: []string{"rm"},
		Example: "  persysctl drift delete node-a web",
		Args:    args(2, 2, "NODE", "WORKLOAD"), ValidArgsFunction: c.completeNode,
	}, "Delete %s on %s, with what it stored there?", "deleting", func(ctx context.Context, node, what string) (message, error) {
		return change(ctx, c, c.cluster.DeleteDrift, &clusterv1.DeleteDriftRequest{NodeId: node, WorkloadId: what})
	})
}
