package libvirt

import (
	"context"
	"errors"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
)

// If the KVM probe could not run, it is unknown whether KVM works. The driver then chooses neither KVM nor
// emulation, and probes again later. If libvirt stops offering KVM, the driver emulates, even after a
// successful probe.
func TestKVMIsUsedOnlyAfterASuccessfulProbe(t *testing.T) {
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
			t.Errorf("the KVM probe ended with %v: choose returned the machine type %+v, error %v; want the probe's error, or KVM if it succeeded", c.probe, m, err)
		}
	}
	if m, err := d.accel.choose(t.Context(), d, &facts{engine: "e", tcg: emulated}); m != emulated || err != nil {
		t.Errorf("libvirt offers no KVM: choose returned the machine type %+v, error %v; want emulation", m, err)
	}
	d.accel.try = func(context.Context, *hostcaps.Machine) error {
		return driver.Errorf(driver.RuntimeError, "kvm", "hangs")
	}
	if m, err := d.accel.choose(t.Context(), d, &facts{engine: "other", kvm: native, tcg: emulated}); m != emulated || err != nil {
		t.Errorf("the probe guest did not boot under KVM: choose returned the machine type %+v, error %v; want emulation", m, err)
	}
}
