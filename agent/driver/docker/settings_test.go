package docker

import (
	"slices"
	"testing"

	"github.com/moby/moby/api/types/container"
	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy"
)

// TestExclusiveHasNoRestartPolicy: an engine must not start an exclusive workload when the engine restarts,
// because the workload may run on another node by then.
func TestExclusiveHasNoRestartPolicy(t *testing.T) {
	for _, policy := range []string{"", "no", "always", "on-failure", "unless-stopped"} {
		body := &agentv1.ContainerSpec{Image: "persys/any:1", RestartPolicy: &agentv1.RestartPolicy{Policy: policy}}
		spec := driver.Spec{ID: "db", Exclusive: true, Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: body}}}
		got, err := translate(spec, "1.44")
		if err != nil {
			t.Fatal(err)
		}
		if name := got.host.RestartPolicy.Name; name != container.RestartPolicyDisabled {
			t.Errorf("restart policy %q of an exclusive workload became the engine's policy %q, want none", policy, name)
		}
		spec.Exclusive = false
		if got, err = translate(spec, "1.44"); err != nil {
			t.Fatal(err)
		}
		want := container.RestartPolicyMode(policy)
		if policy == "" {
			want = container.RestartPolicyDisabled
		}
		if got.host.RestartPolicy.Name != want {
			t.Errorf("the restart policy %q of a workload that is not exclusive became the engine's policy %q", policy, got.host.RestartPolicy.Name)
		}
	}
}

// TestRightsOfAContainer: user, capabilities, security options and process limit of the spec are set on the
// container in the engine.
func TestRightsOfAContainer(t *testing.T) {
	body := &agentv1.ContainerSpec{
		Image: "persys/any:1", User: "1000:1000", CapAdd: []string{"NET_ADMIN"}, CapDrop: []string{"ALL"},
		SecurityOpt: []string{"seccomp=unconfined"}, PidsLimit: 10,
	}
	got, err := translate(driver.Spec{ID: "web", Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: body}}}, "1.44")
	if err != nil {
		t.Fatal(err)
	}
	h := got.host
	if got.config.User != "1000:1000" || !slices.Equal(h.CapAdd, body.CapAdd) || !slices.Equal(h.CapDrop, body.CapDrop) ||
		!slices.Contains(h.SecurityOpt, "seccomp=unconfined") || h.PidsLimit == nil || *h.PidsLimit != 10 {
		t.Errorf("the container has the user %q and the host configuration %+v, want those of the specification", got.config.User, h)
	}
}

// TestAMACAddressNeedsANewEngine: Docker 25 and newer create the container with the MAC address on the default bridge.
// For an older engine, which would ignore it, the driver leaves it out and says so.
func TestAMACAddressNeedsANewEngine(t *testing.T) {
	for version, want := range map[string]string{"1.44": "02:42:ac:11:00:07", "1.41": ""} {
		body := &agentv1.ContainerSpec{Image: "persys/any:1", MacAddress: "02:42:ac:11:00:07"}
		got, err := translate(driver.Spec{ID: "web", Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: body}}}, version)
		if err != nil {
			t.Fatal(err)
		}
		mac := ""
		if n := got.networking(); n != nil {
			mac = n.EndpointsConfig["bridge"].MacAddress.String()
		}
		if mac != want || (len(got.leftOut) > 0) != (want == "") {
			t.Errorf("engine API %s: the container's MAC address is %q and the options left out are %q; want the address %q", version, mac, got.leftOut, want)
		}
	}
}

// TestProcessLimitOfAPolicy: a container that names no process limit gets at most the max_pids of its policy.
func TestProcessLimitOfAPolicy(t *testing.T) {
	spec := driver.Spec{ID: "a", Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{Image: "persys/any:1"}}}}
	spec.Rules = &driver.Rules{Policies: []driver.Rule{{Policy: &policy.Policy{MaxPids: 100}}}}
	got, err := translate(spec, "1.44")
	if err != nil {
		t.Fatal(err)
	}
	if n := *got.host.PidsLimit; n != 100 {
		t.Errorf("a container without a process limit may have %d processes, want 100, the limit of its policy", n)
	}
}
