package persysctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/internal/taint"
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
	// RegisterFlagCompletionFunc fails only for unknown flags.
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

// allNodes reads all pages of the nodes with a status; "" means any status.
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

// share formats a reserved amount and a total, as in "2/8".
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
			screen.Text(share(screen.Cores(n.GetReservedCpuMillicores()), screen.Number(n.GetTotalCpuCores(), 2))),
			screen.Text(share(screen.MiB(n.GetReservedMemoryMb()), screen.MiB(n.GetTotalMemoryMb()))), screen.Text(diskShare(n)), screen.Text(c.age(n.GetLastHeartbeat())),
			screen.Text(strings.Join(n.GetSupportedWorkloadTypes(), ",")), screen.Text(n.GetGrpcEndpoint()), screen.Text(n.GetAgentVersion()),
			screen.Text(n.GetEngineId()), screen.Text(taintsText(n.GetTaints())), screen.Text(labelsText(n.GetLabels())), screen.Text(nodeReason(n)))
	}
	return t
}

// nodeReason returns why the status of a node is not Ready.
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
	return share(screen.GiB(reserved), screen.GiB(total))
}

func taintsText(taints []*controlv1.Taint) string {
	var out []string
	for _, t := range taints {
		out = append(out, taint.Text(t))
	}
	return strings.Join(out, ", ")
}
