package fsm

import (
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Drifts are differences between a node and the state. The planner finds them by comparing the list
// of workloads that a node sends with the workloads that the state expects on the node. The state
// keeps the open drifts. A drift record changes nothing by itself: other commands, such as a
// report, a new order or a residual, repair the difference.

// The kinds of drift (contract/semantics.md section 8).
const (
	DriftOrphan   = "orphan_on_agent"
	DriftState    = "state_mismatch"
	DriftRevision = "revision_mismatch"
	DriftMissing  = "missing_on_agent"
)

// The values of the field action of a drift: what is done about it (contract/state-etcd.md).
const (
	ActionInvestigate  = "operator_investigation" // the scheduler does nothing; a person decides with persysctl drift
	ActionDeleteOrphan = "delete_orphan_on_agent"
	ActionAlign        = "align_scheduler_status"
	ActionReapply      = "reapply_scheduler_revision"
	ActionReconcile    = "retry_and_reconcile"
)

// CodeOrphanDeleted is the reason code of a residual (an instance that a node has to remove) for an
// orphan (an instance without a record) whose deletion a person requested.
const CodeOrphanDeleted = "OrphanDeleted"

// CodeAdopted is the reason code of the assignment of an orphan (an instance without a record) that
// a person adopted: the workload is bound to the node that runs the instance.
const CodeAdopted = "Adopted"

// MaxDrifts is the maximum number of open drifts. Further drifts are not recorded until some are closed.
const MaxDrifts = 10_000

// Drift is one open difference between a node and the state.
type Drift struct {
	Node            string
	Workload        string
	Type            string
	SchedulerStatus string // for a revision_mismatch: the revision in the state
	AgentStatus     string // for a revision_mismatch: the revision on the node
	Action          string
	Repairs         uint32 // number of orders issued to repair the drift
	RepairedAt      int64  // time of the last repair order, Unix nanoseconds
	DetectedAt      int64  // Unix nanoseconds
	Revision        string // revision of an orphan on a legacy v1 agent; "" = unknown
}

func driftKey(node, workload, kind string) string { return node + "/" + workload + "/" + kind }

func (d *Drift) key() string { return driftKey(d.Node, d.Workload, d.Type) }

// Drifts calls fn for the open drifts of a node, or of all nodes if node is "".
func (s State) Drifts(node string, fn func(*Drift) bool) {
	if node == "" {
		s.r.drifts.Scan(func(_ string, d *Drift) bool { return fn(d) })
		return
	}
	eachUnder(s.r.drifts, node+"/", func(_ string, d *Drift) bool { return fn(d) })
}

// Drift returns one open drift.
func (s State) Drift(node, workload, kind string) (*Drift, bool) {
	return s.r.drifts.Get(driftKey(node, workload, kind))
}

// DriftCount is the number of open drifts.
func (s State) DriftCount() int { return s.r.drifts.Len() }

func driftPB(d *Drift) *commandv1.Drift {
	return &commandv1.Drift{
		Node: d.Node, Workload: d.Workload, Type: d.Type, SchedulerStatus: d.SchedulerStatus, AgentStatus: d.AgentStatus,
		Action: d.Action, Repairs: d.Repairs, RepairedAt: d.RepairedAt, DetectedAt: d.DetectedAt,
		Revision: d.Revision,
	}
}

func driftOf(m *commandv1.Drift) *Drift {
	return &Drift{
		Node: m.GetNode(), Workload: m.GetWorkload(), Type: m.GetType(), SchedulerStatus: m.GetSchedulerStatus(),
		AgentStatus: m.GetAgentStatus(), Action: m.GetAction(), Repairs: m.GetRepairs(), RepairedAt: m.GetRepairedAt(),
		DetectedAt: m.GetDetectedAt(), Revision: m.GetRevision(),
	}
}

func driftKind(kind string) bool {
	return kind == DriftOrphan || kind == DriftState || kind == DriftRevision || kind == DriftMissing
}

// MaxAdopted is the maximum length of an adopted revision, in bytes. It is the limit of the revision_id that a
// caller may give, so an agent may report a revision of this length.
const MaxAdopted = 256

// Clip shortens the texts of a drift to the lengths that the state keeps. A revision that is too
// long is left out, because a shortened revision is useless.
func (d *Drift) Clip() {
	d.SchedulerStatus, d.AgentStatus, d.Action = clipTo(d.SchedulerStatus, 128), clipTo(d.AgentStatus, 128), clipTo(d.Action, 64)
	if len(d.Revision) > MaxAdopted {
		d.Revision = ""
	}
}

// MaxDriftID is the maximum length in bytes of the workload name in a drift. It is longer than that
// of workload ids, because an orphan (an instance without a record) may have any name.
const MaxDriftID = 256

// setDrifts records what the planner found when it compared one node with the state: drifts to open,
// drifts to close, and workloads that need a new order.
func (t *Tx) setDrifts(b *commandv1.SetDrifts) (res Result) {
	for _, m := range b.GetOpen() {
		d := driftOf(m)
		d.Clip()
		d.Revision = strings.Clone(d.Revision)
		switch _, known := t.r.nodes.Get(d.Node); {
		case !known:
			res.skip("node " + strconv.Quote(clip(d.Node)) + " does not exist")
		case !driftKind(d.Type):
			res.skip("type: " + strconv.Quote(clip(d.Type)) + " is no kind of drift")
		case d.Workload == "" || len(d.Workload) > MaxDriftID || strings.Contains(d.Workload, "/"):
			res.skip("workload: " + strconv.Quote(clip(d.Workload)) + " is no name of a workload")
		default:
			if !t.openDrift(d) {
				res.skip("more than " + strconv.Itoa(MaxDrifts) + " drifts are open")
			}
		}
	}
	for _, m := range b.GetClosed() {
		if d, ok := t.r.drifts.Get(driftKey(m.GetNode(), m.GetWorkload(), m.GetType())); ok {
			t.closeDrift(d)
		}
	}
	for _, a := range b.GetAdoptions() {
		if why := t.adoptRevision(a); why != "" {
			res.skip(why)
		}
	}
	for _, p := range b.GetRepairs() {
		old, why := t.planned(p.GetWorkload(), p.GetIfGeneration())
		if why == "" && old.Node != p.GetNode() {
			why = "workload " + strconv.Quote(old.ID) + " is not on node " + strconv.Quote(p.GetNode())
		}
		if why == "" && old.Retry.Terminal {
			why = "workload " + strconv.Quote(old.ID) + " was given up, so its node gets no orders until a user acts: persysctl retry " + old.ID
		}
		if why != "" {
			res.skip(why)
			continue
		}
		w := *old
		t.repeatOrder(&w)
		t.putWorkload(old, &w)
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// adoptRevision stores the revision that a node reports for an imported workload. It issues no
// order: the imported record may name another revision than the one that the node runs, and an
// order would restart the workload.
func (t *Tx) adoptRevision(a *commandv1.DriftAdoption) (why string) {
	old, why := t.planned(a.GetWorkload(), a.GetIfGeneration())
	switch {
	case why != "":
		return why
	case old.Node != a.GetNode():
		return "workload " + strconv.Quote(old.ID) + " is not on node " + strconv.Quote(a.GetNode())
	case !old.RunsAdopted():
		return "workload " + strconv.Quote(old.ID) + " runs no imported revision"
	case a.GetRevision() == "" || len(a.GetRevision()) > MaxAdopted:
		return "revision: must have 1 to " + strconv.Itoa(MaxAdopted) + " bytes"
	}
	w := *old
	w.Adopted = strings.Clone(a.GetRevision())
	t.putWorkload(old, &w)
	return ""
}

// openDrift stores a drift. A drift that is already open keeps its start time and makes no
// second event. It returns false if too many drifts are open.
func (t *Tx) openDrift(d *Drift) bool {
	old, ok := t.r.drifts.Get(d.key())
	if ok {
		d.DetectedAt = old.DetectedAt
		if *d == *old {
			return true
		}
	} else {
		if t.r.drifts.Len() >= MaxDrifts {
			return false
		}
		d.DetectedAt = t.r.info.Clock
		t.driftEvent(EventDriftDetected, d)
	}
	t.putDrift(d)
	return true
}

func (t *Tx) putDrift(d *Drift) {
	old, _ := own(t, &t.r.drifts, ownDrifts).Set(d.key(), d)
	t.driftChanged(d.key(), old, d)
}

func (t *Tx) closeDrift(d *Drift) {
	own(t, &t.r.drifts, ownDrifts).Delete(d.key())
	t.driftChanged(d.key(), d, nil)
	t.driftEvent(EventDriftResolved, d)
}

// driftChanged adds a created, changed or closed drift to the digest and to the list of changes of the
// transaction.
func (t *Tx) driftChanged(key string, old, d *Drift) {
	var e encoder
	e.str("drift/" + key)
	if d != nil {
		e.str(d.SchedulerStatus)
		e.str(d.AgentStatus)
		e.str(d.Action)
		e.u64(uint64(d.Repairs))
		e.i64(d.RepairedAt)
		e.i64(d.DetectedAt)
		if d.Revision != "" {
			e.str(d.Revision)
		}
	}
	t.sideFold = append(t.sideFold, e...)
	t.changes = append(t.changes, Change{Table: TableDrift, Key: key, Old: old, New: d})
}

func (t *Tx) driftEvent(kind string, d *Drift) {
	resolved, message := "false", d.sentence()
	if kind == EventDriftResolved {
		resolved, message = "true", d.ended(t.r.info.Clock)
	}
	t.event(Event{
		Type: kind, Workload: d.Workload, Node: d.Node, Reason: d.Type, Message: message,
		Details: details(
			Label{"action", d.Action}, Label{"agent_status", d.AgentStatus}, Label{"detected_at", strconv.FormatInt(d.DetectedAt, 10)},
			Label{"resolved", resolved}, Label{"scheduler_status", d.SchedulerStatus},
		),
	})
}

// sentence describes an open drift in one sentence for users. For an orphan (an instance without a
// record) it names the command by which a person adopts or deletes it.
func (d *Drift) sentence() string {
	switch d.Type {
	case DriftOrphan:
		return "node " + d.Node + " has an instance of this workload that was not placed there; the cluster leaves it alone until a user decides: persysctl drift adopt|delete " + d.Node + " " + d.Workload
	case DriftMissing:
		return "node " + d.Node + " does not have the workload that was placed there"
	case DriftRevision:
		return "node " + d.Node + " runs revision " + d.AgentStatus + ", but the cluster expects " + d.SchedulerStatus
	}
	return "node " + d.Node + " reports " + d.AgentStatus + ", but the cluster expects " + d.SchedulerStatus
}

// ended describes a closed drift for users: how it was closed, and how long it was open at time
// clock.
func (d *Drift) ended(clock int64) string {
	out := "node " + d.Node + " and the cluster have the same state of the workload again"
	switch d.Type {
	case DriftOrphan:
		out = "node " + d.Node + " no longer has an orphan of this name"
	case DriftMissing:
		out = "node " + d.Node + " has the workload again, or is no longer expected to have it"
	case DriftRevision:
		out = "node " + d.Node + " runs the expected revision again, or is no longer expected to have the workload"
	}
	if s := (clock - d.DetectedAt) / 1e9; d.DetectedAt > 0 && s > 0 {
		out += ", after " + strconv.FormatInt(s, 10) + " s"
	}
	return out
}

// closeDrifts closes all drifts of a node that is removed.
func (t *Tx) closeDrifts(node string) {
	var all []*Drift
	t.state().Drifts(node, func(d *Drift) bool { all = append(all, d); return true })
	for _, d := range all {
		t.closeDrift(d)
	}
}

// orphan returns the open drift of the orphan (an instance without a record) that a command names, and
// the node that runs it.
func (t *Tx) orphan(node, workload string) (*Drift, *Node, Result) {
	n, ok := t.r.nodes.Get(node)
	if !ok {
		return nil, nil, noNode(node)
	}
	d, ok := t.r.drifts.Get(driftKey(node, workload, DriftOrphan))
	switch {
	case !ok:
		return nil, nil, refuse(NotFound, "node %q has no orphan %q: `persysctl drift list` shows the orphans", node, clip(workload))
	case !n.Up:
		return nil, nil, refuse(NotReady, "node %q is %s: wait until it is back", n.ID, n.Status())
	case !bounds.ValidID(workload):
		return nil, nil, refuse(Invalid, "workload: %q does not match %s: remove it on the node by hand", clip(workload), bounds.IDRule)
	}
	return d, n, Result{}
}

// adoptDrift creates a workload for an orphan (an instance without a record) and assigns it to the
// node that runs the instance.
func (t *Tx) adoptDrift(b *commandv1.AdoptDrift) Result {
	d, n, res := t.orphan(b.GetNode(), b.GetWorkload())
	if d == nil {
		return res
	}
	old, known := t.r.workloads.Get(d.Workload)
	put := b.GetPut()
	switch {
	case put == nil && !known:
		return refuse(Invalid, "put: workload %q is not known here: give its specification, persysctl drift adopt %s %s -f FILE", d.Workload, n.ID, d.Workload)
	case put != nil && put.GetId() != d.Workload:
		return refuse(Invalid, "put.id: %q is not the orphan %q", clip(put.GetId()), d.Workload)
	case known && old.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted: persysctl drift delete %s %s", old.ID, n.ID, old.ID)
	case put != nil:
		if b.GetBundle() != nil {
			t.offered = []*commandv1.Bundle{b.GetBundle()}
		}
		one := &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{put}, Bundles: t.offered}
		if fault := t.putsFault(one.Workloads, ""); fault != "" {
			return refuse(Invalid, "%s", fault)
		}
		olds := t.replaced(one.Workloads)
		if res, ok := t.admits(one, olds, nil); !ok {
			return res
		}
		if fault := templatesFault(one.Workloads, olds, ""); fault != "" {
			return refuse(Conflict, "%s", fault)
		}
		if res, ok := t.judged(one.Workloads, olds); !ok {
			return res
		}
	default:
		if res, ok := t.may(old.ID, old.In()); !ok {
			return res
		}
	}
	// Before any record is changed, check that the workload could be assigned to this node if it
	// had no node.
	want := Workload{ID: d.Workload, Demand: &Demand{}, Desired: DesiredRunning}
	if known {
		want.Demand, want.Desired, want.Namespace = old.Demand, old.Desired, old.Namespace
	}
	if put != nil {
		want.Demand, want.Desired, want.Namespace = demandOf(put.GetDemand()), Desired(put.GetDesired()), namespaceOf(put, old)
	}
	switch {
	case want.Desired != DesiredRunning:
		return refuse(Conflict, "workload %q has the desired state %s: persysctl start %s first", want.ID, want.Desired, want.ID)
	case known && old.Node == n.ID:
		return refuse(Conflict, "workload %q is on node %q already", old.ID, n.ID)
	case known && t.keepsData(old) != "":
		return refuse(Conflict, "%s", t.keepsData(old))
	case known && old.Node != "" && want.Demand.Exclusive:
		return refuse(Conflict, "exclusive workload %q is on node %q: stop or delete it there first", old.ID, old.Node)
	}
	if why := t.unfit(&want, n, n.ID); why != "" {
		return refuse(NoCapacity, "%s", why)
	}
	if put != nil {
		t.putOne(put, old, t.approval(put, old))
		old, _ = t.r.workloads.Get(d.Workload)
	}
	w := *old
	t.takeOver(&w, n, CodeAdopted)
	t.putWorkload(old, &w)
	if put != nil && d.Revision != "" && !strings.HasPrefix(d.Revision, ownRevision) {
		// A legacy v1 agent recreates the instance if an order has another revision. The caller guarantees that the
		// instance matches the given specification, so the record keeps the revision that the agent knows.
		named := w
		named.Adopted = d.Revision
		t.putWorkload(&w, &named)
	}
	t.event(Event{Type: EventWorkloadScheduled, Workload: w.ID, Node: n.ID, Reason: CodeAdopted, Message: "adopted on the node where it was found"})
	t.closeDrift(d)
	return Result{Items: []Item{itemOf(&w)}}
}

// dropOrphan adds a residual (a record of an instance that a node must remove) for an orphan, so that the leader orders
// the node to delete it.
func (t *Tx) dropOrphan(b *commandv1.DropOrphan) Result {
	d, n, res := t.orphan(b.GetNode(), b.GetWorkload())
	if d == nil {
		return res
	}
	w, ok := t.r.workloads.Get(d.Workload)
	switch {
	case ok:
		if res, may := t.may(w.ID, w.In()); !may {
			return res
		}
	case len(t.confined) > 0:
		return refuse(Denied, "orphan %q is in no namespace, and %s acts only in %s", clip(d.Workload), t.by, strings.Join(t.confined, ", "))
	}
	if ok && w.Node == n.ID {
		return refuse(Conflict, "workload %q belongs on node %q now: persysctl delete %s", w.ID, n.ID, w.ID)
	}
	if _, ok := t.r.residuals.Get(pair(n.ID, d.Workload)); ok {
		return Result{Kind: AlreadyDone, Reason: "the order to delete the orphan on node " + n.ID + " was given already"}
	}
	t.putResidual(&Residual{
		Node: n.ID, Workload: d.Workload, Generation: t.generation(), Engine: n.Engine(),
		Since: t.r.info.Clock, Reason: CodeOrphanDeleted,
	})
	next := *d
	next.Action = ActionDeleteOrphan
	t.putDrift(&next)
	t.event(Event{Type: EventWorkloadDeleting, Workload: d.Workload, Node: n.ID, Reason: CodeOrphanDeleted, Message: "an orphan, deleted by request"})
	return Result{}
}

func (c *checker) drifts() {
	c.must(c.s.DriftCount() <= MaxDrifts, "there are %d open drifts, at most %d are allowed", c.s.DriftCount(), MaxDrifts)
	c.s.r.drifts.Scan(func(key string, d *Drift) bool {
		_, ok := c.s.Node(d.Node)
		c.must(ok && d.key() == key && driftKind(d.Type), "drift %q of node %q is stored under %q", clip(d.Type), clip(d.Node), clip(key))
		c.must(d.DetectedAt > 0, "drift %q has no time at which it was detected", clip(key))
		return true
	})
}
