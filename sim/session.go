package sim

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	agentmessage "github.com/persys/compute/agent/message"
	"github.com/persys/compute/agent/session/heartbeat"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
	speclib "github.com/persys/compute/spec"
)

// unknownEngine is a text in the refusal of a registration. It says that the advice in the refusal, to fence the node, is
// right only if the machine has another engine than the former instance of the node.
const unknownEngine = "not known whether both use the same engine"

// session is an agent's session with the schedulers. Package heartbeat decides what the agent sends and when; the simulator
// carries the messages.
type session struct {
	heartbeat.State
	at        int // number of the replica to which the agent sends its calls
	busy      bool
	turn      int // number of the present heartbeat timer; a timer with a lower number is obsolete and does nothing
	dirty     bool
	stale     bool  // the registered facts of the node have changed, so the agent registers again
	heldSince int64 // virtual time since which the agent has held the lease without a gap; 0 = the lease is not held
}

// until returns the end of the node's lease, on the machine's clock.
func (s *session) until() int64 {
	if s.LeaseUntil.IsZero() {
		return 0
	}
	return s.LeaseUntil.UnixNano()
}

// holds reports whether the agent considers its lease valid.
func (m *machine) holds() bool {
	return m.alive && m.session.Registered && m.local(m.w.now) < m.session.until()
}

// signal makes the agent send its next heartbeat soon, because a report has changed.
func (m *machine) signal() {
	s := &m.session
	if s.dirty || s.busy || s.turn == 0 {
		return
	}
	s.dirty = true
	turn := s.turn
	m.w.after(int64(heartbeat.Coalesce), &m.proc, func() {
		if m.session.turn == turn {
			m.converse()
		}
	})
}

// later schedules the next call.
func (m *machine) later() {
	s := &m.session
	d := int64(s.Wait(func(most time.Duration) time.Duration { return time.Duration(m.w.between(0, int64(most))) }))
	s.turn++
	s.busy, s.dirty = false, false
	turn := s.turn
	m.w.after(d, &m.proc, func() {
		if m.session.turn == turn && !m.session.busy {
			m.converse()
		}
	})
	if !s.Failing() && s.Due(m.core.Version) {
		m.signal()
	}
}

// converse makes the agent register its node if necessary, and then send a heartbeat.
func (m *machine) converse() {
	s := &m.session
	s.busy = true
	s.turn++
	if was := s.Registered; was {
		if s.State = s.Expire(m.clock()); !s.Registered {
			m.w.tracef("", m.id, "agent: the lease has lapsed")
			s.heldSince = 0
		}
	}
	if s.Registered = s.Registered && !s.stale; s.Registered {
		m.beat()
		return
	}
	s.stale = false
	sent := m.clock()
	req := m.registration()
	m.call(func(l *leadership, reply func(any, error)) {
		l.register(req, reply)
	}, func(res any, err error) {
		if err != nil {
			m.failed(false)
			return
		}
		resp := res.(*controlv1.RegisterNodeResponse)
		if !resp.GetAccepted() {
			if why := resp.GetReason(); m.w.cfg.Sabotage == AdviceToAll || strings.Contains(why, "persysctl node fence "+m.id) {
				m.w.obey(m, m.w.cfg.Sabotage != AdviceToAll && strings.Contains(why, unknownEngine))
			}
			m.failed(false)
			return
		}
		if !m.hear(resp.GetEpoch()) {
			m.failed(false)
			return
		}
		m.extend(resp.GetLeaseSeconds() > 0, s.Accepted(agentmessage.RegistrationAnswer(sent, resp)))
		m.w.tracef("", m.id, "agent: registered in epoch %s", m.session.Epoch)
		m.beat()
	})
}

// failed makes the agent call another replica after a wait.
func (m *machine) failed(unknown bool) {
	s := &m.session
	if s.State = s.Failed(unknown); !s.Registered {
		s.heldSince = 0
	}
	s.at = m.w.rng.IntN(len(m.w.replicas))
	m.later()
}

func (m *machine) beat() {
	s := &m.session
	var b heartbeat.Beat
	s.State, b = s.Beat()
	sent := m.clock()
	statuses, version := agentmessage.Reports(m.core, b.Full, !b.Legacy, s.Acked, m.now())
	req := &controlv1.HeartbeatRequest{
		NodeId: m.id, ClusterId: m.core.Meta.Epoch.ClusterID, WorkloadStatuses: statuses, Sequence: b.Sequence, Full: b.Full,
	}
	m.call(func(l *leadership, reply func(any, error)) {
		l.heartbeat(req, reply)
	}, func(res any, err error) {
		if err != nil {
			m.failed(errors.Is(err, errNoNode))
			return
		}
		resp := res.(*controlv1.HeartbeatResponse)
		if !m.hear(resp.GetEpoch()) {
			m.failed(false)
			return
		}
		m.extend(resp.GetLeaseSeconds() > 0, s.Acknowledged(b, version, agentmessage.HeartbeatAnswer(sent, resp)))
		m.drain(resp.GetDrainNode())
		m.later()
	})
}

// clock returns the time on the machine's clock.
func (m *machine) clock() time.Time { return time.Unix(0, m.local(m.w.now)) }

// extend makes next the state of the session. If the answer granted a lease, extend notes since when the agent has
// held its lease, and tells the agent's core.
func (m *machine) extend(granted bool, next heartbeat.State) {
	s := &m.session
	if now := m.local(m.w.now); granted && (s.heldSince == 0 || now >= s.until()) {
		s.heldSince = m.w.now
	}
	s.State = next
	if granted {
		m.leased()
	}
}

// registration returns the message with which the node registers.
func (m *machine) registration() *controlv1.RegisterNodeRequest {
	out := agentmessage.Registration(m.core)
	out.GrpcEndpoint, out.Labels = "10.0.0."+m.id[1:]+":50051", map[string]string{"zone": m.zone}
	caps := out.Capabilities
	caps.CpuTotalMillicores, caps.MemoryTotalMb = m.cpu, m.mem
	if m.w.cfg.Sabotage == ShortBound {
		caps.FenceBoundSeconds = 1
	}
	return out
}

// call sends a call of the agent to the replica that it is connected to. That replica may forward the call
// once.
func (m *machine) call(handle func(*leadership, func(any, error)), back func(any, error)) {
	w, s := m.w, &m.session
	a := w.replicas[s.at]
	turn, life := s.turn, m.proc.life
	over := false
	done := func(res any, err error) {
		if over || m.session.turn != turn || m.proc.life != life {
			return
		}
		over = true
		back(res, err)
	}
	w.after(int64(s.Deadline()), &m.proc, func() { done(nil, errUnknown) })
	w.send(&a.proc, func() bool { return !m.up[a.idx] }, func() {
		w.route(a, handle, func(res any, err error) {
			w.send(&m.proc, func() bool { return !m.down[a.idx] }, func() { done(res, err) })
		})
	}, func() { done(nil, errNotLeader) })
}

// route handles a call at a replica: a leader answers the call; any other replica forwards the call
// to the leader that it knows.
func (w *world) route(a *replica, handle func(*leadership, func(any, error)), back func(any, error)) {
	life := a.life
	if a.leads != nil {
		handle(a.leads, func(res any, err error) {
			if a.life == life && a.alive {
				back(res, err)
			}
		})
		return
	}
	if a.believes < 0 || a.believes == a.idx {
		back(nil, errNotLeader)
		return
	}
	b := w.replicas[a.believes]
	link := func() bool { return !a.cut && !b.cut }
	home := func(res any, err error) { w.send(&a.proc, link, func() { back(res, err) }, nil) }
	w.send(&b.proc, link, func() {
		if b.leads == nil {
			home(nil, errNotLeader)
			return
		}
		handle(b.leads, home)
	}, func() { back(nil, errNotLeader) })
}

// send carries one message over a link that may lose, delay or duplicate it, and runs fn at its receiver, the
// process to. If that process is not running, send calls refused.
func (w *world) send(to *proc, link func() bool, fn func(), refused ...func()) {
	if !link() || !w.calm && w.chance(w.loss) {
		return
	}
	if !to.alive {
		for _, f := range refused {
			if f != nil {
				f()
			}
		}
		return
	}
	d := w.between(1, 15) * ms
	copies := 1
	if !w.calm {
		switch {
		case w.chance(w.delays):
			d = w.between(100, 3000) * ms
		case w.chance(w.delays / 4):
			d = w.between(3, 25) * sec
		}
		if w.chance(w.dups) {
			copies = 2
		}
	}
	for range copies {
		w.after(d, to, func() {
			if link() {
				fn()
			}
		})
		d += w.between(1, 2000) * ms
	}
}

// order carries one order of a leader to an agent, and the answer back. If a message is lost, there is no
// answer.
func (w *world) order(r *replica, by fsm.Epoch, o sched.Order, back func(sched.Ack, error)) {
	node, ok := r.state.Node(o.Node)
	m := w.machine(o.Node)
	if !ok || m == nil {
		back(sched.Ack{}, errRefused)
		return
	}
	epoch := &agentv1.Epoch{ClusterId: clusterID, Incarnation: by.Incarnation, Term: by.Term}
	var deliver func() (sched.Ack, error)
	switch o.Op {
	case sched.OpApply:
		wl, ok := r.state.Workload(o.Workload)
		if !ok || wl.Node != o.Node || wl.Generation != o.Generation {
			back(sched.Ack{Fenced: true}, nil)
			return
		}
		plain := new(controlv1.WorkloadSpec)
		if err := proto.Unmarshal(wl.Spec, plain); err != nil {
			w.violate("simulator", o.Workload, o.Node, "spec: %v", err)
			return
		}
		req := speclib.ToAgent(wl, plain)
		req.Epoch, req.NodeId, req.InstanceId = epoch, node.ID, node.Facts.InstanceID
		deliver = func() (sched.Ack, error) {
			resp, err := m.apply(req)
			if err != nil {
				return sched.Ack{}, err
			}
			return message.Applied(resp)
		}
	default:
		req := &agentv1.DeleteWorkloadRequest{
			Id: o.Workload, Epoch: epoch, NodeId: node.ID, InstanceId: node.Facts.InstanceID,
			Generation: wire.Agent(o.Generation),
		}
		deliver = func() (sched.Ack, error) {
			resp, err := m.remove(req)
			if err != nil {
				return sched.Ack{}, err
			}
			return message.Deleted(resp), nil
		}
	}
	w.tracef(o.Workload, o.Node, "replica %d orders %d at %s in epoch %s", r.idx, o.Op, o.Generation, by)
	w.send(&m.proc, func() bool { return !m.down[r.idx] }, func() {
		ack, err := deliver()
		w.send(&r.proc, func() bool { return !m.up[r.idx] }, func() { back(ack, err) })
	}, func() {
		if m.power.alive {
			back(sched.Ack{}, errRefused)
		}
	})
}

// obeyed checks that an accepted order is newer than all orders that an agent with this disk has accepted
// before.
func (m *machine) obeyed(e core.Epoch, id string, g driver.Generation, apply bool) {
	d := m.disk
	if e.Less(d.sawEpoch) {
		m.w.violate("epoch", id, m.id, "the agent obeys epoch %s after an order of epoch %s", e, d.sawEpoch)
	}
	d.sawEpoch = e
	if g.Less(d.sawApply[id]) {
		m.w.violate("generation", id, m.id, "the agent obeys generation %s after %s", g, d.sawApply[id])
	}
	if tombstone := d.sawTombstone[id]; apply && !tombstone.Less(g) && tombstone != (driver.Generation{}) {
		m.w.violate("tombstone", id, m.id, "the agent applies generation %s after a delete with generation %s", g, tombstone)
	}
	switch {
	case apply:
		d.sawApply[id] = g
	default:
		delete(d.sawApply, id) // a delete makes earlier orders to apply the workload obsolete
		if d.sawTombstone[id].Less(g) {
			d.sawTombstone[id] = g
		}
	}
}
