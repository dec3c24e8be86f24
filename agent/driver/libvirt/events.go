package libvirt

import (
	"context"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Events is driver.Driver's. libvirt tells of domains; nobody tells when a guest got its address, so
// those of young guests are looked for.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	hints := driver.NewHints()
	suffix := "--" + d.opt.NodeID
	err := d.hv.watch(ctx, func(name string) {
		// A sibling's domain may be meant; it is a hint all the same.
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
			for id, until := range d.young {
				if now.Before(until) {
					hints.Add(id)
				}
			}
			d.mu.Unlock()
		}
	}()
	return out, nil
}
