package libvirt

import "github.com/persys/compute/agent/driver/libvirt/hostcaps"

// facts are what a hypervisor says of itself.
type facts struct {
	engine  string // the same for everybody on this hypervisor
	version string
	arch    string
	kvm     *hostcaps.Machine // nil: not offered
	tcg     *hostcaps.Machine
}

// interfacesOf are a domain's interfaces, in its order.
func interfacesOf(domainXML string) []address {
	var out []address
	for _, i := range hostcaps.Interfaces(domainXML) {
		out = append(out, address{name: i.Name, mac: i.MAC})
	}
	return out
}
