package asks

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
)

// judged checks asks, the requests of a workload of this kind, against a built-in policy. It returns the
// names of the rules by which the policy refuses them.
func judged(t *testing.T, name, kind string, asks []policy.Ask) string {
	t.Helper()
	p, ok := policy.Builtin(name)
	if !ok {
		t.Fatalf("there must be a built-in policy %s", name)
	}
	var rules []string
	for _, v := range policy.Judge(p, policy.Workload{Kind: kind, Asks: asks}) {
		rules = append(rules, v.Field+" "+v.Rule)
	}
	return strings.Join(rules, ", ")
}

func TestAsksOfAContainer(t *testing.T) {
	hard := func(c *agentv1.ContainerSpec) *agentv1.ContainerSpec {
		c.User, c.CapDrop = "1000", []string{"ALL"}
		c.Resources = &agentv1.ResourceLimits{CpuMillicores: 100, MemoryBytes: 1 << 20}
		return c
	}
	for _, tt := range []struct {
		name                 string
		c                    *agentv1.ContainerSpec
		baseline, restricted string
	}{
		{"a container without options: allowed by the policy baseline only", &agentv1.ContainerSpec{}, "", "container requires, container users, container requires, container requires, container requires"},
		{"a hardened container: allowed by both policies", hard(&agentv1.ContainerSpec{}), "", ""},
		{"privileged mode: refused by both policies", hard(&agentv1.ContainerSpec{Privileged: true}), "container.privileged privileged", "container.privileged privileged"},
		{"a mount of /etc: refused by both policies", hard(&agentv1.ContainerSpec{Volumes: []*agentv1.VolumeMount{{HostPath: "/etc", ReadOnly: true}}}),
			"container.volumes[0].host_path host_paths", "container.volumes[0].host_path host_paths"},
		{"a mount of the root of the host: refused by both policies", hard(&agentv1.ContainerSpec{Volumes: []*agentv1.VolumeMount{{HostPath: "/"}}}),
			"container.volumes[0].host_path engine_socket", "container.volumes[0].host_path engine_socket"},
		{"a mount of the engine's socket: refused by both policies", hard(&agentv1.ContainerSpec{Volumes: []*agentv1.VolumeMount{{HostPath: "/run/../var/run/docker.sock"}}}),
			"container.volumes[0].host_path engine_socket", "container.volumes[0].host_path engine_socket"},
		{"an added capability: refused by both policies", hard(&agentv1.ContainerSpec{CapAdd: []string{"cap_sys_admin", "chown"}}),
			"container.cap_add[0] capabilities", "container.cap_add[0] capabilities, container.cap_add[1] capabilities"},
		{"all capabilities added: refused by both policies", hard(&agentv1.ContainerSpec{CapAdd: []string{"all"}}), "container.cap_add[0] capabilities", "container.cap_add[0] capabilities"},
		{"new privileges allowed: allowed by the policy baseline only", hard(&agentv1.ContainerSpec{SecurityOpt: []string{"no-new-privileges:false"}}), "", "container.security_opt[0] security_options"},
		{"seccomp switched off: refused by both policies", hard(&agentv1.ContainerSpec{SecurityOpt: []string{"seccomp:unconfined"}}), "container.security_opt[0] security_options", "container.security_opt[0] security_options"},
		{"the user 0, which is root", hard(&agentv1.ContainerSpec{}), "", ""},
		{"no limit on processes: refused by both policies", hard(&agentv1.ContainerSpec{PidsLimit: -1}), "container.pids_limit max_pids", "container.pids_limit max_pids"},
		{"CPU shares above the default: refused by both policies", hard(&agentv1.ContainerSpec{CpuShares: 4096}), "container.cpu_shares security_options", "container.cpu_shares security_options"},
		{"CPU shares below the default: allowed by both policies", hard(&agentv1.ContainerSpec{CpuShares: 512}), "", ""},
		{"a block I/O weight above the default: refused by both policies", hard(&agentv1.ContainerSpec{BlkioConfig: &agentv1.BlkioConfig{WeightDevice: []*agentv1.WeightDevice{{Weight: 900}}}}),
			"container.blkio_config security_options", "container.blkio_config security_options"},
		{"a MAC address: refused by both policies", hard(&agentv1.ContainerSpec{MacAddress: "02:42:ac:11:00:07"}), "container.mac_address security_options", "container.mac_address security_options"},
		{"no OOM killer: refused by both policies", hard(&agentv1.ContainerSpec{OomKillDisable: true}), "container.oom_kill_disable security_options", "container.oom_kill_disable security_options"},
		{"a control group of the host: refused by both policies", hard(&agentv1.ContainerSpec{CgroupParent: "/system.slice"}), "container.cgroup_parent security_options", "container.cgroup_parent security_options"},
		{"another OCI runtime: refused by both policies", hard(&agentv1.ContainerSpec{Runtime: "runsc"}), "container.runtime security_options", "container.runtime security_options"},
		{"host port 22: refused by both policies", hard(&agentv1.ContainerSpec{Ports: []*agentv1.PortMapping{{HostPort: 22}}}), "container.ports[0] ports", "container.ports[0] ports"},
		{"host port 80: allowed by the policy baseline only", hard(&agentv1.ContainerSpec{Ports: []*agentv1.PortMapping{{HostPort: 80}, {HostPort: 8080}, {}}}), "", "container.ports[0] ports"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asks := Container(tt.c, Image("nginx"))
			if got := judged(t, policy.Baseline, "container", asks); got != tt.baseline {
				t.Errorf("the policy baseline refuses the asks %q, want %q", got, tt.baseline)
			}
			if got := judged(t, policy.Restricted, "container", asks); got != tt.restricted {
				t.Errorf("the policy restricted refuses the asks %q, want %q", got, tt.restricted)
			}
			if got := judged(t, policy.Privileged, "container", asks); got != "" {
				t.Errorf("policy privileged must refuse nothing, but refuses %q", got)
			}
		})
	}
}

func TestAsksOfAVirtualMachine(t *testing.T) {
	for _, tt := range []struct {
		name     string
		v        *agentv1.VMSpec
		baseline string
	}{
		{"a disk that the agent creates for the VM: allowed by the policy baseline", &agentv1.VMSpec{OsImage: "debian.qcow2", Disks: []*agentv1.DiskConfig{
			{Device: "vda", Path: "/var/lib/libvirt/images/db-vda.qcow2"}, {Device: "vdb", Format: "raw", Path: "/var/lib/libvirt/images/db-vdb.img"}, {Device: "vdc", Pool: "fast"},
		}, Networks: []*agentv1.NetworkConfig{{}}}, ""},
		{"a disk device of the host: refused by the policy baseline", &agentv1.VMSpec{Disks: []*agentv1.DiskConfig{{Path: "/dev/sda"}}}, "vm.disks[0].path disks"},
		{"the disk of another workload: refused by the policy baseline", &agentv1.VMSpec{Disks: []*agentv1.DiskConfig{{Device: "vda", Path: "/var/lib/libvirt/images/bank-vda.qcow2"}}}, "vm.disks[0].path disks"},
		{"the disk of another workload as an image: refused by the policy baseline", &agentv1.VMSpec{OsImage: "bank-vda.qcow2"}, "vm.image disks"},
		{"the path of the VM's own disk as a cdrom: refused by the policy baseline", &agentv1.VMSpec{Disks: []*agentv1.DiskConfig{{Device: "vda", Type: "cdrom", Path: "/var/lib/libvirt/images/db-vda.qcow2"}}}, "vm.disks[0].path disks"},
		{"a file of the host as an image: refused by the policy baseline", &agentv1.VMSpec{OsImage: "/etc/shadow"}, "vm.image disks"},
		{"an image outside of the folder of images: refused by the policy baseline", &agentv1.VMSpec{OsImage: "../../../../etc/shadow"}, "vm.image disks"},
		{"a disk on the network: refused by the policy baseline", &agentv1.VMSpec{Disks: []*agentv1.DiskConfig{{Path: "rbd:pool/image"}}}, "vm.disks[0].path disks"},
		{"a bridge of the host: refused by the policy baseline", &agentv1.VMSpec{Networks: []*agentv1.NetworkConfig{{Network: "br0"}}}, "vm.networks[0].network networks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asks := VM(tt.v, Machine{Names: []string{"db"}, IsDisk: func(p string) bool { return p == "/var/lib/libvirt/images/bank-vda.qcow2" }})
			if got := judged(t, policy.Baseline, "vm", asks); got != tt.baseline {
				t.Errorf("the policy baseline refuses the asks %q, want %q", got, tt.baseline)
			}
			if got := judged(t, policy.Privileged, "vm", asks); got != "" {
				t.Errorf("policy privileged must refuse nothing, but refuses %q", got)
			}
		})
	}
}

// load writes files (name to content) to dir and loads the Compose project in them, with the
// environment env.
func load(t *testing.T, dir string, env map[string]string, files map[string]string) *types.Project {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir: dir, Environment: env, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
	}, func(o *loader.Options) {
		o.SetProjectName("shop", true)
		o.ResolvePaths = true
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAsksOfAComposeProject checks that each privilege appears in the list of asks (things requested from
// the machine), in every form in which a Compose file can express it.
func TestAsksOfAComposeProject(t *testing.T) {
	const head = "services:\n  a:\n    image: x\n"
	one := func(lines string) map[string]string { return map[string]string{"compose.yaml": head + lines} }
	for _, tt := range []struct {
		name     string
		files    map[string]string
		env      map[string]string
		baseline string
	}{
		{"an ordinary stack: allowed by the policy baseline", one("    ports: ['8080:80', '9000']\n    volumes: ['data:/data', './conf:/conf:ro', '/tmp/anonymous']\n    networks: [front]\nvolumes: {data: {}}\nnetworks: {front: {}}\n"), nil, ""},

		{"a mount of /etc: refused by the policy baseline", one("    volumes: ['/etc:/x']\n"), nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through a variable: refused by the policy baseline", one("    volumes: ['${WHERE}:/x']\n"), map[string]string{"WHERE": "/etc"}, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through the default of a variable: refused by the policy baseline", one("    volumes: ['${WHERE:-/etc}:/x']\n"), nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through extends: refused by the policy baseline", map[string]string{"compose.yaml": head + "    extends: {file: base.yaml, service: b}\n", "base.yaml": "services:\n  b:\n    image: y\n    volumes: ['/etc:/x']\n"}, nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through extends in the same file: refused by the policy baseline", one("    extends: {service: b}\n  b:\n    image: y\n    volumes: ['/etc:/x']\n"), nil, "services.a.volumes[0] host_paths, services.b.volumes[0] host_paths"},
		{"a mount of /etc through include: refused by the policy baseline", map[string]string{"compose.yaml": "include: [other.yaml]\n" + head, "other.yaml": "services:\n  b:\n    image: y\n    volumes: ['/etc:/x']\n"}, nil, "services.b.volumes[0] host_paths"},
		{"a mount of /etc through a merge key: refused by the policy baseline", map[string]string{"compose.yaml": "x-b: &b\n  volumes: ['/etc:/x']\n" + head + "    <<: *b\n"}, nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through a relative path: refused by the policy baseline", one("    volumes: ['../../../../../../../../../../etc:/x']\n"), nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc in the long form: refused by the policy baseline", one("    volumes: [{type: bind, source: /etc, target: /x}]\n"), nil, "services.a.volumes[0] host_paths"},
		{"a mount of /etc through a volume: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {driver_opts: {type: none, o: bind, device: /etc}}}\n"), nil, "volumes.v.driver_opts.device host_paths"},
		{"a mount of /etc through a volume without the leading slash: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {driver_opts: {o: bind, device: etc}}}\n"), nil, "volumes.v.driver_opts.device host_paths"},
		{"a mount of /etc through an overlay: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {driver_opts: {type: overlay, o: 'lowerdir=/lib:/etc', device: overlay}}}\n"), nil,
			"volumes.v.driver_opts.o host_paths, volumes.v.driver_opts.o host_paths, volumes.v.driver_opts.device volumes"},
		{"a mount of the root: refused by the policy baseline", one("    volumes: ['/:/x']\n"), nil, "services.a.volumes[0] engine_socket"},
		{"the engine's socket: refused by the policy baseline", one("    volumes: ['/var/run/docker.sock:/s']\n"), nil, "services.a.volumes[0] engine_socket"},
		{"the engine's API: refused by the policy baseline", one("    use_api_socket: true\n"), nil, "services.a.use_api_socket engine_socket"},
		{"a secret from a file: refused by the policy baseline", one("    secrets: [s]\nsecrets: {s: {file: /etc/shadow}}\n"), nil, "services.a.secrets[0] host_paths"},
		{"a config from a file: refused by the policy baseline", one("    configs: [s]\nconfigs: {s: {file: /etc/shadow}}\n"), nil, "services.a.configs[0] host_paths"},

		{"a MAC address in a network: refused by the policy baseline", one("    networks: {n: {mac_address: '02:42:ac:11:00:07'}}\nnetworks: {n: {}}\n"), nil, "services.a.networks.n.mac_address security_options"},
		{"driver options of a network to which the service connects: refused by the policy baseline", one("    networks: {n: {driver_opts: {com.docker.network.endpoint.ifname: eth9, com.docker.network.endpoint.sysctls: 'net.core.somaxconn=1,net.ipv4.conf.IFNAME.forwarding=1', other: x}}}\nnetworks: {n: {}}\n"), nil,
			"services.a.networks.n.driver_opts.com.docker.network.endpoint.sysctls security_options, services.a.networks.n.driver_opts.other networks"},
		{"a mount with the propagation rshared: refused by the policy baseline", one("    volumes: [{type: bind, source: ./x, target: /x, bind: {propagation: rshared}}]\n"), nil, "services.a.volumes[0].bind.propagation security_options"},
		{"a pre_start container without limits: refused by the policy baseline", one("    pre_start: [{command: id, image: y}]\n"), nil, "services.a.pre_start[0] max_pids"},
		{"a storage quota of the engine: refused by the policy baseline", one("    storage_opt: {size: 90G}\n"), nil, "services.a.storage_opt.size security_options"},
		{"privileged mode: refused by the policy baseline", one("    privileged: true\n"), nil, "services.a.privileged privileged"},
		{"privileged through a variable: refused by the policy baseline", one("    privileged: ${P}\n"), map[string]string{"P": "true"}, "services.a.privileged privileged"},
		{"a privileged hook: refused by the policy baseline", one("    post_start: [{command: id, privileged: true}]\n"), nil, "services.a.post_start[0].privileged privileged"},
		{"the host network: refused by the policy baseline", one("    network_mode: host\n"), nil, "services.a.network_mode host_namespaces"},
		{"host network through a variable: refused by the policy baseline", one("    network_mode: ${N}\n"), map[string]string{"N": "host"}, "services.a.network_mode host_namespaces"},
		{"the host network as an external network: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {external: true, name: host}}\n"), nil, "networks.n.name host_namespaces"},
		{"the network of another container: refused by the policy baseline", one("    network_mode: 'container:bank'\n"), nil, "services.a.network_mode host_namespaces"},
		{"the network of a service: allowed by the policy baseline", one("    network_mode: 'service:b'\n  b:\n    image: y\n"), nil, ""},
		{"a network of the engine by its name: refused by the policy baseline", one("    network_mode: bank_default\n"), nil, "services.a.network_mode networks"},
		{"the process namespace of the host: refused by the policy baseline", one("    pid: host\n"), nil, "services.a.pid host_namespaces"},
		{"the IPC namespace of the host: refused by the policy baseline", one("    ipc: host\n"), nil, "services.a.ipc host_namespaces"},
		{"the UTS namespace of the host: refused by the policy baseline", one("    uts: host\n"), nil, "services.a.uts host_namespaces"},
		{"the user namespace of the host: refused by the policy baseline", one("    userns_mode: host\n"), nil, "services.a.userns_mode host_namespaces"},
		{"cgroups of the host: refused by the policy baseline", one("    cgroup: host\n"), nil, "services.a.cgroup host_namespaces"},
		{"volumes of another container: refused by the policy baseline", one("    volumes_from: ['container:bank']\n"), nil, "services.a.volumes_from[0] host_namespaces"},

		{"an added capability: refused by the policy baseline", one("    cap_add: [SYS_PTRACE]\n"), nil, "services.a.cap_add[0] capabilities"},
		{"a device of the host: refused by the policy baseline", one("    devices: ['/dev/sda']\n"), nil, "services.a.devices[0] devices"},
		{"a device cgroup rule: refused by the policy baseline", one("    device_cgroup_rules: ['b 8:* rwm']\n"), nil, "services.a.device_cgroup_rules[0] devices"},
		{"a GPU: refused by the policy baseline", one("    gpus: all\n"), nil, "services.a.gpus[0] devices"},
		{"seccomp switched off: refused by the policy baseline", one("    security_opt: ['seccomp:unconfined']\n"), nil, "services.a.security_opt[0] security_options"},
		{"AppArmor switched off: refused by the policy baseline", one("    security_opt: ['apparmor=unconfined']\n"), nil, "services.a.security_opt[0] security_options"},
		{"a sysctl of the host: refused by the policy baseline", one("    sysctls: {kernel.core_pattern: x}\n"), nil, "services.a.sysctls.kernel.core_pattern security_options"},
		{"a safe sysctl: allowed by the policy baseline", one("    sysctls: {net.core.somaxconn: 1024}\n"), nil, ""},
		{"a platform: refused by the policy baseline", one("    platform: linux/arm64\n"), nil, "services.a.platform security_options"},
		{"another container runtime: refused by the policy baseline", one("    runtime: other\n"), nil, "services.a.runtime security_options"},
		{"a cgroup of the host: refused by the policy baseline", one("    cgroup_parent: /\n"), nil, "services.a.cgroup_parent security_options"},
		{"a log driver: refused by the policy baseline", one("    logging: {driver: syslog}\n"), nil, "services.a.logging.driver security_options"},
		{"log options of the engine's default driver: refused by the policy baseline", one("    logging: {options: {splunk-url: 'https://other'}}\n"), nil, "services.a.logging.driver security_options"},
		{"a real-time priority: refused by the policy baseline", one("    ulimits: {rtprio: 99}\n"), nil, "services.a.ulimits.rtprio security_options"},
		{"swap without a limit: refused by the policy baseline", one("    mem_limit: 64m\n    memswap_limit: -1\n"), nil, "services.a.memswap_limit security_options"},
		{"oom_kill_disable: refused by the policy baseline", one("    oom_score_adj: -1000\n"), nil, "services.a.oom_score_adj security_options"},
		{"no limit on processes: refused by the policy baseline", one("    pids_limit: -1\n"), nil, "services.a.pids_limit max_pids"},
		{"a port below 1024: refused by the policy baseline", one("    ports: ['22:22']\n"), nil, "services.a.ports[0] ports"},
		{"a port below 1024 in a range: refused by the policy baseline", one("    ports: ['1020-1030:20-30']\n"), nil, "services.a.ports[0] ports, services.a.ports[1] ports, services.a.ports[2] ports, services.a.ports[3] ports"},
		{"the volume of another stack: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {name: bank_data}}\n"), nil, "volumes.v.name volumes"},
		{"an external volume: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {external: true}}\n"), nil, "volumes.v.name volumes"},
		{"a managed volume: allowed by the policy baseline", one("    volumes: ['managed:/x']\nvolumes: {managed: {external: true}}\n"), nil, ""},
		{"a volume of a plug-in: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {driver: sshfs}}\n"), nil, "volumes.v.driver volumes"},
		{"a network file system: refused by the policy baseline", one("    volumes: ['v:/x']\nvolumes: {v: {driver_opts: {type: nfs, o: 'addr=10.0.0.1', device: ':/x'}}}\n"), nil, "volumes.v.driver_opts.device volumes"},
		{"the network of another stack: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {name: bank_default}}\n"), nil, "networks.n.name networks"},
		{"a subnet that the stack chooses: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {ipam: {driver: other, config: [{subnet: 10.0.0.0/25, gateway: 10.0.0.53}]}}}\n"), nil,
			"networks.n.ipam.driver networks, networks.n.ipam.config[0].subnet networks"},
		{"an IPAM option of a network: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {ipam: {options: {x: y}}}}\n"), nil, "networks.n.ipam.options.x networks"},
		{"a bridge of the host: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {driver_opts: {com.docker.network.bridge.name: br0}}}\n"), nil, "networks.n.driver_opts.com.docker.network.bridge.name networks"},
		{"a macvlan network: refused by the policy baseline", one("    networks: [n]\nnetworks: {n: {driver: macvlan}}\n"), nil, "networks.n.driver networks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			p := load(t, dir, tt.env, tt.files)
			asks, err := Project(p, []string{"managed"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := judged(t, policy.Baseline, "compose", asks); got != tt.baseline {
				t.Errorf("the policy baseline refuses the asks %q, want %q", got, tt.baseline)
			}
			if got := judged(t, policy.Privileged, "compose", asks); got != "" {
				t.Errorf("policy privileged must refuse nothing, but refuses %q", got)
			}
		})
	}
}

// TestLimitsOfServices: a policy with maxima checks the limits of each service, and the sum of the limits of
// all containers of a stack. It refuses a service without a limit, like a container without a limit.
func TestLimitsOfServices(t *testing.T) {
	p := policy.Policy{Name: "small", Kinds: []string{"*"}, Images: []string{"*"}, Users: []string{"*"}, MaxCPU: 1000, MaxMemory: 100}
	for _, tt := range []struct{ name, services, want string }{
		{"limits within the maxima are accepted", "a: {image: x, cpus: 0.5, mem_limit: 50m}\n  b: {image: x, deploy: {resources: {limits: {cpus: 0.5, memory: 50m}}}}", ""},
		{"a CPU limit above the maximum is refused", "a: {image: x, cpus: 2, mem_limit: 50m}", "services.a max_cpu_millicores 2000"},
		{"three containers of one service that are together above the maximum are refused", "a: {image: x, cpu_quota: 50000, mem_limit: 50m, scale: 3}", "services.a max_cpu_millicores 1500, services.a max_memory_mib 150"},
		{"two services that are together above the maximum are refused", "a: {image: x, cpus: 0.1, mem_limit: 60m}\n  b: {image: x, cpus: 0.1, mem_limit: 60m}", "services max_memory_mib 120"},
		{"a service without limits is refused", "a: {image: x}", "services.a max_cpu_millicores , services.a max_memory_mib "},
		{"a service with scale 0 needs no limits", "a: {image: x, cpus: 1, mem_limit: 100m}\n  b: {image: x, scale: 0}", ""},
		{"a pre_start container, which has no limits, is refused", "a: {image: x, cpus: 1, mem_limit: 100m, pre_start: [{command: id}]}", "services.a.pre_start[0] max_cpu_millicores , services.a.pre_start[0] max_memory_mib "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asks, err := Project(load(t, t.TempDir(), nil, map[string]string{"compose.yaml": "services:\n  " + tt.services + "\n"}), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range policy.Judge(&p, policy.Workload{Kind: "compose", CPU: 1, Memory: 1, Asks: asks}) {
				got = append(got, v.Field+" "+v.Rule+" "+v.Value)
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("the policy refuses the asks %q (field, rule and value), want %q", text, tt.want)
			}
		})
	}
}

// TestLinksOfAStack checks that if a service mounts a symbolic link in the stack's own folder, the policy judges the
// target of the link.
func TestLinksOfAStack(t *testing.T) {
	dir := t.TempDir()
	for _, link := range [][2]string{{"/etc", "out"}, {"here", "in"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	kept := t.TempDir()
	p := load(t, dir, nil, map[string]string{"compose.yaml": "services: {a: {image: x, volumes: ['./out:/a', './out/ssh:/b', './in:/c', './none:/d'], secrets: [s, f]}}\n" +
		"secrets: {s: {file: " + kept + "/s}, f: {file: " + kept + "x/s}}\n"})
	asks, err := Project(p, nil, Links, kept)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := judged(t, policy.Baseline, "compose", asks), "services.a.volumes[0] host_paths, services.a.volumes[1] host_paths, services.a.secrets[1] host_paths"; got != want {
		t.Errorf("the policy baseline refuses the asks %q, want %q", got, want)
	}
}

// A policy that lists host addresses applies to every published port, even to a port whose number the engine chooses.
func TestPortsOnAllowedAddresses(t *testing.T) {
	p := *policy.Builtins()[1]
	p.Addresses = []string{"127.0.0.1"}
	for _, tt := range []struct {
		name string
		port port
		ok   bool
	}{
		{"a port on all addresses is refused", port{Published: "8080"}, false},
		{"a port that the engine chooses, on all addresses, is refused", port{}, false},
		{"a port that the engine chooses, on 0.0.0.0, is refused", port{Address: "0.0.0.0", Published: "0"}, false},
		{"a port that the engine chooses, on an allowed address, is accepted", port{Address: "127.0.0.1"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var l list
			l.port(tt.port, "ports[0]")
			broken := policy.Judge(&p, policy.Workload{Kind: "container", Asks: l})
			if (len(broken) == 0) != tt.ok {
				t.Errorf("the policy with allowed addresses reports the violations %+v, want violations only for a port on other addresses", broken)
			}
		})
	}
}

// TestIngressPort: a port in ingress mode has the same asks as a host port at all addresses.
func TestIngressPort(t *testing.T) {
	for _, tt := range []struct {
		port                 int32
		baseline, restricted string
	}{
		{22, "container.ports[2] ports", "container.ports[2] ports"},
		{80, "", "container.ports[2] ports"},
		{8080, "", ""},
	} {
		list := IngressPort(tt.port, "", "container.ports[2]")
		if got := judged(t, policy.Baseline, "container", list); got != tt.baseline {
			t.Errorf("for port %d in ingress mode, the policy baseline refuses the asks %q, want %q", tt.port, got, tt.baseline)
		}
		if got := judged(t, policy.Restricted, "container", list); got != tt.restricted {
			t.Errorf("for port %d in ingress mode, the policy restricted refuses the asks %q, want %q", tt.port, got, tt.restricted)
		}
	}
}

// TestRefusalsNameTheHook: the refusal of a hook names the hook and its key. If the policy requires a setting
// that a pre_start hook cannot have, such as a memory limit, the refusal says to write a service in place of the hook.
func TestRefusalsNameTheHook(t *testing.T) {
	strict := &policy.Policy{Name: "strict", Kinds: []string{"*"}, Images: []string{"docker.io/library/x"}, Users: []string{"1000"},
		Requires: []string{"user", "cap_drop", "cpu", "memory"}, MaxPids: 100, MaxCPU: 1000, MaxMemory: 1000}
	const (
		head    = "services:\n  a:\n    image: x\n    user: '1000'\n    cap_drop: [ALL]\n    cpus: 1\n    mem_limit: 100m\n    "
		by      = `is not allowed by policy "strict" (rule `
		instead = ", which a pre_start hook cannot have: write a service with the command of the hook instead, and start the other services after it (depends_on with condition: service_completed_successfully)"
	)
	for hook, want := range map[string][]string{
		"post_start: [{command: id}]": nil,
		"post_start: [{command: id, user: '1000'}, {command: id, user: '0', privileged: true}]": {
			"services.a.post_start[1].privileged: \"true\" " + by + "privileged): privileged containers are not allowed",
			"services.a.post_start[1].user: \"0\" " + by + "users): allowed are 1000",
		},
		"pre_stop: [{command: id, user: root, privileged: true}]": {
			"services.a.pre_stop[0].privileged: \"true\" " + by + "privileged): privileged containers are not allowed",
			"services.a.pre_stop[0].user: \"root\" " + by + "users): allowed are 1000",
		},
		"pre_start: [{command: id, image: y, user: '1000'}]": {
			"services.a.pre_start[0].image: \"docker.io/library/y:latest\" " + by + "images): allowed are docker.io/library/x",
			"services.a.pre_start[0]: " + by + "max_pids): the policy requires a limit of at most 100 processes" + instead,
			"services.a.pre_start[0]: " + by + "max_cpu_millicores): the policy requires a CPU limit (cpus)" + instead,
			"services.a.pre_start[0]: " + by + "max_memory_mib): the policy requires a memory limit (mem_limit)" + instead,
			"services.a.pre_start[0]: " + by + "requires): the policy requires all capabilities dropped (cap_drop: [ALL])" + instead,
			"services.a.pre_start[0]: " + by + "requires): the policy requires a CPU limit (resources.cpu)" + instead,
			"services.a.pre_start[0]: " + by + "requires): the policy requires a memory limit (resources.memory)" + instead,
		},
		"pre_start: [{command: id, user: '1000'}, {command: id}]": {
			"services.a.pre_start[1].user: " + by + "requires): it must have a user with a number other than 0 (user: 1000)",
			"services.a.pre_start[1].user: \"the user of the image\" " + by + "users): allowed are 1000",
		},
	} {
		t.Run(hook, func(t *testing.T) {
			asks, err := Project(load(t, t.TempDir(), nil, map[string]string{"compose.yaml": head + hook + "\n"}), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := policy.Judge(strict, policy.Workload{Kind: "compose", CPU: 1, Memory: 1, Asks: asks})
			if strings.Contains(hook, "{command: id}]") { // the other refusals are those of the case before
				got = slices.DeleteFunc(got, func(v policy.Violation) bool { return !strings.Contains(v.Field, ".user") })
			}
			if text := policy.Text(got); text != strings.Join(want, "\n") {
				t.Errorf("the policy refuses the hook with\n%s\nwant\n%s", text, strings.Join(want, "\n"))
			}
		})
	}
	c := &agentv1.ContainerSpec{Image: "x", PreStop: []*agentv1.Hook{{Command: []string{"id"}, User: "0"}}}
	users := &policy.Policy{Name: "strict", Kinds: []string{"*"}, Images: []string{"*"}, Users: []string{"", "1000"}}
	want := "container.pre_stop[0].user: \"0\" " + by + "users): allowed are , 1000"
	if text := policy.Text(policy.Judge(users, policy.Workload{Asks: Container(c, "x")})); text != want {
		t.Errorf("the policy refuses the hook of a container with\n%s\nwant\n%s", text, want)
	}
}
