package libvirt

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kdomanski/iso9660"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

var update = flag.Bool("update", false, "write the golden files")

func specFor(vm *agentv1.VMSpec, volumes ...driver.Volume) driver.Spec {
	return driver.Spec{
		ID: "web", Revision: "r1", Content: "c1:abc", ClusterID: "cluster-1", NodeID: "node-a", Running: true, Volumes: volumes,
		Generation: driver.Generation{Incarnation: 7, Sequence: 3},
		Body:       &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: vm}},
	}
}

var (
	emulated = &hostcaps.Machine{Kind: "qemu", Type: "pc-q35-7.2", Emulator: "/usr/bin/qemu-system-x86_64", CPU: "maximum", CDROMBus: "sata", VNC: true, RNG: true, PanicDevice: "isa"}
	native   = &hostcaps.Machine{Kind: "kvm", Type: "pc-q35-7.2", Emulator: "/usr/bin/qemu-system-x86_64", CPU: "host-passthrough", CDROMBus: "sata", VNC: true, RNG: true, PanicDevice: "isa"}
	arm      = &hostcaps.Machine{Kind: "kvm", Type: "virt-7.2", Emulator: "/usr/bin/qemu-system-aarch64", CPU: "host-passthrough", Firmware: "efi", CDROMBus: "scsi"}
)

// The test compares the domain XML that the driver makes from several specifications, on machines with
// different capabilities, with golden files.
func TestDomainXMLOfSpecifications(t *testing.T) {
	for _, c := range []struct {
		name    string
		vm      *agentv1.VMSpec
		volumes []driver.Volume
		machine *hostcaps.Machine
		vnc     string
		bridges map[string]bool
	}{
		{"small", &agentv1.VMSpec{Vcpus: 1, MemoryMb: 256, Disks: []*agentv1.DiskConfig{{Device: "vda", SizeGb: 1}}}, nil, emulated, "127.0.0.1", nil},
		{"kvm", &agentv1.VMSpec{Name: "Web", Vcpus: 4, CpuMillicores: 2500, MemoryMb: 2048, OsImage: "debian.qcow2",
			Disks: []*agentv1.DiskConfig{
				{Device: "vda", SizeGb: 20, Path: "/var/lib/libvirt/images/web-vda.qcow2"}, {Device: "vdb", Format: "raw", Path: "/srv/data.img"},
				{Device: "vdc", Path: "/dev/sdx", Format: "raw"}, {Device: "sda", Type: "cdrom", Format: "iso", Path: "/srv/tools.iso", Boot: true},
				{Device: "vdd", Pool: "fast", SizeGb: 5}},
			Networks: []*agentv1.NetworkConfig{{Network: "default"}, {Network: "br0", MacAddress: "52:54:00:AA:BB:CC", IpAddress: "10.0.0.5/24"}}},
			nil, native, "0.0.0.0", map[string]bool{"br0": true}},
		{"network-disks", &agentv1.VMSpec{Vcpus: 1, MemoryMb: 256, Disks: []*agentv1.DiskConfig{
			{Device: "vda", Path: "rbd:vms/web", Format: "raw"}, {Device: "vdb", Path: "nfs://filer:2050/export/web.qcow2"}, {Device: "vdc", Path: "filer:/export/more.img", Format: "raw"}}},
			[]driver.Volume{{Name: "data", Disk: "/srv/volumes/data.img"}, {Name: "ceph", Disk: "rbd:vols/ceph", ReadOnly: true}}, emulated, "", nil},
		{"arm", &agentv1.VMSpec{Vcpus: 2, MemoryMb: 512, OsImage: "/srv/arm.qcow2", Disks: []*agentv1.DiskConfig{{}}}, nil, arm, "127.0.0.1", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := specFor(c.vm, c.volumes...)
			p, err := makePlan(spec, "web", layout{images: defaultImages})
			if err != nil {
				t.Fatal(err)
			}
			r := record{Labels: map[string]string{"persys.workload_id": "web", "odd": `<&">`}, Instance: "0123", Created: time.Unix(1700000000, 0).UTC(), Console: "/images/web.persys/console.log"}
			if p.quota > 0 {
				r.CPU = &cpuFact{Millicores: p.quota}
			}
			if p.seed != nil {
				r.Seed = &seedFact{Path: "/images/web.persys/cloud-init.iso"}
			}
			got, err := domainXML(p, found{machine: c.machine, vnc: c.vnc, password: "ABCDEFGH", bridges: c.bridges, record: r})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, c.name+".xml", got)
			if back := readRecord(got); back == nil || back.Labels["odd"] != `<&">` || back.Console != r.Console {
				t.Errorf("the record reads back as %+v", back)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got+"\n" != string(want) {
		t.Errorf("the domain XML differs from %s (run with -update if the change is intended):\n%s", file, got)
	}
}

func TestInvalidMachinesAreRefused(t *testing.T) {
	disk := func(d *agentv1.DiskConfig) *agentv1.VMSpec {
		return &agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, Disks: []*agentv1.DiskConfig{d}}
	}
	for name, c := range map[string]struct {
		vm    *agentv1.VMSpec
		class driver.Class
		want  string
	}{
		"a negative CPU quota":         {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CpuMillicores: -1}, driver.InvalidSpecification, "vm.cpu_millicores"},
		"a machine without processors": {&agentv1.VMSpec{MemoryMb: 1}, driver.InvalidSpecification, "vm.vcpus"},
		"an unknown format":            {disk(&agentv1.DiskConfig{Format: "vmdk"}), driver.InvalidSpecification, "disks[0].format"},
		"an unknown type":              {disk(&agentv1.DiskConfig{Type: "floppy"}), driver.InvalidSpecification, "disks[0].type"},
		"a cdrom without a path":       {disk(&agentv1.DiskConfig{Type: "cdrom"}), driver.InvalidSpecification, "disks[0].path"},
		"an invalid path":              {disk(&agentv1.DiskConfig{Path: "disk.img"}), driver.InvalidSpecification, "disks[0].path"},
		"an invalid address":           {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, Networks: []*agentv1.NetworkConfig{{IpAddress: "10.0.0"}}}, driver.InvalidSpecification, "networks[0].ip_address"},
		"an invalid MAC address":       {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, Networks: []*agentv1.NetworkConfig{{MacAddress: "52:54"}}}, driver.InvalidSpecification, "networks[0].mac_address"},
		"two disks with the same device name": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, Disks: []*agentv1.DiskConfig{{Device: "vda"}, {Device: "vda"}}},
			driver.InvalidSpecification, "disks[1].device"},
		"user data over the size limit": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInit: strings.Repeat("a", maxSeed+1)}, driver.CloudInitInvalid, "cloud-init-invalid: user_data"},
		"cloud-init documents that exceed the limit together": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInitConfig: &agentv1.CloudInitConfig{
			UserData: strings.Repeat("a", maxSeed/2+1), VendorData: strings.Repeat("a", maxSeed/2)}}, driver.CloudInitInvalid, "cloud-init-invalid: all parts"},
		"user data with a NUL byte": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInit: "a\x00b"}, driver.CloudInitInvalid, "cloud-init-invalid: user_data holds a NUL"},
		"meta-data that is null":    {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInitConfig: &agentv1.CloudInitConfig{MetaData: "null"}}, driver.CloudInitInvalid, "meta_data is not a mapping in JSON or YAML: null"},
		"meta-data that is a list":  {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInitConfig: &agentv1.CloudInitConfig{MetaData: "[a]"}}, driver.CloudInitInvalid, "cloud-init-invalid: meta_data"},
		"network-config that is not YAML": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInitConfig: &agentv1.CloudInitConfig{NetworkConfig: "a: ["}},
			driver.CloudInitInvalid, "cloud-init-invalid: network_config"},
		"a login without password and keys": {&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1, Login: &agentv1.VMLogin{User: "ops"}}, driver.InvalidSpecification, "vm.login"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := makePlan(specFor(c.vm), "web", layout{images: defaultImages})
			var e *driver.Error
			if !errors.As(err, &e) || e.Class != c.class || !strings.Contains(e.Err.Error(), c.want) {
				t.Errorf("makePlan returned the error %v, want class %s with the text %q", err, c.class, c.want)
			}
		})
	}
	if _, err := makePlan(specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 1}, driver.Volume{Name: "v", Path: "/folder"}), "web", layout{}); err == nil {
		t.Error("a folder was accepted as a disk")
	}
}

func TestTheSeedFollowsTheSpecification(t *testing.T) {
	seed := func(vm *agentv1.VMSpec) *seedPlan {
		t.Helper()
		s, err := planSeed("web", vm)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := seed(&agentv1.VMSpec{}); s != nil {
		t.Errorf("a machine without cloud-init data gets the seed %+v, want none", s)
	}
	if s := seed(&agentv1.VMSpec{OsImage: "/i"}); s == nil {
		t.Error("a machine whose disk is made from an image gets no seed, so its cloud-init would wait for one")
	}
	plain := "#cloud-config\na: b\n"
	coded := "I2Nsb3VkLWNvbmZpZwphOiBi\nCg=="
	for name, c := range map[string]struct {
		vm   *agentv1.VMSpec
		want string
	}{
		"plain":                             {&agentv1.VMSpec{CloudInit: plain}, plain},
		"base64":                            {&agentv1.VMSpec{CloudInit: coded}, plain},
		"base64 in cloud_init_config":       {&agentv1.VMSpec{CloudInitConfig: &agentv1.CloudInitConfig{UserData: coded}}, plain},
		"cloud_init_config over cloud_init": {&agentv1.VMSpec{CloudInit: "#!/bin/sh\n", CloudInitConfig: &agentv1.CloudInitConfig{UserData: plain}}, plain},
		"text that only looks like base64":  {&agentv1.VMSpec{CloudInit: "abcd"}, "abcd"},
		"vendor data alone":                 {&agentv1.VMSpec{CloudInitConfig: &agentv1.CloudInitConfig{VendorData: plain}}, "#cloud-config\n{}\n"},
	} {
		if s := seed(c.vm); s.user != c.want {
			t.Errorf("%s: the seed has the user data %q, want %q", name, s.user, c.want)
		}
	}
	a, b := seed(&agentv1.VMSpec{Name: "My_Web.1", CloudInit: plain}), seed(&agentv1.VMSpec{Name: "My_Web.1", CloudInit: plain, MemoryMb: 5})
	if a.meta != b.meta || !strings.Contains(a.meta, "local-hostname: my-web.1") || !strings.Contains(a.meta, "instance-id: web-") {
		t.Errorf("the seeds of two equal specifications have the meta-data %q and %q, want the same", a.meta, b.meta)
	}
	if c := seed(&agentv1.VMSpec{Name: "My_Web.1", CloudInit: plain + "c: d\n"}); c.meta == a.meta {
		t.Error("other user data lead to the same cloud-init instance id, so cloud-init would ignore the change")
	}
	at := func(ip string) *seedPlan {
		return seed(&agentv1.VMSpec{Name: "My_Web.1", CloudInit: plain, Networks: []*agentv1.NetworkConfig{{}, {IpAddress: ip}}})
	}
	if at("").meta != a.meta || at("10.0.0.5").meta == a.meta || at("10.0.0.5").meta == at("10.0.0.6").meta {
		t.Error("another static address leads to the same cloud-init instance id, so cloud-init would ignore the change")
	}
	own := `{"instance-id": "mine", "local-hostname": "h"}`
	if s := seed(&agentv1.VMSpec{CloudInitConfig: &agentv1.CloudInitConfig{MetaData: own}}); s.meta != own {
		t.Errorf("meta-data that the author of the specification wrote became %q, want no change", s.meta)
	}
	if s := seed(&agentv1.VMSpec{CloudInitConfig: &agentv1.CloudInitConfig{MetaData: "local-hostname: h\n"}}); !strings.Contains(s.meta, "instance-id: web-") || !strings.Contains(s.meta, "local-hostname: h") {
		t.Errorf("meta-data without an instance id became %q, want an instance id added", s.meta)
	}
	login := &agentv1.VMLogin{User: "ops", Password: "p:w", SshAuthorizedKeys: []string{"ssh-ed25519 AAAA ops"}}
	golden(t, "login.yaml", seed(&agentv1.VMSpec{Login: login}).vendor)
	both := seed(&agentv1.VMSpec{Login: login, CloudInitConfig: &agentv1.CloudInitConfig{VendorData: "#!/bin/sh\necho hi\n"}}).vendor
	golden(t, "login-and-vendor-data.mime", strings.ReplaceAll(both, "\r\n", "\n"))
}

func TestNetworkConfigOfInterfaces(t *testing.T) {
	lan := map[string][]nocloud.Subnet{
		"default": {{Prefix: netip.MustParsePrefix("192.168.122.0/24"), Router: netip.MustParseAddr("192.168.122.1"), Routes: true}},
		"island":  {{Prefix: netip.MustParsePrefix("10.9.0.0/16"), Router: netip.MustParseAddr("10.9.0.1"), Routes: false}},
	}
	got, err := nocloud.NetworkConfig([]nocloud.Interface{
		{Network: "default", MAC: "52:54:00:00:00:01"}, {Network: "default", MAC: "52:54:00:00:00:02", Static: "192.168.122.9"},
		{Network: "island", MAC: "52:54:00:00:00:03", Static: "10.9.1.2"}, {Network: "br0", MAC: "52:54:00:00:00:04", Static: "172.16.0.9"},
		{Network: "br0", MAC: "52:54:00:00:00:05", Static: "172.16.0.10/20"}, {Network: "br0", MAC: "52:54:00:00:00:06", Static: "fd00::5"},
	}, lan)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "network-config.yaml", got)
	facts, err := hostcaps.Subnets(`<network><name>n</name><forward mode='nat'/><ip address='192.168.122.1' netmask='255.255.255.0'/><ip family='ipv6' address='fd00::1' prefix='64'/></network>`)
	if err != nil || len(facts) != 2 || facts[0] != lan["default"][0] || facts[1].Prefix.String() != "fd00::/64" {
		t.Errorf("hostcaps.Subnets returned %+v, error %v; want the IPv4 and the IPv6 subnet in the XML of the network", facts, err)
	}
}

// The test reads the files of the cloud-init seed back from its ISO image, as a guest does.
func TestTheSeedImageCanBeReadBack(t *testing.T) {
	s, err := planSeed("web", &agentv1.VMSpec{CloudInit: "#cloud-config\n", CloudInitConfig: &agentv1.CloudInitConfig{VendorData: "#cloud-config\nv: 1\n"}})
	if err != nil {
		t.Fatal(err)
	}
	raw, sum, err := nocloud.Image(s.files("version: 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	iso, err := iso9660.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	if label, err := iso.Label(); err != nil || strings.TrimSpace(label) != "cidata" {
		t.Errorf("the volume id of the ISO image is %q, error %v; want cidata", label, err)
	}
	root, err := iso.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range all {
		names = append(names, c.Name())
	}
	if got := strings.Join(names, " "); got != "meta-data network-config user-data vendor-data" {
		t.Errorf("files %q", got)
	}
	again, sameSum, err := nocloud.Image(s.files("version: 2\n"))
	if err != nil || sum != sameSum || len(again) != len(raw) {
		t.Errorf("the checksums of two equal seeds are %s and %s, %v; want equal ones", sum, sameSum, err)
	}
}

func TestDiskPathsOfSchedulersAreMoved(t *testing.T) {
	at := layout{images: "/srv/vms"}
	for name, c := range map[string]struct{ path, domain, want string }{
		"a path invented by schedulers is moved": {"/var/lib/libvirt/images/web-vda.qcow2", "web", "/srv/vms/web-vda.qcow2"},
		"a moved path has the domain's name":     {"/var/lib/libvirt/images/web-vda.qcow2", "web--node-a", "/srv/vms/web--node-a-vda.qcow2"},
		"a path of the author stays":             {"/var/lib/libvirt/images/mine.qcow2", "web", "/var/lib/libvirt/images/mine.qcow2"},
		"a path of another workload stays":       {"/var/lib/libvirt/images/other-vda.qcow2", "web", "/var/lib/libvirt/images/other-vda.qcow2"},
	} {
		if got := rebase(c.path, "web", c.domain, diskPlan{device: "vda", format: "qcow2"}, at); got != c.want {
			t.Errorf("%s: rebase returned the path %s, want %s", name, got, c.want)
		}
	}
	if u := uuidOf("c", "web"); len(u) != 36 || u == uuidOf("c", "web2") {
		t.Errorf("uuid %s", u)
	}
}

// The driver looks up DHCP leases only for interfaces without a static address. For an interface with a
// static address, the network may still hold an outdated lease.
func TestLeasesAreAskedOnlyForDynamicInterfaces(t *testing.T) {
	const domain = `<domain><devices>
<interface type='bridge'><mac address='52:54:00:00:00:0A'/><source bridge='br0'/><target dev='vnet0'/></interface>
<interface type='network'><mac address='52:54:00:00:00:0b'/><source network='default'/></interface>
</devices></domain>`
	const macA, macB = "52:54:00:00:00:0a", "52:54:00:00:00:0b"
	a, b := address{name: "vnet0", mac: macA}, address{mac: macB}
	for _, c := range []struct {
		name   string
		record *record
		want   []address
	}{
		{"a legacy v1 agent's domain", nil, []address{a, b}},
		{"two leases", &record{Leases: 2}, []address{a, b}},
		{"static addresses only", &record{Static: []string{"10.0.0.1", "10.0.0.2"}, Fixed: []string{macA, macB}}, nil},
		{"one interface of each kind", &record{Leases: 1, Static: []string{"10.0.0.1"}, Fixed: []string{macA}}, []address{b}},
		{"one interface of each kind, in a record without MAC addresses", &record{Leases: 1, Static: []string{"10.0.0.1"}}, []address{a, b}},
	} {
		if got := c.record.asked(interfacesOf(domain)); len(got)+len(c.want) > 0 && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: the driver asks for the leases of %v, want %v", c.name, got, c.want)
		}
	}
}
