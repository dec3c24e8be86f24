package main

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
)

// caCommand manages a CA in a folder, offline, and the CAs of a cluster (caOnline).
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
known to others, or before the root expires. The former files are kept beside the new.`,
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
					if _, rerr := f.Root(); rerr == nil { // init refuses a folder with a root
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
