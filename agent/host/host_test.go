package host_test

import (
	"context"
	"testing"

	"github.com/persys/compute/agent/host"
)

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
