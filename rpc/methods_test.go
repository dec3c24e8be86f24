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

// TestPermissions compares the whole policy with a golden file: who may call which method, which
// replica answers, and whether a call may be repeated. "own" means that a confined operator may
// call it for its own namespace, see TestNamespaceRights.
func TestPermissions(t *testing.T) {
	columns := []struct {
		name string
		id   pki.Identity
	}{
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
	}
	g := newGroup(t, 1)
	for name, access := range map[string]string{"viewer": "viewer", "operator": "operator", "confined": "operator"} {
		g.do(&commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
			Role: "user", Name: name, Access: access, KeySha256: make([]byte, 32), Fingerprint: strings.Repeat("0", 64), IssuedAt: 1, NotAfter: 2,
		}}})
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop", Users: []string{"confined"}}}})
	s := g.replicas[0].server
	var names []string
	for service, info := range s.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			names = append(names, "/"+service+"/"+m.Name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintf(&b, "%-66s %-7s %-10s", "method", "class", "repetition")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s", c.name)
	}
	b.WriteByte('\n')
	for _, full := range names {
		m, known := methods[full]
		if !known {
			t.Errorf("no rule for %s", full)
		}
		fmt.Fprintf(&b, "%-66s %-7s %-10s", full, [...]string{"local", "leader", "read"}[m.class], [...]string{"repeatable", "idempotent", "receipted", "once"}[m.repetition])
		for _, c := range columns {
			word := "yes"
			if _, err := s.authorize(caller{id: c.id}, full); err != nil {
				word = "-"
			} else if c.name == "confined" && m.namespaces == namespaced {
				word = "own"
			}
			fmt.Fprintf(&b, " %-*s", len(c.name), word)
		}
		b.WriteByte('\n')
	}
	golden(t, "permissions", "policy", b.String())
	for full := range methods {
		if !slices.Contains(names, full) && !strings.Contains(full, "reflection") && !strings.Contains(full, "Health/List") {
			t.Errorf("a rule for %s, which is not served", full)
		}
	}
}

// TestClientsKnowWhatMayBeMadeAgain compares dial's classification of methods with the policy
// table.
func TestClientsKnowWhatMayBeMadeAgain(t *testing.T) {
	for service, info := range newGroup(t, 1).replicas[0].server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + service + "/" + m.Name
			repetition := methods[full].repetition
			is(t, full+" is to be made once", dial.Once(full), repetition == once)
			if !m.IsClientStream && !m.IsServerStream {
				is(t, full+" is a read", dial.IsRead(full), repetition == repeatable || full == controlv1.AgentControl_Heartbeat_FullMethodName)
			}
		}
	}
}

func TestErrorsHaveTheirCodes(t *testing.T) {
	is(t, "codes", len(kindCodes), int(KindNoAgent)+1)
	for k := KindInternal; k <= KindNoAgent; k++ {
		err := errorf(k, "it is so")
		if got := edge("try", err).(*Error).GRPCStatus(); got.Code() != kindCodes[k] || got.Message() != "try: it is so" {
			t.Errorf("kind %d is %v", k, got)
		}
	}
	around := edge("exec", fmt.Errorf("it was not opened: %w", errorf(KindNoLeader, "nobody leads")))
	is(t, "what was said around an error", status.Convert(around).Message(), "exec: it was not opened: nobody leads")
	is(t, "its reason", dial.Reason(around), dial.ReasonNoLeader)
	// A client must not mistake a dead agent for a dead replica and try every replica.
	is(t, "reason", dial.Reason(edge("logs", agentError("n1", status.Error(codes.Unavailable, "connection refused")))), dial.ReasonNoAgent)
	is(t, "an agent's own refusal", edgeKind(agentError("n1", status.Error(codes.NotFound, "no such container"))), KindNotFound)
}

// tlsGroup returns a group of two replicas with mutual TLS, and a function that dials a replica
// with a given certificate.
func tlsGroup(t *testing.T, tune ...func(i int, c *Config)) (*group, func(i int, who string) *grpc.ClientConn) {
	t.Helper()
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{
		Cluster: "c1", Schedulers: []string{"s0", "s1"}, Agents: []string{"a", "b"}, Gateways: []string{"g"}, Users: []string{"admin", "ada", "bob"},
	})
	ok(t, err)
	files := func(who string) *pki.Files {
		p, found := set.Leaf[who]
		if !found {
			t.Fatalf("no certificate of %s", who)
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

func TestIdentities(t *testing.T) {
	g, as := tlsGroup(t)
	apply := func(ctx context.Context, i int, who string) error {
		return second(controlv1.NewAgentControlClient(as(i, who)).ApplyWorkload(ctx, web("w")))
	}
	admin := "persys://c1/user/admin"
	for i, where := range []string{"leader", "follower"} {
		t.Run("the caller's identity is in the audit line, asked at the "+where, func(t *testing.T) {
			ok(t, apply(ctxFor(t), i, "user/admin"))
			if by := g.lastBy(); !strings.HasPrefix(by, admin) {
				t.Errorf("by %q, want %s", by, admin)
			}
		})
		t.Run("an agent beats for itself only, asked at the "+where, func(t *testing.T) {
			c := controlv1.NewAgentControlClient(as(i, "agent/a"))
			_, err := c.Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
			ok(t, err)
			is(t, "the loop saw the caller", g.replicas[0].callers[len(g.replicas[0].callers)-1], "a")
			_, err = c.Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "b"})
			code(t, err, codes.PermissionDenied)
			_, err = c.RegisterNode(ctxFor(t), registration("b"))
			code(t, err, codes.PermissionDenied)
		})
		t.Run("an agent may not apply, asked at the "+where, func(t *testing.T) {
			code(t, apply(ctxFor(t), i, "agent/a"), codes.PermissionDenied)
		})
	}
	t.Run("a forwarded identity is believed from a scheduler", func(t *testing.T) {
		ok(t, apply(with(t, dial.KeyHop, "1", dial.KeyForwardedIdentity, "persys://c1/user/admin?cn=Ada"), 0, "scheduler/s1"))
		if by := g.lastBy(); !strings.Contains(by, "Ada") {
			t.Errorf("by %q", by)
		}
	})
	t.Run("a forwarded identity is judged by its own rights", func(t *testing.T) {
		code(t, apply(with(t, dial.KeyForwardedIdentity, "persys://c1/agent/a"), 0, "scheduler/s1"), codes.PermissionDenied)
	})
	t.Run("a forwarded identity is refused from anybody else", func(t *testing.T) {
		for _, who := range []string{"agent/a", "user/ada", "gateway/g"} {
			code(t, apply(with(t, dial.KeyForwardedIdentity, admin), 0, who), codes.PermissionDenied)
		}
	})
	t.Run("a forwarded identity that is none is refused", func(t *testing.T) {
		code(t, apply(with(t, dial.KeyForwardedIdentity, "root"), 0, "scheduler/s1"), codes.InvalidArgument)
	})
	t.Run("a scheduler by itself applies nothing", func(t *testing.T) {
		code(t, apply(ctxFor(t), 0, "scheduler/s1"), codes.PermissionDenied)
	})
	t.Run("the cluster key is for schedulers", func(t *testing.T) {
		r, err := clusterv1.NewClusterClient(as(0, "scheduler/s1")).ClusterKey(ctxFor(t), &clusterv1.ClusterKeyRequest{})
		ok(t, err)
		is(t, "a key", r.GetExported() != "", true)
		for _, who := range []string{"user/admin", "gateway/g", "agent/a"} {
			_, err := clusterv1.NewClusterClient(as(0, who)).ClusterKey(ctxFor(t), &clusterv1.ClusterKeyRequest{})
			code(t, err, codes.PermissionDenied)
		}
	})
	t.Run("messages of a stream are judged one by one", func(t *testing.T) {
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
	t.Run("the health service is for everybody", func(t *testing.T) {
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
				t.Errorf("%s is served and not shown", service)
			}
		}
		file := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: controlv1.AgentControl_ServiceDesc.ServiceName,
		}}).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(file) == 0 {
			t.Error("it has no file for AgentControl")
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

// golden compares a table with testdata/name.golden. It ignores blanks at the ends of lines.
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
		t.Errorf("the %s changed; if that is intended: go test ./rpc -run %s -update\n%s", what, t.Name(), got)
	}
}
