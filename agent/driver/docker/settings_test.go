package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"
	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

// TestExclusiveHasNoRestartPolicy: a restarted engine must not start an exclusive workload, which may run elsewhere.
func TestExclusiveHasNoRestartPolicy(t *testing.T) {
	for _, policy := range []string{"", "no", "always", "on-failure", "unless-stopped"} {
		body := &agentv1.ContainerSpec{Image: "persys/any:1", RestartPolicy: &agentv1.RestartPolicy{Policy: policy}}
		spec := driver.Spec{ID: "db", Exclusive: true, Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: body}}}
		got, err := translate(spec)
		if err != nil {
			t.Fatal(err)
		}
		if name := got.host.RestartPolicy.Name; name != container.RestartPolicyDisabled {
			t.Errorf("policy %q of an exclusive workload became the engine's %q", policy, name)
		}
		spec.Exclusive = false
		if got, err = translate(spec); err != nil {
			t.Fatal(err)
		}
		want := container.RestartPolicyMode(policy)
		if policy == "" {
			want = container.RestartPolicyDisabled
		}
		if got.host.RestartPolicy.Name != want {
			t.Errorf("policy %q became %q", policy, got.host.RestartPolicy.Name)
		}
	}
}
