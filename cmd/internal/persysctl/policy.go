package persysctl

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/policy/document"
)

func (c *cli) policyCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "policy", Short: "Control what workloads may ask of their machines",
		Long: `Set what workloads may use of their nodes: host paths, capabilities, devices, ports,
images and more. The policies "privileged", "baseline" and "restricted" are built in.
A policy is bound to namespaces and to labels of nodes. In a namespace without a policy,
"baseline" applies to users whose rights are limited to some namespaces, and no policy
applies to other users.`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the policies and their bindings", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListPolicies, &clusterv1.ListPoliciesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showPolicies(r.GetPolicies()) })
		}),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show a policy as YAML, as policy set reads it", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.ListPolicies, &clusterv1.ListPoliciesRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				for _, p := range r.GetPolicies() {
					writeLines(c.out, strings.Split(strings.TrimSuffix(p.GetDocument(), "\n"), "\n"))
				}
			})
		}),
	}
	drop := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a policy that is bound to nothing", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeletePolicy, &clusterv1.DeletePolicyRequest{Name: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(c.watchable(list), show, c.setPolicyCommand(), c.bindPolicyCommand(), c.testPolicyCommand(), drop)
	return parent
}

func (c *cli) setPolicyCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set NAME -f FILE|-", Short: "Create a policy, or replace it", Args: args(1, 1, "NAME"),
		Long: `Create a policy, or replace it. Its bindings stay. A stricter policy stops no workload
that runs; it takes effect at the next apply.`,
		Example: `  persysctl policy show baseline > shop.yaml
  persysctl policy set shop -f shop.yaml`,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the policy as YAML, or - for standard input")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" {
			return failf(exitUsage, "persysctl policy set NAME -f FILE", "no file is given")
		}
		text, err := c.policyText(file)
		if err != nil {
			return fileFailure(err)
		}
		if _, err := document.Parse(text); err != nil {
			return failf(exitUsage, "persysctl policy show baseline", "%s: %v", file, err)
		}
		if err := c.connect(cmd.Context()); err != nil {
			return err
		}
		r, err := change(cmd.Context(), c, c.cluster.PutPolicy, &clusterv1.PutPolicyRequest{Name: args[0], Document: string(text)})
		if err != nil {
			return err
		}
		c.done(args[0], "set", r)
		return nil
	}
	return cmd
}

// policyText reads a policy from a file or standard input, but at most one byte more than a policy may have.
func (c *cli) policyText(file string) ([]byte, error) {
	in := c.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, document.MaxSize+1))
}

func (c *cli) bindPolicyCommand() *cobra.Command {
	var req clusterv1.BindPolicyRequest
	remove := false
	cmd := &cobra.Command{
		Use: "bind [NAME]", Short: "Bind a policy to a namespace, or to the nodes with a label", Args: args(0, 1, "NAME"),
		Long: `Bind a policy to a namespace or to a label of nodes, in place of the present one. Nodes
with the label get only workloads that the policy allows.`,
		Example: `  persysctl policy bind restricted --namespace shop
  persysctl policy bind baseline --node-label zone=dmz
  persysctl policy bind --remove --namespace shop`,
	}
	cmd.Flags().StringVar(&req.NodeLabel, "node-label", "", "label of nodes: KEY=VALUE")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the binding")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		if req.NodeLabel == "" {
			req.Namespace = c.namespace()
		}
		to := req.NodeLabel + req.Namespace
		switch {
		case to == "":
			return failf(exitUsage, "persysctl policy bind NAME --namespace NAMESPACE", "one of --namespace and --node-label must be given")
		case remove == (len(args) == 1):
			return failf(exitUsage, "persysctl policy bind NAME --namespace NAMESPACE", "one of the name of a policy and --remove must be given")
		case !remove:
			req.Policy = args[0]
		}
		r, err := change(ctx, c, c.cluster.BindPolicy, &req)
		if err != nil {
			return err
		}
		if remove {
			c.done(to, "has no policy", r)
			return nil
		}
		c.done(req.Policy, "bound to "+to, r)
		return nil
	})
	return cmd
}

func (c *cli) testPolicyCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use: "test NAME -f FILE|DIR|-", Short: "Judge workloads by a policy", Args: args(1, 1, "NAME"),
		Long: `Check the workloads of files against a policy, in place of the policies of their namespaces.
Nothing is changed. The output is that of persysctl plan.`,
		Example: `  persysctl policy test restricted -f web.yaml`,
	}
	cmd.Flags().StringArrayVarP(&o.files, "file", "f", nil, "file, folder, or - for standard input; may be repeated")
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "read subfolders too")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(o.files) == 0 {
			return failf(exitUsage, "persysctl policy test NAME -f FILE", "no file is given")
		}
		return c.plan(cmd.Context(), o, args[0])
	}
	return cmd
}

func (c *cli) showPolicies(list []*clusterv1.Policy) {
	t := screen.NewTable(
		screen.Column{Title: "POLICY", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "BUILT IN"},
		screen.Column{Title: "NAMESPACES", Gives: 2, Least: 10}, screen.Column{Title: "NODES", Gives: 2, Least: 10},
		screen.Column{Title: "DESCRIPTION", Gives: 3, Least: 12},
	)
	for _, p := range list {
		builtin := screen.None
		if p.GetBuiltin() {
			builtin = "yes"
		}
		t.Add(screen.Text(p.GetName()), screen.Text(builtin), screen.Text(screen.Clean(strings.Join(p.GetNamespaces(), ","))),
			screen.Text(screen.Clean(strings.Join(p.GetNodeLabels(), ","))), screen.Text(screen.Clean(p.GetDescription())))
	}
	c.print(t)
}
