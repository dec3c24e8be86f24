package sim

import (
	"errors"
	"strings"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
	agentspec "github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/sched"
)

var errNoNode = errors.New("the node is not registered")

// machine is a node: power, agent, engine, disk and fencers. Its agent is the real core. The machine gives
// it a virtual clock and engine, and messages that may be lost.
type machine struct {
	proc      // the agent's process
	power     proc
	w         *world
	idx       int
	id        string
	key       *pki.Key // names specifications
	offset    int64    // of its clock
	drift     int64    // parts in a million
	condemned bool     // an operator said that it is dead: it must not come back with its disk
	sentenced bool     // the operator has the answer to that
	fencing   bool     // an operator is fencing it because its registration was refused
	cpu, mem  int64
	zone      string
	up, down  []bool // by replica: is the way to it, from it, cut?

	disk    *disk
	engine  *engine
	fencers fencers
	made    int // engines it has had

	// Memory of the agent's process.
	core      core.State
	armed     int // counts Arms; the last one holds
	cancelled map[*core.Act]bool
	unsaved   map[string]bool
	renewal   lease.Renewal
	telling   bool
	looking   bool
	session   session
}

// disk is what an agent has made durable.
type disk struct {
	instance string
	meta     core.Meta
	intents  map[string]*core.Intent
	tasks    map[string]*core.Task
	tombs    map[string]*core.Tombstone
	status   map[string]core.SavedStatus

	// What the simulator itself remembers of what this agent has seen and acknowledged.
	sawEpoch     core.Epoch
	sawApply     map[string]driver.Generation
	sawTombstone map[string]driver.Generation
	acknowledged map[string]driver.Generation
}

func newDisk(w *world, id string) *disk {
	w.users.instances++
	instance := id + "-" + string(rune('a'+w.users.instances%26)) + string(rune('a'+w.users.instances/26))
	return &disk{
		instance: instance, meta: core.Meta{InstanceID: instance, Node: id},
		intents: map[string]*core.Intent{}, tasks: map[string]*core.Task{}, tombs: map[string]*core.Tombstone{},
		status: map[string]core.SavedStatus{}, sawApply: map[string]driver.Generation{},
		sawTombstone: map[string]driver.Generation{}, acknowledged: map[string]driver.Generation{},
	}
}

// write carries out a Store effect.
func (d *disk) write(e core.Store) {
	if e.Meta != nil {
		d.meta = *e.Meta
	}
	for _, in := range e.Intents {
		d.intents[in.ID] = in
	}
	for _, id := range e.Forget {
		delete(d.intents, id)
		delete(d.status, id)
	}
	for _, t := range e.Tasks {
		d.tasks[t.ID] = t
	}
	for _, t := range e.DropTasks {
		delete(d.tasks, t.ID)
	}
	for _, t := range e.Tombstones {
		d.tombs[t.ID] = t
	}
	for _, id := range e.DropTombstones {
		delete(d.tombs, id)
	}
}

// saved is the disk as an agent's process reads it.
func (d *disk) saved() core.Saved {
	out := core.Saved{Meta: d.meta, Status: d.status}
	for _, id := range keys(d.intents) {
		out.Intents = append(out.Intents, d.intents[id])
	}
	for _, id := range keys(d.tasks) {
		out.Tasks = append(out.Tasks, d.tasks[id])
	}
	for _, id := range keys(d.tombs) {
		out.Tombstones = append(out.Tombstones, d.tombs[id])
	}
	return out
}

// keeps reports whether the disk shows that an order of a generation was taken: it has that order, a newer
// one, or the tombstone of one.
func (d *disk) keeps(id string, g driver.Generation) bool {
	in, t := d.intents[id], d.tombs[id]
	return in != nil && !in.Generation.Less(g) || t != nil && !t.Generation.Less(g)
}

func (m *machine) now() time.Time { return m.time(m.w.now) }

func (m *machine) settings() core.Settings {
	return core.Settings{
		Node: m.id, Fencer: m.w.has(Fencers), Concurrency: 32, StopGrace: 30 * time.Second,
		Policy: core.Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second},
	}
}

// boot starts the agent's process from its disk.
func (m *machine) boot() {
	if m.alive || !m.power.alive {
		return
	}
	w := m.w
	m.alive, m.looking, m.telling = true, false, false
	m.cancelled, m.unsaved = map[*core.Act]bool{}, map[string]bool{}
	m.session = session{lease: 30 * sec, interval: 10 * sec}
	for _, id := range keys(m.disk.acknowledged) {
		if g := m.disk.acknowledged[id]; !m.disk.keeps(id, g) {
			w.violate("durable", id, m.id, "the agent acknowledged an order of generation %s, and its disk has none of it", g)
		}
	}
	if w.cfg.Sabotage == NoDurableEpoch {
		m.disk.meta.Epoch = core.Epoch{ClusterID: m.disk.meta.Epoch.ClusterID}
	}
	m.core = core.Restore(m.settings(), m.disk.saved(), m.now())
	w.tracef("", m.id, "agent starts, %d intents", len(m.disk.intents))
	m.do(core.Engines{Cluster: clusterID, Kinds: []workload.Kind{workload.Container}})
	m.meetFencer()
	w.after(w.between(50, 800)*ms, &m.proc, func() {
		m.do(core.Start{})
		m.sweep()
		m.converse()
	})
}

// do gives the core an event and carries out the effects, in their order. With AgentCrash the process may
// die between two effects.
func (m *machine) do(e core.Event) (answer core.Answer) {
	w := m.w
	next, effects := core.Step(m.core, core.Input{Now: m.now(), Clock: time.Duration(m.local(w.now)), Event: e})
	m.core = next
	if w.cfg.Sabotage == AnswerBeforeStore && len(effects) > 1 {
		if s, ok := effects[0].(core.Store); ok {
			effects = append(effects[1:], s)
		}
	}
	answered := false
	for _, e := range effects {
		switch e := e.(type) {
		case core.Store:
			m.disk.write(e)
		case core.Answer:
			answer, answered = e, true
		default:
			m.effect(e)
		}
		if answered && w.has(AgentCrash) && !w.calm && w.chance(3) {
			m.die("crash after an answer")
			w.after(w.between(500, 10000)*ms, &m.power, m.boot)
			return answer
		}
	}
	return answer
}

func (m *machine) effect(e core.Effect) {
	w := m.w
	switch e := e.(type) {
	case *core.Act:
		m.act(e)
	case core.Cancel:
		m.cancelled[e.Act] = true
	case core.Arm:
		m.armed++
		if turn := m.armed; !e.At.IsZero() {
			w.after(max(0, int64(e.At.Sub(m.now())))+w.between(1, 5)*ms, &m.proc, func() {
				if m.armed == turn {
					m.do(core.Tick{})
				}
			})
		}
	case core.Renew:
		m.renewal = e.Renewal
	case core.TellFencer:
		m.tellFencer(1)
	case core.Changed:
		if e.ID != "" {
			m.save(e.ID)
		}
		m.signal()
	}
}

// save stores a report and its failures within half a second, together with others.
func (m *machine) save(id string) {
	m.unsaved[id] = true
	if len(m.unsaved) > 1 {
		return
	}
	m.w.after(500*ms, &m.proc, func() {
		for _, id := range keys(m.unsaved) {
			if x := m.core.Get(id); x != nil && x.Intent != nil && x.Status != nil {
				m.disk.status[id] = core.SavedStatus{Status: x.Status, Failure: x.Failure}
			}
		}
		clear(m.unsaved)
	})
}

// act carries out an Act on the engine.
func (m *machine) act(a *core.Act) {
	w := m.w
	if a.Verb == core.Look {
		w.after(w.between(2, 40)*ms, &m.proc, func() {
			m.do(core.Done{Act: a, Observed: m.engine.list()[a.ID], Began: m.now()})
		})
		return
	}
	sp := spec{id: a.ID}
	if in := a.Intent; in != nil {
		flavour, ports := w.users.flavourOf(in.Content)
		sp = spec{
			id: a.ID, content: in.EngineContent, revision: in.RevisionID, generation: in.Generation, running: in.Running(),
			flavour: flavour, ports: ports,
		}
		w.tracef(a.ID, m.id, "agent: %s %s", a.Verb, in.Generation)
	}
	if a.Guarded {
		sp.may = func() bool { return !m.cancelled[a] }
	}
	m.engine.do(a.Verb.String(), sp, func(err error) {
		if a.Verb == core.Remove && err == nil {
			m.list() // a later list must not bring the instance back
		}
		done := core.Done{Act: a}
		if err != nil {
			done.Failed = &core.Failed{Class: driver.ClassOf(err), Message: err.Error()}
		}
		delete(m.cancelled, a)
		m.do(done)
	})
}

// sweep looks at everything now and then.
func (m *machine) sweep() {
	m.list()
	m.do(core.Prune{})
	m.w.after(30*sec, &m.proc, m.sweep)
}

// look lists the engine after an event.
func (m *machine) look() {
	if !m.looking {
		m.looking = true
		m.w.after(m.w.between(5, 60)*ms, &m.proc, func() {
			m.looking = false
			m.list()
		})
	}
}

// list tells the core everything that is on the engine.
func (m *machine) list() {
	seen := m.engine.list()
	l := core.Listed{Kind: workload.Container, Began: m.now()}
	if e, ok := m.core.Engine(l.Kind); ok {
		l.Bound = e.Bound
	}
	for _, id := range keys(seen) {
		l.Seen = append(l.Seen, *seen[id])
	}
	m.do(l)
}

// sender is the sender of an order, changed so that sabotaged fences let it pass.
func (m *machine) sender(s core.Sender) core.Sender {
	if known := m.core.Meta.Epoch; m.w.cfg.Sabotage == NoEpochFence && s.Epoch != nil && s.Epoch.Less(known) {
		s.Epoch = &known
	}
	if m.w.cfg.Sabotage == NoInstanceFence {
		s.Instance = ""
	}
	return s
}

// generation is that of an order, raised so that a sabotaged fence lets it pass.
func (m *machine) generation(id string, g driver.Generation) driver.Generation {
	s, in, t := m.w.cfg.Sabotage, m.core.Intent(id), m.core.Tombstone(id)
	if in != nil && s == NoGenerationFence && g.Less(in.Generation) {
		g = in.Generation
	}
	if t != nil && (s == NoGenerationFence || s == NoTombstones && in == nil) && !t.Generation.Less(g) {
		g = t.Generation
		g.Sequence++
	}
	return g
}

// apply is the agent's ApplyWorkload.
func (m *machine) apply(req *agentv1.ApplyWorkloadRequest) sched.Ack {
	w, id := m.w, req.GetId()
	order, err := agentspec.Order(m.key, req)
	if err != nil {
		w.violate("simulator", id, m.id, "order: %v", err)
		return sched.Ack{}
	}
	sent, by := order.Generation, *order.Epoch
	order.Sender, order.Generation = m.sender(order.Sender), m.generation(id, sent)
	if ack, ok := m.fumble(order); ok {
		return ack
	}
	answer := m.do(core.Apply{Order: order})
	if answer.Retry && m.alive {
		m.renewLease()
		answer = m.do(core.Apply{Order: order})
	}
	switch no := answer.Refusal; {
	case no != nil:
		w.tracef(id, m.id, "agent: refuses an apply: %s", no.Message)
		ack := sched.Ack{Fenced: no.Fenced, Refused: !no.Fenced, Code: string(driver.InvalidSpecification), Message: no.Message}
		if m.core.Draining && m.core.Intent(id) == nil {
			ack.Refused = false // rpc returns an error, and the order is tried again
		}
		return ack
	case answer.Unavailable != "":
		w.tracef(id, m.id, "agent: takes no apply now: %s", answer.Unavailable)
		return sched.Ack{Code: string(driver.RuntimeUnhealthy), Message: answer.Unavailable}
	}
	m.obeyed(by, id, sent, true)
	m.disk.acknowledged[id] = sent
	if answer.Skipped {
		w.tracef(id, m.id, "agent: apply %s, unchanged", sent)
		return sched.Ack{Accepted: true, Skipped: true, State: actualOf(answer.Status.State), Message: answer.Status.Message}
	}
	w.tracef(id, m.id, "agent: apply %s %s", sent, answer.Intent.DesiredState)
	return sched.Ack{Accepted: true, State: fsm.ActualPending, Message: answer.Message}
}

// fumble is an agent that refuses a stop, or accepts it and forgets it.
func (m *machine) fumble(o core.Order) (sched.Ack, bool) {
	w := m.w
	if !w.has(StopTrouble) || w.calm || o.Running {
		return sched.Ack{}, false
	}
	_, effects := core.Step(m.core, core.Input{Now: m.now(), Clock: time.Duration(m.local(w.now)), Event: core.Apply{Order: o}})
	for _, e := range effects {
		if a, ok := e.(core.Answer); ok && a.Refusal != nil {
			return sched.Ack{}, false
		}
	}
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.tracef(o.ID, m.id, "agent: refuses a stop")
		return sched.Ack{Refused: true, Code: string(driver.RuntimeError), Message: "cannot stop it"}, true
	case n < 50:
		w.tracef(o.ID, m.id, "agent: forgets a stop")
		return sched.Ack{Accepted: true, State: fsm.ActualPending, Message: "queued"}, true
	}
	return sched.Ack{}, false
}

// remove is the agent's DeleteWorkload.
func (m *machine) remove(req *agentv1.DeleteWorkloadRequest) sched.Ack {
	w, id := m.w, req.GetId()
	order, err := agentspec.Delete(req)
	if err != nil {
		w.violate("simulator", id, m.id, "delete: %v", err)
		return sched.Ack{}
	}
	sent, by := order.Generation, *order.Epoch
	order.Sender = m.sender(order.Sender)
	if in := m.core.Intent(id); in != nil && w.cfg.Sabotage == NoGenerationFence && sent.Less(in.Generation) {
		order.Generation = in.Generation
	}
	answer := m.do(order)
	if no := answer.Refusal; no != nil {
		w.tracef(id, m.id, "agent: refuses a delete: %s", no.Message)
		return sched.Ack{Fenced: no.Fenced, Message: no.Message}
	}
	m.obeyed(by, id, sent, false)
	m.disk.acknowledged[id] = sent
	w.tracef(id, m.id, "agent: delete %s: %s", sent, answer.Message)
	return sched.Ack{Accepted: true, Gone: answer.Absent}
}

// hear gives the core the epoch of an answer. It reports false if the answer does not count.
func (m *machine) hear(e fsm.Epoch) bool {
	from := m.sender(core.Sender{Epoch: &core.Epoch{ClusterID: clusterID, Incarnation: e.Incarnation, Term: e.Term}})
	if no := m.do(core.Heard{ClusterID: clusterID, Epoch: from.Epoch}).Refusal; no != nil {
		m.w.tracef("", m.id, "agent: an answer of epoch %s does not count: %s", e, no.Message)
		return false
	}
	got := core.Epoch{ClusterID: clusterID, Incarnation: e.Incarnation, Term: e.Term}
	if got.Less(m.disk.sawEpoch) {
		m.w.violate("epoch", "", m.id, "the agent believes an answer of epoch %s after it has seen %s", got, m.disk.sawEpoch)
	}
	if m.disk.sawEpoch.ClusterID == "" || m.disk.sawEpoch.Less(got) {
		m.disk.sawEpoch = got
	}
	return m.alive
}

// leased tells the core of its lease.
func (m *machine) leased() { m.do(core.Leased{Until: time.Duration(m.session.until)}) }

func (m *machine) drain(on bool) { m.do(core.Drain{On: on}) }

func actualOf(s workload.State) fsm.Actual {
	switch s {
	case workload.Pending:
		return fsm.ActualPending
	case workload.Running:
		return fsm.ActualRunning
	case workload.Stopped:
		return fsm.ActualStopped
	case workload.Failed:
		return fsm.ActualFailed
	}
	return fsm.ActualUnknown
}

// reported is a report as the schedulers get it.
func (m *machine) reported(x *core.Workload) sched.Reported {
	st := x.Status
	return sched.Reported{Workload: x.ID, Observation: fsm.Observation{
		State: actualOf(st.State), Generation: fsm.Generation(st.Generation), Code: string(st.Class),
		Message: st.Message, Retryable: !st.Class.Permanent(), At: m.local(m.w.now),
	}}
}

// changes are the reports newer than a version, or all, and the version reached.
func (m *machine) changes(full bool, after uint64) ([]sched.Reported, uint64) {
	var out []sched.Reported
	changed, gone := m.core.Changes(full, true, after, m.now())
	for _, x := range changed {
		out = append(out, m.reported(x))
	}
	for _, t := range gone {
		out = append(out, sched.Reported{Workload: t.ID, Gone: true, Observation: fsm.Observation{
			State: fsm.ActualUnknown, Generation: fsm.Generation(t.Generation), Message: "deleted", At: m.local(m.w.now),
		}})
	}
	return out, m.core.Version
}

// die ends the agent's process; its engine goes on.
func (m *machine) die(why string) {
	if m.alive {
		m.w.tracef("", m.id, "agent dies: %s", why)
		m.kill()
	}
}

// off takes the power away: everything that ran there has ended.
func (m *machine) off() {
	if !m.power.alive {
		return
	}
	m.w.tracef("", m.id, "power is lost")
	m.kill()
	m.power.kill()
	clear(m.engine.busy)
	for _, id := range keys(m.engine.has) {
		if i := m.engine.has[id]; i.state == driver.Running {
			i.state, i.finished, i.exit = driver.Failed, m.w.now, 137
			m.w.tracef(id, m.id, "ENDS (power)")
		}
	}
}

// on brings a machine back, wiped if asked for.
func (m *machine) on(wiped bool) {
	if m.power.alive {
		return
	}
	w := m.w
	m.power.alive = true
	m.fencers = newFencers()
	if wiped {
		m.disk, m.engine.has = newDisk(w, m.id), map[string]*instance{}
		m.made++
	}
	m.condemned = false
	w.tracef("", m.id, "power is back, wiped %t", wiped)
	// Some engines start again what ran before the power was lost, except exclusive workloads: drivers make
	// those so that only an agent starts them.
	if w.chance(300) {
		for _, id := range keys(m.engine.has) {
			if i := m.engine.has[id]; i.exit == 137 && !strings.HasPrefix(i.flavour, "bad") && !exclusive(id) {
				i.exit = 0
				m.engine.start(i)
			}
		}
	}
	w.after(w.between(200, 5000)*ms, &m.power, m.boot)
}
