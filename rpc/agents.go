package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Agents is the client with which a scheduler calls agents. For each node and endpoint it keeps one connection for
// orders and one for streams and reads, so that people who read cannot delay orders. Every call has a deadline.
// With TLS, a connection is used only if the agent shows the certificate of the node.
type Agents struct {
	tls   *pki.Files
	store *store.Store
	keys  Keys
	reads *limits.Peers // counter, per node, of the calls to its agent that only read (reads.go)
	again time.Duration // shortest time between two dials of one agent that are caused by calls of users
	dial  []grpc.DialOption

	mu     sync.Mutex
	conns  map[agentAt]*agentConn
	closed bool
	swept  time.Time
	// deletes holds the delete orders that were sent to legacy v1 agents and whose end this scheduler has not seen yet.
	deletes map[sched.Order]bool
}

// agentAt identifies a connection to an agent by a node and the endpoint that the node has registered. Two
// nodes that registered the same endpoint do not share a connection.
type agentAt struct {
	node, addr string
	streams    bool // true: the connection is for logs, sessions and reads; false: for orders
}

type agentConn struct {
	cc         *grpc.ClientConn
	made, used time.Time
}

// NewAgents returns a client of agents. If tls is nil, the connections are not encrypted. extra are
// additional dial options, for instance for metrics and traces.
func NewAgents(st *store.Store, tls *pki.Files, keys Keys, extra ...grpc.DialOption) *Agents {
	return &Agents{tls: tls, store: st, keys: keys, reads: limits.NewPeers(limits.Limits{Concurrent: readsOfNode, Calls: readsOfNodeRate}, nil), again: 5 * time.Second, dial: extra, conns: map[agentAt]*agentConn{}, deletes: map[sched.Order]bool{}}
}

// Close closes every connection to an agent.
func (a *Agents) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, c := range a.conns {
		_ = c.cc.Close()
	}
	a.conns = nil
}

// idleFor is the time without calls after which sweep closes a connection.
const (
	idleFor    = 10 * time.Minute
	sweepEvery = time.Minute
)

// conn returns the connection to a node's agent for orders and other unary calls.
func (a *Agents) conn(n *fsm.Node) (agentv1.AgentServiceClient, error) {
	return a.connAt(agentAt{n.ID, n.Facts.Endpoint, false})
}

func (a *Agents) connAt(at agentAt) (agentv1.AgentServiceClient, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errorf(KindUnavailable, "this replica is shutting down")
	}
	now := time.Now()
	if c := a.conns[at]; c != nil {
		c.used = now
		return agentv1.NewAgentServiceClient(c.cc), nil
	}
	a.sweep(now)
	cc, err := dial.To(a.tls, at.addr, pki.Peer{Role: pki.RoleAgent, Node: at.node}, append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec()), grpc.MaxCallRecvMsgSize(dial.MaxAnswer)),
		grpc.WithIdleTimeout(idleFor),
		grpc.WithConnectParams(grpc.ConnectParams{
			// Thousands of agents may be unreachable, so the backoff grows to a minute. When a node is
			// back, redial skips the backoff.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Minute},
			MinConnectTimeout: 3 * time.Second,
		}),
		// Legacy v1 agents enforce gRPC's default of at most one ping in five minutes.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 10 * time.Second}),
	}, a.dial...)...)
	if err != nil {
		return nil, fmt.Errorf("agent of node %s at %s: %w", at.node, at.addr, err)
	}
	a.conns[at] = &agentConn{cc, now, now}
	return agentv1.NewAgentServiceClient(cc), nil
}

// redial makes the next call to an agent dial at once and wait for the connection, if the last dial failed. It is
// called when the node is known to be up. It leaves connections alone that were made less than the duration age ago.
// It replaces the connection by a new connection, because a connection in backoff refuses calls, and resetting the
// backoff would not end a dial that hangs.
func (a *Agents) redial(node, addr string, age time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, streams := range []bool{false, true} {
		at := agentAt{node, addr, streams}
		if c := a.conns[at]; c != nil && c.cc.GetState() == connectivity.TransientFailure && time.Since(c.made) >= age {
			_ = c.cc.Close() // the connection is in backoff and its calls fail at once, so close it
			delete(a.conns, at)
		}
	}
}

// fresh returns the connection for a call that a user waits for. If the node is up according to the state,
// fresh dials a failing connection again, at most every few seconds. Every replica does this, because every
// replica answers users, but only the leader receives heartbeats.
func (a *Agents) fresh(n *fsm.Node) (agentv1.AgentServiceClient, error) {
	return a.freshAt(n, false)
}

func (a *Agents) freshAt(n *fsm.Node, streams bool) (agentv1.AgentServiceClient, error) {
	if n.Up {
		a.redial(n.ID, n.Facts.Endpoint, a.again)
	}
	return a.connAt(agentAt{n.ID, n.Facts.Endpoint, streams})
}

// sweep closes the connections that were idle for longer than idleFor. It does so at most once a minute. The
// caller holds mu.
func (a *Agents) sweep(now time.Time) {
	if now.Sub(a.swept) < sweepEvery {
		return
	}
	a.swept = now
	for old, c := range a.conns {
		// A connection with an open stream is not idle.
		if now.Sub(c.used) > idleFor && c.cc.GetState() == connectivity.Idle {
			_ = c.cc.Close()
			delete(a.conns, old)
		}
	}
}

// Deliver implements leader.Agents: it sends an order of the leader to the agent of the node.
func (a *Agents) Deliver(ctx context.Context, epoch fsm.Epoch, o sched.Order) (sched.Ack, error) {
	view := a.store.View()
	node, ok := view.Node(o.Node)
	if !ok {
		return sched.Ack{}, fmt.Errorf("node %s is not registered", o.Node)
	}
	client, err := a.conn(node)
	if err != nil {
		return sched.Ack{}, err
	}
	e := &agentv1.Epoch{ClusterId: view.Info().ClusterID, Shard: view.Info().Shard, Incarnation: epoch.Incarnation, Term: epoch.Term}
	switch o.Op {
	case sched.OpApply:
		w, ok := view.Workload(o.Workload)
		if !ok || w.Node != o.Node || w.Generation != o.Generation {
			return sched.Ack{Fenced: true, Message: "the order is out of date"}, nil
		}
		return a.apply(ctx, client, node, e, w)
	case sched.OpDelete:
		return a.remove(ctx, client, node, e, o)
	}
	return sched.Ack{}, fmt.Errorf("order %d is unknown", o.Op)
}

func (a *Agents) apply(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, e *agentv1.Epoch, w *fsm.Workload) (sched.Ack, error) {
	plain, err := spec.Unseal(w.SpecID(), w.Spec, sealer(a.keys))
	if err != nil {
		return sched.Ack{}, err
	}
	req := spec.ToAgent(w, plain)
	if w.Bundle != "" {
		if n.Facts.Protocol == 0 {
			return sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "compose.files: node " + n.ID +
				" runs a legacy v1 agent, which cannot receive the files of a stack; add a constraint that selects other nodes"}, nil
		}
		b, ok := a.store.View().Bundle(w.Bundle)
		if !ok {
			return sched.Ack{Fenced: true, Message: "the order is out of date"}, nil
		}
		if req.GetSpec().GetCompose().Files, err = spec.OpenFiles(b, sealer(a.keys)); err != nil {
			return sched.Ack{}, err
		}
	}
	if err := a.addObjects(a.store.View(), w, plain, req.GetSpec()); errors.Is(err, spec.ErrNoKey) {
		return sched.Ack{}, err
	} else if err != nil {
		return sched.Ack{Refused: true, Code: "INVALID_CONFIGURATION", Message: "secrets and configs: " + err.Error()}, nil
	}
	if files := req.GetSpec().GetContainer().GetMemoryFiles(); (len(files) > 0 || len(req.GetSpec().GetCompose().GetMemoryFiles()) > 0) && !n.Facts.MemoryFiles && (n.Facts.Protocol != 0 || len(files) == 0) {
		return sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "secrets and configs: node " + n.ID +
			" has no tmpfs at /run or /dev/shm, or its agent is too old to mount secrets and configs as files; add a constraint that selects other nodes, or update the agent"}, nil
	}
	if field := unknownToLegacy(req.GetSpec().GetContainer()); field != "" && n.Facts.Protocol == 0 {
		return sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "container." + field + ": node " + n.ID +
			" runs a legacy v1 agent, which would ignore this field; add a constraint that selects other nodes"}, nil
	}
	if err := judgedBy(req, a.store.View(), w, n); err != nil {
		return sched.Ack{Refused: true, Code: "INVALID_CONFIGURATION", Message: err.Error()}, nil
	}
	a.fillVolumes(req, w, n)
	if err := a.joins(req, w, n, e); err != nil {
		return sched.Ack{Refused: true, Code: "NETWORK_UNREACHABLE", Message: err.Error()}, nil
	}
	req.Epoch, req.NodeId, req.InstanceId = e, n.ID, n.Facts.InstanceID
	return a.order(ctx, c, n, req)
}

// maxPolicies is the maximum size of all policies in an order, in bytes.
const maxPolicies = 1 << 20

// judgedBy adds to an order the policies that restrict the workload: the policies of its namespace and of its node.
// The agent refuses the order if the workload breaks one of them.
func judgedBy(req *agentv1.ApplyWorkloadRequest, v fsm.View, w *fsm.Workload, n *fsm.Node) error {
	req.AdminsOnly = fsm.AdminsOnly(v, w)
	size := 0
	add := func(p *policy.Policy) (string, error) {
		if len(p.ImageKeys) > 0 && n.Facts.Protocol == 0 && req.GetSpec().GetVm() == nil {
			return "", fmt.Errorf("policy %q: image_keys: node %s runs a legacy v1 agent, which checks no signature; add a constraint that selects other nodes", p.Name, n.ID)
		}
		text, err := document.Format(p)
		if size += len(text); size > maxPolicies {
			err = fmt.Errorf("the policies of namespace %s and node %s have more than %d bytes together: bind smaller policies", w.In(), n.ID, maxPolicies)
		}
		return text, err
	}
	var err error
	if p := v.Admitted(w); p != nil {
		if req.Policy, err = add(p); err != nil {
			return err
		}
	}
	for _, p := range v.NodePolicies(n) {
		text, err := add(p)
		if err != nil {
			return err
		}
		req.NodePolicies = append(req.NodePolicies, text)
	}
	return nil
}

// unknownToLegacy returns the name of a field of the container that legacy v1 agents would ignore, so that
// the container would have more rights or run something else; "" if no such field is set.
func unknownToLegacy(c *agentv1.ContainerSpec) string {
	switch {
	case c.GetUser() != "":
		return "user"
	case len(c.GetCapDrop()) > 0:
		return "cap_drop"
	case c.GetPidsLimit() > 0:
		return "pids_limit"
	}
	for i, p := range c.GetPorts() {
		if p.GetAddress() != "" {
			return fmt.Sprintf("ports[%d].address", i)
		}
	}
	if c == nil {
		return ""
	}
	fields := c.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Number() >= firstOfCompose && c.ProtoReflect().Has(f) {
			return string(f.Name())
		}
	}
	return ""
}

// firstOfCompose is the lowest protobuf field number of the container fields that a service of a Compose file has too.
const firstOfCompose = 1340

// order sends an agent the order to run a workload, and returns the agent's acknowledgement.
func (a *Agents) order(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, req *agentv1.ApplyWorkloadRequest) (sched.Ack, error) {
	resp, err := c.ApplyWorkload(ctx, req, grpc.WaitForReady(false))
	if err != nil {
		if status.Code(err) == codes.InvalidArgument {
			return message.Bounded(sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: status.Convert(err).Message()}), nil
		}
		return sched.Ack{}, fmt.Errorf("apply on node %s: %w", n.ID, err)
	}
	ack, err := message.Applied(resp)
	if err != nil {
		return sched.Ack{}, fmt.Errorf("apply on node %s: %w", n.ID, err)
	}
	return ack, nil
}

func (a *Agents) remove(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, e *agentv1.Epoch, o sched.Order) (sched.Ack, error) {
	if n.Facts.Protocol == 0 && a.wasSent(o) {
		// A legacy v1 agent starts a new task for each delete. So send another delete only if the last delete has
		// failed.
		switch done, err := a.deleted(ctx, c, o.Workload); {
		case err != nil:
			return sched.Ack{}, fmt.Errorf("delete on node %s: %w", n.ID, err)
		case done == deleteGone:
			a.sent(o, false)
			return sched.Ack{Accepted: true, Gone: true}, nil
		case done == deleteRuns:
			return sched.Ack{Accepted: true}, nil
		}
	}
	// This order deletes the instance on one node. If the workload still exists, it has moved to another node and was
	// not deleted, so keep its volumes on this node.
	view := a.store.View()
	w, lives := view.Workload(o.Workload)
	left, known := view.Residual(n.ID, o.Workload)
	retain := known && left.KeepVolumes
	resp, err := c.DeleteWorkload(ctx, &agentv1.DeleteWorkloadRequest{
		Id: o.Workload, Epoch: e, Generation: wire.Agent(o.Generation), NodeId: n.ID, InstanceId: n.Facts.InstanceID,
		KeepVolumes: retain || lives && w.Desired != fsm.DesiredDeleted, RetainVolumes: retain,
	})
	if err != nil {
		if notFound(err) {
			return sched.Ack{Accepted: true, Gone: true}, nil
		}
		return sched.Ack{}, fmt.Errorf("delete on node %s: %w", n.ID, err)
	}
	ack := message.Deleted(resp)
	if ack.Fenced || ack.Gone || n.Facts.Protocol > 0 {
		return ack, nil // an agent of this project reports the removal in a heartbeat
	}
	return a.removing(ctx, c, n, o, ack)
}

// notFound reports whether an agent answered "not found". It returns false for a connection error whose text contains
// these words, such as an error of a name resolver.
func notFound(err error) bool {
	switch status.Code(err) {
	case codes.NotFound:
		return true
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	}
	return strings.Contains(strings.ToLower(status.Convert(err).Message()), "not found")
}

// logs opens the log stream of a workload on its node.
func (a *Agents) logs(ctx context.Context, n *fsm.Node, req *agentv1.LogsRequest) (grpc.ServerStreamingClient[agentv1.LogChunk], error) {
	c, err := a.freshAt(n, true)
	if err != nil {
		return nil, err
	}
	return c.Logs(ctx, req)
}

// exec opens a session (a user's command or console in a workload) on a node. The session ends with ctx.
func (a *Agents) exec(ctx context.Context, n *fsm.Node) (agentv1.AgentService_ExecClient, error) {
	c, err := a.freshAt(n, true)
	if err != nil {
		return nil, err
	}
	return c.Exec(ctx)
}

// usage returns what a node measured during the last hour or day. It returns an empty answer for an agent that keeps no
// measurements.
func (a *Agents) usage(ctx context.Context, n *fsm.Node, req *agentv1.ListUsageRequest) (*agentv1.ListUsageResponse, error) {
	c, e, err := a.reader(n)
	if err != nil {
		return nil, err
	}
	defer e.Leave()
	r, err := c.ListUsage(ctx, req)
	if unimplemented(err) {
		return &agentv1.ListUsageResponse{}, nil
	}
	return r, err
}

// probe asks the agent of a node to send test packets to the other nodes of a network, and returns which of them
// answered.
func (a *Agents) probe(ctx context.Context, n *fsm.Node, req *agentv1.ProbeNetworkRequest) ([]*agentv1.NetworkProbe, error) {
	c, e, err := a.reader(n)
	if err != nil {
		return nil, err
	}
	defer e.Leave()
	r, err := c.ProbeNetwork(ctx, req)
	if unimplemented(err) {
		return nil, errors.New("its agent is too old to check networks: update it")
	}
	return r.GetProbes(), err
}

// traceConnection asks the agent of a node to resolve a name and to open connections to it from a workload, and
// returns the result of each step.
func (a *Agents) traceConnection(ctx context.Context, n *fsm.Node, req *agentv1.TraceConnectionRequest) (*agentv1.TraceConnectionResponse, error) {
	c, e, err := a.reader(n)
	if err != nil {
		return nil, err
	}
	defer e.Leave()
	r, err := c.TraceConnection(ctx, req)
	if unimplemented(err) {
		return nil, errors.New("its agent is too old to trace connections: update it")
	}
	return r, err
}

// actions returns the agent's task history of a workload on a node, newest first.
func (a *Agents) actions(ctx context.Context, n *fsm.Node, id string, limit int32) ([]*agentv1.AgentAction, error) {
	c, e, err := a.reader(n)
	if err != nil {
		return nil, err
	}
	defer e.Leave()
	resp, err := c.ListActions(ctx, &agentv1.ListActionsRequest{WorkloadId: id, Limit: limit, NewestFirst: true})
	if unimplemented(err) {
		return nil, nil // not found: legacy v1 agents keep no task history
	}
	return resp.GetActions(), err
}
