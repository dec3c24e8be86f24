package sched

import (
	"cmp"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Difference is one thing in which a node is not as the state has it.
type Difference struct {
	Workload  string
	Type      string // one of fsm.Drift…
	Scheduler string // status, or revision, as the state has it; "" = it knows nothing of it
	Agent     string // as the node has it
}

func (d *Difference) same(o *Difference) bool { return d.Workload == o.Workload && d.Type == o.Type }

// Compare says where what a node listed differs from what the state expects of
// it, by workload. What is on its way is no difference: an order that is not
// answered (busy), a backoff, a residual that its node is being told to remove, a
// state that went back and is about to catch up. Nor is what the agent is at work
// on. A look that is older than the view may see differences that there are not:
// one is true that a second look confirms.
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
			// What is there at a former generation only lacks the accepted order all the same.
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

// expected reports whether w must be on its node by now: accepted, and neither
// waiting for another try nor given up.
func expected(w *fsm.Workload) bool {
	return w.Acknowledged && w.Retry.NextAt == 0 && !w.Retry.Terminal
}

// present judges what is where it belongs. A drift that is on record stays there
// until it is gone, also while an order that repairs it is on its way.
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
		return nil // at work, or not sure: the deadline of the order sees to it
	}
	if other {
		out = append(out, Difference{Workload: w.ID, Type: fsm.DriftRevision, Scheduler: w.Revision(), Agent: r.Revision})
	}
	if !strings.EqualFold(string(said), string(w.Actual.State)) {
		out = append(out, Difference{Workload: w.ID, Type: fsm.DriftState, Scheduler: string(w.Actual.State), Agent: string(said)})
	}
	return out
}

// runsOn judges what is to be stopped against that, not against what its node said
// last: it is a difference once an order to stop it has failed, and until it is
// stopped.
func runsOn(v fsm.View, w *fsm.Workload, r *Reported) (Difference, bool) {
	if w.Desired != fsm.DesiredStopped || r.Observation.State != fsm.ActualRunning {
		return Difference{}, false
	}
	if _, open := v.Drift(w.Node, w.ID, fsm.DriftState); !open && w.Retry.Attempts == 0 {
		return Difference{}, false
	}
	return Difference{Workload: w.ID, Type: fsm.DriftState, Scheduler: string(fsm.DesiredStopped), Agent: string(r.Observation.State)}, true
}

// orphan judges what is where it does not belong.
func orphan(v fsm.View, n *fsm.Node, w *fsm.Workload, known bool, r *Reported, busy func(string) bool) (Difference, bool) {
	d := Difference{Workload: r.Workload, Type: fsm.DriftOrphan, Agent: string(r.Observation.State)}
	if known {
		d.Scheduler = string(w.Status)
		if w.Node != "" {
			d.Scheduler += " on " + w.Node
		}
	}
	if _, left := v.Residual(n.ID, r.Workload); left {
		// It is being removed; an orphan that a person deletes is one until it is gone.
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

// Confirmed keeps of a second look what the first one saw as well, or what is
// known already.
func Confirmed(v fsm.View, node string, first, second []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(second), func(d Difference) bool {
		if _, open := v.Drift(node, d.Workload, d.Type); open {
			return false
		}
		return !slices.ContainsFunc(first, func(o Difference) bool { return o.same(&d) })
	})
}

// Unknown reports whether a look found anything that is not on record, so that a
// second look is needed.
func Unknown(v fsm.View, node string, found []Difference) bool {
	return slices.ContainsFunc(found, func(d Difference) bool {
		_, open := v.Drift(node, d.Workload, d.Type)
		return !open
	})
}

// Times between orders that repair one revision_mismatch: the first at once, then
// doubling.
const (
	repairBase = 30 * second
	repairMax  = 900 * second
)

// driftsPerCommand bounds what one round notes of a node, so that the command fits
// into the log; the next round notes the rest.
const driftsPerCommand = 500

// Drifts turns what was found on a node into what the state has to note, nil if
// it has all that. A workload whose node has another revision is ordered anew, as
// often as repairs allow; what is missing or in another state follows from the
// report that the caller makes of it; an orphan is left to people.
func Drifts(v fsm.View, node string, found []Difference, now int64) *commandv1.SetDrifts {
	out := &commandv1.SetDrifts{}
	for i := range found {
		if len(out.Open) == driftsPerCommand {
			break
		}
		d := &found[i]
		item := &commandv1.Drift{
			Node: node, Workload: d.Workload, Type: d.Type, SchedulerStatus: d.Scheduler, AgentStatus: d.Agent, Action: actionOn(d.Type),
		}
		old, open := v.Drift(node, d.Workload, d.Type)
		if open {
			item.Repairs, item.RepairedAt = old.Repairs, old.RepairedAt
			if d.Type == fsm.DriftOrphan {
				item.Action = old.Action
			}
		}
		repair := false
		if w, ok := v.Workload(d.Workload); ok && d.Type == fsm.DriftRevision && expected(w) && now >= repairAt(old) {
			repair = true
			item.Repairs++
			item.RepairedAt = now
			out.Repairs = append(out.Repairs, &commandv1.DriftRepair{Workload: w.ID, Node: node, IfGeneration: generationPB(w.Generation)})
		}
		if !open || repair || old.SchedulerStatus != d.Scheduler || old.AgentStatus != d.Agent {
			out.Open = append(out.Open, item)
		}
	}
	v.Drifts(node, func(d *fsm.Drift) bool {
		if !slices.ContainsFunc(found, func(o Difference) bool { return o.Workload == d.Workload && o.Type == d.Type }) {
			out.Closed = append(out.Closed, &commandv1.Drift{Node: node, Workload: d.Workload, Type: d.Type})
		}
		return len(out.Closed) < driftsPerCommand
	})
	if len(out.Open)+len(out.Closed)+len(out.Repairs) == 0 {
		return nil
	}
	return out
}

// repairAt is when a drift may be repaired again; nil was never repaired.
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
