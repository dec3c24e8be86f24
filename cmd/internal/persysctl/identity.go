package persysctl

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/enrol"
)

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
	f.StringVar(&req.Reason, "reason", "", "reason, which the events record")
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
		state := screen.Styled("valid for "+screen.Span(left), screen.Good)
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

// joinCommand returns `persysctl join`, which gets a certificate for a user.
func (c *cli) joinCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "join TOKEN...", Short: "Join this machine, or yourself, to a cluster with a token", Args: args(1, -1, "TOKEN"),
		Long: `Join a cluster with a token: this machine, or you.

With a token of the role scheduler, agent or gateway, the program joins as a service of
this machine. That needs the package persys, and root. With several tokens, several
programs join.

With a token of the role user you get a certificate, which is kept in ~/.persys.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if tok, err := pki.ParseJoinToken(args[0]); len(args) > 1 || err == nil && tok.Role != pki.RoleUser {
				return c.joinMachine(cmd.Context(), args)
			}
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

// joined returns the files of the identity (key, certificate and roots) that `persysctl join` stored, and
// whether they exist.
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

const (
	// refreshEvery is the longest time between two refreshes of the user's certificate and root certificates.
	refreshEvery = time.Hour
	// refreshFor is the time limit of a refresh. It is short because the command waits for it.
	refreshFor = 2 * time.Second
)

// keepIdentity refreshes the user's identity (certificate and roots) before the command runs, and every hour
// while it runs.
func (c *cli) keepIdentity(ctx context.Context) {
	if c.identity == nil || c.files == nil || c.stop != nil {
		return
	}
	c.refresh(ctx, true)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	c.stop = func() {
		cancel()
		<-ended
	}
	go func() {
		defer close(ended)
		t := time.NewTicker(refreshEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				c.refresh(ctx, false) // the periodic refresh prints no messages, because the screen belongs to the command
			}
		}
	}()
}

// refresh renews the user's certificate and the root certificates stored with it. In the first half of the
// certificate's validity it tries at most once per refreshEvery, or once per twentieth of the validity if that is
// shorter, and reports no errors. In the second half it tries each time and reports errors if say is set.
func (c *cli) refresh(ctx context.Context, say bool) {
	k, leaf := *c.identity, c.files.Leaf()
	life, stamp := pki.Life(leaf), filepath.Join(k.Dir, "looked")
	fresh := c.now().Before(leaf.NotAfter.Add(-life / 2))
	if st, err := os.Stat(stamp); err == nil && fresh && c.now().Sub(st.ModTime()) < min(refreshEvery, life/20) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshFor)
	defer cancel()
	err := k.SaveFile(stamp, nil) // an error means that the certificate is in a folder of another user and cannot be renewed
	if err == nil {
		err = c.renew(ctx, k)
	}
	switch {
	case err == nil:
	case fresh || !say:
		c.log().Warn("could not renew the identity in "+k.Dir, "err", err)
	default:
		fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, fmt.Sprintf("your certificate in %s ends in %s and could not be renewed: %v",
			k.Dir, screen.Span(leaf.NotAfter.Sub(c.now())), err)))
	}
}

// renew calls the schedulers directly, even if the command uses a gateway, because gateways do not renew
// certificates.
func (c *cli) renew(ctx context.Context, k pki.IdentityStore) error {
	conn := c.direct
	if conn == nil {
		m, err := k.Membership()
		if err != nil || len(m.Schedulers) == 0 {
			return errors.Join(err, errors.New("the context names no schedulers: run a command with --server SCHEDULER"))
		}
		if conn, err = dial.Dial(ctx, dial.Options{Addrs: m.Schedulers, TLS: c.files, UserAgent: "persysctl/" + c.version, CallTimeout: refreshFor, UnreachableAfter: refreshFor, Log: c.log()}); err != nil {
			return err
		}
		defer conn.Close()
	}
	keeper := enrol.Keeper{Identity: k, Files: c.files, Conn: conn, Log: c.log(), Eager: true}
	return keeper.Once(ctx)
}
