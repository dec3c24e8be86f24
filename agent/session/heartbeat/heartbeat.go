// Package heartbeat decides when an agent registers, what its heartbeats report, and when its lease ends. It is pure: the
// caller sends the messages and passes the time and the answers. Package session drives it with the clock of the machine
// and real calls, the simulator with virtual ones.
//
//   - A lease counts from the time at which the request for it was sent.
//   - Most heartbeats have only the reports that changed. A heartbeat has all reports after a registration, if the leader
//     asks for them or has changed, after FullEvery others, and always for a legacy v1 scheduler, which sends no epoch.
//   - Calls that fail are repeated after a wait that doubles up to backoffMax.
package heartbeat

import (
	"time"

	"github.com/persys/compute/agent/core"
)

const (
	// Coalesce is how long an agent waits, after a report changed, for further changes before it sends a heartbeat.
	Coalesce = 100 * time.Millisecond
	// FullEvery is how many heartbeats in a row have only the changed reports. The next heartbeat then has the reports
	// of all workloads.
	FullEvery = 20

	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second

	callMin, callMax = time.Second, 5 * time.Second
	defaultInterval  = 10 * time.Second // default of the contract (docs/contract/wire-control.md)
)

// State is what an agent remembers of its exchange with the schedulers.
type State struct {
	Registered bool
	LeaseUntil time.Time     // end of the lease, on the clock of the machine
	Lease      time.Duration // length of the last lease
	Interval   time.Duration // time between two heartbeats
	Acked      uint64        // newest version of workload reports that the schedulers have acknowledged
	Epoch      core.Epoch    // epoch of the last answer; zero for a legacy v1 scheduler
	Full       bool          // the next heartbeat has all reports

	sequence  uint64
	sinceFull int
	failures  int
}

// New returns the State of an agent that has not registered.
func New() State { return State{Interval: defaultInterval, Lease: 3 * defaultInterval} }

// Answer holds a scheduler's answer to a registration or heartbeat. The agent sent that registration or
// heartbeat at the time Sent.
type Answer struct {
	Sent     time.Time
	Epoch    core.Epoch // epoch of the scheduler; zero for a legacy v1 scheduler
	Lease    time.Duration
	LeaseEnd time.Time     // end of the lease, by the clock of a legacy v1 scheduler, which sends no length; may be zero
	Interval time.Duration // time between two heartbeats; 0 = the interval does not change
	SendFull bool          // the next heartbeat must have all reports
}

// Beat says what a heartbeat has to contain.
type Beat struct {
	Sequence uint64
	Full     bool // the heartbeat has the reports of all workloads
	Legacy   bool // the receiver is a legacy v1 scheduler
}

// Expire returns the state at the time now: if the lease has ended, the agent registers again.
func (s State) Expire(now time.Time) State {
	s.Registered = s.Registered && now.Before(s.LeaseUntil)
	return s
}

// Beat returns what the next heartbeat contains, and the state after it was sent.
func (s State) Beat() (State, Beat) {
	s.sequence++
	legacy := s.Epoch == core.Epoch{}
	return s, Beat{Sequence: s.sequence, Full: s.Full || s.sinceFull >= FullEvery || legacy, Legacy: legacy}
}

// Accepted returns the state after a scheduler accepted a registration.
func (s State) Accepted(a Answer) State {
	s.Registered, s.Full, s.sequence = true, true, 0
	s.Epoch = a.Epoch
	return s.extend(a)
}

// Acknowledged returns the state after a scheduler acknowledged the heartbeat b, whose reports were of the
// given version. If the leader has changed, the next heartbeat has all reports, because the new leader has
// not received the reports that were sent to the previous leader.
func (s State) Acknowledged(b Beat, version uint64, a Answer) State {
	s.Acked, s.failures = version, 0
	s.sinceFull++
	if b.Full {
		s.sinceFull = 0
	}
	s.Full = a.SendFull || a.Epoch != s.Epoch
	s.Epoch = a.Epoch
	return s.extend(a)
}

// Failed returns the state after a call failed. If unknown is set, the schedulers do not know the node, so the agent
// registers again.
func (s State) Failed(unknown bool) State {
	s.failures++
	s.Registered = s.Registered && !unknown
	return s
}

// extend stores the lease of an answer. If a scheduler that sends epochs sends no lease, the leader could not confirm that
// it still leads, and the last lease keeps its end.
func (s State) extend(a Answer) State {
	switch {
	case a.Lease > 0:
		s.Lease, s.LeaseUntil = a.Lease, a.Sent.Add(a.Lease)
	case a.Epoch != core.Epoch{}:
	case a.LeaseEnd.After(a.Sent):
		s.LeaseUntil = a.LeaseEnd
		s.Lease = s.LeaseUntil.Sub(a.Sent)
	default:
		s.LeaseUntil = a.Sent.Add(s.Lease)
	}
	if a.Interval > 0 {
		s.Interval = a.Interval
	}
	return s
}

// Deadline returns the time limit of one call. It is much shorter than the lease, so that another call fits into the lease
// if this one fails.
func (s State) Deadline() time.Duration { return min(max(s.Lease/3, callMin), callMax) }

// Wait returns how long the agent waits before the next call, unless a report changes: after a failure the back-off,
// otherwise the interval. A random part, which random returns between 0 and its argument, is taken off, so that agents do
// not all call at the same time.
func (s State) Wait(random func(time.Duration) time.Duration) time.Duration {
	if s.failures > 0 {
		d := min(backoffMin<<min(s.failures-1, 10), backoffMax)
		return d/2 + random(d/2)
	}
	return s.Interval - random(s.Interval/10)
}

// Due reports whether the next heartbeat must be sent soon, before the interval has passed, because the
// scheduler lacks reports. version is the newest version of the workload reports.
func (s State) Due(version uint64) bool { return s.Full || version > s.Acked }

// Failing reports whether the last call failed.
func (s State) Failing() bool { return s.failures > 0 }
