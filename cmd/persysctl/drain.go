package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

type drainOptions struct {
	preview, undo bool
	waiting
}

func (c *cli) drainCommand() *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Move all workloads off a node, or with --preview show where they would go",
		Example: "  persysctl drain node-a --preview\n  persysctl drain node-a --wait\n  persysctl drain node-a --undo",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.drain(ctx, args[0], o) }),
	}
	f := cmd.Flags()
	f.BoolVar(&o.preview, "preview", false, "only show which workloads would move, and where")
	f.BoolVar(&o.undo, "undo", false, "end the drain; workloads that have moved stay where they are")
	o.flags(f, "the node is empty and its workloads run elsewhere")
	cmd.MarkFlagsMutuallyExclusive("preview", "undo")
	return cmd
}

func (c *cli) drain(ctx context.Context, id string, o drainOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	goals := map[string]goal{}
	look := func() error {
		list, err := c.onNode(ctx, id)
		for _, w := range list.GetWorkloads() {
			goals[w.GetWorkloadId()] = goalOff(id)
		}
		return err
	}
	// Listed before the drain and after it: workloads may leave or arrive in between.
	wait := o.wait && !o.preview && !o.undo
	if wait {
		if err := look(); err != nil {
			return err
		}
	}
	r, err := change(ctx, c, c.cluster.DrainNode, &clusterv1.DrainNodeRequest{NodeId: id, On: !o.undo, Preview: o.preview})
	if err != nil {
		return c.nodeFailure(id, err)
	}
	if c.machine() {
		if err := c.emitMessage(r); err != nil {
			return err
		}
	} else {
		c.showDrain(id, r, o)
	}
	if !wait {
		return nil
	}
	unseen := look() // an error is reported after the wait for the workloads of the first list
	if err := c.awaitAll(ctx, goals, r.GetIndex(), o.timeout, time.After(o.timeout)); err != nil {
		return err
	}
	return unseen // without the second list the node may not be empty
}

func (c *cli) showDrain(id string, r *clusterv1.NodeActionResponse, o drainOptions) {
	moves := r.GetMoves()
	switch {
	case o.undo:
		writeLines(c.out, []string{id + " " + c.paint.Paint(screen.Good, "takes workloads again")})
		return
	case len(moves) == 0 && o.preview:
		writeLines(c.out, []string{id + " has nothing to move."})
		return
	case len(moves) == 0:
		writeLines(c.out, []string{id + " " + c.paint.Paint(screen.Good, "is draining") + "; it has nothing to move"})
		return
	case o.preview:
		writeLines(c.out, []string{fmt.Sprintf("Draining %s would move %s:", id, screen.Plural(len(moves), "workload"))})
	default:
		writeLines(c.out, []string{fmt.Sprintf("%s %s; moving %s:", id, c.paint.Paint(screen.Good, "is draining"), screen.Plural(len(moves), "workload"))})
	}
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "TO", Gives: 2, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "REASON", Gives: 3, Least: 16})
	for _, m := range moves {
		to := screen.Text(m.GetToNodeId())
		if m.GetToNodeId() == "" {
			to = screen.Styled("nowhere", screen.Bad)
		}
		t.Add(screen.Text(m.GetWorkloadId()), to, screen.Text(m.GetReason()))
	}
	c.print(t)
}
