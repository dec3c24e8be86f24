package nocloud

import (
	"fmt"
	"net/netip"
	"strings"

	"gopkg.in/yaml.v3"
)

// Interface is one of a guest's.
type Interface struct {
	Network string
	MAC     string
	Static  string // address with or without prefix length; empty = DHCP
}

// Subnet is what a network says of itself: which addresses, and who routes and resolves for them.
type Subnet struct {
	Prefix netip.Prefix
	Router netip.Addr
	Routes bool // the router leads further than the network
}

// NetworkConfig is the network-config of a workload that has none of its own: version 2, DHCP or the
// static address of each interface. An address without prefix length takes that of its network, else
// 24 bits (64 for IPv6).
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
					if s.Routes && !routed { // one way out is enough
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

// Prefix reads an address; without a length the prefix has the length of the address.
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
