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
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm/bounds"
)

// MetadataVMSpec is the reserved metadata key that holds a whole VM in the agent API's field names,
// as base64 of JSON (contract/wire-control.md). It replaces vm if it can be decoded.
const MetadataVMSpec = "persys.vm_spec_b64"

// defaultDiskGB is the contract's default size of a disk.
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

// encodeVM is the inverse of decodeVM. Equal VMs give equal bytes.
func encodeVM(v *agentv1.VMSpec) (string, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(v)
	if err != nil {
		return "", err
	}
	// protojson varies its white space at random.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// vmOf returns the effective VM of a specification in the agent API, without the fields that depend
// on the workload's id. fromMetadata reports whether the VM came from the reserved key.
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

// vmQuota returns the CPU quota of a VM in millicores; 0 if the number of processors is the only
// limit.
func vmQuota(s *controlv1.WorkloadSpec, v *agentv1.VMSpec) int64 {
	n := cmp.Or(s.GetResources().GetCpuMillicores(), v.GetCpuMillicores())
	if n >= int64(v.GetVcpus())*1000 {
		return 0
	}
	return n
}

// translateVM translates a VM from the control API to the agent API by the contract's table. Beyond
// the table, every disk gets a device of its own, its size and its pool.
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
		out.Networks = append(out.Networks, &agentv1.NetworkConfig{Network: n.GetBridge(), IpAddress: n.GetStaticIp()})
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

// normaliseVM fills in defaults in place. It is idempotent.
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
		n.IpAddress = strings.TrimSpace(n.GetIpAddress())
	}
	// user_data of the message takes precedence over the text (contract/wire-agent.md).
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

// freeDevice returns the first of vda, vdb, … (sda, … for cdroms) that no disk uses.
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

// projectVM converts a VM of the reserved key to the control API, as far as it can express the VM,
// without cloud-init.
func projectVM(v *agentv1.VMSpec) *controlv1.VMSpec {
	out := &controlv1.VMSpec{
		Vcpus: v.GetVcpus(), MemoryMb: v.GetMemoryMb(), OsImage: v.GetOsImage(),
		ManagedVolumes: toControlVolumes(v.GetManagedVolumes()),
	}
	for _, d := range v.GetDisks() {
		out.Disks = append(out.Disks, &controlv1.DiskConfig{SizeGb: d.GetSizeGb(), MountPoint: d.GetDevice()})
	}
	for _, n := range v.GetNetworks() {
		out.Networks = append(out.Networks, &controlv1.NetworkConfig{Bridge: n.GetNetwork(), Dhcp: n.GetIpAddress() == "", StaticIp: n.GetIpAddress()})
	}
	return out
}

// vmNames holds the field names of a VM in the form that the author used.
type vmNames struct{ base, device, network, ip, cloudInit, pool string }

func (e *Errors) vmSpec(s *controlv1.WorkloadSpec) {
	names := vmNames{"spec.vm", ".mount_point", ".bridge", ".static_ip", ".cloud_init", ".pool_name"}
	key := "spec.metadata." + MetadataVMSpec
	b64, present := s.Metadata[MetadataVMSpec]
	if present {
		before := len(*e)
		e.secret(key, b64)
		if len(*e) > before {
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
	e.vm(v, names)
}

func (e *Errors) vm(v *agentv1.VMSpec, n vmNames) {
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
		if !devicePattern.MatchString(d.GetDevice()) {
			e.add(at+n.device, "must be a device name such as vda", d.GetDevice())
		} else if first, taken := devices[d.GetDevice()]; taken {
			e.addf(at+n.device, d.GetDevice(), "is already the device of disks[%d]", first)
		}
		devices[d.GetDevice()] = i
		e.word(at+".format", d.GetFormat(), []string{"qcow2", "raw", "iso"})
		e.word(at+".type", d.GetType(), []string{"disk", "cdrom"})
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
	for i, nic := range v.Networks {
		at := fmt.Sprintf("%s.networks[%d]", n.base, i)
		if !bounds.ValidID(nic.GetNetwork()) {
			e.add(at+n.network, idRule, nic.GetNetwork())
		}
		if mac := nic.GetMacAddress(); mac != "" {
			if hw, err := net.ParseMAC(mac); err != nil || len(hw) != 6 {
				e.add(at+".mac_address", "must be like 52:54:00:12:34:56", mac)
			}
		}
		if ip := nic.GetIpAddress(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				if _, err := netip.ParsePrefix(ip); err != nil {
					e.add(at+n.ip, "must be an IP address, with or without a prefix length", ip)
				}
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
		// Existing tools expect the prefix of the rule.
		if len(*part.text) > maxCloudInit {
			e.addf(at, "", "cloud-init-invalid: is %d bytes, at most %d", len(*part.text), maxCloudInit)
		}
		if strings.ContainsRune(*part.text, 0) {
			e.add(at, "cloud-init-invalid: must hold no NUL byte", "")
		}
		e.secret(at, *part.text)
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
			e.add(at, "needs a password or ssh_authorized_keys: nobody could get in", "")
		}
		e.secret(at+".password", l.GetPassword())
		for i, key := range l.GetSshAuthorizedKeys() {
			if len(strings.Fields(key)) < 2 || !printable(key) {
				e.add(fmt.Sprintf("%s.ssh_authorized_keys[%d]", at, i), "must be a public key in one line, such as ssh-ed25519 AAAA… name", key)
			}
		}
	}
	e.managed(n.base+".managed_volumes", v.GetManagedVolumes(), map[string]string{})
}

var loginPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

type textPart struct {
	name string
	text *string
}

// cloudInitParts returns pointers to the four documents, in a fixed order.
func cloudInitParts(c *agentv1.CloudInitConfig) []textPart {
	if c == nil {
		return nil
	}
	return []textPart{{"user_data", &c.UserData}, {"meta_data", &c.MetaData}, {"network_config", &c.NetworkConfig}, {"vendor_data", &c.VendorData}}
}
