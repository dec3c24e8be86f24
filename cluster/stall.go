package cluster

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// stall handles a stalled replica: a write to its log disk has been in progress for longer than
// Timing.DiskStall, and for longer than 1.5 times the slowest write of the last minute.
//
// The library writes log entries in its main loop, so a leader with a hanging disk can neither
// commit nor step down, but it goes on sending heartbeats, which need no disk. So the stalled
// leader itself
//
//  1. stops acting as leader: its leadership term ends, waiting calls get ErrUnknownOutcome, and Leader
//     names another replica or none;
//  2. asks the most advanced healthy voter to stand for election, with the message of a transfer;
//  3. sends no heartbeats and appends any more, so that the others elect a leader even if no voter agreed.
//
// These steps need neither the disk nor the main loop. The entry whose write hangs was sent to no
// other replica yet. When the write ends, the replica goes on, as a follower of the new leader, or
// as leader if no other replica leads.
type stall struct {
	n     *Node
	limit time.Duration
	quit  chan struct{}

	stops atomic.Bool // this replica is about to be closed

	mu     sync.Mutex
	on     bool
	silent bool          // true: this leader sends no heartbeats and appends
	began  chan struct{} // closed when a stall begins, and replaced when the stall ends
	heard  raft.RPCHeader
	term   uint64 // term of the leader in heard
}

var errStalled = errors.New("the disk of the log hangs")

const (
	// askLimit is the timeout of a request to a voter to take over leadership.
	askLimit = 250 * time.Millisecond
	// closeLimit is the longest time for which each step of Close waits while the log disk hangs.
	closeLimit = 200 * time.Millisecond
	// stopStall is the lowest age at which an unfinished write counts as hanging, if the replica is about to
	// be closed.
	stopStall = 300 * time.Millisecond
)

func newStall(n *Node) *stall {
	return &stall{n: n, limit: n.cfg.Timing.DiskStall, quit: make(chan struct{}), began: make(chan struct{})}
}

// run watches the log disk until quit is closed, which happens after Raft has stopped.
func (s *stall) run() {
	tick := time.NewTicker(max(5*time.Millisecond, min(s.limit/20, 50*time.Millisecond)))
	defer tick.Stop()
	var tuned time.Time
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		}
		now := time.Now()
		age := s.n.logs.watch.pending(now)
		switch on := s.isOn(); {
		case !on && age > s.threshold(now):
			s.begin(age)
		case on && age <= s.threshold(now) && !s.deposed():
			s.end()
		}
		if now.Sub(tuned) > time.Second {
			tuned = now
			s.n.tuneElections()
		}
	}
}

// threshold returns the age at which an unfinished write counts as hanging.
func (s *stall) threshold(now time.Time) time.Duration {
	return stallThreshold(s.limit, s.n.logs.watch.slowest(now), s.stops.Load())
}

func stallThreshold(limit, slowest time.Duration, stops bool) time.Duration {
	least, most := limit, limit*3/2
	if stops {
		least, most = min(limit, stopStall), limit
	}
	// The slowest write of the last minute may have been a hang. So limit the threshold: otherwise a
	// second hang of the same length would not be noticed.
	return min(max(least, slowest*3/2), most)
}

func (s *stall) isOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// isSilent reports whether this replica must not send heartbeats and appends because its log disk hangs.
func (s *stall) isSilent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

// started returns a channel that is closed when a stall of this replica begins.
func (s *stall) started() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

func (s *stall) begin(age time.Duration) {
	n := s.n
	leads := n.raft.State() == raft.Leader
	s.mu.Lock()
	s.on = true
	close(s.began)
	s.mu.Unlock()
	n.log.Error("the disk of the log hangs", "file", n.logs.path, "for", age.Round(time.Millisecond), "leads", leads)
	n.leadership.pause(true, n.ctx)
	n.watch.fire()
	if leads {
		n.cfg.Metrics.Stalled()
		if err := n.yield(); err != nil {
			n.log.Warn("no other replica took over at once; this one is silent now, so that the others elect a leader", "err", err)
		}
	}
	s.mu.Lock()
	s.silent = true
	s.mu.Unlock()
}

func (s *stall) end() {
	s.mu.Lock()
	s.on, s.silent = false, false
	s.began = make(chan struct{})
	s.mu.Unlock()
	s.n.log.Warn("the disk of the log works again", "file", s.n.logs.path)
	s.n.leadership.pause(false, s.n.ctx)
	s.n.watch.fire()
}

// hears records which leader sent a heartbeat or an append, and reports whether the library may handle the
// message. While the log disk hangs, the library would wait for the disk.
func (s *stall) hears(r *raft.AppendEntriesRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Term >= s.term {
		s.heard, s.term = r.RPCHeader, r.Term
	}
	return !s.on || s.n.logs.watch.pending(time.Now()) == 0
}

// deposed reports whether this stalled replica has heard from a leader of a term that the library does not
// know yet.
func (s *stall) deposed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term > s.n.raft.CurrentTerm()
}

// leader returns the leader from which a stalled replica has heard; stalled is false if this replica is not
// stalled.
func (s *stall) leader() (id raft.ServerID, addr raft.ServerAddress, stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return "", "", false
	}
	if id, addr = raft.ServerID(s.heard.ID), raft.ServerAddress(s.heard.Addr); s.term < s.n.raft.CurrentTerm() || id == raft.ServerID(s.n.id) {
		return "", "", true
	}
	return id, addr, true
}

// yield asks the healthy voters to stand for election, one after another and the most advanced first. It returns when a
// voter has agreed.
func (n *Node) yield() error {
	type candidate struct {
		raft.Server
		last uint64
	}
	var all []candidate
	for _, s := range n.servers() {
		if c, ok := n.trans.contacts.of(s.ID); ok && s.Suffrage == raft.Voter && string(s.ID) != n.id && n.healthy(s.ID) {
			all = append(all, candidate{s, c.last})
		}
	}
	if len(all) == 0 {
		return errors.New("no healthy voter")
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].last > all[j].last })
	var errs []error
	for _, c := range all {
		n.trans.contacts.asks(c.ID)
		err := n.within(askLimit, func() error {
			req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.id), Addr: []byte(n.port.advertise)}}
			return n.trans.TimeoutNow(c.ID, c.Address, req, &raft.TimeoutNowResponse{})
		})
		if err == nil {
			n.log.Info("asked another replica to take over leadership", "to", string(c.ID))
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.ID, err))
	}
	return errors.Join(errs...)
}

// within runs f in a goroutine and returns its error. If f takes longer than d, within returns an
// error and f goes on.
func (n *Node) within(d time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(n.ctx, d)
	defer cancel()
	done := make(chan error, 1)
	if !n.spawn(func() { done <- f() }) {
		return n.stoppedErr()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stopping prepares Close. From now on a write to the log disk counts as hanging after a shorter time,
// because stopping a replica must not take long.
func (n *Node) Stopping() { n.stall.stops.Store(true) }

// DiskPending returns the age of the oldest unfinished write to the log disk; 0 if all writes have finished.
// stalled means that the write counts as hanging, so that this replica does not act as leader.
func (n *Node) DiskPending() (age time.Duration, stalled bool) {
	return n.logs.watch.pending(time.Now()), n.stall.isOn()
}

// electionWrites is twice the number of writes that follow one another in an election: term and vote of the
// candidate, term and vote of the voter, and the first entry of the leader are five writes. The factor of two
// is needed because two candidates may have equally slow disks.
const electionWrites = 2 * 5

// electionTimeout returns the time after which a candidate without a result starts another election; write is
// the usual duration of a write to the log. If candidates started again before the voters have written their votes, no
// candidate would ever win.
func (t Timing) electionTimeout(write time.Duration) time.Duration {
	return min(max(t.Election, electionWrites*write), max(t.Election, 5*time.Second))
}

// tuneElections adapts the election timeout to the usual duration of writes to the log disk.
func (n *Node) tuneElections() {
	if n.Waiting() != "" || n.halted.Load() {
		return
	}
	have := n.raft.ReloadableConfig()
	want := n.cfg.Timing.electionTimeout(n.logs.watch.typical())
	if want == have.ElectionTimeout || want > n.cfg.Timing.Election && want > have.ElectionTimeout*4/5 && want < have.ElectionTimeout*5/4 {
		return
	}
	n.log.Debug("the election timeout was adapted to the speed of the disk", "from", have.ElectionTimeout, "to", want, "write", n.logs.watch.typical())
	if err := n.reconfigure(func(c *raft.ReloadableConfig) { c.ElectionTimeout = want }); err != nil {
		n.once.warn(n.log, "tune:"+err.Error(), "the election timeout was not changed", "err", err)
	}
}

const (
	// slowWrite: a leader whose writes usually take at least this long looks for a replica with a faster
	// disk.
	slowWrite = 40 * time.Millisecond
	// slowFactor is how many times faster the disk of another replica must be before a leader with a slow disk
	// transfers leadership to it.
	slowFactor = 3
)

// fasterVoter returns the voter with the fastest disk if this leader's disk is much slower; "" if there is
// none. own is the usual duration of a write of this leader, and others holds the usual duration of each healthy voter
// (0 = not known).
func fasterVoter(own time.Duration, others map[string]time.Duration) (best string) {
	if own < slowWrite {
		return ""
	}
	for id, d := range others {
		if d > 0 && d*slowFactor <= own && (best == "" || d < others[best] || d == others[best] && id < best) {
			best = id
		}
	}
	return best
}

// leaveToFaster transfers leadership if this leader's disk is slow and another voter's disk is not.
func (m *members) leaveToFaster(ctx context.Context, s LeadershipTerm) {
	n := m.n
	others := map[string]time.Duration{}
	for _, srv := range n.servers() {
		if h, ok := m.hellos[string(srv.ID)]; ok && srv.Suffrage == raft.Voter && n.healthy(srv.ID) {
			others[string(srv.ID)] = h.h.DiskWrite
		}
	}
	own := n.logs.watch.typical()
	to := fasterVoter(own, others)
	if to == "" || time.Since(s.Since) < n.cfg.Timing.SlowCooldown {
		return
	}
	n.log.Warn("the disk of this leader is slow: leadership goes to a faster replica", "write", own, "to", to, "its_write", others[to])
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timing.RPC)
	defer cancel()
	if err := n.TransferLeadership(ctx, to); err != nil && ctx.Err() == nil {
		n.log.Warn("leadership was not transferred", "to", to, "err", err)
	}
}
