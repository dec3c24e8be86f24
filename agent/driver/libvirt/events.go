package libvirt

import (
	"context"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Events implements driver.Driver. libvirt reports changes of domains but not when a guest gets its
// address, so domains in awaitingAddress are polled.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	hints := driver.NewHints()
	suffix := "--" + d.opt.NodeID
	err := d.hv.watch(ctx, func(name string) {
		// The domain may belong to another agent, but a wrong hint is harmless.
		hints.Add(driver.ID(strings.TrimSuffix(name, suffix)))
	})
	if err != nil {
		return nil, err
	}
	out := make(chan driver.ID)
	go hints.Send(ctx, out)
	go func() {
		const look = 2 * time.Second
		tick := time.NewTicker(look)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			d.mu.Lock()
			now := time.Now()
			for id, until := range d.awaitingAddress {
				if now.Before(until) {
					hints.Add(id)
				}
			}
			d.mu.Unlock()
		}
	}()
	return out, nil
}
