package driver

import "context"

// Pool is a storage pool of an engine, in which the engine creates the disks of workloads.
type Pool struct {
	Name string
	// Type is local, nfs, iscsi or ceph-rbd.
	Type string
	// Total and Used are in bytes. Used includes the data of all users of the pool.
	Total, Used int64
}

// Pooler is implemented by drivers whose engine has storage pools.
type Pooler interface {
	// Pools returns the pools that can be used now, sorted by name.
	Pools(ctx context.Context) ([]Pool, error)
}

// Volume is one managed volume of a workload. The agent mounts or maps the volume before it calls Ensure, and
// unmounts it only after the workload is removed. The driver only passes it to the engine. Exactly one of
// Path and Disk is set.
type Volume struct {
	// Name is the volume's name in the specification. A Compose file refers to it as an external volume of
	// that name.
	Name string
	// Path is a folder of the machine, for containers and stacks. A driver must not let its engine create a
	// missing folder. The folder is missing if the volume is not mounted, and the new folder would be empty
	// and on the wrong disk.
	Path string
	// Disk is for virtual machines: the path of a raw image file or block device, or
	// rbd:<pool>/<image>.
	Disk string
	// MountPath is the mount point inside the workload; a virtual machine's guest mounts its disk itself.
	MountPath string
	ReadOnly  bool
}

// Namespaced is implemented by drivers that label their resources with the workload's namespace.
type Namespaced interface {
	// Foreign reports whether the engine has an instance or volumes that carry this workload id and belong to
	// another namespace. When the workload is deleted, the driver must leave these resources alone.
	Foreign(ctx context.Context, id ID, namespace string) (bool, error)
}

// VolumeOwner is implemented by drivers whose engine makes volumes that a specification names.
type VolumeOwner interface {
	// RemoveInstance is called in place of Remove for a workload that a person deleted without its volumes.
	// It keeps the volumes that the specification names, and the folders that the workload uses like volumes.
	// It removes everything else. If the workload is applied again on this machine, it uses the kept volumes
	// and folders again.
	RemoveInstance(ctx context.Context, id ID) error
}

// Leaver is implemented by drivers whose resources must survive a move: a workload that moves to
// another node leaves them here.
type Leaver interface {
	// Leave is called in place of Remove for a workload that runs, or may run, on another node. It removes the
	// instance, but keeps shared resources that the other node may use. volumes is true if it is certain that
	// the workload runs on another node. Leave then also keeps the engine's own volumes, and the folders of
	// the driver that serve as volumes: they may hold the only copy of the workload's data, and other machines
	// cannot reach them.
	Leave(ctx context.Context, id ID, volumes bool) error
}
