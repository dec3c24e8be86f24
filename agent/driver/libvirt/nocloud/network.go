package nocloud

import (
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Interface is a network interface of a guest.
type Interface struct {
	Network string
	MAC     string
	Static  string // IP address with or without a prefix length; empty for DHCP
}

// Subnet describes a network: its addresses, router and name servers.
type Subnet struct {
	Prefix netip.Prefix
	Router netip.Addr
	Routes bool // Routes means that the network's router forwards to other networks
}

// NetworkConfig returns the network-config of cloud-init for a workload whose specification has none: version
// 2, with DHCP or the static address for each interface. A static address without prefix length gets the
// prefix length of its network, or else 24 bits (64 for IPv6).
func NetworkConfig(nics []Interface, subnets map[string][]Subnet) (string, error) {
	type match struct {
		MAC string `yaml:"macaddress"`
	}
	type servers struct {
		Addresses []string `yaml:"addresses"`
	}
	type route struct {
		To  string `yaml:"to"`
		Via string `yaml:"via"`
	}
	type ethernet struct {
		Match     match    `yaml:"match"`
		DHCP4     bool     `yaml:"dhcp4"`
		Addresses []string `yaml:"addresses,omitempty"`
		Routes    []route  `yaml:"routes,omitempty"`
		DNS       *servers `yaml:"nameservers,omitempty"`
	}
	doc := struct {
		Version   int                 `yaml:"version"`
		Ethernets map[string]ethernet `yaml:"ethernets"`
	}{2, map[string]ethernet{}}
	routed := false
	for i, n := range nics {
		e := ethernet{Match: match{n.MAC}, DHCP4: n.Static == ""}
		if n.Static != "" {
			p, err := Prefix(n.Static)
			if err != nil {
				return "", err
			}
			bits := p.Bits()
			for _, s := range subnets[n.Network] {
				if !s.Prefix.Contains(p.Addr()) {
					continue
				}
				if !strings.Contains(n.Static, "/") {
					bits = s.Prefix.Bits()
				}
				if s.Router.IsValid() {
					e.DNS = &servers{[]string{s.Router.String()}}
					if s.Routes && !routed { // only the first such network gets a default route
						routed = true
						to := "0.0.0.0/0"
						if p.Addr().Is6() {
							to = "::/0"
						}
						e.Routes = []route{{to, s.Router.String()}}
					}
				}
			}
			if bits == p.Addr().BitLen() && !strings.Contains(n.Static, "/") {
				bits = 24
				if p.Addr().Is6() {
					bits = 64
				}
			}
			e.Addresses = []string{netip.PrefixFrom(p.Addr(), bits).String()}
		}
		doc.Ethernets[fmt.Sprintf("nic%d", i)] = e
	}
	out, err := yaml.Marshal(doc)
	return string(out), err
}

// Prefix parses an address with or without a prefix length. Without one, the prefix length is that of a
// single address (32, or 128 for IPv6).
func Prefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
