package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why WORKLOAD", Short: "Explain why a workload is on its node, or on no node",
		Args: args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.why(ctx, args[0], "") }),
	}
}

func (c *cli) whyNotCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why-not WORKLOAD NODE", Short: "Explain why a workload is not on a node",
		Args: args(2, 2, "WORKLOAD", "NODE"), ValidArgsFunction: c.completeWorkloadThenNode,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.why(ctx, args[0], args[1]) }),
	}
}

func (c *cli) why(ctx context.Context, id, node string) error {
	r, err := read(ctx, c, c.cluster.Why, &clusterv1.WhyRequest{WorkloadId: id, NodeId: node})
	if err != nil {
		f := c.explain(err, false)
		if f.hint != "persysctl nodes" { // the node exists, so the "not found" error is about the workload
			return c.orGroup(ctx, id, f)
		}
		return c.nodeFailure(node, f)
	}
	if r.Autoscale != nil && r.GetAutoscale().GetDecision() == "" {
		// Any scheduler answers Why, but only the leader knows the decisions of the autoscaler.
		if w, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()}); err == nil {
			r.Autoscale = w.GetWorkload().GetAutoscale()
		}
	}
	return c.emit(r, func() {
		if node != "" {
			c.showWhyNot(r, node)
		} else {
			c.showWhy(r)
		}
		if r.GetHint() != "" {
			writeLines(c.out, []string{"", c.paint.Paint(screen.Bold, "hint: ") + screen.Clean(r.GetHint())})
		}
	})
}

func (c *cli) showWhy(r *clusterv1.WhyResponse) {
	f := &screen.Facts{}
	// Fill in the fields from which `persysctl list` makes its status and reason texts, to show the same texts here.
	as := &controlv1.WorkloadView{
		Status: r.GetStatus(), AssignedNodeId: r.GetAssignedNodeId(), Stopping: r.GetStopping(), DesiredState: "Stopped",
		Reason: &controlv1.ReasonDetail{Code: r.GetReasonCode(), Message: r.GetReasonMessage()},
	}
	if r.GetStatus() == "Deleting" {
		as.DesiredState = "Deleted"
	}
	where := screen.Styled(screen.Clean(shownStatus(as)), screen.StateStyle(shownStatus(as)))
	switch {
	case r.GetAssignedNodeId() != "":
		where.Text += " on " + r.GetAssignedNodeId()
	case r.GetStopping() != nil:
		where.Text += " on " + shownNode(as)
	case r.GetChosenNodeId() != "":
		where.Text += ", would go to " + r.GetChosenNodeId()
	default:
		where.Text += " on no node"
	}
	f.Add("Workload", screen.Styled(screen.Clean(r.GetWorkloadId()), screen.Bold))
	f.Add("Status", where)
	f.Add("Reason", screen.Text(cmp.Or(stoppingReason(as, ordered(r.GetStopping()), c.now()), screen.Join(": ", r.GetReasonCode(), r.GetReasonMessage()))))
	c.addAutoscale(f, r.GetAutoscale())
	c.printFacts(f)
	c.showLastActions(r.GetLastActions())

	if len(r.GetCounts()) > 0 {
		c.section("Why nodes are ruled out")
		t := screen.NewTable(screen.Column{Title: "NODES", Right: true}, screen.Column{Title: "FILTER"}, screen.Column{Title: "FIELD"}, screen.Column{Title: "REASON", Gives: 1, Least: 20})
		for _, n := range r.GetCounts() {
			t.Add(screen.Text(fmt.Sprint(n.GetNodes())), screen.Text(n.GetFilter()), screen.Text(cmp.Or(n.GetField(), screen.None)), screen.Text(n.GetReason()))
		}
		c.print(t)
	}
	if len(r.GetNodes()) == 0 {
		writeLines(c.out, []string{"", "There are no nodes."})
		return
	}
	c.section("Node by node")
	c.print(c.verdicts(r))
}

// verdicts returns a table that says for each node whether the workload fits on it, in the scheduler's order: the best
// node first.
func (c *cli) verdicts(r *clusterv1.WhyResponse) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "NODE", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "VERDICT"}, screen.Column{Title: "SCORE", Right: true},
		screen.Column{Title: "WHY", Gives: 2, Least: 20})
	for _, v := range r.GetNodes() {
		verdict, why, score := screen.Styled("no", screen.Bad), rejection(v), screen.None
		if v.GetFeasible() {
			verdict, score = screen.Styled("fits", screen.Good), screen.Number(v.GetScore(), 3)
			why = screen.Join("; ", scoreText(v), v.GetReason())
		}
		if v.GetNodeId() == r.GetAssignedNodeId() {
			verdict.Text = "here"
			if !v.GetFeasible() {
				verdict = screen.Styled("here", screen.Warn) // the node does not fit for a new placement
			}
		}
		t.Add(screen.Text(v.GetNodeId()), verdict, screen.Text(score), screen.Text(why))
	}
	return t
}

// rejection returns the reason for which a filter of the scheduler rejected a node. The result begins with the name of
// the filter.
func rejection(v *clusterv1.NodeVerdict) string {
	if strings.HasPrefix(strings.ToLower(v.GetReason()), strings.ToLower(v.GetFilter())) {
		return v.GetReason()
	}
	return screen.Join(": ", v.GetFilter(), v.GetReason())
}

func scoreText(v *clusterv1.NodeVerdict) string {
	out := ""
	for _, p := range v.GetScoreParts() {
		out = screen.Join(" ", out, p)
	}
	return out
}

func (c *cli) showWhyNot(r *clusterv1.WhyResponse, node string) {
	if len(r.GetNodes()) == 0 {
		writeLines(c.out, []string{fmt.Sprintf("Nothing is known about %s on %s.", r.GetWorkloadId(), node)})
		return
	}
	v := r.GetNodes()[0]
	var line string
	switch {
	case r.GetAssignedNodeId() == node:
		line = fmt.Sprintf("%s is on %s.", r.GetWorkloadId(), node)
	case !v.GetFeasible():
		line = fmt.Sprintf("%s cannot run on %s: %s", r.GetWorkloadId(), node, rejection(v))
	case r.GetAssignedNodeId() != "":
		line = fmt.Sprintf("%s could run on %s, but it is on %s, and a workload that runs is not moved to a node with a better score unless the cluster rebalances.", r.GetWorkloadId(), node, r.GetAssignedNodeId())
	case r.GetChosenNodeId() != "" && r.GetChosenNodeId() != node:
		line = fmt.Sprintf("%s could run on %s, but %s scores better.", r.GetWorkloadId(), node, r.GetChosenNodeId())
	default:
		line = fmt.Sprintf("%s could run on %s.", r.GetWorkloadId(), node)
	}
	writeLines(c.out, screen.Fold(screen.Clean(line), c.columns()))
	if parts := scoreText(v); v.GetFeasible() && parts != "" {
		writeLines(c.out, screen.Fold(fmt.Sprintf("Score %s: %s", screen.Number(v.GetScore(), 3), screen.Clean(parts)), c.columns()))
	}
}

func (c *cli) actionsCommand() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{
		Use: "actions WORKLOAD", Short: "Show what the agent did for a workload",
		Args: args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.actions(ctx, args[0], limit) }),
	}
	cmd.Flags().Int32Var(&limit, "limit", 20, "show only this many of the newest actions; 0 shows all")
	return c.watchable(cmd)
}

func (c *cli) actions(ctx context.Context, id string, limit int32) error {
	if limit < 0 {
		return usagef("--limit %d must be 0 or more", limit)
	}
	r, err := read(ctx, c, c.cluster.ListActions, &clusterv1.ListActionsRequest{WorkloadId: id, Limit: limit})
	if err != nil {
		return c.orGroup(ctx, id, err)
	}
	return c.emit(r, func() {
		if len(r.GetActions()) == 0 {
			c.empty(fmt.Sprintf("The agent of %s has done nothing for %s yet.", r.GetNodeId(), id), "persysctl why "+id)
			return
		}
		c.print(actionTable(c, r.GetActions()))
	})
}

// action is one task of an agent, such as an apply: either from the list of recent tasks that the agent
// returned, or from the record of a workload.
type action interface {
	GetTaskId() string
	GetActionType() string
	GetStatus() string
	GetError() string
	GetCreatedAt() *timestamppb.Timestamp
	GetStartedAt() *timestamppb.Timestamp
	GetEndedAt() *timestamppb.Timestamp
}

func actionTable[A action](c *cli, list []A) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "ACTION", Gives: 2, Least: 10}, screen.Column{Title: "STATUS"},
		screen.Column{Title: "TOOK", Right: true}, screen.Column{Title: "TASK", Wide: true}, screen.Column{Title: "ERROR", Gives: 4, Least: 16})
	for _, a := range list {
		took := screen.None
		if a.GetStartedAt() != nil && a.GetEndedAt() != nil {
			took = screen.Span(a.GetEndedAt().AsTime().Sub(a.GetStartedAt().AsTime()))
		}
		t.Add(screen.Text(c.age(a.GetCreatedAt())), screen.Text(a.GetActionType()), screen.State(a.GetStatus()), screen.Text(took), screen.Text(a.GetTaskId()), screen.Text(a.GetError()))
	}
	return t
}

// showLastActions shows the agent's recent actions that the scheduler stored with the workload when an order timed out.
func (c *cli) showLastActions(list []*controlv1.WorkloadAction) {
	if len(list) == 0 {
		return
	}
	c.section("What the agent had done when the last order timed out")
	c.print(actionTable(c, list))
}
