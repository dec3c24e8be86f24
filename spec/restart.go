package spec

import (
	"strconv"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
)

// The restart policy of a container is a word, or on-failure:TIMES as in Docker: the engine then starts the container
// again at most TIMES times. 0 means no limit, and is stored as on-failure.

// restartPolicyOf returns the word of a restart policy and its number of restarts; 0 means no limit.
func restartPolicyOf(c *controlv1.ContainerSpec) (word string, times int32) {
	word, count, _ := strings.Cut(strings.ToLower(strings.TrimSpace(c.GetRestartPolicy())), ":")
	n, _ := strconv.ParseInt(count, 10, 32) // validation refuses everything else
	return word, int32(n)
}

// normalRestartPolicy returns the form in which a restart policy is stored.
func normalRestartPolicy(c *controlv1.ContainerSpec) string {
	given := strings.ToLower(strings.TrimSpace(c.GetRestartPolicy()))
	if engine.Restart(given) != "" {
		return given
	}
	word, times := restartPolicyOf(c)
	if times > 0 {
		word += ":" + strconv.Itoa(int(times))
	}
	return word
}

// restart validates the restart policy of a container.
func (e *Errors) restart(at string, s *controlv1.WorkloadSpec) {
	given := strings.ToLower(strings.TrimSpace(s.GetContainer().GetRestartPolicy()))
	_, count, counted := strings.Cut(given, ":")
	if !counted {
		e.word(at, given, restartPolicies)
		return
	}
	if rule := engine.Restart(given); rule != "" {
		e.add(at, rule, given)
		return
	}
	switch n, err := strconv.ParseInt(count, 10, 32); {
	case err != nil:
		e.add(at, "must have at most 2147483647 restarts", given)
	case n > 0 && s.GetExclusive():
		e.add(at, "must not have a number in an exclusive workload, which its agent restarts instead of the engine: write on-failure", given)
	}
}
