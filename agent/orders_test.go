package agent

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/persys/compute/agent/spec"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

func TestBadOrdersAreRefusedInTheAnswer(t *testing.T) {
	r := newRig(t).start()
	for _, c := range []struct {
		name, says string
		change     option
	}{
		{"an order with an empty workload id", "id:", func(q *agentv1.ApplyWorkloadRequest) { q.Id = "" }},
		{"an order with a malformed workload id", `id: "../x"`, func(q *agentv1.ApplyWorkloadRequest) { q.Id = "../x" }},
		{"an order without a specification", "spec:", func(q *agentv1.ApplyWorkloadRequest) { q.Spec = nil }},
		{"an order with an empty specification", "spec:", func(q *agentv1.ApplyWorkloadRequest) { q.Spec = &agentv1.WorkloadSpec{} }},
		{"an order whose type does not fit its specification", "does not fit", func(q *agentv1.ApplyWorkloadRequest) { q.Type = agentv1.WorkloadType_WORKLOAD_TYPE_VM }},
		{"an order of a type for which the node has no engine", "runtime not available: vm", func(q *agentv1.ApplyWorkloadRequest) {
			q.Type, q.Spec = 0, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{}}}
		}},
		{"an order with on_lost_lease: stop on a node without fencers", "needs a node with fencers", func(q *agentv1.ApplyWorkloadRequest) { q.OnLostLease = "stop" }},
		{"an order whose specification is over the size limit", "limit 524288", func(q *agentv1.ApplyWorkloadRequest) {
			q.Spec = container(strings.Repeat("x", 600<<10))
		}},
		{"an order for another node", `this is node "node-a"`, func(q *agentv1.ApplyWorkloadRequest) { q.NodeId = "node-b" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := r.apply("web", "sim/run", c.change)
			if out.Applied || !strings.Contains(out.Message, c.says) {
				t.Errorf("an invalid order must be answered with applied=false and a message that contains %q, got %v", c.says, out)
			}
		})
	}
	if n := len(r.a.Snapshot()); n != 0 {
		t.Errorf("the agent has %d workloads, although all orders were refused", n)
	}
}

// Schedulers check the size limit of a stack before they encode the stack in base64, which makes it a third
// longer. The agent must accept every stack that the schedulers accept.
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
			t.Errorf("the size check of the stack %q returned the refusal %+v; want that the stack is accepted: %t", name, no, c.taken)
		}
	}
}

// TestAnOrderKeepsItsRun: the core learns since which generation orders ask for the same run. Legacy v1 schedulers do not say.
func TestAnOrderKeepsItsRun(t *testing.T) {
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, since := range []*agentv1.Generation{nil, {Incarnation: 1, Sequence: 5}} {
		o, err := spec.Order(key, &agentv1.ApplyWorkloadRequest{Id: "pack", Spec: container("sim/run"), SameSince: since})
		if err != nil || o.SameSince.Sequence != since.GetSequence() || o.SameSince.Incarnation != since.GetIncarnation() {
			t.Errorf("same_since %v becomes %s (error %v), want the same generation", since, o.SameSince, err)
		}
	}
}
