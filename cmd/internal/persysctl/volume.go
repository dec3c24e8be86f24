package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strings"

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
				size = screen.GiB(v.GetSizeGb())
			}
			if used == "" && v.GetOwner() != "" {
				used = "(was " + v.GetOwner() + ")"
			}
			t.Add(screen.Text(v.GetNodeId()), screen.Text(v.GetId()), screen.Text(size), screen.State(v.GetPhase()), screen.Text(v.GetRetainPolicy()),
				screen.Text(cmp.Or(used, screen.None)), screen.Text(c.age(v.GetCreatedAt())), screen.Text(cmp.Or(v.GetPool(), screen.None)),
				screen.Text(v.GetForm()), screen.Text(cmp.Or(v.GetLastError(), screen.None)))
		}
		c.print(t)
	}
	var lines []string
	for _, p := range r.GetProblems() {
		if p.GetDriver() != "" && c.output != outWide {
			continue // a missing volume driver is no error: a node need not have every driver
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
