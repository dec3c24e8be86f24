package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
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
	once       onceLog

	startedAt time.Time
	learned   atomic.Pointer[string] // cluster id, once it is certain
	removed   atomic.Bool
	leaving   atomic.Bool
	restoring atomic.Bool   // proposals are refused during Restore
	replacing chan struct{} // capacity 1; full while Raft replaces the state, or while the node is stopped

	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex // guards closed, and wg.Add against Wait
	closed bool
	wg     sync.WaitGroup

	haltOnce sync.Once
	halted   atomic.Bool
	haltErr  atomic.Pointer[error]
	haltedCh chan struct{}

	stopOnce   sync.Once
	stopErr    error
	propStop   chan struct{}
	propDone   chan struct{}
	notifyStop chan struct{}
	closeOnce  sync.Once
	closeErr   error
}

// hooks let tests replace parts of the environment.
type hooks struct {
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	lookup  lookup
	storage func(storage) storage
}

const (
	RaftDir     = "raft" // below the data directory: log and snapshots
	drainLimit  = 5 * time.Second
	stopLimit   = 10 * time.Second
	maxAppend   = 64 // entries per message; at 256 KiB each that is 16 MiB
	keptSnaps   = 2
	peersFile   = "peers.json"
	idFile      = "raft-id"
	lockFile    = "lock"
	quarantined = "raft.diverged-"
)

// Open starts a replica and returns without waiting for a leader (WaitLeader does). ctx bounds the start
// only. Errors name the setting or the file; the known ones are in errors.go.
func Open(ctx context.Context, cfg Config) (*Node, error) { return open(ctx, cfg, hooks{}) }

func open(ctx context.Context, cfg Config, hooks hooks) (n *Node, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := makeDir(cfg.DataDir); err != nil {
		return nil, err
	}
	n = &Node{
		cfg:        cfg,
		log:        cfg.Logger,
		machine:    newMachine(),
		leadership: newLeadership(),
		watch:      newWatch(),
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
	n.peers = &peers{n: n, idle: map[string]net.Conn{}}
	n.failover = &failover{n: n, off: cfg.Timing.NoFastFailover, wake: make(chan raft.ServerID, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.abandon())
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
	if err = n.startRaft(); err != nil {
		return n, err
	}
	if n.gossip, err = startGossip(n, hooks); err != nil {
		return n, err
	}
	n.logs.started.Store(true)
	n.spawn(n.trans.relay)
	n.spawn(n.port.serve)
	n.spawn(n.gossip.listen)
	if !cfg.Timing.NoFastFailover {
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
	solo := len(cfg.Join) == 0 && len(n.remembered()) == 0 && (cfg.BootstrapExpect == 1 || cfg.AllowSolo && cfg.BootstrapExpect == 0)
	if fresh && solo {
		err = n.members.bootstrap(raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.port.advertise),
		}}})
		if err != nil {
			return n, err
		}
	}
	n.spawn(n.members.find)
	n.log.Info("replica started", "replica", n.id, "name", cfg.Name, "raft", n.port.advertise, "gossip", n.gossipAddr(), "data", cfg.DataDir, "fresh", fresh)
	return n, nil
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
	// The number is for people only: the lock holds without it on a full disk.
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
	// The id is stored in the file of the log, so that a replica that lost its log cannot vote under its
	// old id (cluster/DESIGN.md).
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
	// A copy for people and tools; never read.
	if err := writeFile(filepath.Join(n.cfg.DataDir, idFile), []byte(n.id+"\n")); err != nil {
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
	n.machine.expect, n.machine.shard = n.clusterID(), n.cfg.Shard
	n.machine.halt = func(err error) {
		// While the library starts, the error is returned by Open.
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
		n.log.Debug("cluster id not stored", "err", err) // the log store halts the node
	}
}

// clusterID is the id that the state and peers must have; "" accepts any.
func (n *Node) clusterID() string {
	if id := n.learned.Load(); id != nil {
		return *id
	}
	return n.cfg.ClusterID
}

func (n *Node) startRaft() (err error) {
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
	rc.LeaderLeaseTimeout = t.LeaderLease
	// Followers learn of a commit once to twice this time after it. Their answers, those of DNS above all,
	// are to be right within 50 ms.
	rc.CommitTimeout = min(15*time.Millisecond, t.Heartbeat/4)
	rc.MaxAppendEntries = maxAppend
	rc.BatchApplyCh = true
	rc.ShutdownOnRemove = false
	rc.TrailingLogs = t.TrailingEntries
	rc.SnapshotInterval = t.SnapshotInterval
	rc.SnapshotThreshold = math.MaxUint64 // see snapshotWhenDue
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
			err = nil // the deferred check has the better error
			return err
		}
		return fmt.Errorf("raft data in %s: %w", dir, err)
	}
	n.trans.raft.Store(n.raft)
	// The filter runs in goroutines of Raft and must not block. There is no channel, so it returns false.
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

// snapshotWhenDue takes snapshots. The library would count entries only, and the sizes of our entries and
// states differ by a factor of 100,000. The check runs at random times, once to twice per interval, so that
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
			n.logs.grown.put(entries, bytes) // it failed: the next check tries again
			n.once.warn(n.log, "snapshot:"+err.Error(), "snapshot failed", "err", err)
		}
	}
}

// smallSnapshot is the size in bytes up to which a snapshot is cheap enough to be written often.
const smallSnapshot = 16 << 20

// snapshotDue reports whether a snapshot is worth writing, from the bytes that the log gained since the
// last one, entryCost included, and the bytes of the last snapshot. A large state is written less often:
// writing it costs at most twice what writing the log costs, and a restart reads little more than half as
// much again from the log.
func (t Timing) snapshotDue(entries, bytes, last int64) bool {
	return (entries >= int64(t.SnapshotEntries) || bytes >= t.SnapshotBytes) && (last <= smallSnapshot || bytes >= last/2)
}

// spawn runs f in a goroutine that Close waits for; false if the node is closing.
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

// await runs a blocking call of the library under a context.
func (n *Node) await(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !n.spawn(func() { done <- f() }) {
		return n.stoppedErr()
	}
	select {
	case err := <-done:
		if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) {
			return fmt.Errorf("%w: %w", n.notLeader(), err)
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ID is the Raft id: random, and new after the disk was lost.
func (n *Node) ID() string { return n.id }

// RaftAddr is the advertised Raft address.
func (n *Node) RaftAddr() string { return n.port.advertise }

// GossipAddr is the address that other replicas put in their Join.
func (n *Node) GossipAddr() string { return n.gossipAddr() }

// Halted is closed when the replica has stopped itself; Err returns the reason. Stale reads and Status
// still work. After ErrDiverged, Close the node and Open it again; any other reason needs an operator.
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

// halt stops a replica that must not go on. It may be called from goroutines of Raft and returns at once.
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
			close(n.haltedCh)
		}
		if !n.spawn(finish) {
			close(n.haltedCh)
		}
	})
}

// quarantine moves the Raft directory aside. The next Open starts empty, under a new id, and finds the
// cluster through the remembered peers.
func (n *Node) quarantine() error {
	from := filepath.Join(n.cfg.DataDir, RaftDir)
	to := filepath.Join(n.cfg.DataDir, fmt.Sprintf("%s%d", quarantined, time.Now().UnixMilli()))
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return syncDir(n.cfg.DataDir)
}

// stopRaft ends everything that uses the log, in an order that answers every proposal: the library drops
// its pending proposals when it stops.
func (n *Node) stopRaft() {
	n.stopOnce.Do(func() {
		close(n.propStop)
		if n.raft != nil {
			select {
			case <-n.propDone:
			case <-time.After(drainLimit):
			}
			select { // the library panics if it is stopped meanwhile
			case n.replacing <- struct{}{}:
			case <-time.After(drainLimit):
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				n.stopErr = n.raft.Shutdown().Error()
			}()
			// A follower that probes this port must find it closed (failover.go).
			n.port.Close()
			select {
			case <-done:
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
			n.port.wg.Wait()
		}
		if n.logs != nil && n.stopErr == nil {
			n.stopErr = n.logs.Close()
		}
	})
}

// Close stops the replica and waits for its goroutines. It neither transfers leadership nor leaves the
// cluster; see TransferLeadership and Leave. The data directory can be opened again.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.shutdown() })
	return n.closeErr
}

func (n *Node) abandon() error { return n.Close() }

func (n *Node) shutdown() error {
	n.halted.Store(true)
	n.cancel()
	n.watch.fire()
	n.stopRaft()
	var errs []error
	if n.stopErr != nil {
		errs = append(errs, n.stopErr)
	}
	if n.gossip != nil {
		if err := n.gossip.close(); err != nil {
			errs = append(errs, err)
		}
	}
	n.machine.store.Close()
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	done := make(chan struct{})
	go func() {
		n.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopLimit):
		errs = append(errs, fmt.Errorf("some work did not stop within %s", stopLimit))
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// --- Files outside the Raft directory ---

// remembered returns the gossip addresses of the other replicas, as of their last change. A replica that
// was quarantined joins through them.
func (n *Node) remembered() []string {
	b, err := os.ReadFile(filepath.Join(n.cfg.DataDir, peersFile))
	if err != nil {
		return nil
	}
	var addrs []string
	if json.Unmarshal(b, &addrs) != nil {
		return nil
	}
	return addrs[:min(len(addrs), 64)]
}

// remember writes the addresses if they changed.
func (n *Node) remember() {
	var addrs []string
	n.Store().View().Replicas(func(r *fsm.Replica) bool {
		if r.ID != n.id && r.GossipAddr != "" {
			addrs = append(addrs, r.GossipAddr)
		}
		return len(addrs) < 64
	})
	sort.Strings(addrs)
	if old := n.remembered(); len(addrs) == 0 || strings.Join(old, ",") == strings.Join(addrs, ",") {
		return
	}
	b, err := json.Marshal(addrs)
	if err == nil {
		err = writeFile(filepath.Join(n.cfg.DataDir, peersFile), append(b, '\n'))
	}
	if err != nil {
		n.once.warn(n.log, "remember", "cannot note the other replicas' addresses", "err", err)
	}
}

// writeFile replaces a file so that a crash leaves the old or the new content.
func writeFile(path string, b []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
