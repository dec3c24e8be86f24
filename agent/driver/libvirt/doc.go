// Package libvirt runs virtual machines on QEMU through libvirt.
//
// The type connection implements the interface hypervisor over the Unix socket of libvirt's daemon
// (docs/adr/0080): connect.go (sockets, connections, time limits of calls), domains.go, storage.go, stream.go
// (consoles), errors.go (classes of libvirt's errors). All other files use the interface. Pure code in three
// files turns a specification into a domain: plan.go (disks, interfaces and files), xml.go (the domain),
// seed.go (cloud-init). Package hostcaps parses libvirt's description of the host.
//
// Package arpsnoop learns the addresses of guests on bridges that libvirt does not manage.
//
// An element in the domain's metadata marks our domains. It holds the labels of driver.Identity, the disks
// that we made, the start time and the last exit. libvirt keeps two descriptions of a domain: the live one,
// and the configuration for the next start. A replacement of a guest uses both:
//
//  1. networks are looked up and started, missing disks are made, the seed is written under a new name,
//  2. the new configuration is defined in one step while the old guest runs on,
//  3. the old guest is stopped, disks that only it used are removed, the others are resized,
//  4. the guest is started.
//
// If a replacement is interrupted, the two descriptions show which step it reached, so the next Ensure
// continues from there. If an image or network is refused, the running guest is not touched. A replacement
// keeps the disks that both specifications name (docs/adr/0007).
package libvirt
