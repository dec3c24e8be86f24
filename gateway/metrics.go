package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/telemetry"
)

// metrics have the names that existing dashboards query (contract/semantics.md, section 15). Their labels
// hold no text from callers, so the number of series is bounded: url is the pattern of the route, and host
// is the listener.
type metrics struct {
	*telemetry.Set

	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	received prometheus.Summary
	sent     prometheus.Summary
}

// Metrics lists the gateway's metrics, without the collectors of Go and of the
// process.
func Metrics() []telemetry.Metric { return newMetrics().Metrics() }

func newMetrics() metrics {
	s := telemetry.NewSet("persys_gateway_")
	return metrics{
		Set: s,
		requests: s.Counters("requests_total",
			"HTTP requests; handler is the first segment of the route, host the listener (api, public), url the pattern of the route.",
			"code", "method", "handler", "host", "url"),
		seconds: s.Histograms("request_duration_seconds", "Time from a request to the end of its response; for streams this is as long as they are read.",
			prometheus.ExponentialBuckets(0.0005, 2, 16), "code", "method", "url"),
		received: s.Summary("request_size_bytes", "Bytes of request bodies, by Content-Length."),
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

// route returns the path of a pattern; "other" if no route matched.
func route(pattern string) string {
	if _, path, ok := strings.Cut(pattern, " "); ok {
		pattern = path
	}
	if pattern == "" {
		return "other"
	}
	return pattern
}

// family returns the first segment of a route's path, by which routes are grouped in metrics; "root" for /.
func family(url string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(url, "/"), "/")
	if first == "" || first == "{$}" {
		return "root"
	}
	return first
}
