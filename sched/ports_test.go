package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// TestHostPortsAreWaitedFor: the planner gives no order for a workload whose host port another
// workload may still use.
func TestHostPortsAreWaitedFor(t *testing.T) {
	tcp := func(n uint32) func(*commandv1.WorkloadPut) { return demand(port(n, "tcp")) }
	waits := func(t *testing.T, w *world, id, by string) {
		t.Helper()
		got := w.get(id)
		if got.Reason.Code != fsm.CodeAwaitStop || !strings.Contains(got.Reason.Message, by) || got.Acknowledged {
			t.Fatalf("workload %s must wait (AwaitStop) for %s: acknowledged %t, reason %+v", id, by, got.Acknowledged, got.Reason)
		}
		for o := range w.sent {
			if o.Op == OpApply && o.Workload == id {
				t.Fatalf("workload %s must wait for a port, but got the order %+v", id, o)
			}
		}
	}
	runs := func(t *testing.T, w *world, id, node string) {
		t.Helper()
		if got := w.get(id); got.Node != node || got.Status != fsm.StatusRunning || got.Reason.Code != "" {
			t.Fatalf("workload %q is %s on node %q with reason %+v, want it running without a reason", id, got.Status, got.Node, got.Reason)
		}
	}
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"a port of a former revision is free when the new revision runs", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api")
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.step()
			w.step()
			waits(t, w, "api", "80/tcp is still held by web on node a")
			w.answer() // the agent has replaced the instance of web, which frees the former port
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
		}},
		{"a workload does not return to a node where another workload waits for its port", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("vm", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.apply("vm", tcp(80), demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.held(t, "vm", "a", fsm.CodeCannotMove, "held by web")
			w.heard["a"] = false
			w.settle()
			if got := w.get("web"); got.Node != "" {
				t.Fatalf("web is on %q, reason %+v, want it evicted", got.Node, got.Reason)
			}
			w.heard["a"] = true
			w.settle()
			runs(t, w, "vm", "a")
			if got := w.get("web"); got.Node != "" || !strings.Contains(got.Reason.Message, "port 80/tcp") {
				t.Errorf("web is on %q, reason %+v, want it unplaced because of port 80/tcp", got.Node, got.Reason)
			}
		}},
		{"a new workload is not placed where a former revision binds its port", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.step()
			if got := w.get("api"); got.Node != "" || got.Reason.Code != fsm.CodeUnplaced || !strings.Contains(got.Reason.Message, "port 80/tcp") {
				t.Fatalf("the workload is on %q, reason %+v, want it unplaced because of port 80/tcp", got.Node, got.Reason)
			}
			w.step()
			w.answer()
			w.settle()
			runs(t, w, "api", "a")
		}},
		{"two workloads that swap their ports do not wait for each other for ever", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api", tcp(443))
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
		}},
		{"two workloads with local data can swap their ports", func(t *testing.T, w *world) {
			w.apply("web", tcp(80), withData)
			w.apply("api", tcp(443), withData)
			w.settle()
			w.apply("web", tcp(443), withData)
			w.apply("api", tcp(80), withData)
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
		}},
		{"three workloads can swap their ports in a circle", func(t *testing.T, w *world) {
			for i, id := range []string{"x", "y", "z"} {
				w.apply(id, tcp(uint32(1000+i)))
			}
			w.settle()
			for i, id := range []string{"x", "y", "z"} {
				w.apply(id, tcp(uint32(1000+(i+1)%3)))
			}
			w.settle()
			for _, id := range []string{"x", "y", "z"} {
				runs(t, w, id, "a")
			}
		}},
		{"a workload that is given up while its former revision runs keeps the port", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api")
			w.settle()
			w.apply("web", tcp(443))
			w.step()
			w.answer() // the agent acknowledges the order
			w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
				Workloads: []*commandv1.WorkloadPut{put("web", tcp(8443))}}}})
			x := w.get("web")
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
				Workload: "web", Node: "a", Generation: fsm.GenerationPB(x.Generation), State: "Failed", Code: "INVALID_IMAGE",
				Acknowledged: true, Ports: []*commandv1.PortBinding{{HostPort: 443, ContainerPort: 1, Protocol: "tcp"}}, ObservedAt: w.now}}}}})
			w.apply("api", tcp(443))
			w.settle()
			if got := w.get("api"); got.Reason.Code != fsm.CodeCannotMove || !strings.Contains(got.Reason.Message, "443/tcp") {
				t.Fatalf("the workload is on %q, reason %+v, want the reason CannotMove with port 443/tcp", got.Node, got.Reason)
			}
			w.node("b")
			w.settle()
			runs(t, w, "api", "b")
		}},
		{"a workload whose new revision fits nowhere keeps the port of its former revision", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api", tcp(443))
			w.apply("log")
			w.settle()
			w.apply("web", demand(func(d *commandv1.Demand) {
				d.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "=", Values: []string{"nowhere"}}}
			}))
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "needs zone=nowhere")
			w.apply("api", tcp(80))
			w.apply("log", tcp(443))
			w.settle()
			waits(t, w, "api", "80/tcp is still held by web on node a")
			waits(t, w, "log", "443/tcp is still held by api on node a")
			w.node("b")
			w.settle()
			for _, id := range []string{"api", "log"} {
				if got := w.get(id); got.Status != fsm.StatusRunning || got.Reason.Code != "" {
					t.Errorf("workload %s is %s on %q, reason %+v, want it running without a reason", id, got.Status, got.Node, got.Reason)
				}
			}
		}},
		{"two workloads do not change: one is held because of its CPU, the other waits for its host port", func(t *testing.T, w *world) {
			cpu := func(n int64) func(*commandv1.WorkloadPut) {
				return demand(func(d *commandv1.Demand) { d.CpuMillicores = n })
			}
			n, _ := w.state.Node("a")
			half := n.Facts.CPU / 2
			w.apply("web", tcp(80), cpu(half))
			w.apply("api", cpu(half))
			w.settle()
			w.apply("web", cpu(half+100))
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "too little CPU")
			w.apply("api", tcp(80), cpu(half), demand(func(d *commandv1.Demand) { d.Priority = 1 }))
			w.settle()
			waits(t, w, "api", "80/tcp is still held by web on node a")
			w.held(t, "web", "a", fsm.CodeCannotMove, "too little CPU")
		}},
		{"no room is kept for a workload that waits for a port which a held workload does not release", func(t *testing.T, w *world) {
			small := demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Priority = 100, 9 })
			half := demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 })
			w.apply("web", tcp(80), small)
			w.settle()
			w.apply("web", inZone("nowhere"), small)
			w.node("b")
			w.cordon("a", true)
			w.apply("vip", tcp(80), half, demand(func(d *commandv1.Demand) { d.Priority = 1 }))
			w.apply("other", half)
			w.settle()
			runs(t, w, "vip", "b")
			runs(t, w, "other", "b")
			w.cordon("a", false)
			w.drain("b", true)
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "needs zone=nowhere")
			w.held(t, "vip", "b", fsm.CodeCannotMove, "draining")
			runs(t, w, "other", "a")
		}},
		{"a start that fails because an instance of a deleted workload still binds the port is retried", func(t *testing.T, w *world) {
			w.apply("old", tcp(80))
			w.settle()
			told := w.get("old").Generation
			w.heard["a"] = false
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "old"}}})
			w.node("a")
			w.apply("new", tcp(80))
			w.step()
			w.step()
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
				{Workload: "old", Node: "a", Generation: fsm.GenerationPB(told), State: "Running", ObservedAt: w.now}}}}})
			w.fails["new"] = "PORT_BIND_CONFLICT"
			w.answer()
			w.step()
			if got := w.get("new"); got.Retry.Terminal || got.Retry.NextAt == 0 {
				t.Fatalf("the retry is %+v, the reason %+v, want another attempt scheduled", got.Retry, got.Reason)
			}
			delete(w.fails, "new")
			w.settle()
			runs(t, w, "new", "a")
		}},
		{"a start that fails because a former instance of a changed workload still binds the port is retried", func(t *testing.T, w *world) {
			w.apply("old", tcp(80))
			w.settle()
			told := w.get("old").Generation
			w.heard["a"] = false
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
			w.settle()
			w.apply("old", demand(func(d *commandv1.Demand) { d.CpuMillicores = 99999 }))
			w.node("a")
			w.apply("new", tcp(80))
			w.step()
			w.step()
			w.fails["new"] = "PORT_BIND_CONFLICT"
			w.answer()
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
				{Workload: "old", Node: "a", Generation: fsm.GenerationPB(told), State: "Running", ObservedAt: w.now}}}}})
			w.step()
			if got := w.get("new"); got.Retry.Terminal || got.Retry.NextAt == 0 {
				t.Fatalf("the retry is %+v, the reason %+v, want another attempt scheduled", got.Retry, got.Reason)
			}
		}},
		{"one host port at two addresses can be used by two workloads, and then by none for all addresses", func(t *testing.T, w *world) {
			on := func(address string) func(*commandv1.WorkloadPut) {
				return demand(func(d *commandv1.Demand) {
					d.HostPorts = append(d.HostPorts, &commandv1.Port{Port: 80, Protocol: "tcp", Address: address})
				})
			}
			w.apply("web", on("127.0.0.1"))
			w.apply("api", on("127.0.0.2"))
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
			w.apply("all", on(""))
			w.apply("again", on("127.0.0.2"))
			w.settle()
			for _, id := range []string{"all", "again"} {
				if got := w.get(id); got.Node != "" || !strings.Contains(got.Reason.Message, "80/tcp") {
					t.Fatalf("workload %s is on %q, reason %+v, want it unplaced because of port 80/tcp", id, got.Node, got.Reason)
				}
			}
		}},
		{"a port held outside the cluster is retried, and bound when it is free", func(t *testing.T, w *world) {
			w.apply("new", tcp(80))
			w.fails["new"] = "PORT_BIND_CONFLICT"
			w.settle()
			if got := w.get("new"); got.Retry.Terminal || got.Status != fsm.StatusRetryPending || !strings.Contains(got.Reason.Message, "PORT_BIND_CONFLICT") {
				t.Fatalf("the retry is %+v, the reason %+v, want another attempt scheduled after PORT_BIND_CONFLICT", got.Retry, got.Reason)
			}
			delete(w.fails, "new")
			w.now = w.get("new").Retry.NextAt
			w.settle()
			runs(t, w, "new", "a")
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			c.fn(t, w)
		})
	}
}
