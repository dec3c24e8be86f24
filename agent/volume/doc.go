// Package volume manages the volumes of a machine. It makes their storage, mounts or maps it before a workload
// uses it, and deletes it after the workload is deleted, as the volume's policy says. Drivers receive a
// driver.Volume and do not know how it was made.
//
// There are three kinds. A local volume is a folder. With a size it is a file of that size with a file system
// in it, so that the size is enforced. Virtual machines get a file as a raw disk. An nfs volume is a folder of
// an export, and a ceph-rbd volume is an image of a pool. If a machine lacks a requirement, the error names it;
// a local folder never replaces other storage.
//
// Records have the fields of legacy v1 agents (contract/state-etcd.md, "Agent local store") and a few more. They
// are written before the first step and after the last. Every step can be repeated, and an existing file system
// is never formatted again, so an interruption at any point loses nothing.
//
// Workloads see a folder inside the mounted file system, never the mount point. If the volume is not mounted,
// that folder is missing and cannot be mistaken for an empty volume. For the same reason, a plain folder or
// disk that has disappeared is an error.
package volume
