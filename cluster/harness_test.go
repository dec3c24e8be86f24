package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func timeout(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func fastTiming() Timing {
	return Timing{
		Heartbeat: 500 * time.Millisecond, LeaderLease: 400 * time.Millisecond,
		RPC:       2 * time.Second,
		Reconcile: 100 * time.Millisecond, Stabilize: 200 * time.Millisecond,
		Compare: 200 * time.Millisecond, FastGossip: true,
		MoveWait: 2 * time.Second,
	}
}

// calm lengthens the timeouts, so that a busy machine is unlikely to cause an election. Tests that need
// the same leader throughout use calm.
func calm(c *Config) { c.Timing.Heartbeat, c.Timing.LeaderLease = 2*time.Second, 1700*time.Millisecond }

// network connects the replicas of a test and can cut two replicas apart: their open connections end and new
// connections fail, but not with ECONNREFUSED, as in a partition.
type network struct {
	mu    sync.Mutex
	cuts  map[[2]string]bool
	conns map[*link]struct{}
}

type link struct {
	net.Conn
	nw   *network
	from string
	to   func() string // function that returns the dialled replica's address, which is known only some time after the start
}

func (l *link) Close() error {
	l.nw.mu.Lock()
	delete(l.nw.conns, l)
	l.nw.mu.Unlock()
	return l.Conn.Close()
}

var errCut = errors.New("test network: no route")

// dialer returns the function with which the replica whose name is from opens connections. The function name maps an
// address to the name of the replica that listens on it.
func (nw *network) dialer(from string, name func(addr string) string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		to := name(addr)
		nw.mu.Lock()
		cut := nw.cuts[[2]string{from, to}]
		nw.mu.Unlock()
		if cut {
			return nil, errCut
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		l := &link{Conn: c, nw: nw, from: from, to: func() string { return name(addr) }}
		nw.mu.Lock()
		defer nw.mu.Unlock()
		if nw.cuts[[2]string{from, l.to()}] { // the two replicas were cut from each other while this connection was being made
			_ = c.Close()
			return nil, errCut
		}
		nw.conns[l] = struct{}{}
		return l, nil
	}
}

// isolate cuts replica name off from all others, or reconnects it.
func (nw *network) isolate(name string, all []string, cut bool) {
	nw.mu.Lock()
	var ended []*link
	for _, o := range all {
		if o == name {
			continue
		}
		nw.cuts[[2]string{name, o}], nw.cuts[[2]string{o, name}] = cut, cut
	}
	for l := range nw.conns {
		if cut && (l.from == name) != (l.to() == name) {
			ended = append(ended, l)
		}
	}
	nw.mu.Unlock()
	for _, l := range ended {
		l.Conn.Close()
	}
}

// group is a cluster in one process.
type group struct {
	t     testing.TB
	nw    *network
	cfg   func(i int, c *Config)
	hooks func(i int, h *hooks)
	size  int

	mu    sync.Mutex
	nodes map[int]*Node
	dirs  map[int]string
	raft  map[int]string // Raft address of replica i, kept across restarts
	goss  map[int]string
}

func newGroup(t testing.TB, expect int) *group {
	t.Helper()
	t.TempDir() // register the removal of temporary directories first, so that it runs after the replicas are closed
	g := &group{
		t: t, size: expect,
		nw:    &network{cuts: map[[2]string]bool{}, conns: map[*link]struct{}{}},
		nodes: map[int]*Node{}, dirs: map[int]string{}, raft: map[int]string{}, goss: map[int]string{},
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for i := range g.snapshot() {
			wg.Add(1)
			go func() {
				defer wg.Done()
				g.close(i)
			}()
		}
		wg.Wait()
	})
	return g
}

// also calls set on the configuration of every replica that the test starts from now on, after
// earlier settings.
func (g *group) also(set func(c *Config)) {
	before := g.cfg
	g.cfg = func(i int, c *Config) {
		if before != nil {
			before(i, c)
		}
		set(c)
	}
}

func (g *group) snapshot() map[int]*Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := map[int]*Node{}
	for i, n := range g.nodes {
		out[i] = n
	}
	return out
}

func (g *group) nameOf(addr string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, a := range g.raft {
		if a == addr {
			return "s" + strconv.Itoa(i)
		}
	}
	return addr
}

func (g *group) names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for i := range g.dirs {
		out = append(out, "s"+strconv.Itoa(i))
	}
	return out
}

func (g *group) config(i int) Config {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dirs[i] == "" {
		g.dirs[i] = g.t.TempDir()
	}
	or := func(a string) string {
		if a == "" {
			return "127.0.0.1:0"
		}
		return a
	}
	c := Config{
		Name: "s" + strconv.Itoa(i), DataDir: g.dirs[i],
		RaftBind: or(g.raft[i]), GossipBind: or(g.goss[i]),
		GRPCAdvertise: fmt.Sprintf("127.0.0.1:%d", 10000+i), Version: "test", FeatureLevel: 1,
		BootstrapExpect: g.size, Timing: fastTiming(),
	}
	for j, a := range g.goss {
		if j != i && a != "" { // the address is empty until the replica takes part in gossip
			c.Join = append(c.Join, a)
		}
	}
	if os.Getenv("CLUSTER_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("me", c.Name)
	}
	if g.cfg != nil {
		g.cfg(i, &c)
	}
	return c
}

func (g *group) open(i int) (*Node, error) {
	c := g.config(i)
	h := hooks{dial: g.nw.dialer(c.Name, g.nameOf)}
	if g.hooks != nil {
		g.hooks(i, &h)
	}
	n, err := open(timeout(g.t, patience), c, h)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nodes[i] = n
	g.raft[i], g.goss[i] = n.RaftAddr(), n.GossipAddr()
	return n, nil
}

func (g *group) start(i int) *Node {
	g.t.Helper()
	n, err := g.open(i)
	if err != nil {
		g.t.Fatalf("open replica %d: %v", i, err)
	}
	return n
}

func (g *group) close(i int) {
	g.mu.Lock()
	n := g.nodes[i]
	delete(g.nodes, i)
	g.mu.Unlock()
	if n == nil {
		return
	}
	if err := n.Close(); err != nil {
		g.t.Errorf("close replica %d: %v", i, err)
	}
}

func (g *group) empty(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := os.RemoveAll(g.dirs[i]); err != nil {
		g.t.Fatal(err)
	}
}

// form starts replicas 0 to size-1 and waits until all of them are voters and have a record in the state.
func (g *group) form() *Node {
	g.t.Helper()
	for i := range g.size {
		g.start(i)
	}
	return g.settled(g.size)
}

// settled waits for a leader and this number of voters, all of which have a record in the state and hear the
// leader. It returns the leader.
func (g *group) settled(voters int) *Node {
	g.t.Helper()
	var leader *Node
	testbed.Until(g.t, fmt.Sprintf("the group has a leader and %d voters that hear it: %s", voters, g.describe()), func() bool {
		leader = g.leader()
		if leader == nil {
			return false
		}
		s := leader.Status()
		count := 0
		for _, p := range s.Peers {
			if p.Role == RoleAbsent || p.Role == RoleNonvoter || p.Replica == nil {
				return false
			}
			if !p.Self && (p.LastContact == 0 || p.LastContact > time.Second) {
				return false
			}
			count++
		}
		return count == voters && s.ClusterID != ""
	})
	return leader
}

func (g *group) describe() string {
	out := ""
	for i, n := range g.snapshot() {
		s := n.Status()
		out += fmt.Sprintf("[%d %s term %d leader %q peers %d err %v]", i, s.Role, s.Term, s.Leader.Name, len(s.Peers), n.Err())
	}
	return out
}

// leader returns the leader that a majority of the running replicas reports.
func (g *group) leader() *Node {
	nodes := g.snapshot()
	votes := map[string]int{}
	for _, n := range nodes {
		if l, ok := n.Leader(); ok {
			votes[l.ID]++
		}
	}
	for _, n := range nodes {
		if votes[n.ID()] > len(nodes)/2 && n.IsLeader() {
			return n
		}
	}
	return nil
}

func (g *group) waitLeader() *Node {
	g.t.Helper()
	var l *Node
	testbed.Until(g.t, "a leader", func() bool { l = g.leader(); return l != nil })
	return l
}

func (g *group) index(n *Node) int {
	for i, o := range g.snapshot() {
		if o == n {
			return i
		}
	}
	g.t.Fatal("no replica of the group has this address")
	return -1
}

func (g *group) follower(of *Node) *Node {
	for i := range 64 {
		if n := g.snapshot()[i]; n != nil && n != of {
			return n
		}
	}
	g.t.Fatal("the group has no running follower")
	return nil
}

// put returns a command that stores workload id with a CPU demand of v, so that a test can
// recognise which write it sees.
func put(id string, v int64) fsm.Command {
	return putSized(id, v, 16)
}

func putSized(id string, v int64, size int) fsm.Command {
	sum := sha256.Sum256([]byte(id + strconv.FormatInt(v, 10)))
	return &commandv1.Command{
		Head: &commandv1.Head{At: time.Now().UnixNano(), By: "test"},
		Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: id, Spec: make([]byte, size), Content: "c1:" + hex.EncodeToString(sum[:]), Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: v},
		}}}},
	}
}

func value(v fsm.View, id string) int64 {
	w, ok := v.Workload(id)
	if !ok {
		return -1
	}
	return w.Demand.CPU
}

// put stores a workload through the present leader, and returns this leader and its result. On a busy machine
// an election may happen at any time, so a write without an acknowledgement is repeated.
func (g *group) put(id string, v int64) (leader *Node, r fsm.Result) {
	g.t.Helper()
	leader = g.atLeader("put "+id, func(l *Node) error {
		results, err := l.Propose(timeout(g.t, 5*time.Second), put(id, v))
		if err != nil {
			return err
		}
		if err := results[0].Err(); err != nil {
			return testbed.Final(err)
		}
		r = results[0]
		return nil
	})
	return leader, r
}

// atLeader calls f with the present leader until f succeeds. It repeats f only if leadership was lost,
// because on a busy machine an election may happen at any time.
func (g *group) atLeader(what string, f func(l *Node) error) (leader *Node) {
	g.t.Helper()
	testbed.Within(g.t, testbed.Patience, what, func() error {
		if leader = g.leader(); leader == nil {
			return errors.New("there is no leader")
		}
		err := f(leader)
		if err == nil || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrBusy) {
			return err
		}
		return testbed.Final(err)
	})
	return leader
}

func logPath(dir string) string { return filepath.Join(dir, RaftDir, logFile) }
