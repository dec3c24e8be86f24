package rpc

import (
	"strings"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

func autoscaled() *controlv1.ApplyWorkloadRequest {
	req := web("grp")
	req.Spec.Autoscale = &controlv1.Autoscale{Min: 2, Max: 5, Cpu: 70}
	req.Spec.Resources = &controlv1.ResourceRequirements{CpuMillicores: 100}
	req.Spec.GetContainer().Env = map[string]string{"PASSWORD": "geheim"}
	return req
}

// TestAutoscale: when the autoscaler adds members, the namespace's quota applies and the new members get the group's
// secrets. If a user applies the same file again, the number of members that the autoscaler chose must stay.
func TestAutoscale(t *testing.T) {
	g := newGroup(t, 2)
	apply := func(req *controlv1.ApplyWorkloadRequest) string {
		t.Helper()
		r, err := g.control(1).ApplyWorkload(ctxFor(t), req)
		ok(t, err)
		return strings.Join(r.GetWorkloadIds(), " ") + r.GetErrorMessage()
	}
	is(t, "a new group", apply(autoscaled()), "grp-0 grp-1")
	leader := g.replicas[0].server
	ok(t, leader.Autoscale(ctxFor(t), "grp", 2, 4, "CPU use is 90 %"))
	is(t, "members", len(fsm.Members(g.view(), "grp")), 4)
	head := g.history[len(g.history)-1].GetHead()
	is(t, "share of the state, in the command's head, that one namespace may use", int(head.GetNamespaceShare()), fsm.NamespaceShare)
	is(t, "part of the state, in the command's head, that is reserved for admins", int(head.GetRoomReserve()), fsm.AdminReserve)
	w, _ := g.view().Workload("grp-3")
	plain, err := spec.Unseal("grp-3", w.Spec, sealer(leader.cfg.Keys))
	ok(t, err)
	is(t, "secret", plain.GetContainer().GetEnv()["PASSWORD"], "geheim")
	if err := leader.Autoscale(ctxFor(t), "grp", 2, 3, ""); err == nil || !strings.Contains(err.Error(), "4 members by now, not 2") {
		t.Errorf("a decision of the autoscaler for 2 members, while the group has 4, returned the error %v, want an error that names both numbers", err)
	}

	is(t, "members after an apply of the same file, which keeps the 4 of the autoscaler", apply(autoscaled()), "grp-0 grp-1 grp-2 grp-3")
	other := autoscaled()
	other.Spec.Count, other.Spec.GetContainer().Image = new(int32(2)), "nginx:2"
	is(t, "members after an apply with another image and count 2, which keeps the 4 of the autoscaler", apply(other), "grp-0 grp-1 grp-2 grp-3")
	lower := autoscaled()
	lower.Spec.Autoscale.Max = 3
	is(t, "members after an apply with the lower maximum of 3 members", apply(lower), "grp-0 grp-1 grp-2")
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{lower}})
	ok(t, err)
	for _, p := range plan.GetWorkloads() {
		is(t, "plan of "+p.GetWorkloadId(), p.GetAction(), "unchanged")
	}
	is(t, "planned workloads", len(plan.GetWorkloads()), 3)

	_, err = g.cluster(0).PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "default", Quota: &clusterv1.NamespaceAmounts{Workloads: 3}})
	ok(t, err)
	apply(autoscaled())
	if err := leader.Autoscale(ctxFor(t), "grp", 3, 4, ""); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("a decision of the autoscaler above the namespace's quota returned the error %v, want one that names the quota", err)
	}
	_, err = g.cluster(1).ScaleGroup(ctxFor(t), &clusterv1.ScaleGroupRequest{Group: "grp", Count: 0, RequestId: requestID(t)})
	ok(t, err)
	is(t, "members after an apply of a group that was scaled to 0", apply(autoscaled()), "grp-0")
	is(t, "count of the group that was scaled to 0, after the apply", fsm.Count(fsm.Members(g.view(), "grp")), 0)
}

// TestRollBackOfAnAutoscaledMember: a user rolls back one member of a group with an autoscaler. The member must get
// its earlier revision with its secrets. The member and the group must keep the present settings of the autoscaler.
func TestRollBackOfAnAutoscaledMember(t *testing.T) {
	g := newGroup(t, 2)
	for i, image := range []string{"nginx:1", "nginx:2", "nginx:2"} {
		req := autoscaled()
		req.Spec.Autoscale.Max, req.Spec.GetContainer().Image = int32(5+i), image
		r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
		ok(t, err)
		is(t, "refusal of "+image, r.GetErrorMessage(), "")
	}
	first := g.view().Revisions("grp-1")[0].Content
	r, err := g.cluster(1).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "grp-1", Number: 1, RequestId: requestID(t)})
	ok(t, err)
	is(t, "refusal", r.GetErrorMessage(), "")
	w, _ := g.view().Workload("grp-1")
	is(t, "content", w.Content, first)
	is(t, "max", w.Demand.Autoscale.Max, 7)
	plain, err := spec.Unseal("grp-1", w.Spec, sealer(g.replicas[0].server.cfg.Keys))
	ok(t, err)
	is(t, "secret", plain.GetContainer().GetEnv()["PASSWORD"], "geheim")
	is(t, "stored max", plain.GetAutoscale().GetMax(), 7)
	is(t, "members", len(fsm.Members(g.view(), "grp")), 2)
	other, _ := g.view().Workload("grp-0")
	is(t, "whether the other member was rolled back too", other.Content == first, false)
}

// TestUndoIsOffered: GetRollout offers the undo of an update only if the undo would not change the number of members
// that the autoscaler chose.
func TestUndoIsOffered(t *testing.T) {
	g := newGroup(t, 1)
	version := func(image string, low int32) {
		t.Helper()
		req := autoscaled()
		req.Spec.Update, req.Spec.GetContainer().Image, req.Spec.Autoscale.Min = &controlv1.UpdateStrategy{}, image, low
		r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
		ok(t, err)
		is(t, "refusal", r.GetErrorMessage(), "")
	}
	version("nginx:1", 2)
	version("nginx:2", 2)
	offered := func() bool {
		t.Helper()
		r, err := g.cluster(0).GetRollout(ctxFor(t), &clusterv1.GetRolloutRequest{Group: "grp"})
		ok(t, err)
		return r.GetCanUndo()
	}
	is(t, "whether undo is offered if both versions have the same number of members", offered(), true)
	version("nginx:3", 3)
	is(t, "whether undo is offered if the earlier version has another number of members", offered(), false)
}

// TestAutoscaleIsShown: the CPU use and the autoscaler's last decision are in the views of the members and
// in the answer to Why.
func TestAutoscaleIsShown(t *testing.T) {
	g := newGroup(t, 1)
	_, err := g.control(0).ApplyWorkload(ctxFor(t), autoscaled())
	ok(t, err)
	get := func() *controlv1.AutoscaleStatus {
		t.Helper()
		r, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: "grp-0"})
		ok(t, err)
		why, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "grp-0"})
		ok(t, err)
		is(t, "the answer to why", why.GetAutoscale().String(), r.GetWorkload().GetAutoscale().String())
		return r.GetWorkload().GetAutoscale()
	}
	a := get()
	is(t, "max", a.GetSettings().GetMax(), 5)
	is(t, "whether the autoscaler's view is empty before its first decision", a.CpuPercent == nil && a.GetDecision() == "", true)
	g.replicas[0].autoscaled = sched.Autoscaled{
		ScaleDecision: sched.ScaleDecision{Use: 45, Measured: 1, Reason: "2 members fit"}, Members: 2, At: time.Now().UnixNano(),
	}
	a = get()
	is(t, "use", a.GetCpuPercent(), 45)
	is(t, "decision", a.GetDecision(), "2 members fit")
	is(t, "measured", a.GetMeasured(), 1)
}
