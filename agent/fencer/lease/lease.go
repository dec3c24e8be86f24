package lease

import (
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Workload identifies a leased workload: one that the fencer stops when the lease ends.
type Workload struct {
	Kind workload.Kind `json:"kind"`
	ID   workload.ID   `json:"id"`
}

func (w Workload) compare(o Workload) int {
	return strings.Compare(string(w.Kind)+"/"+string(w.ID), string(o.Kind)+"/"+string(o.ID))
}

// Sorted returns the list sorted and without duplicates. It changes list itself.
func Sorted(list []Workload) []Workload {
	slices.SortFunc(list, Workload.compare)
	return slices.Compact(list)
}

// Process identifies one process uniquely: the kernel reuses process ids, but never with the same
// start time.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // start of the process, in clock ticks since the machine started
}

// Lease is the state that both fencers of a node share. It is the content of their lease file.
type Lease struct {
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"` // cluster id on the labels of instances
	Agent   Process `json:"agent"`
	// Instance is the id of the agent's state file. An agent with another state file does not know which
	// workloads have to be stopped when the lease ends.
	Instance string `json:"instance,omitempty"`
	// Deadline is the end of the lease. Lapses counts the lapses: leases that ended while there were leased
	// workloads. Confirmed is how many lapses the agent has confirmed, which means that it no longer starts
	// workloads that were leased before them.
	Deadline  time.Duration `json:"deadline"`
	Lapses    uint64        `json:"lapses"`
	Confirmed uint64        `json:"confirmed"`
	// Lapsed: the deadline has passed, and no new lease has begun.
	Lapsed bool `json:"lapsed"`
	// Leased are the workloads that must be stopped when the deadline passes. ToStop are the workloads that
	// must be stopped now, because their lease has ended.
	Leased []Workload `json:"leased,omitempty"`
	ToStop []Workload `json:"condemned,omitempty"`
}

// Idle reports whether no workload has to be stopped, now or at the end of the lease.
func (l Lease) Idle() bool { return len(l.Leased) == 0 && len(l.ToStop) == 0 }

// confirmed reports whether the agent has confirmed every lapse (end of a lease with leased workloads).
func (l Lease) confirmed() bool { return l.Confirmed == l.Lapses }

// lapse marks the lease as ended if its deadline has passed, so that its workloads are stopped. It returns true
// if it did so.
func (l *Lease) lapse(now time.Duration) bool {
	if l.Lapsed || len(l.Leased) == 0 || now < l.Deadline {
		return false
	}
	l.end()
	return true
}

func (l *Lease) end() {
	l.Lapsed = true
	l.Lapses++
	l.ToStop = Sorted(append(slices.Clone(l.ToStop), l.Leased...))
	l.Leased = nil
}

// renew applies a renewal of the lease by the agent. While the agent has not confirmed a lapse (the end of an
// earlier lease), a renewal changes neither the deadline nor the list of leased workloads.
func (l *Lease) renew(in Renewal, now time.Duration) {
	l.lapse(now)
	l.Agent = in.Agent
	// An agent that lost its state file does not know the leased workloads (those that must be stopped when
	// the lease ends), and would drop them from the list. The schedulers place these workloads on other nodes
	// once the lease of the agent's previous state file has ended. So end that lease now, which stops the
	// workloads.
	if l.Instance != "" && l.Instance != in.Instance && !l.Lapsed && len(l.Leased) > 0 {
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
	l.Leased = Sorted(slices.Clone(in.Leased))
	l.ToStop = slices.DeleteFunc(slices.Clone(l.ToStop), func(w Workload) bool { return slices.Contains(l.Leased, w) })
	l.Deadline, l.Lapsed = max(l.Deadline, in.Deadline), false
	l.lapse(now) // the new deadline may have passed already
}

// Renewal is a message of an agent to its fencer. It extends the lease, and lists the workloads that must be
// stopped when the lease ends.
type Renewal struct {
	Agent   Process `json:"agent"`
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"`
	// Instance is the id of the agent's state file.
	Instance string `json:"instance"`
	// Deadline is the end of the lease, counted from the moment at which the agent sent the heartbeat that
	// renewed the lease.
	Deadline time.Duration `json:"deadline"`
	// Lapses is the number of lapses (ends of a lease) that the agent knows of. By sending it the agent
	// confirms these lapses: no start of a workload that was leased before them is in progress.
	Lapses uint64 `json:"lapses"`
	// Leased are all workloads that the agent may run under this lease and that must be stopped when it ends.
	Leased []Workload `json:"leased,omitempty"`
	// Ask marks a message that changes nothing and only asks for the Status. An agent that has just started
	// sends it, because it has no lease yet.
	Ask bool `json:"ask,omitempty"`
	// Retire asks the fencers to end, because another version replaces them.
	Retire bool `json:"retire,omitempty"`
}

// Status is the fencer's answer to a Renewal: the current lease, and facts about the fencer.
type Status struct {
	Version  string        `json:"version"`
	Fencer   Process       `json:"fencer"` // the fencer process that answers
	Deadline time.Duration `json:"deadline"`
	Lapses   uint64        `json:"lapses"`
	Lapsed   bool          `json:"lapsed"`
	Grace    time.Duration `json:"grace"` // how long a workload gets to stop by itself
	// Second is true if two fencers run.
	Second bool `json:"second"`
	// Stops are the kinds of workloads that the fencer can stop; nil from a fencer that does not report them.
	Stops  []workload.Kind `json:"stops"`
	Leased []Workload      `json:"leased,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Lacks returns those of the given kinds of workloads that the fencer cannot stop.
func (s Status) Lacks(kinds []workload.Kind) []workload.Kind {
	if s.Stops == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k workload.Kind) bool { return slices.Contains(s.Stops, k) })
}
