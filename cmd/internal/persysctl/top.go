package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// topEvery is the interval of --watch. Nodes measure every ten seconds, and send the values with the next
// heartbeat.
const topEvery = 5 * time.Second

type topOptions struct {
	listOptions
	sort  string
	limit int
}

func (c *cli) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show the resource use of nodes or workloads, the largest first",
		Example: "  persysctl top nodes\n  persysctl top workloads --sort memory --limit 10 --watch",
		Args:    args(1, 1, "nodes or workloads"),
		RunE: func(_ *cobra.Command, given []string) error {
			return usagef("top %q must be top nodes or top workloads", given[0])
		},
	}
	cmd.AddCommand(c.topNodesCommand(), c.topWorkloadsCommand())
	return cmd
}

func (c *cli) topNodesCommand() *cobra.Command {
	o := topOptions{}
	cmd := &cobra.Command{
		Use: "nodes", Aliases: []string{"node"}, Short: "Show used and reserved resources of each node",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.top(ctx, o, c.topNodes) }),
	}
	o.flags(cmd)
	return cmd
}

func (c *cli) topWorkloadsCommand() *cobra.Command {
	o := topOptions{}
	cmd := &cobra.Command{
		Use: "workloads", Aliases: []string{"workload"}, Short: "Show the resource use of each running workload",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.top(ctx, o, c.topWorkloads) }),
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "only workloads on this node")
	f.StringVar(&o.group, "group", "", "only members of this group")
	// RegisterFlagCompletionFunc fails only for unknown flags.
	_ = cmd.RegisterFlagCompletionFunc("node", c.completeNode)
	return cmd
}

func orders() []string { return []string{"cpu", "memory", "disk", "network", "name"} }

func (o *topOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.sort, "sort", "cpu", "order by "+strings.Join(orders(), ", "))
	f.IntVar(&o.limit, "limit", 0, "number of rows; 0 shows all")
	f.BoolVarP(&o.watch, "watch", "w", false, "repeat every five seconds until Ctrl-C")
	// RegisterFlagCompletionFunc fails only for unknown flags.
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orders(), cobra.ShellCompDirectiveNoFileComp))
}

// top prints the table of resource usage that show returns: once, or again and again with --watch.
func (c *cli) top(ctx context.Context, o topOptions, show func(context.Context, topOptions) (*screen.Table, func() error, error)) error {
	switch {
	case !slices.Contains(orders(), o.sort):
		return usagef("--sort %q must be one of %s", o.sort, strings.Join(orders(), ", "))
	case o.limit < 0:
		return usagef("--limit %d must not be negative", o.limit)
	}
	once := func() error {
		table, emit, err := show(ctx, o)
		switch {
		case err != nil:
			return err
		case table == nil || c.machine():
			return emit()
		}
		c.print(table)
		return nil
	}
	if !o.watch {
		return once()
	}
	return c.repeat(ctx, topEvery, once)
}

func (c *cli) topNodes(ctx context.Context, o topOptions) (*screen.Table, func() error, error) {
	all, err := c.allNodes(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	key := func(n *controlv1.NodeView) float64 {
		switch u := n.GetUsage(); {
		case o.sort == "name":
			return 0
		case u == nil:
			return -1
		case o.sort == "cpu":
			return ratio(u.GetCpuUsedMillicores(), int64(n.GetTotalCpuCores()*1000))
		case o.sort == "memory":
			return ratio(u.GetMemoryUsedMb(), n.GetTotalMemoryMb())
		case o.sort == "disk":
			return ratio(u.GetDiskUsedGb(), poolTotal(n))
		case o.sort == "network":
			return float64(u.GetNetRxBytes() + u.GetNetTxBytes())
		}
		return 0
	}
	slices.SortStableFunc(all.Nodes, func(a, b *controlv1.NodeView) int {
		return cmp.Or(cmp.Compare(key(b), key(a)), screen.Natural(a.GetNodeId(), b.GetNodeId()))
	})
	if o.limit > 0 && len(all.Nodes) > o.limit {
		all.Nodes = all.Nodes[:o.limit]
	}
	emit := func() error {
		return c.emit(all, func() {
			c.empty("No nodes have registered yet.", "start an agent on a machine: PERSYS_SCHEDULER_ADDR=HOST:8085 persys-agent")
		})
	}
	if len(all.GetNodes()) == 0 {
		return nil, emit, nil
	}
	t := screen.NewTable(screen.Column{Title: "NODE", Gives: 2, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "STATUS"},
		screen.Column{Title: "CPU", Right: true}, screen.Column{Title: "%", Right: true}, screen.Column{Title: "RESERVED", Right: true},
		screen.Column{Title: "MEMORY", Right: true}, screen.Column{Title: "%", Right: true}, screen.Column{Title: "RESERVED", Right: true},
		screen.Column{Title: "DISK", Right: true}, screen.Column{Title: "RESERVED", Right: true, Wide: true}, screen.Column{Title: "WORKLOADS", Right: true, Wide: true},
		screen.Column{Title: "NET IN", Right: true, Wide: true}, screen.Column{Title: "NET OUT", Right: true, Wide: true})
	for _, n := range all.GetNodes() {
		cpu, cpuShare, memory, memoryShare, disk, in, out := screen.None, screen.None, screen.None, screen.None, screen.None, screen.None, screen.None
		if u := n.GetUsage(); u != nil {
			total := int64(n.GetTotalCpuCores() * 1000)
			cpu, cpuShare = share(screen.Cores(u.GetCpuUsedMillicores()), screen.Number(n.GetTotalCpuCores(), 2)), percentText(u.GetCpuUsedMillicores(), total)
			memory, memoryShare = share(screen.MiB(u.GetMemoryUsedMb()), screen.MiB(n.GetTotalMemoryMb())), percentText(u.GetMemoryUsedMb(), n.GetTotalMemoryMb())
			disk = share(screen.GiB(u.GetDiskUsedGb()), screen.GiB(poolTotal(n)))
			in, out = screen.Bytes(u.GetNetRxBytes()), screen.Bytes(u.GetNetTxBytes())
		}
		t.Add(screen.Text(n.GetNodeId()), screen.State(nodeStatus(n)), screen.Text(cpu), screen.Text(cpuShare), screen.Text(screen.Cores(n.GetReservedCpuMillicores())),
			screen.Text(memory), screen.Text(memoryShare), screen.Text(screen.MiB(n.GetReservedMemoryMb())),
			screen.Text(disk), screen.Text(diskShare(n)), screen.Text(fmt.Sprint(n.GetWorkloads())), screen.Text(in), screen.Text(out))
	}
	return t, emit, nil
}

func poolTotal(n *controlv1.NodeView) (total int64) {
	for _, p := range n.GetStoragePools() {
		total += p.GetTotalGb()
	}
	return total
}

func ratio(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func percentText(part, whole int64) string {
	if whole <= 0 {
		return screen.None
	}
	return fmt.Sprintf("%.0f", 100*ratio(part, whole))
}

func (c *cli) topWorkloads(ctx context.Context, o topOptions) (*screen.Table, func() error, error) {
	all, err := c.workloads(ctx, listOptions{node: o.node, group: o.group})
	if err != nil {
		return nil, nil, err
	}
	all.Workloads = slices.DeleteFunc(all.Workloads, func(w *controlv1.WorkloadView) bool { return w.GetUsage() == nil })
	key := func(w *controlv1.WorkloadView) float64 {
		switch u := w.GetUsage(); o.sort {
		case "cpu":
			return u.GetCpuPercent()
		case "memory":
			return float64(u.GetMemoryBytes())
		case "disk":
			return float64(u.GetDiskReadBytes() + u.GetDiskWriteBytes())
		case "network":
			return float64(u.GetNetRxBytes() + u.GetNetTxBytes())
		}
		return 0
	}
	slices.SortStableFunc(all.Workloads, func(a, b *controlv1.WorkloadView) int {
		return cmp.Or(cmp.Compare(key(b), key(a)), screen.Natural(a.GetWorkloadId(), b.GetWorkloadId()))
	})
	if o.limit > 0 && len(all.Workloads) > o.limit {
		all.Workloads = all.Workloads[:o.limit]
	}
	emit := func() error {
		return c.emit(all, func() {
			c.empty("No running workload has been measured yet; nodes measure every ten seconds.", "persysctl list")
		})
	}
	if len(all.GetWorkloads()) == 0 {
		return nil, emit, nil
	}
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "TYPE", Wide: true},
		screen.Column{Title: "NODE", Gives: 2, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "CPU", Right: true}, screen.Column{Title: "MEMORY", Right: true}, screen.Column{Title: "LIMIT", Right: true},
		screen.Column{Title: "READ", Right: true}, screen.Column{Title: "WRITTEN", Right: true},
		screen.Column{Title: "RECEIVED", Right: true}, screen.Column{Title: "SENT", Right: true},
		screen.Column{Title: "OCCUPIES", Right: true, Wide: true}, screen.Column{Title: "MEASURED", Right: true, Wide: true}, screen.Column{Title: "BY", Wide: true})
	for _, w := range all.GetWorkloads() {
		u := w.GetUsage()
		limit, occupies := screen.None, screen.None
		if u.GetMemoryLimitBytes() > 0 {
			limit = screen.Bytes(u.GetMemoryLimitBytes())
		}
		if u.GetDiskBytes() > 0 {
			occupies = screen.Bytes(u.GetDiskBytes())
		}
		t.Add(screen.Text(w.GetWorkloadId()), screen.Text(w.GetType()), screen.Text(w.GetAssignedNodeId()),
			screen.Text(screen.Cores(int64(u.GetCpuPercent()*10))), screen.Text(screen.Bytes(u.GetMemoryBytes())), screen.Text(limit),
			screen.Text(screen.Bytes(u.GetDiskReadBytes())), screen.Text(screen.Bytes(u.GetDiskWriteBytes())),
			screen.Text(screen.Bytes(u.GetNetRxBytes())), screen.Text(screen.Bytes(u.GetNetTxBytes())),
			screen.Text(occupies), screen.Text(c.age(u.GetCollectedAt())), screen.Text(u.GetSource()))
	}
	return t, emit, nil
}
