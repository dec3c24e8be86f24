package fsm

// What an exclusive workload does when its node's lease ends (sched/DESIGN.md).
// With keep, nobody stops it, and it stays bound to the node until a person fences or
// removes that. With stop, a guard on the node stops it within the node's fence bound
// after the end of the lease. How long that is waited for is the planner's to know, by
// the leader's own clock: the clock of the log is set by whoever leads, and a jump or
// a difference between two leaders must not shorten the wait.

// Guarded reports whether node n stops w by itself when the lease of n ends.
func (w *Workload) Guarded(n *Node) bool {
	return w.Demand.stops() && n.Facts.SelfFencing && !w.Unguarded
}

// stops reports whether the workload must stop when the lease of its node ends.
func (d *Demand) stops() bool { return d.Exclusive && d.OnLostLease == OnLostLeaseStop }

// keepsOnLostLease reports whether a workload stays bound to a lost node until an operator
// fences or removes the node.
func keepsOnLostLease(w *Workload, n *Node) bool { return w.Demand.Exclusive && !w.Guarded(n) }

// guards sets Unguarded in w, the changed copy of old. The order that the node accepted last
// counts, not what the user has asked for since.
func (t *Tx) guards(old, w *Workload) {
	if old.Unguarded || !old.Demand.stops() {
		t.unguarded(w)
	} else {
		w.Unguarded = false
	}
}

// unguarded marks that the node of w may not stop w when its lease ends: the last order that the
// node accepted is unknown, or said to keep the workload.
func (t *Tx) unguarded(w *Workload) {
	w.Unguarded = w.Node != "" && w.Demand.stops()
}
