package host

import (
	"net"
	"testing"
)

// TestFirstGlobalIsReachedByOtherMachines: the address of a bridge inside the machine is never the one that an agent advertises.
func TestFirstGlobalIsReachedByOtherMachines(t *testing.T) {
	at := func(name string, addrs ...string) link {
		l := link{name: name}
		for _, a := range addrs {
			l.addrs = append(l.addrs, net.ParseIP(a))
		}
		return l
	}
	for _, c := range []struct {
		name  string
		links []link
		want  string
	}{
		{"bridges come first", []link{at("lo", "127.0.0.1"), at("br-0123456789ab", "172.18.0.1"), at("docker0", "172.17.0.1"), at("eth0", "fe80::1", "10.0.0.7"), at("ps7", "10.216.0.1")}, "10.0.0.7"},
		{"a bridge with the machine's address", []link{at("docker0", "172.17.0.1"), at("br0", "10.0.0.7")}, "10.0.0.7"},
		{"only inside", []link{at("lo", "127.0.0.1"), at("ps7", "10.216.0.1"), at("pvx0", "10.216.0.2"), at("virbr0", "192.168.122.1")}, "<nil>"},
	} {
		if got := firstGlobal(c.links).String(); got != c.want {
			t.Errorf("%s: the address is %s, want %s", c.name, got, c.want)
		}
	}
}
