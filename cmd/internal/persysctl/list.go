package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

// pageSize is the number of workloads per page of a list. It keeps a page well below the size limit of a
// message (dial.MaxAnswer).
const pageSize = 1000

type listOptions struct {
	node, status, group, kind string
	watch                     bool
}

func (c *cli) listCommand() *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List workloads with their state, node and reason",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if o.watch {
				return c.watchList(ctx, o)
			}
			return c.list(ctx, o)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "only workloads on this node")
	f.StringVar(&o.node, "node-id", "", "alias of --node")
	f.StringVar(&o.status, "status", "", "only workloads with this status, for example Failed")
	f.StringVar(&o.group, "group", "", "only members of this group")
	f.StringVar(&o.kind, "kind", "", "only workloads of this kind, for example job")
	f.BoolVarP(&o.watch, "watch", "w", false, "show changes until Ctrl-C")
	// Ignore the errors of MarkHidden and of the calls below: these fail only for flags that do not exist.
	_ = f.MarkHidden("node-id")
	_ = cmd.RegisterFlagCompletionFunc("node", c.completeNode)
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(workloadStates(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(spec.Kinds(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func workloadStates() []string {
	return []string{"Pending", "Scheduled", "Updating", "Running", "Stopped", "Failed", "Unknown", "RetryPending", "Deleting"}
}

func (o listOptions) matches(w *controlv1.WorkloadView) bool {
	return (o.node == "" || o.node == w.GetAssignedNodeId()) && (o.status == "" || strings.EqualFold(o.status, w.GetStatus())) &&
		(o.group == "" || o.group == w.GetGroup()) && (o.kind == "" || strings.EqualFold(o.kind, kindText(w)))
}

// workloads lists the workloads that the options select.
func (c *cli) workloads(ctx context.Context, o listOptions) (*controlv1.ListWorkloadsResponse, error) {
	if o.status != "" && !slices.ContainsFunc(workloadStates(), func(s string) bool { return strings.EqualFold(s, o.status) }) {
		return nil, usagef("--status %q must be one of %s", o.status, strings.Join(workloadStates(), ", "))
	}
	if o.kind != "" && !slices.ContainsFunc(spec.Kinds(), func(s string) bool { return strings.EqualFold(s, o.kind) }) {
		return nil, usagef("--kind %q must be one of %s", o.kind, strings.Join(spec.Kinds(), ", "))
	}
	return c.allPages(ctx, &controlv1.ListWorkloadsRequest{NodeId: o.node, Status: o.status, Group: o.group, Kind: o.kind, Namespace: c.namespace()})
}

// allPages reads all pages of a list.
func (c *cli) allPages(ctx context.Context, req *controlv1.ListWorkloadsRequest) (*controlv1.ListWorkloadsResponse, error) {
	req.PageSize, req.Level = pageSize, c.level()
	all := &controlv1.ListWorkloadsResponse{}
	for {
		r, err := read(ctx, c, c.control.ListWorkloads, req)
		if err != nil {
			return nil, err
		}
		all.Workloads = append(all.Workloads, r.GetWorkloads()...)
		all.Index, all.Stale, all.AgeMs = r.GetIndex(), r.GetStale(), r.GetAgeMs()
		next := r.GetNextPageToken()
		if next == "" || next == req.GetPageToken() {
			return all, nil
		}
		req.PageToken = next
	}
}

func (c *cli) list(ctx context.Context, o listOptions) error {
	all, err := c.workloads(ctx, o)
	if err != nil {
		return err
	}
	return c.emit(all, func() {
		if len(all.GetWorkloads()) == 0 {
			c.nothing(o)
			return
		}
		c.print(c.workloadTable(all.GetWorkloads()))
	})
}

// nothing prints a message that no workloads match the options of the list.
func (c *cli) nothing(o listOptions) {
	what, next := "No workloads yet.", "persysctl apply -f FILE"
	switch {
	case c.namespace() != "":
		what, next = fmt.Sprintf("No workload of namespace %q matches.", c.namespace()), "persysctl list -n '*'"
	case o != (listOptions{}):
		what, next = "No workload matches.", "persysctl list"
	}
	c.empty(what, next)
}

// empty prints to stderr that a list has no elements, and the next command to type. Nothing goes to stdout, so a pipe
// gets an empty list.
func (c *cli) empty(what, next string) {
	if what != "" {
		fmt.Fprintln(c.err, what)
	}
	fmt.Fprintf(c.err, "%s %s\n", c.errPaint.Paint(screen.Bold, "hint:"), next)
}

func (c *cli) workloadTable(list []*controlv1.WorkloadView) *screen.Table {
	services := !slices.ContainsFunc(list, func(w *controlv1.WorkloadView) bool { return kindShown(w) != spec.KindService })
	t := screen.NewTable(
		screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle},
		screen.Column{Title: "TYPE", Wide: true}, screen.Column{Title: "KIND", Wide: services},
		screen.Column{Title: "STATUS"},
		screen.Column{Title: "NODE", Gives: 2, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "AGE", Right: true},
		screen.Column{Title: "IMAGE OR SOURCE", Gives: 4, Least: 18, Keeps: screen.Tail},
		screen.Column{Title: "NAMESPACE", Wide: true}, screen.Column{Title: "GROUP", Wide: true}, screen.Column{Title: "AUTOSCALE", Wide: true}, screen.Column{Title: "ADDRESSES", Wide: true}, screen.Column{Title: "PORTS", Wide: true},
		screen.Column{Title: "REVISION", Wide: true}, screen.Column{Title: "GENERATION", Right: true, Wide: true},
		screen.Column{Title: "REASON", Gives: 3, Least: 14})
	for _, w := range list {
		t.Add(screen.Text(w.GetWorkloadId()), screen.Text(w.GetType()), screen.Text(kindShown(w)), screen.State(shownStatus(w)), screen.Text(shownNode(w)), screen.Text(c.age(w.GetCreatedAt())),
			screen.Text(c.image(w.GetImageOrSource())), screen.Text(cmp.Or(w.GetNamespace(), "default")), screen.Text(w.GetGroup()), screen.Text(autoscaleCell(w.GetAutoscale())), screen.Text(strings.Join(w.GetAddresses(), ",")), screen.Text(portsText(w.GetPorts())),
			screen.Text(w.GetRevisionId()), screen.Text(fmt.Sprint(w.GetGeneration().GetSequence())), screen.Text(c.reasonCell(w)))
	}
	return t
}

// image shortens the digest of an image reference, unless the output is -o wide.
func (c *cli) image(s string) string {
	const digest, shown = "@sha256:", 12
	if i := strings.Index(s, digest); i >= 0 && c.output != outWide {
		hex := s[i+len(digest):]
		return s[:i] + "@" + hex[:min(shown, len(hex))]
	}
	return s
}

// reasonCell returns the reason why a workload is not in its desired state, or "" if it is. For a cron it returns the
// time of the next run.
func (c *cli) reasonCell(w *controlv1.WorkloadView) string {
	if next := w.GetTemplate().GetNextRun(); next != nil {
		return "next run " + c.moment(next)
	}
	if w.GetStatus() == w.GetDesiredState() {
		return ""
	}
	if text := stoppingReason(w, ordered(w.GetStopping()), c.now()); text != "" {
		return text
	}
	out := w.GetReason().GetCode()
	if m := w.GetReason().GetMessage(); m != "" {
		out = screen.Join(": ", out, m)
	}
	if next := w.GetRetryNextAt(); next != nil && w.GetStatus() == "RetryPending" {
		if left := next.AsTime().Sub(c.now()); left > 0 {
			out = "retry in " + screen.Span(left) + "; " + out
		}
	}
	return out
}

// watchList shows the list and then its changes. On a terminal it redraws the table in place; elsewhere it
// prints lines.
func (c *cli) watchList(ctx context.Context, o listOptions) error {
	if o.status != "" || o.node != "" || o.kind != "" {
		// Make one call first, so that wrong options are reported before the first row is printed.
		if _, err := c.workloads(ctx, o); err != nil {
			return err
		}
	}
	shown := map[string]*controlv1.WorkloadView{}
	block := &screen.Live{W: c.out}
	synced := false
	redraw := func() {
		c.measure(block)
		list := make([]*controlv1.WorkloadView, 0, len(shown))
		for _, w := range shown {
			list = append(list, w)
		}
		slices.SortFunc(list, func(a, b *controlv1.WorkloadView) int { return screen.Natural(a.GetWorkloadId(), b.GetWorkloadId()) })
		lines := c.workloadTable(list).Lines(c.columns()-1, c.paint)
		if most := max(5, c.height-3); c.height > 0 && len(lines) > most {
			lines = append(lines[:most], c.paint.Paint(screen.Dim, fmt.Sprintf("and %d more", len(list)-most+1)))
		}
		lines = append(lines, c.paint.Paint(screen.Dim, fmt.Sprintf("%s, %s  (Ctrl-C ends)", screen.Plural(len(list), "workload"), c.now().In(c.zone).Format(time.TimeOnly))))
		block.Draw(lines)
	}
	one := func(w *controlv1.WorkloadView) {
		// Use fixed widths: rows are printed one by one as workloads change, so the longest value of a column is not
		// known.
		node := cmp.Or(shownNode(w), screen.None)
		line := fmt.Sprintf("%s  %-24s  %-12s  %-14s  %s", c.now().In(c.zone).Format(time.TimeOnly), screen.Cut(w.GetWorkloadId(), 24, screen.Middle),
			shownStatus(w), screen.Cut(node, 14, screen.Middle), screen.Clean(c.reasonCell(w)))
		writeLines(c.out, []string{strings.TrimRight(screen.Cut(line, c.columns(), screen.Head), " ")})
	}
	inPlace := c.outTerm && !c.machine()
	err := c.watch(ctx, &clusterv1.WatchWorkloadsRequest{Group: o.group, Namespace: c.namespace()}, nil, func(ch watched) error {
		var changed *controlv1.WorkloadView
		switch {
		case ch.gone != "":
			if shown[ch.gone] == nil {
				return nil
			}
			delete(shown, ch.gone)
			changed = &controlv1.WorkloadView{WorkloadId: ch.gone, Status: "Deleted"}
		case ch.view == nil:
			synced = true
		case o.matches(ch.view):
			shown[ch.view.GetWorkloadId()] = ch.view
			changed = ch.view
		case shown[ch.view.GetWorkloadId()] != nil:
			// The workload has changed so that it no longer matches the options of the command. Print it once more,
			// with its new state.
			delete(shown, ch.view.GetWorkloadId())
			changed = ch.view
		default:
			return nil
		}
		switch {
		case inPlace:
			if synced {
				redraw()
			}
		case changed == nil:
		case c.machine():
			return c.emitItem(changed)
		default:
			one(changed)
		}
		return nil
	})
	return endWatch(ctx, err)
}

// endWatch returns nil if Ctrl-C has ended the watch, and err otherwise.
func endWatch(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
