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
	"github.com/persys/compute/agent/driver/libvirt/trial"
)

// kvmDeadline is how long the trial guest may take; it needs half a second, also in emulation.
const kvmDeadline = 10 * time.Second

// accelerator knows which way to run guests works here. /dev/kvm proves nothing: nested and broken
// KVM let QEMU start and then run nothing at all. So a guest of 300 bytes is booted once.
type accelerator struct {
	try func(ctx context.Context, m *machineFacts) error

	mu   sync.Mutex
	done chan struct{} // closed when the trial is over; nil before it began
	key  string        // of the machine the trial was made for
	err  error         // why KVM does not work
}

// verdict is what a trial showed, kept on disk: it holds until the machine or its libvirt changes.
type verdict struct {
	Key   string `json:"key"`
	Error string `json:"error,omitempty"`
}

// prepare begins the trial, if there is anything to try and it was not made yet.
func (a *accelerator) prepare(d *Driver, f *facts) {
	if f.kvm == nil || d.opt.Acceleration != "auto" {
		return
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	key := strings.TrimSpace(string(boot)) + " " + f.engine + " " + f.version
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done != nil && a.key == key {
		return
	}
	done := make(chan struct{})
	a.done, a.key, a.err = done, key, nil
	file := filepath.Join(d.at.images, ".persys-kvm-trial.json")
	if raw, err := os.ReadFile(file); err == nil {
		var v verdict
		if json.Unmarshal(raw, &v) == nil && v.Key == key {
			if v.Error != "" {
				a.err = fmt.Errorf("%s", v.Error)
			}
			close(done)
			return
		}
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), kvmDeadline+d.opt.CallTimeout)
		defer cancel()
		err := a.try(ctx, f.kvm)
		unsure := driver.ClassOf(err) == driver.RuntimeUnhealthy
		v := verdict{Key: key}
		if err != nil {
			v.Error = err.Error()
			d.opt.Logger.Info("KVM does not boot a guest here: guests are emulated", "err", err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.key == key {
			a.err = err
			if unsure { // the daemon went away: that says nothing of KVM
				a.done = nil
			}
		}
		close(done)
		if raw, jerr := json.Marshal(v); jerr == nil && !unsure {
			if err := diskfile.Write(file, raw); err != nil {
				d.opt.Logger.Warn("the outcome of the KVM trial is not kept", "err", err)
			}
		}
	}()
}

// choose says how guests are run, after the trial.
func (a *accelerator) choose(ctx context.Context, d *Driver, f *facts) (*machineFacts, error) {
	switch {
	case d.opt.Acceleration == "kvm" && f.kvm != nil:
		return f.kvm, nil
	case d.opt.Acceleration == "kvm":
		return nil, driver.Errorf(driver.InvalidConfiguration, "define", "PERSYS_VM_ACCELERATION is kvm, and libvirt offers no KVM for %s here", f.arch)
	}
	a.prepare(d, f)
	a.mu.Lock()
	done := a.done
	a.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		a.mu.Lock()
		err := a.err
		a.mu.Unlock()
		if err == nil {
			return f.kvm, nil
		}
	}
	if f.tcg == nil {
		return nil, driver.Errorf(driver.RuntimeError, "define", "libvirt offers no way to run %s guests that works here", f.arch)
	}
	return f.tcg, nil
}

// tryKVM boots the trial guest and waits for it to turn itself off.
func (d *Driver) tryKVM(ctx context.Context, m *machineFacts) (err error) {
	if m.panicDev == "" {
		return driver.Errorf(driver.RuntimeError, "kvm", "there is no trial guest for this architecture; set PERSYS_VM_ACCELERATION=kvm if KVM works")
	}
	if err := os.MkdirAll(d.at.images, 0o711); err != nil {
		return diskfile.Failed(err)
	}
	name := "persys-kvm-trial-" + tag(d.opt.ClusterID+"\x00"+d.opt.NodeID+"\x00"+d.opt.Images)
	file := filepath.Join(d.at.images, name+".img")
	if err := os.WriteFile(file, trial.Disk(), 0o644); err != nil {
		return diskfile.Failed(err)
	}
	defer os.Remove(file)
	xml, err := trial.Domain(name, file, trial.Machine{Kind: m.kind, Type: m.machine, Emulator: m.emulator, CPU: m.cpu})
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
