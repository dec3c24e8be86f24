package rpc

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// Status implements the call of cluster.v1. It answers from this replica's own state.
func (s *Server) Status(context.Context, *clusterv1.StatusRequest) (*clusterv1.StatusResponse, error) {
	v := s.store.View()
	info := v.Info()
	out := &clusterv1.StatusResponse{
		ClusterId:        info.ClusterID,
		Incarnation:      info.Incarnation,
		Shard:            info.Shard,
		Mode:             string(info.Mode),
		ModeReason:       info.ModeReason,
		ModePinned:       info.ModePinned,
		AppliedIndex:     info.Index,
		Digest:           info.Digest,
		FeatureLevel:     info.FeatureLevel,
		Nodes:            int32(v.NodeCount()),
		Workloads:        int32(v.WorkloadCount()),
		WorkloadsRunning: int32(v.StatusCount(fsm.StatusRunning)),
		SelfId:           s.replica.Self().ID,
		Version:          s.cfg.Version,
		StartedAt:        timestamppb.New(s.started),
		Warning:          v.Room().Nearly(v.Total()),
	}
	if info.ModeChangedAt > 0 {
		out.ModeChangedAt = timestamppb.New(time.Unix(0, info.ModeChangedAt))
	}
	if why := s.replica.Frozen(); why != "" && !info.Mode.Frozen() {
		out.Mode, out.ModeReason = string(fsm.ModeDegraded), why
	}
	v.Nodes("", func(n *fsm.Node) bool {
		if n.Status() == fsm.NodeReady {
			out.NodesReady++
		}
		return true
	})
	s.replica.Describe(out)
	return out, nil
}

// SetMode implements the call of cluster.v1. It sets the mode of the cluster, which decides what changes are accepted.
// A mode that a user sets is pinned: the leader does not change it until a user sets another mode, or the mode "auto".
// If the pinned mode is normal, the pin also ends when the mirror (the copy of the state in etcd) is healthy.
func (s *Server) SetMode(ctx context.Context, req *clusterv1.SetModeRequest) (*clusterv1.SetModeResponse, error) {
	info := s.store.View().Info()
	set := &commandv1.SetMode{Mode: req.GetMode(), Reason: req.GetReason(), Pinned: true}
	switch fsm.Mode(req.GetMode()) {
	case fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery:
	case modeAuto:
		set.Mode, set.Pinned, set.Unpin = string(info.Mode), false, true
	default:
		return nil, errorf(KindInvalid, "mode %q must be %s, %s, %s or %s", req.GetMode(), fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery, modeAuto)
	}
	r, err := s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: set}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.SetModeResponse{Mode: set.GetMode(), Index: r.Index}, nil
}

// modeAuto, as the mode in a request, ends the pin, so that the leader chooses the mode again.
const modeAuto = "auto"

// TransferLeadership implements the call of cluster.v1: it transfers the Raft leadership to the replica that the
// request names, or to any other replica.
func (s *Server) TransferLeadership(ctx context.Context, req *clusterv1.TransferLeadershipRequest) (*clusterv1.TransferLeadershipResponse, error) {
	to := ""
	if req.GetReplica() != "" {
		r, err := s.replicaNamed(req.GetReplica())
		if err != nil {
			return nil, err
		}
		if to = r.ID; to == s.replica.Self().ID {
			// Only the leader handles this call, so the requested replica leads already.
			return &clusterv1.TransferLeadershipResponse{LeaderId: to}, nil
		}
	}
	began := time.Now()
	err := s.audited(ctx, "", "leadership to "+cmp.Or(clip(req.GetReplica(), 128), "any replica"), func() error { return s.replica.TransferLeadership(ctx, to) })
	if err != nil {
		return nil, err
	}
	out := &clusterv1.TransferLeadershipResponse{TookMs: time.Since(began).Milliseconds()}
	if l, ok := s.replica.Leader(); ok {
		out.LeaderId = l.ID
	}
	return out, nil
}

// RemoveReplica implements the call of cluster.v1: it removes a replica from the Raft group.
func (s *Server) RemoveReplica(ctx context.Context, req *clusterv1.RemoveReplicaRequest) (*clusterv1.RemoveReplicaResponse, error) {
	r, err := s.replicaNamed(req.GetReplica())
	if err != nil {
		return nil, err
	}
	if req.GetLeave() && req.GetForce() {
		return nil, errorf(KindInvalid, "force and leave exclude each other: a replica that is asked to leave cannot be forced")
	}
	err = s.audited(ctx, "", "replica "+r.Name, func() error {
		if req.GetLeave() {
			return s.replica.Dismiss(ctx, r.ID)
		}
		return s.replica.RemoveReplica(ctx, r.ID, req.GetForce())
	})
	if err != nil {
		return nil, err
	}
	return &clusterv1.RemoveReplicaResponse{}, nil
}

// replicaNamed returns the record of the replica with this id or name.
func (s *Server) replicaNamed(v string) (*fsm.Replica, error) {
	var found *fsm.Replica
	s.store.View().Replicas(func(r *fsm.Replica) bool {
		if r.ID == v || r.Name == v {
			found = r
		}
		return found == nil
	})
	if found == nil {
		return nil, errorf(KindNotFound, "replica %q not found; `persysctl status` lists them", v)
	}
	return found, nil
}

// ClusterKey implements the call of cluster.v1: this replica returns its own copy of the cluster key. The
// policy table allows the call only to schedulers.
func (s *Server) ClusterKey(_ context.Context, req *clusterv1.ClusterKeyRequest) (*clusterv1.ClusterKeyResponse, error) {
	if text := req.GetKeep(); text != "" {
		key, err := pki.ParseKey(text)
		if err != nil {
			return nil, errorf(KindInvalid, "keep: %w", err)
		}
		if err := s.cfg.Keys.Keep(key); err != nil {
			return nil, errorf(KindPrecondition, "cluster key %s cannot be stored: %w", key.ID(), err)
		}
	}
	if id := req.GetKeyId(); id != "" && s.cfg.KeyReport != nil {
		out := s.cfg.KeyReport()
		if key := s.cfg.Keys.Held(id); key != nil {
			out.Exported = key.Export()
		}
		return out, nil
	}
	key, candidate, err := s.cfg.Keys.Offered()
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	return &clusterv1.ClusterKeyResponse{Exported: key.Export(), Candidate: candidate}, nil
}

// GetClusterSummary implements the call of control.v1: it returns the numbers of nodes and workloads by state.
func (s *Server) GetClusterSummary(ctx context.Context, req *controlv1.GetClusterSummaryRequest) (*controlv1.GetClusterSummaryResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	count := func(of ...fsm.Status) (n int32) {
		for _, st := range of {
			n += int32(r.StatusCount(st))
		}
		return n
	}
	out := &controlv1.GetClusterSummaryResponse{
		TotalNodes:            int32(r.NodeCount()),
		TotalWorkloads:        int32(r.WorkloadCount()),
		RunningWorkloads:      count(fsm.StatusRunning),
		PendingWorkloads:      count(fsm.StatusPending, fsm.StatusUnknown, fsm.StatusUpdating),
		FailedWorkloads:       count(fsm.StatusFailed),
		DeletedWorkloads:      count(fsm.StatusDeleting, fsm.StatusDeleted),
		ScheduledWorkloads:    count(fsm.StatusScheduled),
		RetryPendingWorkloads: count(fsm.StatusRetryPending),
		StoppedWorkloads:      count(fsm.StatusStopped),
		GeneratedAt:           timestamppb.New(s.now()),
		Index:                 r.index,
		Mode:                  string(r.Info().Mode),
		Stale:                 r.stale,
		AgeMs:                 r.ageMS,
	}
	r.Nodes("", func(n *fsm.Node) bool {
		if n.Status() == fsm.NodeReady {
			out.ReadyNodes++
		}
		used := r.Alloc(n.ID)
		out.TotalCpuMillicores += n.Facts.CPU
		out.ReservedCpuMillicores += used.CPU
		out.TotalMemoryMb += n.Facts.Memory
		out.ReservedMemoryMb += used.Memory
		for _, p := range n.Facts.Pools {
			out.TotalDiskGb += p.Total
		}
		for _, p := range used.Disk {
			out.ReservedDiskGb += p.GB
		}
		// agents of older versions do not report their usage
		if u, ok := s.leader.UsageOf(n.ID); ok && n.Up && u.CPU+u.Memory+u.Disk > 0 {
			out.UsedCpuMillicores += u.CPU
			out.UsedMemoryMb += u.Memory
			out.UsedDiskGb += u.Disk
			out.MeasuredNodes++
		}
		return true
	})
	out.NotReadyNodes = out.TotalNodes - out.ReadyNodes
	if to, ok := s.replica.Leader(); ok {
		if out.LeaderId = to.Name; to.Name == "" {
			out.LeaderId = to.ID
		}
	}
	return out, nil
}
