package sched

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// TestRandomChangesStopNoRunningWorkload: if a user changes a workload so that it fits on no node, the
// workload keeps running unchanged. All workloads that ran before random changes of their demands
// run afterwards, with the old or the new demand. A workload stays on its node if the node has room
// for the new demand in place of the old one.
func TestRandomChangesStopNoRunningWorkload(t *testing.T) {
	types := []string{"container", "compose", "vm"}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		nodes := rapid.IntRange(1, 4).Draw(rt, "nodes")
		for i := range nodes {
			w.node(fmt.Sprint("n", i), func(n *commandv1.RegisterNode) {
				n.CpuMillicores, n.MemoryMib = int64(rapid.IntRange(1, 4).Draw(rt, "cores"))*1000, int64(rapid.IntRange(1, 4).Draw(rt, "gigs"))*1024
				n.Types = types[:rapid.IntRange(2, 3).Draw(rt, "types")]
				n.Labels = []*commandv1.Label{{Key: "zone", Value: rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "zone")}}
			})
		}
		draw := func(p *commandv1.WorkloadPut) {
			p.Demand.Type = rapid.SampledFrom(types).Draw(rt, "type")
			p.Demand.CpuMillicores = int64(rapid.IntRange(1, 30).Draw(rt, "cpu")) * 100
			p.Demand.MemoryMib = int64(rapid.IntRange(1, 30).Draw(rt, "memory")) * 100
			if rapid.Bool().Draw(rt, "constrained") {
				p.Demand.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "in", Values: []string{rapid.SampledFrom([]string{"x", "y", "nowhere"}).Draw(rt, "in")}}}
			}
			if rapid.IntRange(0, 4).Draw(rt, "port") == 0 {
				p.Demand.HostPorts = []*commandv1.Port{{Port: 80, Protocol: "tcp"}}
			}
			p.Spec = fmt.Append(nil, rapid.IntRange(0, 1<<20).Draw(rt, "spec"))
		}
		var ids []string
		for i := range rapid.IntRange(1, 6).Draw(rt, "workloads") {
			ids = append(ids, fmt.Sprint("w", i))
			w.apply(ids[i], draw)
		}
		w.settle()
		ran := map[string]fsm.Workload{}
		for _, id := range ids {
			if x := w.get(id); x.Status == fsm.StatusRunning {
				ran[id] = *x
			}
		}
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			id := rapid.SampledFrom(ids).Draw(rt, "changed")
			was := w.get(id)
			w.apply(id, draw)
			stays := was.Status == fsm.StatusRunning && w.roomAt(was.Node, w.get(id))
			w.settle()
			if x := w.get(id); stays && (x.Node != was.Node || x.Status != fsm.StatusRunning) {
				rt.Fatalf("workload %s must keep running on its node, because the node has room for the new demand, but it is %s on node %q and was on node %q; reason %+v", id, x.Status, x.Node, was.Node, x.Reason)
			}
			for id := range ran {
				switch x := w.get(id); {
				case x.Status == fsm.StatusRunning:
				case x.Node == ran[id].Node && x.Actual.State == fsm.ActualRunning && x.Actual.Generation != x.Generation && x.Reason.Code != "":
				default:
					rt.Fatalf("workload %s ran on node %q and must still run, but is %s on node %q; reason %+v", id, ran[id].Node, x.Status, x.Node, x.Reason)
				}
				if x := w.get(id); x.Status == fsm.StatusRunning {
					ran[id] = *x
				}
			}
		}
	})
}

// roomAt reports whether node id has room for x, counting the resources that x reserves there now as free. It
// computes this without the planner, to check the planner.
func (w *world) roomAt(id string, x *fsm.Workload) bool {
	n, ok := w.state.Node(id)
	if !ok || fits(pooledNamespaces(w.state)[x.In()], x.Demand, n).filter != passes {
		return false
	}
	cpu, memory, free := x.Demand.CPU, x.Demand.Memory, true
	w.state.WorkloadsOn(id, func(o *fsm.Workload) bool {
		if o.ID != x.ID {
			cpu, memory = cpu+o.Demand.CPU, memory+o.Demand.Memory
		}
		return true
	})
	for _, port := range x.Demand.Ports {
		holder, _ := w.state.PortHolder(n.Engine(), port)
		free = free && (holder == "" || holder == x.ID)
	}
	return free && cpu <= n.Facts.CPU && memory <= n.Facts.Memory
}

// A stack in which one service has failed may still run other services. If a user changes such a
// stack so that it fits on no node, the stack must keep running unchanged.
func TestChangeOfAFailedStackThatFitsNowhere(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	stack := demand(func(d *commandv1.Demand) { d.Type = "compose" })
	w.apply("shop", stack)
	w.settle()
	w.report(&commandv1.WorkloadReport{Workload: "shop", Node: "a", State: "Failed", Code: "RUNTIME_ERROR", Message: "service web exited with code 1"})
	w.apply("shop", stack, cpu(64000))
	for range 10 {
		w.step()
	}
	w.held(t, "shop", "a", fsm.CodeCannotMove, "0/1 nodes fit: 1 CPU")
}
