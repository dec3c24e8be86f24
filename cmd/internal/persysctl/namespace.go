package persysctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/spec/quantity"
)

// allNamespaces is the value of --namespace that selects all namespaces.
const allNamespaces = "*"

// namespace returns the value of --namespace, or "" for all namespaces.
func (c *cli) namespace() string {
	if c.settings.Namespace == allNamespaces {
		return ""
	}
	return c.settings.Namespace
}

// place sets the namespace of workloads whose specification names none: the value of --namespace.
func (c *cli) place(list []*controlv1.ApplyWorkloadRequest) error {
	name := c.namespace()
	if name == "" {
		return nil
	}
	typed := strings.HasPrefix(c.loader.Source("Namespace"), "-")
	for _, r := range list {
		switch s := r.GetSpec(); {
		case s == nil:
		case s.GetNamespace() == "":
			s.Namespace = name
		case typed && s.GetNamespace() != name:
			return usagef("%s: the file has namespace %q, but --namespace is %q", r.GetWorkloadId(), s.GetNamespace(), name)
		}
	}
	return nil
}

func (c *cli) namespaceCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "namespace", Aliases: []string{"ns"}, Short: "Divide the cluster among teams, with quotas",
		Long: `Divide the cluster among teams, with quotas.

A workload stays in one namespace: that of its file, or of --namespace, or "default". A
quota limits the sum of the resources that its workloads request, stopped ones included. Viewers
and operators listed in a namespace may act only in the namespaces that list them. Ids
are unique in the whole cluster.`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the namespaces and the use of their quotas", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListNamespaces, &clusterv1.ListNamespacesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showNamespaces(r.GetNamespaces()) })
		}),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show a namespace: its quota, the use of it, and its users", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			n, err := c.oneNamespace(ctx, args[0])
			if err != nil {
				return err
			}
			return c.emit(n, func() { c.showNamespace(n) })
		}),
	}
	drop := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a namespace without workloads and users", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeleteNamespace, &clusterv1.DeleteNamespaceRequest{Name: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(c.watchable(list), c.watchable(show), c.setNamespaceCommand(), drop)
	return parent
}

type namespaceOptions struct {
	description, cpu, memory, disk string
	workloads                      int64
	devices, volumes               int64
	volumeSize                     string
	maxPriority                    int32
	allowScaling                   bool
	nodes                          []string
	add, remove, release           []string
}

func (c *cli) setNamespaceCommand() *cobra.Command {
	var o namespaceOptions
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Create a namespace, or change the fields that flags name",
		Long: `Create a namespace, or change the fields that flags name. A quota of 0 means no limit.
A quota below the present use stops no workload, but new ones are refused until less is
used. A concurrent change by another user is kept.

--max-priority is the highest priority that users who are listed in a namespace may give
to its workloads. Workloads up to this priority also take the place of workloads of lower
priority in other namespaces, if no node has room. Without --max-priority they never do.

--nodes makes a node pool: the workloads of the namespace run only on nodes that carry all
of these labels (persysctl node label). It replaces the former labels; --nodes "" removes
them. Running workloads on other nodes move as soon as a node of the pool has room.
Taint the nodes of the pool to keep other namespaces off them.`,
		Example: `  persysctl namespace set shop --cpu 8 --memory 16Gi --disk 200Gi --workloads 50 --add-user ada
  persysctl namespace set shop --cpu 0
  persysctl namespace set shop --max-priority 50
  persysctl namespace set shop --nodes pool=shop
  persysctl namespace set shop --release ada`,
		Args: args(1, 1, "NAME"),
	}
	f := cmd.Flags()
	f.StringVar(&o.description, "description", "", "purpose of the namespace")
	f.StringVar(&o.cpu, "cpu", "", "quota of cores: 8, 0.5 or 500m")
	f.StringVar(&o.memory, "memory", "", "quota of memory: 512Mi, 16Gi")
	f.StringVar(&o.disk, "disk", "", "quota of disk: 200Gi")
	f.Int64Var(&o.workloads, "workloads", 0, "quota of workloads")
	f.Int64Var(&o.devices, "devices", 0, "quota of devices (resources.devices) of all names together")
	f.Int64Var(&o.volumes, "volumes", 0, "quota of managed volumes, including kept ones that no workload uses")
	f.StringVar(&o.volumeSize, "volume-size", "", "quota of the size of all managed volumes together: 500Gi")
	f.Int32Var(&o.maxPriority, "max-priority", 0, "highest priority, 0 to 1000, that restricted users may set in this namespace, and with which its workloads preempt those of other namespaces")
	f.BoolVar(&o.allowScaling, "allow-scaling", false, "let the suggestions of automation services scale groups; --allow-scaling=false forbids it")
	f.StringSliceVar(&o.nodes, "nodes", nil, "labels (KEY=VALUE) that nodes must carry to run its workloads; \"\" = any node")
	f.StringSliceVar(&o.add, "add-user", nil, "restrict this user to this namespace, and to others that list it; may be repeated")
	f.StringSliceVar(&o.remove, "remove-user", nil, "remove this user; refused in the last namespace that lists it")
	f.StringSliceVar(&o.release, "release", nil, "remove this user, who may act everywhere if no other namespace lists it")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		r, err := c.setNamespace(ctx, args[0], o, f.Changed)
		if err != nil {
			return err
		}
		c.done(args[0], "set", r)
		n := r.GetNamespace()
		if n.GetOverQuota() && !c.machine() {
			c.empty("The use is over the quota: new workloads are refused, and none is stopped.", "persysctl namespace show "+n.GetName())
		}
		if len(n.GetNodeLabels()) > 0 && n.GetMatchingNodes() == 0 && !c.machine() {
			c.empty("No node carries "+labelsText(n.GetNodeLabels())+": new workloads wait, running ones stay, and members of system workloads end.", "persysctl node label NODE "+strings.ReplaceAll(labelsText(n.GetNodeLabels()), ",", ""))
		}
		return nil
	})
	return cmd
}

// setTries is the maximum number of attempts to change a namespace while other users change it too.
const setTries = 5

// setNamespace reads a namespace, changes the fields that flags name and writes it back. If another user has
// changed the namespace in between, the scheduler refuses the write, and setNamespace starts again.
func (c *cli) setNamespace(ctx context.Context, name string, o namespaceOptions, given func(string) bool) (*clusterv1.NamespaceResponse, error) {
	for try := 1; ; try++ {
		req, err := c.wanted(ctx, name, o, given)
		if err != nil {
			return nil, err
		}
		r, err := change(ctx, c, c.cluster.PutNamespace, req)
		var f *failure
		if try < setTries && errors.As(err, &f) && status.Code(f.cause) == codes.Aborted && !dial.IsUnknownOutcome(f.cause) {
			fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, "another user has changed the namespace at the same time; trying again"))
			continue
		}
		return r, err
	}
}

// wanted reads a namespace and returns a request that writes it back with the changes from the flags.
func (c *cli) wanted(ctx context.Context, name string, o namespaceOptions, given func(string) bool) (*clusterv1.PutNamespaceRequest, error) {
	req := &clusterv1.PutNamespaceRequest{Name: name, Quota: &clusterv1.NamespaceAmounts{}, Release: o.release, IfVersion: new(uint64)}
	have, err := c.oneNamespace(ctx, name)
	var f *failure
	switch {
	case err == nil:
		req.Description, req.Users, *req.IfVersion = have.GetDescription(), have.GetUsers(), have.GetVersion()
		req.MaxPriority, req.AllowScaling = have.GetMaxPriority(), have.GetAllowScaling()
		req.NodeLabels = have.GetNodeLabels()
		if q := have.GetQuota(); q != nil {
			req.Quota = q
		}
	case !errors.As(err, &f) || f.code != exitNotFound:
		return nil, err
	}
	q := req.Quota
	if given("description") {
		req.Description = o.description
	}
	if given("workloads") {
		q.Workloads = o.workloads
	}
	if given("devices") {
		q.Devices = o.devices
	}
	if given("volumes") {
		q.Volumes = o.volumes
	}
	if given("max-priority") {
		req.MaxPriority = o.maxPriority
	}
	if given("allow-scaling") {
		req.AllowScaling = o.allowScaling
	}
	if given("nodes") {
		if req.NodeLabels, err = nodeLabels(o.nodes); err != nil {
			return nil, err
		}
	}
	if given("cpu") {
		if q.CpuMillicores, err = quantity.CPU(o.cpu); err != nil {
			return nil, usagef("--cpu: %v", err)
		}
	}
	for _, a := range []struct {
		flag, text string
		shift      uint
		to         *int64
	}{{"memory", o.memory, 20, &q.MemoryMib}, {"disk", o.disk, 30, &q.DiskGb}, {"volume-size", o.volumeSize, 30, &q.VolumeGb}} {
		if !given(a.flag) {
			continue
		}
		if *a.to, err = quantity.Size(a.text, a.shift, "16Gi"); err != nil {
			return nil, usagef("--%s: %v", a.flag, err)
		}
	}
	req.Users = slices.DeleteFunc(slices.Clone(req.Users), func(u string) bool { return slices.Contains(o.remove, u) || slices.Contains(o.release, u) })
	req.Users = append(req.Users, o.add...)
	return req, nil
}

// nodeLabels reads the values of --nodes.
func nodeLabels(values []string) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, usagef("--nodes: %q must be KEY=VALUE", v)
		}
		if _, twice := out[key]; twice {
			return nil, usagef("--nodes: label %q is given twice, and a node has one value for each label", key)
		}
		out[key] = value
	}
	return out, nil
}

func (c *cli) oneNamespace(ctx context.Context, name string) (*clusterv1.Namespace, error) {
	r, err := read(ctx, c, c.cluster.ListNamespaces, &clusterv1.ListNamespacesRequest{Name: name})
	if err != nil {
		return nil, err
	}
	if len(r.GetNamespaces()) != 1 {
		return nil, failf(exitNotFound, "persysctl namespace list", "namespace %q not found", name)
	}
	return r.GetNamespaces()[0], nil
}

// amount describes one of the resources that a quota limits, such as CPU: its name and how to print it.
type amount struct {
	title string
	of    func(*clusterv1.NamespaceAmounts) int64
	text  func(int64) string
}

// amounts are the resources that a quota limits, with their units in the output.
var amounts = [...]amount{
	{"CPU", (*clusterv1.NamespaceAmounts).GetCpuMillicores, screen.Cores},
	{"MEMORY", (*clusterv1.NamespaceAmounts).GetMemoryMib, screen.MiB},
	{"DISK", (*clusterv1.NamespaceAmounts).GetDiskGb, screen.GiB},
	{"WORKLOADS", (*clusterv1.NamespaceAmounts).GetWorkloads, func(n int64) string { return fmt.Sprint(n) }},
	{"DEVICES", (*clusterv1.NamespaceAmounts).GetDevices, func(n int64) string { return fmt.Sprint(n) }},
	{"VOLUMES", (*clusterv1.NamespaceAmounts).GetVolumes, func(n int64) string { return fmt.Sprint(n) }},
	{"VOLUME SIZE", (*clusterv1.NamespaceAmounts).GetVolumeGb, screen.GiB},
}

// alwaysShown is the number of amounts that are shown even if no namespace uses or limits them.
const alwaysShown = 4

// shownAmounts returns the amounts that at least one namespace in list uses or limits, and the first alwaysShown ones.
func shownAmounts(list ...*clusterv1.Namespace) []amount {
	var shown []amount
	for i, a := range amounts {
		if i < alwaysShown || slices.ContainsFunc(list, func(n *clusterv1.Namespace) bool { return a.of(n.GetUsed())+a.of(n.GetQuota()) > 0 }) {
			shown = append(shown, a)
		}
	}
	return shown
}

func (c *cli) showNamespaces(list []*clusterv1.Namespace) {
	columns := []screen.Column{{Title: "NAMESPACE", Gives: 1, Least: 10, Keeps: screen.Middle}}
	shown := shownAmounts(list...)
	for _, a := range shown {
		columns = append(columns, screen.Column{Title: a.title, Right: true})
	}
	columns = append(columns, screen.Column{Title: "USERS", Gives: 2, Least: 10}, screen.Column{Title: "DESCRIPTION", Gives: 3, Least: 12})
	t := screen.NewTable(columns...)
	for _, n := range list {
		row := []screen.Cell{screen.Text(n.GetName())}
		for _, a := range shown {
			used, most := a.of(n.GetUsed()), a.of(n.GetQuota())
			cell := screen.Text(a.text(used))
			if most > 0 {
				cell = screen.Styled(a.text(used)+" of "+a.text(most), fullness(used, most))
			}
			row = append(row, cell)
		}
		t.Add(append(row, screen.Text(strings.Join(n.GetUsers(), ",")), screen.Text(screen.Clean(n.GetDescription())))...)
	}
	c.print(t)
}

// fullness returns the colour in which the used amount of a resource is shown: a warning when used equals the quota
// most, and an error when used exceeds it.
func fullness(used, most int64) screen.Style {
	switch {
	case used > most:
		return screen.Bad
	case used == most:
		return screen.Warn
	}
	return screen.Good
}

func (c *cli) showNamespace(n *clusterv1.Namespace) {
	f := &screen.Facts{}
	f.Add("Namespace", screen.Styled(screen.Clean(n.GetName()), screen.Bold))
	f.Add("Description", screen.Text(screen.Clean(n.GetDescription())))
	users := "every operator and viewer that no namespace lists"
	if len(n.GetUsers()) > 0 {
		users = strings.Join(n.GetUsers(), ", ") + ", and " + users
	}
	f.Add("Users", screen.Text(users))
	reach := "0; its workloads never preempt workloads of other namespaces"
	if n.GetMaxPriority() > 0 {
		reach = fmt.Sprint(n.GetMaxPriority())
	}
	f.Add("Max priority", screen.Text(reach))
	if n.GetAllowScaling() {
		f.Add("Scaling", screen.Text("suggestions of automations are carried out"))
	}
	nodes := "any"
	if labels := n.GetNodeLabels(); len(labels) > 0 {
		nodes = fmt.Sprintf("with %s; %d match", labelsText(labels), n.GetMatchingNodes())
	}
	f.Add("Nodes", screen.Text(screen.Clean(nodes)))
	if n.GetUpdatedAt() != nil {
		f.Add("Changed", screen.Text(c.ago(n.GetUpdatedAt())+" by "+who(n.GetUpdatedBy())))
	}
	c.printFacts(f)
	c.section("Quota")
	t := screen.NewTable(screen.Column{Title: "OF"}, screen.Column{Title: "USED", Right: true}, screen.Column{Title: "QUOTA", Right: true}, screen.Column{Title: "LEFT", Right: true})
	for _, a := range shownAmounts(n) {
		used, most := a.of(n.GetUsed()), a.of(n.GetQuota())
		quota, left := screen.Text("none"), screen.Text("any")
		if most > 0 {
			quota, left = screen.Text(a.text(most)), screen.Styled(a.text(max(0, most-used)), fullness(used, most))
		}
		if most > 0 && used > most {
			left = screen.Styled("over by "+a.text(used-most), screen.Bad)
		}
		t.Add(screen.Text(strings.ToLower(a.title)), screen.Text(a.text(used)), quota, left)
	}
	c.print(t)
}
