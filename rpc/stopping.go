package rpc

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/spec"
)

// stopping returns the nodes that still have instances of a workload that shall not run; nil if there are none.
func stopping(v fsm.View, w *fsm.Workload) *controlv1.Stopping {
	if w.Desired == fsm.DesiredRunning || w.IsTemplate() {
		return nil
	}
	out := &controlv1.Stopping{GraceSeconds: stopGrace(w)}
	if w.Node != "" {
		switch w.Status {
		case fsm.StatusStopped, fsm.StatusFailed, fsm.StatusUnknown, fsm.StatusRetryPending:
			return nil // the instance has ended, or its state is unknown
		}
		out.NodeIds = []string{w.Node}
		return out
	}
	first := int64(0)
	v.ResidualsOf(w.ID, func(r *fsm.Residual) bool {
		out.NodeIds = append(out.NodeIds, r.Node)
		if first == 0 || r.Since < first {
			first = r.Since
		}
		return true
	})
	if len(out.NodeIds) == 0 {
		return nil
	}
	slices.Sort(out.NodeIds)
	out.Since = timestamppb.New(time.Unix(0, first))
	return out
}

// stopGrace returns the seconds that the container of a workload gets to end by itself; 0 for other workloads.
func stopGrace(w *fsm.Workload) int32 {
	s := &controlv1.WorkloadSpec{}
	if w.Demand.Type != spec.TypeContainer || s.UnmarshalVT(w.Spec) != nil {
		return 0
	}
	if own := s.GetContainer().GetStopGracePeriodSeconds(); own > 0 {
		return own
	}
	return int32(policy.StopGrace / time.Second)
}
