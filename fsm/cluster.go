package fsm

import (
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// initCluster gives a new state its cluster id. A state that has one gets a new incarnation:
// after a restore Raft indexes may be lower than before, and generations must not be.
func (t *Tx) initCluster(b *commandv1.InitCluster) Result {
	info := &t.r.info
	switch {
	case !bounds.ValidID(b.GetClusterId()):
		return refuse(Invalid, "cluster_id: %q does not match %s", b.GetClusterId(), bounds.IDRule)
	case info.ClusterID != "" && info.ClusterID != b.GetClusterId():
		return refuse(Conflict, "this is cluster %q, not %q", info.ClusterID, b.GetClusterId())
	}
	before := *info
	info.Incarnation = max(info.Incarnation+1, b.GetIncarnation())
	if before.ClusterID == "" {
		info.ClusterID = b.GetClusterId()
		info.Shard = b.GetShard()
		if info.Shard == "" {
			info.Shard = "default"
		}
		info.Mode, info.ModeChangedAt = ModeNormal, info.Clock
		info.FeatureLevel = max(info.FeatureLevel, 1)
	}
	t.infoChanged(before)
	t.event(Event{
		Type: EventClusterFormed, Message: info.ClusterID,
		Details: []Label{{"incarnation", strconv.FormatUint(info.Incarnation, 10)}},
	})
	return Result{}
}

// setMode changes the mode, the reason, or whether the mode is pinned.
func (t *Tx) setMode(b *commandv1.SetMode) Result {
	info := &t.r.info
	mode := Mode(b.GetMode())
	switch mode {
	case ModeNormal, ModeDegraded, ModeRecovery:
	default:
		return refuse(Invalid, "mode: %q is none of normal, degraded, recovery", b.GetMode())
	}
	if info.ModePinned && !b.GetPinned() && !b.GetUnpin() {
		return refuse(Conflict, "mode: %s was set by a person and is pinned", info.Mode)
	}
	if info.Mode == mode && info.ModeReason == b.GetReason() && info.ModePinned == b.GetPinned() {
		return Result{Kind: AlreadyDone}
	}
	before := *info
	info.Mode, info.ModeReason, info.ModePinned = mode, b.GetReason(), b.GetPinned()
	if before.Mode != mode {
		info.ModeChangedAt = info.Clock
	}
	t.infoChanged(before)
	if before.Mode.Frozen() && !mode.Frozen() {
		t.resumeRollouts()
	}
	if before.Mode != mode {
		t.event(Event{
			Type: EventModeChanged, Reason: string(mode), Message: b.GetReason(),
			Details: []Label{{"previous", string(before.Mode)}},
		})
	}
	return Result{}
}

// mirrorAttached records the id of the etcd cluster that has held the whole mirror.
func (t *Tx) mirrorAttached(b *commandv1.MirrorAttached) Result {
	info := &t.r.info
	id := b.GetEtcdClusterId()
	switch id {
	case 0:
		return refuse(Invalid, "etcd_cluster_id: must not be 0")
	case info.MirrorEtcd:
		return Result{Kind: AlreadyDone}
	}
	before := *info
	info.MirrorEtcd = id
	t.infoChanged(before)
	t.event(Event{Type: EventMirrorAttached, Message: strconv.FormatUint(id, 16)})
	return Result{}
}

// putReplica records the addresses, version and feature level of a scheduler.
func (t *Tx) putReplica(b *commandv1.PutReplica) Result {
	if !bounds.ValidID(b.GetId()) {
		return refuse(Invalid, "id: %q does not match %s", b.GetId(), bounds.IDRule)
	}
	r := replicaOf(b)
	old, ok := t.r.replicas.Get(r.ID)
	if ok && *old == r {
		return Result{Kind: AlreadyDone}
	}
	t.putReplicaRecord(&r)
	if !ok {
		t.event(Event{Type: EventReplicaJoined, Message: r.Name, Details: []Label{{"grpc", r.GRPCAddr}, {"replica", r.ID}}})
	}
	return Result{}
}

func (t *Tx) removeReplica(b *commandv1.RemoveReplica) Result {
	r, ok := t.r.replicas.Get(b.GetId())
	if !ok {
		return refuse(NotFound, "replica %q does not exist", b.GetId())
	}
	t.dropReplica(r)
	t.event(Event{Type: EventReplicaRemoved, Message: r.Name, Details: []Label{{"replica", r.ID}}})
	return Result{}
}

// setFeatureLevel raises the feature level. Every announced replica must understand the new
// level, because a replica stops at a command that it does not know.
func (t *Tx) setFeatureLevel(b *commandv1.SetFeatureLevel) Result {
	info := &t.r.info
	switch level := b.GetLevel(); {
	case level == info.FeatureLevel:
		return Result{Kind: AlreadyDone}
	case level < info.FeatureLevel:
		return refuse(Conflict, "level: %d is below the present level %d and levels only rise", level, info.FeatureLevel)
	case t.r.replicas.Len() == 0:
		return refuse(Conflict, "level: no replica has announced that it understands level %d", level)
	}
	var behind *Replica
	t.state().Replicas(func(r *Replica) bool {
		if r.FeatureLevel < b.GetLevel() {
			behind = r
		}
		return behind == nil
	})
	if behind != nil {
		return refuse(Conflict, "level: replica %s (%s) understands only level %d", behind.Name, behind.ID, behind.FeatureLevel)
	}
	before := *info
	info.FeatureLevel = b.GetLevel()
	t.infoChanged(before)
	t.event(Event{Type: EventFeatureLevelRaise, Message: strconv.FormatUint(uint64(info.FeatureLevel), 10)})
	return Result{}
}

func replicaOf(b *commandv1.PutReplica) Replica {
	return Replica{
		ID: b.GetId(), Name: b.GetName(), GRPCAddr: b.GetGrpcAddr(), HTTPAddr: b.GetHttpAddr(),
		RaftAddr: b.GetRaftAddr(), GossipAddr: b.GetGossipAddr(), DNSAddr: b.GetDnsAddr(),
		Version: b.GetVersion(), FeatureLevel: b.GetFeatureLevel(),
	}
}

func replicaPB(r *Replica) *commandv1.PutReplica {
	return &commandv1.PutReplica{
		Id: r.ID, Name: r.Name, GrpcAddr: r.GRPCAddr, HttpAddr: r.HTTPAddr,
		RaftAddr: r.RaftAddr, GossipAddr: r.GossipAddr, DnsAddr: r.DNSAddr,
		Version: r.Version, FeatureLevel: r.FeatureLevel,
	}
}
