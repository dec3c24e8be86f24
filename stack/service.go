package stack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/engine"
	"github.com/persys/compute/stack/service"
)

// maxReplicas is the maximum number of containers of one service. All containers of a stack run on one node,
// and the bridge of a Docker network connects at most 1023 containers.
const maxReplicas = 1000

// service checks the values of a service that an engine checks when it creates or starts a container.
func (j *judge) service(s types.ServiceConfig) {
	for _, f := range service.Check(s) {
		at := append([]string{"services", s.Name}, f.At...)
		switch {
		case f.Warning:
			j.warn(f.Rule, at...)
		case f.Value != nil:
			j.value(f.Rule, *f.Value, at...)
		default:
			j.fault(f.Rule, at...)
		}
	}
	for _, f := range service.Conflicts(s) {
		j.warn(f.Rule, append([]string{"services", s.Name}, f.At...)...)
	}
	at := func(keys ...string) []string { return append([]string{"services", s.Name}, keys...) }
	scale := []string{"scale"}
	if s.Deploy != nil && s.Deploy.Replicas != nil {
		scale = []string{"deploy", "replicas"}
	}
	if n := s.GetScale(); n < 0 || n > maxReplicas {
		j.value(fmt.Sprintf("must be 0 to %d", maxReplicas), strconv.Itoa(n), at(scale...)...)
	}
	if s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		words := []string{"", "none", "no", "any", "always", "on-failure", "unless-stopped"}
		if c := s.Deploy.RestartPolicy.Condition; !slices.Contains(words, c) {
			j.value("must be none, on-failure or any", c, at("deploy", "restart_policy", "condition")...)
		}
	}
	if at := []string{"services", s.Name, "restart"}; j.job {
		if s.Restart == "" && s.Deploy != nil && s.Deploy.RestartPolicy != nil {
			at = []string{"services", s.Name, "deploy", "restart_policy", "condition"}
		}
		j.value(service.InJob(service.RestartPolicy(s)), service.RestartPolicy(s), at...)
	}
	j.awaits(s)
	j.mounts(s)
	j.network(s)
}

// awaits adds a fault if a service waits until another service is healthy, but the health check of that
// service is switched off.
func (j *judge) awaits(s types.ServiceConfig) {
	for _, on := range slices.Sorted(maps.Keys(s.DependsOn)) {
		h := j.p.Services[on].HealthCheck
		if s.DependsOn[on].Condition == types.ServiceConditionHealthy && h != nil && (h.Disable || len(h.Test) > 0 && h.Test[0] == "NONE") {
			j.fault(fmt.Sprintf("waits until %s is healthy, and the health check of %s is switched off", on, on), "services", s.Name, "depends_on", on)
		}
	}
}

// mounts checks the mount points of volumes. compose-go has checked that the paths of tmpfs and of volumes
// differ.
func (j *judge) mounts(s types.ServiceConfig) {
	at := func(keys ...string) []string { return append([]string{"services", s.Name}, keys...) }
	for i, v := range s.Volumes {
		where := at("volumes", strconv.Itoa(i))
		j.value(engine.MountTarget(v.Target), v.Target, where...)
		switch {
		case v.Type == types.VolumeTypeNamedPipe || v.Type == types.VolumeTypeCluster:
			j.fault("of the type "+v.Type+" is not for nodes: use bind, volume or tmpfs", where...)
		case v.Type == types.VolumeTypeTmpfs && v.Source != "":
			j.value("of the type tmpfs has no source", v.Source, where...)
		case v.Type == types.VolumeTypeBind && v.Bind != nil:
			j.value(engine.Propagation(v.Bind.Propagation), v.Bind.Propagation, where...)
		}
	}
}

// network checks how a service is attached to networks.
func (j *judge) network(s types.ServiceConfig) {
	at := func(keys ...string) []string { return append([]string{"services", s.Name}, keys...) }
	if kind := engine.Shared(s.NetworkMode); kind != "" {
		for _, c := range []struct {
			key string
			set bool
		}{
			{"hostname", s.Hostname != ""}, {"ports", len(s.Ports) > 0}, {"expose", len(s.Expose) > 0}, {"links", len(s.Links) > 0},
			{"dns", len(s.DNS) > 0}, {"extra_hosts", len(s.ExtraHosts) > 0}, {"mac_address", s.MacAddress != ""},
		} {
			if c.set {
				j.fault(fmt.Sprintf("has no effect with network_mode: %s, and engines refuse it: set it on that %s", s.NetworkMode, kind), at(c.key)...)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Networks)) {
		n := s.Networks[name]
		if n == nil {
			continue
		}
		where := func(key string) []string { return at("networks", name, key) }
		for _, a := range n.Aliases {
			j.value(engine.Word(a), a, where("aliases")...)
		}
		for _, a := range n.LinkLocalIPs {
			j.value(engine.Address(a), a, where("link_local_ips")...)
		}
		if n.MacAddress != "" {
			j.value(engine.MAC(n.MacAddress), n.MacAddress, where("mac_address")...)
		}
		for _, c := range []struct {
			key, ip string
			rule    func(string) string
		}{{"ipv4_address", n.Ipv4Address, engine.IPv4}, {"ipv6_address", n.Ipv6Address, engine.IPv6}} {
			if c.ip == "" {
				continue
			}
			if rule := c.rule(c.ip); rule != "" {
				j.value(rule, c.ip, where(c.key)...)
				continue
			}
			j.fixed(s, name, c.ip, where(c.key))
		}
	}
}

// fixed checks that a fixed address of a service lies in a subnet of the network, and that no other service
// has it.
func (j *judge) fixed(s types.ServiceConfig, network, ip string, at []string) {
	of := j.p.Networks[network]
	addr, _ := netip.ParseAddr(ip)
	inside, subnets := false, 0
	for _, pool := range of.Ipam.Config {
		if p, err := netip.ParsePrefix(pool.Subnet); err == nil {
			subnets++
			inside = inside || p.Contains(addr)
		}
	}
	switch {
	case bool(of.External):
	case subnets == 0:
		j.fault(fmt.Sprintf("needs a subnet of the network: networks: {%s: {ipam: {config: [{subnet: 10.9.0.0/24}]}}}", network), at...)
	case !inside:
		j.value("is in no subnet of the network "+network, ip, at...)
	}
	if n := s.GetScale(); n > 1 {
		j.value(fmt.Sprintf("is for one container, and the service has %d replicas", n), ip, at...)
	}
	if other, taken := j.addresses[network+" "+ip]; taken {
		j.value("is also the address of service "+other, ip, at...)
	}
	j.addresses[network+" "+ip] = s.Name
}

// objects checks the definitions of the networks, volumes, secrets and configs that the services use.
func (j *judge) objects() {
	subnets := map[netip.Prefix]string{}
	for _, name := range slices.Sorted(maps.Keys(j.p.Networks)) {
		n := j.p.Networks[name]
		at := func(keys ...string) []string { return append([]string{"networks", name}, keys...) }
		j.value(engine.Word(n.Name), n.Name, at("name")...)
		if !bool(n.External) {
			j.value(engine.NetworkDriver(n.Driver), n.Driver, at("driver")...)
		}
		for i, pool := range n.Ipam.Config {
			j.pool(pool, at("ipam", "config", strconv.Itoa(i)))
			p, err := netip.ParsePrefix(pool.Subnet)
			if err != nil {
				continue
			}
			for _, other := range slices.SortedFunc(maps.Keys(subnets), netip.Prefix.Compare) {
				if other.Overlaps(p) {
					j.value(fmt.Sprintf("overlaps with %s of network %s", other, subnets[other]), pool.Subnet, at("ipam", "config", strconv.Itoa(i), "subnet")...)
				}
			}
			subnets[p] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Volumes)) {
		j.value(engine.Object(j.p.Volumes[name].Name), j.p.Volumes[name].Name, "volumes", name, "name")
	}
	file := func(section, name string, f types.FileObjectConfig) {
		if _, set := j.p.Environment[f.Environment]; f.Environment != "" && !set {
			j.fault("needs the variable "+f.Environment+", which is not set; set it in the file .env beside the Compose file or in compose.env", section, name, "environment")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Secrets)) {
		file("secrets", name, types.FileObjectConfig(j.p.Secrets[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Configs)) {
		file("configs", name, types.FileObjectConfig(j.p.Configs[name]))
	}
	j.externals()
}

// pool checks one subnet of a network, and the gateway and other addresses given for it.
func (j *judge) pool(pool *types.IPAMPool, at []string) {
	where := func(key string) []string { return append(at[:len(at):len(at)], key) }
	if pool.Subnet != "" {
		if rule := engine.Subnet(pool.Subnet); rule != "" {
			j.value(rule, pool.Subnet, where("subnet")...)
			return
		}
	}
	subnet, err := netip.ParsePrefix(pool.Subnet)
	within := func(key, ip string) {
		a, bad := netip.ParseAddr(ip)
		switch {
		case bad != nil:
			j.value("must be an IP address", ip, where(key)...)
		case err == nil && !subnet.Contains(a):
			j.value("is not in the subnet "+pool.Subnet, ip, where(key)...)
		}
	}
	if pool.Gateway != "" {
		within("gateway", pool.Gateway)
	}
	for _, name := range slices.Sorted(maps.Keys(pool.AuxiliaryAddresses)) {
		within("aux_addresses", pool.AuxiliaryAddresses[name])
	}
	if pool.IPRange == "" {
		return
	}
	switch r, bad := netip.ParsePrefix(pool.IPRange); {
	case bad != nil:
		j.value("must be a network such as 10.9.0.128/25", pool.IPRange, where("ip_range")...)
	case err == nil && (!subnet.Contains(r.Addr()) || r.Bits() < subnet.Bits()):
		j.value("is not in the subnet "+pool.Subnet, pool.IPRange, where("ip_range")...)
	}
}
