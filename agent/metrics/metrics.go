// Package metrics declares the persys_agent_* metrics.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/telemetry"
)

// Metrics are the persys_agent_* metrics: those that existing dashboards use (contract/semantics.md, section
// 15), and further ones. A nil *Metrics counts nothing.
type Metrics struct {
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
	networkRepairs                                prometheus.Counter
	networkProblems                               prometheus.Gauge
}

// Limited counts a call or connection that was refused because of the limit named reason.
func (m *Metrics) Limited(reason string) {
	if m != nil {
		m.tooMany.WithLabelValues(reason).Inc()
	}
}

// List returns the descriptions of the metrics that an agent exports, without those of the Go runtime and of
// the process.
func List() []telemetry.Metric { return describe(nil).Metrics() }

// Source provides the values of the agent's gauges at each scrape.
type Source struct {
	State func() core.State
	Used  *usage.Table
	Host  host.Host
}

// New registers the collectors of the metrics. If reg is nil, it returns nil.
func New(reg prometheus.Registerer, from Source) (*Metrics, error) {
	if reg == nil {
		return nil, nil
	}
	m := describe(&from)
	return m, reg.Register(m.Set)
}

func describe(from *Source) *Metrics {
	s := telemetry.NewSet("persys_agent_")
	buckets := prometheus.ExponentialBuckets(0.005, 3, 11)
	m := &Metrics{
		Set:              s,
		created:          s.Counter("workload_created_total", "Workloads created on an engine."),
		removed:          s.Counter("workload_deleted_total", "Workloads deleted."),
		failures:         s.Counter("workload_failed_total", "Times a workload became Failed."),
		reconciles:       s.Counter("workload_reconcile_total", "Sweeps: lists of all engines."),
		applySeconds:     s.Histogram("workload_apply_duration_seconds", "Time of one action that creates, replaces, starts or stops an instance.", buckets),
		deleteSeconds:    s.Histogram("workload_delete_duration_seconds", "Time of one delete.", buckets),
		reconcileSeconds: s.Histogram("workload_reconcile_duration_seconds", "Time of one sweep, which lists all engines.", buckets),
		runtimeHealth:    s.Gauges("runtime_health_status", "1 when the runtime is healthy, else 0.", "runtime_type"),
		tooMany:          s.Counters("refused_by_limit_total", "Calls and connections that were refused because of a limit: calls of one host per second or at the same time, connections in all or of one host.", "reason"),
		errors:           s.Counters("errors_total", "Failures by class.", "error_code"),
		taskExecutions:   s.Counters("task_executions_total", "Tasks ended.", "type", "status"),
		taskFailures:     s.Counters("task_failures_total", "Tasks failed.", "type"),
		taskLatency:      s.Histograms("task_latency_seconds", "Time from an order until its task has ended.", buckets, "type", "status"),
		gcRuns:           s.Counter("garbage_collection_runs_total", "Runs of garbage collection."),
		gcSeconds:        s.Histogram("garbage_collection_duration_seconds", "Time of one run of garbage collection.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		gcDeleted: s.Counters("garbage_collection_resources_deleted_total",
			"Resources that garbage collection removed, by kind, and instances that came back after their delete and were removed again, by type.", "resource_type"),
		heartbeats: s.Counters("heartbeats_total", "Heartbeats and registrations sent, by outcome.", "call", "code"),
		fenced:     s.Counter("orders_fenced_total", "Orders refused because of epoch, generation or node."),
		networkRepairs: s.Counter("network_repairs_total",
			"Times that this machine's part of the networks between nodes was changed by another program and put right."),
		networkProblems: s.Gauge("network_problems", "Problems of this machine's part of the networks between nodes that the agent cannot solve by itself; its log names them."),
	}
	m.readAgent(from)
	return m
}

func (m *Metrics) Runtime(kind driver.Kind, healthy bool) {
	if m == nil {
		return
	}
	v := 0.0
	if healthy {
		v = 1
	}
	m.runtimeHealth.WithLabelValues(string(kind)).Set(v)
}

func (m *Metrics) Reconciled(d time.Duration) {
	if m != nil {
		m.reconciles.Inc()
		m.reconcileSeconds.Observe(d.Seconds())
	}
}

// Applied counts an action that created, replaced, started or stopped an instance, and records that it took the
// time d. created says whether the action made a new instance.
func (m *Metrics) Applied(d time.Duration, created bool) {
	if m == nil {
		return
	}
	m.applySeconds.Observe(d.Seconds())
	if created {
		m.created.Inc()
	}
}

func (m *Metrics) Failed(class driver.Class) {
	if m != nil {
		m.failures.Inc()
		m.errors.WithLabelValues(string(class)).Inc()
	}
}

// Deleted counts the delete of a workload, which took the time d.
func (m *Metrics) Deleted(d time.Duration) {
	if m != nil {
		m.removed.Inc()
		m.deleteSeconds.Observe(d.Seconds())
	}
}

// Orphan counts the delete of an instance without order. If kind is empty, it counts nothing.
func (m *Metrics) Orphan(kind driver.Kind) {
	if m != nil && kind != "" {
		m.gcDeleted.WithLabelValues(string(kind)).Inc()
	}
}

// CollectedOne counts one resource that garbage collection removed; kind is the kind of the resource.
func (m *Metrics) CollectedOne(kind string) {
	if m != nil {
		m.gcDeleted.WithLabelValues(kind).Inc()
	}
}

func (m *Metrics) Collected(d time.Duration) {
	if m != nil {
		m.gcRuns.Inc()
		m.gcSeconds.Observe(d.Seconds())
	}
}

func (m *Metrics) Task(t *core.Task) {
	if m == nil || t.Open() {
		return
	}
	m.taskExecutions.WithLabelValues(t.Action, t.Status).Inc()
	m.taskLatency.WithLabelValues(t.Action, t.Status).Observe(t.EndedAt.Sub(t.CreatedAt).Seconds())
	if t.Status == core.TaskFailed {
		m.taskFailures.WithLabelValues(t.Action).Inc()
	}
}

func (m *Metrics) CountAnswer(call, code string) {
	if m != nil {
		m.heartbeats.WithLabelValues(call, code).Inc()
	}
}

// NetworkRepaired counts a repair of the networks between nodes on this machine, after another program changed
// them.
func (m *Metrics) NetworkRepaired() {
	if m != nil {
		m.networkRepairs.Inc()
	}
}

// NetworkProblems sets the gauge of the problems that this machine has with the networks between nodes.
func (m *Metrics) NetworkProblems(n int) {
	if m != nil {
		m.networkProblems.Set(float64(n))
	}
}

func (m *Metrics) Refused(r *core.Refusal) {
	if m != nil && r.Fenced {
		m.fenced.Inc()
	}
}

// oldFailure is how long a workload must have been Failed before the gauge of old failures counts it
// (contract/semantics.md, section 11).
const oldFailure = time.Hour

// readAgent declares the gauges, whose values come from the argument from. It may be nil if only the names are
// needed.
func (m *Metrics) readAgent(from *Source) {
	var (
		workloads = m.ReadGauge("workload_count", "Workloads by state and type.", "state", "type")
		orphans   = m.ReadGauge("garbage_collection_orphaned_resources_found",
			"Instances with our labels but without an order. The agent reports them and does not remove them by itself.", "resource_type")
		failed = m.ReadGauge("garbage_collection_old_failed_workloads_found", "Workloads that have been Failed for more than an hour.")
		depth  = m.ReadGauge("task_queue_depth", "Workloads on which an action is due or in progress.")
		memory = m.ReadGauge("system_memory_utilization_percent", "Memory of the machine in use, in percent (0 to 100).")
		cpu    = m.ReadGauge("system_cpu_utilization_percent", "CPU use of the machine, in percent (0 to 100).")
		disk   = m.ReadGauge("system_disk_utilization_percent", "Disk space in use, in percent (0 to 100).", "mount_point")
		cards  = m.ReadGauge("system_network_bytes", "Bytes that the machine's own network cards received and sent since the machine started.", "direction")
		// The gauges are sums for each kind of workload. Users choose workload ids, so one series for each id
		// would grow without bound.
		useCPU     = m.ReadGauge("workload_cpu_millicores", "Processor use of all workloads of a kind between their two newest samples.", "type")
		useMemory  = m.ReadGauge("workload_memory_bytes", "Memory in use by all workloads of a kind.", "type")
		useDisk    = m.ReadGauge("workload_disk_bytes", "Disk space that all workloads of a kind occupy, without images and volumes, where it is measured.", "type")
		useNetwork = m.ReadGauge("workload_network_bytes", "Bytes that the running workloads of a kind received and sent, each since its start.", "type", "direction")
		useBlocks  = m.ReadGauge("workload_block_bytes", "Bytes that the running workloads of a kind read from and wrote to block devices, each since its start.", "type", "direction")
		promised   = m.ReadGauge("promised", "Sum of the reservations of all workloads: cpu in millicores, memory in MiB, disk in GiB.", "resource")
		useMeasure = m.ReadGauge("workloads_measured", "Workloads of a kind whose resource usage is measured.", "type")
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
		state := from.State()
		for w := range state.Workloads() {
			if w.Intent == nil && w.Observed != nil {
				left[string(w.Kind)]++
			}
			st := w.Status
			if st == nil {
				continue
			}
			counts[key{strings.ToLower(string(st.State)), string(w.Kind)}]++
			if st.State == driver.Failed && now.Sub(st.UpdatedAt) > oldFailure {
				old++
			}
		}
		for k, n := range counts {
			emit(workloads, float64(n), k.state, k.kind)
		}
		for kind, n := range left {
			emit(orphans, float64(n), kind)
		}
		emit(failed, float64(old))
		readings, _ := from.Used.After(0)
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
		sums := state.Promised()
		for i, resource := range []string{"cpu", "memory", "disk"} {
			emit(promised, float64(sums[i]), resource)
		}
		machine := from.Host.Usage()
		emit(depth, float64(state.Depth()))
		emit(memory, machine.MemoryPercent)
		emit(cpu, machine.CPUPercent)
		emit(disk, machine.DiskPercent, "/")
		emit(cards, float64(machine.NetReceived), "received")
		emit(cards, float64(machine.NetSent), "sent")
	})
}
