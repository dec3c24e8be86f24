package driver

import "context"

// Pool is a storage pool of an engine, in which it makes disks of workloads.
type Pool struct {
	Name string
	// Type is local, nfs, iscsi or ceph-rbd.
	Type string
	// Total and Used are in bytes. Used counts all users of the pool.
	Total, Used int64
}

// Pooler is implemented by drivers whose engine has storage pools.
type Pooler interface {
	// Pools returns the pools that can be used now, sorted by name.
	Pools(ctx context.Context) ([]Pool, error)
}

// Volume is one managed volume of a workload. The agent mounts or maps it before Ensure and keeps it
// until the workload is removed; the driver only passes it to the engine. Exactly one of Path and
// Disk is set.
type Volume struct {
	// Name is the volume's name in the specification; a Compose file names it as an external volume.
	Name string
	// Path is a folder of the machine, for containers and stacks. A driver must not let its engine
	// create a missing folder: it would be an empty folder on the wrong disk.
	Path string
	// Disk is for virtual machines: the path of a raw image file or block device, or
	// rbd:<pool>/<image>.
	Disk string
	// MountPath is the mount point inside the workload; a virtual machine's guest mounts its disk itself.
	MountPath string
	ReadOnly  bool
}

// Leaver is implemented by drivers whose resources must survive a move: a workload that moves to
// another node leaves them here.
type Leaver interface {
	// Leave is Remove for a workload that runs, or may run, on another node. Shared resources that the
	// other node may use stay. With volumes set, the workload certainly runs elsewhere: then the
	// engine's own volumes and the driver's folders that replace them stay too, because they may be
	// the only copy of its data and only this machine can reach them.
	Leave(ctx context.Context, id ID, volumes bool) error
}
