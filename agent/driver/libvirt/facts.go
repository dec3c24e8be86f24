package libvirt

import "github.com/persys/compute/agent/driver/libvirt/described"

// facts are what a hypervisor says of itself.
type facts struct {
	engine  string // the same for everybody on this hypervisor
	version string
	arch    string
	kvm     *described.Machine // nil: not offered
	tcg     *described.Machine
}

// interfacesOf are a domain's interfaces, in its order.
func interfacesOf(domainXML string) []address {
	var out []address
	for _, i := range described.Interfaces(domainXML) {
		out = append(out, address{name: i.Name, mac: i.MAC})
	}
	return out
}
