package rpc

import (
	"testing"

	"google.golang.org/grpc/metadata"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// TestOneIDOfAStreamIsNotThatOfItsMessages: two applies on a stream with a request id in its
// metadata are both applied.
func TestOneIDOfAStreamIsNotThatOfItsMessages(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(dial.KeyRequestID, "01900000-0000-7000-8000-000000000001"))
	ids := map[string]bool{}
	for range 2 {
		req := &controlv1.ApplyWorkloadRequest{WorkloadId: "web"}
		if err := ensureRequestID(withoutRequestID(ctx), req); err != nil {
			t.Fatal(err)
		}
		ids[req.GetRequestId()] = true
	}
	if len(ids) != 2 {
		t.Errorf("two messages of one stream share a request id: %v", ids)
	}
}

// During an upgrade, a request that needs the new feature level is refused alone. The other
// requests of the call are committed.
func TestAnApplyThatNeedsALevelIsRefusedAlone(t *testing.T) {
	g := newGroup(t, 1)
	team := web("team")
	team.Spec.Namespace = "shop"
	group := web("g")
	group.Spec.Count = 2
	group.Spec.Update = &controlv1.UpdateStrategy{MaxParallel: 1}
	for name, late := range map[string]*controlv1.ApplyWorkloadRequest{"namespace": team, "update": group} {
		t.Run(name, func(t *testing.T) {
			r, err := g.cluster(0).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{web("plain-" + name), late}})
			if _, there := g.replicas[0].store.View().Workload("plain-" + name); !there {
				t.Fatalf("nothing was applied: %v", err)
			}
			if err != nil {
				t.Fatalf("plain-%s was applied, and the answer is: %v", name, err)
			}
			is(t, "first", r.GetResults()[0].GetSuccess(), true)
			is(t, "second", r.GetResults()[1].GetSuccess(), false)
		})
	}
}
