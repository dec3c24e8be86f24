package rpc

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/sched"
)

// TestDeliverChecksTheAgentsCertificate: an order is sent only to an agent with the certificate of the node, whatever
// endpoint the node has registered.
func TestDeliverChecksTheAgentsCertificate(t *testing.T) {
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Cluster: "c1", Schedulers: []string{"s0"}, Agents: []string{"victim", "thief", "fleet"}})
	ok(t, err)
	files := func(who string, m pki.Mapping) *pki.Files {
		p := set.Leaf[who]
		f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: m})
		ok(t, err)
		return f
	}
	g := newGroup(t, 1)
	serve := func(who string) *fakeAgent {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		ok(t, err)
		_, port, err := net.SplitHostPort(l.Addr().String())
		ok(t, err)
		f := &fakeAgent{addr: net.JoinHostPort("127.0.0.1", port), apply: func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}}
		tls := files(who, pki.Mapping{}).ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}})
		srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(tls)))
		agentv1.RegisterAgentServiceServer(srv, f)
		done := make(chan error, 1)
		go func() { done <- srv.Serve(l) }()
		t.Cleanup(func() {
			srv.Stop()
			served(t, <-done)
		})
		return f
	}
	victim := serve("agent/victim")
	deliver := func(t *testing.T, node, endpoint string) (sched.Ack, error) {
		t.Helper()
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: node, Endpoint: endpoint, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
		}}})
		id := "on-" + node
		g.place(id, node)
		w, _ := g.view().Workload(id)
		a := NewAgents(g.replicas[0].store, files("scheduler/s0", pki.LegacyMapping("")), keys{})
		defer a.Close()
		return a.Deliver(ctxFor(t), fsm.Epoch{Incarnation: 1, Term: 7}, sched.Order{Op: sched.OpApply, Node: node, Workload: id, Generation: w.Generation})
	}

	t.Run("the node's own agent gets its order", func(t *testing.T) {
		ack, err := deliver(t, "victim", victim.addr)
		ok(t, err)
		is(t, "accepted", ack.Accepted, true)
	})
	t.Run("an order to a node that registered another agent's address is refused", func(t *testing.T) {
		before := victim.applied()
		_, err := deliver(t, "thief", victim.addr)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), `agent "victim", which is not the agent of node "thief"`) {
			t.Errorf("the order to node thief returned %v, want a refusal that names agent victim", err)
		}
		is(t, "orders that reached the victim", victim.applied(), before)
	})
	t.Run("a certificate with the node's name is accepted although it lacks the address", func(t *testing.T) {
		_, port, err := net.SplitHostPort(victim.addr)
		ok(t, err)
		ack, err := deliver(t, "victim", net.JoinHostPort("127.0.0.2", port))
		ok(t, err)
		is(t, "accepted", ack.Accepted, true)
	})
	t.Run("two nodes at the same endpoint do not share a connection", func(t *testing.T) {
		a := NewAgents(g.replicas[0].store, files("scheduler/s0", pki.LegacyMapping("")), keys{})
		defer a.Close()
		for _, c := range []struct {
			node string
			want bool
		}{{"victim", true}, {"thief", false}, {"victim", true}} {
			n := &fsm.Node{ID: c.node, Facts: fsm.NodeFacts{Endpoint: victim.addr}}
			client, err := a.conn(n)
			ok(t, err)
			_, err = client.ApplyWorkload(context.Background(), &agentv1.ApplyWorkloadRequest{Id: "w"})
			if (err == nil) != c.want {
				t.Errorf("an order over the connection of node %q to the agent of node \"victim\" returned error %v, want an error only for node \"thief\"", c.node, err)
			}
		}
	})
}
