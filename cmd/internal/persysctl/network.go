package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
)

func (c *cli) networkCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "network", Aliases: []string{"net"}, Short: "Networks of containers on several nodes",
		Long: `Networks of containers on several nodes.

A container joins networks of its namespace with networks: [NAME] in its specification.
Each node with a member has a part of the subnet, and gives its containers addresses of it.`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the networks", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListNetworks, &clusterv1.ListNetworksRequest{Namespace: c.namespace()})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showNetworks(r.GetNetworks()) })
		}),
	}
	inspect := &cobra.Command{
		Use: "inspect NAME", Aliases: []string{"show"}, Short: "Show a network, the slices of its nodes, and the names of its members", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.GetNetwork, &clusterv1.GetNetworkRequest{Name: args[0], Namespace: c.namespace()})
			if err != nil {
				return err
			}
			return c.emit(r.GetNetwork(), func() { c.showNetwork(r.GetNetwork()) })
		}),
	}
	drop := &cobra.Command{
		Use: "rm NAME", Aliases: []string{"delete"}, Short: "Delete a network that no workload uses", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeleteNetwork, &clusterv1.DeleteNetworkRequest{Name: args[0], Namespace: c.namespace()})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(c.createNetworkCommand(), c.watchable(list), c.watchable(inspect), c.checkNetworkCommand(), drop)
	return parent
}

func (c *cli) checkNetworkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check [NAME]", Short: "Let the nodes of a network send packets to each other", Args: args(0, 1, "NAME"),
		Long: `Let the nodes of a network, or of all networks of the namespace, send packets to each other.

For each pair of nodes it shows whether packets come back, the shortest time that one took,
and the size of the largest one. A problem says what to do, such as which UDP port to open.
In a network of more than 17 nodes, each node sends packets to 16 others.
The command fails (exit code 1) if a pair has a problem.`,
		RunE: c.online(func(ctx context.Context, args []string) error {
			names := args
			if len(names) == 0 {
				r, err := read(ctx, c, c.cluster.ListNetworks, &clusterv1.ListNetworksRequest{Namespace: cmp.Or(c.namespace(), fsm.DefaultNamespace)})
				if err != nil {
					return err
				}
				for _, n := range r.GetNetworks() {
					names = append(names, n.GetName())
				}
			}
			all := &clusterv1.CheckNetworkResponse{}
			failed := 0
			for _, name := range names {
				r, err := read(ctx, c, c.cluster.CheckNetwork, &clusterv1.CheckNetworkRequest{Name: name, Namespace: c.namespace()})
				if err != nil {
					return err
				}
				for _, p := range r.GetPaths() {
					if p.GetProblem() != "" {
						failed++
					}
				}
				all.Paths, all.LeftOut, all.Mtu = append(all.Paths, r.GetPaths()...), all.LeftOut+r.GetLeftOut(), r.GetMtu()
				if !c.machine() {
					c.showPaths(name, r)
				}
			}
			if c.machine() {
				if err := c.emit(all, func() {}); err != nil {
					return err
				}
			}
			if failed > 0 {
				return failf(exitFailed, "", "%s with a problem", screen.Plural(failed, "path"))
			}
			return nil
		}),
	}
}

// showPaths prints the result of a check.
func (c *cli) showPaths(name string, r *clusterv1.CheckNetworkResponse) {
	writeLines(c.out, []string{fmt.Sprintf("Network %s, MTU %d: %s", screen.Clean(name), r.GetMtu(), screen.Plural(len(r.GetPaths()), "path"))})
	if len(r.GetPaths()) == 0 {
		return
	}
	t := screen.NewTable(screen.Column{Title: "FROM", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "TO", Gives: 1, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "REACHED"}, screen.Column{Title: "LATENCY"}, screen.Column{Title: "LARGEST PACKET"})
	var problems []string
	for _, p := range r.GetPaths() {
		reached, latency, size := "no", screen.None, screen.None
		if p.GetReached() {
			reached, latency, size = "yes", fmt.Sprintf("%.2f ms", float64(p.GetLatencyMicroseconds())/1000), strconv.Itoa(int(p.GetMtu()))
		}
		t.Add(screen.Text(screen.Clean(p.GetFrom())), screen.Text(screen.Clean(p.GetTo())), screen.Text(reached), screen.Text(latency), screen.Text(size))
		if p.GetProblem() != "" {
			problems = append(problems, fmt.Sprintf("%s to %s:", screen.Clean(p.GetFrom()), screen.Clean(p.GetTo())))
			for _, line := range screen.Fold(screen.Clean(p.GetProblem()), 96) {
				problems = append(problems, "  "+line)
			}
		}
	}
	c.print(t)
	if r.GetLeftOut() > 0 {
		problems = append(problems, fmt.Sprintf("%s left out: each node sends packets to 16 others", screen.Plural(int(r.GetLeftOut()), "path")))
	}
	if len(problems) > 0 {
		writeLines(c.out, problems)
	}
}

func (c *cli) createNetworkCommand() *cobra.Command {
	var subnet string
	var mtu uint32
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a network", Args: args(1, 1, "NAME"),
		Long: `Create a network in the namespace of --namespace. It cannot be changed later.

Without --subnet it gets a free /20 of the pool (SCHEDULER_NETWORK_POOL), which is enough
for 64 nodes with up to 46 containers each. The subnet must be free in the networks of all
machines: containers could not reach other addresses in it.`,
		Example: `  persysctl network create back
  persysctl network create back -n shop --subnet 10.50.0.0/20`,
	}
	cmd.Flags().StringVar(&subnet, "subnet", "", "IPv4 prefix of 14 to 26 bits, such as 10.50.0.0/20; each node takes a /26 of it")
	cmd.Flags().Uint32Var(&mtu, "mtu", 0, "maximum packet size in bytes; default 1450, which is 50 less than on Ethernet")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if subnet != "" {
			if _, fault := fsm.ParseSubnet(subnet); fault != "" {
				return failf(exitUsage, cmd.CommandPath()+" --help", "--subnet: %s", fault)
			}
		}
		if err := c.connect(cmd.Context()); err != nil {
			return err
		}
		r, err := change(cmd.Context(), c, c.cluster.CreateNetwork, &clusterv1.CreateNetworkRequest{Name: args[0], Namespace: c.namespace(), Subnet: subnet, Mtu: mtu})
		if err != nil {
			return err
		}
		c.done(args[0], "created: "+r.GetNetwork().GetCidr(), r)
		return nil
	}
	return cmd
}

func (c *cli) showNetworks(list []*clusterv1.Network) {
	t := screen.NewTable(
		screen.Column{Title: "NETWORK", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "NAMESPACE", Gives: 1, Least: 10},
		screen.Column{Title: "SUBNET"}, screen.Column{Title: "MTU"}, screen.Column{Title: "NODES"}, screen.Column{Title: "WORKLOADS"},
	)
	for _, n := range list {
		t.Add(screen.Text(n.GetName()), screen.Text(n.GetNamespace()), screen.Text(n.GetCidr()), screen.Text(strconv.Itoa(int(n.GetMtu()))),
			screen.Text(fmt.Sprintf("%d of %d", n.GetNodes(), n.GetCapacity())), screen.Text(strconv.Itoa(int(n.GetWorkloads()))))
	}
	c.print(t)
}

func (c *cli) showNetwork(n *clusterv1.Network) {
	writeLines(c.out, []string{
		fmt.Sprintf("Network %s in namespace %s, number %d", screen.Clean(n.GetName()), screen.Clean(n.GetNamespace()), n.GetId()),
		fmt.Sprintf("Subnet %s, MTU %d, room for %s", n.GetCidr(), n.GetMtu(), screen.Plural(int(n.GetCapacity()), "node")),
		"",
	})
	t := screen.NewTable(screen.Column{Title: "SLICE"}, screen.Column{Title: "NODE", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "WORKLOADS"}, screen.Column{Title: "EMPTY FOR"})
	for _, s := range n.GetSlices() {
		since := screen.None
		if at := s.GetEmptySince(); at != nil {
			since = c.age(at)
		}
		unowned := "taken back"
		if s.GetServices() {
			unowned = "services"
		}
		t.Add(screen.Text(s.GetCidr()), screen.Text(cmp.Or(screen.Clean(s.GetNodeId()), unowned)), screen.Text(strconv.Itoa(int(s.GetWorkloads()))), screen.Text(since))
	}
	c.print(t)
	c.showIngress(n)
	c.showServices(n)
	c.showMembers(n.GetMembers())
}

// showIngress prints the ports in ingress mode, and on how many nodes they answer.
func (c *cli) showIngress(n *clusterv1.Network) {
	if len(n.GetIngress()) == 0 {
		return
	}
	writeLines(c.out, []string{""})
	t := screen.NewTable(screen.Column{Title: "INGRESS"}, screen.Column{Title: "SERVICE", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "READY"},
		screen.Column{Title: "NODES"}, screen.Column{Title: "NOT ON", Gives: 1, Least: 10})
	for _, p := range n.GetIngress() {
		port := fmt.Sprintf("%d/%s", p.GetPort(), screen.Clean(p.GetProtocol()))
		answer, all := 0, 0
		var not []string
		for _, s := range n.GetSlices() {
			if s.GetNodeId() == "" {
				continue
			}
			all++
			if s.GetAnswers() && !slices.Contains(strings.Split(s.GetHeldPorts(), ", "), port) {
				answer++
			} else {
				not = append(not, screen.Clean(s.GetNodeId()))
			}
		}
		t.Add(screen.Text(port), screen.Text(screen.Clean(p.GetService()+"."+p.GetNamespace())), screen.Text(strconv.Itoa(len(p.GetEndpoints()))),
			screen.Text(fmt.Sprintf("%d of %d", answer, all)), screen.Text(cmp.Or(strings.Join(not, ","), screen.None)))
	}
	c.print(t)
}

// showServices prints the services with their addresses, and how many of their instances are ready.
func (c *cli) showServices(n *clusterv1.Network) {
	if len(n.GetServices()) == 0 {
		return
	}
	writeLines(c.out, []string{""})
	t := screen.NewTable(screen.Column{Title: "SERVICE", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "ADDRESS"}, screen.Column{Title: "READY"})
	for _, s := range n.GetServices() {
		ready, all := 0, 0
		for _, m := range n.GetMembers() {
			if cmp.Or(m.GetGroup(), m.GetName()) == s.GetName() {
				if all++; m.GetAddress() != "" {
					ready++
				}
			}
		}
		t.Add(screen.Text(screen.Clean(s.GetName()+"."+s.GetNamespace())), screen.Text(s.GetAddress()), screen.Text(fmt.Sprintf("%d of %d", ready, all)))
	}
	c.print(t)
}

// showMembers prints the DNS names that containers on a network can use, with their addresses, as the nodes
// resolve them.
func (c *cli) showMembers(list []*agentv1.NetworkMember) {
	if len(list) == 0 {
		return
	}
	writeLines(c.out, []string{""})
	t := screen.NewTable(screen.Column{Title: "NAME", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "ALSO", Gives: 1, Least: 8}, screen.Column{Title: "ADDRESS"}, screen.Column{Title: "PORTS", Gives: 1, Least: 8})
	for _, m := range list {
		also, ports := screen.None, screen.None
		if m.GetGroup() != "" {
			also = screen.Clean(m.GetGroup() + "." + m.GetNamespace())
		}
		for i, p := range m.GetPorts() {
			text := fmt.Sprintf("_%s._%s", screen.Clean(p.GetName()), screen.Clean(p.GetProtocol()))
			if i == 0 {
				ports = text
			} else {
				ports += " " + text
			}
		}
		t.Add(screen.Text(screen.Clean(m.GetName()+"."+m.GetNamespace())), screen.Text(also), screen.Text(cmp.Or(m.GetAddress(), "not ready")), screen.Text(ports))
	}
	c.print(t)
}
