package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/spec"
)

// line returns a planned workload as one line of text.
func line(w *clusterv1.PlannedWorkload) string {
	out := fmt.Sprintf("%s %s on %q", w.GetWorkloadId(), w.GetAction(), w.GetNodeId())
	for _, c := range w.GetChanges() {
		out += fmt.Sprintf(" %s:%s>%s", c.GetField(), c.GetBefore(), c.GetAfter())
	}
	if n := w.GetAtATime(); n > 0 {
		out += fmt.Sprintf(" %d at a time", n)
		if extra := w.GetExtraMembers(); extra > 0 {
			out += fmt.Sprintf(", %d extra", extra)
		}
	}
	return out
}

func TestPlanWorkloadsShowsTheChanges(t *testing.T) {
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
		{"a plan creates a new workload", web("new"), []string{`new create on "a"`}},
		{"a plan of the stored workload changes nothing", web("web"), []string{`web unchanged on "a"`}},
		{"another image", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().Image = "nginx:2" }),
			[]string{`web replace on "a" container.image:nginx:1>nginx:2`}},
		{"a plan with another priority updates the workload without a restart", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Priority = 7 }), []string{`web update on "a" priority:>7`}},
		{"a plan with a demand that no node can meet gives the reason", change(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Resources.MemoryMb = 1 << 20 }),
			[]string{`web replace on "" resources.memory_mb:64>1048576`}},
		{"a plan that stops a workload", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "stopped"}, []string{`web stop on ""`}},
		{"a plan that stops a workload and contains its specification", change(func(r *controlv1.ApplyWorkloadRequest) { r.DesiredState = "stopped" }), []string{`web stop on "a"`}},
		{"a plan that deletes a workload", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "deleted"}, []string{`web delete on ""`}},
		{"a plan that stops a group", &controlv1.ApplyWorkloadRequest{WorkloadId: "g", DesiredState: "stopped"}, []string{`g-0 stop on ""`, `g-1 stop on ""`}},
		{"a plan that deletes a group", &controlv1.ApplyWorkloadRequest{WorkloadId: "g", DesiredState: "deleted"}, []string{`g-0 delete on ""`, `g-1 delete on ""`}},
		{"a plan that stops an unknown workload is refused", &controlv1.ApplyWorkloadRequest{WorkloadId: "x", DesiredState: "stopped"}, []string{`x refused on ""`}},
		{"a plan of a workload with an invalid id is refused", web("a/b"), []string{`a/b refused on ""`}},
		{"a plan with another value of a secret does not show the value", env("sec", "two"), []string{`sec replace on "a" a secret value:>`}},
		{"a plan with the same value of a secret changes nothing", env("sec", "one"), []string{`sec unchanged on "a"`}},
		{"a plan with a smaller count deletes the last member", func() *controlv1.ApplyWorkloadRequest { r := web("g"); r.Spec.Count = new(int32(1)); return r }(),
			[]string{`g-0 unchanged on "b"`, `g-1 delete on ""`}},
		{"a plan with another image of a group replaces two members at a time", func() *controlv1.ApplyWorkloadRequest {
			r := web("g")
			r.Spec.Count, r.Spec.Update = new(int32(3)), &controlv1.UpdateStrategy{MaxParallel: 2}
			r.Spec.GetContainer().Image = "nginx:2"
			return r
		}(), []string{`g-0 replace on "b" container.image:nginx:1>nginx:2 2 at a time`,
			`g-1 replace on "b" container.image:nginx:1>nginx:2 2 at a time`, `g-2 create on "a"`}},
		{"a plan with another image of a group starts extra members first", func() *controlv1.ApplyWorkloadRequest {
			r := web("g")
			r.Spec.Count, r.Spec.Update = new(int32(2)), &controlv1.UpdateStrategy{Order: "start-first"}
			r.Spec.GetContainer().Image = "nginx:2"
			return r
		}(), []string{`g-0 replace on "b" container.image:nginx:1>nginx:2 1 at a time, 1 extra`,
			`g-1 replace on "b" container.image:nginx:1>nginx:2 1 at a time, 1 extra`}},
	} {
		for i, where := range []string{"leader", "follower"} {
			t.Run(c.fact+" at the "+where, func(t *testing.T) {
				g := newGroup(t, 2)
				g.put(t, web("web"), "a")
				g.put(t, env("sec", "one"), "a")
				group := web("g")
				group.Spec.Count = new(int32(2))
				g.put(t, group, "b")
				before := len(g.history)
				r, err := g.cluster(i).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{proto.CloneOf(c.req)}})
				ok(t, err)
				var got []string
				for _, w := range r.GetWorkloads() {
					got = append(got, line(w))
				}
				is(t, "plan", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				is(t, "number of commands in the log after the plan, which must not propose any", len(g.history), before)
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
	is(t, "number of nodes on which the workloads are planned", len(on), 2)
	last := r.GetWorkloads()[2]
	is(t, "planned node of the third workload, for which there is no capacity", last.GetNodeId(), "")
	if !strings.Contains(last.GetReason(), "CPU") {
		t.Errorf("the plan gives the reason %q for the third workload, want one that names the CPU", last.GetReason())
	}
	is(t, "verdicts", len(last.GetNodes()), 2)
}

// TestPlansNameVictims: a plan, and the preview of a drain, name the workloads that would be preempted, and
// `why` names the workload that would preempt them.
func TestPlansNameVictims(t *testing.T) {
	g := newGroup(t, 1)
	big := func(id string, priority int32) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.Resources.CpuMillicores, r.Spec.Priority = 5000, priority
		return r
	}
	g.put(t, big("low", 0), "a")
	g.put(t, big("mid", 2), "b")
	plan := func(r *controlv1.ApplyWorkloadRequest) *clusterv1.PlannedWorkload {
		out, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{r}})
		ok(t, err)
		return out.GetWorkloads()[0]
	}
	first := plan(big("high", 1))
	is(t, "planned node, and workloads that would be preempted in the same namespace", fmt.Sprint(first.GetNodeId(), first.GetPreempts()), "a[low]")
	r, err := g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "b", On: true, Preview: true})
	ok(t, err)
	is(t, "target node, and workloads that the drain would preempt", fmt.Sprint(r.GetMoves()[0].GetToNodeId(), r.GetMoves()[0].GetPreempts()), "a[low]")

	g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop"}}})
	other := big("cart", 9)
	other.Spec.Namespace = "shop"
	is(t, "workloads that would be preempted in another namespace without a grant", fmt.Sprint(plan(proto.CloneOf(other)).GetPreempts()), "[]")
	g.put(t, other, "")
	const next = "persysctl namespace set shop --max-priority 9"
	if why := plan(proto.CloneOf(big("cart2", 9))).GetReason(); strings.Contains(why, next) {
		t.Errorf("the reason for a workload in namespace default is %q, want one without the advice to raise max-priority of namespace shop", why)
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop", MaxPriority: 9}}})
	other.WorkloadId = "cart3"
	is(t, "workloads that would be preempted in another namespace with a grant", fmt.Sprint(plan(proto.CloneOf(other)).GetPreempts()), "[low]")
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
		t.Errorf("the error of the plan is %q, want line and column of the mistake", err)
	}
	_, err = g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{File: good, Workloads: []*controlv1.ApplyWorkloadRequest{web("w")}})
	code(t, err, codes.InvalidArgument)
	g.mode(fsm.ModeDegraded)
	r, err = g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{File: good})
	ok(t, err)
	if !strings.Contains(r.GetFrozen(), "degraded") {
		t.Errorf("the field frozen is %q, want the mode", r.GetFrozen())
	}
}

// TestPlanRefusesNamesAsApplyDoes: a plan refuses a DNS name or an Ethernet address that another workload
// uses, as an apply does.
func TestPlanRefusesNamesAsApplyDoes(t *testing.T) {
	guest := func(id, mac string) *controlv1.ApplyWorkloadRequest {
		return &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: &controlv1.WorkloadSpec{
			Type: spec.TypeVM, Workload: &controlv1.WorkloadSpec_Vm{Vm: &controlv1.VMSpec{
				Vcpus: 1, MemoryMb: 64, Networks: []*controlv1.NetworkConfig{{Bridge: "lan", MacAddress: mac}},
			}},
		}}
	}
	grouped := func(id, group string) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.Group = group
		return r
	}
	for _, c := range []struct {
		fact        string
		have, next  *controlv1.ApplyWorkloadRequest
		file, names string
	}{
		{"a workload with the DNS name of another", web("Shop"), web(bounds.DNSLabel("Shop")), "", `would have the DNS name of workload "Shop"`},
		{"a group with the DNS name of a workload", web("shop"), grouped("other", "shop"), "", `group "shop" would have the DNS name of workload "shop"`},
		{"a workload with the DNS name of a group", grouped("other", "shop"), web("shop"), "", `would have the DNS name of group "shop"`},
		{"a virtual machine with the configured Ethernet address of another machine", guest("one", "52:54:00:00:00:01"), guest("two", "52:54:00:00:00:01"), "", `is already used by workload "one"`},
		{"a virtual machine whose derived Ethernet address is configured for another machine", guest("one", ""), guest("two", engine.GuestMAC("c1", "one", 0)), "", `is already used by workload "one"`},
		{"the refusal of a virtual machine names the line of its network cards", guest("one", "52:54:00:00:00:01"), guest("two", "52:54:00:00:00:01"),
			"id: two\nvm:\n  cpus: 1\n  memory: 64Mi\n  networks:\n    - {network: lan, mac: 52:54:00:00:00:01}\n", `6:5: vm.networks: mac_address 52:54:00:00:00:01`},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 1)
			r, err := g.control(0).ApplyWorkload(ctxFor(t), c.have)
			if err != nil || !r.GetSuccess() {
				t.Fatalf("the first apply returned error %v, refusal %q, want success", err, r.GetErrorMessage())
			}
			req := &clusterv1.PlanWorkloadsRequest{File: c.file}
			if c.file == "" {
				req.Workloads = []*controlv1.ApplyWorkloadRequest{proto.CloneOf(c.next)}
			}
			plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), req)
			ok(t, err)
			is(t, "planned", len(plan.GetWorkloads()), 1)
			is(t, "action", plan.GetWorkloads()[0].GetAction(), "refused")
			why := plan.GetWorkloads()[0].GetReason()
			if !strings.Contains(why, c.names) {
				t.Errorf("the plan gives the reason %q, want one that contains %q", why, c.names)
			}
			if c.file != "" {
				return
			}
			r, err = g.control(0).ApplyWorkload(ctxFor(t), c.next)
			said := r.GetErrorMessage()
			if err != nil {
				said = err.Error()
			}
			if r.GetSuccess() || !strings.Contains(said, why) {
				t.Errorf("the apply is refused with %q and the plan with %q, want the same reason", said, why)
			}
		})
	}
}
