package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) historyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "history WORKLOAD", Short: "List the revisions of a workload",
		Long: `List the revisions of a workload's specification, newest first, and the changes of each.
The current revision and the five before it are kept.`,
		Example: "  persysctl history web\n  persysctl history web -o yaml",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.ListRevisions, &clusterv1.ListRevisionsRequest{WorkloadId: args[0]})
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				t := screen.NewTable(screen.Column{Title: "NUMBER"}, screen.Column{Title: "REVISION", Gives: 1, Least: 10}, screen.Column{Title: "APPLIED"},
					screen.Column{Title: "BY", Gives: 2, Least: 8, Keeps: screen.Middle}, screen.Column{Title: "WHAT CHANGED", Gives: 3, Least: 20})
				for _, v := range r.GetRevisions() {
					number := screen.Text(strconv.FormatUint(v.GetNumber(), 10))
					if v.GetPresent() {
						number = screen.Styled(number.Text+" (now)", screen.Good)
					}
					t.Add(number, screen.Text(screen.Join(" ", v.GetRevisionId(), v.GetCallerRevisionId())), screen.Text(c.ago(v.GetAppliedAt())),
						screen.Text(cmp.Or(v.GetBy(), screen.None)), screen.Text(cmp.Or(changesText(v.GetChanges()), screen.None)))
				}
				c.print(t)
			})
		}),
	}
}

func (c *cli) diffCommand() *cobra.Command {
	var which string
	cmd := &cobra.Command{
		Use: "diff WORKLOAD [--revision A..B]", Short: "Show the difference between two revisions of a workload",
		Long: `Show the difference between two revisions of a workload, field by field. Without
--revision these are the current revision and the one before it. Of a changed secret
only the name is shown. To compare a file with the current revision: persysctl plan -f FILE`,
		Example: "  persysctl diff web\n  persysctl diff web --revision 2..5",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.ListRevisionsRequest{WorkloadId: args[0]}
			if which != "" {
				var err error
				if req.From, req.To, err = revisionRange(which); err != nil {
					return failf(exitUsage, "persysctl history "+args[0], "--revision %q: %v", which, err)
				}
			}
			r, err := read(ctx, c, c.cluster.ListRevisions, req)
			if err != nil {
				return err
			}
			changes := r.GetChanges()
			if which == "" && len(r.GetRevisions()) > 0 {
				changes = r.GetRevisions()[0].GetChanges()
			}
			return c.emit(&clusterv1.ListRevisionsResponse{Changes: changes, Index: r.GetIndex()}, func() {
				if len(changes) == 0 {
					writeLines(c.out, []string{"Nothing differs."})
					return
				}
				t := screen.NewTable(screen.Column{Title: "FIELD", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "BEFORE", Gives: 2, Least: 12}, screen.Column{Title: "AFTER", Gives: 2, Least: 12})
				for _, ch := range changes {
					t.Add(screen.Text(ch.GetField()), screen.Styled(screen.Clean(cmp.Or(ch.GetBefore(), screen.None)), screen.Bad), screen.Styled(screen.Clean(cmp.Or(ch.GetAfter(), screen.None)), screen.Good))
				}
				c.print(t)
			})
		}),
	}
	cmd.Flags().StringVar(&which, "revision", "", "revisions to compare: A..B, or B to compare B with the revision before it")
	return cmd
}

// revisionRange parses a range of revisions: A..B, or B alone, for which it returns 0 as from.
func revisionRange(text string) (from, to uint64, err error) {
	a, b, both := strings.Cut(text, "..")
	if !both {
		a, b = "", text
	}
	if both || a != "" {
		if from, err = strconv.ParseUint(a, 10, 64); err != nil || from == 0 {
			return 0, 0, fmt.Errorf("must be A..B, numbers from 1")
		}
	}
	if to, err = strconv.ParseUint(b, 10, 64); err != nil || to == 0 {
		return 0, 0, fmt.Errorf("must be A..B or B, numbers from 1")
	}
	return from, to, nil
}

func (c *cli) rollbackCommand() *cobra.Command {
	var o waiting
	var number uint64
	var condition string
	cmd := &cobra.Command{
		Use: "rollback WORKLOAD", Short: "Apply an earlier revision of a workload again",
		Long: `Apply an earlier revision of a workload again, with its secrets: that of --to, or the one
before the current. It becomes a new revision, so a rollback can be rolled back.`,
		Example: "  persysctl rollback web\n  persysctl rollback web --to 2 --wait",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			return c.each(ctx, args, o, func(id string) ([]string, uint64, error) {
				r, err := change(ctx, c, c.cluster.RollBack, &clusterv1.RollBackRequest{WorkloadId: id, Number: number, IfRevision: condition})
				if err == nil && !r.GetSuccess() {
					err = failf(exitFailed, "persysctl history "+id, "%s", r.GetErrorMessage())
				}
				if err != nil {
					return nil, 0, err
				}
				what := "rolled back to " + r.GetRevisionId()
				if r.GetUnchanged() {
					what = "unchanged"
				}
				c.done(id, what, r)
				return nil, r.GetIndex(), nil
			}, goalKept())
		}),
	}
	cmd.Flags().Uint64Var(&number, "to", 0, "number of the revision, see persysctl history")
	revisionFlag(cmd.Flags(), &condition)
	o.flags(cmd.Flags(), "the workload is in its desired state")
	return cmd
}
