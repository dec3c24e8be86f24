package libvirt

import (
	"cmp"
	"context"
	"slices"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Pooler = (*Driver)(nil)

// Pools implements driver.Pooler. It returns the active storage pools of libvirt (virsh pool-list) with their
// sizes.
func (d *Driver) Pools(ctx context.Context) ([]driver.Pool, error) {
	pools, err := d.hv.pools(ctx)
	slices.SortFunc(pools, func(a, b driver.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return pools, err
}
