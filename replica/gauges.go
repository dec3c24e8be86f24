package replica

import (
	"strings"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/telemetry"
)

// readReplica declares the metrics whose value is read from a replica at each scrape. r is nil if only the
// names are needed.
func (m *metrics) readReplica(r *Replica) {
	m.readState(r)
	m.readRaft(r)
	m.readFeed(r)
	m.readMirror(r)
	m.readCoreDNS(r)
}

func (m *metrics) readCoreDNS(r *Replica) {
	up := m.ReadGauge("coredns_up", "On the leader: 1 for a server of SCHEDULER_COREDNS_ADDR that answers for this cluster, 0 for one that does not.", "server")
	m.Read(func(emit telemetry.Emit) {
		r.coredns.Each(func(server string, ok bool) { emit(up, boolean(ok), server) })
	})
}

func (m *metrics) readState(r *Replica) {
	var (
		nodes     = m.ReadGauge("nodes_status", "Nodes by status.", "status")
		workloads = m.ReadGauge("workloads_status", "Workloads by status.", "status")
		desired   = m.ReadGauge("workloads_desired_state", "Workloads by desired state.", "desired_state")
		residuals = m.ReadGauge("residuals", "Instances that are to be removed from a node and are not known to be gone.")
		drifts    = m.ReadGauge("drifts_open", "Differences between nodes and the state that are open, by kind.", "type")
		receipts  = m.ReadGauge("receipts", "Answers kept for repeated requests.")
		mode      = m.ReadGauge("mode", "1 for the mode that holds on this replica.", "mode")
		caEnds    = m.ReadGauge("ca_not_after_seconds", "Unix time at which the authority is over that issues the cluster's certificates, and all of these with it; 0 without one.")
		features  = m.ReadGauge("feature_level", "Feature level that the cluster has agreed on.")
		orders    = m.ReadGauge("planner_orders_pending", "On the leader: orders that wait, are on their way, or rest before another try.")
		flying    = m.ReadGauge("planner_orders_in_flight", "On the leader: orders on their way to agents.")
		reports   = m.ReadGauge("planner_reports_pending", "On the leader: workload reports that wait to be committed.")
	)
	m.Read(func(emit telemetry.Emit) {
		v := r.node.Store().View()
		byStatus := map[string]float64{"ready": 0, "active": 0, "notready": 0, "unknown": 0, "draining": 0}
		v.Nodes("", func(n *fsm.Node) bool {
			byStatus[strings.ToLower(string(n.Status()))]++
			return true
		})
		for st, n := range byStatus {
			emit(nodes, n, st)
		}
		for _, st := range []fsm.Status{fsm.StatusPending, fsm.StatusScheduled, fsm.StatusUpdating, fsm.StatusRunning, fsm.StatusStopped,
			fsm.StatusFailed, fsm.StatusUnknown, fsm.StatusRetryPending, fsm.StatusDeleting, fsm.StatusDeleted} {
			emit(workloads, float64(v.StatusCount(st)), strings.ToLower(string(st)))
		}
		want := map[fsm.Desired]float64{fsm.DesiredRunning: 0, fsm.DesiredStopped: 0, fsm.DesiredDeleted: 0, "unknown": 0}
		v.Workloads("", func(w *fsm.Workload) bool {
			want[w.Desired]++
			return true
		})
		for d, n := range want {
			emit(desired, n, strings.ToLower(string(d)))
		}
		emit(residuals, float64(v.ResidualCount()))
		open := map[string]float64{fsm.DriftOrphan: 0, fsm.DriftState: 0, fsm.DriftRevision: 0, fsm.DriftMissing: 0}
		v.Drifts("", func(d *fsm.Drift) bool {
			open[d.Type]++
			return true
		})
		for kind, n := range open {
			emit(drifts, n, kind)
		}
		emit(receipts, float64(v.ReceiptCount()))
		emit(features, float64(v.Info().FeatureLevel))
		emit(caEnds, float64(caNotAfter(v)))
		now := r.standing()
		for _, one := range [...]fsm.Mode{fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery} {
			emit(mode, boolean(one == now.mode), string(one))
		}
		work := r.loop.Stats()
		emit(orders, float64(work.Orders))
		emit(flying, float64(work.Flying))
		emit(reports, float64(work.Reports))
	})
}

func (m *metrics) readRaft(r *Replica) {
	var (
		applied  = m.ReadGauge("raft_applied_index", "Last applied log index.")
		commit   = m.ReadGauge("raft_commit_index", "Last log index that is known to be committed.")
		last     = m.ReadGauge("raft_last_index", "Last log index on this replica's disk.")
		term     = m.ReadGauge("raft_term", "Raft term.")
		leader   = m.ReadGauge("raft_is_leader", "1 on the replica that leads.")
		known    = m.ReadGauge("raft_has_leader", "1 while this replica knows a leader.")
		contact  = m.ReadGauge("raft_last_contact_seconds", "Time since this replica heard from a leader; 0 on the leader.")
		replicas = m.ReadGauge("raft_replicas", "Replicas by role and health, as this one sees them.", "role", "health")
		halted   = m.ReadGauge("raft_halted", "1 when this replica has stopped itself; its log says why.")
	)
	m.Read(func(emit telemetry.Emit) {
		st := r.node.Status()
		emit(applied, float64(st.AppliedIndex))
		emit(commit, float64(st.CommitIndex))
		emit(last, float64(st.LastIndex))
		emit(term, float64(st.Term))
		emit(leader, boolean(r.node.IsLeader()))
		emit(known, boolean(st.Leader.ID != ""))
		emit(contact, st.LastContact.Seconds())
		emit(halted, boolean(st.Halted != nil))
		type group struct{ role, health string }
		groups := map[group]float64{}
		for _, role := range [...]string{"leader", "voter", "non-voter"} {
			for _, health := range [...]string{"alive", "suspect", "dead"} {
				groups[group{role, health}] = 0
			}
		}
		for _, p := range st.Peers {
			groups[group{string(p.Role), p.Health}]++
		}
		for g, n := range groups {
			emit(replicas, n, g.role, g.health)
		}
	})
}

func (m *metrics) readFeed(r *Replica) {
	var (
		entries   = m.ReadGauge("feed_entries", "Log entries that the change feed holds.")
		changes   = m.ReadGauge("feed_changes", "Changes that the change feed holds.")
		bytes     = m.ReadGauge("feed_bytes", "Bytes of records that the change feed holds, roughly.")
		cursors   = m.ReadGauge("feed_cursors", "Readers of the change feed.")
		waiters   = m.ReadGauge("feed_waiters", "Calls that wait for a log index.")
		dropped   = m.ReadCounter("feed_dropped_entries_total", "Log entries that the change feed no longer holds.")
		compacted = m.ReadCounter("feed_compactions_total", "Times that a reader had fallen off the change feed and began anew.")
	)
	m.Read(func(emit telemetry.Emit) {
		st := r.node.Store().Stats()
		emit(entries, float64(st.Entries))
		emit(changes, float64(st.Changes))
		emit(bytes, float64(st.Bytes))
		emit(cursors, float64(st.Cursors))
		emit(waiters, float64(st.Waiters))
		emit(dropped, float64(st.Dropped))
		emit(compacted, float64(st.Compacted))
	})
}

func (m *metrics) readMirror(r *Replica) {
	var (
		state        = m.ReadGauge("mirror_state", "1 for the state of the mirror, on the replica that writes it.", "state")
		lag          = m.ReadGauge("mirror_lag_seconds", "Age of the oldest change that etcd does not hold.")
		behind       = m.ReadGauge("mirror_lag_entries", "Log entries that etcd does not hold.")
		index        = m.ReadGauge("mirror_index", "Log index of the state that etcd holds.")
		probe        = m.ReadGauge("mirror_probe_seconds", "Time of the newest probe of etcd.")
		records      = m.ReadCounter("mirror_records_total", "Keys written to or removed from etcd.")
		transactions = m.ReadCounter("mirror_transactions_total", "Transactions committed in etcd.")
		failed       = m.ReadCounter("mirror_errors_total", "Calls to etcd that failed, repetitions and probes included.")
		fenced       = m.ReadCounter("mirror_fenced_total", "Times the cursor in etcd was not the one written last.")
		comparisons  = m.ReadCounter("mirror_comparisons_total", "Full comparisons of the mirror with the state.")
	)
	m.Read(func(emit telemetry.Emit) {
		if r.mirror == nil {
			return
		}
		s, writes := r.mirror.Stats(), r.mirror.Running()
		for _, st := range [...]mirror.State{mirror.Starting, mirror.Healthy, mirror.Unreachable, mirror.Failing, mirror.Emptied, mirror.Foreign} {
			emit(state, boolean(writes && st == s.Health.State), string(st))
		}
		if writes {
			emit(lag, s.Lag.Seconds())
			emit(behind, float64(s.LagIndex))
			emit(index, float64(s.Index))
			emit(probe, s.Probe.Seconds())
		}
		emit(records, float64(s.Records))
		emit(transactions, float64(s.Transactions))
		emit(failed, float64(s.Errors))
		emit(fenced, float64(s.Fenced))
		emit(comparisons, float64(s.Comparisons))
	})
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
