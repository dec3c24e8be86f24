package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

type deleteOptions struct {
	force, yes, volumes bool
	condition           string
	waiting
}

func (c *cli) deleteCommand() *cobra.Command {
	var o deleteOptions
	cmd := &cobra.Command{
		Use: "delete WORKLOAD…", Aliases: []string{"rm"}, Short: "Delete workloads, or all of a group",
		Long: `Delete workloads. The id of a group (a workload with a count) deletes all its members. The
record of a workload is removed when its node has confirmed that nothing is left of the
workload. With --force it is removed at once; this is for nodes that never come back.

Volumes that have a name are kept: managed volumes, and the volumes that a Compose file
names. The workload finds them again if it is applied again; persysctl volume list shows
managed volumes, and persysctl volume rm deletes them. Disks of virtual machines and
volumes without a name are deleted.

With --volumes, volumes that have a name are deleted too, except managed volumes that have
"retain: Retain", that a user created or that another workload uses.

On a terminal the command names the data that it deletes and asks first. --yes skips the
question; without a terminal there is none.`,
		Example: "  persysctl delete web\n  persysctl delete web-1 web-2 --wait\n  persysctl delete shop --volumes",
		Args:    args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.delete(ctx, args, o) }),
	}
	f := cmd.Flags()
	f.BoolVar(&o.force, "force", false, "remove the record without the node's confirmation; the node may still run the workload")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.volumes, "volumes", false, "delete the workloads' volumes too")
	revisionFlag(f, &o.condition)
	o.flags(f, "the workloads are deleted")
	return cmd
}

func (c *cli) delete(ctx context.Context, ids []string, o deleteOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := oneCondition(o.condition, ids); err != nil {
		return err
	}
	if !o.yes {
		if err := c.confirmDelete(ctx, ids, o.force, !o.volumes); err != nil {
			return err
		}
	}
	failures := &several{c: c}
	goals := map[string]goal{}
	var index uint64
	for _, id := range ids {
		targets := []string{id}
		if o.wait {
			// List the members of the group before the call, because a deleted group has no members.
			targets = c.targets(ctx, id)
		}
		r, err := change(ctx, c, c.control.DeleteWorkload, &controlv1.DeleteWorkloadRequest{
			WorkloadId: id, Force: o.force, IfRevision: o.condition, KeepVolumes: !o.volumes,
		})
		switch {
		case err != nil:
			failures.add(err)
		case !r.GetSuccess():
			failures.add(c.refusedWorkload(ctx, id, r.GetErrorMessage()))
		default:
			index = max(index, r.GetIndex())
			for _, t := range targets {
				goals[t] = goalDeleted()
			}
			c.done(id, "deleting", r)
			switch {
			case o.volumes && r.GetVolumesKept():
				fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, "warning: the volumes of "+screen.Clean(id)+" stay, because it was deleted without --volumes before: persysctl volume rm NAME deletes a volume"))
			case !o.volumes && !r.GetVolumesKept():
				fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, "warning: the scheduler is older than persysctl: it deletes the volumes of "+screen.Clean(id)+" that do not have retain: Retain"))
			}
		}
	}
	if !o.wait {
		return failures.err()
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, index, o.timeout, time.After(o.timeout)))
}

// refusedWorkload returns the error for a change of workload id that the scheduler refused in its answer,
// with a hint what to do. why is the reason that the answer gives.
func (c *cli) refusedWorkload(ctx context.Context, id, why string) error {
	_, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
	if err != nil {
		if f := c.explain(err, false); f.code == exitNotFound {
			return c.orGroup(ctx, id, f)
		}
	}
	f := &failure{code: exitFailed, text: id + " was refused: " + screen.Clean(cmp.Or(why, "no reason given"))}
	if m := nextCommand.FindStringSubmatchIndex(f.text); m != nil {
		f.hint, f.text = f.text[m[2]:m[3]], f.text[:m[0]]
	}
	return f
}

func (c *cli) retryCommand() *cobra.Command {
	return c.againCommand("retry", "Retry failed workloads at once, and reset their attempts", "trying again", false)
}

func (c *cli) restartCommand() *cobra.Command {
	return c.againCommand("restart", "Restart workloads, also healthy ones", "restarting", true)
}

func (c *cli) againCommand(verb, short, doing string, restart bool) *cobra.Command {
	var o waiting
	var condition string
	cmd := &cobra.Command{
		Use: verb + " WORKLOAD…", Short: short,
		Args: args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if err := oneCondition(condition, args); err != nil {
				return err
			}
			return c.each(ctx, args, o, func(id string) ([]string, uint64, error) {
				r, err := change(ctx, c, c.control.RetryWorkload, &controlv1.RetryWorkloadRequest{WorkloadId: id, Restart: restart, IfRevision: condition})
				switch {
				case err != nil:
				case !r.GetAccepted():
					err = c.refusedWorkload(ctx, id, r.GetReason())
				case r.GetUnchanged():
					c.done(id, "unchanged: "+screen.Clean(cmp.Or(r.GetReason(), "there is nothing to retry")), r)
				default:
					c.done(id, doing, r)
				}
				return nil, r.GetIndex(), err
			}, goalKept())
		}),
	}
	revisionFlag(cmd.Flags(), &condition)
	o.flags(cmd.Flags(), "the workloads are in their desired state")
	return cmd
}

func (c *cli) startCommand() *cobra.Command {
	return c.desireCommand("start", "Start stopped workloads", "Running", "starting")
}

func (c *cli) stopCommand() *cobra.Command {
	return c.desireCommand("stop", "Stop workloads, and keep their specification", "Stopped", "stopping")
}

func (c *cli) desireCommand(verb, short, desired, doing string) *cobra.Command {
	var o waiting
	var condition string
	cmd := &cobra.Command{
		Use: verb + " WORKLOAD…", Short: short,
		Args: args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if err := oneCondition(condition, args); err != nil {
				return err
			}
			return c.each(ctx, args, o, func(id string) ([]string, uint64, error) {
				r, err := change(ctx, c, c.control.ApplyWorkload, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: desired, IfRevision: condition})
				if err == nil && !r.GetSuccess() {
					err = c.refusedWorkload(ctx, id, refusalText(r))
				}
				if err == nil {
					what := doing
					if r.GetUnchanged() {
						what = "unchanged"
					}
					c.done(id, what, r)
				}
				return r.GetWorkloadIds(), r.GetIndex(), err
			}, goalStatus(desired))
		}),
	}
	revisionFlag(cmd.Flags(), &condition)
	o.flags(cmd.Flags(), "the workloads are "+desired)
	return cmd
}

// oneCondition returns an error if --if-revision is used with several workloads, because a revision belongs to one
// workload.
func oneCondition(condition string, ids []string) error {
	if condition != "" && len(ids) != 1 {
		return failf(exitUsage, "", "--if-revision is the condition of one workload; %d are given", len(ids))
	}
	return nil
}

// each calls do, which changes a workload, for each id in ids. With --wait it then waits until the changed workloads
// are in their new state.
func (c *cli) each(ctx context.Context, ids []string, o waiting, do func(id string) ([]string, uint64, error), g goal) error {
	if err := o.check(); err != nil {
		return err
	}
	failures := &several{c: c}
	goals := map[string]goal{}
	var after uint64
	for _, id := range ids {
		touched, index, err := do(id)
		if err != nil {
			failures.add(err)
			continue
		}
		if len(touched) == 0 && o.wait {
			touched = c.targets(ctx, id)
		}
		for _, t := range touched {
			goals[t] = g
		}
		after = max(after, index)
	}
	if !o.wait {
		return failures.err()
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, after, o.timeout, time.After(o.timeout)))
}

// workloadCommand returns the commands of the legacy v1 CLI, which remain valid: persysctl workload VERB --id
// ID.
func (c *cli) workloadCommand() *cobra.Command {
	parent := &cobra.Command{Use: "workload", Hidden: true, Short: "The commands for workloads, as in the legacy v1 CLI", Args: args(0, 0), RunE: help}
	for _, cmd := range []*cobra.Command{c.listCommand(), c.getCommand(), c.deleteCommand(), c.retryCommand(), c.startCommand(), c.stopCommand(), c.restartCommand()} {
		if cmd.Name() != "list" {
			withID(cmd)
		}
		parent.AddCommand(cmd)
	}
	return parent
}

// withID adds the flag --id to cmd, as another form of its argument ID.
func withID(cmd *cobra.Command) {
	id := cmd.Flags().String("id", "", "id, in place of the argument")
	check, do := cmd.Args, cmd.RunE
	merged := func(args []string) []string {
		if *id != "" {
			args = append(args, *id)
		}
		return args
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, merged(args)) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return do(cmd, merged(args)) }
}
