package agent

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/persys/compute/agent/spec"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

func TestBadOrdersAreRefusedInBand(t *testing.T) {
	r := newRig(t).start()
	for _, c := range []struct {
		name, says string
		change     option
	}{
		{"empty id", "id:", func(q *agentv1.ApplyWorkloadRequest) { q.Id = "" }},
		{"malformed id", `id: "../x"`, func(q *agentv1.ApplyWorkloadRequest) { q.Id = "../x" }},
		{"no spec", "spec:", func(q *agentv1.ApplyWorkloadRequest) { q.Spec = nil }},
		{"no arm", "spec:", func(q *agentv1.ApplyWorkloadRequest) { q.Spec = &agentv1.WorkloadSpec{} }},
		{"type against arm", "does not fit", func(q *agentv1.ApplyWorkloadRequest) { q.Type = agentv1.WorkloadType_WORKLOAD_TYPE_VM }},
		{"no such runtime", "runtime not available: vm", func(q *agentv1.ApplyWorkloadRequest) {
			q.Type, q.Spec = 0, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{}}}
		}},
		{"on_lost_lease stop", "self-fencing", func(q *agentv1.ApplyWorkloadRequest) { q.OnLostLease = "stop" }},
		{"too large", "limit 524288", func(q *agentv1.ApplyWorkloadRequest) {
			q.Spec = container(strings.Repeat("x", 600<<10))
		}},
		{"another node", `this is node "node-a"`, func(q *agentv1.ApplyWorkloadRequest) { q.NodeId = "node-b" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := r.apply("web", "sim/run", c.change)
			if out.Applied || !strings.Contains(out.Message, c.says) {
				t.Errorf("want applied=false and %q, got %v", c.says, out)
			}
		})
	}
	if n := len(r.a.Snapshot()); n != 0 {
		t.Errorf("%d workloads after refusals only", n)
	}
}

// Schedulers measure a stack before they encode it in base64, which makes it a third longer. The agent must
// take what they take.
func TestASpecIsMeasuredBeforeBase64(t *testing.T) {
	text := func(n int) string { return "services: {}\n" + strings.Repeat("#", n) }
	packed := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(text(n))) }
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		yaml  string
		taken bool
	}{
		"plain": {text(500 << 10), true}, "plain, too large": {text(512 << 10), false},
		"packed": {packed(500 << 10), true}, "packed, too large": {packed(512 << 10), false},
	} {
		_, no := spec.Order(key, &agentv1.ApplyWorkloadRequest{Id: "shop", Spec: &agentv1.WorkloadSpec{
			Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{ComposeYaml: c.yaml}},
		}})
		if no == nil != c.taken {
			t.Errorf("%s: %+v, want it taken: %t", name, no, c.taken)
		}
	}
}
