package rpc

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// drifting returns a group whose node a has an orphan named ghost and lacks web.
func drifting(t *testing.T) *group {
	t.Helper()
	g := newGroup(t, 1)
	g.place("web", "a")
	info := g.view().Info()
	g.do(&commandv1.Command{
		Head: &commandv1.Head{At: info.Clock, By: "leader", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: info.Term}},
		Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{Open: []*commandv1.Drift{
			{Node: "a", Workload: "ghost", Type: fsm.DriftOrphan, AgentStatus: "Running", Action: fsm.ActionInvestigate},
			{Node: "a", Workload: "web", Type: fsm.DriftMissing, SchedulerStatus: "Running", Action: fsm.ActionReconcile},
		}}},
	})
	return g
}

func TestDrifts(t *testing.T) {
	for _, c := range []struct {
		fact   string
		req    *clusterv1.ListDriftsRequest
		want   string
		answer codes.Code
	}{
		{"all", &clusterv1.ListDriftsRequest{}, "a/ghost/orphan_on_agent a/web/missing_on_agent ", codes.OK},
		{"of a node", &clusterv1.ListDriftsRequest{NodeId: "b"}, "", codes.OK},
		{"of a workload", &clusterv1.ListDriftsRequest{WorkloadId: "web"}, "a/web/missing_on_agent ", codes.OK},
		{"of a kind", &clusterv1.ListDriftsRequest{Type: "orphan_on_agent"}, "a/ghost/orphan_on_agent ", codes.OK},
		{"of a kind that there is not", &clusterv1.ListDriftsRequest{Type: "odd"}, "", codes.InvalidArgument},
		{"of a node that there is not", &clusterv1.ListDriftsRequest{NodeId: "none"}, "", codes.NotFound},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := drifting(t)
			r, err := g.cluster(0).ListDrifts(ctxFor(t), c.req)
			code(t, err, c.answer)
			got := ""
			for _, d := range r.GetDrifts() {
				got += fmt.Sprintf("%s/%s/%s ", d.GetNodeId(), d.GetWorkloadId(), d.GetType())
			}
			is(t, "drifts", got, c.want)
		})
	}
	t.Run("an orphan is adopted with its specification", func(t *testing.T) {
		g := drifting(t)
		_, err := g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost"})
		code(t, err, codes.InvalidArgument)
		_, err = g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost", Workload: web("other")})
		code(t, err, codes.InvalidArgument)
		_, err = g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost", Workload: web("ghost")})
		ok(t, err)
		w, _ := g.view().Workload("ghost")
		is(t, "node", w.Node, "a")
		is(t, "open", g.view().DriftCount(), 1)
	})
	t.Run("an orphan is deleted once", func(t *testing.T) {
		g := drifting(t)
		for range 2 {
			_, err := g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a", WorkloadId: "ghost"})
			ok(t, err)
		}
		r, left := g.view().Residual("a", "ghost")
		is(t, "ordered", left && r.Reason == fsm.CodeOrphanDeleted, true)
	})
	t.Run("what is no orphan is not", func(t *testing.T) {
		g := drifting(t)
		_, err := g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a", WorkloadId: "web"})
		code(t, err, codes.NotFound)
		_, err = g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a"})
		code(t, err, codes.InvalidArgument)
	})
}
