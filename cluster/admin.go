package cluster

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Role is the role of a replica in the Raft configuration.
type Role string

// The roles of a replica in the Raft configuration.
const (
	RoleLeader   Role = "leader"
	RoleVoter    Role = "voter"
	RoleNonvoter Role = "non-voter"
	RoleAbsent   Role = "absent" // a known replica that is not in the Raft configuration
)

// PeerStatus describes one replica of the cluster, as this replica sees it.
type PeerStatus struct {
	ID   string
	Self bool
	Role Role
	// Replica is the record of the replica in the replicated state; nil if the state has none.
	Replica *fsm.Replica
	// RaftAddr is the replica's address in the Raft configuration.
	RaftAddr string
	// Health is a hint from gossip: alive, suspect (the replica missed a probe, or gossip has not met it
	// since this process started), dead, or unknown. A replica that gossip has not met is shown as alive
	// while Raft receives messages from it.
	Health string
	// LastContact is the time since the replica last answered a heartbeat (0 = no answer yet). LastIndex is
	// the last index of the replica's log, from that answer. Only the leader knows both.
	LastContact time.Duration
	LastIndex   uint64
	// Copies are the Raft addresses of other processes that run on copies of the replica's data directory.
	// Only the leader and the replica itself know them.
	Copies []string
}

// Status describes the cluster, as this replica sees it.
type Status struct {
	ID        string
	Name      string
	ClusterID string
	Role      Role
	Leader    LeaderInfo // id of the leader; "" = this replica knows no leader
	StartedAt time.Time

	Term         uint64
	LastIndex    uint64 // index of the last entry in this replica's log on disk
	CommitIndex  uint64
	AppliedIndex uint64 // index of the last log entry that is applied to the state
	Digest       uint64 // digest of the state at AppliedIndex
	FeatureLevel uint32
	// LastContact is the time since this replica last heard from a leader; 0 on the leader.
	LastContact time.Duration

	LocalMode       fsm.Mode
	LocalModeReason string
	Halted          error

	// Entries and Commands are the numbers of log entries and of commands that this replica has proposed.
	Entries, Commands uint64

	Peers []PeerStatus // sorted by id
}

// Status returns what this replica knows of the cluster. It does not block and calls no other replica.
func (n *Node) Status() Status {
	view := n.Store().View()
	info := view.Info()
	s := Status{
		ID: n.id, Name: n.cfg.Name, ClusterID: n.clusterID(), Role: RoleAbsent, StartedAt: n.startedAt,
		Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(), CommitIndex: n.raft.CommitIndex(),
		AppliedIndex: info.Index, Digest: info.Digest, FeatureLevel: info.FeatureLevel,
		Halted:  n.Err(),
		Entries: n.prop.entries.Load(), Commands: n.prop.commands.Load(),
	}
	s.Leader, _ = n.Leader()
	leads := n.IsLeader()
	if !leads {
		if at := n.raft.LastContact(); !at.IsZero() {
			s.LastContact = time.Since(at)
		} else {
			s.LastContact = time.Since(n.startedAt)
		}
	}
	s.LocalMode, s.LocalModeReason = n.LocalMode()

	health := map[string]string{n.id: "alive"}
	now := time.Now()
	for _, g := range n.gossip.alive() {
		health[g.id] = "alive"
		if n.gossip.silent(g.id, now) {
			health[g.id] = "suspect"
		}
	}
	seen := map[string]bool{}
	add := func(p PeerStatus) {
		seen[p.ID] = true
		p.Self = p.ID == n.id
		if r, ok := view.Replica(p.ID); ok {
			p.Replica = r
		}
		if p.Health = health[p.ID]; p.Health == "" {
			_, dead := n.gossip.deadSince(p.ID)
			switch {
			case dead:
				p.Health = "dead"
			case n.heard(raft.ServerID(p.ID)):
				p.Health = "alive"
			case p.Role == RoleAbsent:
				p.Health = "unknown"
			default:
				p.Health = "suspect"
			}
		}
		p.Copies = n.copiesOf(p.ID)
		if p.ID == s.Leader.ID {
			p.Role = RoleLeader
		}
		if leads && !p.Self {
			if c, ok := n.trans.contacts.of(raft.ServerID(p.ID)); ok {
				p.LastContact, p.LastIndex = time.Since(c.at), c.last
			}
		}
		if p.Self {
			s.Role = p.Role
		}
		s.Peers = append(s.Peers, p)
	}
	for _, srv := range n.servers() {
		role := RoleVoter
		if srv.Suffrage != raft.Voter {
			role = RoleNonvoter
		}
		add(PeerStatus{ID: string(srv.ID), Role: role, RaftAddr: string(srv.Address)})
	}
	view.Replicas(func(r *fsm.Replica) bool {
		if !seen[r.ID] {
			add(PeerStatus{ID: r.ID, Role: RoleAbsent, RaftAddr: r.RaftAddr})
		}
		return true
	})
	sort.Slice(s.Peers, func(i, j int) bool { return s.Peers[i].ID < s.Peers[j].ID })
	return s
}

// heard reports whether this replica received a Raft message from server id lately. A follower hears only
// the leader; the leader hears its followers.
func (n *Node) heard(id raft.ServerID) bool {
	if n.IsLeader() {
		return n.healthy(id)
	}
	_, leader := n.raft.LeaderWithID()
	return leader == id && time.Since(n.raft.LastContact()) < 2*n.cfg.Timing.Heartbeat
}

// LocalMode returns the mode that this replica reports for itself, and the reason. The mode is degraded if
// the replica has halted, does not take part yet (Waiting), has a hanging log disk, or has not heard from a
// leader for Timing.LostContact; otherwise it is normal. The replicated mode cannot show this, because a
// cluster without a quorum writes nothing to the log. The mode in effect is the worse of the local and the
// replicated mode (fsm/DESIGN.md).
func (n *Node) LocalMode() (fsm.Mode, string) {
	if err := n.Err(); err != nil {
		return fsm.ModeDegraded, err.Error()
	}
	if why := n.Waiting(); why != "" {
		return fsm.ModeDegraded, why
	}
	if age, stalled := n.DiskPending(); stalled {
		return fsm.ModeDegraded, fmt.Sprintf("the disk of the log hangs: a write to %s has not ended for %s", n.logs.path, age.Round(time.Second/10))
	}
	if n.IsLeader() {
		return fsm.ModeNormal, ""
	}
	last := n.raft.LastContact()
	if last.Before(n.startedAt) {
		last = n.startedAt
	}
	if age := time.Since(last); age > n.cfg.Timing.LostContact {
		return fsm.ModeDegraded, fmt.Sprintf("no leader for %s", age.Round(time.Second/10))
	}
	return fsm.ModeNormal, ""
}

// find returns the server in the Raft configuration with this id or name.
func (n *Node) find(who string) (raft.Server, bool) {
	view := n.Store().View()
	for _, s := range n.servers() {
		if string(s.ID) == who {
			return s, true
		}
		if r, ok := view.Replica(string(s.ID)); ok && r.Name == who {
			return s, true
		}
	}
	return raft.Server{}, false
}

// member returns the server in the Raft configuration with this id or name. If there is none, the error contains
// the id or name.
func (n *Node) member(who string) (raft.Server, error) {
	s, ok := n.find(who)
	if !ok {
		return s, fmt.Errorf("no replica %q in the cluster", who)
	}
	return s, nil
}

// subject returns the server in the Raft configuration with this id or name, for a membership change
// that only the leader can make. It returns an error if this replica does not lead.
func (n *Node) subject(who string) (raft.Server, error) {
	if !n.IsLeader() {
		return raft.Server{}, n.notLeader()
	}
	return n.member(who)
}

// TransferLeadership hands leadership to the voter with the given id or name, or to the most advanced healthy
// voter if who is empty. It returns when this replica knows the new leader. Only the leader can transfer
// leadership. During the transfer proposals are refused with ErrNotLeader; no accepted proposal is lost.
func (n *Node) TransferLeadership(ctx context.Context, who string) error {
	if !n.IsLeader() {
		return n.notLeader()
	}
	target, err := n.successor(who)
	if err != nil {
		return err
	}
	n.log.Info("handing leadership over", "to", string(target.ID))
	n.trans.contacts.asks(target.ID)
	err = n.await(ctx, func() error { return n.raft.LeadershipTransferToServer(target.ID, target.Address).Error() })
	if err != nil {
		return fmt.Errorf("transfer leadership to %s: %w", target.ID, err)
	}
	for {
		changed := n.watch.next()
		if l, ok := n.Leader(); ok && l.ID != n.id {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("transfer leadership to %s: no new leader yet: %w", target.ID, ctx.Err())
		case <-n.ctx.Done():
			return n.stoppedErr()
		}
	}
}

func (n *Node) successor(who string) (raft.Server, error) {
	if who != "" {
		s, err := n.member(who)
		switch {
		case err != nil:
			return s, err
		case string(s.ID) == n.id:
			return s, fmt.Errorf("replica %q leads already", who)
		case s.Suffrage != raft.Voter:
			return s, fmt.Errorf("replica %q is no voter yet, so it cannot lead", who)
		}
		return s, nil
	}
	var best raft.Server
	var last uint64
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter || string(s.ID) == n.id || !n.healthy(s.ID) {
			continue
		}
		if c, _ := n.trans.contacts.of(s.ID); best.ID == "" || c.last > last {
			best, last = s, c.last
		}
	}
	if best.ID == "" {
		return best, errors.New("there is no healthy voter to which leadership could be transferred")
	}
	return best, nil
}

// RemoveReplica removes the replica with the given id or name from the cluster for good. The removed replica
// stops when it learns of the removal. Without force, the removal is refused if less than a majority of the
// remaining voters is healthy. Only the leader can remove a replica. A leader that is asked to remove itself
// transfers leadership first and returns ErrNotLeader, so that the caller asks the new leader.
func (n *Node) RemoveReplica(ctx context.Context, who string, force bool) error {
	s, err := n.subject(who)
	if err != nil {
		return err
	}
	if string(s.ID) == n.id {
		if err := n.TransferLeadership(ctx, ""); err != nil {
			return err
		}
		return n.notLeader()
	}
	if s.Suffrage == raft.Voter && !force {
		if err := n.checkRemovable(ctx, s.ID); err != nil {
			return fmt.Errorf("replica %q stays in the cluster: %w", who, err)
		}
	}
	n.members.mu.Lock()
	n.members.removedByUs[string(s.ID)] = true
	n.members.mu.Unlock()
	n.log.Info("removing a replica on request", "replica", string(s.ID), "force", force)
	if err := n.members.change(ctx, func(d time.Duration) raft.IndexFuture { return n.raft.RemoveServer(s.ID, 0, d) }); err != nil {
		return fmt.Errorf("remove replica %q: %w", who, err)
	}
	n.members.tellRemoved(ctx, &Hello{ID: string(s.ID), RaftAddr: string(s.Address)})
	n.gossip.poke()
	return nil
}

// checkRemovable returns an error if the cluster would lose its quorum without this voter. A new leader has
// not heard from every follower yet, so checkRemovable waits for some heartbeats before it returns the error.
func (n *Node) checkRemovable(ctx context.Context, id raft.ServerID) error {
	deadline := time.Now().Add(3 * n.cfg.Timing.Heartbeat)
	for {
		err := n.members.canLose(id, n.servers())
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Leave removes this replica from the cluster for good: it transfers leadership, asks the leader to remove it,
// and leaves the gossip group. If the cluster would lose its quorum, Leave returns an error and the replica
// stays a member. Call Close afterwards; the data directory cannot be used again.
func (n *Node) Leave(ctx context.Context) error {
	n.leaving.Store(true)
	if err := n.askToLeave(ctx); err != nil {
		n.leaving.Store(false)
		if !n.removed.Load() {
			return err
		}
		// The removal has succeeded: this replica saw it in the log before the leader's answer arrived.
	}
	n.markRemoved()
	deadline, ok := ctx.Deadline()
	wait := time.Second
	if ok {
		wait = min(wait, time.Until(deadline))
	}
	if n.ctx.Err() != nil {
		return nil // Close has ended gossip already
	}
	if err := n.gossip.leave(max(wait, time.Millisecond)); err != nil { // memberlist would wait for ever with a timeout of 0
		n.log.Debug("could not announce in gossip that this replica leaves; the other replicas notice it by their probes", "err", err)
	}
	return nil
}

// Depart calls Leave and then halts with ErrLeft.
func (n *Node) Depart(ctx context.Context) error {
	if err := n.Leave(ctx); err != nil {
		return err
	}
	n.halt(fmt.Errorf("%w: to join again, empty %s", ErrLeft, n.cfg.DataDir))
	return nil
}

// Dismiss makes a running replica, given by id or name, leave the cluster: the replica calls Depart. Only the
// leader can dismiss a replica. A leader that dismisses itself transfers leadership and departs. Dismiss is
// refused in the same cases as RemoveReplica.
func (n *Node) Dismiss(ctx context.Context, who string) error {
	s, err := n.subject(who)
	if err != nil {
		return err
	}
	if string(s.ID) == n.id {
		return n.Depart(ctx)
	}
	n.log.Info("asking another replica to leave the cluster", "replica", string(s.ID))
	_, err = n.peers.call(ctx, string(s.ID), string(s.Address), &request{Op: opDepart})
	if err == nil {
		return nil
	}
	if _, in := n.find(string(s.ID)); !in {
		return nil // the dismissed replica stopped before it answered
	}
	return fmt.Errorf("replica %q stays in the cluster: %w", who, err)
}

func (n *Node) askToLeave(ctx context.Context) error {
	for {
		if n.IsLeader() {
			if err := n.TransferLeadership(ctx, ""); err != nil && !errors.Is(err, ErrNotLeader) {
				return err
			}
		}
		l, err := n.WaitLeader(ctx)
		if err != nil {
			return err
		}
		if l.ID == n.id {
			continue
		}
		self := n.hello()
		_, err = n.peers.call(ctx, l.ID, l.RaftAddr, &request{Op: opLeave, Hello: &self})
		if err == nil {
			return nil
		}
		if now, ok := n.Leader(); ok && now.ID == l.ID {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
