package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/rpc/dial"
)

// Limits of one plan: the number of workloads that schedulers accept, and their total size in bytes, which
// leaves space for the other fields of the message. A plan is not split into several calls, because each
// call would plan without the resources that the workloads of the other calls need.
const (
	maxPlan      = 256
	maxPlanBytes = dial.MaxMessage - 64<<10
)

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
		RunE: func(cmd *cobra.Command, _ []string) error { return c.plan(cmd.Context(), o, "") },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "file", "f", nil, "file, folder, or - for standard input; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "read subfolders too")
	stackFlags(f, &o)
	discardFlag(f, &o.discard)
	revisionFlag(f, &o.condition)
	return cmd
}

// plan shows what applying the workloads in files would do. If policy is not "", the plan uses that policy instead of
// the policies of the namespaces.
func (c *cli) plan(ctx context.Context, o applyOptions, policy string) error {
	if len(o.files) == 0 {
		return failf(exitUsage, "persysctl plan -f FILE", "no file is given")
	}
	requests, err := c.parse(ctx, o)
	if err != nil {
		return err
	}
	if n := len(requests); n > maxPlan {
		return failf(exitUsage, "persysctl plan -f FILE", "%d workloads are given, at most %d can be planned at once", n, maxPlan)
	}
	size := 0
	for _, r := range requests {
		size += proto.Size(r)
	}
	if size > maxPlanBytes {
		return failf(exitUsage, "persysctl plan -f FILE, with fewer files", "the %d workloads and the files beside them have %d KiB, at most %d KiB can be planned at once", len(requests), (size+1023)>>10, maxPlanBytes>>10)
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	if err := c.place(requests); err != nil {
		return err
	}
	r, err := read(ctx, c, c.cluster.PlanWorkloads, &clusterv1.PlanWorkloadsRequest{Workloads: requests, Policy: policy})
	if err != nil {
		return c.explain(err, false)
	}
	if err := c.emit(r, func() { c.showPlan(r) }); err != nil {
		return err
	}
	refused, told := 0, map[string]bool{}
	for _, w := range r.GetWorkloads() {
		if w.GetAction() != "refused" {
			continue
		}
		refused++
		if reason := w.GetReason(); !told[reason] { // all members of a group have the same reason, so it is printed once
			told[reason] = true
			c.tell(c.located(w.GetWorkloadId(), reason))
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
	lines := append([]string{"", strings.Join(sum, ", ") + ". Nothing has been changed."}, turnLines(r.GetWorkloads())...)
	for _, line := range heldLines(r.GetWorkloads()) {
		lines = append(lines, c.paint.Paint(screen.Warn, line))
	}
	for _, w := range r.GetWorkloads() {
		lines = append(lines, c.takenBack(screen.Clean(w.GetWorkloadId())+": ", w.GetTakesBack())...)
	}
	writeLines(c.out, lines)
}

// heldLines returns one warning for each reason why planned workloads have to wait or fit on no node. The warning
// names the workloads with this reason. It has the whole text of the reason, which the table of the plan may shorten.
func heldLines(workloads []*clusterv1.PlannedWorkload) (lines []string) {
	held, order := map[string][]string{}, []string{}
	for _, w := range workloads {
		if reason := screen.Clean(w.GetReason()); reason != "" && w.GetAction() != "refused" {
			if held[reason] == nil {
				order = append(order, reason)
			}
			held[reason] = append(held[reason], w.GetWorkloadId())
		}
	}
	for _, reason := range order {
		id := screen.Clean(held[reason][0])
		if n := len(held[reason]) - 1; n > 0 {
			id += " and " + screen.Plural(n, "other")
		}
		lines = append(lines, "Warning: "+id+": "+reason)
	}
	return lines
}

// turnLines returns a line for each system workload and each group whose members would change a few at a time. A group is made from a
// specification with count; the members of group NAME are NAME-0, NAME-1 and so on.
func turnLines(workloads []*clusterv1.PlannedWorkload) (lines []string) {
	atATime, members, extra := map[string]int32{}, map[string]int{}, map[string]int32{}
	for _, w := range workloads {
		if w.GetAtATime() > 0 && w.GetMembers() != "" {
			lines = append(lines, fmt.Sprintf("The members of %s would change in turns, at most %d at a time; `persysctl rollout status %s` shows the progress.",
				screen.Clean(w.GetWorkloadId()), w.GetAtATime(), screen.Clean(w.GetWorkloadId())))
		} else if n := w.GetAtATime(); n > 0 {
			group := w.GetWorkloadId()
			if i := strings.LastIndexByte(group, '-'); i > 0 {
				group = group[:i]
			}
			atATime[group], members[group], extra[group] = n, members[group]+1, w.GetExtraMembers()
		}
	}
	for _, group := range slices.Sorted(maps.Keys(members)) {
		first := ""
		if n := extra[group]; n > 0 {
			first = fmt.Sprintf(", after the start of %s, deleted at the end", screen.Plural(int(n), "extra member"))
		}
		lines = append(lines, fmt.Sprintf("%s of %s would change in turns, at most %d at a time%s; `persysctl rollout status %s` shows the progress.",
			screen.Plural(members[group], "member"), screen.Clean(group), atATime[group], first, screen.Clean(group)))
	}
	return lines
}

// planText returns why a planned workload cannot run or change. If it can, planText returns its changes and
// their effects on data and on other workloads.
func planText(w *clusterv1.PlannedWorkload) string {
	var parts []string
	reason, _, _ := strings.Cut(w.GetReason(), "\n")
	if text := cmp.Or(reason, changesText(w.GetChanges())); text != "" {
		parts = append(parts, text)
	}
	if w.GetMembers() != "" {
		parts = append(parts, w.GetMembers())
	}
	goes, kept := dataOf(w)
	if len(goes) > 0 {
		parts = append(parts, "deletes: "+strings.Join(goes, ", "))
	}
	if len(kept) > 0 {
		parts = append(parts, "keeps: "+strings.Join(kept, ", "))
	}
	if data := w.GetLocalData(); len(data) > 0 && w.GetAction() != "delete" && w.GetNodeId() != w.GetPresentNodeId() {
		parts = append(parts, leavesBehind(data))
	}
	if evicted := w.GetPreempts(); len(evicted) > 0 {
		parts = append(parts, evicts(evicted))
	}
	return strings.Join(parts, "; ")
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
