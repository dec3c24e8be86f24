package libvirt

import (
	"path/filepath"

	"libvirt.org/go/libvirtxml"
)

// legacyDisks are the files that an existing agent made for a domain: disks with a marker beside
// them, and the seed at its fixed place (contract/state-etcd.md).
func (d *Driver) legacyDisks(in *instance) []ownDisk {
	var dom libvirtxml.Domain
	if dom.Unmarshal(in.domain.config) != nil || dom.Devices == nil {
		return nil
	}
	var out []ownDisk
	for _, disk := range dom.Devices.Disks {
		if disk.Source == nil || disk.Source.File == nil {
			continue
		}
		path := disk.Source.File.File
		made, _ := exists(path + markerSuffix)
		if made || filepath.Base(path) == in.name+"-cloud-init.iso" {
			out = append(out, ownDisk{Path: path})
		}
	}
	return out
}
