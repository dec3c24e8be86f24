package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func gpus(n int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: n}} })
}

func withGPUs(n int64) func(*commandv1.RegisterNode) {
	return func(r *commandv1.RegisterNode) { r.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: n}} }
}

// TestDevicesAreCounted: an assignment needs free devices. They are free again when the node has stopped the workload,
// and not before.
func TestDevicesAreCounted(t *testing.T) {
	w := formed(t, "a")
	w.ok(register("a", withGPUs(2)))
	w.running("first", "a", gpus(2))
	a := w.s.Alloc("a")
	is(t, "number of gpu devices that are reserved on the node", DevicesNamed(a.Devices, "gpu"), 2)
	w.ok(put("second", gpus(1)))
	refused := func(why string) {
		t.Helper()
		res := w.do(w.assign("second", "a"))
		is(t, "number of skipped items of the command", res.Skipped, 1)
		if !strings.Contains(res.Reason, why) {
			t.Errorf("the assignment was skipped with reason %q, want %q", res.Reason, why)
		}
	}
	refused(`node "a" has no 1 devices gpu left`)
	w.ok(remove("first", true))
	refused(`node "a" has no 1 devices gpu left`)
	w.ok(gone("first", "a", nil))
	w.bind("second", "a")
	a = w.s.Alloc("a")
	is(t, "number of gpu devices that are reserved on the node", DevicesNamed(a.Devices, "gpu"), 1)
	w.ok(put("second", gpus(2), content("c1:two")))
	a = w.s.Alloc("a")
	is(t, "number of gpu devices that are reserved after the change", DevicesNamed(a.Devices, "gpu"), 2)
}

// TestDevicesAreBounded: names and numbers of devices that are not valid are refused, and the refusal names the field.
func TestDevicesAreBounded(t *testing.T) {
	w := formed(t, "a")
	for name, list := range map[string][]*commandv1.DeviceCount{
		`demand.devices[0].name: "a/b/c" is not NAME or VENDOR/CLASS`: {{Name: "a/b/c", Count: 1}},
		`demand.devices[0].count: -1 is not in 0..4096`:               {{Name: "gpu", Count: -1}},
		`demand.devices[1].name: gpu is there twice`:                  {{Name: "gpu", Count: 1}, {Name: "gpu", Count: 2}},
	} {
		res := w.do(put("w", demand(func(d *commandv1.Demand) { d.Devices = list })))
		if res.Kind != Invalid || !strings.Contains(res.Reason, name) {
			t.Errorf("the put was answered with %v and reason %q, want a refusal that names field %q", res.Kind, res.Reason, name)
		}
	}
	res := w.do(register("b", withGPUs(5000)))
	if want := "devices[0].count: 5000 is not in 1..4096"; res.Kind != Invalid || !strings.Contains(res.Reason, want) {
		t.Errorf("the registration was answered with %v and reason %q, want a refusal with %q", res.Kind, res.Reason, want)
	}
}

// TestQuotaOfDevices: a quota limits the total number of devices, whatever their names.
func TestQuotaOfDevices(t *testing.T) {
	w := formed(t, "a")
	w.ok(putNamespace("lab", func(p *commandv1.PutNamespace) { p.Quota = &commandv1.Quota{Devices: 3} }))
	in := func(p *commandv1.WorkloadPut) { p.Namespace = "lab" }
	w.ok(put("first", in, gpus(2)))
	both := demand(func(d *commandv1.Demand) {
		d.Devices = []*commandv1.DeviceCount{{Name: "fpga", Count: 1}, {Name: "gpu", Count: 1}}
	})
	res := w.do(put("second", in, both))
	if want := "devices: 2 used, 2 more asked for, limit 3"; !strings.Contains(res.Reason, want) {
		t.Errorf("the put was answered with %v and reason %q, want a refusal with %q", res.Kind, res.Reason, want)
	}
	w.ok(put("second", in, gpus(1)))
	is(t, `Devices used by namespace "lab"`, w.s.UseOf("lab").Devices, 3)
	w.ok(put("first", in, gpus(1), content("c1:less")))
	is(t, `Devices used by namespace "lab"`, w.s.UseOf("lab").Devices, 2)
}

// TestNamedDevices: a demand for 0 devices is satisfied by a node that offers the kind, also if all are reserved.
func TestNamedDevices(t *testing.T) {
	w := formed(t)
	w.ok(register("a", withGPUs(1)))
	w.ok(register("b"))
	w.ok(put("holder", gpus(1)))
	w.ok(w.assign("holder", "a"))
	w.ok(put("named", gpus(0)))
	skipped(t, w.do(w.assign("named", "b")), `node "b" offers no devices gpu`)
	w.ok(w.assign("named", "a"))
	is(t, "Devices used by namespace default", w.s.UseOf(DefaultNamespace).Devices, 1)
}

// TestGPUsOfAnyKind: a demand for gpu reserves GPUs whatever the node calls them, and they are not free for a demand that
// names the kind.
func TestGPUsOfAnyKind(t *testing.T) {
	w := formed(t)
	nvidia := func(n int64) []*commandv1.DeviceCount {
		return []*commandv1.DeviceCount{{Name: "nvidia.com/gpu", Count: n}}
	}
	w.ok(register("a", func(r *commandv1.RegisterNode) { r.Devices = nvidia(2) }))
	w.ok(register("b", func(r *commandv1.RegisterNode) { r.Devices = []*commandv1.DeviceCount{{Name: "fpga", Count: 2}} }))
	w.ok(put("any", gpus(1)))
	skipped(t, w.do(w.assign("any", "b")), `node "b" has no 1 devices gpu left`)
	w.ok(w.assign("any", "a"))
	w.ok(put("two", demand(func(d *commandv1.Demand) { d.Devices = nvidia(2) })))
	skipped(t, w.do(w.assign("two", "a")), `node "a" has no 2 devices nvidia.com/gpu left`)
	w.ok(put("one", demand(func(d *commandv1.Demand) { d.Devices = nvidia(1) })))
	w.ok(w.assign("one", "a"))
	w.ok(put("more", gpus(1)))
	skipped(t, w.do(w.assign("more", "a")), `node "a" has no 1 devices gpu left`)
	w.ok(put("all", gpus(0)))
	w.ok(w.assign("all", "a"))
}

func namedDevicesScenario(w *world) {
	w.do(register("a", withGPUs(1)))
	w.do(register("b"))
	w.do(put("holder", gpus(1)))
	w.do(w.assign("holder", "a"))
	w.do(put("named", gpus(0)))
	w.do(w.assign("named", "b"))
	w.do(w.assign("named", "a"))
	w.do(register("a"))
	w.do(put("named", gpus(0), content("c1:new")))
}

// devicesScenario counts devices on nodes, in demands and in a quota.
func devicesScenario(w *world) {
	w.do(register("a", withGPUs(2)))
	w.do(register("b"))
	w.do(putNamespace("lab", func(p *commandv1.PutNamespace) { p.Quota = &commandv1.Quota{Devices: 3} }))
	w.do(put("first", gpus(2)))
	w.do(w.assign("first", "a"))
	w.do(w.says("first", "Running"))
	w.do(put("second", gpus(1)))
	w.do(w.assign("second", "a"))
	w.do(w.assign("second", "b"))
	w.do(put("over", gpus(4), func(p *commandv1.WorkloadPut) { p.Namespace = "lab" }))
	w.do(remove("first", false))
	w.do(w.assign("second", "a"))
	w.do(gone("first", "a", nil))
	w.do(w.assign("second", "a"))
	w.do(register("a", withGPUs(1)))
}
