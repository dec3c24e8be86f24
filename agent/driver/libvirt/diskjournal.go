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

// diskJournal lists, in a domain's folder, the disks that we made for the domain or are about to make. The
// record in the domain is what counts; this is for when there is none: a creation failed, or somebody
// undefined the domain.
const diskJournal = "persys-disks"

// note writes the list, before anything that it names is made.
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

// noted reads the list. Only disks count that still have this node's mark for this workload, which also
// says what they were made from: the list may be of an order that failed before it made them so. None do if
// the folder is another node's by now.
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
		return nil, nil // a machine that lost its power may have lost the text, and must not be stuck for it
	}
	for _, o := range all {
		if o.Pool != "" && o.Volume != formerVolume(domain, o) {
			out = append(out, o) // nobody else has its name
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

// leftBehind are the noted disks that a workload leaves when it is removed, but for those that it may have
// moved on with.
func (d *Driver) leftBehind(ctx context.Context, domain string, id driver.ID) ([]ownDisk, error) {
	disks, err := d.journaledDisks(domain, id)
	if err != nil {
		return nil, err
	}
	return d.local(ctx, disks)
}

// local are disks without those in a pool that other nodes reach: a volume does not say which node uses it.
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

// joined are disks and those of more that are not among them.
func joined(disks, more []ownDisk) []ownDisk {
	out := slices.Clone(disks)
	for _, o := range more {
		if !slices.ContainsFunc(out, o.same) {
			out = append(out, o)
		}
	}
	return out
}
