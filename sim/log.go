package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// raftLog is the log that a majority of the replicas holds, with its leader.
type raftLog struct {
	term    uint64
	leader  int // -1 = none
	entries []entry
	pending []*proposal
	sick    int // ticks that the leader has been without a majority
	patient int // ticks until an election
}

type entry struct {
	term    uint64
	cmds    []fsm.Command
	results []fsm.Result
	digest  uint64 // of the state after it
}

// proposal is a call of Propose under way.
type proposal struct {
	r        *replica
	life     int
	term     uint64
	cmds     []fsm.Command
	done     func([]fsm.Result, error)
	answered bool
}

var (
	errUnknown   = errors.New("the outcome is unknown")
	errNotLeader = errors.New("not the leader")
	errRefused   = errors.New("connection refused")
)

// replica is one scheduler.
type replica struct {
	proc
	w        *world
	idx      int
	state    fsm.State
	applied  int   // entries
	skew     int64 // of its clock
	cut      bool  // cannot reach the other replicas
	cutAt    int   // counts cuts, to know one from the next
	term     uint64
	believes int         // who leads, -1 = unknown
	leads    *leadership // nil unless it leads
}

// clockNow is the replica's own time.
func (r *replica) clockNow() int64 { return r.w.now + r.skew }

// here reports whether a replica can take part in a majority.
func (r *replica) here() bool { return r.alive && !r.cut && r.paused <= r.w.now }

func (w *world) majority() bool {
	n := 0
	for _, r := range w.replicas {
		if r.here() {
			n++
		}
	}
	return n > len(w.replicas)/2
}

// propose puts commands into one entry. done is called once, in r's life.
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
		w.violate("codec", "", "", "%d commands read back as %d: %v", len(cmds), len(decoded), err)
		return
	}
	p := &proposal{r: r, life: r.life, term: term, cmds: decoded, done: done}
	if w.log.term == term && w.log.leader == r.idx {
		w.log.pending = append(w.log.pending, p) // else it is lost, and nobody says so
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

// commit appends a proposal, and the earlier ones of its leader, if the leader still has a
// majority.
func (w *world) commit(last *proposal) {
	if !slices.Contains(w.log.pending, last) || w.log.term != last.term || w.log.leader != last.r.idx ||
		last.r.life != last.life || !last.r.here() || !w.majority() {
		return // a tick or an election decides
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

// append commits an entry and checks the promises about it.
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

// follow delivers new entries to a replica after a drawn delay.
func (w *world) follow(r *replica) {
	d := w.between(2, 60) * ms
	if w.chance(50) {
		d = w.between(100, 1500) * ms
	}
	n := len(w.log.entries)
	w.after(d, &r.proc, func() {
		if !r.cut {
			r.catchUp(n)
		}
	})
}

func (w *world) check() {
	if err := w.truth.Check(); err != nil {
		w.violate("check", "", "", "State.Check at index %d: %v", len(w.log.entries), err)
	}
}

// sabotaged removes the request ids if the run says so.
func (w *world) sabotaged(cmds []fsm.Command) []fsm.Command {
	if w.cfg.Sabotage != NoReceipts {
		return cmds
	}
	out := slices.Clone(cmds)
	for i, c := range out {
		if h := c.GetHead(); len(h.GetRequest()) > 0 {
			out[i] = &commandv1.Command{Head: &commandv1.Head{Epoch: h.GetEpoch(), At: h.GetAt(), By: h.GetBy()}, Body: c.GetBody()}
		}
	}
	return out
}

// catchUp applies what is committed, up to n entries.
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
				w.violate("same verdict", "", "", "index %d: replica %d says %+v, the first to apply it %+v", meta.Index, r.idx, res, e.results[i])
			}
		}
		r.state = tx.Commit()
		r.applied++
		if got := r.state.Info().Digest; got != e.digest {
			w.violate("same digest", "", "", "index %d: replica %d has %x, others %x", meta.Index, r.idx, got, e.digest)
		}
		if r.leads != nil {
			r.leads.fed(changes)
		}
	}
}

// sameResult compares results. With duplicate, b may be marked as a duplicate of a.
func sameResult(a, b fsm.Result, duplicate bool) bool {
	return a.Kind == b.Kind && a.Reason == b.Reason && a.Index == b.Index && a.Skipped == b.Skipped &&
		(duplicate || a.Duplicate == b.Duplicate) && slices.Equal(a.Items, b.Items)
}

// confirm proves that r led at a moment after the call: it succeeds only if a majority
// followed r in its term at that moment.
func (w *world) confirm(r *replica, term uint64, done func(error)) {
	answered := false
	answer := func(err error) {
		if !answered {
			answered = true
			done(err)
		}
	}
	w.after(w.between(1, 10)*ms, nil, func() {
		if w.log.term == term && w.log.leader == r.idx && r.here() && w.majority() {
			w.after(w.between(1, 10)*ms, &r.proc, func() { answer(nil) })
		}
	})
	w.after(3*sec, &r.proc, func() { answer(errUnknown) })
}

const tickEvery = 200 * ms

// tick watches the leader and holds elections.
func (w *world) tick() {
	w.after(tickEvery, nil, w.tick)
	l := &w.log
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
			// A running leader without a majority steps down after a while.
			r, term := w.replicas[l.leader], l.term
			w.after(w.between(500, 3000)*ms, &r.proc, func() {
				if w.log.term == term && (!r.here() || !w.majority()) {
					r.stepDown("no majority")
				}
			})
		}
	}
	if l.sick++; l.sick >= l.patient {
		w.elect()
	}
}

// elect moves leadership to any replica of the majority.
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
	// A prefix of the old leader's pending proposals had reached another replica.
	survivors := 0
	if n := len(l.pending); n > 0 {
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

// notify tells a replica who leads, unless it is cut off.
func (w *world) notify(r *replica, d int64) {
	w.after(d, &r.proc, func() {
		if r.cut {
			return
		}
		if r.term < w.log.term {
			r.term = w.log.term
			r.believes = w.log.leader
			r.depose("a later term is heard of")
		}
		if r.believes < 0 {
			r.believes = w.log.leader
		}
	})
}

// depose ends the replica's term, if it leads.
func (r *replica) depose(why string) {
	l := r.leads
	if l == nil {
		return
	}
	r.leads = nil
	l.end()
	r.w.tracef("", "", "replica %d leads no longer in term %d: %s", r.idx, l.epoch.Term, why)
}

// stepDown ends a leadership that nobody has taken over yet.
func (r *replica) stepDown(why string) {
	r.believes = -1
	if r.w.log.leader == r.idx {
		r.w.log.leader = -1
	}
	r.depose(why)
}

// establish begins a term once everything committed is applied, with a first entry of the
// term itself.
func (r *replica) establish(term uint64) {
	w := r.w
	if w.log.term != term {
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
	}
	w.propose(r, term, first, func(_ []fsm.Result, err error) {
		switch {
		case r.term != term || r.leads != nil || w.log.leader != r.idx:
		case err != nil: // the answer was lost, in a pause for one; it leads all the same
			w.after(100*ms, &r.proc, func() { r.establish(term) })
		default:
			r.lead(term)
		}
	})
}

const clusterID = "sim"

// crash kills a replica; restart brings it back from a snapshot.
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
	var b bytes.Buffer
	err := r.state.WriteSnapshot(&b)
	if err == nil {
		var back fsm.State
		if back, err = fsm.ReadSnapshot(&b); err == nil {
			err = back.Check()
			if was, is := r.state.Info(), back.Info(); err == nil && was != is {
				err = fmt.Errorf("snapshot of %+v reads back as %+v", was, is)
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

// stop pauses a replica: its events wait.
func (r *replica) stop(d int64) {
	w := r.w
	w.tracef("", "", "replica %d is paused for %.1fs", r.idx, float64(d)/float64(sec))
	r.paused = w.now + d
	life := r.life
	// One nanosecond before the events that wait for the end of the pause.
	w.after(d-1, nil, func() {
		if r.life != life || !r.alive {
			return
		}
		w.follow(r)
		w.notify(r, w.between(0, 600)*ms)
	})
}

// isolate cuts a replica off from the others for a while.
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
