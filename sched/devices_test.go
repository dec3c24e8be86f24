package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func withDevices(name string, n int64) func(*commandv1.RegisterNode) {
	return func(r *commandv1.RegisterNode) {
		r.Devices = append(r.Devices, &commandv1.DeviceCount{Name: name, Count: n})
	}
}

func wantsDevices(name string, n int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.CpuMillicores, d.MemoryMib = 10, 10
		d.Devices = append(d.Devices, &commandv1.DeviceCount{Name: name, Count: n})
	})
}

func priority(n int32) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Priority = n })
}

func at(t *testing.T, w *world, id, node string) {
	t.Helper()
	if x := w.get(id); x.Node != node {
		t.Fatalf("workload %q is on node %q, want node %q (empty: it waits); its reason is %q", id, x.Node, node, x.Reason.Message)
	}
}

// TestDevicesAreReserved: devices are counted like CPU and memory in placement, moves, preemption and explanations.
func TestDevicesAreReserved(t *testing.T) {
	t.Run("a workload goes only to a node with free devices, and a workload without such a node waits", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 3))
		w.node("b", withDevices("fpga", 8))
		w.node("c")
		w.apply("two", wantsDevices("gpu", 2))
		w.settle()
		w.apply("more", wantsDevices("gpu", 2))
		w.settle()
		at(t, w, "two", "a")
		at(t, w, "more", "")
		if got := w.get("more").Reason.Message; got != "0/3 nodes fit: 3 device gpu" {
			t.Errorf("the reason of workload \"more\" is %q, want that all three nodes lack devices", got)
		}
		var all []string
		for _, n := range Explain(w.state, w.get("more"), w.tuning).Nodes {
			all = append(all, n.Node+" "+n.Reason)
		}
		text := strings.Join(all, "\n")
		for _, want := range []string{"devices gpu: needs 2 devices, 1 free of 3 (2 promised)", "devices: needs gpu, the node has none"} {
			if !strings.Contains(text, want) {
				t.Errorf("the explanation of workload \"more\" must contain %q, but is:\n%s", want, text)
			}
		}
		w.apply("one", wantsDevices("gpu", 1))
		w.settle()
		at(t, w, "one", "a")
	})
	t.Run("a workload that names a device goes only to a node with devices of the kind, also if they are reserved", func(t *testing.T) {
		w := newWorld(t)
		w.node("a")
		w.apply("named", wantsDevices("gpu", 0))
		w.settle()
		at(t, w, "named", "")
		if got := w.get("named").Reason.Message; got != "0/1 nodes fit: 1 device gpu" {
			t.Errorf("the reason of workload \"named\" is %q, want that the node has no such device", got)
		}
		w.node("b", withDevices("gpu", 1))
		w.apply("holder", wantsDevices("gpu", 1))
		w.settle()
		at(t, w, "holder", "b")
		at(t, w, "named", "b")
		w.node("b")
		w.apply("other", wantsDevices("gpu", 0), priority(9))
		w.settle()
		at(t, w, "other", "")
		at(t, w, "named", "b")
	})
	t.Run("a demand for GPUs of any kind gets the kind that a node offers; otherwise it waits, and why shows the numbers", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("nvidia.com/gpu", 2))
		w.node("b", withDevices("fpga", 2))
		w.apply("any", wantsDevices(fsm.AnyGPU, 1))
		w.settle()
		at(t, w, "any", "a")
		w.apply("two", wantsDevices("nvidia.com/gpu", 2))
		w.apply("both", wantsDevices(fsm.AnyGPU, 2))
		w.settle()
		for id, want := range map[string]string{
			"two":  "devices nvidia.com/gpu: needs 2 devices, 1 free of 2 (1 promised)",
			"both": "devices gpu: needs 2 devices, 1 free of 2 (1 promised)",
		} {
			at(t, w, id, "")
			var all []string
			for _, n := range Explain(w.state, w.get(id), w.tuning).Nodes {
				all = append(all, n.Node+" "+n.Reason)
			}
			if text := strings.Join(all, "\n"); !strings.Contains(text, "a "+want) {
				t.Errorf("the explanation of workload %q must contain %q, but is:\n%s", id, want, text)
			}
		}
		w.apply("both", wantsDevices(fsm.AnyGPU, 2), priority(5))
		w.settle()
		at(t, w, "both", "a")
		at(t, w, "any", "")
	})
	t.Run("a demand for GPUs of any kind can use two kinds of one node, and its workload stays there", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("amd.com/gpu", 1), withDevices("nvidia.com/gpu", 1))
		w.apply("x", wantsDevices(fsm.AnyGPU, 2))
		w.settle()
		at(t, w, "x", "a")
		w.node("a", withDevices("amd.com/gpu", 1), withDevices("nvidia.com/gpu", 1))
		w.settle()
		at(t, w, "x", "a")
		w.node("b", withDevices("gpu", 1))
		w.apply("y", wantsDevices(fsm.AnyGPU, 1))
		w.settle()
		at(t, w, "y", "b")
	})
	t.Run("a waiting workload is placed when a node registers more devices", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 1))
		w.apply("two", wantsDevices("gpu", 2))
		w.settle()
		at(t, w, "two", "")
		w.node("a", withDevices("gpu", 2))
		w.settle()
		at(t, w, "two", "a")
	})
	t.Run("two workloads of one step do not get the same device", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 1))
		w.node("b", withDevices("gpu", 1))
		w.apply("x", wantsDevices("gpu", 1))
		w.apply("y", wantsDevices("gpu", 1))
		w.apply("z", wantsDevices("gpu", 1))
		w.settle()
		on := map[string]int{}
		for _, id := range []string{"x", "y", "z"} {
			on[w.get(id).Node]++
		}
		if on["a"] != 1 || on["b"] != 1 || on[""] != 1 {
			t.Errorf("the workloads are on the nodes %v, want one workload on each node, and one that waits", on)
		}
	})
	t.Run("a workload of higher priority preempts for devices, and only the holder of devices leaves", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 2))
		w.apply("plain", demand(func(d *commandv1.Demand) { d.CpuMillicores = 100 }))
		w.apply("low", wantsDevices("gpu", 1), priority(1))
		w.apply("lowest", wantsDevices("gpu", 1))
		w.settle()
		w.apply("high", wantsDevices("gpu", 1), priority(5))
		w.settle()
		at(t, w, "high", "a")
		at(t, w, "plain", "a")
		at(t, w, "low", "a")
		at(t, w, "lowest", "")
	})
	t.Run("nothing is preempted for devices that the node does not have", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 1))
		w.apply("low", wantsDevices("gpu", 1))
		w.settle()
		w.apply("high", wantsDevices("gpu", 2), priority(5))
		w.settle()
		at(t, w, "low", "a")
	})
	t.Run("a workload that wants more devices than its node has left goes to another node", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 2))
		w.apply("x", wantsDevices("gpu", 1))
		w.apply("y", wantsDevices("gpu", 1))
		w.settle()
		w.node("b", withDevices("gpu", 2))
		w.apply("x", wantsDevices("gpu", 2), func(p *commandv1.WorkloadPut) { p.Content = "c1:more" })
		w.settle()
		at(t, w, "x", "b")
		at(t, w, "y", "a")
	})
	t.Run("a drained node keeps a workload whose devices no other node has", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 1))
		w.node("b")
		w.apply("x", wantsDevices("gpu", 1))
		w.settle()
		w.drain("a", true)
		w.settle()
		at(t, w, "x", "a")
		if got := w.get("x").Reason.Message; !strings.Contains(got, "device gpu") {
			t.Errorf("the reason of workload \"x\" is %q, want it to name the device that no other node has", got)
		}
	})
	t.Run("rebalancing does not move workloads to nodes without their devices", func(t *testing.T) {
		w := newWorld(t)
		w.node("a", withDevices("gpu", 6))
		w.many(6, wantsDevices("gpu", 1), demand(func(d *commandv1.Demand) { d.CpuMillicores = 600 }))
		w.settle()
		w.node("b")
		if got := Rebalance(w.state, balanceLimits, w.tuning).Moves; len(got) > 0 {
			t.Errorf("Rebalance returns the moves %q, want none", lines(got))
		}
		w.node("c", withDevices("gpu", 2))
		got := Rebalance(w.state, balanceLimits, w.tuning).Moves
		for _, m := range got {
			if m.To != "c" {
				t.Errorf("rebalancing must move workload %q to node \"c\", the only other node with devices, but moves it to %q", m.Workload, m.To)
			}
		}
		if len(got) != 2 {
			t.Errorf("Rebalance returns the moves %q, want two", lines(got))
		}
	})
}
