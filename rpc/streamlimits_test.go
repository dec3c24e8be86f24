package rpc

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// TestStreamsOfAPersonAreBounded: the number of streams of one person is limited, even if they come through a
// gateway. The limit does not affect other persons or other calls.
func TestStreamsOfAPersonAreBounded(t *testing.T) {
	w := newOwnCAWith(t, func(c *Config) { c.Limits = limits.Limits{Streams: 2} })
	follow := func(c clusterv1.ClusterClient, behalf string) (refused []error) {
		t.Helper()
		var open []clusterv1.Cluster_EventsClient
		for range 4 {
			ctx := ctxFor(t)
			if behalf != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyOnBehalf, behalf)
			}
			s, err := c.Events(ctx, &clusterv1.EventsRequest{Follow: true, Tail: 1})
			ok(t, err)
			open = append(open, s)
		}
		for _, s := range open {
			if _, err := s.Recv(); err != nil {
				refused = append(refused, err)
			}
		}
		return refused
	}
	direct := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleUser, ID: "ada"})))
	gateway := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"})))
	w.holds(pki.Identity{Role: pki.RoleUser, ID: "bob"})
	for _, c := range []struct {
		fact    string
		of      clusterv1.ClusterClient
		behalf  string
		refused int
	}{
		{"the streams of a person above the limit are refused", direct, "", 2},
		{"streams of the same person through a gateway are refused while the direct streams are open", gateway, "persys://home/user/ada", 4},
		{"another person may open streams through the same gateway up to the limit", gateway, "persys://home/user/bob", 2},
	} {
		t.Run(c.fact, func(t *testing.T) {
			got := follow(c.of, c.behalf)
			is(t, "number of refused streams", len(got), c.refused)
			for _, err := range got {
				if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "at most 2") || !strings.Contains(err.Error(), "SCHEDULER_LIMIT_STREAMS") {
					t.Errorf("a stream beyond the limit returned %v, want ResourceExhausted that names the limit and its setting", err)
				}
			}
		})
	}
	_, err := direct.Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
}

// TestStreamsOfANodeAreBounded: the number of log streams and sessions of one node is limited. These streams use
// another connection to the agent than orders.
func TestStreamsOfANodeAreBounded(t *testing.T) {
	g := newGroup(t, 1, func(_ int, c *Config) { c.NodeStreams = 2 })
	f := g.agent(t, 1)
	_, err := g.control(0).ApplyWorkload(ctxFor(t), web("web"))
	ok(t, err)
	g.assign("web", "n")
	f.logs = func(_ *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
		if err := s.Send(&agentv1.LogChunk{Data: []byte("x")}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	f.exec, f.actions = echo, func(*agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
		return &agentv1.ListActionsResponse{}, nil
	}
	for range 2 {
		s, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: "web", Follow: true})
		ok(t, err)
		_, err = s.Recv()
		ok(t, err)
	}
	third, err := g.cluster(0).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: "web"})
	ok(t, err)
	_, errLogs := third.Recv()
	_, _, _, errExec := heard(openAt(t, g.cluster(0), &clusterv1.ExecOpen{WorkloadId: "web", Console: true}))
	for what, err := range map[string]error{"logs": errLogs, "a session": errExec} {
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "SCHEDULER_LIMIT_STREAMS_PER_NODE") || !strings.Contains(err.Error(), "node n") {
			t.Errorf("%s: an additional stream beyond the limit returned %v, want ResourceExhausted that names the setting and node n", what, err)
		}
	}
	_, err = g.cluster(0).ListActions(ctxFor(t), &clusterv1.ListActionsRequest{WorkloadId: "web"})
	ok(t, err)
	a := g.replicas[0].server.agents
	a.mu.Lock()
	defer a.mu.Unlock()
	var kinds []bool
	for at := range a.conns {
		kinds = append(kinds, at.streams)
	}
	if len(kinds) != 1 || !kinds[0] {
		t.Errorf("reads and streams use the connections (true: for streams) %v, want one connection for streams, which the reads share", kinds)
	}
}

// TestReadsOfAPersonAreBounded: one person, directly or through gateways, can have a few calls at a time that agents
// must answer, and one check of a network or trace. This limits neither other persons nor orders.
func TestReadsOfAPersonAreBounded(t *testing.T) {
	w := newOwnCA(t)
	s := w.replicas[0].server
	as := func(c caller) context.Context { return withCall(ctxFor(t), &call{caller: c}) }
	ada, bob := pki.Identity{Role: pki.RoleUser, ID: "ada"}, pki.Identity{Role: pki.RoleUser, ID: "bob"}
	direct, through := as(caller{id: ada}), as(caller{id: pki.Identity{Role: pki.RoleGateway, ID: "g"}, behalf: ada})
	for _, c := range []struct {
		what  string
		enter func(context.Context) (*limits.Entry, error)
		most  int
	}{{"reads", s.enterRead, readsOfPerson}, {"checks", s.enterCheck, 1}} {
		t.Run(c.what, func(t *testing.T) {
			var last *limits.Entry
			for range c.most {
				e, err := c.enter(direct)
				ok(t, err)
				last = e
			}
			for who, ctx := range map[string]context.Context{"ada": direct, "ada through a gateway": through} {
				if _, err := c.enter(ctx); err == nil || !strings.Contains(err.Error(), "user ada") {
					t.Errorf("one more call by %q above the limit returned %v, want a refusal that names user ada", who, err)
				}
			}
			_, err := c.enter(as(caller{id: bob}))
			ok(t, err)
			last.Leave()
			_, err = c.enter(through)
			ok(t, err)
		})
	}
	n := &fsm.Node{ID: "n", Facts: fsm.NodeFacts{Endpoint: "127.0.0.1:1"}}
	for range readsOfNode {
		_, _, err := s.agents.reader(n)
		ok(t, err)
	}
	if _, _, err := s.agents.reader(n); err == nil || !strings.Contains(err.Error(), "node n") {
		t.Errorf("one more read from node n above the limit returned %v, want a refusal that names the node", err)
	}
}
