package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func withRules(f func(*commandv1.Placement)) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Placement = &commandv1.Placement{}
		f(d.Placement)
	})
}

func apart(p *commandv1.Placement) {
	p.Affinities = []*commandv1.Affinity{{Anti: true, Group: "g", By: ByHost, Must: true}}
}

func placementScenario(w *world) {
	w.do(register("a"))
	w.do(put("web", withRules(func(p *commandv1.Placement) {
		p.Policy = "binpack"
		p.Spread = []*commandv1.Spread{{By: "zone", MaxSkew: 1, Must: true}, {By: ByHost, MaxSkew: 2}}
		p.Affinities = []*commandv1.Affinity{
			{Node: &commandv1.Constraint{Key: "disk", Op: "in", Values: []string{"nvme", "ssd"}}, Weight: 80},
			{Anti: true, Tag: &commandv1.Label{Key: "tier", Value: "batch"}, By: ByHost, Must: true},
			{Workload: "db", By: "zone", Weight: 50},
		}
	})))
	w.do(put("batch", demand(func(d *commandv1.Demand) { d.Tags = []*commandv1.Label{{Key: "tier", Value: "batch"}} })))
	w.do(w.assign("web", "a"))
	w.do(put("web", withRules(apart)))
	w.do(put("web"))
	w.do(put("batch"))
	w.do(put("bad", withRules(func(p *commandv1.Placement) { p.Spread = []*commandv1.Spread{{By: "zone"}} })))
	w.do(put("bad", withRules(func(p *commandv1.Placement) {
		p.Affinities = []*commandv1.Affinity{{Group: "g", Workload: "w", By: ByHost, Must: true}}
	})))
	w.do(put("bad", withRules(func(p *commandv1.Placement) { p.Affinities = []*commandv1.Affinity{{Group: "g", By: ByHost}} })))
	w.do(put("bad", withRules(func(p *commandv1.Placement) { p.Policy = "random" })))
}

// TestRuledWorkloads: the index byRule has exactly the workloads with tags or a required anti-affinity, on which the
// placement of others depends.
func TestRuledWorkloads(t *testing.T) {
	w := formed(t)
	list := func() (out string) {
		w.s.Ruled(func(wl *Workload) bool { out += wl.ID + " "; return true })
		return out
	}
	w.do(put("a", withRules(apart)))
	w.do(put("b", demand(func(d *commandv1.Demand) { d.Tags = []*commandv1.Label{{Key: "k", Value: "v"}} })))
	w.do(put("c", withRules(func(p *commandv1.Placement) { p.Spread = []*commandv1.Spread{{By: ByHost, MaxSkew: 1, Must: true}} })))
	if got := list(); got != "a b " {
		t.Errorf("the index byRule has %q, want workloads a and b", got)
	}
	w.do(put("b"))
	w.do(remove("a", true))
	if got := list(); got != "" {
		t.Errorf("after workload a was deleted and b has no tags, the index byRule has %q, want no workload", got)
	}
}
