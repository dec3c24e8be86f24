package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// part calls make, which prepares a third-party server (etcd or CoreDNS). If this machine cannot build the
// server, the test is skipped, or fails with CI=true (testbed.Need).
func part(t *testing.T, make func() (*harness.Part, error)) *harness.Part {
	t.Helper()
	p, err := make()
	testbed.Need(t, "a third-party server", err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", p.Name, p.Tail(12))
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// said returns the part of a DNS answer in which CoreDNS and a scheduler must agree: the records and their
// targets, in canonical form. It leaves out TTLs, which differ. It also leaves out the names of SRV targets:
// for a record with an IP address as its target, CoreDNS invents a name.
func said(ctx context.Context, server, name string, qtype uint16) (string, error) {
	q := new(dns.Msg).SetQuestion(name, qtype)
	q.SetEdns0(1232, false)
	m, _, err := (&dns.Client{Timeout: 2 * time.Second}).ExchangeContext(ctx, q, server)
	if err != nil {
		return "", err
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if h := rr.Header(); h.Rrtype != dns.TypeOPT && h.Ttl > 30 {
			return "", testbed.Final(fmt.Errorf("%s answers %s: a TTL of more than 30 s", server, rr))
		}
	}
	where := map[string][]string{}
	for _, rr := range append(slices.Clone(m.Extra), m.Answer...) {
		switch rr := rr.(type) {
		case *dns.A:
			where[strings.ToLower(rr.Hdr.Name)] = append(where[rr.Hdr.Name], rr.A.String())
		case *dns.AAAA:
			where[strings.ToLower(rr.Hdr.Name)] = append(where[rr.Hdr.Name], rr.AAAA.String())
		}
	}
	var out []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			out = append(out, rr.A.String())
		case *dns.AAAA:
			out = append(out, rr.AAAA.String())
		case *dns.SRV:
			for _, ip := range where[strings.ToLower(rr.Target)] {
				out = append(out, fmt.Sprintf("%s:%d", ip, rr.Port))
			}
			if len(where[strings.ToLower(rr.Target)]) == 0 {
				out = append(out, fmt.Sprintf("%s:%d", rr.Target, rr.Port))
			}
		default:
			out = append(out, rr.String())
		}
	}
	slices.Sort(out)
	// A negative answer has an SOA record. Its content may differ between the servers, so only its presence
	// is compared.
	text := dns.RcodeToString[m.Rcode] + " " + strings.Join(slices.Compact(out), " ")
	if len(out) == 0 && len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA {
		text += "SOA"
	}
	return text, nil
}

// shard is one of two clusters that share an etcd and a CoreDNS.
type shard struct {
	*harness.Cluster
	key, domain, agents string
}

func (s *shard) env(etcd *harness.Part) map[string]string {
	return map[string]string{
		"SCHEDULER_SHARD_KEY": s.key, "ETCD_PREFIX": s.key, "ETCD_ENDPOINTS": etcd.Addr,
		"DOMAIN": s.domain, "AGENTS_DISCOVERY_DOMAIN": s.agents,
		"ETCD_PROBE_INTERVAL": "500ms", "ETCD_TIMEOUT": "1s",
	}
}

// questions returns DNS questions for CoreDNS and a scheduler, about names that exist and names that do
// not. It asks no A or AAAA question about the name of a service, because with the SkyDNS layout CoreDNS
// answers it from every key that holds an address.
func (s *shard) questions(nodes ...string) (out [][2]string) {
	for _, name := range []string{"_persys-scheduler." + s.domain, "_persys-scheduler._tcp." + s.domain} {
		out = append(out, [2]string{name, "SRV"})
	}
	hosts := []string{"persys-scheduler." + s.domain, "nobody." + s.domain, "nobody.persys-scheduler." + s.domain, "nobody." + s.key + "." + s.agents}
	for _, r := range s.Schedulers {
		hosts = append(hosts, r.Name+".persys-scheduler."+s.domain)
	}
	for _, n := range nodes {
		hosts = append(hosts, n+"."+s.key+"."+s.agents)
	}
	for _, h := range hosts {
		out = append(out, [2]string{h, "A"}, [2]string{h, "AAAA"})
	}
	return out
}

// agree waits until CoreDNS answers every question in the same way as the replica's own DNS server, and
// returns the answers.
func (s *shard) agree(t *testing.T, coredns *harness.Part, when string, nodes ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, testbed.Poll(t.Context(), settle, "CoreDNS and "+s.key+"'s own DNS to agree "+when, func(ctx context.Context) error {
		for _, q := range s.questions(nodes...) {
			qtype := dns.StringToType[q[1]]
			ours, err := said(ctx, s.Schedulers[0].DNS, q[0]+".", qtype)
			if err != nil {
				return err
			}
			theirs, err := said(ctx, coredns.Addr, q[0]+".", qtype)
			if err != nil {
				return err
			}
			if ours != theirs {
				return fmt.Errorf("for the query %s %s the scheduler answers %q, but CoreDNS %q", q[0], q[1], ours, theirs)
			}
			all[q[0]+" "+q[1]] = ours
		}
		return nil
	}))
	return all
}

func (s *shard) want(t *testing.T, answers map[string]string, question, want string) {
	t.Helper()
	if got := answers[question]; got != want {
		t.Errorf("the answer to the question %s is %q, want %q", question, got, want)
	}
}

// TestCoreDNS: two clusters share one etcd and one CoreDNS. CoreDNS serves the same names of each cluster as
// the cluster's own DNS servers, and follows when replicas and nodes leave. Neither cluster sees or changes
// the records of the other, and each refuses the other's nodes. Workloads keep running without CoreDNS or
// etcd.
func TestCoreDNS(t *testing.T) {
	dir := t.TempDir()
	etcd := part(t, func() (*harness.Part, error) { return harness.Etcd(t.Context(), dir) })
	east := &shard{key: "east", domain: "east.persys.local", agents: "agents.persys.cloud"}
	west := &shard{key: "west", domain: "west.persys.local", agents: "agents.persys.cloud"}
	// The documented Corefile, unchanged.
	corefile := filepath.Join(got[string](t)(testbed.Root(t.Context())), "deploy", "coredns", "Corefile")
	coredns := part(t, func() (*harness.Part, error) {
		return harness.CoreDNSFrom(t.Context(), dir, corefile, map[string]string{"ETCD_ENDPOINT": "http://" + etcd.Addr})
	})
	must(t, etcd.Start())
	must(t, harness.WaitEtcd(t.Context(), etcd, settle))
	must(t, coredns.Start())
	must(t, harness.WaitListening(t.Context(), coredns, settle))

	bin := shipped(t)
	env := fast(east.env(etcd))
	env["SCHEDULER_COREDNS_ADDR"] = coredns.Addr
	east.Cluster = start(t, harness.Options{Binaries: bin, SchedulerEnv: env})
	west.Cluster = got[*harness.Cluster](t)(harness.Prepare(harness.Options{Binaries: bin, Schedulers: 1, SchedulerEnv: fast(west.env(etcd))}))
	watchCluster(t, west.Cluster)
	front, passed := advertised(t, west.Schedulers[0])
	up(t, west.Cluster)
	at := func(ip string) harness.AgentOptions {
		return harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_GRPC_ADDR": ip}}
	}
	a := got[*harness.Agent](t)(east.StartAgent(t.Context(), at("127.0.0.21")))
	b := got[*harness.Agent](t)(east.StartAgent(t.Context(), at("127.0.0.22")))
	// The other cluster has a node with the same id at another address. The agent of that node finds its
	// scheduler by DNS.
	far := at("::1")
	far.Env["PERSYS_SCHEDULER_ADDR"], far.Env["PERSYS_SCHEDULER_DISCOVERY"] = "", "srv://west.persys.local?dns="+west.Schedulers[0].DNS
	got[*harness.Agent](t)(west.StartAgent(t.Context(), far))
	if passed.Load() == 0 {
		t.Errorf("the agent of %s did not connect to its scheduler through the address in DNS", west.key)
	}
	w := startUndisturbed(t, east.Cluster, 2)

	answers := east.agree(t, coredns, "at first", a.NodeID, b.NodeID)
	var ports []string
	for _, s := range east.Schedulers {
		ports = append(ports, s.GRPC)
	}
	slices.Sort(ports)
	for _, name := range []string{"_persys-scheduler.east.persys.local", "_persys-scheduler._tcp.east.persys.local"} {
		east.want(t, answers, name+" SRV", "NOERROR "+strings.Join(ports, " "))
	}
	east.want(t, answers, "persys-scheduler.east.persys.local A", "NOERROR 127.0.0.1")
	east.want(t, answers, "persys-scheduler.east.persys.local AAAA", "NOERROR SOA")
	east.want(t, answers, "scheduler-2.persys-scheduler.east.persys.local A", "NOERROR 127.0.0.1")
	east.want(t, answers, "nobody.east.persys.local A", "NXDOMAIN SOA")
	east.want(t, answers, "node-a.east.agents.persys.cloud A", "NOERROR 127.0.0.21")
	east.want(t, answers, "node-b.east.agents.persys.cloud A", "NOERROR 127.0.0.22")
	west0 := west.agree(t, coredns, "at first", "node-a", "node-b")
	west.want(t, west0, "_persys-scheduler._tcp.west.persys.local SRV", "NOERROR ::1:"+front)
	for _, name := range []string{"persys-scheduler", "scheduler-1.persys-scheduler"} {
		west.want(t, west0, name+".west.persys.local AAAA", "NOERROR ::1")
		west.want(t, west0, name+".west.persys.local A", "NOERROR SOA")
	}
	west.want(t, west0, "node-a.west.agents.persys.cloud AAAA", "NOERROR ::1")
	west.want(t, west0, "node-a.west.agents.persys.cloud A", "NOERROR SOA")
	west.want(t, west0, "node-b.west.agents.persys.cloud AAAA", "NXDOMAIN SOA")

	t.Run("a node of the other cluster", func(t *testing.T) { foreignNodes(t, east, west, b) })

	t.Run("workloads and nodes that are removed", func(t *testing.T) {
		admin := got[clusterv1.ClusterClient](t)(east.AnyAdmin(t.Context()))
		must(t, b.Kill())
		must(t, east.WaitNode(t.Context(), b.NodeID, "NotReady", settle))
		east.want(t, east.agree(t, coredns, "with a node lost", b.NodeID), "node-b.east.agents.persys.cloud A", "NOERROR 127.0.0.22")
		_, err := admin.RemoveNode(t.Context(), &clusterv1.RemoveNodeRequest{NodeId: b.NodeID, Force: true})
		must(t, err)
		gone := east.Schedulers[2]
		_, err = admin.RemoveReplica(t.Context(), &clusterv1.RemoveReplicaRequest{Replica: gone.Name})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), settle)
		defer cancel()
		_, err = gone.Wait(ctx)
		must(t, err)
		var answers map[string]string
		must(t, testbed.Poll(t.Context(), settle, "the records' removal", func(context.Context) error {
			answers = east.agree(t, coredns, "after the removals", a.NodeID, b.NodeID)
			if answers[gone.Name+".persys-scheduler.east.persys.local A"] != "NXDOMAIN SOA" || answers["node-b.east.agents.persys.cloud A"] != "NXDOMAIN SOA" {
				return fmt.Errorf("CoreDNS still answers %v", answers)
			}
			return nil
		}))
		if strings.Contains(answers["_persys-scheduler._tcp.east.persys.local SRV"], gone.GRPC) {
			t.Errorf("DNS still lists the replica that was removed: %v", answers)
		}
		if now := west.agree(t, coredns, "after the removals", "node-a", "node-b"); fmt.Sprint(now) != fmt.Sprint(west0) {
			t.Errorf("the answers for the other cluster must stay, but they are %v, before: %v", now, west0)
		}
	})

	t.Run("CoreDNS killed, and back", func(t *testing.T) {
		// While etcd had no records, the scheduler may have reported CoreDNS as unreachable. Wait until the
		// scheduler reports that CoreDNS is back.
		must(t, testbed.Poll(t.Context(), settle, "the scheduler to notice that CoreDNS is back", func(ctx context.Context) error {
			leader, err := east.WaitLeader(ctx, electionLimit)
			if err != nil {
				return err
			}
			if up, err := harness.Metric(ctx, east.Schedulers[leader].HTTP, `persys_scheduler_coredns_up{server="`+coredns.Addr+`"}`); err != nil || up != 1 {
				return fmt.Errorf("the metric persys_scheduler_coredns_up is %v, %v", up, err)
			}
			return nil
		}))
		lost := count(t, east.Cluster, "CoreDNSLost")
		must(t, coredns.Kill())
		awaitChangeEvents(t, east, coredns.Addr, "CoreDNSLost", lost+1)
		must(t, coredns.Start())
		must(t, harness.WaitListening(t.Context(), coredns, settle))
		awaitChangeEvents(t, east, coredns.Addr, "CoreDNSBack", lost+1)
		if n := count(t, east.Cluster, "CoreDNSLost"); n != lost+1 {
			t.Errorf("the loss of CoreDNS caused %d events, want 1", n-lost)
		}
	})

	t.Run("CoreDNS and etcd are down", func(t *testing.T) {
		leader := got[int](t)(east.WaitLeader(t.Context(), electionLimit))
		before, err := east.Schedulers[leader].Output()
		must(t, err)
		must(t, coredns.Kill())
		must(t, etcd.Kill())
		must(t, testbed.Poll(t.Context(), settle, "a warning", func(context.Context) error {
			text, err := east.Schedulers[leader].Output()
			if err != nil {
				return err
			}
			for line := range strings.Lines(text[len(before):]) {
				if strings.Contains(line, "level=WARN") && strings.Contains(line, "etcd") {
					return nil
				}
			}
			return errors.New("the log has no warning about etcd")
		}))
		for _, s := range []*shard{east, west} {
			for _, r := range s.Schedulers {
				if !r.Running() {
					continue
				}
				qtype, want := dns.TypeA, "NOERROR 127.0.0.1"
				if s == west {
					qtype, want = dns.TypeAAAA, "NOERROR ::1"
				}
				answer, err := said(t.Context(), r.DNS, "persys-scheduler."+s.domain+".", qtype)
				must(t, err)
				if answer != want {
					t.Errorf("the DNS server of scheduler %s, shard %s, answers %q, which differs from the answer of CoreDNS", r.Name, s.key, answer)
				}
			}
		}
		must(t, etcd.Start())
		must(t, coredns.Start())
		must(t, harness.WaitListening(t.Context(), coredns, settle))
		// After the outage, add a node. For it and for all other names, CoreDNS must answer from etcd as the
		// schedulers do.
		extra := got[*harness.Agent](t)(east.StartAgent(t.Context(), at("127.0.0.23")))
		east.want(t, east.agree(t, coredns, "after the outage", extra.NodeID), extra.NodeID+".east.agents.persys.cloud A", "NOERROR 127.0.0.23")
		for id, was := range w.before {
			if was.GetAssignedNodeId() != a.NodeID {
				continue
			}
			if runs := runsOf(t, east.Cluster, id); len(runs) != 1 || runs[0].To != 0 {
				t.Errorf("workload %s was restarted or moved: %+v", id, runs)
			}
		}
	})
}

// advertised makes a scheduler advertise an address, an address family and a port other than those on which
// it listens. A relay listens at the advertised address, as a load balancer or a port mapping would. It
// returns the port and a counter of the connections through the relay. The scheduler must not run yet.
func advertised(t *testing.T, s *harness.Scheduler) (port string, passed *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	must(t, err)
	_, port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	six := func(addr string) string {
		_, port, err := net.SplitHostPort(addr)
		must(t, err)
		return net.JoinHostPort("::1", port)
	}
	set(s.Process, map[string]string{
		"SCHEDULER_ADVERTISE_IP": "::1", "SCHEDULER_ADVERTISE_PORT": port,
		// Other replicas dial the advertised address at other ports, for Raft and gossip.
		"SCHEDULER_RAFT_ADDR": six(s.Raft), "SCHEDULER_GOSSIP_ADDR": six(s.Gossip), "SCHEDULER_JOIN": six(s.Gossip),
	})
	passed = new(atomic.Int64)
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", s.GRPC)
			if err != nil {
				_ = in.Close()
				continue
			}
			passed.Add(1)
			// If one side closes its connection, both are closed.
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				relays.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		_ = s.Kill() // the relays end when the scheduler closes its connections
		relays.Wait()
	})
	return port, passed
}

// TestCoreDNSOneDomain: two clusters with the same DOMAIN share one etcd, and each has a CoreDNS. Each
// CoreDNS serves the schedulers of its own cluster, and the nodes of both clusters under their shards. A
// change in one cluster does not change the DNS answers about the other. If a cluster is configured with the
// address of the other cluster's CoreDNS, it reports this mistake.
func TestCoreDNSOneDomain(t *testing.T) {
	dir := t.TempDir()
	etcd := part(t, func() (*harness.Part, error) { return harness.Etcd(t.Context(), dir) })
	east := &shard{key: "east", domain: "persys.local", agents: "agents.persys.cloud"}
	west := &shard{key: "west", domain: "persys.local", agents: "agents.persys.cloud"}
	corefile := filepath.Join(got[string](t)(testbed.Root(t.Context())), "deploy", "coredns", "Corefile.one-domain")
	coredns := part(t, func() (*harness.Part, error) {
		return harness.CoreDNSFrom(t.Context(), dir, corefile, map[string]string{
			"ETCD_ENDPOINT": "http://" + etcd.Addr, "EAST_IP": "127.0.0.1", "WEST_IP": "127.0.0.2",
		})
	})
	must(t, etcd.Start())
	must(t, harness.WaitEtcd(t.Context(), etcd, settle))
	must(t, coredns.Start())
	must(t, harness.WaitListening(t.Context(), coredns, settle))
	_, port, err := net.SplitHostPort(coredns.Addr)
	must(t, err)
	other := &harness.Part{Process: coredns.Process, Addr: net.JoinHostPort("127.0.0.2", port)}

	bin := shipped(t)
	east.Cluster = start(t, harness.Options{Binaries: bin, Schedulers: 1, SchedulerEnv: fast(east.env(etcd))})
	at := func(ip string) harness.AgentOptions {
		return harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_GRPC_ADDR": ip}}
	}
	got[*harness.Agent](t)(east.StartAgent(t.Context(), at("127.0.0.21")))
	eastAlone := east.agree(t, coredns, "alone", "node-a")
	east.want(t, eastAlone, "_persys-scheduler._tcp.persys.local SRV", "NOERROR "+east.Schedulers[0].GRPC)

	env := fast(west.env(etcd))
	env["SCHEDULER_COREDNS_ADDR"] = coredns.Addr // this address is the one of the other cluster's CoreDNS
	west.Cluster = start(t, harness.Options{Binaries: bin, Schedulers: 1, SchedulerEnv: env})
	got[*harness.Agent](t)(west.StartAgent(t.Context(), at("127.0.0.31")))
	b := got[*harness.Agent](t)(west.StartAgent(t.Context(), at("127.0.0.32")))
	answers := west.agree(t, other, "at first", "node-a", "node-b")
	west.want(t, answers, "_persys-scheduler._tcp.persys.local SRV", "NOERROR "+west.Schedulers[0].GRPC)
	west.want(t, answers, "node-a.west.agents.persys.cloud A", "NOERROR 127.0.0.31")
	awaitChangeEvents(t, west, coredns.Addr, "CoreDNSLost", 1)
	if text := got[string](t)(west.Schedulers[0].Output()); !strings.Contains(text, "lists only schedulers of another cluster") {
		t.Error("no log line says that the watched CoreDNS belongs to another cluster")
	}

	// Both CoreDNS servers must answer queries for the nodes of both clusters.
	for _, server := range []string{coredns.Addr, other.Addr} {
		for name, want := range map[string]string{
			"node-a.east.agents.persys.cloud.": "NOERROR 127.0.0.21", "node-a.west.agents.persys.cloud.": "NOERROR 127.0.0.31",
			"node-b.east.agents.persys.cloud.": "NXDOMAIN SOA", "node-b.west.agents.persys.cloud.": "NOERROR 127.0.0.32",
		} {
			answer, err := said(t.Context(), server, name, dns.TypeA)
			must(t, err)
			if answer != want {
				t.Errorf("%s answers %q for %s, want %q", server, answer, name, want)
			}
		}
	}
	// A client that looks up the schedulers in one of the CoreDNS servers finds the cluster of that
	// CoreDNS.
	for server, s := range map[string]*shard{coredns.Addr: east, other.Addr: west} {
		st, err := s.Status(t.Context(), 0)
		must(t, err)
		if text := ctlAt(t, s.Cluster, "srv://persys.local?dns="+server, "status"); !strings.Contains(text, st.GetClusterId()) {
			t.Errorf("through the name server %s persysctl finds\n%s\nwant cluster %s", server, text, st.GetClusterId())
		}
	}

	_, err = got[clusterv1.ClusterClient](t)(west.AnyAdmin(t.Context())).RemoveNode(t.Context(), &clusterv1.RemoveNodeRequest{NodeId: b.NodeID, Force: true})
	must(t, err)
	must(t, b.Kill())
	must(t, testbed.Poll(t.Context(), settle, "the record's removal", func(context.Context) error {
		if answers := west.agree(t, other, "after the removal", b.NodeID); answers[b.NodeID+".west.agents.persys.cloud A"] != "NXDOMAIN SOA" {
			return fmt.Errorf("CoreDNS still answers %v", answers)
		}
		return nil
	}))
	if now := east.agree(t, coredns, "while cluster west runs beside it", "node-a"); fmt.Sprint(now) != fmt.Sprint(eastAlone) {
		t.Errorf("the answers for cluster east must not change when cluster west starts, but they are %v, before: %v", now, eastAlone)
	}
}

// count returns how many events of the given type the cluster has recorded.
func count(t *testing.T, c *harness.Cluster, kind string) int {
	t.Helper()
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	events, err := admin.Events(ctx, &clusterv1.EventsRequest{})
	must(t, err)
	n := 0
	for {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return n
		}
		must(t, err)
		if e.GetType() == kind {
			n++
		}
	}
}

// awaitChangeEvents waits until the leader has noticed the given number of times that a CoreDNS server was
// lost or has come back: by that many events, a line in the leader's log and a change of the metric.
func awaitChangeEvents(t *testing.T, s *shard, server, kind string, times int) {
	t.Helper()
	line, up := "CoreDNS is back", 1.0
	if kind == "CoreDNSLost" {
		line, up = "CoreDNS does not answer correctly", 0
	}
	must(t, testbed.Poll(t.Context(), settle, kind, func(ctx context.Context) error {
		if n := count(t, s.Cluster, kind); n < times {
			return fmt.Errorf("%d events, want %d", n, times)
		}
		leader, err := s.WaitLeader(ctx, electionLimit)
		if err != nil {
			return err
		}
		if now, err := harness.Metric(ctx, s.Schedulers[leader].HTTP, `persys_scheduler_coredns_up{server="`+server+`"}`); err != nil || now != up {
			return fmt.Errorf("the metric persys_scheduler_coredns_up is %v, %v", now, err)
		}
		for _, r := range s.Schedulers {
			if text, err := r.Output(); err == nil && strings.Contains(text, line) {
				return nil
			}
		}
		return errors.New("no scheduler's log has the line " + line)
	}))
}

// foreignNodes checks that a node of one cluster or shard is refused by the schedulers of another,
// that it logs the reason, and that the other cluster has no record of it.
func foreignNodes(t *testing.T, east, west *shard, member *harness.Agent) {
	ids := func(s *shard) string {
		st, err := s.Status(t.Context(), 0)
		must(t, err)
		return st.GetClusterId()
	}
	idEast, idWest := ids(east), ids(west)
	old := member.Env
	must(t, member.Kill())
	set(member.Process, map[string]string{"PERSYS_SCHEDULER_ADDR": west.Schedulers[0].GRPC})
	must(t, member.Start())
	says := func(p *harness.Process, want ...string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, p.Name+"'s complaint", func(context.Context) error {
			text, err := p.Output()
			if err != nil {
				return err
			}
			for line := range strings.Lines(text) {
				if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(line, w) }) {
					return nil
				}
			}
			return fmt.Errorf("the agent's log has no line with %q:\n%s", want, p.Tail(5))
		}))
	}
	says(member.Process, "node-b belongs to cluster "+idEast, "this is cluster "+idWest)
	must(t, member.Kill())
	member.Env = old
	must(t, member.Start())
	must(t, east.WaitNode(t.Context(), member.NodeID, "Ready", settle))

	fresh := got[*harness.Agent](t)(west.NewAgent(harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_SCHEDULER_SHARD": "east"}}))
	must(t, fresh.Start())
	says(fresh.Process, fresh.NodeID+" belongs to shard east", "this is shard west of cluster "+idWest)
	must(t, fresh.Kill())

	control, err := west.Status(t.Context(), 0)
	must(t, err)
	if control.GetNodes() != 1 {
		t.Errorf("the other cluster has %d nodes, want its own one", control.GetNodes())
	}
}
