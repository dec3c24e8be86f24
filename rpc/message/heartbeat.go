package message

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/order"
	"github.com/persys/compute/sched"
)

// Heartbeat converts a heartbeat of node n that was received at the time at, in Unix nanoseconds.
func Heartbeat(n *fsm.Node, req *controlv1.HeartbeatRequest, at int64) sched.Heartbeat {
	hb := sched.Heartbeat{
		Node:       n.ID,
		ReceivedAt: at,
		Full:       req.GetFull() || n.Facts.Protocol == 0,
		Protocol:   n.Facts.Protocol,
		Sequence:   req.GetSequence(),
		Used:       usageOf(req.GetUsage()),
		PoolsUsed:  poolsUsed(n, req.GetUsage()),
		Reports:    make([]sched.Reported, 0, len(req.GetWorkloadStatuses())),
		Usage:      used(req.GetWorkloadUsage()),
		Volumes:    heldVolumes(n.ID, req.GetVolumes()),
		Moves:      moveReports(req.GetMoves()),
	}
	for _, st := range req.GetWorkloadStatuses() {
		hb.Reports = append(hb.Reports, Report(st, n.Facts.Protocol == 0))
	}
	return hb
}

// HeartbeatResponse converts the leader's answer to a heartbeat. The caller adds the addresses of the schedulers and the
// networks of the node.
func HeartbeatResponse(info fsm.Info, lease sched.Lease) *controlv1.HeartbeatResponse {
	return &controlv1.HeartbeatResponse{
		Acknowledged:             true,
		DrainNode:                lease.Drain,
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    Epoch(info, lease.Epoch),
		SendFull:                 lease.SendFull,
	}
}

// Epoch returns the message of an epoch of the cluster.
func Epoch(info fsm.Info, e fsm.Epoch) *controlv1.Epoch {
	return &controlv1.Epoch{ClusterId: info.ClusterID, Shard: info.Shard, Incarnation: e.Incarnation, Term: e.Term}
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

// maxHeldVolumes is the maximum number of a node's volumes in one log command.
const maxHeldVolumes = 2000

// heldVolumes converts the volumes in a heartbeat to a log command; nil if the heartbeat does not report
// volumes.
func heldVolumes(node string, r *controlv1.VolumeReport) *commandv1.ReportVolumes {
	if r == nil {
		return nil
	}
	out := &commandv1.ReportVolumes{Node: node, Complete: r.GetComplete()}
	for _, v := range r.GetVolumes() {
		if len(out.Volumes) == maxHeldVolumes {
			out.Complete = false
			break
		}
		out.Volumes = append(out.Volumes, &commandv1.HeldVolume{
			Name: v.GetName(), Namespace: v.GetNamespace(), Driver: v.GetDriver(), SizeGb: v.GetSizeGb(), Pool: v.GetPool(), Retain: v.GetRetain(), Owner: v.GetOwner(), ByHand: v.GetByHand(),
			Copy: copyOf(v.GetCopy()), Aside: v.GetAside(),
		})
	}
	return out
}

// copyOf converts the id of a copy of a volume; nil for a volume that never moved.
func copyOf(m *controlv1.Generation) *commandv1.Generation {
	if m == nil {
		return nil
	}
	return fsm.GenerationPB(order.GenerationOf(m))
}

// moveReports converts the reports of a heartbeat about moves of volumes. There are at most fsm.MaxMoves moves.
func moveReports(list []*controlv1.MoveReport) (out []sched.MoveReport) {
	for _, r := range list[:min(len(list), fsm.MaxMoves)] {
		out = append(out, sched.MoveReport{
			Workload: r.GetWorkloadId(), Move: order.GenerationOf(r.GetMove()), State: r.GetState(), Message: bounds.Clip(r.GetMessage(), 512),
			Total: amount(r.GetTotalBytes()), Done: amount(r.GetDoneBytes()), Sent: amount(r.GetSentBytes()),
		})
	}
	return out
}
