package message

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
)

// Registration converts the registration of node id to a command. shard is the shard of the scheduler, and endpoint the
// agent's address as host:port. If the node must be refused, the second result says why.
func Registration(v fsm.View, shard, id, endpoint string, req *controlv1.RegisterNodeRequest) (*commandv1.RegisterNode, string) {
	caps := req.GetCapabilities()
	for i, t := range caps.GetTaints() {
		if fault := bounds.TaintFault(t.GetEffect(), t.GetSeconds()); fault != "" {
			return nil, fmt.Sprintf("capabilities.taints[%d].%s", i, fault)
		}
	}
	if wrong := reserves(caps); wrong != "" {
		return nil, wrong
	}
	cmd := registration(v, shard, id, endpoint, req)
	return cmd, bounds.OversizedNode(cmd)
}

// RegistrationResponse converts the leader's answer to an accepted registration. The caller adds the addresses of the
// schedulers.
func RegistrationResponse(info fsm.Info, lease sched.Lease) *controlv1.RegisterNodeResponse {
	return &controlv1.RegisterNodeResponse{
		Accepted:                 true,
		Reason:                   "registered",
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		ClusterId:                info.ClusterID,
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    Epoch(info, lease.Epoch),
	}
}

func registration(v fsm.View, shard, id, endpoint string, req *controlv1.RegisterNodeRequest) *commandv1.RegisterNode {
	caps := req.GetCapabilities()
	labels := maps.Clone(req.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	if shard != "" {
		labels["scheduler_shard"] = shard
	}
	drivers := slices.Clone(caps.GetSupportedStorageDrivers())
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if d, ok := strings.CutPrefix(k, "storage."); ok && strings.EqualFold(labels[k], "true") {
			drivers = append(drivers, d)
		}
	}
	cmd := &commandv1.RegisterNode{
		Id:             id,
		Endpoint:       endpoint,
		CpuMillicores:  offered(caps, caps.GetCpuTotalMillicores(), caps.GetCpuReservedMillicores()),
		MemoryMib:      offered(caps, caps.GetMemoryTotalMb(), caps.GetMemoryReservedMb()),
		Types:          caps.GetSupportedWorkloadTypes(),
		StorageDrivers: drivers,
		EngineId:       caps.GetEngineId(),
		AgentVersion:   req.GetAgentVersion(),
		InstanceId:     req.GetInstanceId(),
		Protocol:       caps.GetProtocol(),
		SelfFencing:    caps.GetSelfFencing(),

		FenceBoundSeconds: caps.GetFenceBoundSeconds(),
		MetricsPort:       caps.GetMetricsPort(),
		MemoryFiles:       caps.GetMemoryFiles(),
		VolumeMoves:       caps.GetVolumeMoves(),
	}
	if ts := req.GetTimestamp(); ts != nil {
		cmd.Timestamp = ts.AsTime().UTC().Format(time.RFC3339)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		cmd.Labels = append(cmd.Labels, &commandv1.Label{Key: k, Value: labels[k]})
	}
	for i, p := range caps.GetStoragePools() {
		kept := int64(0)
		if i == 0 {
			kept = caps.GetDiskReservedGb()
		}
		cmd.Pools = append(cmd.Pools, &commandv1.Pool{Name: p.GetName(), Type: p.GetType(), TotalGb: offered(caps, p.GetTotalGb(), kept)})
	}
	for _, name := range slices.Sorted(maps.Keys(caps.GetDevices())) {
		// Container engines take device names from CDI files, which may contain invalid names. An invalid name must
		// not prevent the registration.
		if n := caps.GetDevices()[name]; n > 0 && n <= bounds.DevicesOfOne && bounds.ValidDevice(name) {
			cmd.Devices = append(cmd.Devices, &commandv1.DeviceCount{Name: name, Count: n})
		}
	}
	for _, t := range caps.GetTaints() {
		cmd.Taints = append(cmd.Taints, Taint(t))
	}
	if n := caps.GetNetworking(); n != nil {
		cmd.Networking = networkingFor(v, id, n)
	}
	return cmd
}

// networkingFor returns what a registering node can do for networks. If the agent reports a problem, or if the node's
// address is in the subnet of a network, the node gets no further members, but it keeps the address that it has in the
// state: its present members still need it.
func networkingFor(v fsm.View, id string, n *controlv1.NodeNetworking) *commandv1.NodeNetworking {
	out := &commandv1.NodeNetworking{
		Address: n.GetAddress(), Mtu: n.GetMtu(), Problem: bounds.Clip(n.GetProblem(), 256), Ingress: n.GetIngress(), HeldPorts: bounds.Clip(n.GetHeldPorts(), 256), ForbiddenPorts: bounds.Clip(n.GetForbiddenPorts(), 256),
	}
	if a, err := netip.ParseAddr(out.Address); err == nil && out.Problem == "" {
		v.Networks(func(w *fsm.Network) bool {
			if w.CIDR.Contains(a.Unmap()) {
				out.Problem = bounds.Clip(fmt.Sprintf("its address %s is in the subnet %s of network %s/%s: set PERSYS_AGENT_GRPC_ENDPOINT, or make the network with another subnet", a, w.CIDR, w.In(), w.Name), 256)
			}
			return out.Problem == ""
		})
	}
	if out.Problem != "" {
		out.Address, out.Mtu = "", 0
		if was, ok := v.Node(id); ok {
			out.Address, out.Mtu = was.Facts.Networking.Address, was.Facts.Networking.MTU
		}
	}
	return out
}

// Taint converts a taint of a node. The state machine sets its time.
func Taint(t *controlv1.Taint) *commandv1.Taint {
	return &commandv1.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect(), Seconds: t.GetSeconds()}
}

// offered returns how much of a resource may be allocated on a node: the total minus the reservation, times the node's
// threshold in percent, rounded down. An invalid (negative) total stays invalid, so that the state machine refuses the
// registration with an error that names the total.
func offered(c *controlv1.NodeCapabilities, total, reserved int64) int64 {
	rest := total - reserved
	if total < 0 || reserved < 0 {
		return rest
	}
	percent := int64(c.GetResourceThresholdPercent())
	if percent == 0 || percent >= 100 {
		return max(0, rest)
	}
	return max(0, rest)/100*percent + max(0, rest)%100*percent/100
}

// reserves returns what is wrong with the totals and reservations of a node; "" if they are valid. For
// example, a negative reservation would increase what the node offers.
func reserves(c *controlv1.NodeCapabilities) string {
	for _, r := range []struct {
		field           string
		reserved, total int64
		totalField      string
		most            int64
	}{
		{"cpu_reserved_millicores", c.GetCpuReservedMillicores(), c.GetCpuTotalMillicores(), "cpu_total_millicores", bounds.MaxCPU},
		{"memory_reserved_mb", c.GetMemoryReservedMb(), c.GetMemoryTotalMb(), "memory_total_mb", bounds.MaxMemory},
	} {
		switch {
		case r.total <= 0:
			return fmt.Sprintf("capabilities.%s %d must be above 0", r.totalField, r.total)
		case r.total > r.most:
			return fmt.Sprintf("capabilities.%s %d must be at most %d", r.totalField, r.total, r.most)
		case r.reserved < 0 || r.reserved >= r.total:
			return fmt.Sprintf("capabilities.%s %d must be from 0 to below %s %d", r.field, r.reserved, r.totalField, r.total)
		}
	}
	if percent := c.GetResourceThresholdPercent(); percent > 100 {
		return fmt.Sprintf("capabilities.resource_threshold_percent %d must be 0 (all) to 100", percent)
	}
	// Do not compare the disk reservation with the total: the total is measured, so it may be smaller than the
	// reservation. The node then offers no disk.
	if kept := c.GetDiskReservedGb(); kept < 0 || kept > bounds.MaxDisk {
		return fmt.Sprintf("capabilities.disk_reserved_gb %d must be 0 to %d", kept, int64(bounds.MaxDisk))
	}
	return ""
}
