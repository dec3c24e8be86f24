package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// drifting returns a group of replicas with two drifts: node a runs the instance ghost, which has no record
// in the state (an orphan), and lacks the workload web.
func drifting(t *testing.T) *group {
	t.Helper()
	return withDrifts(t,
		&commandv1.Drift{Node: "a", Workload: "ghost", Type: fsm.DriftOrphan, AgentStatus: "Running", Action: fsm.ActionInvestigate},
		&commandv1.Drift{Node: "a", Workload: "web", Type: fsm.DriftMissing, SchedulerStatus: "Running", Action: fsm.ActionReconcile})
}

// withDrifts returns a group of replicas with the workload web on node a, and the given open drifts.
func withDrifts(t *testing.T, open ...*commandv1.Drift) *group {
	t.Helper()
	g := newGroup(t, 1)
	g.place("web", "a")
	info := g.view().Info()
	g.do(&commandv1.Command{
		Head: &commandv1.Head{At: info.Clock, By: "leader", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: info.Term}},
		Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{Open: open}},
	})
	return g
}

// The name of an orphan may be an invalid workload id. The filter of events must accept such a name.
func TestEventsOfAnOrphanWithAnInvalidIDAreFound(t *testing.T) {
	g := withDrifts(t, &commandv1.Drift{Node: "a", Workload: "my machine", Type: fsm.DriftOrphan, AgentStatus: "Running", Action: fsm.ActionInvestigate})
	for _, c := range []struct {
		name   string
		answer codes.Code
	}{
		{"my machine", codes.OK},
		{"a/b", codes.InvalidArgument},
		{strings.Repeat("x", fsm.MaxDriftID+1), codes.InvalidArgument},
	} {
		s, err := g.cluster(0).Events(ctxFor(t), &clusterv1.EventsRequest{WorkloadId: c.name})
		ok(t, err)
		e, err := s.Recv()
		code(t, err, c.answer)
		if err == nil {
			is(t, "event", e.GetType()+" "+e.GetWorkloadId(), fsm.EventDriftDetected+" my machine")
		}
	}
}

func TestDriftsAreListedAndFiltered(t *testing.T) {
	for _, c := range []struct {
		fact   string
		req    *clusterv1.ListDriftsRequest
		want   string
		answer codes.Code
	}{
		{"all drifts", &clusterv1.ListDriftsRequest{}, "a/ghost/orphan_on_agent a/web/missing_on_agent ", codes.OK},
		{"drifts of a node", &clusterv1.ListDriftsRequest{NodeId: "b"}, "", codes.OK},
		{"drifts of a workload", &clusterv1.ListDriftsRequest{WorkloadId: "web"}, "a/web/missing_on_agent ", codes.OK},
		{"drifts of a kind", &clusterv1.ListDriftsRequest{Type: "orphan_on_agent"}, "a/ghost/orphan_on_agent ", codes.OK},
		{"drifts of an unknown kind", &clusterv1.ListDriftsRequest{Type: "odd"}, "", codes.InvalidArgument},
		{"drifts of an unknown node", &clusterv1.ListDriftsRequest{NodeId: "none"}, "", codes.NotFound},
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
	t.Run("an orphan is adopted with the specification in the request", func(t *testing.T) {
		g := drifting(t)
		_, err := g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost"})
		code(t, err, codes.InvalidArgument)
		_, err = g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost", Workload: web("other")})
		code(t, err, codes.InvalidArgument)
		_, err = g.cluster(0).AdoptDrift(ctxFor(t), &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "ghost", Workload: web("ghost")})
		ok(t, err)
		w, _ := g.view().Workload("ghost")
		is(t, "node", w.Node, "a")
		is(t, "number of open drifts after the orphan was adopted", g.view().DriftCount(), 1)
	})
	t.Run("an orphan is deleted only once", func(t *testing.T) {
		g := drifting(t)
		for range 2 {
			_, err := g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a", WorkloadId: "ghost"})
			ok(t, err)
		}
		r, left := g.view().Residual("a", "ghost")
		is(t, "whether the state orders the deletion of the orphan", left && r.Reason == fsm.CodeOrphanDeleted, true)
	})
	t.Run("only orphans can be adopted", func(t *testing.T) {
		g := drifting(t)
		_, err := g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a", WorkloadId: "web"})
		code(t, err, codes.NotFound)
		_, err = g.cluster(0).DeleteDrift(ctxFor(t), &clusterv1.DeleteDriftRequest{NodeId: "a"})
		code(t, err, codes.InvalidArgument)
	})
}
