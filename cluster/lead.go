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

// LeadershipTerm is one period of leadership of this replica.
type LeadershipTerm struct {
	Epoch fsm.Epoch
	Since time.Time
}

// tenure is leadership as Raft announces it; a LeadershipTerm begins once a barrier has
// shown that everything committed before is applied here.
type tenure struct {
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time

	mu    sync.Mutex
	stint *LeadershipTerm
}

// leadership follows Raft's announcements.
type leadership struct {
	mu      sync.Mutex
	cur     *tenure
	changed chan struct{} // closed and replaced at every change
	leads   bool          // what Raft announced last
	held    bool          // no tenure, although Raft may say that this replica leads
}

func newLeadership() *leadership { return &leadership{changed: make(chan struct{})} }

// drain does nothing but take announcements, so that Raft is never held up and
// none is lost, however long a stint takes to end.
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

// hold ends the present tenure and lets none begin before release: the state is
// about to be replaced, and whoever acts must have seen the new one.
func (l *leadership) hold() { l.update(context.Background(), func() { l.held = true }) }

func (l *leadership) release(parent context.Context) {
	l.update(parent, func() { l.held = false })
}

// update ends the tenure that there is and begins a new one if it may.
func (l *leadership) update(parent context.Context, change func()) {
	l.mu.Lock()
	change()
	old := l.cur
	l.cur = nil
	if l.leads && !l.held {
		ctx, cancel := context.WithCancel(parent)
		l.cur = &tenure{ctx: ctx, cancel: cancel, since: time.Now()}
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

// next waits for a tenure that has not ended.
func (l *leadership) next(ctx context.Context) (*tenure, error) {
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

// Lead runs fn once per stint of this replica, until ctx ends or the node
// stops. fn's context ends with the leadership; the next stint's fn starts only
// after this one's has returned, however long that takes. When fn starts, this
// replica's Store shows everything that earlier leaders committed.
//
// If fn returns nil while the replica still leads, Lead waits for the next
// stint. If it returns an error then, leadership is handed over, because a
// leader that does not do its work is worse than none, and Lead returns the
// error. Otherwise Lead returns ctx's error or ErrClosed.
func (n *Node) Lead(ctx context.Context, fn func(context.Context, LeadershipTerm) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	for {
		t, err := n.leadership.next(ctx)
		if err != nil {
			return n.orStopped(err)
		}
		if err := n.stint(ctx, t, fn); err != nil {
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

// stint runs fn for one tenure; an error ends Lead.
func (n *Node) stint(ctx context.Context, t *tenure, fn func(context.Context, LeadershipTerm) error) error {
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
			n.log.Debug("stint ended", "epoch", s.Epoch.String(), "err", err)
		}
		return nil
	}
	n.log.Error("cannot do a leader's work: handing over", "epoch", s.Epoch.String(), "err", err)
	hctx, done := context.WithTimeout(ctx, n.cfg.Timing.RPC)
	defer done()
	if herr := n.TransferLeadership(hctx, ""); herr != nil {
		err = fmt.Errorf("%w; and handing over failed: %w", err, herr)
	}
	return err
}

// establish makes a tenure a LeadershipTerm: a barrier, and, for a virgin state, the
// cluster's identity. All users of one tenure share the result.
func (n *Node) establish(ctx context.Context, t *tenure) (LeadershipTerm, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stint != nil {
		return *t.stint, nil
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		s, err := n.tryEstablish(ctx, t)
		if err == nil {
			t.stint = &s
			n.log.Info("leading", "epoch", s.Epoch.String(), "index", n.Store().View().Info().Index, "took", time.Since(t.since))
			return s, nil
		}
		// As long as the tenure lasts, an unknown outcome only means: again.
		select {
		case <-ctx.Done():
			return LeadershipTerm{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (n *Node) tryEstablish(ctx context.Context, t *tenure) (LeadershipTerm, error) {
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
		// Milliseconds, so that a cluster restored or formed anew on the same
		// machines is never older than what agents remember (agent/DESIGN.md).
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
	// A tenure that ended and began again in between would make the term
	// another one; its announcement has arrived by now.
	if t.ctx.Err() != nil {
		return LeadershipTerm{}, t.ctx.Err()
	}
	return LeadershipTerm{Epoch: fsm.Epoch{Incarnation: info.Incarnation, Term: term}, Since: t.since}, nil
}

// LeaderInfo says who leads. Name and GRPCAddr are empty while this replica has
// not learned them.
type LeaderInfo struct {
	ID       string
	Name     string
	GRPCAddr string
	RaftAddr string
}

// Leader says who leads, as far as this replica knows; false if it knows none.
func (n *Node) Leader() (LeaderInfo, bool) {
	addr, id := n.raft.LeaderWithID()
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

// IsLeader reports whether this replica believes that it leads. Only Confirm
// proves it.
func (n *Node) IsLeader() bool { return n.raft.State() == raft.Leader }

// WaitLeader waits until a leader is known.
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

// LeaderChanges tells who leads now and at every change; an empty LeaderInfo
// means nobody. Only the latest is kept for a slow reader. The channel is
// closed when ctx ends or the node stops.
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

// watch wakes whoever waits for a change of leader.
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
