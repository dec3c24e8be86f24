package rpc

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// RegisterNode implements the call of control.v1: it registers a node.
func (s *Server) RegisterNode(ctx context.Context, req *controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	endpoint, err := parseEndpoint(req.GetGrpcEndpoint())
	if err != nil {
		return nil, err
	}
	info := s.store.View().Info()
	refuse := func(reason string) (*controlv1.RegisterNodeResponse, error) {
		return &controlv1.RegisterNodeResponse{Reason: reason, ClusterId: info.ClusterID}, nil
	}
	// A legacy v1 agent may name any cluster, because the contract does not enforce the cluster id.
	if wrong := foreign(id, req.GetClusterId(), info.ClusterID); wrong != "" && req.GetCapabilities().GetProtocol() > 0 {
		return refuse(wrong)
	}
	if want := req.GetShard(); want != "" && info.Shard != "" && want != info.Shard {
		return refuse("node " + id + " belongs to shard " + want + ", this is shard " + info.Shard + " of cluster " + info.ClusterID)
	}
	caps := req.GetCapabilities()
	for i, t := range caps.GetTaints() {
		if fault := bounds.TaintFault(t.GetEffect(), t.GetSeconds()); fault != "" {
			return refuse(fmt.Sprintf("capabilities.taints[%d].%s", i, fault))
		}
	}
	if wrong := reserves(caps); wrong != "" {
		return refuse(wrong)
	}
	cmd := s.registration(id, endpoint, req)
	if wrong := bounds.OversizedNode(cmd); wrong != "" {
		return refuse(wrong)
	}
	if !s.registered(id, cmd) {
		r, err := s.propose(ctx, "", &commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: cmd}})
		if err != nil {
			return nil, err
		}
		if err := r.Err(); err != nil {
			return refuse(err.Error())
		}
	}
	s.agents.redial(id, endpoint, 0) // dial the node again before the leader sends orders
	lease, err := s.leader.Registered(ctx, id)
	if err != nil {
		return nil, s.leading(err)
	}
	out := &controlv1.RegisterNodeResponse{
		Accepted:                 true,
		Reason:                   "registered",
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		ClusterId:                info.ClusterID,
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    s.epoch(lease.Epoch),
	}
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// foreign returns an error text if a node belongs to another cluster. It returns "" if both ids are equal, or if the
// node or this cluster has no cluster id.
func foreign(node, want, here string) string {
	if want == "" || here == "" || want == here {
		return ""
	}
	return "node " + node + " belongs to cluster " + want + ", this is cluster " + here
}

func (s *Server) epoch(e fsm.Epoch) *controlv1.Epoch {
	info := s.store.View().Info()
	return &controlv1.Epoch{ClusterId: info.ClusterID, Shard: info.Shard, Incarnation: e.Incarnation, Term: e.Term}
}

// schedulers returns the gRPC addresses of all replicas and of the leader.
func (s *Server) schedulers() (all []string, leader string) {
	s.store.View().Replicas(func(r *fsm.Replica) bool {
		if r.GRPCAddr != "" {
			all = append(all, r.GRPCAddr)
		}
		return true
	})
	if to, ok := s.replica.Leader(); ok {
		leader = to.GRPCAddr
	}
	return all, leader
}

// parseEndpoint splits an endpoint into host and port at the last colon, removes brackets around the host,
// and replaces an empty host by 127.0.0.1 (contract/wire-control.md, RegisterNodeRequest).
func parseEndpoint(v string) (string, error) {
	v = strings.TrimSpace(v)
	i := strings.LastIndexByte(v, ':')
	if v == "" || i < 0 {
		return "", errorf(KindInvalid, "grpc_endpoint %q must be host:port", v)
	}
	host, port := strings.Trim(v[:i], "[]"), v[i+1:]
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", errorf(KindInvalid, "grpc_endpoint %q: port %q must be 1 to 65535", v, port)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

func (s *Server) registration(id, endpoint string, req *controlv1.RegisterNodeRequest) *commandv1.RegisterNode {
	caps := req.GetCapabilities()
	labels := maps.Clone(req.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	if s.cfg.Shard != "" {
		labels["scheduler_shard"] = s.cfg.Shard
	}
	drivers := slices.Clone(caps.GetSupportedStorageDrivers())
	for k, v := range labels {
		if d, ok := strings.CutPrefix(k, "storage."); ok && strings.EqualFold(v, "true") {
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
		cmd.Taints = append(cmd.Taints, taintOf(t))
	}
	if n := caps.GetNetworking(); n != nil {
		cmd.Networking = networkingFor(s.store.View(), id, n)
	}
	return cmd
}

// networkingFor returns what a registering node can do for networks. If the agent reports a problem, or if the node's
// address is in the subnet of a network, the node gets no further members, but it keeps the address that it has in the
// state: its present members still need it.
func networkingFor(v fsm.View, id string, n *controlv1.NodeNetworking) *commandv1.NodeNetworking {
	out := &commandv1.NodeNetworking{
		Address: n.GetAddress(), Mtu: n.GetMtu(), Problem: clip(n.GetProblem(), 256), Ingress: n.GetIngress(), HeldPorts: clip(n.GetHeldPorts(), 256), ForbiddenPorts: clip(n.GetForbiddenPorts(), 256),
	}
	if a, err := netip.ParseAddr(out.Address); err == nil && out.Problem == "" {
		v.Networks(func(w *fsm.Network) bool {
			if w.CIDR.Contains(a.Unmap()) {
				out.Problem = clip(fmt.Sprintf("its address %s is in the subnet %s of network %s/%s: set PERSYS_AGENT_GRPC_ENDPOINT, or make the network with another subnet", a, w.CIDR, w.In(), w.Name), 256)
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

// registered reports whether the node is up and the state has the same facts about it as the registration.
// In that case the registration needs no log entry.
func (s *Server) registered(id string, cmd *commandv1.RegisterNode) bool {
	n, ok := s.store.View().Node(id)
	return ok && n.SameFacts(cmd)
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
