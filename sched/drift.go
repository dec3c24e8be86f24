package sched

import (
	"cmp"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Difference is one difference between a node and the state.
type Difference struct {
	Workload  string
	Type      string // kind of difference: one of the constants fsm.Drift…
	Scheduler string // status or revision in the state; "" = the state does not know the workload
	Agent     string // status or revision on the node
	Revision  string // revision of an orphan on a legacy v1 agent
}

func (d *Difference) same(o *Difference) bool { return d.Workload == o.Workload && d.Type == o.Type }

// Compare returns the differences between the workloads that a node lists and the state, by workload. The
// following cases are not differences, because they end by themselves:
//
//   - a workload with an order that the node has not answered yet (busy), or with a scheduled retry;
//   - a previous instance that the node is already ordered to delete (residual);
//   - a workload that is newer on the node than in a restored state;
//   - a workload that its agent is still working on.
//
// A list that is older than the view may show differences that do not exist, so the caller confirms them by
// a second comparison.
func Compare(v fsm.View, n *fsm.Node, listed []Reported, busy func(workload string) bool) []Difference {
	var out []Difference
	seen := make(map[string]bool, len(listed))
	for i := range listed {
		r := &listed[i]
		if r.Gone || r.Workload == "" || seen[r.Workload] {
			continue
		}
		w, known := v.Workload(r.Workload)
		if known && w.Node == n.ID {
			// If the node lists an instance of an earlier generation, the present one is missing: the node has
			// lost the order that it accepted.
			if g := r.Observation.Generation; g.IsZero() || !g.Less(w.Generation) {
				seen[r.Workload] = true
				out = append(out, present(v, w, r, busy)...)
			}
			continue
		}
		if d, ok := orphan(v, n, w, known, r, busy); ok {
			seen[r.Workload] = true
			out = append(out, d)
		}
	}
	v.WorkloadsOn(n.ID, func(w *fsm.Workload) bool {
		_, open := v.Drift(n.ID, w.ID, fsm.DriftMissing)
		if !seen[w.ID] && w.Desired == fsm.DesiredRunning && (open || expected(w) && !busy(w.ID)) {
			out = append(out, Difference{Workload: w.ID, Type: fsm.DriftMissing, Scheduler: string(w.Status)})
		}
		return true
	})
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Type, b.Type))
	})
	return out
}

// expected reports whether workload w should be on its node by now: the node has accepted the
// order, no retry is scheduled, and the planner has not given w up.
func expected(w *fsm.Workload) bool {
	return w.Acknowledged && w.Retry.NextAt == 0 && !w.Retry.Terminal
}

// present compares what the assigned node lists about a workload with the state. A recorded drift
// stays open until the difference has ended, also while an order to repair it is being delivered.
func present(v fsm.View, w *fsm.Workload, r *Reported, busy func(string) bool) (out []Difference) {
	other := r.Revision != "" && r.Revision != w.Revision()
	if d, ok := runsOn(v, w, r); ok {
		return append(out, d)
	}
	if !w.Acknowledged || w.Actual.Generation != w.Generation || busy(w.ID) {
		if _, open := v.Drift(w.Node, w.ID, fsm.DriftRevision); open && other {
			out = append(out, Difference{Workload: w.ID, Type: fsm.DriftRevision, Scheduler: w.Revision(), Agent: r.Revision})
		}
		return out
	}
	said := r.Observation.State
	if said == fsm.ActualPending || said == fsm.ActualUnknown || said == fsm.ActualNone {
		return nil // no difference yet: the agent still works on the order or reports an unknown state, until the deadline of the order
	}
	if other {
		out = append(out, Difference{Workload: w.ID, Type: fsm.DriftRevision, Scheduler: w.Revision(), Agent: r.Revision})
	}
	if !strings.EqualFold(string(said), string(w.Actual.State)) {
		out = append(out, Difference{Workload: w.ID, Type: fsm.DriftState, Scheduler: string(w.Actual.State), Agent: string(said)})
	}
	return out
}

// runsOn compares a workload that is to be stopped. It compares with the desired state, not with the last
// reported state: a workload that still runs after a failed stop differs until it is stopped.
func runsOn(v fsm.View, w *fsm.Workload, r *Reported) (Difference, bool) {
	if w.Desired != fsm.DesiredStopped || r.Observation.State != fsm.ActualRunning {
		return Difference{}, false
	}
	if _, open := v.Drift(w.Node, w.ID, fsm.DriftState); !open && w.Retry.Attempts == 0 {
		return Difference{}, false
	}
	return Difference{Workload: w.ID, Type: fsm.DriftState, Scheduler: string(fsm.DesiredStopped), Agent: string(r.Observation.State)}, true
}

// orphan decides whether a workload r that a node lists, although it is not assigned to that node,
// is an orphan: an instance without a record.
func orphan(v fsm.View, n *fsm.Node, w *fsm.Workload, known bool, r *Reported, busy func(string) bool) (Difference, bool) {
	d := Difference{Workload: r.Workload, Type: fsm.DriftOrphan, Agent: string(r.Observation.State)}
	if r.Nothing {
		return d, false
	}
	if n.Facts.Protocol == 0 {
		d.Revision = r.Revision
	}
	if known {
		d.Scheduler = string(w.Status)
		if w.Node != "" {
			d.Scheduler += " on " + w.Node
		}
	}
	if _, left := v.Residual(n.ID, r.Workload); left {
		// The node is already removing the workload. If it is a recorded orphan (an instance without a
		// record) that a person deleted, the drift record stays open until the instance is gone.
		_, open := v.Drift(n.ID, r.Workload, fsm.DriftOrphan)
		return d, open
	}
	g := r.Observation.Generation
	if busy(r.Workload) || known && (w.NewerThanState(g, v.Info()) || w.LeftOn(n, g, r.Observation.State)) {
		return d, false
	}
	if tombstone, ok := v.Tombstone(r.Workload); ok && tombstone.StillRunsOn(n, g, r.Observation.State) {
		return d, false
	}
	return d, true
}

// Confirmed returns those differences of a second comparison that the first comparison found too, or that the
// state has on record.
func Confirmed(v fsm.View, node string, first, second []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(second), func(d Difference) bool {
		if _, open := v.Drift(node, d.Workload, d.Type); open {
			return false
		}
		return !slices.ContainsFunc(first, func(o Difference) bool { return o.same(&d) })
	})
}

// Unknown reports whether a comparison found a difference that the state does not have on record. A
// second comparison must then confirm the difference.
func Unknown(v fsm.View, node string, found []Difference) bool {
	return slices.ContainsFunc(found, func(d Difference) bool {
		_, open := v.Drift(node, d.Workload, d.Type)
		return !open
	})
}

// Pauses between the orders that repair one drift of type revision_mismatch. The first order is given at
// once; the pauses then double.
const (
	repairBase = 30 * second
	repairMax  = 900 * second
)

// driftsPerCommand is the maximum number of differences that one round records for a node, so that the
// command fits into a log batch. The next round records the others.
const driftsPerCommand = 500

// Drifts returns the body of the command that records the differences found on a node; nil if the state has
// all of them on record. A workload with another revision is ordered again, with a growing pause between
// repairs; an imported workload takes over the revision that the node runs instead. For missing workloads and
// other states the caller sends a report. An orphan needs the decision of a person.
func Drifts(v fsm.View, node string, found []Difference, now int64) *commandv1.SetDrifts {
	out := &commandv1.SetDrifts{}
	for i := range found {
		if len(out.Open)+len(out.Adoptions) >= driftsPerCommand {
			break
		}
		d := &found[i]
		item := &commandv1.Drift{
			Node: node, Workload: d.Workload, Type: d.Type, SchedulerStatus: d.Scheduler, AgentStatus: d.Agent, Action: actionOn(d.Type), Revision: d.Revision,
		}
		old, open := v.Drift(node, d.Workload, d.Type)
		if open {
			item.Repairs, item.RepairedAt = old.Repairs, old.RepairedAt
			if d.Type == fsm.DriftOrphan {
				item.Action = old.Action
			}
		}
		repair := false
		w, ok := v.Workload(d.Workload)
		if ok && d.Type == fsm.DriftRevision && w.RunsAdopted() && len(d.Agent) <= fsm.MaxAdopted {
			// An instance that a legacy v1 scheduler ordered is taken to run the present specification:
			// the record adopts the revision that the agent reports.
			out.Adoptions = append(out.Adoptions, &commandv1.DriftAdoption{
				Workload: w.ID, Node: node, IfGeneration: fsm.GenerationPB(w.Generation), Revision: d.Agent,
			})
			continue
		}
		if ok && d.Type == fsm.DriftRevision && expected(w) && now >= repairAt(old) {
			repair = true
			item.Repairs++
			item.RepairedAt = now
			out.Repairs = append(out.Repairs, &commandv1.DriftRepair{Workload: w.ID, Node: node, IfGeneration: fsm.GenerationPB(w.Generation)})
		}
		kept := fsm.Drift{SchedulerStatus: d.Scheduler, AgentStatus: d.Agent, Revision: d.Revision}
		kept.Clip() // clip long texts as the state does; otherwise they would differ in every round
		if !open || repair || old.SchedulerStatus != kept.SchedulerStatus || old.AgentStatus != kept.AgentStatus || old.Revision != kept.Revision {
			out.Open = append(out.Open, item)
		}
	}
	v.Drifts(node, func(d *fsm.Drift) bool {
		if !slices.ContainsFunc(found, func(o Difference) bool { return o.Workload == d.Workload && o.Type == d.Type }) {
			out.Closed = append(out.Closed, &commandv1.Drift{Node: node, Workload: d.Workload, Type: d.Type})
		}
		return len(out.Closed) < driftsPerCommand
	})
	if len(out.Open)+len(out.Closed)+len(out.Repairs)+len(out.Adoptions) == 0 {
		return nil
	}
	return out
}

// repairAt returns the earliest time for the next repair of a drift; 0 if the drift was never repaired. d may
// be nil.
func repairAt(d *fsm.Drift) int64 {
	if d == nil || d.Repairs == 0 {
		return 0
	}
	return d.RepairedAt + min(repairMax, repairBase<<min(d.Repairs-1, 10))
}

func actionOn(kind string) string {
	switch kind {
	case fsm.DriftMissing:
		return fsm.ActionReconcile
	case fsm.DriftRevision:
		return fsm.ActionReapply
	case fsm.DriftState:
		return fsm.ActionAlign
	}
	return fsm.ActionInvestigate
}
