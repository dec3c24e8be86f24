package dnsserver

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// running is a DNS server under test, with the store from which it reads, and a simulated cluster state
// (world) whose changes the test publishes to that store.
type running struct {
	*world
	st    *store.Store
	srv   *Server
	addr  string
	reg   *prometheus.Registry
	hints atomic.Pointer[Hints]
}

func serve(t testing.TB, w *world, opt Options) *running {
	t.Helper()
	r := &running{world: w, st: store.New(w.s), reg: prometheus.NewRegistry()}
	r.hints.Store(&Hints{})
	if opt.Addr == "" {
		opt.Addr = "127.0.0.1:0"
	}
	opt.Registerer, opt.Log = r.reg, slog.New(slog.DiscardHandler)
	var err error
	if r.srv, err = New(Config{}, opt); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(r.srv.Addr().String())
	r.addr = "127.0.0.1:" + port
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.srv.Run(ctx, r.st, func() Hints { return *r.hints.Load() }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run of the DNS server returned %v, want nil", err)
			}
		case <-time.After(patience):
			t.Error("Run of the DNS server must end with its context, but still runs")
		}
	})
	w.feed = nil
	testbed.Until(t, "a zone", func() bool { return r.srv.Zone() != nil })
	return r
}

// publish passes the changes that the test made to the world since the last call on to the server's store.
func (r *running) publish() {
	r.st.Publish(r.s, r.feed)
	r.feed = nil
}

// value returns the value of a counter or a gauge.
func value(t testing.TB, c prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("Gather returned %d families, error %v; want one", len(families), err)
	}
	m := families[0].GetMetric()[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func exchangeWith(t testing.TB, network, addr string, query []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		t.Fatal(err)
	}
	c := dns.Client{Net: network, Timeout: patience}
	got, _, err := c.Exchange(m, addr)
	if err != nil {
		t.Fatalf("the query over %s to %s failed: %v", network, addr, err)
	}
	return got
}

func TestServesUDPAndTCP(t *testing.T) {
	w := crowd(t, 60)
	three(w)
	for _, addr := range []string{"127.0.0.1:0", "[::]:0", "0.0.0.0:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			if strings.HasPrefix(addr, "[") {
				l, err := net.Listen("tcp", addr)
				testbed.Need(t, "an address of IPv6", err)
				l.Close()
			}
			r := serve(t, w, Options{Addr: addr})
			targets := []string{r.addr}
			if addr == "[::1]:0" {
				targets = []string{r.srv.Addr().String()}
			} else if addr == "[::]:0" {
				_, port, _ := net.SplitHostPort(r.addr)
				targets = append(targets, "[::1]:"+port, "127.0.0.2:"+port)
			} else if addr == "0.0.0.0:0" {
				// The answer must come from the address that the query was sent to. The client's socket is
				// connected to that address and receives from no other.
				targets = append(targets, strings.Replace(r.addr, "127.0.0.1", "127.0.0.2", 1))
			}
			for _, target := range targets {
				m := exchangeWith(t, "udp", target, question("_persys-scheduler._tcp.persys.local. SRV", edns(1232)))
				if len(m.Answer) != 3 || !m.Authoritative {
					t.Errorf("the answer of the address %s is %v, want the records of the zone", target, m)
				}
				if m = exchangeWith(t, "udp", target, question("api.default.workloads.persys.local. A")); !m.Truncated {
					t.Errorf("over UDP the query to %s returned an answer with %d records that is not truncated, want a truncated one", target, len(m.Answer))
				}
				if m = exchangeWith(t, "tcp", target, question("api.default.workloads.persys.local. A")); m.Truncated || len(m.Answer) != 60 {
					t.Errorf("over TCP the query to %s returned an answer with %d records, truncated %v; want all 60", target, len(m.Answer), m.Truncated)
				}
			}
		})
	}
}

// The order of the addresses must change from answer to answer, so that clients which use the first address are
// distributed over all instances.
func TestAnswersRotate(t *testing.T) {
	r := serve(t, crowd(t, 4), Options{})
	first := map[string]bool{}
	for range 64 {
		m := exchangeWith(t, "udp", r.addr, question("api.default.workloads.persys.local. A"))
		if len(m.Answer) != 4 {
			t.Fatalf("the answer has %d records, want 4", len(m.Answer))
		}
		first[m.Answer[0].String()] = true
	}
	if len(first) < 2 {
		t.Errorf("64 answers began with only these addresses: %v, want each instance first at some time", first)
	}
}

func TestServerAnswersDig(t *testing.T) {
	dig := testbed.Program(t, "dig")
	w := crowd(t, 60)
	three(w)
	r := serve(t, w, Options{})
	_, port, _ := net.SplitHostPort(r.addr)
	ask := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, dig, append([]string{"@127.0.0.1", "-p", port}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("the program dig with %v returned error %v: %s", args, err, out)
		}
		return string(out)
	}
	if out := ask("+short", "srv", "_persys-scheduler._tcp.persys.local"); strings.Count(out, "persys-scheduler.persys.local.\n") != 3 {
		t.Errorf("dig shows the SRV records %s, want those of three schedulers", out)
	}
	// The answer is truncated, because it does not fit into a UDP packet. The program dig then repeats the query over
	// TCP and must get all addresses.
	if out := ask("+noedns", "a", "api.default.workloads.persys.local"); strings.Count(out, "A\t172.17.") != 60 || !strings.Contains(out, "(TCP)") && !strings.Contains(out, "retrying in TCP") {
		t.Errorf("dig over TCP does not show all 60 addresses: %s", out)
	}
	if out := ask("+short", "-x", "10.1.0.1"); out != "n1.default.agents.persys.cloud.\n" {
		t.Errorf("dig shows the PTR record %q, want that of node n1", out)
	}
	for args, want := range map[string]string{
		"a nobody.persys.local":               "status: NXDOMAIN",
		"txt persys-scheduler.persys.local":   "status: NOERROR",
		"any persys.local":                    "status: REFUSED",
		"axfr persys.local":                   "Transfer failed",
		"+edns=1 soa persys.local":            "status: NOERROR", // dig sends the query again with EDNS version 0
		"+noednsneg +edns=1 soa persys.local": "status: BADVERS",
		"example.com":                         "status: REFUSED",
	} {
		if out := ask(strings.Fields(args)...); !strings.Contains(out, want) || strings.Contains(out, "malformed") {
			t.Errorf("the program dig with %s must print %q, but printed %s", args, want, out)
		}
	}
}

func TestChangesShowInAnswers(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	ask := func(q string) []string {
		return texts(exchangeWith(t, "udp", r.addr, question(q)).Answer)
	}
	r.node("n1", "10.1.0.1:50051")
	began := time.Now()
	r.publish()
	testbed.Until(t, "the node's address", func() bool { return len(ask("n1.default.agents.persys.cloud. A")) == 1 })
	if d := time.Since(began); d > 500*time.Millisecond { // on an idle machine the change is in DNS after about 50 ms
		t.Errorf("a change of the state was in the answers after %v, want at most 500 ms", d)
	}
	r.removeNode("n1")
	r.publish()
	testbed.Until(t, "its end", func() bool { return len(ask("n1.default.agents.persys.cloud. A")) == 0 })
	if got := r.srv.Zone().Serial(); got != uint32(r.index) {
		t.Errorf("the serial of the SOA record is %d, want the state's index %d", got, r.index)
	}

	// After a snapshot is restored, the change feed does not contain the changes before it. The server must then build
	// the zone again from the state.
	r.node("n2", "10.1.0.2:50051")
	r.st.Restore(r.s)
	r.feed = nil
	testbed.Until(t, "the server answers for a node that a restored snapshot has added", func() bool { return len(ask("n2.default.agents.persys.cloud. A")) == 1 })
	r.node("n3", "10.1.0.3:50051")
	r.publish()
	testbed.Until(t, "the server answers for a node that was added after the restored snapshot", func() bool { return len(ask("n3.default.agents.persys.cloud. A")) == 1 })
}

func TestHintsShowWithinASecond(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	srv := func() []string {
		return texts(exchangeWith(t, "udp", r.addr, question("_persys-scheduler.persys.local. SRV")).Answer)
	}
	began := time.Now()
	r.hints.Store(&Hints{Dead: []string{"r2"}, Leader: "r3"})
	want := lines(`
		_persys-scheduler.persys.local. 1 IN SRV 10 100 8086 s3.persys-scheduler.persys.local.
		_persys-scheduler.persys.local. 1 IN SRV 20 100 8085 s1.persys-scheduler.persys.local.`)
	testbed.Until(t, "the hints", func() bool { return slices.Equal(srv(), want) })
	if d := time.Since(began); d > time.Second {
		t.Errorf("a changed hint was in the answers after %v, want at most a second", d)
	}
	r.hints.Store(&Hints{Partitioned: true})
	testbed.Until(t, "the metric shows the partition", func() bool { return value(t, r.srv.metrics.partitioned) == 1 })
	if got := srv(); len(got) != 3 {
		t.Errorf("a replica without a leader answers %q, want three schedulers", got)
	}
}

func TestClosedStoreKeepsLastZone(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	r.st.Close()
	if m := exchangeWith(t, "udp", r.addr, question("persys-scheduler.persys.local. A")); len(m.Answer) != 2 {
		t.Errorf("after the store was closed, the answer is %v, want the two schedulers of the last zone", m)
	}
}

func TestServerExportsMetrics(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	for _, q := range []string{"persys-scheduler.persys.local. A", "persys-scheduler.persys.local. A", "no.persys.local. SRV", "example.com. TXT"} {
		exchangeWith(t, "udp", r.addr, question(q))
	}
	m := r.srv.metrics
	testbed.Until(t, "the counters", func() bool {
		return value(t, m.queries[0][0]) == 2 && value(t, m.queries[2][3]) == 1 && value(t, m.queries[7][5]) == 1
	})
	families, err := r.reg.Gather()
	if err != nil || len(families) < 8 {
		t.Errorf("Gather returned %d families, error %v; want at least 8", len(families), err)
	}
}

// upstream starts a server that answers every A query with one address.
func upstream(t *testing.T) string {
	t.Helper()
	l, pc := testbed.Port(t)
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		rr, _ := dns.NewRR(q.Question[0].Name + " 77 IN A 192.0.2.1")
		m.Answer = []dns.RR{rr}
		w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		started, done := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { defer close(done); s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { s.Shutdown(); <-done })
	}
	return pc.LocalAddr().String()
}

func TestForeignNamesAreForwarded(t *testing.T) {
	w := newWorld(t)
	three(w)
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := dead.LocalAddr().String()
	dead.Close()
	r := serve(t, w, Options{Upstream: []string{gone, upstream(t)}})
	for _, network := range []string{"udp", "tcp"} {
		m := exchangeWith(t, network, r.addr, question("ExAmPle.com. A"))
		if m.Rcode != 0 || len(m.Answer) != 1 || m.Id != 4711 || m.Question[0].Name != "ExAmPle.com." {
			t.Errorf("over %s the answer to a forwarded query is %v, want the address of the upstream server and the question as sent", network, m)
		}
		m = exchangeWith(t, network, r.addr, question("persys-scheduler.persys.local. A"))
		if !m.Authoritative || !m.RecursionAvailable || len(m.Answer) != 2 {
			t.Errorf("over %s the answer to a query for a name of the zone is %v, want an authoritative one with two schedulers", network, m)
		}
		m = exchangeWith(t, network, r.addr, question("example.com. A", func(m *dns.Msg) { m.RecursionDesired = false }))
		if m.Rcode != dns.RcodeRefused {
			t.Errorf("over %s the answer to a query without the RD bit is %v, want REFUSED", network, m)
		}
	}
}

func TestFailedUpstreamsGiveSERVFAIL(t *testing.T) {
	w := newWorld(t)
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := dead.LocalAddr().String()
	dead.Close()
	r := serve(t, w, Options{Upstream: []string{gone}})
	for _, network := range []string{"udp", "tcp"} {
		m := exchangeWith(t, network, r.addr, question("example.com. A", edns(1232)))
		if m.Rcode != dns.RcodeServerFailure || m.IsEdns0() == nil || len(m.Question) != 1 {
			t.Errorf("over %s, while no upstream server answers, the answer is %v, want SERVFAIL", network, m)
		}
	}
	if got := value(t, r.srv.metrics.unforwarded); got != 2 {
		t.Errorf("the metric counts %v failed forwards, want 2", got)
	}
}

func TestForgedUpstreamAnswersAreRejected(t *testing.T) {
	ask := question("example.com. A")
	reply := func(edit func([]byte) []byte) []byte {
		b := slices.Clone(ask)
		b[2] |= 0x80
		return edit(b)
	}
	for name, c := range map[string]struct {
		reply []byte
		want  bool
	}{
		"the right answer":              {reply(func(b []byte) []byte { return b }), true},
		"an answer with another id":     {reply(func(b []byte) []byte { b[0]++; return b }), false},
		"an answer to another question": {reply(func(b []byte) []byte { b[13]++; return b }), false},
		"a query as the answer":         {reply(func(b []byte) []byte { b[2] &^= 0x80; return b }), false},
		"an empty answer":               {nil, false},
		"an answer that is cut off":     {reply(func(b []byte) []byte { return b[:14] }), false},
	} {
		if got := answers(c.reply, ask, 4711); got != c.want {
			t.Errorf("whether %s of the upstream server is accepted: %v, want %v", name, got, c.want)
		}
	}
}

func TestGarbagePackets(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	conn, err := net.Dial("udp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for n := range 200 {
		conn.Write([]byte(strings.Repeat("\x00\xff\x7f", n*5))) // the packet may be too long to send, which is harmless
	}
	tc, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	tc.Write([]byte{0, 3, 1, 2, 3})
	tc.SetReadDeadline(time.Now().Add(patience))
	if n, err := tc.Read(make([]byte, 10)); err == nil {
		t.Errorf("a packet without a question must get no answer, but got one of %d bytes", n)
	}
	if m := exchangeWith(t, "udp", r.addr, question("persys-scheduler.persys.local. A")); len(m.Answer) != 2 {
		t.Errorf("the answer to a query after malformed packets is %v, want two schedulers", m)
	}
}

func TestTCPConnectionsAreLimited(t *testing.T) {
	r := serve(t, newWorld(t), Options{})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range maxConnsPerClient + 1 {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	last := open[maxConnsPerClient]
	last.SetReadDeadline(time.Now().Add(patience))
	if _, err := last.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the server must close a TCP connection above the limit, but the read returned %v", err)
	}
}

func TestListenErrorsNameTheSetting(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, opt := range map[string]Options{
		"a port that is in use":     {Addr: taken.Addr().String()},
		"an address without a port": {Addr: "127.0.0.1"},
	} {
		if s, err := New(Config{}, opt); err == nil || !strings.Contains(err.Error(), "SCHEDULER_DNS_ADDR") {
			t.Errorf("with %s New returned %v, error %v; want an error that names SCHEDULER_DNS_ADDR", name, s, err)
		}
	}
	for _, up := range []string{"", "host:0", "host:x", "::1:53:", "bad..name"} {
		if s, err := New(Config{}, Options{Addr: "127.0.0.1:0", Upstream: []string{up}}); err == nil || !strings.Contains(err.Error(), "SCHEDULER_DNS_UPSTREAM") {
			t.Errorf("with upstream %q New returned %v, error %v; want an error that names SCHEDULER_DNS_UPSTREAM", up, s, err)
		}
	}
	if got, err := upstreams([]string{"192.0.2.1", "::1", "ns.example.com", "h:5353"}); err != nil || !slices.Equal(got, []string{"192.0.2.1:53", "[::1]:53", "ns.example.com:53", "h:5353"}) {
		t.Errorf("upstreams returned %q and error %v; want each address with its port, by default 53", got, err)
	}
}

func TestLimiterBoundsEachClient(t *testing.T) {
	l := newLimiter(10, 20)
	now := l.start.Add(time.Second)
	at := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	take := func(l *limiter, a string, n int) (passed, slipped int) {
		for range n {
			switch l.take(at(a), now) {
			case pass:
				passed++
			case slip:
				slipped++
			}
		}
		return passed, slipped
	}
	if p, s := take(l, "192.0.2.1", 40); p != 20 || s != 5 {
		t.Errorf("the limiter let %d queries of the client pass and truncated %d; want the burst of 20 passed, and a quarter of the other queries truncated", p, s)
	}
	if p, _ := take(l, "192.0.2.2", 1); p != 1 {
		t.Error("the limiter must not limit a query of another client, but did")
	}
	now = now.Add(500 * time.Millisecond)
	if p, _ := take(l, "::ffff:192.0.2.1", 40); p != 5 {
		t.Errorf("half a second later the limiter let %d queries pass, want 5", p)
	}
	now = now.Add(time.Hour)
	if p, _ := take(l, "192.0.2.1", 40); p != 20 {
		t.Errorf("an hour later the limiter let %d queries pass, want the burst", p)
	}
	if p, _ := take(l, "127.0.0.1", 1000); p != 1000 {
		t.Errorf("the limiter let %d queries from loopback pass, want all", p)
	}
	if p, _ := take(nil, "192.0.2.1", 1000); p != 1000 {
		t.Errorf("a limiter without a limit let %d queries pass, want all", p)
	}
	take(l, "2001:db8:0:1::1", 20)
	if p, _ := take(l, "2001:db8:0:1:ffff::2", 1); p != 0 {
		t.Error("the limiter counts two addresses of one IPv6 /64 as two clients, want one client")
	}
	if p, _ := take(l, "2001:db8:0:2::1", 1); p != 1 {
		t.Error("the limiter counts addresses of two IPv6 /64 as one client, want two clients")
	}
	// Send queries from very many addresses. The limiter's memory must not grow, and a new client must be allowed a
	// full burst.
	for i := range 100_000 {
		if l.take(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now) != pass {
			t.Fatal("the first query of a new client was limited")
		}
	}
}

func TestOverLimitRetriesOverTCP(t *testing.T) {
	s := &Server{limit: newLimiter(1, 1), limitTCP: newLimiter(1, 1), metrics: newMetrics()}
	s.zone.Store(newWorld(t).zone(Hints{}))
	var r reader
	var slips int
	for range 9 {
		out, _ := s.respond(nil, question("persys.local. SOA"), false, netip.MustParseAddr("192.0.2.1"), time.Unix(1, 0), &r)
		if len(out) == 0 {
			continue
		}
		m := new(dns.Msg)
		if err := m.Unpack(out); err != nil {
			t.Fatal(err)
		}
		if m.Truncated && len(m.Answer) == 0 && len(m.Question) == 1 {
			slips++
		}
	}
	if got := value(t, s.metrics.limited); got != 8 || slips != 2 {
		t.Errorf("the metric counts %v limited queries, and %d queries got a truncated answer; want 8 and 2", got, slips)
	}
	// A client that exceeds its limit over UDP is still answered over TCP, which has a separate limit.
	for i, want := range []int{1, 0} {
		out, _ := s.respond(nil, question("persys.local. SOA"), true, netip.MustParseAddr("192.0.2.1"), time.Unix(1, 0), &r)
		m := new(dns.Msg)
		if len(out) > 0 {
			if err := m.Unpack(out); err != nil {
				t.Fatal(err)
			}
		}
		if len(m.Answer) != want || m.Truncated {
			t.Errorf("query %d over TCP got %d answers, want %d", i+1, len(m.Answer), want)
		}
	}
	if got := value(t, s.metrics.limited); got != 9 {
		t.Errorf("the metric counts %v limited queries, want 9", got)
	}
}
