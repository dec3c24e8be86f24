package control

import (
	"fmt"
	"time"

	"github.com/persys/compute/sched"
)

// Settings of a leader. A zero field takes the default named beside it.
type Settings struct {
	Tuning sched.Tuning // the zero Tuning means sched.DefaultTuning; any other is used as it is

	HeartbeatInterval time.Duration // 3 s, for agents of protocol 1 and up
	NodeLease         time.Duration // 10 s; at least 3 × HeartbeatInterval
	LegacyInterval    time.Duration // 10 s, for legacy v1 peers
	LegacyLease       time.Duration // 60 s, the shortest lease of a legacy v1 peer

	FlushEvery    time.Duration // 100 ms between commits of reports
	FlushItems    int           // 1,000 waiting reports are flushed at once
	ConfirmEvery  time.Duration // 200 ms; one Confirm serves the heartbeats of that window
	StepEvery     time.Duration // 2 ms between planning steps under load, so that changes coalesce
	OrderDeadline time.Duration // 10 s per order and per read of an agent (SCHEDULER_AGENT_RPC_TIMEOUT)
	NodeQueue     int           // 1,024 orders held per node
	NodeParallel  int           // 4 orders in flight per node
	Parallel      int           // 256 orders in flight in all
	MaxBackoff    time.Duration // 5 s between tries of one order
	PollEvery     time.Duration // 1 s between polls of an agent of protocol 0
	Inspections   int           // 64 reads of agents at a time
	Inspect       bool          // agents can be read; without it they are neither polled nor compared
	DriftInterval time.Duration // each node is compared with the state once in this time; 0 = never
}

// WithDefaults fills in the zero fields.
func (s Settings) WithDefaults() Settings {
	duration := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	number := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	duration(&s.HeartbeatInterval, 3*time.Second)
	duration(&s.NodeLease, 10*time.Second)
	duration(&s.LegacyInterval, 10*time.Second)
	duration(&s.LegacyLease, 60*time.Second)
	duration(&s.FlushEvery, 100*time.Millisecond)
	duration(&s.ConfirmEvery, 200*time.Millisecond)
	duration(&s.StepEvery, 2*time.Millisecond)
	duration(&s.OrderDeadline, 10*time.Second)
	duration(&s.MaxBackoff, 5*time.Second)
	duration(&s.PollEvery, time.Second)
	number(&s.FlushItems, 1000)
	number(&s.NodeQueue, 1024)
	number(&s.NodeParallel, 4)
	number(&s.Parallel, 256)
	number(&s.Inspections, 64)
	if s.Tuning == (sched.Tuning{}) {
		s.Tuning = sched.DefaultTuning()
	}
	return s
}

// Validate reports the first setting that breaks a rule.
func (s Settings) Validate() error {
	s = s.WithDefaults()
	if s.NodeLease < 3*s.HeartbeatInterval {
		return fmt.Errorf("SCHEDULER_NODE_LEASE %s must be at least three times SCHEDULER_HEARTBEAT_INTERVAL %s",
			s.NodeLease, s.HeartbeatInterval)
	}
	return nil
}

// leaseTerms returns how often a node sends heartbeats and how long its lease lasts.
// Above 1,000 nodes both grow with their number, so that the leader's work per second
// does not.
func (s *Settings) leaseTerms(protocol uint32, nodes int) (interval, duration time.Duration) {
	if protocol == 0 {
		return s.LegacyInterval, max(s.LegacyLease, s.NodeLease)
	}
	interval, duration = s.HeartbeatInterval, s.NodeLease
	if nodes > 1000 {
		interval = interval * time.Duration(nodes) / 1000
		duration = duration * time.Duration(nodes) / 1000
	}
	return interval, duration
}
