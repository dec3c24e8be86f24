package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) rolloutCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "rollout", Short: "Follow and control the rolling update of a group",
		Long: `Follow and control the rolling update of a group, which changes a few members at a time.
A group has one if its specification has a count and "update". The update pauses when a
member does not become healthy in time; with auto_revert it is reverted instead. With
canary it waits, once the canaries are healthy, until it is promoted or aborted.`,
		Args: args(0, 0), RunE: help,
	}
	var wait waiting
	status := &cobra.Command{
		Use: "status GROUP", Short: "Show the state of a rolling update", Args: args(1, 1, "GROUP"), ValidArgsFunction: c.completeWorkload,
		Example: "  persysctl rollout status web\n  persysctl rollout status web --wait",
		RunE: c.online(func(ctx context.Context, args []string) error {
			if err := wait.check(); err != nil {
				return err
			}
			r, err := c.rollout(ctx, args[0])
			if err == nil && wait.wait {
				_, err = c.awaitRollout(ctx, args[0], r.GetId(), time.After(wait.timeout))
				if again, e := c.rollout(ctx, args[0]); e == nil {
					r = again
				}
			}
			if r == nil {
				return err
			}
			if shown := c.emit(r, func() { c.showRollout(r) }); shown != nil {
				return shown
			}
			return err
		}),
	}
	wait.flags(status.Flags(), "the update has ended or waits for its promotion")
	parent.AddCommand(status)
	for _, a := range []struct{ action, did, short string }{
		{"pause", "paused", "Pause the update; updated members stay updated"},
		{"resume", "resumed", "Resume an update that is paused"},
		{"promote", "promoted", "Update the other members too, after the canaries of an update"},
		{"abort", "going back", "Revert an update that has not ended"},
		{"undo", "going back", "Revert the update, including a changed count"},
	} {
		parent.AddCommand(&cobra.Command{
			Use: a.action + " GROUP", Short: a.short, Args: args(1, 1, "GROUP"), ValidArgsFunction: c.completeWorkload,
			Example: "  persysctl rollout " + a.action + " web",
			RunE: c.online(func(ctx context.Context, args []string) error {
				r, err := change(ctx, c, c.cluster.SetRollout, &clusterv1.SetRolloutRequest{Group: args[0], Action: a.action})
				if err != nil {
					return err
				}
				what := a.did
				if r.GetUnchanged() {
					what = "unchanged"
				}
				c.done(args[0], what, r)
				return nil
			}),
		})
	}
	return parent
}

func (c *cli) rollout(ctx context.Context, group string) (*clusterv1.GetRolloutResponse, error) {
	return read(ctx, c, c.cluster.GetRollout, &clusterv1.GetRolloutRequest{Group: group})
}

// showRollout prints the state of a rolling update and of each member of its group.
func (c *cli) showRollout(r *clusterv1.GetRolloutResponse) {
	u := r.GetUpdate()
	then, how := "the update pauses", fmt.Sprintf("at most %d unavailable", u.GetMaxParallel())
	if u.GetOrder() != "" {
		how = fmt.Sprintf("%s, %d at a time", u.GetOrder(), u.GetMaxParallel())
	}
	if n := u.GetCanary(); n > 0 {
		how += fmt.Sprintf(", canary %d", n)
	}
	if u.GetAutoRevert() {
		then = "the update is reverted"
	}
	writeLines(c.out, []string{
		rolloutLine(r),
		fmt.Sprintf("started %s by %s", c.ago(r.GetStartedAt()), cmp.Or(r.GetBy(), "an unknown user")),
		fmt.Sprintf("%s; each healthy for %s within %s, else %s", how, time.Duration(u.GetMinHealthyTimeSeconds())*time.Second, time.Duration(u.GetHealthyDeadlineSeconds())*time.Second, then),
		"",
	})
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "UPDATE"}, screen.Column{Title: "STATUS"},
		screen.Column{Title: "NODE"}, screen.Column{Title: "REVISION", Gives: 1, Least: 10}, screen.Column{Title: "REASON", Gives: 3, Least: 16})
	for _, m := range r.GetMembers() {
		s := screen.Plain
		switch m.GetState() {
		case "Updated":
			s = screen.Good
		case "Updating":
			s = screen.Warn
		}
		state := m.GetState()
		if m.GetSurge() {
			state += ", extra"
		}
		if m.GetCanary() {
			state += ", canary"
		}
		t.Add(screen.Text(m.GetWorkloadId()), screen.Styled(state, s), screen.Text(cmp.Or(m.GetStatus(), screen.None)), screen.Text(cmp.Or(m.GetNodeId(), screen.None)),
			screen.Text(cmp.Or(m.GetRevisionId(), screen.None)), screen.Text(cmp.Or(screen.Clean(m.GetReason()), screen.None)))
	}
	c.print(t)
}

// rolloutLine describes the state of a rolling update in one line.
func rolloutLine(r *clusterv1.GetRolloutResponse) string {
	done, all := 0, 0
	for _, m := range r.GetMembers() {
		if m.GetSurge() {
			continue
		}
		if all++; m.GetState() == "Updated" {
			done++
		}
	}
	what := map[string]string{"Running": "is being updated", "AwaitPromotion": "waits for its promotion", "Paused": "is paused", "Completed": "is updated"}[r.GetPhase()]
	if r.GetReverting() {
		what = map[string]string{"Running": "goes back", "Paused": "is paused on its way back", "Completed": "went back"}[r.GetPhase()]
	}
	line := fmt.Sprintf("%s %s, %d of %d done", r.GetGroup(), cmp.Or(what, r.GetPhase()), done, all)
	if why := strings.TrimPrefix(screen.Clean(r.GetReason()), "waits for its promotion: "); why != "" {
		line += ": " + why
	}
	return line
}

// rolloutLook is the interval at which --wait reads the state of a rolling update.
const rolloutLook = 300 * time.Millisecond

// awaitRollout prints the progress of a group's rolling update until the update has ended or waits for a promotion by
// the user. awaits is true if the update has stopped after its first members (canaries) and waits until the user
// promotes it.
func (c *cli) awaitRollout(ctx context.Context, group string, id *controlv1.Generation, late <-chan time.Time) (awaits bool, err error) {
	hint, last := "persysctl rollout status "+group, ""
	look := time.NewTicker(rolloutLook)
	defer look.Stop()
	for {
		r, err := c.rollout(ctx, group)
		if err != nil {
			return false, err
		}
		line := rolloutLine(r)
		switch now := r.GetId(); {
		case now.GetIncarnation() != id.GetIncarnation() || now.GetSequence() != id.GetSequence():
			if r.GetReverting() {
				return false, failf(exitFailed, hint, "%s", line)
			}
			return false, failf(exitFailed, hint, "the update of %s was superseded by another apply", group)
		case r.GetPhase() == "Completed":
			return false, nil
		case r.GetPhase() == "AwaitPromotion":
			fmt.Fprintln(c.err, line) // names the next command
			return true, nil
		case r.GetPhase() == "Paused":
			return false, failf(exitFailed, hint, "%s", line)
		}
		if line != last {
			fmt.Fprintln(c.err, line)
		}
		last = line
		select {
		case <-look.C:
		case <-late:
			return false, failf(exitTimeout, hint, "time is up; %s", line)
		case <-ctx.Done():
			return false, failf(exitInterrupted, hint, "interrupted; the update goes on")
		}
	}
}
