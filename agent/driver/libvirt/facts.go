package libvirt

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// facts are what a hypervisor says of itself.
type facts struct {
	engine  string // the same for everybody on this hypervisor
	version string
	arch    string
	kvm     *machineFacts // nil: not offered
	tcg     *machineFacts
}

// machineFacts are what one way to run guests offers.
type machineFacts struct {
	kind     string // kvm or qemu, the domain's type
	machine  string
	emulator string
	cpu      string // mode; empty leaves it to QEMU
	firmware string // efi where there is no BIOS
	cdromBus string
	vnc      bool
	rng      bool
	panicDev string // model; empty: none
}

// guestTypes of the capabilities: which ways to run a 64-bit guest of the host's architecture there
// are, and on which machine.
func guestTypes(capsXML string) (arch, uuid string, machine map[string]string, err error) {
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

// readMachine reads the domain capabilities of one machine.
func readMachine(domcapsXML string) (*machineFacts, error) {
	var caps libvirtxml.DomainCaps
	if err := xml.Unmarshal([]byte(domcapsXML), &caps); err != nil {
		return nil, fmt.Errorf("domain capabilities: %w", err)
	}
	m := &machineFacts{kind: caps.Domain, machine: caps.Machine, emulator: caps.Path}
	if caps.CPU != nil {
		m.cpu = cpuMode(caps.CPU.Modes, caps.Domain)
	}
	if caps.OS != nil && (caps.Arch == "aarch64" || caps.Arch == "riscv64") && enum(caps.OS.Enums, "firmware", "efi") {
		m.firmware = "efi"
	}
	if dev := caps.Devices; dev != nil {
		for _, bus := range []string{"sata", "scsi", "ide"} {
			if dev.Disk != nil && enum(dev.Disk.Enums, "bus", bus) {
				m.cdromBus = bus
				break
			}
		}
		m.vnc = dev.Graphics != nil && dev.Graphics.Supported == "yes" && enum(dev.Graphics.Enums, "type", "vnc")
		m.rng = dev.RNG != nil && dev.RNG.Supported == "yes" && enum(dev.RNG.Enums, "backendModel", "random")
	}
	if caps.Arch == "x86_64" || caps.Arch == "i686" {
		m.panicDev = "isa"
	}
	return m, nil
}

// cpuMode: under KVM the host's own processor; in emulation the most that QEMU can.
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

// interfacesOf are a domain's interfaces, in its order.
func interfacesOf(domainXML string) []address {
	type attributes struct {
		Address string `xml:"address,attr"`
		Dev     string `xml:"dev,attr"`
	}
	var d struct {
		Interfaces []struct {
			MAC    attributes `xml:"mac"`
			Target attributes `xml:"target"` // while it runs
		} `xml:"devices>interface"`
	}
	if xml.Unmarshal([]byte(domainXML), &d) != nil {
		return nil
	}
	var out []address
	for _, i := range d.Interfaces {
		if i.MAC.Address != "" {
			out = append(out, address{name: i.Target.Dev, mac: strings.ToLower(i.MAC.Address)})
		}
	}
	return out
}
