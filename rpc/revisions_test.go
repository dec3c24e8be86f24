package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func changed(list []*clusterv1.FieldChange) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s:%s>%s", c.GetField(), c.GetBefore(), c.GetAfter()))
	}
	return strings.Join(out, " ")
}

// TestRevisionsAreShownAndRolledBack: revisions are shown without secrets. A rollback through any replica
// restores a revision with its secrets.
func TestRevisionsAreShownAndRolledBack(t *testing.T) {
	g := newGroup(t, 2)
	version := func(image, password string) *controlv1.ApplyWorkloadRequest {
		r := web("web")
		r.Spec.GetContainer().Image = image
		r.Spec.GetContainer().Env = map[string]string{"PASSWORD": password}
		return r
	}
	g.put(t, version("nginx:1", "one"), "a")
	for _, r := range []*controlv1.ApplyWorkloadRequest{version("nginx:2", "one"), version("nginx:2", "two")} {
		r.RequestId = requestID(t)
		_, err := g.control(0).ApplyWorkload(ctxFor(t), r)
		ok(t, err)
	}
	for i, where := range []string{"leader", "follower"} {
		list, err := g.cluster(i).ListRevisions(ctxFor(t), &clusterv1.ListRevisionsRequest{WorkloadId: "web", From: 1, To: 3})
		ok(t, err)
		var got []string
		for _, v := range list.GetRevisions() {
			got = append(got, fmt.Sprintf("%d %v %s", v.GetNumber(), v.GetPresent(), changed(v.GetChanges())))
		}
		is(t, "revisions at the "+where, strings.Join(got, "\n"), "3 true a secret value:>\n2 false container.image:nginx:1>nginx:2\n1 false ")
		is(t, "difference", changed(list.GetChanges()), "container.image:nginx:1>nginx:2")
		if text := list.String(); strings.Contains(text, "two") || strings.Contains(text, `"one"`) {
			t.Errorf("a secret must not be shown in a revision, but is: %s", text)
		}
	}
	list, err := g.cluster(0).ListRevisions(ctxFor(t), &clusterv1.ListRevisionsRequest{WorkloadId: "web", To: 2})
	ok(t, err)
	is(t, "difference to the previous revision", changed(list.GetChanges()), "container.image:nginx:1>nginx:2")
	_, err = g.cluster(0).ListRevisions(ctxFor(t), &clusterv1.ListRevisionsRequest{WorkloadId: "web", From: 1, To: 9})
	code(t, err, codes.NotFound)
	_, err = g.cluster(0).ListRevisions(ctxFor(t), &clusterv1.ListRevisionsRequest{WorkloadId: "none"})
	code(t, err, codes.NotFound)

	first := g.view().Revisions("web")[0].Content
	r, err := g.cluster(1).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "web", Number: 1, RequestId: requestID(t)})
	ok(t, err)
	is(t, "applied", r.GetSuccess(), true)
	w, _ := g.view().Workload("web")
	is(t, "content hash after the rollback, which includes the secret", w.Content, first)
	_, err = g.cluster(0).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "web", RequestId: requestID(t)})
	ok(t, err)
	list, err = g.cluster(0).ListRevisions(ctxFor(t), &clusterv1.ListRevisionsRequest{WorkloadId: "web"})
	ok(t, err)
	is(t, "revisions after two rollbacks", len(list.GetRevisions()), 5)
	is(t, "revision id after two rollbacks, which must be that of the revision before both", list.GetRevisions()[0].GetRevisionId(), list.GetRevisions()[2].GetRevisionId())
	_, err = g.cluster(0).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "web", Number: 77, RequestId: requestID(t)})
	code(t, err, codes.NotFound)
}

// TestRollBackKnowsTheNewestRevision: the leader changes right after an apply was acknowledged. A rollback at the new
// leader must already know the revision of that apply.
func TestRollBackKnowsTheNewestRevision(t *testing.T) {
	g := newGroup(t, 2)
	g.put(t, web("web"), "a")
	for _, image := range []string{"nginx:2", "nginx:3"} {
		g.replicas[1].set(func(r *replica) { r.lagging = image == "nginx:3" })
		r := web("web")
		r.Spec.GetContainer().Image = image
		_, err := g.control(0).ApplyWorkload(ctxFor(t), r)
		ok(t, err)
	}
	second := g.view().Revisions("web")[1].Content
	g.replicas[1].set(func(r *replica) {
		r.before = func(context.Context) error { // Confirm makes this replica apply the missing entries
			r.set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
			return nil
		}
	})
	g.elect(1)
	_, err := g.cluster(1).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "web"})
	ok(t, err)
	w, _ := g.view().Workload("web")
	is(t, "content hash after the rollback at the new leader", w.Content, second)
}
