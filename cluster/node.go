package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"github.com/persys/compute/pki"
)

// Node is one replica: Raft, the replicated state and the membership.
type Node struct {
	cfg Config
	log *slog.Logger
	id  string

	lock    *os.File
	logs    *logStore
	machine *machine
	port    *port
	trans   *transport
	raft    *raft.Raft
	gossip  *gossip
	peers   *peers
	members *members

	prop       *proposer
	conf       *confirmer
	leadership *leadership
	watch      *watch
	failover   *failover
	stall      *stall
	once       onceLog

	copies    copies
	instance  string                 // random id of this process
	waiting   atomic.Pointer[string] // why this replica does not take part yet (place.go)
	startedAt time.Time
	learned   atomic.Pointer[string] // id of this replica's cluster; nil until it is certain
	repaired  *Repaired              // how this replica replaced damaged data; nil if it did not
	removed   atomic.Bool
	leaving   atomic.Bool
	restoring atomic.Bool   // true during Restore: proposals are refused
	replacing chan struct{} // semaphore of capacity 1; held while Raft replaces the state, or while the node is stopped

	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex // guards the field closed, and prevents wg.Add during wg.Wait
	closed bool
	wg     sync.WaitGroup

	haltOnce sync.Once
	halted   atomic.Bool
	haltErr  atomic.Pointer[error]
	haltedCh chan struct{}

	reconfiguring sync.Mutex // held while reconfigure reads and changes Raft's settings

	stopOnce   sync.Once
	stopErr    error
	propStop   chan struct{}
	propDone   chan struct{}
	notifyStop chan struct{}
	closeOnce  sync.Once
	closeErr   error
}

// hooks let tests replace parts of a replica's environment, such as its disk and its network.
type hooks struct {
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	lookup  lookup
	storage func(storage) storage
	rename  func(from, to string) error
	free    func(dir string) (uint64, error)
}

const (
	RaftDir     = "raft" // folder in the data directory with the log and the snapshots
	drainLimit  = 5 * time.Second
	stopLimit   = 10 * time.Second
	maxAppend   = 64 // maximum number of entries in a Raft message; 64 entries of 256 KiB are 16 MiB
	keptSnaps   = 2
	idFile      = "raft-id"
	lockFile    = "lock"
	quarantined = "raft.diverged-"
)

// Open starts a replica and returns without waiting for a leader (WaitLeader does). ctx limits only the
// start. Every error names the setting or the file that caused it; errors.go lists the errors that callers can compare
// with errors.Is.
func Open(ctx context.Context, cfg Config) (*Node, error) { return open(ctx, cfg, hooks{}) }

func open(ctx context.Context, cfg Config, hooks hooks) (n *Node, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := makeDir(cfg.DataDir); err != nil {
		return nil, err
	}
	n = newNode(cfg)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if n.lock, err = lockDir(cfg.DataDir); err != nil {
		return n, err
	}
	fresh, err := n.openStorage(hooks)
	if err != nil {
		return n, err
	}
	if fresh && len(cfg.Join) == 0 && cfg.BootstrapExpect == 0 && !cfg.AllowSolo && len(n.remembered()) == 0 {
		return n, errNoWayIn(cfg.DataDir)
	}
	if err := ctx.Err(); err != nil {
		return n, err
	}
	if n.port, err = listenPort(n, cfg.RaftBind, cfg.RaftAdvertise, hooks); err != nil {
		return n, err
	}
	n.trans = newTransport(n.port, n.logs, cfg.Timing.RPC, n.log, n.halt)
	was, refused, err := n.locate()
	if err != nil {
		return n, err
	}
	if was != nil {
		n.wait(*was)
	}
	if n.gossip, err = newGossip(n, hooks); err != nil {
		return n, err
	}
	if err = n.startRaft(was != nil || refused != nil); err != nil {
		return n, err
	}
	n.logs.started.Store(true)
	n.spawn(n.stall.run)
	n.spawn(n.trans.relay)
	switch {
	case refused != nil:
		n.haltCopy(*refused)
		return n, nil
	case was != nil:
		n.spawn(func() { n.waitForFirst(*was) })
		return n, nil
	}
	solo := len(cfg.Join) == 0 && len(n.remembered()) == 0 && (cfg.BootstrapExpect == 1 || cfg.AllowSolo && cfg.BootstrapExpect == 0)
	err = n.participate(fresh && solo && n.learned.Load() == nil)
	return n, err
}

// participate makes this replica visible to the other replicas and starts its background loops. If alone is true, this
// replica forms a cluster by itself.
func (n *Node) participate(alone bool) error {
	if err := n.gossip.start(); err != nil {
		return err
	}
	n.spawn(n.port.serve)
	n.spawn(n.gossip.listen)
	if !n.cfg.Timing.NoFastFailover {
		n.spawn(n.failover.run)
	}
	n.spawn(n.snapshotWhenDue)
	n.spawn(n.compareDigests)
	n.spawn(n.members.watchOwn)
	n.spawn(func() {
		if err := n.Lead(n.ctx, n.members.lead); err != nil && n.ctx.Err() == nil {
			n.log.Error("the membership loop ended", "err", err)
		}
	})
	if alone {
		err := n.members.bootstrap(raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.port.advertise),
		}}})
		if err != nil {
			return err
		}
	}
	n.spawn(n.members.find)
	n.log.Info("replica started", "replica", n.id, "name", n.cfg.Name, "raft", n.port.advertise, "gossip", n.gossipAddr(), "data", n.cfg.DataDir)
	return nil
}

func newNode(cfg Config) *Node {
	n := &Node{
		cfg:        cfg,
		log:        cfg.Logger,
		machine:    newMachine(),
		leadership: newLeadership(),
		watch:      newWatch(),
		instance:   uuid.NewString(),
		startedAt:  time.Now(),
		haltedCh:   make(chan struct{}),
		replacing:  make(chan struct{}, 1),
		propStop:   make(chan struct{}),
		propDone:   make(chan struct{}),
		notifyStop: make(chan struct{}),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.prop = newProposer(n, cfg.Timing.InFlight)
	n.conf = &confirmer{n: n}
	n.members = newMembers(n)
	n.stall = newStall(n)
	n.peers = &peers{n: n, idle: map[string]net.Conn{}}
	n.failover = &failover{n: n, off: cfg.Timing.NoFastFailover, wake: make(chan raft.ServerID, 1)}
	return n
}

func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		k, _ := f.Read(holder)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("SCHEDULER_DATA_DIR: %w: %s is held by process %s", ErrInUse, dir, strings.TrimSpace(string(holder[:k])))
		}
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR: lock %s: %w", path, err)
	}
	// The process id in the lock file is only for people. The lock works without it, for example on a full
	// disk.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	return f, nil
}

// openStorage opens and verifies the data on disk. fresh reports that this replica has never been part of a
// cluster.
func (n *Node) openStorage(hooks hooks) (fresh bool, err error) {
	dir := filepath.Join(n.cfg.DataDir, RaftDir)
	if err := makeDir(dir); err != nil {
		return false, err
	}
	if n.logs, err = openLogStore(dir, hooks.storage); err != nil {
		return false, err
	}
	if gone, err := n.logs.own(keyRemoved); err != nil {
		return false, err
	} else if gone != "" {
		return false, fmt.Errorf("%w: to join again, empty %s", ErrRemoved, n.cfg.DataDir)
	}
	newest, err := verifySnapshots(filepath.Join(dir, "snapshots"))
	if err != nil {
		return false, err
	}
	if err := n.logs.verify(newest); err != nil {
		return false, err
	}
	last, err := n.logs.LastIndex()
	if err != nil {
		return false, err
	}
	fresh = last == 0 && newest == 0
	// The Raft id is stored in the file of the log, so that a replica that lost its log cannot vote under
	// its old id (cluster/DESIGN.md).
	if n.id, err = n.logs.own(keyReplicaID); err != nil {
		return false, err
	}
	if n.id == "" {
		if !fresh {
			return false, fmt.Errorf("%w: raft log %s holds entries but no replica id", ErrCorrupt, n.logs.path)
		}
		n.id = uuid.NewString()
		if err := n.logs.setOwn(keyReplicaID, n.id); err != nil {
			return false, err
		}
	}
	// This file is a copy of the id for people and tools. No program code reads it.
	if err := pki.WriteFile(filepath.Join(n.cfg.DataDir, idFile), []byte(n.id+"\n"), 0o600); err != nil {
		return false, fmt.Errorf("SCHEDULER_DATA_DIR: %w", err)
	}
	stored, err := n.logs.own(keyClusterID)
	if err != nil {
		return false, err
	}
	if stored != "" && n.cfg.ClusterID != "" && stored != n.cfg.ClusterID {
		return false, fmt.Errorf("%w: %s holds data of cluster %q, the configuration asks for %q", ErrWrongCluster, n.cfg.DataDir, stored, n.cfg.ClusterID)
	}
	if stored != "" {
		n.learned.Store(&stored)
	}
	if err := n.readNote(fresh); err != nil {
		return false, err
	}
	n.machine.expect, n.machine.shard = n.clusterID(), n.cfg.Shard
	n.machine.halt = func(err error) {
		// While the Raft library starts, do not halt the node: Open returns the error.
		if n.trans.raft.Load() != nil {
			n.halt(err)
		}
	}
	n.machine.learned = n.learn
	n.machine.onSnapshot = n.logs.grown.reset
	n.logs.fail = n.halt
	n.machine.metrics, n.logs.metrics = n.cfg.Metrics, n.cfg.Metrics
	return fresh, nil
}

func (n *Node) learn(id string) {
	if old := n.learned.Swap(&id); old != nil && *old == id {
		return
	}
	if err := n.logs.setOwn(keyClusterID, id); err != nil {
		n.log.Debug("cluster id not stored", "err", err) // from now on, a failing log store halts the node
	}
}

// clusterID returns the id that the state and the peers must have; "" if any id is accepted.
func (n *Node) clusterID() string {
	if id := n.learned.Load(); id != nil {
		return *id
	}
	return n.cfg.ClusterID
}

// startRaft starts the Raft library. If mute is true, this replica never stands for election.
func (n *Node) startRaft(mute bool) (err error) {
	dir := filepath.Join(n.cfg.DataDir, RaftDir)
	logger := raftLogger(n.log)
	snaps, err := openSnapshots(dir, &n.trans.history, logger)
	if err != nil {
		return err
	}
	n.machine.restoring = n.trans.history.restoring
	t := n.cfg.Timing
	notify := make(chan bool)
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(n.id)
	rc.HeartbeatTimeout = t.Heartbeat
	rc.ElectionTimeout = t.Election
	if mute {
		rc.HeartbeatTimeout, rc.ElectionTimeout = muted, muted
	}
	rc.LeaderLeaseTimeout = t.LeaderLease
	// A follower learns of a commit within one to two times CommitTimeout. The state of followers, which their DNS
	// servers show, should be at most 50 ms old.
	rc.CommitTimeout = min(15*time.Millisecond, t.Heartbeat/4)
	rc.MaxAppendEntries = maxAppend
	rc.BatchApplyCh = true
	rc.ShutdownOnRemove = false
	rc.TrailingLogs = t.TrailingEntries
	rc.SnapshotInterval = t.SnapshotInterval
	rc.SnapshotThreshold = math.MaxUint64 // the library takes no snapshots by itself; see snapshotWhenDue
	rc.NotifyCh = notify
	rc.NoLegacyTelemetry = true
	rc.Logger = logger
	n.spawn(func() { n.leadership.drain(n.ctx, notify, n.notifyStop) })
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: raft data in %s: %v", ErrCorrupt, dir, r)
		}
		if err == nil && n.machine.restoreErr != nil {
			err = fmt.Errorf("%s: %w", dir, n.machine.restoreErr)
		}
	}()
	n.raft, err = raft.NewRaft(rc, n.machine, n.logs, n.logs, snaps, n.trans)
	if err != nil {
		if n.machine.restoreErr != nil {
			err = nil // the deferred check of the log store replaces this error by a more precise one
			return err
		}
		return fmt.Errorf("raft data in %s: %w", dir, err)
	}
	n.trans.raft.Store(n.raft)
	// The filter function handles the observation itself. It runs in the library's goroutines, so
	// it must not block. It returns false because the observer has no channel to which the library
	// could send the observation.
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		n.observed(o)
		return false
	}))
	n.spawn(func() { n.prop.coalesce(n.propStop) })
	go func() {
		defer close(n.propDone)
		n.prop.collect()
	}()
	return nil
}

// snapshotWhenDue takes snapshots. The library would only count entries, but entries and states of a cluster
// differ in size by a factor of 100,000. The check runs at random times, once to twice per interval, so that
// replicas with equal logs do not all write a snapshot at the same time.
func (n *Node) snapshotWhenDue() {
	every := n.cfg.Timing.SnapshotInterval
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(every + rand.N(every)):
		}
		entries, bytes := n.logs.grown.entries.Load(), n.logs.grown.bytes.Load()
		if !n.cfg.Timing.snapshotDue(entries, bytes, n.trans.history.size.Load()) {
			continue
		}
		if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrRaftShutdown) && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			n.logs.grown.put(entries, bytes) // the snapshot failed: add the growth again, so that the next check retries
			n.once.warn(n.log, "snapshot:"+err.Error(), "snapshot failed", "err", err)
		}
	}
}

// smallSnapshot is the size in bytes up to which a snapshot is cheap, so that it may be written often.
const smallSnapshot = 16 << 20

// snapshotDue reports whether a snapshot is worth writing. entries and bytes are the growth of the log
// since the last snapshot; bytes includes entryCost for each entry. last is the size of the last snapshot
// in bytes. A large state is written less often: writing snapshots costs at most twice as much as writing
// the log, and the part of the log that a restart reads is little more than half the size of the state.
func (t Timing) snapshotDue(entries, bytes, last int64) bool {
	return (entries >= int64(t.SnapshotEntries) || bytes >= t.SnapshotBytes) && (last <= smallSnapshot || bytes >= last/2)
}

// spawn runs f in a goroutine that Close waits for. It returns false, without running f, if the node is
// closing.
func (n *Node) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		f()
	}()
	return true
}

// await runs f, a blocking call of the library. If ctx ends first, await returns its error and does
// not wait for f.
func (n *Node) await(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !n.spawn(func() { done <- f() }) {
		return n.stoppedErr()
	}
	select {
	case <-n.stall.started():
		return unknown(errStalled)
	case err := <-done:
		if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) {
			return fmt.Errorf("%w: %w", n.notLeader(), err)
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ID returns the Raft id of this replica. The id is random, and a replica that lost its disk gets a new one.
func (n *Node) ID() string { return n.id }

// RaftAddr returns the Raft address that this replica advertises.
func (n *Node) RaftAddr() string { return n.port.advertise }

// GossipAddr returns the address of this replica for the Join setting of other replicas.
func (n *Node) GossipAddr() string { return n.gossipAddr() }

// Halted returns a channel that is closed when the replica has stopped itself; Err returns the reason. Stale
// reads and Status still work. After ErrDiverged, Close the node and Open it again; any other reason needs an
// operator.
func (n *Node) Halted() <-chan struct{} { return n.haltedCh }

// Err returns the reason why the node halted; nil if it did not.
func (n *Node) Err() error {
	if e := n.haltErr.Load(); e != nil {
		return *e
	}
	return nil
}

func (n *Node) stoppedErr() error {
	if e := n.Err(); e != nil {
		return fmt.Errorf("%w: %w", ErrClosed, e)
	}
	return ErrClosed
}

// halt stops this replica because it must not continue. It may be called from goroutines of the library and
// returns at once.
func (n *Node) halt(err error) {
	n.haltOnce.Do(func() {
		n.haltErr.Store(&err)
		n.halted.Store(true)
		n.machine.halted.Store(true)
		n.leadership.end()
		n.watch.fire()
		finish := func() {
			n.stopRaft()
			if errors.Is(err, ErrDiverged) {
				if qerr := n.quarantine(); qerr != nil {
					err := errors.Join(err, qerr)
					n.haltErr.Store(&err)
				}
			}
			if errors.Is(err, ErrCopied) {
				if gerr := n.gossip.close(false); gerr != nil {
					n.log.Debug("gossip did not end", "err", gerr)
				}
			}
			close(n.haltedCh)
		}
		if !n.spawn(finish) {
			close(n.haltedCh)
		}
	})
}

// quarantine moves the Raft directory aside. The next Open starts without data and under a new id, and finds
// the cluster at the addresses of the other replicas in peers.json.
func (n *Node) quarantine() error {
	from := filepath.Join(n.cfg.DataDir, RaftDir)
	to := filepath.Join(n.cfg.DataDir, fmt.Sprintf("%s%d", quarantined, time.Now().UnixMilli()))
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return pki.SyncDir(n.cfg.DataDir)
}

// stopRaft stops the Raft library and everything that uses the log. The order matters: the library drops its
// pending proposals when it stops, so their callers must be answered separately.
func (n *Node) stopRaft() {
	n.stopOnce.Do(func() {
		close(n.propStop)
		if n.raft != nil {
			// While the log disk hangs, the library neither answers calls nor stops, so do not wait
			// until the library has stopped.
			hangs := n.stall.started()
			select {
			case <-n.propDone:
			case <-hangs:
			case <-time.After(drainLimit):
			}
			select { // wait until no state is being replaced, because the library panics if it is stopped then
			case n.replacing <- struct{}{}:
			case <-hangs:
			case <-time.After(drainLimit):
			}
			done := make(chan struct{})
			var err error
			go func() {
				defer close(done)
				err = n.raft.Shutdown().Error()
			}()
			// Close the port first: a follower that probes whether this process is dead must find the
			// port closed (failover.go).
			n.port.Close()
			select {
			case <-done:
				n.stopErr = err
			case <-hangs:
				n.stopErr = fmt.Errorf("%s: %w; the log was not closed", n.logs.path, errStalled)
				go func() { // only matters if the process keeps running
					<-done
					n.logs.Close()
				}()
			case <-time.After(stopLimit):
				n.stopErr = fmt.Errorf("raft did not stop within %s", stopLimit)
			}
		}
		close(n.notifyStop)
		if n.trans != nil {
			n.trans.CloseStreams()
			n.trans.Close()
		}
		n.peers.close()
		if n.port != nil {
			n.port.Close()
			n.stopErr = errors.Join(n.stopErr, n.waitStopped(n.port.wg.Wait))
		}
		close(n.stall.quit)
		if n.logs != nil && n.stopErr == nil {
			n.stopErr = n.logs.Close()
		}
	})
}

// Close stops the replica and waits for its goroutines. It does not transfer leadership (see
// TransferLeadership) and does not leave the cluster (see Leave). The data directory can be opened again.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.shutdown() })
	return n.closeErr
}

func (n *Node) shutdown() error {
	n.Stopping()
	n.halted.Store(true)
	n.cancel()
	n.watch.fire()
	n.stopRaft()
	var errs []error
	if n.stopErr != nil {
		errs = append(errs, n.stopErr)
	}
	if n.gossip != nil {
		if err := n.gossip.close(!errors.Is(n.Err(), ErrCopied)); err != nil {
			errs = append(errs, err)
		}
	}
	n.machine.store.Close()
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	if err := n.waitStopped(n.wg.Wait); err != nil {
		errs = append(errs, err)
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// waitStopped calls the function wait and waits until it returns, but only for a short time while the log disk hangs.
func (n *Node) waitStopped(wait func()) error {
	limit := stopLimit
	if n.stall.isOn() {
		limit = closeLimit
	}
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("some work did not stop within %s", limit)
	}
}
