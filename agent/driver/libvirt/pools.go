package libvirt

import (
	"cmp"
	"context"
	"slices"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Pooler = (*Driver)(nil)

// Pools is driver.Pooler's: libvirt's storage pools that are up (virsh pool-list), with what they hold.
func (d *Driver) Pools(ctx context.Context) ([]driver.Pool, error) {
	pools, err := d.hv.pools(ctx)
	slices.SortFunc(pools, func(a, b driver.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return pools, err
}
