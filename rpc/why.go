package rpc

import (
	"context"
	"strconv"
	"strings"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Why implements the call of cluster.v1: it explains, from this replica's state, why a workload runs on its node or why
// it is not placed.
func (s *Server) Why(ctx context.Context, req *clusterv1.WhyRequest) (*clusterv1.WhyResponse, error) {
	view, err := s.store.At(ctx, req.GetMinIndex())
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	if id := req.GetNodeId(); id != "" {
		if _, ok := view.Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", id)
		}
	}
	if w.IsTemplate() && !w.IsSystem() {
		return whyTemplate(w, view.Info().Index), nil
	}
	ex := sched.Explain(view, w, s.cfg.Tuning)
	out := &clusterv1.WhyResponse{
		WorkloadId:     w.ID,
		Status:         string(w.Status),
		ReasonCode:     w.Reason.Code,
		ReasonMessage:  w.Reason.Message,
		AssignedNodeId: w.Node,
		ChosenNodeId:   ex.Node,
		Hint:           hint(w, &ex),
		Index:          view.Info().Index,
		LastActions:    spec.LastActions(w),
		Autoscale:      s.autoscaleView(w, spec.WorkloadView(w, spec.Brief).GetAutoscale()),
		Stopping:       stopping(view, w),
	}
	if w.Reason.Code == fsm.CodeUnplaced && ex.Code == fsm.CodeUnplaced {
		out.ReasonMessage = ex.Message // this message also says how to make room for the workload
	}
	if ex.Moves != "" {
		out.ReasonMessage = strings.TrimPrefix(out.ReasonMessage+"; "+ex.Moves, "; ")
	}
	if text := ingressText(view, w); text != "" {
		out.ReasonMessage = strings.TrimPrefix(out.ReasonMessage+"; "+text, "; ")
	}
	out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, req.GetNodeId())
	if w.IsSystem() { // the nodes that fit get a member each
		out.ChosenNodeId, out.Hint = "", "persysctl list --group "+w.ID
		if out.ReasonCode != fsm.CodeNotCreated {
			out.ReasonCode, out.ReasonMessage = "", sched.MembersText(view, w, s.cfg.Tuning)
		}
	}
	if r, ok := view.Rollout(w.Demand.Group); ok && w.Reason.Code == "" && r.Turn(view.Seen, w.ID) != "" {
		out.ReasonCode, out.ReasonMessage = "Rollout", r.Turn(view.Seen, w.ID)
	}
	return out, nil
}

// whyTemplate explains a cron or a parameterized job, which has no node.
func whyTemplate(w *fsm.Workload, index uint64) *clusterv1.WhyResponse {
	out := &clusterv1.WhyResponse{WorkloadId: w.ID, Status: string(w.Status), ReasonCode: w.Reason.Code, ReasonMessage: w.Reason.Message, Index: index}
	at := func(t int64) string { return time.Unix(0, t).UTC().Format("2006-01-02 15:04 UTC") }
	switch t := w.Template; {
	case w.Desired == fsm.DesiredStopped:
		out.ReasonMessage, out.Hint = "no run starts, because the workload is suspended", "persysctl start "+w.ID
	case w.Demand.Template.Kind == fsm.TemplateDispatch:
		out.ReasonMessage, out.Hint = "waits for calls that start a run", "persysctl job dispatch "+w.ID
	case t.Next != 0:
		out.ReasonMessage = "waits for its next time, " + at(t.Next)
	default:
		out.ReasonMessage = "the leader has not chosen a next time yet; if this stays so, its machine may lack the time zone of the cron"
	}
	if w.Template.LastRun != "" {
		out.ReasonMessage += "; the newest run is " + w.Template.LastRun
	}
	return out
}

func countsOf(ex *sched.Explanation) (out []*clusterv1.ReasonCount) {
	for _, c := range ex.Counts {
		out = append(out, &clusterv1.ReasonCount{Filter: c.Filter, Field: c.Field, Reason: c.Reason, Nodes: int32(c.Nodes)})
	}
	return out
}

// verdictsOf returns, for each node or only for the given node, whether the planner could place the workload there,
// and if not, why.
func verdictsOf(ex *sched.Explanation, node string) (out []*clusterv1.NodeVerdict) {
	for _, v := range ex.Nodes {
		if node != "" && v.Node != node {
			continue
		}
		out = append(out, &clusterv1.NodeVerdict{
			NodeId: v.Node, Feasible: v.Fits, Filter: v.Filter, Reason: verdictText(&v), Score: float64(v.Score.Total), ScoreParts: scoreParts(v.Score),
		})
	}
	return out
}

// hint returns the command that the user should run next; "" if there is none.
func hint(w *fsm.Workload, ex *sched.Explanation) string {
	switch {
	case w.Reason.Code == fsm.CodeAwaitFailover:
		return "persysctl node fence " + w.Node
	case w.Retry.Terminal:
		return "persysctl retry " + w.ID
	case w.Node == "" && w.Desired == fsm.DesiredStopped:
		return "persysctl start " + w.ID
	case w.Node == "" && ex.Total == 0:
		return "persysctl nodes"
	case w.Node != "" && w.Status == fsm.StatusFailed:
		return "persysctl logs " + w.ID
	}
	return ""
}

// scoreParts returns the parts of a node's score as text. A lower score is better.
func scoreParts(sc sched.Score) []string {
	out := []string{
		"load=" + strconv.FormatInt(sc.Load, 10),
		"added=" + strconv.FormatInt(sc.Added, 10),
		"group=" + strconv.FormatInt(sc.Group, 10),
		"taint=" + strconv.FormatInt(sc.Taint, 10),
	}
	if sc.Rules != 0 {
		out = append(out, "rules="+strconv.FormatInt(sc.Rules, 10))
	}
	return out
}

// verdictText says why a filter rejected a node or, for a node that fits, which preferred rules it does not
// satisfy.
func verdictText(v *sched.Verdict) string {
	if !v.Fits {
		return v.Reason
	}
	texts := make([]string, len(v.Rules))
	for i, r := range v.Rules {
		texts[i] = r.Text
	}
	return strings.Join(texts, "; ")
}
