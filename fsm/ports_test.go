package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func TestFormerPorts(t *testing.T) {
	holder := func(w *world, port uint16) string {
		id, _ := w.s.PortHolder("node:a", HostPort{Port: port, Protocol: "tcp"})
		return id
	}
	failed := func(w *world, ports ...uint32) Command {
		r := &commandv1.WorkloadReport{Workload: "web", Node: "a", Generation: w.generation("web"), State: "Failed"}
		for _, p := range ports {
			r.Ports = append(r.Ports, &commandv1.PortBinding{HostPort: p, ContainerPort: 1, Protocol: "tcp"})
		}
		return report(r)
	}
	changed := func(w *world) {
		w.place("web", "a", hostPort(80), hostPort(81))
		w.run("web")
		w.ok(put("web", content("c1:new"), hostPort(81), hostPort(443)))
	}
	for _, f := range []fact{
		{"former ports are held until the new revision runs", func(t *testing.T, w *world) {
			changed(w)
			is(t, "holder of host port 80", holder(w, 80), "web")
			is(t, "holder of host port 443", holder(w, 443), "web")
			w.run("web")
			is(t, "holder of host port 80", holder(w, 80), "")
			is(t, "holder of host port 81", holder(w, 81), "web")
		}},
		{"a port of one address collides with itself and with the port of all addresses", func(t *testing.T, w *world) {
			w.place("web", "a", portOf(80, "127.0.0.1"), portOf(80, "127.0.0.2"))
			for address, want := range map[string]string{"": "web", "127.0.0.1": "web", "127.0.0.2": "web", "127.0.0.3": ""} {
				id, _ := w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp", Address: address})
				is(t, "holder of "+address, id, want)
			}
			w.ok(put("web", content("c1:new"), portOf(80, "127.0.0.1")))
			w.run("web")
			id, _ := w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp", Address: "127.0.0.2"})
			is(t, "workload that holds the port at address 127.0.0.2 after the change", id, "")
		}},
		{"former ports are held through another change", func(t *testing.T, w *world) {
			changed(w)
			w.ok(put("web", content("c1:newer"), hostPort(8080)))
			is(t, `former ports of workload "web"`, fmt.Sprint(w.workload("web").FormerPorts), "[{80 tcp } {81 tcp } {443 tcp }]")
		}},
		{"former ports are free once the workload is stopped", func(t *testing.T, w *world) {
			changed(w)
			w.ok(setDesired("web", "Stopped"))
			is(t, "holder of host port 80", holder(w, 80), "web")
			w.ok(w.says("web", "Stopped"))
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"former ports are held while the workload is Pending or Unknown", func(t *testing.T, w *world) {
			changed(w)
			for _, state := range []string{"Pending", "Unknown"} {
				w.ok(w.says("web", state))
				is(t, state, holder(w, 80), "web")
			}
		}},
		{"a failed workload holds the former ports that its former instance still binds", func(t *testing.T, w *world) {
			changed(w)
			w.ok(failed(w, 80))
			is(t, "holder of host port 80", holder(w, 80), "web")
			w.ok(failed(w))
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"a start that met a taken port frees the former ports that no former instance binds", func(t *testing.T, w *world) {
			changed(w)
			c := w.says("web", "Pending")
			c.GetReport().Reports[0].Code = CodePortConflict
			w.ok(c)
			is(t, "holder of host port 80", holder(w, 80), "")
			is(t, "holder of host port 443", holder(w, 443), "web")
		}},
		{"a Missing workload holds no former ports", func(t *testing.T, w *world) {
			changed(w)
			w.ok(w.says("web", "Missing"))
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"former ports are held after a refused order", func(t *testing.T, w *world) {
			changed(w)
			c := failed(w)
			c.GetReport().Reports[0].Refused = true
			w.ok(c)
			is(t, "holder of host port 80", holder(w, 80), "web")
		}},
		{"an eviction moves the former ports to the residual", func(t *testing.T, w *world) {
			changed(w)
			w.ok(w.evict("web", CodeDraining, false))
			is(t, "holder of host port 80", holder(w, 80), "web")
			is(t, "holder of host port 443", holder(w, 443), "web")
			is(t, `number of former ports of workload "web"`, len(w.workload("web").FormerPorts), 0)
			w.ok(gone("web", "a", nil))
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"a workload placed on its former node holds its former ports there again", func(t *testing.T, w *world) {
			w.place("web", "a", hostPort(80))
			w.run("web")
			w.ok(w.evict("web", CodeNodeLost, false))
			w.ok(put("web", content("c1:new"), hostPort(443)))
			w.bind("web", "a")
			is(t, "holder of host port 80", holder(w, 80), "web")
			w.run("web")
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"former ports are free after the node was fenced", func(t *testing.T, w *world) {
			changed(w)
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			w.ok(w.evict("web", CodeNodeLost, true))
			is(t, "holder of host port 80", holder(w, 80), "")
		}},
		{"former ports move with a node to another engine", func(t *testing.T, w *world) {
			changed(w)
			w.ok(register("a", engine("e")))
			is(t, "holder of host port 80", holder(w, 80), "")
			id, _ := w.s.PortHolder("e", HostPort{Port: 80, Protocol: "tcp"})
			is(t, `workload that holds port 80 of engine "e"`, id, "web")
		}},
		{"former ports are refused to other workloads, then go to the workload that demanded them first", func(t *testing.T, w *world) {
			w.place("late", "a")
			changed(w)
			w.ok(put("late", hostPort(80)))
			is(t, "holder of host port 80", holder(w, 80), "web")
			w.ok(put("new", hostPort(80)))
			skipped(t, w.do(w.assign("new", "a")), "80/tcp", "web")
			w.run("web")
			is(t, "holder of host port 80", holder(w, 80), "late")
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}
