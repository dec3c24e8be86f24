package usage

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/shirou/gopsutil/v4/net"
)

// Network returns how many bytes the machine's network cards have received and sent since the machine
// started. Bridges and the interfaces of workloads are left out, because they carry the same bytes again. In
// a container, which has no network card, all interfaces except loopback are counted.
func Network(ctx context.Context) (received, sent int64, err error) {
	all, err := net.IOCountersWithContext(ctx, true)
	if err != nil {
		return 0, 0, err
	}
	received, sent = total(all, func(name string) bool {
		_, err := os.Stat(filepath.Join("/sys/class/net", name, "device"))
		return err == nil
	})
	return received, sent, nil
}

func total(all []net.IOCountersStat, card func(name string) bool) (received, sent int64) {
	counted := slices.DeleteFunc(slices.Clone(all), func(c net.IOCountersStat) bool { return !card(c.Name) })
	if len(counted) == 0 {
		counted = slices.DeleteFunc(slices.Clone(all), func(c net.IOCountersStat) bool { return c.Name == "lo" })
	}
	for _, c := range counted {
		received += int64(c.BytesRecv)
		sent += int64(c.BytesSent)
	}
	return received, sent
}
