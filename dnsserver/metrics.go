package dnsserver

import (
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/telemetry"
)

// Label values of the metric persys_dns_queries_total. The last type, "other", stands for all types that are
// not listed.
var (
	typeNames  = [...]string{"A", "AAAA", "SRV", "PTR", "NS", "SOA", "ANY", "other"}
	rcodeNames = [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "BADVERS"}
)

// metrics holds the time series of the server's metrics, so that no lookup by labels is needed for each query.
type metrics struct {
	*telemetry.Set

	queries     [len(typeNames)][len(rcodeNames)]prometheus.Counter
	latency     prometheus.Histogram
	limited     prometheus.Counter
	truncated   prometheus.Counter
	dropped     prometheus.Counter
	forwarded   prometheus.Counter
	unforwarded prometheus.Counter
	rebuilds    prometheus.Counter
	index       prometheus.Gauge
	names       prometheus.Gauge
	partitioned prometheus.Gauge
}

// newMetrics declares the metrics of a Server.
func newMetrics() *metrics {
	s := telemetry.NewSet("persys_dns_")
	queries := s.Counters("queries_total", "DNS queries answered from the state, by type of question and response code.", "type", "rcode")
	forwards := s.Counters("forwarded_total", "DNS queries for names outside the zones that were forwarded to SCHEDULER_DNS_UPSTREAM, by result.", "result")
	m := &metrics{
		Set: s,
		latency: s.Histogram("request_seconds", "Time from the receipt of a DNS query to the sending of its answer, without forwarded queries.",
			prometheus.ExponentialBuckets(4e-6, 4, 9)),
		limited:     s.Counter("rate_limited_total", "DNS queries that exceeded the rate limit of their client."),
		truncated:   s.Counter("truncated_total", "DNS answers that were truncated because they did not fit."),
		dropped:     s.Counter("dropped_total", "Packets that were not a DNS query and got no answer."),
		forwarded:   forwards.WithLabelValues("ok"),
		unforwarded: forwards.WithLabelValues("failed"),
		rebuilds:    s.Counter("zone_rebuilds_total", "Number of times that the zones were built from scratch."),
		index:       s.Gauge("zone_index", "Log index of the state from which DNS answers are made."),
		names:       s.Gauge("zone_names", "Names that exist in the zones."),
		partitioned: s.Gauge("partitioned", "1 while this replica has no contact with a leader and shortens its TTLs."),
	}
	for t, typ := range typeNames {
		for r, rcode := range rcodeNames {
			m.queries[t][r] = queries.WithLabelValues(typ, rcode)
		}
	}
	return m
}

// Metrics lists the metrics that a Server exports.
func Metrics() []telemetry.Metric { return newMetrics().Metrics() }

func (m *metrics) answered(out Outcome) {
	m.queries[typeIndex(out.Type)][rcodeIndex(out.Rcode)].Inc()
	if out.Truncated {
		m.truncated.Inc()
	}
}

// observe adds n equal observations to the latency histogram: n answers were sent together, and each took
// the duration d.
func (m *metrics) observe(d time.Duration, n int) {
	for range n {
		m.latency.Observe(d.Seconds())
	}
}

func (m *metrics) zone(z *Zone) {
	m.index.Set(float64(z.Index()))
	m.names.Set(float64(z.Names()))
	m.partitioned.Set(0)
	if z.cap > 0 {
		m.partitioned.Set(1)
	}
}

func typeIndex(t uint16) int {
	switch t {
	case dns.TypeA:
		return 0
	case dns.TypeAAAA:
		return 1
	case dns.TypeSRV:
		return 2
	case dns.TypePTR:
		return 3
	case dns.TypeNS:
		return 4
	case dns.TypeSOA:
		return 5
	case dns.TypeANY:
		return 6
	}
	return 7
}

func rcodeIndex(rcode int) int {
	if rcode == dns.RcodeBadVers {
		return 6
	}
	return min(rcode, dns.RcodeRefused)
}
