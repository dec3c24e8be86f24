package spec

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// Detail selects how much of a workload a view shows.
type Detail bool

// Brief is for lists. Full adds the specification with its secrets redacted.
const (
	Brief Detail = false
	Full  Detail = true
)

// WorkloadView converts a record for users and legacy v1 clients. Status is one of the ten words of
// RULES. If the stored specification cannot be read, its fields stay empty.
func WorkloadView(w *fsm.Workload, detail Detail) *controlv1.WorkloadView {
	v := &controlv1.WorkloadView{
		WorkloadId:             w.ID,
		Type:                   w.Demand.Type,
		DesiredState:           string(w.Desired),
		Status:                 string(w.Status),
		AssignedNodeId:         w.Node,
		RevisionId:             w.Revision(),
		RetryAttempts:          w.Retry.Attempts,
		RetryMaxAttempts:       w.Retry.MaxAttempts,
		RetryNextAt:            stamp(w.Retry.NextAt),
		LastUpdated:            stamp(w.UpdatedAt),
		Generation:             ControlGeneration(w.Generation),
		Index:                  w.ModifyIndex,
		Group:                  w.Demand.Group,
		Priority:               w.Demand.Priority,
		Exclusive:              w.Demand.Exclusive,
		Addresses:              slices.Clone(w.Actual.Addresses),
		CreatedAt:              stamp(w.CreatedAt),
		Content:                w.Content,
		AssignmentAcknowledged: w.Acknowledged,
		CallerRevisionId:       w.CallerRevision,
		Labels:                 labelMap(w.Demand.Labels),
		Message:                orElse(w.Actual.Message, w.Reason.Message),
		Health:                 w.Actual.Health,
		Namespace:              w.In(),
	}
	if w.Reason.Code != "" || w.Reason.Message != "" {
		v.Reason = &controlv1.ReasonDetail{
			Code: w.Reason.Code, Message: w.Reason.Message, LastTransition: stamp(w.Reason.At),
			NextRetryAt: stamp(w.Retry.NextAt), Retryable: w.Reason.Retryable,
		}
	}
	if w.Status == fsm.StatusFailed || w.Status == fsm.StatusRetryPending {
		v.FailureReason = orElse(w.Reason.Message, orElse(w.Actual.Message, w.Reason.Code))
	}
	for _, p := range w.Actual.Ports {
		port := &controlv1.Port{HostPort: int32(p.HostPort), ContainerPort: int32(p.ContainerPort), Protocol: p.Protocol}
		for _, n := range w.Demand.PortNames {
			if port.Name == "" && n.Names(p) {
				port.Name = n.Name
			}
		}
		v.Ports = append(v.Ports, port)
	}
	if detail == Full {
		v.LastActions = LastActions(w)
	}
	s := &controlv1.WorkloadSpec{}
	if err := s.UnmarshalVT(w.Spec); err != nil {
		return v
	}
	v.ImageOrSource = source(s)
	if len(v.Ports) == 0 {
		v.Ports = s.GetContainer().GetPorts()
	}
	if detail == Full {
		v.Spec = Redact(s)
		v.Spec.Namespace = w.Namespace
	}
	return v
}

// ControlGeneration converts a generation for the control API. It is nil for zero.
func ControlGeneration(g fsm.Generation) *controlv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &controlv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

// LastActions returns the actions of the agent on a workload as of the last order that timed out,
// newest first.
func LastActions(w *fsm.Workload) []*controlv1.WorkloadAction {
	var out []*controlv1.WorkloadAction
	for _, a := range w.Actions {
		out = append(out, &controlv1.WorkloadAction{
			TaskId: a.TaskID, ActionType: a.Type, Status: a.Status, Error: a.Error,
			CreatedAt: stamp(a.CreatedAt * 1e9), StartedAt: stamp(a.StartedAt * 1e9), EndedAt: stamp(a.EndedAt * 1e9),
		})
	}
	return out
}

// source returns the image, the Git repository without credentials, or "inline".
func source(s *controlv1.WorkloadSpec) string {
	switch s.GetType() {
	case TypeContainer:
		return s.GetContainer().GetImage()
	case TypeCompose:
		if isGit(s.GetCompose()) {
			before, secret, after := splitGit(s.GetCompose().GetGitRepo())
			if secret != "" {
				secret = pki.Redacted
			}
			return before + secret + after
		}
		return sourceInline
	}
	return s.GetVm().GetOsImage()
}

// NodeView converts a node. Available is the total less the allocations, never below 0. Measured
// usage and the end of the lease are left to the leader.
func NodeView(n *fsm.Node, a fsm.Alloc) *controlv1.NodeView {
	f := &n.Facts
	v := &controlv1.NodeView{
		NodeId:                 n.ID,
		Status:                 string(n.Status()),
		StatusReason:           n.Reason,
		StatusUpdatedBy:        n.UpdatedBy,
		StatusUpdatedAt:        stamp(n.UpdatedAt),
		LastHeartbeat:          stamp(n.LastHeartbeat),
		GrpcEndpoint:           f.Endpoint,
		TotalCpuCores:          float64(f.CPU) / 1000,
		AvailableCpuCores:      float64(max(0, f.CPU-a.CPU)) / 1000,
		TotalMemoryMb:          f.Memory,
		AvailableMemoryMb:      max(0, f.Memory-a.Memory),
		SupportedWorkloadTypes: slices.Clone(f.Types),
		Labels:                 labelMap(f.Labels),
		Cordoned:               n.Cordoned,
		ReservedCpuMillicores:  a.CPU,
		ReservedMemoryMb:       a.Memory,
		Workloads:              int32(a.Workloads),
		AgentVersion:           f.AgentVersion,
		EngineId:               f.EngineID,
		SelfFencing:            f.SelfFencing,
		FenceBoundSeconds:      f.FenceBound,
	}
	for _, t := range f.Taints {
		v.Taints = append(v.Taints, &controlv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	for i, p := range f.Pools {
		pool := &controlv1.StoragePoolView{Name: p.Name, Type: p.Type, TotalGb: p.Total}
		for _, use := range a.Disk {
			// An empty name stands for the node's first pool.
			if use.Pool == p.Name || use.Pool == "" && i == 0 {
				pool.ReservedGb += use.GB
			}
		}
		v.StoragePools = append(v.StoragePools, pool)
	}
	return v
}

func labelMap(labels []fsm.Label) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	out := make(map[string]string, len(labels))
	for _, l := range labels {
		out[l.Key] = l.Value
	}
	return out
}

// stamp converts Unix nanoseconds; it returns nil for 0.
func stamp(nanos int64) *timestamppb.Timestamp {
	if nanos == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanos))
}
