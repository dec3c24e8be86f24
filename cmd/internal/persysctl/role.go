package persysctl

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) roleCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "role", Short: "Give people, groups and accounts sets of permissions",
		Long: `Give people, groups and accounts sets of permissions.

A role is a set of permissions; viewer, operator and admin are built in. A binding gives
a role to a user, a group of the OIDC provider or an account, in some namespaces or
everywhere. Bindings add up. Nobody can give more than they have.`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the roles and their permissions", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListRoles, &clusterv1.ListRolesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showRoles(r.GetRoles()) })
		}),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show a role", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.ListRoles, &clusterv1.ListRolesRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showRoles(r.GetRoles()) })
		}),
	}
	drop := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a role that is bound to nobody", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeleteRole, &clusterv1.DeleteRoleRequest{Name: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	bindings := &cobra.Command{
		Use: "bindings [ROLE]", Short: "List who has which role, and where", Args: args(0, 1, "ROLE"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.ListBindingsRequest{}
			if len(args) == 1 {
				req.Role = args[0]
			}
			r, err := read(ctx, c, c.cluster.ListBindings, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showBindings(r.GetBindings()) })
		}),
	}
	parent.AddCommand(c.watchable(list), show, c.putRoleCommand(), drop, c.watchable(bindings), c.bindRoleCommand(), c.unbindRoleCommand())
	return parent
}

func (c *cli) putRoleCommand() *cobra.Command {
	req := &clusterv1.PutRoleRequest{}
	var ifVersion uint64
	cmd := &cobra.Command{
		Use: "put NAME --permission PERMISSION,…", Aliases: []string{"set"}, Short: "Create a role, or replace it", Args: args(1, 1, "NAME"),
		Long: `Create a role, or replace it. Its bindings stay, and the change takes effect at once.
You must have all its permissions in every namespace. persysctl role show admin lists
all permissions.`,
		Example: "  persysctl role put deployer --permission read,logs,deploy --description \"CI of the shop\"",
	}
	f := cmd.Flags()
	f.StringSliceVar(&req.Permissions, "permission", nil, "permissions of the role, comma-separated; may be repeated")
	f.StringVar(&req.Description, "description", "", "purpose of the role")
	f.Uint64Var(&ifVersion, "if-version", 0, "replace only this version, 0 if the role must not exist yet")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req.Name = args[0]
		if len(req.GetPermissions()) == 0 {
			return failf(exitUsage, "persysctl role put NAME --permission read,logs", "no permission is given")
		}
		if f.Changed("if-version") {
			req.IfVersion = &ifVersion
		}
		r, err := change(ctx, c, c.cluster.PutRole, req)
		if err != nil {
			return err
		}
		c.done(args[0], "set", r)
		return nil
	})
	return cmd
}

// subject holds the flags that name the user, group or account that gets a role.
type subject struct{ user, group, account string }

func (s *subject) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.user, "user", "", "name of a user, or oidc:ISSUER#SUBJECT")
	f.StringVar(&s.group, "group", "", "group in the tokens of the OIDC provider")
	f.StringVar(&s.account, "account", "", "account of a program")
}

// put copies the subject (user, group or account) to a request. It returns an error unless exactly one of the
// three flags is given.
func (s *subject) put(req *clusterv1.BindRoleRequest) error {
	given := 0
	for _, v := range []struct{ kind, name string }{{"user", s.user}, {"group", s.group}, {"account", s.account}} {
		if v.name != "" {
			req.Kind, req.Name = v.kind, v.name
			given++
		}
	}
	if given != 1 {
		return failf(exitUsage, "persysctl role bindings", "give exactly one of --user, --group and --account")
	}
	return nil
}

// where returns the namespaces in which a role is to be bound, from the flag --namespace. The flag is
// required, so that no role is bound in all namespaces by mistake.
func (c *cli) where(next string) (everywhere bool, namespaces []string, err error) {
	switch in := c.settings.Namespace; in {
	case "":
		return false, nil, failf(exitUsage, next, "name the namespaces of the binding: give --namespace NAME[,NAME…], or --namespace '*' for all namespaces and the whole cluster")
	case allNamespaces:
		return true, nil, nil
	default:
		return false, strings.Split(in, ","), nil
	}
}

func (c *cli) bindRoleCommand() *cobra.Command {
	var to subject
	cmd := &cobra.Command{
		Use: "bind ROLE --user|--group|--account NAME --namespace NAMESPACE,…", Short: "Give a role to a user, a group or an account", Args: args(1, 1, "ROLE"),
		Long: `Give a role to a user, a group or an account, in some namespaces, or with
--namespace '*' everywhere. If the user, group or account has the role already, the new
namespaces replace the former ones. You must have all permissions of the role in these
namespaces. Permissions that concern the whole cluster have an effect only with '*'.`,
		Example: `  persysctl role bind operator --user ada --namespace shop,bank
  persysctl role bind viewer --group developers --namespace '*'
  persysctl role bind deployer --account ci --namespace shop`,
	}
	to.flags(cmd)
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req := &clusterv1.BindRoleRequest{Role: args[0]}
		err := to.put(req)
		if err != nil {
			return err
		}
		if req.Everywhere, req.Namespaces, err = c.where("persysctl role bind " + args[0] + " --" + req.GetKind() + " " + req.GetName() + " --namespace NAME"); err != nil {
			return err
		}
		r, err := change(ctx, c, c.cluster.BindRole, req)
		if err != nil {
			return err
		}
		c.done(args[0], "bound to "+req.GetKind()+" "+req.GetName()+" in "+c.settings.Namespace, r)
		return nil
	})
	return cmd
}

func (c *cli) unbindRoleCommand() *cobra.Command {
	var to subject
	cmd := &cobra.Command{
		Use: "unbind ROLE --user|--group|--account NAME", Short: "Take a role from a user, a group or an account", Args: args(1, 1, "ROLE"),
		Example: "  persysctl role unbind operator --user ada",
	}
	to.flags(cmd)
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req := &clusterv1.BindRoleRequest{Role: args[0], Remove: true}
		if err := to.put(req); err != nil {
			return err
		}
		r, err := change(ctx, c, c.cluster.BindRole, req)
		if err != nil {
			return err
		}
		c.done(args[0], "taken from "+req.GetKind()+" "+req.GetName(), r)
		return nil
	})
	return cmd
}

func (c *cli) showRoles(list []*clusterv1.Role) {
	t := screen.NewTable(
		screen.Column{Title: "ROLE"}, screen.Column{Title: "BUILT IN"}, screen.Column{Title: "PERMISSIONS", Gives: 1, Least: 20},
		screen.Column{Title: "DESCRIPTION", Gives: 2, Least: 12}, screen.Column{Title: "VERSION", Right: true, Wide: true},
	)
	for _, r := range list {
		builtin, version := screen.None, screen.None
		if r.GetBuiltin() {
			builtin = "yes"
		} else {
			version = strconv.FormatUint(r.GetVersion(), 10)
		}
		t.Add(screen.Text(r.GetName()), screen.Text(builtin), screen.Text(strings.Join(r.GetPermissions(), ",")),
			screen.Text(r.GetDescription()), screen.Text(version))
	}
	c.print(t)
}

func (c *cli) showBindings(list []*clusterv1.Binding) {
	if len(list) == 0 {
		c.empty("No bindings. Users have the access of their join tokens.", "persysctl role bind ROLE --user NAME --namespace NAMESPACE")
		return
	}
	t := screen.NewTable(
		screen.Column{Title: "KIND"}, screen.Column{Title: "NAME", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "ROLE"},
		screen.Column{Title: "NAMESPACES", Gives: 2, Least: 10}, screen.Column{Title: "BY", Gives: 3, Least: 10}, screen.Column{Title: "SINCE"},
	)
	for _, b := range list {
		in := strings.Join(b.GetNamespaces(), ",")
		if b.GetEverywhere() {
			in = "all"
		}
		t.Add(screen.Text(b.GetKind()), screen.Text(b.GetName()), screen.Text(b.GetRole()), screen.Text(in),
			screen.Text(who(b.GetBy())), screen.Text(c.ago(b.GetAt())))
	}
	c.print(t)
}
