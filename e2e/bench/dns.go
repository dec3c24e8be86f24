package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/e2e/harness"
)

// namers are the two DNS servers that are compared: that of Persys, and CoreDNS with its file plugin. Each is a process
// that serves the same names on as many sockets as there are CPUs.
type namers struct {
	zone         string // zone file that CoreDNS serves
	ours, theirs string // addresses of the two DNS servers
	serial       int

	cmd     *exec.Cmd
	orders  io.WriteCloser
	replies *bufio.Scanner
	coredns *harness.Part
}

const dnsPatience = 60 * time.Second

// startNamers starts both servers at the first call.
func (e *env) startNamers(ctx context.Context) (*namers, error) {
	if e.namers != nil {
		return e.namers, nil
	}
	dir, err := e.folder()
	if err != nil {
		return nil, err
	}
	n := &namers{zone: filepath.Join(dir, "zone"), serial: 1}
	if err := writeZone(n.zone, n.serial, -1, ""); err != nil {
		return nil, err
	}
	if err := n.start(ctx, dir); err != nil {
		n.close()
		return nil, err
	}
	e.namers = n
	return n, nil
}

func (n *namers) start(ctx context.Context, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.cmd = exec.Command(self, serveDNSArg)
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if n.orders, err = n.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	n.replies = bufio.NewScanner(out)
	if err := n.cmd.Start(); err != nil {
		return err
	}
	// Give CoreDNS one socket for each CPU, with which it is fastest; the DNS server of Persys has as many.
	block := harness.Block{Zones: []string{dnsDomain},
		Config: fmt.Sprintf("\tmultisocket %d\n\tfile %s {\n\t\treload 100ms\n\t}", runtime.GOMAXPROCS(0), n.zone)}
	if n.coredns, err = harness.CoreDNS(ctx, dir, block); err != nil {
		return err
	}
	if err := n.coredns.Start(); err != nil {
		return err
	}
	n.theirs = n.coredns.Addr
	if n.ours, err = n.reply(); err != nil {
		return err
	}
	if err := harness.WaitListening(ctx, n.coredns, dnsPatience); err != nil {
		return err
	}
	return n.compare(ctx)
}

func (n *namers) reply() (string, error) {
	if !n.replies.Scan() {
		return "", fmt.Errorf("the DNS server of Persys has ended: %w", errors.Join(n.replies.Err(), io.ErrUnexpectedEOF))
	}
	return n.replies.Text(), nil
}

func (n *namers) close() {
	if n.orders != nil {
		n.orders.Close()
	}
	if n.cmd != nil && n.cmd.Process != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
	}
	if n.coredns != nil {
		_ = n.coredns.Kill()
	}
}

// compare asks both servers the same questions and returns an error if the answers differ, because the
// benchmark would then be unfair.
func (n *namers) compare(ctx context.Context) error {
	ask := func(addr, name string, qtype uint16) (string, error) {
		q := new(dns.Msg).SetQuestion(name, qtype)
		q.SetEdns0(1232, false)
		m, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(ctx, q, addr)
		if err != nil {
			return "", err
		}
		var text []string
		for _, rr := range append(m.Answer, m.Extra...) {
			if rr.Header().Rrtype != dns.TypeOPT {
				text = append(text, strings.Join(strings.Fields(rr.String()), " "))
			}
		}
		slices.Sort(text)
		return fmt.Sprint(m.Rcode, text), nil
	}
	for i := 0; i < dnsWorkloads; i += 499 {
		for _, q := range []struct {
			name  string
			qtype uint16
		}{{workloadHost(i), dns.TypeA}, {workloadSRV(i), dns.TypeSRV}, {nodeHost(i % dnsNodes), dns.TypeA}, {"no." + workloadHost(i), dns.TypeA}} {
			ours, err := ask(n.ours, q.name, q.qtype)
			if err != nil {
				return err
			}
			theirs, err := ask(n.theirs, q.name, q.qtype)
			if err != nil {
				return err
			}
			if ours != theirs {
				return fmt.Errorf("for %s the DNS server of Persys answers %s, but CoreDNS %s", q.name, ours, theirs)
			}
		}
	}
	return nil
}

func dnsA(ctx context.Context, e *env) (result, error) {
	return dnsPeak(ctx, e, dns.TypeA, workloadHost, 2)
}

func dnsSRV(ctx context.Context, e *env) (result, error) {
	return dnsPeak(ctx, e, dns.TypeSRV, workloadSRV, 2.5)
}

// dnsPeak compares the highest rate of answers of the two DNS servers. They are measured in turns, so that other load
// of the machine affects both.
func dnsPeak(ctx context.Context, e *env, qtype uint16, name func(int) string, goal float64) (result, error) {
	n, err := e.startNamers(ctx)
	if err != nil {
		return result{}, err
	}
	questions, err := packQuestions(qtype, name)
	if err != nil {
		return result{}, err
	}
	const rounds = 5
	var ours, theirs dnsSide
	for range rounds {
		if err := ours.round(ctx, n.ours, n.cmd.Process.Pid, questions); err != nil {
			return result{}, err
		}
		if err := theirs.round(ctx, n.theirs, n.coredns.PID(), questions); err != nil {
			return result{}, err
		}
	}
	return result{ours: ours.best(), peer: theirs.best(), unit: "queries_per_s", goal: goal, goalIsRatio: true,
		note: fmt.Sprintf("best of %d turns of %s; CPU per answer %s, CoreDNS %s; lost %d, CoreDNS %d", rounds, dnsTurn,
			ours.perAnswer(), theirs.perAnswer(), ours.lost, theirs.lost)}, nil
}

const dnsTurn = time.Second

// dnsSide holds the measurements of one of the two servers, that of Persys or CoreDNS.
type dnsSide struct {
	rates []float64
	lost  int64
	cpu   []time.Duration // CPU time per answer
}

func (s *dnsSide) round(ctx context.Context, addr string, pid int, questions [][]byte) error {
	before := cpuOf(pid)
	rate, lost, err := peak(ctx, addr, questions, dnsTurn)
	if err != nil {
		return err
	}
	// The warm-up is a quarter of the turn.
	answers := rate * dnsTurn.Seconds() * 1.25
	s.rates, s.lost = append(s.rates, rate), s.lost+lost
	s.cpu = append(s.cpu, time.Duration((cpuOf(pid)-before)/answers*1e9))
	return nil
}

func (s *dnsSide) best() float64 { return slices.Max(s.rates) }

func (s *dnsSide) perAnswer() time.Duration { return middle(s.cpu).Round(100 * time.Nanosecond) }

func middle(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// dnsTail measures the 99th percentile of the delay of answers while a server gets questions at half of its
// peak rate. It does so for A and for SRV questions and returns the worse of the two. Each figure is the
// best of several turns, because other load of the machine can only increase it.
func dnsTail(ctx context.Context, e *env) (result, error) {
	n, err := e.startNamers(ctx)
	if err != nil {
		return result{}, err
	}
	var out result
	var notes []string
	for _, q := range []struct {
		what  string
		qtype uint16
		name  func(int) string
	}{{"A", dns.TypeA, workloadHost}, {"SRV", dns.TypeSRV, workloadSRV}} {
		questions, err := packQuestions(q.qtype, q.name)
		if err != nil {
			return result{}, err
		}
		ours, err := tailAt(ctx, n.ours, questions)
		if err != nil {
			return result{}, err
		}
		theirs, err := tailAt(ctx, n.theirs, questions)
		if err != nil {
			return result{}, err
		}
		out.ours = max(out.ours, ours.p99.Seconds()*1e3)
		out.peer = max(out.peer, theirs.p99.Seconds()*1e3)
		notes = append(notes, fmt.Sprintf("%s: p50 %s p99 %s (read %s) at %.0f/s, CoreDNS p50 %s p99 %s (read %s) at %.0f/s", q.what,
			ours.p50, ours.p99, ours.read, ours.rate, theirs.p50, theirs.p99, theirs.read, theirs.rate))
	}
	out.unit, out.goal, out.lower = "ms", 1, true
	out.note = strings.Join(notes, "; ")
	return out, nil
}

// tail holds, for each question, the delay until the answer arrived at the socket of the load generator.
type tail struct {
	p50, p99 time.Duration
	read     time.Duration // 99th percentile until the generator has read the answer; it includes the generator's wait for a CPU
	rate     float64
}

func tailAt(ctx context.Context, addr string, questions [][]byte) (tail, error) {
	top := 0.0
	for range 2 {
		rate, _, err := peak(ctx, addr, questions, dnsTurn)
		if err != nil {
			return tail{}, err
		}
		top = max(top, rate)
	}
	const turns = 12
	best := tail{p99: dnsLost}
	for range turns {
		t, err := paced(ctx, addr, questions, top/2, dnsTurn/2)
		if err != nil {
			return tail{}, err
		}
		if t.p99 <= best.p99 {
			best = t
		}
	}
	for _, d := range []*time.Duration{&best.p50, &best.p99, &best.read} {
		*d = d.Round(time.Microsecond)
	}
	return best, nil
}

// dnsChange measures the time from the commit of a change to the first answer with the change, as the 99th
// percentile. It measures this once for one server with the full state, and once for the slowest of three
// replicas. The result is the higher of these two figures. CoreDNS gets the change as a new zone file.
func dnsChange(ctx context.Context, e *env) (result, error) {
	n, err := e.startNamers(ctx)
	if err != nil {
		return result{}, err
	}
	ours, err := n.changes(ctx, 300)
	if err != nil {
		return result{}, err
	}
	theirs, err := n.peerChanges(ctx, 3)
	if err != nil {
		return result{}, err
	}
	replicas, err := replicaChanges(ctx, e, 60)
	if err != nil {
		return result{}, err
	}
	return result{ours: max(late(ours), late(replicas)), peer: middle(theirs).Seconds() * 1e3, unit: "ms", goal: 50, lower: true,
		note: fmt.Sprintf("a large zone: p99 %.1f ms, median %s; the slowest of three idle replicas: p99 %.1f ms, median %s; the peer's file of %d names is written and loaded anew; CoreDNS checks it every 100 ms",
			late(ours), middle(ours).Round(10*time.Microsecond), late(replicas), middle(replicas).Round(10*time.Microsecond), 2*(dnsNodes+dnsWorkloads))}, nil
}

// late returns the 99th percentile of the delays d, in milliseconds.
func late(d []time.Duration) float64 {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)*99/100].Seconds() * 1e3
}

func (n *namers) changes(ctx context.Context, count int) ([]time.Duration, error) {
	var out []time.Duration
	for i := range count {
		w, ip := i*7919%dnsWorkloads, fmt.Sprintf("192.0.2.%d", 1+i%200)
		if _, err := fmt.Fprintf(n.orders, "move %d %s\n", w, ip); err != nil {
			return nil, err
		}
		seen, err := awaitA(ctx, n.ours, workloadHost(w), ip)
		if err != nil {
			return nil, err
		}
		text, err := n.reply()
		if err != nil {
			return nil, err
		}
		var at int64
		if _, err := fmt.Sscan(text, &at); err != nil {
			return nil, err
		}
		out = append(out, seen.Sub(time.Unix(0, at)))
	}
	return out, nil
}

func (n *namers) peerChanges(ctx context.Context, count int) ([]time.Duration, error) {
	var out []time.Duration
	for i := range count {
		n.serial++
		began, ip := time.Now(), fmt.Sprintf("192.0.2.%d", 1+i)
		if err := writeZone(n.zone, n.serial, i, ip); err != nil {
			return nil, err
		}
		seen, err := awaitA(ctx, n.theirs, workloadHost(i), ip)
		if err != nil {
			return nil, err
		}
		out = append(out, seen.Sub(began))
	}
	return out, nil
}

// replicaChanges registers a node at the leader of three idle replicas and waits until the DNS servers of
// all three answer with it. Then it removes the node and waits until none does. A follower learns of a
// commit later than the leader. The delay is longest if no log entry follows, as after a removal.
func replicaChanges(ctx context.Context, e *env, count int) ([]time.Duration, error) {
	var out []time.Duration
	_, err := withGroup(ctx, e, func(g *group) (r result, err error) {
		out, err = g.dnsChanges(ctx, count)
		return r, err
	})
	return out, err
}

func (g *group) dnsChanges(ctx context.Context, count int) ([]time.Duration, error) {
	leader, err := g.leader(ctx)
	if err != nil {
		return nil, err
	}
	control, err := g.Control(leader.Index)
	if err != nil {
		return nil, err
	}
	admin, err := g.Admin(leader.Index)
	if err != nil {
		return nil, err
	}
	// everywhere returns the time until all replicas answer with ip, or with no address if it is "".
	everywhere := func(id, ip string) (time.Duration, error) {
		acked := time.Now()
		seen := make([]time.Time, len(g.Schedulers))
		errs := make([]error, len(g.Schedulers))
		var wg sync.WaitGroup
		for r, p := range g.Schedulers {
			wg.Go(func() {
				seen[r], errs[r] = awaitA(ctx, p.DNS, id+".default."+dnsserver.DefaultAgentsDomain+".", ip)
			})
		}
		wg.Wait()
		return slices.MaxFunc(seen, time.Time.Compare).Sub(acked), errors.Join(errs...)
	}
	var out []time.Duration
	for i := range count {
		id, ip := fmt.Sprint("new-", i), fmt.Sprintf("192.0.2.%d", 1+i)
		for _, change := range []func(context.Context) error{
			func(ctx context.Context) error {
				reply, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{
					NodeId: id, GrpcEndpoint: ip + ":50051", Timestamp: timestamppb.Now(),
					Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1000, MemoryTotalMb: 1024, SupportedWorkloadTypes: []string{"container"}},
				})
				if err == nil && !reply.GetAccepted() {
					err = errors.New(reply.GetReason())
				}
				return err
			},
			func(ctx context.Context) error {
				ip = ""
				_, err := admin.RemoveNode(ctx, &clusterv1.RemoveNodeRequest{NodeId: id, Force: true})
				return err
			},
		} {
			wait(ctx, 150*time.Millisecond) // wait until the cluster is idle, so that no later entry tells the followers that this entry is committed
			cctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			err := change(cctx)
			cancel()
			if err != nil {
				return nil, err
			}
			d, err := everywhere(id, ip)
			if err != nil {
				return nil, err
			}
			out = append(out, d)
		}
	}
	return out, nil
}

// awaitA repeats an A query until the answer is ip, or has no address if ip is empty. It returns the time of
// that answer.
func awaitA(ctx context.Context, addr, name, ip string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsPatience)
	defer cancel()
	want := net.ParseIP(ip)
	c := &dns.Client{Timeout: time.Second}
	conn, err := c.DialContext(ctx, addr)
	if err != nil {
		return time.Time{}, err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		m, _, err := c.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), conn)
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			continue // the query failed: a server that is loading its zone file may be slow
		}
		if err != nil {
			return time.Time{}, err
		}
		if ip == "" && m.Rcode == dns.RcodeNameError {
			return time.Now(), nil
		}
		if len(m.Answer) == 1 {
			if a, ok := m.Answer[0].(*dns.A); ok && a.A.Equal(want) {
				return time.Now(), nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("%s never answered %s for %s", addr, ip, name)
}
