package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Assembly builds a state from records that were stored elsewhere, for example in etcd. No replica serves the
// result: it is treated like a backup, and Restored gives it a new incarnation.
type Assembly struct {
	t   *Tx
	gen Generation
}

// Origin describes where the records of an Assembly come from.
type Origin struct {
	ClusterID    string
	Shard        string
	Incarnation  uint64 // incarnation of the cluster that wrote the records; 0 = the cluster had none
	Index        uint64 // log index of the stored state; 0 if unknown
	Clock        int64  // Unix nanoseconds
	FeatureLevel uint32
}

// Assemble begins an Assembly without records.
func Assemble(o Origin) *Assembly {
	t := &Tx{r: *New().r}
	info := &t.r.info
	info.ClusterID, info.Shard, info.Incarnation = o.ClusterID, o.Shard, max(1, o.Incarnation)
	info.Index, info.Clock, info.FeatureLevel = o.Index, o.Clock, max(1, o.FeatureLevel)
	t.meta.Index = o.Index
	return &Assembly{t: t, gen: Generation{Incarnation: info.Incarnation}}
}

// Node adds a node as if it had registered. Add nodes before workloads.
func (a *Assembly) Node(m *commandv1.NodeRecord) error {
	if fault := bounds.NodeFault(m.GetFacts()); fault != "" {
		return &Refusal{Kind: Invalid, Reason: fault}
	}
	if _, twice := a.t.r.nodes.Get(m.GetFacts().GetId()); twice {
		return &Refusal{Kind: Invalid, Reason: "id: it is there twice"}
	}
	n := nodeRecordOf(m)
	n.Facts.normalise()
	n.Fenced = n.Fenced && !n.Up
	n.CreateIndex, n.ModifyIndex = a.t.meta.Index, a.t.meta.Index
	a.t.r.nodes.Set(n.ID, n)
	return nil
}

// Namespace adds a namespace. Add namespaces before workloads.
func (a *Assembly) Namespace(m *commandv1.NamespaceRecord) error {
	n := namespaceRecordOf(m)
	if fault := n.fault(); fault != "" {
		return &Refusal{Kind: Invalid, Reason: fault}
	}
	if _, twice := a.t.r.namespaces.Get(n.Name); twice {
		return &Refusal{Kind: Invalid, Reason: "name: it is there twice"}
	}
	slices.Sort(n.Users)
	n.Users = slices.Compact(n.Users)
	n.CreateIndex, n.ModifyIndex = a.t.meta.Index, a.t.meta.Index
	a.t.r.namespaces.Set(n.Name, n)
	return nil
}

// Bundle adds the files of Compose stacks. Add bundles before workloads; State leaves out bundles that no
// workload refers to.
func (a *Assembly) Bundle(m *commandv1.Bundle) error {
	if fault := bounds.BundleFault(m.GetDigest(), m.GetData()); fault != "" {
		return &Refusal{Kind: Invalid, Reason: fault}
	}
	a.t.r.bundles.Set(m.GetDigest(), &Bundle{Digest: m.GetDigest(), Data: m.GetData()})
	return nil
}

// Workload adds the record of a workload to the state that is assembled. If its node is unknown, the workload
// becomes unplaced. An unknown namespace is created without a quota. For a workload that is being deleted, only a
// residual is added: a record that its node may still run it. If that node is unknown, nothing is added. A surge member
// is treated like a workload that is being deleted, because the update that made it is not part of the state.
func (a *Assembly) Workload(m *commandv1.WorkloadRecord) error {
	put := m.GetPut()
	deleting := Desired(put.GetDesired()) == DesiredDeleted || put.GetDemand().GetSurge()
	judged := put
	if deleting {
		judged = put.CloneVT()
		judged.Desired = string(DesiredStopped)
		if d := judged.GetDemand(); d != nil {
			d.Surge = false
		}
	}
	if fault := bounds.PutsFault([]*commandv1.WorkloadPut{judged}, ""); fault != "" {
		return &Refusal{Kind: Invalid, Reason: fault}
	}
	w, err := workloadOf(m)
	if err != nil {
		return &Refusal{Kind: Invalid, Reason: err.Error()}
	}
	if deleting {
		w.Desired = DesiredDeleted
	}
	if _, twice := a.t.r.workloads.Get(w.ID); twice {
		return &Refusal{Kind: Invalid, Reason: "id: it is there twice"}
	}
	if _, ok := a.t.r.bundles.Get(w.Bundle); w.Bundle != "" && !ok {
		if !deleting {
			return &Refusal{Kind: Invalid, Reason: "the files of the workload are lost: apply it again from its folder"}
		}
		w.Bundle = ""
	}
	n, known := a.t.r.nodes.Get(w.Node)
	if w.Node != "" && !known {
		w.PreviousNode, w.Node, n = w.Node, "", nil
	}
	if w.Retry.MaxAttempts == 0 {
		w.Retry.MaxAttempts = DefaultMaxAttempts
	}
	if w.Namespace != "" && !a.t.state().HasNamespace(w.Namespace) {
		// The namespace has no stored record. Create a namespace without users and without a quota.
		err := a.Namespace(&commandv1.NamespaceRecord{Put: &commandv1.PutNamespace{Name: w.Namespace, Description: "imported without its record"}})
		if err != nil {
			return err
		}
	}
	a.gen.Sequence++
	w.Generation = a.gen
	w.CreateIndex, w.ModifyIndex = a.t.meta.Index, a.t.meta.Index
	if deleting {
		if n == nil {
			return nil
		}
		a.t.r.residuals.Set(pair(n.ID, w.ID), &Residual{
			Node: n.ID, Workload: w.ID, Generation: w.Generation, Engine: n.Engine(), Demand: *w.Demand,
			Since: a.t.r.info.Clock, Reason: CodeDeleting,
		})
		w.PreviousNode, w.Node, n = n.ID, "", nil
	}
	switch {
	case n == nil:
		w.AssignedAt, w.Acknowledged, w.AcknowledgedAt, w.Actual = 0, false, 0, unobserved
		w.Data, w.DiscardData, w.Adopted = nil, false, ""
		w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
		w.Reason = reasonOf(w, nil, a.t.r.info.Clock)
	default:
		// The stored acknowledgement and report belong to the stored generation. In the assembled
		// state the order has a new generation.
		w.Actual.Generation = Generation{}
		if w.Acknowledged {
			w.Actual.Generation = w.Generation
		}
		if !w.Acknowledged || w.Actual.State == ActualFailed { // whether the node accepted the lease policy is unknown
			a.t.outlives(w)
		}
		w.stake() // the node may hold all local data that the demand lists
		if w.Retry.Terminal {
			w.Retry.NextAt = 0
		}
		w.Retry.NextAt = max(0, w.Retry.NextAt)
	}
	w.Status = statusOf(w, n)
	a.t.r.workloads.Set(w.ID, w)
	return nil
}

// State returns the state that was built from the added records. The Assembly must not be used afterwards.
func (a *Assembly) State() (State, error) {
	a.t.r.info.Sequence = a.gen.Sequence
	a.t.mendTemplates()
	if err := a.t.derive(); err != nil {
		return State{}, err
	}
	a.t.settleVolumes()
	s := a.t.Commit()
	if err := s.Check(); err != nil {
		return State{}, broken("assembled: %s", err.Error())
	}
	return s, nil
}

// Untouched returns an error if the cluster has workloads or residuals (instances that nodes still have to
// stop), because an import would replace them. Registered nodes are allowed.
func Untouched(present View) error {
	all, left := present.WorkloadCount(), present.ResidualCount()
	if all+left == 0 {
		return nil
	}
	var ids []string
	present.Workloads("", func(w *Workload) bool {
		ids = append(ids, w.ID)
		return len(ids) < 3
	})
	if all > len(ids) {
		ids = append(ids, "...")
	}
	return refuse(Conflict, "an import needs a cluster without workloads; this one has %d%s, and its nodes still have to remove %d",
		all, suffix(": ", strings.Join(ids, ", ")), left).Err()
}
