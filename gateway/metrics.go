package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/telemetry"
)

// metrics are the names that existing boards query (contract/semantics.md section
// 15). What a caller chooses never becomes a label: url is the route's pattern,
// not the path, and host is the listener, not the header, so the number of series
// has a bound.
type metrics struct {
	*telemetry.Set

	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	received prometheus.Summary
	sent     prometheus.Summary
}

// Metrics lists what a gateway exports, Go's and the process's own collectors
// aside.
func Metrics() []telemetry.Metric { return newMetrics().Metrics() }

func newMetrics() metrics {
	s := telemetry.NewSet("persys_gateway_")
	return metrics{
		Set: s,
		requests: s.Counters("requests_total",
			"HTTP requests; handler is the route's family, host the listener (api, public), url the route's pattern.",
			"code", "method", "handler", "host", "url"),
		seconds: s.Histograms("request_duration_seconds", "Time from the request to the end of its answer; streams last as long as they are read.",
			prometheus.ExponentialBuckets(0.0005, 2, 16), "code", "method", "url"),
		received: s.Summary("request_size_bytes", "Bytes of request bodies, as announced."),
		sent:     s.Summary("response_size_bytes", "Bytes of response bodies."),
	}
}

func (m metrics) observe(r *http.Request, listener string, o *observed, took time.Duration) {
	method := r.Method
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	code, url := strconv.Itoa(o.status), route(r.Pattern)
	m.requests.WithLabelValues(code, method, family(url), listener, url).Inc()
	m.seconds.WithLabelValues(code, method, url).Observe(took.Seconds())
	m.received.Observe(float64(max(0, r.ContentLength)))
	m.sent.Observe(float64(o.bytes))
}

// route is a pattern's path; "other" where no route matched.
func route(pattern string) string {
	if _, path, ok := strings.Cut(pattern, " "); ok {
		pattern = path
	}
	if pattern == "" {
		return "other"
	}
	return pattern
}

// family is the first segment of a route.
func family(url string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(url, "/"), "/")
	if first == "" || first == "{$}" {
		return "root"
	}
	return first
}
