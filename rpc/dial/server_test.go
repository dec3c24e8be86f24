package dial

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	apply = "/test.Svc/Apply" // a mutation
	get   = "/test.Svc/Get"   // a read
	watch = "/test.Svc/Watch" // a stream

	why           = clusterv1.Cluster_Why_FullMethodName
	removeReplica = clusterv1.Cluster_RemoveReplica_FullMethodName // a mutation
)

// server is a fake replica whose answers a test sets.
type server struct {
	addr   string
	grpc   *grpc.Server
	calls  atomic.Int64
	leader atomic.Value // address of the leader that the server sends in the trailer

	mu      sync.Mutex
	handle  func(ctx context.Context) error
	ids     []string // request ids that the server has seen
	timeout time.Duration
}

// start runs a fake replica. If files is nil, it uses no TLS.
func start(t testing.TB, files *pki.Files) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, l, files)
}

func serve(t testing.TB, l net.Listener, files *pki.Files) *server {
	t.Helper()
	s := &server{addr: l.Addr().String()}
	opts := []grpc.ServerOption{grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: KeepaliveMinTime})}
	if files != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(files.ServerConfig(pki.ServerOptions{}))))
	}
	s.grpc = grpc.NewServer(opts...)
	unary := func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(healthpb.HealthCheckRequest)
		if err := dec(in); err != nil {
			return nil, err
		}
		s.calls.Add(1)
		if to, ok := s.leader.Load().(string); ok {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(KeyLeader, to))
		}
		s.mu.Lock()
		md, _ := metadata.FromIncomingContext(ctx)
		s.ids = append(s.ids, md.Get(KeyRequestID)...)
		if d, ok := ctx.Deadline(); ok {
			s.timeout = time.Until(d)
		}
		handle := s.handle
		s.mu.Unlock()
		if handle != nil {
			if err := handle(ctx); err != nil {
				return nil, err
			}
		}
		return &healthpb.HealthCheckResponse{}, nil
	}
	echo := func(_ any, cs grpc.ServerStream) error {
		s.calls.Add(1)
		if to, ok := s.leader.Load().(string); ok {
			cs.SetTrailer(metadata.Pairs(KeyLeader, to))
		}
		for {
			in := new(healthpb.HealthCheckRequest)
			if err := cs.RecvMsg(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := cs.SendMsg(&healthpb.HealthCheckResponse{}); err != nil {
				return err
			}
		}
	}
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Svc",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Apply", Handler: unary}, {MethodName: "Get", Handler: unary}},
		Streams:     []grpc.StreamDesc{{StreamName: "Watch", Handler: echo, ServerStreams: true, ClientStreams: true}},
	}, s)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: clusterv1.Cluster_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Why", Handler: unary}, {MethodName: "RemoveReplica", Handler: unary}},
	}, s)
	hs := health.NewServer()
	healthpb.RegisterHealthServer(s.grpc, hs)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.grpc.Serve(l) }()
	t.Cleanup(func() { s.grpc.Stop(); <-done })
	return s
}

func (s *server) on(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = f
}

func (s *server) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.ids...)
}

func dialTo(t testing.TB, opt Options) *Conn {
	t.Helper()
	if opt.TLS == nil {
		opt.Insecure = true
	}
	c, err := Dial(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func call(c *Conn, method string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.Invoke(ctx, method, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
}

func mustCall(t testing.TB, c *Conn, method string) {
	t.Helper()
	if err := call(c, method, 10*time.Second); err != nil {
		t.Fatalf("call %s must succeed, but returned %v", method, err)
	}
}

// freeze is a TCP proxy that can stop forwarding while its connections stay open, as with a stopped process
// or a network that drops all packets.
type freeze struct {
	addr   string
	frozen atomic.Bool
	thaw   chan struct{}
}

func frozenProxy(t testing.TB, to string) *freeze {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freeze{addr: l.Addr().String(), thaw: make(chan struct{})}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	pass := func(dst, src net.Conn) {
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if f.frozen.Load() {
				<-f.thaw
				return
			}
			if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			wg.Go(func() { pass(out, in) })
			wg.Go(func() { pass(in, out) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(f.thaw)
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return f
}

// vacant returns an address at which no process listens.
func vacant(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Fatalf("the call returned %v, want code %v", err, want)
	}
}

func writeText(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
