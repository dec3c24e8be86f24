package persysctl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) accountCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "account", Short: "Create, list and delete the accounts of programs, such as CI systems",
		Long: `Create, list and delete the accounts of programs, such as CI systems.

An account acts through a gateway with a bearer token. The token is shown once, lives 24
hours by default and 30 days at most. Alternatively the account names an OIDC issuer and
the claims that its tokens must have, so that no secret is stored. The roles of an account
decide what it may do (persysctl role bind --account).`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the accounts, without their tokens", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListAccounts, &clusterv1.ListAccountsRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showAccounts(r.GetAccounts()) })
		}),
	}
	var ttl time.Duration
	rotate := &cobra.Command{
		Use: "rotate NAME", Short: "Make a new token for an account; the present one is refused from then on", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			seconds, err := seconds(ttl)
			if err != nil {
				return err
			}
			r, err := change(ctx, c, c.cluster.RotateAccount, &clusterv1.RotateAccountRequest{Name: args[0], TtlSeconds: seconds})
			if err != nil {
				return err
			}
			return c.showAccountToken(r)
		}),
	}
	rotate.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is valid, at most 720h")
	drop := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"revoke", "rm"}, Short: "Delete an account with its roles; its token is refused from then on", Args: args(1, 1, "NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeleteAccount, &clusterv1.DeleteAccountRequest{Name: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(c.createAccountCommand(), c.watchable(list), rotate, drop)
	return parent
}

func seconds(ttl time.Duration) (int64, error) {
	if ttl < time.Second || ttl > 720*time.Hour {
		return 0, usagef("--ttl %s must be 1s to 720h", ttl)
	}
	return int64(ttl / time.Second), nil
}

func (c *cli) createAccountCommand() *cobra.Command {
	req := &clusterv1.CreateAccountRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create NAME --role ROLE --namespace NAMESPACE,…", Short: "Create an account and print its token", Args: args(1, 1, "NAME"),
		Long: `Create an account and print its token. You must have all permissions of the role in the
namespaces of the account.

With --issuer the account has no token of its own: a token of that OIDC issuer acts as the
account if it is for --audience and has every --claim with exactly this value.`,
		Example: `  persysctl account create ci --role operator --namespace shop --ttl 8h > ci.token
  persysctl account create builds --role operator --namespace shop \
    --issuer https://token.actions.githubusercontent.com --audience persys \
    --claim repository=shop/web --claim ref=refs/heads/main`,
	}
	f := cmd.Flags()
	f.StringVar(&req.Role, "role", "", "role of the account; persysctl role bind gives further ones")
	f.StringVar(&req.Description, "description", "", "purpose of the account")
	f.DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is valid, at most 720h")
	f.StringVar(&req.Issuer, "issuer", "", "URL of the OIDC issuer whose tokens give access as the account")
	f.StringVar(&req.Audience, "audience", "", "audience that such a token must have")
	f.StringToStringVar(&req.Claims, "claim", nil, "claim that such a token must have: NAME=VALUE; may be repeated")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req.Name = args[0]
		var err error
		if req.GetRole() != "" {
			if req.Everywhere, req.Namespaces, err = c.where("persysctl account create " + args[0] + " --role " + req.GetRole() + " --namespace NAME"); err != nil {
				return err
			}
		}
		switch {
		case req.GetIssuer() != "" && f.Changed("ttl"):
			return usagef("--ttl: not with --issuer, because the issuer sets how long its tokens are valid")
		case req.GetIssuer() == "":
			if req.TtlSeconds, err = seconds(ttl); err != nil {
				return err
			}
		}
		r, err := change(ctx, c, c.cluster.CreateAccount, req)
		if err != nil {
			return err
		}
		return c.showAccountToken(r)
	})
	return cmd
}

func (c *cli) showAccountToken(r *clusterv1.AccountTokenResponse) error {
	a := r.GetAccount()
	return c.emit(r, func() {
		if r.GetToken() == "" {
			c.say(a.GetName(), screen.Good, "created")
			c.empty("A token of "+screen.Clean(a.GetIssuer())+" with the audience and the claims of the account acts as the account through a gateway.", "persysctl --server https://GATEWAY:8551 --token-file FILE auth whoami")
			return
		}
		writeLines(c.out, []string{r.GetToken()})
		c.empty(fmt.Sprintf("The token is valid until %s and cannot be shown again.", a.GetExpiresAt().AsTime().In(c.zone).Format(time.RFC3339)),
			"persysctl --server https://GATEWAY:8551 --token-file FILE auth whoami")
	})
}

func (c *cli) showAccounts(list []*clusterv1.Account) {
	if len(list) == 0 {
		c.empty("No accounts.", "persysctl account create NAME --role ROLE --namespace NAMESPACE")
		return
	}
	t := screen.NewTable(
		screen.Column{Title: "ACCOUNT", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "TOKEN"}, screen.Column{Title: "ISSUER", Gives: 2, Least: 10},
		screen.Column{Title: "AUDIENCE", Wide: true}, screen.Column{Title: "CLAIMS", Gives: 3, Least: 10}, screen.Column{Title: "BY", Gives: 4, Least: 10},
		screen.Column{Title: "DESCRIPTION", Gives: 5, Least: 10},
	)
	for _, a := range list {
		token := screen.Text(screen.None)
		if a.GetExpiresAt() != nil {
			if left := a.GetExpiresAt().AsTime().Sub(c.now()); left > 0 {
				token = screen.Styled("for "+screen.Span(left), screen.Good)
			} else {
				token = screen.Styled("expired", screen.Bad)
			}
		}
		var claims []string
		for _, k := range slices.Sorted(maps.Keys(a.GetClaims())) {
			claims = append(claims, k+"="+a.GetClaims()[k])
		}
		t.Add(screen.Text(a.GetName()), token, screen.Text(a.GetIssuer()), screen.Text(a.GetAudience()),
			screen.Text(strings.Join(claims, ",")), screen.Text(who(a.GetCreatedBy())), screen.Text(a.GetDescription()))
	}
	c.print(t)
}
