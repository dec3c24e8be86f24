package fsm

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/tidwall/btree"
)

// A state is restored in two ways: from a backup, or from the disk of the last replica of a cluster that has
// lost its quorum. The restored state may be older than the orders that agents have received. So each restore
// begins a new incarnation, a number that is the first part of every epoch and generation. All epochs and
// generations after the restore are therefore higher than all earlier ones. Running workloads are not touched:
// an order is issued again only if the record changed, or if a node reports a generation that the state does
// not know (NewerThanState).

// RestoreInfo holds the facts about a restore that the state itself does not contain.
type RestoreInfo struct {
	At int64  // time of the restore, Unix nanoseconds; the new incarnation is at least this time in milliseconds
	By string // user who requested the restore, for the event
	// Source is the origin of the restored state, for the event about the restore. Empty means a
	// backup; the event then has the time of the backup.
	Source string
	// FormerKey is the id of the key under which values of the backup are sealed, if it is not the present cluster key.
	// The leader has that key. Empty if all values are sealed under the present key.
	FormerKey string
}

// incarnation returns a new incarnation that is higher than every incarnation in old.
func (r RestoreInfo) incarnation(old ...uint64) uint64 {
	next := uint64(max(1, r.At/int64(time.Millisecond)))
	for _, o := range old {
		next = max(next, o+1)
	}
	return next
}

// Recovered returns the state of a cluster whose other replicas, and so the quorum, are lost for good. self
// is the Raft id of the only replica. Only the goroutine that applies commands to s may call it.
func (s State) Recovered(self string, r RestoreInfo) State {
	t := s.Begin()
	info := &t.r.info
	t.meta, t.by = Meta{info.Index, info.Term}, r.By
	info.Clock = max(info.Clock, r.At)
	info.Incarnation = r.incarnation(info.Incarnation)
	var lost []*Replica
	s.Replicas(func(p *Replica) bool {
		if p.ID != self {
			lost = append(lost, p)
		}
		return true
	})
	for _, p := range lost {
		t.dropReplica(p)
	}
	t.event(Event{
		Type: EventClusterRecovered, Message: "quorum was lost: one replica goes on alone",
		Details: []Label{{"incarnation", strconv.FormatUint(info.Incarnation, 10)}, {"lost_replicas", strconv.Itoa(len(lost))}},
	})
	return t.Commit()
}

// Restored returns the state of a cluster after backup is restored into it. present is the state before the
// restore.
//
// The backup supplies the requests of users: the workloads with their specifications and desired
// states. The present state supplies facts: replicas, mode, registered nodes, history, and the
// node of each workload that both states know. Updates are not restored, so surge members are deleted.
//
// A newly formed cluster without workloads has no facts except its registered nodes. It takes everything else
// from the backup. Agents register with the new schedulers before the restore, and their workloads run on the
// nodes that the backup records. The cluster keeps its own id if it has one. The caller has compared that id
// with the id in the backup. Agents obey only their own cluster, so a backup of another cluster supplies only
// workloads, which are placed again.
//
// A workload that only the present state knows is removed from the state. If it runs, it keeps
// running as an orphan.
func Restored(backup, present State, r RestoreInfo) (State, error) {
	b, p := backup.Info(), present.Info()
	if b.ClusterID == "" {
		return State{}, &Refusal{Kind: Invalid, Reason: "the backup is of a cluster that was never formed"}
	}
	own := p.ClusterID == "" || p.ClusterID == b.ClusterID
	info := b
	if p.ClusterID != "" {
		info.ClusterID, info.Shard = p.ClusterID, p.Shard
		info.Mode, info.ModeReason, info.ModeChangedAt, info.ModePinned = p.Mode, p.ModeReason, p.ModeChangedAt, p.ModePinned
		info.MirrorEtcd, info.MirrorPin, info.MirrorEndpoints = p.MirrorEtcd, p.MirrorPin, p.MirrorEndpoints
	}
	info.ClusterKeyID = p.ClusterKeyID
	if own && info.ClusterKeyID == "" {
		info.ClusterKeyID = b.ClusterKeyID
	}
	info.KeyRotation = p.KeyRotation
	switch {
	case own && p.ClusterKeyID == "":
		info.KeyRotation = b.KeyRotation
	case own && p.ContentKey == "" && SealedUnder([]byte(b.ContentKey), p.ClusterKeyID):
		info.ContentKey, info.KeyChangedAt = b.ContentKey, b.KeyChangedAt // the content hashes of the backup were made with this key
	}
	if r.FormerKey != "" {
		// Values of the backup are sealed under a key that was replaced since. Seal them again, as a rotation does.
		again := p.NextKeyID == "" && p.FormerKeyID == r.FormerKey && p.CleanIndex == 0 // true if a rotation already seals the values under this former key again
		if p.Rotating() && !again {
			return State{}, &Refusal{Kind: Conflict, Reason: "a rotation of the cluster key is in progress; wait for its end: persysctl cluster-key status"}
		}
		info.FormerKeyID, info.CleanIndex, info.KeyChangedAt = r.FormerKey, 0, max(p.KeyChangedAt, r.At)
	}
	if len(info.RetiredKeyIDs) > 0 {
		used := backup.SealedKeys()
		info.RetiredKeyIDs = slices.DeleteFunc(slices.Clone(info.RetiredKeyIDs), func(id string) bool { return slices.Contains(used, id) })
	}
	// The present replicas use the present gossip keys, so keep these.
	info.GossipRing, info.GossipVersion = p.GossipRing, p.GossipVersion
	if info.TrustVersion = max(b.TrustVersion, p.TrustVersion); info.TrustVersion > 0 {
		info.TrustVersion++
	}
	info.Incarnation = r.incarnation(b.Incarnation, p.Incarnation)
	info.Sequence = max(b.Sequence, p.Sequence)
	info.Clock = max(b.Clock, p.Clock, r.At)
	info.FeatureLevel = max(b.FeatureLevel, p.FeatureLevel)
	info.Digest = p.Digest
	// Readers wait for an index. So the new index is higher than that of the backup and of the
	// present state.
	info.Index, info.Term = max(b.Index, p.Index)+1, p.Term

	t := &Tx{r: *New().r}
	t.r.info = info
	t.meta, t.by = Meta{info.Index, info.Term}, r.By
	t.r.replicas = duplicate(present.r.replicas)
	fresh := own && b.Incarnation != p.Incarnation && present.WorkloadCount()+present.ResidualCount() == 0
	t.trust(backup, present, own, fresh)
	t.namespaces(backup, present)
	t.policies(backup, present)
	t.mergeBundles(backup, present)
	t.mergeObjects(backup, present)

	facts := present
	if fresh {
		facts = backup
	}
	t.r.nodes = duplicate(facts.r.nodes)
	if fresh {
		present.Nodes("", func(n *Node) bool {
			if was, ok := t.r.nodes.Get(n.ID); ok && (was.Cordoned || was.Draining || len(was.Set.Labels)+len(was.Set.Taints) > 0) {
				held := *n
				held.Cordoned, held.Draining = n.Cordoned || was.Cordoned, n.Draining || was.Draining
				if !n.Draining {
					held.JobsUntil = was.JobsUntil // the deadline belongs to the drain of the backup
				}
				held.Set = n.Set.rejoin(was.Set)
				held.merge()
				n = &held
			}
			t.r.nodes.Set(n.ID, n)
			return true
		})
	}
	facts.Residuals("", func(r *Residual) bool {
		if n, ok := t.r.nodes.Get(r.Node); ok && n.Engine() != r.Engine {
			moved := *r
			moved.Engine = n.Engine()
			r = &moved
		}
		t.r.residuals.Set(pair(r.Node, r.Workload), r)
		return true
	})
	t.restoreNetworks(backup, present, fresh)
	t.restoreVolumes(backup, present, fresh)
	t.restoreMoves(facts, fresh)
	facts.r.audits.Scan(func(id string, a *NodeAudit) bool {
		if _, ok := t.r.nodes.Get(id); ok {
			t.r.audits.Set(id, a)
		}
		return true
	})
	past := facts
	if past.r.events.Len() == 0 {
		past = present // a state that was assembled from etcd has no events
	}
	t.r.events = past.r.events.Clone()
	t.r.audit = past.r.audit.clone()
	t.r.receipts = past.r.receipts.Clone()
	f := past.Info()
	t.r.info.EventSeq, t.r.info.ReceiptSeq, t.r.info.ReceiptsDroppedUntil = f.EventSeq, f.ReceiptSeq, f.ReceiptsDroppedUntil

	t.leaveSurge(facts)
	backup.Workloads("", func(w *Workload) bool {
		if w.Demand.Surge && w.Desired != DesiredDeleted {
			return true // do not restore a surge member, because the update that made it is not restored either
		}
		if m, ok := backup.Move(w.ID); ok && m.Stops() && m.Resume && w.Desired == DesiredStopped {
			running := *w // it was stopped for a move of its volumes; settleMoves stops it again if that move goes on
			running.Desired = DesiredRunning
			if fresh {
				t.newOrder(&running) // the node has confirmed the order to stop
			}
			w = &running
		}
		if fresh {
			back := *w
			n, _ := t.r.nodes.Get(w.Node)
			back.Status = statusOf(w, n) // the node may have registered again since the backup was made
			w = &back
		} else if w = t.returning(w, present); w == nil {
			return true
		}
		t.r.workloads.Set(w.ID, w)
		return true
	})
	t.tombstones(backup, present, own)
	t.past(backup, present)
	t.mendTemplates()
	if err := t.derive(); err != nil {
		return State{}, err
	}
	t.r.nodes.Scan(func(id string, n *Node) bool {
		if n.Fenced { // the node was fenced after the backup was made, so it runs none of the instances that the backup lists as residuals
			t.clearResiduals(id)
		}
		return true
	})
	t.settleSlices()
	t.settleVolumes()
	t.settleMoves(fresh)
	source := r.Source
	if source == "" {
		source = "a backup of " + time.Unix(0, b.Clock).UTC().Format(time.RFC3339)
	}
	t.event(Event{
		Type: EventClusterRestored, Message: "restored from " + source,
		Details: []Label{
			{"backup_cluster", b.ClusterID}, {"backup_index", strconv.FormatUint(b.Index, 10)},
			{"incarnation", strconv.FormatUint(info.Incarnation, 10)},
		},
	})
	t.returnedObjects(present)
	s := t.Commit()
	if err := s.Check(); err != nil {
		return State{}, broken("restored: %s", err.Error())
	}
	return s, nil
}

// trust merges the certificate authorities, join tokens, admissions and revocations of the backup and of the
// present state. A new cluster without an authority takes the authority of the backup, and the identities
// that only the backup has: without them no agent could renew its certificate and every user would be an
// operator. Identities of lost schedulers are not taken over, because other machines join under their names.
// A revocation in either state stays in force. Join tokens of the backup are not restored, because they may
// have been used or deleted since then. For the same reason sessions of the console are not restored.
func (t *Tx) trust(backup, present State, own, fresh bool) {
	t.r.authorities = duplicate(present.r.authorities)
	t.r.tokens = duplicate(present.r.tokens)
	t.r.admissions = duplicate(present.r.admissions)
	t.r.revocations = duplicate(present.r.revocations)
	t.r.roles, t.r.bindings, t.r.accounts = duplicate(present.r.roles), duplicate(present.r.bindings), duplicate(present.r.accounts)
	t.r.consoles = duplicate(present.r.consoles)
	if !own {
		return
	}
	if t.r.authorities.Len() == 0 {
		t.r.authorities = duplicate(backup.r.authorities)
	}
	if fresh {
		t.takeRoles(backup)
	}
	if none := t.r.admissions.Len() == 0; none || fresh {
		backup.r.admissions.Scan(func(k string, a *Admission) bool {
			if _, known := t.r.admissions.Get(k); !known && (none || a.Role != "scheduler") {
				t.r.admissions.Set(k, a)
			}
			return true
		})
	}
	backup.r.revocations.Scan(func(k string, v *Revocation) bool {
		if _, known := t.r.revocations.Get(k); !known && t.r.revocations.Len() < MaxRevocations {
			t.r.revocations.Set(k, v)
		}
		return true
	})
}

// takeRoles adds the roles, accounts and bindings of a backup that the present state does not have. Present
// records are kept, so a backup never adds rights to a role or account of the cluster. The bearer tokens of the
// accounts end with the restore, because they may have been replaced or deleted since the backup was made.
func (t *Tx) takeRoles(backup State) {
	backup.Roles(func(r *Role) bool {
		if _, known := t.r.roles.Get(r.Name); !known && t.r.roles.Len() < MaxRoles {
			t.r.roles.Set(r.Name, r)
		}
		return true
	})
	present := duplicate(t.r.accounts)
	backup.Accounts(func(a *Account) bool {
		if _, known := t.r.accounts.Get(a.Name); !known && t.r.accounts.Len() < MaxAccounts {
			back := *a
			back.ExpiresAt = min(a.ExpiresAt, t.r.info.Clock)
			t.r.accounts.Set(a.Name, &back)
		}
		return true
	})
	backup.Bindings(func(b *Binding) bool {
		_, role := t.r.roles.Get(b.Role)
		_, account := t.r.accounts.Get(b.Name)
		_, kept := present.Get(b.Name)
		if _, known := t.r.bindings.Get(b.key()); !known && t.r.bindings.Len() < MaxBindings &&
			(role || builtinRole(b.Role)) && (account && !kept || b.Kind != SubjectAccount) {
			t.r.bindings.Set(b.key(), b)
		}
		return true
	})
}

// tombstones keeps the tombstones of the present state and, if the backup is of the same cluster,
// the tombstones of the backup. A restored workload has no tombstone. A workload that only the
// present state knows gets no tombstone: nobody deleted it, so it keeps running.
func (t *Tx) tombstones(backup, present State, own bool) {
	take := func(g *Tombstone) bool {
		_, back := t.r.workloads.Get(g.Workload)
		if old, ok := t.r.tombstones.Get(g.Workload); !back && (!ok || old.Generation.Less(g.Generation)) {
			t.r.tombstones.Set(g.Workload, g)
		}
		return true
	}
	present.Tombstones(take)
	if own {
		backup.Tombstones(take)
	}
	byAge := t.r.tombstones.Values()
	slices.SortFunc(byAge, func(a, b *Tombstone) int { return cmp.Compare(tombstoneKey(a), tombstoneKey(b)) })
	for _, g := range byAge[:max(0, len(byAge)-MaxTombstones)] {
		t.r.tombstones.Delete(g.Workload)
	}
}

// past gives each restored workload its earlier specifications: from the backup or from the present
// state, whichever supplied its present specification.
func (t *Tx) past(sides ...State) {
	for _, w := range t.r.workloads.Values() {
		var h *history
		for _, s := range sides {
			had, ok := s.r.workloads.Get(w.ID)
			if ok && had.history != nil && had.Content == w.Content {
				h = had.history
				break
			}
		}
		if w.history != h {
			next := *w
			next.history = h
			t.r.workloads.Set(w.ID, &next)
		}
	}
}

// duplicate copies a tree of a published state record by record. btree.Copy would write to its receiver, and
// only the goroutine that applies commands may do so.
func duplicate[K cmp.Ordered, V any](m *btree.Map[K, V]) *btree.Map[K, V] {
	out := tree[K, V]()
	m.Scan(func(k K, v V) bool {
		out.Set(k, v)
		return true
	})
	return out
}

// returning returns the record that old, a workload of the backup, has in the restored state. present is the
// state before the restore: it knows on which nodes workloads run. nil means that the workload is not restored.
func (t *Tx) returning(old *Workload, present State) *Workload {
	w := *old
	now, known := present.Workload(w.ID)
	if w.Desired == DesiredDeleted {
		if !known {
			return nil // the workload has been deleted since the backup was made
		}
		keep := *now // keep the present record: a restore does not cancel an unfinished delete
		return &keep
	}
	if known && old.IsTemplate() != now.IsTemplate() {
		keep := *now // keep the present record, because the running instance or the children were made from it
		return &keep
	}
	if known && old.Finished() && old.Content != now.Content && (now.Bundle == "" || now.Bundle == old.Bundle) {
		keep := *now // the job in the backup has finished since then; restoring its record would run it again
		return &keep
	}
	w.CreateIndex, w.ModifyIndex, w.UpdatedAt = t.meta.Index, t.meta.Index, t.r.info.Clock
	w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
	w.Reason = Reason{}
	w.Node, w.PreviousNode, w.AssignedAt, w.FormerPorts, w.MayOutliveLease = "", "", 0, nil, false
	w.Data, w.DiscardData = nil, false
	w.Adopted = ""
	w.Acknowledged, w.AcknowledgedAt, w.Actual, w.Actions = false, 0, unobserved, nil
	if known {
		w.CreateIndex = now.CreateIndex
		w.Restarts = max(w.Restarts, now.Restarts)
		w.PreviousNode = now.PreviousNode
		if w.Demand.Job != nil && w.Content == now.Content && w.Desired == DesiredRunning {
			w.Result, w.JobSince = now.Result, now.JobSince // a job that has finished since the backup does not run again
		}
	}
	if known && now.Node != "" {
		w.Node, w.AssignedAt, w.Actual, w.FormerPorts = now.Node, now.AssignedAt, now.Actual, now.FormerPorts
		w.Generation, w.Acknowledged, w.Reason, w.Retry = now.Generation, now.Acknowledged, now.Reason, now.Retry
		w.AcknowledgedAt, w.SameSince, w.Actions = now.AcknowledgedAt, now.SameSince, now.Actions
		w.Data, w.DiscardData = now.Data, now.DiscardData
		t.carryOutlives(now, &w)
		if w.Content == now.Content {
			w.Adopted = now.Adopted
		}
		if w.Content == now.Content && w.Desired == now.Desired {
			w.ModifyIndex, w.UpdatedAt, w.Restarts = now.ModifyIndex, now.UpdatedAt, now.Restarts
		} else {
			t.holdPorts(&w, now.Demand.Ports)
			t.newOrder(&w)
			w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
		}
	} else {
		t.nextOrder(&w)
	}
	n, _ := present.Node(w.Node)
	w.Status = statusOf(&w, n)
	return &w
}

// NewerThanState reports whether said, a generation that a node reported, is newer than the restored state:
// said is from an incarnation before the restore and is later than the generation of w. The node has then
// received orders that this state does not know.
func (w *Workload) NewerThanState(said Generation, now Info) bool {
	return said.Incarnation < now.Incarnation && w.Generation.Less(said) && w.Desired != DesiredDeleted && !w.IsTemplate()
}

// catchUp assigns the workload to the node that reported a generation newer than the state, and issues a new
// order. It reports whether it did so.
func (t *Tx) catchUp(old *Workload, r reporter) bool {
	n, ok := t.r.nodes.Get(r.GetNode())
	if !ok || !n.Up || r.GetGone() || r.GetRefused() {
		return false
	}
	w := *old
	t.takeOver(&w, n, CodeLeftBehind)
	t.putWorkload(old, &w)
	t.event(Event{Type: EventWorkloadScheduled, Workload: w.ID, Node: n.ID, Reason: CodeFoundThere, Message: "found there after a restore"})
	return true
}

// takeOver binds w, a copy of a record, to node n, which already runs the workload, and gives w a new
// generation. code is the reason code of the assignment. If w was on another node, that node may still run it:
// a residual, a record of such an instance, with the same code is stored for that node.
func (t *Tx) takeOver(w *Workload, n *Node, code string) {
	if w.Node != n.ID {
		if w.Node != "" {
			t.release(w, false, code)
		}
		if left, ok := t.r.residuals.Get(pair(n.ID, w.ID)); ok {
			t.dropResidual(left)
			t.holdPorts(w, left.Demand.Ports)
		}
		w.Node, w.AssignedAt = n.ID, t.r.info.Clock
	}
	t.outlives(w)
	t.nextOrder(w)
	w.Acknowledged, w.AcknowledgedAt = false, 0
	w.Reason = Reason{}
	// Clear the failures of the previous order. If Terminal stayed set, no order would be issued.
	w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
	w.Result = nil // the node runs the job, so some order started it again: drop the result
	if w.Demand.Job != nil && w.JobSince == 0 {
		w.JobSince = t.r.info.Clock
	}
	if w.Demand.Job != nil { // until the node reports the new order, it may run the job: see FinishesOn
		w.SameSince, w.Actual = w.Generation, &Observation{State: ActualUnknown, Generation: w.Generation, At: t.r.info.Clock}
	}
}

// reporter is the part of a node's report that catchUp needs.
type reporter interface {
	GetNode() string
	GetGone() bool
	GetRefused() bool
}

// CodeFoundThere is the reason code of an assignment to a node that reported, after a restore, a generation
// newer than the state.
const CodeFoundThere = "FoundThere"
