package libvirt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"libvirt.org/go/libvirtxml"
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
			if err := writeFile(file, raw); err != nil {
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
		return storage(err)
	}
	name := "persys-kvm-trial-" + tag(d.opt.ClusterID+"\x00"+d.opt.NodeID+"\x00"+d.opt.Images)
	file := filepath.Join(d.at.images, name+".img")
	boot := make([]byte, 1<<20)
	copy(boot, trialGuest)
	boot[510], boot[511] = 0x55, 0xaa
	if err := os.WriteFile(file, boot, 0o644); err != nil {
		return storage(err)
	}
	defer os.Remove(file)
	dom := &libvirtxml.Domain{
		Type: m.kind, Name: name, Title: "finds out whether KVM works; it is gone in a moment",
		Memory: &libvirtxml.DomainMemory{Value: 32, Unit: "MiB"}, VCPU: &libvirtxml.DomainVCPU{Value: 1},
		OS:         &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Type: "hvm", Machine: m.machine}},
		Features:   &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		OnPoweroff: "destroy", OnReboot: "destroy", OnCrash: "destroy",
		Devices: &libvirtxml.DomainDeviceList{
			Emulator: m.emulator,
			Disks: []libvirtxml.DomainDisk{{
				Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
				Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: file}},
				Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
			}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
		},
	}
	if m.cpu != "" {
		dom.CPU = &libvirtxml.DomainCPU{Mode: m.cpu}
	}
	xml, err := dom.Marshal()
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
			if isAbsent(err) {
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

// trialGuest is a boot sector. It goes from real mode to 64 bits with paging, programs the timer to
// 1 kHz, halts until 100 interrupts have come, and turns the machine off by writing 0x2000 to port
// 0x604 (PM1a control of QEMU's PC machines under SeaBIOS). Its source:
//
//	.code16
//	start:
//	cli
//	ljmp $0, $(0x7c00 + 1f - start)
//	1: xor %ax,%ax
//	mov %ax,%ds ; mov %ax,%es ; mov %ax,%ss
//	mov $0x7c00,%sp
//	cld
//	# page tables 0x1000..0x3fff, IDT 0x4000
//	mov $0x1000,%di ; mov $0x1000,%cx ; rep stosl
//	movw $0x2003,0x1000
//	movw $0x3003,0x2000
//	movw $0x0083,0x3000
//	# PIC: IRQ0 at 0x20
//	mov $0x11,%al ; out %al,$0x20
//	mov $0x20,%al ; out %al,$0x21
//	mov $4,%al ; out %al,$0x21
//	mov $1,%al ; out %al,$0x21
//	mov $0xfe,%al ; out %al,$0x21
//	mov $0xff,%al ; out %al,$0xa1
//	# PIT 1 kHz
//	mov $0x34,%al ; out %al,$0x43
//	mov $0xa9,%al ; out %al,$0x40
//	mov $0x04,%al ; out %al,$0x40
//	# gate 0x20
//	mov $(0x7c00+tick-start),%ax
//	mov %ax,0x4200
//	movw $0x08,0x4202
//	movw $0x8e00,0x4204
//	lidt 0x7c00+idtr-start
//	lgdt 0x7c00+gdtr-start
//	mov %cr4,%eax ; or $0x20,%al ; mov %eax,%cr4
//	mov $0x1000,%eax ; mov %eax,%cr3
//	mov $0xc0000080,%ecx ; rdmsr ; or $1,%ah ; wrmsr
//	mov %cr0,%eax ; or $0x80000001,%eax ; mov %eax,%cr0
//	ljmp $8,$(0x7c00+long-start)
//	.code64
//	long:
//	xor %ebx,%ebx
//	xor %eax,%eax
//	cpuid
//	xor %ebx,%ebx
//	sti
//	2: hlt
//	cmp $100,%ebx
//	jb 2b
//	mov $0x604,%dx ; mov $0x2000,%ax ; out %ax,%dx
//	3: cli
//	hlt
//	jmp 3b
//	tick: inc %ebx
//	mov $0x20,%al ; out %al,$0x20
//	iretq
//	.balign 8
//	gdt: .quad 0
//	.quad 0x00209a0000000000
//	gdtr: .word 15
//	.long 0x7c00+gdt-start
//	idtr: .word 0x2ff
//	.long 0x4000
//	.org 510
//	.word 0xaa55
var trialGuest = []byte{
	0xfa, 0xea, 0x06, 0x7c, 0x00, 0x00, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc, 0x00,
	0x7c, 0xfc, 0xbf, 0x00, 0x10, 0xb9, 0x00, 0x10, 0x66, 0xf3, 0xab, 0xc7, 0x06, 0x00, 0x10, 0x03,
	0x20, 0xc7, 0x06, 0x00, 0x20, 0x03, 0x30, 0xc7, 0x06, 0x00, 0x30, 0x83, 0x00, 0xb0, 0x11, 0xe6,
	0x20, 0xb0, 0x20, 0xe6, 0x21, 0xb0, 0x04, 0xe6, 0x21, 0xb0, 0x01, 0xe6, 0x21, 0xb0, 0xfe, 0xe6,
	0x21, 0xb0, 0xff, 0xe6, 0xa1, 0xb0, 0x34, 0xe6, 0x43, 0xb0, 0xa9, 0xe6, 0x40, 0xb0, 0x04, 0xe6,
	0x40, 0xb8, 0xb9, 0x7c, 0xa3, 0x00, 0x42, 0xc7, 0x06, 0x02, 0x42, 0x08, 0x00, 0xc7, 0x06, 0x04,
	0x42, 0x00, 0x8e, 0x0f, 0x01, 0x1e, 0xde, 0x7c, 0x0f, 0x01, 0x16, 0xd8, 0x7c, 0x0f, 0x20, 0xe0,
	0x0c, 0x20, 0x0f, 0x22, 0xe0, 0x66, 0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8, 0x66, 0xb9,
	0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x80, 0xcc, 0x01, 0x0f, 0x30, 0x0f, 0x20, 0xc0, 0x66, 0x0d,
	0x01, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, 0xea, 0x9c, 0x7c, 0x08, 0x00, 0x31, 0xdb, 0x31, 0xc0,
	0x0f, 0xa2, 0x31, 0xdb, 0xfb, 0xf4, 0x83, 0xfb, 0x64, 0x72, 0xfa, 0x66, 0xba, 0x04, 0x06, 0x66,
	0xb8, 0x00, 0x20, 0x66, 0xef, 0xfa, 0xf4, 0xeb, 0xfc, 0xff, 0xc3, 0xb0, 0x20, 0xe6, 0x20, 0x48,
	0xcf, 0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x9a, 0x20, 0x00, 0x0f, 0x00, 0xc8, 0x7c, 0x00, 0x00, 0xff, 0x02,
	0x00, 0x40,
}
