package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// maxPlan is the schedulers' limit for one plan.
const maxPlan = 256

func (c *cli) planCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR|-",
		Short: "Show what an apply would change, and where workloads would run",
		Long: `Show what an apply of the same files would change, field by field, and the node that
each workload would run on. Nothing is changed. -o wide shows the present node too.`,
		Example: `  persysctl plan -f web.yaml
  persysctl plan -f deploy/ -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: files are named with -f", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return c.plan(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "file", "f", nil, "file, folder, or - for standard input; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "read subfolders too")
	f.StringVar(&o.name, "name", "", "name of the stack to create from a Compose file")
	return cmd
}

func (c *cli) plan(ctx context.Context, o applyOptions) error {
	if len(o.files) == 0 {
		return failf(exitUsage, "persysctl plan -f FILE", "no file is given")
	}
	requests, err := c.parse(o)
	if err != nil {
		return err
	}
	if n := len(requests); n > maxPlan {
		return failf(exitUsage, "persysctl plan -f FILE", "%d workloads are given, at most %d can be planned at once", n, maxPlan)
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	if err := c.place(requests); err != nil {
		return err
	}
	r, err := read(ctx, c, c.cluster.PlanWorkloads, &clusterv1.PlanWorkloadsRequest{Workloads: requests})
	if err != nil {
		return c.explain(err, false)
	}
	if err := c.emit(r, func() { c.showPlan(r) }); err != nil {
		return err
	}
	refused := 0
	for _, w := range r.GetWorkloads() {
		if w.GetAction() == "refused" {
			refused++
		}
	}
	if refused > 0 {
		return failf(exitFailed, "", "%s would be refused", screen.Plural(refused, "workload"))
	}
	return nil
}

var actionStyles = map[string]screen.Style{
	"create": screen.Good, "start": screen.Good, "replace": screen.Warn, "update": screen.Warn,
	"stop": screen.Warn, "delete": screen.Bad, "refused": screen.Bad, "unchanged": screen.Dim,
}

func (c *cli) showPlan(r *clusterv1.PlanWorkloadsResponse) {
	if r.GetFrozen() != "" {
		writeLines(c.out, []string{c.paint.Paint(screen.Warn, "An apply would be refused now: ") + screen.Clean(r.GetFrozen()), ""})
	}
	columns := []screen.Column{{Title: "WORKLOAD", Gives: 1, Least: 12, Keeps: screen.Middle}, {Title: "ACTION"}, {Title: "NODE"}}
	if c.output == outWide {
		columns = append(columns, screen.Column{Title: "NOW ON"})
	}
	columns = append(columns, screen.Column{Title: "WHAT CHANGES", Gives: 2, Least: 20})
	t := screen.NewTable(columns...)
	counts := map[string]int{}
	for _, w := range r.GetWorkloads() {
		counts[w.GetAction()]++
		row := []screen.Cell{
			screen.Text(w.GetWorkloadId()), screen.Styled(w.GetAction(), actionStyles[w.GetAction()]), screen.Text(cmp.Or(w.GetNodeId(), screen.None)),
		}
		if c.output == outWide {
			row = append(row, screen.Text(cmp.Or(w.GetPresentNodeId(), screen.None)))
		}
		t.Add(append(row, screen.Text(planText(w)))...)
	}
	c.print(t)
	var sum []string
	for _, action := range []string{"create", "replace", "update", "start", "stop", "delete", "unchanged", "refused"} {
		if n := counts[action]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, action))
		}
	}
	writeLines(c.out, append([]string{"", strings.Join(sum, ", ") + ". Nothing has been changed."}, turnLines(r.GetWorkloads())...))
}

// turnLines has a line for each group whose members would change a few at a time. Only the members of a
// count do so; those of NAME are NAME-0, NAME-1 and so on.
func turnLines(workloads []*clusterv1.PlannedWorkload) (lines []string) {
	atATime, members := map[string]int32{}, map[string]int{}
	for _, w := range workloads {
		if n := w.GetAtATime(); n > 0 {
			group := w.GetWorkloadId()
			if i := strings.LastIndexByte(group, '-'); i > 0 {
				group = group[:i]
			}
			atATime[group], members[group] = n, members[group]+1
		}
	}
	for _, group := range slices.Sorted(maps.Keys(members)) {
		lines = append(lines, fmt.Sprintf("%s of %s would change in turns, at most %d at a time; `persysctl rollout status %s` follows.",
			screen.Plural(members[group], "member"), screen.Clean(group), atATime[group], screen.Clean(group)))
	}
	return lines
}

// planText is the reason of a planned workload, or else its changes.
func planText(w *clusterv1.PlannedWorkload) string {
	if w.GetReason() != "" {
		return w.GetReason()
	}
	return changesText(w.GetChanges())
}

func changesText(changes []*clusterv1.FieldChange) string {
	var parts []string
	for _, ch := range changes {
		switch {
		case ch.GetBefore() == "" && ch.GetAfter() == "":
			parts = append(parts, ch.GetField())
		default:
			parts = append(parts, fmt.Sprintf("%s: %s → %s", ch.GetField(), cmp.Or(ch.GetBefore(), screen.None), cmp.Or(ch.GetAfter(), screen.None)))
		}
	}
	return strings.Join(parts, ", ")
}
