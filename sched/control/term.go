package control

import (
	"slices"
	"time"

	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// Term is one leadership term. It must not be used by two goroutines at once.
type Term struct {
	cfg   Settings
	epoch fsm.Epoch
	over  bool

	// The time, the view of the state and the effects of the step that is being processed.
	now  Time
	view fsm.View // newest view of this replica
	out  []Effect

	lastID     ID
	lastFlight uint64
	waiting    map[ID]func(Input) // for each effect ID: the function that continues with the answer

	pause      pauseDetector
	shifted    int64 // sum of the times by which deadlines have moved in this term, in nanoseconds
	offset     clockOffset
	toldBehind bool
	timers     timers

	live    liveness
	calls   btree.Map[uint64, *fsm.Node] // API calls that wait for a Confirm, by Call, with their node
	confirm confirms
	orders  dispatcher
	reports reports
	plan    planning
	reads   inspections
	drift   drifts
	scaling scaling

	balancing balancing
}

// New starts a term. It is called right after this replica became the leader; view is the state at that time.
// Every node gets a full lease. The first step requests a plan.
func New(cfg Settings, epoch fsm.Epoch, now Time, view fsm.View) *Term {
	t := &Term{cfg: cfg.WithDefaults(), epoch: epoch, now: now, view: view, waiting: map[ID]func(Input){}}
	t.pause.observe(now)
	t.live.init(&t.cfg)
	t.live.begin(view, now.Wall)
	t.confirm.last = now.Mono - int64(t.cfg.ConfirmEvery)
	t.orders.init()
	t.reports.init(now.Mono - int64(t.cfg.FlushEvery))
	t.plan = planning{view: view, fresh: true, due: true}
	t.beginPolls(view)
	t.beginDrift()
	t.findAutoscaled(view)
	t.beginBalance()
	return t
}

// Epoch returns the epoch of the term, which every order carries.
func (t *Term) Epoch() fsm.Epoch { return t.epoch }

// WakeAt returns the monotonic time at which Step must be called at the latest.
func (t *Term) WakeAt() int64 {
	at := t.now.Mono + int64(pulseEvery)
	if t.timers.Len() > 0 {
		at = min(at, t.timers.heap[0].at)
	}
	return at
}

// Step processes one input and returns the effects that follow. view is the newest state of this replica.
func (t *Term) Step(now Time, view fsm.View, in Input) []Effect {
	if t.over {
		return nil
	}
	t.now, t.view = now, view
	t.allowForPause()
	switch in := in.(type) {
	case Tick:
	case Updates:
		t.updated(in)
	case Heartbeat:
		t.heartbeat(in)
	case Registered:
		t.registered(in)
	case Abandoned:
		t.abandoned(in.Call)
	case Planned:
		t.planDone(in)
	case Lost:
		t.lost()
	case Proposed:
		t.answered(in.ID, in)
	case Confirmed:
		t.answered(in.ID, in)
	case Delivered:
		t.answered(in.ID, in)
	case Listed:
		t.answered(in.ID, in)
	case Looked:
		t.answered(in.ID, in)
	case ActionsRead:
		t.answered(in.ID, in)
	case Scaled:
		t.answered(in.ID, in)
	case Balanced:
		t.answered(in.ID, in)
	}
	if !t.over {
		t.runTimers()
		t.startPlan()
	}
	out := t.out
	t.out = nil
	return out
}

func (t *Term) emit(e Effect) { t.out = append(t.out, e) }

// await returns a new ID for an effect. When the answer with this ID comes, it is passed to the
// function then.
func (t *Term) await(then func(Input)) ID {
	t.lastID++
	t.waiting[t.lastID] = then
	return t.lastID
}

// answered calls the function that waits for the answer to the effect id, with the answer in. A second
// answer to the same effect is ignored.
func (t *Term) answered(id ID, in Input) {
	if then, ok := t.waiting[id]; ok {
		delete(t.waiting, id)
		then(in)
	}
}

// propose puts commands into the log. then gets nil if they are in the log.
func (t *Term) propose(then func(err error), cmds ...fsm.Command) {
	t.emit(Propose{
		ID:       t.await(func(in Input) { then(in.(Proposed).Err) }),
		Commands: cmds,
	})
}

// head returns the head (caller, epoch, time) of a command that the leader plans in this term.
func (t *Term) head() *commandv1.Head {
	return &commandv1.Head{
		Epoch: &commandv1.Epoch{Incarnation: t.epoch.Incarnation, Term: t.epoch.Term},
		At:    t.planned(),
		By:    "leader",
	}
}

// lost ends the term, because this replica no longer leads.
func (t *Term) lost() {
	t.calls.Scan(func(call uint64, _ *fsm.Node) bool {
		t.emit(Reply{Call: Call(call), Err: ErrNotLeading})
		return true
	})
	t.over = true
}

// Stats are figures for metrics.
type Stats struct {
	Orders   int // number of orders that the dispatcher holds: queued, in flight, or waiting for another try
	InFlight int // number of orders in flight; included in Orders
	Reports  int // number of workload reports that are not committed yet
}

// Stats returns figures for metrics.
func (t *Term) Stats() Stats {
	return Stats{Orders: len(t.orders.entries), InFlight: t.orders.inFlight, Reports: len(t.reports.order)}
}

// Lease returns the end of a node's lease and the time of its last heartbeat in Unix nanoseconds (0 = none
// in this term); false for an unknown node.
func (t *Term) Lease(node string) (expires, heard int64, ok bool) {
	if n, ok := t.live.nodes.Get(node); ok {
		return n.expires, n.heard, true
	}
	return 0, 0, false
}

// NodeUsage returns the resource usage that a node last reported; false for an unknown node.
func (t *Term) NodeUsage(node string) (sched.NodeUsage, bool) {
	if n, ok := t.live.nodes.Get(node); ok {
		return n.usage, true
	}
	return sched.NodeUsage{}, false
}

// PoolsUsed returns the GB in use of each storage pool of a node, by name, as last reported. The map must
// not be changed.
func (t *Term) PoolsUsed(node string) map[string]int64 {
	if n, ok := t.live.nodes.Get(node); ok {
		return n.pools
	}
	return nil
}

// MoveReport returns what a node last reported about the move of a workload's volumes.
func (t *Term) MoveReport(node, workload string) (sched.MoveReport, bool) {
	if n, ok := t.live.nodes.Get(node); ok {
		return moveReport(n.moves, workload)
	}
	return sched.MoveReport{}, false
}

// WorkloadUsage returns the resource usage that a node last reported for one of its workloads.
func (t *Term) WorkloadUsage(node, workload string) (sched.WorkloadUsage, bool) {
	if n, ok := t.live.nodes.Get(node); ok {
		u, ok := n.workloads[workload]
		return u, ok
	}
	return sched.WorkloadUsage{}, false
}

// updated processes changes of the replicated state that the caller passes in.
func (t *Term) updated(u Updates) {
	if u.Fresh {
		t.live.sync(u.View, t.now.Wall)
		t.beginPolls(u.View)
		t.findAutoscaled(u.View)
	}
	for i := range u.Changes {
		switch c := &u.Changes[i]; {
		case c.Table == fsm.TableWorkload && c.NewWorkload() != nil:
			t.poll(u.View, c.NewWorkload())
			t.scalable(c.NewWorkload())
		case c.Table == fsm.TableResidual:
			t.orphanGone(u.View, c)
		case c.Table != fsm.TableNode:
		case c.NewNode() != nil:
			t.live.observe(c.NewNode(), t.now.Wall)
		case c.OldNode() != nil:
			t.live.removed(c.OldNode())
		}
	}
	if u.Thawed || slices.ContainsFunc(u.Changes, thaws) {
		t.live.grantAll(t.now.Wall)
	}
	p := &t.plan
	p.view = u.View
	if p.fresh = p.fresh || u.Fresh || len(p.changes)+len(u.Changes) > maxChanges; p.fresh {
		clear(p.changes)
		p.changes = p.changes[:0]
	} else {
		p.changes = append(p.changes, u.Changes...)
	}
	t.signal()
}

// maxChanges is the maximum number of changes that wait for one planning step. If there are more, the planner
// reads the whole view instead, which costs less.
const maxChanges = 32 << 10

// thaws reports whether a change ends a frozen mode.
func thaws(c fsm.Change) bool {
	was, now := c.OldInfo(), c.NewInfo()
	return was != nil && now != nil && was.Mode.Frozen() && !now.Mode.Frozen()
}

// until returns the duration from now until the time at, on the monotonic clock; 0 if at has passed.
func (t *Term) until(at int64) time.Duration { return time.Duration(max(0, at-t.now.Mono)) }
