package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func roleNames() []string { return []string{"scheduler", "agent", "gateway", "user"} }

func (c *cli) tokenCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "token", Short: "Create, list and delete join tokens",
		Long: `Create, list and delete join tokens, with which machines and people join the cluster.

A token is one line. It holds the role and name to join with, the addresses of the
schedulers, a secret, and the fingerprint of the cluster's CA, by which the joining
side recognises the cluster. The cluster stores only a hash of the secret. Treat a
token as a password.

The certificate of an agent or gateway is valid for localhost, for the address from which
it connects, and for the names and addresses of the token: --name, --dns-name and --ip. A
gateway that people reach by another name needs --dns-name.`,
		Args: args(0, 0), RunE: help,
	}
	req := &clusterv1.CreateTokenRequest{}
	var (
		ttl   time.Duration
		names []string
		addrs []net.IP
	)
	create := &cobra.Command{
		Use: "create --role ROLE", Short: "Create a join token and print it",
		Example: "  persysctl token create --role agent --ttl 1h --uses 10\n  persysctl token create --role agent --name node-7\n  persysctl token create --role gateway --name gw-1 --dns-name gateway.example.com\n  persysctl token create --role user --name ada --access operator",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if !slices.Contains(roleNames(), req.GetRole()) {
				return usagef("--role %q must be one of %s", req.GetRole(), strings.Join(roleNames(), ", "))
			}
			if req.GetRole() == "user" && (req.GetName() == "" || req.GetAccess() == "") {
				return usagef("--role user needs --name NAME and --access viewer, operator, admin or none")
			}
			if ttl < time.Second {
				return usagef("--ttl %s must be 1s or more", ttl)
			}
			req.Hosts = names
			for _, ip := range addrs {
				req.Hosts = append(req.Hosts, ip.String())
			}
			req.TtlSeconds = int64(ttl / time.Second)
			r, err := change(ctx, c, c.trust.CreateToken, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{r.GetToken()})
				c.empty(fmt.Sprintf("Valid until %s, %s.", r.GetInfo().GetExpiresAt().AsTime().In(c.zone).Format(time.RFC3339), screen.Plural(int(r.GetInfo().GetUsesLeft()), "use")), joinHint(req.GetRole()))
			})
		}),
	}
	f := create.Flags()
	f.StringVar(&req.Role, "role", "", strings.Join(roleNames(), ", "))
	f.StringVar(&req.Name, "name", "", "name (node id, scheduler, user) for which the token is valid; needed to let a name join again")
	f.StringVar(&req.Name, "node", "", "alias of --name, for agents")
	f.StringArrayVar(&names, "dns-name", nil, "DNS name for the certificate, beside --name; repeatable")
	f.IPSliceVar(&addrs, "ip", nil, "IP address for the certificate, beside the one from which the joining machine connects; repeatable")
	f.StringVar(&req.Access, "access", "", "access of a user: viewer, operator, admin, or none for a user who has only bound roles")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long it is valid, at most 168h")
	f.Uint32Var(&req.Uses, "uses", 1, "number of joins")
	_ = create.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roleNames(), cobra.ShellCompDirectiveNoFileComp))
	list := &cobra.Command{
		Use: "list", Short: "List the join tokens, without their secrets", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.trust.ListTokens, &clusterv1.ListTokensRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showTokens(r.GetTokens()) })
		}),
	}
	revoke := &cobra.Command{
		Use: "delete ID", Short: "Delete a join token", Aliases: []string{"revoke", "rm"}, Args: args(1, 1, "ID"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.trust.DeleteToken, &clusterv1.DeleteTokenRequest{Id: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(create, c.watchable(list), revoke)
	return parent
}

func joinHint(role string) string {
	switch role {
	case "scheduler", "agent", "gateway":
		return "persys-" + role + " --join TOKEN"
	}
	return "persysctl join TOKEN"
}

func (c *cli) showTokens(list []*clusterv1.TokenInfo) {
	if len(list) == 0 {
		c.empty("No join tokens.", "persysctl token create --role agent")
		return
	}
	t := screen.NewTable(screen.Column{Title: "ID"}, screen.Column{Title: "ROLE"}, screen.Column{Title: "NAME", Gives: 1, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "ACCESS"}, screen.Column{Title: "USES", Right: true}, screen.Column{Title: "EXPIRES"}, screen.Column{Title: "BY", Gives: 2, Least: 10})
	for _, k := range list {
		left := k.GetExpiresAt().AsTime().Sub(c.now())
		state := screen.Styled("in "+screen.Span(left), screen.Good)
		switch {
		case left <= 0:
			state = screen.Styled("expired", screen.Bad)
		case k.GetUsesLeft() == 0:
			state = screen.Styled("used up", screen.Dim)
		}
		t.Add(screen.Text(k.GetId()), screen.Text(k.GetRole()), screen.Text(cmp.Or(k.GetName(), "any new")), screen.Text(k.GetAccess()),
			screen.Text(fmt.Sprint(k.GetUsesLeft())), state, screen.Text(who(k.GetCreatedBy())))
	}
	c.print(t)
}
