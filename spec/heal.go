package spec

import (
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Values of on_unhealthy. The default is keep: an unhealthy service keeps running, as in versions without this field.
// keep is stored as "".
const (
	onUnhealthyKeep    = "keep"
	onUnhealthyRestart = "restart"
)

var onUnhealthyWords = []string{onUnhealthyKeep, onUnhealthyRestart}

// healing validates on_unhealthy.
func (e *Errors) healing(s *controlv1.WorkloadSpec) {
	e.word("spec.on_unhealthy", s.GetOnUnhealthy(), onUnhealthyWords)
	if normalOnUnhealthy(s.GetOnUnhealthy()) == onUnhealthyRestart {
		switch {
		case IsJob(s):
			e.add("spec.on_unhealthy", "is for services: a job is judged by its exit code", s.GetOnUnhealthy())
		case s.GetType() == TypeVM && s.GetHealthCheck() == nil:
			e.add("spec.on_unhealthy", "needs a health_check: a virtual machine has no health check of its own", s.GetOnUnhealthy())
		}
	}
}

// normalOnUnhealthy returns the form in which the field on_unhealthy is stored: in lower case, and "" for keep.
func normalOnUnhealthy(s string) string {
	if s = strings.ToLower(strings.TrimSpace(s)); s == onUnhealthyKeep {
		return ""
	}
	return s
}
