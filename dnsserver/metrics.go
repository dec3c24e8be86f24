package dnsserver

import (
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Label values of persys_dns_queries_total. The last type stands for all others.
var (
	typeNames  = [...]string{"A", "AAAA", "SRV", "PTR", "NS", "SOA", "ANY", "other"}
	rcodeNames = [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "BADVERS"}
)

// metrics are resolved once: a query costs an increment, not a look-up by label.
type metrics struct {
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

// newMetrics registers with reg, which may be nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "persys_dns_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "persys_dns_" + name, Help: help})
	}
	queries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "persys_dns_queries_total", Help: "DNS queries answered from the state, by type of question and response code.",
	}, []string{"type", "rcode"})
	forwards := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "persys_dns_forwarded_total", Help: "DNS queries for foreign names sent to SCHEDULER_DNS_UPSTREAM, by result.",
	}, []string{"result"})
	m := &metrics{
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "persys_dns_request_seconds", Help: "From the receipt of a DNS query to the sending of its answer; forwarded ones are left out.",
			Buckets: prometheus.ExponentialBuckets(4e-6, 4, 9),
		}),
		limited:     counter("rate_limited_total", "DNS queries over the limit of their client."),
		truncated:   counter("truncated_total", "DNS answers that did not fit and said so."),
		dropped:     counter("dropped_total", "Packets that were no DNS query and got no answer."),
		forwarded:   forwards.WithLabelValues("ok"),
		unforwarded: forwards.WithLabelValues("failed"),
		rebuilds:    counter("zone_rebuilds_total", "Times that the zones were made from scratch."),
		index:       gauge("zone_index", "Log index of the state that answers are made from."),
		names:       gauge("zone_names", "Names that exist in the zones."),
		partitioned: gauge("partitioned", "1 while this replica hears of no leader and shortens its TTLs."),
	}
	for t, typ := range typeNames {
		for r, rcode := range rcodeNames {
			m.queries[t][r] = queries.WithLabelValues(typ, rcode)
		}
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		queries, forwards, m.latency, m.limited, m.truncated, m.dropped, m.rebuilds, m.index, m.names, m.partitioned,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) answered(out Outcome) {
	m.queries[typeIndex(out.Type)][rcodeIndex(out.Rcode)].Inc()
	if out.Truncated {
		m.truncated.Inc()
	}
}

// took records n answers that went out together.
func (m *metrics) took(d time.Duration, n int) {
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
