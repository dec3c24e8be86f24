package driver

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
