package replica

import (
	"strings"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/telemetry"
)

// readReplica declares the metrics whose values are read from the replica at each scrape. r is nil if only
// the names of the metrics are needed.
func (m *metrics) readReplica(r *Replica) {
	m.readState(r)
	m.readRaft(r)
	m.readFeed(r)
	m.readMirror(r)
	m.readCoreDNS(r)
}

func (m *metrics) readCoreDNS(r *Replica) {
	up := m.ReadGauge("coredns_up", "On the leader: 1 for a server of SCHEDULER_COREDNS_ADDR that answers for this cluster, otherwise 0. If no server is set, there is one value without a name.", "server")
	m.Read(func(emit telemetry.Emit) {
		n := 0
		r.coredns.Each(func(server string, ok bool) {
			n++
			emit(up, boolean(ok), server)
		})
		if n == 0 {
			emit(up, 0, "")
		}
	})
}

// readState declares the metrics that are read from the replicated state. Only the leader exports counts of
// nodes and workloads. The other replicas export 0 for these, so that the sum over all replicas is right.
// Every replica exports the mode, the feature level and the time at which the certificate authority expires.
func (m *metrics) readState(r *Replica) {
	var (
		nodes     = m.ReadGauge("nodes_status", "On the leader: nodes by status.", "status")
		workloads = m.ReadGauge("workloads_status", "On the leader: workloads by status.", "status")
		desired   = m.ReadGauge("workloads_desired_state", "On the leader: workloads by desired state.", "desired_state")
		success   = m.ReadGauge("jobs_last_success_timestamp_seconds", "On the leader: Unix time at which a job of the namespace last succeeded, among the jobs that have a record. If no job has succeeded, there is one value, 0, without a namespace.", "namespace")
		cronGood  = m.ReadGauge("cron_last_success_timestamp_seconds", "On the leader: Unix time at which a run of the cron last succeeded; 0 if none has. Of the first 1,000 crons by id. If there is no cron, there is one value, 0, without names.", "namespace", "cron")
		cronBad   = m.ReadGauge("crons_failing", "On the leader: crons of the namespace whose newest ended run has failed and that are not suspended. If there is no cron, there is one value, 0, without a namespace.", "namespace")
		residuals = m.ReadGauge("residuals", "On the leader: instances that must be removed from a node and are not known to be removed.")
		drifts    = m.ReadGauge("drifts_open", "On the leader: open drifts (differences between the nodes and the state), by kind.", "type")
		specs     = m.ReadGauge("state_spec_bytes", "On the leader: bytes of the present specifications of all workloads.")
		specsMax  = m.ReadGauge("state_spec_bytes_limit", "On the leader: maximum size in bytes of all specifications: an eighth of the memory of the scheduler with the least memory; 0 = no limit.")
		countMax  = m.ReadGauge("state_workloads_limit", "On the leader: maximum number of workloads: one for each 32 KiB of the memory of the scheduler with the least memory; 0 = no limit.")
		receipts  = m.ReadGauge("receipts", "On the leader: stored answers (receipts) for repeated requests.")
		mode      = m.ReadGauge("mode", "1 for the mode in effect on this replica.", "mode")
		caEnds    = m.ReadGauge("ca_not_after_seconds", "Unix time at which the authority expires that issues the cluster's certificates, and all its certificates with it; 0 without an authority.")
		features  = m.ReadGauge("feature_level", "Feature level of the cluster: the lowest level of all its replicas.")
		orders    = m.ReadGauge("planner_orders_pending", "On the leader: orders that wait, are being sent, or pause before another attempt.")
		flying    = m.ReadGauge("planner_orders_in_flight", "On the leader: orders that are being sent to agents.")
		reports   = m.ReadGauge("planner_reports_pending", "On the leader: workload reports that wait to be committed.")
	)
	m.Read(func(emit telemetry.Emit) {
		v := r.node.Store().View()
		counted := fsm.View(fsm.New())
		if r.node.IsLeader() {
			counted = v
		}
		amounts(counted, emit, nodes, workloads, desired, drifts, success)
		crons(func(fn func(*fsm.Workload) bool) { counted.Workloads("", fn) }, emit, cronGood, cronBad)
		total, room := counted.Total(), counted.Room()
		emit(residuals, float64(counted.ResidualCount()))
		emit(specs, float64(total.Bytes))
		emit(specsMax, float64(room.Bytes))
		emit(countMax, float64(room.Workloads))
		emit(receipts, float64(counted.ReceiptCount()))
		emit(features, float64(v.Info().FeatureLevel))
		emit(caEnds, float64(caNotAfter(v)))
		now := r.standing()
		for _, one := range [...]fsm.Mode{fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery} {
			emit(mode, boolean(one == now.mode), string(one))
		}
		work := r.loop.Stats()
		emit(orders, float64(work.Orders))
		emit(flying, float64(work.InFlight))
		emit(reports, float64(work.Reports))
	})
}

// amounts emits, for state v, the numbers of nodes, workloads and drifts by status or kind, and the time of the last
// success of a job by namespace.
func amounts(v fsm.View, emit telemetry.Emit, nodes, workloads, desired, drifts, success telemetry.Value) {
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
	succeeded := map[string]int64{}
	v.Workloads("", func(w *fsm.Workload) bool {
		want[w.Desired]++
		if w.Finished() && w.Result.Succeeded {
			succeeded[w.In()] = max(succeeded[w.In()], w.Result.At)
		}
		return true
	})
	if len(succeeded) == 0 {
		emit(success, 0, "")
	}
	for namespace, at := range succeeded {
		emit(success, float64(at/int64(time.Second)), namespace)
	}
	for d, n := range want {
		emit(desired, n, strings.ToLower(string(d)))
	}
	open := map[string]float64{fsm.DriftOrphan: 0, fsm.DriftState: 0, fsm.DriftRevision: 0, fsm.DriftMissing: 0}
	v.Drifts("", func(d *fsm.Drift) bool {
		open[d.Type]++
		return true
	})
	for kind, n := range open {
		emit(drifts, n, kind)
	}
}

// maxCronSeries is the maximum number of crons for which a time series of their own is exported.
const maxCronSeries = 1000

// crons emits the last success of each cron, and the number of failing crons by namespace. each iterates over the
// workloads by id.
func crons(each func(func(*fsm.Workload) bool), emit telemetry.Emit, success, failing telemetry.Value) {
	n, failed := 0, map[string]float64{}
	each(func(w *fsm.Workload) bool {
		if !w.IsCron() || w.Desired == fsm.DesiredDeleted {
			return true
		}
		if n++; n <= maxCronSeries {
			emit(success, float64(w.Template.LastSuccess/int64(time.Second)), w.In(), w.ID)
		}
		failed[w.In()] += boolean(w.Desired == fsm.DesiredRunning && w.Template.LastFailure > w.Template.LastSuccess)
		return true
	})
	if n == 0 {
		emit(success, 0, "", "")
		emit(failing, 0, "")
	}
	for namespace, crons := range failed {
		emit(failing, crons, namespace)
	}
}

func (m *metrics) readRaft(r *Replica) {
	var (
		applied  = m.ReadGauge("raft_applied_index", "Last applied log index.")
		commit   = m.ReadGauge("raft_commit_index", "Last log index that is known to be committed.")
		last     = m.ReadGauge("raft_last_index", "Last log index on this replica's disk.")
		term     = m.ReadGauge("raft_term", "Raft term.")
		leader   = m.ReadGauge("raft_is_leader", "1 on the replica that leads.")
		known    = m.ReadGauge("raft_has_leader", "1 while this replica knows a leader.")
		contact  = m.ReadGauge("raft_last_contact_seconds", "Time since this replica last heard from a leader; 0 on the leader.")
		replicas = m.ReadGauge("raft_replicas", "Replicas by role and health, as this replica sees them.", "role", "health")
		pending  = m.ReadGauge("raft_append_pending_seconds", "Age of the oldest unfinished write to the Raft log; 0 if all writes have finished.")
		copies   = m.ReadGauge("raft_copies", "Processes that run on a copy of a replica's data directory and were refused, as the leader and the original replica know them.")
		halted   = m.ReadGauge("raft_halted", "1 if this replica has stopped itself; its log says why.")
		waiting  = m.ReadGauge(repairWaiting, repairWaitingHelp)
		repaired = m.ReadGauge("raft_repaired_timestamp_seconds", "Unix time at which a replica moved its damaged data aside to join anew.", "replica")
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
		age, _ := r.node.DiskPending()
		emit(pending, age.Seconds())
		copied := 0
		for _, p := range st.Peers {
			copied += len(p.Copies)
		}
		emit(copies, float64(copied))
		emit(halted, boolean(st.Halted != nil))
		emit(waiting, 0)
		emit(repaired, 0, "") // export the series with 0 for a replica without a repair
		r.node.Store().View().Replicas(func(p *fsm.Replica) bool {
			if p.Repair.At != 0 {
				emit(repaired, float64(p.Repair.At/int64(time.Second)), p.Name)
			}
			return true
		})
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
		entries   = m.ReadGauge("feed_entries", "Log entries whose changes the change feed still has.")
		changes   = m.ReadGauge("feed_changes", "Changes that the change feed still has.")
		bytes     = m.ReadGauge("feed_bytes", "Approximate size in bytes of the records in the change feed.")
		cursors   = m.ReadGauge("feed_cursors", "Readers of the change feed.")
		waiters   = m.ReadGauge("feed_waiters", "Calls that wait until this replica has applied a log index.")
		dropped   = m.ReadCounter("feed_dropped_entries_total", "Log entries whose changes the change feed no longer has.")
		compacted = m.ReadCounter("feed_compactions_total", "Times that a reader of the change feed was too slow, missed changes, and had to read the whole state again.")
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
		state        = m.ReadGauge("mirror_state", "State of the mirror on the replica that writes it: 1 for the present state, 0 for the others.", "state")
		lag          = m.ReadGauge("mirror_lag_seconds", "Age of the oldest change that is not yet in etcd.")
		behind       = m.ReadGauge("mirror_lag_entries", "Log entries that are not yet in etcd.")
		index        = m.ReadGauge("mirror_index", "Log index of the state that is in etcd.")
		probe        = m.ReadGauge("mirror_probe_seconds", "Duration of the last probe of etcd.")
		records      = m.ReadCounter("mirror_records_total", "Keys written to or removed from etcd.")
		transactions = m.ReadCounter("mirror_transactions_total", "Transactions committed in etcd.")
		failed       = m.ReadCounter("mirror_errors_total", "Calls to etcd that failed, including repetitions and probes.")
		fenced       = m.ReadCounter("mirror_fenced_total", "Times that the position mark in etcd was not the one that this scheduler wrote last.")
		comparisons  = m.ReadCounter("mirror_comparisons_total", "Full comparisons of the mirror with the state.")
	)
	m.Read(func(emit telemetry.Emit) {
		var s mirror.Stats
		opened := r.activeMirror()
		writes := opened != nil && opened.Running()
		if opened != nil {
			s = opened.Stats()
		}
		for _, st := range [...]mirror.State{mirror.Starting, mirror.Healthy, mirror.Unreachable, mirror.Failing, mirror.Emptied, mirror.Foreign, mirror.Other} {
			emit(state, boolean(writes && st == s.Health.State), string(st))
		}
		if !writes { // skip values from an earlier leadership term of this replica
			s.Lag, s.LagIndex, s.Index, s.Probe = 0, 0, 0, 0
		}
		emit(lag, s.Lag.Seconds())
		emit(behind, float64(s.LagIndex))
		emit(index, float64(s.Index))
		emit(probe, s.Probe.Seconds())
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
