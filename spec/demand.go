package spec

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// DemandOf returns the demand of a plain, normalised specification: the part that the planner reads, such as CPU,
// memory, ports and constraints (spec/DESIGN.md). Every list is sorted.
//
// A VM without `resources` reserves the CPU and memory of its guest. It never reserves less memory than the guest has.
// An inline Compose stack reserves the limits of its services. Each label of the specification is a required label of
// the node (contract/semantics.md section 4). The storage driver local is left out, because every node has it.
func DemandOf(id string, s *controlv1.WorkloadSpec) *commandv1.Demand {
	r := s.GetResources()
	d := &commandv1.Demand{
		Type:           s.GetType(),
		CpuMillicores:  r.GetCpuMillicores(),
		MemoryMib:      r.GetMemoryMb(),
		DiskGb:         r.GetDiskGb(),
		StoragePool:    r.GetStoragePool(),
		Group:          s.GetGroup(),
		Exclusive:      s.GetExclusive(),
		OnLostLease:    orElse(s.GetOnLostLease(), fsm.OnLostLeaseKeep),
		Priority:       s.GetPriority(),
		LocalData:      localData(s),
		Job:            jobDemand(s),
		Template:       templateDemand(s),
		Placement:      placementDemand(s),
		Autoscale:      autoscaleDemand(s),
		Reschedule:     rescheduleDemand(s),
		Networks:       networkNames(s),
		ServiceAddress: hasServiceAddress(s),
		Ingress:        ingressDemand(s.GetContainer()),
		MemoryFiles:    slices.ContainsFunc(refsOf(s), func(r objectRef) bool { return r.file != nil }),
	}
	d.Devices = devicesDemand(r, containerDevices(s.GetContainer()))
	for _, k := range sortedKeys(s.GetTags()) {
		d.Tags = append(d.Tags, &commandv1.Label{Key: k, Value: s.GetTags()[k]})
	}
	var ports []*controlv1.Port
	volumes := fromControlVolumes(s.GetContainer().GetManagedVolumes())
	switch s.GetType() {
	case TypeContainer:
		ports = s.GetContainer().GetPorts()
	case TypeCompose:
		volumes = fromControlVolumes(s.GetCompose().GetManagedVolumes())
		if c := s.GetCompose(); !isGit(c) {
			ports = composePorts(c)
			cpu, memory := composeLimits(c)
			if d.CpuMillicores == 0 {
				d.CpuMillicores = cpu
			}
			if d.MemoryMib == 0 {
				d.MemoryMib = memory
			}
		}
	case TypeVM:
		v, _ := vmOf(s)
		volumes = v.GetManagedVolumes()
		d.CpuMillicores = cmp.Or(d.CpuMillicores, v.GetCpuMillicores(), int64(v.GetVcpus())*1000)
		// The guest of a VM needs all of its memory.
		d.MemoryMib = max(d.MemoryMib, v.GetMemoryMb())
		if d.DiskGb == 0 {
			for _, disk := range v.GetDisks() {
				d.DiskGb += disk.GetSizeGb()
			}
		}
	}
	d.Volumes = volumeUses(volumes, d.StoragePool)
	for _, v := range volumes {
		if v.GetDriver() != "local" {
			d.StorageDrivers = append(d.StorageDrivers, v.GetDriver())
		} else if r.GetDiskGb() == 0 {
			d.DiskGb += v.GetSizeGb()
		}
	}
	slices.Sort(d.StorageDrivers)
	d.StorageDrivers = slices.Compact(d.StorageDrivers)
	SetPorts(d, ports)
	for _, k := range sortedKeys(s.GetLabels()) {
		d.Labels = append(d.Labels, &commandv1.Label{Key: k, Value: s.GetLabels()[k]})
	}
	for _, c := range s.GetConstraints() {
		d.Constraints = append(d.Constraints, &commandv1.Constraint{Key: c.GetKey(), Op: c.GetOperator(), Values: slices.Clone(c.GetValues())})
	}
	for _, a := range asksOf(id, s) {
		d.Asks = append(d.Asks, fsm.AskPB(a))
	}
	for _, t := range s.GetTolerations() {
		d.Tolerations = append(d.Tolerations, &commandv1.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect()})
	}
	return d
}

// cdiDevices returns the sorted names of the devices that a container gets: the names that are CDI kinds
// (VENDOR/CLASS).
func cdiDevices(r *controlv1.ResourceRequirements) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.GetDevices())) {
		if strings.ContainsRune(name, '/') {
			names = append(names, name)
		}
	}
	return names
}

// StackDevices has, for each kind of device, the number of devices that containers request with the keys
// devices and gpus of Compose. A kind is named as nodes offer it. If the number is 0, the node must offer the
// kind, and no device is reserved.
type StackDevices map[string]int64

// Named adds the kind of a device that a container names, such as nvidia.com/gpu for nvidia.com/gpu=0. Other names, such
// as the path /dev/fuse, are no kind that nodes offer.
func (d StackDevices) Named(name string) {
	if kind, _, cdi := strings.Cut(name, "="); cdi && strings.Contains(kind, "/") && bounds.ValidDevice(kind) {
		d[kind] += 0
	}
}

// Requested adds one request for devices of a container that runs copies times: count devices of a driver, or
// the devices with the ids. A count of -1 means all devices of the node. They are not reserved, because their
// number depends on the node.
func (d StackDevices) Requested(driver string, count int64, ids []string, copies int64) {
	for _, id := range ids {
		d.Named(id)
	}
	if driver != "cdi" {
		d[fsm.AnyGPU] += max(count, 0) * copies
	}
}

// kindsOfDevices validates how many kinds of devices a workload asks for: those in resources.devices, and those that its
// containers name.
func (e *Errors) kindsOfDevices(field string, list []*commandv1.DeviceCount) {
	if n := len(list); n > bounds.MaxDevices {
		e.addf(field, strconv.Itoa(n), "names, together with gpus and resources.devices, devices of %d kinds, at most %d", n, bounds.MaxDevices)
	}
	// GPUs of any kind include the GPUs of the named kind, so the same GPU could be reserved twice.
	gpus := slices.DeleteFunc(slices.Clone(list), func(d *commandv1.DeviceCount) bool { return d.GetCount() == 0 || !fsm.IsGPU(d.GetName()) })
	if i := slices.IndexFunc(gpus, func(d *commandv1.DeviceCount) bool { return d.GetName() == fsm.AnyGPU }); i >= 0 && len(gpus) > 1 {
		e.add(field, "reserves GPUs of any kind (gpus, or resources.devices.gpu) together with GPUs of a kind: use one of them", gpus[1-min(i, 1)].GetName())
	}
}

func containerDevices(c *controlv1.ContainerSpec) StackDevices {
	out := StackDevices{}
	for _, d := range c.GetDevices() {
		out.Named(d.GetSource())
	}
	for _, g := range c.GetGpus() {
		out.Requested(g.GetDriver(), g.GetCount(), g.GetDeviceIds(), 1)
	}
	return out
}

// devicesDemand returns the devices of a demand: the devices that resources.devices reserves, and the devices
// that the containers request (own), without the kinds that resources.devices reserves.
func devicesDemand(r *controlv1.ResourceRequirements, own StackDevices) (out []*commandv1.DeviceCount) {
	for name, n := range r.GetDevices() {
		out = append(out, &commandv1.DeviceCount{Name: name, Count: n})
	}
	counted := len(out)
	for name, n := range own {
		if !slices.ContainsFunc(out[:counted], func(d *commandv1.DeviceCount) bool { return fsm.Shares(d.Name, name) }) {
			out = append(out, &commandv1.DeviceCount{Name: name, Count: min(n, bounds.DevicesOfOne)})
		}
	}
	slices.SortFunc(out, func(a, b *commandv1.DeviceCount) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// SetPorts sets the host ports, and the names of ports, that the planner reads from a workload's demand.
func SetPorts(d *commandv1.Demand, ports []*controlv1.Port) {
	d.PortNames, d.HostPorts = nil, nil
	for _, p := range ports {
		if bounds.ValidServiceName(p.GetName()) && p.GetContainerPort() > 0 {
			name := &commandv1.PortName{
				Name: p.GetName(), ContainerPort: uint32(p.GetContainerPort()), Protocol: protocolOf(p.GetProtocol()), HostPort: uint32(p.GetHostPort()),
			}
			if portMode(p) == portIngress {
				name.HostPort = 0
			}
			d.PortNames = append(d.PortNames, name)
		}
	}
	named := func(a, b *commandv1.PortName) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.ContainerPort, b.ContainerPort),
			strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.HostPort, b.HostPort))
	}
	slices.SortFunc(d.PortNames, named)
	d.PortNames = slices.CompactFunc(d.PortNames, func(a, b *commandv1.PortName) bool { return named(a, b) == 0 })
	for _, p := range ports {
		if p.GetHostPort() > 0 && portMode(p) != portIngress {
			d.HostPorts = append(d.HostPorts, &commandv1.Port{Port: uint32(p.GetHostPort()), Protocol: protocolOf(p.GetProtocol()), Address: p.GetAddress()})
		}
	}
	order := func(a, b *commandv1.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Address, b.Address))
	}
	slices.SortFunc(d.HostPorts, order)
	d.HostPorts = slices.CompactFunc(d.HostPorts, func(a, b *commandv1.Port) bool { return order(a, b) == 0 })
}
