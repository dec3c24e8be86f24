package fsm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/receipts"
)

// Check recomputes every index, sum and counter from the records and tests the invariants between
// records. It returns the violations, joined; at most maxFindings. Its cost is proportional to the
// size of the state. Tests and the simulator call it after every step.
func (s State) Check() error {
	c := checker{s: s}
	c.info()
	c.workloads()
	c.nodes()
	c.residuals()
	c.tombstones()
	c.trust()
	c.namespaces()
	c.policies()
	c.roles()
	c.accounts()
	c.consoles()
	c.networks()
	c.bundles()
	c.objects()
	c.volumes()
	c.moves()
	c.revisions()
	c.rollouts()
	c.histories()
	c.audit()
	if len(c.errs) == 0 {
		c.derived()
	}
	return errors.Join(c.errs...)
}

type checker struct {
	s    State
	errs []error
}

// maxFindings is the largest number of violations that Check reports.
const maxFindings = 50

func (c *checker) must(ok bool, format string, args ...any) {
	if !ok && len(c.errs) < maxFindings {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checker) info() {
	m := c.s.r.info
	c.must(m.Mode == ModeNormal || m.Mode == ModeDegraded || m.Mode == ModeRecovery, "mode %q is unknown", m.Mode)
	if m.ClusterID == "" {
		c.must(c.s.WorkloadCount()+c.s.NodeCount()+c.s.ResidualCount() == 0, "a state without a cluster holds records")
		c.must(m.Incarnation == 0 && m.FeatureLevel == 0, "a state without a cluster has incarnation %d and feature level %d", m.Incarnation, m.FeatureLevel)
		return
	}
	c.must(bounds.ValidID(m.ClusterID), "cluster id %q is malformed", m.ClusterID)
	c.must(m.Incarnation > 0, "cluster %s has incarnation 0", m.ClusterID)
	c.must(m.FeatureLevel > 0, "cluster %s has feature level 0", m.ClusterID)
	c.must((m.GossipRing == "") == (m.GossipVersion == 0), "the state has %d bytes of gossip keys, but their version is %d", len(m.GossipRing), m.GossipVersion)
}

func (c *checker) workloads() {
	last := Generation{Incarnation: c.s.r.info.Incarnation, Sequence: c.s.r.info.Sequence}
	c.s.r.workloads.Scan(func(id string, w *Workload) bool {
		c.must(w.ID == id && bounds.ValidID(id), "workload %q is stored under %q", w.ID, id)
		var n *Node
		if w.Node != "" {
			var ok bool
			n, ok = c.s.Node(w.Node)
			c.must(ok, "workload %s is on node %s, which does not exist", id, w.Node)
			_, left := c.s.Residual(w.Node, id)
			c.must(!left, "workload %s is assigned to node %s and also has a residual there", id, w.Node)
		}
		c.must(w.Status == statusOf(w, n), "workload %s has status %s, but its record gives status %s", id, w.Status, statusOf(w, n))
		c.must(statusIndex(w.Status) >= 0 && w.Status != StatusDeleted, "workload %s is stored with the unknown status %s", id, w.Status)
		c.must(!w.Generation.IsZero() && !last.Less(w.Generation), "workload %s has generation %s, but the last one that was issued is %s", id, w.Generation, last)
		c.must(!w.Generation.Less(w.Actual.Generation), "workload %s at generation %s has a report about the later generation %s", id, w.Generation, w.Actual.Generation)
		c.must(w.Retry.NextAt >= 0 && w.Retry.MaxAttempts >= 0, "workload %s has the inconsistent retry %+v", id, w.Retry)
		c.must(!w.Retry.Terminal || w.Retry.NextAt == 0, "workload %s was given up and also waits for a retry", id)
		if w.Node == "" {
			c.must(!w.Acknowledged && w.AssignedAt == 0 && len(w.FormerPorts) == 0 && w.Actual.State == ActualNone && w.Retry.NextAt == 0 && !w.Retry.Terminal,
				"workload %s is on no node, but has fields of an assignment", id)
			c.must(len(w.Data) == 0 && !w.DiscardData, "workload %s is on no node, but has local data on a node", id)
			c.must(w.Adopted == "", "workload %s is on no node, but runs adopted revision %s", id, w.Adopted)
		} else {
			c.must(w.PreemptedBy == "", "workload %s is on node %s, but is marked as preempted", id, w.Node)
		}
		c.must(!w.MayOutliveLease || w.Node != "" && w.Demand.stops(), "workload %s on node %q may outlive the lease, but its policy does not stop it when the lease ends", id, w.Node)
		c.must(w.Acknowledged || w.AcknowledgedAt == 0, "workload %s is not acknowledged, but has the acknowledgement time %d", id, w.AcknowledgedAt)
		c.must(w.Retry.StableSince == 0 || w.Retry.failed(), "workload %s has been stable since %d, but has no failures to clear", id, w.Retry.StableSince)
		c.must(w.Retry.Verdict.Code == "" || w.Retry.Terminal, "workload %s has the final verdict %s, but was not given up", id, w.Retry.Verdict.Code)
		c.must(w.Result == nil && w.JobSince == 0 || w.Demand.Job != nil, "workload %s is not a job, but has fields of a job", id)
		c.must(w.Result == nil || w.Node == "", "job %s has a result, but is on node %s", id, w.Node)
		c.must(w.Result == nil || w.Desired == DesiredRunning, "job %s has a result, but its desired state is %s", id, w.Desired)
		c.must(len(w.FailedOn) <= MaxNodeFailures, "workload %s remembers %d nodes that it left, at most %d are allowed", id, len(w.FailedOn), MaxNodeFailures)
		c.template(w)
		c.must(len(w.Actions) <= MaxActions, "workload %s has %d recorded actions, at most %d are allowed", id, len(w.Actions), MaxActions)
		c.must(w.Namespace == "" || w.Namespace != DefaultNamespace && c.s.HasNamespace(w.Namespace),
			"workload %s is stored in namespace %q", id, clip(w.Namespace))
		d := w.Demand
		c.must(d.CPU >= 0 && d.CPU <= bounds.MaxCPU && d.Memory >= 0 && d.Memory <= bounds.MaxMemory && d.Disk >= 0 && d.Disk <= bounds.MaxDisk,
			"workload %s has an invalid demand: %d millicores, %d MiB, %d GB", id, d.CPU, d.Memory, d.Disk)
		c.must(d.Group == "" || bounds.ValidID(d.Group), "workload %s is of group %q", id, d.Group)
		switch w.Desired {
		case DesiredRunning, DesiredStopped:
		case DesiredDeleted:
			c.must(w.Node == "", "workload %s is being deleted and still assigned to node %s", id, w.Node)
			left := false
			c.s.ResidualsOf(id, func(*Residual) bool { left = true; return false })
			c.must(left, "workload %s is being deleted, but no node has a residual of it", id)
		default:
			c.must(false, "workload %s has desired state %q", id, w.Desired)
		}
		return true
	})
}

func (c *checker) nodes() {
	c.s.r.nodes.Scan(func(id string, n *Node) bool {
		c.must(n.ID == id && bounds.ValidID(id), "node %q is stored under %q", n.ID, id)
		c.must(!n.Fenced || !n.Up, "node %s is fenced and up", id)
		c.must(n.JobsUntil == 0 || n.Draining, "node %s is not draining, but lets jobs end until %d", id, n.JobsUntil)
		c.must(slices.IsSorted(n.Lacks), "node %s lacks types %v, which are not sorted", id, n.Lacks)
		return true
	})
	c.drifts()
	c.s.r.audits.Scan(func(id string, a *NodeAudit) bool {
		_, ok := c.s.Node(id)
		c.must(ok && a.Node == id, "the recorded tasks of node %q are stored under %q (the node exists: %t)", clip(a.Node), clip(id), ok)
		c.must(a.EndedAt > 0 && len(a.Tasks) <= maxAuditTasks && slices.IsSorted(a.Tasks), "node %s has invalid recorded tasks: the last one ended in second %d, and %d tasks ended in that second", clip(id), a.EndedAt, len(a.Tasks))
		return true
	})
	c.s.r.replicas.Scan(func(id string, r *Replica) bool {
		c.must(r.ID == id && bounds.ValidID(id), "replica %q is stored under %q", r.ID, id)
		return true
	})
}

func (c *checker) residuals() {
	last := Generation{Incarnation: c.s.r.info.Incarnation, Sequence: c.s.r.info.Sequence}
	c.s.r.residuals.Scan(func(key string, r *Residual) bool {
		c.must(key == pair(r.Node, r.Workload), "residual %s is stored under %q", pair(r.Node, r.Workload), key)
		n, ok := c.s.Node(r.Node)
		c.must(ok, "residual %s is on a node that does not exist", key)
		c.must(!ok || n.Engine() == r.Engine, "residual %s has engine %q, but its node has another one", key, r.Engine)
		c.must(!ok || !n.Fenced, "residual %s is on a fenced node", key)
		c.must(!last.Less(r.Generation), "residual %s has generation %s, but the last one that was issued is %s", key, r.Generation, last)
		return true
	})
}

func (c *checker) tombstones() {
	info := c.s.r.info
	last := Generation{Incarnation: info.Incarnation, Sequence: info.Sequence}
	c.must(c.s.TombstoneCount() <= MaxTombstones, "there are %d tombstones, at most %d are allowed", c.s.TombstoneCount(), MaxTombstones)
	c.s.r.tombstones.Scan(func(id string, g *Tombstone) bool {
		c.must(g.Workload == id && bounds.ValidID(id), "tombstone of %q is stored under %q", clip(g.Workload), clip(id))
		_, alive := c.s.Workload(id)
		c.must(!alive, "workload %s has a record and a tombstone", id)
		c.must(!g.Generation.IsZero() && !last.Less(g.Generation), "tombstone of %s has generation %s, but the last one that was issued is %s", id, g.Generation, last)
		c.must(g.Index <= info.Index, "tombstone of %s was made at index %d, but the state is at index %d", id, g.Index, info.Index)
		return true
	})
}

// trust checks the tables about certificates (trust.go): authorities, join tokens, issued
// certificates (admissions) and revocations.
func (c *checker) trust() {
	r := c.s.r
	c.must(r.info.ClusterKeyID == "" || len(r.info.ClusterKeyID) == 16 && lowerHex(r.info.ClusterKeyID), "cluster key id %q is malformed", clip(r.info.ClusterKeyID))
	c.must(r.info.FormerKeyID == "" || r.info.ClusterKeyID != "" && r.info.FormerKeyID != r.info.ClusterKeyID && r.info.NextKeyID == "", "cluster key %q has the former key %q and the next key %q", clip(r.info.ClusterKeyID), clip(r.info.FormerKeyID), clip(r.info.NextKeyID))
	c.must(!slices.Contains(r.info.RetiredKeyIDs, r.info.ClusterKeyID) && !slices.Contains(r.info.RetiredKeyIDs, r.info.FormerKeyID), "a retired key is in use")
	if r.info.CleanIndex > 0 || len(r.info.RetiredKeyIDs) > 0 {
		c.s.Sealed(func(v SealedValue) bool {
			for _, id := range KeysNamed(v.Value) {
				c.must(!r.info.refusesKey(id), "%s is sealed under the retired key %s", v, id)
			}
			return true
		})
	}
	c.must(r.authorities.Len() <= MaxAuthorities, "there are %d authorities, at most %d are allowed", r.authorities.Len(), MaxAuthorities)
	r.authorities.Scan(func(id string, a *Authority) bool {
		c.must(a.ID == id && isFingerprint(id) && isFingerprint(a.RootID), "authority %q of root %q is stored under %q", clip(a.ID), clip(a.RootID), clip(id))
		c.must(len(a.Cert) > 0 && len(a.Root) > 0 && a.SealedKey != "", "authority %s lacks a certificate or a key", clip(id))
		return true
	})
	r.tokens.Scan(func(id string, t *Token) bool {
		c.must(t.ID == id && bounds.ValidID(id) && len(t.SecretHash) == 32, "token %q is stored under %q", clip(t.ID), clip(id))
		c.must(checkPrincipal(t.Role, t.Name, t.Access, true).Kind == OK, "token %s has an invalid identity: role %q, name %q, access %q", clip(id), clip(t.Role), clip(t.Name), clip(t.Access))
		return true
	})
	r.admissions.Scan(func(key string, a *Admission) bool {
		c.must(key == pair(a.Role, a.Name) && checkPrincipal(a.Role, a.Name, a.Access, false).Kind == OK, "admission of %s %q is stored under %q", clip(a.Role), clip(a.Name), clip(key))
		c.must(isFingerprint(a.Fingerprint) && len(a.KeyHash) == 32, "admission %s lacks a fingerprint or a key", clip(key))
		return true
	})
	r.revocations.Scan(func(key string, v *Revocation) bool {
		c.must(key == v.key() && (isFingerprint(v.Fingerprint) || checkPrincipal(v.Role, v.Name, "", false).Kind == OK), "revocation %q is stored under %q", clip(v.key()), clip(key))
		return true
	})
}

// histories checks that the sequence numbers of events, and those of receipts (stored answers to
// requests), follow each other without gaps.
func (c *checker) histories() {
	info := c.s.r.info
	c.must(c.s.r.events.Len() <= MaxEvents, "there are %d events, at most %d are allowed", c.s.r.events.Len(), MaxEvents)
	next := uint64(0)
	c.s.Events(0, func(e *Event) bool {
		c.must(next == 0 || e.Seq == next, "event %d follows event %d", e.Seq, next-1)
		next = e.Seq + 1
		return true
	})
	c.must(next == 0 || next-1 == info.EventSeq, "the last event is %d, but the counter is at %d", next-1, info.EventSeq)
	next = 0
	c.s.r.receipts.Scan(func(r receipts.Receipt) bool {
		c.must(next == 0 || r.Seq == next, "receipt %d follows receipt %d", r.Seq, next-1)
		next = r.Seq + 1
		same, ok := c.s.r.receipts.Get(r.Request)
		c.must(ok && same.Seq == r.Seq && bytes.Equal(same.Answer, r.Answer), "receipt %d is not found by its request id", r.Seq)
		kind := answerOf(r, 0).Kind
		c.must(kind != Frozen && kind != TooOld, "receipt %d keeps a verdict of kind %s", r.Seq, kind)
		return true
	})
	c.must(next == 0 || next-1 == info.ReceiptSeq, "the last receipt is %d, but the counter is at %d", next-1, info.ReceiptSeq)
}

// derived rebuilds every index from the records and compares it with the index of the state.
func (c *checker) derived() {
	want := &Tx{r: *New().r}
	want.r.info, want.r.workloads, want.r.nodes, want.r.residuals, want.r.tombstones = c.s.r.info, c.s.r.workloads, c.s.r.nodes, c.s.r.residuals, c.s.r.tombstones
	want.r.namespaces, want.r.rollouts, want.r.policies, want.r.bundles, want.r.objects, want.r.volumes, want.r.moves = c.s.r.namespaces, c.s.r.rollouts, c.s.r.policies, c.s.r.bundles, c.s.r.objects, c.s.r.volumes, c.s.r.moves
	if err := want.derive(); err != nil {
		c.errs = append(c.errs, err)
		return
	}
	a, b := c.s.r, &want.r
	sameTree(c, "byNode", a.byNode, b.byNode, equal)
	sameTree(c, "byGroup", a.byGroup, b.byGroup, equal)
	sameTree(c, "byOwner", a.byOwner, b.byOwner, equal)
	sameTree(c, "byLabel", a.byLabel, b.byLabel, equal)
	sameTree(c, "byRule", a.byRule, b.byRule, equal)
	sameTree(c, "byVolume", a.byVolume, b.byVolume, equal)
	sameTree(c, "byMAC", a.byMAC, b.byMAC, equal)
	sameTree(c, "byIngress", a.byIngress, b.byIngress, equal)
	sameTree(c, "pending", a.pending, b.pending, equal)
	sameTree(c, "unacked", a.unacked, b.unacked, equal)
	sameTree(c, "retryDue", a.retryDue, b.retryDue, equal)
	sameTree(c, "byPreemption", a.byPreemption, b.byPreemption, equal)
	sameTree(c, "residualsOf", a.residualsOf, b.residualsOf, equal)
	sameTree(c, "ports", a.ports, b.ports, equal)
	sameTree(c, "tombstonesByAge", a.tombstonesByAge, b.tombstonesByAge, equal)
	sameTree(c, "byUser", a.byUser, b.byUser, equal)
	sameTree(c, "policyIn", a.policyIn, b.policyIn, equal)
	sameTree(c, "rolling", a.rolling, b.rolling, equal)
	sameTree(c, "bundles", a.bundles, b.bundles, func(x, y *Bundle) bool { return x.Digest == y.Digest && x.Uses == y.Uses })
	sameTree(c, "uses", a.uses, b.uses, func(x, y *Use) bool { return *x == *y })
	c.must(a.total == b.total, "the recorded total is %v, but workloads and bundles add up to %v", a.total, b.total)
	sameTree(c, "alloc", a.alloc, b.alloc, func(x, y *Alloc) bool {
		return x.CPU == y.CPU && x.Memory == y.Memory && x.Workloads == y.Workloads && x.Residuals == y.Residuals && x.Moves == y.Moves && slices.Equal(x.Disk, y.Disk) &&
			slices.Equal(x.Devices, y.Devices)
	})
	for i, st := range statusOrder {
		c.must(a.statuses[i] == b.statuses[i], "%d workloads are counted with status %s, but there are %d", a.statuses[i], st, b.statuses[i])
	}
}

func equal[V comparable](a, b V) bool { return a == b }

// sameTree compares an index of the state with the index that the method derived has built from the
// records.
func sameTree[K cmp.Ordered, V any](c *checker, name string, have, want *btree.Map[K, V], same func(a, b V) bool) {
	c.must(have.Len() == want.Len(), "index %s has %d entries, must have %d", name, have.Len(), want.Len())
	want.Scan(func(k K, v V) bool {
		got, ok := have.Get(k)
		c.must(ok && same(got, v), "index %s: entry %q is %v, must be %v", name, fmt.Sprint(k), got, v)
		return len(c.errs) < maxFindings
	})
}
