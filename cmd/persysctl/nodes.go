package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) nodesCommand() *cobra.Command {
	var want string
	cmd := &cobra.Command{
		Use: "nodes", Short: "List nodes with their state and their reserved resources",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.nodes(ctx, want) }),
	}
	cmd.Flags().StringVar(&want, "status", "", "only nodes with this status: Ready, NotReady or Draining")
	// This fails for unknown flags only.
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(nodeStates(), cobra.ShellCompDirectiveNoFileComp))
	return c.watchable(cmd)
}

func nodeStates() []string { return []string{"Ready", "NotReady", "Draining"} }

func (c *cli) nodes(ctx context.Context, want string) error {
	if want != "" && !slices.ContainsFunc(nodeStates(), func(s string) bool { return strings.EqualFold(s, want) }) {
		return usagef("--status %q must be one of %s", want, strings.Join(nodeStates(), ", "))
	}
	all, err := c.allNodes(ctx, want)
	if err != nil {
		return err
	}
	return c.emit(all, func() {
		switch {
		case len(all.GetNodes()) > 0:
			c.print(c.nodeTable(all.GetNodes()))
		case want != "":
			c.empty("No node is "+want+".", "persysctl nodes")
		default:
			c.empty("No nodes have registered yet.", "start an agent on a machine: PERSYS_SCHEDULER_ADDR=HOST:8085 persys-agent")
		}
	})
}

// allNodes reads all pages of the nodes of a status, "" for any.
func (c *cli) allNodes(ctx context.Context, status string) (*controlv1.ListNodesResponse, error) {
	req := &controlv1.ListNodesRequest{Status: status, PageSize: pageSize, Level: c.level()}
	all := &controlv1.ListNodesResponse{}
	for {
		r, err := read(ctx, c, c.control.ListNodes, req)
		if err != nil {
			return nil, err
		}
		all.Nodes = append(all.Nodes, r.GetNodes()...)
		all.Index, all.Stale, all.AgeMs = r.GetIndex(), r.GetStale(), r.GetAgeMs()
		if next := r.GetNextPageToken(); next == "" || next == req.GetPageToken() {
			return all, nil
		}
		req.PageToken = r.GetNextPageToken()
	}
}

func nodeStatus(n *controlv1.NodeView) string {
	if n.GetCordoned() {
		return n.GetStatus() + ",cordoned"
	}
	return n.GetStatus()
}

// share formats a reserved amount of a total.
func share(reserved, total string) string { return reserved + "/" + total }

func (c *cli) nodeTable(list []*controlv1.NodeView) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "NODE", Gives: 2, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "STATUS"}, screen.Column{Title: "WORKLOADS", Right: true},
		screen.Column{Title: "CPU", Right: true}, screen.Column{Title: "MEMORY", Right: true}, screen.Column{Title: "DISK", Right: true, Wide: true},
		screen.Column{Title: "SEEN", Right: true},
		screen.Column{Title: "TYPES", Wide: true}, screen.Column{Title: "ENDPOINT", Wide: true}, screen.Column{Title: "VERSION", Wide: true},
		screen.Column{Title: "ENGINE", Wide: true}, screen.Column{Title: "TAINTS", Wide: true}, screen.Column{Title: "LABELS", Wide: true},
		screen.Column{Title: "REASON", Gives: 1, Least: 12})
	for _, n := range list {
		t.Add(screen.Text(n.GetNodeId()), screen.State(nodeStatus(n)), screen.Text(fmt.Sprint(n.GetWorkloads())),
			screen.Text(share(cores(n.GetReservedCpuMillicores()), number(n.GetTotalCpuCores(), 2))),
			screen.Text(share(mib(n.GetReservedMemoryMb()), mib(n.GetTotalMemoryMb()))), screen.Text(diskShare(n)), screen.Text(c.age(n.GetLastHeartbeat())),
			screen.Text(strings.Join(n.GetSupportedWorkloadTypes(), ",")), screen.Text(n.GetGrpcEndpoint()), screen.Text(n.GetAgentVersion()),
			screen.Text(n.GetEngineId()), screen.Text(taintsText(n.GetTaints())), screen.Text(labelsText(n.GetLabels())), screen.Text(nodeReason(n)))
	}
	return t
}

// nodeReason is the reason of a status other than Ready.
func nodeReason(n *controlv1.NodeView) string {
	if n.GetStatus() == "Ready" {
		return ""
	}
	return n.GetStatusReason()
}

func diskShare(n *controlv1.NodeView) string {
	var reserved, total int64
	for _, p := range n.GetStoragePools() {
		reserved, total = reserved+p.GetReservedGb(), total+p.GetTotalGb()
	}
	if total == 0 {
		return screen.None
	}
	return share(gib(reserved), gib(total))
}

func taintsText(taints []*controlv1.Taint) string {
	var out []string
	for _, t := range taints {
		s := t.GetKey()
		if t.GetValue() != "" {
			s += "=" + t.GetValue()
		}
		out = append(out, s+":"+t.GetEffect())
	}
	return strings.Join(out, ", ")
}

func (c *cli) nodeCommand() *cobra.Command {
	get := c.online(func(ctx context.Context, args []string) error { return c.node(ctx, args[0]) })
	cmd := &cobra.Command{
		Use: "node NODE", Short: "Show one node in detail; fence or remove it",
		Example: "  persysctl node node-a\n  persysctl node fence node-a",
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
	cmd.AddCommand(sub, c.fenceCommand(), c.removeNodeCommand(), c.gcCommand(), list)
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

// onNode lists the workloads of a node, in all namespaces.
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
	f.Add("Since", screen.Text(c.ago(n.GetStatusUpdatedAt())))
	f.Add("Heartbeat", screen.Text(c.ago(n.GetLastHeartbeat())))
	if end := n.GetLeaseExpiresAt(); end != nil {
		left := end.AsTime().Sub(c.now())
		if left > 0 {
			f.Add("Lease", screen.Text("ends in "+span(left)))
		} else {
			f.Add("Lease", screen.Styled("ended "+span(-left)+" ago", screen.Warn))
		}
	}
	f.Add("CPU", screen.Text(fmt.Sprintf("%s of %s cores reserved", cores(n.GetReservedCpuMillicores()), number(n.GetTotalCpuCores(), 2))))
	f.Add("Memory", screen.Text(fmt.Sprintf("%s of %s reserved", mib(n.GetReservedMemoryMb()), mib(n.GetTotalMemoryMb()))))
	for _, p := range n.GetStoragePools() {
		text := fmt.Sprintf("%s of %s reserved (%s)", gib(p.GetReservedGb()), gib(p.GetTotalGb()), p.GetType())
		if p.GetUsedGb() > 0 {
			text += ", " + gib(p.GetUsedGb()) + " in use"
		}
		f.Add("Pool "+screen.Clean(p.GetName()), screen.Text(text))
	}
	f.Add("Runs", screen.Text(strings.Join(n.GetSupportedWorkloadTypes(), ", ")))
	f.Add("Labels", screen.Text(labelsText(n.GetLabels())))
	f.Add("Taints", screen.Text(taintsText(n.GetTaints())))
	f.Add("Endpoint", screen.Text(n.GetGrpcEndpoint()))
	f.Add("Agent", screen.Text(n.GetAgentVersion()))
	f.Add("Engine", screen.Text(n.GetEngineId()))
	c.printFacts(f)
}

// nodeAction calls do for each node and prints the results.
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
	var yes bool
	cmd := &cobra.Command{
		Use: "fence NODE", Short: "Confirm that a lost node is off, so that its exclusive workloads move",
		Long: `Confirm that a lost node is off. Its exclusive workloads (virtual machines, and all
with "exclusive: true") are then started on other nodes. Make sure first that the
node is off: if it still runs them, they run twice.`,
		Example: "  persysctl node fence node-b",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if !yes {
				if err := c.confirm(fmt.Sprintf("Is %s really off? Its exclusive workloads will be started elsewhere.", args[0])); err != nil {
					return err
				}
			}
			return c.nodeAction(ctx, args, func(id string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.FenceNode, &clusterv1.FenceNodeRequest{NodeId: id})
			}, "fenced")
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (c *cli) removeNodeCommand() *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use: "remove NODE", Short: "Remove a node from the cluster", Aliases: []string{"rm"},
		Long: `Remove a node from the cluster. Drain it first: without --force a node that still has
workloads is not removed. With --force its workloads are placed on other nodes at once,
including exclusive ones, so make sure that the node is off.`,
		Example: "  persysctl drain node-b --wait && persysctl node remove node-b",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if force && !yes {
				if err := c.confirm(fmt.Sprintf("Is %s really off? Its workloads will be started elsewhere.", args[0])); err != nil {
					return err
				}
			}
			return c.nodeAction(ctx, args, func(id string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.RemoveNode, &clusterv1.RemoveNodeRequest{NodeId: id, Force: force})
			}, "removed")
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if it has workloads")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

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
		writeLines(c.out, []string{fmt.Sprintf("Draining %s would move %s:", id, plural(len(moves), "workload"))})
	default:
		writeLines(c.out, []string{fmt.Sprintf("%s %s; moving %s:", id, c.paint.Paint(screen.Good, "is draining"), plural(len(moves), "workload"))})
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
