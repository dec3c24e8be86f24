package rpc

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
)

// Heartbeat implements the call of control.v1: it handles the heartbeat of a node.
func (s *Server) Heartbeat(ctx context.Context, req *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	view := s.store.View()
	// A node of another cluster may have the same id as a node of this cluster.
	if wrong := foreign(id, req.GetClusterId(), view.Info().ClusterID); wrong != "" {
		return nil, errorf(KindPrecondition, "%s", wrong)
	}
	node, ok := view.Node(id)
	if !ok {
		// A new leader may not have applied its whole log yet, so its state may lack a registered node. The leader's
		// loop answers only when the log is applied.
		if _, err := s.leader.Heartbeat(ctx, sched.Heartbeat{Node: id, ReceivedAt: s.now().UnixNano()}); err != nil {
			return nil, s.leading(err)
		}
		if node, ok = s.store.View().Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q is not registered", id)
		}
	}
	hb := sched.Heartbeat{
		Node:       id,
		ReceivedAt: s.now().UnixNano(),
		Full:       req.GetFull() || node.Facts.Protocol == 0,
		Protocol:   node.Facts.Protocol,
		Sequence:   req.GetSequence(),
	}
	hb.Used = usageOf(req.GetUsage())
	if req.GetUsage() == nil {
		hb.Used, _ = s.leader.UsageOf(id) // nil keeps the last reported usage, because this heartbeat reports none
	}
	hb.PoolsUsed = poolsUsed(node, req.GetUsage())
	hb.Reports = make([]sched.Reported, 0, len(req.GetWorkloadStatuses()))
	for _, st := range req.GetWorkloadStatuses() {
		hb.Reports = append(hb.Reports, reported(st, node.Facts.Protocol == 0))
	}
	hb.Usage = used(req.GetWorkloadUsage())
	hb.Volumes = heldVolumes(id, req.GetVolumes())
	s.agents.redial(id, node.Facts.Endpoint, 0)
	lease, err := s.leader.Heartbeat(ctx, hb)
	if err != nil {
		return nil, s.leading(err)
	}
	out := &controlv1.HeartbeatResponse{
		Acknowledged:             true,
		DrainNode:                lease.Drain,
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    s.epoch(lease.Epoch),
		SendFull:                 lease.SendFull,
		Networks:                 s.networksFor(node, lease.Epoch, req),
	}
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// leading converts errors of package leader, to errors of this package: "not found" stays, and every other error means
// that this replica does not lead.
func (s *Server) leading(err error) error {
	var unknown interface{ NotFound() bool }
	if errors.As(err, &unknown) {
		return errorf(KindNotFound, "%w", err)
	}
	return errorf(KindNotLeader, "%w", err)
}

// wholeSeconds converts the duration of a lease from nanoseconds to whole seconds. It rounds down, because a node must
// never believe in a longer lease than the leader does.
func wholeSeconds(ns int64) int32 {
	if ns > 0 && ns < int64(time.Second) {
		return 1 // the lease is at least one second long, because of the limits of the settings
	}
	return int32(ns / int64(time.Second))
}

func seconds(ns int64) int32 { return int32((ns + int64(time.Second) - 1) / int64(time.Second)) }

// usageOf converts the resource usage that a node reports. The usage is only shown. A negative number, or one that no
// machine can have, is replaced by the nearest possible value; the heartbeat is not refused, because it renews the
// node's lease. In contrast, a registration with impossible capacities is refused (see the function reserves).
func usageOf(u *controlv1.NodeUsage) sched.NodeUsage {
	within := func(v, most int64) int64 { return max(0, min(v, most)) }
	cpu, memory, disk := within(u.GetCpuUsedMillicores(), bounds.MaxCPU), within(u.GetMemoryUsedMb(), bounds.MaxMemory), within(u.GetDiskUsedGb(), bounds.MaxDisk)
	return sched.NodeUsage{CPU: cpu, Memory: memory, Disk: disk, NetReceived: max(0, u.GetNetRxBytes()), NetSent: max(0, u.GetNetTxBytes()), NamesAge: u.GetNetworkNamesAgeSeconds()}
}

// poolsUsed returns the used GB of each storage pool that the node has registered; nil if the heartbeat names
// no pools.
func poolsUsed(n *fsm.Node, u *controlv1.NodeUsage) map[string]int64 {
	if len(u.GetStoragePools()) == 0 {
		return nil
	}
	out := make(map[string]int64, len(n.Facts.Pools))
	for _, used := range u.GetStoragePools() {
		for _, p := range n.Facts.Pools {
			if p.Name == used.GetName() {
				out[p.Name] = max(0, min(used.GetUsedGb(), bounds.MaxDisk))
			}
		}
	}
	return out
}

// used converts the measured resource usage of workloads in a heartbeat.
func used(list []*controlv1.WorkloadUsageSnapshot) []sched.WorkloadUsage {
	if len(list) == 0 {
		return nil
	}
	out := make([]sched.WorkloadUsage, 0, len(list))
	for _, u := range list {
		one := sched.WorkloadUsage{
			Workload: u.GetWorkloadId(), Type: u.GetType(), Source: u.GetSource(),
			CPUPercent: percent(u.GetCpuPercent()), Unmeasured: u.GetCpuUnmeasured(),
			Memory: amount(u.GetMemoryBytes()), MemoryLimit: amount(u.GetMemoryLimitBytes()), Disk: amount(u.GetDiskBytes()),
			DiskLimit: amount(u.GetDiskLimitBytes()), DiskCapped: u.GetDiskCapped(),
			DiskRead: amount(u.GetDiskReadBytes()), DiskWrite: amount(u.GetDiskWriteBytes()),
			NetReceived: amount(u.GetNetRxBytes()), NetSent: amount(u.GetNetTxBytes()),
		}
		if at := u.GetCollectedAt(); at.IsValid() {
			one.At = at.AsTime().UnixNano()
		}
		out = append(out, one)
	}
	return out
}

// amount returns v, or 0 if v is negative. percent returns v limited to the range from 0 to the percentage of the
// largest possible machine, where 100 is one core.
func amount(v int64) int64 { return max(0, v) }

func percent(v float64) float64 {
	if math.IsNaN(v) || v < 0 {
		return 0
	}
	return min(v, bounds.MaxCPU/10) // MaxCPU in percent, where 100 is one core
}
