package rpc

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy/document"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
)

// TestPutsAreJudgedUnlessAnAdminMakesThem: no policy is bound to namespace a, so the policy baseline applies there to
// everybody but admins: to ada, who has rights only in that namespace, and to oli, an operator in all namespaces. They
// apply workloads that violate it. Each refusal must name the field, the value, the rule, the policy and the next step.
// An admin must be able to apply the same workloads.
func TestPutsAreJudgedUnlessAnAdminMakesThem(t *testing.T) {
	_, as := spaces(t)
	host := func(path string) *controlv1.ApplyWorkloadRequest {
		r := webIn("web", "a")
		r.Spec.GetContainer().Volumes = []*controlv1.VolumeMount{{HostPath: path, ContainerPath: "/x"}}
		return r
	}
	list := func(r *controlv1.ApplyWorkloadRequest) []*controlv1.ApplyWorkloadRequest {
		return []*controlv1.ApplyWorkloadRequest{r}
	}
	for _, way := range []struct {
		name string
		do   func(ctx context.Context, who string, r *controlv1.ApplyWorkloadRequest) (refusal string, err error)
	}{
		{"plan", func(ctx context.Context, who string, r *controlv1.ApplyWorkloadRequest) (string, error) {
			out, err := clusterv1.NewClusterClient(as(0, who)).PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: list(r)})
			if err != nil || out.GetWorkloads()[0].GetAction() != "refused" {
				return "", err
			}
			return out.GetWorkloads()[0].GetReason(), nil
		}},
		{"apply", func(ctx context.Context, who string, r *controlv1.ApplyWorkloadRequest) (string, error) {
			out, err := controlv1.NewAgentControlClient(as(0, who)).ApplyWorkload(ctx, r)
			if out.GetErrorMessage() != "" && out.GetFailureReason() != controlv1.FailureReason_INVALID_SPEC {
				t.Errorf("the failure reason is %s, want INVALID_SPEC", out.GetFailureReason())
			}
			return out.GetErrorMessage(), err
		}},
		{"apply of many", func(ctx context.Context, who string, r *controlv1.ApplyWorkloadRequest) (string, error) {
			out, err := clusterv1.NewClusterClient(as(0, who)).ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: list(r)})
			if err != nil {
				return "", err
			}
			return out.GetResults()[0].GetErrorMessage(), nil
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			for _, who := range []string{"user/ada", "user/oli"} {
				why, err := way.do(ctxFor(t), who, host("/etc"))
				ok(t, err)
				for _, word := range []string{"container.volumes[0].host_path", `"/etc"`, `policy "baseline"`, "rule host_paths", "persysctl policy bind POLICY --namespace a"} {
					if !strings.Contains(why, word) {
						t.Errorf("the refusal of a put by user %s must contain %q, but is %q", who, word, why)
					}
				}
			}
			high := webIn("web", "a")
			high.Spec.Priority = 1
			why, err := way.do(ctxFor(t), "user/ada", high)
			ok(t, err)
			for _, word := range []string{"priority: 1", `namespace "a", which is 0`, "persysctl namespace set a --max-priority 1"} {
				if !strings.Contains(why, word) {
					t.Errorf("the refusal of a priority must contain %q, but is %q", word, why)
				}
			}
			why, err = way.do(ctxFor(t), "user/ada", webIn("own", "a"))
			ok(t, err)
			if why != "" {
				t.Errorf("a workload that the policy baseline allows must be accepted, but is refused: %s", why)
			}
			why, err = way.do(ctxFor(t), "user/admin", host("/etc"))
			ok(t, err)
			if why != "" {
				t.Errorf("the put of an admin must be accepted, but is refused: %s", why)
			}
		})
	}
}

// TestPoliciesArePutBoundAndDeleted: an admin can put, bind and delete policies. A user with rights only in some
// namespaces sees only the bindings of these namespaces. A caller can name a policy against which a plan is checked.
func TestPoliciesArePutBoundAndDeleted(t *testing.T) {
	_, as := spaces(t)
	admin, ada := clusterv1.NewClusterClient(as(0, "user/admin")), clusterv1.NewClusterClient(as(0, "user/ada"))
	ctx := ctxFor(t)
	_, err := admin.PutPolicy(ctx, &clusterv1.PutPolicyRequest{Name: "own", Document: "privileged_: true\n"})
	if err == nil || !strings.Contains(err.Error(), "privileged_") {
		t.Errorf("PutPolicy with a misspelt field returned %v, want an error that names the field", err)
	}
	const own = "kinds: ['*']\nimages: ['*']\nusers: ['*']\nports: ['*']\naddresses: ['*']\nhost_paths: [{path: /etc, read_only: true}]\n"
	ok(t, second(admin.PutPolicy(ctx, &clusterv1.PutPolicyRequest{Name: "own", Document: own})))
	_, err = admin.PutPolicy(ctx, &clusterv1.PutPolicyRequest{Name: "own", Document: own + "privileged: true\n", IfVersion: new(uint64)})
	if status.Code(err) != codes.Aborted {
		t.Errorf("PutPolicy on condition that the policy does not exist, although it exists, returned %v, want Aborted", err)
	}
	ok(t, second(admin.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Policy: "own", Namespace: "a"})))
	ok(t, second(admin.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Policy: "restricted", Namespace: "b"})))
	ok(t, second(admin.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Policy: "restricted", NodeLabel: "zone=dmz"})))
	if _, err := admin.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Policy: "restricted", NodeLabel: "zone"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("BindPolicy to a node label without a value returned %v, want InvalidArgument", err)
	}
	if _, err := ada.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Policy: "privileged", Namespace: "a"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("BindPolicy by ada returned %v, want PermissionDenied", err)
	}
	show := func(c clusterv1.ClusterClient) string {
		r, err := c.ListPolicies(ctx, &clusterv1.ListPoliciesRequest{})
		ok(t, err)
		var out []string
		for _, p := range r.GetPolicies() {
			out = append(out, p.GetName()+":"+strings.Join(append(p.GetNamespaces(), p.GetNodeLabels()...), ","))
		}
		return strings.Join(out, " ")
	}
	if got := show(admin); got != "privileged: baseline: restricted:b,zone=dmz own:a" {
		t.Errorf("the admin sees the policies %s, want all policies with all bindings", got)
	}
	if got := show(ada); got != "privileged: baseline: restricted:zone=dmz own:a" {
		t.Errorf("user ada of namespace a sees the policies %s, want all policies without the binding to namespace b", got)
	}
	r := webIn("web", "a")
	r.Spec.GetContainer().Volumes = []*controlv1.VolumeMount{{HostPath: "/etc", ContainerPath: "/x", ReadOnly: true}}
	for by, want := range map[string]string{"": "", "baseline": `policy "baseline" (rule host_paths)`, "restricted": `policy "restricted" (rule host_paths)`, "privileged": ""} {
		p, err := ada.PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{r}, Policy: by})
		ok(t, err)
		if w := p.GetWorkloads()[0]; (w.GetAction() == "refused") != (want != "") || !strings.Contains(w.GetReason(), want) {
			t.Errorf("the plan with policy %q has action %s and reason %s, want a refusal exactly if the case names one", by, w.GetAction(), w.GetReason())
		}
	}
	ok(t, second(admin.BindPolicy(ctx, &clusterv1.BindPolicyRequest{Namespace: "a"})))
	ok(t, second(admin.DeletePolicy(ctx, &clusterv1.DeletePolicyRequest{Name: "own"})))
	if _, err := ada.ListPolicies(ctx, &clusterv1.ListPoliciesRequest{Name: "own"}); status.Code(err) != codes.NotFound {
		t.Errorf("ListPolicies with the name of a deleted policy returned %v, want NotFound", err)
	}
}

// TestStacksOfTheConfinedAreJudged: a user with rights only in some namespaces, to whom the policy baseline applies,
// applies Compose stacks. The policy must be checked against the stack after interpolation and `extends`. A stack in a
// Git repository, which schedulers cannot read, must be refused. An admin must be able to apply the same stacks.
func TestStacksOfTheConfinedAreJudged(t *testing.T) {
	_, as := spaces(t, withStacks(stack.Options{}))
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"a stack that the policy allows is accepted", "services:\n  web:\n    image: a\n", nil},
		{"a stack with a host path that only interpolation shows is refused", "services:\n  web:\n    image: a\n    volumes: [\"${AT:-/etc}:/x\"]\n", []string{"services.web.volumes", `"/etc"`, "rule host_paths"}},
		{"a stack with a service that is privileged through extends is refused", "services:\n  base:\n    image: a\n    privileged: true\n    profiles: [never]\n  web:\n    extends: base\n    profiles: !reset []\n", []string{"services.web", "rule privileged"}},
		{"the host's namespaces", "services:\n  web:\n    image: a\n    pid: host\n    network_mode: host\n", []string{"rule host_namespaces"}},
		{"a stack in a Git repository, which schedulers cannot read, is refused", "", []string{"compose", "rule unread_stack", "send the Compose file inline"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := composeRequest("web", tt.text)
			request.Spec.Namespace = "a"
			if tt.text == "" {
				c := request.Spec.GetCompose()
				c.SourceType, c.GitRepo = "git", "https://git.example.com/shop.git"
			}
			r, err := controlv1.NewAgentControlClient(as(0, "user/ada")).ApplyWorkload(ctxFor(t), request)
			ok(t, err)
			for _, word := range append(tt.want, `policy "baseline"`)[:len(tt.want)+min(1, len(tt.want))] {
				if !strings.Contains(r.GetErrorMessage(), word) {
					t.Errorf("the text of the refusal must contain %q, but is %q", word, r.GetErrorMessage())
				}
			}
			if tt.want == nil && !r.GetSuccess() {
				t.Errorf("the stack must be accepted, but is refused: %s", r.GetErrorMessage())
			}
			request.WorkloadId = "admins"
			r, err = controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), request)
			ok(t, err)
			if !r.GetSuccess() {
				t.Errorf("the put of an admin must be accepted, but is refused: %s", r.GetErrorMessage())
			}
		})
	}
}

// TestOrdersCarryPolicies: an order to an agent must contain the policy against which the workload was checked when it
// was applied, the policies of the node, and the flag admins_only.
func TestOrdersCarryPolicies(t *testing.T) {
	g, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	ok(t, second(admin.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "admins"})))
	ok(t, second(admin.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "bound"})))
	bind := func(policy, namespace, label string) {
		ok(t, second(admin.BindPolicy(ctxFor(t), &clusterv1.BindPolicyRequest{Policy: policy, Namespace: namespace, NodeLabel: label})))
	}
	bind("restricted", "", "zone=dmz")
	bind("baseline", "bound", "")
	for _, tt := range []struct {
		id, who, namespace string
		policy             string
		admins             bool
	}{
		{"a", "user/ada", "a", "baseline", false},
		{"b", "user/admin", "a", "", false},
		{"o", "user/oli", "admins", "baseline", false},
		{"c", "user/admin", "admins", "", true},
		{"d", "user/admin", "", "", true},
		{"e", "user/admin", "bound", "baseline", false},
	} {
		r, err := controlv1.NewAgentControlClient(as(0, tt.who)).ApplyWorkload(ctxFor(t), webIn(tt.id, tt.namespace))
		ok(t, inBand(r, err))
		w, _ := g.view().Workload(tt.id)
		for _, zone := range []string{"lan", "dmz"} {
			req := &agentv1.ApplyWorkloadRequest{}
			ok(t, judgedBy(req, g.view(), w, &fsm.Node{ID: "n", Facts: fsm.NodeFacts{Labels: []fsm.Label{{Key: "zone", Value: zone}}}}))
			name := ""
			if req.Policy != "" {
				p, err := document.Read([]byte(req.Policy))
				ok(t, err)
				name = p.Name
			}
			is(t, "policy in the order of workload "+tt.id, name, tt.policy)
			is(t, "flag admins_only in the order of workload "+tt.id, req.AdminsOnly, tt.admins)
			is(t, "number of the node's policies in the order of workload "+tt.id, len(req.NodePolicies), map[string]int{"dmz": 1}[zone])
		}
	}
	bind("privileged", "a", "")
	r, err := controlv1.NewAgentControlClient(as(0, "user/ada")).ApplyWorkload(ctxFor(t), webIn("f", "a"))
	ok(t, inBand(r, err))
	w, _ := g.view().Workload("f")
	req := &agentv1.ApplyWorkloadRequest{}
	ok(t, judgedBy(req, g.view(), w, &fsm.Node{ID: "n"}))
	if !strings.Contains(req.Policy, "name: privileged") || req.AdminsOnly {
		t.Errorf("the order of a workload of a confined user under policy privileged is %v, want the policy privileged without admins_only", req)
	}
}

// TestSignedImagesNeedAnAgentThatChecks: a legacy v1 agent checks no signatures, so under a policy with image_keys the
// scheduler sends it no orders for containers. It still sends orders for virtual machines, whose disk images have no
// signatures.
func TestSignedImagesNeedAnAgentThatChecks(t *testing.T) {
	const key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q=="
	g, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	ok(t, second(admin.PutPolicy(ctxFor(t), &clusterv1.PutPolicyRequest{Name: "signed", Document: "kinds: ['*']\nimages: ['*']\nimage_keys: [" + key + "]\n"})))
	ok(t, second(admin.BindPolicy(ctxFor(t), &clusterv1.BindPolicyRequest{Policy: "signed", NodeLabel: "zone=dmz"})))
	r, err := controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), webIn("w", "a"))
	ok(t, inBand(r, err))
	w, _ := g.view().Workload("w")
	container := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{}}}
	vm := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{}}}
	for _, tt := range []struct {
		name     string
		protocol uint32
		spec     *agentv1.WorkloadSpec
		refused  bool
	}{
		{"an order for a container on a legacy v1 agent is refused", 0, container, true},
		{"an order for a container on an agent of this version is sent", 1, container, false},
		{"an order for a virtual machine on a legacy v1 agent is sent", 0, vm, false},
	} {
		n := &fsm.Node{ID: "n", Facts: fsm.NodeFacts{Protocol: tt.protocol, Labels: []fsm.Label{{Key: "zone", Value: "dmz"}}}}
		err := judgedBy(&agentv1.ApplyWorkloadRequest{Spec: tt.spec}, g.view(), w, n)
		if refused := err != nil && strings.Contains(err.Error(), "image_keys: node n"); refused != tt.refused || err != nil && !refused {
			t.Errorf("case %s: the order returned %v; it must be refused: %t", tt.name, err, tt.refused)
		}
	}
}

// TestDefaultsOfAPolicy: a workload without resources gets the default resources of the policy that applies to it,
// both in what is reserved for it and in its specification. A workload that sets resources keeps them.
func TestDefaultsOfAPolicy(t *testing.T) {
	g, as := spaces(t, withStacks(stack.Options{}))
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	const maxima, own = "max_cpu_millicores: 1000\nmax_memory_mib: 512\n", "kinds: ['*']\nimages: ['*']\nusers: ['*']\ndefault_cpu_millicores: 250\ndefault_memory_mib: 128\n"
	set := func(document string) {
		ok(t, second(admin.PutPolicy(ctxFor(t), &clusterv1.PutPolicyRequest{Name: "own", Document: document})))
	}
	set(own + maxima)
	container := func(r *controlv1.ResourceRequirements) *controlv1.ApplyWorkloadRequest {
		s := webIn("w", "a")
		s.Spec.Resources = r
		return s
	}
	stackOf := func(text string) *controlv1.ApplyWorkloadRequest {
		s := composeRequest("w", "services:\n  a:\n    image: x\n"+text)
		s.Spec.Namespace = "a"
		return s
	}
	plan := func(name string, req *controlv1.ApplyWorkloadRequest) string {
		r, err := clusterv1.NewClusterClient(as(0, "user/ada")).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{req}, Policy: name})
		ok(t, err)
		return r.GetWorkloads()[0].GetReason()
	}
	if why := plan("own", container(nil)); strings.Contains(why, "own") {
		t.Errorf("the plan with policy \"own\" must be accepted, but was refused: %s", why)
	}
	ok(t, second(admin.BindPolicy(ctxFor(t), &clusterv1.BindPolicyRequest{Policy: "own", Namespace: "a"})))
	for _, tt := range []struct {
		name        string
		req         *controlv1.ApplyWorkloadRequest
		cpu, memory int64
	}{
		{"a container without CPU and memory", container(nil), 250, 128},
		{"a container with CPU only", container(&controlv1.ResourceRequirements{CpuMillicores: 500}), 500, 128},
		{"a container with CPU and memory", container(&controlv1.ResourceRequirements{CpuMillicores: 500, MemoryMb: 64}), 500, 64},
		{"a stack", stackOf(""), 250, 128},
		{"a stack with limits", stackOf("    cpus: 0.1\n    mem_limit: 32m\n"), 100, 32},
	} {
		if tt.name == "a stack" {
			set(own) // maxima would refuse it, because the defaults give no limits to its services
		}
		for i, who := range []string{"user/ada", "user/admin"} {
			tt.req.WorkloadId = strings.ReplaceAll(tt.name, " ", "-") + string(rune('0'+i))
			r, err := controlv1.NewAgentControlClient(as(0, who)).ApplyWorkload(ctxFor(t), tt.req)
			ok(t, inBand(r, err))
			w, _ := g.view().Workload(tt.req.WorkloadId)
			is(t, tt.name+": cpu", w.Demand.CPU, tt.cpu)
			is(t, tt.name+": memory", w.Demand.Memory, tt.memory)
		}
	}
	// A later apply of the group may leave out the namespace. Then the policy of the namespace in which the group
	// already is must apply.
	for _, namespace := range []string{"a", ""} {
		group := webIn("grown", namespace)
		group.Spec.Resources, group.Spec.Autoscale = nil, &controlv1.Autoscale{Min: 2, Max: 4, Cpu: 70}
		r, err := controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), group)
		ok(t, inBand(r, err))
		is(t, "millicores of a member of a group with an autoscaler", mustGet(t, g, "grown-0").Demand.CPU, 250)
	}
	r, err := controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), webIn("free", ""))
	ok(t, inBand(r, err))
	w, _ := g.view().Workload("free")
	is(t, "millicores of a workload in a namespace without a policy", w.Demand.CPU, webIn("x", "").GetSpec().GetResources().GetCpuMillicores())
	const bare = "a-container-without-CPU-and-memory0"
	plain, err := spec.Unseal(bare, mustGet(t, g, bare).Spec, nil)
	ok(t, err)
	is(t, "memory in MiB in the specification of the workload with default resources", plain.GetResources().GetMemoryMb(), int64(128))
}

func mustGet(t *testing.T, g *group, id string) *fsm.Workload {
	t.Helper()
	w, found := g.view().Workload(id)
	if !found {
		t.Fatalf("there must be a workload %s, but there is none", id)
	}
	return w
}
