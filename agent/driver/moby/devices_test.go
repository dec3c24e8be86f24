package moby

import (
	"fmt"
	"testing"

	"github.com/moby/moby/api/types/system"
)

func TestCDIDevices(t *testing.T) {
	got := cdiDevices([]system.DeviceInfo{
		{Source: "cdi", ID: "nvidia.com/gpu=1"}, {Source: "cdi", ID: "nvidia.com/gpu=0"}, {Source: "cdi", ID: "nvidia.com/gpu=all"},
		{Source: "cdi", ID: "nvidia.com/gpu=GPU-4d5f"}, {Source: "cdi", ID: "nvidia.com/gpu=MIG-77"}, {Source: "cdi", ID: "nvidia.com/gpu=0"},
		{Source: "cdi", ID: "vendor.com/nic=eth1"}, {Source: "other", ID: "x.com/y=0"}, {Source: "cdi", ID: "broken"},
	})
	if want := "map[nvidia.com/gpu:[0 1] vendor.com/nic:[eth1]]"; fmt.Sprint(got) != want {
		t.Errorf("cdiDevices returned %v, want %s", got, want)
	}
}
