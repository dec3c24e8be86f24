// Package telemetry holds the metrics and traces of every program. Traces cost nothing while no receiver is
// set. It imports nothing of the project.
//
// A Set declares metrics and is a prometheus.Collector. docs/reference/metrics.md is written from its
// declarations, so the reference lists exactly the exported metrics. The default registry is not used.
package telemetry
