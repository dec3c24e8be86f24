package libvirt

import (
	"context"
	"errors"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

// Remove implements driver.Driver. It deletes the disks that we made and no others. Files are deleted before
// the domain, because the domain's record lists them.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	return d.remove(ctx, id, func(own []ownDisk, _ *instance, name string) error { return d.delete(ctx, name, own) })
}

// Leave implements driver.Leaver. If volumes is true, it keeps all disks, because they may be the only copy of
// the workload's data. They become garbage after the time GarbageQuery.LeftFor (see left.go). If volumes is
// false, it removes the disks that no other node can reach.
func (d *Driver) Leave(ctx context.Context, id driver.ID, volumes bool) error {
	return d.remove(ctx, id, func(own []ownDisk, in *instance, name string) error {
		own, err := d.local(ctx, own)
		if err != nil {
			return err
		}
		if !volumes {
			return d.delete(ctx, name, own)
		}
		return d.leave(in, name, id, own)
	})
}

// remove removes the domain of a workload. Before that it calls the function part, which keeps or removes the
// disks in own, the disks that the driver made for the domain. Its argument in is nil if there is no domain
// because a creation or removal was interrupted.
func (d *Driver) remove(ctx context.Context, id driver.ID, part func(own []ownDisk, in *instance, name string) error) error {
	in, err := d.mine(ctx, id)
	if err != nil {
		return err
	}
	if in == nil {
		// Remove the remains of an interrupted creation or removal. No other workload uses these domain
		// names.
		for _, name := range []string{string(id), string(id) + "--" + d.opt.NodeID} {
			if err := d.forgotten(ctx, name, func() error {
				own, err := d.leftBehind(ctx, name, id)
				if err != nil {
					return err
				}
				return part(own, nil, name)
			}); err != nil {
				return err
			}
		}
		return nil
	}
	if in.active {
		if err := d.stop(ctx, in, d.opt.StopGrace); err != nil {
			return err
		}
	}
	own := []ownDisk{}
	if r := in.config; r != nil {
		own = append(append(own, r.Disks...), r.Leftover...)
	} else {
		own = d.legacyDisks(in)
	}
	noted, err := d.leftBehind(ctx, in.name, id)
	if err != nil {
		return err
	}
	if err := part(joined(own, noted), in, in.name); err != nil {
		return err
	}
	if err := d.clear(in.name); err != nil {
		return err
	}
	if err = d.hv.undefine(ctx, in.uuid); errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// forgotten removes the folder of the domain called name, unless that domain exists. If before is not
// nil, it is called before the removal.
func (d *Driver) forgotten(ctx context.Context, name string, before func() error) error {
	if there, err := diskfile.Exists(d.at.keep(name)); err != nil || !there {
		return diskfile.Failed(err)
	}
	if _, err := d.hv.domain(ctx, name); !errors.Is(err, errAbsent) {
		return err
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	return d.clear(name)
}

// removeDisks deletes disks, except those whose mark file names another node.
func (d *Driver) removeDisks(ctx context.Context, disks []ownDisk) error {
	for _, o := range disks {
		if o.Pool != "" {
			if err := d.hv.removeVolume(ctx, o.Pool, o.Volume); err != nil {
				return err
			}
			continue
		}
		if diskfile.Elsewhere(o.Path, d.identity.NodeID) {
			continue
		}
		// Remove the mark file last, because it proves that the disk is ours: after an interruption the next
		// call can continue.
		for _, f := range []string{o.Path, o.Path + diskfile.PartSuffix, o.Path + diskfile.StagedSuffix, o.Path + diskfile.MarkSuffix} {
			if err := diskfile.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}
