package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

// diskJournal is the file in a domain's folder that lists the disks that we made for the domain, or are about
// to make. The domain's metadata has the same list. The journal is used if there is no domain: after a failed
// creation, or if somebody undefined the domain.
const diskJournal = "persys-disks"

// note writes the list of disks to the journal, a file in the domain's folder. It is called before these disks
// are made.
func (d *Driver) note(domain string, spec driver.Spec, disks []ownDisk) error {
	keep := d.at.keep(domain)
	if err := diskfile.MakeFolder(keep); err != nil {
		return err
	}
	if err := diskfile.Write(filepath.Join(keep, ownerFile), []byte(owner(spec))); err != nil {
		return err
	}
	return writeDiskJournal(keep, disks)
}

func writeDiskJournal(keep string, disks []ownDisk) error {
	if err := diskfile.MakeFolder(keep); err != nil {
		return err
	}
	raw, err := json.Marshal(disks)
	if err != nil {
		return driver.Errorf(driver.StorageProvisionFailed, "disk", "%w", err)
	}
	return diskfile.Write(filepath.Join(keep, diskJournal), raw)
}

// journaledDisks returns disks that the journal of a domain lists. The Ensure that wrote the journal may have
// failed before it made them. So journaledDisks returns a disk file only if the mark file beside it still
// names this node and this workload, with the image that the mark file names. If the owner file in the
// domain's folder names another node, it returns no disks.
func (d *Driver) journaledDisks(domain string, id driver.ID) ([]ownDisk, error) {
	if of, ours := d.keptFor(domain); !ours || of != id {
		return nil, nil
	}
	raw, err := os.ReadFile(filepath.Join(d.at.keep(domain), diskJournal))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskfile.Failed(err)
	}
	var all, out []ownDisk
	if json.Unmarshal(raw, &all) != nil {
		return nil, nil // a power failure may have truncated the journal; that must not block the workload
	}
	for _, o := range all {
		if o.Pool != "" && o.Volume != formerVolume(domain, o) {
			out = append(out, o) // a volume name is derived from the workload, so no other workload has this volume
			continue
		}
		if o.Path == "" || !diskfile.Made(o.Path, d.identity.ClusterID, id) || diskfile.Elsewhere(o.Path, d.identity.NodeID) {
			continue
		}
		image, known := diskfile.MadeFrom(o.Path, d.identity.NodeID)
		o.Image, o.unsure, o.Staged, o.Format = image, !known, false, ""
		out = append(out, o)
	}
	return out, nil
}

// leftBehind returns the disks of a removed workload that are listed in the journal (a file in the domain's
// folder) and are still on this node. Disks in shared pools are left out, because the workload may run on
// another node and use them there.
func (d *Driver) leftBehind(ctx context.Context, domain string, id driver.ID) ([]ownDisk, error) {
	disks, err := d.journaledDisks(domain, id)
	if err != nil {
		return nil, err
	}
	return d.local(ctx, disks)
}

// local returns disks without those in shared pools, because a volume in a pool does not record which node
// uses it.
func (d *Driver) local(ctx context.Context, disks []ownDisk) ([]ownDisk, error) {
	if !slices.ContainsFunc(disks, func(o ownDisk) bool { return o.Pool != "" }) {
		return disks, nil
	}
	pools, err := d.hv.pools(ctx)
	if err != nil {
		return nil, err
	}
	local := map[string]bool{"": true}
	for _, p := range pools {
		local[p.Name] = p.Type == "local"
	}
	return slices.DeleteFunc(disks, func(o ownDisk) bool { return !local[o.Pool] }), nil
}

// joined returns the list disks, followed by those elements of more that disks does not contain.
func joined(disks, more []ownDisk) []ownDisk {
	out := slices.Clone(disks)
	for _, o := range more {
		if !slices.ContainsFunc(out, o.same) {
			out = append(out, o)
		}
	}
	return out
}
