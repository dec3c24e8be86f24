package replica

import (
	"bytes"
	"cmp"
	"context"
	"path"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/telemetry"
)

const metricsPrefix = "persys_scheduler_"

// metrics holds the metrics of a scheduler: the metrics that dashboards for legacy v1 schedulers query
// (contract/semantics.md section 15), and further metrics. It implements cluster.Metrics and leader.Metrics.
type metrics struct {
	*telemetry.Set

	requests    *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	agentCalls  *prometheus.CounterVec
	agentTime   *prometheus.HistogramVec
	steps       prometheus.Histogram
	cycles      *prometheus.CounterVec
	results     *prometheus.CounterVec
	writes      *prometheus.CounterVec
	jobs        *prometheus.CounterVec
	commands    prometheus.Counter
	orders      prometheus.Counter
	reports     prometheus.Counter
	pausedTotal prometheus.Counter

	appendTime    prometheus.Histogram
	appended      prometheus.Counter
	appendedBytes prometheus.Counter
	commitTime    prometheus.Histogram
	proposed      *prometheus.CounterVec
	entries       *prometheus.CounterVec
	applyTime     prometheus.Histogram
	snapshotTime  *prometheus.HistogramVec
	snapshots     *prometheus.CounterVec
	elections     prometheus.Counter
	stalls        prometheus.Counter
	leaps         prometheus.Counter
	leaderChanges prometheus.Counter
	modeChanges   *prometheus.CounterVec
	tooMany       *prometheus.CounterVec

	auditSent     prometheus.Counter
	auditFailures prometheus.Counter
	auditLost     prometheus.Counter
	auditWaiting  prometheus.Gauge

	since int64 // start of this process in Unix nanoseconds
}

// AuditSent implements auditsink.Metrics, as the next three methods do: it counts audit records that were sent.
func (m *metrics) AuditSent(records int) { m.auditSent.Add(float64(records)) }

// AuditSinkFailed counts a failed write of audit records.
func (m *metrics) AuditSinkFailed() { m.auditFailures.Inc() }

// AuditLost counts audit records that the cluster dropped before they were sent.
func (m *metrics) AuditLost(records uint64) { m.auditLost.Add(float64(records)) }

// AuditWaiting sets the number of audit records that are not sent yet.
func (m *metrics) AuditWaiting(records uint64) { m.auditWaiting.Set(float64(records)) }

// limited counts a call or connection that a limit refused.
func (m *metrics) limited(reason string) { m.tooMany.WithLabelValues(reason).Inc() }

// Metrics lists the metrics of a scheduler, except those of the Go runtime and of the process.
func Metrics() []telemetry.Metric {
	m := newMetrics()
	m.readReplica(nil)
	return slices.SortedFunc(slices.Values(append(m.Metrics(), dnsserver.Metrics()...)),
		func(a, b telemetry.Metric) int { return cmp.Compare(a.Name, b.Name) })
}

func newMetrics() *metrics {
	s := telemetry.NewSet(metricsPrefix)
	m := &metrics{
		Set:      s,
		requests: s.Counters("grpc_server_requests_total", "gRPC calls answered, by full method and code.", "method", "code"),
		latency: s.Histograms("grpc_server_request_duration_seconds", "Time to answer a gRPC call; for a stream, the time for which it is open.",
			prometheus.ExponentialBuckets(0.0005, 2, 15), "method", "code"),
		agentCalls: s.Counters("agent_rpc_requests_total", "Calls to agents, by RPC and code.", "rpc", "code"),
		agentTime: s.Histograms("agent_rpc_duration_seconds", "Time of a call to an agent.",
			prometheus.ExponentialBuckets(0.001, 2, 15), "rpc", "code"),
		steps: s.Histogram("reconciliation_cycle_duration_seconds", "Time of one planning step.",
			prometheus.ExponentialBuckets(0.00001, 4, 12)),
		cycles: s.Counters("reconciliation_cycles_total", "Planning steps, by whether their outcome is known.", "result"),
		tooMany: s.Counters("refused_by_limit_total",
			"Calls and connections that a limit refused, by limit: calls per second or concurrent calls of one peer, connections in total or of one host.", "reason"),
		results: s.Counters("reconciliation_results_total",
			"Commands and orders to agents (apply, delete) that the planner decided, by kind and by success.", "action", "success"),
		writes: s.Counters("state_store_writes_total",
			"Records changed in the replicated state, by kind of change. A record that changed in two ways counts in both kinds.", "category"),
		jobs:        s.Counters("jobs_total", "Jobs that have ended since this replica started, by result: success or failure. Every replica counts all jobs.", "result"),
		since:       time.Now().UnixNano(),
		commands:    s.Counter("planner_commands_total", "Commands that the planner proposed."),
		orders:      s.Counter("planner_orders_total", "Orders that the planner gave, including repetitions."),
		reports:     s.Counter("reports_committed_total", "Workload reports of agents that were written to the log."),
		pausedTotal: s.Counter("paused_seconds_total", "Time for which this process was paused while it led."),

		appendTime: s.Histogram("raft_append_duration_seconds", "Time to write log entries to this replica's disk, including fsync.",
			prometheus.ExponentialBuckets(0.0001, 2, 15)),
		appended:      s.Counter("raft_appended_entries_total", "Log entries written to this replica's disk."),
		appendedBytes: s.Counter("raft_appended_bytes_total", "Bytes of log entries written to this replica's disk."),
		commitTime: s.Histogram("raft_commit_duration_seconds", "On the leader: time from handing a log entry to Raft until it was applied.",
			prometheus.ExponentialBuckets(0.0005, 2, 15)),
		proposed:     s.Counters("raft_proposed_commands_total", "Commands that this replica handed to Raft, by result.", "result"),
		entries:      s.Counters("raft_proposed_entries_total", "Log entries that contain the commands which this replica handed to Raft, by result.", "result"),
		applyTime:    s.Histogram("raft_apply_duration_seconds", "Time to apply one log entry.", prometheus.ExponentialBuckets(0.00001, 4, 10)),
		snapshotTime: s.Histograms("raft_snapshot_duration_seconds", "Time to write or restore a snapshot.", prometheus.ExponentialBuckets(0.001, 4, 10), "operation"),
		snapshots:    s.Counters("raft_snapshots_total", "Snapshots written or restored, by result.", "operation", "result"),
		elections:    s.Counter("raft_elections_total", "Times that this replica stood for election."),
		stalls:       s.Counter("raft_leader_stalls_total", "Times that this replica gave up leadership because its log disk hung."),
		leaps:        s.Counter("raft_terms_refused_total", "Messages of other replicas whose Raft term was implausibly far ahead and was not adopted."),
		leaderChanges: s.Counter("raft_leader_changes_total",
			"Times that this replica learned of another leader, or that there is none."),
		auditSent:     s.Counter("audit_sink_records_total", "Audit records sent to SCHEDULER_AUDIT_SINK."),
		auditFailures: s.Counter("audit_sink_failures_total", "Writes to SCHEDULER_AUDIT_SINK that failed; they are repeated."),
		auditLost:     s.Counter("audit_sink_lost_records_total", "Audit records that the cluster dropped before this scheduler sent them."),
		auditWaiting:  s.Gauge("audit_sink_waiting_records", "Audit records that are not sent to SCHEDULER_AUDIT_SINK yet."),
		modeChanges:   s.Counters("mode_changes_total", "Times that this mode came into effect on this replica.", "mode"),
	}
	for _, result := range [...]string{"success", "error"} {
		m.cycles.WithLabelValues(result)
		m.proposed.WithLabelValues(result)
		m.entries.WithLabelValues(result)
	}
	m.jobs.WithLabelValues(jobSuccess)
	m.jobs.WithLabelValues(jobFailure)
	for _, c := range [...]string{"spec", "status", "retry", "assignment", "reconciliation", "event"} {
		m.writes.WithLabelValues(c)
	}
	for _, a := range [...]string{"apply", "delete"} {
		m.results.WithLabelValues(a, "true")
		m.results.WithLabelValues(a, "false")
	}
	for _, mode := range [...]fsm.Mode{fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery} {
		m.modeChanges.WithLabelValues(string(mode))
	}
	for _, reason := range limits.Reasons() {
		m.tooMany.WithLabelValues(reason)
	}
	for _, operation := range [...]string{"write", "restore"} {
		m.snapshotTime.WithLabelValues(operation)
		m.snapshots.WithLabelValues(operation, "success")
		m.snapshots.WithLabelValues(operation, "error")
	}
	// Declare these series on every replica. A replica exports them even if it has answered no call, and
	// even if it is a follower, which calls no agent.
	for _, call := range controlv1.AgentControl_ServiceDesc.Methods {
		method := "/" + controlv1.AgentControl_ServiceDesc.ServiceName + "/" + call.MethodName
		m.requests.WithLabelValues(method, codes.OK.String())
		m.latency.WithLabelValues(method, codes.OK.String())
	}
	for _, call := range agentv1.AgentService_ServiceDesc.Methods {
		m.agentCalls.WithLabelValues(call.MethodName, codes.OK.String())
		m.agentTime.WithLabelValues(call.MethodName, codes.OK.String())
	}
	return m
}

// register adds the metrics that are read from replica r, whose Raft node must be open.
func (m *metrics) register(reg *prometheus.Registry, r *Replica) {
	m.readReplica(r)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.Set)
}

// unary counts the calls that this replica has answered. It must be the outermost interceptor.
func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	began := time.Now()
	resp, err := h(ctx, req)
	count(m.requests, m.latency, info.FullMethod, began, err)
	return resp, err
}

func (m *metrics) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	began := time.Now()
	err := h(srv, ss)
	count(m.requests, m.latency, info.FullMethod, began, err)
	return err
}

// count counts a finished call. A peer may send any number as the code of its error, and each number would
// become a time series. So codes that gRPC does not define are counted as Unknown.
func count(calls *prometheus.CounterVec, took *prometheus.HistogramVec, method string, began time.Time, err error) {
	code := status.Code(err)
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	calls.WithLabelValues(method, code.String()).Inc()
	took.WithLabelValues(method, code.String()).Observe(time.Since(began).Seconds())
}

// agentUnary counts a call that this replica makes to an agent.
func (m *metrics) agentUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := call(ctx, method, req, reply, cc, opts...)
	count(m.agentCalls, m.agentTime, path.Base(method), began, err)
	return err
}

// agentStream counts a stream that this replica opens to an agent.
func (m *metrics) agentStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	began := time.Now()
	s, err := open(ctx, desc, cc, method, opts...)
	count(m.agentCalls, m.agentTime, path.Base(method), began, err)
	return s, err
}

// Step and the next four methods implement leader.Metrics.
func (m *metrics) Step(took time.Duration, commands, orders int) {
	m.steps.Observe(took.Seconds())
	m.cycles.WithLabelValues("success").Inc()
	m.commands.Add(float64(commands))
	m.orders.Add(float64(orders))
}

func (m *metrics) Result(action string, ok bool) {
	m.results.WithLabelValues(action, word(ok, "true", "false")).Inc()
}

func (m *metrics) Trouble()          { m.cycles.WithLabelValues("error").Inc() }
func (m *metrics) Flush(reports int) { m.reports.Add(float64(reports)) }

// Paused adds a pause of the process. It is also called when the wall clock was set. If the clock was set back, d
// is negative and is ignored, because a Prometheus counter panics on a negative amount.
func (m *metrics) Paused(d time.Duration) { m.pausedTotal.Add(max(0, d).Seconds()) }

// Append and the next five methods implement cluster.Metrics.
func (m *metrics) Append(entries, bytes int, took time.Duration) {
	m.appendTime.Observe(took.Seconds())
	m.appended.Add(float64(entries))
	m.appendedBytes.Add(float64(bytes))
}

func (m *metrics) Commit(commands, _ int, took time.Duration, err error) {
	result := word(err == nil, "success", "error")
	m.entries.WithLabelValues(result).Inc()
	m.proposed.WithLabelValues(result).Add(float64(commands))
	if err == nil {
		m.commitTime.Observe(took.Seconds())
	}
}

func (m *metrics) Apply(changes []fsm.Change, took time.Duration) {
	m.applyTime.Observe(took.Seconds())
	var n writes
	for i := range changes {
		n.count(&changes[i])
		m.countJob(&changes[i])
	}
	for _, c := range [...]struct {
		category string
		n        int
	}{{"spec", n.spec}, {"status", n.status}, {"retry", n.retry}, {"assignment", n.assignment}, {"reconciliation", n.reconciliation}, {"event", n.event}} {
		if c.n > 0 {
			m.writes.WithLabelValues(c.category).Add(float64(c.n))
		}
	}
}

// Values of the label result of jobs_total.
const (
	jobSuccess = "success"
	jobFailure = "failure"
)

// countJob counts a job that a change has ended. A replica that starts applies its log again, so jobs that ended before
// are not counted.
func (m *metrics) countJob(c *fsm.Change) {
	if c.Table != fsm.TableWorkload {
		return
	}
	old, w := c.OldWorkload(), c.NewWorkload()
	if w == nil || !w.Finished() || w.Result.At < m.since || old != nil && old.Result == w.Result {
		return
	}
	m.jobs.WithLabelValues(word(w.Result.Succeeded, jobSuccess, jobFailure)).Inc()
}

func (m *metrics) Snapshot(what string, took time.Duration, err error) {
	m.snapshots.WithLabelValues(what, word(err == nil, "success", "error")).Inc()
	m.snapshotTime.WithLabelValues(what).Observe(took.Seconds())
}

func (m *metrics) Election() { m.elections.Inc() }

// TermRefused implements cluster.Metrics: it counts the Raft terms of peers that this replica refused as
// implausible.
func (m *metrics) TermRefused() { m.leaps.Inc() }
func (m *metrics) Stalled()     { m.stalls.Inc() }

func word(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

// writes holds the numbers of changes of the state, in the categories of a metric that legacy v1 schedulers export
// (contract/semantics.md).
type writes struct{ spec, status, retry, assignment, reconciliation, event int }

func (n *writes) count(c *fsm.Change) {
	switch c.Table {
	case fsm.TableEvent:
		n.event++
	case fsm.TableWorkload:
		n.workload(c.OldWorkload(), c.NewWorkload())
	case fsm.TableNode:
		n.status++
	case fsm.TableResidual:
		n.assignment++
	default:
		n.reconciliation++ // this category includes changes of modes and of members
	}
}

func (n *writes) workload(old, w *fsm.Workload) {
	if old == nil || w == nil {
		n.spec++
		return
	}
	before := *n
	if old.Desired != w.Desired || old.Content != w.Content || old.CallerRevision != w.CallerRevision || !bytes.Equal(old.Spec, w.Spec) {
		n.spec++
	}
	if old.Node != w.Node || old.Generation != w.Generation || old.Acknowledged != w.Acknowledged {
		n.assignment++
	}
	if old.Retry != w.Retry || old.Restarts != w.Restarts {
		n.retry++
	}
	if old.Status != w.Status || old.Actual.State != w.Actual.State || old.Actual.Message != w.Actual.Message {
		n.status++
	}
	if *n == before {
		n.reconciliation++ // a change of only the reason is not counted
	}
}
