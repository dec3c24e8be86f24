package libvirt

import (
	"path/filepath"
	"strings"

	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	"libvirt.org/go/libvirtxml"
)

// found holds the input of domainXML that is not in the plan: facts about this machine, and the record for the
// domain's metadata.
type found struct {
	machine *hostcaps.Machine
	// bridges holds the plan's networks that are plain bridges, not networks of libvirt.
	bridges map[string]bool
	vnc     string // the address on which the VNC screen listens; empty means no screen
	// password is the password of the VNC screen.
	password string
	record   record
}

// domainXML returns the domain XML of a plan.
func domainXML(p *plan, at found) (string, error) {
	m := at.machine
	dom := &libvirtxml.Domain{
		Type: m.Kind, Name: p.domain, UUID: p.uuid, Title: p.title,
		Metadata: &libvirtxml.DomainMetadata{XML: at.record.element()},
		Memory:   &libvirtxml.DomainMemory{Value: p.memory, Unit: "MiB"},
		VCPU:     &libvirtxml.DomainVCPU{Value: p.vcpus},
		CPUTune:  cpuTune(at.record.CPU),
		OS:       &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Type: "hvm", Machine: m.Type}, Firmware: m.Firmware},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		Clock:    &libvirtxml.DomainClock{Offset: "utc"},
		// libvirt destroys a crashed guest; the agent decides whether to start it again.
		OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "destroy",
	}
	if m.PanicDevice == "" { // a machine type without panic device is not x86: it has neither APIC nor sleep states
		dom.Features.APIC = nil
	} else { // a guest must not sleep, because nothing would wake it
		no := &libvirtxml.DomainPMPolicy{Enabled: "no"}
		dom.PM = &libvirtxml.DomainPM{SuspendToMem: no, SuspendToDisk: no}
	}
	if m.CPU != "" {
		dom.CPU = &libvirtxml.DomainCPU{Mode: m.CPU}
		if m.CPU == "host-passthrough" {
			dom.CPU.Check = "none"
		}
	}
	dev := &libvirtxml.DomainDeviceList{Emulator: m.Emulator}
	dom.Devices = dev
	for _, d := range p.disks {
		dev.Disks = append(dev.Disks, diskXML(d, m))
	}
	if s := at.record.Seed; s != nil {
		dev.Disks = append(dev.Disks, seedXML(s.Path, p.disks))
	}
	for _, n := range p.nics {
		nic := libvirtxml.DomainInterface{
			MAC:   &libvirtxml.DomainInterfaceMAC{Address: n.MAC},
			Model: &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		}
		if at.bridges[n.Network] {
			nic.Source = &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: n.Network}}
		} else {
			nic.Source = &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: n.Network}}
		}
		dev.Interfaces = append(dev.Interfaces, nic)
	}
	zero := uint(0)
	pty := func() *libvirtxml.DomainChardevSource {
		return &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}
	}
	dev.Serials = []libvirtxml.DomainSerial{{
		Source: pty(), Target: &libvirtxml.DomainSerialTarget{Port: &zero},
		Log: &libvirtxml.DomainChardevLog{File: at.record.Console, Append: "on"},
	}}
	dev.Consoles = []libvirtxml.DomainConsole{{Source: pty(), Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: &zero}}}
	dev.Channels = []libvirtxml.DomainChannel{{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: "org.qemu.guest_agent.0"}},
	}}
	if at.vnc != "" && m.VNC {
		dev.Graphics = []libvirtxml.DomainGraphic{{VNC: &libvirtxml.DomainGraphicVNC{
			Port: -1, AutoPort: "yes", Listen: at.vnc, Passwd: at.password,
			Listeners: []libvirtxml.DomainGraphicListener{{Address: &libvirtxml.DomainGraphicListenerAddress{Address: at.vnc}}},
		}}}
		dev.Videos = []libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "vga"}}}
	}
	if m.RNG { // a first boot needs entropy to generate keys
		dev.RNGs = []libvirtxml.DomainRNG{{Model: "virtio", Backend: &libvirtxml.DomainRNGBackend{
			Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"},
		}}}
	}
	if m.PanicDevice != "" {
		dev.Panics = []libvirtxml.DomainPanic{{Model: m.PanicDevice}}
	}
	return dom.Marshal()
}

func diskXML(d diskPlan, m *hostcaps.Machine) libvirtxml.DomainDisk {
	out := libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: d.format},
		Target: &libvirtxml.DomainDiskTarget{Dev: d.device, Bus: busOf(d.device)},
		Source: &libvirtxml.DomainDiskSource{},
	}
	if d.cdrom {
		out.Device, out.Target.Bus = "cdrom", m.CDROMBus
	} else {
		out.Driver.Discard = "unmap" // blocks freed in the guest are freed on the host
	}
	if d.readOnly {
		out.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	if d.order > 0 {
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: d.order}
	}
	switch {
	case d.pool != "":
		out.Source.Volume = &libvirtxml.DomainDiskSourceVolume{Pool: d.pool, Volume: d.volume}
	case d.network != nil:
		n := d.network
		out.Source.Network = &libvirtxml.DomainDiskSourceNetwork{Protocol: n.Protocol, Name: n.Name}
		if n.Host != "" {
			out.Source.Network.Hosts = []libvirtxml.DomainDiskSourceHost{{Name: n.Host, Port: n.Port}}
		}
	case strings.HasPrefix(d.path, "/dev/"):
		out.Source.Block = &libvirtxml.DomainDiskSourceBlock{Dev: d.path}
	default:
		out.Source.File = &libvirtxml.DomainDiskSourceFile{File: d.path}
	}
	return out
}

// busOf returns the bus to which a device name such as vda or sda belongs.
func busOf(device string) string {
	switch {
	case strings.HasPrefix(device, "sd"):
		return "sata"
	case strings.HasPrefix(device, "hd"):
		return "ide"
	}
	return "virtio"
}

// seedXML attaches a seed, the image with the input of cloud-init, as a read-only virtio disk. Debian's cloud
// kernel, for example, has no driver for the SATA controller of a CD-ROM, but any guest that reads its root
// disk reads virtio. Cloud-init finds the seed by its volume id on any device. The seed is the last disk, so
// that it does not change the device names of the other disks.
func seedXML(path string, others []diskPlan) libvirtxml.DomainDisk {
	taken := map[string]bool{}
	for _, d := range others {
		taken[d.device] = true
	}
	device := ""
	for c := 'z'; c >= 'a' && device == ""; c-- {
		if name := "vd" + string(c); !taken[name] {
			device = name
		}
	}
	if device == "" {
		device = freeDevice(false, taken)
	}
	return libvirtxml.DomainDisk{
		Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}},
		Target: &libvirtxml.DomainDiskTarget{Dev: device, Bus: "virtio"}, ReadOnly: &libvirtxml.DomainDiskReadOnly{},
	}
}

// volumeXML returns the XML of a storage pool volume. The volume is empty, or backed by an image with the
// format imageFormat.
func volumeXML(d diskPlan, capacity int64, imageFormat string) (string, error) {
	v := libvirtxml.StorageVolume{
		Name:     d.volume,
		Capacity: &libvirtxml.StorageVolumeSize{Value: uint64(capacity), Unit: "bytes"},
		Target:   &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: d.format}},
	}
	if d.format == "raw" {
		v.Allocation = &libvirtxml.StorageVolumeSize{Value: 0, Unit: "bytes"}
	}
	if d.image != "" {
		v.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path: d.image, Format: &libvirtxml.StorageVolumeTargetFormat{Type: imageFormat},
		}
	}
	return v.Marshal()
}

// legacyDisks returns the files that a legacy v1 agent made for a domain: each disk beside
// which the agent left a file that marks the disk as made by it, and the cloud-init seed at its fixed path
// (contract/state-etcd.md).
func (d *Driver) legacyDisks(in *instance) []ownDisk {
	var dom libvirtxml.Domain
	if dom.Unmarshal(in.domain.config) != nil || dom.Devices == nil {
		return nil
	}
	var out []ownDisk
	for _, disk := range dom.Devices.Disks {
		if disk.Source == nil || disk.Source.File == nil {
			continue
		}
		path := disk.Source.File.File
		made, _ := diskfile.Exists(path + diskfile.MarkSuffix)
		if made || filepath.Base(path) == in.name+"-cloud-init.iso" {
			out = append(out, ownDisk{Path: path})
		}
	}
	return out
}
