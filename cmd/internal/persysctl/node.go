package persysctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) nodeCommand() *cobra.Command {
	get := c.online(func(ctx context.Context, args []string) error { return c.node(ctx, args[0]) })
	cmd := &cobra.Command{
		Use: "node NODE", Short: "Show one node in detail; label, taint, fence or remove it",
		Example: "  persysctl node node-a\n  persysctl node label node-a zone=b\n  persysctl node fence node-a",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: get,
	}
	sub := &cobra.Command{
		Use: "get NODE", Short: "Show one node in detail",
		Args: args(1, 1, "NODE"), ValidArgsFunction: c.completeNode, RunE: get,
	}
	withID(sub)
	list := c.nodesCommand()
	list.Use, list.Hidden = "list", true
	cmd.AddCommand(sub, c.labelCommand(), c.taintCommand(), c.fenceCommand(), c.removeNodeCommand(), c.gcCommand(), list)
	return cmd
}

func (c *cli) node(ctx context.Context, id string) error {
	r, err := read(ctx, c, c.control.GetNode, &controlv1.GetNodeRequest{NodeId: id, Level: c.level()})
	if err != nil {
		return c.nodeFailure(id, err)
	}
	return c.emit(r, func() {
		c.showNode(r.GetNode())
		if list, err := c.onNode(ctx, id); err == nil && len(list.GetWorkloads()) > 0 {
			c.section("Workloads")
			c.print(c.workloadTable(list.GetWorkloads()))
		}
		c.showRecent(ctx, &clusterv1.EventsRequest{NodeId: id, Tail: 8})
	})
}

// onNode lists the workloads of all namespaces on a node.
func (c *cli) onNode(ctx context.Context, id string) (*controlv1.ListWorkloadsResponse, error) {
	return c.allPages(ctx, &controlv1.ListWorkloadsRequest{NodeId: id})
}

func (c *cli) nodeFailure(id string, err error) error {
	f := c.explain(err, false)
	if f.code == exitNotFound {
		f.text, f.hint = fmt.Sprintf("node %q not found", id), "persysctl nodes"
	}
	return f
}

func (c *cli) showNode(n *controlv1.NodeView) {
	f := &screen.Facts{}
	f.Add("Node", screen.Styled(screen.Clean(n.GetNodeId()), screen.Bold))
	f.Add("Status", screen.State(nodeStatus(n)))
	f.Add("Reason", screen.Text(n.GetStatusReason()))
	if until := n.GetJobsUntil(); until != nil {
		text := "running jobs may end here until " + c.moment(until)
		if !until.AsTime().After(c.now()) {
			text = "the time for running jobs to end here was over " + c.ago(until)
		}
		f.Add("Drain", screen.Text(text))
	}
	f.Add("Since", screen.Text(c.ago(n.GetStatusUpdatedAt())))
	f.Add("Heartbeat", screen.Text(c.ago(n.GetLastHeartbeat())))
	if end := n.GetLeaseExpiresAt(); end != nil {
		left := end.AsTime().Sub(c.now())
		if left > 0 {
			f.Add("Lease", screen.Text("ends in "+screen.Span(left)))
		} else {
			f.Add("Lease", screen.Styled("ended "+screen.Span(-left)+" ago", screen.Warn))
		}
	}
	f.Add("CPU", screen.Text(fmt.Sprintf("%s of %s cores reserved", screen.Cores(n.GetReservedCpuMillicores()), screen.Number(n.GetTotalCpuCores(), 2))))
	f.Add("Memory", screen.Text(fmt.Sprintf("%s of %s reserved", screen.MiB(n.GetReservedMemoryMb()), screen.MiB(n.GetTotalMemoryMb()))))
	for _, p := range n.GetStoragePools() {
		text := fmt.Sprintf("%s of %s reserved (%s)", screen.GiB(p.GetReservedGb()), screen.GiB(p.GetTotalGb()), p.GetType())
		if p.GetUsedGb() > 0 {
			text += ", " + screen.GiB(p.GetUsedGb()) + " in use"
		}
		f.Add("Pool "+screen.Clean(p.GetName()), screen.Text(text))
	}
	var devices []string
	for _, d := range n.GetDevices() {
		devices = append(devices, fmt.Sprintf("%s: %d of %d reserved", d.GetName(), d.GetReserved(), d.GetTotal()))
	}
	f.Add("Devices", screen.Text(strings.Join(devices, ", ")))
	if age := n.GetUsage().GetNetworkNamesAgeSeconds(); age > 0 {
		f.Add("Network names", screen.Styled("may be outdated: no scheduler has confirmed them for "+screen.Span(time.Duration(age)*time.Second), screen.Warn))
	}
	f.Add("Runs", screen.Text(strings.Join(n.GetSupportedWorkloadTypes(), ", ")))
	f.Add("Labels", screen.Text(labelsText(n.GetLabels())))
	f.Add("Taints", screen.Text(taintsText(n.GetTaints())))
	f.Add("Set by people", screen.Text(setText(n)))
	f.Add("Endpoint", screen.Text(n.GetGrpcEndpoint()))
	f.Add("Agent", screen.Text(n.GetAgentVersion()))
	f.Add("Engine", screen.Text(n.GetEngineId()))
	c.printFacts(f)
}

// nodeAction calls do for each node in ids and prints the results.
func (c *cli) nodeAction(ctx context.Context, ids []string, do func(id string) (*clusterv1.NodeActionResponse, error), said string) error {
	failures := &several{c: c}
	for _, id := range ids {
		r, err := do(id)
		if err != nil {
			failures.add(c.nodeFailure(id, err))
			continue
		}
		c.done(id, said, r)
	}
	return failures.err()
}

func (c *cli) cordonCommand() *cobra.Command {
	return c.cordon("cordon", "Place no new workloads on nodes; running ones stay", true, "cordoned")
}

func (c *cli) uncordonCommand() *cobra.Command {
	return c.cordon("uncordon", "Allow new workloads on nodes again", false, "uncordoned")
}

func (c *cli) cordon(verb, short string, on bool, said string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NODE…", Short: short,
		Args: args(1, -1, "NODE"), ValidArgsFunction: c.completeNodes,
		RunE: c.online(func(ctx context.Context, args []string) error {
			var draining []string
			err := c.nodeAction(ctx, args, func(id string) (*clusterv1.NodeActionResponse, error) {
				r, err := change(ctx, c, c.cluster.CordonNode, &clusterv1.CordonNodeRequest{NodeId: id, On: on})
				if !on && r.GetNode().GetStatus() == "Draining" {
					draining = append(draining, id)
				}
				return r, err
			}, said)
			for _, id := range draining {
				c.empty(id+" is still draining and gets no workloads.", "persysctl drain "+id+" --undo")
			}
			return err
		}),
	}
}

func (c *cli) fenceCommand() *cobra.Command {
	var yes, discard bool
	cmd := &cobra.Command{
		Use: "fence NODE", Short: "Confirm that a lost node is off, so that its exclusive workloads move",
		Long: `Confirm that a lost node is off. Its exclusive workloads (virtual machines, and all
with "exclusive: true") are then started on other nodes. Make sure first that the
node is off: if it still runs them, they run twice.

Workloads with local data on the node wait for its return. With --discard-data they
start elsewhere, without the data.`,
		Example: "  persysctl node fence node-b",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if !yes {
				ask := "Is %s really off? Its exclusive workloads will be started elsewhere."
				if discard {
					ask = "Is %s really off? Its workloads will be started elsewhere, without the data that is on it."
				}
				if err := c.confirm(fmt.Sprintf(ask, args[0])); err != nil {
					return err
				}
			}
			return c.nodeAction(ctx, args, func(id string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.FenceNode, &clusterv1.FenceNodeRequest{NodeId: id, DiscardData: discard})
			}, "fenced")
		}),
	}
	discardFlag(cmd.Flags(), &discard)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (c *cli) removeNodeCommand() *cobra.Command {
	var force, yes, discard bool
	cmd := &cobra.Command{
		Use: "remove NODE", Short: "Remove a node from the cluster", Aliases: []string{"rm"},
		Long: `Remove a node from the cluster. Drain it first: without --force a node that still has
workloads is not removed. With --force its workloads are placed on other nodes at once,
including exclusive ones, so make sure that the node is off. A node that has the only
copy of a workload's data is removed only with --discard-data.`,
		Example: "  persysctl drain node-b --wait && persysctl node remove node-b",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if force && !yes {
				ask := "Is %s really off? Its workloads will be started elsewhere."
				if discard {
					ask = "Is %s really off? Its workloads will be started elsewhere, without the data that is on it."
				}
				if err := c.confirm(fmt.Sprintf(ask, args[0])); err != nil {
					return err
				}
			}
			return c.nodeAction(ctx, args, func(id string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.RemoveNode, &clusterv1.RemoveNodeRequest{NodeId: id, Force: force, DiscardData: discard})
			}, "removed")
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove the node even if it has workloads")
	discardFlag(cmd.Flags(), &discard)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
