package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// webIn returns a request that applies a container in a namespace.
func webIn(id, namespace string) *controlv1.ApplyWorkloadRequest {
	r := web(id)
	r.Spec.Namespace = namespace
	return r
}

// spaces returns a group of replicas with TLS and two namespaces: a, whose user is ada, and b.
func spaces(t *testing.T, tune ...func(int, *Config)) (*group, func(i int, who string) *grpc.ClientConn) {
	t.Helper()
	g, as := tlsGroup(t, tune...)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	for name, users := range map[string][]string{"a": {"ada"}, "b": {"bob"}} {
		ok(t, second(admin.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: name, Users: users})))
	}
	return g, as
}

// rights lists the calls on one workload, ordered so that the workload still exists at each call.
var rights = []struct {
	name string
	do   func(ctx context.Context, c *grpc.ClientConn, id, namespace string) error
}{
	{"get", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return second(controlv1.NewAgentControlClient(c).GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id}))
	}},
	{"list of the namespace", func(ctx context.Context, c *grpc.ClientConn, _, ns string) error {
		return second(controlv1.NewAgentControlClient(c).ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Namespace: ns}))
	}},
	{"why", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return second(clusterv1.NewClusterClient(c).Why(ctx, &clusterv1.WhyRequest{WorkloadId: id}))
	}},
	{"logs", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		s, err := clusterv1.NewClusterClient(c).Logs(ctx, &clusterv1.LogsRequest{WorkloadId: id})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}},
	{"exec", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		s, err := clusterv1.NewClusterClient(c).Exec(ctx)
		if err == nil {
			_ = s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: id, Command: []string{"sh"}}}})
			_, err = s.Recv()
		}
		return err
	}},
	{"actions", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return second(clusterv1.NewClusterClient(c).ListActions(ctx, &clusterv1.ListActionsRequest{WorkloadId: id}))
	}},
	{"plan", func(ctx context.Context, c *grpc.ClientConn, id, ns string) error {
		return second(clusterv1.NewClusterClient(c).PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn(id, ns)}}))
	}},
	{"apply", func(ctx context.Context, c *grpc.ClientConn, id, ns string) error {
		return inBand(controlv1.NewAgentControlClient(c).ApplyWorkload(ctx, webIn(id, ns)))
	}},
	{"apply that names no namespace", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return inBand(controlv1.NewAgentControlClient(c).ApplyWorkload(ctx, web(id)))
	}},
	{"apply of a new one", func(ctx context.Context, c *grpc.ClientConn, id, ns string) error {
		return inBand(controlv1.NewAgentControlClient(c).ApplyWorkload(ctx, webIn(id+"-new", ns)))
	}},
	{"apply among many", func(ctx context.Context, c *grpc.ClientConn, id, ns string) error {
		r, err := clusterv1.NewClusterClient(c).ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn(id, ns)}})
		if err != nil {
			return err
		}
		return inBand(r.GetResults()[0], nil)
	}},
	{"stop", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return inBand(controlv1.NewAgentControlClient(c).ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "stopped"}))
	}},
	{"start", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return inBand(controlv1.NewAgentControlClient(c).ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id}))
	}},
	{"retry", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return second(controlv1.NewAgentControlClient(c).RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: id}))
	}},
	{"delete", func(ctx context.Context, c *grpc.ClientConn, id, _ string) error {
		return second(controlv1.NewAgentControlClient(c).DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id}))
	}},
	{"show the namespace", func(ctx context.Context, c *grpc.ClientConn, _, ns string) error {
		return second(clusterv1.NewClusterClient(c).ListNamespaces(ctx, &clusterv1.ListNamespacesRequest{Name: ns}))
	}},
	{"set the namespace", func(ctx context.Context, c *grpc.ClientConn, _, ns string) error {
		users := map[string][]string{"a": {"ada"}, "b": {"bob"}}[ns]
		return second(clusterv1.NewClusterClient(c).PutNamespace(ctx, &clusterv1.PutNamespaceRequest{Name: ns, Users: users}))
	}},
	{"cordon a node", func(ctx context.Context, c *grpc.ClientConn, _, _ string) error {
		return second(clusterv1.NewClusterClient(c).CordonNode(ctx, &clusterv1.CordonNodeRequest{NodeId: "none"}))
	}},
	{"list volumes", func(ctx context.Context, c *grpc.ClientConn, _, ns string) error {
		return second(clusterv1.NewClusterClient(c).ListVolumes(ctx, &clusterv1.ListVolumesRequest{Namespace: ns}))
	}},
	{"create a volume", func(ctx context.Context, c *grpc.ClientConn, _, ns string) error {
		return second(clusterv1.NewClusterClient(c).CreateVolume(ctx, &clusterv1.CreateVolumeRequest{Name: "-", Namespace: ns}))
	}},
}

// inBand returns an error if the response to an apply contains a refusal. Otherwise it returns err, the error of the
// call.
func inBand(r *controlv1.ApplyWorkloadResponse, err error) error {
	if err == nil && !r.GetSuccess() {
		return errors.New(r.GetErrorMessage())
	}
	return err
}

// TestNamespaceRights compares the rights of each user on the workloads of each namespace with a golden file.
// The calls are made to a follower. In the golden file, Unknown means that the call succeeded but its response contains
// a refusal.
func TestNamespaceRights(t *testing.T) {
	g, as := spaces(t)
	columns := []struct {
		name, cert string
		md         []string
	}{
		{"admin", "user/admin", nil},
		{"operator of a", "user/ada", nil},
		{"narrowed to b", "user/ada", []string{dial.KeyNamespaces, "b"}},
		{"gateway", "gateway/g", nil},
		{"gateway for ada", "gateway/g", []string{dial.KeyOnBehalf, "persys://c1/user/ada"}},
		{"gateway, only a", "gateway/g", []string{dial.KeyNamespaces, "a"}},
	}
	var b strings.Builder
	for _, ns := range []string{"a", "b", fsm.DefaultNamespace} {
		fmt.Fprintf(&b, "%-36s", "in "+ns)
		for _, c := range columns {
			fmt.Fprintf(&b, " %-18s", c.name)
		}
		b.WriteByte('\n')
		for i, c := range columns {
			r, err := controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), webIn(fmt.Sprintf("%s-%d", ns, i), ns))
			ok(t, inBand(r, err))
			_ = c
		}
		for _, call := range rights {
			fmt.Fprintf(&b, "  %-34s", call.name)
			for i, c := range columns {
				ctx := metadata.AppendToOutgoingContext(ctxFor(t), c.md...)
				err := call.do(ctx, as(1, c.cert), fmt.Sprintf("%s-%d", ns, i), ns)
				fmt.Fprintf(&b, " %-18s", status.Code(err))
			}
			b.WriteByte('\n')
		}
	}
	golden(t, "namespaces", "rights", b.String())
	var refused, sessions bool
	g.view().EventsBack(func(e *fsm.Event) bool {
		by, _, _ := strings.Cut(e.By, "?")
		mine := by == "persys://c1/user/ada" && slices.Contains(e.Details, fsm.Label{Key: "from", Value: "127.0.0.1"})
		refused = refused || mine && e.Type == fsm.EventMutation && e.Reason == "denied" && strings.Contains(e.Message, `namespace "b"`)
		sessions = sessions || mine && e.Type == fsm.EventCallRefused && strings.Contains(e.Message, `namespace "b"`)
		return true
	})
	is(t, "the refusal of a change is recorded with the caller, the address and the reason", refused, true)
	is(t, "the refusal of a session is recorded", sessions, true)
}

func TestNamespacesAreSeen(t *testing.T) {
	g, as := spaces(t)
	admin, ada := as(0, "user/admin"), as(1, "user/ada")
	for id, ns := range map[string]string{"mine": "a", "theirs": "b", "old": ""} {
		r, err := controlv1.NewAgentControlClient(admin).ApplyWorkload(ctxFor(t), webIn(id, ns))
		ok(t, inBand(r, err))
	}
	list := func(c *grpc.ClientConn, ns string) string {
		r, err := controlv1.NewAgentControlClient(c).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Namespace: ns})
		ok(t, err)
		var out []string
		for _, w := range r.GetWorkloads() {
			out = append(out, w.GetNamespace()+"/"+w.GetWorkloadId())
		}
		return strings.Join(out, " ")
	}
	is(t, "workloads that an admin sees", list(admin, ""), "a/mine default/old b/theirs")
	is(t, "workloads that an admin sees in namespace default", list(admin, "default"), "default/old")
	is(t, "workloads that user ada of namespace a sees", list(ada, ""), "a/mine")
	t.Run("events", func(t *testing.T) {
		s, err := clusterv1.NewClusterClient(ada).Events(ctxFor(t), &clusterv1.EventsRequest{})
		ok(t, err)
		var seen []string
		for {
			e, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			ok(t, err)
			seen = append(seen, e.GetType()+" "+e.GetNamespace()+"/"+e.GetWorkloadId())
		}
		is(t, "events that user ada of namespace a sees", strings.Join(seen, ", "), "NamespaceCreated a/, WorkloadCreated a/mine")
	})
	t.Run("a watch", func(t *testing.T) {
		s, err := clusterv1.NewClusterClient(ada).WatchWorkloads(ctxFor(t), &clusterv1.WatchWorkloadsRequest{})
		ok(t, err)
		m, err := s.Recv()
		ok(t, err)
		is(t, "first workload on the watch of user ada", m.GetWorkload().GetWorkloadId(), "mine")
		m, err = s.Recv()
		ok(t, err)
		is(t, "whether the second message says that the list is complete", m.GetSynced(), true)
		for _, id := range []string{"theirs", "mine"} {
			ok(t, second(controlv1.NewAgentControlClient(admin).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: id})))
		}
		m, err = s.Recv()
		ok(t, err)
		is(t, "workload of the next change that user ada sees", m.GetWorkload().GetWorkloadId(), "mine")
	})
	t.Run("namespaces with what they use", func(t *testing.T) {
		r, err := clusterv1.NewClusterClient(ada).ListNamespaces(ctxFor(t), &clusterv1.ListNamespacesRequest{})
		ok(t, err)
		is(t, "number of namespaces that user ada sees", len(r.GetNamespaces()), 1)
		r, err = clusterv1.NewClusterClient(admin).ListNamespaces(ctxFor(t), &clusterv1.ListNamespacesRequest{})
		ok(t, err)
		is(t, "number of namespaces that an admin sees", len(r.GetNamespaces()), 3)
		is(t, "millicores that namespace default uses", r.GetNamespaces()[2].GetUsed().GetCpuMillicores(), 100)
	})
	t.Run("only a gateway may call on behalf of users", func(t *testing.T) {
		for _, who := range []string{"user/ada", "user/admin", "agent/a"} {
			_, err := controlv1.NewAgentControlClient(as(0, who)).ListNodes(with(t, dial.KeyOnBehalf, "persys://c1/user/admin"), &controlv1.ListNodesRequest{})
			code(t, err, codes.PermissionDenied)
		}
		_, err := controlv1.NewAgentControlClient(as(0, "gateway/g")).ListNodes(with(t, dial.KeyOnBehalf, "persys://c1/gateway/g"), &controlv1.ListNodesRequest{})
		code(t, err, codes.InvalidArgument)
	})
	t.Run("a gateway's user gets no more rights than the gateway has", func(t *testing.T) {
		viewer(g, "vera")
		_, err := controlv1.NewAgentControlClient(as(0, "gateway/g")).ApplyWorkload(with(t, dial.KeyOnBehalf, "persys://c1/user/vera"), web("w"))
		code(t, err, codes.PermissionDenied)
		for user, want := range map[string]codes.Code{"ada": codes.PermissionDenied, "vera": codes.PermissionDenied, "admin": codes.OK} {
			for i := range g.replicas {
				_, err := clusterv1.NewClusterClient(as(i, "gateway/g")).SetMode(with(t, dial.KeyOnBehalf, "persys://c1/user/"+user), &clusterv1.SetModeRequest{Mode: "normal", Reason: "x"})
				code(t, err, want)
			}
		}
	})
	t.Run("a user of another cluster is refused through a gateway", func(t *testing.T) {
		_, err := controlv1.NewAgentControlClient(as(0, "gateway/g")).ListNodes(with(t, dial.KeyOnBehalf, "persys://c2/user/admin"), &controlv1.ListNodesRequest{})
		code(t, err, codes.PermissionDenied)
	})
}

// TestQuotaInBand: an apply exceeds the quota of its namespace. The response, which is not a gRPC error, must contain
// the quota and what is used of it, and a plan must predict the refusal.
func TestQuotaInBand(t *testing.T) {
	g := newGroup(t, 1)
	limited := &clusterv1.PutNamespaceRequest{Name: "a", Quota: &clusterv1.NamespaceAmounts{CpuMillicores: 250}}
	r, err := g.control(0).ApplyWorkload(ctxFor(t), webIn("x", "default"))
	ok(t, inBand(r, err))
	p, err := g.cluster(0).PutNamespace(ctxFor(t), limited)
	ok(t, err)
	is(t, "quota", p.GetNamespace().GetQuota().GetCpuMillicores(), 250)
	three := webIn("w", "a")
	three.Spec.Count = new(int32(3))
	const why = `over the quota of namespace "a": cpu_millicores: 0 used, 300 more asked for, limit 250; delete workloads or volumes, or ask an admin for a larger quota: persysctl namespace set a`
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{three}})
	ok(t, err)
	is(t, "the plan", plan.GetWorkloads()[0].GetAction()+": "+plan.GetWorkloads()[0].GetReason(), "refused: "+why)
	r, err = g.control(0).ApplyWorkload(ctxFor(t), three)
	ok(t, err)
	is(t, "success", r.GetSuccess(), false)
	is(t, "reason", r.GetFailureReason(), controlv1.FailureReason_INSUFFICIENT_RESOURCES)
	is(t, "message", r.GetErrorMessage(), why)
	three.Spec.Count = new(int32(2))
	r, err = g.control(0).ApplyWorkload(ctxFor(t), three)
	ok(t, inBand(r, err))
	n, err := g.cluster(0).ListNamespaces(ctxFor(t), &clusterv1.ListNamespacesRequest{Name: "a"})
	ok(t, err)
	is(t, "used", n.GetNamespaces()[0].GetUsed().GetCpuMillicores(), 200)
	w, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: "w-0"})
	ok(t, err)
	is(t, "namespace of the workload and of its specification", w.GetWorkload().GetNamespace()+" "+w.GetWorkload().GetSpec().GetNamespace(), "a a")
	_, err = g.cluster(0).DeleteNamespace(ctxFor(t), &clusterv1.DeleteNamespaceRequest{Name: "a"})
	code(t, err, codes.FailedPrecondition)
}

// TestNodePoolOfANamespace: the node_labels of a namespace are stored as given, and the answer contains the number of
// nodes with all of these labels. A plan must place the workloads of the namespace only on these nodes.
func TestNodePoolOfANamespace(t *testing.T) {
	g := newGroup(t, 1)
	_, err := g.cluster(0).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{NodeId: "b", Labels: map[string]string{"pool": "shop"}})
	ok(t, err)
	for _, x := range []struct {
		labels map[string]string
		match  uint32
		node   string
	}{
		{map[string]string{"pool": "shop"}, 1, "b"},
		{map[string]string{"pool": "shop", "zone": "x"}, 0, ""},
		{map[string]string{"node.id": "a"}, 1, "a"},
	} {
		p, err := g.cluster(0).PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "shop", NodeLabels: x.labels})
		ok(t, err)
		is(t, "node labels", fmt.Sprint(p.GetNamespace().GetNodeLabels()), fmt.Sprint(x.labels))
		is(t, "matching nodes", p.GetNamespace().GetMatchingNodes(), x.match)
		plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn("w", "shop")}})
		ok(t, err)
		is(t, "planned node", plan.GetWorkloads()[0].GetNodeId(), x.node)
		if x.node == "" && !strings.Contains(plan.GetWorkloads()[0].GetReason(), "for namespace shop") {
			t.Errorf("the plan gives the reason %q, want one that names namespace shop", plan.GetWorkloads()[0].GetReason())
		}
	}
	_, err = g.cluster(0).PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "shop", NodeLabels: map[string]string{"-": "x"}})
	code(t, err, codes.InvalidArgument)
}
