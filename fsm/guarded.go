package fsm

// What an exclusive workload does when its node's lease ends (DESIGN, decision 9).
// With keep, nobody stops it, and it stays bound to the node until a person fences or
// removes that. With stop, a guard on the node stops it within the node's fence bound
// after the end of the lease. How long that is waited for is the planner's to know, by
// the leader's own clock: the clock of the log is set by whoever leads, and a jump or
// a difference between two leaders must not shorten the wait.

// Guarded reports whether w is stopped by n itself when n's lease ends.
func (w *Workload) Guarded(n *Node) bool {
	return w.Demand.Exclusive && w.Demand.OnLostLease == OnLostLeaseStop && n.Facts.SelfFencing && !w.Unguarded
}

// keepsOnLostLease reports whether a workload must stay bound to a lost node
// until an operator fences or removes it.
func keepsOnLostLease(w *Workload, n *Node) bool { return w.Demand.Exclusive && !w.Guarded(n) }

// guards notes in the changed copy w of old what its node may still run of old. What
// the node has accepted counts, not what the user has asked for since.
func (t *Tx) guards(old, w *Workload) {
	if t.r.info.FeatureLevel < 6 || w.Node == "" || !w.Demand.Exclusive || w.Demand.OnLostLease != OnLostLeaseStop {
		w.Unguarded = false // the demand says all, or nothing runs
		return
	}
	w.Unguarded = old.Unguarded || !old.Demand.Exclusive || old.Demand.OnLostLease != OnLostLeaseStop
}
