package spec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/stack/service"
)

// The allowed values of the Compose fields for the namespaces and the network of a container. A container
// must not share the namespaces or the network of another container, so values that name another container
// are not allowed.
var (
	networkModes = []string{"bridge", "host", "none"}
	hostOnly     = []string{"host"}
	ipcModes     = []string{"host", "none", "private", "shareable"}
	cgroupModes  = []string{"host", "private"}
	pullPolicies = []string{"always", "missing", "never"}
)

// options checks the container fields that a Compose service has too. It uses the same code as the check of a
// service.
func (e *Errors) options(s *controlv1.WorkloadSpec) {
	const at = "spec.container"
	c := s.GetContainer()
	for _, w := range []struct {
		field, value string
		words        []string
	}{
		{"network_mode", c.GetNetworkMode(), networkModes}, {"pid", c.GetPid(), hostOnly}, {"ipc", c.GetIpc(), ipcModes},
		{"uts", c.GetUts(), hostOnly}, {"userns_mode", c.GetUsernsMode(), hostOnly}, {"cgroup", c.GetCgroup(), cgroupModes},
		{"endpoint_mode", c.GetEndpointMode(), endpointModes}, {"pull_policy", c.GetPullPolicy(), pullPolicies},
	} {
		e.word(at+"."+w.field, w.value, w.words)
	}
	for _, l := range []struct {
		field string
		n     int
	}{
		{"entrypoint", len(c.GetEntrypoint())}, {"tmpfs", len(c.GetTmpfs())}, {"ulimits", len(c.GetUlimits())}, {"sysctls", len(c.GetSysctls())},
		{"devices", len(c.GetDevices())}, {"device_cgroup_rules", len(c.GetDeviceCgroupRules())}, {"gpus", len(c.GetGpus())},
		{"group_add", len(c.GetGroupAdd())}, {"extra_hosts", len(c.GetExtraHosts())}, {"dns", len(c.GetDns())},
		{"dns_search", len(c.GetDnsSearch())}, {"dns_opt", len(c.GetDnsOpt())}, {"labels", len(c.GetLabels())},
		{"annotations", len(c.GetAnnotations())}, {"expose", len(c.GetExpose())}, {"logging.options", len(c.GetLogging().GetOptions())},
		{"healthcheck.test", len(c.GetHealthcheck().GetTest())}, {"blkio_config.weight_device", len(c.GetBlkioConfig().GetWeightDevice())},
		{"blkio_config", len(slices.Concat(c.GetBlkioConfig().GetDeviceReadBps(), c.GetBlkioConfig().GetDeviceReadIops(), c.GetBlkioConfig().GetDeviceWriteBps(), c.GetBlkioConfig().GetDeviceWriteIops()))},
	} {
		if l.n > maxEntriesOf {
			e.addf(at+"."+l.field, "", "has %d entries, at most %d", l.n, maxEntriesOf)
			return
		}
	}
	if c.GetCpuPeriod() != 0 && s.GetResources().GetCpuMillicores() == 0 {
		e.add(at+".cpu_period", "needs a CPU limit, because it is the period of that limit: set cpu_quota, cpus or resources.cpu", "")
	}
	if milli, period := s.GetResources().GetCpuMillicores(), c.GetCpuPeriod(); milli > 0 && period > 0 && milli*period/1000 < engine.MinCPUQuota {
		e.addf(at+".cpu_period", strconv.FormatInt(period, 10), "must be at least %d with a limit of %d millicores, because the kernel accepts no quota below %d microseconds: set a larger cpu_period, or leave it out",
			(engine.MinCPUQuota*1000+milli-1)/milli, milli, engine.MinCPUQuota)
	}
	if _, group := membersOf(s); c.GetMacAddress() != "" && (group || s.GetAutoscale() != nil || IsTemplate(s)) {
		e.add(at+".mac_address", "is for one container, and this workload may have several: leave it out", c.GetMacAddress())
	}
	e.between(at+".blkio_config.weight", int64(c.GetBlkioConfig().GetWeight()), 0, 1000, "")
	for i, d := range c.GetBlkioConfig().GetWeightDevice() {
		e.between(fmt.Sprintf("%s.blkio_config.weight_device[%d].weight", at, i), int64(d.GetWeight()), 0, 1000, "")
	}
	e.between(at+".oom_score_adj", int64(c.GetOomScoreAdj()), -1000, 1000, "")
	for _, t := range []struct{ field, value string }{
		{"cgroup_parent", c.GetCgroupParent()}, {"runtime", c.GetRuntime()}, {"logging.driver", c.GetLogging().GetDriver()},
	} {
		if t.value != "" && engine.Word(t.value) != "" || len(t.value) > 255 {
			e.add(at+"."+t.field, "must be at most 255 characters without blanks", t.value)
		}
	}
	for i, w := range c.GetEntrypoint() {
		if !isText(w) {
			e.add(fmt.Sprintf("%s.entrypoint[%d]", at, i), "must be text without NUL", "")
		}
	}
	for _, m := range []struct {
		field string
		pairs map[string]string
	}{{"labels", c.GetLabels()}, {"annotations", c.GetAnnotations()}, {"sysctls", c.GetSysctls()}, {"logging.options", c.GetLogging().GetOptions()}} {
		for _, k := range sortedKeys(m.pairs) {
			where := at + "." + m.field + "." + k
			switch v := m.pairs[k]; {
			case !isText(k) || !isText(v) || len(k) > 256 || len(v) > maxMetadata:
				e.addf(where, "", "must be text without NUL, with a key of at most 256 bytes and a value of at most %d", maxMetadata)
			case m.field == "labels" && service.ReservedLabel(k) != "":
				e.add(where, service.ReservedLabel(k), "")
			case m.field == "logging.options":
				e.secret(where, v)
			}
		}
	}
	for i, h := range c.GetExtraHosts() {
		if name, address, ok := strings.Cut(h, "="); !ok || name == "" || address == "" {
			e.add(fmt.Sprintf("%s.extra_hosts[%d]", at, i), "must be like NAME=10.0.0.5, or NAME=host-gateway for the node", h)
		}
	}
	e.gpus(at+".gpus", c.GetGpus())
	for _, l := range hookLists(c) {
		e.hooks(at+"."+l.key, l.hooks)
	}
	if jobDemand(s) != nil && len(ingressPorts(c)) > 0 {
		e.add(at+".ports", "must not have mode ingress in a job, because the runs of a job accept no connections: leave the mode out", "")
	}
	e.networks(c)
	e.engineCheck(s)
	e.asService(s)
}

// hookList is one list of hooks of a container, with its key.
type hookList struct {
	key   string
	hooks []*controlv1.Hook
}

func hookLists(c *controlv1.ContainerSpec) []hookList {
	return []hookList{{"post_start", c.GetPostStart()}, {"pre_stop", c.GetPreStop()}}
}

// maxHooks is the maximum number of hooks in one list. The agent stores the hooks in a label of the container.
const maxHooks = 16

// hooks checks hooks, except for their users and working directories, which asService checks.
func (e *Errors) hooks(at string, hooks []*controlv1.Hook) {
	if len(hooks) > maxHooks {
		e.addf(at, "", "has %d entries, at most %d", len(hooks), maxHooks)
		return
	}
	for i, h := range hooks {
		here := fmt.Sprintf("%s[%d]", at, i)
		for j, w := range h.GetCommand() {
			if !isText(w) {
				e.add(fmt.Sprintf("%s.command[%d]", here, j), "must be text without NUL", "")
			}
		}
		e.env(here+".environment", h.GetEnvironment())
	}
}

// asService converts a container to the Compose service with the same meaning and checks that service.
func (e *Errors) asService(s *controlv1.WorkloadSpec) {
	of := service.Of(agentContainer(s))
	conflicts := service.Conflicts(of)
	of.OomScoreAdj = 0 // the other checks of this package cover this field and the next ones
	if of.MemLimit < engine.MinMemory {
		of.MemLimit = 0
	}
	for _, v := range s.GetContainer().GetLogging().GetOptions() {
		if pki.IsRedacted(v) {
			of.Logging = nil // it is checked with the stored values
		}
	}
	for _, mode := range []*string{&of.Pid, &of.Uts, &of.UserNSMode} {
		*mode = ""
	}
	if !slices.Contains(ipcModes, of.Ipc) {
		of.Ipc = ""
	}
	for _, f := range append(service.Check(of), conflicts...) {
		if f.Warning {
			continue
		}
		value := ""
		if f.Value != nil {
			value = *f.Value
		}
		e.add("spec.container"+wirePath(f.At), f.Rule, value)
	}
}

// wirePath returns the path of a value of a service, given as its keys, in the form of this package.
func wirePath(keys []string) string {
	var b strings.Builder
	for _, k := range keys {
		if _, err := strconv.Atoi(k); err == nil {
			b.WriteString("[" + k + "]")
		} else {
			b.WriteString("." + k)
		}
	}
	return b.String()
}

func (e *Errors) gpus(at string, list []*controlv1.DeviceRequest) {
	for i, r := range list {
		switch w := fmt.Sprintf("%s[%d]", at, i); {
		case r.GetCount() < -1:
			e.add(w+".count", "must be a number of devices, or all", strconv.FormatInt(r.GetCount(), 10))
		case r.GetCount() != 0 && len(r.GetDeviceIds()) > 0:
			e.add(w+".device_ids", "cannot be set with count: give one of them", "")
		case r.GetCount() == 0 && len(r.GetDeviceIds()) == 0:
			e.add(w+".count", "must be at least 1, or all", "0")
		}
	}
}

// engineCheck checks the health check that the engine runs.
func (e *Errors) engineCheck(s *controlv1.WorkloadSpec) {
	h := s.GetContainer().GetHealthcheck()
	if h == nil {
		return
	}
	const at = "spec.container.healthcheck"
	if rule := engine.HealthTest(h.GetTest()); rule != "" {
		e.add(at+".test", rule, strings.Join(h.GetTest(), " "))
	}
	for i, w := range h.GetTest() {
		if !isText(w) {
			e.add(fmt.Sprintf("%s.test[%d]", at, i), "must be text without NUL", "")
		}
	}
	e.between(at+".retries", int64(h.GetRetries()), 0, 1000, "; 0 is the engine's default, 3")
	for _, t := range []struct {
		field string
		d     *durationpb.Duration
	}{{"interval", h.GetInterval()}, {"timeout", h.GetTimeout()}, {"start_period", h.GetStartPeriod()}, {"start_interval", h.GetStartInterval()}} {
		if d := t.d.AsDuration(); t.d != nil && (t.d.CheckValid() != nil || d < 0 || d > 24*time.Hour) {
			e.add(at+"."+t.field, "must be 0 to 24h", d.String())
		}
	}
	if h.GetStartInterval() != nil && h.GetStartPeriod() == nil {
		e.add(at+".start_interval", "needs start_period: it is the interval during that time", "")
	}
	if s.GetHealthCheck() != nil && !slices.Equal(h.GetTest(), []string{"NONE"}) {
		e.add(at, "cannot be set with health_check, which the agent runs: give one of them", "")
	}
}

// normaliseOptions rewrites in one canonical form the fields that a container has in common with a service of a
// Compose file.
func normaliseOptions(c *controlv1.ContainerSpec) {
	for _, word := range []*string{&c.NetworkMode, &c.Pid, &c.Ipc, &c.Uts, &c.UsernsMode, &c.Cgroup, &c.Platform, &c.PullPolicy} {
		*word = strings.ToLower(strings.TrimSpace(*word))
	}
	for _, d := range c.Devices {
		d.Target, d.Permissions = orElse(d.Target, d.Source), orElse(d.Permissions, "rwm")
	}
	for _, list := range []*[]string{&c.ExtraHosts, &c.Expose, &c.DeviceCgroupRules} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	for _, m := range []*map[string]string{&c.Sysctls, &c.Labels, &c.Annotations} {
		if len(*m) == 0 {
			*m = nil
		}
	}
	if l := c.Logging; l != nil && l.Driver == "" && len(l.Options) == 0 {
		c.Logging = nil
	}
	for _, p := range c.Ports {
		p.Address = hostAddress(p.Address)
	}
	normaliseNetworks(c)
}

// options adds records for the fields that a container has in common with a service of a Compose file. They
// were added in a later version. When unset they add no record, so that the content hash of older
// specifications does not change.
func (e *encoder) options(c *controlv1.ContainerSpec) {
	e.words("entrypoint", c.GetEntrypoint())
	for _, t := range []struct{ path, value string }{
		{"working_dir", c.GetWorkingDir()}, {"hostname", c.GetHostname()}, {"domainname", c.GetDomainname()},
		{"network_mode", c.GetNetworkMode()}, {"pid", c.GetPid()}, {"ipc", c.GetIpc()}, {"uts", c.GetUts()},
		{"userns_mode", c.GetUsernsMode()}, {"cgroup", c.GetCgroup()}, {"cgroup_parent", c.GetCgroupParent()},
		{"runtime", c.GetRuntime()}, {"cpuset", c.GetCpuset()},
		{"mac_address", c.GetMacAddress()}, {"platform", c.GetPlatform()}, {"pull_policy", c.GetPullPolicy()},
	} {
		e.text(t.path, t.value)
	}
	e.flag("read_only", c.GetReadOnly())
	e.flag("tty", c.GetTty())
	e.flag("stdin_open", c.GetStdinOpen())
	e.flag("oom_kill_disable", c.GetOomKillDisable())
	e.blkio(c.GetBlkioConfig())
	e.hooks(c)
	if c.GetInit() {
		e.flag("init", true)
	} else if c != nil && c.Init != nil {
		e.text("init", "false")
	}
	for _, l := range []struct {
		path string
		list []string
	}{
		{"tmpfs", c.GetTmpfs()}, {"device_cgroup_rules", c.GetDeviceCgroupRules()}, {"group_add", c.GetGroupAdd()},
		{"extra_hosts", c.GetExtraHosts()}, {"dns", c.GetDns()}, {"dns_search", c.GetDnsSearch()}, {"dns_opt", c.GetDnsOpt()}, {"expose", c.GetExpose()},
	} {
		e.words(l.path, l.list)
	}
	e.networks(c.GetNetworks())
	e.text("endpoint_mode", c.GetEndpointMode())
	for _, m := range []struct {
		path  string
		pairs map[string]string
	}{{"sysctls", c.GetSysctls()}, {"labels", c.GetLabels()}, {"annotations", c.GetAnnotations()}} {
		e.pairs(m.path, m.pairs, false)
	}
	for _, n := range []struct {
		path string
		v    int64
	}{
		{"shm_size", c.GetShmSize()}, {"oom_score_adj", int64(c.GetOomScoreAdj())}, {"mem_reservation", c.GetMemReservation()},
		{"memswap_limit", c.GetMemswapLimit()}, {"cpu_period", c.GetCpuPeriod()}, {"cpu_shares", c.GetCpuShares()},
		{"mem_swappiness", c.GetMemSwappiness()},
	} {
		e.number(n.path, n.v)
	}
	for _, name := range slices.Sorted(maps.Keys(c.GetUlimits())) {
		u := c.GetUlimits()[name]
		e.text("ulimits."+name, strconv.FormatInt(u.GetSoft(), 10)+":"+strconv.FormatInt(u.GetHard(), 10))
	}
	e.number("devices.#", int64(len(c.GetDevices())))
	for _, d := range c.GetDevices() {
		e.text("devices.source", d.GetSource())
		e.text("devices.target", d.GetTarget())
		e.text("devices.permissions", d.GetPermissions())
	}
	e.number("gpus.#", int64(len(c.GetGpus())))
	for _, g := range c.GetGpus() {
		e.text("gpus.driver", g.GetDriver())
		e.number("gpus.count", g.GetCount())
		e.words("gpus.device_ids", g.GetDeviceIds())
		e.words("gpus.capabilities", g.GetCapabilities())
		e.pairs("gpus.options", g.GetOptions(), false)
	}
	if l := c.GetLogging(); l != nil {
		e.record("logging", 't', l.GetDriver())
		e.pairs("logging.options", l.GetOptions(), true)
	}
	if h := c.GetHealthcheck(); h != nil {
		e.number("healthcheck.#", 1)
		e.words("healthcheck.test", h.GetTest())
		for _, t := range []struct {
			path string
			d    *durationpb.Duration
		}{{"interval", h.GetInterval()}, {"timeout", h.GetTimeout()}, {"start_period", h.GetStartPeriod()}, {"start_interval", h.GetStartInterval()}} {
			e.number("healthcheck."+t.path, int64(t.d.AsDuration()))
		}
		e.number("healthcheck.retries", int64(h.GetRetries()))
	}
}

func (e *encoder) hooks(c *controlv1.ContainerSpec) {
	for _, l := range hookLists(c) {
		e.number(l.key+".#", int64(len(l.hooks)))
		for _, h := range l.hooks {
			e.words(l.key+".command", h.GetCommand())
			e.text(l.key+".user", h.GetUser())
			e.flag(l.key+".privileged", h.GetPrivileged())
			e.text(l.key+".working_dir", h.GetWorkingDir())
			e.pairs(l.key+".environment", h.GetEnvironment(), true)
		}
	}
}

func (e *encoder) blkio(b *controlv1.BlkioConfig) {
	if b == nil {
		return
	}
	e.number("blkio_config.#", 1)
	e.number("blkio_config.weight", int64(b.GetWeight()))
	for _, d := range b.GetWeightDevice() {
		e.text("blkio_config.weight_device", d.GetPath())
		e.number("blkio_config.weight_device.weight", int64(d.GetWeight()))
	}
	for _, l := range throttles(b) {
		for _, d := range l.list {
			e.text("blkio_config."+l.key, d.GetPath())
			e.number("blkio_config."+l.key+".rate", d.GetRate())
		}
	}
}

// throttle is one list of limits in a BlkioConfig, with its key in a Compose file.
type throttle struct {
	key  string
	list []*controlv1.ThrottleDevice
}

func throttles(b *controlv1.BlkioConfig) []throttle {
	return []throttle{
		{"device_read_bps", b.GetDeviceReadBps()}, {"device_read_iops", b.GetDeviceReadIops()},
		{"device_write_bps", b.GetDeviceWriteBps()}, {"device_write_iops", b.GetDeviceWriteIops()},
	}
}

func agentBlkio(b *controlv1.BlkioConfig) *agentv1.BlkioConfig {
	if b == nil {
		return nil
	}
	out := &agentv1.BlkioConfig{Weight: b.GetWeight()}
	for _, d := range b.GetWeightDevice() {
		out.WeightDevice = append(out.WeightDevice, &agentv1.WeightDevice{Path: d.GetPath(), Weight: d.GetWeight()})
	}
	into := []*[]*agentv1.ThrottleDevice{&out.DeviceReadBps, &out.DeviceReadIops, &out.DeviceWriteBps, &out.DeviceWriteIops}
	for i, l := range throttles(b) {
		for _, d := range l.list {
			*into[i] = append(*into[i], &agentv1.ThrottleDevice{Path: d.GetPath(), Rate: d.GetRate()})
		}
	}
	return out
}

func agentHooks(list []*controlv1.Hook) (out []*agentv1.Hook) {
	for _, h := range list {
		out = append(out, &agentv1.Hook{
			Command: h.GetCommand(), User: h.GetUser(), Privileged: h.GetPrivileged(), WorkingDir: h.GetWorkingDir(), Environment: h.GetEnvironment(),
		})
	}
	return out
}

// agentOptions translates the container fields that a Compose service has too.
func agentOptions(c *controlv1.ContainerSpec, out *agentv1.ContainerSpec) {
	out.Entrypoint, out.WorkingDir, out.Hostname, out.Domainname = c.GetEntrypoint(), c.GetWorkingDir(), c.GetHostname(), c.GetDomainname()
	out.ReadOnly, out.Tty, out.StdinOpen, out.Tmpfs = c.GetReadOnly(), c.GetTty(), c.GetStdinOpen(), c.GetTmpfs()
	out.Sysctls, out.Annotations, out.ShmSize, out.MemReservation = c.GetSysctls(), c.GetAnnotations(), c.GetShmSize(), c.GetMemReservation()
	out.DeviceCgroupRules, out.GroupAdd, out.ExtraHosts = c.GetDeviceCgroupRules(), c.GetGroupAdd(), c.GetExtraHosts()
	out.Dns, out.DnsSearch, out.DnsOpt, out.Expose = c.GetDns(), c.GetDnsSearch(), c.GetDnsOpt(), c.GetExpose()
	out.NetworkMode, out.Pid, out.Ipc, out.Uts = c.GetNetworkMode(), c.GetPid(), c.GetIpc(), c.GetUts()
	out.UsernsMode, out.Cgroup, out.CgroupParent = c.GetUsernsMode(), c.GetCgroup(), c.GetCgroupParent()
	out.Runtime, out.Cpuset, out.OomScoreAdj = c.GetRuntime(), c.GetCpuset(), c.GetOomScoreAdj()
	out.Resources.MemorySwapBytes = c.GetMemswapLimit()
	out.CpuShares, out.CpuPeriod, out.MemSwappiness, out.OomKillDisable = c.GetCpuShares(), c.GetCpuPeriod(), c.GetMemSwappiness(), c.GetOomKillDisable()
	out.MacAddress, out.Platform, out.PullPolicy, out.BlkioConfig = c.GetMacAddress(), c.GetPlatform(), c.GetPullPolicy(), agentBlkio(c.GetBlkioConfig())
	out.Networks = agentNetworks(c)
	out.PostStart, out.PreStop = agentHooks(c.GetPostStart()), agentHooks(c.GetPreStop())
	if c != nil {
		out.Init = c.Init
	}
	for name, u := range c.GetUlimits() {
		if out.Ulimits == nil {
			out.Ulimits = map[string]*agentv1.Ulimit{}
		}
		out.Ulimits[name] = &agentv1.Ulimit{Soft: u.GetSoft(), Hard: u.GetHard()}
	}
	for _, d := range c.GetDevices() {
		out.Devices = append(out.Devices, &agentv1.Device{Source: d.GetSource(), Target: d.GetTarget(), Permissions: d.GetPermissions()})
	}
	for _, g := range c.GetGpus() {
		out.Gpus = append(out.Gpus, &agentv1.DeviceRequest{
			Driver: g.GetDriver(), Count: g.GetCount(), DeviceIds: g.GetDeviceIds(), Capabilities: g.GetCapabilities(), Options: g.GetOptions(),
		})
	}
	if l := c.GetLogging(); l != nil {
		out.Logging = &agentv1.Logging{Driver: l.GetDriver(), Options: l.GetOptions()}
	}
	if h := c.GetHealthcheck(); h != nil {
		out.Healthcheck = &agentv1.EngineHealthCheck{
			Test: h.GetTest(), Interval: h.GetInterval(), Timeout: h.GetTimeout(), StartPeriod: h.GetStartPeriod(),
			StartInterval: h.GetStartInterval(), Retries: h.GetRetries(),
		}
	}
	for k, v := range c.GetLabels() {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[k] = v
	}
}

// listenAddress checks the address at which a port is published.
func listenAddress(s string) string {
	if a, err := netip.ParseAddr(s); err != nil || a.Zone() != "" {
		return "must be an IP address of the node; without one the port is published on all of its addresses"
	}
	return ""
}
