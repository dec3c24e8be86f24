package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// keyLook is the interval at which --wait reads the progress of a rotation.
const keyLook = 500 * time.Millisecond

// clusterKeyOnline returns the commands of `persysctl cluster-key` that need a connection to a cluster.
func (c *cli) clusterKeyOnline() []*cobra.Command {
	status := &cobra.Command{
		Use: "status", Short: "Show the cluster key of each scheduler, and the progress of a rotation", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.trust.ClusterKeyStatus, &clusterv1.ClusterKeyStatusRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showClusterKey(r) })
		}),
	}
	var wait bool
	var timeout time.Duration
	rotate := &cobra.Command{
		Use: "rotate", Short: "Replace the cluster key, and seal everything again under the new one",
		Long: `Replace the cluster key. Each scheduler stores a new key, all sealed values are sealed
again under it, and then each scheduler deletes the former key. Workloads are not touched.

The rotation goes on if the leader fails. It waits for each scheduler, also for one that
is off: persysctl cluster-key status names it.

Backups that were made before need the former key: keep a copy of the key file with them,
outside of the cluster. The values of secrets stay the same. If somebody has both the
former key and a copy of the state, replace the secrets too.`,
		Args: args(0, 0), Example: "  persysctl cluster-key rotate --wait",
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := change(ctx, c, c.trust.RotateClusterKey, &clusterv1.RotateClusterKeyRequest{})
			if err != nil {
				return err
			}
			if !wait {
				c.done(r.GetKeyId(), "is being distributed", r)
				return nil
			}
			last, err := c.awaitClusterKey(ctx, r.GetKeyId(), timeout)
			if err != nil {
				return err
			}
			return c.emit(last, func() { writeLines(c.out, []string{"everything is sealed under key " + last.GetKeyId()}) })
		}),
	}
	rotate.Flags().BoolVar(&wait, "wait", false, "wait until the former key is deleted on all schedulers")
	rotate.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up waiting after this time; the rotation goes on")
	return []*cobra.Command{rotate, status}
}

// awaitClusterKey waits for the end of the rotation to the key with an id. It prints each change of the progress.
func (c *cli) awaitClusterKey(ctx context.Context, id string, timeout time.Duration) (*clusterv1.ClusterKeyStatusResponse, error) {
	late := time.After(timeout)
	look := time.NewTicker(keyLook)
	defer look.Stop()
	said := ""
	for {
		r, err := read(ctx, c, c.trust.ClusterKeyStatus, &clusterv1.ClusterKeyStatusRequest{})
		if err != nil {
			return nil, err
		}
		line := clusterKeyLine(r)
		if line != said {
			fmt.Fprintln(c.err, line)
		}
		said = line
		if r.GetStep() == "settled" && r.GetWaitsFor() == "" {
			if r.GetKeyId() != id {
				return r, failf(exitFailed, "persysctl cluster-key status", "the new key %s was replaced by %s, because every copy was lost before it was used", id, r.GetKeyId())
			}
			return r, nil
		}
		select {
		case <-look.C:
		case <-late:
			return r, failf(exitTimeout, "persysctl cluster-key status", "the rotation has not ended within %s: %s", timeout, line)
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// clusterKeyLine describes the progress of a rotation in one line.
func clusterKeyLine(r *clusterv1.ClusterKeyStatusResponse) string {
	var line string
	switch r.GetStep() {
	case "distributing":
		line = "the schedulers get key " + r.GetNextKeyId()
	case "resealing":
		line = fmt.Sprintf("%d of %d values sealed under key %s", r.GetValues()-r.GetLeft(), r.GetValues(), r.GetKeyId())
	case "cleaning":
		line = "the schedulers delete former log entries and snapshots"
	default:
		line = fmt.Sprintf("%d values are sealed under key %s", r.GetValues(), r.GetKeyId())
	}
	if why := screen.Clean(r.GetWaitsFor()); why != "" {
		line += "; waits: " + why
	}
	return line
}

func (c *cli) showClusterKey(r *clusterv1.ClusterKeyStatusResponse) {
	f := &screen.Facts{}
	f.Add("Key", screen.Text(r.GetKeyId()))
	step := screen.Styled(r.GetStep(), screen.Warn)
	if r.GetStep() == "settled" {
		step = screen.Styled(r.GetStep(), screen.Good)
	}
	f.Add("Rotation", step)
	if id := r.GetNextKeyId(); id != "" {
		f.Add("New key", screen.Text(id))
	}
	if id := r.GetFormerKeyId(); id != "" {
		f.Add("Former key", screen.Text(id))
	}
	f.Add("Values", screen.Text(fmt.Sprintf("%d sealed, %d under the former key", r.GetValues(), r.GetLeft())))
	if r.GetChangedAt() != nil {
		f.Add("Changed", screen.Text(c.ago(r.GetChangedAt())))
	}
	c.printFacts(f)
	t := screen.NewTable(screen.Column{Title: "SCHEDULER", Gives: 2, Least: 9}, screen.Column{Title: "SEALS WITH"}, screen.Column{Title: "KEYS"}, screen.Column{Title: "WAITS FOR", Gives: 1, Least: 20})
	for _, h := range r.GetReplicas() {
		t.Add(screen.Text(h.GetName()), screen.Text(cmp.Or(h.GetSealsWith(), screen.None)), screen.Text(fmt.Sprint(len(h.GetHeldKeyIds()))), screen.Text(cmp.Or(screen.Clean(h.GetWaitsFor()), screen.None)))
	}
	c.print(t)
}

// readClusterKey reads a key file for a restore, as text.
func readClusterKey(path, passphrase string) (string, error) {
	if path == "" {
		return "", nil
	}
	f, err := keyFile(path, passphrase)
	if err != nil {
		return "", err
	}
	key, err := f.Load()
	if err != nil {
		return "", failf(exitFailed, "", "--cluster-key: %v", err)
	}
	return key.Export(), nil
}
