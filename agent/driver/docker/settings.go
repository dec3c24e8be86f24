package docker

import (
	"cmp"
	"net/netip"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/engine"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/stack/service"
)

// Lower limits of CPU quotas and shares.
const (
	minMillicores  = 10 // the engine refuses a quota of less than 0.01 CPU
	nanoPerMilli   = 1_000_000
	milliPerCPU    = 1000
	unlimitedSwap  = -1
	maxPort        = 65535
	maxRetryPolicy = "on-failure"
)

// settings holds the specification of a container, translated to the types of the engine's API.
type settings struct {
	image  moby.Image
	config *container.Config
	host   *container.HostConfig
	// leftOut has a text for each option that was left out, because the engine does not support it.
	leftOut []string
	// endpoints are the container's connections to networks that span nodes.
	endpoints []endpoint
	// counted are the numbers of CDI devices that the container needs, by the kind of device (VENDOR/CLASS).
	counted map[string]int64
	hooks   moby.Hooks
	mac     network.HardwareAddr // MAC address on the default bridge; empty if the engine chooses it
}

// translate builds the settings of a container spec without calling the engine. Errors are of class
// InvalidSpecification (InvalidImage for the image reference) and name
// the field. version is the API version of the engine.
func translate(spec driver.Spec, version string) (settings, error) {
	refuse := func(format string, args ...any) (settings, error) {
		return settings{}, driver.Errorf(driver.InvalidSpecification, "ensure", format, args...)
	}
	body := spec.Body.GetContainer()
	if body == nil {
		return refuse("spec: the container runtime takes container, got %T (workload %q)", spec.Body.GetSpec(), spec.ID)
	}
	img, err := moby.ParseImage("container.image", body.GetImage())
	if err != nil {
		return settings{}, err
	}
	img.Namespace = spec.Body.GetNamespace()
	out := settings{
		image: img,
		config: &container.Config{
			Image: img.Name,
			User:  body.GetUser(),
			// Command only replaces CMD; the image's entrypoint is kept, as with `docker run IMAGE
			// COMMAND…` and in Compose.
			Cmd:    append(append([]string(nil), body.GetCommand()...), body.GetArgs()...),
			Labels: driver.ContainerLabels(driver.Container, spec, body.GetLabels()),
			// "" selects the stop signal of the image.
			StopSignal: body.GetStopSignal(),
		},
		host: &container.HostConfig{
			Privileged: body.GetPrivileged(), CapAdd: body.GetCapAdd(), CapDrop: body.GetCapDrop(),
			SecurityOpt: driver.HardenedOptions(body.GetSecurityOpt(), body.GetPrivileged()),
		},
	}
	if out.config.Env, err = environment(body.GetEnv()); err != nil {
		return settings{}, err
	}
	if out.host.Binds, err = binds(body.GetVolumes()); err != nil {
		return settings{}, err
	}
	if out.host.Mounts, err = managed(body, spec.Volumes, spec.Files); err != nil {
		return settings{}, err
	}
	if out.config.ExposedPorts, out.host.PortBindings, err = ports(body.GetPorts()); err != nil {
		return settings{}, err
	}
	if out.host.Resources, err = resources(body); err != nil {
		return settings{}, err
	}
	pids := cmp.Or(body.GetPidsLimit(), spec.Pids())
	out.host.PidsLimit = &pids
	if n := body.GetStopGracePeriodSeconds(); n < 0 {
		return refuse("container.stop_grace_period_seconds: must not be negative (got %d)", n)
	} else if n > 0 {
		seconds := min(int(n), int(policy.MaxStopGrace/time.Second))
		out.config.StopTimeout = &seconds
	}
	if out.host.RestartPolicy, err = restartPolicy(body.GetRestartPolicy()); err != nil {
		return settings{}, err
	}
	of := service.Of(body)
	if out.counted = body.GetCountedDevices(); len(out.counted) > 0 {
		if err := lacksCDI(out.counted, version); err != nil {
			return settings{}, err
		}
	}
	out.hooks = moby.Hooks{PostStart: of.PostStart, PreStop: of.PreStop}
	out.leftOut = moby.LeaveOut(&of, "container", version)
	if err := out.options(of); err != nil {
		return settings{}, err
	}
	if spec.Exclusive {
		out.host.RestartPolicy = container.RestartPolicy{Name: container.RestartPolicyDisabled}
	}
	return out, nil
}

func invalid(format string, args ...any) error {
	return driver.Errorf(driver.InvalidSpecification, "ensure", format, args...)
}

// environment returns the variables as NAME=value, sorted, so that equal specs make equal containers.
func environment(env map[string]string) ([]string, error) {
	out := make([]string, 0, len(env))
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return nil, invalid("container.env: a name must not be empty or contain '=' or NUL (got %q)", k)
		}
		if strings.ContainsRune(v, 0) {
			return nil, invalid("container.env[%s]: the value must not contain NUL", k)
		}
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out, nil
}

// binds returns mounts in the engine's short form, host:container[:ro]. For this form the engine creates a
// missing host folder, as it does for legacy v1 agents. A path in the short form cannot contain a colon.
func binds(mounts []*agentv1.VolumeMount) ([]string, error) {
	out := make([]string, 0, len(mounts))
	seen := make(map[string]bool, len(mounts))
	for i, m := range mounts {
		for _, f := range []struct{ field, value string }{
			{"host_path", m.GetHostPath()}, {"container_path", m.GetContainerPath()},
		} {
			if !path.IsAbs(f.value) || strings.ContainsAny(f.value, ":\x00") {
				return nil, invalid("container.volumes[%d].%s: must be an absolute path without ':' (got %q)", i, f.field, f.value)
			}
		}
		target := path.Clean(m.GetContainerPath())
		if seen[target] {
			return nil, invalid("container.volumes[%d].container_path: %q is mounted twice", i, target)
		}
		seen[target] = true
		bind := path.Clean(m.GetHostPath()) + ":" + target
		if m.GetReadOnly() {
			bind += ":ro"
		}
		out = append(out, bind)
	}
	return out, nil
}

// managed returns the mounts of a container's managed volumes (storage that the agent makes) in the engine's
// long form. For this form the engine refuses to start a container whose host folder is missing. The folder is
// missing while the volume is not mounted.
func managed(body *agentv1.ContainerSpec, volumes []driver.Volume, files []string) ([]mount.Mount, error) {
	if want := body.GetManagedVolumes(); len(want) != len(volumes) {
		return nil, invalid("container.managed_volumes: the specification has %d volumes, but the agent has prepared %d", len(want), len(volumes))
	}
	seen := make(map[string]bool, len(volumes))
	for _, v := range body.GetVolumes() {
		seen[path.Clean(v.GetContainerPath())] = true
	}
	out := make([]mount.Mount, 0, len(volumes))
	for i, v := range volumes {
		target := path.Clean(v.MountPath)
		switch {
		case v.Path == "":
			return nil, invalid("container.managed_volumes[%d]: volume %q is a disk of a virtual machine", i, v.Name)
		case !path.IsAbs(v.MountPath) || target == "/":
			return nil, invalid("container.managed_volumes[%d].mount_path: must be an absolute path below / (got %q)", i, v.MountPath)
		case seen[target]:
			return nil, invalid("container.managed_volumes[%d].mount_path: %q is mounted twice", i, target)
		}
		seen[target] = true
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: v.Path, Target: target, ReadOnly: v.ReadOnly})
	}
	if want := body.GetMemoryFiles(); len(want) != len(files) {
		return nil, invalid("container.memory_files: the specification has %d files, but the agent has prepared %d", len(want), len(files))
	}
	for i, f := range body.GetMemoryFiles() {
		target := path.Clean(f.GetTarget())
		switch {
		case !path.IsAbs(f.GetTarget()) || target == "/":
			return nil, invalid("container.memory_files[%d].target: must be an absolute path below / (got %q)", i, f.GetTarget())
		case seen[target]:
			return nil, invalid("container.memory_files[%d].target: %q is mounted twice", i, target)
		}
		seen[target] = true
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: files[i], Target: target, ReadOnly: true})
	}
	return out, nil
}

// ports returns the container ports to expose and the host ports to bind, at their addresses or at
// all addresses of the machine. Host port 0 means any free port.
func ports(mappings []*agentv1.PortMapping) (network.PortSet, network.PortMap, error) {
	type hostPort struct {
		port     int32
		protocol string
		address  netip.Addr
	}
	exposed, bindings := network.PortSet{}, network.PortMap{}
	taken := make(map[hostPort]bool, len(mappings))
	for i, m := range mappings {
		protocol := strings.ToLower(m.GetProtocol())
		switch protocol {
		case "":
			protocol = "tcp"
		case "tcp", "udp":
		default:
			return nil, nil, invalid("container.ports[%d].protocol: must be tcp or udp (got %q)", i, m.GetProtocol())
		}
		if m.GetContainerPort() < 1 || m.GetContainerPort() > maxPort {
			return nil, nil, invalid("container.ports[%d].container_port: must be 1 to 65535 (got %d)", i, m.GetContainerPort())
		}
		if m.GetHostPort() < 0 || m.GetHostPort() > maxPort {
			return nil, nil, invalid("container.ports[%d].host_port: must be 0 (any) to 65535 (got %d)", i, m.GetHostPort())
		}
		var address netip.Addr
		if a := m.GetAddress(); a != "" {
			var err error
			if address, err = netip.ParseAddr(a); err != nil {
				return nil, nil, invalid("container.ports[%d].address: must be an IP address (got %q)", i, a)
			}
		}
		if host := (hostPort{m.GetHostPort(), protocol, address}); host.port != 0 {
			if taken[host] {
				return nil, nil, invalid("container.ports[%d].host_port: %d/%s is mapped twice", i, host.port, protocol)
			}
			taken[host] = true
		}
		inside, _ := network.PortFrom(uint16(m.GetContainerPort()), network.IPProtocol(protocol))
		binding := network.PortBinding{HostIP: address}
		if m.GetHostPort() != 0 {
			binding.HostPort = strconv.Itoa(int(m.GetHostPort()))
		}
		exposed[inside] = struct{}{}
		bindings[inside] = append(bindings[inside], binding)
	}
	return exposed, bindings, nil
}

// resources returns the limits of a container in the engine's API: a CPU quota and memory in bytes. Legacy v1
// schedulers send no CPU quota; they send millicores in the field for shares, which become a relative CPU
// weight.
func resources(body *agentv1.ContainerSpec) (container.Resources, error) {
	limits := body.GetResources()
	out := container.Resources{CPUShares: limits.GetCpuShares(), Memory: limits.GetMemoryBytes()}
	field, milli := "container.resources.cpu_millicores", limits.GetCpuMillicores()
	if milli == 0 {
		field, milli = "container.cpu_millicores", body.GetCpuMillicores()
	}
	switch {
	case milli < 0 || milli > 1<<40:
		return out, invalid("%s: must be 0 to %d (got %d)", field, int64(1)<<40, milli)
	case milli > 0:
		milli = max(milli, minMillicores)
		if period := body.GetCpuPeriod(); period != 0 {
			// The quota must not become larger than the limit. So the period is raised where the quota is too small.
			period = max(period, (engine.MinCPUQuota*milliPerCPU+milli-1)/milli)
			out.CPUPeriod, out.CPUQuota = period, milli*period/milliPerCPU
		} else {
			out.NanoCPUs = milli * nanoPerMilli
		}
		out.CPUShares = moby.CPUWeight(milli)
	case out.CPUShares < 0:
		return out, invalid("container.resources.cpu_shares: must not be negative (got %d)", out.CPUShares)
	}
	if n := body.GetCpuShares(); n > 0 {
		out.CPUShares = n
	}
	swap := limits.GetMemorySwapBytes()
	switch {
	case out.Memory < 0:
		return out, invalid("container.resources.memory_bytes: must not be negative (got %d)", out.Memory)
	case out.Memory == 0 && swap != 0:
		return out, invalid("container.resources.memory_swap_bytes: needs memory_bytes (got %d)", swap)
	case swap < unlimitedSwap || swap > 0 && swap < out.Memory:
		return out, invalid("container.resources.memory_swap_bytes: counts memory and swap together, so it must be 0, -1 (unlimited) or at least memory_bytes %d (got %d)", out.Memory, swap)
	case swap == 0:
		// A swap limit equal to the memory limit means no swap. The engine's own default would be twice the
		// memory limit.
		swap = out.Memory
	}
	out.MemorySwap = swap
	return out, nil
}

func restartPolicy(policy *agentv1.RestartPolicy) (container.RestartPolicy, error) {
	out := container.RestartPolicy{Name: container.RestartPolicyDisabled}
	switch name := policy.GetPolicy(); name {
	case "", "no":
	case "always", "unless-stopped", maxRetryPolicy:
		out.Name = container.RestartPolicyMode(name)
	default:
		return out, invalid("container.restart_policy.policy: must be no, always, on-failure or unless-stopped (got %q)", name)
	}
	switch retries := policy.GetMaxRetryCount(); {
	case retries < 0:
		return out, invalid("container.restart_policy.max_retry_count: must not be negative (got %d)", retries)
	case retries > 0 && policy.GetPolicy() != maxRetryPolicy:
		return out, invalid("container.restart_policy.max_retry_count: only with on-failure (got %d with %q)", retries, policy.GetPolicy())
	default:
		out.MaximumRetryCount = int(retries)
	}
	return out, nil
}
