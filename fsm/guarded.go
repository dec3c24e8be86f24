package fsm

// What an exclusive workload does when its node's lease ends (sched/DESIGN.md).
// With keep, nobody stops it, and it stays bound to the node until a person fences or
// removes that. With stop, a guard on the node stops it within the node's fence bound
// after the end of the lease. How long that is waited for is the planner's to know, by
// the leader's own clock: the clock of the log is set by whoever leads, and a jump or
// a difference between two leaders must not shorten the wait.

// Guarded reports whether w is stopped by n itself when n's lease ends.
func (w *Workload) Guarded(n *Node) bool {
	return w.Demand.stops() && n.Facts.SelfFencing && !w.Unguarded
}

// stops reports whether something is to be stopped when its node's lease ends.
func (d *Demand) stops() bool { return d.Exclusive && d.OnLostLease == OnLostLeaseStop }

// keepsOnLostLease reports whether a workload must stay bound to a lost node
// until an operator fences or removes it.
func keepsOnLostLease(w *Workload, n *Node) bool { return w.Demand.Exclusive && !w.Guarded(n) }

// guards notes in the changed copy w of old what its node may still run of old. What
// the node has accepted counts, not what the user has asked for since.
func (t *Tx) guards(old, w *Workload) {
	if old.Unguarded || !old.Demand.stops() {
		t.unguarded(w)
	} else {
		w.Unguarded = false
	}
}

// unguarded notes in w that its node may run it as something that it does not stop: what
// the node was told before is not known, or was to keep it.
func (t *Tx) unguarded(w *Workload) {
	w.Unguarded = w.Node != "" && w.Demand.stops()
}
