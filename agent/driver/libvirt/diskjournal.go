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

// diskJournal is the file in a domain's folder that lists the disks that we made for the domain or are
// about to make. The record in the domain's metadata takes precedence; the journal serves when there is
// no record, because a creation failed or somebody undefined the domain.
const diskJournal = "persys-disks"

// note writes the journal before the disks that it names are made.
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

// journaledDisks reads the journal. It returns only disks that still carry this node's mark for this
// workload and were made from the recorded source, because the journal may belong to an order that
// failed before it made the disks. If the folder belongs to another node by now, it returns none.
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
		return nil, nil // a power failure may have truncated the file; that must not block the workload
	}
	for _, o := range all {
		if o.Pool != "" && o.Volume != formerVolume(domain, o) {
			out = append(out, o) // its name belongs to this workload alone
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

// leftBehind returns the journaled disks that a removed workload leaves, without those that it may
// have taken to another node.
func (d *Driver) leftBehind(ctx context.Context, domain string, id driver.ID) ([]ownDisk, error) {
	disks, err := d.journaledDisks(domain, id)
	if err != nil {
		return nil, err
	}
	return d.local(ctx, disks)
}

// local drops the disks in shared pools: a volume in a pool does not record which node uses it.
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

// joined returns disks plus those of more that it lacks.
func joined(disks, more []ownDisk) []ownDisk {
	out := slices.Clone(disks)
	for _, o := range more {
		if !slices.ContainsFunc(out, o.same) {
			out = append(out, o)
		}
	}
	return out
}
