package driver

import "context"

// Pool is storage of an engine's own, in which it makes disks of workloads.
type Pool struct {
	Name string
	// Type is local, nfs, iscsi or ceph-rbd.
	Type string
	// Total and Used are bytes; Used whoever uses it.
	Total, Used int64
}

// Pooler is what a driver also is whose engine has pools.
type Pooler interface {
	// Pools are those that can be used now, sorted by name.
	Pools(ctx context.Context) ([]Pool, error)
}

// Volume is one managed volume of a workload, made ready on this machine before Ensure: mounted or
// mapped, and kept so until the workload is removed. A driver only hands it over. Exactly one of
// Path and Disk is set.
type Volume struct {
	// Name is the one in the specification; a Compose file names it as an external volume.
	Name string
	// Path is a folder of the machine, for containers and stacks. A driver must not let its engine
	// make a missing one: it would be an empty folder on the wrong disk.
	Path string
	// Disk is for virtual machines: the path of a raw image file or block device, or
	// rbd:<pool>/<image>.
	Disk string
	// MountPath is where the workload wants it; a virtual machine's guest mounts it itself.
	MountPath string
	ReadOnly  bool
}

// Leaver is what a driver also is that makes things which are not to go with a workload that moves. It
// is optional.
type Leaver interface {
	// Leave is Remove of a workload that lives on elsewhere, or may: what another node may use now stays.
	// With volumes, so do the engine's own volumes, and folders of the driver's that take their place, which
	// only this machine reaches: it certainly lives on, and they may be the only copy of its data.
	Leave(ctx context.Context, id ID, volumes bool) error
}
