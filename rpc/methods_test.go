package rpc

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestPermissions compares the whole policy table with a golden file: for each method the permission that people need,
// its callers, the replica that answers, and whether a call may be repeated. The entry "own" is for an operator with
// rights only in some namespaces: such an operator may make the call, but only about these namespaces
// (TestNamespaceRights tests this).
func TestPermissions(t *testing.T) {
	type column struct {
		name string
		id   pki.Identity
	}
	columns := []column{
		{"anonymous", pki.Anonymous()},
		{"admin", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "admin"}},
		{"user", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "ada"}},
		{"viewer", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "viewer"}},
		{"operator", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "operator"}},
		{"confined", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "confined"}},
		{"agent", pki.Identity{Cluster: "c", Role: pki.RoleAgent, ID: "a"}},
		{"gateway", pki.Identity{Cluster: "c", Role: pki.RoleGateway, ID: "g"}},
		{"scheduler", pki.Identity{Cluster: "c", Role: pki.RoleScheduler, ID: "s"}},
		{"nobody", pki.Identity{}},
		// These users have none of the built-in roles. Each has a role that is bound in the state and has exactly the
		// permissions in the first column.
		{"read,deploy", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "custom"}},
		{"deploy-in-shop", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "custom-in-shop"}},
		{"trust", pki.Identity{Cluster: "c", Role: pki.RoleUser, ID: "keys"}},
	}
	g := newGroup(t, 1)
	for name, access := range map[string]string{"viewer": "viewer", "operator": "operator", "confined": "operator", "custom": "none", "custom-in-shop": "none", "keys": "none"} {
		g.do(&commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
			Role: "user", Name: name, Access: access, KeySha256: make([]byte, 32), Fingerprint: strings.Repeat("0", 64), IssuedAt: 1, NotAfter: 2,
		}}})
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop", Users: []string{"confined"}}}})
	for role, permissions := range map[string][]string{"ci": {"read", "deploy"}, "keys": {"trust"}} {
		g.do(&commandv1.Command{Body: &commandv1.Command_PutRole{PutRole: &commandv1.PutRole{Name: role, Permissions: permissions}}})
	}
	for _, b := range []*commandv1.BindRole{
		{Role: "ci", Kind: "user", Name: "custom", Everywhere: true}, {Role: "ci", Kind: "user", Name: "custom-in-shop", Namespaces: []string{"shop"}},
		{Role: "keys", Kind: "user", Name: "keys", Everywhere: true},
	} {
		if r, ok := g.replicas[0].server.store.View().Role(b.GetRole()); ok {
			b.RoleVersion = r.ModifyIndex
		}
		g.do(&commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: b}})
	}
	s := g.replicas[0].server
	var names []string
	for service, info := range s.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			names = append(names, "/"+service+"/"+m.Name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintf(&b, "%-66s %-7s %-10s %-10s %-11s", "method", "class", "repetition", "permission", "namespaces")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s", c.name)
	}
	b.WriteByte('\n')
	for _, full := range names {
		m, known := methods[full]
		if !known {
			t.Errorf("the policy table has no row for method %s", full)
		}
		fmt.Fprintf(&b, "%-66s %-7s %-10s %-10s %-11s", full, [...]string{"local", "leader", "read"}[m.class],
			[...]string{"repeatable", "idempotent", "receipted", "once"}[m.repetition], m.permission,
			[...]string{"-", "clusterwide", "general", "namespaced"}[m.namespaces])
		for _, c := range columns {
			word := "yes"
			if _, err := s.authorize(caller{id: c.id}, full); err != nil {
				word = "-"
			} else if slices.Contains([]string{"confined", "deploy-in-shop"}, c.name) && m.namespaces == namespaced {
				word = "own"
			}
			fmt.Fprintf(&b, " %-*s", len(c.name), word)
		}
		b.WriteByte('\n')
	}
	golden(t, "permissions", "policy", b.String())
	for full := range methods {
		if !slices.Contains(names, full) && !strings.Contains(full, "reflection") && !strings.Contains(full, "Health/List") {
			t.Errorf("the policy table has a row for method %s, which no service has", full)
		}
	}
}

// TestDialAndPolicyAgreeOnRepeatableCalls: package dial (IsRead, Once) and the policy table agree on which
// methods may be repeated.
func TestDialAndPolicyAgreeOnRepeatableCalls(t *testing.T) {
	for service, info := range newGroup(t, 1).replicas[0].server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + service + "/" + m.Name
			repetition := methods[full].repetition
			is(t, "whether package dial says that "+full+" must be made only once", dial.Once(full), repetition == once)
			if !m.IsClientStream && !m.IsServerStream {
				is(t, "whether package dial says that "+full+" is a read", dial.IsRead(full), repetition == repeatable || full == controlv1.AgentControl_Heartbeat_FullMethodName)
			}
		}
	}
}

func TestErrorsHaveTheirCodes(t *testing.T) {
	is(t, "codes", len(kindCodes), int(KindOtherRequest)+1)
	for k := KindInternal; k <= KindOtherRequest; k++ {
		err := errorf(k, "it is so")
		if got := edge("try", err).(*Error).GRPCStatus(); got.Code() != kindCodes[k] || got.Message() != "try: it is so" {
			t.Errorf("an error of kind %d becomes the status %v, want code %s and the text with the operation", k, got, kindCodes[k])
		}
	}
	around := edge("exec", fmt.Errorf("it was not opened: %w", errorf(KindNoLeader, "nobody leads")))
	is(t, "the text of an error that wraps another one is kept", status.Convert(around).Message(), "exec: it was not opened: nobody leads")
	is(t, "reason of the error that wraps another one", dial.Reason(around), dial.ReasonNoLeader)
	// An unreachable agent must not look like an unreachable replica, because a client would then try
	// every replica.
	is(t, "reason", dial.Reason(edge("logs", agentError("n1", status.Error(codes.Unavailable, "connection refused")))), dial.ReasonNoAgent)
	is(t, "kind of the error after the agent itself refused the call", edgeKind(agentError("n1", status.Error(codes.NotFound, "no such container"))), KindNotFound)
}

// tlsGroup returns a group of two replicas with mutual TLS, and a function that connects to replica i with
// the certificate of an identity.
func tlsGroup(t *testing.T, tune ...func(i int, c *Config)) (*group, func(i int, who string) *grpc.ClientConn) {
	t.Helper()
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{
		Cluster: "c1", Schedulers: []string{"s0", "s1"}, Agents: []string{"a", "b"}, Gateways: []string{"g"}, Users: []string{"admin", "ada", "bob", "oli"},
	})
	ok(t, err)
	files := func(who string) *pki.Files {
		p, found := set.Leaf[who]
		if !found {
			t.Fatalf("there must be a certificate of %s, but there is none", who)
		}
		f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key})
		ok(t, err)
		return f
	}
	g := newGroup(t, 2, append(tune, func(i int, c *Config) { c.TLS = files(fmt.Sprintf("scheduler/s%d", i)) })...)
	return g, func(i int, who string) *grpc.ClientConn {
		tls := files(who).ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}, Role: pki.RoleScheduler})
		c, err := grpc.NewClient(g.replicas[i].addr, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
		ok(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

func TestCallsNameTheirCaller(t *testing.T) {
	g, as := tlsGroup(t)
	apply := func(ctx context.Context, i int, who string) error {
		return second(controlv1.NewAgentControlClient(as(i, who)).ApplyWorkload(ctx, web("w")))
	}
	admin := "persys://c1/user/admin"
	for i, where := range []string{"leader", "follower"} {
		t.Run("the head of a command names the caller, asked at the "+where, func(t *testing.T) {
			ok(t, apply(ctxFor(t), i, "user/admin"))
			if by := g.lastBy(); !strings.HasPrefix(by, admin) {
				t.Errorf("the command names the caller %q, want %s", by, admin)
			}
		})
		t.Run("an agent sends heartbeats only for itself, asked at the "+where, func(t *testing.T) {
			c := controlv1.NewAgentControlClient(as(i, "agent/a"))
			_, err := c.Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
			ok(t, err)
			is(t, "node whose heartbeat the leader's loop got", g.replicas[0].callers[len(g.replicas[0].callers)-1], "a")
			_, err = c.Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "b"})
			code(t, err, codes.PermissionDenied)
			_, err = c.RegisterNode(ctxFor(t), registration("b"))
			code(t, err, codes.PermissionDenied)
		})
		t.Run("an agent may not apply, asked at the "+where, func(t *testing.T) {
			code(t, apply(ctxFor(t), i, "agent/a"), codes.PermissionDenied)
		})
	}
	t.Run("a forwarded identity is accepted from a scheduler", func(t *testing.T) {
		ok(t, apply(with(t, dial.KeyHop, "1", dial.KeyForwardedIdentity, "persys://c1/user/admin?cn=Ada"), 0, "scheduler/s1"))
		if by := g.lastBy(); !strings.Contains(by, "Ada") {
			t.Errorf("the author of the command is %q, want the forwarded identity of Ada", by)
		}
	})
	t.Run("a forwarded identity is judged by its own rights", func(t *testing.T) {
		code(t, apply(with(t, dial.KeyForwardedIdentity, "persys://c1/agent/a"), 0, "scheduler/s1"), codes.PermissionDenied)
	})
	t.Run("a forwarded identity from a caller that is no scheduler is refused", func(t *testing.T) {
		for _, who := range []string{"agent/a", "user/ada", "gateway/g"} {
			code(t, apply(with(t, dial.KeyForwardedIdentity, admin), 0, who), codes.PermissionDenied)
		}
	})
	t.Run("a malformed forwarded identity is refused", func(t *testing.T) {
		code(t, apply(with(t, dial.KeyForwardedIdentity, "root"), 0, "scheduler/s1"), codes.InvalidArgument)
	})
	t.Run("a scheduler may not apply a workload in its own name", func(t *testing.T) {
		code(t, apply(ctxFor(t), 0, "scheduler/s1"), codes.PermissionDenied)
	})
	t.Run("only schedulers may read the cluster key", func(t *testing.T) {
		r, err := clusterv1.NewClusterClient(as(0, "scheduler/s1")).ClusterKey(ctxFor(t), &clusterv1.ClusterKeyRequest{})
		ok(t, err)
		is(t, "whether a scheduler gets the cluster key", r.GetExported() != "", true)
		for _, who := range []string{"user/admin", "gateway/g", "agent/a"} {
			_, err := clusterv1.NewClusterClient(as(0, who)).ClusterKey(ctxFor(t), &clusterv1.ClusterKeyRequest{})
			code(t, err, codes.PermissionDenied)
		}
	})
	t.Run("the rights for each message of a control stream are checked", func(t *testing.T) {
		s, err := controlv1.NewAgentControlClient(as(1, "agent/a")).ControlStream(ctxFor(t))
		ok(t, err)
		ok(t, s.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Apply{Apply: web("w")}}))
		m, err := s.Recv()
		ok(t, err)
		is(t, "apply", codes.Code(m.GetError().GetCode()), codes.PermissionDenied)
		ok(t, s.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: "a"}}}))
		m, err = s.Recv()
		ok(t, err)
		is(t, "heartbeat", m.GetHeartbeatResult().GetAcknowledged(), true)
	})
	t.Run("every caller may use the health service", func(t *testing.T) {
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
			g.replicas[0].server.SetServing(want == healthpb.HealthCheckResponse_SERVING)
			for _, service := range []string{"", "persys.control.v1.AgentControl", "persys.cluster.v1.Cluster"} {
				r, err := healthpb.NewHealthClient(as(0, "agent/b")).Check(ctxFor(t), &healthpb.HealthCheckRequest{Service: service})
				ok(t, err)
				is(t, "status of "+service, r.GetStatus(), want)
			}
		}
	})
	t.Run("reflection shows every service and the messages of the contract", func(t *testing.T) {
		st, err := reflectpb.NewServerReflectionClient(as(1, "user/admin")).ServerReflectionInfo(ctxFor(t))
		ok(t, err)
		ask := func(r *reflectpb.ServerReflectionRequest) *reflectpb.ServerReflectionResponse {
			t.Helper()
			ok(t, st.Send(r))
			m, err := st.Recv()
			ok(t, err)
			return m
		}
		var names []string
		for _, s := range ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		for service := range g.replicas[1].server.GRPC().GetServiceInfo() {
			if !slices.Contains(names, service) {
				t.Errorf("service %s is served, so reflection must list it, but does not", service)
			}
		}
		file := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: controlv1.AgentControl_ServiceDesc.ServiceName,
		}}).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(file) == 0 {
			t.Error("reflection must return the file of AgentControl, but did not")
		}
		ok(t, st.CloseSend())
	})
}

func TestInsecureIgnoresForwardedIdentities(t *testing.T) {
	g := newGroup(t, 1)
	_, err := g.control(0).ApplyWorkload(with(t, dial.KeyForwardedIdentity, "persys://c1/agent/a"), web("w"))
	ok(t, err)
	is(t, "by", g.lastBy(), anonymous)
}

// golden compares a table with the file testdata/<name>.golden, ignoring blanks at the ends of lines.
func golden(t *testing.T, name, what, table string) {
	t.Helper()
	lines := strings.Split(table, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	got := strings.Join(lines, "\n")
	file := "testdata/" + name + ".golden"
	if *update {
		ok(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	ok(t, err)
	if got != string(want) {
		t.Errorf("the %s changed; if this is intended, run: go test ./rpc -run %s -update\n%s", what, t.Name(), got)
	}
}
