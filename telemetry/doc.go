// Package telemetry is how every program shows what it does: metrics that know
// their own documentation, and traces that cost nothing while nobody asked for
// them. It knows nothing of the project.
//
// A Set declares metrics and is a prometheus.Collector; what it declares is also
// what docs/reference/metrics.md lists, so a metric that is not in the reference
// cannot be exported, and one that is gone cannot stay there. Nothing uses the
// default registry.
package telemetry
