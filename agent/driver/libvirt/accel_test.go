package libvirt

import (
	"context"
	"errors"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
)

// A probe that could not run says nothing about KVM: no way to run guests is chosen then, and the probe is
// repeated. The choice depends on what libvirt offers now, whatever an earlier probe showed.
func TestKVMProbe(t *testing.T) {
	d, err := newDriver(Options{ClusterID: "cluster-1", NodeID: "node-a", Images: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	both := &facts{engine: "e", kvm: native, tcg: emulated}
	for _, c := range []struct {
		probe   error
		machine *hostcaps.Machine
	}{
		{driver.Errorf(driver.StorageFull, "disk", "no space left"), nil},
		{driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "gone"), nil},
		{context.DeadlineExceeded, nil},
		{nil, native},
	} {
		d.accel.try = func(context.Context, *hostcaps.Machine) error { return c.probe }
		m, err := d.accel.choose(t.Context(), d, both)
		if m != c.machine || !errors.Is(err, c.probe) {
			t.Errorf("after %v: %+v, %v", c.probe, m, err)
		}
	}
	if m, err := d.accel.choose(t.Context(), d, &facts{engine: "e", tcg: emulated}); m != emulated || err != nil {
		t.Errorf("without KVM: %+v, %v; want emulation", m, err)
	}
	d.accel.try = func(context.Context, *hostcaps.Machine) error {
		return driver.Errorf(driver.RuntimeError, "kvm", "hangs")
	}
	if m, err := d.accel.choose(t.Context(), d, &facts{engine: "other", kvm: native, tcg: emulated}); m != emulated || err != nil {
		t.Errorf("where a guest does not boot: %+v, %v; want emulation", m, err)
	}
}
