package rpc

import (
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// together places two running members of one group, w-0 and w-1, on node a.
func (g *group) together() {
	g.t.Helper()
	for _, id := range []string{"w-0", "w-1"} {
		g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: id, Content: "c1:1", Desired: "Running", Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1, Group: "w"},
		}}}}})
		g.assign(id, "a")
		w, _ := g.now().Workload(id)
		g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
			Workload: id, Node: "a", Generation: fsm.GenerationPB(w.Generation), Acknowledged: true, State: "Running", ObservedAt: 1,
		}}}}})
	}
}

// TestPreviewRebalance: the preview names the moves with their gains and reasons, counts the workloads that stay, and
// changes nothing.
func TestPreviewRebalance(t *testing.T) {
	g := newGroup(t, 2)
	g.place("web", "a")
	g.together()
	before := g.now().Info().Index
	p, err := g.cluster(1).PreviewRebalance(ctxFor(t), &clusterv1.PreviewRebalanceRequest{})
	ok(t, err)
	is(t, "moves", len(p.GetMoves()), 1)
	m := p.GetMoves()[0]
	is(t, "from", m.GetFromNodeId(), "a")
	is(t, "to", m.GetToNodeId(), "b")
	is(t, "whether the move gains 50 to 51 % of a node", m.GetGainPercent() >= 50 && m.GetGainPercent() < 51, true)
	is(t, "workloads that may move", p.GetMovable(), 2)
	is(t, "reasons of workloads that stay", len(p.GetImmovable()), 1)
	is(t, "workloads that stay", p.GetImmovable()[0].GetWorkloads(), 1)
	is(t, "log entries of a preview", g.now().Info().Index-before, 0)
	p, err = g.cluster(1).PreviewRebalance(ctxFor(t), &clusterv1.PreviewRebalanceRequest{MinGainPercent: 60})
	ok(t, err)
	is(t, "number of moves with a gain of at least 60 %", len(p.GetMoves()), 0)
	for _, req := range []*clusterv1.PreviewRebalanceRequest{{MaxMoves: 1001}, {MinGainPercent: 101}} {
		_, err := g.cluster(0).PreviewRebalance(ctxFor(t), req)
		code(t, err, codes.InvalidArgument)
	}
}

// TestApplyRebalance: the call moves one member of a group. A repetition with the same request id must get the same
// answer. A further call must move nothing until the moved member runs on its new node.
func TestApplyRebalance(t *testing.T) {
	g := newGroup(t, 2)
	g.place("web", "a")
	g.together()
	req := &clusterv1.ApplyRebalanceRequest{RequestId: requestID(t), MinGainPercent: 60}
	r, err := g.cluster(1).ApplyRebalance(ctxFor(t), req)
	ok(t, err)
	is(t, "number of moves with a gain of at least 60 %", len(r.GetMoves()), 0)
	req = &clusterv1.ApplyRebalanceRequest{RequestId: requestID(t)}
	r, err = g.cluster(1).ApplyRebalance(ctxFor(t), req)
	ok(t, err)
	is(t, "moves", len(r.GetMoves()), 1)
	is(t, "dropped moves", len(r.GetDropped()), 0)
	m := r.GetMoves()[0]
	is(t, "from", m.GetFromNodeId(), "a")
	is(t, "to", m.GetToNodeId(), "b")
	is(t, "whether the move gains 50 to 51 % of a node", m.GetGainPercent() >= 50 && m.GetGainPercent() < 51, true)
	w, _ := g.now().Workload(m.GetWorkloadId())
	is(t, "reason code in the record of the moved workload", w.Reason.Code, fsm.CodeRebalanced)
	is(t, "index", r.GetIndex(), w.ModifyIndex)
	again, err := g.cluster(0).ApplyRebalance(ctxFor(t), req)
	ok(t, err)
	is(t, "number of moves in the answer to the repeated request", len(again.GetMoves()), 1)
	is(t, "moved workload in the answer to the repeated request", again.GetMoves()[0].GetWorkloadId(), m.GetWorkloadId())
	is(t, "target node in the answer to the repeated request", again.GetMoves()[0].GetToNodeId(), "b")
	r, err = g.cluster(1).ApplyRebalance(ctxFor(t), &clusterv1.ApplyRebalanceRequest{RequestId: requestID(t)})
	ok(t, err)
	is(t, "number of moves before the moved member runs on its new node", len(r.GetMoves()), 0)
	for _, req := range []*clusterv1.ApplyRebalanceRequest{{MaxMoves: 251}, {MinGainPercent: 101}} {
		_, err := g.cluster(0).ApplyRebalance(ctxFor(t), req)
		code(t, err, codes.InvalidArgument)
	}
}

// TestRebalancePolicyCalls: every replica returns and sets the cluster's policy of moves by the leader, with the defaults
// of the fields that a request leaves out.
func TestRebalancePolicyCalls(t *testing.T) {
	g := newGroup(t, 2)
	r, err := g.cluster(1).GetRebalancePolicy(ctxFor(t), &clusterv1.GetRebalancePolicyRequest{})
	ok(t, err)
	is(t, "allowed moves per hour before the policy is set", r.GetPolicy().GetPerHour(), 0)
	is(t, "standing", r.GetStanding(), "off")
	set := func(perHour, atOnce uint32) (*clusterv1.SetRebalancePolicyResponse, error) {
		return g.cluster(1).SetRebalancePolicy(ctxFor(t), &clusterv1.SetRebalancePolicyRequest{
			RequestId: requestID(t), Policy: &clusterv1.RebalancePolicy{PerHour: perHour, AtOnce: atOnce},
		})
	}
	done, err := set(20, 0)
	ok(t, err)
	is(t, "default number of moves at a time", done.GetPolicy().GetAtOnce(), 1)
	is(t, "default smallest gain in percent", done.GetPolicy().GetMinGainPercent(), 10)
	r, err = g.cluster(0).GetRebalancePolicy(ctxFor(t), &clusterv1.GetRebalancePolicyRequest{})
	ok(t, err)
	is(t, "allowed moves per hour after the policy is set", r.GetPolicy().GetPerHour(), 20)
	is(t, "standing", r.GetStanding(), "on")
	done, err = set(20, 1)
	ok(t, err)
	is(t, "whether the same policy again counts as unchanged", done.GetUnchanged(), true)
	_, err = set(20, 251)
	code(t, err, codes.InvalidArgument)
	_, err = set(0, 0)
	ok(t, err)
}
