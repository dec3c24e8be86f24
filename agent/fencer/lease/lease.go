package lease

import (
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Workload names one workload that is guarded.
type Workload struct {
	Kind workload.Kind `json:"kind"`
	ID   workload.ID   `json:"id"`
}

func (w Workload) compare(o Workload) int {
	return strings.Compare(string(w.Kind)+"/"+string(w.ID), string(o.Kind)+"/"+string(o.ID))
}

// Sorted returns the list sorted and without duplicates. It changes list.
func Sorted(list []Workload) []Workload {
	slices.SortFunc(list, Workload.compare)
	return slices.Compact(list)
}

// Process names one process for ever: the kernel gives a process id to another process later, but
// not together with the same start.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the machine started
}

// Lease is what both fencers of a node know. It is the content of their file.
type Lease struct {
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"` // cluster id on the labels of instances
	Agent   Process `json:"agent"`
	// Instance is the id of the agent's state file. An agent with another file does not know what is
	// guarded.
	Instance string `json:"instance,omitempty"`
	// Deadline is the end of the lease. Lapses counts the leases that ended while something was
	// guarded, Confirmed how many of them the agent has confirmed.
	Deadline  time.Duration `json:"deadline"`
	Lapses    uint64        `json:"lapses"`
	Confirmed uint64        `json:"confirmed"`
	// Lapsed: the deadline has passed, and no new lease has begun.
	Lapsed bool `json:"lapsed"`
	// Guarded workloads are stopped at the deadline. ToStop are those whose deadline has passed.
	Guarded []Workload `json:"guarded,omitempty"`
	ToStop  []Workload `json:"condemned,omitempty"`
}

// Idle reports whether nothing has to be stopped, now or later.
func (l Lease) Idle() bool { return len(l.Guarded) == 0 && len(l.ToStop) == 0 }

// confirmed reports whether the agent knows of every lapse.
func (l Lease) confirmed() bool { return l.Confirmed == l.Lapses }

// lapse ends the lease if its deadline has passed. It reports whether it did.
func (l *Lease) lapse(now time.Duration) bool {
	if l.Lapsed || len(l.Guarded) == 0 || now < l.Deadline {
		return false
	}
	l.end()
	return true
}

func (l *Lease) end() {
	l.Lapsed = true
	l.Lapses++
	l.ToStop = Sorted(append(slices.Clone(l.ToStop), l.Guarded...))
	l.Guarded = nil
}

// renew applies a renewal. While a lapse is not confirmed, it changes neither the deadline nor what
// is guarded.
func (l *Lease) renew(in Renewal, now time.Duration) {
	l.lapse(now)
	l.Agent = in.Agent
	// An agent that lost its state file would drop workloads from the list that it does not know of.
	// The schedulers place those elsewhere after the end of the former lease, so it ends here.
	if l.Instance != "" && l.Instance != in.Instance && !l.Lapsed && len(l.Guarded) > 0 {
		l.end()
	}
	l.Instance = in.Instance
	if in.Ask {
		return
	}
	l.Cluster = in.Cluster
	l.Confirmed = max(l.Confirmed, min(in.Lapses, l.Lapses))
	if !l.confirmed() {
		return
	}
	l.Guarded = Sorted(slices.Clone(in.Guarded))
	l.ToStop = slices.DeleteFunc(slices.Clone(l.ToStop), func(w Workload) bool { return slices.Contains(l.Guarded, w) })
	l.Deadline, l.Lapsed = max(l.Deadline, in.Deadline), false
	l.lapse(now) // the new deadline may have passed already
}

// Renewal is what an agent tells its fencer.
type Renewal struct {
	Agent   Process `json:"agent"`
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"`
	// Instance is the id of the agent's state file.
	Instance string `json:"instance"`
	// Deadline is the end of the lease, counted from when the agent sent the request for it.
	Deadline time.Duration `json:"deadline"`
	// Lapses that the agent knows of. By naming one the agent promises that it is not starting
	// anything that was guarded then.
	Lapses uint64 `json:"lapses"`
	// Guarded are all workloads that the agent may run under this lease.
	Guarded []Workload `json:"guarded,omitempty"`
	// Ask changes nothing: an agent that has just started has no lease of its own yet.
	Ask bool `json:"ask,omitempty"`
	// Retire asks the fencers to end, because another version replaces them.
	Retire bool `json:"retire,omitempty"`
}

// Status is a fencer's answer.
type Status struct {
	Version  string        `json:"version"`
	Guard    Process       `json:"guard"` // the fencer that answers
	Deadline time.Duration `json:"deadline"`
	Lapses   uint64        `json:"lapses"`
	Lapsed   bool          `json:"lapsed"`
	Grace    time.Duration `json:"grace"` // what a workload gets to end by itself
	// Second: there are two fencers.
	Second bool `json:"second"`
	// Stops are the kinds that the fencer can stop; nil from a fencer that does not say.
	Stops   []workload.Kind `json:"stops"`
	Guarded []Workload      `json:"guarded,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// Lacks returns those of kinds that the fencer cannot stop.
func (s Status) Lacks(kinds []workload.Kind) []workload.Kind {
	if s.Stops == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k workload.Kind) bool { return slices.Contains(s.Stops, k) })
}
