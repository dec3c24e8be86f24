package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Fixed times (in nanoseconds) and limits of the planner.
const (
	millisecond = int64(1_000_000)
	second      = 1000 * millisecond

	recheckAfter = 1 * second        // pause before the next step after a step that proposed something, even without changes
	soon         = 100 * millisecond // pause before the next step if this step could not handle a deadline that has passed
	explainEvery = 10 * second       // shortest time between two changes of the recorded explanation of one workload
	minBackoff   = 250 * millisecond // shortest wait before a retry
	perCommand   = 1000              // maximum number of items of one command
	commandBytes = 192 << 10         // maximum size of the items of one command in bytes, below the size of a log batch
)

// DefaultTuning returns the tuning of a leader whose settings are all unset.
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
	if t.PreemptionCooldown <= 0 {
		t.PreemptionCooldown = 300 * second
	}
	if t.PreemptionBudget <= 0 {
		t.PreemptionBudget = 100
	}
	if t.MaxCommands <= 0 {
		t.MaxCommands = 4096
	}
	return t
}

// Next plans one step. The cache c may be nil or new: the result is the same, but takes longer. The commands
// of a step have at most Tuning.MaxCommands items, and a step has at most as many orders. If more remains to
// be done, WakeAt is Now.
func Next(w World, c *Cache) Step {
	if c == nil {
		c = NewCache()
	}
	w.Tuning = w.Tuning.withDefaults()
	c.sync(&w)
	c.nodes.now = w.Now
	p := &planner{World: w, c: c, left: w.Tuning.MaxCommands, lost: map[string]bool{}, back: map[string]bool{}}
	p.expire()
	if w.State.Info().Mode.Frozen() {
		return p.finish()
	}
	c.pop(w.Now)
	c.recount(w.State)
	p.endJobs()
	p.advanceCrons()
	p.placeMembers()
	p.releaseSlices()
	p.reserve()
	p.place()
	p.evictOvercommitted()
	p.evictPass()
	p.retryDue()
	p.rollOut()
	p.moveVolumes()
	p.order()
	at, _ := c.due.next()
	p.wake(at)
	return p.finish()
}

// planner holds the working data of one planning step.
type planner struct {
	World
	c    *Cache
	left int  // number of items that this step may still propose
	more bool // the limit of items was reached: another step must follow
	step Step
	at   int64 // earliest time found so far at which another step is needed; 0 = none

	lost  map[string]bool // nodes that this step declares down
	back  map[string]bool // nodes that this step declares up again
	done  map[string]bool // workloads that this step has already moved or changed
	turns map[string]int  // results of the method active, by group
	over  map[string]bool // jobs that this step ends or whose records it deletes
	held  map[string]bool // workloads that must get no order in this step; see moves.go
	rooms map[string]room // results of the method roomFor, by workload

	preemptions preemptions

	states   []*commandv1.NodeState
	evicted  []*commandv1.Eviction
	retries  []*commandv1.Retry
	forgiven []*commandv1.Forgiveness
	assigned []*commandv1.Assignment
	unplaced []*commandv1.Unplaced
	rollouts []fsm.Command
	ended    []*commandv1.JobEnd
	expired  []*commandv1.JobExpiry
	crons    []*commandv1.CronStep
	members  []*commandv1.MemberChange
	idle     []*commandv1.IdleSlice
	moving   []*commandv1.MoveStep

	emptyPools map[string]bool // results of the method emptyPool, by namespace

	failed   map[string]bool // keys of demands that fit on no node, as found at version failedAt of the cache
	failedAt uint64
	tallies  map[string]string
	tallyAt  uint64
	key      []byte
}

// spend counts one command item or order of this step. It returns false if the limit of the step is
// reached.
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
	if p.c.due.at[id] != 0 {
		// The workload changes, so the time for which it waited is out of date. If the change is lost or refused, the
		// next step evaluates the workload again.
		p.c.due.set(id, 0)
		p.c.workloads.add(id)
	}
}

func (p *planner) note(action, workload, node, detail string) {
	p.step.Why = append(p.step.Why, Note{Workload: workload, Node: node, Action: action, Detail: detail})
}

// wake requests another step at the time at. If that time has passed, the step comes after a short pause (the
// constant soon).
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
	chunked(p, p.ended, func(c *commandv1.Command, items []*commandv1.JobEnd) {
		c.Body = &commandv1.Command_FinishJobs{FinishJobs: &commandv1.FinishJobs{Ends: items}}
	})
	chunked(p, p.expired, func(c *commandv1.Command, items []*commandv1.JobExpiry) {
		c.Body = &commandv1.Command_ExpireJobs{ExpireJobs: &commandv1.ExpireJobs{Jobs: items}}
	})
	chunked(p, p.crons, func(c *commandv1.Command, items []*commandv1.CronStep) {
		c.Head = p.sharedHead()
		c.Body = &commandv1.Command_CreateRuns{CreateRuns: &commandv1.CreateRuns{Steps: items}}
	})
	chunked(p, p.members, func(c *commandv1.Command, items []*commandv1.MemberChange) {
		c.Head = p.sharedHead()
		c.Body = &commandv1.Command_PlaceMembers{PlaceMembers: &commandv1.PlaceMembers{Changes: items}}
	})
	chunked(p, p.idle, func(c *commandv1.Command, items []*commandv1.IdleSlice) {
		c.Body = &commandv1.Command_ReleaseSlices{ReleaseSlices: &commandv1.ReleaseSlices{Slices: items}}
	})
	chunked(p, p.moving, func(c *commandv1.Command, items []*commandv1.MoveStep) {
		c.Body = &commandv1.Command_AdvanceMoves{AdvanceMoves: &commandv1.AdvanceMoves{Steps: items}}
	})
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

// chunked splits items into commands of limited size, as few as possible. No single item is too large for a
// command: its longest fields are messages of agents, whose length the API limits.
func chunked[T interface{ SizeVT() int }](p *planner, items []T, body func(*commandv1.Command, []T)) {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && n < perCommand && (n == 0 || size+items[n].SizeVT() <= commandBytes) {
			size += items[n].SizeVT()
			n++
		}
		c := &commandv1.Command{Head: p.head()}
		body(c, items[:n:n])
		p.step.Commands = append(p.step.Commands, c)
		items = items[n:]
	}
}

// head returns the head of a command that the leader proposes by itself.
func (p *planner) head() *commandv1.Head {
	return &commandv1.Head{Epoch: &commandv1.Epoch{Incarnation: p.Epoch.Incarnation, Term: p.Epoch.Term}, At: p.Now, By: "leader"}
}

// sharedHead returns the head of a command that stores workloads which users have asked for. The shares of the state
// (fsm.RoomShares) limit such a command.
func (p *planner) sharedHead() *commandv1.Head {
	h := p.head()
	h.NamespaceShare, h.RoomReserve = fsm.NamespaceShare, fsm.AdminReserve
	return h
}
