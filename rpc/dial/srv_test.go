package dial

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/persys/compute/testbed"
)

// zone is a fake DNS server whose records a test can change.
type zone struct {
	addr string

	mu      sync.Mutex
	records []dns.RR
	glue    bool // the server adds addresses to the additional section
	tiny    bool // over UDP the server answers only with the truncated bit
	plain   bool // the server refuses queries for SRV records
	asked   int
	udp     *dns.Server
	tcp     *dns.Server
}

func startZone(t testing.TB, records ...string) *zone {
	t.Helper()
	z := &zone{glue: true}
	z.set(t, records...)
	l, pc := testbed.Port(t)
	z.addr = l.Addr().String()
	var up sync.WaitGroup
	up.Add(2)
	z.udp = &dns.Server{PacketConn: pc, Handler: z, NotifyStartedFunc: up.Done}
	z.tcp = &dns.Server{Listener: l, Handler: z, NotifyStartedFunc: up.Done}
	var down sync.WaitGroup
	for _, s := range []*dns.Server{z.udp, z.tcp} {
		down.Go(func() { _ = s.ActivateAndServe() })
	}
	up.Wait()
	t.Cleanup(func() { z.stop(); down.Wait() })
	return z
}

func (z *zone) stop() {
	_ = z.udp.Shutdown()
	_ = z.tcp.Shutdown()
}

func (z *zone) set(t testing.TB, records ...string) {
	t.Helper()
	var rrs []dns.RR
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			t.Fatal(err)
		}
		rrs = append(rrs, rr)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records = rrs
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	m := new(dns.Msg)
	m.SetReply(q)
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp && z.tiny {
		m.Truncated = true
		_ = w.WriteMsg(m)
		return
	}
	for _, rr := range z.records {
		if rr.Header().Name == q.Question[0].Name && rr.Header().Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		} else if z.glue && rr.Header().Rrtype == dns.TypeA {
			m.Extra = append(m.Extra, rr)
		}
	}
	if len(m.Answer) == 0 {
		m.Rcode = dns.RcodeNameError
	}
	if z.plain && q.Question[0].Qtype == dns.TypeSRV {
		m.Rcode = dns.RcodeServerFailure
	}
	_ = w.WriteMsg(m)
}

func (z *zone) count() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked
}

func TestLookupFollowsSRVRecords(t *testing.T) {
	host := []string{"s1.x. 60 IN A 10.0.0.1", "s2.x. 30 IN A 10.0.0.2"}
	for _, tc := range []struct {
		name    string
		records []string
		change  func(*zone)
		target  Target // target to look up; the test sets its SRV and DNS
		hadSRV  bool
		want    []string
		names   []string // expected names of the first endpoint
		ttl     time.Duration
		err     string
	}{
		{name: "the documented SRV name is queried first", records: append(host,
			"_persys-scheduler._tcp.persys.x. 40 IN SRV 20 0 8085 s1.x.", "_persys-scheduler._tcp.persys.x. 40 IN SRV 10 0 8086 s2.x.",
			"persys.x. 1 IN SRV 0 0 1 s1.x."),
			want: []string{"10.0.0.2:8086", "10.0.0.1:8085"}, names: []string{"s2.x", "10.0.0.2"}, ttl: 30 * time.Second},
		{name: "the legacy SRV name is queried second", records: append(host, "_persys-scheduler.persys.x. 40 IN SRV 0 0 8085 s1.x."),
			want: []string{"10.0.0.1:8085"}, ttl: 40 * time.Second},
		{name: "the name itself is queried last", records: append(host, "persys.x. 20 IN SRV 0 0 8085 s1.x."),
			want: []string{"10.0.0.1:8085"}, ttl: 20 * time.Second},
		{name: "addresses are queried if the answer does not contain them", records: append(host, "persys.x. 40 IN SRV 0 0 8085 s1.x."),
			change: func(z *zone) { z.glue = false }, want: []string{"10.0.0.1:8085"}, ttl: 40 * time.Second},
		{name: "IPv6 addresses are found", records: []string{"persys.x. 40 IN SRV 0 0 8085 s6.x.", "s6.x. 40 IN AAAA fd00::1"},
			want: []string{"[fd00::1]:8085"}, ttl: 40 * time.Second},
		{name: "a target without an address is left to the system's resolver", records: []string{"persys.x. 40 IN SRV 0 0 8085 s9.x."},
			want: []string{"s9.x:8085"}, names: []string{"s9.x"}, ttl: 40 * time.Second},
		{name: "a truncated answer is queried again over TCP", records: append(host, "persys.x. 40 IN SRV 0 0 8085 s1.x."),
			change: func(z *zone) { z.tiny = true }, want: []string{"10.0.0.1:8085"}, ttl: 40 * time.Second},
		{name: "a TTL of zero counts as one second", records: append(host, "persys.x. 0 IN SRV 0 0 8085 s1.x."), want: []string{"10.0.0.1:8085"}, ttl: minTTL},
		{name: "another service name", records: append(host, "_other.persys.x. 40 IN SRV 0 0 8085 s1.x."),
			target: Target{Service: "other"}, want: []string{"10.0.0.1:8085"}, ttl: 40 * time.Second},
		{name: "without SRV records, the addresses of the first host that has any are used", records: append(host, "s2.x. 20 IN A 10.0.0.3"),
			target: Target{Hosts: []string{"s0.x", "s2.x", "s1.x"}}, want: []string{"10.0.0.2:8085", "10.0.0.3:8085"}, names: []string{"s2.x", "10.0.0.2"}, ttl: 20 * time.Second},
		{name: "a host with an IPv6 address is used", records: []string{"s6.x. 40 IN AAAA fd00::1"},
			target: Target{Hosts: []string{"s6.x"}}, want: []string{"[fd00::1]:8085"}, ttl: 40 * time.Second},
		{name: "a host is used if the server does not support SRV records", records: host, change: func(z *zone) { z.plain = true },
			target: Target{Hosts: []string{"s1.x"}}, want: []string{"10.0.0.1:8085"}, ttl: time.Minute},
		{name: "no host is used while the server fails, if there were SRV records before", records: host, change: func(z *zone) { z.plain = true },
			target: Target{Hosts: []string{"s1.x"}}, hadSRV: true, err: "SERVFAIL"},
		{name: "a host is used after the SRV records were removed", records: host,
			target: Target{Hosts: []string{"s1.x"}}, hadSRV: true, want: []string{"10.0.0.1:8085"}, ttl: time.Minute},
		{name: "SRV records take precedence over hosts", records: append(host, "persys.x. 40 IN SRV 0 0 8086 s1.x."),
			target: Target{Hosts: []string{"s2.x"}}, want: []string{"10.0.0.1:8086"}, ttl: 40 * time.Second},
		{name: "hosts without an address are an error", target: Target{Hosts: []string{"s1.x"}}, err: "SRV persys.x: no record"},
		{name: "an SRV target of a single dot means that there is no such service", records: []string{"persys.x. 40 IN SRV 0 0 1 ."}, err: "no record"},
		{name: "a name without any records is an error", err: "SRV persys.x: no record"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			z := startZone(t, tc.records...)
			if tc.change != nil {
				z.mu.Lock()
				tc.change(z)
				z.mu.Unlock()
			}
			tc.target.SRV, tc.target.DNS = "persys.x", []string{z.addr}
			got, err := lookup(t.Context(), tc.target, tc.hadSRV)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var addrs []string
			for _, e := range got.endpoints {
				addrs = append(addrs, e.Addr)
			}
			if !slices.Equal(addrs, tc.want) || got.ttl != tc.ttl {
				t.Errorf("the lookup returned addresses %v valid for %v, want %v for %v", addrs, got.ttl, tc.want, tc.ttl)
			}
			if tc.names != nil && !slices.Equal(got.endpoints[0].Names, tc.names) {
				t.Errorf("names %v, want %v", got.endpoints[0].Names, tc.names)
			}
		})
	}
	t.Run("the second server is queried if the first does not answer", func(t *testing.T) {
		z := startZone(t, "persys.x. 40 IN SRV 0 0 8085 s1.x.", "s1.x. 60 IN A 10.0.0.1")
		if _, err := lookup(t.Context(), Target{SRV: "persys.x", DNS: []string{vacant(t), z.addr}}, false); err != nil {
			t.Error(err)
		}
	})
}

func TestOrderDrawsByWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	first := map[string]int{}
	records := []*dns.SRV{
		{Priority: 1, Weight: 10, Target: "a."}, {Priority: 1, Weight: 30, Target: "b."},
		{Priority: 1, Weight: 0, Target: "z."}, {Priority: 2, Weight: 65535, Target: "late."},
	}
	for range 4000 {
		got := order(records, rng.IntN)
		if len(got) != 4 || got[3].Target != "late." {
			t.Fatalf("order returned %v, want 4 records, the one with the highest priority number last", got)
		}
		first[got[0].Target]++
	}
	if a, b := first["a."], first["b."]; a < 800 || a > 1200 || b < 2700 || b > 3200 || first["z."] == 0 {
		t.Errorf("how often each record came first: %v; want about 1:3, and a few times z", first)
	}
}

// If no DNS servers are configured, a name must be queried at the system's servers and with the
// system's search domains.
func TestTheSystemsServersAreAsked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	writeText(t, file, "search example.org\nnameserver 10.0.0.1\nnameserver 2001:db8::1\n")
	for _, c := range []struct{ target, servers, names, hosts string }{
		{"srv://_p._tcp.persys.local", "10.0.0.1:53 [2001:db8::1]:53", "_p._tcp.persys.local. _p._tcp.persys.local.example.org.", ""},
		{"srv://_p?hosts=h,h.x", "10.0.0.1:53 [2001:db8::1]:53", "_p.example.org. _p.", "h.example.org. h. h.x. h.x.example.org."},
		{"srv://persys", "10.0.0.1:53 [2001:db8::1]:53",
			"_persys-scheduler._tcp.persys.example.org. _persys-scheduler._tcp.persys. _persys-scheduler.persys.example.org. _persys-scheduler.persys. persys.example.org. persys.", ""},
		{"srv://persys.local?dns=10.0.0.9:8053&service=p&hosts=h", "10.0.0.9:8053", "_p._tcp.persys.local. _p.persys.local. persys.local.", "h."},
	} {
		target, err := ParseTarget(c.target)
		if err != nil {
			t.Fatal(err)
		}
		servers, names, hosts, err := questions(target, file)
		if err != nil || strings.Join(servers, " ") != c.servers {
			t.Errorf("%s: servers %v, %v, want %s", c.target, servers, err, c.servers)
		}
		for i, n := range names {
			names[i] = strings.TrimSuffix(n, ".") + "."
		}
		if got := strings.Join(names, " "); got != c.names {
			t.Errorf("%s: names %s, want %s", c.target, got, c.names)
		}
		if got := strings.Join(hosts, " "); got != c.hosts {
			t.Errorf("%s: hosts %s, want %s", c.target, got, c.hosts)
		}
	}
	writeText(t, file, "search example.org\n")
	if _, _, _, err := questions(Target{SRV: "persys.local"}, file); err == nil || !strings.Contains(err.Error(), "names no server") {
		t.Errorf("with a resolv.conf without servers, questions returned %v, want an error that says so", err)
	}
	if _, _, _, err := questions(Target{SRV: "persys.local"}, file+".none"); err == nil || !strings.Contains(err.Error(), "persys.local") {
		t.Errorf("without a resolv.conf, questions returned %v, want an error that names the SRV name", err)
	}
}

func srvRecords(servers ...*server) []string {
	records := []string{"h.x. 1 IN A 127.0.0.1"}
	for i, s := range servers {
		_, port, _ := net.SplitHostPort(s.addr)
		records = append(records, fmt.Sprintf("persys.x. 1 IN SRV %d 0 %s h.x.", i, port))
	}
	return records
}

func TestDiscoveredAddressesAreFollowedAndCached(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	z := startZone(t, srvRecords(a, b)...)
	file := filepath.Join(t.TempDir(), "addrs.json")
	opt := Options{Discovery: "srv://persys.x?dns=" + z.addr, CacheFile: file}
	c := dialTo(t, opt)
	mustCall(t, c, apply)
	if a.calls.Load() != 1 || !slices.Equal(c.Addrs(), []string{a.addr, b.addr}) {
		t.Fatalf("the addresses are %v and the first replica got %d calls, want both replicas and one call", c.Addrs(), a.calls.Load())
	}

	// The SRV records change. The client must use the new addresses when the TTL of the old answer, one second, has
	// passed.
	d := start(t, nil)
	z.set(t, srvRecords(d)...)
	testbed.Until(t, "the client uses the new addresses", func() bool { return slices.Equal(c.Addrs(), []string{d.addr}) })
	mustCall(t, c, apply)
	if d.calls.Load() != 1 {
		t.Errorf("the new replica got %d calls", d.calls.Load())
	}

	// DNS fails. The client must go on with the addresses of the last successful lookup, even after its restart.
	testbed.Until(t, "the cache file has the addresses", func() bool {
		have := sourceAt(t, file).recall().Endpoints
		return len(have) == 1 && have[0].Addr == d.addr
	})
	z.stop()
	asked := z.count()
	testbed.Until(t, "a lookup failed", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.problem != nil
	})
	mustCall(t, c, apply)
	next := dialTo(t, opt)
	mustCall(t, next, apply)
	if z.count() != asked {
		t.Error("the stopped DNS server must not answer, but answered a query")
	}
	// The same SRV name in the form of a gRPC target.
	opt.Discovery = "persys:///persys.x?dns=" + z.addr
	mustCall(t, dialTo(t, opt), apply)
	opt.CacheFile = ""
	err := call(dialTo(t, opt), apply, 300*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no scheduler address is known") || !strings.Contains(err.Error(), "persys.x") {
		t.Errorf("a call without DNS and cache returned %v, want that no scheduler address is known", err)
	}
}

// TestCachedAddressesNeedNoDNS: a client with addresses in its cache file does not wait at its start for a
// DNS server that is silent. The wait would be longer than an agent's lease.
func TestCachedAddressesNeedNoDNS(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	file := filepath.Join(t.TempDir(), "addrs.json")
	writeText(t, file, fmt.Sprintf(`{"srv":"persys.x","endpoints":[{"addr":%q,"names":["h.x","127.0.0.1"]}]}`, a.addr))
	c := dialTo(t, Options{Discovery: "srv://persys.x?dns=" + silent.LocalAddr().String(), CacheFile: file})
	if got := c.Addrs(); !slices.Equal(got, []string{a.addr}) {
		t.Errorf("the first addresses are %v, want %s", got, a.addr)
	}
	if err := call(c, apply, queryTimeout); err != nil {
		t.Errorf("a call while DNS is silent returned %v, want success", err)
	}
	// When DNS answers, its answer replaces the addresses from the cache file.
	z := startZone(t, srvRecords(b)...)
	c = dialTo(t, Options{Discovery: "srv://persys.x?dns=" + z.addr, CacheFile: file})
	testbed.Until(t, "the client uses the answer of DNS", func() bool { return slices.Equal(c.Addrs(), []string{b.addr}) })
	mustCall(t, c, apply)
	if b.calls.Load() != 1 {
		t.Errorf("the replica that DNS names got %d calls", b.calls.Load())
	}
}

func TestDiscoveryLooksAgainOnFailure(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	long := func(s *server) []string {
		records := srvRecords(s)
		for i := range records {
			records[i] = strings.Replace(records[i], " 1 IN", " 300 IN", 1)
		}
		return records
	}
	z := startZone(t, long(a)...)
	c := dialTo(t, Options{Discovery: "srv://persys.x?dns=" + z.addr})
	mustCall(t, c, apply)
	z.set(t, long(b)...)
	a.grpc.Stop()
	mustCall(t, c, apply)
	if b.calls.Load() != 1 {
		t.Errorf("the replica that DNS names now got %d calls", b.calls.Load())
	}
}

func TestInvalidCacheFilesAreIgnored(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":                    `{`,
		"another name":               `{"srv":"other","endpoints":[{"addr":"a:1","names":["a"]}]}`,
		"a bad address":              `{"srv":"persys.x","endpoints":[{"addr":"a","names":["a"]}]}`,
		"nothing to check":           `{"srv":"persys.x","endpoints":[{"addr":"a:1"}]}`,
		"a file over the size limit": `{"srv":"persys.x"}` + strings.Repeat(" ", cacheMax),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "addrs.json")
			writeText(t, file, text)
			if got := sourceAt(t, file).recall(); !got.equal(cache{}) {
				t.Errorf("recall must ignore an invalid cache file, but returned %v", got)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "addrs.json")
	want := cache{SRV: "persys.x", Endpoints: []Endpoint{{Addr: "a:1", Names: []string{"a"}}}, Learned: []Endpoint{{Addr: "b:2", Names: []string{"b"}}}}
	if err := writeCache(file, want); err != nil {
		t.Fatal(err)
	}
	if got := sourceAt(t, file).recall(); !got.equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func sourceAt(t *testing.T, file string) *source {
	t.Helper()
	s, err := newSource(Options{Discovery: "srv://persys.x", CacheFile: file})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// If one DNS server has no records, like a replica that has just lost its disk, the client queries the other
// servers.
func TestDiscoveryAsksOtherServersIfOneHasNoRecords(t *testing.T) {
	a := start(t, nil)
	empty, full := startZone(t), startZone(t, srvRecords(a)...)
	c := dialTo(t, Options{Discovery: "srv://persys.x?dns=" + empty.addr + "," + full.addr})
	mustCall(t, c, apply)
	if empty.count() == 0 || a.calls.Load() != 1 {
		t.Errorf("the DNS server without SRV records got %d queries, want at least 1; the replica that the other DNS server names got %d calls, want 1", empty.count(), a.calls.Load())
	}
}

// TestLearnedAddressesSurviveARestart: all schedulers have moved since the agent was configured. The agent
// had learned their new addresses from an answer, and finds them after a restart.
func TestLearnedAddressesSurviveARestart(t *testing.T) {
	for _, name := range []string{"list", "srv"} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, nil), start(t, nil)
			opt := Options{Addrs: []string{a.addr}, CacheFile: filepath.Join(t.TempDir(), "addrs.json")}
			var z *zone
			if name == "srv" {
				z = startZone(t, srvRecords(a)...)
				opt.Addrs, opt.Discovery = nil, "srv://persys.x?dns="+z.addr
			}
			c := dialTo(t, opt)
			c.Learn([]string{b.addr})
			if name == "list" && len(c.Addrs()) != 1 {
				t.Errorf("before any scheduler has answered there must be no learned addresses, but there are: %v", c.Addrs())
			}
			mustCall(t, c, apply)
			c.Learn([]string{"0.0.0.0:1", "no address", b.addr})
			if got := c.Addrs(); !slices.Equal(got, []string{a.addr, b.addr}) {
				t.Errorf("after Learn the addresses are %v, want the configured one and the valid learned one", got)
			}
			mustCall(t, c, apply)
			if a.calls.Load() != 2 {
				t.Errorf("%d of 2 calls reached the configured address", a.calls.Load())
			}
			a.grpc.Stop()
			if z != nil {
				z.stop()
			}
			mustCall(t, c, apply)
			mustCall(t, dialTo(t, opt), apply)
			if b.calls.Load() != 2 {
				t.Errorf("the replica with the learned address got %d of 2 calls", b.calls.Load())
			}
			if name == "list" {
				opt.Addrs = []string{a.addr, vacant(t)}
				if err := call(dialTo(t, opt), apply, 300*time.Millisecond); err == nil {
					t.Error("after the settings have changed, no scheduler of the former cluster may be called, but one is")
				}
			}
		})
	}
}
