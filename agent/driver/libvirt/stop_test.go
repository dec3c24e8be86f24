package libvirt

import (
	"context"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
)

// polite is a fake hypervisor that counts how often its guests were asked to shut down and how often they were
// powered off. A guest that is deaf ignores the request.
type polite struct {
	*fussy
	deaf          bool
	asked, killed int
}

func (p *polite) shutdown(ctx context.Context, uuid string) error {
	p.asked++
	if p.deaf {
		return nil
	}
	return p.shelf.shutdown(ctx, uuid)
}

func (p *polite) destroy(ctx context.Context, uuid string) error {
	p.killed++
	return p.shelf.shutdown(ctx, uuid)
}

// However a machine is stopped (stop, replacement, removal), the driver first asks the guest to shut down. Only
// a guest that ignores the request is powered off, after the grace period.
func TestGuestsAreAskedToShutDown(t *testing.T) {
	for name, stop := range map[string]func(w *drawer) error{
		"halt": func(w *drawer) error { return w.Halt(w.Context(), "web", driver.OwnGrace) },
		"ensure": func(w *drawer) error {
			spec := specFor(w.machine("a"))
			spec.Content, spec.Running = "c1:1", false
			return w.Ensure(w.Context(), spec)
		},
		"update": func(w *drawer) error { return w.try("c1:2", "b") },
		"remove": func(w *drawer) error { return w.Remove(w.Context(), "web") },
		"leave":  func(w *drawer) error { return w.Leave(w.Context(), "web", true) },
	} {
		for _, deaf := range []bool{false, true} {
			w := newDrawer(t)
			hv := &polite{fussy: w.hv, deaf: deaf}
			w.Driver = driverOn(t, hv)
			w.opt.StopGrace = 200 * time.Millisecond
			w.works("c1:1", "a")
			if err := stop(w); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := map[bool]int{true: 1}[deaf]; hv.asked == 0 || hv.killed != want {
				t.Errorf("%s of a guest (ignores ACPI: %t) made %d ACPI shutdown requests and powered the guest off %d times; want a request, and a switch-off only if the guest ignores it", name, deaf, hv.asked, hv.killed)
			}
		}
	}
}
