package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Times that are not the operator's to tune, nanoseconds.
const (
	millisecond = int64(1_000_000)
	second      = 1000 * millisecond

	recheckAfter = 1 * second        // a step that proposed something is followed by another one after this, even without changes
	soon         = 100 * millisecond // wait for a deadline that has passed but could not be served
	explainEvery = 10 * second       // the explanation of one workload is reworded at most this often
	minBackoff   = 250 * millisecond // no retry comes sooner
	perCommand   = 1000              // items of one command
	commandBytes = 192 << 10         // of the items of one command, so that it stays below a log batch
)

// DefaultTuning is used by a leader without settings.
func DefaultTuning() Tuning {
	return Tuning{
		MissingGrace: 15 * second, FailureGrace: 120 * second,
		ApplyTimeout: 45 * second, VMApplyTimeout: 240 * second, DeleteTimeout: 60 * second,
	}.withDefaults()
}

func (t Tuning) withDefaults() Tuning {
	if t.Policy != BinPack {
		t.Policy = Spread
	}
	if t.RetryBase <= 0 {
		t.RetryBase = 5 * second
	}
	if t.RetryMax <= 0 {
		t.RetryMax = 120 * second
	}
	if t.MaxAttempts <= 0 {
		t.MaxAttempts = 5
	}
	if t.MaxCommands <= 0 {
		t.MaxCommands = 4096
	}
	return t
}

// Next plans one step. c may be nil or new: the step is the same, only slower. A step has
// at most Tuning.MaxCommands items in its commands and as many orders; if more remains to
// be done, WakeAt is Now.
func Next(w World, c *Cache) Step {
	if c == nil {
		c = NewCache()
	}
	w.Tuning = w.Tuning.withDefaults()
	c.sync(&w)
	p := &planner{World: w, c: c, left: w.Tuning.MaxCommands, lost: map[string]bool{}, back: map[string]bool{}}
	p.expire()
	if w.State.Info().Mode.Frozen() {
		return p.finish()
	}
	c.pop(w.Now)
	p.evictOvercommitted()
	p.evictPass()
	p.retryDue()
	p.rollOut()
	p.place()
	p.order()
	at, _ := c.due.next()
	p.wake(at)
	return p.finish()
}

// planner is one step at work.
type planner struct {
	World
	c    *Cache
	left int  // items that this step may still propose
	more bool // the bound was met: another step must follow
	step Step
	at   int64 // earliest deadline so far, 0 = none

	lost map[string]bool // nodes that this step declares down
	back map[string]bool // nodes that this step declares up again
	done map[string]bool // workloads that this step already moves

	states   []*commandv1.NodeState
	evicted  []*commandv1.Eviction
	retries  []*commandv1.Retry
	forgiven []*commandv1.Forgiveness
	assigned []*commandv1.Assignment
	unplaced []*commandv1.Unplaced
	rollouts []fsm.Command

	failed   map[string]bool // demands that found no node at version failedAt
	failedAt uint64
	tallies  map[string]string
	tallyAt  uint64
	key      []byte
}

// spend takes one item from the step's bound; false means the step is full.
func (p *planner) spend() bool {
	if p.left == 0 {
		p.more = true
		return false
	}
	p.left--
	return true
}

func (p *planner) mark(id string) {
	if p.done == nil {
		p.done = map[string]bool{}
	}
	p.done[id] = true
}

func (p *planner) note(action, workload, node, detail string) {
	p.step.Why = append(p.step.Why, Note{Workload: workload, Node: node, Action: action, Detail: detail})
}

// wake asks for a step at a time. For a time that has passed, the step comes soon.
func (p *planner) wake(at int64) {
	if at == 0 {
		return
	}
	if at <= p.Now {
		at = p.Now + soon
	}
	if p.at == 0 || at < p.at {
		p.at = at
	}
}

func (p *planner) finish() Step {
	chunked(p, p.states, func(c *commandv1.Command, items []*commandv1.NodeState) {
		c.Body = &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: items}}
	})
	chunked(p, p.evicted, func(c *commandv1.Command, items []*commandv1.Eviction) {
		c.Body = &commandv1.Command_Evict{Evict: &commandv1.Evict{Evictions: items}}
	})
	p.step.Commands = append(p.step.Commands, p.rollouts...)
	chunked(p, p.retries, func(c *commandv1.Command, items []*commandv1.Retry) {
		c.Body = &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{Retries: items}}
	})
	chunked(p, p.forgiven, func(c *commandv1.Command, items []*commandv1.Forgiveness) {
		c.Body = &commandv1.Command_ForgiveFailures{ForgiveFailures: &commandv1.ForgiveFailures{Workloads: items}}
	})
	chunked(p, p.assigned, func(c *commandv1.Command, items []*commandv1.Assignment) {
		c.Body = &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: items}}
	})
	chunked(p, p.unplaced, func(c *commandv1.Command, items []*commandv1.Unplaced) {
		c.Body = &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: items}}
	})
	if len(p.step.Commands) > 0 {
		p.wake(p.Now + recheckAfter)
	}
	p.step.WakeAt = p.at
	if p.more {
		p.step.WakeAt = p.Now
	}
	return p.step
}

// chunked wraps items into as few commands as their size allows. Each item alone is
// small: the longest fields are messages of agents, whose length the API bounds.
func chunked[T interface{ SizeVT() int }](p *planner, items []T, body func(*commandv1.Command, []T)) {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && n < perCommand && (n == 0 || size+items[n].SizeVT() <= commandBytes) {
			size += items[n].SizeVT()
			n++
		}
		c := &commandv1.Command{Head: &commandv1.Head{
			Epoch: &commandv1.Epoch{Incarnation: p.Epoch.Incarnation, Term: p.Epoch.Term},
			At:    p.Now,
			By:    "leader",
		}}
		body(c, items[:n:n])
		p.step.Commands = append(p.step.Commands, c)
		items = items[n:]
	}
}
