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
	"github.com/persys/compute/agent/driver/libvirt/kvmprobe"
)

// kvmDeadline is how long the trial guest may take; it needs half a second, also in emulation.
const kvmDeadline = 10 * time.Second

// accelerator knows which way to run guests works here. /dev/kvm proves nothing: nested and broken
// KVM let QEMU start and then run nothing at all. So a guest of 300 bytes is booted once.
type accelerator struct {
	try func(ctx context.Context, m *hostcaps.Machine) error

	mu  sync.Mutex
	run *probeRun // nil before one began, and after one that showed nothing
}

// probeRun is one trial.
type probeRun struct {
	key  string        // of the machine it is made for
	done chan struct{} // closed when it is over
	err  error         // why KVM does not work, then
	// unsure: err says nothing of KVM, as when the disk is full, or libvirt went away.
	unsure bool
}

// verdict is what a trial showed, kept on disk: it holds until the machine or its libvirt changes.
type verdict struct {
	Key   string `json:"key"`
	Error string `json:"error,omitempty"`
}

// prepare begins the trial, if it was not made yet; nil if there is nothing to try.
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
			d.opt.Logger.Info("KVM does not boot a guest here: guests are emulated", "err", t.err)
		}
		if raw, err := json.Marshal(v); err == nil {
			if err := diskfile.Write(file, raw); err != nil {
				d.opt.Logger.Warn("the outcome of the KVM trial is not kept", "err", err)
			}
		}
	}()
	return t
}

// choose says how guests are run, after the trial.
func (a *accelerator) choose(ctx context.Context, d *Driver, f *facts) (*hostcaps.Machine, error) {
	switch {
	case d.opt.Acceleration == "kvm" && f.kvm != nil:
		return f.kvm, nil
	case d.opt.Acceleration == "kvm":
		return nil, driver.Errorf(driver.InvalidConfiguration, "define", "PERSYS_VM_ACCELERATION is kvm, and libvirt offers no KVM for %s here", f.arch)
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
		case t.unsure: // a guest that is defined now would be emulated for long
			return nil, t.err
		}
	}
	if f.tcg == nil {
		return nil, driver.Errorf(driver.RuntimeError, "define", "libvirt offers no way to run %s guests that works here", f.arch)
	}
	return f.tcg, nil
}

// tryKVM boots the trial guest and waits for it to turn itself off.
func (d *Driver) tryKVM(ctx context.Context, m *hostcaps.Machine) (err error) {
	if m.PanicDevice == "" {
		return driver.Errorf(driver.RuntimeError, "kvm", "there is no trial guest for this architecture; set PERSYS_VM_ACCELERATION=kvm if KVM works")
	}
	if err := os.MkdirAll(d.at.images, 0o711); err != nil {
		return diskfile.Failed(err)
	}
	name := "persys-kvm-trial-" + tag(d.opt.ClusterID+"\x00"+d.opt.NodeID+"\x00"+d.opt.Images)
	file := filepath.Join(d.at.images, name+".img")
	if err := os.WriteFile(file, kvmprobe.Disk(), 0o644); err != nil {
		return diskfile.Failed(err)
	}
	defer os.Remove(file)
	xml, err := kvmprobe.Domain(name, file, kvmprobe.Machine{Kind: m.Kind, Type: m.Type, Emulator: m.Emulator, CPU: m.CPU})
	if err != nil {
		return err
	}
	if old, err := d.hv.domain(ctx, name); err == nil {
		_ = d.hv.destroy(ctx, old.uuid) // of an agent that was killed meanwhile
	}
	if err := d.hv.transient(ctx, xml); err != nil {
		return err
	}
	deadline := time.Now().Add(kvmDeadline)
	for {
		now, err := d.hv.domain(ctx, name)
		if err != nil {
			if errors.Is(err, errAbsent) {
				return nil // it counted its ticks and turned itself off
			}
			return err
		}
		if time.Now().After(deadline) {
			_ = d.hv.destroy(ctx, now.uuid)
			return driver.Errorf(driver.RuntimeError, "kvm", "a trial guest did not boot within %s, although /dev/kvm is there", kvmDeadline)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
