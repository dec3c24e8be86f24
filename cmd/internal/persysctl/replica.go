package persysctl

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) transferCommand() *cobra.Command {
	return &cobra.Command{
		Use: "transfer-leadership [REPLICA]", Short: "Hand leadership to another replica",
		Args: args(0, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.TransferLeadershipRequest{}
			if len(args) == 1 {
				req.Replica = args[0]
			}
			r, err := change(ctx, c, c.cluster.TransferLeadership, req)
			if err != nil {
				return err
			}
			name := r.GetLeaderId()
			if st, err := call(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{}); err == nil {
				name = replicaName(st, name)
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{fmt.Sprintf("%s leads now (handed over in %d ms)", cmp.Or(screen.Clean(name), "another replica"), r.GetTookMs())})
			})
		}),
	}
}

func (c *cli) replicaCommand() *cobra.Command {
	parent := &cobra.Command{Use: "replica", Short: "Change the set of schedulers", Args: args(0, 0), RunE: help}
	var force, yes bool
	remove := &cobra.Command{
		Use: "remove REPLICA", Short: "Remove a scheduler from the cluster, even one that is lost", Aliases: []string{"rm"},
		Args: args(1, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if force && !yes {
				if err := c.confirm(fmt.Sprintf("Remove %s even if the cluster then cannot lose another scheduler?", args[0])); err != nil {
					return err
				}
			}
			r, err := change(ctx, c, c.cluster.RemoveReplica, &clusterv1.RemoveReplicaRequest{Replica: args[0], Force: force})
			if err != nil {
				return err
			}
			c.done(args[0], "removed", r)
			return nil
		}),
	}
	remove.Flags().BoolVar(&force, "force", false, "remove the scheduler even if it is alive, or if too few other schedulers are")
	remove.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	leave := &cobra.Command{
		Use: "leave REPLICA", Short: "Make a running scheduler leave the cluster for good",
		Long: `Make a running scheduler leave the cluster for good. If it leads, it hands leadership
over first. Then it is removed, and its process ends with status 0. The command fails
if the other schedulers could not go on alone. The data directory cannot be used again:
to bring the scheduler back, start it with an empty one.`,
		Args: args(1, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.RemoveReplica, &clusterv1.RemoveReplicaRequest{Replica: args[0], Leave: true})
			if err != nil {
				return err
			}
			c.done(args[0], "has left", r)
			return nil
		}),
	}
	parent.AddCommand(remove, leave)
	return parent
}
