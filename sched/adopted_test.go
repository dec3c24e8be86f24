package sched

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// TestImportedWorkloadStaysWhereItRuns: legacy v1 schedulers checked neither labels nor constraints. So an
// imported workload stays on a node that does not satisfy them, until its specification changes.
func TestImportedWorkloadStaysWhereItRuns(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	n, _ := w.state.Node("a")
	a := fsm.Assemble(fsm.Origin{ClusterID: "c1", FeatureLevel: fsm.FeatureLevel})
	for _, id := range []string{"a", "b"} {
		f := &commandv1.RegisterNode{Id: id, Endpoint: n.Facts.Endpoint, CpuMillicores: 4000, MemoryMib: 8192, Types: []string{"container"}}
		if id == "b" {
			f.Labels = []*commandv1.Label{{Key: "team", Value: "blue"}}
		}
		w.heard[id] = true
		if err := a.Node(&commandv1.NodeRecord{Facts: f, Up: true}); err != nil {
			t.Fatal(err)
		}
	}
	labelled := func(p *commandv1.WorkloadPut) {
		p.Content = "c1:imported"
		p.Demand.Labels = []*commandv1.Label{{Key: "team", Value: "blue"}}
	}
	for id, adopted := range map[string]string{"web": "rev-7", "ours": ""} {
		m := &commandv1.WorkloadRecord{Put: put(id, labelled), Node: "a", Acknowledged: true, Adopted: adopted, Actual: &commandv1.WorkloadReport{State: "Running"}}
		if err := a.Workload(m); err != nil {
			t.Fatal(err)
		}
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	if w.state, err = fsm.Restored(s, fsm.New(), fsm.RestoreInfo{At: w.now, By: "test", Source: "etcd"}); err != nil {
		t.Fatal(err)
	}
	w.index, w.cache = w.state.Info().Index, NewCache()
	leaves := map[string]bool{}
	for _, c := range w.plan().Commands {
		for _, e := range c.GetEvict().GetEvictions() {
			leaves[e.GetWorkload()] = true
		}
	}
	if leaves["web"] || !leaves["ours"] {
		t.Errorf("the planning step evicts the workloads %v, want only workload \"ours\", whose specification changed", leaves)
	}
}
