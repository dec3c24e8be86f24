package fsm

import (
	"cmp"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

// Conversions between protobuf messages and records. An empty list is nil on both sides, so that
// a record survives a round trip unchanged.

func convert[A, B any](in []A, fn func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i := range in {
		out[i] = fn(in[i])
	}
	return out
}

func labelOf(l *commandv1.Label) Label { return Label{l.GetKey(), l.GetValue()} }
func labelPB(l Label) *commandv1.Label { return &commandv1.Label{Key: l.Key, Value: l.Value} }

func taintOf(t *commandv1.Taint) Taint {
	return Taint{t.GetKey(), t.GetValue(), t.GetEffect(), t.GetSeconds(), t.GetSince()}
}
func taintPB(t Taint) *commandv1.Taint {
	return &commandv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, Seconds: t.Seconds, Since: t.Since}
}

// GenerationPB converts a generation for the log. It is nil for zero.
func GenerationPB(g Generation) *commandv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

// sortedLabels sorts labels by key. If several labels have the same key, the last label is kept.
func sortedLabels(in []*commandv1.Label) []Label {
	out := convert(in, labelOf)
	slices.SortStableFunc(out, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	kept := out[:0]
	for i, l := range out {
		if i+1 == len(out) || out[i+1].Key != l.Key {
			kept = append(kept, l)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

func demandOf(d *commandv1.Demand) *Demand {
	v := demandValue(d)
	return &v
}

func demandValue(d *commandv1.Demand) Demand {
	return Demand{
		Type:           word(d.GetType()),
		CPU:            d.GetCpuMillicores(),
		Memory:         d.GetMemoryMib(),
		Disk:           d.GetDiskGb(),
		Pool:           d.GetStoragePool(),
		StorageDrivers: convert(d.GetStorageDrivers(), func(s string) string { return s }),
		Ports:          convert(d.GetHostPorts(), hostPortOf),
		Labels:         sortedLabels(d.GetLabels()),
		Constraints:    convert(d.GetConstraints(), constraintOf),
		Tolerations:    convert(d.GetTolerations(), taintOf),
		Group:          d.GetGroup(),
		Exclusive:      d.GetExclusive(),
		OnLostLease:    word(d.GetOnLostLease()),
		Priority:       d.GetPriority(),
		PortNames:      convert(d.GetPortNames(), portNameOf),
		Asks:           convert(d.GetAsks(), askOf),
		LocalData:      convert(d.GetLocalData(), localDataOf),
		MACs:           convert(d.GetMacAddresses(), strings.Clone),
		Job:            jobOf(d.GetJob()),
		Template:       templateOf(d.GetTemplate()),
		Placement:      placementOf(d.GetPlacement()),
		Tags:           convert(d.GetTags(), labelOf),
		Autoscale:      autoscaleOf(d.GetAutoscale()),
		Reschedule:     rescheduleOf(d.GetReschedule()),
		Surge:          d.GetSurge(),
		Networks:       convert(d.GetNetworks(), strings.Clone),
		ServiceAddress: d.GetServiceAddress(),
		Ingress:        convert(d.GetIngress(), ingressOf),
		Devices:        devicesOf(d.GetDevices()),
		MemoryFiles:    d.GetMemoryFiles(),
		Volumes:        convert(d.GetVolumes(), volumeUseOf),
	}
}

func askOf(a *commandv1.Ask) policy.Ask {
	return policy.Ask{Rule: a.GetRule(), Value: a.GetValue(), Field: a.GetField()}
}

// AskPB converts an ask for the log.
func AskPB(a policy.Ask) *commandv1.Ask {
	return &commandv1.Ask{Rule: a.Rule, Value: a.Value, Field: a.Field}
}

// word saves memory: a record that keeps a substring of the encoded command keeps the whole command
// in memory. If s is one of the few strings that almost every PutWorkloads contains, word returns
// an equal constant, otherwise s.
func word(s string) string {
	for _, w := range [...]string{"container", "compose", "vm", OnLostLeaseKeep, OnLostLeaseStop, string(DesiredRunning), string(DesiredStopped)} {
		if s == w {
			return w
		}
	}
	return s
}

func portNameOf(p *commandv1.PortName) PortName {
	return PortName{p.GetName(), uint16(p.GetContainerPort()), p.GetProtocol(), uint16(p.GetHostPort())}
}

func portNamePB(p PortName) *commandv1.PortName {
	return &commandv1.PortName{Name: p.Name, ContainerPort: uint32(p.ContainerPort), Protocol: p.Protocol, HostPort: uint32(p.HostPort)}
}

func demandPB(d *Demand) *commandv1.Demand {
	return &commandv1.Demand{
		Type:           d.Type,
		CpuMillicores:  d.CPU,
		MemoryMib:      d.Memory,
		DiskGb:         d.Disk,
		StoragePool:    d.Pool,
		StorageDrivers: d.StorageDrivers,
		HostPorts:      convert(d.Ports, hostPortPB),
		Labels:         convert(d.Labels, labelPB),
		Constraints:    convert(d.Constraints, constraintPB),
		Tolerations:    convert(d.Tolerations, taintPB),
		Group:          d.Group,
		Exclusive:      d.Exclusive,
		OnLostLease:    d.OnLostLease,
		Priority:       d.Priority,
		PortNames:      convert(d.PortNames, portNamePB),
		Asks:           convert(d.Asks, AskPB),
		LocalData:      convert(d.LocalData, localDataPB),

		MacAddresses:   d.MACs,
		Job:            jobPB(d.Job),
		Template:       templatePB(d.Template),
		Placement:      placementPB(d.Placement),
		Tags:           convert(d.Tags, labelPB),
		Autoscale:      autoscalePB(d.Autoscale),
		Reschedule:     reschedulePB(d.Reschedule),
		Surge:          d.Surge,
		Networks:       d.Networks,
		ServiceAddress: d.ServiceAddress,
		Ingress:        convert(d.Ingress, ingressPB),
		Devices:        devicesPB(d.Devices),
		MemoryFiles:    d.MemoryFiles,
		Volumes:        convert(d.Volumes, volumeUsePB),
	}
}

func demandEqual(a, b *Demand) bool { return demandEqualBut(a, b) && a.Autoscale.equal(b.Autoscale) }

// demandEqualBut reports whether two demands are equal in all fields except Autoscale.
func demandEqualBut(a, b *Demand) bool {
	return a.Type == b.Type && a.CPU == b.CPU && a.Memory == b.Memory && a.Disk == b.Disk && a.Pool == b.Pool &&
		a.Group == b.Group && a.Exclusive == b.Exclusive && a.OnLostLease == b.OnLostLease && a.Priority == b.Priority &&
		slices.Equal(a.StorageDrivers, b.StorageDrivers) && slices.Equal(a.Ports, b.Ports) &&
		slices.Equal(a.Labels, b.Labels) && slices.Equal(a.Tolerations, b.Tolerations) && slices.Equal(a.PortNames, b.PortNames) && slices.Equal(a.Asks, b.Asks) &&
		slices.Equal(a.LocalData, b.LocalData) && slices.Equal(a.MACs, b.MACs) && a.Job.equal(b.Job) && a.Template.equal(b.Template) &&
		slices.EqualFunc(a.Constraints, b.Constraints, Constraint.equal) && a.Placement.equal(b.Placement) && slices.Equal(a.Tags, b.Tags) &&
		a.Reschedule.equal(b.Reschedule) && a.Surge == b.Surge && slices.Equal(a.Networks, b.Networks) && a.ServiceAddress == b.ServiceAddress && slices.Equal(a.Ingress, b.Ingress) &&
		slices.Equal(a.Devices, b.Devices) && a.MemoryFiles == b.MemoryFiles && slices.Equal(a.Volumes, b.Volumes)
}

// factsOf converts a registration without normalising it, so that a snapshot returns the facts
// exactly as they were stored.
func factsOf(b *commandv1.RegisterNode) NodeFacts {
	return NodeFacts{
		Endpoint:       b.GetEndpoint(),
		CPU:            b.GetCpuMillicores(),
		Memory:         b.GetMemoryMib(),
		Pools:          convert(b.GetPools(), func(p *commandv1.Pool) Pool { return Pool{p.GetName(), p.GetType(), p.GetTotalGb()} }),
		Types:          convert(b.GetTypes(), func(s string) string { return s }),
		StorageDrivers: convert(b.GetStorageDrivers(), func(s string) string { return s }),
		Labels:         convert(b.GetLabels(), labelOf),
		Taints:         convert(b.GetTaints(), taintOf),
		EngineID:       b.GetEngineId(),
		AgentVersion:   b.GetAgentVersion(),
		InstanceID:     b.GetInstanceId(),
		Protocol:       b.GetProtocol(),
		SelfFencing:    b.GetSelfFencing(),
		FenceBound:     b.GetFenceBoundSeconds(),
		Timestamp:      b.GetTimestamp(),
		LeaseSeconds:   b.GetLeaseSeconds(),
		Networking:     networkingOf(b.GetNetworking()),
		MetricsPort:    metricsPortOf(b),
		MemoryFiles:    b.GetMemoryFiles(),
		VolumeMoves:    b.GetVolumeMoves(),
		Devices:        devicesOf(b.GetDevices()),
	}
}

// metricsPortOf returns the reported port of /metrics; 0 if the value is not a port number.
func metricsPortOf(b *commandv1.RegisterNode) uint16 {
	if b.GetMetricsPort() > 65535 {
		return 0
	}
	return uint16(b.GetMetricsPort())
}

func factsPB(id string, f *NodeFacts) *commandv1.RegisterNode {
	return &commandv1.RegisterNode{
		Id:            id,
		Endpoint:      f.Endpoint,
		CpuMillicores: f.CPU,
		MemoryMib:     f.Memory,
		Pools: convert(f.Pools, func(p Pool) *commandv1.Pool {
			return &commandv1.Pool{Name: p.Name, Type: p.Type, TotalGb: p.Total}
		}),
		Types:          f.Types,
		StorageDrivers: f.StorageDrivers,
		Labels:         convert(f.Labels, labelPB),
		Taints:         convert(f.Taints, taintPB),
		EngineId:       f.EngineID,
		AgentVersion:   f.AgentVersion,
		InstanceId:     f.InstanceID,
		Protocol:       f.Protocol,
		SelfFencing:    f.SelfFencing,

		FenceBoundSeconds: f.FenceBound,

		Timestamp:    f.Timestamp,
		LeaseSeconds: f.LeaseSeconds,
		Networking:   networkingPB(f.Networking),
		MetricsPort:  uint32(f.MetricsPort),
		MemoryFiles:  f.MemoryFiles,
		VolumeMoves:  f.VolumeMoves,
		Devices:      devicesPB(f.Devices),
	}
}

// normalise brings facts into the form that the planner compares: sorted, lower case, and with
// the current names of types and storage drivers.
func (f *NodeFacts) normalise() {
	f.Types = vocabulary(f.Types, func(s string) string {
		switch s {
		case "docker-container":
			return "container"
		case "docker-compose":
			return "compose"
		}
		return s
	})
	f.StorageDrivers = vocabulary(append(f.StorageDrivers, "local"), func(s string) string {
		if s == "ceph_rbd" {
			return "ceph-rbd"
		}
		return s
	})
	slices.SortFunc(f.Devices, func(a, b DeviceCount) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(f.Labels, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	f.Labels = slices.CompactFunc(f.Labels, func(a, b Label) bool { return a.Key == b.Key })
	if len(f.Labels) == 0 {
		f.Labels = nil
	}
}

// vocabulary returns the names in lower case, renamed by rename, sorted, without duplicates and
// without empty names.
func vocabulary(in []string, rename func(string) string) []string {
	var out []string
	for _, s := range in {
		if s = rename(strings.ToLower(strings.TrimSpace(s))); s != "" {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// factsEqual reports whether two registrations of a node are equal except for their timestamps.
func factsEqual(a, b *NodeFacts) bool {
	return a.Endpoint == b.Endpoint && a.CPU == b.CPU && a.Memory == b.Memory &&
		slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Types, b.Types) &&
		slices.Equal(a.StorageDrivers, b.StorageDrivers) && slices.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.Taints, b.Taints) && a.EngineID == b.EngineID && a.AgentVersion == b.AgentVersion &&
		a.InstanceID == b.InstanceID && a.Protocol == b.Protocol && a.SelfFencing == b.SelfFencing &&
		a.FenceBound == b.FenceBound && a.Networking == b.Networking &&
		a.MetricsPort == b.MetricsPort && a.MemoryFiles == b.MemoryFiles && a.VolumeMoves == b.VolumeMoves && slices.Equal(a.Devices, b.Devices) &&
		a.LeaseSeconds == b.LeaseSeconds
}

// SameFacts reports whether registering b would change nothing but a timestamp of n. If so, the leader need
// not propose the registration (sched/control/DESIGN.md).
func (n *Node) SameFacts(b *commandv1.RegisterNode) bool {
	f := factsOf(b)
	f.normalise()
	f.dateTaints(n.Facts.Taints, 0)
	return n.Up && n.ID == b.GetId() && len(n.Lacks) == 0 && factsEqual(&n.Facts, &f)
}

// Runs reports whether the node runs a workload type. A node that names no types is a legacy v1 peer and runs
// everything except virtual machines. It returns false for a type that the node has refused since it
// registered.
func (n *Node) Runs(workloadType string) bool {
	if slices.Contains(n.Lacks, workloadType) {
		return false
	}
	if len(n.Facts.Types) == 0 {
		return workloadType != "vm"
	}
	return slices.Contains(n.Facts.Types, workloadType)
}
