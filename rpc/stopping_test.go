package rpc

import (
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// A workload is being stopped. Every answer that shows it must name the nodes on which it has not ended yet, and the
// time after which it is killed.
func TestViewsNameTheNodesThatStillHaveAnInstance(t *testing.T) {
	g := newGroup(t, 1)
	apply := func(id string, grace int32) {
		g.put(t, &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: &controlv1.WorkloadSpec{
			Type: "container", Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "web:1", StopGracePeriodSeconds: grace}},
		}}, "a")
	}
	apply("web", 0)
	apply("slow", 90)
	g.place("placed", "") // never had a node
	is := func(when, id, nodes string, grace int32, since bool) {
		t.Helper()
		one, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: id})
		ok(t, err)
		why, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: id})
		ok(t, err)
		got := map[string]*controlv1.Stopping{"get": one.GetWorkload().GetStopping(), "why": why.GetStopping()}
		all, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{})
		ok(t, err)
		for _, w := range all.GetWorkloads() {
			if w.GetWorkloadId() == id {
				got["list"] = w.GetStopping()
			}
		}
		watch, err := g.cluster(0).WatchWorkloads(ctxFor(t), &clusterv1.WatchWorkloadsRequest{WorkloadIds: []string{id}})
		ok(t, err)
		first, err := watch.Recv()
		ok(t, err)
		got["watch"] = first.GetWorkload().GetStopping()
		for call, s := range got {
			if strings.Join(s.GetNodeIds(), ",") != nodes || s.GetGraceSeconds() != grace || (s.GetSince() != nil) != since {
				t.Errorf("%s: call %s shows for workload %s the stopping instances %v; want nodes %q, a grace period of %d s, and whether a start time is set: %t", when, call, id, s, nodes, grace, since)
			}
		}
	}
	is("running", "web", "", 0, false)
	g.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Stopped"}}})
	is("stopped", "web", "a", 30, false)
	for _, id := range []string{"web", "slow"} {
		_, err := g.control(0).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: id})
		ok(t, err)
	}
	is("deleted", "web", "a", 30, true)
	is("deleted", "slow", "a", 90, true)
	g.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "placed", Desired: "Stopped"}}})
	is("stopped", "placed", "", 0, false)
}
