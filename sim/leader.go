package sim

import (
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/leader"
)

// Times of the leader, as in sched/leader.
const (
	leaseLength  = 10 * sec
	beatInterval = 3 * sec
	flushEvery   = 100 * ms
	confirmEvery = 200 * ms
	stepEvery    = 2 * ms
	orderTimeout = 10 * sec
	maxBackoff   = 5 * sec
)

// beat is what a leader remembers of one node.
type beat struct {
	index         uint64
	up            bool
	heard         int64
	downAt        int64
	expires, told int64
	sequence      uint64
	full          bool
	doomed        bool
}

// stint is one leadership. Its times are by its replica's clock.
type stint struct {
	w     *world
	r     *replica
	epoch fsm.Epoch
	over  bool

	table map[string]*beat

	cache   *sched.Cache
	changes []fsm.Change
	tuning  sched.Tuning
	busy    bool
	again   bool
	armed   int64

	orders  map[orderKey]*outstanding
	reports map[reportKey]*commandv1.WorkloadReport
	flushAt int64 // of the flush that is to come, 0 = none
	flushed int64

	waiting   []func(error) // for the next Confirm
	confirmed int64         // when the last one began
}

type reportKey struct{ node, workload string }

type orderKey struct {
	node, workload string
	op             sched.Op
}

type outstanding struct {
	order    sched.Order
	flying   bool
	tries    int
	token    int // of the timer that counts
	replaced *sched.Order
}

// lead begins a stint.
func (r *replica) lead(term uint64) {
	w := r.w
	info := r.state.Info()
	s := &stint{
		w: w, r: r, epoch: fsm.Epoch{Incarnation: info.Incarnation, Term: term},
		table: map[string]*beat{}, cache: sched.NewCache(), tuning: w.users.tuning,
		orders: map[orderKey]*outstanding{}, reports: map[reportKey]*commandv1.WorkloadReport{},
	}
	r.stint = s
	now := r.clockNow()
	r.state.Nodes("", func(n *fsm.Node) bool { s.observe(n, now); return true })
	if w.cfg.Sabotage != NoFullLease {
		for _, b := range s.table {
			b.expires, b.told = now+leaseLength, now+leaseLength
		}
	} else {
		for _, b := range s.table {
			b.expires, b.told = now+ms, now+ms
		}
	}
	w.tracef("", "", "replica %d leads in epoch %s from index %d", r.idx, s.epoch, r.applied)
	s.rounds()
	s.arm(0)
}

// after runs fn in d unless the stint is over by then.
func (s *stint) after(d int64, fn func()) {
	s.w.after(d, &s.r.proc, func() {
		if !s.over {
			fn()
		}
	})
}

// arm asks for a step in d at the latest.
func (s *stint) arm(d int64) {
	at := s.w.now + d
	if s.armed != 0 && s.armed <= at {
		return
	}
	s.armed = at
	s.after(d, func() {
		if s.armed == at {
			s.armed = 0
			s.step()
		}
	})
}

// fed takes over what the replica applied.
func (s *stint) fed(changes []fsm.Change) {
	now := s.r.clockNow()
	for _, c := range changes {
		switch {
		case c.Table == fsm.TableNode && c.NewNode() != nil:
			s.observe(c.NewNode(), now)
		case c.Table == fsm.TableNode:
			if b := s.table[c.OldNode().ID]; b != nil && b.index <= c.OldNode().ModifyIndex {
				delete(s.table, c.OldNode().ID)
			}
		case c.Table == fsm.TableInfo && c.OldInfo().Mode.Frozen() && !c.NewInfo().Mode.Frozen():
			for _, b := range s.table {
				b.expires = max(b.expires, now+leaseLength)
			}
		}
	}
	s.changes = append(s.changes, changes...)
	if len(changes) > 0 {
		s.wake()
	}
}

func (s *stint) wake() {
	if s.busy {
		s.again = true
		return
	}
	s.arm(stepEvery)
}

// shift moves every deadline after a pause.
func (s *stint) shift(d int64) {
	for _, b := range s.table {
		b.expires, b.downAt = b.expires+d, b.downAt+d
	}
	s.cache, s.changes = sched.NewCache(), nil
}

func (s *stint) observe(n *fsm.Node, now int64) {
	b := s.table[n.ID]
	switch {
	case b == nil:
		b = &beat{downAt: now}
		s.table[n.ID] = b
	case n.ModifyIndex < b.index:
		return
	}
	if n.Up && !b.up {
		b.expires = max(b.expires, now+leaseLength)
	}
	if b.up && !n.Up {
		b.heard, b.downAt = 0, now
	}
	b.index, b.up = n.ModifyIndex, n.Up
}

// Expired, NextExpiry, Returned, DownSince and Outstanding implement sched.Liveness.
func (s *stint) Expired(now int64, fn func(sched.NodeID, int64) bool) {
	for _, id := range keys(s.table) {
		if b := s.table[id]; b.up && b.expires <= now {
			b.doomed = true
			if !fn(id, b.heard) {
				return
			}
		}
	}
}

func (s *stint) NextExpiry() int64 {
	first := int64(0)
	for _, b := range s.table {
		if b.up && (first == 0 || b.expires < first) {
			first = b.expires
		}
	}
	return first
}

func (s *stint) Returned(now int64, fn func(sched.NodeID, int64) bool) {
	for _, id := range keys(s.table) {
		if b := s.table[id]; !b.up && b.heard != 0 && b.expires > now && !fn(id, b.heard) {
			return
		}
	}
}

func (s *stint) DownSince(node string) int64 { return s.table[node].downAt }

func (s *stint) Outstanding(o sched.Order) bool {
	e := s.orders[orderKey{o.Node, o.Workload, o.Op}]
	if e == nil {
		return false
	}
	latest := e.order
	if e.replaced != nil {
		latest = *e.replaced
	}
	return !latest.Generation.Less(o.Generation)
}

// blind is a view that does not show who still runs a workload.
type blind struct{ fsm.View }

func (blind) ResidualsOf(string, func(*fsm.Residual) bool) {}

// step is one turn of the leader's loop.
func (s *stint) step() {
	if s.busy {
		s.again = true
		return
	}
	now := s.r.clockNow()
	world := sched.World{State: s.r.state, Live: s, Now: now, Epoch: s.epoch, Tuning: s.tuning}
	if s.w.cfg.Sabotage == NoAwaitStop {
		world.State = blind{s.r.state}
	}
	plain := sched.Next(world, nil)
	world.Changes, s.changes = s.changes, nil
	step := sched.Next(world, s.cache)
	if s.w.cfg.Sabotage == NoStopRetry {
		s.dropStops(&plain)
		s.dropStops(&step)
	}
	if why := differ(plain, step); why != "" {
		s.w.violate("cache", "", "", "Next without and with a cache, at index %d: %s", s.r.applied, why)
		return
	}
	for _, n := range step.Why {
		s.w.tracef(n.Workload, n.Node, "plan %s: %s", n.Action, n.Detail)
	}
	s.busy, s.again = true, false
	rest := func(known bool) {
		s.busy = false
		if !known {
			s.cache = sched.NewCache()
			s.arm(50 * ms)
			return
		}
		switch {
		case s.again:
			s.arm(stepEvery)
		case step.WakeAt > 0:
			s.arm(max(stepEvery, step.WakeAt-now, step.WakeAt-s.r.clockNow()))
		default:
			s.arm(60 * sec)
		}
	}
	act := func() {
		for _, b := range s.table {
			b.doomed = false
		}
		if len(step.Orders) == 0 {
			rest(true)
			return
		}
		s.w.confirm(s.r, s.epoch.Term, func(err error) {
			switch {
			case s.over:
			case err != nil:
				rest(false)
			default:
				s.give(step.Orders)
				rest(true)
			}
		})
	}
	if len(step.Commands) == 0 {
		act()
		return
	}
	s.w.propose(s.r, s.epoch.Term, step.Commands, func(_ []fsm.Result, err error) {
		switch {
		case s.over:
		case err != nil:
			for _, b := range s.table {
				b.doomed = false
			}
			rest(false)
		default:
			act()
		}
	})
}

// dropStops leaves out of a step what would order a stop again.
func (s *stint) dropStops(step *sched.Step) {
	step.Commands = slices.DeleteFunc(step.Commands, func(c fsm.Command) bool {
		b := c.GetScheduleRetries()
		if b == nil {
			return false
		}
		b.Retries = slices.DeleteFunc(b.Retries, func(r *commandv1.Retry) bool {
			w, ok := s.r.state.Workload(r.GetWorkload())
			return ok && w.Desired == fsm.DesiredStopped
		})
		return len(b.Retries) == 0
	})
}

// differ says in what two steps differ.
func differ(a, b sched.Step) string {
	switch {
	case len(a.Commands) != len(b.Commands):
		return "other commands"
	case !slices.Equal(a.Orders, b.Orders):
		return "other orders"
	case a.WakeAt != b.WakeAt:
		return fmt.Sprintf("another WakeAt: %.3f and %.3f", float64(a.WakeAt)/1e9, float64(b.WakeAt)/1e9)
	case !reflect.DeepEqual(a.Why, b.Why):
		return "other notes"
	}
	for i := range a.Commands {
		if !proto.Equal(a.Commands[i], b.Commands[i]) {
			return "commands differ: " + a.Commands[i].String() + " and " + b.Commands[i].String()
		}
	}
	return ""
}

// give queues orders.
func (s *stint) give(orders []sched.Order) {
	for _, o := range orders {
		k := orderKey{o.Node, o.Workload, o.Op}
		e := s.orders[k]
		if e == nil {
			e = &outstanding{order: o}
			s.orders[k] = e
			s.fly(e)
			continue
		}
		if !e.order.Generation.Less(o.Generation) {
			continue
		}
		if e.flying {
			e.replaced = &o
			continue
		}
		e.order, e.tries = o, 0
		e.token++
		s.fly(e)
	}
}

// fly delivers one order.
func (s *stint) fly(e *outstanding) {
	o := e.order
	e.flying = true
	e.token++
	token := e.token
	landed := false
	land := func(ack sched.Ack, err bool) {
		if landed || s.over || e.token != token {
			return
		}
		landed = true
		s.land(e, o, ack, err)
	}
	s.w.order(s, o, func(ack sched.Ack, err bool) { s.after(0, func() { land(ack, err) }) })
	s.after(orderTimeout, func() { land(sched.Ack{}, true) })
}

// land files what came of an order and lets it wait, as leader.dispatcher does.
func (s *stint) land(e *outstanding, o sched.Order, ack sched.Ack, failed bool) {
	e.flying = false
	if !failed && !ack.Fenced {
		s.file(o, ack)
	}
	if e.replaced != nil {
		e.order, e.replaced, e.tries = *e.replaced, nil, 0
		s.fly(e)
		return
	}
	k := orderKey{o.Node, o.Workload, o.Op}
	if !failed && !ack.Fenced && (ack.Accepted || ack.Refused || ack.Gone) {
		wait := 2 * flushEvery
		if o.Op == sched.OpDelete && !ack.Gone {
			wait = sec
		}
		s.hold(e, wait, func() {
			delete(s.orders, k)
			s.wake()
		})
		return
	}
	e.tries++
	if failed && e.tries == 3 && o.Op == sched.OpApply {
		s.w.propose(s.r, s.epoch.Term, []fsm.Command{{Head: s.head(), Body: &commandv1.Command_ExplainUnplaced{
			ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: []*commandv1.Unplaced{{
				Workload: o.Workload, IfGeneration: generationPB(o.Generation), Code: fsm.CodeDispatchFailed, Message: "could not be told",
			}}}}}}, func([]fsm.Result, error) {})
	}
	s.hold(e, min(maxBackoff, 100*ms<<min(e.tries-1, 10)), func() {
		if !s.stillAsked(e.order) {
			delete(s.orders, k)
			s.wake()
			return
		}
		s.fly(e)
	})
}

func (s *stint) hold(e *outstanding, d int64, fn func()) {
	e.token++
	token := e.token
	s.after(d, func() {
		if e.token == token {
			fn()
		}
	})
}

func (s *stint) stillAsked(o sched.Order) bool {
	view := s.r.state
	if n, ok := view.Node(o.Node); !ok || !n.Up {
		return false
	}
	if o.Op == sched.OpDelete {
		r, ok := view.Residual(o.Node, o.Workload)
		return ok && r.Generation == o.Generation
	}
	w, ok := view.Workload(o.Workload)
	return ok && w.Node == o.Node && w.Generation == o.Generation && !w.Acknowledged
}

// file turns an answer into a report.
func (s *stint) file(o sched.Order, ack sched.Ack) {
	if r := leader.Report(o, ack, s.r.clockNow()); r != nil {
		s.report(r)
	}
}

// report keeps the latest word until the next flush.
func (s *stint) report(it *commandv1.WorkloadReport) {
	k := reportKey{it.GetNode(), it.GetWorkload()}
	if old := s.reports[k]; old != nil {
		og, ng := generationOf(old.GetGeneration()), generationOf(it.GetGeneration())
		if ng.Less(og) && !ng.IsZero() || og == ng && old.GetGone() && !it.GetGone() {
			return
		}
	}
	s.reports[k] = it
	if s.flushAt != 0 {
		return
	}
	s.flushAt = max(s.w.now, s.flushed+flushEvery)
	s.after(s.flushAt-s.w.now, s.flush)
}

func (s *stint) flush() {
	s.flushAt, s.flushed = 0, s.w.now
	var batch []*commandv1.WorkloadReport
	for _, k := range sortedReports(s.reports) {
		batch = append(batch, s.reports[k])
	}
	clear(s.reports)
	cmd := &commandv1.Command{Head: s.head(), Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: batch}}}
	s.w.propose(s.r, s.epoch.Term, []fsm.Command{cmd}, func(_ []fsm.Result, err error) {
		if err != nil && !s.over {
			for _, r := range batch {
				if b := s.table[r.GetNode()]; b != nil {
					b.full = false // something it said was lost
				}
			}
		}
	})
}

func (s *stint) head() *commandv1.Head {
	return &commandv1.Head{
		Epoch: &commandv1.Epoch{Incarnation: s.epoch.Incarnation, Term: s.epoch.Term}, At: s.r.clockNow(), By: "leader",
	}
}

// heartbeat takes a node's word in and answers with its lease.
func (s *stint) heartbeat(hb sched.Heartbeat, reply func(sched.Lease, error)) {
	received := s.r.clockNow()
	node, ok := s.r.state.Node(hb.Node)
	if !ok {
		reply(sched.Lease{}, errNoNode)
		return
	}
	if node.Fenced {
		reply(sched.Lease{}, errNoNode)
		return
	}
	s.observe(node, received)
	b := s.table[hb.Node]
	if hb.Sequence < b.sequence {
		reply(s.lease(node, false), nil) // overtaken by a later one
		return
	}
	b.sequence = hb.Sequence
	b.full = b.full || hb.Full
	s.digest(node, hb)
	s.grant(node, received, reply)
}

// registered grants the lease of a node whose registration is committed.
func (s *stint) registered(id string, reply func(sched.Lease, error)) {
	received := s.r.clockNow()
	node, ok := s.r.state.Node(id)
	if !ok {
		reply(sched.Lease{}, errNoNode)
		return
	}
	s.observe(node, received)
	b := s.table[id]
	b.sequence, b.full = 0, false
	s.grant(node, received, reply)
}

// grant extends a lease after a Confirm that began after the word arrived.
func (s *stint) grant(node *fsm.Node, received int64, reply func(sched.Lease, error)) {
	s.afterConfirm(func(err error) {
		if err != nil {
			reply(s.lease(node, false), nil)
			return
		}
		b := s.table[node.ID]
		if b == nil || b.doomed {
			reply(s.lease(node, false), nil)
			return
		}
		if b.heard == 0 && !b.up {
			s.wake()
		}
		b.heard = max(b.heard, received)
		b.expires, b.told = max(b.expires, received+leaseLength), max(b.told, received+leaseLength)
		reply(s.lease(node, true), nil)
	})
}

func (s *stint) lease(node *fsm.Node, extended bool) sched.Lease {
	l := sched.Lease{
		Interval: beatInterval, Drain: s.r.state.Info().Mode.Frozen() || node.Draining, Epoch: s.epoch,
	}
	if extended {
		l.Duration = leaseLength
	}
	if b := s.table[node.ID]; b != nil {
		l.ExpiresAt, l.SendFull = b.told, !b.full
	}
	return l
}

// afterConfirm shares one Confirm among all that ask within a window.
func (s *stint) afterConfirm(done func(error)) {
	if s.w.cfg.Sabotage == NoLeaseConfirm {
		done(nil)
		return
	}
	s.waiting = append(s.waiting, done)
	if len(s.waiting) > 1 {
		return
	}
	s.after(max(0, confirmEvery-(s.w.now-s.confirmed)), func() {
		round := s.waiting
		s.waiting, s.confirmed = nil, s.w.now
		s.w.confirm(s.r, s.epoch.Term, func(err error) {
			if s.over {
				return
			}
			for _, done := range round {
				done(err)
			}
		})
	})
}

// digest compares a heartbeat with the state and keeps what differs.
func (s *stint) digest(node *fsm.Node, hb sched.Heartbeat) {
	view := s.r.state
	seen := map[string]bool{}
	for i := range hb.Reports {
		r := &hb.Reports[i]
		w, ok := view.Workload(r.Workload)
		seen[r.Workload] = !ok || r.Observation.Generation.IsZero() || !r.Observation.Generation.Less(w.Generation)
		if it := leader.Judge(view, node, r); it != nil {
			s.report(it)
		}
	}
	if !hb.Full {
		return
	}
	view.WorkloadsOn(node.ID, func(w *fsm.Workload) bool {
		if !seen[w.ID] && w.Acknowledged &&
			s.orders[orderKey{node.ID, w.ID, sched.OpApply}] == nil && s.orders[orderKey{node.ID, w.ID, sched.OpDelete}] == nil {
			if rep := leader.Lost(node, w, hb.Reports); rep != nil {
				rep.ObservedAt = s.r.clockNow()
				s.report(rep)
			}
		}
		return true
	})
}

func generationPB(g fsm.Generation) *commandv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

func generationOf(g *commandv1.Generation) fsm.Generation {
	return fsm.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()}
}

func sortedReports(m map[reportKey]*commandv1.WorkloadReport) []reportKey {
	out := make([]reportKey, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b reportKey) int {
		if a.node != b.node {
			return compare(a.node, b.node)
		}
		return compare(a.workload, b.workload)
	})
	return out
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
