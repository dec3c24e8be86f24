package control

import (
	"fmt"
	"time"

	"github.com/persys/compute/sched"
)

// Settings are the settings of a leader. A field that is zero takes the default named beside the field.
type Settings struct {
	Tuning sched.Tuning // the zero Tuning means sched.DefaultTuning; a Tuning with any field set is used unchanged

	HeartbeatInterval time.Duration // default 3 s: time between heartbeats of agents of protocol 1 and up
	NodeLease         time.Duration // default 10 s; at least 3 × HeartbeatInterval
	LegacyInterval    time.Duration // default 10 s: time between heartbeats of legacy v1 agents
	LegacyLease       time.Duration // default 60 s: shortest lease of a legacy v1 agent

	FlushEvery    time.Duration // default 100 ms: time between two commits of workload reports
	FlushItems    int           // default 1,000: this many waiting reports are committed at once
	ConfirmEvery  time.Duration // default 200 ms: one Confirm serves all heartbeats that arrive within this time
	StepEvery     time.Duration // default 2 ms: shortest time between planning steps, so that one step serves many changes
	OrderDeadline time.Duration // default 10 s: deadline of an order and of a read of an agent (SCHEDULER_AGENT_RPC_TIMEOUT)
	NodeQueue     int           // default 1,024: orders that wait or are in flight per node
	NodeParallel  int           // default 4: orders in flight per node
	Parallel      int           // default 256: orders in flight to all nodes together
	MaxBackoff    time.Duration // default 5 s: longest wait between tries of one order
	PollEvery     time.Duration // default 1 s: time between polls of an agent of protocol 0
	Inspections   int           // default 64: agents that are read at the same time
	Inspect       bool          // whether agents can be read; if false, agents are neither polled nor compared with the state
	DriftInterval time.Duration // each node is compared with the state once in this time; 0 = never
}

// WithDefaults returns the settings with defaults in the zero fields.
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

// Validate returns an error for the first setting that breaks a rule.
func (s Settings) Validate() error {
	s = s.WithDefaults()
	if s.NodeLease < 3*s.HeartbeatInterval {
		return fmt.Errorf("SCHEDULER_NODE_LEASE %s must be at least three times SCHEDULER_HEARTBEAT_INTERVAL %s",
			s.NodeLease, s.HeartbeatInterval)
	}
	return nil
}

// leaseTerms returns the interval between heartbeats of a node and the duration of its lease. With more than
// 1,000 nodes both grow in proportion to the number of nodes, so that the number of heartbeats per second
// stays the same.
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
