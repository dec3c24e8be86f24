package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// TestRolloutsAreShownAndSet: for a group with `update`, the answers to an apply and to GetRollout show its
// rollout, and SetRollout changes it.
func TestRolloutsAreShownAndSet(t *testing.T) {
	g := newGroup(t, 2)
	version := func(image string) *controlv1.ApplyWorkloadRequest {
		r := web("web")
		r.RequestId = requestID(t)
		r.Spec.Count, r.Spec.Group = new(int32(2)), ""
		r.Spec.Update = &controlv1.UpdateStrategy{HealthyDeadlineSeconds: 60}
		r.Spec.GetContainer().Image, r.Spec.GetContainer().Ports = image, nil
		return r
	}
	g.put(t, version("nginx:1"), "a")
	_, err := g.cluster(1).GetRollout(ctxFor(t), &clusterv1.GetRolloutRequest{Group: "web"})
	code(t, err, codes.NotFound)
	for _, id := range []string{"web-0", "web-1"} {
		w, _ := g.view().Workload(id)
		g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
			Workload: id, Node: "a", State: "Running", Acknowledged: true,
			Generation: fsm.GenerationPB(w.Generation),
		}}}}})
	}
	r, err := g.control(1).ApplyWorkload(ctxFor(t), version("nginx:2"))
	ok(t, err)
	is(t, "whether the apply returned a rollout and counts as a change", r.GetRollout() != nil && !r.GetUnchanged(), true)
	told := func(i int) string {
		t.Helper()
		v, err := g.cluster(i).GetRollout(ctxFor(t), &clusterv1.GetRolloutRequest{Group: "web"})
		ok(t, err)
		out := []string{v.GetPhase(), v.GetReason(), fmt.Sprint(v.GetUpdate().GetMaxParallel(), v.GetUpdate().GetMinHealthyTimeSeconds(), v.GetUpdate().GetHealthyDeadlineSeconds(), v.GetCanUndo())}
		for _, m := range v.GetMembers() {
			out = append(out, m.GetWorkloadId()+" "+m.GetState()+" "+m.GetStatus())
		}
		return strings.Join(out, "; ")
	}
	is(t, "the rollout as a follower shows it", told(1), "Running; ; 1 10 60 true; web-0 Waiting Running; web-1 Waiting Running")
	act := func(action string) error {
		_, err := g.cluster(1).SetRollout(ctxFor(t), &clusterv1.SetRolloutRequest{Group: "web", Action: action, RequestId: requestID(t)})
		return err
	}
	ok(t, act("pause"))
	is(t, "the rollout after it was paused", told(0), "Paused; paused by request; 1 10 60 true; web-0 Waiting Running; web-1 Waiting Running")
	y, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web-1"})
	ok(t, err)
	is(t, "reason of Why for a member that waits", y.GetReasonCode()+": "+y.GetReasonMessage(), "Rollout: waiting in the update of web, which is paused: paused by request; persysctl rollout resume web, or undo")
	ok(t, act("resume"))
	code(t, act("stop"), codes.InvalidArgument)
	again, err := g.control(0).ApplyWorkload(ctxFor(t), version("nginx:2"))
	ok(t, err)
	is(t, "whether the same apply again is unchanged and returns the same rollout", again.GetUnchanged() && again.GetRollout().GetSequence() == r.GetRollout().GetSequence(), true)
	g.mode("degraded")
	code(t, act("pause"), codes.FailedPrecondition)
}
