package docker

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/blkiodev"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	cdi "tags.cncf.io/container-device-interface/pkg/parser"
)

// options sets the options that containers share with services of a Compose file. They have the same effect as
// in docker compose; the test TestAContainerAndAServiceMeanTheSame checks that.
func (out *settings) options(s types.ServiceConfig) error {
	c, h := out.config, out.host
	c.Entrypoint = s.Entrypoint
	c.WorkingDir, c.Hostname, c.Domainname = s.WorkingDir, s.Hostname, s.DomainName
	c.Tty, c.OpenStdin = s.Tty, s.StdinOpen
	c.Healthcheck = healthcheck(s.HealthCheck)
	for _, e := range s.Expose {
		ports, err := network.ParsePortRange(e)
		if err != nil {
			return invalid("container.expose: %w", err)
		}
		for p := range ports.All() {
			c.ExposedPorts[p] = struct{}{}
		}
	}
	h.ReadonlyRootfs, h.Init = s.ReadOnly, s.Init
	for _, t := range s.Tmpfs {
		if h.Tmpfs == nil {
			h.Tmpfs = map[string]string{}
		}
		path, options, _ := strings.Cut(t, ":")
		h.Tmpfs[path] = options
	}
	h.Sysctls, h.Annotations, h.ShmSize = s.Sysctls, s.Annotations, int64(s.ShmSize)
	h.GroupAdd, h.OomScoreAdj, h.Runtime = s.GroupAdd, int(s.OomScoreAdj), s.Runtime
	h.ExtraHosts = s.ExtraHosts.AsList(":")
	slices.Sort(h.ExtraHosts)
	for _, text := range s.DNS {
		server, err := netip.ParseAddr(text)
		if err != nil {
			return invalid("container.dns: %w", err)
		}
		h.DNS = append(h.DNS, server)
	}
	h.DNSSearch, h.DNSOptions = s.DNSSearch, s.DNSOpts
	h.NetworkMode, h.PidMode, h.IpcMode = container.NetworkMode(s.NetworkMode), container.PidMode(s.Pid), container.IpcMode(s.Ipc)
	h.UTSMode, h.UsernsMode, h.CgroupnsMode = container.UTSMode(s.Uts), container.UsernsMode(s.UserNSMode), container.CgroupnsMode(s.Cgroup)
	if l := s.Logging; l != nil {
		h.LogConfig = container.LogConfig{Type: l.Driver, Config: l.Options}
	}
	r := &h.Resources
	r.CgroupParent, r.CpusetCpus, r.MemoryReservation = s.CgroupParent, s.CPUSet, int64(s.MemReservation)
	r.DeviceCgroupRules = s.DeviceCgroupRules
	if s.MemSwappiness != 0 {
		r.MemorySwappiness = new(int64(s.MemSwappiness))
	}
	r.OomKillDisable = new(s.OomKillDisable)
	blkio(r, s.BlkioConfig)
	if err := out.image.SetPlatform("container.platform", s.Platform); err != nil {
		return err
	}
	out.image.Policy = s.PullPolicy
	if s.MacAddress != "" {
		mac, err := net.ParseMAC(s.MacAddress)
		if err != nil {
			return invalid("container.mac_address: %w", err)
		}
		out.mac = network.HardwareAddr(mac)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		r.Ulimits = append(r.Ulimits, &container.Ulimit{Name: name, Soft: int64(s.Ulimits[name].Soft), Hard: int64(s.Ulimits[name].Hard)})
	}
	var byName []string
	for _, d := range s.Devices {
		if d.Source == d.Target && cdi.IsQualifiedName(d.Source) {
			byName = append(byName, d.Source)
			continue
		}
		r.Devices = append(r.Devices, container.DeviceMapping{PathOnHost: d.Source, PathInContainer: d.Target, CgroupPermissions: d.Permissions})
	}
	if len(byName) > 0 {
		r.DeviceRequests = append(r.DeviceRequests, container.DeviceRequest{Driver: "cdi", DeviceIDs: byName})
	}
	for _, g := range s.Gpus {
		r.DeviceRequests = append(r.DeviceRequests, container.DeviceRequest{
			Driver: g.Driver, Count: int(g.Count), DeviceIDs: g.IDs, Options: g.Options,
			Capabilities: [][]string{append(slices.Clone(g.Capabilities), "gpu")},
		})
	}
	return nil
}

// blkio sets the limits on disk I/O.
func blkio(r *container.Resources, b *types.BlkioConfig) {
	if b == nil {
		return
	}
	r.BlkioWeight = b.Weight
	for _, d := range b.WeightDevice {
		r.BlkioWeightDevice = append(r.BlkioWeightDevice, &blkiodev.WeightDevice{Path: d.Path, Weight: d.Weight})
	}
	for _, l := range []struct {
		from []types.ThrottleDevice
		to   *[]*blkiodev.ThrottleDevice
	}{
		{b.DeviceReadBps, &r.BlkioDeviceReadBps}, {b.DeviceReadIOps, &r.BlkioDeviceReadIOps},
		{b.DeviceWriteBps, &r.BlkioDeviceWriteBps}, {b.DeviceWriteIOps, &r.BlkioDeviceWriteIOps},
	} {
		for _, d := range l.from {
			*l.to = append(*l.to, &blkiodev.ThrottleDevice{Path: d.Path, Rate: uint64(d.Rate)})
		}
	}
}

// healthcheck returns the health check that the engine runs. nil selects the health check of the image.
func healthcheck(h *types.HealthCheckConfig) *container.HealthConfig {
	if h == nil {
		return nil
	}
	out := &container.HealthConfig{Test: h.Test}
	for _, t := range []struct {
		from *types.Duration
		to   *time.Duration
	}{{h.Interval, &out.Interval}, {h.Timeout, &out.Timeout}, {h.StartPeriod, &out.StartPeriod}, {h.StartInterval, &out.StartInterval}} {
		if t.from != nil {
			*t.to = time.Duration(*t.from)
		}
	}
	if h.Retries != nil {
		out.Retries = int(*h.Retries)
	}
	return out
}
