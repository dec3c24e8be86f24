package rpc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

const (
	// backupPiece is the maximum number of bytes of a backup in one message.
	backupPiece = 256 << 10
	// maxBackup is the maximum size in bytes of a backup to restore. There is a limit because the state is
	// built in memory.
	maxBackup = 16 << 30
	// restoreLimit is the timeout of a restore, from the time at which the whole backup was received.
	restoreLimit = 10 * time.Minute
	// namedChanges is the maximum number of workload ids of each kind that an answer lists.
	namedChanges = 500
)

// CreateBackup implements the call of cluster.v1: it sends a backup of this replica's state at one index.
func (s *Server) CreateBackup(req *clusterv1.CreateBackupRequest, out clusterv1.Cluster_CreateBackupServer) error {
	ctx, cancel := withDeadline(out.Context())
	defer cancel()
	if _, err := s.store.At(ctx, req.GetMinIndex()); err != nil {
		return err
	}
	state := s.store.State()
	head := &clusterv1.CreateBackupResponse{Info: backupInfo(state), Replica: s.replica.Self().Name}
	if l, ok := s.replica.Leader(); !ok || l.ID != s.replica.Self().ID {
		head.AgeMs = s.age().Milliseconds()
	}
	if err := out.Send(head); err != nil {
		return err
	}
	w := bufio.NewWriterSize(pieces{out}, backupPiece)
	if err := state.WriteSnapshot(w); err != nil {
		return err
	}
	return w.Flush()
}

// pieces is an io.Writer that sends the written bytes as messages of a backup stream.
type pieces struct {
	out clusterv1.Cluster_CreateBackupServer
}

func (p pieces) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n := min(len(b)-done, backupPiece)
		if err := p.out.Send(&clusterv1.CreateBackupResponse{Data: b[done : done+n]}); err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}

func backupInfo(s fsm.State) *clusterv1.BackupInfo {
	info := s.Info()
	events := 0
	s.Events(0, func(*fsm.Event) bool { events++; return true })
	return &clusterv1.BackupInfo{
		ClusterId: info.ClusterID, Incarnation: info.Incarnation, Index: info.Index,
		At: timestamppb.New(time.Unix(0, info.Clock)), Mode: string(info.Mode), FeatureLevel: info.FeatureLevel,
		Nodes: int32(s.NodeCount()), Workloads: int32(s.WorkloadCount()),
		WorkloadsRunning: int32(s.StatusCount(fsm.StatusRunning)), Events: int32(events),
	}
}

// RestoreBackup implements the call of cluster.v1 on the leader. A follower forwards the stream to the
// leader; a stream is forwarded only once.
func (s *Server) RestoreBackup(in clusterv1.Cluster_RestoreBackupServer) error {
	first, err := in.Recv()
	if err != nil {
		return err
	}
	ctx := in.Context()
	to, err := s.restorer(ctx)
	if err != nil {
		return err
	}
	var resp *clusterv1.RestoreBackupResponse
	if to.ID == s.replica.Self().ID {
		resp, err = s.restore(ctx, first, in)
	} else {
		resp, err = s.passRestore(ctx, to, first, in)
	}
	if err != nil {
		return err
	}
	return in.SendAndClose(resp)
}

// restorer returns the leader to which a restore is forwarded. Without a leader it waits as long as a write
// would.
func (s *Server) restorer(ctx context.Context) (Peer, error) {
	deadline := s.now().Add(s.cfg.HoldWrites)
	for {
		changed := s.replica.LeaderChanged()
		to, known := s.replica.Leader()
		switch {
		case known && to.ID == s.replica.Self().ID:
			return to, nil
		case callOf(ctx).forwarded:
			return to, errorf(KindNotLeader, "replica %s received a forwarded call and does not lead", s.replica.Self().Name)
		case known && to.GRPCAddr != "":
			return to, nil
		}
		if left := deadline.Sub(s.now()); left <= 0 || !waitFor(ctx, changed, min(left, retryEvery)) {
			return to, errorf(KindNoLeader, "there is no leader; `persysctl status` shows the replicas")
		}
	}
}

func (s *Server) passRestore(ctx context.Context, to Peer, first *clusterv1.RestoreBackupRequest, in clusterv1.Cluster_RestoreBackupServer) (*clusterv1.RestoreBackupResponse, error) {
	conn, err := s.peers.conn(to.GRPCAddr)
	if err != nil {
		return nil, errorf(KindUnavailable, "leader %s at %s: %w", to.Name, to.GRPCAddr, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := clusterv1.NewClusterClient(conn).RestoreBackup(metadata.NewOutgoingContext(ctx,
		metadata.Pairs(dial.KeyHop, "1", dial.KeyForwardedIdentity, callOf(ctx).identity())))
	if err != nil {
		return nil, err
	}
	for m := first; ; {
		// If Send fails, CloseAndRecv below returns the leader's error.
		if err := out.Send(m); err != nil {
			break
		}
		if m, err = in.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return out.CloseAndRecv()
}

// restore reads the backup, and then restores it or returns a preview of the changes.
func (s *Server) restore(ctx context.Context, first *clusterv1.RestoreBackupRequest, in clusterv1.Cluster_RestoreBackupServer) (*clusterv1.RestoreBackupResponse, error) {
	backup, err := fsm.ReadSnapshot(&received{rest: first.GetData(), in: in})
	switch {
	case errors.Is(err, fsm.ErrSnapshot):
		return nil, errorf(KindInvalid, "this is not a backup that can be restored: %w", err)
	case err != nil:
		return nil, err
	}
	var offered *pki.Key
	if text := first.GetClusterKey(); text != "" {
		if offered, err = pki.ParseKey(text); err != nil {
			return nil, errorf(KindInvalid, "cluster_key: %w", err)
		}
	}
	build := func(present fsm.State) (fsm.State, error) {
		if first.GetRequireEmpty() {
			if err := mayImport(present); err != nil {
				return fsm.State{}, err
			}
		}
		if err := mayRestore(backup.Info(), present.Info(), first.GetForceNewCluster()); err != nil {
			return fsm.State{}, err
		}
		former, err := s.formerKey(backup, present.Info(), offered, first.GetForceNewCluster())
		if err != nil {
			return fsm.State{}, err
		}
		return fsm.Restored(backup, present, fsm.RestoreInfo{At: s.now().UnixNano(), By: callOf(ctx).identity(), FormerKey: former})
	}
	var resp *clusterv1.RestoreBackupResponse
	preview := func(present fsm.State) (fsm.State, error) {
		next, err := build(present)
		if err == nil {
			resp = difference(present, next)
			resp.Backup, resp.Present = backupInfo(backup), backupInfo(present)
		}
		return next, err
	}
	if first.GetPreview() {
		_, err := preview(s.store.State())
		return resp, err
	}
	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	if offered != nil {
		if _, err := build(s.store.State()); err != nil {
			return nil, err // a restore that is refused must leave no key on the other schedulers
		}
		// Store the key first, here and on a majority: if only this scheduler had it and lost its disk after the restore,
		// nobody could open the restored values.
		err := s.cfg.Keys.Keep(offered)
		if err == nil && s.cfg.ShareKey != nil {
			err = s.cfg.ShareKey(ctx, offered)
		}
		if err != nil {
			return nil, errorf(KindPrecondition, "cluster key %s cannot be stored: %w", offered.ID(), errors.Join(err, s.cfg.Keys.Discard(offered.ID())))
		}
	}
	index, err := s.replica.Restore(ctx, preview)
	if err != nil && offered != nil && !errors.Is(err, ErrUnknownOutcome) {
		if err := s.cfg.Keys.Discard(offered.ID()); err != nil {
			s.log.Warn("the cluster key of the backup could not be deleted", "id", offered.ID(), "err", err)
		}
	}
	if err != nil {
		return nil, err
	}
	resp.Restored, resp.Index, resp.Incarnation = true, index, s.store.View().Info().Incarnation
	s.log.Warn("a backup was restored", "by", callOf(ctx).identity(), "cluster", resp.GetBackup().GetClusterId(), "index", index,
		"added", resp.GetAddedCount(), "changed", resp.GetChangedCount(), "forgotten", resp.GetForgottenCount())
	return resp, nil
}

// mayRestore returns an error if the backup comes from another cluster and force is not set.
func mayRestore(backup, present fsm.Info, force bool) error {
	if backup.ClusterID == present.ClusterID || force {
		return nil
	}
	return errorf(KindPrecondition, "the backup is of cluster %q and this is cluster %q; agents of %[1]q refuse its orders. "+
		"To bring %[1]q back, start new schedulers with SCHEDULER_CLUSTER_ID=%[1]s and restore there. "+
		"To take its workloads into this cluster, while %[1]q may still run them: --force-new-cluster", backup.ClusterID, present.ClusterID)
}

// received is an io.Reader of a backup that arrives in the messages of a stream.
type received struct {
	rest  []byte
	total int64
	in    clusterv1.Cluster_RestoreBackupServer
}

func (r *received) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.in.Recv()
		if err != nil {
			return 0, err // io.EOF from Recv means that there are no more messages
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	if r.total += int64(n); r.total > maxBackup {
		return n, errorf(KindTooLarge, "the backup is larger than %d GiB", maxBackup>>30)
	}
	return n, nil
}

// difference lists the workloads that a restore would add, change or remove: those that differ between the states from
// and to.
func difference(from, to fsm.View) *clusterv1.RestoreBackupResponse {
	out := &clusterv1.RestoreBackupResponse{}
	note := func(names *[]string, count *int32, id string) {
		if *count++; len(*names) < namedChanges {
			*names = append(*names, id)
		}
	}
	to.Workloads("", func(w *fsm.Workload) bool {
		old, known := from.Workload(w.ID)
		switch {
		case !known:
			note(&out.Added, &out.AddedCount, w.ID)
		case old.Content != w.Content || old.Desired != w.Desired:
			note(&out.Changed, &out.ChangedCount, w.ID)
		default:
			out.UnchangedCount++
		}
		return true
	})
	from.Workloads("", func(w *fsm.Workload) bool {
		if _, stays := to.Workload(w.ID); !stays {
			note(&out.Forgotten, &out.ForgottenCount, w.ID)
		}
		return true
	})
	to.Nodes("", func(n *fsm.Node) bool {
		if _, known := from.Node(n.ID); !known {
			out.NodesAdded++
		}
		return true
	})
	return out
}
