package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Survivor describes the data directory of a stopped replica that survived the loss of the quorum.
type Survivor struct {
	ID        string // Raft id of the server; a recovery keeps it
	ClusterID string
	RaftAddr  string
	// Servers are the servers of the last Raft configuration, including this replica.
	Servers []raft.Server
	// Lost are the names of the other replicas that have a record in the state.
	Lost []string
	// LastIndex and LastTerm are the index and the term of the last entry of the log. A recovery treats all entries in
	// the log as committed, because no other replica is left.
	LastIndex, LastTerm uint64
	State               fsm.State
}

// offline is the opened data directory of a stopped replica.
type offline struct {
	lock  *os.File
	logs  *logStore
	snaps *raft.FileSnapshotStore
	dir   string
	of    *syscall.Stat_t // file information of the log; its owner is the user of the scheduler
}

func openOffline(dataDir string, log *slog.Logger) (o *offline, err error) {
	o = &offline{dir: filepath.Join(dataDir, RaftDir)}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	st, err := os.Stat(filepath.Join(o.dir, logFile))
	if err != nil {
		return o, fmt.Errorf("SCHEDULER_DATA_DIR: %s is not the data directory of a scheduler: %w", dataDir, err)
	}
	o.of, _ = st.Sys().(*syscall.Stat_t)
	if o.lock, err = lockDir(dataDir); err != nil {
		return o, err
	}
	if o.logs, err = openLogStore(o.dir, nil); err != nil {
		return o, err
	}
	newest, err := verifySnapshots(filepath.Join(o.dir, "snapshots"))
	if err != nil {
		return o, err
	}
	if err := o.logs.verify(newest); err != nil {
		return o, err
	}
	o.snaps, err = raft.NewFileSnapshotStoreWithLogger(o.dir, keptSnaps, raftLogger(log))
	if err != nil {
		return o, fmt.Errorf("snapshots in %s: %w", o.dir, err)
	}
	return o, nil
}

func (o *offline) close() error {
	var errs []error
	if o.logs != nil {
		errs = append(errs, o.logs.Close())
	}
	if o.lock != nil {
		errs = append(errs, o.chownFiles(), o.lock.Close())
	}
	return errors.Join(errs...)
}

// chownFiles gives files that root created to the owner of the log, because the service of the
// scheduler runs as that user and must be able to read them.
func (o *offline) chownFiles() error {
	if o.of == nil || o.of.Uid == 0 || os.Geteuid() != 0 {
		return nil
	}
	dataDir, raftDir := filepath.Dir(o.dir), filepath.Base(o.dir)
	root, err := os.OpenRoot(dataDir) // use os.Root, because the owner may rename entries of this directory at any time
	if err != nil {
		return err
	}
	defer root.Close()
	own := func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := root.Lstat(path)
		if err != nil {
			return err
		}
		// Skip a file with a second hard link, which may belong to another user.
		if is, ok := st.Sys().(*syscall.Stat_t); !ok || is.Uid != 0 || !st.IsDir() && is.Nlink > 1 {
			return nil
		}
		return root.Lchown(path, int(o.of.Uid), int(o.of.Gid))
	}
	return errors.Join(own(lockFile, nil, nil), fs.WalkDir(root.FS(), raftDir, own))
}

// survivor reads the snapshot and the log, and describes what they contain.
func (o *offline) survivor() (*Survivor, error) {
	s := &Survivor{}
	var err error
	if s.ID, err = o.logs.own(keyReplicaID); err != nil {
		return nil, err
	}
	if s.ID == "" {
		return nil, fmt.Errorf("%w: %s holds no replica id: it was never part of a cluster", ErrNoWayIn, o.dir)
	}
	if gone, err := o.logs.own(keyRemoved); err != nil {
		return nil, err
	} else if gone != "" {
		return nil, fmt.Errorf("%w: %s cannot be recovered from", ErrRemoved, o.dir)
	}
	m := newMachine()
	var halted error
	m.halt = func(err error) { halted = errors.Join(halted, err) }
	config, err := o.replay(m, s)
	if err == nil {
		err = halted
	}
	if err != nil {
		return nil, err
	}
	s.State = m.state
	s.ClusterID = m.state.Info().ClusterID
	if s.ClusterID == "" || len(config.Servers) == 0 {
		return nil, fmt.Errorf("%w: %s holds no cluster", ErrNoWayIn, o.dir)
	}
	s.Servers = config.Servers
	for _, srv := range config.Servers {
		if string(srv.ID) == s.ID {
			s.RaftAddr = string(srv.Address)
			continue
		}
		name := string(srv.ID)
		if r, ok := m.state.Replica(name); ok {
			name = r.Name
		}
		s.Lost = append(s.Lost, name)
	}
	if s.RaftAddr == "" {
		return nil, fmt.Errorf("%w: the last configuration in %s does not name this replica, %s", ErrRemoved, o.dir, s.ID)
	}
	return s, nil
}

// replay applies the snapshot and the log to state machine m, and returns the last Raft configuration.
func (o *offline) replay(m *machine, s *Survivor) (config raft.Configuration, err error) {
	list, err := o.snaps.List()
	if err != nil {
		return config, fmt.Errorf("snapshots in %s: %w", o.dir, err)
	}
	if len(list) > 0 {
		meta, r, err := o.snaps.Open(list[0].ID)
		if err != nil {
			return config, corrupt(err, "snapshot %s", list[0].ID)
		}
		if err := m.Restore(r); err != nil {
			return config, err
		}
		s.LastIndex, s.LastTerm, config = meta.Index, meta.Term, meta.Configuration
	}
	last, err := o.logs.LastIndex()
	if err != nil {
		return config, err
	}
	// A recovery treats all entries that it reads as committed. So ignore the log entries after the snapshot if
	// their leader was deposed before it could commit them.
	if _, refuted, err := o.logs.conflict(entryID{s.LastIndex, s.LastTerm}, true); err != nil || refuted > s.LastIndex {
		return config, err
	}
	for i := s.LastIndex + 1; i <= last; i++ {
		var l raft.Log
		if err := o.logs.GetLog(i, &l); err != nil {
			return config, err
		}
		switch l.Type {
		case raft.LogCommand:
			if err, failed := m.Apply(&l).(error); failed {
				return config, err
			}
		case raft.LogConfiguration:
			config = raft.DecodeConfiguration(l.Data)
		}
		s.LastIndex, s.LastTerm = l.Index, l.Term
	}
	return config, nil
}

// Survey describes the data directory of a stopped replica, and changes nothing in it.
func Survey(dataDir string, log *slog.Logger) (*Survivor, error) {
	o, err := openOffline(dataDir, log)
	if err != nil {
		return nil, err
	}
	s, err := o.survivor()
	return s, errors.Join(err, o.close())
}

// Recover makes the replica of this data directory the only one of its cluster, after the quorum was lost for
// good. The replica must not run meanwhile. Recover gives the cluster a new incarnation, so its epoch is
// higher than all epochs before. When the replica starts afterwards, it leads at once, and replicas with
// empty disks can join.
//
// The other replicas must never run again with their old disks: together they would be a quorum that does not
// know of the recovery. Agents would refuse their orders, because their epoch is lower.
func Recover(ctx context.Context, dataDir string, by string, log *slog.Logger) (*Survivor, error) {
	o, err := openOffline(dataDir, log)
	if err != nil {
		return nil, err
	}
	s, err := o.recover(ctx, by, log)
	return s, errors.Join(err, o.close())
}

func (o *offline) recover(ctx context.Context, by string, log *slog.Logger) (*Survivor, error) {
	s, err := o.survivor()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// peers.json is for a replica that has to join again. This replica must not dial the lost replicas, so
	// remove the file.
	peers := filepath.Join(filepath.Dir(o.dir), peersFile)
	if err := os.Remove(peers); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR: %w", err)
	}
	// The operator chose this directory for the recovery. So delete the directory's stored location, and the record
	// that the directory is a copy; otherwise the replica might not start.
	for _, key := range [][]byte{keyLocation, keyCopied} {
		if err := o.logs.setOwn(key, ""); err != nil {
			return nil, err
		}
	}
	// Remove the entries that contradict the snapshot, because the library replays the log itself.
	if err := o.logs.dropContradicted(entryID{s.LastIndex, s.LastTerm}); err != nil {
		return nil, err
	}
	s.State = s.State.Recovered(s.ID, fsm.RestoreInfo{At: time.Now().UnixNano(), By: by})
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(s.ID)
	rc.Logger = raftLogger(log)
	alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: rc.LocalID, Address: raft.ServerAddress(s.RaftAddr)}}}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(s.RaftAddr))
	defer trans.Close()
	if err := raft.RecoverCluster(rc, recoveredState{s.State}, o.logs, o.logs, o.snaps, trans, alone); err != nil {
		return nil, fmt.Errorf("recover %s: %w", o.dir, err)
	}
	log.Warn("recovered: this replica is the only one of its cluster now", "cluster", s.ClusterID, "replica", s.ID,
		"incarnation", s.State.Info().Incarnation, "index", s.LastIndex, "lost", s.Lost)
	return s, nil
}

// recoveredState is the state machine that the library's recovery gets. It ignores the entries that the
// library replays. Its snapshot is the state that replay has computed.
type recoveredState struct{ state fsm.State }

func (recoveredState) Apply(*raft.Log) any           { return nil }
func (recoveredState) Restore(r io.ReadCloser) error { _, err := io.Copy(io.Discard, r); return err }
func (r recoveredState) Snapshot() (raft.FSMSnapshot, error) {
	return &frozen{r.state, noMetrics{}}, nil
}
