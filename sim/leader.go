package sim

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// leadership is one leadership term of a replica. It runs the scheduler's own control.Term in virtual time.
type leadership struct {
	w     *world
	r     *replica
	epoch fsm.Epoch
	cfg   control.Settings
	core  *control.Term
	over  bool
	steps int
	armed int64 // virtual time of the next tick; 0 = none

	calls map[control.Call]func(sched.Lease, error)
	call  control.Call // last Call (id of a waiting caller) that was given out

	// Data that the simulator records about this term, to check its orders.
	planned map[sched.Order]int64 // virtual time at which each order was last planned
	proofs  []proof
	flights map[flightKey]flight
}

// proof is a successful Confirm (proof of leadership): when it was requested and when it was answered.
type proof struct{ asked, answered int64 }

type flightKey struct{ node, workload string }

// flight is an order that is being delivered.
type flight struct {
	id    control.ID
	until int64 // deadline of the delivery, virtual time
}

// settings returns the settings of the simulated leader. In some runs, chosen by the seed, the bounds of queues and
// of orders in flight are so small that the run reaches them.
func (w *world) settings() control.Settings {
	s := control.Settings{
		Tuning:       sched.DefaultTuning(),
		NodeQueue:    pick(&w.clock, []int{2, 4, 1024}),
		NodeParallel: pick(&w.clock, []int{1, 2, 4}),
		Parallel:     pick(&w.clock, []int{1, 3, 256}),
	}
	s.Tuning.Seed = w.cfg.Seed
	w.balance = w.balancePolicy()
	if w.chance(300) {
		s.Tuning.Policy = sched.BinPack
	}
	if w.has(Drift) {
		s.Inspect, s.DriftInterval = true, driftEvery
	}
	if w.cfg.Sabotage == ShortLeases {
		s.NodeLease = 9 * time.Second // sabotage: the leader counts shorter leases than the 10 s that it tells agents
	}
	return s.WithDefaults()
}

// lead begins a leadership term.
func (r *replica) lead(term uint64) {
	w := r.w
	l := &leadership{
		w: w, r: r, cfg: w.users.settings,
		epoch:   fsm.Epoch{Incarnation: r.state.Info().Incarnation, Term: term},
		calls:   map[control.Call]func(sched.Lease, error){},
		planned: map[sched.Order]int64{},
		flights: map[flightKey]flight{},
	}
	l.core = control.New(l.cfg, l.epoch, r.clocks(), r.state)
	r.leads = l
	w.tracef("", "", "replica %d leads in epoch %s from index %d", r.idx, l.epoch, r.applied)
	l.step(control.Tick{})
}

// clocks returns the present time on both clocks of a replica.
func (r *replica) clocks() control.Time { return control.Time{Wall: r.clockNow(), Mono: r.w.now} }

// after runs fn after the time d, unless the leadership term has ended by then.
func (l *leadership) after(d int64, fn func()) {
	l.w.after(d, &l.r.proc, func() {
		if !l.over {
			fn()
		}
	})
}

// end ends the leadership term. Callers that wait get an error.
func (l *leadership) end() {
	l.step(control.Lost{})
	l.over = true
}

// step passes one input to the control loop and carries out the effects.
func (l *leadership) step(in control.Input) {
	if l.over {
		return
	}
	effects := l.core.Step(l.r.clocks(), l.r.state, in)
	if l.steps++; l.steps%l.w.cfg.Check == 0 {
		if err := l.core.Check(); err != nil {
			l.w.violate("leader", "", "", "control.Term.Check after %T: %v", in, err)
		}
	}
	for _, e := range effects {
		l.carryOut(e)
	}
	l.arm()
}

// arm schedules the next step of the control loop at its WakeAt.
func (l *leadership) arm() {
	at := l.core.WakeAt()
	if l.armed != 0 && l.armed <= at {
		return
	}
	l.armed = at
	l.after(at-l.w.now, func() {
		if l.armed == at {
			l.armed = 0
			l.step(control.Tick{})
		}
	})
}

// carryOut carries out an effect of the control loop. The result of a slow effect is passed to the control
// loop later.
func (l *leadership) carryOut(e control.Effect) {
	w := l.w
	switch e := e.(type) {
	case control.Plan:
		l.plan(e)
	case control.Balance:
		l.balance(e)
	case control.Propose:
		if w.cfg.Sabotage == StaleMoves {
			for _, c := range e.Commands {
				w.refresh(c.GetMoveWorkloads())
			}
		}
		w.propose(l.r, l.epoch.Term, e.Commands, func(_ []fsm.Result, err error) { l.step(control.Proposed{ID: e.ID, Err: err}) })
	case control.Confirm:
		asked := w.now
		answer := func(err error) {
			if err == nil {
				l.proofs = append(l.proofs[max(0, len(l.proofs)-32):], proof{asked, w.now})
			}
			l.step(control.Confirmed{ID: e.ID, Err: err})
		}
		if w.cfg.Sabotage == NoLeaseConfirm {
			l.after(0, func() { answer(nil) })
			return
		}
		w.confirm(l.r, l.epoch.Term, answer)
	case control.Deliver:
		l.deliver(e)
	case control.Reply:
		reply := l.calls[e.Call]
		delete(l.calls, e.Call)
		if w.cfg.Sabotage == ShortLeases && e.Lease.Duration > 0 {
			e.Lease.Duration = 10 * sec
		}
		reply(e.Lease, e.Err)
	case control.List:
		l.list(e)
	case control.ReadActions:
		l.after(w.between(1, 15)*ms, func() { l.step(control.ActionsRead{ID: e.ID}) })
	case control.Paused:
		w.tracef("", "", "replica %d was paused: deadlines move by %s", l.r.idx, e.By)
	case control.Undelivered:
		w.tracef(e.Order.Workload, e.Order.Node, "replica %d: order %s is not delivered, try %d: %v %s", l.r.idx, e.Order.Generation, e.Try, e.Err, e.Message)
	case control.ClockBehind, control.PlanLost, control.AuditTruncated:
	case control.Look:
		w.violate("simulator", e.Workload, e.Node, "there are no agents of protocol 0")
	default:
		w.violate("simulator", "", "", "effect %T", e)
	}
}

// fed passes changes of the state to the leader's control loop after the replica has applied them.
func (l *leadership) fed(changes []fsm.Change) {
	l.step(l.updates(changes))
}

// blind is a View without residuals (records of instances that a node must still remove), so that the
// planner does not know which nodes still run a workload.
type blind struct{ fsm.View }

func (blind) ResidualsOf(string, func(*fsm.Residual) bool) {}

// plan makes each planning step twice, with the cache and without it. The results must be equal.
func (l *leadership) plan(e control.Plan) {
	w := l.w
	world := e.World
	if w.cfg.Sabotage == NoAwaitStop {
		world.State = blind{world.State}
	}
	bare := world
	bare.Changes = nil
	plain := sched.Next(bare, nil)
	step := sched.Next(world, e.Cache)
	if w.cfg.Sabotage == NoStopRetry {
		dropStops(world.State, &plain)
		dropStops(world.State, &step)
	}
	if w.cfg.Sabotage == JobsStay {
		keepsJobs(&plain)
		keepsJobs(&step)
	}
	if w.cfg.Sabotage == SuccessIgnored {
		runsAgain(plain.Commands)
		runsAgain(step.Commands)
	}
	if w.cfg.Sabotage == LateRunsDropped {
		dropLateRuns(world.Now, plain.Commands)
		dropLateRuns(world.Now, step.Commands)
	}
	if w.cfg.Sabotage == AnyNode {
		assignsAnywhere(world.State, plain.Commands)
		assignsAnywhere(world.State, step.Commands)
	}
	if w.has(Placement) {
		w.checkRules(world.State, step)
	}
	if why := differ(plain, step); why != "" && w.cfg.Sabotage != AnyNode {
		w.violate("cache", "", "", "Next returns different steps without and with a cache, at index %d: %s", l.r.applied, why)
		return
	}
	w.countsNoSilence(world.State, step)
	for _, n := range step.Why {
		w.tracef(n.Workload, n.Node, "plan %s: %s", n.Action, n.Detail)
	}
	for _, o := range step.Orders {
		l.planned[o] = w.now
	}
	took := w.between(0, 5000) * ms / 1000
	l.after(took, func() { l.step(control.Planned{Step: step, Took: time.Duration(took)}) })
}

// dropStops removes orders that repeat a stop from a planning step.
func dropStops(view fsm.View, step *sched.Step) {
	step.Commands = slices.DeleteFunc(step.Commands, func(c fsm.Command) bool {
		b := c.GetScheduleRetries()
		if b == nil {
			return false
		}
		b.Retries = slices.DeleteFunc(b.Retries, func(r *commandv1.Retry) bool {
			w, ok := view.Workload(r.GetWorkload())
			return ok && w.Desired == fsm.DesiredStopped
		})
		return len(b.Retries) == 0
	})
}

// differ describes the difference between two planning steps; "" if they are equal.
func differ(a, b sched.Step) string {
	switch {
	case len(a.Commands) != len(b.Commands):
		return fmt.Sprintf("%d commands and %d: %v and %v", len(a.Commands), len(b.Commands), a.Commands, b.Commands)
	case !slices.Equal(a.Orders, b.Orders):
		return "other orders"
	case a.WakeAt != b.WakeAt:
		return fmt.Sprintf("the WakeAt differs: %.3f and %.3f", float64(a.WakeAt)/1e9, float64(b.WakeAt)/1e9)
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

// provenFor is the time after a successful Confirm within which an order may be sent.
const provenFor = sec

// deliver sends an order. First it checks what package control promises: a recent Confirm (proof of
// leadership) that began after the order was planned, one order at a time per node and workload,
// and the limits of orders in flight.
func (l *leadership) deliver(e control.Deliver) {
	w, o := l.w, e.Order
	proven := slices.ContainsFunc(l.proofs, func(p proof) bool {
		return p.asked >= l.planned[o] && w.now-p.answered <= provenFor
	})
	if _, ok := l.planned[o]; !ok || !proven {
		w.violate("confirm", o.Workload, o.Node, "order %s is sent without a Confirm since it was planned, or long after one", o.Generation)
	}
	k := flightKey{o.Node, o.Workload}
	if l.flights[k].until > w.now {
		w.violate("one order", o.Workload, o.Node, "order %s is sent while another order for the workload is in flight", o.Generation)
	}
	l.flights[k] = flight{e.ID, w.now + int64(e.Within)}
	here, all := 0, 0
	for key, f := range l.flights {
		if f.until > w.now {
			all++
			if key.node == o.Node {
				here++
			}
		}
	}
	if here > l.cfg.NodeParallel || all > l.cfg.Parallel {
		w.violate("flights", o.Workload, o.Node, "%d orders are in flight to the node and %d in all; the limits are %d and %d", here, all, l.cfg.NodeParallel, l.cfg.Parallel)
	}
	w.order(l.r, e.Epoch, o, func(ack sched.Ack, err error) {
		l.after(0, func() {
			if l.flights[k].id == e.ID {
				delete(l.flights, k)
			}
			l.step(control.Delivered{ID: e.ID, Ack: ack, Err: err})
		})
	})
}

// heartbeat is the API method Heartbeat at the leader.
func (l *leadership) heartbeat(req *controlv1.HeartbeatRequest, reply func(any, error)) {
	call := l.wait(func(lease sched.Lease) any { return message.HeartbeatResponse(l.r.state.Info(), lease) }, reply)
	n, ok := l.r.state.Node(req.GetNodeId())
	if !ok { // the control loop answers that it does not know the node
		l.step(control.Heartbeat{Call: call, Beat: sched.Heartbeat{Node: req.GetNodeId(), ReceivedAt: l.r.clockNow()}})
		return
	}
	l.step(control.Heartbeat{Call: call, Beat: message.Heartbeat(n, req, l.r.clockNow())})
}

// register is the API method RegisterNode at the leader.
func (l *leadership) register(req *controlv1.RegisterNodeRequest, reply func(any, error)) {
	id := req.GetNodeId()
	refuse := func(why string) { reply(&controlv1.RegisterNodeResponse{Reason: why, ClusterId: clusterID}, nil) }
	cmd, wrong := message.Registration(l.r.state, "", id, req.GetGrpcEndpoint(), req)
	if wrong != "" {
		refuse(wrong)
		return
	}
	grant := func() {
		call := l.wait(func(lease sched.Lease) any { return message.RegistrationResponse(l.r.state.Info(), lease) }, reply)
		l.step(control.Registered{Call: call, Node: id})
	}
	if n, ok := l.r.state.Node(id); ok && n.SameFacts(cmd) {
		grant()
		return
	}
	c := &commandv1.Command{
		Head: &commandv1.Head{At: l.r.clockNow(), By: "node"},
		Body: &commandv1.Command_RegisterNode{RegisterNode: cmd},
	}
	l.w.propose(l.r, l.epoch.Term, []fsm.Command{c}, func(res []fsm.Result, err error) {
		switch {
		case err != nil:
			reply(nil, err)
		case res[0].Err() != nil:
			refuse(res[0].Err().Error())
		case l.over:
			reply(nil, errNotLeader)
		default:
			grant()
		}
	})
}

// wait adds a caller that waits for a lease, and returns its Call. answer converts the lease to the message that the
// caller gets.
func (l *leadership) wait(answer func(sched.Lease) any, reply func(any, error)) control.Call {
	l.call++
	l.calls[l.call] = func(lease sched.Lease, err error) {
		var unknown *control.ErrUnknownNode
		switch {
		case errors.As(err, &unknown):
			reply(nil, errNoNode)
		case err != nil:
			reply(nil, err)
		default:
			reply(answer(lease), nil)
		}
	}
	l.abandon(l.call)
	return l.call
}
