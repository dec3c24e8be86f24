package fsm

// The policy on_lost_lease of an exclusive workload says what happens when the lease of its node ends
// (sched/DESIGN.md):
//
//   - keep: the workload stays bound to the node until a person fences or removes the node.
//   - stop: the fencer, a separate process on the node, stops the workload. The node registers a
//     fence bound: the number of seconds after the end of the lease within which the fencer has
//     stopped the workload.
//
// The planner measures the fence bound by the leader's clock, not by the time of log entries: a clock that
// jumps, or that differs between two leaders, must not shorten the wait.

// StopsOnLostLease reports whether node n stops w by itself when the lease of n ends. A process on
// the node, the fencer, does so.
func (w *Workload) StopsOnLostLease(n *Node) bool {
	return w.Demand.stops() && n.Facts.SelfFencing && !w.MayOutliveLease
}

// stops reports whether the demand has on_lost_lease: stop, so that the workload stops when
// the lease of its node ends.
func (d *Demand) stops() bool { return d.Exclusive && d.OnLostLease == OnLostLeaseStop }

// keepsOnLostLease reports whether a workload stays bound to node n after n is lost, until an
// operator confirms that n is off (fences it) or removes it.
func keepsOnLostLease(w *Workload, n *Node) bool { return w.Demand.Exclusive && !w.StopsOnLostLease(n) }

// carryOutlives sets MayOutliveLease (the workload may keep running after the lease of its node has ended) in
// w, the changed copy of record old. The value depends on the last order that the node accepted, not on later
// requests of the user.
func (t *Tx) carryOutlives(old, w *Workload) {
	if old.MayOutliveLease || !old.Demand.stops() {
		t.outlives(w)
	} else {
		w.MayOutliveLease = false
	}
}

// outlives sets MayOutliveLease if the demand of w has on_lost_lease: stop, but the node may not
// stop w when the lease ends, because the last order that the node accepted is unknown or has
// on_lost_lease: keep.
func (t *Tx) outlives(w *Workload) {
	w.MayOutliveLease = w.Node != "" && w.Demand.stops()
}
