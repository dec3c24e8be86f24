package sim

import (
	"errors"
	"strings"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	edge "github.com/persys/compute/spec"
)

var errNoNode = errors.New("the node is not registered")

// machine is a node: power, agent, engine, disk.
type machine struct {
	proc      // the agent's process
	power     proc
	w         *world
	idx       int
	id        string
	rules     agent.Rules
	offset    int64 // of its clock
	drift     int64 // parts in a million
	condemned bool  // an operator took it for dead: it must not come back as it was
	sentenced bool  // and was told that this is so
	fencing   bool  // an operator does what a refused registration says
	cpu, mem  int64
	zone      string
	up, down  []bool // by replica: is the way to it, from it, cut?

	disk   *disk
	engine *engine
	guards guards
	made   int // engines it has had

	// Memory of the agent's process.
	work     map[string]*work
	version  uint64
	draining bool
	looking  bool
	listed   bool // the engine has been asked since the start
	session  session
}

// disk is what an agent has made durable. It is never changed in part.
type disk struct {
	instance string
	epoch    agent.Epoch
	intents  map[string]*agent.Intent
	open     map[string]bool // an order whose task has not ended
	tombs    map[string]*agent.Tombstone
	fails    map[string]agent.Failure
	tombAt   map[string]uint64 // version of the last change to report

	// What the simulator itself remembers of what this agent has seen.
	sawEpoch     agent.Epoch
	sawApply     map[string]driver.Generation
	sawTombstone map[string]driver.Generation
}

// work is what an agent knows of one workload.
type work struct {
	id       string
	observed *driver.Observed
	agent.Memory
	busy    bool
	again   bool
	due     int64
	version uint64
	said    said
}

// said is what was last reported.
type said struct {
	state      agentv1.ActualState
	class      driver.Class
	message    string
	generation driver.Generation
	some       bool
}

func newDisk(w *world, id string) *disk {
	w.users.instances++
	return &disk{
		instance: id + "-" + string(rune('a'+w.users.instances%26)) + string(rune('a'+w.users.instances/26)),
		intents:  map[string]*agent.Intent{}, open: map[string]bool{}, tombs: map[string]*agent.Tombstone{},
		fails: map[string]agent.Failure{}, tombAt: map[string]uint64{},
		sawApply: map[string]driver.Generation{}, sawTombstone: map[string]driver.Generation{},
	}
}

func (m *machine) now() time.Time { return m.time(m.w.now) }

// boot starts the agent's process from its disk.
func (m *machine) boot() {
	if m.alive || !m.power.alive {
		return
	}
	w := m.w
	m.alive, m.work, m.version, m.draining, m.looking, m.listed = true, map[string]*work{}, 0, false, false, false
	m.session = session{lease: 30 * sec, interval: 10 * sec}
	if w.cfg.Sabotage == NoDurableEpoch {
		m.disk.epoch = agent.Epoch{ClusterID: m.disk.epoch.ClusterID}
	}
	clear(m.disk.tombAt)
	for _, id := range keys(m.disk.intents) {
		k := m.of(id)
		k.Memory = agent.Memory{Asked: m.disk.open[id], Waits: m.rules.WaitsAfterRestart(m.disk.intents[id]), Failure: m.disk.fails[id]}
	}
	w.tracef("", m.id, "agent starts, %d intents", len(m.disk.intents))
	m.meetGuard()
	w.after(w.between(50, 800)*ms, &m.proc, func() {
		m.absorb()
		for _, id := range keys(m.disk.intents) {
			m.kick(id, 0)
		}
		for _, id := range keys(m.disk.tombs) {
			if !m.disk.tombs[id].Done {
				m.kick(id, 0)
			}
		}
		m.sweep()
		m.converse()
	})
}

func (m *machine) of(id string) *work {
	k := m.work[id]
	if k == nil {
		k = &work{id: id}
		m.work[id] = k
	}
	return k
}

// sweep looks at everything now and then.
func (m *machine) sweep() {
	m.w.after(30*sec, &m.proc, func() {
		m.absorb()
		m.sweep()
	})
}

// look is what an engine's hint leads to.
func (m *machine) look() {
	if !m.looking {
		m.looking = true
		m.w.after(m.w.between(5, 60)*ms, &m.proc, func() {
			m.looking = false
			m.absorb()
		})
	}
}

// absorb takes over what the engine lists and asks for the work that follows.
func (m *machine) absorb() {
	seen := m.engine.list()
	m.listed = true
	for _, id := range keys(seen) {
		o := seen[id]
		k := m.work[id]
		if k == nil {
			k = m.of(id)
			if t := m.disk.tombs[id]; t != nil && !t.Generation.Less(o.Generation) && m.disk.intents[id] == nil {
				again := *t
				again.Done = false
				m.disk.tombs[id] = &again
				m.kick(id, 0)
			}
		}
		k.observed = o
	}
	for _, id := range keys(m.work) {
		k := m.work[id]
		if seen[id] == nil {
			k.observed = nil
			if m.disk.intents[id] == nil && !k.busy {
				delete(m.work, id)
				continue
			}
		}
		if in := m.disk.intents[id]; in != nil {
			do, until := m.consider(k, in)
			m.schedule(k, do, until)
		}
		m.publish(k)
	}
}

// consider is the agent's own decision.
func (m *machine) consider(k *work, in *agent.Intent) (string, time.Time) {
	do, until, after := m.rules.Next(in, k.Memory, k.observed, m.now())
	k.Memory = after
	return do, until
}

func (m *machine) schedule(k *work, do string, until time.Time) {
	switch do {
	case "nothing":
		if o := k.observed; o != nil && o.State == driver.Running && k.Failure.Attempts > 0 {
			m.kick(k.id, max(sec, int64(o.StartedAt.Add(30*time.Second).Sub(m.now()))))
		}
	case "wait":
		m.kick(k.id, int64(until.Sub(m.now())))
	default:
		m.kick(k.id, 0)
	}
}

// kick asks for a look at a workload in d; the earliest of several counts.
func (m *machine) kick(id string, d int64) {
	k := m.of(id)
	at := m.w.now + max(d, 0)
	if k.due != 0 && k.due <= at {
		return
	}
	k.due = at
	m.w.after(d+m.w.between(1, 5)*ms, &m.proc, func() {
		if k.due != at || m.work[id] != k {
			return
		}
		k.due = 0
		if k.busy {
			k.again = true
			return
		}
		k.busy = true
		m.advance(k)
	})
}

// rest ends the present piece of work on a workload.
func (m *machine) rest(k *work) {
	k.busy = false
	if k.again {
		k.again = false
		m.kick(k.id, 0)
	}
}

// advance takes one step after a fresh look.
func (m *machine) advance(k *work) {
	id := k.id
	m.w.after(m.w.between(2, 40)*ms, &m.proc, func() {
		in, tomb := m.disk.intents[id], m.disk.tombs[id]
		if in == nil && (tomb == nil || tomb.Done) {
			m.rest(k)
			return
		}
		if in == nil || in.Deleting {
			m.bury(k, in)
			return
		}
		m.absorb()
		do, until := m.consider(k, in)
		if do == "nothing" || do == "wait" {
			m.schedule(k, do, until)
			delete(m.disk.open, id)
			m.publish(k)
			m.rest(k)
			return
		}
		k.Asked = false
		flavour, ports := m.w.users.flavourOf(in.Content)
		m.w.tracef(id, m.id, "agent: %s %s", do, in.Generation)
		sp := spec{
			id: id, content: in.EngineContent, revision: in.RevisionID, generation: in.Generation,
			running: in.DesiredState == "running", flavour: flavour, ports: ports,
		}
		if m.stops(in) && sp.running && do != "halt" && do != "remove" {
			if m.tellGuard(); !m.holdsUnder(id) {
				m.did(k, in, driver.Errorf(driver.RuntimeUnhealthy, "guard", "there is no lease to run it under"))
				return
			}
			m.guards.busy[id] = true
			sp.may = func() bool { return m.holdsUnder(id) }
		}
		m.engine.do(do, sp, func(err error) {
			delete(m.guards.busy, id)
			m.did(k, in, err)
		})
	})
}

// shown is each workload that was ordered, but those given up, and what the engine shows. Whoever asks must not depend on
// which comes first.
func (m *machine) shown(yield func(*agent.Intent, *driver.Observed) bool) {
	for id, k := range m.work {
		if in := m.disk.intents[id]; in != nil && !k.Failure.Final && !yield(in, k.observed) {
			return
		}
	}
}

// did files what came of a step.
func (m *machine) did(k *work, in *agent.Intent, err error) {
	if m.disk.intents[k.id] != in {
		m.advance(k) // a newer order; the outcome was the old one's
		return
	}
	if err != nil {
		k.Failure = m.rules.Failed(in, k.Failure, err, m.disk.tombs, m.shown, m.now())
		m.disk.fails[k.id] = k.Failure
		if !k.Failure.Next.IsZero() {
			m.kick(k.id, int64(k.Failure.Next.Sub(m.now())))
		}
		delete(m.disk.open, k.id)
		m.publish(k)
		m.rest(k)
		return
	}
	k.Failure.Final, k.Failure.Next = false, time.Time{}
	if in.Recreate || in.Restart && in.DesiredState == "running" {
		next := *in
		next.Recreate, next.Restart = false, false
		m.disk.intents[k.id] = &next
	}
	m.advance(k)
}

// bury carries out a delete and makes the tombstone final.
func (m *machine) bury(k *work, in *agent.Intent) {
	id := k.id
	m.engine.do("remove", spec{id: id}, func(err error) {
		if m.disk.intents[id] != in {
			m.advance(k) // ordered anew meanwhile
			return
		}
		if err != nil || m.engine.has[id] != nil {
			m.kick(id, sec)
			m.rest(k)
			return
		}
		done := agent.Tombstone{ID: id}
		if t := m.disk.tombs[id]; t != nil {
			done = *t
		}
		done.Done, done.DeletedAt = true, m.now()
		delete(m.disk.intents, id)
		delete(m.disk.open, id)
		delete(m.disk.fails, id)
		m.disk.tombs[id] = &done
		m.version++
		m.disk.tombAt[id] = m.version
		if m.w.cfg.Sabotage == NoTombstones {
			done.Generation = driver.Generation{}
		}
		m.w.tracef(id, m.id, "agent: buried %s", done.Generation)
		m.rest(k)
		delete(m.work, id)
		m.signal()
	})
}

// publish renews a report and makes it due if it changed.
func (m *machine) publish(k *work) {
	in := m.disk.intents[k.id]
	now := said{some: true}
	switch {
	case in != nil:
		now.state, now.class, now.message = m.rules.Report(in, m.disk.open[k.id], k.observed, k.Memory, m.now())
		now.generation = in.Generation
	case k.observed != nil:
		now.state = map[driver.State]agentv1.ActualState{
			driver.Running: agentv1.ActualState_ACTUAL_STATE_RUNNING, driver.Stopped: agentv1.ActualState_ACTUAL_STATE_STOPPED,
			driver.Failed: agentv1.ActualState_ACTUAL_STATE_FAILED,
		}[k.observed.State]
		now.message, now.generation = "runs here without an order; left alone", k.observed.Generation
	default:
		return
	}
	if now == k.said {
		return
	}
	k.said = now
	m.version++
	k.version = m.version
	m.disk.fails[k.id] = k.Failure
	m.signal()
}

// apply is the agent's ApplyWorkload.
func (m *machine) apply(req *agentv1.ApplyWorkloadRequest) sched.Ack {
	epoch, no := m.rules.Admit(m.disk.epoch, req.GetEpoch(), req.GetNodeId())
	if m.w.cfg.Sabotage == NoEpochFence {
		no = nil
	}
	if other := m.rules.Meant(m.disk.instance, req.GetInstanceId()); other != nil && m.w.cfg.Sabotage != NoInstanceFence {
		no = other
	}
	if no != nil {
		m.w.tracef(req.GetId(), m.id, "agent: refuses an apply: %s", no.Message)
		return sched.Ack{Fenced: no.Fenced, Refused: !no.Fenced, Code: string(driver.InvalidSpecification), Message: no.Message}
	}
	id, g := req.GetId(), generationFrom(req.GetGeneration())
	old, tomb := m.disk.intents[id], m.disk.tombs[id]
	if s := m.w.cfg.Sabotage; s == NoGenerationFence || s == NoTombstones && old == nil {
		tomb = nil
		if old != nil {
			bare := *old
			bare.Generation = driver.Generation{}
			old = &bare
		}
	}
	next, skip, no := m.rules.Apply(old, tomb, req, m.draining, m.now())
	if no != nil {
		m.remember(epoch)
		m.w.tracef(id, m.id, "agent: refuses an apply: %s", no.Message)
		ack := sched.Ack{Fenced: no.Fenced, Refused: !no.Fenced, Code: string(driver.InvalidSpecification), Message: no.Message}
		if m.draining && old == nil && !no.Fenced {
			ack.Refused = false // rpc gives an error: it is over when the drain is
		}
		return ack
	}
	if ack, ok := m.fumble(req); ok {
		m.remember(epoch)
		return ack
	}
	if !m.coverOrder(req, old, g) {
		m.remember(epoch)
		m.w.tracef(id, m.id, "agent: there is no lease for an apply")
		return sched.Ack{Code: string(driver.RuntimeUnhealthy), Message: "there is no lease to run it under"}
	}
	m.obeyed(epochFrom(req.GetEpoch()), id, g, true)
	k := m.of(id)
	settled := k.said.state == agentv1.ActualState_ACTUAL_STATE_STOPPED
	if old != nil && old.DesiredState == "running" {
		settled = k.said.state == agentv1.ActualState_ACTUAL_STATE_RUNNING
	}
	m.remember(epoch)
	m.disk.intents[id] = next
	if t := m.rules.Ordered(m.disk.tombs[id]); t != nil {
		m.disk.tombs[id] = t
	}
	// One that is guarded waits for a newer order than it has.
	memory := agent.Memory{Asked: true}
	if m.stops(next) && old != nil && !old.Generation.Less(g) {
		memory.Waits, memory.Lapsed = k.Waits, k.Lapsed
	}
	k.Waits, k.Lapsed = memory.Waits, memory.Lapsed
	if skip && settled && !m.disk.open[id] {
		m.publish(k)
		m.w.tracef(id, m.id, "agent: apply %s, unchanged", g)
		return sched.Ack{Accepted: true, Skipped: true, State: edge.ActualOf(k.said.state), Message: k.said.message}
	}
	m.disk.open[id] = true
	k.Memory = memory
	m.publish(k)
	m.kick(id, 0)
	m.w.tracef(id, m.id, "agent: apply %s %s", g, next.DesiredState)
	return sched.Ack{Accepted: true, State: fsm.ActualPending, Message: "queued"}
}

// fumble is an agent that does not do what a stop asks of it: it refuses, or says
// that it will and forgets.
func (m *machine) fumble(req *agentv1.ApplyWorkloadRequest) (sched.Ack, bool) {
	w := m.w
	if !w.has(StopTrouble) || w.calm || req.GetDesiredState() != agentv1.DesiredState_DESIRED_STATE_STOPPED {
		return sched.Ack{}, false
	}
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.tracef(req.GetId(), m.id, "agent: refuses a stop")
		return sched.Ack{Refused: true, Code: string(driver.RuntimeError), Message: "cannot stop it"}, true
	case n < 50:
		w.tracef(req.GetId(), m.id, "agent: forgets a stop")
		return sched.Ack{Accepted: true, State: fsm.ActualPending, Message: "queued"}, true
	}
	return sched.Ack{}, false
}

// remove is the agent's DeleteWorkload.
func (m *machine) remove(req *agentv1.DeleteWorkloadRequest) sched.Ack {
	epoch, no := m.rules.Admit(m.disk.epoch, req.GetEpoch(), req.GetNodeId())
	if m.w.cfg.Sabotage == NoEpochFence {
		no = nil
	}
	if other := m.rules.Meant(m.disk.instance, req.GetInstanceId()); other != nil && m.w.cfg.Sabotage != NoInstanceFence {
		no = other
	}
	if no != nil {
		m.w.tracef(req.GetId(), m.id, "agent: refuses a delete: %s", no.Message)
		return sched.Ack{Fenced: no.Fenced, Message: no.Message}
	}
	id, in := req.GetId(), generationFrom(req.GetGeneration())
	old, tomb := m.disk.intents[id], m.disk.tombs[id]
	if no := m.rules.Delete(old, req); no != nil && m.w.cfg.Sabotage != NoGenerationFence {
		m.remember(epoch)
		m.w.tracef(id, m.id, "agent: refuses a delete: %s", no.Message)
		return sched.Ack{Fenced: no.Fenced, Message: no.Message}
	}
	m.obeyed(epochFrom(req.GetEpoch()), id, in, false)
	tombstone := agent.Tombstone{ID: id, Generation: in, DeletedAt: m.now()}
	if tomb != nil && in.Less(tomb.Generation) {
		tombstone.Generation = tomb.Generation
	}
	m.remember(epoch)
	if m.work[id] == nil && m.listed && (tomb == nil || tomb.Done) {
		if tomb == nil || tomb.Generation != tombstone.Generation {
			tombstone.Done = true
			m.disk.tombs[id] = &tombstone
			m.version++
			m.disk.tombAt[id] = m.version
			m.signal()
		}
		m.w.tracef(id, m.id, "agent: delete %s, nothing is here", in)
		return sched.Ack{Accepted: true, Gone: true}
	}
	if old != nil {
		next := *old
		next.Deleting = true
		if next.Generation.Less(in) {
			next.Generation = in
		}
		m.disk.intents[id] = &next
	}
	m.disk.tombs[id] = &tombstone
	m.disk.open[id] = true
	k := m.of(id)
	k.Failure = agent.Failure{}
	m.publish(k)
	m.kick(id, 0)
	m.w.tracef(id, m.id, "agent: delete %s", in)
	return sched.Ack{Accepted: true}
}

// remember makes an epoch durable.
func (m *machine) remember(e agent.Epoch) { m.disk.epoch = e }

func generationFrom(g *agentv1.Generation) driver.Generation {
	return driver.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()}
}

func epochFrom(e *agentv1.Epoch) agent.Epoch {
	return agent.Epoch{ClusterID: e.GetClusterId(), Incarnation: e.GetIncarnation(), Term: e.GetTerm()}
}

// changes are the reports newer than a version, or all, and the version reached.
func (m *machine) changes(full bool, after uint64) ([]sched.Reported, uint64) {
	var out []sched.Reported
	for _, id := range keys(m.work) {
		k := m.work[id]
		if !k.said.some || !full && k.version <= after {
			continue
		}
		out = append(out, sched.Reported{Workload: id, Observation: fsm.Observation{
			State: edge.ActualOf(k.said.state), Generation: fsm.Generation(k.said.generation), Code: string(k.said.class),
			Message: k.said.message, Retryable: !k.said.class.Permanent(), At: m.local(m.w.now),
		}})
	}
	for _, id := range keys(m.disk.tombs) {
		t := m.disk.tombs[id]
		if !t.Done || m.work[id] != nil {
			continue
		}
		if m.disk.tombAt[id] > after || full && m.now().Sub(t.DeletedAt) < 10*time.Minute {
			out = append(out, sched.Reported{Workload: id, Gone: true, Observation: fsm.Observation{
				State: fsm.ActualUnknown, Generation: fsm.Generation(t.Generation), Message: "deleted", At: m.local(m.w.now),
			}})
		}
	}
	return out, m.version
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
	m.guards = newFencers()
	if wiped {
		m.disk, m.engine.has = newDisk(w, m.id), map[string]*instance{}
		m.made++
	}
	m.condemned = false
	w.tracef("", m.id, "power is back, wiped %t", wiped)
	// Some engines start again what ran before the power was lost, except what is
	// exclusive: drivers make that so that only an agent starts it.
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
