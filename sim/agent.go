package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
	agentmessage "github.com/persys/compute/agent/message"
	"github.com/persys/compute/agent/session/heartbeat"
	agentspec "github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
)

var errNoNode = errors.New("the node is not registered")

// machine is a simulated node: power, agent, engine, disk and fencers. Its agent is the real core of the
// agent. The machine gives the core a virtual clock, a virtual engine, and messages that may be lost.
type machine struct {
	proc      // the agent's process
	power     proc
	w         *world
	idx       int
	id        string
	key       *pki.Key // key for the content hashes of specifications
	offset    int64    // nanoseconds by which the machine's clock is ahead of the virtual time
	drift     int64    // error of the speed of the machine's clock, in parts per million
	condemned bool     // an operator has declared the machine dead, so it must not come back with its old disk
	sentenced bool     // the operator has received the answer to the call that fenced or removed the node
	fencing   bool     // an operator is fencing the node, because the registration of the machine was refused
	cpu, mem  int64
	zone      string
	full      int64  // virtual time until which the machine can start nothing
	up, down  []bool // for each replica: whether messages to the replica, or from it, are lost

	disk    *disk
	engine  *engine
	fencers fencers
	made    int // number of engines that the machine has had; a wiped machine gets a new one

	// Memory of the agent's process, which is lost when the process ends:
	core      core.State
	armed     int // number of timers that the core has set so far; only the last timer counts
	cancelled map[*core.Act]bool
	unsaved   map[string]bool
	renewal   lease.Renewal
	telling   bool
	looking   bool
	session   session
}

// disk holds the data that an agent has written to its disk.
type disk struct {
	instance string
	meta     core.Meta
	intents  map[string]*core.Intent
	tasks    map[string]*core.Task
	tombs    map[string]*core.Tombstone
	status   map[string]core.SavedStatus

	// The next fields are kept by the simulator, for its checks: the epochs and orders that the agent
	// has accepted and acknowledged.
	sawEpoch     core.Epoch
	sawApply     map[string]driver.Generation
	sawTombstone map[string]driver.Generation
	acknowledged map[string]driver.Generation
	ordered      map[string]ordered
}

func newDisk(w *world, id string) *disk {
	w.users.instances++
	instance := id + "-" + string(rune('a'+w.users.instances%26)) + string(rune('a'+w.users.instances/26))
	return &disk{
		instance: instance, meta: core.Meta{InstanceID: instance, Node: id},
		intents: map[string]*core.Intent{}, tasks: map[string]*core.Task{}, tombs: map[string]*core.Tombstone{},
		status: map[string]core.SavedStatus{}, sawApply: map[string]driver.Generation{},
		sawTombstone: map[string]driver.Generation{}, acknowledged: map[string]driver.Generation{},
		ordered: map[string]ordered{},
	}
}

// write carries out a Store effect of the core: it writes to the disk.
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

// saved returns the content of the disk as the agent's process reads it when it starts.
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

// keeps reports whether the disk proves that the agent accepted the order with generation g: the disk has
// an order with this or a newer generation, or a tombstone of such an order.
func (d *disk) keeps(id string, g driver.Generation) bool {
	in, t := d.intents[id], d.tombs[id]
	return in != nil && !in.Generation.Less(g) || t != nil && !t.Generation.Less(g)
}

func (m *machine) now() time.Time { return m.time(m.w.now) }

func (m *machine) settings() core.Settings {
	return core.Settings{
		Node: m.id, Fencer: m.w.has(Fencers), Concurrency: 32,
		Policy: core.Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second},
	}
}

// boot starts the agent's process with the content of its disk.
func (m *machine) boot() {
	if m.alive || !m.power.alive {
		return
	}
	w := m.w
	m.alive, m.looking, m.telling = true, false, false
	m.cancelled, m.unsaved = map[*core.Act]bool{}, map[string]bool{}
	m.session = session{State: heartbeat.New()}
	w.oracle.engines[m.disk.instance] = m.made
	for _, id := range keys(m.disk.acknowledged) {
		if g := m.disk.acknowledged[id]; !m.disk.keeps(id, g) {
			w.violate("durable", id, m.id, "the agent acknowledged an order of generation %s, but its disk does not have the order", g)
		}
	}
	if w.cfg.Sabotage == NoDurableEpoch {
		m.disk.meta.Epoch = core.Epoch{ClusterID: m.disk.meta.Epoch.ClusterID}
	}
	if w.cfg.Sabotage == ExitsForgotten {
		m.forgetsExits()
	}
	m.core = core.Restore(m.settings(), m.disk.saved(), m.now())
	w.tracef("", m.id, "the agent starts with %d stored orders", len(m.disk.intents))
	m.do(core.Engines{Cluster: m.label(), Kinds: []workload.Kind{workload.Container}})
	m.meetFencer()
	w.after(w.between(50, 800)*ms, &m.proc, func() {
		m.do(core.Start{})
		m.probe()
		if m.w.has(Hiccups) {
			m.probes()
		}
		m.sweep()
		m.converse()
	})
}

// do passes an event to the core and carries out the effects in order. With the fault AgentCrash the process
// may end between two effects.
func (m *machine) do(e core.Event) (answer core.Answer) {
	answer, err := m.try(e)
	if err != nil {
		m.w.tracef("", m.id, "agent: %T is lost: %v", e, err)
	}
	return answer
}

// try does the same as do, and returns an error if the event could not be stored, so that its sender learns it.
func (m *machine) try(e core.Event) (answer core.Answer, err error) {
	w := m.w
	next, effects := core.Step(m.core, core.Input{Now: m.now(), Clock: time.Duration(m.local(w.now)), Event: e})
	if len(effects) > 0 {
		if s, ok := effects[0].(core.Store); ok && w.cfg.Sabotage != AnswerBeforeStore {
			if err := m.write(s); err != nil {
				return core.Answer{}, err
			}
			effects = effects[1:]
		}
	}
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
			m.die("the agent dies after it has answered an order")
			w.after(w.between(500, 10000)*ms, &m.power, m.boot)
			return answer, nil
		}
	}
	return answer, nil
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
	case core.Rebind:
		m.rebind(e.Cluster)
	case core.Register:
		m.session.stale = true
		m.signal()
	case core.Changed:
		if e.ID != "" {
			m.save(e.ID)
		}
		m.signal()
	}
}

// save writes a report and its failures to the disk half a second later, together with other reports.
func (m *machine) save(id string) {
	m.unsaved[id] = true
	if len(m.unsaved) > 1 {
		return
	}
	m.w.after(500*ms, &m.proc, func() {
		for _, id := range keys(m.unsaved) {
			if x := m.core.Get(id); x != nil && x.Intent != nil && x.Status != nil {
				m.disk.status[id] = core.SavedStatus{Status: x.Status, Failure: x.Failure, Healing: x.Healing}
			}
		}
		clear(m.unsaved)
	})
}

// act carries out an Act effect of the core on the engine.
func (m *machine) act(a *core.Act) {
	w := m.w
	if m.engine.hangs() {
		m.muted(a)
		return
	}
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
	if a.Leased {
		sp.may = func() bool { return !m.cancelled[a] }
	}
	if a.Ends {
		m.engine.do("halt", sp, func(err error) {
			if err != nil {
				m.acted(a, nil, err)
				return
			}
			last := m.engine.list()[a.ID]
			m.engine.do("remove", sp, func(err error) { m.acted(a, last, err) })
		})
		return
	}
	m.engine.do(a.Verb.String(), sp, func(err error) { m.acted(a, nil, err) })
}

// acted passes the end of an action to the core. If the action stops an instance and then removes
// it, last describes the stopped instance; otherwise last is nil.
func (m *machine) acted(a *core.Act, last *driver.Observed, err error) {
	if a.Verb == core.Remove && err == nil {
		m.list() // a list of instances that was read before the act must not bring the instance back
	}
	done := core.Done{Act: a, Observed: last}
	if err != nil {
		done.Failed = &core.Failed{Class: driver.ClassOf(err), Message: err.Error(), Started: driver.StartedOf(err)}
	}
	delete(m.cancelled, a)
	m.do(done)
}

// probe passes the id and the devices of the engine to the core.
func (m *machine) probe() {
	if m.engine.hangs() {
		m.do(core.Probed{Kind: workload.Container, Reason: "the engine does not answer"})
		return
	}
	p := core.Probed{Kind: workload.Container, EngineID: fmt.Sprintf("%s/%d", m.id, m.made), Healthy: true}
	if m.w.has(Placement) {
		p.Devices = map[string]int64{device: m.cpu / 1000}
	}
	m.do(p)
}

// probes probes the engine periodically.
func (m *machine) probes() {
	m.w.after(10*sec, &m.proc, func() {
		m.probe()
		m.probes()
	})
}

// sweep makes the core inspect all workloads periodically.
func (m *machine) sweep() {
	m.list()
	m.do(core.Prune{})
	m.w.after(30*sec, &m.proc, m.sweep)
}

// look makes the agent list the instances of the engine after an instance has changed.
func (m *machine) look() {
	if !m.looking {
		m.looking = true
		m.w.after(m.w.between(5, 60)*ms, &m.proc, func() {
			m.looking = false
			m.list()
		})
	}
}

// list passes all instances of the engine to the core.
func (m *machine) list() {
	seen := m.engine.list()
	l := core.Listed{Kind: workload.Container, Began: m.now()}
	if e, ok := m.core.Engine(l.Kind); ok {
		l.Bound = e.Bound
	}
	if m.engine.hangs() {
		seen, l.Trouble = nil, "the engine does not answer"
	}
	for _, id := range keys(seen) {
		l.Seen = append(l.Seen, *seen[id])
	}
	m.do(l)
}

// sender returns the sender of an order. In a run in which the epoch check is switched off on purpose
// (Sabotage), it changes the sender so that the order passes the check.
func (m *machine) sender(s core.Sender) core.Sender {
	if known := m.core.Meta.Epoch; m.w.cfg.Sabotage == NoEpochFence && s.Epoch != nil && s.Epoch.Less(known) {
		s.Epoch = &known
	}
	if m.w.cfg.Sabotage == NoInstanceFence {
		s.Instance = ""
	}
	return s
}

// generation returns the generation of an order. In a run in which the generation check is switched off on
// purpose (Sabotage), it raises the generation so that the order passes the check.
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

// apply is the agent's API method ApplyWorkload.
func (m *machine) apply(req *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	w, id := m.w, req.GetId()
	order, err := agentspec.Order(m.key, req)
	if err != nil {
		w.violate("simulator", id, m.id, "order: %v", err)
		return nil, errRefused
	}
	sent, by := order.Generation, *order.Epoch
	order.Sender, order.Generation = m.sender(order.Sender), m.generation(id, sent)
	if resp := m.fumble(order); resp != nil {
		return resp, nil
	}
	answer, err := m.try(core.Apply{Order: order})
	if answer.Retry && m.alive {
		m.renewLease()
		answer, err = m.try(core.Apply{Order: order})
	}
	switch {
	case err != nil:
		w.tracef(id, m.id, "agent: cannot store an apply")
		return nil, errRefused
	case answer.Refusal != nil:
		w.tracef(id, m.id, "agent: refuses an apply: %s", answer.Refusal.Message)
	case answer.Unavailable != "":
		w.tracef(id, m.id, "agent: cannot take an apply now: %s", answer.Unavailable)
		return nil, errRefused
	default:
		m.obeyed(by, id, sent, true)
		if run := answer.Intent.Run; m.disk.ordered[id].run != run {
			m.disk.ordered[id] = ordered{run, w.now}
		}
		m.disk.acknowledged[id] = sent
		w.tracef(id, m.id, "agent: apply %s %s, skipped %t", sent, answer.Intent.DesiredState, answer.Skipped)
	}
	return agentmessage.Applied(req, answer, m.core.Meta.Epoch), nil
}

// fumble lets an agent refuse an order to stop, or accept it and forget it (fault StopTrouble);
// nil if it does neither.
func (m *machine) fumble(o core.Order) *agentv1.ApplyWorkloadResponse {
	w := m.w
	if !w.has(StopTrouble) || w.calm || o.Running {
		return nil
	}
	_, effects := core.Step(m.core, core.Input{Now: m.now(), Clock: time.Duration(m.local(w.now)), Event: core.Apply{Order: o}})
	for _, e := range effects {
		if a, ok := e.(core.Answer); ok && a.Refusal != nil {
			return nil
		}
	}
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.tracef(o.ID, m.id, "agent: refuses a stop")
		return &agentv1.ApplyWorkloadResponse{Message: "cannot stop it", Status: &agentv1.WorkloadStatus{
			Id: o.ID, Metadata: map[string]string{"failure_reason": string(driver.RuntimeError)},
		}}
	case n < 50:
		w.tracef(o.ID, m.id, "agent: forgets a stop")
		return &agentv1.ApplyWorkloadResponse{Applied: true, Status: &agentv1.WorkloadStatus{
			Id: o.ID, ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING, Message: "queued",
		}}
	}
	return nil
}

// remove is the agent's API method DeleteWorkload.
func (m *machine) remove(req *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
	w, id := m.w, req.GetId()
	order, err := agentspec.Delete(req)
	if err != nil {
		w.violate("simulator", id, m.id, "delete: %v", err)
		return nil, errRefused
	}
	sent, by := order.Generation, *order.Epoch
	order.Sender = m.sender(order.Sender)
	if in := m.core.Intent(id); in != nil && w.cfg.Sabotage == NoGenerationFence && sent.Less(in.Generation) {
		order.Generation = in.Generation
	}
	answer, err := m.try(order)
	if err != nil {
		w.tracef(id, m.id, "agent: cannot store a delete")
		return nil, errRefused
	}
	if no := answer.Refusal; no != nil {
		w.tracef(id, m.id, "agent: refuses a delete: %s", no.Message)
	} else {
		m.obeyed(by, id, sent, false)
		m.disk.acknowledged[id] = sent
		w.tracef(id, m.id, "agent: delete %s: %s", sent, answer.Message)
	}
	return agentmessage.Deleted(answer, m.core.Meta.Epoch), nil
}

// hear passes the epoch in a scheduler's answer to the core. It returns false if the agent must ignore the
// answer.
func (m *machine) hear(msg *controlv1.Epoch) bool {
	got := *agentspec.Epoch(msg)
	from := m.sender(core.Sender{Epoch: &got})
	answer, err := m.try(core.Heard{ClusterID: msg.GetClusterId(), Epoch: from.Epoch})
	if err != nil {
		return false
	}
	if no := answer.Refusal; no != nil {
		m.w.tracef("", m.id, "agent: an answer of epoch %s is ignored: %s", got, no.Message)
		return false
	}
	if got.Less(m.disk.sawEpoch) {
		m.w.violate("epoch", "", m.id, "the agent accepts an answer of epoch %s after it has seen epoch %s", got, m.disk.sawEpoch)
	}
	if m.disk.sawEpoch.ClusterID == "" || m.disk.sawEpoch.Less(got) {
		m.disk.sawEpoch = got
	}
	return m.alive
}

// leased tells the core when its lease ends.
func (m *machine) leased() { m.do(core.Leased{Until: time.Duration(m.session.until())}) }

func (m *machine) drain(on bool) { m.do(core.Drain{On: on}) }

// die ends the agent's process. Its engine keeps running.
func (m *machine) die(why string) {
	if m.alive {
		m.w.tracef("", m.id, "agent dies: %s", why)
		m.kill()
	}
}

// off models a power failure of a machine: all instances on it end.
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

// on switches a machine on again, with an empty disk if wipe is set.
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
	// Some engines restart the instances that ran before the power failure. They never restart jobs,
	// whose restart policy is no, and exclusive workloads, because drivers create these so that only the agent can start
	// them.
	if w.chance(300) {
		for _, id := range keys(m.engine.has) {
			if i := m.engine.has[id]; i.exit == 137 && !strings.HasPrefix(i.flavour, "bad") && !isJob(i.flavour) && !exclusive(id) {
				i.exit = 0
				m.engine.start(i)
			}
		}
	}
	w.after(w.between(200, 5000)*ms, &m.power, m.boot)
}
