package spec

import (
	"fmt"
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestDevices: the planner must reserve all devices that a specification counts. Devices whose name is a CDI kind
// (VENDOR/CLASS) are given to the container, so the content hash and the order for the agent must contain these too.
func TestDevices(t *testing.T) {
	parsed := func(devices string) *controlv1.WorkloadSpec {
		s := specOf(t, "id: w\ncontainer: {image: x}\nresources: {cpu: 1, devices: "+devices+"}\n")
		s.Type = TypeContainer
		Normalise(s)
		return s
	}
	s := parsed("{nvidia.com/gpu: 2, license: 1}")
	if got, want := fmt.Sprint(DemandOf("w", s).GetDevices()), `[name:"license" count:1 name:"nvidia.com/gpu" count:2]`; strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("the demand of a workload with counted devices has the devices %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(agentContainer(s).GetCountedDevices()), "map[nvidia.com/gpu:2]"; got != want {
		t.Errorf("the agent gets the devices %s, want %s", got, want)
	}
	named := specOf(t, "id: w\ncontainer: {image: x, devices: [nvidia.com/gpu=0, /dev/fuse, amd.com/gpu=1], gpus: [{driver: cdi, device_ids: [x.org/npu=2]}]}\nresources: {devices: {amd.com/gpu: 1}}\n")
	if got, want := fmt.Sprint(DemandOf("w", named).GetDevices()), `[name:"amd.com/gpu" count:1 name:"nvidia.com/gpu" name:"x.org/npu"]`; strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("the demand of a container that names devices has the devices %s, want %s", got, want)
	}
	for text, want := range map[string]string{
		"gpus: all": `[name:"gpu"]`,
		"gpus: [{count: 2}, {driver: nvidia, count: 1}]":                `[name:"gpu" count:3]`,
		"gpus: [{device_ids: ['0']}]":                                   `[name:"gpu"]`,
		"gpus: [{driver: cdi, device_ids: ['amd.com/gpu=1']}]":          `[name:"amd.com/gpu"]`,
		"gpus: [{count: 2}]}\nresources: {devices: {nvidia.com/gpu: 1}": `[name:"nvidia.com/gpu" count:1]`,
	} {
		s := specOf(t, "id: w\ncontainer: {image: x, "+text+"}\n")
		if got := fmt.Sprint(DemandOf("w", s).GetDevices()); strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("a container with %s: the demand has the devices %s, want %s", text, got, want)
		}
	}
	content := func(devices string) string { return contentOf(t, parsed(devices)) }
	if content("{nvidia.com/gpu: 2}") == content("{nvidia.com/gpu: 1}") {
		t.Error("another number of CDI devices must change the content hash, but does not")
	}
	if content("{license: 2}") != content("{license: 1}") {
		t.Error("another number of devices without a CDI name must not change the content hash, but does")
	}
}

// TestKindsOfDevices: the kinds that resources.devices reserves and those that a container names count together.
func TestKindsOfDevices(t *testing.T) {
	file := func(counted, named int) string {
		var reserved, own []string
		for i := range counted {
			reserved = append(reserved, fmt.Sprintf("x.org/d%d: 1", i))
		}
		for i := range named {
			own = append(own, fmt.Sprintf("x.org/n%d=0", i))
		}
		return "id: w\ncontainer:\n  image: x\n  devices: [" + strings.Join(own, ", ") + "]\nresources: {devices: {" + strings.Join(reserved, ", ") + "}}\n"
	}
	if _, err := Parse("w.yaml", []byte(file(8, 8)), Options{}); err != nil {
		t.Errorf("a specification with 16 kinds of devices must be accepted, but was refused: %v", err)
	}
	want := `w.yaml:4:`
	_, err := Parse("w.yaml", []byte(file(8, 9)), Options{})
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "devices of 17 kinds, at most 16") {
		t.Errorf("a specification with 17 kinds of devices returned %v, want an error that names line 4 and the number of kinds", err)
	}
}

func TestDevicesThatAreNotValid(t *testing.T) {
	for devices, want := range map[string]string{
		"{gpu: 0}":       `resources.devices.gpu: must be 1 to 4096 devices, got "0"`,
		"{gpu: 5000}":    `resources.devices.gpu: must be 1 to 4096 devices, got "5000"`,
		"{a/b/c: 1}":     `resources.devices: names must be NAME or VENDOR/CLASS`,
		"{gpu: many}":    `resources.devices.gpu`,
		"[gpu]":          `resources.devices: must be a mapping of names to whole numbers`,
		"{'gpu 1': 1}":   `resources.devices: names must be NAME or VENDOR/CLASS`,
		"{nvidia.com: }": `resources.devices.nvidia.com`,
	} {
		_, err := Parse("w.yaml", []byte("id: w\ncontainer: {image: x}\nresources: {devices: "+devices+"}\n"), Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a specification with resources.devices %s returned error %v, want an error that contains %q", devices, err, want)
		}
	}
}
