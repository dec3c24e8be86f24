package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// forger signs any certificate with the key of a development CA.
type forger struct {
	t    *testing.T
	ca   tls.Certificate
	pool *x509.CertPool
}

func newForger(t *testing.T, dir string) *forger {
	t.Helper()
	f := &forger{t: t, pool: x509.NewCertPool()}
	f.ca = got[tls.Certificate](t)(tls.LoadX509KeyPair(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")))
	f.pool.AddCert(f.ca.Leaf)
	return f
}

// cert returns a certificate for the identity who (<cluster>/<role>/<id>), signed by the CA. It is valid from
// the time from until the time until, both relative to now.
func (f *forger) cert(who string, from, until time.Duration) tls.Certificate {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(f.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "forged"},
		URIs: []*url.URL{got[*url.URL](f.t)(url.Parse("persys://" + who))}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, f.ca.Leaf, key.Public(), f.ca.PrivateKey)
	must(f.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// files writes a certificate, its key and the CA to files, and returns the paths for the settings of a
// program.
func (f *forger) files(c tls.Certificate) pki.Paths {
	f.t.Helper()
	dir := f.t.TempDir()
	p := pki.Paths{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(f.t, err)
	for path, block := range map[string]*pem.Block{
		p.CA: {Type: "CERTIFICATE", Bytes: f.ca.Leaf.Raw}, p.Cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, p.Key: {Type: "PRIVATE KEY", Bytes: der},
	} {
		must(f.t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return p
}

const day = 24 * time.Hour

// TestHostilePeers: the ports of the real programs refuse callers without the right certificate,
// and persysctl does not trust a server with a wrong certificate.
func TestHostilePeers(t *testing.T) {
	c := got[*harness.Cluster](t)(harness.Prepare(harness.Options{Binaries: raced(t), TLS: true, Schedulers: 1,
		SchedulerEnv: fast(map[string]string{"SCHEDULER_LIMIT_CONNECTIONS_PER_HOST": "64"})}))
	watchCluster(t, c)
	up(t, c)
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := filepath.Join(c.Dir, "certs")
	ours := newForger(t, dir)
	elsewhere := filepath.Join(t.TempDir(), "other")
	_, err := pki.DevCerts(elsewhere, pki.DevOptions{Cluster: "e2e", Users: []string{"x"}})
	must(t, err)
	theirs := newForger(t, elsewhere)
	const scheduler = "e2e/scheduler/scheduler-1"

	// call makes one gRPC call to the program at addr, with the given transport credentials, and returns its
	// error.
	call := func(addr string, full string, req, resp proto.Message, creds credentials.TransportCredentials) error {
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
		must(t, err)
		defer cc.Close()
		cctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return cc.Invoke(cctx, full, req, resp)
	}
	ports := map[string]func(*tls.Config) error{
		"the API": func(cfg *tls.Config) error {
			return call(c.Schedulers[0].GRPC, clusterv1.Cluster_Status_FullMethodName, &clusterv1.StatusRequest{}, &clusterv1.StatusResponse{}, secured(cfg))
		},
		"an agent": func(cfg *tls.Config) error {
			return call(agent.Addr, agentv1.AgentService_ListWorkloads_FullMethodName, &agentv1.ListWorkloadsRequest{}, &agentv1.ListWorkloadsResponse{}, secured(cfg))
		},
		"Raft": func(cfg *tls.Config) error { return greet(ctx, c.Schedulers[0].Raft, cfg) },
	}
	as := func(cert tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	}
	old := as(ours.cert(scheduler, -time.Hour, day))
	old.MaxVersion = tls.VersionTLS12
	everywhere := []string{"the API", "an agent", "Raft"}
	for _, tc := range []struct {
		name    string
		cfg     *tls.Config
		refused []string
	}{
		{"a good certificate", as(ours.cert(scheduler, -time.Hour, day)), nil},
		{"a certificate of another CA", as(theirs.cert(scheduler, -time.Hour, day)), everywhere},
		{"an expired certificate", as(ours.cert(scheduler, -2*day, -time.Minute)), everywhere},
		{"a certificate that is not valid yet", as(ours.cert(scheduler, time.Minute, day)), everywhere},
		{"a scheduler of another cluster", as(ours.cert("other/scheduler/scheduler-1", -time.Hour, day)), everywhere},
		{"a certificate with two identities", as(ours.cert("e2e/root/x", -time.Hour, day)), everywhere},
		{"a certificate of an agent", as(ours.cert("e2e/agent/node-b", -time.Hour, day)), []string{"an agent", "Raft"}},
		{"a certificate of a user", as(ours.cert("e2e/user/somebody", -time.Hour, day)), []string{"an agent", "Raft"}},
		{"a certificate of a gateway", as(ours.cert("e2e/gateway/gateway", -time.Hour, day)), []string{"Raft"}},
		{"no certificate", &tls.Config{InsecureSkipVerify: true}, everywhere},
		{"a good certificate over TLS 1.2", old, everywhere},
		{"plain text", nil, everywhere},
	} {
		for port, try := range ports {
			t.Run(tc.name+" at "+port, func(t *testing.T) {
				err := try(tc.cfg)
				if want := slices.Contains(tc.refused, port); (err != nil) != want {
					t.Errorf("the call returned %v, want a refusal: %v", err, want)
				}
			})
		}
	}

	for _, tc := range []struct {
		name, says string
		cfg        *tls.Config
	}{
		{"a certificate of another CA", "certificate", as(theirs.cert(scheduler, -time.Hour, day))},
		{"an expired certificate", "expired", as(ours.cert(scheduler, -2*day, -time.Minute))},
		{"a certificate that is not valid yet", "not yet valid", as(ours.cert(scheduler, time.Minute, day))},
		{"a certificate of an agent", "want role scheduler", as(ours.cert("e2e/agent/node-b", -time.Hour, day))},
		{"over TLS 1.2", "TLS 1.3", old},
		{"no certificate", "", nil},
	} {
		t.Run("persysctl does not trust a certificate "+tc.name, func(t *testing.T) {
			addr, heard := impostor(t, tc.cfg)
			var out strings.Builder
			code := got[int](t)(c.RunCtl(ctx, c.CtlEnv(addr), &out, &out, "--rpc-timeout-seconds", "2", "list"))
			if code == 0 || !strings.Contains(out.String(), tc.says) {
				t.Errorf("persysctl trusted an impostor, or gave another reason: it ended with code %d, want an error with %q: %s", code, tc.says, out.String())
			}
			if n := heard(); n > 0 {
				t.Errorf("the impostor received %d calls of persysctl, want none", n)
			}
		})
	}
	t.Run("an agent cannot register under another node's certificate", func(t *testing.T) {
		a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Simulate: true, NodeID: "node-c"}))
		p := ours.files(ours.cert("e2e/agent/node-b", -time.Hour, day))
		set(a.Process, map[string]string{"PERSYS_TLS_CA": p.CA, "PERSYS_TLS_CERT": p.Cert, "PERSYS_TLS_KEY": p.Key})
		must(t, a.Start())
		must(t, testbed.Poll(ctx, settle, "the refusal in the agent's log", func(context.Context) error { return saysOneOf(a.Process, "may not act as node") }))
		must(t, a.Kill())
	})
	t.Run("an agent's certificate allows only calls for its own node", func(t *testing.T) { compromised(t, c, agent) })
	t.Run("a flood of silent connections affects only the host that opens them", func(t *testing.T) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		var flood []net.Conn
		defer func() {
			for _, conn := range flood {
				_ = conn.Close()
			}
		}()
		for i := range 400 {
			conn, err := d.DialContext(ctx, "tcp", c.Schedulers[0].GRPC)
			must(t, err)
			flood = append(flood, conn)
			if i%2 == 0 { // send the beginning of a TLS ClientHello
				_, _ = conn.Write([]byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01}) // the error is ignored, because the server may have closed the connection already
			}
		}
		st, err := c.Status(ctx, 0)
		must(t, err)
		if st.GetNodesReady() != 1 {
			t.Errorf("%d nodes are Ready, want all", st.GetNodesReady())
		}
		apply(t, c, "flooded", contentSpec("x"))
		must(t, testbed.Poll(ctx, settle, "the flood to be counted", func(ctx context.Context) error {
			text, err := harness.Metrics(ctx, c.Schedulers[0].HTTP)
			if err == nil && !strings.Contains(text, `persys_scheduler_refused_by_limit_total{reason="host"} 336`) {
				err = errors.New("the scheduler has not counted 336 refused connections: 400 opened, 64 allowed")
			}
			return err
		}))
		// Wait until the server has closed the 64 connections that it had accepted, because their TLS handshake
		// does not end.
		must(t, testbed.Poll(ctx, settle, "the end of the slow handshakes", func(ctx context.Context) error {
			for i, conn := range flood[:64] {
				_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
				if _, err := conn.Read(make([]byte, 64)); errors.Is(err, os.ErrDeadlineExceeded) {
					return fmt.Errorf("connection %d without a handshake is still open", i)
				}
			}
			return nil
		}))
	})
	t.Run("a request whose headers arrive too slowly is closed", func(t *testing.T) {
		for _, addr := range []string{c.Schedulers[0].HTTP, agent.HTTP} {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", addr)
			must(t, err)
			defer conn.Close()
			began := time.Now()
			_, err = conn.Write([]byte("GET /health HTTP/1.1\r\nHost: x\r\n"))
			for err == nil && time.Since(began) < settle {
				time.Sleep(100 * time.Millisecond)
				_, err = conn.Write([]byte("X-Slow: 1\r\n"))
			}
			if err == nil {
				t.Errorf("the server at %s still reads a request that has been incomplete for %s", addr, settle)
			}
		}
	})
	t.Run("everything still works", func(t *testing.T) {
		apply(t, c, "after", contentSpec("x"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "after", settle, running))
	})
}

// secured returns transport credentials; nil means plaintext.
func secured(cfg *tls.Config) credentials.TransportCredentials {
	if cfg == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(cfg.Clone())
}

// greet does a TLS handshake with the Raft port and waits for the port's reaction to a silent peer. The
// port waits for an authorized peer and closes the connection of any other.
func greet(ctx context.Context, addr string, cfg *tls.Config) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if cfg == nil {
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	} else {
		secure := tls.Client(conn, cfg)
		conn, err = secure, secure.HandshakeContext(ctx)
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	var waited net.Error
	if errors.As(err, &waited) && waited.Timeout() {
		return nil
	}
	return err
}

// impostor serves gRPC on a new port with a certificate that clients must not trust. The function heard
// returns the number of calls that it received.
func impostor(t *testing.T, cfg *tls.Config) (addr string, heard func() int) {
	t.Helper()
	calls := make(chan string, 100)
	opts := []grpc.ServerOption{grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(s)
		calls <- name
		return status.Error(codes.Unavailable, "a lie")
	})}
	if cfg != nil {
		cfg = cfg.Clone()
		cfg.NextProtos = []string{"h2"}
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg)))
	}
	s := grpc.NewServer(opts...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		// Serve returns this error also when the server is stopped before Serve has begun.
		if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) {
			must(t, err)
		}
	})
	return l.Addr().String(), func() int { return len(calls) }
}

// compromised makes every call that the reflection service of the real programs lists, with the certificate
// of another agent. The schedulers must refuse the calls that agents may not make, and all calls that name
// the node of the agent victim.
func compromised(t *testing.T, c *harness.Cluster, victim *harness.Agent) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	allowed := allowedTo(t, "agent")
	methods := 0
	for _, target := range []struct{ addr, ids string }{{c.Schedulers[0].GRPC, "node-b"}, {victim.Addr, victim.NodeID}} {
		files := got[*pki.Files](t)(c.Files("agent/node-b"))
		cc, err := grpc.NewClient("passthrough:///"+target.addr, grpc.WithNoProxy(),
			grpc.WithTransportCredentials(credentials.NewTLS(files.ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}}))))
		must(t, err)
		defer cc.Close()
		for _, m := range served(t, ctx, cc) {
			full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
			methods++
			may := allowed[full] || m.Parent().FullName() == "grpc.health.v1.Health" || full == agentv1.AgentService_HealthCheck_FullMethodName ||
				strings.HasPrefix(full, "/grpc.reflection.")
			// Send an empty request, then a request that names another node.
			for _, node := range []string{"", victim.NodeID} {
				req := dynamicpb.NewMessage(m.Input())
				foreign := named(req, node)
				err := invoke(ctx, cc, full, m, req)
				switch denied := status.Code(err) == codes.PermissionDenied; {
				case !may && !denied:
					t.Errorf("method %s for node %q: %v, want PermissionDenied", full, node, err)
				case may && node == "" && denied:
					t.Errorf("an agent may call %s: %v", full, err)
				case may && foreign && !denied && full != controlv1.AgentControl_GetNode_FullMethodName:
					t.Errorf("method %s as node %s: %v, want PermissionDenied", full, node, err)
				}
			}
		}
	}
	if methods < 60 {
		t.Errorf("only %d methods were found", methods)
	}
	// Open a control stream and send several messages. The schedulers must check each of them, not only the
	// first one.
	cc := got[*grpc.ClientConn](t)(c.Dial(c.Schedulers[0].GRPC, "agent/node-b"))
	defer cc.Close()
	control := controlv1.NewAgentControlClient(cc)
	stream, err := control.ControlStream(ctx)
	must(t, err)
	for _, m := range []*controlv1.ControlMessage{
		{Message: &controlv1.ControlMessage_Register{Register: &controlv1.RegisterNodeRequest{NodeId: victim.NodeID}}},
		{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: victim.NodeID}}},
		{Message: &controlv1.ControlMessage_Apply{Apply: &controlv1.ApplyWorkloadRequest{WorkloadId: "x"}}},
		{Message: &controlv1.ControlMessage_Delete{Delete: &controlv1.DeleteWorkloadRequest{WorkloadId: "x"}}},
	} {
		must(t, stream.Send(m))
		r, err := stream.Recv()
		must(t, err)
		if codes.Code(r.GetError().GetCode()) != codes.PermissionDenied {
			t.Errorf("%T: %v, want PermissionDenied", m.GetMessage(), r)
		}
	}
	must(t, stream.CloseSend())
}

// allowedTo returns the methods that a role may call, according to the golden file of the permission table.
func allowedTo(t *testing.T, role string) map[string]bool {
	t.Helper()
	root := got[string](t)(testbed.Root(t.Context()))
	text, err := os.ReadFile(filepath.Join(root, "rpc", "testdata", "permissions.golden"))
	must(t, err)
	out, column := map[string]bool{}, -1
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if column < 0 {
			column = slices.Index(words, role)
			continue
		}
		if len(words) > column && words[column] == "yes" {
			out[words[0]] = true
		}
	}
	if len(out) < 3 {
		t.Fatalf("the golden file allows %s: %v", role, out)
	}
	return out
}

// served lists the methods that a program serves.
func served(t *testing.T, ctx context.Context, cc *grpc.ClientConn) []protoreflect.MethodDescriptor {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	must(t, err)
	must(t, stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	resp, err := stream.Recv()
	must(t, err)
	must(t, stream.CloseSend())
	var out []protoreflect.MethodDescriptor
	for _, s := range resp.GetListServicesResponse().GetService() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(s.GetName()))
		if err != nil {
			t.Fatalf("%s: %v", s.GetName(), err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			out = append(out, methods.Get(i))
		}
	}
	return out
}

// named sets all fields of a request that contain the id of a node to the id node, and reports whether the
// request has such fields.
func named(req *dynamicpb.Message, node string) bool {
	found := false
	for _, name := range []protoreflect.Name{"node_id", "node"} {
		f := req.Descriptor().Fields().ByName(name)
		if f != nil && f.Kind() == protoreflect.StringKind && f.Cardinality() != protoreflect.Repeated {
			found = true
			if node != "" {
				req.Set(f, protoreflect.ValueOfString(node))
			}
		}
	}
	return found && node != ""
}

// invoke makes one call of any kind (unary or stream) and returns the error that it gets instead of the first
// answer, or nil.
func invoke(ctx context.Context, cc *grpc.ClientConn, full string, m protoreflect.MethodDescriptor, req proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return cc.Invoke(ctx, full, req, resp)
	}
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()}, full)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(resp); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// TestClocksOffByAnHour: one scheduler's clock is an hour ahead, one scheduler's clock and the agent's
// clock are an hour behind. The scheduler whose clock is ahead leads first and is then killed, so the time
// that it has stored in the replicated state is ahead of all other clocks.
func TestClocksOffByAnHour(t *testing.T) {
	testbed.Need(t, "another process's clock", harness.CanShiftClock())
	c := start(t, harness.Options{Binaries: raced(t), OwnCA: true, Clocks: []time.Duration{0, time.Hour, -time.Hour}, SchedulerEnv: fast(nil)})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	newAgent := func(node, token string, clock time.Duration) *harness.Agent {
		t.Helper()
		a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Simulate: true, NodeID: node}))
		a.Args, a.Clock = []string{"--join", token}, clock
		must(t, a.Start())
		must(t, c.WaitNode(ctx, node, "Ready", settle))
		return a
	}
	late := newAgent("late", c.Token("agent"), -time.Hour)
	lead := func(i int) {
		t.Helper()
		must(t, testbed.Poll(ctx, settle, "leadership of "+c.Schedulers[i].Name, func(ctx context.Context) error {
			admin, err := c.AnyAdmin(ctx)
			if err != nil {
				return err
			}
			if _, err := admin.TransferLeadership(ctx, &clusterv1.TransferLeadershipRequest{Replica: c.Schedulers[i].Name}); err != nil {
				return err
			}
			if now, err := c.WaitLeader(ctx, electionLimit); err != nil || now != i {
				return fmt.Errorf("%d leads: %w", now, err)
			}
			return nil
		}))
	}
	lead(1)
	apply(t, c, "ahead", contentSpec("x"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "ahead", settle, running))
	res := got[harness.CtlResult](t)(c.Ctl(ctx, "identity", "revoke", "agent/nobody", "--reason", "ahead", "--yes"))
	must(t, c.Schedulers[1].Kill())

	lead(2) // the clock of this scheduler is one hour behind the real time, and two hours behind the time in the state
	apply(t, c, "behind", contentSpec("y"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "behind", settle, running))
	if res.Code != 0 {
		t.Errorf("the revocation failed: %s", res.Stderr)
	}
	t.Run("new tokens and certificates are accepted", func(t *testing.T) {
		res := got[harness.CtlResult](t)(c.Ctl(ctx, "token", "create", "--role", "agent", "--name", "nobody"))
		if res.Code != 0 {
			t.Fatalf("making a token failed: %s", res.Stderr)
		}
		// The scheduler whose clock was ahead revoked this name, so the time of the revocation is in the future. A
		// certificate that is issued now must still be valid: the schedulers must regard it as newer than the
		// revocation, although the issuer's clock shows an earlier time.
		newAgent("nobody", strings.TrimSpace(res.Stdout), 0)
	})
	t.Run("leases are measured as durations", func(t *testing.T) {
		must(t, late.Pause())
		must(t, c.WaitNode(ctx, "late", "NotReady", settle))
		must(t, late.Continue())
		must(t, c.WaitNode(ctx, "late", "Ready", settle))
	})
	must(t, c.Schedulers[1].Start())
	must(t, c.WaitReady(ctx, 2*settle))
}
