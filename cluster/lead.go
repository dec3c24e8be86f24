package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// LeadershipTerm is one period in which this replica leads.
type LeadershipTerm struct {
	Epoch fsm.Epoch
	Since time.Time
}

// raftLeadership is one period of leadership as the Raft library announces it. It becomes a
// LeadershipTerm once a barrier has proven that this replica has applied everything that was
// committed before.
type raftLeadership struct {
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time

	mu   sync.Mutex
	term *LeadershipTerm
}

// leadership follows the library's announcements that this replica begins or ceases to lead.
type leadership struct {
	mu      sync.Mutex
	cur     *raftLeadership
	changed chan struct{} // closed and replaced at every change of leadership
	leads   bool          // whether this replica leads, as Raft last announced
	held    bool          // set by hold: no leadership term may begin, whatever Raft announces
	paused  bool          // set by pause while the log disk hangs: no leadership term may begin
}

func newLeadership() *leadership { return &leadership{changed: make(chan struct{})} }

// drain does nothing but receive announcements of Raft. So Raft never blocks and no announcement is lost,
// however long a leadership term takes to end.
func (l *leadership) drain(parent context.Context, notify <-chan bool, stop <-chan struct{}) {
	defer l.announce(parent, false)
	for {
		select {
		case leads := <-notify:
			l.announce(parent, leads)
		case <-stop:
			return
		}
	}
}

func (l *leadership) announce(parent context.Context, leads bool) {
	l.update(parent, func() { l.leads = leads })
}

// hold ends the present period of leadership, and no new period begins until release is called. It is used while the
// whole state is replaced, because every leader must act on the new state.
func (l *leadership) hold() { l.update(context.Background(), func() { l.held = true }) }

func (l *leadership) release(parent context.Context) {
	l.update(parent, func() { l.held = false })
}

// pause(true) ends the present period of leadership, and no new period begins until pause(false).
func (l *leadership) pause(on bool, parent context.Context) {
	l.update(parent, func() { l.paused = on })
}

// update applies change, ends the present period of leadership, and begins a new period if Raft announces leadership
// and nothing prevents it.
func (l *leadership) update(parent context.Context, change func()) {
	l.mu.Lock()
	change()
	old := l.cur
	l.cur = nil
	if l.leads && !l.held && !l.paused {
		ctx, cancel := context.WithCancel(parent)
		l.cur = &raftLeadership{ctx: ctx, cancel: cancel, since: time.Now()}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if old != nil {
		old.cancel()
	}
}

func (l *leadership) end() {
	l.mu.Lock()
	cur := l.cur
	l.mu.Unlock()
	if cur != nil {
		cur.cancel()
	}
}

// next waits until this replica leads, and returns the period of leadership if it has not ended
// yet.
func (l *leadership) next(ctx context.Context) (*raftLeadership, error) {
	for {
		l.mu.Lock()
		cur, changed := l.cur, l.changed
		l.mu.Unlock()
		if cur != nil && cur.ctx.Err() == nil {
			return cur, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Lead runs fn once per leadership term of this replica, until ctx ends or the node stops. The context of fn ends with
// the leadership. Lead calls fn for the next term only after the call for this term has returned, however long that
// takes. When fn starts, this replica's Store shows everything that earlier leaders committed.
//
// If fn returns nil while the replica still leads, Lead waits for the next term. If fn returns an error while
// the replica still leads, Lead transfers leadership and returns the error, because a leader that does no
// work is worse than a change of leader. In all other cases Lead returns the error of ctx, or ErrClosed.
func (n *Node) Lead(ctx context.Context, fn func(context.Context, LeadershipTerm) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	for {
		t, err := n.leadership.next(ctx)
		if err != nil {
			return n.orStopped(err)
		}
		if err := n.runTerm(ctx, t, fn); err != nil {
			return n.orStopped(err)
		}
	}
}

func (n *Node) orStopped(err error) error {
	if n.ctx.Err() != nil {
		return n.stoppedErr()
	}
	return err
}

// runTerm runs fn for one period of leadership. If runTerm returns an error, Lead returns that error.
func (n *Node) runTerm(ctx context.Context, t *raftLeadership, fn func(context.Context, LeadershipTerm) error) error {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	s, err := n.establish(sctx, t)
	if err == nil {
		err = fn(sctx, s)
		if err == nil {
			<-sctx.Done()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t.ctx.Err() != nil {
		if err != nil && !isCanceled(err) {
			n.log.Debug("leadership term ended", "epoch", s.Epoch.String(), "err", err)
		}
		return nil
	}
	n.log.Error("this replica cannot lead; transferring leadership", "epoch", s.Epoch.String(), "err", err)
	hctx, done := context.WithTimeout(ctx, n.cfg.Timing.RPC)
	defer done()
	if herr := n.TransferLeadership(hctx, ""); herr != nil {
		err = fmt.Errorf("%w; the transfer of leadership failed too: %w", err, herr)
	}
	return err
}

// establish makes a LeadershipTerm from a period of leadership. It commits a barrier and, if the state is
// empty, the identity of the new cluster. All callers for one period share the result.
func (n *Node) establish(ctx context.Context, t *raftLeadership) (LeadershipTerm, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != nil {
		return *t.term, nil
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		s, err := n.tryEstablish(ctx, t)
		if err == nil {
			t.term = &s
			n.log.Info("leading", "epoch", s.Epoch.String(), "index", n.Store().View().Info().Index, "took", time.Since(t.since))
			return s, nil
		}
		// After an unknown outcome, try again for as long as this replica leads.
		select {
		case <-ctx.Done():
			return LeadershipTerm{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (n *Node) tryEstablish(ctx context.Context, t *raftLeadership) (LeadershipTerm, error) {
	_, term, err := n.conf.confirm(ctx)
	if err != nil {
		return LeadershipTerm{}, err
	}
	info := n.Store().View().Info()
	if info.ClusterID == "" {
		id := n.cfg.ClusterID
		if id == "" {
			var b [8]byte
			if _, err := rand.Read(b[:]); err != nil {
				return LeadershipTerm{}, err
			}
			id = "c-" + hex.EncodeToString(b[:])
		}
		// The incarnation is the present time in milliseconds. So a cluster that is formed again on the
		// same machines has a higher incarnation than the agents remember from the former cluster
		// (agent/DESIGN.md).
		incarnation := uint64(max(1, time.Now().UnixMilli()))
		results, _, _, err := n.prop.propose(ctx, []fsm.Command{{
			Head: n.head(fsm.Epoch{}),
			Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
				ClusterId: id, Incarnation: incarnation, Shard: n.cfg.Shard,
			}},
		}})
		if err != nil {
			return LeadershipTerm{}, err
		}
		if err := results[0].Err(); err != nil {
			return LeadershipTerm{}, fmt.Errorf("init cluster: %w", err)
		}
		info = n.Store().View().Info()
	}
	// If leadership ended and began again during this call, the Raft term has changed, and Raft's
	// announcement has ended t.ctx by now.
	if t.ctx.Err() != nil {
		return LeadershipTerm{}, t.ctx.Err()
	}
	return LeadershipTerm{Epoch: fsm.Epoch{Incarnation: info.Incarnation, Term: term}, Since: t.since}, nil
}

// LeaderInfo identifies the leader. Name and GRPCAddr are empty until this replica has learned them.
type LeaderInfo struct {
	ID       string
	Name     string
	GRPCAddr string
	RaftAddr string
}

// Leader returns the leader that this replica knows of; false if it knows none.
func (n *Node) Leader() (LeaderInfo, bool) {
	addr, id := n.raft.LeaderWithID()
	if heard, at, stalled := n.stall.leader(); stalled {
		id, addr = heard, at
	}
	if id == "" || n.halted.Load() {
		return LeaderInfo{}, false
	}
	l := LeaderInfo{ID: string(id), RaftAddr: string(addr)}
	if l.ID == n.id {
		l.Name, l.GRPCAddr = n.cfg.Name, n.cfg.GRPCAdvertise
		return l, true
	}
	if r, ok := n.Store().View().Replica(l.ID); ok {
		l.Name, l.GRPCAddr = r.Name, r.GRPCAddr
		return l, true
	}
	for _, s := range n.gossip.alive() {
		if s.id == l.ID {
			l.Name, l.GRPCAddr = s.name, s.grpcAddr
		}
	}
	return l, true
}

// IsLeader reports whether this replica believes that it leads. Only Confirm proves that it leads.
func (n *Node) IsLeader() bool { return n.raft.State() == raft.Leader && !n.stall.isOn() }

// WaitLeader waits until this replica knows a leader, and returns the leader.
func (n *Node) WaitLeader(ctx context.Context) (LeaderInfo, error) {
	for {
		changed := n.watch.next()
		if l, ok := n.Leader(); ok {
			return l, nil
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return LeaderInfo{}, n.stoppedErr()
		case <-ctx.Done():
			return LeaderInfo{}, fmt.Errorf("no leader: %w", ctx.Err())
		}
	}
}

// LeaderChanges sends the present leader and then every change. An empty LeaderInfo means that no leader is
// known. A slow reader gets only the latest value. The channel is closed when ctx ends or the node stops.
func (n *Node) LeaderChanges(ctx context.Context) <-chan LeaderInfo {
	out := make(chan LeaderInfo, 1)
	ok := n.spawn(func() {
		defer close(out)
		var last LeaderInfo
		first := true
		for {
			changed := n.watch.next()
			if l, _ := n.Leader(); first || l.ID != last.ID {
				first, last = false, l
				select {
				case <-out:
				default:
				}
				out <- l
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-n.ctx.Done():
				return
			}
		}
	})
	if !ok {
		close(out)
	}
	return out
}

// watch wakes the callers that wait for a change of leader.
type watch struct {
	mu sync.Mutex
	ch chan struct{}
}

func newWatch() *watch { return &watch{ch: make(chan struct{})} }

func (w *watch) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ch
}

func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.ch)
	w.ch = make(chan struct{})
}
