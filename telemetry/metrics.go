package telemetry

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a metric, as Prometheus writes it.
type Kind string

// The kinds of metrics.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
	KindSummary   Kind = "summary"
)

// Metric describes one exported metric.
type Metric struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string
}

// Emit reports the present value of a metric while a Set is scraped. It needs one label value for each label of the
// metric.
type Emit func(v Value, n float64, labels ...string)

// Value is a declared metric whose value is read at each scrape.
type Value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Set is the set of metrics of one program. Their names share a prefix. All metrics must be declared
// before the Set is registered.
type Set struct {
	prefix     string
	metrics    []Metric
	values     []Value
	collectors []prometheus.Collector
	read       []func(Emit)
}

// NewSet makes a Set without metrics. prefix must end with an underscore.
func NewSet(prefix string) *Set { return &Set{prefix: prefix} }

func (s *Set) declare(kind Kind, name, help string, labels []string) string {
	name = s.prefix + name
	s.metrics = append(s.metrics, Metric{Name: name, Kind: kind, Labels: labels, Help: help})
	return name
}

func add[C prometheus.Collector](s *Set, c C) C {
	s.collectors = append(s.collectors, c)
	return c
}

// Counter declares a counter without labels.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return add(s, prometheus.NewCounter(prometheus.CounterOpts{Name: s.declare(KindCounter, name, help, nil), Help: help}))
}

// Counters declares a counter with labels.
func (s *Set) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: s.declare(KindCounter, name, help, labels), Help: help}, labels))
}

// Gauge declares a gauge without labels.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return add(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: s.declare(KindGauge, name, help, nil), Help: help}))
}

// Gauges declares a gauge with labels.
func (s *Set) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: s.declare(KindGauge, name, help, labels), Help: help}, labels))
}

// Histogram declares a histogram without labels.
func (s *Set) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return add(s, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: s.declare(KindHistogram, name, help, nil), Help: help, Buckets: buckets,
	}))
}

// Histograms declares a histogram with labels.
func (s *Set) Histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return add(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: s.declare(KindHistogram, name, help, labels), Help: help, Buckets: buckets,
	}, labels))
}

// Summary declares a summary without quantiles: a count and a sum.
func (s *Set) Summary(name, help string) prometheus.Summary {
	return add(s, prometheus.NewSummary(prometheus.SummaryOpts{Name: s.declare(KindSummary, name, help, nil), Help: help}))
}

// ReadGauge declares a gauge whose value is read at each scrape, by a function given to Read.
func (s *Set) ReadGauge(name, help string, labels ...string) Value {
	return s.value(KindGauge, prometheus.GaugeValue, name, help, labels)
}

// ReadCounter declares a counter whose value is read at each scrape, by a function given to Read.
func (s *Set) ReadCounter(name, help string, labels ...string) Value {
	return s.value(KindCounter, prometheus.CounterValue, name, help, labels)
}

func (s *Set) value(kind Kind, of prometheus.ValueType, name, help string, labels []string) Value {
	v := Value{prometheus.NewDesc(s.declare(kind, name, help, labels), help, labels, nil), of}
	s.values = append(s.values, v)
	return v
}

// Read registers f, which is called at every scrape. f must emit the values of the metrics that were declared with
// ReadGauge and ReadCounter.
func (s *Set) Read(f func(Emit)) { s.read = append(s.read, f) }

// Metrics lists the declared metrics, sorted by name.
func (s *Set) Metrics() []Metric {
	return slices.SortedFunc(slices.Values(s.metrics), func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
}

// Describe implements prometheus.Collector.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	for _, c := range s.collectors {
		c.Describe(out)
	}
	for _, v := range s.values {
		out <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	for _, c := range s.collectors {
		c.Collect(out)
	}
	for _, f := range s.read {
		f(func(v Value, n float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(v.desc, v.kind, n, labels...)
		})
	}
}
