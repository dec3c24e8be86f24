package libvirt

import (
	"cmp"
	"context"
	"encoding/xml"
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

// poolType is what schedulers call the type of a pool that libvirt describes.
func poolType(description string) string {
	var p struct {
		Type string `xml:"type,attr"`
	}
	if xml.Unmarshal([]byte(description), &p) != nil {
		return "local"
	}
	switch p.Type {
	case "netfs":
		return "nfs"
	case "iscsi", "iscsi-direct":
		return "iscsi"
	case "rbd":
		return "ceph-rbd"
	}
	return "local" // dir, fs, logical, disk, zfs, …
}
