package persysctl

import (
	"context"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// modeAuto is the argument of `persysctl mode set` after which the leader chooses the mode again.
const modeAuto = "auto"

func modes() []string { return []string{"normal", "degraded", "recovery", modeAuto} }

func (c *cli) modeCommand() *cobra.Command {
	parent := &cobra.Command{Use: "mode", Short: "Show the mode of the cluster, or set it by hand", Args: args(0, 0), RunE: help}
	var reason string
	set := &cobra.Command{
		Use: "set MODE --reason TEXT", Short: "Set the mode: normal, degraded, recovery, or auto",
		Long: `Set the mode: normal, degraded or recovery. In degraded and recovery the schedulers
refuse changes. Running workloads are not touched in any mode.

The mode stays until it is set again. With auto the schedulers choose the mode by the
health of their etcd. With normal they do the same as soon as etcd is healthy.`,
		Example: "  persysctl mode set degraded --reason 'moving the rack'\n  persysctl mode set auto --reason done",
		Args:    args(1, 1, "MODE"), ValidArgs: modes(),
		RunE: c.online(func(ctx context.Context, args []string) error {
			if reason == "" {
				return usagef("--reason is missing: it is recorded in the events")
			}
			r, err := change(ctx, c, c.cluster.SetMode, &clusterv1.SetModeRequest{Mode: args[0], Reason: reason})
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				s := screen.State(r.GetMode())
				text := "mode is " + c.paint.Paint(s.Style, s.Text)
				if args[0] == modeAuto {
					text += ", until the schedulers decide otherwise"
				}
				writeLines(c.out, []string{text})
			})
		}),
	}
	show := &cobra.Command{
		Use: "show", Short: "Show the mode, its reason and time, and whether it was set by hand",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.modeShow(ctx) }),
	}
	set.Flags().StringVar(&reason, "reason", "", "reason, which the events record")
	parent.AddCommand(show, set)
	return parent
}

// modeShow shows the mode according to the connected replica, so it works without a leader.
func (c *cli) modeShow(ctx context.Context) error {
	r, err := read(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{})
	if err != nil {
		return err
	}
	return c.emit(r, func() {
		f := &screen.Facts{}
		f.Add("Mode", modeCell(r.GetMode(), r.GetModeReason(), r.GetModePinned()))
		if at := r.GetModeChangedAt(); at != nil {
			f.Add("Since", screen.Text(at.AsTime().In(c.zone).Format("2006-01-02 15:04:05")+", "+c.age(at)+" ago"))
		}
		c.printFacts(f)
		if r.GetMode() != "normal" {
			c.empty("", "persysctl recovery show")
		}
	})
}

// modeCell formats the cluster's mode, its reason, and whether it was set by hand.
func modeCell(mode, reason string, pinned bool) screen.Cell {
	cell := screen.State(mode)
	if reason != "" && mode != "normal" {
		cell.Text += ": " + screen.Clean(reason)
	}
	if pinned {
		cell.Text += " (set by hand)"
	}
	return cell
}

// showMode prints the cluster's mode after a command that may have changed it.
func (c *cli) showMode(mode string) {
	s := screen.State(mode)
	writeLines(c.out, []string{"mode is " + c.paint.Paint(s.Style, s.Text)})
	if mode != "normal" {
		c.empty("", "persysctl recovery show")
	}
}
