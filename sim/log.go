package sim

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// raftLog models the Raft log: its committed entries, and its leader.
type raftLog struct {
	term    uint64
	leader  int // number of the replica that leads; -1 = none
	entries []entry
	pending []*proposal
	sick    int // number of ticks in a row in which the leader had no majority
	patient int // number of ticks without a majority after which a new leader is elected
}

type entry struct {
	term    uint64
	cmds    []fsm.Command
	results []fsm.Result
	digest  uint64 // digest of the state after this entry
}

// proposal is a call of propose that has not been answered yet.
type proposal struct {
	r        *replica
	life     int
	term     uint64
	cmds     []fsm.Command
	done     func([]fsm.Result, error)
	answered bool
	held     bool // the leader's disk hung, so no other replica has the entry
}

var (
	errUnknown   = errors.New("the outcome is unknown")
	errNotLeader = errors.New("not the leader")
	errRefused   = errors.New("connection refused")
)

// replica is one simulated scheduler.
type replica struct {
	proc
	w        *world
	idx      int
	state    fsm.State
	applied  int   // number of log entries that the replica has applied
	skew     int64 // nanoseconds by which the replica's clock is ahead of the virtual time
	cut      bool  // the replica cannot reach the other replicas
	cutAt    int   // number of times that the replica was cut off; it identifies the present cut
	term     uint64
	believes int         // number of the replica that this replica takes for the leader; -1 = unknown
	leads    *leadership // leadership term of this replica; nil unless it leads
	disk     hangingDisk
}

// clockNow returns the time on the replica's own clock.
func (r *replica) clockNow() int64 { return r.w.now + r.skew }

// here reports whether a replica runs and is connected to the others, so that it can be part of a
// majority.
func (r *replica) here() bool {
	return r.alive && !r.cut && r.paused <= r.w.now && !r.hangs()
}

func (w *world) majority() bool {
	n := 0
	for _, r := range w.replicas {
		if r.here() {
			n++
		}
	}
	return n > len(w.replicas)/2
}

// propose puts commands into the log as one entry. It calls done once with the result, unless
// replica r dies before.
func (w *world) propose(r *replica, term uint64, cmds []fsm.Command, done func([]fsm.Result, error)) {
	var framed []byte
	for _, c := range cmds {
		var err error
		if framed, err = fsm.AppendCommand(framed, c); err != nil {
			w.violate("codec", "", "", "%v", err)
			return
		}
	}
	decoded, err := fsm.DecodeBatch(framed)
	if err != nil || len(decoded) != len(cmds) {
		w.violate("codec", "", "", "%d commands were decoded as %d: %v", len(cmds), len(decoded), err)
		return
	}
	r.appends()
	p := &proposal{r: r, life: r.life, term: term, cmds: decoded, done: done, held: r.hangs()}
	if w.log.term == term && w.log.leader == r.idx {
		w.log.pending = append(w.log.pending, p) // otherwise the answer is lost, so the proposer does not know whether the entry is in the log
	}
	delay := w.between(1, 15) * ms
	if !w.calm && w.chance(20) {
		delay = w.between(50, 2500) * ms
	}
	w.after(delay, nil, func() { w.commit(p) })
	w.after(10*sec, &r.proc, func() { p.answer(nil, errUnknown) })
}

func (p *proposal) answer(res []fsm.Result, err error) {
	if p.answered || p.r.life != p.life {
		return
	}
	p.answered = true
	p.done(res, err)
}

// commit commits proposal last, and the earlier proposals of the same leader, if that leader still
// has a majority.
func (w *world) commit(last *proposal) {
	if !slices.Contains(w.log.pending, last) || w.log.term != last.term || w.log.leader != last.r.idx ||
		last.r.life != last.life || !last.r.here() || !w.majority() {
		return // a later tick or an election decides whether the proposal is committed
	}
	for done := false; !done; {
		p := w.log.pending[0]
		done = p == last
		w.log.pending = w.log.pending[1:]
		w.append(p)
		n := len(w.log.entries)
		w.after(w.between(1, 10)*ms, &p.r.proc, func() {
			p.r.catchUp(n)
			if p.r.term == p.term {
				p.answer(w.log.entries[n-1].results, nil)
			}
		})
	}
}

// append adds an entry with the commands of proposal p to the log, applies it, and checks the
// promises.
func (w *world) append(p *proposal) {
	e := entry{term: p.term, cmds: p.cmds}
	meta := fsm.Meta{Index: uint64(len(w.log.entries) + 1), Term: p.term}
	tx := w.truth.Begin()
	applied := w.sabotaged(p.cmds)
	for i, c := range p.cmds {
		before := tx.Commit()
		res, changes := tx.Apply(meta, applied[i])
		e.results = append(e.results, res)
		after := tx.Commit()
		w.judge(before, after, c, res, changes)
	}
	w.truth = tx.Commit()
	e.digest = w.truth.Info().Digest
	w.log.entries = append(w.log.entries, e)
	if len(w.log.entries)%w.cfg.Check == 0 {
		w.check()
	}
	for _, r := range w.replicas {
		if r != p.r && r.alive {
			w.follow(r)
		}
	}
}

// follow makes a replica apply new entries after a random delay.
func (w *world) follow(r *replica) {
	d := w.between(2, 60) * ms
	if w.chance(50) {
		d = w.between(100, 1500) * ms
	}
	n := len(w.log.entries)
	w.after(d, &r.proc, func() {
		if r.cut {
			return
		}
		if r.appends(); !r.hangs() {
			r.catchUp(n)
		}
	})
}

func (w *world) check() {
	if err := w.truth.Check(); err != nil {
		w.violate("check", "", "", "State.Check at index %d: %v", len(w.log.entries), err)
	}
}

// sabotaged changes the commands that are applied: with NoReceipts they have no request ids, so that repeated requests
// are applied twice, and with DeadlinesDropped drains have no deadline.
func (w *world) sabotaged(cmds []fsm.Command) []fsm.Command {
	if w.cfg.Sabotage != NoReceipts && w.cfg.Sabotage != DeadlinesDropped {
		return cmds
	}
	out := slices.Clone(cmds)
	for i, c := range out {
		switch h := c.GetHead(); {
		case w.cfg.Sabotage == DeadlinesDropped && c.GetDrainNode() != nil:
			b := c.GetDrainNode().CloneVT()
			b.DeadlineSeconds = nil
			out[i] = &commandv1.Command{Head: h, Body: &commandv1.Command_DrainNode{DrainNode: b}}
		case w.cfg.Sabotage == NoReceipts && len(h.GetRequest()) > 0:
			out[i] = &commandv1.Command{Head: &commandv1.Head{Epoch: h.GetEpoch(), At: h.GetAt(), By: h.GetBy()}, Body: c.GetBody()}
		}
	}
	return out
}

// catchUp applies the next committed entries, at most n, to the state of the replica.
func (r *replica) catchUp(n int) {
	w := r.w
	for r.applied < n && w.report.Violation == nil {
		e := &w.log.entries[r.applied]
		meta := fsm.Meta{Index: uint64(r.applied + 1), Term: e.term}
		tx := r.state.Begin()
		var changes []fsm.Change
		for i, c := range w.sabotaged(e.cmds) {
			if w.cfg.Sabotage == SkipAnEntry && r.idx == 1 && r.applied > 40 && i == 0 && len(e.cmds) > 1 {
				continue
			}
			res, ch := tx.Apply(meta, c)
			changes = append(changes, ch...)
			if !sameResult(res, e.results[i], false) {
				w.violate("same verdict", "", "", "index %d: replica %d has result %+v, the first replica to apply it has %+v", meta.Index, r.idx, res, e.results[i])
			}
		}
		r.state = tx.Commit()
		r.applied++
		if got := r.state.Info().Digest; got != e.digest {
			w.violate("same digest", "", "", "index %d: replica %d has digest %x, others have %x", meta.Index, r.idx, got, e.digest)
		}
		if r.leads != nil {
			r.leads.fed(changes)
		}
	}
}

// sameResult reports whether two results are equal. If duplicate is set, b may also be the stored
// answer a to a repeated request, which has the mark Duplicate.
func sameResult(a, b fsm.Result, duplicate bool) bool {
	return a.Kind == b.Kind && a.Reason == b.Reason && a.Index == b.Index && a.Skipped == b.Skipped &&
		(duplicate || a.Duplicate == b.Duplicate) && slices.Equal(a.Items, b.Items)
}

// confirm proves that r led at a moment after the call. It succeeds only if a majority followed r in its term
// at that moment.
func (w *world) confirm(r *replica, term uint64, done func(error)) {
	answered := false
	answer := func(err error) {
		if !answered {
			answered = true
			done(err)
		}
	}
	r.appends()
	var check func()
	check = func() {
		switch {
		case r.hangs(): // the confirming entry is written only when the disk works again
			w.after(r.disk.until-w.now+w.between(1, 10)*ms, nil, check)
		case w.log.term == term && w.log.leader == r.idx && r.here() && w.majority():
			w.after(w.between(1, 10)*ms, &r.proc, func() { answer(nil) })
		}
	}
	w.after(w.between(1, 10)*ms, nil, check)
	w.after(3*sec, &r.proc, func() { answer(errUnknown) })
}

const tickEvery = 200 * ms

// tick checks whether the leader still has a majority, and holds elections.
func (w *world) tick() {
	w.after(tickEvery, nil, w.tick)
	l := &w.log
	if l.leader >= 0 && w.replicas[l.leader].unaware() {
		return
	}
	if l.leader >= 0 && w.replicas[l.leader].here() && w.majority() {
		l.sick = 0
		for _, p := range slices.Clone(l.pending) {
			if w.chance(300) {
				w.commit(p)
			}
		}
		return
	}
	if l.sick == 0 {
		l.patient = 4 + w.rng.IntN(10)
		if l.leader >= 0 {
			// A leader that runs but has no majority steps down after a while.
			r, term := w.replicas[l.leader], l.term
			w.after(w.between(500, 3000)*ms, &r.proc, func() {
				if w.log.term == term && !r.hangs() && (!r.here() || !w.majority()) {
					r.stepDown("no majority")
				}
			})
		}
	}
	if l.sick++; l.sick >= l.patient {
		w.elect()
	}
}

// elect makes a random replica that can be part of the majority the leader.
func (w *world) elect() {
	if !w.majority() {
		return
	}
	var able []*replica
	for _, r := range w.replicas {
		if r.here() {
			able = append(able, r)
		}
	}
	l := &w.log
	// The first few of the old leader's pending proposals had reached another replica; the others are lost.
	survivors := 0
	n := len(l.pending)
	if i := slices.IndexFunc(l.pending, func(p *proposal) bool { return p.held }); i >= 0 {
		n = i
	}
	if n > 0 {
		survivors = w.rng.IntN(n + 1)
	}
	for _, p := range l.pending[:survivors] {
		w.append(p)
	}
	lost := len(l.pending) - survivors
	l.pending = nil
	next := pick(&w.clock, able)
	l.term += 1 + uint64(w.rng.IntN(2))
	l.leader, l.sick = next.idx, 0
	w.tracef("", "", "replica %d is elected in term %d; %d proposals survive, %d are lost", next.idx, l.term, survivors, lost)
	term := l.term
	for _, r := range w.replicas {
		if r.alive {
			w.notify(r, w.between(2, 120)*ms)
		}
	}
	w.after(w.between(2, 30)*ms, &next.proc, func() { next.establish(term) })
}

// notify lets a replica learn after d nanoseconds which replica leads, unless it is cut off.
func (w *world) notify(r *replica, d int64) {
	w.after(d, &r.proc, func() {
		if r.cut {
			return
		}
		if r.term < w.log.term {
			r.term = w.log.term
			r.believes = w.log.leader
			r.depose("another replica leads in a later term")
		}
		if r.believes < 0 {
			r.believes = w.log.leader
		}
	})
}

// depose ends the leadership term of a replica, if it leads.
func (r *replica) depose(why string) {
	l := r.leads
	if l == nil {
		return
	}
	r.leads = nil
	l.end()
	r.w.tracef("", "", "replica %d no longer leads in term %d: %s", r.idx, l.epoch.Term, why)
}

// stepDown ends the leadership of a replica before another one has taken over.
func (r *replica) stepDown(why string) {
	r.believes = -1
	if r.w.log.leader == r.idx {
		r.w.log.leader = -1
	}
	r.depose(why)
}

// establish begins the leadership term of an elected replica: once all committed entries are applied, it
// commits a first entry of its term.
func (r *replica) establish(term uint64) {
	w := r.w
	if w.log.term != term || r.disk.stalled {
		return
	}
	if r.term < term {
		r.term = term
		r.depose("elected again")
	}
	r.believes = r.idx
	head := func() *commandv1.Head { return &commandv1.Head{At: r.clockNow(), By: "leader"} }
	first := []fsm.Command{{Head: head(), Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}}
	if len(w.log.entries) == 0 {
		first = []fsm.Command{
			{Head: head(), Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: clusterID, Incarnation: 7}}},
		}
		if w.balance != nil {
			first = append(first, &commandv1.Command{Head: head(), Body: &commandv1.Command_SetRebalancePolicy{SetRebalancePolicy: &commandv1.SetRebalancePolicy{Policy: w.balance}}})
		}
	}
	w.propose(r, term, first, func(_ []fsm.Result, err error) {
		switch {
		case r.term != term || r.leads != nil || w.log.leader != r.idx:
		case err != nil: // the answer to the first entry was lost, for example in a pause, but the replica still leads
			w.after(100*ms, &r.proc, func() { r.establish(term) })
		default:
			r.lead(term)
		}
	})
}

const clusterID = "sim"

// crash kills a replica. The method restart starts it again from a snapshot of its state.
func (r *replica) crash() {
	r.w.tracef("", "", "replica %d crashes", r.idx)
	r.kill()
	if r.w.log.leader == r.idx {
		r.w.log.leader = -1
	}
	if r.leads != nil {
		r.leads.over = true
		r.leads = nil
	}
}

func (r *replica) restart() {
	w := r.w
	if r.alive {
		return
	}
	if r.hangs() { // the kernel cannot end the process before its write to the hanging disk ends
		w.after(r.disk.until-w.now+1, nil, r.restart)
		return
	}
	var b bytes.Buffer
	err := r.state.WriteSnapshot(&b)
	if err == nil {
		var back fsm.State
		if back, err = fsm.ReadSnapshot(&b); err == nil {
			err = back.Check()
			if was, is := r.state.Info(), back.Info(); err == nil && !reflect.DeepEqual(was, is) {
				err = fmt.Errorf("the snapshot of state %+v was read as %+v", was, is)
			}
			r.state = back
		}
	}
	if err != nil && r.applied > 0 {
		w.violate("snapshot", "", "", "replica %d: %v", r.idx, err)
		return
	}
	w.tracef("", "", "replica %d restarts at index %d", r.idx, r.applied)
	r.alive, r.term, r.believes = true, w.log.term, -1
	w.follow(r)
	w.notify(r, w.between(50, 500)*ms)
}

// stop pauses a replica for d nanoseconds. Its events wait until then.
func (r *replica) stop(d int64) {
	w := r.w
	w.tracef("", "", "replica %d is paused for %.1fs", r.idx, float64(d)/float64(sec))
	r.paused = w.now + d
	life := r.life
	// The events of the replica wait for the end of the pause. Run this function one nanosecond
	// earlier, so that it runs before them.
	w.after(d-1, nil, func() {
		if r.life != life || !r.alive {
			return
		}
		w.follow(r)
		w.notify(r, w.between(0, 600)*ms)
	})
}

// isolate cuts a replica off from the other replicas for d nanoseconds, as a network partition
// does.
func (r *replica) isolate(d int64) {
	w := r.w
	w.tracef("", "", "replica %d is cut off for %.1fs", r.idx, float64(d)/float64(sec))
	r.cut = true
	r.cutAt++
	at := r.cutAt
	unaware := w.between(500, 3000) * ms
	if w.chance(300) {
		unaware = w.between(3, 15) * sec
	}
	w.after(unaware, &r.proc, func() {
		if r.cut && r.cutAt == at {
			r.stepDown("no majority")
		}
	})
	w.after(d, nil, func() {
		if r.cutAt == at {
			r.rejoin()
		}
	})
}

func (r *replica) rejoin() {
	if !r.cut {
		return
	}
	r.cut = false
	if r.alive {
		r.w.follow(r)
		r.w.notify(r, r.w.between(5, 300)*ms)
	}
}
