package scheduler

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/sched"
)

// metrics are the names that existing boards query (contract/semantics.md section
// 15) and our own.
type metrics struct {
	requests    *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	orders      *prometheus.CounterVec
	orderTime   *prometheus.HistogramVec
	steps       prometheus.Histogram
	cycles      *prometheus.CounterVec
	commands    prometheus.Counter
	reports     prometheus.Counter
	pausedTotal prometheus.Counter
}

func newMetrics() *metrics {
	const ns = "persys_scheduler_"
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "grpc_server_requests_total", Help: "gRPC calls answered, by full method and code."}, []string{"method", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: ns + "grpc_server_request_duration_seconds", Help: "Time to answer a gRPC call.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}, []string{"method", "code"}),
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "agent_rpc_requests_total", Help: "Calls to agents, by RPC and code."}, []string{"rpc", "code"}),
		orderTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: ns + "agent_rpc_duration_seconds", Help: "Time of a call to an agent.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"rpc", "code"}),
		steps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: ns + "reconciliation_cycle_duration_seconds", Help: "Time of one planning step.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 12)}),
		cycles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "reconciliation_cycles_total", Help: "Planning steps."}, []string{"result"}),
		commands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: ns + "planner_commands_total", Help: "Commands that the planner proposed."}),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: ns + "reports_committed_total", Help: "Workload reports put into the log."}),
		pausedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: ns + "paused_seconds_total", Help: "Time this process was found to have been paused while leading."}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.latency, m.orders, m.orderTime, m.steps, m.cycles, m.commands, m.reports, m.pausedTotal}
}

// register adds what can be counted once r has its node.
func (m *metrics) register(reg *prometheus.Registry, r *Replica) {
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(m.all()...)
	reg.MustRegister(stateCollector{r})
}

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	began := time.Now()
	resp, err := h(ctx, req)
	code := status.Code(err).String()
	m.requests.WithLabelValues(info.FullMethod, code).Inc()
	m.latency.WithLabelValues(info.FullMethod, code).Observe(time.Since(began).Seconds())
	return resp, err
}

// Step implements leader.Metrics, as do the next three.
func (m *metrics) Step(took time.Duration, commands, _ int) {
	m.steps.Observe(took.Seconds())
	m.cycles.WithLabelValues("success").Inc()
	m.commands.Add(float64(commands))
}

func (m *metrics) Order(op sched.Op, took time.Duration, err error) {
	rpc := "ApplyWorkload"
	if op == sched.OpDelete {
		rpc = "DeleteWorkload"
	}
	code := status.Code(err).String()
	m.orders.WithLabelValues(rpc, code).Inc()
	m.orderTime.WithLabelValues(rpc, code).Observe(took.Seconds())
}

func (m *metrics) Flush(reports int)      { m.reports.Add(float64(reports)) }
func (m *metrics) Paused(d time.Duration) { m.pausedTotal.Add(d.Seconds()) }

// stateCollector reads gauges from the replicated state when they are asked for.
type stateCollector struct{ r *Replica }

var (
	descNodes     = prometheus.NewDesc("persys_scheduler_nodes_status", "Nodes by status.", []string{"status"}, nil)
	descWorkloads = prometheus.NewDesc("persys_scheduler_workloads_status", "Workloads by status.", []string{"status"}, nil)
	descDesired   = prometheus.NewDesc("persys_scheduler_workloads_desired_state", "Workloads by desired state.", []string{"desired_state"}, nil)
	descIndex     = prometheus.NewDesc("persys_scheduler_raft_applied_index", "Last applied log index.", nil, nil)
	descTerm      = prometheus.NewDesc("persys_scheduler_raft_term", "Raft term.", nil, nil)
	descLeader    = prometheus.NewDesc("persys_scheduler_raft_is_leader", "1 on the replica that leads.", nil, nil)
	descReceipts  = prometheus.NewDesc("persys_scheduler_receipts", "Answers kept for repeated requests.", nil, nil)
	descMode      = prometheus.NewDesc("persys_scheduler_mode", "1 for the mode that holds on this replica.", []string{"mode"}, nil)

	descMirrorState        = prometheus.NewDesc("persys_scheduler_mirror_state", "1 for the state of the mirror, on the replica that writes it.", []string{"state"}, nil)
	descMirrorLag          = prometheus.NewDesc("persys_scheduler_mirror_lag_seconds", "Age of the oldest change that etcd does not hold.", nil, nil)
	descMirrorBehind       = prometheus.NewDesc("persys_scheduler_mirror_lag_entries", "Log entries that etcd does not hold.", nil, nil)
	descMirrorIndex        = prometheus.NewDesc("persys_scheduler_mirror_index", "Log index of the state that etcd holds.", nil, nil)
	descMirrorProbe        = prometheus.NewDesc("persys_scheduler_mirror_probe_seconds", "Time of the newest probe of etcd.", nil, nil)
	descMirrorRecords      = prometheus.NewDesc("persys_scheduler_mirror_records_total", "Keys written to or removed from etcd.", nil, nil)
	descMirrorTransactions = prometheus.NewDesc("persys_scheduler_mirror_transactions_total", "Transactions committed in etcd.", nil, nil)
	descMirrorErrors       = prometheus.NewDesc("persys_scheduler_mirror_errors_total", "Calls to etcd that failed, repetitions and probes included.", nil, nil)
	descMirrorFenced       = prometheus.NewDesc("persys_scheduler_mirror_fenced_total", "Times the cursor in etcd was not the one written last.", nil, nil)
	descMirrorComparisons  = prometheus.NewDesc("persys_scheduler_mirror_comparisons_total", "Full comparisons of the mirror with the state.", nil, nil)
)

func (stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descNodes, descWorkloads, descDesired, descIndex, descTerm, descLeader, descReceipts, descMode, descMirrorState, descMirrorLag,
		descMirrorBehind, descMirrorIndex, descMirrorProbe, descMirrorRecords, descMirrorTransactions, descMirrorErrors, descMirrorFenced, descMirrorComparisons} {
		ch <- d
	}
}

func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	v := c.r.node.Store().View()
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	nodes := map[string]float64{"ready": 0, "active": 0, "notready": 0, "unknown": 0, "draining": 0}
	v.Nodes("", func(n *fsm.Node) bool {
		nodes[strings.ToLower(string(n.Status()))]++
		return true
	})
	for st, n := range nodes {
		gauge(descNodes, n, st)
	}
	for _, st := range []fsm.Status{fsm.StatusPending, fsm.StatusScheduled, fsm.StatusUpdating, fsm.StatusRunning, fsm.StatusStopped,
		fsm.StatusFailed, fsm.StatusUnknown, fsm.StatusRetryPending, fsm.StatusDeleting, fsm.StatusDeleted} {
		gauge(descWorkloads, float64(v.StatusCount(st)), strings.ToLower(string(st)))
	}
	desired := map[fsm.Desired]float64{fsm.DesiredRunning: 0, fsm.DesiredStopped: 0, fsm.DesiredDeleted: 0, "unknown": 0}
	v.Workloads("", func(w *fsm.Workload) bool {
		desired[w.Desired]++
		return true
	})
	for d, n := range desired {
		gauge(descDesired, n, strings.ToLower(string(d)))
	}
	info := v.Info()
	gauge(descIndex, float64(info.Index))
	gauge(descTerm, float64(info.Term))
	gauge(descLeader, boolean(c.r.node.IsLeader()))
	gauge(descReceipts, float64(v.ReceiptCount()))
	now := c.r.standing()
	for _, m := range [...]fsm.Mode{fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery} {
		gauge(descMode, boolean(m == now.mode), string(m))
	}
	if c.r.mirror == nil {
		return
	}
	s, writes := c.r.mirror.Stats(), c.r.mirror.Running()
	for _, st := range [...]mirror.State{mirror.Starting, mirror.Healthy, mirror.Unreachable, mirror.Failing, mirror.Emptied, mirror.Foreign} {
		gauge(descMirrorState, boolean(writes && st == s.Health.State), string(st))
	}
	if writes {
		gauge(descMirrorLag, s.Lag.Seconds())
		gauge(descMirrorBehind, float64(s.LagIndex))
		gauge(descMirrorIndex, float64(s.Index))
		gauge(descMirrorProbe, s.Probe.Seconds())
	}
	count := func(d *prometheus.Desc, n uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	count(descMirrorRecords, s.Records)
	count(descMirrorTransactions, s.Transactions)
	count(descMirrorErrors, s.Errors)
	count(descMirrorFenced, s.Fenced)
	count(descMirrorComparisons, s.Comparisons)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
