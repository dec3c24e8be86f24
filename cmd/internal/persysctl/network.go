package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

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
Each node with a member owns a slice of the network, from which it gives the addresses.`,
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
	parent.AddCommand(c.createNetworkCommand(), c.watchable(list), c.watchable(inspect), drop)
	return parent
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
	cmd.Flags().Uint32Var(&mtu, "mtu", 0, "largest packet in bytes; default 1450, which is 50 below that of Ethernet")
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
		t.Add(screen.Text(s.GetCidr()), screen.Text(cmp.Or(screen.Clean(s.GetNodeId()), "taken back")), screen.Text(strconv.Itoa(int(s.GetWorkloads()))), screen.Text(since))
	}
	c.print(t)
	c.showMembers(n.GetMembers())
}

// showMembers prints the names that containers on a network can ask for, as the resolvers of the nodes answer them.
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
