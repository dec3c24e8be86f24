package host_test

import (
	"context"
	"net"
	"testing"

	"github.com/persys/compute/agent/host"
)

func TestTheAdvertisedAddressCanBeReached(t *testing.T) {
	for _, c := range []struct{ listener, scheduler, want string }{
		{"192.0.2.7:50051", "", "192.0.2.7:50051"},
		{"127.0.0.1:50051", "192.0.2.1:8085", "127.0.0.1:50051"},
		{"0.0.0.0:50051", "127.0.0.1:8085", "127.0.0.1:50051"},
		{"[::]:50051", "127.0.0.1:8085", "127.0.0.1:50051"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", c.listener)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := host.Advertised(addr, c.scheduler); err != nil || got != c.want {
			t.Errorf("for a listener on %s and scheduler %q the advertised address is %s, error %v; want %s", c.listener, c.scheduler, got, err, c.want)
		}
	}
}

func TestThisMachineIsMeasured(t *testing.T) {
	h, err := host.New("/")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Run(ctx); err != nil {
		t.Error(err)
	}
	if v := h.Totals(); v.CPUMillicores < 1000 || v.MemoryMB < 64 || v.DiskGB < 1 {
		t.Errorf("totals %+v", v)
	}
	if u := h.Usage(); u.MemoryMB <= 0 || u.MemoryPercent <= 0 || u.MemoryPercent > 100 || u.CPUPercent < 0 || u.CPUPercent > 100 {
		t.Errorf("usage %+v", u)
	}
}
