package mirror

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Translate converts the documented fields of a legacy v1 workload record into a
// command that stores it: the sealed specification and the planner's demand. The error
// names the field that cannot be converted.
type Translate func(*Workload) (*commandv1.WorkloadPut, error)

// State converts the imported records into a state for fsm.Restored. It must be called at most
// once. Records that cannot be converted are left out, and returned as Problems with the key and
// the reason.
//
// A workload that was written by this mirror is restored as stored, without parsing its specification. If the
// record shows that the node accepted the order, the imported state has the order as accepted too. So agents
// get no new orders for running workloads.
func (i *Imported) State(present fsm.Info, translate Translate) (fsm.State, []Problem, error) {
	a := fsm.Assemble(fsm.Origin{
		ClusterID: orElse(i.Cluster, present.ClusterID), Shard: present.Shard, Incarnation: i.Incarnation,
		Index: i.Index, Clock: present.Clock, FeatureLevel: present.FeatureLevel,
	})
	var problems []Problem
	for k := range i.Nodes {
		n := &i.Nodes[k]
		if err := a.Node(nodeOf(n)); err != nil {
			problems = append(problems, Problem{dirNodes + n.NodeID, err.Error()})
		}
	}
	for k := range i.Namespaces {
		n := &i.Namespaces[k]
		if err := a.Namespace(namespaceOf(n)); err != nil {
			problems = append(problems, Problem{dirNamespaces + n.Name, err.Error()})
		}
	}
	for _, digest := range slices.Sorted(maps.Keys(i.Bundles)) {
		if err := a.Bundle(&commandv1.Bundle{Digest: digest, Data: i.Bundles[digest]}); err != nil {
			problems = append(problems, Problem{dirBundles + digest, err.Error()})
		}
	}
	at := map[string]Time{}
	for _, s := range i.Assignments {
		at[s.WorkloadID] = s.CreatedAt
	}
	for k := range i.Workloads {
		w := &i.Workloads[k]
		m, err := workloadOf(w, at[w.ID], present.Clock, translate)
		if err == nil {
			err = a.Workload(m)
		}
		if err != nil {
			problems = append(problems, Problem{dirWorkloads + w.ID, err.Error()})
		}
	}
	s, err := a.State()
	return s, problems, err
}

func namespaceOf(n *Namespace) *commandv1.NamespaceRecord {
	return &commandv1.NamespaceRecord{
		Put: &commandv1.PutNamespace{
			Name: n.Name, Description: n.Description, Users: n.Users, MaxPriority: n.MaxPriority, AllowScaling: n.AllowScaling, NodeLabels: labelsOf(n.NodeLabels),
			Quota: &commandv1.Quota{CpuMillicores: n.Quota.CPUMillicores, MemoryMib: n.Quota.MemoryMiB, DiskGb: n.Quota.DiskGB, Workloads: n.Quota.Workloads, Devices: n.Quota.Devices, Volumes: n.Quota.Volumes, VolumeGb: n.Quota.VolumeGB},
		},
		CreatedAt: nanos(n.CreatedAt), UpdatedAt: nanos(n.UpdatedAt), UpdatedBy: n.UpdatedBy,
	}
}

func nodeOf(n *Node) *commandv1.NodeRecord {
	endpoint := n.AgentEndpoint
	if port := max(n.AgentGRPCPort, n.AgentPort); endpoint == "" && n.IPAddress != "" && port > 0 {
		endpoint = net.JoinHostPort(n.IPAddress, strconv.Itoa(port))
	}
	f := &commandv1.RegisterNode{
		Id: n.NodeID, Endpoint: endpoint, CpuMillicores: millicores(n.TotalCPU), MemoryMib: n.TotalMemory,
		Types: n.SupportedTypes, StorageDrivers: n.SupportedStorage, Timestamp: n.Timestamp,
	}
	f.Labels = slices.DeleteFunc(labelsOf(n.Labels), func(l *commandv1.Label) bool { return l.GetKey() == "scheduler_shard" })
	m := &commandv1.NodeRecord{
		Facts: f, Up: n.Status != string(fsm.NodeNotReady), Reason: n.StatusReason, UpdatedBy: n.StatusUpdatedBy,
		UpdatedAt: nanos(n.StatusUpdatedAt), LastHeartbeat: nanos(n.LastHeartbeat), RegisteredAt: nanos(n.StatusUpdatedAt),
	}
	if o := n.Extension; o != nil {
		f.EngineId, f.AgentVersion, f.InstanceId, f.Protocol = o.EngineID, o.AgentVersion, o.InstanceID, o.Protocol
		f.SelfFencing, f.LeaseSeconds, f.Taints = o.SelfFencing, o.LeaseSeconds, taintsOf(o.Taints)
		for _, p := range o.Pools {
			f.Pools = append(f.Pools, &commandv1.Pool{Name: p.Name, Type: p.Type, TotalGb: p.TotalGB})
		}
		m.Cordoned, m.Draining, m.JobsUntil, m.Fenced = o.Cordoned, o.Draining, o.JobsUntil, o.Fenced
		for _, l := range o.SetLabels {
			m.Labels = append(m.Labels, &commandv1.NodeLabel{Key: l.Key, Value: l.Value, Removed: l.Removed})
		}
		for _, t := range o.SetTaints {
			m.Taints = append(m.Taints, &commandv1.NodeTaint{Taint: taintOf(t.Taint), Removed: t.Removed})
		}
	}
	return m
}

// workloadOf converts the mirror's record of a workload to a record of the state. now is the time of the
// import, Unix nanoseconds.
func workloadOf(w *Workload, assigned Time, now int64, translate Translate) (*commandv1.WorkloadRecord, error) {
	put, err := putOf(w, translate)
	if err != nil {
		return nil, err
	}
	put.MaxAttempts = max(0, w.Retry.MaxAttempts)
	m := &commandv1.WorkloadRecord{
		Put: put, Node: orElse(w.AssignedNode, w.NodeID), CreatedAt: nanos(w.CreatedAt), UpdatedAt: nanos(w.StatusInfo.LastUpdated),
		Attempts: max(0, w.Retry.Attempts), NextRetryAt: nanos(w.Retry.NextRetryAt), AssignedAt: nanos(assigned),
		FirstFailureAt: nanos(moment(w.Metadata, "failureObservedAt")), PreviousNode: text(w.Metadata, "previous_node"), Terminal: text(w.Metadata, "terminal_failure_reason") != "",
	}
	if w.Extension != nil {
		m.Restarts, m.Adopted = w.Extension.Restarts, w.Extension.Adopted
		m.JobSince = w.Extension.JobSince
		m.Owner, m.SealedFor = w.Extension.Owner, w.Extension.SealedFor
		if m.Owner != "" {
			m.Run = &commandv1.Run{ScheduledAt: w.Extension.ScheduledAt, Key: w.Extension.RunKey}
		}
		if r := w.Extension.JobResult; r != nil {
			m.JobResult = &commandv1.JobResult{Succeeded: r.Succeeded, At: r.At, Node: r.Node, Code: r.Code, Message: r.Message}
			if x := r.Exit; x != nil {
				m.JobResult.Exit = &commandv1.Exit{Code: x.Code, StartedAt: x.StartedAt, EndedAt: x.EndedAt, Output: x.Output}
			}
		}
	}
	if r := w.StatusInfo.Reason; r != nil {
		m.ReasonCode, m.ReasonMessage, m.ReasonRetryable, m.ReasonAt = r.Code, r.Message, r.Retryable, nanos(r.LastTransition)
	}
	if put.GetDesired() == string(fsm.DesiredDeleted) && m.Node == "" {
		m.Node = m.GetPreviousNode() // a workload that is being deleted may still run on its previous node
	}
	actual, accepted := seen(w)
	m.Acknowledged = accepted
	if s := fsm.Status(w.Status); s == fsm.StatusRunning || s == fsm.StatusStopped || w.Extension == nil && (actual == fsm.ActualRunning || actual == fsm.ActualStopped) {
		m.NextRetryAt, m.Terminal = 0, false // the retry in the record is obsolete: the workload has started or stopped since
	}
	m.Actual = &commandv1.WorkloadReport{State: string(actual), Message: text(w.Metadata, "last_error"), ObservedAt: nanos(w.StatusInfo.LastUpdated)}
	if actual == fsm.ActualFailed {
		m.Actual.Code, m.Actual.Retryable = m.GetReasonCode(), m.GetReasonRetryable()
	}
	if w.Extension == nil && m.Node != "" && put.GetDesired() != string(fsm.DesiredDeleted) {
		adopt(m, w.RevisionID, now)
	}
	return m, nil
}

// unnamedRevision stands for the revision of an imported workload whose record names none. It is kept until
// the node reports the revision that it runs.
const unnamedRevision = "legacy"

// adopt records that the instance on the workload's node runs the imported specification, with the revision
// that the node has. So the workload gets no new order before its node has reported. The record of a legacy v1
// scheduler may be older than what its node does: it may say Scheduled, Failed or Missing although the
// workload runs, and name a revision that was never sent.
func adopt(m *commandv1.WorkloadRecord, revision string, now int64) {
	m.Adopted = orElse(revision, unnamedRevision)
	if len(m.Adopted) > fsm.MaxAdopted {
		m.Adopted = unnamedRevision
	}
	m.Acknowledged, m.AcknowledgedAt = true, now
	wanted := fsm.ActualRunning
	if m.GetPut().GetDesired() == string(fsm.DesiredStopped) {
		wanted = fsm.ActualStopped
	}
	if m.Actual.State != string(wanted) && m.GetNextRetryAt() == 0 && !m.GetTerminal() {
		m.Actual.State, m.Actual.Code, m.Actual.Retryable = string(fsm.ActualUnknown), "", false
	}
}

// putOf returns the stored specification of a workload: the bytes in its "persys" field,
// or the translation of a legacy v1 record.
func putOf(w *Workload, translate Translate) (*commandv1.WorkloadPut, error) {
	desired := desiredOf(w)
	if w.Extension == nil {
		if desired == fsm.DesiredDeleted {
			// A deleted workload needs no specification. Its demand is kept, because the instance on the node
			// still uses these resources.
			return &commandv1.WorkloadPut{Id: w.ID, Content: "deleted", Desired: string(desired), Demand: &commandv1.Demand{
				Type: orElse(w.Type, "container"), CpuMillicores: millicores(w.Resources.CPU), MemoryMib: int64(w.Resources.Memory), DiskGb: w.Resources.Disk,
			}}, nil
		}
		put, err := translate(w)
		if err != nil {
			return nil, err
		}
		put.Desired = string(desired)
		return put, nil
	}
	// The record was too large to hold the placement constraints, so a placement by this record could violate
	// them. A workload that is being deleted is never placed, so its record is usable.
	if w.Extension.Cut && desired != fsm.DesiredDeleted {
		return nil, errors.New("persys: the record was too large to hold the constraints of the workload: apply it again")
	}
	o, d := w.Extension, &w.Extension.Demand
	demand := &commandv1.Demand{
		Type: w.Type, CpuMillicores: d.CPUMillicores, MemoryMib: d.MemoryMiB, DiskGb: d.DiskGB, StoragePool: d.Pool,
		StorageDrivers: d.StorageDrivers, Tolerations: taintsOf(d.Tolerations), Group: d.Group,
		Exclusive: d.Exclusive, OnLostLease: d.OnLostLease, Priority: d.Priority, MacAddresses: d.MACAddresses,
		Placement: placementOf(d.Placement), Tags: labelsOf(d.Tags), Surge: d.Surge,
	}
	for _, name := range slices.Sorted(maps.Keys(d.Devices)) {
		demand.Devices = append(demand.Devices, &commandv1.DeviceCount{Name: name, Count: d.Devices[name]})
	}
	if r := d.Reschedule; r != nil {
		demand.Reschedule = &commandv1.Reschedule{Attempts: r.Attempts, Interval: r.Interval}
	}
	if t := d.Template; t != nil {
		demand.Template = &commandv1.Template{Kind: t.Kind}
		if t.Kind == fsm.TemplateCron {
			demand.Template.Cron = &commandv1.Cron{
				Schedule: t.Schedule, TimeZone: t.TimeZone, Concurrency: t.Concurrency, StartingDeadline: t.StartingDeadline,
				KeepSucceeded: t.KeepSucceeded, KeepFailed: t.KeepFailed,
			}
		}
	}
	if a := d.Autoscale; a != nil {
		demand.Autoscale = &commandv1.Autoscale{Min: a.Min, Max: a.Max, Cpu: a.CPU}
	}
	if j := d.Job; j != nil {
		demand.Job = &commandv1.Job{Parallelism: j.Parallelism, Deadline: j.Deadline, SuccessCodes: j.SuccessCodes, Ttl: j.TTL}
	}
	for _, p := range d.Ports {
		demand.HostPorts = append(demand.HostPorts, &commandv1.Port{Port: uint32(p.Port), Protocol: p.Protocol, Address: p.Address})
	}
	for _, p := range d.PortNames {
		demand.PortNames = append(demand.PortNames, &commandv1.PortName{
			Name: p.Name, ContainerPort: uint32(p.ContainerPort), Protocol: p.Protocol, HostPort: uint32(p.HostPort),
		})
	}
	demand.Labels = labelsOf(d.Labels)
	for _, c := range d.Constraints {
		demand.Constraints = append(demand.Constraints, &commandv1.Constraint{Key: c.Key, Op: c.Op, Values: c.Values})
	}
	return &commandv1.WorkloadPut{
		Id: w.ID, Spec: o.Spec, Content: o.Content, CallerRevision: o.CallerRevision, Demand: demand, Desired: string(desired),
		Namespace: o.Namespace, Bundle: o.Bundle,
	}, nil
}

// desiredOf returns the desired state of a workload record. A legacy v1 record may show a deletion only in
// its status.
func desiredOf(w *Workload) fsm.Desired {
	word := strings.ToLower(strings.TrimSpace(w.DesiredState))
	switch {
	case word == "deleted" || word == "delete" || strings.EqualFold(w.Status, string(fsm.StatusDeleting)) || strings.EqualFold(w.Status, string(fsm.StatusDeleted)):
		return fsm.DesiredDeleted
	case word == "stopped" || word == "stop":
		return fsm.DesiredStopped
	}
	return fsm.DesiredRunning
}

// seen returns the state of a workload that its record says the node last reported, and whether that
// report is about the newest order.
func seen(w *Workload) (actual fsm.Actual, accepted bool) {
	word := w.StatusInfo.ActualState
	if word == "" && w.Extension == nil {
		word = w.Status
	}
	for _, s := range [...]fsm.Actual{fsm.ActualPending, fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualUnknown, fsm.ActualMissing} {
		if strings.EqualFold(word, string(s)) {
			actual = s
		}
	}
	switch fsm.Status(w.Status) {
	case fsm.StatusPending, fsm.StatusScheduled, fsm.StatusUpdating:
		return actual, false
	}
	return actual, actual != fsm.ActualNone
}

func taintsOf(list []Taint) (out []*commandv1.Taint) {
	for _, t := range list {
		out = append(out, taintOf(t))
	}
	return out
}

func taintOf(t Taint) *commandv1.Taint {
	return &commandv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, Seconds: t.Seconds, Since: nanos(t.Since)}
}

func labelsOf(m map[string]string) (out []*commandv1.Label) {
	for k, v := range m {
		out = append(out, &commandv1.Label{Key: k, Value: v})
	}
	slices.SortFunc(out, func(a, b *commandv1.Label) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	return out
}

// millicores converts a number of cores to millicores. It rounds, because a float may be slightly inexact.
func millicores(cores float64) int64 {
	if math.IsNaN(cores) || cores < 0 || cores > 1e6 {
		return -1 // for an invalid number of cores, return a value that the state machine refuses with the name of the field
	}
	return int64(math.Round(cores * 1000))
}

// text returns the value of key in the metadata m if it is a string; otherwise "".
func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// moment returns the value of key in the metadata m if it is a time; otherwise the unset time.
func moment(m map[string]any, key string) (t Time) {
	if s := text(m, key); s != "" {
		_ = t.UnmarshalJSON(encode(s)) // an invalid time counts as unset, so the error is ignored
	}
	return t
}

// nanos returns a Time in Unix nanoseconds. It is 0 for an unset time and for years
// outside 1970 to 2200.
func nanos(t Time) int64 {
	if t.IsZero() || t.Year() < 1970 || t.Year() > 2200 {
		return 0
	}
	return t.UnixNano()
}
