package libvirt

import "github.com/persys/compute/agent/driver/libvirt/hostcaps"

// facts describe a hypervisor and the ways in which it can run guests.
type facts struct {
	engine  string // id of the hypervisor, the same for all agents that use it
	version string
	arch    string
	kvm     *hostcaps.Machine // machine type with KVM; nil if libvirt does not offer KVM
	tcg     *hostcaps.Machine
}

// interfacesOf returns a domain's interfaces in the order of its XML.
func interfacesOf(domainXML string) []address {
	var out []address
	for _, i := range hostcaps.Interfaces(domainXML) {
		out = append(out, address{name: i.Name, mac: i.MAC})
	}
	return out
}
