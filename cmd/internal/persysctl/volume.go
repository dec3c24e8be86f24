package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec/quantity"
)

func (c *cli) volumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Short: "Managed volumes of workloads", Aliases: []string{"volumes"},
		Long: `Managed volumes of workloads.

A workload names its volumes under managed_volumes. A volume that does not exist is made
with the workload and, unless its retain_policy is Retain, deleted with it. The data of a
local volume is on one node, so volumes of the same name on several nodes are different
volumes; --node says which one is meant.`,
		Args: args(0, 0),
		RunE: help,
	}
	cmd.AddCommand(c.volumeListCommand(), c.volumeInspectCommand(), c.volumeCreateCommand(), c.volumeMoveCommand(), c.volumeDeleteCommand())
	return cmd
}

func (c *cli) volumeListCommand() *cobra.Command {
	req := &clusterv1.ListVolumesRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the managed volumes", Aliases: []string{"ls"},
		Long: `List the managed volumes, from the records of the cluster.

With --ask-nodes it also asks the agents: it adds form, phase and last error (-o wide), and
lists nodes that do not answer and drivers that nodes lack.`,
		Example: "  persysctl volume list\n  persysctl volume list --node node-a\n  persysctl volume list --ask-nodes -o wide",
		Args:    args(0, 0),
	}
	cmd.RunE = c.online(func(ctx context.Context, _ []string) error {
		req.Namespace = c.namespace()
		r, err := read(ctx, c, c.cluster.ListVolumes, req)
		if err != nil {
			return err
		}
		return c.emit(r, func() { c.showVolumes(r) })
	})
	cmd.Flags().StringVar(&req.NodeId, "node", "", "only volumes of this node")
	cmd.Flags().BoolVar(&req.AskNodes, "ask-nodes", false, "also ask the agents of the nodes")
	return cmd
}

func (c *cli) showVolumes(r *clusterv1.ListVolumesResponse) {
	if len(r.GetVolumes()) == 0 {
		writeLines(c.out, []string{"No managed volumes."})
	} else {
		t := screen.NewTable(screen.Column{Title: "VOLUME", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "NAMESPACE", Gives: 1, Least: 9},
			screen.Column{Title: "NODE", Gives: 2, Least: 8, Keeps: screen.Middle}, screen.Column{Title: "SIZE", Right: true}, screen.Column{Title: "STATE"}, screen.Column{Title: "RETAIN"},
			screen.Column{Title: "USED BY", Gives: 3, Least: 10}, screen.Column{Title: "AGE", Right: true}, screen.Column{Title: "POOL", Wide: true}, screen.Column{Title: "FORM", Wide: true},
			screen.Column{Title: "PHASE", Wide: true}, screen.Column{Title: "ERROR", Wide: true})
		for _, v := range r.GetVolumes() {
			t.Add(screen.Text(v.GetId()), screen.Text(v.GetNamespace()), screen.Text(placeOfVolume(v)), screen.Text(sizeOfVolume(v)), screen.State(v.GetState()), screen.Text(v.GetRetainPolicy()),
				screen.Text(usersOfVolume(v)), screen.Text(c.age(v.GetCreatedAt())), screen.Text(cmp.Or(v.GetPool(), screen.None)),
				screen.Text(cmp.Or(v.GetForm(), screen.None)), screen.Text(cmp.Or(v.GetPhase(), screen.None)), screen.Text(cmp.Or(v.GetLastError(), screen.None)))
		}
		c.print(t)
	}
	c.showStorageProblems(r, c.output == outWide)
}

// showStorageProblems prints nodes that did not answer and, if drivers is set, volume drivers that nodes lack. A missing
// driver is no error: a node need not have every driver.
func (c *cli) showStorageProblems(r *clusterv1.ListVolumesResponse, drivers bool) {
	var lines []string
	for _, p := range r.GetProblems() {
		if p.GetDriver() != "" && !drivers {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s", p.GetNodeId(), screen.Clean(p.GetReason())))
	}
	if len(lines) > 0 {
		writeLines(c.out, append([]string{""}, lines...))
	}
}

// placeOfVolume names the node of a volume.
func placeOfVolume(v *clusterv1.Volume) string {
	switch {
	case v.GetNodeId() != "":
		return v.GetNodeId()
	case v.GetDriver() == "local":
		return "(none yet)"
	}
	return "(all)"
}

func sizeOfVolume(v *clusterv1.Volume) string {
	if v.GetSizeGb() > 0 {
		return screen.GiB(v.GetSizeGb())
	}
	return screen.None
}

func usersOfVolume(v *clusterv1.Volume) string {
	used := strings.Join(v.GetWorkloadIds(), ",")
	if used == "" && v.GetOwner() != "" {
		used = "(was " + v.GetOwner() + ")"
	}
	return cmp.Or(used, screen.None)
}

func (c *cli) volumeInspectCommand() *cobra.Command {
	var which volumeChoice
	cmd := &cobra.Command{
		Use: "inspect NAME", Aliases: []string{"show"}, Short: "Show a volume, and its state according to its node", Args: args(1, 1, "NAME"),
		Example: "  persysctl volume inspect data\n  persysctl volume inspect data --node node-a -o json",
	}
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		r, err := which.find(ctx, c, args[0], true)
		if err != nil {
			return err
		}
		return c.emit(r, func() {
			for i, v := range r.GetVolumes() {
				if i > 0 {
					writeLines(c.out, []string{""})
				}
				c.showVolume(v)
			}
			c.showStorageProblems(r, false)
		})
	})
	which.flags(cmd)
	return cmd
}

func (c *cli) showVolume(v *clusterv1.Volume) {
	fate := "deleted with its workload"
	switch {
	case v.GetByHand():
		fate = "kept until it is deleted (persysctl volume rm)"
	case v.GetRetainPolicy() == "Retain":
		fate = "kept when its workload is deleted"
	}
	rows := [][2]string{
		{"Namespace", v.GetNamespace()}, {"Node", placeOfVolume(v)}, {"Size", sizeOfVolume(v)}, {"Pool", v.GetPool()}, {"State", v.GetState()},
		{"Used by", usersOfVolume(v)}, {"Retention", fate}, {"Created", strings.TrimSpace(c.age(v.GetCreatedAt()) + " ago by " + cmp.Or(v.GetCreatedBy(), "a node"))},
		{"Move", moveLine(v.GetMove())}, {"Form", v.GetForm()}, {"Phase", v.GetPhase()}, {"Error", v.GetLastError()},
	}
	if v.GetUnusedSince() != nil {
		rows = append(rows, [2]string{"Unused for", c.age(v.GetUnusedSince())})
	}
	lines := []string{"Volume " + screen.Clean(v.GetId())}
	for _, r := range rows {
		if r[1] != "" && r[1] != screen.None {
			lines = append(lines, fmt.Sprintf("  %-11s %s", r[0], screen.Clean(r[1])))
		}
	}
	writeLines(c.out, lines)
}

// volumeChoice holds the flags --node and --driver, which select one volume if several in a namespace have the same
// name.
type volumeChoice struct{ node, driver string }

func (v *volumeChoice) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&v.node, "node", "", "node of the volume, if several nodes have a volume of this name")
	cmd.Flags().StringVar(&v.driver, "driver", "", "driver of the volume, if several volumes have this name")
}

// find returns the volumes that match a name and the flags --node and --driver. It returns an error if no
// volume matches.
func (v *volumeChoice) find(ctx context.Context, c *cli, name string, ask bool) (*clusterv1.ListVolumesResponse, error) {
	r, err := read(ctx, c, c.cluster.ListVolumes, &clusterv1.ListVolumesRequest{NodeId: v.node, Namespace: cmp.Or(c.namespace(), "default"), Name: name, AskNodes: ask})
	if err != nil {
		return nil, err
	}
	var kept []*clusterv1.Volume
	for _, x := range r.GetVolumes() {
		if v.driver == "" || v.driver == x.GetDriver() {
			kept = append(kept, x)
		}
	}
	if r.Volumes = kept; len(kept) == 0 {
		return nil, failf(exitNotFound, "persysctl volume list", "volume %q not found", name)
	}
	return r, nil
}

// one returns the volume with this name that matches the flags. If several match, it returns an error that lists their
// nodes and drivers.
func (v *volumeChoice) one(ctx context.Context, c *cli, name string) (*clusterv1.Volume, error) {
	r, err := v.find(ctx, c, name, false)
	if err != nil {
		return nil, err
	}
	if len(r.GetVolumes()) == 1 {
		return r.GetVolumes()[0], nil
	}
	var places []string
	for _, x := range r.GetVolumes() {
		places = append(places, strings.TrimSpace("--driver "+x.GetDriver()+" "+suffixed("--node ", x.GetNodeId())))
	}
	return nil, usagef("there are %d volumes %q; say which: %s", len(places), name, strings.Join(places, ", "))
}

func suffixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func (c *cli) volumeCreateCommand() *cobra.Command {
	req := &clusterv1.CreateVolumeRequest{}
	var size string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a volume that outlives its workloads", Args: args(1, 1, "NAME"),
		Long: `Create a volume in the namespace of --namespace. Its data is made when a workload uses it
first, on the node of that workload or on that of --node. It is kept until it is deleted
with persysctl volume rm. Workloads that name no size get that of the volume.`,
		Example: `  persysctl volume create data --size 20Gi
  persysctl volume create data --node node-a --pool fast
  persysctl volume create shared --driver nfs -n shop`,
	}
	f := cmd.Flags()
	f.StringVar(&req.Driver, "driver", "local", "local, nfs or ceph-rbd")
	f.StringVar(&size, "size", "", "size, such as 20Gi; a local volume without size has no limit")
	f.StringVar(&req.Pool, "pool", "", "storage pool of a local volume")
	f.StringVar(&req.NodeId, "node", "", "node of a local volume")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req.Name, req.Namespace = args[0], c.namespace()
		if size != "" {
			n, err := quantity.Size(size, 30, "20Gi")
			if err != nil {
				return usagef("--size: %v", err)
			}
			req.SizeGb = n
		}
		r, err := change(ctx, c, c.cluster.CreateVolume, req)
		if err != nil {
			return err
		}
		c.done(req.GetName(), "created", r)
		return nil
	})
	return cmd
}

func (c *cli) volumeDeleteCommand() *cobra.Command {
	var which volumeChoice
	var yes bool
	cmd := &cobra.Command{
		Use: "rm NAME", Aliases: []string{"delete"}, Short: "Delete an unused volume and its data", Args: args(1, 1, "NAME"),
		Long:    "Delete a volume that no workload uses, with its data, whatever its retain policy is.",
		Example: "  persysctl volume rm data\n  persysctl volume rm data --node node-a --yes",
	}
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		v, err := which.one(ctx, c, args[0])
		if err != nil {
			return err
		}
		if !yes {
			where := ""
			if v.GetNodeId() != "" {
				where = " on " + v.GetNodeId()
			}
			if err := c.confirm(fmt.Sprintf("Delete volume %s%s, with all its data?", v.GetId(), where)); err != nil {
				return err
			}
		}
		r, err := change(ctx, c, c.cluster.DeleteVolume, &clusterv1.DeleteVolumeRequest{NodeId: v.GetNodeId(), Id: v.GetId(), Namespace: v.GetNamespace()})
		if err != nil {
			return err
		}
		c.done(args[0], "deleted", r)
		return nil
	})
	which.flags(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
