package spec

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/pki"
)

// Detail says how much of a workload an answer to a user shows.
type Detail bool

// Brief is the detail for lists. Full adds the specification with its secrets redacted.
const (
	Brief Detail = false
	Full  Detail = true
)

// WorkloadView converts the record of a workload to its form for users and legacy v1 clients. Status is one
// of the ten words in docs/RULES.md. If the stored specification cannot be read, its fields are empty.
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
		Generation:             wire.Control(w.Generation),
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
		Autoscale:              autoscaleView(w.Demand.Autoscale),
		Surge:                  w.Demand.Surge,
	}
	if kind := KindOf(w); kind != KindService {
		v.Kind = kind
	}
	v.Template, v.Owner = templateView(w), w.Owner
	if w.Run != nil {
		v.ScheduledAt = stamp(w.Run.ScheduledAt)
	}
	v.JobResult = jobResultView(w.Result, detail)
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
		port := &controlv1.Port{HostPort: int32(p.HostPort), ContainerPort: int32(p.ContainerPort), Protocol: p.Protocol, Address: p.Address}
		for _, n := range w.Demand.PortNames {
			if port.Name == "" && n.Names(p) {
				port.Name = n.Name
			}
		}
		v.Ports = append(v.Ports, port)
	}
	for _, p := range w.Demand.Ingress {
		v.Ports = append(v.Ports, &controlv1.Port{HostPort: int32(p.Port), ContainerPort: int32(p.Target), Protocol: p.Protocol, Mode: portIngress})
	}
	if detail == Full {
		v.LastActions = LastActions(w)
	}
	s := &controlv1.WorkloadSpec{}
	if err := s.UnmarshalVT(w.Spec); err != nil {
		return v
	}
	v.ImageOrSource = source(s)
	if len(w.Actual.Ports) == 0 {
		v.Ports = s.GetContainer().GetPorts()
	}
	if detail == Full {
		v.Spec = Redact(s)
		v.Spec.Namespace = w.Namespace
	}
	return v
}

// jobResultView converts the result of a finished job; nil if there is none. Lists do not show the output.
func jobResultView(r *fsm.JobResult, detail Detail) *controlv1.JobResult {
	if r == nil {
		return nil
	}
	out := &controlv1.JobResult{Succeeded: r.Succeeded, FinishedAt: stamp(r.At), NodeId: r.Node, Message: r.Message}
	if x := r.Exit; x != nil {
		out.Exit = &controlv1.Exit{Code: x.Code, StartedAt: stamp(x.StartedAt), EndedAt: stamp(x.EndedAt)}
		if detail == Full {
			out.Exit.Output = x.Output
		}
	}
	return out
}

// LastActions returns the recent tasks of the agent about a workload, as they were read when the last order
// timed out, newest first.
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

// source returns the origin of a workload for answers to users: the image, the Git repository without
// credentials, or "inline".
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

// NodeView converts the record of a node for users. Available resources are the totals minus the reserved ones, never
// below 0. Measured usage and the end of the lease are not set, because only the leader knows them.
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
		Labels:                 labelMap(n.Labels()),
		Cordoned:               n.Cordoned,
		ReservedCpuMillicores:  a.CPU,
		ReservedMemoryMb:       a.Memory,
		Workloads:              int32(a.Workloads),
		AgentVersion:           f.AgentVersion,
		EngineId:               f.EngineID,
		SelfFencing:            f.SelfFencing,
		FenceBoundSeconds:      f.FenceBound,
		JobsUntil:              stamp(n.JobsUntil),
	}
	for _, t := range n.Taints() {
		v.Taints = append(v.Taints, &controlv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, Seconds: t.Seconds, Since: stamp(t.Since)})
	}
	for _, l := range n.Set.Labels {
		if l.Removed {
			v.RemovedLabels = append(v.RemovedLabels, l.Key)
		} else {
			v.SetLabels = append(v.SetLabels, l.Key)
		}
	}
	for _, t := range n.Set.Taints {
		if t.Removed {
			v.RemovedTaints = append(v.RemovedTaints, t.Key)
		} else {
			v.SetTaints = append(v.SetTaints, t.Key)
		}
	}
	for i, p := range f.Pools {
		pool := &controlv1.StoragePoolView{Name: p.Name, Type: p.Type, TotalGb: p.Total}
		for _, use := range a.Disk {
			// An empty pool name stands for the node's first pool.
			if use.Pool == p.Name || use.Pool == "" && i == 0 {
				pool.ReservedGb += use.GB
			}
		}
		v.StoragePools = append(v.StoragePools, pool)
	}
	for _, d := range f.Devices {
		v.Devices = append(v.Devices, &controlv1.DeviceView{Name: d.Name, Total: d.Count, Reserved: fsm.DevicesShared(a.Devices, d.Name)})
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

// stamp converts Unix nanoseconds to a protobuf timestamp; it returns nil for 0.
func stamp(nanos int64) *timestamppb.Timestamp {
	if nanos == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanos))
}
