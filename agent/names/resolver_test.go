package names

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { testbed.Exit(m.Run()) }

// scheduler is a fake Source that returns the reply that a test has set. A nil reply means an error.
type scheduler struct {
	mu    sync.Mutex
	reply *controlv1.WatchNetworkNamesResponse
	asked []*controlv1.WatchNetworkNamesRequest
}

func (s *scheduler) set(m *controlv1.WatchNetworkNamesResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = m
}

func (s *scheduler) WatchNetworkNames(_ context.Context, req *controlv1.WatchNetworkNamesRequest, _ ...grpc.CallOption) (*controlv1.WatchNetworkNamesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, req)
	if s.reply == nil {
		return nil, errors.New("no scheduler answers")
	}
	return s.reply, nil
}

// machine is a fake Machine on which every container is on network 1.
type machine struct {
	mu       sync.Mutex
	services workload.ServiceView
	deaf     bool // containers cannot reach services at the services' own addresses yet
}

func (m *machine) NetworksAt(netip.Addr) []uint32 { return []uint32{1} }

func (m *machine) SetServices(v workload.ServiceView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.services = v
}

func (m *machine) Serves(netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.deaf
}

func opened(t *testing.T, path, cluster string) (*Resolver, *bytes.Buffer) {
	t.Helper()
	st, err := store.Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	log := &bytes.Buffer{}
	r := New(&machine{}, filepath.Join(t.TempDir(), "resolv.conf"), slog.New(slog.NewTextHandler(log, nil)))
	if err := r.Open(st, cluster); err != nil {
		t.Fatal(err)
	}
	return r, log
}

func query(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

// TestNamesOutliveSchedulers: the resolver uses new names of the schedulers, and keeps them while no
// scheduler answers and after a restart. While no scheduler answers, it reports that the names may be
// outdated. It refuses older names and names of another cluster.
func TestNamesOutliveSchedulers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	st, err := store.Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	r := New(&machine{}, "none", slog.New(slog.NewTextHandler(log, nil)))
	if err := r.Open(st, "c1"); err != nil {
		t.Fatal(err)
	}
	if m := r.respond(query("db."), []uint32{1}, false); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("before the first names have arrived, the DNS response code is %d, want SERVFAIL (2)", m.Rcode)
	}
	s := &scheduler{}
	ask := func() error { return r.ask(t.Context(), s, "n", "c1") }
	s.set(&controlv1.WatchNetworkNamesResponse{Names: sample()})
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	answers := func(what string) {
		t.Helper()
		if m := r.respond(query("db."), []uint32{1}, false); m.Rcode != 0 || len(m.Answer) != 2 || !m.Authoritative {
			t.Errorf("%s: the answer to a query for db is %v, want its two addresses", what, m)
		}
	}
	answers("after the first names have arrived")
	first := map[string]bool{}
	for range 2 {
		first[r.respond(query("db."), []uint32{1}, false).Answer[0].String()] = true
	}
	if len(first) != 2 {
		t.Errorf("the first records of two answers in a row are %v, want each of the two addresses first once", first)
	}
	changed := func(f func(*agentv1.NetworkNames)) *controlv1.WatchNetworkNamesResponse {
		m := proto.CloneOf(sample())
		m.Members = nil
		f(m)
		return &controlv1.WatchNetworkNamesResponse{Names: m}
	}
	for _, c := range []struct {
		name  string
		reply *controlv1.WatchNetworkNamesResponse
	}{
		{"no scheduler", nil},
		{"a lower index", changed(func(m *agentv1.NetworkNames) { m.Index = 8 })},
		{"a lower incarnation", changed(func(m *agentv1.NetworkNames) { m.Epoch.Incarnation = 0 })},
		{"another cluster", changed(func(m *agentv1.NetworkNames) { m.Epoch.ClusterId = "c2" })},
	} {
		s.set(c.reply)
		if err := ask(); err == nil {
			t.Errorf("%s: the resolver accepted the names, want an error", c.name)
		}
		answers(c.name)
	}
	s.set(&controlv1.WatchNetworkNamesResponse{})
	if err := ask(); err != nil {
		t.Errorf("an answer without names (no change) returned the error %v, want none", err)
	}
	if last := s.asked[len(s.asked)-1]; last.GetIndex() != 9 || last.GetDigest() != 7 || last.GetIncarnation() != 1 || last.GetNodeId() != "n" || last.GetClusterId() != "c1" {
		t.Errorf("the request to the scheduler is %v; want the index, digest and incarnation of the names that the agent has", last)
	}
	r.listening[1] = &listener{}
	if age := r.Age(); age != 0 {
		t.Errorf("a scheduler confirmed the names a moment ago, but their age is %s, want 0", age)
	}
	r.confirmed = time.Now().Add(-time.Minute)
	r.warn()
	if age := r.Age(); age < time.Minute || !strings.Contains(log.String(), "the names of networks may be outdated") {
		t.Errorf("a minute after the last confirmation the age of the names is %s and the log %q; want at least a minute, and a warning", age, log)
	}
	answers("old names")
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	r.warn()
	if !strings.Contains(log.String(), "current again") {
		t.Errorf("the log does not say that the names are current again: %q", log)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("restart", func(t *testing.T) {
		r, _ = opened(t, path, "c1")
		answers("after a restart")
	})
	t.Run("another cluster", func(t *testing.T) {
		r, _ := opened(t, path, "c2")
		if m := r.respond(query("db."), []uint32{1}, false); len(m.Answer) > 0 {
			t.Errorf("an agent of another cluster answered a query from the stored names with %v, want no records", m)
		}
	})
}

// TestListen: at the address of each bridge, the resolver answers over UDP and TCP, but only to containers in
// the address range of that bridge. Listen also returns the addresses at which it cannot listen, because
// another program uses the DNS port.
func TestListen(t *testing.T) {
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("port 53 needs root")
	}
	testbed.Need(t, "port 53", err)
	r, _ := opened(t, filepath.Join(t.TempDir(), "state.db"), "c1")
	if err := r.offer(sample(), "c1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	one := workload.NetworkBridge{Network: 1, Address: netip.MustParseAddr("127.77.0.1"), Slice: netip.MustParsePrefix("127.77.0.0/26")}
	two := workload.NetworkBridge{Network: 2, Address: netip.MustParseAddr("127.77.0.65"), Slice: netip.MustParsePrefix("127.77.0.64/26")}
	taken, err := net.ListenPacket("udp4", "127.77.0.65:53")
	if err != nil {
		t.Fatal(err)
	}
	works, problems := r.Listen([]workload.NetworkBridge{one, two})
	if len(works) != 1 || works[0] != 1 || len(problems) != 1 || !strings.Contains(problems[0], "names on network 2: ") {
		t.Fatalf("the resolver listens on the networks %v, with the problems %q; want network 1, and a problem of network 2", works, problems)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if works, problems = r.Listen([]workload.NetworkBridge{one, two}); len(works) != 2 || len(problems) != 0 {
		t.Fatalf("after the DNS port of network 2 became free, the resolver listens on the networks %v, with the problems %q; want both networks", works, problems)
	}
	ask := func(protocol, from, to string) (*dns.Msg, error) {
		c := &dns.Client{Net: protocol, Timeout: time.Second, Dialer: &net.Dialer{Timeout: time.Second, LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}}
		if protocol == "tcp" {
			c.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		m, _, err := c.Exchange(query("db."), to+":53")
		return m, err
	}
	for _, protocol := range []string{"udp", "tcp"} {
		if m, err := ask(protocol, "127.77.0.5", "127.77.0.1"); err != nil || len(m.Answer) != 2 {
			t.Errorf("%s: the answer is %v, error %v; want two addresses", protocol, m, err)
		}
	}
	if m, err := ask("udp", "127.77.0.70", "127.77.0.1"); err == nil {
		t.Errorf("a client outside of the bridge's address range got the answer %v, want none", m)
	}
	if works, _ = r.Listen([]workload.NetworkBridge{two}); len(works) != 1 {
		t.Errorf("after network 1 left the view, the resolver listens on the networks %v, want network 2", works)
	}
	if m, err := ask("udp", "127.77.0.5", "127.77.0.1"); err == nil {
		t.Errorf("the resolver still answers at the bridge of a network that has left the view: %v", m)
	}
}

// TestOtherNamesGoToTheMachinesResolvers: queries for names outside the cluster go to the machine's own
// resolvers. If none of these answers, a name that ends with a namespace does not exist, and other names get
// a server failure.
func TestOtherNamesGoToTheMachinesResolvers(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.A{Hdr: header(q.Question[0].Name, dns.TypeA), A: net.IPv4(192, 0, 2, 7)}}
		_ = w.WriteMsg(m)
	})}
	wait.Go(func() { _ = server.ActivateAndServe() })
	defer wait.Wait()
	defer pc.Close()

	r, _ := opened(t, filepath.Join(t.TempDir(), "state.db"), "c1")
	if err := r.offer(sample(), "c1"); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]int{"example.org.": dns.RcodeServerFailure, "alien.team.": dns.RcodeNameError, "alien.": dns.RcodeNameError} {
		if m := r.respond(query(name), []uint32{1}, false); m.Rcode != code {
			t.Errorf("no resolver of the machine answers: the DNS response code for %s is %d, want %d", name, m.Rcode, code)
		}
	}
	if err := os.WriteFile(r.upstream.path, []byte("nameserver 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.upstream.current(); len(got) != 1 || got[0] != "127.0.0.1:53" {
		t.Errorf("the machine's resolvers are %v, want 127.0.0.1:53", got)
	}
	r.upstream.servers = []string{pc.LocalAddr().String()} // the file names no ports
	q := query("example.org.")
	m := r.respond(q, []uint32{1}, false)
	if len(m.Answer) != 1 || m.Id != q.Id || m.Rcode != 0 {
		t.Errorf("the answer to a query for a foreign name is %v, want the answer of the machine's resolver", m)
	}
	if m := r.respond(query("late.default."), []uint32{1}, false); len(m.Answer) != 0 || m.Rcode != 0 {
		t.Errorf("the name of a member that is not ready was answered with %v, want no record", m)
	}
}

// TestBadQueries: messages that are no valid questions get a response with an error code.
func TestBadQueries(t *testing.T) {
	r, _ := opened(t, filepath.Join(t.TempDir(), "state.db"), "c1")
	for _, c := range []struct {
		name   string
		change func(*dns.Msg)
		code   int
	}{
		{"an update", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		{"no question", func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		{"two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
		{"another class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
	} {
		q := query("db.")
		c.change(q)
		if m := r.respond(q, []uint32{1}, false); m.Rcode != c.code {
			t.Errorf("%s: the DNS response code is %d, want %d", c.name, m.Rcode, c.code)
		}
	}
}
