package cluster

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// Standing at once when the leader's process is dead.
//
// Raft waits a heartbeat timeout because silence may be slowness. A refused
// connection is not silence: the leader's machine answers and says that nobody
// listens. So a voter whose connection from the leader breaks asks the leader's
// port; if it is refused, the voter gives its own Raft a TimeoutNow, as a
// leader does when it hands over, and skips the wait and the pre-vote.
//
// Nothing is unsafe about it, since votes are counted as always: the worst a
// wrong guess could do is a needless change of leader. It is kept from doing
// even that: only ECONNREFUSED counts (a timeout, a reset, an unreachable host
// may be a partition), only from the leader believed in, only as a voter, once
// per leader and term. Voters wait by rank, so that the second stands only if
// the first did not win.
const (
	probeEvery = 2 * time.Millisecond
	probeFor   = 150 * time.Millisecond
	probeDial  = 50 * time.Millisecond
	rankStep   = 100 * time.Millisecond
)

type failover struct {
	n    *Node
	off  bool
	wake chan raft.ServerID

	mu   sync.Mutex
	done struct {
		leader raft.ServerID
		term   uint64
	}
}

// broken is told that a connection from a replica ended. It never blocks.
func (f *failover) broken(from string) {
	if f.off {
		return
	}
	select {
	case f.wake <- raft.ServerID(from):
	default:
	}
}

func (f *failover) run() {
	for {
		select {
		case <-f.n.ctx.Done():
			return
		case from := <-f.wake:
			f.consider(from)
		}
	}
}

func (f *failover) consider(from raft.ServerID) {
	r := f.n.raft
	addr, leader := r.LeaderWithID()
	if leader != from || leader == raft.ServerID(f.n.id) || addr == "" || r.State() != raft.Follower {
		return
	}
	term := r.CurrentTerm()
	f.mu.Lock()
	again := f.done.leader == leader && f.done.term == term
	f.mu.Unlock()
	if again {
		return
	}
	rank, voter := f.rank(leader)
	if !voter || !f.refused(string(addr)) {
		return
	}
	if !f.turn(rank, leader, term) {
		return
	}
	f.mu.Lock()
	f.done.leader, f.done.term = leader, term
	f.mu.Unlock()
	f.n.log.Info("the leader's process is gone: standing for election", "leader", string(leader), "term", term, "rank", rank)
	self := raft.ServerID(f.n.id)
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(f.n.id), Addr: []byte(f.n.port.advertise)}}
	if err := f.n.trans.TimeoutNow(self, raft.ServerAddress(f.n.port.advertise), req, &raft.TimeoutNowResponse{}); err != nil {
		f.n.log.Debug("standing at once failed", "err", err)
	}
}

// turn waits until it is this replica's turn to stand, and reports whether there
// is still a need. Having voted for another candidate means that there is none:
// it wins, or the usual timeouts decide.
func (f *failover) turn(rank int, leader raft.ServerID, term uint64) bool {
	r := f.n.raft
	wait := time.Duration(rank) * rankStep
	if rank > 0 {
		wait += rand.N(rankStep / 4)
	}
	last := term
	for deadline := time.Now().Add(wait); ; {
		now := r.CurrentTerm()
		if _, l := r.LeaderWithID(); r.State() != raft.Follower || l != "" && l != leader {
			return false
		}
		if voted, err := f.n.logs.GetUint64(keyLastVote); now > term && err == nil && voted >= now {
			return false
		}
		left := time.Until(deadline)
		if left <= 0 {
			if now == last {
				return true
			}
			// Somebody stood and we have not voted, or not yet: a vote is
			// written to disk first. Once more, then it was refused.
			last, deadline = now, time.Now().Add(rankStep)
			continue
		}
		select {
		case <-f.n.ctx.Done():
			return false
		case <-time.After(min(left, 5*time.Millisecond)):
		}
	}
}

// keyLastVote is where the library keeps the term of its last vote.
var keyLastVote = []byte("LastVoteTerm")

// rank is this replica's place among the voters other than the leader; with the
// freshest log unknown, the order of ids is as good as any.
func (f *failover) rank(leader raft.ServerID) (rank int, voter bool) {
	var ids []string
	for _, s := range f.n.servers() {
		if s.Suffrage == raft.Voter && s.ID != leader {
			ids = append(ids, string(s.ID))
		}
	}
	sort.Strings(ids)
	for i, id := range ids {
		if id == f.n.id {
			return i, true
		}
	}
	return 0, false
}

// refused reports whether addr's machine says that nobody listens there. While
// a process dies its port may outlive its connections for a moment: a connect
// that succeeds but ends at once is asked again.
func (f *failover) refused(addr string) bool {
	deadline := time.Now().Add(probeFor)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(f.n.ctx, probeDial)
		conn, err := f.n.port.dial(ctx, addr)
		cancel()
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if err != nil {
			return false
		}
		alive := lingers(conn)
		conn.Close()
		if alive {
			return false
		}
		select {
		case <-f.n.ctx.Done():
			return false
		case <-time.After(probeEvery):
		}
	}
	return false
}

// lingers reports whether a fresh connection stays open for a moment, as it
// does when somebody has accepted it and waits for a greeting.
func lingers(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return err == nil || !(errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET))
}
