// Package service checks one service of a Compose file. Check finds the values that compose-go accepts but an
// engine or the kernel refuses. A container has the same fields as a service: Of converts it to a service, so
// that it is checked by the same code.
package service

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/engine"
)

// Fault is a value of a service that an engine would refuse.
type Fault struct {
	At    []string // path of the value below the service: its keys
	Rule  string
	Value *string // wrong value; nil if the rule is not about one value
	// Warning is set if the service can run in spite of this fault, so that it is only a warning.
	Warning bool
}

type faults []Fault

func (f *faults) fault(rule string, at ...string) { *f = append(*f, Fault{At: at, Rule: rule}) }

func (f *faults) warn(text string, at ...string) {
	*f = append(*f, Fault{At: at, Rule: text, Warning: true})
}

// value adds a fault for a value that breaks a rule; if rule is "", it adds none. at holds the keys that lead
// to the value.
func (f *faults) value(rule, value string, at ...string) {
	if rule != "" {
		*f = append(*f, Fault{At: at, Rule: rule, Value: &value})
	}
}

// Check returns the values of a service that an engine or the kernel would refuse when it creates or starts the
// container.
func Check(s types.ServiceConfig) []Fault {
	var f faults
	f.limits(s)
	f.process(s)
	f.options(s)
	f.tables(s)
	f.health(s)
	f.hooks("pre_start", s.PreStart)
	f.hooks("post_start", s.PostStart)
	f.hooks("pre_stop", s.PreStop)
	return f
}

func (f *faults) hooks(key string, list []types.ServiceHook) {
	for i, h := range list {
		at := func(of string) []string { return []string{key, strconv.Itoa(i), of} }
		if key != "pre_start" && len(h.Command) == 0 { // a pre_start hook may run the command of its own image
			f.fault("must not be empty", at("command")...)
		}
		if h.User != "" {
			f.value(engine.User(h.User), h.User, at("user")...)
		}
		if h.WorkingDir != "" {
			f.value(engine.AbsolutePath(h.WorkingDir), h.WorkingDir, at("working_dir")...)
		}
	}
}

// Conflicts returns the settings of a service that exclude each other, so that engines ignore one of them.
func Conflicts(s types.ServiceConfig) []Fault {
	var f faults
	for _, c := range []struct {
		key  string
		set  bool
		with []string // network modes
	}{
		{"ports", len(s.Ports) > 0, []string{"host", "none"}},
		{"dns", len(s.DNS) > 0, []string{"none"}},
		{"dns_search", len(s.DNSSearch) > 0, []string{"none"}},
		{"dns_opt", len(s.DNSOpts) > 0, []string{"none"}},
		{"extra_hosts", len(s.ExtraHosts) > 0, []string{"none"}},
		{"mac_address", s.MacAddress != "", []string{"host", "none"}},
	} {
		if c.set && slices.Contains(c.with, s.NetworkMode) {
			f.fault("has no effect with network_mode: "+s.NetworkMode+": remove one of them", c.key)
		}
	}
	if s.Uts == "host" && (s.Hostname != "" || s.DomainName != "") {
		f.fault("cannot be set with uts: host, because the container has the name of the node", "hostname")
	}
	if s.Ipc == "host" && s.ShmSize > 0 {
		f.fault("has no effect with ipc: host: the container uses the node's /dev/shm", "shm_size")
	}
	return f
}

// options checks single values and lists.
func (f *faults) options(s types.ServiceConfig) {
	value := func(v string, rule func(string) string, at ...string) {
		if v != "" {
			f.value(rule(v), v, at...)
		}
	}
	for _, c := range []struct {
		key, value string
		rule       func(string) string
	}{
		{"container_name", s.ContainerName, engine.Object},
		{"cpuset", s.CPUSet, engine.CPUSet},
		{"domainname", s.DomainName, engine.Hostname},
		{"hostname", s.Hostname, engine.Hostname},
		{"ipc", s.Ipc, engine.IPCMode},
		{"mac_address", s.MacAddress, engine.MAC},
		{"pid", s.Pid, engine.PIDMode},
		{"platform", s.Platform, engine.Platform},
		{"restart", s.Restart, engine.Restart},
		{"user", s.User, engine.User},
		{"userns_mode", s.UserNSMode, engine.UsernsMode},
		{"uts", s.Uts, engine.UTSMode},
		{"working_dir", s.WorkingDir, engine.AbsolutePath},
	} {
		value(c.value, c.rule, c.key)
	}
	for _, c := range []struct {
		key    string
		values []string
		rule   func(string) string
	}{
		{"cap_add", s.CapAdd, engine.Capability},
		{"cap_drop", s.CapDrop, engine.Capability},
		{"device_cgroup_rules", s.DeviceCgroupRules, engine.DeviceRule},
		{"dns", s.DNS, engine.Address},
		{"dns_opt", s.DNSOpts, engine.Word},
		{"dns_search", s.DNSSearch, engine.Word},
		{"expose", s.Expose, engine.Expose},
		{"group_add", s.GroupAdd, engine.Account},
		{"security_opt", s.SecurityOpt, engine.SecurityOption},
		{"tmpfs", s.Tmpfs, engine.Tmpfs},
	} {
		for i, v := range c.values {
			value(v, c.rule, c.key, strconv.Itoa(i))
		}
	}
	f.blkio(s.BlkioConfig)
	for _, c := range []struct {
		key string
		set bool
	}{
		{"cpu_count", s.CPUCount != 0}, {"cpu_percent", s.CPUPercent != 0}, {"credential_spec", s.CredentialSpec != nil},
		{"cpu_rt_period", s.CPURTPeriod != 0}, {"cpu_rt_runtime", s.CPURTRuntime != 0}, {"storage_opt", len(s.StorageOpt) > 0},
	} {
		if c.set {
			f.fault(refused()[c.key], c.key)
		}
	}
	if s.Isolation != "" && s.Isolation != "default" {
		f.value(refused()["isolation"], s.Isolation, "isolation")
	}
	for _, c := range []struct {
		key string
		set bool
	}{{"mem_swappiness", s.MemSwappiness != 0}, {"oom_kill_disable", s.OomKillDisable}} {
		if c.set {
			f.warn("has an effect only on nodes with cgroup v1; engines with cgroup v2 leave it out", c.key)
		}
	}
	if key, rule := engine.CPUTime(s.CPUPeriod, s.CPUQuota); rule != "" {
		f.fault(rule, key)
	}
	if s.CPUS > 0 && (s.CPUPeriod != 0 || s.CPUQuota != 0) {
		f.fault("says the same as cpu_period and cpu_quota: give one of them", "cpus")
	}
	if d := s.Deploy; d != nil && d.Resources.Limits != nil && d.Resources.Limits.NanoCPUs != 0 && (s.CPUPeriod != 0 || s.CPUQuota != 0) {
		f.fault("says the same as cpu_period and cpu_quota: give one of them", "deploy", "resources", "limits", "cpus")
	}
	for _, c := range []struct {
		key            string
		v, least, most int64
	}{
		{"cpu_shares", s.CPUShares, 0, math.MaxInt64}, {"mem_swappiness", int64(s.MemSwappiness), -1, 100}, {"oom_score_adj", s.OomScoreAdj, -1000, 1000},
		{"shm_size", int64(s.ShmSize), 0, math.MaxInt64}, {"pids_limit", s.PidsLimit, -1, 4 << 20},
	} {
		switch {
		case c.most == math.MaxInt64 && c.v < c.least:
			f.value("must not be negative", strconv.FormatInt(c.v, 10), c.key)
		case c.v < c.least || c.v > c.most:
			f.value(fmt.Sprintf("must be %d to %d", c.least, c.most), strconv.FormatInt(c.v, 10), c.key)
		}
	}
}

// blkio checks the limits on disk I/O.
func (f *faults) blkio(b *types.BlkioConfig) {
	if b == nil {
		return
	}
	weight := func(w uint16, at ...string) {
		if w < 10 || w > 1000 {
			f.value("must be 10 to 1000", strconv.Itoa(int(w)), append([]string{"blkio_config"}, at...)...)
		}
	}
	device := func(path string, at ...string) {
		f.value(engine.AbsolutePath(path), path, append([]string{"blkio_config"}, append(at, "path")...)...)
	}
	if b.Weight != 0 {
		weight(b.Weight, "weight")
	}
	for i, d := range b.WeightDevice {
		device(d.Path, "weight_device", strconv.Itoa(i))
		weight(d.Weight, "weight_device", strconv.Itoa(i), "weight")
	}
	for _, l := range []struct {
		key  string
		list []types.ThrottleDevice
	}{
		{"device_read_bps", b.DeviceReadBps}, {"device_read_iops", b.DeviceReadIOps}, {"device_write_bps", b.DeviceWriteBps}, {"device_write_iops", b.DeviceWriteIOps},
	} {
		for i, d := range l.list {
			device(d.Path, l.key, strconv.Itoa(i))
			if d.Rate < 1 {
				f.value("must be at least 1 a second", strconv.FormatInt(int64(d.Rate), 10), "blkio_config", l.key, strconv.Itoa(i), "rate")
			}
		}
	}
}

// tables checks mappings, such as labels and sysctls.
func (f *faults) tables(s types.ServiceConfig) {
	for _, k := range slices.Sorted(maps.Keys(s.Environment)) {
		if rule := engine.EnvName(k); rule != "" {
			f.fault(rule, "environment")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		f.value(engine.LabelKey(k), k, "labels", k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Sysctls)) {
		if rule := engine.Sysctl(k, s.NetworkMode != "host", s.Ipc != "host"); rule != "" {
			f.fault(rule, "sysctls", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Ulimits)) {
		u := s.Ulimits[k]
		soft, hard := u.Soft, u.Hard
		if u.Single != 0 {
			soft, hard = u.Single, u.Single
		}
		if rule := engine.Ulimit(k, int64(soft), int64(hard)); rule != "" {
			f.fault(rule, "ulimits", k)
		}
	}
	for i, d := range s.Devices {
		f.value(engine.Device(d.Source, d.Target, d.Permissions), d.Source+":"+d.Target+":"+d.Permissions, "devices", strconv.Itoa(i))
	}
	for _, name := range slices.Sorted(maps.Keys(s.ExtraHosts)) {
		f.value(engine.Word(name), name, "extra_hosts", name)
		for _, ip := range s.ExtraHosts[name] {
			f.value(engine.HostAddress(ip), name+"="+ip, "extra_hosts", name)
		}
	}
	if l := s.Logging; l != nil {
		if key, rule := engine.LogOption(l.Driver, l.Options); rule != "" {
			f.fault(rule, "logging", "options", key) // without the value, which may be a secret
		}
	}
}

// health checks the settings of the service's health check, which the engine runs.
func (f *faults) health(s types.ServiceConfig) {
	h := s.HealthCheck
	if h == nil || h.Disable {
		return
	}
	for _, c := range []struct {
		key string
		d   *types.Duration
	}{{"interval", h.Interval}, {"timeout", h.Timeout}, {"start_period", h.StartPeriod}, {"start_interval", h.StartInterval}} {
		if c.d != nil {
			f.value(engine.HealthTime(time.Duration(*c.d)), c.d.String(), "healthcheck", c.key)
		}
	}
	if h.StartInterval != nil {
		f.warn("is left out by engines before Docker 25, which check every interval during the start period too", "healthcheck", "start_interval")
	}
}

// limits checks limits of memory and CPU.
func (f *faults) limits(s types.ServiceConfig) {
	memory := func(v types.UnitBytes, at ...string) {
		switch {
		case v < 0: // a size over 8 EiB overflows to a negative one
			f.fault("is negative or too large: write a size such as 512m", at...)
		case v > 0 && v < engine.MinMemory:
			f.fault(fmt.Sprintf("is %d bytes, and an engine takes at least 6 MiB: write 6m or more", v), at...)
		}
	}
	cpu := func(v float32, at ...string) {
		if v != 0 && v < engine.MinMilliCPU/1000. {
			f.fault(fmt.Sprintf("is %g cores, and a kernel takes at least 0.01", v), at...)
		}
	}
	memory(s.MemLimit, "mem_limit")
	memory(s.MemReservation, "mem_reservation")
	cpu(s.CPUS, "cpus")
	if s.MemLimit > 0 && s.MemReservation > s.MemLimit {
		f.fault("is more than mem_limit", "mem_reservation")
	}
	limit := MemoryLimit(s)
	switch {
	case s.MemSwapLimit > 0 && limit == 0:
		f.fault("needs mem_limit: it counts memory and swap together", "memswap_limit")
	case s.MemSwapLimit > 0 && limit > s.MemSwapLimit:
		f.fault("must be at least mem_limit: it counts memory and swap together", "memswap_limit")
	}
	if s.Deploy == nil {
		return
	}
	limits, reserved := s.Deploy.Resources.Limits, s.Deploy.Resources.Reservations
	if limits != nil {
		memory(limits.MemoryBytes, "deploy", "resources", "limits", "memory")
		cpu(limits.NanoCPUs.Value(), "deploy", "resources", "limits", "cpus")
	}
	if reserved != nil {
		memory(reserved.MemoryBytes, "deploy", "resources", "reservations", "memory")
	}
	if limits != nil && reserved != nil {
		if limits.MemoryBytes > 0 && reserved.MemoryBytes > limits.MemoryBytes {
			f.fault("is more than the limit", "deploy", "resources", "reservations", "memory")
		}
		if limits.NanoCPUs > 0 && reserved.NanoCPUs > limits.NanoCPUs {
			f.fault("is more than the limit", "deploy", "resources", "reservations", "cpus")
		}
	}
}

// process checks the arguments and the environment.
func (f *faults) process(s types.ServiceConfig) {
	total := 0
	for _, k := range slices.Sorted(maps.Keys(s.Environment)) {
		v := s.Environment[k]
		if v == nil {
			continue
		}
		n := len(k) + 1 + len(*v)
		total += n + 1
		if rule := engine.Arg(n); rule != "" {
			f.fault(rule, "environment", k)
		}
		if rule := engine.Text(*v); rule != "" {
			f.fault(rule, "environment", k)
		}
	}
	for _, of := range []struct {
		key   string
		words []string
	}{{"entrypoint", s.Entrypoint}, {"command", s.Command}} {
		for _, word := range of.words {
			total += len(word) + 1
			if rule := engine.Arg(len(word)); rule != "" {
				f.fault(rule, of.key)
			}
		}
	}
	if rule := engine.Args(total); rule != "" {
		f.fault(rule, "environment")
	}
}

// CPULimit returns the CPU limit of a service in millicores, rounded up; 0 if it has none. The limit is
// deploy.resources.limits.cpus, cpus, or cpu_quota with cpu_period.
func CPULimit(s types.ServiceConfig) int64 {
	cpus := float64(s.CPUS)
	switch {
	case s.Deploy != nil && s.Deploy.Resources.Limits != nil && s.Deploy.Resources.Limits.NanoCPUs != 0:
		cpus = float64(s.Deploy.Resources.Limits.NanoCPUs) // in CPUs, although the field is called NanoCPUs
	case s.CPUS == 0 && s.CPUQuota > 0:
		cpus = float64(s.CPUQuota) / float64(cmp.Or(s.CPUPeriod, engine.CPUPeriod))
	}
	// Round to 1e-6 CPUs first, because a float32 of 0.1 is 0.10000000149.
	return int64(min(math.Ceil(math.Round(cpus*1e6)/1e3), maxCPULimit))
}

// maxCPULimit is the maximum value of CPULimit, so that sums of limits cannot overflow.
const maxCPULimit = 1 << 40

// MemoryLimit returns the memory limit of a service (mem_limit or deploy.resources.limits.memory); 0 if it has none.
func MemoryLimit(s types.ServiceConfig) types.UnitBytes {
	if s.Deploy != nil && s.Deploy.Resources.Limits != nil && s.Deploy.Resources.Limits.MemoryBytes != 0 {
		return s.Deploy.Resources.Limits.MemoryBytes
	}
	return s.MemLimit
}
