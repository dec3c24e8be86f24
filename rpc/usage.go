package rpc

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// used reads what a node measured of its workloads.
func used(list []*controlv1.WorkloadUsageSnapshot) []sched.WorkloadUsage {
	if len(list) == 0 {
		return nil
	}
	out := make([]sched.WorkloadUsage, 0, len(list))
	for _, u := range list {
		one := sched.WorkloadUsage{
			Workload: u.GetWorkloadId(), Type: u.GetType(), Source: u.GetSource(),
			CPUPercent: percent(u.GetCpuPercent()),
			Memory:     amount(u.GetMemoryBytes()), MemoryLimit: amount(u.GetMemoryLimitBytes()), Disk: amount(u.GetDiskBytes()),
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

// amount and percent are the nearest figures that can be; see usageOf.
func amount(v int64) int64 { return max(0, v) }

func percent(v float64) float64 {
	if math.IsNaN(v) || v < 0 {
		return 0
	}
	return min(v, bounds.MaxCPU/10) // 100 is one core
}

// workloadView adds to a workload what its record does not say: its use, which only
// the leader knows, and what is left of it where it was.
func (s *Server) workloadView(v fsm.View, w *fsm.Workload, detail spec.Detail) *controlv1.WorkloadView {
	out := spec.WorkloadView(w, detail)
	if w.Desired == fsm.DesiredStopped && w.Node == "" {
		if left := leftOver(v, w.ID); left != "" {
			out.Reason, out.Message = &controlv1.ReasonDetail{Code: fsm.CodeAwaitStop, Message: left, LastTransition: out.GetReason().GetLastTransition()}, left
		}
	}
	if w.Node == "" || w.Status != fsm.StatusRunning && w.Status != fsm.StatusUpdating {
		return out
	}
	if u, ok := s.leader.WorkloadUsageOf(w.Node, w.ID); ok {
		out.Usage = &controlv1.WorkloadUsageSnapshot{
			WorkloadId: w.ID, Type: u.Type, Source: u.Source, CpuPercent: u.CPUPercent,
			MemoryBytes: u.Memory, MemoryLimitBytes: u.MemoryLimit, DiskBytes: u.Disk,
			DiskLimitBytes: u.DiskLimit, DiskCapped: u.DiskCapped,
			DiskReadBytes: u.DiskRead, DiskWriteBytes: u.DiskWrite, NetRxBytes: u.NetReceived, NetTxBytes: u.NetSent,
			CollectedAt: timestamppb.New(time.Unix(0, u.At)),
		}
	}
	return out
}

// leftOver says of a stopped workload where it may still run, "" if nowhere: it left
// that node when the node was lost or drained, and the node has not let it go yet.
func leftOver(v fsm.View, workload string) (text string) {
	v.ResidualsOf(workload, func(r *fsm.Residual) bool {
		n, ok := v.Node(r.Node)
		switch {
		case !ok || n.Fenced:
		case n.Up:
			text = "stopped by request; node " + n.ID + " is still to remove what it had of it"
		default:
			text = "stopped by request, but node " + n.ID + " is lost and may still run what it had of it, which is removed once the node is back; " +
				"if that is known to be off: persysctl node fence " + n.ID
		}
		return !ok || n.Up || n.Fenced // a lost node is the one to name
	})
	return text
}
