package persysctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) mirrorCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "mirror", Short: "Attach an etcd that holds a copy of the state, detach it, or show it",
		Long: `Attach an etcd that holds a copy of the state, detach it, or show it.

Once the etcd has held the whole state, the cluster refuses changes while the etcd is
unreachable, until it is back or is detached. With ETCD_ENDPOINTS the schedulers attach
that etcd by themselves.`,
		Args: args(0, 0), RunE: help,
	}
	var overwrite, yes bool
	attach := &cobra.Command{
		Use: "attach [ENDPOINTS]", Short: "Attach an etcd that every scheduler reaches",
		Long: `Attach an etcd that every scheduler reaches, and write the state into it.

ENDPOINTS are host:port or URLs, separated by commas; default localhost:2379 on every
scheduler's machine. All schedulers must find the same etcd there. An etcd on another
machine needs TLS (https:// or ETCD_TLS_CA), or ETCD_PLAINTEXT=true on the schedulers.`,
		Example: "  persysctl mirror attach https://etcd-1:2379,https://etcd-2:2379\n  persysctl mirror attach",
		Args:    args(0, 1, "ENDPOINTS"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.AttachMirrorRequest{Overwrite: overwrite}
			if len(args) == 1 {
				req.Endpoints = strings.Split(args[0], ",")
			}
			if overwrite && !yes {
				if !c.inTerm || !c.errTerm {
					return failf(exitUsage, "persysctl recovery import --dry-run", "there is no terminal to ask for confirmation: use --yes")
				}
				if err := c.confirm("Replace all records of Persys in this etcd by the cluster's state?"); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
			defer cancel()
			r, err := change(ctx, c, c.cluster.AttachMirror, req)
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{fmt.Sprintf("etcd cluster %s at %s is attached; every scheduler reaches it", screen.Clean(r.GetEtcd()), strings.Join(cleaned(r.GetEndpoints()), ", "))})
			})
		}),
	}
	attach.Flags().BoolVar(&overwrite, "overwrite", false, "replace the records that other writers left in the etcd under the same keys")
	attach.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	detach := &cobra.Command{
		Use: "detach", Short: "Stop writing to the attached etcd; its records stay",
		Long: `Stop writing to the attached etcd. Its records stay there. With ETCD_ENDPOINTS the
schedulers then attach the etcd that answers there now, also if it is another one.`,
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := change(ctx, c, c.cluster.DetachMirror, &clusterv1.DetachMirrorRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{"the etcd is detached"})
				if e := r.GetEndpoints(); len(e) > 0 {
					c.empty("ETCD_ENDPOINTS names "+strings.Join(cleaned(e), ", ")+": the schedulers attach the etcd that answers there now.", "persysctl mirror status")
				}
			})
		}),
	}
	status := &cobra.Command{
		Use: "status", Short: "Show the mirror and which schedulers reach its etcd", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.MirrorStatus, &clusterv1.MirrorStatusRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showMirror(r) })
		}),
	}
	parent.AddCommand(attach, detach, c.watchable(status))
	return parent
}

func (c *cli) showMirror(r *clusterv1.MirrorStatusResponse) {
	f := &screen.Facts{}
	f.Add("Mirror", mirrorCell(&clusterv1.RecoveryResponse{Mirror: r.GetMirror(), MirrorReason: r.GetReason(), MirrorIndex: r.GetIndex()}))
	if e := r.GetEndpoints(); len(e) > 0 {
		from := "attached by a person"
		if r.GetFromSettings() {
			from = "ETCD_ENDPOINTS"
		}
		f.Add("Endpoints", screen.Text(strings.Join(cleaned(e), ", ")+" ("+from+")"))
	}
	if r.GetAttachedEtcd() != "" {
		f.Add("Attached", screen.Text("etcd cluster "+screen.Clean(r.GetAttachedEtcd())))
	}
	for _, p := range r.GetReplicas() {
		cell := screen.Styled(fmt.Sprintf("reaches etcd cluster %x", p.GetEtcdClusterId()), screen.Good)
		if p.GetError() != "" {
			cell = screen.Styled(screen.Clean(p.GetError()), screen.Bad)
		}
		f.Add(screen.Clean(p.GetReplica()), cell)
	}
	c.printFacts(f)
}
