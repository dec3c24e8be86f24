package persysctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

// size is a group and the number of members that it gets.
type size struct {
	group string
	count int
}

func (c *cli) scaleCommand() *cobra.Command {
	var wait waiting
	cmd := &cobra.Command{
		Use: "scale GROUP=COUNT ...", Short: "Change how many members a group has",
		Long: `Change how many members a group has, without a change of its file. A group is a workload
with a count. New members get the specification of the first one; the present members are
not touched. With 0 no member runs: the first one is kept, stopped, with the specification.

The next apply of a file with a count sets the number to that of the file. In a group with
autoscale, the scheduler goes on from the new number: it may be from min to max, or 0,
which stops all members and pauses autoscaling.`,
		Example: "  persysctl scale web=5\n  persysctl scale web=5 worker=0 --wait",
		Args:    args(1, 100, "GROUP=COUNT"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			sizes, err := sizesOf(args)
			if err == nil {
				err = wait.check()
			}
			if err != nil {
				return err
			}
			return c.scale(ctx, sizes, wait)
		}),
	}
	wait.flags(cmd.Flags(), "the members run, or are stopped or deleted")
	return cmd
}

// sizesOf parses arguments such as web=5.
func sizesOf(args []string) (out []size, err error) {
	seen := map[string]bool{}
	for _, a := range args {
		group, text, _ := strings.Cut(a, "=")
		n, err := strconv.Atoi(text)
		if err != nil || group == "" || n < 0 || n > spec.MaxCount {
			return nil, usagef("%q must be GROUP=COUNT with a count of 0 to %d, such as web=5", a, spec.MaxCount)
		}
		if seen[group] {
			return nil, usagef("group %s is named twice", group)
		}
		seen[group] = true
		out = append(out, size{group, n})
	}
	return out, nil
}

func (c *cli) scale(ctx context.Context, sizes []size, wait waiting) error {
	goals, failures, index := map[string]goal{}, &several{c: c}, uint64(0)
	for _, s := range sizes {
		r, err := change(ctx, c, c.cluster.ScaleGroup, &clusterv1.ScaleGroupRequest{Group: s.group, Count: uint32(s.count)})
		if err != nil {
			if len(sizes) == 1 { // for several groups, the type several prints each error
				return err
			}
			failures.add(c.explain(err, true))
			continue
		}
		index = max(index, r.GetIndex())
		for _, id := range r.GetWorkloadIds() {
			if goals[id] = goalKept(); s.count == 0 {
				goals[id] = goalStatus("Stopped")
			}
		}
		for _, id := range r.GetRemovedWorkloadIds() {
			goals[id] = goalDeleted()
		}
		what := scaledText(s.count, r)
		if r.GetUnchanged() {
			what = "unchanged"
		}
		c.done(s.group, what, r)
	}
	if !wait.wait {
		return failures.err()
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, index, wait.timeout, time.After(wait.timeout)))
}

// scaledText describes the result of a change of the number of members.
func scaledText(count int, r *clusterv1.ScaleGroupResponse) string {
	ids := r.GetWorkloadIds()
	switch {
	case count == 0 && len(ids) > 0:
		return "scaled to 0: " + ids[0] + " is stopped" + removed(r.GetRemovedWorkloadIds())
	case len(ids) == 1:
		return "scaled to 1: " + ids[0] + removed(r.GetRemovedWorkloadIds())
	case len(ids) > 1:
		return fmt.Sprintf("scaled to %s: %s to %s", screen.Plural(count, "member"), ids[0], ids[len(ids)-1]) + removed(r.GetRemovedWorkloadIds())
	}
	return fmt.Sprintf("scaled to %d", count)
}
