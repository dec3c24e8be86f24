package libvirt

import "github.com/persys/compute/agent/driver/libvirt/hostcaps"

// facts describe a hypervisor.
type facts struct {
	engine  string // same for all agents on this hypervisor
	version string
	arch    string
	kvm     *hostcaps.Machine // nil: not offered
	tcg     *hostcaps.Machine
}

// interfacesOf returns a domain's interfaces in its order.
func interfacesOf(domainXML string) []address {
	var out []address
	for _, i := range hostcaps.Interfaces(domainXML) {
		out = append(out, address{name: i.Name, mac: i.MAC})
	}
	return out
}
