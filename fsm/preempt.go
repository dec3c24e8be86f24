package fsm

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// A workload that fits on no node may preempt workloads of lower priority in its own namespace. Against
// workloads of other namespaces its priority is at most Namespace.MaxPriority, which an admin sets. See
// ADR 37.

// Rank is the priority of a workload for preemption. It decides which workloads the workload may preempt.
type Rank struct {
	namespace string
	priority  int32 // priority against workloads of its own namespace
	outside   int32 // priority against workloads of other namespaces; 0 = it may preempt none of them
}

// RankOf returns the rank of a workload for preemption.
func (s State) RankOf(w *Workload) Rank {
	r := Rank{namespace: w.In(), priority: w.Demand.Priority}
	if n, ok := s.Namespace(r.namespace); ok {
		r.outside = max(0, min(r.priority, n.MaxPriority))
	}
	return r
}

// Above reports whether the priorities allow a workload of this rank to preempt v. The other
// conditions are in Preemptible.
func (r Rank) Above(v *Workload) bool {
	if v.In() == r.namespace {
		return v.Demand.Priority < r.priority
	}
	return r.outside > 0 && v.Demand.Priority < r.outside
}

// Everywhere returns a copy of rank r without the maximum priority of its namespace, so that the workload preempts
// with its own priority in every namespace.
func (r Rank) Everywhere() Rank {
	r.outside = max(0, r.priority)
	return r
}

// Preemptible reports whether w may be evicted from node n, which may be nil, for a workload of higher
// rank.
func (w *Workload) Preemptible(n *Node) bool {
	return !w.Demand.Exclusive && !w.EndedForGood() && (n == nil || len(w.DataOn(n)) == 0)
}

// preempts returns the workload that takes the place of v on its node; nil if eviction e is not a preemption. If the
// preemption is not allowed, why has the reason.
func (t *Tx) preempts(e *commandv1.Eviction, v *Workload) (by *Workload, why string) {
	if e.GetCode() != CodePreempted {
		return nil, ""
	}
	by, ok := t.r.workloads.Get(e.GetPreemptedBy())
	n := t.nodeOf(v)
	switch {
	case !ok:
		return nil, "workload " + quoted(e.GetPreemptedBy()) + ", which would take the place of " + quoted(v.ID) + ", does not exist"
	case by.Desired != DesiredRunning || by.ID == v.ID:
		return nil, "workload " + quoted(by.ID) + " needs no place: it should not run, or is workload " + quoted(v.ID) + " itself"
	case v.Demand.Exclusive:
		return nil, "workload " + quoted(v.ID) + " is exclusive and keeps its place"
	case !v.Preemptible(n):
		return nil, "workload " + quoted(v.ID) + " keeps its place: " + v.onlyCopy(n)
	case !t.state().RankOf(by).Above(v):
		return nil, "workload " + quoted(by.ID) + " with priority " + decimal(int(by.Demand.Priority)) + " in namespace " + by.In() +
			" may not take the place of " + quoted(v.ID) + " with priority " + decimal(int(v.Demand.Priority)) + " in namespace " + v.In()
	}
	return by, ""
}

func preemptionKey(w *Workload) string { return timeKey(w.PreemptedAt, w.ID) }

// Preempted scans the workloads whose last preemption was after the given time, the earliest first.
func (s State) Preempted(after int64, fn func(*Workload) bool) {
	s.r.byPreemption.Ascend(timeKey(max(after, 0)+1, ""), func(k string, _ struct{}) bool {
		w, ok := s.r.workloads.Get(k[8:])
		return !ok || fn(w)
	})
}

// preempted writes the event that v was evicted so that workload by gets its place.
func (t *Tx) preempted(v, by *Workload) {
	t.eventOf(by, Event{
		Type: EventPreemption, Node: v.Node, Reason: CodePreempted,
		Message: "takes the place of " + v.ID + " in namespace " + v.In() + ", whose priority " + decimal(int(v.Demand.Priority)) +
			" is below " + decimal(int(by.Demand.Priority)),
		Details: []Label{{"preempted", v.ID}, {"preempted_namespace", v.In()}},
	})
}

// PriorityFault returns why a caller may not store a workload with this priority in its namespace;
// "" if the caller may. The maximum priority of a namespace applies only to callers who may act
// only in certain namespaces.
func PriorityFault(v interface {
	namespaced
	Namespace(name string) (*Namespace, bool)
}, p *commandv1.WorkloadPut, confined bool) string {
	return priorityFault(v, p, NamespaceOf(v, p), confined)
}

func priorityFault(v interface {
	Namespace(name string) (*Namespace, bool)
}, p *commandv1.WorkloadPut, in string, confined bool) string {
	if !confined || p.GetDemand().GetPriority() <= 0 {
		return ""
	}
	n, ok := v.Namespace(in)
	if !ok || p.GetDemand().GetPriority() <= n.MaxPriority {
		return ""
	}
	asked := decimal(int(p.GetDemand().GetPriority()))
	return "priority: " + asked + " is above the maximum of namespace " + quoted(n.Name) + ", which is " + decimal(int(n.MaxPriority)) +
		": use a lower one, or ask an admin: persysctl namespace set " + n.Name + " --max-priority " + asked
}

// maxPriorityFault returns an error text if the maximum priority of n is invalid; "" if it is
// valid.
func (n *Namespace) maxPriorityFault() string {
	if n.MaxPriority < 0 || n.MaxPriority > bounds.MaxPriority {
		return "max_priority: " + decimal(int(n.MaxPriority)) + " is not in 0.." + decimal(bounds.MaxPriority)
	}
	return ""
}
