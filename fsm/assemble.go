package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Assembly builds a state from records that were stored elsewhere, for example in etcd. The
// result is not served. It is used like a backup: Restored takes it and gives it a new
// incarnation.
type Assembly struct {
	t   *Tx
	gen Generation
}

// Origin describes where the records of an Assembly come from.
type Origin struct {
	ClusterID    string
	Shard        string
	Incarnation  uint64 // of the cluster that wrote the records; 0 if it had none
	Index        uint64 // of the state that was stored; 0 if unknown
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

// Workload adds a workload. A workload on an unknown node becomes unplaced. An unknown namespace
// is created without a quota. A workload that is being deleted becomes a residual on its node;
// if that node is unknown, nothing is added.
func (a *Assembly) Workload(m *commandv1.WorkloadRecord) error {
	put := m.GetPut()
	deleting := Desired(put.GetDesired()) == DesiredDeleted
	judged := put
	if deleting {
		judged = put.CloneVT()
		judged.Desired = string(DesiredStopped)
	}
	if fault := bounds.PutsFault([]*commandv1.WorkloadPut{judged}, ""); fault != "" {
		return &Refusal{Kind: Invalid, Reason: fault}
	}
	w, err := workloadOf(m)
	if err != nil {
		return &Refusal{Kind: Invalid, Reason: err.Error()}
	}
	if _, twice := a.t.r.workloads.Get(w.ID); twice {
		return &Refusal{Kind: Invalid, Reason: "id: it is there twice"}
	}
	n, known := a.t.r.nodes.Get(w.Node)
	if w.Node != "" && !known {
		w.PreviousNode, w.Node, n = w.Node, "", nil
	}
	if w.Retry.MaxAttempts == 0 {
		w.Retry.MaxAttempts = DefaultMaxAttempts
	}
	if w.Namespace != "" && !a.t.state().HasNamespace(w.Namespace) {
		// The record of the namespace is lost. Create one without users and without a quota.
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
		w.AssignedAt, w.Acknowledged, w.Actual = 0, false, unobserved
		w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
		w.Reason = reasonOf(w, nil, a.t.r.info.Clock)
	default:
		// The stored acknowledgement and observation belong to the stored order, which has a new generation here.
		w.Actual.Generation = Generation{}
		if w.Acknowledged {
			w.Actual.Generation = w.Generation
		}
		if !w.Acknowledged || w.Actual.State == ActualFailed { // the node may have refused the order
			a.t.unguarded(w)
		}
		if w.Retry.Terminal {
			w.Retry.NextAt = 0
		}
		w.Retry.NextAt = max(0, w.Retry.NextAt)
	}
	w.Status = statusOf(w, n)
	a.t.r.workloads.Set(w.ID, w)
	return nil
}

// State returns the state that was built. The Assembly must not be used afterwards.
func (a *Assembly) State() (State, error) {
	a.t.r.info.Sequence = a.gen.Sequence
	if err := a.t.derive(); err != nil {
		return State{}, err
	}
	s := a.t.Commit()
	if err := s.Check(); err != nil {
		return State{}, broken("assembled: %s", err.Error())
	}
	return s, nil
}

// Untouched returns an error if the cluster has workloads or residuals, which an import would
// replace. Registered nodes are allowed.
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
	return refuse(Conflict, "an import needs a cluster without workloads, and this one has %d%s, and %d left over on nodes",
		all, suffix(": ", strings.Join(ids, ", ")), left).Err()
}
