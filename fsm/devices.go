package fsm

import (
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Devices are counted resources, such as GPUs: a node offers a number of each kind, and a workload reserves some of
// them. The state only counts them; the agent chooses the devices. See ADR 69.

// DeviceCount is a number of devices of one kind.
type DeviceCount struct {
	Name string // such as nvidia.com/gpu
	// Count is the number of devices. In a demand, 0 reserves none: the workload names a device of this kind itself, so
	// its node must have such devices.
	Count int64
}

// Lacks reports whether a node that offers total devices of this kind, of which free are free, cannot satisfy the demand.
func (d DeviceCount) Lacks(free, total int64) bool {
	return d.Count > 0 && d.Count > free || d.Count == 0 && total == 0
}

// AnyGPU is the name under which a demand reserves GPUs of any kind, as gpus: 2 in a container does. Nodes offer GPUs
// under the names of their kinds, such as nvidia.com/gpu, or as gpu.
const AnyGPU = "gpu"

// IsGPU reports whether a name of devices is a kind of GPUs.
func IsGPU(name string) bool { return name == AnyGPU || strings.HasSuffix(name, "/gpu") }

// Offers reports whether devices that a node offers under the name offered satisfy a demand for devices under
// the name wanted.
func Offers(offered, wanted string) bool {
	return offered == wanted || wanted == AnyGPU && IsGPU(offered)
}

// Shares reports whether reservations under the two names may need the same devices. A reservation of AnyGPU
// may get GPUs of any kind, so it counts against every kind of GPUs.
func Shares(one, other string) bool { return Offers(one, other) || Offers(other, one) }

// DevicesNamed returns the number of devices with a name in a list. For AnyGPU it returns the number of all GPUs.
func DevicesNamed(list []DeviceCount, name string) int64 { return countDevices(list, name, Offers) }

// DevicesShared returns how many of the devices that are reserved in list count against a demand for devices with a name.
func DevicesShared(list []DeviceCount, name string) int64 { return countDevices(list, name, Shares) }

func countDevices(list []DeviceCount, name string, counts func(string, string) bool) (n int64) {
	for _, d := range list {
		if counts(d.Name, name) {
			n += d.Count
		}
	}
	return n
}

// addDevices returns a new list, sorted by name: the counts in list plus (sign +1) or minus (sign
// -1) the counts in more. Devices with a count of 0 are left out.
func addDevices(list, more []DeviceCount, sign int) []DeviceCount {
	out := slices.Clone(list)
	for _, d := range more {
		i, ok := slices.BinarySearchFunc(out, d.Name, func(have DeviceCount, name string) int { return strings.Compare(have.Name, name) })
		if !ok {
			out = slices.Insert(out, i, DeviceCount{Name: d.Name})
		}
		out[i].Count += int64(sign) * d.Count
	}
	if out = slices.DeleteFunc(out, func(d DeviceCount) bool { return d.Count == 0 }); len(out) == 0 {
		return nil
	}
	return out
}

// lacksDevices returns which devices of a demand are not free on n; "" if all are. free lists the
// devices of a former instance of the workload, which the new instance may use. taken lists devices
// that other workloads will get.
func lacksDevices(n *Node, a *Alloc, d *Demand, free, taken []DeviceCount) string {
	for _, want := range d.Devices {
		total := DevicesNamed(n.Facts.Devices, want.Name)
		left := total - DevicesShared(a.Devices, want.Name) + DevicesShared(free, want.Name) - DevicesShared(taken, want.Name)
		switch {
		case !want.Lacks(left, total):
		case want.Count == 0:
			return fmt.Sprintf("node %q offers no devices %s", n.ID, want.Name)
		default:
			return fmt.Sprintf("node %q has no %d devices %s left", n.ID, want.Count, want.Name)
		}
	}
	return ""
}

func devicesOf(in []*commandv1.DeviceCount) []DeviceCount {
	return convert(in, func(d *commandv1.DeviceCount) DeviceCount { return DeviceCount{d.GetName(), d.GetCount()} })
}

func devicesPB(in []DeviceCount) []*commandv1.DeviceCount {
	return convert(in, func(d DeviceCount) *commandv1.DeviceCount {
		return &commandv1.DeviceCount{Name: d.Name, Count: d.Count}
	})
}

func (e *encoder) devices(list []DeviceCount) {
	if len(list) == 0 {
		return
	}
	e.str("counted devices")
	e.u64(uint64(len(list)))
	for _, d := range list {
		e.str(d.Name)
		e.i64(d.Count)
	}
}
