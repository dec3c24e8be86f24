package main

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
)

// pageSize keeps a page well below the size limit of a message (dial.MaxAnswer).
const pageSize = 1000

type listOptions struct {
	node, status, group string
	watch               bool
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
	f.BoolVarP(&o.watch, "watch", "w", false, "show changes until Ctrl-C")
	// These fail for unknown flags only.
	_ = f.MarkHidden("node-id")
	_ = cmd.RegisterFlagCompletionFunc("node", c.completeNode)
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(workloadStates(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func workloadStates() []string {
	return []string{"Pending", "Scheduled", "Updating", "Running", "Stopped", "Failed", "Unknown", "RetryPending", "Deleting"}
}

func (o listOptions) matches(w *controlv1.WorkloadView) bool {
	return (o.node == "" || o.node == w.GetAssignedNodeId()) && (o.status == "" || strings.EqualFold(o.status, w.GetStatus())) &&
		(o.group == "" || o.group == w.GetGroup())
}

// workloads lists the workloads that the options select.
func (c *cli) workloads(ctx context.Context, o listOptions) (*controlv1.ListWorkloadsResponse, error) {
	if o.status != "" && !slices.ContainsFunc(workloadStates(), func(s string) bool { return strings.EqualFold(s, o.status) }) {
		return nil, usagef("--status %q must be one of %s", o.status, strings.Join(workloadStates(), ", "))
	}
	return c.allPages(ctx, &controlv1.ListWorkloadsRequest{NodeId: o.node, Status: o.status, Group: o.group, Namespace: c.namespace()})
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

// nothing explains an empty list.
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

// empty prints a note and the next command to stderr, so that a pipe gets an empty list.
func (c *cli) empty(what, next string) {
	if what != "" {
		fmt.Fprintln(c.err, what)
	}
	fmt.Fprintf(c.err, "%s %s\n", c.errPaint.Paint(screen.Bold, "hint:"), next)
}

func (c *cli) workloadTable(list []*controlv1.WorkloadView) *screen.Table {
	t := screen.NewTable(
		screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle},
		screen.Column{Title: "TYPE", Wide: true},
		screen.Column{Title: "STATUS"},
		screen.Column{Title: "NODE", Gives: 2, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "AGE", Right: true},
		screen.Column{Title: "IMAGE OR SOURCE", Gives: 4, Least: 18, Keeps: screen.Tail},
		screen.Column{Title: "NAMESPACE", Wide: true}, screen.Column{Title: "GROUP", Wide: true}, screen.Column{Title: "ADDRESSES", Wide: true}, screen.Column{Title: "PORTS", Wide: true},
		screen.Column{Title: "REVISION", Wide: true}, screen.Column{Title: "GENERATION", Right: true, Wide: true},
		screen.Column{Title: "REASON", Gives: 3, Least: 14})
	for _, w := range list {
		t.Add(screen.Text(w.GetWorkloadId()), screen.Text(w.GetType()), screen.State(cmp.Or(w.GetStatus(), "Unknown")), screen.Text(w.GetAssignedNodeId()), screen.Text(c.age(w.GetCreatedAt())),
			screen.Text(c.image(w.GetImageOrSource())), screen.Text(cmp.Or(w.GetNamespace(), "default")), screen.Text(w.GetGroup()), screen.Text(strings.Join(w.GetAddresses(), ",")), screen.Text(portsText(w.GetPorts())),
			screen.Text(w.GetRevisionId()), screen.Text(fmt.Sprint(w.GetGeneration().GetSequence())), screen.Text(c.reasonCell(w)))
	}
	return t
}

// image shortens the digest of a pinned image, except for -o wide.
func (c *cli) image(s string) string {
	const digest, shown = "@sha256:", 12
	if i := strings.Index(s, digest); i >= 0 && c.output != outWide {
		hex := s[i+len(digest):]
		return s[:i] + "@" + hex[:min(shown, len(hex))]
	}
	return s
}

// reasonCell is the reason why a workload is not in its desired state; "" when it is.
func (c *cli) reasonCell(w *controlv1.WorkloadView) string {
	if w.GetStatus() == w.GetDesiredState() {
		return ""
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

// watchList shows the list and its changes: as a table in place on a terminal, and as
// lines elsewhere.
func (c *cli) watchList(ctx context.Context, o listOptions) error {
	if o.status != "" || o.node != "" {
		// Checks the options before the first row.
		if _, err := c.workloads(ctx, listOptions{status: o.status, node: o.node, group: o.group}); err != nil {
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
		// Rows come one by one, so their columns have fixed widths.
		node := cmp.Or(w.GetAssignedNodeId(), screen.None)
		line := fmt.Sprintf("%s  %-24s  %-12s  %-14s  %s", c.now().In(c.zone).Format(time.TimeOnly), screen.Cut(w.GetWorkloadId(), 24, screen.Middle),
			w.GetStatus(), screen.Cut(node, 14, screen.Middle), screen.Clean(c.reasonCell(w)))
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
			// It no longer matches, and is shown once more with its new state.
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

// endWatch drops the error when Ctrl-C has ended a watch.
func endWatch(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
