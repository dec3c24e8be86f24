// Package telemetry holds the metrics and traces of every program. Traces cost nothing while no receiver
// is configured. The package imports no other package of the project.
//
// A Set declares metrics and is a prometheus.Collector. docs/reference/metrics.md is generated from the
// declarations, so the reference lists exactly the exported metrics. The default registry is not used.
package telemetry
