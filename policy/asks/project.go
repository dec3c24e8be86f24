package asks

import (
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/policy"
	"github.com/persys/compute/stack/service"
)

// Resolve returns a path inside the folder of a stack with its symbolic links resolved. Schedulers do not
// have that folder and pass nil.
type Resolve func(string) string

// Project returns the asks of a loaded Compose project (the things that it requests from its machine). Paths below
// its working directory and below folders belong to the stack and are not listed. A path whose symbolic links lead
// out of these folders is listed. managed are the names of the workload's managed volumes, which are external volumes
// in the project.
func Project(p *types.Project, managed []string, resolve Resolve, folders ...string) ([]policy.Ask, error) {
	d := project{p: p, managed: managed, resolve: resolve, folders: append(folders, p.WorkingDir)}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		d.service("services."+name, p.Services[name])
	}
	for _, name := range slices.Sorted(maps.Keys(p.Networks)) {
		d.network(name, p.Networks[name])
	}
	for _, name := range slices.Sorted(maps.Keys(p.Volumes)) {
		d.volume(name, p.Volumes[name])
	}
	if len(d.out) > MaxAsks {
		return nil, tooMany(len(d.out))
	}
	return d.out, nil
}

type project struct {
	p       *types.Project
	managed []string
	resolve Resolve
	folders []string // folders that belong to the stack
	out     list
}

// hostPath adds a path of the host to the list of asks, unless the path belongs to the stack.
func (d *project) hostPath(field, source string, readOnly bool) {
	at := path.Clean(source)
	for _, own := range d.folders {
		if own == "" || !policy.Below(at, path.Clean(own)) {
			continue
		}
		if d.resolve == nil {
			return
		}
		root := d.resolve(path.Clean(own))
		if at = d.resolve(at); policy.Below(at, root) {
			return
		}
		break
	}
	d.out.mount(mount{Path: at, ReadOnly: readOnly}, field)
}

func (d *project) service(at string, s types.ServiceConfig) {
	u := unit{
		Field: at, Image: Image(s.Image), User: s.User, Privileged: s.Privileged,
		CapAdd: s.CapAdd, CapDrop: s.CapDrop, SecurityOpt: s.SecurityOpt, Pids: s.PidsLimit,
		HasCPU: s.CPUS > 0 || s.CPUQuota > 0, HasMemory: s.MemLimit > 0,
	}
	var limits, reserved *types.Resource
	if s.Deploy != nil {
		limits, reserved = s.Deploy.Resources.Limits, s.Deploy.Resources.Reservations
	}
	if limits != nil {
		u.HasCPU, u.HasMemory = u.HasCPU || limits.NanoCPUs > 0, u.HasMemory || limits.MemoryBytes > 0
		if limits.Pids != 0 {
			u.Pids = limits.Pids
		}
	}
	for _, p := range s.Ports {
		u.Ports = append(u.Ports, port{Address: p.HostIP, Published: p.Published, Protocol: p.Protocol})
	}
	d.out.unit(u)
	if n := s.GetScale(); n > 0 {
		memory := math.Ceil(float64(service.MemoryLimit(s)) / (1 << 20))
		d.out.add(policy.RuleLimits, at, policy.LimitsValue(service.CPULimit(s), int64(memory), n))
	}
	for i, g := range s.GroupAdd {
		d.out.group(index(at+".group_add", i), g)
	}
	for i, v := range s.Volumes {
		d.mount(index(at+".volumes", i), v)
	}
	if s.UseAPISocket {
		d.out.add(policy.RuleEngineSocket, at+".use_api_socket", "true")
	}
	d.sharing(at, s)
	d.devices(at, s, limits, reserved)
	d.options(at, s)
	d.files(at, s)
	d.hooks(at, s)
}

// hooks adds the asks of the hooks of a service to the list.
func (d *project) hooks(at string, s types.ServiceConfig) {
	for _, h := range []struct {
		field string
		hooks []types.ServiceHook
	}{{at + ".pre_start", s.PreStart}, {at + ".post_start", s.PostStart}, {at + ".pre_stop", s.PreStop}} {
		for i, hook := range h.hooks {
			if hook.Privileged {
				d.out.add(policy.RulePrivileged, index(h.field, i)+".privileged", "true")
			}
			if hook.User != "" {
				d.out.add(policy.RuleUser, index(h.field, i)+".user", hook.User)
			}
			if hook.Image != "" {
				d.out.add(policy.RuleImage, index(h.field, i)+".image", Image(hook.Image))
			}
		}
	}
	for i, hook := range s.PreStart {
		// Compose runs a pre_start hook in a container of its own, without the limits and the capabilities of
		// the service.
		field := index(at+".pre_start", i)
		d.out.add(policy.RulePids, field, policy.Unlimited)
		d.out.add(policy.RuleLimits, field, policy.LimitsValue(0, 0, 1))
		d.out.add(policy.RuleLacks, field, (&unit{User: hook.User}).lacks())
	}
}

// mount adds a mount of a service to the list of asks. It adds nothing for a named volume that the project
// declares, because the method volume does that.
func (d *project) mount(field string, v types.ServiceVolumeConfig) {
	switch v.Type {
	case types.VolumeTypeVolume:
		if v.Source == "" {
			return // an anonymous volume needs no ask
		}
		if _, declared := d.p.Volumes[v.Source]; !declared {
			d.out.add(policy.RuleVolume, field, v.Source)
		}
	case types.VolumeTypeTmpfs:
	case types.VolumeTypeImage:
		d.out.add(policy.RuleImage, field, Image(v.Source))
	default: // mounts of type bind, npipe or cluster
		readOnly := v.ReadOnly
		if b := v.Bind; b != nil {
			readOnly = readOnly && b.SELinux == ""                         // the engine writes SELinux labels to the files
			if strings.HasSuffix(b.Propagation, types.PropagationShared) { // mounts in the container appear on the host
				d.out.add(policy.RuleSecurity, field+".bind.propagation", "propagation="+b.Propagation)
			}
		}
		d.hostPath(field, v.Source, readOnly)
	}
}

// sharing adds to the list the Linux namespaces that a service shares with the host or with a container
// of another workload.
func (d *project) sharing(at string, s types.ServiceConfig) {
	for _, n := range []struct{ key, name, mode string }{
		{"network_mode", "network", s.NetworkMode}, {"net", "network", s.Net}, {"pid", "pid", s.Pid}, {"ipc", "ipc", s.Ipc},
		{"uts", "uts", s.Uts}, {"userns_mode", "user", s.UserNSMode}, {"cgroup", "cgroup", s.Cgroup},
	} {
		field := at + "." + n.key
		kind, _, other := strings.Cut(n.mode, ":")
		switch {
		case n.mode == "host":
			d.out.add(policy.RuleHostNS, field, n.name)
		case other && kind != "service":
			d.out.add(policy.RuleHostNS, field, n.name+" of "+n.mode)
		case n.mode == "" || other || n.mode == "none" || n.mode == "private" || n.mode == "shareable" || n.mode == "disabled":
		case n.name == "network" && (n.mode == "bridge" || n.mode == "default"):
		case n.name == "network":
			d.out.add(policy.RuleNetwork, field, n.mode)
		default:
			d.out.add(policy.RuleHostNS, field, n.name+" "+n.mode)
		}
	}
	for i, from := range s.VolumesFrom {
		if strings.HasPrefix(from, "container:") {
			d.out.add(policy.RuleHostNS, index(at+".volumes_from", i), "volumes of "+from)
		}
	}
	for i, link := range s.ExternalLinks {
		d.out.add(policy.RuleNetwork, index(at+".external_links", i), "container:"+link)
	}
}

func (d *project) devices(at string, s types.ServiceConfig, limits, reserved *types.Resource) {
	for i, v := range s.Devices {
		d.out.add(policy.RuleDevice, index(at+".devices", i), v.Source)
	}
	for i, r := range s.DeviceCgroupRules {
		d.out.add(policy.RuleDevice, index(at+".device_cgroup_rules", i), "rule "+r)
	}
	requests := func(field string, list []types.DeviceRequest) {
		for i, r := range list {
			value := "gpu"
			if r.Driver == "cdi" || len(r.Capabilities) > 0 && !slices.Contains(r.Capabilities, "gpu") {
				value = r.Driver + ":" + strings.Join(append(slices.Clone(r.Capabilities), r.IDs...), ",")
			}
			d.out.add(policy.RuleDevice, index(field, i), value)
		}
	}
	requests(at+".gpus", s.Gpus)
	for _, r := range []struct {
		field string
		of    *types.Resource
	}{{"limits", limits}, {"reservations", reserved}} {
		if r.of == nil {
			continue
		}
		field := at + ".deploy.resources." + r.field + ".devices"
		requests(field, r.of.Devices)
		if len(r.of.GenericResources) > 0 {
			d.out.add(policy.RuleDevice, at+".deploy.resources."+r.field+".generic_resources", "generic resources")
		}
	}
}

// options adds to the list those settings of a service that the policy field security_options
// allows or forbids.
func (d *project) options(at string, s types.ServiceConfig) {
	add := func(key, name, value string) { d.out.add(policy.RuleSecurity, at+"."+key, name+"="+value) }
	for _, k := range slices.Sorted(maps.Keys(s.Sysctls)) {
		d.out.add(policy.RuleSecurity, at+".sysctls."+k, "sysctl="+k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Annotations)) {
		d.out.add(policy.RuleSecurity, at+".annotations."+k, "annotation="+k)
	}
	if s.Runtime != "" {
		add("runtime", "runtime", s.Runtime)
	}
	if s.Platform != "" { // the engine then stores the image for another platform under this name, which breaks other containers of the image
		add("platform", "platform", s.Platform)
	}
	if s.Isolation != "" {
		add("isolation", "isolation", s.Isolation)
	}
	if s.CgroupParent != "" {
		add("cgroup_parent", "cgroup-parent", s.CgroupParent)
	}
	if s.CredentialSpec != nil {
		add("credential_spec", "credential-spec", s.CredentialSpec.File+s.CredentialSpec.Registry+s.CredentialSpec.Config)
	}
	if l := s.Logging; l != nil && (l.Driver != "" || redirects(l.Options)) {
		add("logging.driver", "log-driver", l.Driver)
	}
	if s.LogDriver != "" {
		add("log_driver", "log-driver", s.LogDriver)
	}
	if s.VolumeDriver != "" && s.VolumeDriver != "local" {
		d.out.add(policy.RuleVolume, at+".volume_driver", "driver="+s.VolumeDriver)
	}
	if s.OomScoreAdj < 0 {
		add("oom_score_adj", "oom-score-adj", strconv.FormatInt(s.OomScoreAdj, 10))
	}
	for _, k := range [...]string{"nice", "rtprio"} { // with these, a process evades the CPU limit
		if u := s.Ulimits[k]; u != nil && (u.Single != 0 || u.Soft != 0 || u.Hard != 0) {
			add("ulimits."+k, "ulimit", k)
		}
	}
	if s.MemSwapLimit < 0 || s.MemSwapLimit > max(service.MemoryLimit(s), 0) {
		add("memswap_limit", "swap", strconv.FormatInt(int64(s.MemSwapLimit), 10))
	}
	if s.OomKillDisable {
		add("oom_kill_disable", "oom-kill-disable", "true")
	}
	if s.CPURTRuntime != 0 {
		add("cpu_rt_runtime", "cpu-rt-runtime", strconv.FormatInt(s.CPURTRuntime, 10))
	}
	if s.CPUShares > defaultShares { // with this, a container takes CPU time from other containers
		add("cpu_shares", "cpu-shares", strconv.FormatInt(s.CPUShares, 10))
	}
	if b := s.BlkioConfig; b != nil {
		for _, w := range append([]types.WeightDevice{{Weight: b.Weight}}, b.WeightDevice...) {
			if w.Weight > defaultIOWeight {
				add("blkio_config", "blkio-weight", strconv.Itoa(int(w.Weight)))
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.StorageOpt)) {
		d.out.add(policy.RuleSecurity, at+".storage_opt."+k, "storage-opt="+k)
	}
	if s.MacAddress != "" { // with this, a container can take the place of another in its network
		add("mac_address", "mac-address", s.MacAddress)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Networks)) {
		if n := s.Networks[name]; n != nil {
			d.endpoint(at+".networks."+name, n)
		}
	}
}

// Options of a connection to a network: sysctls of the interface, such as net.ipv4.conf.IFNAME.forwarding=1, separated
// by commas, and its name in the container.
const (
	endpointSysctls = "com.docker.network.endpoint.sysctls"
	endpointName    = "com.docker.network.endpoint.ifname"
)

// endpoint adds to the list the options with which a service is connected to a network.
func (d *project) endpoint(at string, n *types.ServiceNetworkConfig) {
	if n.MacAddress != "" {
		d.out.add(policy.RuleSecurity, at+".mac_address", "mac-address="+n.MacAddress)
	}
	for _, k := range slices.Sorted(maps.Keys(n.DriverOpts)) {
		switch field := at + ".driver_opts." + k; k {
		case endpointName:
		case endpointSysctls:
			for setting := range strings.SplitSeq(n.DriverOpts[k], ",") {
				name, _, _ := strings.Cut(setting, "=")
				d.out.add(policy.RuleSecurity, field, "sysctl="+strings.TrimSpace(name))
			}
		default:
			d.out.add(policy.RuleNetwork, field, k+"="+n.DriverOpts[k])
		}
	}
}

// The default CPU shares and the default block I/O weight of a container.
const (
	defaultShares   = 1024
	defaultIOWeight = 500
)

// redirects reports whether log options may send the logs to another machine. It is called for options without a
// driver: the engine adds them to the options of its default driver, which may contain credentials.
func redirects(options map[string]string) bool {
	for k := range options {
		switch k {
		case "max-size", "max-file", "compress", "mode", "max-buffer-size", "labels", "labels-regex", "env", "env-regex", "tag":
		default:
			return true
		}
	}
	return false
}

// files adds to the list the files of the host that a service needs: files that the engine mounts, and files that
// the agent reads.
func (d *project) files(at string, s types.ServiceConfig) {
	for i, c := range s.Configs {
		if file := d.p.Configs[c.Source].File; file != "" {
			d.hostPath(index(at+".configs", i), file, true)
		}
	}
	for i, c := range s.Secrets {
		if file := d.p.Secrets[c.Source].File; file != "" {
			d.hostPath(index(at+".secrets", i), file, true)
		}
	}
	for i, f := range s.EnvFiles {
		d.hostPath(index(at+".env_file", i), f.Path, true)
	}
	for i, f := range s.LabelFiles {
		d.hostPath(index(at+".label_file", i), f, true)
	}
}

// network adds a network to the list if it does not belong to the stack, or if it has another driver or
// options than a plain bridge. A subnet that the stack chooses is added too: the engine routes it to the bridge, so
// the node would lose its connection to any machine with an address of that subnet.
func (d *project) network(key string, n types.NetworkConfig) {
	at := "networks." + key
	switch {
	case n.Name == "host":
		d.out.add(policy.RuleHostNS, at+".name", "network")
	case bool(n.External) || n.Name != "" && n.Name != d.p.Name+"_"+key:
		d.out.add(policy.RuleNetwork, at+".name", n.Name)
	}
	if n.Driver == "host" {
		d.out.add(policy.RuleHostNS, at+".driver", "network")
	} else if n.Driver != "" && n.Driver != "bridge" && n.Driver != "default" {
		d.out.add(policy.RuleNetwork, at+".driver", "driver="+n.Driver)
	}
	for _, k := range slices.Sorted(maps.Keys(n.DriverOpts)) {
		if !slices.Contains(ownOptions[:], k) {
			d.out.add(policy.RuleNetwork, at+".driver_opts."+k, k+"="+n.DriverOpts[k])
		}
	}
	if n.Ipam.Driver != "" && n.Ipam.Driver != "default" {
		d.out.add(policy.RuleNetwork, at+".ipam.driver", "ipam-driver="+n.Ipam.Driver)
	}
	for _, k := range slices.Sorted(maps.Keys(n.Ipam.Options)) {
		d.out.add(policy.RuleNetwork, at+".ipam.options."+k, "ipam-option="+k)
	}
	for i, pool := range n.Ipam.Config {
		if pool != nil && pool.Subnet != "" {
			d.out.add(policy.RuleNetwork, index(at+".ipam.config", i)+".subnet", policy.SubnetValue+pool.Subnet)
		}
	}
}

// ownOptions are the network driver options that affect only the bridge that the engine creates for the
// stack.
var ownOptions = [...]string{
	"com.docker.network.driver.mtu", "com.docker.network.bridge.enable_icc", "com.docker.network.bridge.enable_ip_masquerade",
}

// volume adds to the list a volume that does not belong to the stack, and a path of the host or a network
// file system that the volume mounts.
func (d *project) volume(key string, v types.VolumeConfig) {
	at := "volumes." + key
	if bool(v.External) && (slices.Contains(d.managed, v.Name) || slices.Contains(d.managed, key)) {
		return
	}
	if bool(v.External) || v.Name != "" && v.Name != d.p.Name+"_"+key {
		d.out.add(policy.RuleVolume, at+".name", v.Name)
	}
	if v.Driver != "" && v.Driver != "local" {
		d.out.add(policy.RuleVolume, at+".driver", "driver="+v.Driver)
	}
	device := v.DriverOpts["device"]
	kind := v.DriverOpts["type"]
	bind := kind == "none" || kind == "bind"
	for option := range strings.SplitSeq(v.DriverOpts["o"], ",") {
		name, dirs, _ := strings.Cut(option, "=")
		switch name {
		case "bind", "rbind":
			bind = true
		case "lowerdir", "upperdir", "workdir": // options of an overlay file system that name folders of the host
			for dir := range strings.SplitSeq(dirs, ":") {
				d.hostPath(at+".driver_opts.o", path.Join("/", dir), false)
			}
		}
	}
	switch {
	case strings.HasPrefix(device, "/"), bind && device != "":
		// A relative device path starts at /, because that is the engine's working directory.
		d.hostPath(at+".driver_opts.device", path.Join("/", device), false)
	case kind == "tmpfs" && (device == "" || device == "tmpfs"):
	case device != "" || kind != "":
		d.out.add(policy.RuleVolume, at+".driver_opts.device", kind+":"+device)
	}
}
