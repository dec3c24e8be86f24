package spec

import (
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Values of on_unhealthy. The default of a system workload is restart, and of every other workload keep. The default is
// stored as "". A job is never restarted for its health: its exit code and its deadline judge it, and a health check in
// its image is about the service that the image usually runs.
const (
	onUnhealthyKeep    = "keep"
	onUnhealthyRestart = "restart"
)

var onUnhealthyWords = []string{onUnhealthyKeep, onUnhealthyRestart}

// healing validates on_unhealthy.
func (e *Errors) healing(s *controlv1.WorkloadSpec) {
	e.word("spec.on_unhealthy", s.GetOnUnhealthy(), onUnhealthyWords)
	if restartsUnhealthy(s) {
		switch {
		case IsJob(s):
			e.add("spec.on_unhealthy", "is for services: a job is judged by its exit code", s.GetOnUnhealthy())
		case s.GetType() == TypeVM && s.GetHealthCheck() == nil:
			e.add("spec.on_unhealthy", "needs a health_check: a virtual machine has no health check of its own", s.GetOnUnhealthy())
		}
	}
}

// onUnhealthy returns the value of on_unhealthy, or the default of the kind.
func onUnhealthy(s *controlv1.WorkloadSpec) string {
	if word := strings.ToLower(strings.TrimSpace(s.GetOnUnhealthy())); word != "" {
		return word
	}
	return defaultOnUnhealthy(s)
}

func defaultOnUnhealthy(s *controlv1.WorkloadSpec) string {
	if isKind(s, KindSystem) {
		return onUnhealthyRestart
	}
	return onUnhealthyKeep
}

// restartsUnhealthy reports whether the workload is restarted when it becomes unhealthy.
func restartsUnhealthy(s *controlv1.WorkloadSpec) bool { return onUnhealthy(s) == onUnhealthyRestart }

// normalOnUnhealthy returns the form in which the field on_unhealthy is stored: in lower case, and "" for the default.
func normalOnUnhealthy(s *controlv1.WorkloadSpec) string {
	if word := onUnhealthy(s); word != defaultOnUnhealthy(s) {
		return word
	}
	return ""
}

// orderedOnUnhealthy returns the field in the form in which agents get it: "" for keep.
func orderedOnUnhealthy(s *controlv1.WorkloadSpec) string {
	if restartsUnhealthy(s) {
		return onUnhealthyRestart
	}
	return ""
}
