package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// line returns a planned workload as one line.
func line(w *clusterv1.PlannedWorkload) string {
	out := fmt.Sprintf("%s %s on %q", w.GetWorkloadId(), w.GetAction(), w.GetNodeId())
	for _, c := range w.GetChanges() {
		out += fmt.Sprintf(" %s:%s>%s", c.GetField(), c.GetBefore(), c.GetAfter())
	}
	if n := w.GetAtATime(); n > 0 {
		out += fmt.Sprintf(" %d at a time", n)
	}
	return out
}

func TestPlanWorkloads(t *testing.T) {
	env := func(id, value string) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.GetContainer().Env = map[string]string{"PASSWORD": value}
		return r
	}
	change := func(f func(*controlv1.ApplyWorkloadRequest)) *controlv1.ApplyWorkloadRequest {
		r := web("web")
		f(r)
		return r
	}
	for _, c := range []struct {
		fact string
		req  *controlv1.ApplyWorkloadRequest
		want []string
	}{
		{"a new one", web("new"), []string{`new create on "a"`}},
		{"the same again", web("web"), []string{`web unchanged on "a"`}},
		{"another image", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().Image = "nginx:2" }),
			[]string{`web replace on "a" container.image:nginx:1>nginx:2`}},
		{"another priority", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Priority = 7 }), []string{`web update on "a" priority:>7`}},
		{"more than any node has", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Resources.MemoryMb = 1 << 20 }),
			[]string{`web replace on "" resources.memory_mb:64>1048576`}},
		{"a stop", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "stopped"}, []string{`web stop on ""`}},
		{"a stop with its specification", change(func(r *controlv1.ApplyWorkloadRequest) { r.DesiredState = "stopped" }), []string{`web stop on "a"`}},
		{"a delete", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "deleted"}, []string{`web delete on ""`}},
		{"a stop of a group", &controlv1.ApplyWorkloadRequest{WorkloadId: "g", DesiredState: "stopped"}, []string{`g-0 stop on ""`, `g-1 stop on ""`}},
		{"a delete of a group", &controlv1.ApplyWorkloadRequest{WorkloadId: "g", DesiredState: "deleted"}, []string{`g-0 delete on ""`, `g-1 delete on ""`}},
		{"an unknown one", &controlv1.ApplyWorkloadRequest{WorkloadId: "x", DesiredState: "stopped"}, []string{`x refused on ""`}},
		{"a mistake", web("a/b"), []string{`a/b refused on ""`}},
		{"another secret", env("sec", "two"), []string{`sec replace on "a" a secret value:>`}},
		{"the same secret", env("sec", "one"), []string{`sec unchanged on "a"`}},
		{"a smaller count", func() *controlv1.ApplyWorkloadRequest { r := web("g"); r.Spec.Count = 1; return r }(),
			[]string{`g-0 unchanged on "b"`, `g-1 delete on ""`}},
		{"a group's next image, member by member", func() *controlv1.ApplyWorkloadRequest {
			r := web("g")
			r.Spec.Count, r.Spec.Update = 3, &controlv1.UpdateStrategy{MaxParallel: 2}
			r.Spec.GetContainer().Image = "nginx:2"
			return r
		}(), []string{`g-0 replace on "b" container.image:nginx:1>nginx:2 2 at a time`,
			`g-1 replace on "b" container.image:nginx:1>nginx:2 2 at a time`, `g-2 create on "a"`}},
	} {
		for i, where := range []string{"leader", "follower"} {
			t.Run(c.fact+" at the "+where, func(t *testing.T) {
				g := newGroup(t, 2)
				g.put(t, web("web"), "a")
				g.put(t, env("sec", "one"), "a")
				group := web("g")
				group.Spec.Count = 2
				g.put(t, group, "b")
				before := len(g.history)
				r, err := g.cluster(i).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{proto.CloneOf(c.req)}})
				ok(t, err)
				var got []string
				for _, w := range r.GetWorkloads() {
					got = append(got, line(w))
				}
				is(t, "plan", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				is(t, "commands", len(g.history), before)
			})
		}
	}
}

func TestPlansSeeEachOther(t *testing.T) {
	g := newGroup(t, 1)
	big := func(id string) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.Resources.CpuMillicores = 5000
		return r
	}
	r, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{big("x"), big("y"), big("z")}})
	ok(t, err)
	on := map[string]bool{}
	for _, w := range r.GetWorkloads()[:2] {
		on[w.GetNodeId()] = true
	}
	is(t, "nodes", len(on), 2)
	last := r.GetWorkloads()[2]
	is(t, "where the third goes", last.GetNodeId(), "")
	if !strings.Contains(last.GetReason(), "CPU") {
		t.Errorf("the reason is %q, want one that names the CPU", last.GetReason())
	}
	is(t, "verdicts", len(last.GetNodes()), 2)
}

func TestPlanFromAFile(t *testing.T) {
	g := newGroup(t, 1)
	const good = "id: one\ncontainer: {image: nginx:1}\n---\nid: two\ncontainer: {image: nginx:1}\n"
	r, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{File: good})
	ok(t, err)
	is(t, "workloads", len(r.GetWorkloads()), 2)
	a, err := g.cluster(0).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{File: good, RequestId: requestID(t)})
	ok(t, err)
	is(t, "applied", len(a.GetResults()), 2)
	_, err = g.cluster(0).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{File: "id: one\ncontaner: {image: x}\n"})
	code(t, err, codes.InvalidArgument)
	if !strings.Contains(err.Error(), "2:1: unknown field") {
		t.Errorf("the error is %q, want line and column of the mistake", err)
	}
	_, err = g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{File: good, Workloads: []*controlv1.ApplyWorkloadRequest{web("w")}})
	code(t, err, codes.InvalidArgument)
	g.mode(fsm.ModeDegraded)
	r, err = g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{File: good})
	ok(t, err)
	if !strings.Contains(r.GetFrozen(), "degraded") {
		t.Errorf("frozen is %q, want the mode", r.GetFrozen())
	}
}
