package leader

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/persys/compute/sched"
)

// Config holds the leader's settings; zero values take the defaults given.
type Config struct {
	Tuning sched.Tuning // as it is given, where any of it is: a grace of 0 is none

	HeartbeatInterval time.Duration // 3 s, for agents of protocol 1 and up
	NodeLease         time.Duration // 10 s; at least 3 × interval
	LegacyInterval    time.Duration // 10 s, for legacy v1 peers
	LegacyLease       time.Duration // 60 s, the least a legacy v1 peer gets

	FlushEvery    time.Duration // 100 ms between commits of reports
	FlushItems    int           // 1,000 waiting reports flush at once
	ConfirmEvery  time.Duration // 200 ms: one Confirm serves the heartbeats of that window
	StepEvery     time.Duration // 2 ms between steps under load, so that changes coalesce
	OrderDeadline time.Duration // 10 s per order (SCHEDULER_AGENT_RPC_TIMEOUT)
	NodeQueue     int           // 1,024 orders waiting per node
	NodeParallel  int           // 4 orders in flight per node
	Parallel      int           // 256 orders in flight in all
	MaxBackoff    time.Duration // 5 s between tries of one order
	PollEvery     time.Duration // 1 s between questions to an agent that does not push
	Inspections   int           // 64 agents are asked at a time
	DriftInterval time.Duration // every node is asked for what it has once in this time; 0 = never
	Inspector     Inspector     // nil = nobody is asked

	Now     func() time.Time
	Logger  *slog.Logger
	Metrics Metrics
}

// Metrics receives figures; every method may be called from any goroutine.
type Metrics interface {
	Step(took time.Duration, commands, orders int)
	Flush(reports int)
	Paused(d time.Duration)
	// Result is what came of one thing that the planner decided: a command's name
	// or, once its agent was told, apply or delete.
	Result(action string, ok bool)
	// Trouble is a step of which it cannot be said what came of it.
	Trouble()
}

type noMetrics struct{}

func (noMetrics) Step(time.Duration, int, int) {}
func (noMetrics) Flush(int)                    {}
func (noMetrics) Paused(time.Duration)         {}
func (noMetrics) Result(string, bool)          {}
func (noMetrics) Trouble()                     {}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	defi := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&c.HeartbeatInterval, 3*time.Second)
	def(&c.NodeLease, 10*time.Second)
	def(&c.LegacyInterval, 10*time.Second)
	def(&c.LegacyLease, 60*time.Second)
	def(&c.FlushEvery, 100*time.Millisecond)
	def(&c.ConfirmEvery, 200*time.Millisecond)
	def(&c.StepEvery, 2*time.Millisecond)
	def(&c.OrderDeadline, 10*time.Second)
	def(&c.MaxBackoff, 5*time.Second)
	def(&c.PollEvery, time.Second)
	defi(&c.FlushItems, 1000)
	defi(&c.NodeQueue, 1024)
	defi(&c.NodeParallel, 4)
	defi(&c.Parallel, 256)
	defi(&c.Inspections, 64)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Tuning == (sched.Tuning{}) {
		c.Tuning = sched.DefaultTuning()
	}
	return c
}

// Validate reports the first setting that breaks a rule.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.NodeLease < 3*c.HeartbeatInterval {
		return fmt.Errorf("SCHEDULER_NODE_LEASE %s must be at least three times SCHEDULER_HEARTBEAT_INTERVAL %s",
			c.NodeLease, c.HeartbeatInterval)
	}
	return nil
}
