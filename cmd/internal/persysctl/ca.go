package persysctl

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
)

// caOnline returns the commands of `persysctl ca` that need a connection to a cluster.
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
		Use: "install DIR", Short: "Make the issuing CA in DIR the CA of the cluster",
		Long: `Give the cluster the issuing CA in DIR. Its key is sealed under the cluster key before
it is stored. If the root CA is new too, all programs must trust it first: so for the time
of --after the former CA still issues the certificates.`,
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
	install.Flags().DurationVar(&after, "after", time.Minute, "time until the new CA issues certificates")
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
			state = screen.Styled("issues in "+screen.Span(wait), screen.Warn)
		} else if !a.GetIssues() {
			state = screen.Styled("trusted", screen.Dim)
		}
		t.Add(screen.Text(a.GetId()), screen.Text(a.GetRootId()), state, screen.Text("until "+day(a.GetNotAfter())))
	}
	c.print(t)
}

func day(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.DateOnly) }

// caCommand returns `persysctl ca`, which manages a CA in a folder without a cluster, and the CAs of a
// cluster (caOnline).
func (c *cli) caCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "ca", Short: "Create, show and rotate a cluster's CA",
		Long: `Create, show and rotate a cluster's CA in a folder, offline.

A root signs an issuing CA, and the issuing CA signs all certificates. The schedulers
hold the key of the issuing CA, sealed under the cluster key. The root's key,
DIR/root-key.pem, is needed for rotation only: keep it where no machine of the cluster
can read it.`,
		Args: args(0, 0), RunE: help,
	}
	var cluster string
	create := &cobra.Command{
		Use: "init DIR", Short: "Create a root and an issuing CA in DIR", Args: args(1, 1, "DIR"),
		Example: "  persysctl ca init /media/stick/persys-ca --cluster home",
		RunE: func(_ *cobra.Command, args []string) error {
			root, err := pki.NewRoot(cluster, c.now())
			if err != nil {
				return usagef("--cluster: %v", err)
			}
			a, err := root.NewAuthority(cluster, c.now())
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			f := pki.CAFolder{Dir: args[0]}
			if err := f.Create(root, a); err != nil {
				return failf(exitFailed, "persysctl ca show "+args[0], "%v", err)
			}
			c.showCA(a)
			c.empty("", "move "+f.RootKeyPath()+" to a place that no machine of the cluster can read")
			return nil
		},
	}
	create.Flags().StringVar(&cluster, "cluster", "persys", "name of the cluster, part of every identity")
	show := &cobra.Command{
		Use: "show DIR", Short: "Show the CA in DIR", Args: args(1, 1, "DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			a, err := pki.CAFolder{Dir: args[0]}.Authority()
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			c.showCA(a)
			return nil
		},
	}
	var newRoot bool
	rotate := &cobra.Command{
		Use: "rotate DIR", Short: "Create a new issuing CA in DIR, and with --root a new root",
		Long: `Create a new issuing CA in DIR, signed by the root there. DIR must hold root.pem and
root-key.pem. With --root a new root is created too: use it when the root's key may be
known to others, or before the root expires. The former files are kept in the same folder.`,
		Example: "  persysctl ca rotate /media/stick/persys-ca\n  persysctl ca install /media/stick/persys-ca",
		Args:    args(1, 1, "DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			f := pki.CAFolder{Dir: args[0]}
			var root *pki.Root
			var err error
			if newRoot {
				old, oerr := f.Authority()
				if oerr != nil {
					hint := "persysctl ca init " + args[0]
					if _, rerr := f.Root(); rerr == nil { // init must not overwrite a root CA that is already in the folder
						hint = "persysctl ca rotate " + args[0] + "   and then again with --root"
					}
					return failf(exitFailed, hint, "%v", oerr)
				}
				root, err = pki.NewRoot(old.Cluster, c.now())
			} else {
				root, err = f.Root()
			}
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			a, err := root.NewAuthority(root.Cluster(), c.now())
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			if err := f.Replace(root, a); err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			c.showCA(a)
			c.empty("", "persysctl ca install "+args[0])
			return nil
		},
	}
	rotate.Flags().BoolVar(&newRoot, "root", false, "create a new root too")
	parent.AddCommand(create, show, rotate)
	parent.AddCommand(c.caOnline()...)
	return parent
}

func (c *cli) showCA(a *pki.Authority) {
	f := &screen.Facts{}
	f.Add("Cluster", screen.Text(a.Cluster))
	for _, part := range []struct {
		name string
		cert *x509.Certificate
	}{{"Root", a.Root}, {"Issuing", a.Cert}} {
		left := part.cert.NotAfter.Sub(c.now())
		end := screen.Styled(fmt.Sprintf("until %s (%d days)", part.cert.NotAfter.UTC().Format(time.RFC3339), int(left.Hours()/24)), screen.Good)
		switch {
		case left <= 0:
			end = screen.Styled("expired at "+part.cert.NotAfter.UTC().Format(time.RFC3339), screen.Bad)
		case left < 60*24*time.Hour:
			end.Style = screen.Warn
		}
		f.Add(part.name, screen.Text(pki.Fingerprint(part.cert.Raw)))
		f.Add("  valid", end)
	}
	c.printFacts(f)
}
