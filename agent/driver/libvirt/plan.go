package libvirt

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/engine"
)

// defaultImages is the folder in which schedulers place disks whose specification gives no path
// (contract/wire-agent.md).
const defaultImages = "/var/lib/libvirt/images"

const gib = 1 << 30

// plan is the specification of a virtual machine, applied to this machine's folders and names. makePlan makes
// it without calls to libvirt or the file system.
type plan struct {
	domain string // name of the libvirt domain
	uuid   string
	title  string
	vcpus  uint
	quota  int64 // CPU quota in millicores for all processors together; 0 if the processor count is the only limit
	memory uint  // memory in MiB
	disks  []diskPlan
	nics   []nocloud.Interface
	seed   *seedPlan
}

// diskPlan is one disk. Exactly one of path, pool and network is set; it says where the disk is
// stored.
type diskPlan struct {
	device   string
	format   string // "qcow2" or "raw"
	cdrom    bool
	order    uint // position in the boot order; 0 if the guest does not boot from it
	sizeGB   int64
	path     string
	pool     string
	volume   string
	network  *diskfile.Network
	image    string // image from which the disk is made
	readOnly bool
	attached bool // the disk is a managed volume, which the driver neither makes nor removes
}

func describe(d diskPlan) string { return fmt.Sprintf("disk %s (%s)", d.device, d.path) }

// layout holds the folders on this machine that a plan uses.
type layout struct {
	images string // folder that holds disks, images and one folder for each domain
}

// keep returns the folder of one domain, which holds its cloud-init seed and its console log.
func (l layout) keep(domain string) string { return filepath.Join(l.images, domain+keepSuffix) }

// makePlan builds the plan of a specification. Errors name the invalid field.
func makePlan(spec driver.Spec, domain string, at layout) (*plan, error) {
	vm := spec.Body.GetVm()
	if vm == nil {
		return nil, invalid("spec: vm: must be set (workload %q)", spec.ID)
	}
	if vm.Vcpus < 1 || vm.MemoryMb < 1 {
		return nil, invalid("vm.vcpus, vm.memory_mb: must be at least 1 (got %d and %d)", vm.Vcpus, vm.MemoryMb)
	}
	p := &plan{
		domain: domain, uuid: uuidOf(spec.ClusterID, domain), title: vm.Name,
		vcpus: uint(vm.Vcpus), memory: uint(vm.MemoryMb),
	}
	if n := vm.CpuMillicores; n < 0 {
		return nil, invalid("vm.cpu_millicores: must not be negative (got %d)", n)
	} else if n < int64(vm.Vcpus)*1000 {
		p.quota = n
	}
	if err := p.addDisks(spec, vm, at); err != nil {
		return nil, err
	}
	if err := p.addVolumes(spec.Volumes); err != nil {
		return nil, err
	}
	for i, n := range vm.Networks {
		nic := nocloud.Interface{Network: n.Network, MAC: strings.ToLower(n.MacAddress), Static: n.IpAddress}
		if nic.Network == "" {
			nic.Network = "default"
		}
		if nic.MAC == "" {
			nic.MAC = engine.GuestMAC(spec.ClusterID, string(spec.ID), i)
		} else if hw, err := net.ParseMAC(nic.MAC); err != nil || len(hw) != 6 {
			return nil, invalid("vm.networks[%d].mac_address: %q is not an Ethernet address", i, n.MacAddress)
		}
		if nic.Static != "" {
			if _, err := nocloud.Prefix(nic.Static); err != nil {
				return nil, invalid("vm.networks[%d].ip_address: %q is not an IP address, with or without a prefix length", i, nic.Static)
			}
		}
		p.nics = append(p.nics, nic)
	}
	seed, err := planSeed(spec.ID, vm)
	if err != nil {
		return nil, err
	}
	p.seed = seed
	return p, nil
}

func (p *plan) addDisks(spec driver.Spec, vm *agentv1.VMSpec, at layout) error {
	order := uint(0)
	flagged := false
	for _, d := range vm.Disks {
		flagged = flagged || d.Boot
	}
	first := true
	seen := map[string]bool{}
	for i, d := range vm.Disks {
		field := fmt.Sprintf("vm.disks[%d]", i)
		out := diskPlan{device: d.Device, format: strings.ToLower(d.Format), sizeGB: d.SizeGb}
		switch strings.ToLower(d.Type) {
		case "", "disk":
		case "cdrom":
			out.cdrom, out.readOnly = true, true
		default:
			return invalid("%s.type: %q is neither disk nor cdrom", field, d.Type)
		}
		switch out.format {
		case "":
			out.format = "qcow2"
			if out.cdrom {
				out.format = "raw"
			}
		case "iso":
			out.format = "raw"
		case "qcow2", "raw":
		default:
			return invalid("%s.format: %q is none of qcow2, raw, iso", field, d.Format)
		}
		if out.device == "" {
			out.device = freeDevice(out.cdrom, seen)
		}
		if seen[out.device] {
			return invalid("%s.device: %q is used twice", field, out.device)
		}
		seen[out.device] = true
		if d.Boot || !flagged && i == 0 {
			order++
			out.order = order
		}
		if !out.cdrom && first {
			first, out.image = false, resolveImage(vm.OsImage, at)
		}
		name := p.domain + "-" + out.device
		switch {
		case d.Pool != "":
			out.pool, out.volume = d.Pool, volumeOf(spec.ClusterID, p.domain, out)
		case d.Path == "":
			if out.cdrom {
				return invalid("%s.path: must be set for a cdrom", field)
			}
			out.path = filepath.Join(at.images, name+extension(out.format))
		case filepath.IsAbs(d.Path):
			out.path = rebase(filepath.Clean(d.Path), string(spec.ID), p.domain, out, at)
		default:
			n, err := diskfile.ParseNetwork(d.Path)
			if err != nil {
				return invalid("%s.path: %v", field, err)
			}
			out.network = n
		}
		p.disks = append(p.disks, out)
	}
	return nil
}

// addVolumes adds managed volumes to the plan as raw disks, after the workload's own disks.
func (p *plan) addVolumes(volumes []driver.Volume) error {
	seen := map[string]bool{}
	for _, d := range p.disks {
		seen[d.device] = true
	}
	if len(p.disks) == 0 {
		seen["vda"] = true // device names of managed volumes begin at vdb (contract/semantics.md, section 12)
	}
	for _, v := range volumes {
		d := diskPlan{device: freeDevice(false, seen), format: "raw", readOnly: v.ReadOnly, attached: true}
		seen[d.device] = true
		switch {
		case filepath.IsAbs(v.Disk):
			d.path = v.Disk
		case v.Disk != "":
			n, err := diskfile.ParseNetwork(v.Disk)
			if err != nil {
				return invalid("managed volume %q: %v", v.Name, err)
			}
			d.network = n
		default:
			return invalid("managed volume %q is a folder, but a virtual machine can use only disks", v.Name)
		}
		p.disks = append(p.disks, d)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return driver.Errorf(driver.InvalidSpecification, "ensure", format, args...)
}

// volumeOf returns the volume name of a disk in a storage pool. A volume has no mark file that names its
// owner, so its name must be unique. It ends in a digest of cluster, domain and image, so a disk from another
// image gets another volume. The name is the same on every node, because several nodes may share a pool.
func volumeOf(cluster, domain string, d diskPlan) string {
	return domain + "-" + d.device + "-" + tag(strings.Join([]string{"persys volume", cluster, domain, d.device, d.image}, "\x00")) + extension(d.format)
}

// formerVolume returns the volume name that earlier versions of the driver gave to a disk. The name did not
// contain the cluster, so another cluster may have a volume of the same name.
func formerVolume(domain string, o ownDisk) string {
	return domain + "-" + o.Device + extension(o.Format)
}

func extension(format string) string {
	if format == "raw" {
		return ".img"
	}
	return ".qcow2"
}

// rebase returns the path of a disk on this machine. A path in defaultImages, which schedulers assign to
// disks without a path, is moved to this machine's folder of images. If the domain is not named after the
// workload, because another agent's domain has that name, the domain's name replaces the id in the path.
func rebase(path, id, domain string, d diskPlan, at layout) string {
	ext := extension(d.format)
	if path != filepath.Join(defaultImages, id+"-"+d.device+ext) {
		return path
	}
	return filepath.Join(at.images, domain+"-"+d.device+ext)
}

// resolveImage returns the path of the image that the field os_image names: os_image is a path, or a file name
// in the folder of images.
func resolveImage(image string, at layout) string {
	if image == "" || filepath.IsAbs(image) {
		return image
	}
	return filepath.Join(at.images, image)
}

// freeDevice returns the first of vda, vdb, … (sda, … for cdroms) that is not in taken.
func freeDevice(cdrom bool, taken map[string]bool) string {
	prefix := "vd"
	if cdrom {
		prefix = "sd"
	}
	for n := range 26 * 27 {
		name := prefix
		if n >= 26 {
			name += string(rune('a' + n/26 - 1))
		}
		if name += string(rune('a' + n%26)); !taken[name] {
			return name
		}
	}
	return prefix + "zz"
}

// uuidOf returns the uuid of a workload's domain. It is the same for every definition of the domain, so a guest
// keeps its machine id when it is replaced.
func uuidOf(cluster, domain string) string {
	sum := sha256.Sum256([]byte("persys domain\x00" + cluster + "\x00" + domain))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// tag returns a short digest of s.
func tag(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
