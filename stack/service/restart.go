package service

import (
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// RestartPolicy returns the restart policy that the Compose file gives a service, "" if it gives none.
func RestartPolicy(s types.ServiceConfig) string {
	if s.Restart == "" && s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		switch s.Deploy.RestartPolicy.Condition {
		case "none", "no":
			return types.RestartPolicyNo
		case "on-failure":
			return types.RestartPolicyOnFailure
		}
		return types.RestartPolicyAlways
	}
	policy, _, _ := strings.Cut(s.Restart, ":") // the retry count, as in on-failure:3, is cut off
	return policy
}

// InJob returns the rule that a restart policy breaks in a job; "" if it breaks none. A container that its engine or its
// agent starts again would run more often than job.retries says.
func InJob(policy string) string {
	if policy == "" || policy == types.RestartPolicyNo {
		return ""
	}
	return "must be no or absent in a job: job.retries says how often a failed run is repeated"
}
