package sim

import "slices"

// hangingDisk is the log disk of a replica that can hang: an append to the log then takes long. Meanwhile the
// replica neither commits nor votes, and entries that a leader appends reach no other replica.
type hangingDisk struct {
	armed   int64 // nanoseconds for which the next append hangs; 0 = it does not hang
	until   int64 // time until which the disk hangs
	turn    int   // number of hangs so far; it identifies the present hang
	stalled bool  // the replica has noticed that its disk hangs, and does not act as leader
}

func (r *replica) hangs() bool { return r.disk.until > r.w.now }

// appends is called at every append of a replica to its log. If a fault has requested that the disk
// hangs, the hang begins with this append.
func (r *replica) appends() {
	w, d := r.w, &r.disk
	if d.armed == 0 {
		return
	}
	w.tracef("", "", "the disk of replica %d hangs for %.1fs", r.idx, float64(d.armed)/float64(sec))
	d.until = w.now + d.armed
	d.turn++
	turn := d.turn
	w.after(w.between(1000, 1500)*ms, &r.proc, func() {
		if d.turn == turn && r.hangs() {
			r.stall()
		}
	})
	w.after(d.armed, nil, func() {
		if d.turn == turn {
			r.thaw()
		}
	})
	d.armed = 0
}

// stall models a replica that notices that its disk hangs. It stops acting as leader, answers the waiting
// calls, and asks another replica to stand for election. If none does, the other replicas hold an election
// because the leader is silent.
func (r *replica) stall() {
	w, term := r.w, r.term
	if w.cfg.Sabotage == UnnoticedStall {
		return
	}
	r.disk.stalled = true
	for _, p := range w.log.pending {
		if p.r == r {
			w.after(0, &r.proc, func() { p.answer(nil, errUnknown) })
		}
	}
	r.believes = -1
	if r.leads != nil {
		w.report.Stalls++
	}
	r.depose("its disk hangs")
	if w.chance(200) {
		return
	}
	w.after(w.between(2, 300)*ms, nil, func() {
		if w.log.leader == r.idx && w.log.term == term && r.hangs() {
			w.elect()
		}
	})
}

// thaw ends the hang of a disk. If no other replica was elected meanwhile, the leader continues in its term.
func (r *replica) thaw() {
	w := r.w
	if r.disk.until == 0 {
		return
	}
	r.disk = hangingDisk{turn: r.disk.turn + 1}
	w.tracef("", "", "the disk of replica %d works again", r.idx)
	for _, p := range w.log.pending {
		p.held = p.held && p.r != r
	}
	if !r.alive {
		return
	}
	w.follow(r)
	w.notify(r, w.between(5, 300)*ms)
	if term := w.log.term; w.log.leader == r.idx && r.leads == nil {
		w.after(w.between(1, 60)*ms, &r.proc, func() { r.establish(term) })
	}
}

// unaware reports whether the leader's disk hangs while the leader still sends heartbeats, so that no other
// replica stands for election.
func (r *replica) unaware() bool {
	return r.hangs() && !r.disk.stalled && r.alive && !r.cut && r.paused <= r.w.now
}

// oneHangs reports whether the disk of any replica hangs, or will hang at its next append because a
// fault has requested that.
func (w *world) oneHangs() bool {
	return slices.ContainsFunc(w.replicas, func(r *replica) bool { return r.hangs() || r.disk.armed > 0 })
}

// lapsed is called when the lease of a node has ended. If hanging disks are the only fault of the
// run, no lease may end, so this breaks a promise.
func (w *world) lapsed(m *machine) {
	if w.cfg.Faults&^(DiskStalls|Fencers) == 0 && len(w.replicas) > 2 {
		w.violate("lease", "", m.id, "the lease ended, although the only fault was one hanging disk at a time")
	}
}
