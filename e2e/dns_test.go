package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// schedulerTTL is the TTL of the records of schedulers. A change must be visible in DNS within dnsLimit,
// which is the TTL plus the time limit of dig (one second).
const (
	schedulerTTL = 5 * time.Second
	dnsLimit     = schedulerTTL + time.Second
)

// dig asks one server with Debian's dig, over UDP unless args select TCP, and returns the records of the
// answer and the additional section, one line each with single spaces.
func dig(ctx context.Context, server string, args ...string) ([]string, error) {
	host, port, _ := strings.Cut(server, ":")
	cmd := exec.CommandContext(ctx, "dig", append([]string{"@" + host, "-p", port, "+noall", "+answer", "+additional", "+nocookie", "+tries=1", "+time=1"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("dig %s at %s: %w: %s", strings.Join(args, " "), server, err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], ";") {
			lines = append(lines, strings.Join(f, " "))
		}
	}
	return lines, nil
}

// srv is one SRV record of the schedulers.
type srv struct {
	ttl, priority int
	port          string
}

func schedulersAt(ctx context.Context, server string) ([]srv, error) {
	lines, err := dig(ctx, server, "_persys-scheduler._tcp.persys.local", "SRV")
	if err != nil {
		return nil, err
	}
	var out []srv
	for _, l := range lines {
		f := strings.Fields(l) // a line of the zone: name TTL IN SRV priority weight port target
		if len(f) != 8 || f[3] != "SRV" {
			continue
		}
		ttl, err1 := strconv.Atoi(f[1])
		priority, err2 := strconv.Atoi(f[4])
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the DNS server %s answers with the record %q, want an SRV record", server, l)
		}
		out = append(out, srv{ttl, priority, f[6]})
	}
	return out, nil
}

// names waits until the DNS server of the replica with index at returns exactly the schedulers in listed,
// each at its present address, with the leader first.
func names(t *testing.T, c *harness.Cluster, at int, leader int, listed ...int) {
	t.Helper()
	var want []string
	for _, i := range listed {
		_, port, _ := strings.Cut(c.Schedulers[i].GRPC, ":")
		want = append(want, port)
	}
	_, first, _ := strings.Cut(c.Schedulers[leader].GRPC, ":")
	slices.Sort(want)
	began := time.Now()
	must(t, testbed.Poll(t.Context(), dnsLimit, "the expected answer at "+c.Schedulers[at].Name, func(ctx context.Context) error {
		have, err := schedulersAt(ctx, c.Schedulers[at].DNS)
		if err != nil {
			return err
		}
		var ports []string
		for _, s := range have {
			ports = append(ports, s.port)
			if s.ttl > int(schedulerTTL/time.Second) {
				return fmt.Errorf("an SRV record has a TTL of %d s", s.ttl)
			}
			if (s.priority == 10) != (s.port == first) {
				return fmt.Errorf("the leader's port is %s, but the answer begins with %v", first, have)
			}
		}
		slices.Sort(ports)
		if !slices.Equal(ports, want) {
			return fmt.Errorf("the answer names %v, want %v", ports, want)
		}
		return nil
	}))
	t.Logf("the DNS server of %s lists the %d expected schedulers after %s", c.Schedulers[at].Name, len(listed), time.Since(began).Round(time.Millisecond))
}

func indexes(list []*harness.Scheduler) []int {
	out := make([]int, len(list))
	for i, s := range list {
		out[i] = s.Index
	}
	return out
}

// talksTo returns the indexes of the schedulers to whose API a process has an open TCP connection.
func talksTo(c *harness.Cluster, p *harness.Process) ([]int, error) {
	sockets := map[string]bool{}
	dir := fmt.Sprintf("/proc/%d/", p.PID())
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil {
			sockets[to] = true
		}
	}
	table, err := os.ReadFile(dir + "net/tcp")
	if err != nil {
		return nil, err
	}
	var out []int
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "01" || !sockets["socket:["+f[9]+"]"] { // 01 is the state ESTABLISHED in /proc/net/tcp
			continue
		}
		for i, s := range c.Schedulers {
			_, port, _ := strings.Cut(s.GRPC, ":")
			if n, err := strconv.Atoi(port); err == nil && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", n)) && !slices.Contains(out, i) {
				out = append(out, i)
			}
		}
	}
	return out, nil
}

// undisturbedSet holds workloads that must keep running on their nodes while the test causes faults.
type undisturbedSet struct {
	t      *testing.T
	c      *harness.Cluster
	before map[string]*controlv1.WorkloadView
}

func startUndisturbed(t *testing.T, c *harness.Cluster, n int) *undisturbedSet {
	t.Helper()
	w := &undisturbedSet{t, c, map[string]*controlv1.WorkloadView{}}
	for i := range n {
		apply(t, c, fmt.Sprintf("calm-%d", i), container("persys/any:1"))
	}
	for i := range n {
		id := fmt.Sprintf("calm-%d", i)
		w.before[id] = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	return w
}

// undisturbed checks that no agent was without contact for longer than its lease, that no node became
// NotReady, and that no workload moved or restarted.
func (w *undisturbedSet) undisturbed(after string) {
	w.t.Helper()
	for _, a := range w.c.Agents {
		text, err := a.Output()
		must(w.t, err)
		if strings.Contains(text, "the lease has ended; registering again") {
			w.t.Errorf("after %s: agent %s was without contact for longer than its lease", after, a.NodeID)
		}
		must(w.t, w.c.WaitNode(w.t.Context(), a.NodeID, "Ready", settle))
	}
	admin := got[clusterv1.ClusterClient](w.t)(w.c.AnyAdmin(w.t.Context()))
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	events, err := admin.Events(ctx, &clusterv1.EventsRequest{})
	must(w.t, err)
	for {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(w.t, err)
		if e.GetType() == "NodeLost" {
			w.t.Errorf("after %s no node may lose its lease, but node %s was lost at %s: %s", after, e.GetNodeId(), e.GetAt().AsTime(), e.GetMessage())
		}
	}
	for id, was := range w.before {
		now := got[*controlv1.WorkloadView](w.t)(w.c.WaitWorkload(w.t.Context(), id, settle, running))
		if now.GetAssignedNodeId() != was.GetAssignedNodeId() || now.GetGeneration().GetSequence() != was.GetGeneration().GetSequence() {
			w.t.Errorf("after %s workload %s is on node %s in generation %d, want it unchanged on node %s in generation %d", after, id,
				now.GetAssignedNodeId(), now.GetGeneration().GetSequence(), was.GetAssignedNodeId(), was.GetGeneration().GetSequence())
		}
		if runs := runsOf(w.t, w.c, id); len(runs) != 1 || runs[0].To != 0 {
			w.t.Errorf("after %s: workload %s was restarted or moved: %+v", after, id, runs)
		}
	}
}

// TestDiscoverySurvives: agents that are given only an SRV name stay in contact, and DNS stays correct, while
// schedulers die, lose their DNS server and move, one at a time.
func TestDiscoverySurvives(t *testing.T) {
	testbed.Program(t, "dig")
	// The lease is one second longer than in other tests, because the race detector is slow on a busy machine.
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": "4s"})})
	var servers []string
	for _, s := range c.Schedulers {
		servers = append(servers, s.DNS)
	}
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: map[string]string{
			"PERSYS_SCHEDULER_ADDR":      "",
			"PERSYS_SCHEDULER_DISCOVERY": "srv://persys.local?dns=" + strings.Join(servers, ","),
		}}))
	}
	w := startUndisturbed(t, c, 4)
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	for i := range c.Schedulers {
		names(t, c, i, leader, 0, 1, 2)
	}

	// down kills a scheduler, checks the DNS answers of the other schedulers, and starts the killed
	// scheduler again.
	down := func(what string, i int) {
		t.Helper()
		must(t, c.Schedulers[i].Kill())
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		rest := indexes(others(c, i))
		for _, j := range rest {
			names(t, c, j, leader, rest...)
		}
		w.undisturbed(what)
		must(t, c.Schedulers[i].Start())
		must(t, c.WaitReady(t.Context(), settle))
		names(t, c, rest[0], got[int](t)(c.WaitLeader(t.Context(), electionLimit)), 0, 1, 2)
	}
	down("the leader's death", leader)

	var spoken []int
	must(t, testbed.Poll(t.Context(), settle, "an agent's connection", func(context.Context) (err error) {
		if spoken, err = talksTo(c, c.Agents[0].Process); err == nil && len(spoken) == 0 {
			err = fmt.Errorf("the agent has no connection")
		}
		return err
	}))
	down("the death of the replica that an agent is connected to", spoken[0])

	t.Run("one replica has no DNS server", func(t *testing.T) {
		s := c.Schedulers[0] // the first configured address, which agents dial first
		must(t, s.Kill())
		set(s.Process, map[string]string{"SCHEDULER_DNS_ADDR": "none"})
		must(t, s.Start())
		must(t, c.WaitReady(t.Context(), settle))
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		names(t, c, 1, leader, 0, 1, 2)
		must(t, testbed.Poll(t.Context(), dnsLimit, "the name servers", func(ctx context.Context) error {
			lines, err := dig(ctx, c.Schedulers[1].DNS, "persys.local", "NS")
			if text := strings.Join(lines, "\n"); err == nil &&
				(strings.Contains(text, "scheduler-1.") || !strings.Contains(text, "scheduler-2.") || !strings.Contains(text, "scheduler-3.")) {
				err = fmt.Errorf("the name servers are\n%s", text)
			}
			return err
		}))
		w.undisturbed("the loss of one replica's DNS")
	})

	t.Run("all schedulers change their addresses", func(t *testing.T) {
		for _, s := range c.Schedulers {
			must(t, s.Terminate(20*time.Second))
			rest := indexes(others(c, s.Index))
			stays := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
			for _, i := range rest { // the records no longer list a scheduler that leaves
				names(t, c, i, stays, rest...)
			}
			must(t, c.Readdress(s))
			must(t, s.Start())
			must(t, c.WaitReady(t.Context(), settle))
			leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
			for i := range c.Schedulers {
				names(t, c, i, leader, 0, 1, 2)
			}
		}
		w.undisturbed("the move of all schedulers")
		// All schedulers have moved. The agents must stay in contact, although no scheduler has one of the
		// addresses in their settings any more.
		must(t, c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), electionLimit))].Kill())
		got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		w.undisturbed("the death of a leader that has moved")
		// Restart the agents. They must find the schedulers, although no scheduler has an address from their
		// settings.
		for _, a := range c.Agents {
			must(t, a.Restart())
		}
		for _, a := range c.Agents {
			must(t, testbed.Poll(t.Context(), settle, a.NodeID+" registering again", func(context.Context) error {
				text, err := a.Output()
				if err == nil && !strings.Contains(text[strings.LastIndex(text, "using the addresses in the cache file")+1:], "msg=registered") {
					err = fmt.Errorf("the agent has logged:\n%s", a.Tail(5))
				}
				return err
			}))
		}
		w.undisturbed("a restart of the agents")
	})
}

// TestARestartedReplicaForgetsADeadOne: a replica that starts while another replica is dead does not list the
// dead replica after the TTL, although it has never seen that replica alive. When the dead replica has
// returned, the other one must list it again.
func TestARestartedReplicaForgetsADeadOne(t *testing.T) {
	testbed.Program(t, "dig")
	c := start(t, harness.Options{Binaries: shipped(t), SchedulerEnv: fast(nil)})
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	rest := indexes(others(c, leader))
	again, dead := c.Schedulers[rest[0]], c.Schedulers[rest[1]]
	must(t, dead.Kill())
	must(t, again.Kill())
	must(t, again.Start())
	// Wait until the restarted replica knows a leader. Until then, the former leader may still consider itself
	// the leader, although it has lost its quorum.
	must(t, testbed.Poll(t.Context(), electionLimit, "a leader at the restarted replica", func(ctx context.Context) error {
		st, err := c.Status(ctx, again.Index)
		if err == nil && st.GetLeaderId() == "" {
			err = errors.New("the replica knows no leader")
		}
		return err
	}))
	leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	names(t, c, again.Index, leader, indexes(others(c, dead.Index))...)
	must(t, dead.Start())
	must(t, c.WaitReady(t.Context(), settle))
	names(t, c, again.Index, got[int](t)(c.WaitLeader(t.Context(), electionLimit)), 0, 1, 2)
}

// cutOff waits until the DNS server of a replica answers like one without contact to the other replicas.
// The server still lists all schedulers, with its own replica last and no replica as the leader, and its
// answers have a TTL of at most one second.
func cutOff(t *testing.T, c *harness.Cluster, at int, node, ip string) {
	t.Helper()
	s := c.Schedulers[at]
	_, self, _ := strings.Cut(s.GRPC, ":")
	began := time.Now()
	must(t, testbed.Poll(t.Context(), dnsLimit, "answers of a replica that is cut off, from "+s.Name, func(ctx context.Context) error {
		have, err := schedulersAt(ctx, s.DNS)
		if err != nil {
			return err
		}
		for _, r := range have {
			if r.ttl > 1 || (r.priority == 30) != (r.port == self) || r.priority == 10 {
				return fmt.Errorf("a replica that is cut off must answer with short TTLs and itself last, but lists %+v; its own port is %s", have, self)
			}
		}
		if len(have) != len(c.Schedulers) {
			return fmt.Errorf("the answer names %+v, want all replicas", have)
		}
		lines, err := dig(ctx, s.DNS, node+".default.agents.persys.cloud", "A")
		if err != nil {
			return err
		}
		if want := node + ".default.agents.persys.cloud. 1 IN A " + ip; len(lines) != 1 || lines[0] != want {
			return fmt.Errorf("the replica answers %q, want %q", lines, want)
		}
		marked, err := harness.Metric(ctx, s.HTTP, "persys_dns_partitioned")
		if err == nil && marked != 1 {
			err = fmt.Errorf("persys_dns_partitioned is %v", marked)
		}
		return err
	}))
	t.Logf("%s answers like a replica that is cut off, after %s", s.Name, time.Since(began).Round(time.Millisecond))
}

// TestDiscoveryPartition: one replica is cut off from the others, but not from the agents and DNS clients:
// first the leader, then the replica that an agent is connected to. The DNS servers of the other replicas stop listing
// it, its own DNS server answers with a short TTL, and no agent is without contact for longer than its lease.
func TestDiscoveryPartition(t *testing.T) {
	testbed.Program(t, "dig")
	wire, ok := inside(t)
	if !ok {
		return
	}
	c := wired(t, wire, harness.Options{Binaries: raced(t), SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": "4s"})})
	var servers []string
	for _, s := range c.Schedulers {
		servers = append(servers, s.DNS)
	}
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: map[string]string{
			"PERSYS_SCHEDULER_ADDR":      "",
			"PERSYS_SCHEDULER_DISCOVERY": "srv://persys.local?dns=" + strings.Join(servers, ","),
		}}))
	}
	w := startUndisturbed(t, c, 4)
	node := c.Agents[0]
	ip, _, _ := strings.Cut(node.Addr, ":")

	part := func(what string, i int) {
		t.Helper()
		for _, o := range others(c, i) {
			between(t, wire, harness.Silence, c.Schedulers[i], o, raftPort, gossipPort, grpcPort)
		}
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit, i))
		rest := indexes(others(c, i))
		for _, j := range rest {
			names(t, c, j, leader, rest...)
			marked, err := harness.Metric(t.Context(), c.Schedulers[j].HTTP, "persys_dns_partitioned")
			must(t, err)
			if marked != 0 {
				t.Errorf("%s answers like a replica that is cut off, but has a leader", c.Schedulers[j].Name)
			}
		}
		cutOff(t, c, i, node.NodeID, ip)
		// Wait longer than a lease: an agent that stayed with the isolated replica would have lost its
		// lease.
		pause(t.Context(), 5*time.Second)
		cutOff(t, c, i, node.NodeID, ip)
		w.undisturbed(what)

		must(t, wire.Heal(t.Context()))
		must(t, c.WaitReady(t.Context(), settle))
		leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		for j := range c.Schedulers {
			names(t, c, j, leader, 0, 1, 2)
		}
		marked, err := harness.Metric(t.Context(), c.Schedulers[i].HTTP, "persys_dns_partitioned")
		must(t, err)
		if marked != 0 {
			t.Errorf("scheduler %s is reachable again and still answers like an isolated replica", c.Schedulers[i].Name)
		}
		w.undisturbed("the end of " + what)
	}
	t.Run("one replica has no DNS server", func(t *testing.T) {
		// Block the DNS port of a replica that goes on running, so that its DNS server gets no questions. The
		// agents' settings list this DNS server first.
		s := c.Schedulers[0]
		must(t, wire.Block(t.Context(), s.DNS))
		if answer, err := schedulersAt(t.Context(), s.DNS); err == nil {
			t.Fatalf("scheduler %s still answers: %v", s.Name, answer)
		}
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		for _, j := range []int{1, 2} {
			names(t, c, j, leader, 0, 1, 2)
		}
		// Wait longer than a lease and a TTL, so that the agents have looked the schedulers up by DNS again.
		pause(t.Context(), 6*time.Second)
		w.undisturbed("the loss of one replica's DNS")
		must(t, wire.Heal(t.Context()))
	})
	part("the leader's isolation", got[int](t)(c.WaitLeader(t.Context(), electionLimit)))

	var spoken []int
	must(t, testbed.Poll(t.Context(), settle, "an agent's connection", func(context.Context) (err error) {
		if spoken, err = talksTo(c, node.Process); err == nil && len(spoken) == 0 {
			err = fmt.Errorf("the agent has no connection")
		}
		return err
	}))
	part("the isolation of the replica that an agent is connected to", spoken[0])
}
