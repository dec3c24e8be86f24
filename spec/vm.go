package spec

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/pki"
)

// MetadataVMSpec is the reserved metadata key that holds a whole VM in the agent API's field names, as base64
// of JSON (contract/wire-control.md). If the VM can be decoded, it replaces the field vm.
const MetadataVMSpec = "persys.vm_spec_b64"

// defaultDiskGB is the size, in GB, of a VM's disk without a size, as the contract defines it.
const defaultDiskGB = 20

func decodeVM(b64 string) (*agentv1.VMSpec, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(b64), ""))
	if err != nil {
		return nil, fmt.Errorf("is not base64")
	}
	v := &agentv1.VMSpec{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: 20}).Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("is not the JSON of a VM")
	}
	return v, nil
}

// encodeVM encodes a VM for the reserved metadata key; it is the inverse of decodeVM. Equal VMs give equal
// bytes.
func encodeVM(v *agentv1.VMSpec) (string, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(v)
	if err != nil {
		return "", err
	}
	// Remove the random white space that protojson adds.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// vmOf returns the VM that a specification describes, in the form of the agent API, without the fields that
// depend on the workload's id. fromMetadata reports whether the VM was under the reserved metadata key.
func vmOf(s *controlv1.WorkloadSpec) (v *agentv1.VMSpec, fromMetadata bool) {
	if b64, ok := s.Metadata[MetadataVMSpec]; ok {
		if v, err := decodeVM(b64); err == nil {
			return normaliseVM(v), true
		}
	}
	if s.GetVm() == nil {
		return nil, false
	}
	return normaliseVM(translateVM(s.GetVm())), false
}

// guestMACs returns the sorted Ethernet addresses of a virtual machine with a normalised specification. If
// the specification sets no address, it returns the one that agents derive from the workload's id.
func guestMACs(cluster, id string, s *controlv1.WorkloadSpec) []string {
	v, _ := vmOf(s)
	var out []string
	for i, n := range v.GetNetworks() {
		mac := n.GetMacAddress()
		if mac == "" && cluster != "" {
			mac = engine.GuestMAC(cluster, id, i)
		}
		if mac != "" {
			out = append(out, mac)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// vmQuota returns the CPU quota of a VM in millicores; 0 if the number of processors is the only limit.
func vmQuota(s *controlv1.WorkloadSpec, v *agentv1.VMSpec) int64 {
	n := cmp.Or(s.GetResources().GetCpuMillicores(), v.GetCpuMillicores())
	if n >= int64(v.GetVcpus())*1000 {
		return 0
	}
	return n
}

// translateVM translates a VM from the control API to the agent API by the contract's table. In addition to
// the table, every disk gets a device name of its own, its size and its pool.
func translateVM(v *controlv1.VMSpec) *agentv1.VMSpec {
	out := &agentv1.VMSpec{
		Vcpus: v.GetVcpus(), MemoryMb: v.GetMemoryMb(), OsImage: v.GetOsImage(),
		ManagedVolumes: fromControlVolumes(v.GetManagedVolumes()),
	}
	for _, d := range v.GetDisks() {
		size := d.GetSizeGb()
		if size == 0 {
			size = defaultDiskGB
		}
		out.Disks = append(out.Disks, &agentv1.DiskConfig{Device: d.GetMountPoint(), SizeGb: size, Pool: d.GetPoolName()})
	}
	for _, n := range v.GetNetworks() {
		out.Networks = append(out.Networks, &agentv1.NetworkConfig{Network: n.GetBridge(), IpAddress: n.GetStaticIp(), MacAddress: n.GetMacAddress()})
	}
	if c := v.GetCloudInit(); c != nil {
		out.CloudInitConfig = &agentv1.CloudInitConfig{
			UserData: c.GetUserData(), MetaData: c.GetMetaData(),
			NetworkConfig: c.GetNetworkConfig(), VendorData: c.GetVendorData(),
		}
	}
	if l := v.GetLogin(); l != nil {
		out.Login = &agentv1.VMLogin{User: l.GetUser(), Password: l.GetPassword(), SshAuthorizedKeys: l.GetSshAuthorizedKeys()}
	}
	return out
}

// normaliseVM fills the defaults of a VM in place. It is idempotent.
func normaliseVM(v *agentv1.VMSpec) *agentv1.VMSpec {
	used := map[string]bool{}
	for _, d := range v.Disks {
		d.Device = strings.TrimSpace(d.GetDevice())
		used[d.Device] = true
	}
	for _, d := range v.Disks {
		d.Path = strings.TrimSpace(d.Path)
		d.Pool = strings.TrimSpace(d.Pool)
		d.Type = orElse(strings.ToLower(strings.TrimSpace(d.Type)), "disk")
		format := "qcow2"
		if d.Type == "cdrom" {
			format = "iso"
		}
		d.Format = orElse(strings.ToLower(strings.TrimSpace(d.Format)), format)
		if d.Device == "" {
			d.Device = freeDevice(d.Type, used)
		}
	}
	for _, n := range v.Networks {
		n.Network = orElse(strings.TrimSpace(n.GetNetwork()), "default")
		n.MacAddress = strings.ToLower(strings.TrimSpace(n.GetMacAddress()))
		if hw, err := net.ParseMAC(n.MacAddress); err == nil {
			n.MacAddress = hw.String() // the form with colons
		}
		n.IpAddress = strings.TrimSpace(n.GetIpAddress())
	}
	// cloud-init can be given as fields (cloud_init_config) or as one text. If both are given, the field user_data
	// wins (contract/wire-agent.md).
	if v.CloudInit != "" {
		if v.CloudInitConfig == nil {
			v.CloudInitConfig = &agentv1.CloudInitConfig{}
		}
		v.CloudInitConfig.UserData = orElse(v.CloudInitConfig.UserData, v.CloudInit)
		v.CloudInit = ""
	}
	if c := v.CloudInitConfig; c != nil && c.UserData == "" && c.MetaData == "" && c.NetworkConfig == "" && c.VendorData == "" {
		v.CloudInitConfig = nil
	}
	v.ManagedVolumes = normaliseVolumes(v.ManagedVolumes)
	return v
}

// freeDevice returns the first device name that no disk uses: vda, vdb, …, or sda, sdb, … for cdroms.
func freeDevice(kind string, used map[string]bool) string {
	prefix := "vd"
	if kind == "cdrom" {
		prefix = "sd"
	}
	for n := 0; n < 26*27; n++ {
		name := prefix
		if n >= 26 {
			name += string(rune('a' + n/26 - 1))
		}
		name += string(rune('a' + n%26))
		if !used[name] {
			used[name] = true
			return name
		}
	}
	return ""
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// projectVM converts a VM from the agent API to the control API. It leaves out cloud-init and the fields that
// the control API does not have.
func projectVM(v *agentv1.VMSpec) *controlv1.VMSpec {
	out := &controlv1.VMSpec{
		Vcpus: v.GetVcpus(), MemoryMb: v.GetMemoryMb(), OsImage: v.GetOsImage(),
		ManagedVolumes: toControlVolumes(v.GetManagedVolumes()),
	}
	for _, d := range v.GetDisks() {
		out.Disks = append(out.Disks, &controlv1.DiskConfig{SizeGb: d.GetSizeGb(), MountPoint: d.GetDevice()})
	}
	for _, n := range v.GetNetworks() {
		out.Networks = append(out.Networks, &controlv1.NetworkConfig{Bridge: n.GetNetwork(), Dhcp: n.GetIpAddress() == "", StaticIp: n.GetIpAddress(), MacAddress: n.GetMacAddress()})
	}
	return out
}

// vmNames holds the field names for error messages about a VM. There are two forms of a VM, and the names are
// those of the form that the author used.
type vmNames struct{ base, device, network, ip, cloudInit, pool string }

func (e *Errors) vmSpec(s *controlv1.WorkloadSpec) {
	names := vmNames{"spec.vm", ".mount_point", ".bridge", ".static_ip", ".cloud_init", ".pool_name"}
	key := "spec.metadata." + MetadataVMSpec
	b64, present := s.Metadata[MetadataVMSpec]
	if present {
		before := len(*e)
		e.secret(key, b64)
		if len(*e) > before || pki.IsRedacted(b64) {
			return
		}
	}
	v, fromMetadata := vmOf(s)
	switch {
	case v == nil:
		if present {
			_, err := decodeVM(b64)
			e.add(key, fmt.Sprintf("%v, and no vm is given in its place", err), "")
		}
		return
	case fromMetadata:
		names = vmNames{key, ".device", ".network", ".ip_address", ".cloud_init_config", ".pool"}
	}
	e.vm(v, names, int(s.GetCount()))
}

// once adds an error if another network card already has the same address. taken maps each address to the
// field that has it.
func (e *Errors) once(at, key, value string, taken map[string]string) {
	if other, twice := taken[key]; twice {
		e.add(at, "is already the address of "+other, value)
		return
	}
	taken[key] = at
}

// guestAddress checks the static address of a VM's network card.
func (e *Errors) guestAddress(at, ip string) {
	address, err := netip.ParseAddr(ip)
	if p, bad := netip.ParsePrefix(ip); bad == nil {
		address, err = p.Addr(), nil
	}
	switch {
	case err != nil:
		e.add(at, "must be an IP address, with or without a prefix length", ip)
	case address.IsUnspecified() || address.IsMulticast() || address.IsLoopback():
		e.add(at, "must be the address of one machine in its network", ip)
	}
}

// vm checks a virtual machine. members is the number of workloads that its `count` creates.
func (e *Errors) vm(v *agentv1.VMSpec, n vmNames, members int) {
	e.between(n.base+".vcpus", int64(v.GetVcpus()), 1, MaxCPU/1000, "")
	e.between(n.base+".cpu_millicores", v.GetCpuMillicores(), 0, MaxCPU, " millicores")
	e.between(n.base+".memory_mb", v.GetMemoryMb(), 1, MaxMemory, " MiB")
	if len(v.Disks) > 128 {
		e.addf(n.base+".disks", "", "has %d entries, at most 128", len(v.Disks))
		return
	}
	devices := map[string]int{}
	for i, d := range v.Disks {
		at := fmt.Sprintf("%s.disks[%d]", n.base, i)
		e.between(at+".size_gb", d.GetSizeGb(), 0, MaxDisk, " GB")
		cdrom := d.GetType() == "cdrom"
		if !devicePattern.MatchString(d.GetDevice()) {
			e.add(at+n.device, "must be a device name such as vda: vd, sd, hd or xvd and one or two letters", d.GetDevice())
		} else if cdrom && strings.HasPrefix(d.GetDevice(), "vd") {
			e.add(at+n.device, "must be a device of another bus than virtio, which has no removable media: write sda", d.GetDevice())
		} else if first, taken := devices[d.GetDevice()]; taken {
			e.addf(at+n.device, d.GetDevice(), "is already the device of disks[%d]", first)
		}
		devices[d.GetDevice()] = i
		e.word(at+".format", d.GetFormat(), []string{"qcow2", "raw", "iso"})
		e.word(at+".type", d.GetType(), []string{"disk", "cdrom"})
		if cdrom && d.GetPath() == "" && d.GetPool() == "" {
			e.add(at+".path", "must be set for a cdrom", "")
		}
		if p := d.GetPool(); p != "" && !bounds.ValidID(p) {
			e.add(at+n.pool, idRule, p)
		}
		if p := d.GetPath(); p != "" && !(path.IsAbs(p) || strings.HasPrefix(p, "rbd:") || strings.HasPrefix(p, "nfs://") || strings.Contains(p, ":/")) {
			e.add(at+".path", "must be an absolute path, rbd:<pool>/<image>, nfs://<host>/<path> or <host>:/<path>", p)
		} else if !printable(p) {
			e.add(at+".path", "must be printable", p)
		}
	}
	if len(v.Networks) > 64 {
		e.addf(n.base+".networks", "", "has %d entries, at most 64", len(v.Networks))
		return
	}
	taken := map[string]string{}
	for i, nic := range v.Networks {
		at := fmt.Sprintf("%s.networks[%d]", n.base, i)
		if !bounds.ValidID(nic.GetNetwork()) {
			e.add(at+n.network, idRule, nic.GetNetwork())
		}
		if mac := nic.GetMacAddress(); mac != "" {
			if rule := engine.MAC(mac); rule != "" {
				e.add(at+".mac_address", rule, mac)
			}
			e.once(at+".mac_address", "mac "+mac, mac, taken)
			if members > 1 {
				e.addf(at+".mac_address", mac, "is for one machine, and count makes %d; leave it out and each one gets its own", members)
			}
		}
		if ip := nic.GetIpAddress(); ip != "" {
			e.guestAddress(at+n.ip, ip)
			address, _, _ := strings.Cut(ip, "/")
			e.once(at+n.ip, nic.GetNetwork()+" "+address, ip, taken)
			if members > 1 {
				e.addf(at+n.ip, ip, "is for one machine, and count makes %d; leave it out and the network gives each one", members)
			}
		}
	}
	if image := v.GetOsImage(); len(image) > 4096 || !printable(image) {
		e.add(n.base+".os_image", "must be printable and at most 4096 bytes", "")
	}
	total := 0
	for _, part := range cloudInitParts(v.GetCloudInitConfig()) {
		at := n.base + n.cloudInit + "." + part.name
		total += len(*part.text)
		// Existing tools expect the prefix "cloud-init-invalid".
		if len(*part.text) > maxCloudInit {
			e.addf(at, "", "cloud-init-invalid: is %d bytes, at most %d", len(*part.text), maxCloudInit)
		}
		if strings.ContainsRune(*part.text, 0) {
			e.add(at, "cloud-init-invalid: must hold no NUL byte", "")
		}
		before := len(*e)
		if e.secret(at, *part.text); len(*e) > before || pki.IsRedacted(*part.text) {
			continue
		}
		if rule := cloudInitRule(part.name, *part.text); rule != "" && len(*part.text) <= maxCloudInit {
			e.add(at, "cloud-init-invalid: "+rule, "")
		}
	}
	if total > maxCloudInit {
		e.addf(n.base+n.cloudInit, "", "cloud-init-invalid: all parts together are %d bytes, at most %d", total, maxCloudInit)
	}
	if l := v.GetLogin(); l != nil {
		at := n.base + ".login"
		if !loginPattern.MatchString(l.GetUser()) {
			e.add(at+".user", "must be the name of a user: a lower-case letter, then at most 31 of a-z, 0-9, _ and -", l.GetUser())
		}
		if l.GetPassword() == "" && len(l.GetSshAuthorizedKeys()) == 0 {
			e.add(at, "needs a password or ssh_authorized_keys: without them nobody could log in", "")
		}
		e.secret(at+".password", l.GetPassword())
		for i, key := range l.GetSshAuthorizedKeys() {
			const rule = "must be a public key in one line, such as ssh-ed25519 AAAA… name"
			switch {
			case strings.Contains(key, "PRIVATE KEY"):
				e.add(fmt.Sprintf("%s.ssh_authorized_keys[%d]", at, i), rule+"; this is a private key: never send it", "")
			case len(strings.Fields(key)) < 2 || !printable(key):
				e.add(fmt.Sprintf("%s.ssh_authorized_keys[%d]", at, i), rule, key)
			}
		}
	}
	e.managed(n.base+".managed_volumes", TypeVM, v.GetManagedVolumes(), map[string]string{})
}

var loginPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

type textPart struct {
	name string
	text *string
}

// cloudInitParts returns pointers to the texts of the four documents of cloud-init, in a fixed order.
func cloudInitParts(c *agentv1.CloudInitConfig) []textPart {
	if c == nil {
		return nil
	}
	return []textPart{{"user_data", &c.UserData}, {"meta_data", &c.MetaData}, {"network_config", &c.NetworkConfig}, {"vendor_data", &c.VendorData}}
}
