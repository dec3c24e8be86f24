package rpc

import (
	"context"
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
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Agents is the client to agents. It pools one connection per node and endpoint, and every call has
// a deadline. A connection carries calls only for the node that its TLS certificate names.
type Agents struct {
	tls   *pki.Files
	store *store.Store
	keys  Keys
	poll  time.Duration // interval of status polls during a delete on a legacy v1 agent
	again time.Duration // shortest time between two dials that users' calls cause
	dial  []grpc.DialOption

	mu     sync.Mutex
	conns  map[agentAt]*agentConn
	closed bool
	swept  time.Time
}

// agentAt identifies a connection: a node and the endpoint that it registered. Two nodes may
// register the same endpoint; they do not share a connection.
type agentAt struct{ node, addr string }

type agentConn struct {
	cc         *grpc.ClientConn
	made, used time.Time
}

// NewAgents makes a client. If tls is nil, calls are plaintext. extra adds dial options, for
// instance for metrics and traces.
func NewAgents(st *store.Store, tls *pki.Files, keys Keys, extra ...grpc.DialOption) *Agents {
	return &Agents{tls: tls, store: st, keys: keys, poll: time.Second, again: 5 * time.Second, dial: extra, conns: map[agentAt]*agentConn{}}
}

// Close closes every connection.
func (a *Agents) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, c := range a.conns {
		_ = c.cc.Close()
	}
	a.conns = nil
}

// idleFor is the idle time after which a connection is closed.
const (
	idleFor    = 10 * time.Minute
	sweepEvery = time.Minute
)

func (a *Agents) conn(n *fsm.Node) (agentv1.AgentServiceClient, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errorf(KindUnavailable, "this replica is shutting down")
	}
	now := time.Now()
	at := agentAt{n.ID, n.Facts.Endpoint}
	if c := a.conns[at]; c != nil {
		c.used = now
		return agentv1.NewAgentServiceClient(c.cc), nil
	}
	a.sweep(now)
	cc, err := dial.To(a.tls, at.addr, pki.Peer{Role: pki.RoleAgent, Node: n.ID}, append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec()), grpc.MaxCallRecvMsgSize(dial.MaxAnswer)),
		grpc.WithIdleTimeout(idleFor),
		grpc.WithConnectParams(grpc.ConnectParams{
			// Thousands of agents may be gone, so dial them rarely. When a node is back, redial
			// skips the backoff.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Minute},
			MinConnectTimeout: 3 * time.Second,
		}),
		// Legacy v1 agents enforce gRPC's default of at most one ping in five minutes.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 10 * time.Second}),
	}, a.dial...)...)
	if err != nil {
		return nil, fmt.Errorf("agent of node %s at %s: %w", n.ID, at.addr, err)
	}
	a.conns[at] = &agentConn{cc, now, now}
	return agentv1.NewAgentServiceClient(cc), nil
}

// redial makes the next call to an agent dial at once and wait for the connection, if the last dial
// failed. Callers use it when they know that the node is up. It leaves connections younger than age
// alone. It replaces the connection and does not reset its backoff, because a connection in backoff
// refuses calls and a hanging dial would go on.
func (a *Agents) redial(node, addr string, age time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := agentAt{node, addr}
	if c := a.conns[at]; c != nil && c.cc.GetState() == connectivity.TransientFailure && time.Since(c.made) >= age {
		_ = c.cc.Close() // a failing connection refuses calls at once
		delete(a.conns, at)
	}
}

// fresh is conn for calls that a user waits for. Only the leader receives heartbeats, but any
// replica answers users: if the node counts as up, a failing connection is dialled again every few
// seconds.
func (a *Agents) fresh(n *fsm.Node) (agentv1.AgentServiceClient, error) {
	if n.Up {
		a.redial(n.ID, n.Facts.Endpoint, a.again)
	}
	return a.conn(n)
}

// sweep closes connections that were idle for long, once a minute at most. The caller holds mu.
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

// Deliver implements leader.Agents.
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
	plain, err := spec.Unseal(w.ID, w.Spec, sealer(a.keys))
	if err != nil {
		return sched.Ack{}, err
	}
	req := spec.ToAgent(w, plain)
	req.Epoch, req.NodeId, req.InstanceId = e, n.ID, n.Facts.InstanceID
	ack, err := a.order(ctx, c, n, req)
	ack.Code, ack.Message = clip(ack.Code, maxReportCode), clip(ack.Message, maxReportMessage)
	return ack, err
}

// order sends an apply and reads the acknowledgement.
func (a *Agents) order(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, req *agentv1.ApplyWorkloadRequest) (sched.Ack, error) {
	resp, err := c.ApplyWorkload(ctx, req, grpc.WaitForReady(false))
	if err != nil {
		if status.Code(err) == codes.InvalidArgument {
			return sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: status.Convert(err).Message()}, nil
		}
		return sched.Ack{}, fmt.Errorf("apply on node %s: %w", n.ID, err)
	}
	st := resp.GetStatus()
	ack := sched.Ack{Message: resp.GetMessage(), Skipped: resp.GetSkipped(), Fenced: resp.GetFenced()}
	switch {
	case ack.Fenced:
	case resp.GetApplied() || resp.GetSkipped():
		ack.Accepted = true
		if st != nil {
			ack.State = spec.ActualOf(st.GetActualState())
		}
		ack.Message = st.GetMessage()
	case strings.Contains(resp.GetMessage(), "is draining"):
		// The agent does not know yet that the drain has ended; the answer to its next heartbeat
		// says so.
		return sched.Ack{}, fmt.Errorf("apply on node %s: %s", n.ID, resp.GetMessage())
	default:
		ack.Refused = true
		ack.Code = classOf(st, resp.GetMessage())
	}
	return ack, nil
}

// classOf returns the failure class of a refused apply. Legacy v1 agents send it in the metadata,
// or only in the message (contract/wire-agent.md).
func classOf(st *agentv1.WorkloadStatus, message string) string {
	if c := st.GetMetadata()["failure_reason"]; c != "" {
		return c
	}
	switch message = strings.ToLower(message); {
	case strings.Contains(message, "runtime not available"):
		return fsm.CodeRuntimeNotOffered
	case strings.HasPrefix(message, "failed to apply workload:"):
		// The agent's queue was full, so it applied at once and failed; a registry or a full disk
		// may be the cause.
		return "RUNTIME_ERROR"
	}
	return "INVALID_SPECIFICATION"
}

func (a *Agents) remove(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, e *agentv1.Epoch, o sched.Order) (sched.Ack, error) {
	// A workload that moved to another node leaves its volumes on this one.
	w, lives := a.store.View().Workload(o.Workload)
	resp, err := c.DeleteWorkload(ctx, &agentv1.DeleteWorkloadRequest{
		Id: o.Workload, Epoch: e, Generation: spec.AgentGeneration(o.Generation), NodeId: n.ID, InstanceId: n.Facts.InstanceID,
		KeepVolumes: lives && w.Desired != fsm.DesiredDeleted,
	})
	if err != nil {
		if notFound(err) {
			return sched.Ack{Accepted: true, Gone: true}, nil
		}
		return sched.Ack{}, fmt.Errorf("delete on node %s: %w", n.ID, err)
	}
	ack := sched.Ack{Accepted: resp.GetSuccess(), Gone: resp.GetAbsent(), Fenced: resp.GetFenced(), Message: resp.GetMessage()}
	if ack.Fenced || ack.Gone || n.Facts.Protocol > 0 {
		return ack, nil // our agents report the removal in a heartbeat
	}
	// Legacy v1 agents queue the delete and never report its end, so poll.
	t := time.NewTicker(a.poll)
	defer t.Stop()
	for {
		gone, err := a.gone(ctx, c, o.Workload)
		if err != nil || gone {
			return sched.Ack{Accepted: true, Gone: gone}, err
		}
		select {
		case <-ctx.Done():
			return ack, nil // accepted; the leader will send the order again
		case <-t.C:
		}
	}
}

// gone reports whether the agent has no such workload, in every form that contract/wire-agent.md
// lists.
func (a *Agents) gone(ctx context.Context, c agentv1.AgentServiceClient, id string) (bool, error) {
	resp, err := c.GetWorkloadStatus(ctx, &agentv1.GetWorkloadStatusRequest{Id: id})
	if err != nil {
		if notFound(err) {
			return true, nil
		}
		// The agent may notice the shared deadline first.
		if status.Code(err) == codes.DeadlineExceeded {
			return false, nil
		}
		return false, err
	}
	return deletedMeanwhile(resp.GetStatus()), nil
}

// notFound reports whether an agent answered "not found". The same words from a name resolver do
// not count.
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
	c, err := a.fresh(n)
	if err != nil {
		return nil, err
	}
	return c.Logs(ctx, req)
}

// exec opens a session on a node. The session ends with ctx.
func (a *Agents) exec(ctx context.Context, n *fsm.Node) (agentv1.AgentService_ExecClient, error) {
	c, err := a.fresh(n)
	if err != nil {
		return nil, err
	}
	return c.Exec(ctx)
}

// actions returns the task history of a workload on its node, newest first.
func (a *Agents) actions(ctx context.Context, n *fsm.Node, id string, limit int32) ([]*agentv1.AgentAction, error) {
	c, err := a.fresh(n)
	if err != nil {
		return nil, err
	}
	resp, err := c.ListActions(ctx, &agentv1.ListActionsRequest{WorkloadId: id, Limit: limit, NewestFirst: true})
	if unimplemented(err) {
		return nil, nil // legacy v1 agents keep no history
	}
	return resp.GetActions(), err
}
