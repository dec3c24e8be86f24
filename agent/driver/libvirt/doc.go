// Package libvirt runs virtual machines on QEMU through libvirt.
//
// Only the files *_cgo.go link the library (with cgo and the build tag libvirt_dlopen, so that neither
// headers nor the library are needed to build); everything else stands behind the interface
// hypervisor and builds everywhere. What a specification becomes is pure and in three
// files: plan.go (which disks, interfaces and files), xml.go (the domain), seed.go (cloud-init).
// What libvirt says of the host is read in described/.
//
// Which addresses guests have on bridges that are not libvirt's is heard there (neighbours/).
//
// What is ours is told by an element in the domain's metadata: the labels of driver.Identity, which
// disks we made, when it was started and how it ended. libvirt keeps two copies of a domain's
// description, the one that runs and the one for the next start. A replacement uses that:
//
//  1. networks are looked up and started, missing disks made, the seed written under a new name,
//  2. the new description is defined over the old one, in one step, while the old guest runs on,
//  3. the old guest is stopped, what only it had is removed, disks are put in place and grown,
//  4. the guest is started.
//
// Whatever step is the last one reached, the two copies show it, and the next Ensure goes on from
// there. A refused image or network leaves what runs running. A replacement keeps the disks that
// both specifications name (docs/adr/0007).
package libvirt
