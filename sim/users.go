package sim

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/sched/control"
)

// users models the people and programs that send requests to the schedulers.
type users struct {
	decided     map[string]bool // orphans about which an operator has decided, as node/workload
	ids         []string
	flavours    map[string]madeOf // for each content hash: how an engine behaves with that specification
	version     int
	instances   int
	settings    control.Settings
	open        int // number of requests that have no answer yet
	old         []*request
	restEntries int
}

type madeOf struct {
	flavour string
	ports   []uint32
}

// flavourOf returns, for the specification with this content, how a simulated engine behaves with
// it (for example, that its start fails) and its ports.
func (u *users) flavourOf(content string) (string, []uint32) {
	f := u.flavours[content]
	return f.flavour, f.ports
}

func exclusive(id string) bool { return id[0] == 'x' }

// build creates the cluster for the seed of the run.
func (w *world) build() {
	w.users = users{decided: map[string]bool{}, flavours: map[string]madeOf{}, settings: w.settings()}
	w.oracle = newOracle()
	w.log.leader = -1
	w.loss, w.delays, w.dups = 0, 0, 0
	if w.has(MessageLoss) {
		w.loss = pick(&w.clock, []int{0, 5, 30, 120})
	}
	if w.has(MessageDelay) {
		w.delays = pick(&w.clock, []int{0, 10, 60})
	}
	if w.has(MessageDup) {
		w.dups = pick(&w.clock, []int{0, 10, 50})
	}
	if w.cfg.Stress {
		w.loss, w.delays, w.dups = 50, 200, 300
	}
	for i := range pick(&w.clock, []int{1, 3, 3, 3, 5}) {
		r := &replica{w: w, idx: i, state: fsm.New(), believes: -1}
		r.proc = proc{name: fmt.Sprintf("r%d", i), alive: true}
		if w.has(ClockTrouble) {
			r.skew = w.between(-1500, 1500) * ms
		}
		w.replicas = append(w.replicas, r)
	}
	key, err := pki.NewKey() // a random key does not make runs differ, because hashes are only compared for equality
	if err != nil {
		w.violate("simulator", "", "", "%v", err)
		return
	}
	for i := range 2 + w.rng.IntN(4) {
		id := fmt.Sprintf("n%d", i+1)
		m := &machine{w: w, idx: i, id: id, key: key, zone: pick(&w.clock, []string{"a", "b"})}
		m.proc.name, m.power = id, proc{name: id, alive: true}
		m.up, m.down = make([]bool, len(w.replicas)), make([]bool, len(w.replicas))
		m.cpu, m.mem = pick(&w.clock, []int64{1000, 2000, 4000}), pick(&w.clock, []int64{1024, 4096})
		if w.has(ClockTrouble) {
			m.offset, m.drift = w.between(-90, 90)*sec, w.between(-200, 200)
		}
		m.fencers = newFencers()
		m.disk, m.engine = newDisk(w, id), &engine{m: m, has: map[string]*instance{}, busy: map[string]bool{}}
		w.machines = append(w.machines, m)
		w.after(w.between(100, 4000)*ms, &m.power, m.boot)
	}
	for i := range 3 + w.rng.IntN(5) {
		w.users.ids = append(w.users.ids, fmt.Sprintf("w%d", i))
	}
	for i := range 1 + w.rng.IntN(3) {
		w.users.ids = append(w.users.ids, fmt.Sprintf("x%d", i))
	}
	if w.has(Jobs) {
		w.users.ids = append(w.users.ids, jobIDs...)
	}
	w.tick()
	if w.has(Crons) {
		w.after(3*sec, nil, w.createCrons)
	}
	if w.has(Drains) {
		w.after(10*sec, nil, w.drains)
	}
	w.after(2*sec, nil, w.want)
	w.after(8*sec, nil, w.trouble)
}

func (w *world) machine(id string) *machine {
	for _, m := range w.machines {
		if m.id == id {
			return m
		}
	}
	return nil
}

// request is one call of a user. A call that is sent again has the same request id.
type request struct {
	id    [16]byte
	what  string
	body  func(*commandv1.Command)
	tries int
	must  bool
	done  func(fsm.Result)
	ended bool
}

// want makes users send random requests until faults are no longer injected.
func (w *world) want() {
	if w.calm {
		return
	}
	w.after(w.between(100, 4000)*ms, nil, w.want)
	if len(w.users.old) > 0 && w.chance(60) {
		w.repeat(pick(&w.clock, w.users.old))
		return
	}
	if w.has(Rollouts) && w.chance(500) {
		w.roll()
		return
	}
	if w.has(Placement) && w.chance(30) {
		w.setPool(pick(&w.clock, []string{"", "", "a", "b"}))
		return
	}
	id := pick(&w.clock, w.users.ids)
	switch n := w.rng.IntN(100); {
	case n < 45:
		w.ask("apply "+id, w.putOf(id), nil)
	case n < 53:
		w.ask("stop "+id, desire(id, "Stopped"), nil)
	case n < 62:
		w.ask("start "+id, desire(id, "Running"), nil)
	case n < 72:
		w.ask("delete "+id, remove(id, false), nil)
	case n < 74:
		w.ask("delete --force "+id, remove(id, true), nil)
	case n < 80:
		w.ask("retry "+id, func(c *commandv1.Command) {
			c.Body = &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id}}
		}, nil)
	case n < 85:
		w.ask("apply group g", w.groupOf(w.rng.IntN(4)), nil)
	case w.has(Operator):
		w.operate()
	}
}

// operate makes an operator send a random command, such as one that drains a node.
func (w *world) operate() {
	m := pick(&w.clock, w.machines)
	on := w.chance(550)
	switch w.rng.IntN(5) {
	case 0, 1:
		w.ask(fmt.Sprintf("cordon %s %t", m.id, on), cordon(m.id, on), nil)
	case 2:
		w.ask(fmt.Sprintf("drain %s %t", m.id, on), w.drainWithDeadline(m.id, on), nil)
	default:
		if !m.power.alive {
			w.condemn(m)
		}
	}
}

// condemn makes an operator, who knows that machine m is off, confirm this to the cluster (fence)
// or remove the node.
func (w *world) condemn(m *machine) {
	if m.condemned {
		return
	}
	if w.chance(500) {
		w.sentence(m, "fence "+m.id, fence(m.id))
	} else {
		w.sentence(m, "node remove "+m.id, removeNode(m.id))
	}
}

// sentence makes an operator confirm that a machine is off (fence) or remove its node. The operator repeats
// the call as long as it is refused because the node's lease has not ended. Each machine has one such call at a time.
func (w *world) sentence(m *machine, what string, body func(*commandv1.Command)) {
	if m.condemned {
		return
	}
	m.condemned, m.sentenced = true, false
	w.pronounce(m, what, body)
}

// pronounce sends the call of sentence.
func (w *world) pronounce(m *machine, what string, body func(*commandv1.Command)) {
	w.ask(what, body, func(res fsm.Result) {
		if res.Kind == fsm.Conflict {
			w.after(3*sec, nil, func() {
				// A fence states that the machine is off. Do not repeat the call if the machine is on again: the statement
				// would be false.
				if !m.power.alive {
					w.pronounce(m, what, body)
				}
			})
			return
		}
		m.sentenced = true
	}).must = true
}

// obey makes an operator fence the node of a reinstalled machine whose registration was refused, as the error
// advises. This may be necessary although the node was fenced before: a late registration, which the machine
// sent before it was reinstalled, ends the fence. If the schedulers do not know whether the former instance of the node
// used the same engine (unsure), the operator looks at the machine first, because the machine may run workloads of the node.
func (w *world) obey(m *machine, unsure bool) {
	if m.fencing {
		return
	}
	if n, ok := w.truth.Node(m.id); ok && unsure && w.oracle.engines[n.Facts.InstanceID] == m.made {
		w.clear(m)
		return
	}
	w.advised(m)
	m.fencing = true
	w.ask("fence "+m.id, fence(m.id), func(fsm.Result) { m.fencing = false }).must = true
}

// clear makes an operator reinstall machine m, which still has the engine of the former instance of its node, and fence the
// node while the machine is off.
func (w *world) clear(m *machine) {
	m.fencing = true
	w.tracef("", m.id, "an operator sees that the machine may run workloads of the node, and clears it")
	w.after(w.between(500, 5000)*ms, nil, func() {
		m.fencing = false
		m.off()
		w.sentence(m, "fence "+m.id, fence(m.id))
		w.after(w.between(500, 5000)*ms, nil, func() { w.revive(m, true) })
	})
}

// advised checks the advice to fence the node of machine m, which m gets as the answer to its registration. A fence states
// that the former instance of the node runs no workload. That is false if the former instance used the engine that m
// still has: m has lost only the state file of its agent.
func (w *world) advised(m *machine) {
	n, ok := w.truth.Node(m.id)
	if !ok || n.Facts.InstanceID == m.disk.instance {
		return // the node has changed since the answer was sent
	}
	w.report.Advices++
	if made, known := w.oracle.engines[n.Facts.InstanceID]; !known || made == m.made {
		w.violate("advice", "", m.id, "instance %s is advised to fence the node, but former instance %s has used the same engine, %d", m.disk.instance, n.Facts.InstanceID, m.made)
	}
}

func desire(id, state string) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: state}}
	}
}

func remove(id string, force bool) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: force}}
	}
}

func cordon(node string, on bool) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: node, On: on}}
	}
}

func drain(node string, on bool) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: node, On: on}}
	}
}

func fence(node string) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: node}}
	}
}

func removeNode(node string) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: node, Force: true}}
	}
}

func setMode(mode string) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: mode, Reason: "the simulator says so"}}
	}
}

// putOf returns the command by which a user applies workload id: usually with a new specification,
// sometimes with the present one.
func (w *world) putOf(id string) func(*commandv1.Command) {
	p := w.put(id, "")
	return func(c *commandv1.Command) {
		c.Body = &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{p}}}
	}
}

func (w *world) groupOf(n int) func(*commandv1.Command) {
	b := &commandv1.PutWorkloads{GroupOf: "g"}
	for i := range n {
		b.Workloads = append(b.Workloads, w.put(fmt.Sprintf("g-%d", i), "g"))
	}
	if n == 0 {
		b.Workloads = append(b.Workloads, w.put("g-0", "g"))
	}
	b.Update = w.policy()
	w.surges(b)
	return func(c *commandv1.Command) { c.Body = &commandv1.Command_PutWorkloads{PutWorkloads: b} }
}

// device is the name of the counted devices that nodes offer and some workloads reserve.
const device = "vendor.com/gpu"

// put returns what a command stores for workload id: a new specification, or one that was used
// before.
func (w *world) put(id, group string) *commandv1.WorkloadPut {
	if have, ok := w.oracle.puts[id]; ok && w.chance(200) {
		return proto.Clone(have).(*commandv1.WorkloadPut)
	}
	w.users.version++
	flavour := "good"
	if w.has(BadSpec) {
		flavour = pick(&w.clock, []string{"good", "good", "good", "good", "good", "good", "slow", "flaky", "crashy", "bad"})
	}
	if isJobID(id) {
		flavour = pick(&w.clock, []string{"job", tolerant})
	}
	d := &commandv1.Demand{
		Type: "container", CpuMillicores: w.between(0, 7) * 100, MemoryMib: w.between(0, 6) * 64,
		Group: group, Exclusive: exclusive(id), Priority: int32(w.rng.IntN(3)),
	}
	if exclusive(id) {
		d.OnLostLease = fsm.OnLostLeaseKeep
		if w.has(Fencers) {
			d.OnLostLease = fsm.OnLostLeaseStop
		}
	}
	var ports []uint32
	if w.chance(200) {
		ports = append(ports, pick(&w.clock, []uint32{80, 443}))
		d.HostPorts = append(d.HostPorts, &commandv1.Port{Port: ports[0], Protocol: "tcp"})
	}
	if w.chance(100) {
		d.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "=", Values: []string{pick(&w.clock, []string{"a", "b"})}}}
	}
	if w.has(Placement) {
		if n := d.CpuMillicores / 100; n == 1 || n == 2 {
			d.Devices = []*commandv1.DeviceCount{{Name: device, Count: n}}
		}
		w.addRules(id, group, d)
	}
	if w.has(NodeTrouble) {
		d.Reschedule = &commandv1.Reschedule{Attempts: pick(&w.clock, []int32{2, 10}), Interval: 300 * sec}
		if w.cfg.Sabotage == NoMoves {
			d.Reschedule.Attempts = 0
		}
	}
	image := &controlv1.ContainerSpec{Image: fmt.Sprintf("%s:v%d", flavour, w.users.version)}
	plain := &controlv1.WorkloadSpec{
		Type: "container", Exclusive: d.Exclusive, OnLostLease: d.OnLostLease,
		Workload: &controlv1.WorkloadSpec_Container{Container: image},
	}
	attempts := int32(0)
	if isJobID(id) {
		d.Job, plain.Kind, image.RestartPolicy, attempts = w.jobOf(flavour), "job", "no", 3
	}
	raw, err := proto.Marshal(plain)
	if err != nil {
		w.violate("simulator", id, "", "%v", err)
	}
	p := &commandv1.WorkloadPut{
		Id: id, Spec: raw, Desired: "Running", Demand: d, MaxAttempts: attempts,
		Content: fmt.Sprintf("c1:%016x%048x", w.users.version*0x10001, len(id)),
	}
	w.users.flavours[p.Content] = madeOf{fmt.Sprintf("%s:v%d", flavour, w.users.version), ports}
	return p
}

// mint makes a request id, a UUIDv7, from the clock of a client, which is wrong by at most half a
// second.
func (w *world) mint() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], w.rng.Uint64())
	binary.BigEndian.PutUint64(id[8:], w.rng.Uint64())
	at := uint64((w.now + w.between(-500, 500)*ms) / ms)
	binary.BigEndian.PutUint64(id[:8], at<<16|uint64(id[6]&0x0f|0x70)<<8|uint64(id[7]))
	id[8] = id[8]&0x3f | 0x80
	return id
}

// ask makes a user send a request again and again until it is answered or the user gives up.
func (w *world) ask(what string, body func(*commandv1.Command), done func(fsm.Result)) *request {
	rq := &request{id: w.mint(), what: what, body: body, done: done, must: w.calm}
	w.users.open++
	w.tracef("", "", "user: %s (%x)", what, rq.id[:4])
	w.submit(rq)
	return rq
}

func (w *world) submit(rq *request) {
	rq.tries++
	try := rq.tries
	retry := func() {
		if rq.ended || rq.tries != try {
			return
		}
		if !rq.must && rq.tries >= 12 {
			rq.ended = true
			w.users.open--
			w.tracef("", "", "user: gives up on %s", rq.what)
			return
		}
		w.submit(rq)
	}
	w.deliver(rq, func(res fsm.Result, err error) {
		if rq.ended {
			return
		}
		if err != nil || res.Kind == fsm.Frozen {
			w.after(w.between(100, 900)*ms, nil, retry)
			return
		}
		rq.ended = true
		w.users.open--
		w.users.old = append(w.users.old, rq)
		w.tracef("", "", "user: %s: %s", rq.what, res.Kind)
		if rq.done != nil {
			rq.done(res)
		}
	})
	w.after(5*sec, nil, retry)
}

// repeat makes a user send a request a second time after it was answered. The answer must be the same.
func (w *world) repeat(rq *request) {
	w.tracef("", "", "user: sends %s again (%x)", rq.what, rq.id[:4])
	w.deliver(rq, func(fsm.Result, error) {})
}

// deliver carries a request to a random replica, and the answer back to the user.
func (w *world) deliver(rq *request, back func(fsm.Result, error)) {
	a := pick(&w.clock, w.replicas)
	open := func() bool { return true }
	answer := func(res any, err error) {
		w.send(&proc{alive: true}, open, func() {
			if err != nil {
				back(fsm.Result{}, err)
				return
			}
			r := res.(fsm.Result)
			w.acknowledged(rq, r)
			back(r, nil)
		})
	}
	w.send(&a.proc, open, func() {
		w.route(a, func(l *leadership, reply func(any, error)) { l.mutate(rq, reply) }, answer)
	}, func() { answer(nil, errNotLeader) })
}

// mutate handles a user's mutation at the leader.
func (l *leadership) mutate(rq *request, reply func(any, error)) {
	cmd := &commandv1.Command{Head: &commandv1.Head{Request: rq.id[:], At: l.r.clockNow(), By: "user"}}
	rq.body(cmd)
	if l.w.cfg.Sabotage == AckBeforeCommit {
		_, res, _ := l.r.state.Apply(fsm.Meta{Index: uint64(l.r.applied + 1), Term: l.epoch.Term}, proto.Clone(cmd).(*commandv1.Command))
		reply(res, nil)
	}
	l.w.propose(l.r, l.epoch.Term, []fsm.Command{cmd}, func(res []fsm.Result, err error) {
		if l.w.cfg.Sabotage == AckBeforeCommit {
			return
		}
		if err != nil {
			reply(nil, err)
			return
		}
		reply(res[0], nil)
	})
}
