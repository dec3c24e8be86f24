package usage

import (
	"strings"
	"testing"

	"github.com/shirou/gopsutil/v4/net"
)

func TestNetworkCountsCardsOnce(t *testing.T) {
	count := func(name string, received, sent uint64) net.IOCountersStat {
		return net.IOCountersStat{Name: name, BytesRecv: received, BytesSent: sent}
	}
	for _, c := range []struct {
		name           string
		all            []net.IOCountersStat
		received, sent int64
	}{
		{"only the network cards are counted, not a bridge and the interface of a workload", []net.IOCountersStat{count("lo", 1, 2), count("veth1", 5, 6), count("card0", 10, 20), count("docker0", 5, 6), count("card1", 100, 200)}, 110, 220},
		{"a container", []net.IOCountersStat{count("lo", 1, 2), count("eth0", 10, 20)}, 10, 20},
		{"no network", []net.IOCountersStat{count("lo", 1, 2)}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			received, sent := total(c.all, func(name string) bool { return strings.HasPrefix(name, "card") })
			if received != c.received || sent != c.sent {
				t.Errorf("Network returned %d bytes received and %d sent, want %d and %d", received, sent, c.received, c.sent)
			}
		})
	}
	if _, _, err := Network(t.Context()); err != nil {
		t.Error(err)
	}
}
