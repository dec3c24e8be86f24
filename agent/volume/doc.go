// Package volume keeps the managed volumes of a machine: it makes their storage, mounts or maps it
// before a workload uses it, and deletes it when the workload has gone, as its policy says. Drivers
// get what comes out of it (driver.Volume) and know nothing of how it was made.
//
// There are three kinds. local is a folder, or for a volume with a size a file of that size with a
// file system in it, so that the size is a limit and not a wish; virtual machines get such a file as
// a raw disk. nfs is a folder of an export, ceph-rbd an image of a pool. What a machine cannot do is
// refused with the piece that is missing; nothing is ever put into a local folder in its stead.
//
// Records are those of legacy v1 agents (contract/state-etcd.md, "Agent local store"), with a few
// fields more. They are written before the first step and after the last, every step can be repeated,
// and an existing file system is never made anew, so that being killed anywhere loses nothing.
//
// Workloads see a folder inside the mounted file system, never the mount point: what is not mounted
// is then missing, and cannot be mistaken for an empty volume. A plain folder or a disk that is not where it
// was is an error, for the same reason.
package volume
