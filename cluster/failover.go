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

// Fast failover: a voter stands for election at once when the leader's process is dead.
//
// Raft waits for a heartbeat timeout because a silent leader may only be slow. A refused connection proves
// more: the leader's machine answers, and no process listens on the port. So a voter whose connection from
// the leader breaks dials the leader's port. If that connection is refused, the voter gives its own Raft
// library a TimeoutNow message, as a leader does in a transfer. The voter then skips the timeout and the
// pre-vote.
//
// Fast failover is safe, because votes are counted as always. A wrong guess would only cause a needless
// change of leader. To avoid that, only ECONNREFUSED starts an election; a timeout, a reset or an unreachable
// host may be a partition. Only a voter starts one, only for the present leader, and once per leader and
// term. Voters wait in the order of their rank, so that the second voter stands only if the first voter did not win.
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

// connectionBroke is called when a connection from another replica has ended. It never blocks.
func (f *failover) connectionBroke(from string) {
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
			f.evaluate(from)
		}
	}
}

func (f *failover) evaluate(from raft.ServerID) {
	r := f.n.raft
	addr, leader := r.LeaderWithID()
	if f.n.stall.isOn() || leader != from || leader == raft.ServerID(f.n.id) || addr == "" || r.State() != raft.Follower {
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
	if !f.waitForTurn(rank, leader, term) {
		return
	}
	f.mu.Lock()
	f.done.leader, f.done.term = leader, term
	f.mu.Unlock()
	f.n.log.Info("the leader's process is gone: standing for election", "leader", string(leader), "term", term, "rank", rank)
	self := raft.ServerID(f.n.id)
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(f.n.id), Addr: []byte(f.n.port.advertise)}}
	if err := f.n.trans.TimeoutNow(self, raft.ServerAddress(f.n.port.advertise), req, &raft.TimeoutNowResponse{}); err != nil {
		f.n.log.Debug("could not stand for election at once", "err", err)
	}
}

// waitForTurn waits until this replica may stand for election, and reports whether an election is still
// needed. If this replica has voted for another candidate, it does not stand: that candidate wins, or the
// usual timeouts decide.
func (f *failover) waitForTurn(rank int, leader raft.ServerID, term uint64) bool {
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
			// The term has risen, so another replica stands for election, and this replica's vote for it may not be on
			// disk yet. Wait one more rankStep: if there is still no vote then, this replica has refused it.
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

// rank returns the position of this replica in the list of voters without the leader, sorted by id.
// Sorting by how advanced their logs are is impossible, because a replica does not know the logs of
// other voters.
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

// refused reports whether the machine at addr refuses connections. The port of a dying process may still
// accept connections for a moment, so refused dials again if a connection ends at once.
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
		alive := staysOpen(conn)
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

// staysOpen reports whether a new connection stays open for a moment, as it does if a running replica has
// accepted it and waits for a greeting.
func staysOpen(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return err == nil || !(errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET))
}
