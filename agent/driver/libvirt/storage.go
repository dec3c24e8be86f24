package libvirt

import (
	"context"
	"errors"

	lv "github.com/digitalocean/go-libvirt"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
)

// poolUp looks up a storage pool and starts it if it is inactive, for example after a reboot without
// autostart.
func poolUp(c *lv.Libvirt, name string) (lv.StoragePool, error) {
	p, err := c.StoragePoolLookupByName(name)
	if err != nil {
		return p, err
	}
	up, err := c.StoragePoolIsActive(p)
	if err == nil && up == 0 {
		err = c.StoragePoolCreate(p, 0)
	}
	return p, err
}

func (v *connection) volume(ctx context.Context, pool, name, xml string) error {
	err := act(ctx, v, "volume", func(c *lv.Libvirt) error {
		p, err := poolUp(c, pool)
		if err != nil {
			return err
		}
		_ = c.StoragePoolRefresh(p, 0) // refresh the pool, so that libvirt finds volumes that were made without it
		_, err = c.StorageVolLookupByName(p, name)
		if gone(err) {
			_, err = c.StorageVolCreateXML(p, xml, 0)
		}
		return err
	})
	if errors.Is(err, errAbsent) {
		return driver.Errorf(driver.StorageProvisionFailed, "volume", "storage pool %q is not on this node (virsh pool-list --all): %w", pool, err)
	}
	return err
}

// withVolume calls the function do with a volume of a storage pool. It returns an error that wraps errAbsent if
// the pool has no such volume.
func (v *connection) withVolume(ctx context.Context, pool, name string, do func(*lv.Libvirt, lv.StorageVol) error) error {
	return act(ctx, v, "volume", func(c *lv.Libvirt) error {
		p, err := poolUp(c, pool)
		if err != nil {
			return err
		}
		vol, err := c.StorageVolLookupByName(p, name)
		if gone(err) {
			_ = c.StoragePoolRefresh(p, 0) // refresh once more: the pool's storage may have been mounted after the last refresh
			vol, err = c.StorageVolLookupByName(p, name)
		}
		if err != nil {
			return err
		}
		return do(c, vol)
	})
}

func (v *connection) growVolume(ctx context.Context, pool, name string, capacity int64) error {
	return v.withVolume(ctx, pool, name, func(c *lv.Libvirt, vol lv.StorageVol) error {
		_, has, _, err := c.StorageVolGetInfo(vol)
		if err == nil && int64(has) < capacity {
			err = c.StorageVolResize(vol, uint64(capacity), 0)
		}
		return err
	})
}

func (v *connection) removeVolume(ctx context.Context, pool, name string) error {
	err := v.withVolume(ctx, pool, name, func(c *lv.Libvirt, vol lv.StorageVol) error { return c.StorageVolDelete(vol, 0) })
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

func (v *connection) pools(ctx context.Context) ([]driver.Pool, error) {
	return ask(ctx, v, "pools", reads, func(c *lv.Libvirt) ([]driver.Pool, error) {
		all, _, err := c.ConnectListAllStoragePools(1, lv.ConnectListStoragePoolsActive)
		if err != nil {
			return nil, err
		}
		var out []driver.Pool
		for _, p := range all {
			_, capacity, allocation, _, err := c.StoragePoolGetInfo(p)
			if err != nil {
				continue // the pool was deleted after the listing
			}
			text, err := c.StoragePoolGetXMLDesc(p, 0)
			if err != nil {
				continue
			}
			out = append(out, driver.Pool{Name: p.Name, Type: hostcaps.PoolType(text), Total: int64(capacity), Used: int64(allocation)})
		}
		return out, nil
	})
}
