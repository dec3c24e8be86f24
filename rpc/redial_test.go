package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/testbed"
)

// road is the network path to an agent. While it is closed, a dial is refused or, if silent, hangs.
type road struct {
	open, silent atomic.Bool
	dials        atomic.Int32
}

func (r *road) dial(ctx context.Context, addr string) (net.Conn, error) {
	r.dials.Add(1)
	switch {
	case r.open.Load():
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	case r.silent.Load():
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("connection refused")
}

// deadWorld is an agentWorld whose agent could not be reached for a long time. gRPC waits hours before its next dial
// or, if silent is true, hangs in a dial.
func deadWorld(t *testing.T, silent bool) (*group, *road, *Agents, sched.Order) {
	t.Helper()
	g, f, a, o := agentWorld(t, 1)
	f.apply = func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
		return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
	}
	f.logs = func(_ *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
		return s.Send(&agentv1.LogChunk{Data: []byte("hello")})
	}
	f.actions = func(*agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
		return &agentv1.ListActionsResponse{}, nil
	}
	r := &road{}
	r.silent.Store(silent)
	a.dial = []grpc.DialOption{grpc.WithContextDialer(r.dial), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1e9, MaxDelay: 24 * time.Hour},
		MinConnectTimeout: 20 * time.Millisecond,
	})}
	_, err := a.Deliver(ctxFor(t), epoch, o)
	is(t, "failed", err != nil, true)
	testbed.Until(t, "the second dial", func() bool { return r.dials.Load() >= 2 })
	return g, r, a, o
}

// promptly calls a function and returns its error. It fails the test if the function takes more than five seconds.
func promptly(t *testing.T, call func() error) error {
	t.Helper()
	began := time.Now()
	err := call()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the call took %s, want at most five seconds", took)
	}
	return err
}

// TestAReturningNodeGetsOrdersAtOnce: a node was unreachable, so orders to it fail at once. When the node registers or
// sends a heartbeat, the next order must reach it, even if gRPC still waits before its next dial.
func TestAReturningNodeGetsOrdersAtOnce(t *testing.T) {
	for _, silent := range []bool{false, true} {
		for _, c := range []struct {
			fact string
			back func(*group) error
			want bool
		}{
			{"a node that sends nothing is not dialled again", func(*group) error { return nil }, false},
			{"a node that sends a heartbeat is dialled again", func(g *group) error {
				_, err := g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "n"})
				return err
			}, true},
			{"a heartbeat of another node causes no dial", func(g *group) error {
				_, err := g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
				return err
			}, false},
			{"a node that registers is dialled again", func(g *group) error {
				n, _ := g.view().Node("n")
				_, err := g.control(0).RegisterNode(ctxFor(t), &controlv1.RegisterNodeRequest{NodeId: "n", GrpcEndpoint: n.Facts.Endpoint, Capabilities: &controlv1.NodeCapabilities{
					CpuTotalMillicores: 8000, MemoryTotalMb: 8192, SupportedWorkloadTypes: []string{"container"}, Protocol: 1,
				}})
				return err
			}, true},
		} {
			name := c.fact + " after dials were refused"
			if silent {
				name = c.fact + " while a dial hangs"
			}
			t.Run(name, func(t *testing.T) {
				g, r, a, o := deadWorld(t, silent)
				deliver := func() error { _, err := a.Deliver(ctxFor(t), epoch, o); return err }
				is(t, "whether the order failed while the agent was away", promptly(t, deliver) != nil, true)
				r.open.Store(true)
				ok(t, c.back(g))
				w, _ := g.view().Workload("web")
				o.Generation = w.Generation
				if err := promptly(t, deliver); (err == nil) != c.want {
					t.Errorf("the order to the agent, which can be reached again, returned %v, want success: %v", err, c.want)
				}
			})
		}
	}
}

// TestPeopleAreNotHeldUp: a follower does not learn from heartbeats that a node is back, so it dials the agent again
// for a user's call. If the node is down, the call fails at once.
func TestPeopleAreNotHeldUp(t *testing.T) {
	calls := map[string]func(*testing.T, *group) error{
		"logs": func(t *testing.T, g *group) error {
			s, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: "web"})
			ok(t, err)
			for err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
		"actions": func(t *testing.T, g *group) error {
			_, err := g.cluster(0).ListActions(ctxFor(t), &clusterv1.ListActionsRequest{WorkloadId: "web"})
			return err
		},
	}
	for _, c := range []struct {
		fact   string
		up     bool
		again  time.Duration
		opened bool
		want   codes.Code
	}{
		{"a node that is back is reached at once", true, 0, true, codes.OK},
		{"a call to an unreachable node is an error", true, 0, false, codes.Unavailable},
		{"a node that failed a moment ago is not dialled again", true, time.Hour, true, codes.Unavailable},
		{"a node that is down according to the state is not dialled", false, 0, true, codes.Unavailable},
	} {
		for what, call := range calls {
			t.Run(c.fact+", "+what, func(t *testing.T) {
				g, r, a, _ := deadWorld(t, false)
				a.again = c.again
				g.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "n", Up: c.up}}}}})
				dials := r.dials.Load() // the call uses the connection for streams, which is dialled now for the first time
				code(t, call(t, g), codes.Unavailable)
				testbed.Until(t, "the second dial of the agent", func() bool { return r.dials.Load() >= dials+2 })
				r.open.Store(c.opened)
				code(t, promptly(t, func() error { return call(t, g) }), c.want)
			})
		}
	}
}

// TestDeadAgentsCostLittle: an unreachable agent is dialled at most once a minute, and not at all if there
// were no calls for a while.
func TestDeadAgentsCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &road{}
		a := NewAgents(nil, nil, keys{}, grpc.WithContextDialer(r.dial))
		defer a.Close()
		client, err := a.conn(&fsm.Node{ID: "n", Facts: fsm.NodeFacts{Endpoint: "192.0.2.1:50051"}})
		ok(t, err)
		_, err = client.ListWorkloads(t.Context(), &agentv1.ListWorkloadsRequest{})
		code(t, err, codes.Unavailable)
		time.Sleep(5 * time.Minute)
		if before := r.dials.Load(); before < 5 || before > 30 {
			t.Errorf("the agent was dialled %d times in the first five minutes, want 5 to 30", before)
		}
		before := r.dials.Load()
		time.Sleep(4 * time.Minute)
		if n := r.dials.Load() - before; n < 2 || n > 6 {
			t.Errorf("the agent was dialled %d times in the next four minutes, want 2 to 6", n)
		}
		time.Sleep(idleFor)
		before = r.dials.Load()
		time.Sleep(time.Hour)
		is(t, "number of dials after a long time without calls", r.dials.Load(), before)
	})
}
