package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// promiseLifetime is how long a promise to form a cluster with one candidate lasts. During that time the
// replica makes no promise to another candidate.
const promiseLifetime = 5 * time.Second

// reportAfter is the number of failed attempts to find a cluster after which a replica logs the reason, and
// the number of further attempts before it logs the reason again. Attempts are Timing.Reconcile apart.
const reportAfter = 60

// minVoters is the number of healthy voters that must remain if the leader removes a dead voter. If
// BootstrapExpect is larger, that number must remain.
const minVoters = 3

// members manages the membership of the cluster (cluster/DESIGN.md): it finds or forms a cluster, and on the
// leader it adds, promotes and removes replicas.
type members struct {
	n *Node

	mu          sync.Mutex
	promised    string
	until       time.Time
	removedByUs map[string]bool // servers that this replica removed on request while it led

	// The fields below belong to the leader's reconcile loop.
	hellos   map[string]seen      // for each Raft id: the last introduction of the replica
	caughtUp map[string]time.Time // for each non-voter: since when it has been caught up
	deadFor  map[string]time.Time // for each server: since when it has not answered
	moves    map[string]time.Time // for each id and new address: since when the replica has had that address
	recorded map[copyOf]bool      // copies for which this leader has recorded an event
}

type seen struct {
	h  *Hello
	at time.Time
}

func newMembers(n *Node) *members {
	return &members{n: n, removedByUs: map[string]bool{}, hellos: map[string]seen{}, caughtUp: map[string]time.Time{}, deadFor: map[string]time.Time{}, moves: map[string]time.Time{}, recorded: map[copyOf]bool{}}
}

// --- How a replica finds or forms a cluster ---

// find dials the known gossip addresses. While this replica knows no cluster, find searches for a cluster to join, or
// forms a new cluster. To join, a replica only has to be visible in gossip: the leader adds each replica that it can
// verify.
func (m *members) find() {
	n := m.n
	pause := 100 * time.Millisecond
	said, alone := false, time.Now()
	for {
		_, unheard := n.gossip.join(m.contacts()) // addresses that do not answer are dialled again at the next tick
		if n.knows() {
			if pause = 5 * time.Second; !n.remember() {
				pause = time.Second // the replica has a configuration, but has not received the state yet
			}
			if len(n.servers()) > 0 {
				alone = time.Now()
			} else if time.Since(alone) > reportAfter*n.cfg.Timing.Reconcile {
				alone = time.Now()
				n.log.Warn("this replica still waits until the cluster admits it", "cluster", n.clusterID(), "in_gossip", len(n.gossip.alive()), "err", unheard)
			}
		} else {
			formed, err := m.form()
			if err != nil {
				n.once.warn(n.log, "form:"+err.Error(), "cannot form a cluster yet", "err", err)
			}
			if !formed && !said {
				said = true
				n.log.Info("looking for a cluster", "join", n.cfg.Join, "expect", n.cfg.BootstrapExpect)
			}
			if !formed && time.Since(alone) > reportAfter*n.cfg.Timing.Reconcile {
				alone = time.Now()
				n.log.Warn("still looking for a cluster", "join", n.cfg.Join, "expect", n.cfg.BootstrapExpect,
					"in_gossip", len(n.gossip.alive()), "err", errors.Join(err, unheard))
			}
			pause = min(pause*3/2, time.Second)
		}
		if n.cfg.Timing.FastGossip {
			pause = min(pause, 100*time.Millisecond)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// contacts returns the gossip addresses to dial: the addresses in Config.Join, and the addresses of the replicas in the
// state, so that a restarted replica needs no Join.
func (m *members) contacts() []string {
	out := append([]string(nil), m.n.cfg.Join...)
	m.n.Store().View().Replicas(func(r *fsm.Replica) bool {
		if r.ID != m.n.id && r.GossipAddr != "" {
			out = append(out, r.GossipAddr)
		}
		return len(out) < 128
	})
	return append(out, m.n.remembered()...)
}

// form bootstraps a new cluster if enough replicas are visible, none of them knows a cluster, all of them
// promise to form one with this replica, and this replica has the lowest id.
func (m *members) form() (bool, error) {
	n := m.n
	expect := n.cfg.BootstrapExpect
	if expect == 0 || n.removed.Load() || expect == 1 && len(n.remembered()) > 0 {
		return false, nil // this replica was a member and lost its state, so it must join the others and not form a cluster
	}
	self := n.hello()
	found := []*Hello{&self}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
	defer cancel()
	for _, s := range n.gossip.alive() {
		h, err := n.greetPeer(ctx, s.raftAddr)
		if errors.Is(err, ErrWrongCluster) {
			continue
		}
		if err != nil { // a replica that did not answer may know a cluster, so do not form a second one
			return false, fmt.Errorf("%s is in gossip, but does not answer at %s: %w", s.name, s.raftAddr, err)
		}
		if h.ID != s.id {
			continue // another replica uses this address now, and gossip will learn of that
		}
		if h.Knows {
			return false, nil // another replica knows a cluster; the leader of that cluster will add this replica
		}
		if h.Expect != 0 && h.Expect != expect {
			return false, fmt.Errorf("SCHEDULER_BOOTSTRAP_EXPECT is %d here and %d on %s", expect, h.Expect, h.Name)
		}
		if h.Shard != self.Shard {
			return false, fmt.Errorf("SCHEDULER_SHARD_KEY is %q here and %q on %s", self.Shard, h.Shard, h.Name)
		}
		for _, f := range found {
			if f.Name == h.Name {
				return false, fmt.Errorf("SCHEDULER_NAME: %q is the name of both %s and %s", h.Name, f.RaftAddr, h.RaftAddr)
			}
		}
		found = append(found, h)
	}
	if len(found) < expect {
		return false, nil
	}
	sort.Slice(found, func(i, j int) bool { return found[i].ID < found[j].ID })
	found = found[:expect]
	if found[0].ID != n.id {
		return false, nil
	}
	if err := m.promise(&self); err != nil {
		return false, nil
	}
	var config raft.Configuration
	for _, h := range found {
		if h.ID != n.id {
			if _, err := n.peers.call(ctx, h.ID, h.RaftAddr, &request{Op: opForm, Hello: &self}); err != nil {
				return false, fmt.Errorf("%s does not agree to form a cluster: %w", h.Name, err)
			}
		}
		config.Servers = append(config.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(h.ID), Address: raft.ServerAddress(h.RaftAddr)})
	}
	return true, m.bootstrap(config)
}

func (m *members) bootstrap(config raft.Configuration) error {
	m.n.log.Info("forming a cluster", "replicas", len(config.Servers))
	if err := m.n.raft.BootstrapCluster(config).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("form a cluster: %w", err)
	}
	return nil
}

// promise answers a replica that asks for the promise to form a cluster with it. This replica promises only
// while it knows no cluster, and to one candidate at a time.
func (m *members) promise(to *Hello) error {
	if to == nil || to.ID == "" {
		return errors.New("form: who?")
	}
	if m.n.knows() || m.n.removed.Load() {
		return errors.New("this replica already knows a cluster")
	}
	if m.n.cfg.BootstrapExpect != 0 && to.Expect != m.n.cfg.BootstrapExpect {
		return fmt.Errorf("SCHEDULER_BOOTSTRAP_EXPECT differs: it is %d on the replica that asks and %d on this one", to.Expect, m.n.cfg.BootstrapExpect)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.promised != "" && m.promised != to.ID && time.Now().Before(m.until) {
		return errors.New("this replica has already promised to form a cluster with another replica")
	}
	m.promised, m.until = to.ID, time.Now().Add(promiseLifetime)
	return nil
}

// --- The leader's reconcile loop ---

// lead keeps the Raft configuration and the replica records in the state equal to the replicas that exist. It
// makes at most one configuration change per pass.
func (m *members) lead(ctx context.Context, s LeadershipTerm) error {
	clear(m.hellos)
	clear(m.caughtUp)
	clear(m.deadFor)
	clear(m.moves)
	clear(m.recorded)
	for {
		again := m.n.cfg.Timing.Reconcile
		changed, err := m.pass(ctx, s)
		if err != nil && !isCanceled(err) {
			m.n.once.warn(m.n.log, "reconcile:"+err.Error(), "membership change failed", "epoch", s.Epoch.String(), "err", err)
		}
		if changed {
			again = min(again, 50*time.Millisecond)
		}
		wake := m.n.gossip.changed
		if again < 100*time.Millisecond {
			wake = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		case <-wake:
			// Gossip often reports changes of several replicas at about the same time. Wait a moment, so that one pass
			// handles all of them.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(again, 50*time.Millisecond)):
			}
		}
	}
}

func (m *members) pass(ctx context.Context, s LeadershipTerm) (changed bool, err error) {
	now := time.Now()
	m.greet(ctx, now)
	m.observe(now)
	m.tellTwins(ctx, now)
	m.recordCopies(ctx, s, now)
	if changed, err := m.configure(ctx, now); changed || err != nil {
		return changed, err
	}
	m.leaveToFaster(ctx, s)
	return m.record(ctx, s)
}

// greet asks all replicas in gossip, in parallel, who they are, and stores their introductions.
func (m *members) greet(ctx context.Context, now time.Time) {
	n := m.n
	var mu sync.Mutex
	var wg sync.WaitGroup
	inConfig := map[string]bool{}
	for _, s := range n.servers() {
		inConfig[string(s.ID)] = s.Suffrage == raft.Voter
	}
	var ask []sighting
	for _, s := range n.gossip.alive() {
		// Raft itself watches its servers, so a server of the configuration is asked only every five
		// periods. A new replica is asked at once.
		if old, ok := m.hellos[s.id]; ok && inConfig[s.id] && now.Sub(old.at) < 5*n.cfg.Timing.Reconcile && old.h.RaftAddr == s.raftAddr {
			continue
		}
		ask = append(ask, s)
	}
	for _, s := range ask {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cctx, cancel := context.WithTimeout(ctx, min(time.Second, n.cfg.Timing.RPC))
			defer cancel()
			h, err := n.greetPeer(cctx, s.raftAddr)
			if errors.Is(err, ErrWrongCluster) {
				n.once.warn(n.log, "stranger:"+s.raftAddr, "a replica of another cluster is in this cluster's gossip", "addr", s.raftAddr, "err", err)
			}
			if err != nil || h.ID != s.id {
				return
			}
			mu.Lock()
			for id, old := range m.hellos {
				if id != h.ID && old.h.RaftAddr == h.RaftAddr {
					delete(m.hellos, id) // another replica answers at this address, so the replica from gossip must not be added again
				}
			}
			m.hellos[h.ID] = seen{h, now}
			for _, addr := range h.Copies {
				n.copies.note(h.ID, addr, now)
			}
			mu.Unlock()
		}()
	}
	wg.Wait()
	for id, s := range m.hellos {
		if now.Sub(s.at) > 10*n.cfg.Timing.Reconcile {
			delete(m.hellos, id)
		}
	}
}

// healthy reports whether the replica answered a heartbeat lately.
func (n *Node) healthy(id raft.ServerID) bool {
	if string(id) == n.id {
		return true
	}
	c, ok := n.trans.contacts.of(id)
	return ok && time.Since(c.at) < 2*n.cfg.Timing.Heartbeat
}

// observe records, for each replica, since when its log has been caught up, or since when it has
// been silent.
func (m *members) observe(now time.Time) {
	n := m.n
	commit := n.raft.CommitIndex()
	present := map[string]bool{}
	for _, s := range n.servers() {
		id := string(s.ID)
		present[id] = true
		ok := n.healthy(s.ID)
		if ok {
			delete(m.deadFor, id)
		} else if _, known := m.deadFor[id]; !known {
			m.deadFor[id] = now
		}
		c, _ := n.trans.contacts.of(s.ID)
		const lag = 512 // largest number of entries that a replica may lack and still count as caught up: under load every follower lacks some
		if s.Suffrage == raft.Nonvoter && ok && c.last+lag >= commit {
			if _, known := m.caughtUp[id]; !known {
				m.caughtUp[id] = now
			}
		} else {
			delete(m.caughtUp, id)
		}
	}
	for id := range m.deadFor {
		if !present[id] {
			delete(m.deadFor, id)
		}
	}
}

// configure makes at most one change to the Raft configuration and reports whether it made one.
func (m *members) configure(ctx context.Context, now time.Time) (bool, error) {
	n := m.n
	servers := n.servers()
	byID := map[string]raft.Server{}
	for _, s := range servers {
		byID[string(s.ID)] = s
	}
	self := n.hello()
	hellos, ids := map[string]*Hello{n.id: &self}, []string{n.id}
	for id, seen := range m.hellos {
		hellos[id], ids = seen.h, append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		h := hellos[id]
		if own := n.clusterID(); h.ClusterID != "" && h.ClusterID != own {
			n.once.warn(n.log, "stranger:"+id, "a replica of another cluster is in this cluster's gossip", "name", h.Name, "cluster", h.ClusterID)
			continue
		}
		if own := n.Store().View().Info().Shard; h.Shard != "" && own != "" && h.Shard != own {
			n.once.warn(n.log, "shard:"+id, "a replica of another shard is in this cluster's gossip; SCHEDULER_SHARD_KEY has to be the same on all replicas", "name", h.Name, "shard", h.Shard, "cluster_shard", own)
			continue
		}
		if h.Removed {
			continue
		}
		s, member := byID[id]
		// The replica is still a member, so an earlier removal failed. Forget that removal.
		if !member && m.wasRemovedByUs(id) {
			m.tellRemoved(ctx, h)
			continue
		}
		switch {
		case member && string(s.Address) != h.RaftAddr:
			if m.copied(ctx, s, h, now) || m.movesLater(h, now) {
				// The state must not record the address of a copy. Forget the introduction: this replica
				// is asked again in the next pass.
				delete(m.hellos, id)
				continue
			}
			to := raft.ServerAddress(h.RaftAddr)
			if slices.ContainsFunc(servers, func(o raft.Server) bool { return o.Address == to }) {
				// The Raft configuration cannot hold one address twice. If the configuration still lists the server's
				// new address for another server, set an address that leads nowhere now, and the new address in a later
				// pass. Raft dials the addresses from gossip, so it reaches the server meanwhile.
				if to = raft.ServerAddress(id + ".invalid:1"); to == s.Address {
					continue
				}
			}
			n.log.Info("replica has a new address", "replica", id, "name", h.Name, "from", string(s.Address), "to", string(to), "at", h.RaftAddr)
			return true, m.change(ctx, func(d time.Duration) raft.IndexFuture {
				if s.Suffrage == raft.Voter {
					return n.raft.AddVoter(s.ID, to, 0, d)
				}
				return n.raft.AddNonvoter(s.ID, to, 0, d)
			})
		case member, id == n.id:
		default:
			done, err := m.admit(ctx, now, h, servers)
			if done || err != nil {
				return done, err
			}
		}
	}
	for _, s := range servers {
		id := string(s.ID)
		if since, ok := m.caughtUp[id]; ok && s.Suffrage == raft.Nonvoter && now.Sub(since) >= n.cfg.Timing.Stabilize {
			n.log.Info("replica gets a vote", "replica", id)
			return true, m.change(ctx, func(d time.Duration) raft.IndexFuture { return n.raft.AddVoter(s.ID, s.Address, 0, d) })
		}
	}
	return m.removeDead(ctx, now, servers)
}

// admit adds a new replica to the configuration. If the new replica replaces another server, admit removes
// that server first.
func (m *members) admit(ctx context.Context, now time.Time, h *Hello, servers []raft.Server) (bool, error) {
	n := m.n
	for _, s := range servers {
		r, known := n.Store().View().Replica(string(s.ID))
		sameName := known && r.Name == h.Name || string(s.ID) == n.id && n.cfg.Name == h.Name
		if string(s.Address) != h.RaftAddr && !sameName {
			continue
		}
		if since, silent := m.deadFor[string(s.ID)]; silent && now.Sub(since) < 2*n.cfg.Timing.Heartbeat {
			return false, nil // the leader is new and has not heard from every follower yet
		} else if !silent {
			n.once.warn(n.log, "twin:"+h.ID, "a new replica has the name or address of a live replica and is not admitted", "name", h.Name, "addr", h.RaftAddr, "replica", string(s.ID))
			return false, nil
		}
		if s.Suffrage == raft.Voter {
			if err := m.canLose(s.ID, servers); err != nil {
				n.once.warn(n.log, "replace:"+h.ID, "a replica that lost its data waits until its old entry is replaced", "name", h.Name, "err", err)
				return false, nil
			}
		}
		n.log.Info("a replica came back without its data: removing its old entry from the Raft configuration", "name", h.Name, "old", string(s.ID), "new", h.ID)
		return true, m.change(ctx, func(d time.Duration) raft.IndexFuture { return n.raft.RemoveServer(s.ID, 0, d) })
	}
	n.log.Info("replica joins", "replica", h.ID, "name", h.Name, "addr", h.RaftAddr)
	return true, m.change(ctx, func(d time.Duration) raft.IndexFuture {
		return n.raft.AddNonvoter(raft.ServerID(h.ID), raft.ServerAddress(h.RaftAddr), 0, d)
	})
}

// removeDead removes servers that have been dead for Timing.DeadAfter: non-voters always, voters only if
// max(BootstrapExpect, 3) healthy voters remain. In a cluster with no more voters than that, a dead voter is
// removed only after a replacement has become a voter.
func (m *members) removeDead(ctx context.Context, now time.Time, servers []raft.Server) (bool, error) {
	n := m.n
	after := n.cfg.Timing.DeadAfter
	if after < 0 {
		return false, nil
	}
	for _, s := range servers {
		since, dead := m.deadFor[string(s.ID)]
		if !dead || now.Sub(since) < after {
			continue
		}
		if s.Suffrage == raft.Voter {
			if m.canLose(s.ID, servers) != nil || m.healthyVoters(s.ID, servers) < max(n.cfg.BootstrapExpect, minVoters) {
				continue
			}
		}
		n.log.Warn("removing a replica that has been dead for a long time", "replica", string(s.ID), "dead_for", now.Sub(since).Round(time.Second))
		return true, m.change(ctx, func(d time.Duration) raft.IndexFuture { return n.raft.RemoveServer(s.ID, 0, d) })
	}
	return false, nil
}

func (m *members) healthyVoters(without raft.ServerID, servers []raft.Server) int {
	count := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != without && m.n.healthy(s.ID) {
			count++
		}
	}
	return count
}

// canLose returns an error if it is unsafe to remove a voter. A majority of the remaining voters must be
// healthy, because they have to commit the removal and everything after it.
func (m *members) canLose(id raft.ServerID, servers []raft.Server) error {
	rest := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != id {
			rest++
		}
	}
	if rest == 0 {
		return errors.New("it is the only voter")
	}
	if healthy := m.healthyVoters(id, servers); healthy < rest/2+1 {
		return fmt.Errorf("only %d of the %d other voters are healthy", healthy, rest)
	}
	return nil
}

func (m *members) change(ctx context.Context, f func(time.Duration) raft.IndexFuture) error {
	return m.n.await(ctx, func() error { return f(m.n.cfg.Timing.RPC).Error() })
}

// record updates the replica records and the feature level in the state. The feature level is computed from the
// records, so it may rise only in a later pass. changed reports that the state was changed, so that the caller
// starts that pass at once.
func (m *members) record(ctx context.Context, s LeadershipTerm) (changed bool, err error) {
	n := m.n
	view := n.Store().View()
	self := n.hello()
	want := map[string]*Hello{n.id: &self}
	for id, seen := range m.hellos {
		want[id] = seen.h
	}
	var cmds []fsm.Command
	level := n.cfg.FeatureLevel
	inConfig := map[string]bool{}
	for _, srv := range n.servers() {
		id := string(srv.ID)
		inConfig[id] = true
		have, known := view.Replica(id)
		h, greeted := want[id]
		switch {
		case greeted:
			level = min(level, h.FeatureLevel)
			if want := h.replica(srv.Suffrage == raft.Voter); !known || *have != *want {
				cmds = append(cmds, &commandv1.Command{Head: n.head(s.Epoch), Body: &commandv1.Command_PutReplica{PutReplica: want.PB()}})
			}
		case known:
			level = min(level, have.FeatureLevel)
		default:
			level = 0 // the feature level of this server is not known, because the state has no record of it
		}
	}
	view.Replicas(func(r *fsm.Replica) bool {
		if !inConfig[r.ID] {
			cmds = append(cmds, &commandv1.Command{Head: n.head(s.Epoch), Body: &commandv1.Command_RemoveReplica{RemoveReplica: &commandv1.RemoveReplica{Id: r.ID}}})
		}
		return true
	})
	if len(cmds) == 0 && level > view.Info().FeatureLevel {
		n.log.Info("feature level raised", "from", view.Info().FeatureLevel, "to", level)
		cmds = append(cmds, &commandv1.Command{Head: n.head(s.Epoch), Body: &commandv1.Command_SetFeatureLevel{SetFeatureLevel: &commandv1.SetFeatureLevel{Level: level}}})
	}
	if len(cmds) == 0 {
		return false, nil
	}
	pctx, cancel := context.WithTimeout(ctx, n.cfg.Timing.RPC)
	defer cancel()
	results, err := n.Propose(pctx, cmds...)
	if err != nil {
		return false, err
	}
	for _, r := range results {
		if err := r.Err(); err != nil {
			return false, fmt.Errorf("replica records: %w", err)
		}
	}
	return true, nil
}

// replica returns the state record of the replica that introduced itself with h.
func (h *Hello) replica(votes bool) *fsm.Replica {
	r := &fsm.Replica{
		ID: h.ID, Name: h.Name, GRPCAddr: h.GRPCAddr, HTTPAddr: h.HTTPAddr, RaftAddr: h.RaftAddr,
		GossipAddr: h.GossipAddr, DNSAddr: h.DNSAddr, Version: h.Version, FeatureLevel: h.FeatureLevel, Memory: h.Memory,
	}
	if p := h.Repair; p != nil {
		clip := func(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
		r.Repair = fsm.ReplicaRepair{
			Of: p.Of, Damage: clip(p.Damage, fsm.MaxRepairDamage), Aside: clip(p.Aside, fsm.MaxRepairAside), At: p.At.UnixNano(), Done: votes,
		}
	}
	return r
}

// --- Removal of a replica ---

func (m *members) wasRemovedByUs(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removedByUs[id]
}

// tellRemoved tells a replica that it was removed, so that it stops by itself. If the message is lost, Raft
// ignores the removed replica anyway.
func (m *members) tellRemoved(ctx context.Context, h *Hello) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	self := m.n.hello()
	if _, err := m.n.peers.call(ctx, h.ID, h.RaftAddr, &request{Op: opRemoved, Hello: &self}); err != nil {
		m.n.log.Debug("could not tell a replica that it was removed", "replica", h.ID, "err", err)
	}
}

// wasRemoved handles a leader's message that this replica was removed from the cluster.
func (m *members) wasRemoved(by *Hello) error {
	n := m.n
	if by == nil || by.ClusterID == "" || by.ClusterID != n.clusterID() {
		return errors.New("refused: the message that this replica was removed is from another cluster")
	}
	for _, s := range n.servers() {
		if string(s.ID) == n.id && by.Term < n.raft.CurrentTerm() {
			return errors.New("refused: the message that this replica was removed is from a former leader")
		}
	}
	n.markRemoved()
	return nil
}

// watchOwn halts this replica once the Raft configuration, which contained it before, no longer contains it.
func (m *members) watchOwn() {
	n := m.n
	member, missing := false, time.Time{}
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(n.cfg.Timing.Reconcile):
		}
		in := false
		servers := n.servers()
		for _, s := range servers {
			in = in || string(s.ID) == n.id
		}
		switch {
		case in:
			member, missing = true, time.Time{}
		case !member || len(servers) == 0:
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) > 2*n.cfg.Timing.Reconcile:
			n.markRemoved()
			return
		}
	}
}

func (n *Node) markRemoved() {
	if n.removed.Swap(true) {
		return
	}
	if err := n.logs.setOwn(keyRemoved, "yes"); err != nil {
		n.log.Warn("cannot store in the data directory that this replica was removed", "err", err)
	}
	if !n.leaving.Load() {
		n.halt(fmt.Errorf("%w: to join again, empty %s", ErrRemoved, n.cfg.DataDir))
	}
}
