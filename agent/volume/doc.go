// Package volume manages the volumes of a machine. It makes their storage, mounts or maps it before a workload
// uses it, and deletes it after the workload is deleted, unless the volume's policy is to retain it. Drivers
// receive a driver.Volume and do not know how it was made.
//
// There are three kinds. A local volume is a folder. With a size it is a file of that size with a file
// system in it, so that the size is enforced. Virtual machines get a file as a raw disk. An nfs volume is a
// folder of an NFS export, and a ceph-rbd volume is an RBD image of a Ceph pool. If a machine lacks a
// program or setting for a driver, the error names it. The agent never uses a local folder in place of nfs
// or ceph-rbd.
//
// Records have the fields of legacy v1 agents (contract/state-etcd.md, "Agent local store") and a few more.
// The record of a volume is written before the first step of a change and again after the last. Every step
// can be repeated, and an existing file system is never formatted again, so an interruption at any point
// loses nothing.
//
// Workloads see a folder inside the mounted file system, never the mount point. If the volume is not
// mounted, that folder is missing and cannot be mistaken for an empty volume. For the same reason, a plain
// folder or disk that has disappeared is an error.
package volume
