package hostcaps

import "encoding/xml"

// PoolType returns the name by which schedulers know the type of a libvirt pool. description is the pool's XML.
func PoolType(description string) string {
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
	return "local" // the types dir, fs, logical, disk, zfs and others
}
