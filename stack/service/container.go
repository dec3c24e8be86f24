package service

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Of converts a container to a service of a Compose file that has the same options. The result has no volumes,
// managed volumes, restart policy and resources, because containers and services write these differently. It
// also has no command, environment, user, capabilities, security options and pids limit, which the callers read
// from the container.
func Of(c *agentv1.ContainerSpec) types.ServiceConfig {
	s := types.ServiceConfig{
		Image: c.GetImage(), Privileged: c.GetPrivileged(), StopSignal: c.GetStopSignal(),
		Entrypoint: words(c.GetEntrypoint()), WorkingDir: c.GetWorkingDir(), Hostname: c.GetHostname(), DomainName: c.GetDomainname(),
		ReadOnly: c.GetReadOnly(), Tmpfs: c.GetTmpfs(), Sysctls: c.GetSysctls(), ShmSize: types.UnitBytes(c.GetShmSize()),
		Init: c.Init, DeviceCgroupRules: c.GetDeviceCgroupRules(), GroupAdd: c.GetGroupAdd(),
		DNS: c.GetDns(), DNSSearch: c.GetDnsSearch(), DNSOpts: c.GetDnsOpt(),
		NetworkMode: c.GetNetworkMode(), Pid: c.GetPid(), Ipc: c.GetIpc(), Uts: c.GetUts(), UserNSMode: c.GetUsernsMode(),
		Cgroup: c.GetCgroup(), CgroupParent: c.GetCgroupParent(), Runtime: c.GetRuntime(), CPUSet: c.GetCpuset(),
		Annotations: c.GetAnnotations(), Labels: c.GetLabels(), OomScoreAdj: int64(c.GetOomScoreAdj()),
		Tty: c.GetTty(), StdinOpen: c.GetStdinOpen(), Expose: c.GetExpose(),
		MemReservation: types.UnitBytes(c.GetMemReservation()), MemSwapLimit: types.UnitBytes(c.GetResources().GetMemorySwapBytes()),
		MemLimit:  types.UnitBytes(c.GetResources().GetMemoryBytes()),
		CPUShares: c.GetCpuShares(), CPUPeriod: c.GetCpuPeriod(), MemSwappiness: types.UnitBytes(c.GetMemSwappiness()), OomKillDisable: c.GetOomKillDisable(),
		MacAddress: c.GetMacAddress(), Platform: c.GetPlatform(), PullPolicy: c.GetPullPolicy(), BlkioConfig: blkio(c.GetBlkioConfig()),
		PostStart: hooks(c.GetPostStart()), PreStop: hooks(c.GetPreStop()),
	}
	for _, p := range c.GetPorts() {
		port := types.ServicePortConfig{Target: uint32(p.GetContainerPort()), Protocol: cmp.Or(strings.ToLower(p.GetProtocol()), "tcp"), HostIP: p.GetAddress()}
		if p.GetHostPort() != 0 {
			port.Published = strconv.Itoa(int(p.GetHostPort()))
		}
		s.Ports = append(s.Ports, port)
	}
	if len(c.GetUlimits()) > 0 {
		s.Ulimits = map[string]*types.UlimitsConfig{}
		for name, u := range c.GetUlimits() {
			s.Ulimits[name] = &types.UlimitsConfig{Soft: int(u.GetSoft()), Hard: int(u.GetHard())}
		}
	}
	for _, d := range c.GetDevices() {
		s.Devices = append(s.Devices, types.DeviceMapping{
			Source: d.GetSource(), Target: cmp.Or(d.GetTarget(), d.GetSource()), Permissions: cmp.Or(d.GetPermissions(), "rwm"),
		})
	}
	for _, g := range c.GetGpus() {
		s.Gpus = append(s.Gpus, types.DeviceRequest{
			Capabilities: g.GetCapabilities(), Driver: g.GetDriver(), Count: types.DeviceCount(g.GetCount()), IDs: g.GetDeviceIds(), Options: g.GetOptions(),
		})
	}
	for _, h := range c.GetExtraHosts() {
		if s.ExtraHosts == nil {
			s.ExtraHosts = types.HostsList{}
		}
		name, address, _ := strings.Cut(h, "=")
		s.ExtraHosts[name] = append(s.ExtraHosts[name], address)
	}
	if l := c.GetLogging(); l != nil {
		s.Logging = &types.LoggingConfig{Driver: l.GetDriver(), Options: l.GetOptions()}
	}
	if h := c.GetHealthcheck(); h != nil {
		s.HealthCheck = &types.HealthCheckConfig{
			Test: h.GetTest(), Interval: duration(h.GetInterval()), Timeout: duration(h.GetTimeout()),
			StartPeriod: duration(h.GetStartPeriod()), StartInterval: duration(h.GetStartInterval()),
		}
		if h.GetRetries() != 0 {
			s.HealthCheck.Retries = new(uint64(h.GetRetries()))
		}
	}
	return s
}

func hooks(list []*agentv1.Hook) (out []types.ServiceHook) {
	for _, h := range list {
		hook := types.ServiceHook{Command: h.GetCommand(), User: h.GetUser(), Privileged: h.GetPrivileged(), WorkingDir: h.GetWorkingDir()}
		for k, v := range h.GetEnvironment() {
			if hook.Environment == nil {
				hook.Environment = types.MappingWithEquals{}
			}
			hook.Environment[k] = &v
		}
		out = append(out, hook)
	}
	return out
}

func blkio(b *agentv1.BlkioConfig) *types.BlkioConfig {
	if b == nil {
		return nil
	}
	out := &types.BlkioConfig{Weight: uint16(min(max(b.GetWeight(), 0), math.MaxUint16))}
	for _, d := range b.GetWeightDevice() {
		out.WeightDevice = append(out.WeightDevice, types.WeightDevice{Path: d.GetPath(), Weight: uint16(min(max(d.GetWeight(), 0), math.MaxUint16))})
	}
	for _, l := range []struct {
		from []*agentv1.ThrottleDevice
		to   *[]types.ThrottleDevice
	}{
		{b.GetDeviceReadBps(), &out.DeviceReadBps}, {b.GetDeviceReadIops(), &out.DeviceReadIOps},
		{b.GetDeviceWriteBps(), &out.DeviceWriteBps}, {b.GetDeviceWriteIops(), &out.DeviceWriteIOps},
	} {
		for _, d := range l.from {
			*l.to = append(*l.to, types.ThrottleDevice{Path: d.GetPath(), Rate: types.UnitBytes(d.GetRate())})
		}
	}
	return out
}

// words returns an entry point. In protobuf, a list with one empty word stands for an empty entry point,
// because protobuf cannot distinguish an empty list from an unset one.
func words(list []string) types.ShellCommand {
	if len(list) == 1 && list[0] == "" {
		return types.ShellCommand{}
	}
	return list
}

func duration(d *durationpb.Duration) *types.Duration {
	if d == nil {
		return nil
	}
	return new(types.Duration(d.AsDuration()))
}
