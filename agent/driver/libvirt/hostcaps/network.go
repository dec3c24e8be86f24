package hostcaps

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/persys/compute/agent/driver/libvirt/nocloud"
	"libvirt.org/go/libvirtxml"
)

// Subnets returns the subnets of a libvirt network, from the network's XML.
func Subnets(networkXML string) ([]nocloud.Subnet, error) {
	var n libvirtxml.Network
	if err := n.Unmarshal(networkXML); err != nil {
		return nil, fmt.Errorf("parsing the XML of a libvirt network: %w", err)
	}
	routes := n.Forward != nil && (n.Forward.Mode == "" || n.Forward.Mode == "nat" || n.Forward.Mode == "route" || n.Forward.Mode == "open")
	var out []nocloud.Subnet
	for _, ip := range n.IPs {
		length := ip.Address + "/" + strconv.Itoa(int(ip.Prefix))
		if ip.Prefix == 0 {
			bits := maskBits(ip.Netmask)
			if bits == 0 {
				continue
			}
			length = ip.Address + "/" + strconv.Itoa(bits)
		}
		p, err := nocloud.Prefix(length)
		if err != nil {
			return nil, fmt.Errorf("an address in the XML of a libvirt network: %w", err)
		}
		out = append(out, nocloud.Subnet{Prefix: p.Masked(), Router: p.Addr(), Routes: routes})
	}
	return out, nil
}

func maskBits(mask string) int {
	p, err := nocloud.Prefix(mask)
	if err != nil || !p.Addr().Is4() {
		return 0
	}
	bits := 0
	for _, b := range p.Addr().As4() {
		for ; b&0x80 != 0; b <<= 1 {
			bits++
		}
	}
	return bits
}

// Interface is a network interface of a guest. It has a name on the host while the guest runs.
type Interface struct{ Name, MAC string }

// Interfaces returns the interfaces in a domain's XML, in document order.
func Interfaces(domainXML string) []Interface {
	type attributes struct {
		Address string `xml:"address,attr"`
		Dev     string `xml:"dev,attr"`
	}
	var d struct {
		Interfaces []struct {
			MAC    attributes `xml:"mac"`
			Target attributes `xml:"target"`
		} `xml:"devices>interface"`
	}
	if xml.Unmarshal([]byte(domainXML), &d) != nil {
		return nil
	}
	var out []Interface
	for _, i := range d.Interfaces {
		if i.MAC.Address != "" {
			out = append(out, Interface{Name: i.Target.Dev, MAC: strings.ToLower(i.MAC.Address)})
		}
	}
	return out
}
