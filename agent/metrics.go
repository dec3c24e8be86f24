package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/agent/driver"
)

// metrics are the persys_agent_* collectors that existing dashboards query
// (contract/semantics.md, section 15), as far as they make sense here. A nil *metrics counts
// nothing.
type metrics struct {
	created, removed, failures, reconciles        prometheus.Counter
	applySeconds, deleteSeconds, reconcileSeconds prometheus.Histogram
	runtimeHealth                                 *prometheus.GaugeVec
	errors, taskFailures                          *prometheus.CounterVec
	taskExecutions                                *prometheus.CounterVec
	taskLatency                                   *prometheus.HistogramVec
	heartbeats                                    *prometheus.CounterVec
	fenced                                        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, a *Agent) (*metrics, error) {
	if reg == nil {
		return nil, nil
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "persys_agent_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "persys_agent_" + name, Help: help}, labels)
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "persys_agent_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.005, 3, 11),
		})
	}
	m := &metrics{
		created:          counter("workload_created_total", "Workloads created on an engine."),
		removed:          counter("workload_deleted_total", "Workloads deleted."),
		failures:         counter("workload_failed_total", "Times a workload became Failed."),
		reconciles:       counter("workload_reconcile_total", "Looks at everything."),
		applySeconds:     seconds("workload_apply_duration_seconds", "Time of one step that creates, replaces, starts or stops."),
		deleteSeconds:    seconds("workload_delete_duration_seconds", "Time of one delete."),
		reconcileSeconds: seconds("workload_reconcile_duration_seconds", "Time of one look at everything."),
		runtimeHealth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "persys_agent_runtime_health_status", Help: "1 when the runtime is healthy, else 0.",
		}, []string{"runtime_type"}),
		errors:         counters("errors_total", "Failures by class.", "error_code"),
		taskExecutions: counters("task_executions_total", "Tasks ended.", "type", "status"),
		taskFailures:   counters("task_failures_total", "Tasks failed.", "type"),
		taskLatency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "persys_agent_task_latency_seconds", Help: "Time from order to end.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 11),
		}, []string{"type", "status"}),
		heartbeats: counters("heartbeats_total", "Heartbeats and registrations sent, by outcome.", "call", "code"),
		fenced:     counter("orders_fenced_total", "Orders refused because of epoch, generation or node."),
	}
	collectors := []prometheus.Collector{
		m.created, m.removed, m.failures, m.reconciles, m.applySeconds, m.deleteSeconds, m.reconcileSeconds,
		m.runtimeHealth, m.errors, m.taskExecutions, m.taskFailures, m.taskLatency, m.heartbeats, m.fenced,
		&gauges{
			agent:     a,
			workloads: prometheus.NewDesc("persys_agent_workload_count", "Workloads by state and type.", []string{"state", "type"}, nil),
			depth:     prometheus.NewDesc("persys_agent_task_queue_depth", "Workloads due or in work.", nil, nil),
			memory:    prometheus.NewDesc("persys_agent_system_memory_utilization_percent", "0 to 100.", nil, nil),
			cpu:       prometheus.NewDesc("persys_agent_system_cpu_utilization_percent", "0 to 100.", nil, nil),
			disk:      prometheus.NewDesc("persys_agent_system_disk_utilization_percent", "0 to 100.", []string{"mount_point"}, nil),
		},
	}
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) runtime(kind driver.Kind, healthy bool) {
	if m == nil {
		return
	}
	v := 0.0
	if healthy {
		v = 1
	}
	m.runtimeHealth.WithLabelValues(string(kind)).Set(v)
}

func (m *metrics) reconciled(d time.Duration) {
	if m != nil {
		m.reconciles.Inc()
		m.reconcileSeconds.Observe(d.Seconds())
	}
}

func (m *metrics) applied(d time.Duration, do verb, created bool) {
	if m == nil {
		return
	}
	m.applySeconds.Observe(d.Seconds())
	if do == doRecreate || do == doEnsure && created {
		m.created.Inc()
	}
}

func (m *metrics) failed(class driver.Class) {
	if m != nil {
		m.failures.Inc()
		m.errors.WithLabelValues(string(class)).Inc()
	}
}

func (m *metrics) deleted(d time.Duration, t *task) {
	if m != nil {
		m.removed.Inc()
		m.deleteSeconds.Observe(d.Seconds())
		if t != nil {
			m.task(t)
		}
	}
}

func (m *metrics) task(t *task) {
	if m == nil || t.open() {
		return
	}
	m.taskExecutions.WithLabelValues(t.Action, t.Status).Inc()
	m.taskLatency.WithLabelValues(t.Action, t.Status).Observe(t.EndedAt.Sub(t.CreatedAt).Seconds())
	if t.Status == taskFailed {
		m.taskFailures.WithLabelValues(t.Action).Inc()
	}
}

func (m *metrics) said(call, code string) {
	if m != nil {
		m.heartbeats.WithLabelValues(call, code).Inc()
	}
}

func (m *metrics) refused(r *refusal) {
	if m != nil && r.fenced {
		m.fenced.Inc()
	}
}

// gauges are read from the agent when they are asked for.
type gauges struct {
	agent                               *Agent
	workloads, depth, memory, cpu, disk *prometheus.Desc
}

// Describe sends every description.
func (g *gauges) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, out) }

// Collect sends every value.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	type key struct{ state, kind string }
	counts := map[key]int{}
	for _, kind := range []driver.Kind{driver.Container, driver.Compose, driver.VM} {
		for _, state := range []string{"pending", "running", "stopped", "failed", "unknown"} {
			counts[key{state, string(kind)}] = 0
		}
	}
	g.agent.mu.Lock()
	for _, w := range g.agent.workloads {
		if w.report.status != nil {
			counts[key{stateWord(w.report.status.ActualState), string(w.kind)}]++
		}
	}
	g.agent.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for k, n := range counts {
		gauge(g.workloads, float64(n), k.state, k.kind)
	}
	usage := g.agent.host.Usage()
	gauge(g.depth, float64(g.agent.queue.depth()))
	gauge(g.memory, usage.MemoryPercent)
	gauge(g.cpu, usage.CPUPercent)
	gauge(g.disk, usage.DiskPercent, "/")
}
