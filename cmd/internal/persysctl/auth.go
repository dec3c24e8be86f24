package persysctl

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) authCommand() *cobra.Command {
	parent := &cobra.Command{Use: "auth", Short: "Show who you are and what you may do", Args: args(0, 0), RunE: help}
	whoami := &cobra.Command{
		Use: "whoami", Short: "Show your identity, your roles and their permissions", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.GetAccess, &clusterv1.GetAccessRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showAccess(r) })
		}),
	}
	can := &cobra.Command{
		Use: "can-i VERB", Short: "Say whether you may do something: exit code 0 for yes, 1 for no",
		Long: `Say whether you may do something. VERB is a permission, such as deploy, or a call by its
name in error messages, such as "drain node". The schedulers use the same rules as for the
call itself.

The question is about the namespace of --namespace, default without it; "*" is every
namespace. It has no effect on verbs about the whole cluster. The exit code is 0 for yes
and 1 for no.`,
		Example: "  persysctl auth can-i deploy -n shop\n  persysctl auth can-i drain node\n  persysctl auth can-i trust && persysctl token list",
		Args:    args(1, 4, "VERB"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.CheckAccess, &clusterv1.CheckAccessRequest{Verb: strings.Join(args, " "), Namespace: c.settings.Namespace})
			if status.Code(errors.Unwrap(err)) == codes.InvalidArgument {
				return &failure{code: exitUsage, text: err.Error(), cause: err} // exit code 1 would mean the answer "no"
			}
			if err != nil {
				return err
			}
			answer := "no"
			if r.GetAllowed() {
				answer = "yes"
			}
			err = c.emit(r, func() { writeLines(c.out, []string{answer + ": " + screen.Clean(r.GetReason())}) })
			if err == nil && !r.GetAllowed() {
				return &failure{code: exitFailed, text: r.GetReason(), quiet: true}
			}
			return err
		}),
	}
	parent.AddCommand(whoami, can)
	return parent
}

func (c *cli) showAccess(r *clusterv1.GetAccessResponse) {
	f := &screen.Facts{}
	f.Add("Identity", screen.Styled(screen.Clean(who(r.GetIdentity())), screen.Bold))
	if r.GetVia() != "" {
		f.Add("Through", screen.Text(screen.Clean(who(r.GetVia()))))
	}
	if at := r.GetCertificateNotAfter(); at != nil {
		left := at.AsTime().Sub(c.now())
		state := screen.Styled("valid for "+screen.Span(left), screen.Good)
		if left <= 0 {
			state = screen.Styled("expired", screen.Bad)
		}
		f.Add("Certificate", state)
	}
	c.printFacts(f)
	c.section("Roles")
	if len(r.GetGrants()) == 0 {
		c.empty("You have no role: an admin gives you one.", "persysctl token create --role user --name NAME --access viewer")
		return
	}
	t := screen.NewTable(screen.Column{Title: "ROLE"}, screen.Column{Title: "NAMESPACES", Gives: 2, Least: 10}, screen.Column{Title: "PERMISSIONS", Gives: 1, Least: 20})
	for _, g := range r.GetGrants() {
		in := strings.Join(g.GetNamespaces(), ",")
		if g.GetEverywhere() {
			in = "all"
		}
		t.Add(screen.Text(screen.Clean(g.GetRole())), screen.Text(screen.Clean(in)), screen.Text(strings.Join(g.GetPermissions(), ",")))
	}
	c.print(t)
}
