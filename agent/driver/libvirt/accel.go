package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
)

// kvmDeadline is the time limit for the KVM probe guest, a tiny guest that powers itself off. The guest
// needs about 0.5 s, even in emulation.
const kvmDeadline = 10 * time.Second

// accelerator finds out whether KVM works on this machine, by booting a guest of 300 bytes once. The
// existence of /dev/kvm proves nothing: with nested or broken KVM, QEMU starts but the guest never runs.
type accelerator struct {
	try func(ctx context.Context, m *hostcaps.Machine) error

	mu  sync.Mutex
	run *probeRun // the KVM probe in progress or done; nil before the first probe and after an inconclusive probe
}

// probeRun is one run of the probe guest.
type probeRun struct {
	key  string        // key of the stored verdict: it identifies the machine and its libvirt version
	done chan struct{} // closed when the probe guest has ended
	err  error         // result of the probe; nil if KVM works
	// unsure means that err has another cause than KVM, such as a full disk or an unreachable libvirt. So the
	// probe shows nothing about KVM and is repeated.
	unsure bool
}

// verdict is the result of a KVM probe, stored on disk. It is valid until the machine is rebooted, or its
// libvirt (the engine id or the version) changes.
type verdict struct {
	Key   string `json:"key"`
	Error string `json:"error,omitempty"`
}

// prepare starts the KVM probe if it has not run yet, and returns the run. It returns nil if libvirt does not
// offer KVM.
func (a *accelerator) prepare(d *Driver, f *facts) *probeRun {
	if f.kvm == nil || d.opt.Acceleration != "auto" {
		return nil
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	key := strings.TrimSpace(string(boot)) + " " + f.engine + " " + f.version
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run != nil && a.run.key == key {
		return a.run
	}
	t := &probeRun{key: key, done: make(chan struct{})}
	a.run = t
	file := filepath.Join(d.at.images, ".persys-kvm-trial.json")
	if raw, err := os.ReadFile(file); err == nil {
		var v verdict
		if json.Unmarshal(raw, &v) == nil && v.Key == key {
			if v.Error != "" {
				t.err = fmt.Errorf("%s", v.Error)
			}
			close(t.done)
			return t
		}
	}
	go func() {
		defer close(t.done)
		ctx, cancel := context.WithTimeout(context.Background(), kvmDeadline+d.opt.CallTimeout)
		defer cancel()
		t.err = a.try(ctx, f.kvm)
		class := driver.ClassOf(t.err)
		if t.err != nil && (ctx.Err() != nil || class != driver.RuntimeError && class != driver.InvalidConfiguration) {
			t.unsure = true
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.run == t {
				a.run = nil
			}
			return
		}
		v := verdict{Key: key}
		if t.err != nil {
			v.Error = t.err.Error()
			d.opt.Logger.Info("KVM does not boot a guest on this machine: guests are emulated", "err", t.err)
		}
		if raw, err := json.Marshal(v); err == nil {
			if err := diskfile.Write(file, raw); err != nil {
				d.opt.Logger.Warn("could not store the result of the KVM probe", "err", err)
			}
		}
	}()
	return t
}

// choose waits for the end of the KVM probe, and returns how guests are run: with KVM or in emulation.
func (a *accelerator) choose(ctx context.Context, d *Driver, f *facts) (*hostcaps.Machine, error) {
	switch {
	case d.opt.Acceleration == "kvm" && f.kvm != nil:
		return f.kvm, nil
	case d.opt.Acceleration == "kvm":
		return nil, driver.Errorf(driver.InvalidConfiguration, "define", "PERSYS_VM_ACCELERATION is kvm, but libvirt on this node offers no KVM for %s guests", f.arch)
	}
	if t := a.prepare(d, f); t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch {
		case t.err == nil:
			return f.kvm, nil
		case t.unsure: // err is inconclusive. A guest that is defined now without KVM would be emulated as long as it exists, so fail instead.
			return nil, t.err
		}
	}
	if f.tcg == nil {
		return nil, driver.Errorf(driver.RuntimeError, "define", "libvirt on this node offers neither KVM nor emulation that can run %s guests", f.arch)
	}
	return f.tcg, nil
}

// tryKVM boots the probe guest and waits until it powers itself off.
func (d *Driver) tryKVM(ctx context.Context, m *hostcaps.Machine) (err error) {
	if m.PanicDevice == "" {
		return driver.Errorf(driver.RuntimeError, "kvm", "there is no probe guest for this architecture; set PERSYS_VM_ACCELERATION=kvm if KVM works")
	}
	if err := os.MkdirAll(d.at.images, 0o711); err != nil {
		return diskfile.Failed(err)
	}
	name := "persys-kvm-trial-" + tag(d.opt.ClusterID+"\x00"+d.opt.NodeID+"\x00"+d.opt.Images)
	file := filepath.Join(d.at.images, name+".img")
	if err := os.WriteFile(file, probeDisk(), 0o644); err != nil {
		return diskfile.Failed(err)
	}
	defer os.Remove(file)
	xml, err := probeDomain(name, file, probeMachine{Kind: m.Kind, Type: m.Type, Emulator: m.Emulator, CPU: m.CPU})
	if err != nil {
		return err
	}
	if old, err := d.hv.domain(ctx, name); err == nil {
		_ = d.hv.destroy(ctx, old.uuid) // remove the probe guest of an agent that was killed during its KVM probe
	}
	if err := d.hv.transient(ctx, xml); err != nil {
		return err
	}
	deadline := time.Now().Add(kvmDeadline)
	for {
		now, err := d.hv.domain(ctx, name)
		if err != nil {
			if errors.Is(err, errAbsent) {
				return nil // the guest counted its timer ticks and powered itself off: KVM works
			}
			return err
		}
		if time.Now().After(deadline) {
			_ = d.hv.destroy(ctx, now.uuid)
			return driver.Errorf(driver.RuntimeError, "kvm", "the probe guest did not boot within %s, but /dev/kvm exists", kvmDeadline)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
