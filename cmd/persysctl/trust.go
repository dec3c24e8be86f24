package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/enrol"
)

func roleNames() []string { return []string{"scheduler", "agent", "gateway", "user"} }

func (c *cli) tokenCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "token", Short: "Create, list and delete join tokens",
		Long: `Create, list and delete join tokens, with which machines and people join the cluster.

A token is one line. It holds the role and name to join with, the addresses of the
schedulers, a secret, and the fingerprint of the cluster's CA, by which the joining
side recognises the cluster. The cluster stores only a hash of the secret. Treat a
token as a password.`,
		Args: args(0, 0), RunE: help,
	}
	req := &clusterv1.CreateTokenRequest{}
	var ttl time.Duration
	create := &cobra.Command{
		Use: "create --role ROLE", Short: "Create a join token and print it",
		Example: "  persysctl token create --role agent --ttl 1h --uses 10\n  persysctl token create --role agent --name node-7\n  persysctl token create --role user --name ada --access operator",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if !slices.Contains(roleNames(), req.GetRole()) {
				return usagef("--role %q must be one of %s", req.GetRole(), strings.Join(roleNames(), ", "))
			}
			if ttl < time.Second {
				return usagef("--ttl %s must be 1s or more", ttl)
			}
			req.TtlSeconds = int64(ttl / time.Second)
			r, err := change(ctx, c, c.trust.CreateToken, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{r.GetToken()})
				c.empty(fmt.Sprintf("Valid until %s, %s.", r.GetInfo().GetExpiresAt().AsTime().In(c.zone).Format(time.RFC3339), plural(int(r.GetInfo().GetUsesLeft()), "use")), joinHint(req.GetRole()))
			})
		}),
	}
	f := create.Flags()
	f.StringVar(&req.Role, "role", "", strings.Join(roleNames(), ", "))
	f.StringVar(&req.Name, "name", "", "the only name (node id, scheduler, user) that may join with it; needed to let a name join again")
	f.StringVar(&req.Name, "node", "", "alias of --name, for agents")
	f.StringVar(&req.Access, "access", "", "access of a user: viewer, operator or admin")
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
		state := screen.Styled("in "+span(left), screen.Good)
		switch {
		case left <= 0:
			state = screen.Styled("expired", screen.Bad)
		case k.GetUsesLeft() == 0:
			state = screen.Styled("used up", screen.Dim)
		}
		t.Add(screen.Text(k.GetId()), screen.Text(k.GetRole()), screen.Text(orText(k.GetName(), "any new")), screen.Text(k.GetAccess()),
			screen.Text(fmt.Sprint(k.GetUsesLeft())), state, screen.Text(who(k.GetCreatedBy())))
	}
	c.print(t)
}

// who shortens an identity to ROLE/NAME or oidc/SUBJECT.
func who(by string) string {
	text, _, _ := strings.Cut(by, "?")
	if rest, ok := strings.CutPrefix(text, "persys://"); ok {
		if _, name, ok := strings.Cut(rest, "/"); ok {
			return name
		}
	}
	if rest, ok := strings.CutPrefix(by, "oidc:"); ok {
		if u, err := url.Parse(rest); err == nil && u.Fragment != "" {
			return "oidc/" + u.Fragment
		}
	}
	return text
}

func (c *cli) identityCommand() *cobra.Command {
	parent := &cobra.Command{Use: "identity", Short: "List the identities with a certificate, and revoke them", Args: args(0, 0), RunE: help}
	list := &cobra.Command{
		Use: "list", Short: "List every identity with a certificate of the cluster's CA", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.trust.ListIdentities, &clusterv1.ListIdentitiesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showIdentities(r) })
		}),
	}
	req := &clusterv1.RevokeRequest{}
	var yes bool
	revoke := &cobra.Command{
		Use: "revoke ROLE/NAME", Short: "Revoke an identity or one certificate, within seconds",
		Long: `Revoke every present certificate of ROLE/NAME, or with --fingerprint one certificate.
The workloads of a revoked node go on running, but the schedulers no longer talk to it.
To let an identity join again: persysctl token create --role ROLE --name NAME`,
		Example: "  persysctl identity revoke agent/node-7 --reason stolen",
		Args:    args(0, 1, "ROLE/NAME"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			about := req.GetFingerprint()
			if len(args) == 1 {
				about = args[0]
				var ok bool
				if req.Role, req.Name, ok = strings.Cut(args[0], "/"); !ok {
					return usagef("%q must be ROLE/NAME, for instance agent/node-7", args[0])
				}
			}
			if (len(args) == 1) == (req.GetFingerprint() != "") {
				return usagef("give either ROLE/NAME or --fingerprint")
			}
			if !yes {
				if err := c.confirm(fmt.Sprintf("Revoke %s?", about)); err != nil {
					return err
				}
			}
			r, err := change(ctx, c, c.trust.Revoke, req)
			if err != nil {
				return err
			}
			c.done(about, "revoked", r)
			return nil
		}),
	}
	f := revoke.Flags()
	f.StringVar(&req.Reason, "reason", "", "why, for the events")
	f.StringVar(&req.Fingerprint, "fingerprint", "", "SHA-256 of one certificate, as `persysctl identity list -o wide` shows it")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	parent.AddCommand(c.watchable(list), revoke)
	return parent
}

func (c *cli) showIdentities(r *clusterv1.ListIdentitiesResponse) {
	if len(r.GetIdentities()) == 0 {
		c.empty("This cluster's CA has issued no certificates.", "persysctl token create --role agent")
		return
	}
	t := screen.NewTable(screen.Column{Title: "IDENTITY", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "ACCESS"}, screen.Column{Title: "CERTIFICATE"},
		screen.Column{Title: "ISSUED", Right: true}, screen.Column{Title: "TOKEN", Wide: true}, screen.Column{Title: "FINGERPRINT", Wide: true})
	for _, i := range r.GetIdentities() {
		left := i.GetNotAfter().AsTime().Sub(c.now())
		state := screen.Styled("valid for "+span(left), screen.Good)
		switch {
		case i.GetRevoked():
			state = screen.Styled("revoked", screen.Bad)
		case left <= 0:
			state = screen.Styled("expired", screen.Bad)
		}
		t.Add(screen.Text(i.GetRole()+"/"+i.GetName()), screen.Text(i.GetAccess()), state, screen.Text(c.age(i.GetIssuedAt())), screen.Text(i.GetTokenId()), screen.Text(i.GetFingerprint()))
	}
	c.print(t)
}

// joinCommand gets a certificate for a user.
func (c *cli) joinCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "join TOKEN", Short: "Get a certificate with a join token of role user, and keep it in ~/.persys", Args: args(1, 1, "TOKEN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.home == "" {
				return usagef("~/.persys needs a home folder: set HOME")
			}
			tok, err := pki.ParseJoinToken(args[0])
			if err != nil {
				return usagef("%v", err)
			}
			if name == "" {
				name = tok.Name
			}
			if name == "" {
				return usagef("--name is missing: the token names no user")
			}
			identityStore := c.identityStore()
			if err := enrol.Join(cmd.Context(), enrol.Options{Token: args[0], Identity: identityStore, Role: pki.RoleUser, Name: name, Log: c.log()}); err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			writeLines(c.out, []string{"joined as user/" + name})
			c.empty("", "persysctl -s "+strings.Join(tok.Schedulers, ",")+" status")
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "your name, if the token has none")
	return cmd
}

// auditCommand shows the events that a call has caused.
func (c *cli) auditCommand() *cobra.Command {
	var tail int
	var user string
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who changed what, from which address, and which calls were refused",
		Long: `Show who changed what, from which address, and which calls were refused: every call
that changes something, every join, and their refusals, oldest first. -o json and
-o yaml print the events.`,
		Example: "  persysctl audit --tail 20\n  persysctl audit --by user/ada",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if tail < 0 {
				return usagef("--tail %d must be 0 or more", tail)
			}
			all, err := c.pastEvents(ctx, &clusterv1.EventsRequest{})
			if err != nil {
				return err
			}
			list := slices.DeleteFunc(all, func(e *clusterv1.Event) bool {
				return caller(e) == "" || user != "" && who(e.GetBy()) != user
			})
			if tail > 0 && len(list) > tail {
				list = list[len(list)-tail:]
			}
			if c.machine() {
				return c.emitEvents(list)
			}
			if len(list) == 0 {
				c.empty("No changes.", "persysctl events")
				return nil
			}
			c.print(c.auditTable(list))
			return nil
		}),
	}
	cmd.Flags().IntVar(&tail, "tail", 50, "number of events, the newest; 0 shows all")
	cmd.Flags().StringVar(&user, "by", "", "only changes by this identity, for example user/ada")
	return cmd
}

// caller is the address of the call that caused an event; "" for an event without a
// call.
func caller(e *clusterv1.Event) string {
	d := e.GetDetails()
	if v := d["caller"]; v != "" {
		return v
	}
	if d["to"] != "" {
		return "" // the event is a change of state, and "from" is the former state
	}
	return d["from"]
}

func (c *cli) auditTable(list []*clusterv1.Event) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "WHO", Gives: 2, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "FROM", Gives: 3, Least: 9}, screen.Column{Title: "WHAT", Gives: 1, Least: 12}, screen.Column{Title: "ABOUT", Gives: 4, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "RESULT", Gives: 5, Least: 16})
	for _, e := range list {
		result := screen.Styled("done", screen.Good)
		switch e.GetType() {
		case "Mutation", "CallRefused", "JoinRefused":
			result = screen.Styled(screen.Clean(joinNonEmpty(": ", e.GetReason(), e.GetMessage())), screen.Warn)
		}
		what := e.GetType()
		switch e.GetType() {
		case "CallMade": // the message names what the call was about
			if result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain); e.GetDetails()["error"] != "" {
				result = screen.Styled(screen.Clean(e.GetDetails()["error"]), screen.Warn)
			}
		case "SessionOpened":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain)
		case "SessionClosed":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Dim)
		}
		if v := joinNonEmpty("", e.GetDetails()["command"], e.GetDetails()["call"]); v != "" {
			what = v
		}
		about := joinNonEmpty(" ", e.GetWorkloadId(), onNode(e.GetNodeId()))
		if about == "" && result.Text == "done" {
			about = e.GetMessage()
		}
		when := c.age(e.GetAt())
		if c.output == outWide {
			when = e.GetAt().AsTime().In(c.zone).Format(time.RFC3339)
		}
		t.Add(screen.Text(when), screen.Text(joinNonEmpty(" via ", who(e.GetBy()), who(e.GetDetails()["via"]))), screen.Text(caller(e)), screen.Text(what), screen.Text(about), result)
	}
	return t
}

// caOnline are the commands of `persysctl ca` that need a connection.
func (c *cli) caOnline() []*cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the CAs that the cluster trusts, and the one that issues", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.trust.ListAuthorities, &clusterv1.ListAuthoritiesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showAuthorities(r.GetAuthorities()) })
		}),
	}
	var after time.Duration
	install := &cobra.Command{
		Use: "install DIR", Short: "Give the cluster the issuing CA in DIR",
		Long: `Give the cluster the issuing CA in DIR. Its key is sealed under the cluster key before
it is stored. After a new root all programs must first learn to trust it: for the time
of --after the former CA goes on issuing.`,
		Args: args(1, 1, "DIR"), Example: "  persysctl ca rotate DIR && persysctl ca install DIR\n  persysctl ca rotate DIR --root && persysctl ca install DIR --after 1h",
		RunE: c.online(func(ctx context.Context, args []string) error {
			a, err := pki.CAFolder{Dir: args[0]}.Authority()
			if err != nil {
				return failf(exitFailed, "persysctl ca show "+args[0], "%v", err)
			}
			key, err := a.Key()
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			r, err := change(ctx, c, c.trust.PutAuthority, &clusterv1.PutAuthorityRequest{Cert: a.Cert.Raw, Root: a.Root.Raw, Key: key, AfterSeconds: int64(after / time.Second)})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showAuthorities([]*clusterv1.AuthorityInfo{r.GetAuthority()}) })
		}),
	}
	install.Flags().DurationVar(&after, "after", time.Minute, "time until the new CA issues")
	drop := &cobra.Command{
		Use: "drop ID", Short: "Stop trusting a CA that no longer issues, and its certificates", Args: args(1, 1, "ID"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.trust.DropAuthority, &clusterv1.DropAuthorityRequest{Id: args[0]})
			if err != nil {
				return err
			}
			c.done(args[0], "dropped", r)
			return nil
		}),
	}
	gossip := &cobra.Command{
		Use: "rotate-gossip", Short: "Replace the gossip key of the schedulers, as ca install and revoking a scheduler do", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := change(ctx, c, c.trust.RotateGossip, &clusterv1.RotateGossipRequest{})
			if err != nil {
				return err
			}
			c.done(r.GetKeyId(), "is being distributed", r)
			return nil
		}),
	}
	return []*cobra.Command{list, install, drop, gossip}
}

func (c *cli) showAuthorities(list []*clusterv1.AuthorityInfo) {
	if len(list) == 0 {
		c.empty("This cluster has no CA of its own.", "persysctl ca init DIR")
		return
	}
	t := screen.NewTable(screen.Column{Title: "ID", Gives: 1, Least: 16}, screen.Column{Title: "ROOT", Gives: 2, Least: 16}, screen.Column{Title: "STATE"}, screen.Column{Title: "VALID"})
	for _, a := range list {
		state := screen.Styled("issues", screen.Good)
		if wait := a.GetActiveAt().AsTime().Sub(c.now()); wait > 0 {
			state = screen.Styled("issues in "+span(wait), screen.Warn)
		} else if !a.GetIssues() {
			state = screen.Styled("trusted", screen.Dim)
		}
		t.Add(screen.Text(a.GetId()), screen.Text(a.GetRootId()), state, screen.Text("until "+day(a.GetNotAfter())))
	}
	c.print(t)
}

func day(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.DateOnly) }

// joined returns the files of the identity that `persysctl join` keeps, and whether they exist.
func (c *cli) joined() (pki.Paths, bool) {
	if c.home == "" {
		return pki.Paths{}, false
	}
	k := c.identityStore()
	return k.Paths(), k.Exists()
}

func (c *cli) identityStore() pki.IdentityStore {
	return pki.IdentityStore{Dir: filepath.Join(c.home, ".persys", "identity")}
}

// refreshEvery is the time between two refreshes of the identity and the roots.
const refreshEvery = time.Hour

// refresh renews the identity and the roots beside it, at most once per refreshEvery. It
// only logs an error: the command is about to call the same schedulers.
func (c *cli) refresh(ctx context.Context, files *pki.Files) {
	k := c.identityStore()
	stamp := filepath.Join(k.Dir, "looked")
	if st, err := os.Stat(stamp); err == nil && c.now().Sub(st.ModTime()) < refreshEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	keeper := enrol.Keeper{Identity: k, Files: files, Conn: c.direct, Log: c.log()}
	err := keeper.Once(ctx)
	if err == nil {
		err = k.SaveFile(stamp, nil)
	}
	if err != nil {
		c.log().Warn("could not renew the identity in "+k.Dir, "err", err)
	}
}
