// Package hostcaps parses libvirt's XML descriptions: the ways to run guests on a host, its networks, its
// storage pools, and the interfaces of a guest.
package hostcaps

import (
	"encoding/xml"
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// Machine describes one way to run guests, KVM or emulation, as libvirt's domain capabilities report it.
type Machine struct {
	Kind        string // type of the domain: kvm or qemu
	Type        string
	Emulator    string
	CPU         string // CPU mode; if empty, QEMU chooses it
	Firmware    string // "efi" for machine types without a BIOS
	CDROMBus    string
	VNC         bool
	RNG         bool
	PanicDevice string // model of the panic device; empty if the machine type has none
}

// GuestTypes parses libvirt's capabilities (the XML of virsh capabilities). It returns the host's architecture
// and uuid, and the machine type of a 64-bit guest for each way to run one (kvm or qemu).
func GuestTypes(capsXML string) (arch, uuid string, machine map[string]string, err error) {
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(capsXML); err != nil {
		return "", "", nil, fmt.Errorf("capabilities: %w", err)
	}
	if caps.Host.CPU != nil {
		arch = caps.Host.CPU.Arch
	}
	machine = map[string]string{}
	for _, g := range caps.Guests {
		if g.OSType != "hvm" || g.Arch.Name != arch {
			continue
		}
		var names []string
		for _, m := range g.Arch.Machines {
			names = append(names, m.Name)
		}
		pick := ""
		for _, want := range []string{"q35", "virt", "pc"} {
			if slices.Contains(names, want) {
				pick = want
				break
			}
		}
		for _, d := range g.Arch.Domains {
			machine[d.Type] = pick
		}
	}
	return arch, caps.Host.UUID, machine, nil
}

// ReadMachine parses libvirt's domain capabilities (the XML of virsh domcapabilities) for one way to run
// guests.
func ReadMachine(domcapsXML string) (*Machine, error) {
	var caps libvirtxml.DomainCaps
	if err := xml.Unmarshal([]byte(domcapsXML), &caps); err != nil {
		return nil, fmt.Errorf("domain capabilities: %w", err)
	}
	m := &Machine{Kind: caps.Domain, Type: caps.Machine, Emulator: caps.Path}
	if caps.CPU != nil {
		m.CPU = cpuMode(caps.CPU.Modes, caps.Domain)
	}
	if caps.OS != nil && (caps.Arch == "aarch64" || caps.Arch == "riscv64") && enum(caps.OS.Enums, "firmware", "efi") {
		m.Firmware = "efi"
	}
	if dev := caps.Devices; dev != nil {
		for _, bus := range []string{"sata", "scsi", "ide"} {
			if dev.Disk != nil && enum(dev.Disk.Enums, "bus", bus) {
				m.CDROMBus = bus
				break
			}
		}
		m.VNC = dev.Graphics != nil && dev.Graphics.Supported == "yes" && enum(dev.Graphics.Enums, "type", "vnc")
		m.RNG = dev.RNG != nil && dev.RNG.Supported == "yes" && enum(dev.RNG.Enums, "backendModel", "random")
	}
	if caps.Arch == "x86_64" || caps.Arch == "i686" {
		m.PanicDevice = "isa"
	}
	return m, nil
}

// cpuMode returns the CPU mode for guests: the host's own processor under KVM, or the most capable model of
// QEMU in emulation.
func cpuMode(modes []libvirtxml.DomainCapsCPUMode, kind string) string {
	order := []string{"host-passthrough", "host-model"}
	if kind != "kvm" {
		order = []string{"maximum"}
	}
	for _, want := range order {
		for _, m := range modes {
			if m.Name == want && m.Supported == "yes" {
				return want
			}
		}
	}
	return ""
}

func enum(all []libvirtxml.DomainCapsEnum, name, value string) bool {
	for _, e := range all {
		if e.Name == name {
			return slices.Contains(e.Values, value)
		}
	}
	return false
}
