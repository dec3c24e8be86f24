// Package libvirt runs virtual machines on QEMU through libvirt.
//
// Only the files *_cgo.go link the library (with cgo and the build tag libvirt_dlopen, so that neither
// headers nor the library are needed to build). The other files use the interface hypervisor and build
// everywhere. Turning a specification into a domain is pure and in three files: plan.go (disks,
// interfaces and files), xml.go (the domain), seed.go (cloud-init). Package hostcaps parses libvirt's
// description of the host.
//
// Package arpsnoop learns the addresses of guests on bridges that libvirt does not manage.
//
// An element in the domain's metadata marks our domains. It holds the labels of driver.Identity, the
// disks that we made, the start time and the last exit. libvirt keeps two descriptions of a domain: the
// live one and the configuration for the next start. A replacement relies on that:
//
//  1. networks are looked up and started, missing disks made, the seed written under a new name,
//  2. the new configuration is defined over the old one, in one step, while the old guest runs on,
//  3. the old guest is stopped, disks that only it used are removed, the others are resized,
//  4. the guest is started.
//
// The two descriptions show which step was reached, so the next Ensure continues from there. A refused
// image or network leaves the running guest alone. A replacement keeps the disks that both
// specifications name (docs/adr/0007).
package libvirt
