package config

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without a default route, onlyWay must never choose the address of an interface that is down or leads only to
// containers. If no address can be chosen, the error names the interfaces and their addresses.
func TestOnlyWayAvoidsUnusableInterfaces(t *testing.T) {
	at := func(name, state string, ips ...string) link {
		l := link{name: name, up: state != "down", inside: state == "inside"}
		for _, ip := range ips {
			l.ips = append(l.ips, net.ParseIP(ip))
		}
		return l
	}
	lo := at("lo", "up", "127.0.0.1", "::1")
	for _, tt := range []struct {
		name  string
		links []link
		want  string // the address, or "!" and parts of the error
	}{
		{"one interface", []link{lo, at("eth0", "up", "fe80::1", "10.0.0.7")}, "10.0.0.7"},
		{"an interface with an IPv4 and an IPv6 address", []link{at("eth0", "up", "2001:db8::7", "10.0.0.7")}, "10.0.0.7"},
		{"only IPv6", []link{at("eth0", "up", "fe80::1", "2001:db8::7")}, "2001:db8::7"},
		{"a bridge of an engine comes first", []link{at("docker0", "inside", "172.17.0.1"), at("eth0", "up", "10.0.0.7")}, "10.0.0.7"},
		{"an interface that is down comes first", []link{at("eth0", "down", "10.0.0.7"), at("eth1", "up", "10.1.0.7")}, "10.1.0.7"},
		{"two interfaces lead to other machines", []link{at("eth0", "up", "10.0.0.7"), at("eth1", "up", "10.1.0.7")}, "!several|eth0 (10.0.0.7)|eth1 (10.1.0.7)"},
		{"only a bridge and an interface that is down", []link{lo, at("docker0", "inside", "172.17.0.1"), at("eth0", "down", "10.0.0.7")}, "!docker0 (172.17.0.1) leads only to containers|eth0 (10.0.0.7) is down"},
		{"only the loopback interface", []link{lo}, "!no interface has an address"},
		{"only an interface with link-local addresses", []link{at("eth0", "up", "fe80::1", "169.254.0.1")}, "!no interface has an address"},
	} {
		ip, err := onlyWay(tt.links)
		if want, wrong := strings.CutPrefix(tt.want, "!"); wrong {
			for _, part := range strings.Split(want, "|") {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%s: onlyWay returned the address %v and error %v; want an error that contains %q", tt.name, ip, err, part)
				}
			}
		} else if err != nil || ip.String() != want {
			t.Errorf("%s: onlyWay returned the address %v and error %v; want %s", tt.name, ip, err, want)
		}
	}
}

func TestBridgesWithoutADevice(t *testing.T) {
	sys := t.TempDir()
	for _, dir := range []string{
		"eth0/device", "vmbr0/bridge", "vmbr0/brif/eth0", "shop/bridge", "shop/brif/veth1", "veth1", "bond0/lower_eth0", "br1/bridge", "br1/brif/bond0", "empty/bridge", "empty/brif",
	} {
		if err := os.MkdirAll(filepath.Join(sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"eth0": false, "vmbr0": false, "br1": false, "shop": true, "empty": true, "gone": false} {
		if got := switchOfNothing(sys, name); got != want {
			t.Errorf("whether interface %s is a bridge without a hardware device: %t, want %t", name, got, want)
		}
	}
}

// Outward returns a loopback address only if a dialled address is written as loopback or localhost, because a
// machine's own name may resolve to loopback.
func TestOutwardAvoidsLoopback(t *testing.T) {
	for _, tt := range []struct {
		dialled []string
		want    string
	}{
		{[]string{"127.0.0.1:8088"}, "127.0.0.1"},
		{[]string{"127.0.0.1:8088", "127.0.0.1:8089"}, "127.0.0.1"},
		{[]string{"[::1]:8088"}, "::1"},
	} {
		if got, err := Outward("SETTING", "IP", tt.dialled); err != nil || got != tt.want {
			t.Errorf("Outward with the addresses %v, to which the program connects, returned %q, error %v; want %s", tt.dialled, got, err, tt.want)
		}
	}
	if namesLoopback("s1:8088") || !namesLoopback("127.0.1.1:8088") {
		t.Error("namesLoopback must be true for loopback addresses and localhost only")
	}
}
