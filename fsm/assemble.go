package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Assembly puts a state together from records that were kept elsewhere, such as
// in an etcd. What it makes is not for serving: it is a backup like any other,
// and comes back through Restored, under a new incarnation.
type Assembly struct {
	t   *Tx
	gen Generation
}

// Origin says where assembled records are from.
type Origin struct {
	ClusterID    string
	Shard        string
	Incarnation  uint64 // of the cluster that wrote them; 0: it had none
	Index        uint64 // of the state that they show; 0 if that is not known
	Clock        int64  // Unix nanoseconds
	FeatureLevel uint32
}

// Assemble begins with no records.
func Assemble(o Origin) *Assembly {
	t := &Tx{r: *New().r}
	info := &t.r.info
	info.ClusterID, info.Shard, info.Incarnation = o.ClusterID, o.Shard, max(1, o.Incarnation)
	info.Index, info.Clock, info.FeatureLevel = o.Index, o.Clock, max(1, o.FeatureLevel)
	t.meta.Index = o.Index
	return &Assembly{t: t, gen: Generation{Incarnation: info.Incarnation}}
}

// Node takes one node, as if it had registered. Nodes come before workloads.
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

// Namespace takes one namespace. They come before workloads.
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

// Workload takes one workload. Where its node is unknown, it is to be placed; where its
// namespace is, that is made without a quota. One
// that is being deleted is what its node has to let go: without a node that may
// hold it there is nothing left to do, and nothing is taken.
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
		// Its record is lost; the workload is not. Nobody is confined to it and it has no quota.
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
		// What was accepted and seen is of the order that the record shows.
		w.Actual.Generation = Generation{}
		if w.Acknowledged {
			w.Actual.Generation = w.Generation
		}
		if !w.Acknowledged || w.Actual.State == ActualFailed { // the order may have been refused
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

// State is what was taken. The Assembly must not be used afterwards.
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

// Untouched refuses to import into a cluster that has work of its own, which an
// import would replace. Nodes may have registered.
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
