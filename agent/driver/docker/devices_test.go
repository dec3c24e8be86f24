package docker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
)

func TestChooseDevices(t *testing.T) {
	holders := map[string]string{"nvidia.com/gpu=0": "web", "vendor.com/nic=1": "other"}
	for name, c := range map[string]struct {
		n     int64
		names []string
		want  string // the chosen devices, or a part of the error message
	}{
		"the first two free devices are chosen":                   {2, []string{"0", "1", "2", "3"}, "nvidia.com/gpu=1 nvidia.com/gpu=2"},
		"all free devices":                                        {1, []string{"0", "1"}, "nvidia.com/gpu=1"},
		"a request for more devices than are free is refused":     {2, []string{"0", "1"}, "resources.devices: needs 2 nvidia.com/gpu, but the node has 2, of which are in use: 0 by web"},
		"a request for more devices than the node has is refused": {1, nil, "resources.devices: needs 1 nvidia.com/gpu, but the node has 0"},
		"a used device of another kind does not count":            {1, []string{"1"}, "nvidia.com/gpu=1"},
	} {
		got, err := chooseDevices("nvidia.com/gpu", c.n, c.names, holders)
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, c.want) || err == nil && text != c.want {
			t.Errorf("%s: chooseDevices returned %q, want %q", name, text, c.want)
		}
		if err != nil && !slices.Contains([]driver.Class{driver.RuntimeResourceMissing}, driver.ClassOf(err)) {
			t.Errorf("%s: the error is of class %v; want a class of the node, so that the workload is tried on another node", name, driver.ClassOf(err))
		}
	}
}

func TestEnginesWithoutCDIRefuseDevices(t *testing.T) {
	counted := map[string]int64{"nvidia.com/gpu": 1}
	if err := lacksCDI(nil, "1.41"); err != nil {
		t.Errorf("a container without devices was refused: %v", err)
	}
	if err := lacksCDI(counted, "1.44"); err != nil {
		t.Errorf("an engine with CDI refused devices: %v", err)
	}
	err := lacksCDI(counted, "1.41")
	if want := "resources.devices: nvidia.com/gpu is a CDI device, and the engine of this node has no CDI (API 1.41)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an engine without CDI returned %v, want %q", err, want)
	}
	var e *driver.Error
	if !errors.As(err, &e) {
		t.Errorf("the error has the type %T, want *driver.Error, which has a class", err)
	}
}
