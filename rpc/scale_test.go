package rpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec"
)

// TestScaleGroup: a call with only the new count adds and removes members of a group. The secrets of a new member can
// be decrypted under the new member's id, and a repeated request changes nothing.
func TestScaleGroup(t *testing.T) {
	g := newGroup(t, 2)
	req := web("grp")
	req.Spec.Count = new(int32(2))
	req.Spec.GetContainer().Env = map[string]string{"PASSWORD": "geheim"}
	_, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	scale := func(count uint32, id string) *clusterv1.ScaleGroupResponse {
		t.Helper()
		r, err := g.cluster(1).ScaleGroup(ctxFor(t), &clusterv1.ScaleGroupRequest{Group: "grp", Count: count, RequestId: id})
		ok(t, err)
		return r
	}
	id := requestID(t)
	r := scale(3, id)
	is(t, "members", strings.Join(r.GetWorkloadIds(), " "), "grp-0 grp-1 grp-2")
	w, _ := g.view().Workload("grp-2")
	plain, err := spec.Unseal("grp-2", w.Spec, sealer(g.replicas[0].server.cfg.Keys))
	ok(t, err)
	is(t, "secret", plain.GetContainer().GetEnv()["PASSWORD"], "geheim")
	again := scale(3, id)
	is(t, "whether a repeated request gets the first answer again", again.GetIndex() == r.GetIndex() && !again.GetUnchanged(), true)
	is(t, "unchanged", scale(3, requestID(t)).GetUnchanged(), true)

	r = scale(1, requestID(t))
	is(t, "removed members", strings.Join(r.GetRemovedWorkloadIds(), " "), "grp-1 grp-2")
	applied, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "members after an apply of the file, which has count 2", strings.Join(applied.GetWorkloadIds(), " "), "grp-0 grp-1")
	req.Spec.Count = new(int32(1))
	applied, err = g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "members that the apply with count 1 reports as removed", strings.Join(applied.GetRemovedWorkloadIds(), " "), "grp-1")

	_, err = g.cluster(1).ScaleGroup(ctxFor(t), &clusterv1.ScaleGroupRequest{Group: "none", Count: 2, RequestId: requestID(t)})
	code(t, err, codes.NotFound)
	_, err = g.cluster(1).ScaleGroup(ctxFor(t), &clusterv1.ScaleGroupRequest{Group: "grp", Count: 1001, RequestId: requestID(t)})
	code(t, err, codes.InvalidArgument)
}

// TestSuggestionsToScale: an automation suggests another number of members. The suggestion must be carried out only if
// the group's namespace allows this (allow_scaling).
func TestSuggestionsToScale(t *testing.T) {
	g := newGroup(t, 1)
	req := web("grp")
	req.Spec.Count = new(int32(2))
	_, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	suggest := func(replicas, delta int32) *controlv1.SubmitAutomationSuggestionResponse {
		t.Helper()
		r, err := g.control(0).SubmitAutomationSuggestion(ctxFor(t), &controlv1.SubmitAutomationSuggestionRequest{Suggestion: &controlv1.AutomationSuggestion{
			TargetWorkload: "grp", ActionType: controlv1.AutomationActionType_AUTOMATION_ACTION_SCALE_REPLICAS,
			DesiredReplicas: replicas, ReplicaDelta: delta, PolicyName: "cpu", Reason: "busy",
		}})
		ok(t, err)
		return r
	}
	r := suggest(4, 0)
	if r.GetAccepted() || !strings.Contains(r.GetReason(), "persysctl namespace set default --allow-scaling") || r.GetAppliedAction() != "" {
		t.Fatalf("an automation's suggestion to scale a group in a namespace without allow_scaling returned %v, want a refusal that names --allow-scaling", r)
	}
	_, err = g.cluster(0).PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "default", AllowScaling: true})
	ok(t, err)
	for _, c := range []struct {
		replicas, delta int32
		accepted        bool
		members         int
	}{{4, 0, true, 4}, {0, -1, true, 3}, {0, 2, true, 5}, {0, 0, false, 5}, {0, -5, false, 5}, {1001, 0, false, 5}, {1, 9, true, 1}} {
		r := suggest(c.replicas, c.delta)
		is(t, "accepted", r.GetAccepted(), c.accepted)
		is(t, "action", r.GetAppliedAction() == "scale_replicas", c.accepted)
		n := 0
		list, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{})
		ok(t, err)
		for _, w := range list.GetWorkloads() {
			if w.GetDesiredState() == "Running" {
				n++
			}
		}
		is(t, "members", n, c.members)
	}
}
