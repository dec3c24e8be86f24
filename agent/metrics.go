package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/telemetry"
)

// metrics are the persys_agent_* collectors that existing dashboards query
// (contract/semantics.md, section 15) and a few of our own. A nil *metrics counts
// nothing.
type metrics struct {
	*telemetry.Set

	created, removed, failures, reconciles        prometheus.Counter
	applySeconds, deleteSeconds, reconcileSeconds prometheus.Histogram
	runtimeHealth                                 *prometheus.GaugeVec
	errors, taskFailures                          *prometheus.CounterVec
	taskExecutions                                *prometheus.CounterVec
	taskLatency                                   *prometheus.HistogramVec
	gcRuns                                        prometheus.Counter
	gcSeconds                                     prometheus.Histogram
	gcDeleted                                     *prometheus.CounterVec
	heartbeats                                    *prometheus.CounterVec
	fenced                                        prometheus.Counter
	tooMany                                       *prometheus.CounterVec
}

// limited counts what a limit refused.
func (m *metrics) limited(reason string) {
	if m != nil {
		m.tooMany.WithLabelValues(reason).Inc()
	}
}

// Metrics lists what an agent exports, Go's and the process's own collectors
// aside.
func Metrics() []telemetry.Metric { return describeMetrics(nil).Metrics() }

func newMetrics(reg prometheus.Registerer, a *Agent) (*metrics, error) {
	if reg == nil {
		return nil, nil
	}
	m := describeMetrics(a)
	return m, reg.Register(m.Set)
}

func describeMetrics(a *Agent) *metrics {
	s := telemetry.NewSet("persys_agent_")
	buckets := prometheus.ExponentialBuckets(0.005, 3, 11)
	m := &metrics{
		Set:              s,
		created:          s.Counter("workload_created_total", "Workloads created on an engine."),
		removed:          s.Counter("workload_deleted_total", "Workloads deleted."),
		failures:         s.Counter("workload_failed_total", "Times a workload became Failed."),
		reconciles:       s.Counter("workload_reconcile_total", "Looks at everything."),
		applySeconds:     s.Histogram("workload_apply_duration_seconds", "Time of one step that creates, replaces, starts or stops.", buckets),
		deleteSeconds:    s.Histogram("workload_delete_duration_seconds", "Time of one delete.", buckets),
		reconcileSeconds: s.Histogram("workload_reconcile_duration_seconds", "Time of one look at everything.", buckets),
		runtimeHealth:    s.Gauges("runtime_health_status", "1 when the runtime is healthy, else 0.", "runtime_type"),
		tooMany:          s.Counters("refused_by_limit_total", "Calls and connections that a limit refused: rate and concurrency of one host, connections in all, or of one host.", "reason"),
		errors:           s.Counters("errors_total", "Failures by class.", "error_code"),
		taskExecutions:   s.Counters("task_executions_total", "Tasks ended.", "type", "status"),
		taskFailures:     s.Counters("task_failures_total", "Tasks failed.", "type"),
		taskLatency:      s.Histograms("task_latency_seconds", "Time from order to end.", buckets, "type", "status"),
		gcRuns:           s.Counter("garbage_collection_runs_total", "Times that what is no longer needed was looked for and dropped."),
		gcSeconds:        s.Histogram("garbage_collection_duration_seconds", "Time of one such run.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		gcDeleted: s.Counters("garbage_collection_resources_deleted_total",
			"What garbage collection removed by kind, and instances, by their type, that came back after their delete.", "resource_type"),
		heartbeats: s.Counters("heartbeats_total", "Heartbeats and registrations sent, by outcome.", "call", "code"),
		fenced:     s.Counter("orders_fenced_total", "Orders refused because of epoch, generation or node."),
	}
	m.readAgent(a)
	return m
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

// deleted counts a delete; orphan is the kind of an instance that nobody had
// ordered, else "".
func (m *metrics) deleted(d time.Duration, orphan driver.Kind, t *task) {
	if m == nil {
		return
	}
	m.removed.Inc()
	m.deleteSeconds.Observe(d.Seconds())
	if t != nil {
		m.task(t)
	} else if orphan != "" {
		m.gcDeleted.WithLabelValues(string(orphan)).Inc()
	}
}

// collectedOne counts a removal by garbage collection.
func (m *metrics) collectedOne(kind string) {
	if m != nil {
		m.gcDeleted.WithLabelValues(kind).Inc()
	}
}

func (m *metrics) collected(d time.Duration) {
	if m != nil {
		m.gcRuns.Inc()
		m.gcSeconds.Observe(d.Seconds())
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

// orphanKind is the kind of a workload that is there and was not ordered, else "".
func (a *Agent) orphanKind(id string) driver.Kind {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workloads[id]; w != nil && w.intent == nil && w.observed != nil {
		return w.kind
	}
	return ""
}

// oldFailure is how long a workload has been Failed when it counts as an old
// failure (contract/semantics.md, section 11).
const oldFailure = time.Hour

// readAgent declares what is read from the agent when it is asked for; a may be
// nil where only the names matter.
func (m *metrics) readAgent(a *Agent) {
	var (
		workloads = m.ReadGauge("workload_count", "Workloads by state and type.", "state", "type")
		orphans   = m.ReadGauge("garbage_collection_orphaned_resources_found",
			"Instances with our labels that nobody ordered; they are reported, never removed by themselves.", "resource_type")
		failed = m.ReadGauge("garbage_collection_old_failed_workloads_found", "Workloads that have been Failed for more than an hour.")
		depth  = m.ReadGauge("task_queue_depth", "Workloads due or in work.")
		memory = m.ReadGauge("system_memory_utilization_percent", "0 to 100.")
		cpu    = m.ReadGauge("system_cpu_utilization_percent", "0 to 100.")
		disk   = m.ReadGauge("system_disk_utilization_percent", "0 to 100.", "mount_point")
		cards  = m.ReadGauge("system_network_bytes", "What the machine's own network cards received and sent since it started.", "direction")
		// Sums by kind: a workload's id is what a caller chose, and never becomes a label.
		useCPU     = m.ReadGauge("workload_cpu_millicores", "Processor use of all workloads of a kind between their two newest samples.", "type")
		useMemory  = m.ReadGauge("workload_memory_bytes", "Memory in use by all workloads of a kind.", "type")
		useDisk    = m.ReadGauge("workload_disk_bytes", "What all workloads of a kind occupy beyond images and volumes, where it is measured.", "type")
		useNetwork = m.ReadGauge("workload_network_bytes", "What the running workloads of a kind received and sent, each since its start.", "type", "direction")
		useBlocks  = m.ReadGauge("workload_block_bytes", "What the running workloads of a kind read from and wrote to block devices, each since its start.", "type", "direction")
		promised   = m.ReadGauge("promised", "Sum of the reservations of all workloads: cpu in millicores, memory in MiB, disk in GiB.", "resource")
		useMeasure = m.ReadGauge("workloads_measured", "Workloads of a kind of which the use is known.", "type")
	)
	m.Read(func(emit telemetry.Emit) {
		type key struct{ state, kind string }
		counts, left := map[key]int{}, map[string]int{}
		for _, kind := range []driver.Kind{driver.Container, driver.Compose, driver.VM} {
			left[string(kind)] = 0
			for _, state := range []string{"pending", "running", "stopped", "failed", "unknown"} {
				counts[key{state, string(kind)}] = 0
			}
		}
		old, now := 0, time.Now()
		a.mu.Lock()
		for _, w := range a.workloads {
			if w.intent == nil && w.observed != nil {
				left[string(w.kind)]++
			}
			st := w.report.status
			if st == nil {
				continue
			}
			counts[key{stateWord(st.ActualState), string(w.kind)}]++
			if st.ActualState == agentv1.ActualState_ACTUAL_STATE_FAILED && now.Sub(time.Unix(st.UpdatedAt, 0)) > oldFailure {
				old++
			}
		}
		a.mu.Unlock()
		for k, n := range counts {
			emit(workloads, float64(n), k.state, k.kind)
		}
		for kind, n := range left {
			emit(orphans, float64(n), kind)
		}
		emit(failed, float64(old))
		readings, _ := a.used.After(0)
		for _, kind := range []driver.Kind{driver.Container, driver.Compose, driver.VM} {
			var n, millicores, bytes, occupied, received, sent, read, written float64
			for _, r := range readings {
				if r.Kind == kind {
					n++
					millicores += max(0, r.Millicores)
					bytes += float64(r.Memory)
					occupied += float64(max(0, r.Disk))
					received += float64(r.NetReceived)
					sent += float64(r.NetSent)
					read += float64(r.DiskRead)
					written += float64(r.DiskWrite)
				}
			}
			emit(useMeasure, n, string(kind))
			emit(useCPU, millicores, string(kind))
			emit(useMemory, bytes, string(kind))
			emit(useDisk, occupied, string(kind))
			emit(useNetwork, received, string(kind), "received")
			emit(useNetwork, sent, string(kind), "sent")
			emit(useBlocks, read, string(kind), "read")
			emit(useBlocks, written, string(kind), "written")
		}
		reserved := a.usage()
		emit(promised, float64(reserved.CpuAllocatedMillicores), "cpu")
		emit(promised, float64(reserved.MemoryAllocatedMb), "memory")
		emit(promised, float64(reserved.DiskAllocatedGb), "disk")
		usage := a.host.Usage()
		emit(depth, float64(a.queue.depth()))
		emit(memory, usage.MemoryPercent)
		emit(cpu, usage.CPUPercent)
		emit(disk, usage.DiskPercent, "/")
		emit(cards, float64(usage.NetReceived), "received")
		emit(cards, float64(usage.NetSent), "sent")
	})
}
