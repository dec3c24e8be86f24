package fsm

import (
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// initCluster gives a new state its cluster id. A state that already has an id gets a new incarnation: Raft indexes may
// be lower after a restore, but generations must not go back.
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

// setMode changes the mode, its reason, or whether the mode is pinned (kept until a person changes it).
func (t *Tx) setMode(b *commandv1.SetMode) Result {
	info := &t.r.info
	mode := Mode(b.GetMode())
	switch mode {
	case ModeNormal, ModeDegraded, ModeRecovery:
	default:
		return refuse(Invalid, "mode: %q is none of normal, degraded, recovery", b.GetMode())
	}
	if info.ModePinned && !b.GetPinned() && !b.GetUnpin() {
		return refuse(Conflict, "mode: a user has set and pinned mode %s, so only a user can change it (persysctl mode set)", info.Mode)
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

// mirrorAttached records the id of an etcd cluster that now holds a complete mirror.
func (t *Tx) mirrorAttached(b *commandv1.MirrorAttached) Result {
	info := &t.r.info
	id := b.GetEtcdClusterId()
	switch {
	case id == 0:
		return refuse(Invalid, "etcd_cluster_id: must not be 0")
	case id == info.MirrorEtcd:
		return Result{Kind: AlreadyDone}
	case info.AttachedEtcd() != 0 && id != info.AttachedEtcd():
		return refuse(Conflict, "etcd_cluster_id: the mirror is attached to etcd cluster %x, not %x; `persysctl mirror detach` ends that", info.AttachedEtcd(), id)
	}
	before := *info
	info.MirrorEtcd = id
	t.infoChanged(before)
	t.event(Event{Type: EventMirrorAttached, Message: strconv.FormatUint(id, 16)})
	return Result{}
}

// Limits of the endpoints of a mirror.
const (
	maxMirrorEndpoints = 16
	maxMirrorEndpoint  = 256 // bytes
)

// attachMirror makes the mirror (the copy of the state in etcd) write only to the etcd cluster that
// the command names, and records its endpoints.
func (t *Tx) attachMirror(b *commandv1.AttachMirror) Result {
	info := &t.r.info
	id, list := b.GetEtcdClusterId(), b.GetEndpoints()
	switch {
	case id == 0:
		return refuse(Invalid, "etcd_cluster_id: must not be 0")
	case len(list) == 0 || len(list) > maxMirrorEndpoints:
		return refuse(Invalid, "endpoints: %d are given, must be 1 to %d", len(list), maxMirrorEndpoints)
	case info.AttachedEtcd() != 0 && id != info.AttachedEtcd():
		return refuse(Conflict, "the mirror is attached to etcd cluster %x, not %x; `persysctl mirror detach` ends that", info.AttachedEtcd(), id)
	}
	for _, e := range list {
		if e == "" || len(e) > maxMirrorEndpoint || strings.Contains(e, ",") {
			return refuse(Invalid, "endpoints: %q must be 1 to %d bytes without a comma", e[:min(len(e), maxMirrorEndpoint)], maxMirrorEndpoint)
		}
	}
	text := strings.Join(list, ",")
	if id == info.MirrorPin && text == info.MirrorEndpoints {
		return Result{Kind: AlreadyDone}
	}
	before := *info
	info.MirrorPin, info.MirrorEndpoints = id, text
	t.infoChanged(before)
	t.event(Event{Type: EventMirrorAttached, Message: strconv.FormatUint(id, 16), Details: []Label{{"endpoints", text}}})
	return Result{}
}

func (t *Tx) detachMirror() Result {
	info := &t.r.info
	if info.AttachedEtcd() == 0 {
		return Result{Kind: AlreadyDone}
	}
	before := *info
	info.MirrorEtcd, info.MirrorPin, info.MirrorEndpoints = 0, 0, ""
	t.infoChanged(before)
	t.event(Event{Type: EventMirrorDetached, Message: strconv.FormatUint(before.AttachedEtcd(), 16)})
	return Result{}
}

// putReplica records the addresses, version and feature level of a scheduler.
func (t *Tx) putReplica(b *commandv1.PutReplica) Result {
	if !bounds.ValidID(b.GetId()) {
		return refuse(Invalid, "id: %q does not match %s", b.GetId(), bounds.IDRule)
	}
	switch rep := b.GetRepair(); {
	case rep == nil:
	case !bounds.ValidID(rep.GetOf()):
		return refuse(Invalid, "repair.of: %q does not match %s", clip(rep.GetOf()), bounds.IDRule)
	case len(rep.GetDamage()) > MaxRepairDamage:
		return refuse(Invalid, "repair.damage: %d bytes, limit %d", len(rep.GetDamage()), MaxRepairDamage)
	case len(rep.GetAside()) > MaxRepairAside:
		return refuse(Invalid, "repair.aside: %d bytes, limit %d", len(rep.GetAside()), MaxRepairAside)
	}
	if m := b.GetMemoryMib(); m < 0 || m > bounds.MaxMemory {
		return refuse(Invalid, "memory_mib: %d must be 0 to %d", m, int64(bounds.MaxMemory))
	}
	r := replicaOf(b)
	old, ok := t.r.replicas.Get(r.ID)
	if ok && *old == r {
		return Result{Kind: AlreadyDone}
	}
	t.putReplicaRecord(&r)
	if !ok {
		t.event(Event{Type: EventReplicaJoined, Message: r.Name, Details: []Label{{"grpc", r.GRPCAddr}, {"replica", r.ID}}})
		old = &Replica{}
	}
	if rep := r.Repair; rep.Of != "" && old.Repair.Of != rep.Of {
		t.event(Event{Type: EventReplicaDamaged, Message: r.Name,
			Details: []Label{{"aside", rep.Aside}, {"damage", rep.Damage}, {"previous", rep.Of}, {"replica", r.ID}}})
	}
	if r.Repair.Done && !old.Repair.Done {
		t.event(Event{Type: EventReplicaRepaired, Message: r.Name,
			Details: []Label{{"aside", r.Repair.Aside}, {"previous", r.Repair.Of}, {"replica", r.ID}}})
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
		Version: b.GetVersion(), FeatureLevel: b.GetFeatureLevel(), Memory: b.GetMemoryMib(),
		Repair: ReplicaRepair{
			Of: b.GetRepair().GetOf(), Damage: b.GetRepair().GetDamage(), Aside: b.GetRepair().GetAside(),
			At: b.GetRepair().GetAt(), Done: b.GetRepair().GetDone(),
		},
	}
}

// PB returns the command that stores replica r.
func (r *Replica) PB() *commandv1.PutReplica {
	b := &commandv1.PutReplica{
		Id: r.ID, Name: r.Name, GrpcAddr: r.GRPCAddr, HttpAddr: r.HTTPAddr,
		RaftAddr: r.RaftAddr, GossipAddr: r.GossipAddr, DnsAddr: r.DNSAddr,
		Version: r.Version, FeatureLevel: r.FeatureLevel, MemoryMib: r.Memory,
	}
	if p := r.Repair; p != (ReplicaRepair{}) {
		b.Repair = &commandv1.ReplicaRepair{Of: p.Of, Damage: p.Damage, Aside: p.Aside, At: p.At, Done: p.Done}
	}
	return b
}
