package libvirt

import (
	"context"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Events implements driver.Driver. libvirt reports changes of domains, but not that a guest has got its
// address. So the driver polls the guests in awaitingAddress, whose addresses are not known yet.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	hints := driver.NewHints()
	suffix := "--" + d.opt.NodeID
	err := d.hv.watch(ctx, func(name string) {
		// The domain may belong to another agent on the same libvirt. An event for it is harmless, because
		// the agent then only lists its own domains.
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
