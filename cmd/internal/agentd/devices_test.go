package agentd

import (
	"fmt"
	"strings"
	"testing"
)

func TestDevicesOfTheSettings(t *testing.T) {
	for _, c := range []struct {
		devices map[string]string
		want    string // the devices, or a part of the error
	}{
		{nil, "map[]"},
		{map[string]string{"nvidia.com/gpu": "2", "license": "10"}, "map[license:10 nvidia.com/gpu:2]"},
		{map[string]string{"nvidia.com/gpu": "0"}, "map[nvidia.com/gpu:0]"},
		{map[string]string{"gpu": "two"}, "PERSYS_NODE_DEVICES: gpu=two: the number of devices must be 0 to 4096; write NAME=NUMBER,NAME=NUMBER, such as nvidia.com/gpu=2"},
		{map[string]string{"gpu": "-1"}, "PERSYS_NODE_DEVICES: gpu=-1: the number"},
		{map[string]string{"gpu": "5000"}, "PERSYS_NODE_DEVICES: gpu=5000: the number"},
		{map[string]string{"a/b/c": "1"}, `PERSYS_NODE_DEVICES: "a/b/c" must be NAME or VENDOR/CLASS`},
		{map[string]string{"/dev/fuse": "1"}, `PERSYS_NODE_DEVICES: "/dev/fuse" must be NAME or VENDOR/CLASS`},
	} {
		got, err := (&Config{Devices: c.devices}).devices()
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
		}
		if !strings.HasPrefix(text, c.want) {
			t.Errorf("with devices %v the answer is %s, want %s", c.devices, text, c.want)
		}
	}
}
