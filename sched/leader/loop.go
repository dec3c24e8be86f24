package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/sched"
)

// Proposer puts commands through the log; *cluster.Node is one.
type Proposer interface {
	Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error)
	// Confirm proves leadership at a moment after the call began.
	Confirm(ctx context.Context) (uint64, error)
}

// Agents delivers one order to one agent. It returns an error only when it
// cannot say what the agent did; a refusal is an Ack.
type Agents interface {
	Deliver(ctx context.Context, epoch fsm.Epoch, o sched.Order) (sched.Ack, error)
}

// ErrNotLeading is returned outside a stint.
var ErrNotLeading = errors.New("this replica is not the leader")

// ErrUnknownNode is returned for a node that never registered, or not since it was
// fenced; agents answer it by registering.
type ErrUnknownNode struct {
	Node   string
	Fenced bool
}

// NotFound marks the error for the edge.
func (e *ErrUnknownNode) NotFound() bool { return true }

func (e *ErrUnknownNode) Error() string {
	if e.Fenced {
		return fmt.Sprintf("node %q was fenced and has not registered since", e.Node)
	}
	return fmt.Sprintf("node %q is not registered", e.Node)
}

// Loop is the leader of one replica: idle until Run, and again after it.
type Loop struct {
	cfg    Config
	log    Proposer
	agents Agents
	store  *store.Store
	stint  atomic.Pointer[stint]
}

// New makes a Loop over a replica's log and state.
func New(cfg Config, log Proposer, agents Agents, st *store.Store) *Loop {
	return &Loop{cfg: cfg.withDefaults(), log: log, agents: agents, store: st}
}

// Leading reports whether a stint is running on this replica.
func (l *Loop) Leading() bool { return l.stint.Load() != nil }

// Stats are figures for metrics; all zero outside a stint.
type Stats struct {
	Orders  int // on the books: waiting, on their way, or resting before another try
	Flying  int // of them on their way
	Reports int // waiting to be committed
}

// Stats says what the loop has to do.
func (l *Loop) Stats() Stats {
	s := l.stint.Load()
	if s == nil {
		return Stats{}
	}
	out := Stats{Flying: len(s.orders.slots)}
	s.orders.mu.Lock()
	out.Orders = len(s.orders.orders)
	s.orders.mu.Unlock()
	s.reports.mu.Lock()
	out.Reports = len(s.reports.order)
	s.reports.mu.Unlock()
	return out
}

// stint is everything that lives and dies with one leadership.
type stint struct {
	*Loop
	ctx     context.Context
	epoch   fsm.Epoch
	table   *table
	orders  *dispatcher
	confirm *confirmer
	reports *reports
	inspect *inspections
	rounds  *rounds
	wake    chan struct{} // capacity 1

	pulseMu   sync.Mutex // held from noticing a pause until every deadline is moved
	pulse     pulse
	lead      lead
	saidAhead bool // that the lead is long
	shifted   bool // deadlines were moved, and the planner's cache holds some as they were

	mu    sync.Mutex
	news  news         // what the feed brought since the last step
	spare []fsm.Change // empty: room for what it brings next
}

// news is what the feed pump hands to the loop.
type news struct {
	view    fsm.View
	changes []fsm.Change
	fresh   bool // changes are not all there were: start again from the view
	thawed  bool // a frozen mode has ended, or may have
}

// maxChanges bounds what waits for one step; beyond it starting again from the
// view is cheaper than following.
const maxChanges = store.MaxChanges

// Run leads for one stint: from an established leadership until ctx ends. It
// returns nil when ctx ended, after every goroutine of the stint.
func (l *Loop) Run(ctx context.Context, epoch fsm.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &stint{
		Loop:    l,
		ctx:     ctx,
		epoch:   epoch,
		table:   newTable(l.leaseLength),
		confirm: &confirmer{log: l.log, every: l.cfg.ConfirmEvery, ctx: ctx},
		reports: newReports(),
		wake:    make(chan struct{}, 1),
	}
	s.orders = newDispatcher(s)
	s.inspect = newInspections(s)
	s.rounds = newRounds(s)
	s.news = news{view: l.store.View(), fresh: true}
	s.table.begin(s.news.view, s.allowForPause())

	var wg sync.WaitGroup
	wg.Go(func() { s.pump(ctx) })
	wg.Go(func() { s.flushLoop(ctx) })
	wg.Go(func() { s.pulseLoop(ctx) })
	wg.Go(func() { s.inspect.pollLoop(ctx) })
	wg.Go(func() { s.rounds.run(ctx) })
	l.stint.Store(s)
	s.loop(ctx)
	l.stint.Store(nil)
	cancel()
	s.orders.close()
	s.inspect.close()
	s.confirm.close()
	wg.Wait()
	return nil
}

// now is the wall clock, which leases go by.
func (s *stint) now() int64 { return s.cfg.Now().UnixNano() }

// planned is the time that the planner goes by, and everything that it writes but last heartbeats.
func (s *stint) planned() int64 {
	s.pulseMu.Lock()
	defer s.pulseMu.Unlock()
	now := s.cfg.Now()
	return now.Add(s.lead.at(now)).UnixNano()
}

func (s *stint) signal() { nudge(s.wake) }

// afterTrouble is how long the loop rests when the log did not take a command.
const afterTrouble = 50 * time.Millisecond

// loop is the leader itself: observe, decide, propose, deliver, wait.
func (s *stint) loop(ctx context.Context) {
	var cache *sched.Cache
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		n, now := s.observe()
		ahead := s.keepAhead(n.view.Info().Clock, now)
		s.inspect.observe(n)
		if n.fresh || cache == nil || s.takeShift() {
			cache, n.changes = sched.NewCache(), nil
		}
		began := time.Now()
		step := sched.Next(sched.World{
			State:   n.view,
			Changes: n.changes,
			Live:    liveness{s.table, s.orders, ahead},
			Now:     now + ahead,
			Epoch:   s.epoch,
			Tuning:  s.cfg.Tuning,
		}, cache)
		took := time.Since(began)
		s.reuse(n.changes)
		s.cfg.Metrics.Step(took, len(step.Commands), len(step.Orders))
		s.explainStep(ctx, step.Why)
		if !s.act(ctx, step) {
			// What was applied is unknown: look at everything anew.
			s.cfg.Metrics.Trouble()
			cache = nil
			sleep(ctx, afterTrouble)
			continue
		}
		sleep(ctx, s.pace(took))
		wait := time.Minute
		if step.WakeAt > 0 {
			wait = max(0, min(wait, time.Duration(step.WakeAt-s.planned())))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// pace is the rest after a step: changes pile up meanwhile, so that one step
// serves many of them. A step that took long, because much is waiting, rests
// longer: planning uses at most a tenth of a core, and waits at most slowest.
func (s *stint) pace(took time.Duration) time.Duration {
	const slowest = 50 * time.Millisecond
	return max(s.cfg.StepEvery, min(slowest, 9*took))
}

// act carries a step out. It reports false if it cannot say what came of it.
func (s *stint) act(ctx context.Context, step sched.Step) bool {
	proposed := s.propose(ctx, step.Commands)
	s.table.pardon()
	if !proposed {
		return false
	}
	s.inspect.inquire(step.Inquiries)
	if len(step.Orders) == 0 {
		return true
	}
	limited, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if _, err := s.log.Confirm(limited); err != nil {
		return false
	}
	s.orders.add(step.Orders)
	return true
}

func (s *stint) explainStep(ctx context.Context, why []sched.Note) {
	if !s.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, n := range why {
		s.cfg.Logger.Debug("planned", "workload", n.Workload, "node", n.Node, "action", n.Action, "detail", n.Detail)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// observe takes what the feed brought since the last step and brings the
// liveness table up to it. now is a moment up to which pauses of this process are
// allowed for: a pause after it makes the step act late, never early.
func (s *stint) observe() (n news, now int64) {
	s.mu.Lock()
	n = s.news
	s.news = news{view: n.view, changes: s.spare}
	s.spare = nil
	s.mu.Unlock()
	now = s.allowForPause()
	if n.fresh {
		s.table.sync(n.view, now)
	}
	for i := range n.changes {
		switch c := &n.changes[i]; {
		case c.Table != fsm.TableNode:
		case c.NewNode() != nil:
			s.table.observe(c.NewNode(), now)
		case c.OldNode() != nil:
			s.table.removed(c.OldNode())
		}
	}
	if n.thawed {
		s.table.grantAll(now)
	}
	return n, now
}

// spareChanges is the largest room that is kept from one step to another.
const spareChanges = 16 << 10

// reuse takes back the changes of a step that is planned; under load they are many, and
// room made anew for them each time costs more than what is done with them.
func (s *stint) reuse(changes []fsm.Change) {
	if cap(changes) > spareChanges {
		return
	}
	clear(changes) // the records are not to be kept
	s.mu.Lock()
	s.spare = changes[:0]
	s.mu.Unlock()
}

// allowForPause moves every deadline by what this process missed and returns the
// time, Unix nanoseconds.
func (s *stint) allowForPause() int64 {
	s.pulseMu.Lock()
	defer s.pulseMu.Unlock()
	now := s.cfg.Now()
	if d := s.pulse.beat(now); d != 0 {
		s.table.shift(int64(d))
		s.shifted = true
		s.cfg.Metrics.Paused(d)
		s.cfg.Logger.Warn("this process was paused, or its clock was set; every lease ends later by that much",
			"by", d.Round(time.Millisecond), "epoch", s.epoch.String())
	}
	return now.UnixNano()
}

// farAhead is from when on it is said that a clock is wrong.
const farAhead = 10 * time.Second

// keepAhead lets the planner's clock not fall behind the state's, and returns its lead at a moment of
// the wall clock, nanoseconds.
func (s *stint) keepAhead(clock, now int64) int64 {
	s.pulseMu.Lock()
	defer s.pulseMu.Unlock()
	at := s.cfg.Now()
	was := s.lead.at(at)
	by := max(was, time.Duration(clock-now))
	if by > was {
		s.lead = lead{at.UnixNano() + int64(by), at}
	}
	said := s.saidAhead
	if s.saidAhead = by >= farAhead; s.saidAhead && !said {
		s.cfg.Logger.Warn("what the state holds was written by a clock that was ahead of this replica's; times shown are ahead until this clock has caught up. Are the clocks of all replicas set?",
			"by", by.Round(time.Millisecond), "epoch", s.epoch.String())
	}
	return int64(by)
}

// takeShift reports whether deadlines were moved since it was last asked.
func (s *stint) takeShift() bool {
	s.pulseMu.Lock()
	defer s.pulseMu.Unlock()
	was := s.shifted
	s.shifted = false
	return was
}

func (s *stint) pulseLoop(ctx context.Context) {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.allowForPause()
		}
	}
}

// pump copies the change feed into what observe takes.
func (s *stint) pump(ctx context.Context) {
	for first := true; ctx.Err() == nil; first = false {
		view := s.store.View()
		s.mu.Lock()
		// What was missed may have been the end of a frozen mode.
		s.news = news{view: view, fresh: true, thawed: s.news.thawed || !first}
		s.mu.Unlock()
		s.signal()
		cur, err := s.store.Changes(view.Info().Index)
		if err == nil {
			err = s.follow(ctx, cur)
			cur.Close()
		}
		if errors.Is(err, store.ErrClosed) {
			return
		}
	}
}

// follow returns when the cursor has fallen off the feed or ctx ends.
func (s *stint) follow(ctx context.Context, cur *store.Cursor) error {
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return err
		}
		thawed := slices.ContainsFunc(b.Changes, thaws)
		s.mu.Lock()
		n := &s.news
		n.view, n.thawed = b.View, n.thawed || thawed
		if len(n.changes)+len(b.Changes) > maxChanges {
			n.fresh, n.changes = true, nil
		}
		if !n.fresh {
			n.changes = append(n.changes, b.Changes...)
		}
		s.mu.Unlock()
		s.signal()
	}
}

func thaws(c fsm.Change) bool {
	was, now := c.OldInfo(), c.NewInfo()
	return was != nil && now != nil && was.Mode.Frozen() && !now.Mode.Frozen()
}

// propose puts planner commands through the log. It reports false when their
// fate is unknown; a refusal by the state machine is a fact like any other.
func (s *stint) propose(ctx context.Context, cmds []fsm.Command) bool {
	if len(cmds) == 0 {
		return true
	}
	limited, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := s.log.Propose(limited, cmds...)
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Logger.Warn("planner commands were not committed", "epoch", s.epoch.String(), "err", err)
		}
		return false
	}
	for i, r := range results {
		s.cfg.Metrics.Result(fsm.ArmName(cmds[i]), r.Err() == nil)
		if r.Err() != nil {
			s.cfg.Logger.Info("planner command refused", "epoch", s.epoch.String(), "index", r.Index,
				"command", fmt.Sprintf("%T", cmds[i].GetBody()), "reason", r.Reason)
		}
	}
	return true
}

// proposeTimeout bounds the wait for one step's commands.
const proposeTimeout = 10 * time.Second

// head marks a command as the leader's own, planned in this stint.
func (s *stint) head() *commandv1.Head {
	return &commandv1.Head{
		Epoch: &commandv1.Epoch{Incarnation: s.epoch.Incarnation, Term: s.epoch.Term},
		At:    s.planned(),
		By:    "leader",
	}
}

// liveness joins what the table and the dispatcher know for the planner, and turns the table's times
// into the planner's.
type liveness struct {
	*table
	orders *dispatcher
	ahead  int64
}

// Outstanding implements sched.Liveness.
func (l liveness) Outstanding(o sched.Order) bool { return l.orders.outstanding(o) }

// Expired implements sched.Liveness.
func (l liveness) Expired(now int64, fn func(sched.NodeID, int64) bool) {
	l.table.Expired(now-l.ahead, fn)
}

// Returned implements sched.Liveness.
func (l liveness) Returned(now int64, fn func(sched.NodeID, int64) bool) {
	l.table.Returned(now-l.ahead, fn)
}

// NextExpiry implements sched.Liveness.
func (l liveness) NextExpiry() int64 { return l.after(l.table.NextExpiry()) }

// DownSince implements sched.Liveness.
func (l liveness) DownSince(node string) int64 { return l.after(l.table.DownSince(node)) }

func (l liveness) after(at int64) int64 {
	if at == 0 {
		return 0
	}
	return at + l.ahead
}
