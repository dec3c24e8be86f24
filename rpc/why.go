package rpc

import (
	"context"
	"strconv"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Why implements cluster.v1 on this replica's state.
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
	}
	out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, req.GetNodeId())
	if r, ok := view.Rollout(w.Demand.Group); ok && w.Reason.Code == "" && r.Turn(view.Seen, w.ID) != "" {
		out.ReasonCode, out.ReasonMessage = "Rollout", r.Turn(view.Seen, w.ID)
	}
	return out, nil
}

func countsOf(ex *sched.Explanation) (out []*clusterv1.ReasonCount) {
	for _, c := range ex.Counts {
		out = append(out, &clusterv1.ReasonCount{Filter: c.Filter, Reason: c.Reason, Nodes: int32(c.Nodes)})
	}
	return out
}

// verdictsOf returns the verdict of every node, or of one.
func verdictsOf(ex *sched.Explanation, node string) (out []*clusterv1.NodeVerdict) {
	for _, v := range ex.Nodes {
		if node != "" && v.Node != node {
			continue
		}
		out = append(out, &clusterv1.NodeVerdict{
			NodeId: v.Node, Feasible: v.Fits, Filter: v.Filter, Reason: v.Reason, Score: float64(v.Score.Total), ScoreParts: scoreParts(v.Score),
		})
	}
	return out
}

// hint returns the command to type next, "" if there is none.
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

// scoreParts returns the parts of a score; lower is better.
func scoreParts(sc sched.Score) []string {
	return []string{
		"load=" + strconv.FormatInt(sc.Load, 10),
		"added=" + strconv.FormatInt(sc.Added, 10),
		"group=" + strconv.FormatInt(sc.Group, 10),
		"taint=" + strconv.FormatInt(sc.Taint, 10),
	}
}
