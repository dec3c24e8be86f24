package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// promiseLifetime is the time for which a replica that promised to form a cluster with one candidate
// promises nothing to another.
const promiseLifetime = 5 * time.Second

// reportAfter times Timing.Reconcile is how long a replica without a cluster searches before it logs why it
// found none, and the period of that log line.
const reportAfter = 60

// minVoters is the number of healthy voters that must remain when a dead voter is removed (or
// BootstrapExpect, if that is more).
const minVoters = 3

// members manages the membership (cluster/DESIGN.md).
type members struct {
	n *Node

	mu          sync.Mutex
	promised    string
	until       time.Time
	removedByUs map[string]bool // removed on request while this replica led

	// The fields below belong to the leader's reconcile loop.
	hellos   map[string]seen      // by raft id
	caughtUp map[string]time.Time // since when a non-voter has been caught up
	deadFor  map[string]time.Time // since when a server has been silent
}

type seen struct {
	h  *Hello
	at time.Time
}

func newMembers(n *Node) *members {
	return &members{n: n, removedByUs: map[string]bool{}, hellos: map[string]seen{}, caughtUp: map[string]time.Time{}, deadFor: map[string]time.Time{}}
}

// --- Finding or forming a cluster ---

// find keeps gossip connected. While this replica knows no cluster, it searches for one to join, or forms
// one. To join, a replica only has to be visible in gossip: the leader adds each replica that it can
// verify.
func (m *members) find() {
	n := m.n
	pause := 100 * time.Millisecond
	said, alone := false, time.Now()
	for {
		_, unheard := n.gossip.join(m.contacts()) // tried again at the next tick
		if n.knows() {
			n.remember()
			pause = 5 * time.Second
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

// contacts returns the gossip addresses to dial: the configured ones, and those of the replicas in the
// state, so that a restart needs no Join.
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
// promise to form with this replica, and this replica has the lowest id.
func (m *members) form() (bool, error) {
	n := m.n
	expect := n.cfg.BootstrapExpect
	if expect == 0 || n.removed.Load() || expect == 1 && len(n.remembered()) > 0 {
		return false, nil // a replica that remembers others has lost its state, and joins them
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
		if err != nil { // that replica may know a cluster; do not form a second one
			return false, fmt.Errorf("%s is in gossip and cannot be asked at %s: %w", s.name, s.raftAddr, err)
		}
		if h.ID != s.id {
			continue // another replica has this address now; gossip will notice
		}
		if h.Knows {
			return false, nil // join that cluster: its leader will add this replica
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
				return false, fmt.Errorf("%s does not agree: %w", h.Name, err)
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

// promise answers a replica that wants to form a cluster. This replica promises only while it knows no
// cluster, and to one candidate at a time.
func (m *members) promise(to *Hello) error {
	if to == nil || to.ID == "" {
		return errors.New("form: who?")
	}
	if m.n.knows() || m.n.removed.Load() {
		return errors.New("this replica knows a cluster")
	}
	if m.n.cfg.BootstrapExpect != 0 && to.Expect != m.n.cfg.BootstrapExpect {
		return fmt.Errorf("SCHEDULER_BOOTSTRAP_EXPECT is %d there and %d here", to.Expect, m.n.cfg.BootstrapExpect)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.promised != "" && m.promised != to.ID && time.Now().Before(m.until) {
		return errors.New("already promised to another replica")
	}
	m.promised, m.until = to.ID, time.Now().Add(promiseLifetime)
	return nil
}

// --- The leader's reconcile loop ---

// lead keeps the Raft configuration and the replica records equal to the replicas that exist. It makes at
// most one configuration change per pass.
func (m *members) lead(ctx context.Context, s LeadershipTerm) error {
	clear(m.hellos)
	clear(m.caughtUp)
	clear(m.deadFor)
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
			// Changes of several replicas arrive together: wait for all of them.
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
	if changed, err := m.configure(ctx, now); changed || err != nil {
		return changed, err
	}
	return m.record(ctx, s)
}

// greet asks every replica in gossip, in parallel, who it is.
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
		// Raft watches voters itself; new replicas are asked at once.
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
			m.hellos[h.ID] = seen{h, now}
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

// healthy reports whether a replica answered a heartbeat lately.
func (n *Node) healthy(id raft.ServerID) bool {
	if string(id) == n.id {
		return true
	}
	c, ok := n.trans.contacts.of(id)
	return ok && time.Since(c.at) < 2*n.cfg.Timing.Heartbeat
}

// observe records the times at which replicas caught up or became silent.
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
		const lag = 512 // entries; under load a follower is always some entries behind
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

// configure makes at most one change to the Raft configuration.
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
		if !member && m.wasRemovedByUs(id) { // a failed removal must not keep the replica out
			m.tellRemoved(ctx, h)
			continue
		}
		switch {
		case member && string(s.Address) != h.RaftAddr:
			to := raft.ServerAddress(h.RaftAddr)
			if slices.ContainsFunc(servers, func(o raft.Server) bool { return o.Address == to }) {
				// Two servers cannot have the same address. Servers that exchanged their addresses get a
				// placeholder first; gossip knows their addresses meanwhile.
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

// admit adds a new replica, and first removes the server that it replaces.
func (m *members) admit(ctx context.Context, now time.Time, h *Hello, servers []raft.Server) (bool, error) {
	n := m.n
	for _, s := range servers {
		r, known := n.Store().View().Replica(string(s.ID))
		sameName := known && r.Name == h.Name || string(s.ID) == n.id && n.cfg.Name == h.Name
		if string(s.Address) != h.RaftAddr && !sameName {
			continue
		}
		if since, silent := m.deadFor[string(s.ID)]; silent && now.Sub(since) < 2*n.cfg.Timing.Heartbeat {
			return false, nil // a new leader has not heard from every follower yet
		} else if !silent {
			n.once.warn(n.log, "twin:"+h.ID, "a newcomer has the name or address of a live replica and is not admitted", "name", h.Name, "addr", h.RaftAddr, "replica", string(s.ID))
			return false, nil
		}
		if s.Suffrage == raft.Voter {
			if err := m.canLose(s.ID, servers); err != nil {
				n.once.warn(n.log, "replace:"+h.ID, "an emptied replica waits to be replaced", "name", h.Name, "err", err)
				return false, nil
			}
		}
		n.log.Info("replica came back empty: its old identity is removed", "name", h.Name, "old", string(s.ID), "new", h.ID)
		return true, m.change(ctx, func(d time.Duration) raft.IndexFuture { return n.raft.RemoveServer(s.ID, 0, d) })
	}
	n.log.Info("replica joins", "replica", h.ID, "name", h.Name, "addr", h.RaftAddr)
	return true, m.change(ctx, func(d time.Duration) raft.IndexFuture {
		return n.raft.AddNonvoter(raft.ServerID(h.ID), raft.ServerAddress(h.RaftAddr), 0, d)
	})
}

// removeDead removes servers that have been dead for Timing.DeadAfter: non-voters always, voters only while
// max(BootstrapExpect, 3) healthy voters remain, that is, once a replacement has a vote.
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
		n.log.Warn("removing a replica that has been dead for long", "replica", string(s.ID), "dead_for", now.Sub(since).Round(time.Second))
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

// canLose returns an error if removing a voter is unsafe: a majority of the remaining voters must be
// healthy, because they commit the removal and everything after it.
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

// record updates the replica records and the feature level. The level may rise once the records are right,
// so a change calls for another pass at once.
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
			if !known || *have != *h.replica() {
				cmds = append(cmds, &commandv1.Command{Head: n.head(s.Epoch), Body: &commandv1.Command_PutReplica{PutReplica: putReplica(h)}})
			}
		case known:
			level = min(level, have.FeatureLevel)
		default:
			level = 0 // a server without a record
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

func putReplica(h *Hello) *commandv1.PutReplica {
	return &commandv1.PutReplica{
		Id: h.ID, Name: h.Name, GrpcAddr: h.GRPCAddr, HttpAddr: h.HTTPAddr, RaftAddr: h.RaftAddr,
		GossipAddr: h.GossipAddr, DnsAddr: h.DNSAddr, Version: h.Version, FeatureLevel: h.FeatureLevel,
	}
}

// --- Removal ---

func (m *members) wasRemovedByUs(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removedByUs[id]
}

// tellRemoved tells a removed replica, so that it stops by itself. If the message is lost, Raft ignores the
// replica anyway.
func (m *members) tellRemoved(ctx context.Context, h *Hello) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	self := m.n.hello()
	if _, err := m.n.peers.call(ctx, h.ID, h.RaftAddr, &request{Op: opRemoved, Hello: &self}); err != nil {
		m.n.log.Debug("could not tell a replica that it was removed", "replica", h.ID, "err", err)
	}
}

// wasRemoved handles the message of a leader that it removed this replica.
func (m *members) wasRemoved(by *Hello) error {
	n := m.n
	if by == nil || by.ClusterID == "" || by.ClusterID != n.clusterID() {
		return errors.New("the message that this replica was removed is from another cluster")
	}
	for _, s := range n.servers() {
		if string(s.ID) == n.id && by.Term < n.raft.CurrentTerm() {
			return errors.New("the message that this replica was removed is from a former leader")
		}
	}
	n.markRemoved()
	return nil
}

// watchOwn halts this replica once the configuration, which named it before, no longer does.
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
		n.log.Warn("cannot note that this replica was removed", "err", err)
	}
	if !n.leaving.Load() {
		n.halt(fmt.Errorf("%w: to join again, empty %s", ErrRemoved, n.cfg.DataDir))
	}
}
