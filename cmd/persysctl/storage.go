package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) volumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Short: "List managed volumes, and delete retained ones", Aliases: []string{"volumes"},
		Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.volumeListCommand(), c.volumeDeleteCommand())
	return cmd
}

func (c *cli) volumeListCommand() *cobra.Command {
	req := &clusterv1.ListVolumesRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the managed volumes of the nodes", Aliases: []string{"ls"},
		Example: "  persysctl volume list\n  persysctl volume list --node node-a -o wide",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListVolumes, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showVolumes(r) })
		}),
	}
	cmd.Flags().StringVar(&req.NodeId, "node", "", "only volumes of this node")
	return cmd
}

func (c *cli) showVolumes(r *clusterv1.ListVolumesResponse) {
	if len(r.GetVolumes()) == 0 {
		writeLines(c.out, []string{"No managed volumes."})
	} else {
		t := screen.NewTable(screen.Column{Title: "NODE", Gives: 2, Least: 8, Keeps: screen.Middle}, screen.Column{Title: "VOLUME", Gives: 1, Least: 12, Keeps: screen.Middle},
			screen.Column{Title: "SIZE", Right: true}, screen.Column{Title: "PHASE"}, screen.Column{Title: "RETAIN"}, screen.Column{Title: "USED BY", Gives: 3, Least: 10},
			screen.Column{Title: "AGE", Right: true}, screen.Column{Title: "POOL", Wide: true}, screen.Column{Title: "FORM", Wide: true}, screen.Column{Title: "ERROR", Wide: true})
		for _, v := range r.GetVolumes() {
			size, used := screen.None, strings.Join(v.GetWorkloadIds(), ",")
			if v.GetSizeGb() > 0 {
				size = gib(v.GetSizeGb())
			}
			if used == "" && v.GetOwner() != "" {
				used = "(was " + v.GetOwner() + ")"
			}
			t.Add(screen.Text(v.GetNodeId()), screen.Text(v.GetId()), screen.Text(size), screen.State(v.GetPhase()), screen.Text(v.GetRetainPolicy()),
				screen.Text(orText(used, screen.None)), screen.Text(c.age(v.GetCreatedAt())), screen.Text(orText(v.GetPool(), screen.None)),
				screen.Text(v.GetForm()), screen.Text(orText(v.GetLastError(), screen.None)))
		}
		c.print(t)
	}
	var lines []string
	for _, p := range r.GetProblems() {
		if p.GetDriver() != "" && c.output != outWide {
			continue // a driver that a node does not offer is normal
		}
		lines = append(lines, fmt.Sprintf("%s: %s", p.GetNodeId(), screen.Clean(p.GetReason())))
	}
	if len(lines) > 0 {
		writeLines(c.out, append([]string{""}, lines...))
	}
}

func (c *cli) volumeDeleteCommand() *cobra.Command {
	return c.deletes(&cobra.Command{
		Use: "delete NODE VOLUME", Short: "Delete an unused volume and its data", Aliases: []string{"rm"},
		Long: `Delete a volume that no workload of the node uses, whatever its retain policy is.
VOLUME is DRIVER:NAME, as persysctl volume list shows it.`,
		Example: "  persysctl volume delete node-a local:data",
		Args:    args(2, 2, "NODE", "VOLUME"), ValidArgsFunction: c.completeNode,
	}, "Delete volume %s on %s, with all its data?", "deleted", func(ctx context.Context, node, what string) (message, error) {
		return change(ctx, c, c.cluster.DeleteVolume, &clusterv1.DeleteVolumeRequest{NodeId: node, Id: what})
	})
}

// gcLimit is above the schedulers' own limit for an agent, and below a gateway's for the schedulers.
const gcLimit = 6 * time.Minute

func (c *cli) gcCommand() *cobra.Command {
	req := &clusterv1.CollectGarbageRequest{}
	cmd := &cobra.Command{
		Use: "gc NODE", Short: "Collect garbage on a node",
		Long: `Collect garbage on a node: leftovers of interrupted replacements, folders and networks
of deleted stacks, cloud-init images of deleted machines, unused images over the size
limit, and volumes released long ago. Resources without the label of Persys are not
touched, nor are those of a runtime that does not answer. Agents do the same every few
minutes.

Orphans run without an order of the schedulers. They are listed, and removed only with
--orphans, since an orphan may be the last copy of its data.`,
		Example: "  persysctl node gc node-a --dry-run\n  persysctl node gc node-a",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req.NodeId = args[0]
			ctx, cancel := context.WithTimeout(ctx, gcLimit)
			defer cancel()
			r, err := c.cluster.CollectGarbage(ctx, req)
			if err != nil {
				return c.explained(err, !req.GetDryRun(), gcLimit)
			}
			if err := c.emit(r, func() { c.showGarbage(args[0], req, r) }); err != nil {
				return err
			}
			if slices.ContainsFunc(r.GetItems(), func(g *clusterv1.Garbage) bool { return g.GetError() != "" }) {
				return failf(exitFailed, "", "not everything could be removed")
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&req.DryRun, "dry-run", false, "only show what would be removed")
	f.BoolVar(&req.Orphans, "orphans", false, "remove orphans too")
	return cmd
}

func (c *cli) showGarbage(node string, req *clusterv1.CollectGarbageRequest, r *clusterv1.CollectGarbageResponse) {
	left := 0
	if len(r.GetItems()) == 0 {
		writeLines(c.out, []string{"Found nothing to remove on " + node + "."})
	} else {
		t := screen.NewTable(screen.Column{Title: "KIND"}, screen.Column{Title: "NAME", Gives: 2, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "SIZE", Right: true},
			screen.Column{Title: "RESULT"}, screen.Column{Title: "REASON", Gives: 1, Least: 20})
		for _, g := range r.GetItems() {
			result, reason, size := screen.Text("kept"), g.GetReason(), screen.None
			switch {
			case g.GetError() != "":
				result, reason = screen.Styled("failed", screen.Bad), g.GetError()
			case g.GetRemoved():
				result = screen.Styled("removed", screen.Good)
			case g.GetKind() == "orphan" && !req.GetOrphans():
				left++
			case req.GetDryRun():
				result = screen.Text("would go")
			}
			if g.GetBytes() > 0 {
				size = mib(g.GetBytes() >> 20)
			}
			t.Add(screen.Text(g.GetKind()), screen.Text(g.GetName()), screen.Text(size), result, screen.Text(reason))
		}
		c.print(t)
	}
	var lines []string
	for _, s := range r.GetSkipped() {
		lines = append(lines, "not checked: "+screen.Clean(s))
	}
	if left > 0 {
		lines = append(lines, plural(left, "orphan")+" left alone: persysctl drift adopt|delete NODE WORKLOAD, or --orphans")
	}
	if len(lines) > 0 {
		writeLines(c.out, append([]string{""}, lines...))
	}
}
