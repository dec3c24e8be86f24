package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// TestHostPortsAreWaitedFor: no order is given while another workload may still bind its
// host port.
func TestHostPortsAreWaitedFor(t *testing.T) {
	tcp := func(n uint32) func(*commandv1.WorkloadPut) { return demand(port(n, "tcp")) }
	waits := func(t *testing.T, w *world, id, by string) {
		t.Helper()
		got := w.get(id)
		if got.Reason.Code != fsm.CodeAwaitStop || !strings.Contains(got.Reason.Message, by) || got.Acknowledged {
			t.Fatalf("%s is to wait for %s: acknowledged %t, %+v", id, by, got.Acknowledged, got.Reason)
		}
		for o := range w.sent {
			if o.Op == OpApply && o.Workload == id {
				t.Fatalf("%s waits and is ordered: %+v", id, o)
			}
		}
	}
	runs := func(t *testing.T, w *world, id, node string) {
		t.Helper()
		if got := w.get(id); got.Node != node || got.Status != fsm.StatusRunning || got.Reason.Code != "" {
			t.Fatalf("%s is %s on %q: %+v", id, got.Status, got.Node, got.Reason)
		}
	}
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"a port that its former revision binds is free when the new one runs", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api")
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.step()
			w.step()
			waits(t, w, "api", "80/tcp is still held by web on node a")
			w.answer() // web is replaced
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
		}},
		{"a newcomer is not placed where a former revision binds its port", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.step()
			if got := w.get("api"); got.Node != "" || got.Reason.Code != fsm.CodeUnplaced || !strings.Contains(got.Reason.Message, "port 80/tcp") {
				t.Fatalf("on %q: %+v", got.Node, got.Reason)
			}
			w.step()
			w.answer()
			w.settle()
			runs(t, w, "api", "a")
		}},
		{"two that swap their ports do not wait for one another for ever", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api", tcp(443))
			w.settle()
			w.apply("web", tcp(443))
			w.apply("api", tcp(80))
			w.settle()
			runs(t, w, "web", "a")
			runs(t, w, "api", "a")
		}},
		{"so do three in a ring", func(t *testing.T, w *world) {
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
		{"one that was given up while its former revision runs keeps its port", func(t *testing.T, w *world) {
			w.apply("web", tcp(80))
			w.apply("api")
			w.settle()
			w.apply("web", tcp(443))
			w.step()
			w.answer() // acknowledged
			w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
				Workloads: []*commandv1.WorkloadPut{put("web", tcp(8443))}}}})
			x := w.get("web")
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
				Workload: "web", Node: "a", Generation: fsm.GenerationPB(x.Generation), State: "Failed", Code: "INVALID_IMAGE",
				Acknowledged: true, Ports: []*commandv1.PortBinding{{HostPort: 443, ContainerPort: 1, Protocol: "tcp"}}, ObservedAt: w.now}}}}})
			w.apply("api", tcp(443))
			w.settle()
			if got := w.get("api"); got.Node != "" || !strings.Contains(got.Reason.Message, "443/tcp") {
				t.Fatalf("on %q: %+v", got.Node, got.Reason)
			}
			w.node("b")
			w.settle()
			runs(t, w, "api", "b")
		}},
		{"what could not bind because of a leftover found late is tried again", func(t *testing.T, w *world) {
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
				t.Fatalf("retry %+v: %+v", got.Retry, got.Reason)
			}
			delete(w.fails, "new")
			w.settle()
			runs(t, w, "new", "a")
		}},
		{"also where the leftover's workload wants no port any more", func(t *testing.T, w *world) {
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
				t.Fatalf("retry %+v: %+v", got.Retry, got.Reason)
			}
		}},
		{"what binds a port that is kept is told what to do, as before", func(t *testing.T, w *world) {
			w.apply("new", tcp(80))
			w.fails["new"] = "PORT_BIND_CONFLICT"
			w.settle()
			if got := w.get("new"); !got.Retry.Terminal || got.Reason.Code != fsm.CodePermanentFailure {
				t.Fatalf("retry %+v: %+v", got.Retry, got.Reason)
			}
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			c.fn(t, w)
		})
	}
}
