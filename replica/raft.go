package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cluster"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/rpc"
)

// raftAdapter adapts the Raft node to the interfaces rpc.Replica and leader.Proposer.
type raftAdapter struct {
	node     *cluster.Node
	self     rpc.Peer
	onChange func() // called by the method watch at every change of leader
	from     *tracer
	// gossip returns the ids of the gossip keys that this replica can use at present.
	gossip func() []string

	mu      sync.Mutex
	changed chan struct{} // closed at the next change of leader
}

func newRaftAdapter(n *cluster.Node, self rpc.Peer, onChange func()) *raftAdapter {
	return &raftAdapter{node: n, self: self, onChange: onChange, changed: make(chan struct{})}
}

// watch wakes the callers of LeaderChanged at each change of leader, until ctx ends.
func (r *raftAdapter) watch(ctx context.Context) {
	for range r.node.LeaderChanges(ctx) {
		r.onChange()
		r.mu.Lock()
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *raftAdapter) LeaderChanged() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// translate converts errors of package cluster to the errors of package rpc that callers expect, such as ErrNotLeader.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cluster.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", rpc.ErrUnknownOutcome, err)
	case errors.Is(err, cluster.ErrNotLeader), errors.Is(err, cluster.ErrClosed):
		return fmt.Errorf("%w: %w", rpc.ErrNotLeader, err)
	case errors.Is(err, cluster.ErrBusy):
		return fmt.Errorf("%w: %w", rpc.ErrBusy, err)
	case errors.Is(err, cluster.ErrTooLarge):
		return fmt.Errorf("%w: %w", rpc.ErrTooLarge, err)
	}
	return err
}

// precondition turns the refusal of a membership change into an error with the code FailedPrecondition: the state of
// the cluster does not allow the change now.
func precondition(err error) error {
	if err == nil || errors.Is(err, rpc.ErrNotLeader) || errors.Is(err, rpc.ErrUnknownOutcome) || errors.Is(err, rpc.ErrBusy) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &rpc.Error{Kind: rpc.KindPrecondition, Err: err}
}

func (r *raftAdapter) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	ctx, done := r.from.proposing(ctx, cmds)
	out, err := r.node.Propose(ctx, cmds...)
	done(out, err)
	return out, translate(err)
}

func (r *raftAdapter) Confirm(ctx context.Context) (uint64, error) {
	i, err := r.node.Confirm(ctx)
	return i, translate(err)
}

func (r *raftAdapter) Store() *store.Store { return r.node.Store() }
func (r *raftAdapter) Self() rpc.Peer      { return r.self }

func (r *raftAdapter) Leader() (rpc.Peer, bool) {
	l, ok := r.node.Leader()
	return rpc.Peer{ID: l.ID, Name: l.Name, GRPCAddr: l.GRPCAddr}, ok
}

func (r *raftAdapter) LastContact() time.Time { return time.Now().Add(-r.node.Status().LastContact) }

// Frozen returns the reason why this replica itself cannot accept writes; "" if it can. It also returns "" in the first
// moments without a leader, when package rpc still waits for a leader (rpc.Config).
func (r *raftAdapter) Frozen() string {
	mode, reason := r.node.LocalMode()
	if !mode.Frozen() {
		return ""
	}
	return reason
}

func (r *raftAdapter) TransferLeadership(ctx context.Context, to string) error {
	return precondition(translate(r.node.TransferLeadership(ctx, to)))
}

func (r *raftAdapter) RemoveReplica(ctx context.Context, id string, force bool) error {
	return precondition(translate(r.node.RemoveReplica(ctx, id, force)))
}

func (r *raftAdapter) Dismiss(ctx context.Context, id string) error {
	return precondition(translate(r.node.Dismiss(ctx, id)))
}

func (r *raftAdapter) Restore(ctx context.Context, build func(fsm.State) (fsm.State, error)) (uint64, error) {
	i, err := r.node.Restore(ctx, build)
	return i, translate(err)
}

func (r *raftAdapter) Describe(out *clusterv1.StatusResponse) {
	st := r.node.Status()
	if r.gossip != nil {
		out.GossipKeys = r.gossip()
	}
	out.Term, out.LastIndex, out.CommitIndex = st.Term, st.LastIndex, st.CommitIndex
	out.LeaderId, out.LeaderAddr = st.Leader.ID, st.Leader.GRPCAddr
	for _, p := range st.Peers {
		v := &clusterv1.Replica{
			Id: p.ID, RaftAddr: p.RaftAddr, Role: string(p.Role), Health: p.Health, Self: p.Self,
			LastContactMs: p.LastContact.Milliseconds(), MatchIndex: p.LastIndex, Copies: p.Copies,
		}
		if a := p.Replica; a != nil {
			v.Name, v.GrpcAddr, v.HttpAddr, v.GossipAddr = a.Name, a.GRPCAddr, a.HTTPAddr, a.GossipAddr
			v.Version, v.FeatureLevel = a.Version, a.FeatureLevel
		}
		out.Replicas = append(out.Replicas, v)
	}
}
