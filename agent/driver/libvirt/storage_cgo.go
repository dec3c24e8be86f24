//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	lv "libvirt.org/go/libvirt"
)

// poolUp looks up a storage pool and starts it if it is inactive, for example after a reboot without
// autostart.
func poolUp(c *lv.Connect, name string) (*lv.StoragePool, error) {
	p, err := c.LookupStoragePoolByName(name)
	if err != nil {
		return nil, err
	}
	up, err := p.IsActive()
	if err == nil && !up {
		err = p.Create(0)
	}
	if err != nil {
		return nil, errors.Join(err, p.Free())
	}
	return p, nil
}

func (v *connection) volume(ctx context.Context, pool, name, xml string) error {
	err := act(ctx, v, "volume", func(c *lv.Connect) error {
		p, err := poolUp(c, pool)
		if err != nil {
			return err
		}
		defer p.Free()
		_ = p.Refresh(0) // refresh the pool, so that libvirt finds volumes that were made without it
		vol, err := p.LookupStorageVolByName(name)
		if gone(err) {
			vol, err = p.StorageVolCreateXML(xml, 0)
		}
		if err != nil {
			return err
		}
		return vol.Free()
	})
	if errors.Is(err, errAbsent) {
		return driver.Errorf(driver.StorageProvisionFailed, "volume", "storage pool %q is not on this node (virsh pool-list --all): %w", pool, err)
	}
	return err
}

// withVolume calls the function do with a volume of a storage pool. It returns an error that wraps errAbsent if
// the pool has no such volume.
func (v *connection) withVolume(ctx context.Context, pool, name string, do func(*lv.StorageVol) error) error {
	return act(ctx, v, "volume", func(c *lv.Connect) error {
		p, err := poolUp(c, pool)
		if err != nil {
			return err
		}
		defer p.Free()
		vol, err := p.LookupStorageVolByName(name)
		if gone(err) {
			_ = p.Refresh(0) // refresh once more: the pool's storage may have been mounted after the last refresh
			vol, err = p.LookupStorageVolByName(name)
		}
		if err != nil {
			return err
		}
		defer vol.Free()
		return do(vol)
	})
}

func (v *connection) growVolume(ctx context.Context, pool, name string, capacity int64) error {
	return v.withVolume(ctx, pool, name, func(vol *lv.StorageVol) error {
		info, err := vol.GetInfo()
		if err == nil && int64(info.Capacity) < capacity {
			err = vol.Resize(uint64(capacity), 0)
		}
		return err
	})
}

func (v *connection) removeVolume(ctx context.Context, pool, name string) error {
	err := v.withVolume(ctx, pool, name, func(vol *lv.StorageVol) error { return vol.Delete(0) })
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

func (v *connection) pools(ctx context.Context) ([]driver.Pool, error) {
	return ask(ctx, v, "pools", reads, func(c *lv.Connect) ([]driver.Pool, error) {
		all, err := c.ListAllStoragePools(lv.CONNECT_LIST_STORAGE_POOLS_ACTIVE)
		if err != nil {
			return nil, err
		}
		var out []driver.Pool
		for i := range all {
			defer all[i].Free()
			name, err := all[i].GetName()
			if err != nil {
				continue // the volume was deleted after the listing
			}
			info, err := all[i].GetInfo()
			if err != nil {
				continue
			}
			text, err := all[i].GetXMLDesc(0)
			if err != nil {
				continue
			}
			out = append(out, driver.Pool{Name: name, Type: hostcaps.PoolType(text), Total: int64(info.Capacity), Used: int64(info.Allocation)})
		}
		return out, nil
	})
}
