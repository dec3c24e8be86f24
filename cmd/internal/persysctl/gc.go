package persysctl

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// gcLimit is the time limit of a garbage collection call. It is longer than the time that schedulers wait for
// an agent, and shorter than the time that a gateway waits for schedulers.
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
				size = screen.MiB(g.GetBytes() >> 20)
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
		lines = append(lines, screen.Plural(left, "orphan")+" left alone: persysctl drift adopt|delete NODE WORKLOAD, or --orphans")
	}
	if len(lines) > 0 {
		writeLines(c.out, append([]string{""}, lines...))
	}
}
