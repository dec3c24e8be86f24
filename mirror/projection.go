package mirror

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/fsm"
)

// format is the version of the keys and JSON shapes. A cursor with another format leads to a full comparison.
// Increase format when a JSON shape or a key changes.
const format = 3

// maxValue is the maximum size of a value in bytes. It leaves 16 KiB of a transaction of maxBytes for the
// cursor and the comparisons.
const maxValue = maxBytes - 16<<10

// Fields are the fields of a workload's record in etcd that are computed from its specification and that
// the contract with legacy v1 peers documents. Secrets in them stay sealed.
type Fields struct {
	Image          string
	Command        []string
	Compose        string
	ComposeYAML    string
	ProjectName    string
	GitRepo        string
	GitBranch      string
	GitToken       string
	EnvVars        map[string]string
	LocalPath      string
	Ports          []string // ports, each in the form host:container/proto
	Volumes        []string // mounts, each in the form host:container[:ro]
	ManagedVolumes []ManagedVolume
	Network        string
	RestartPolicy  string
	VM             *VM
	Metadata       map[string]string
}

// Describe extracts the fields from the specification of a workload. It must be a pure
// function of the record. It returns empty Fields if the specification is unreadable.
type Describe func(*fsm.Workload) Fields

// KV is a key and its value. A nil Value means that the key must not exist.
type KV struct {
	Key   string
	Value []byte
}

// Projection maps records to keys and values. It is pure and safe for concurrent use.
type Projection struct {
	keys      keyspace
	layout    Layout
	domain    string
	describe  Describe
	extra     Extra // additional keys; nil: none
	maxEvents uint64
	maxAge    time.Duration
}

// Workload returns all keys of a workload: its record (three records in LayoutBoth), its assignment and its
// retry. A key that must not exist has a nil Value.
func (p *Projection) Workload(w *fsm.Workload) []KV {
	out := append(make([]KV, 0, 5), p.records(w)...)
	return append(out, p.assignment(w), p.retry(w))
}

// Gone returns the keys of a deleted workload, with nil values.
func (p *Projection) Gone(workload string) []KV {
	out := make([]KV, 0, 5)
	for _, dir := range [...]string{dirWorkloads, dirSpecs, dirStatuses, dirAssignments, dirRetries} {
		if p.layout == LayoutBoth || dir != dirSpecs && dir != dirStatuses {
			out = append(out, KV{Key: p.keys.key(dir, workload)})
		}
	}
	return out
}

// records returns the records of the workload, but not its assignment and its retry.
func (p *Projection) records(w *fsm.Workload) []KV {
	r := p.whole(w)
	out := []KV{{p.keys.key(dirWorkloads, w.ID), encode(r)}}
	if p.layout == LayoutBoth {
		out = append(out,
			KV{p.keys.key(dirSpecs, w.ID), encode(specOf(r))},
			KV{p.keys.key(dirStatuses, w.ID), encode(statusOf(r))})
	}
	return out
}

// mayGrow is the maximum ratio of the size of a record to the size of its specification. The specification is
// included once as base64. Each byte may also appear in two fields, as the bytes of the container's command
// do, and JSON escapes some bytes, such as <, as six bytes.
const mayGrow = 16

// whole returns the record of a workload under /workloads/. If it is too large, most fields that come from
// the specification are omitted; the sealed specification stays. If it is then still too large, the placement
// constraints are omitted too, and the field Cut says so, because an import must not place such a workload.
func (p *Projection) whole(w *fsm.Workload) *Workload {
	f := p.describe(w)
	r := p.wholeWith(w, f)
	if len(w.Spec) <= maxValue/mayGrow || len(encode(r)) <= maxValue {
		return r
	}
	r = p.wholeWith(w, Fields{Image: f.Image, ProjectName: f.ProjectName, RestartPolicy: f.RestartPolicy, Network: f.Network})
	if len(encode(r)) > maxValue {
		r.Extension.Demand.Constraints, r.Extension.Cut = nil, true
	}
	return r
}

func (p *Projection) wholeWith(w *fsm.Workload, f Fields) *Workload {
	out := &Workload{
		ID: w.ID, Name: w.ID, Type: w.Demand.Type, RevisionID: w.Revision(),
		AssignedNode: w.Node, NodeID: w.Node, Status: string(w.Status), DesiredState: string(w.Desired),
		Image: f.Image, Command: strings.Join(f.Command, " "), CommandList: f.Command,
		Compose: f.Compose, ComposeYAML: f.ComposeYAML, ProjectName: f.ProjectName,
		GitRepo: f.GitRepo, GitBranch: f.GitBranch, GitToken: f.GitToken, EnvVars: f.EnvVars,
		Resources: Resources{CPU: cores(w.Demand.CPU), Memory: float64(w.Demand.Memory), Disk: w.Demand.Disk},
		Labels:    labelMap(w.Demand.Labels), CreatedAt: stamp(w.CreatedAt),
		LocalPath: f.LocalPath, Ports: f.Ports, Volumes: f.Volumes, ManagedVolumes: f.ManagedVolumes,
		Network: f.Network, RestartPolicy: f.RestartPolicy, VM: f.VM,
		Metadata: metadata(w, f.Metadata), Retry: retryOf(w), StatusInfo: statusInfo(w),
		Extension: &WorkloadExtension{
			Spec: w.Spec, Content: w.Content, CallerRevision: w.CallerRevision,
			Restarts: w.Restarts, Adopted: w.Adopted, Namespace: w.Namespace, Bundle: w.Bundle, Demand: demandRecord(w.Demand),
			JobSince: w.JobSince, JobResult: resultRecord(w.Result), Owner: w.Owner, SealedFor: w.SealedFor,
		},
	}
	if r := w.Run; r != nil {
		out.Extension.ScheduledAt, out.Extension.RunKey = r.ScheduledAt, r.Key
	}
	return out
}

// metadata returns the metadata keys of the contract (contract/state-etcd.md, "Workload
// metadata keys") that the state can fill, added to the caller's metadata.
func metadata(w *fsm.Workload, callers map[string]string) map[string]any {
	m := make(map[string]any, len(callers)+8)
	for k, v := range callers {
		m[k] = v
	}
	set := func(key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	set("created_at", clock(w.CreatedAt))
	set("previous_node", w.PreviousNode)
	if w.Acknowledged {
		set("admitted_on_node", w.Node)
	}
	if w.Reason.Code == fsm.CodeDispatchFailed {
		set("dispatch_failed", w.Reason.Message)
	}
	set("failureObservedAt", clock(w.Retry.FirstFailureAt))
	set("reason_code", w.Reason.Code)
	set("reason_message", w.Reason.Message)
	if w.Reason.Code != "" {
		set("reason_last_transition", clock(w.Reason.At))
		set("reason_next_retry_at", clock(w.Retry.NextAt))
		set("reason_retryable", strconv.FormatBool(w.Reason.Retryable))
	}
	if w.Actual.State == fsm.ActualFailed {
		set("last_error", w.Actual.Message)
	}
	if w.Retry.Terminal {
		set("terminal_failure_reason", orElse(w.Reason.Message, w.Reason.Code))
	}
	if len(w.Actions) > 0 {
		m[lastActions] = actionRecords(w.Actions)
	}
	return m
}

// lastActions is the metadata key for the tasks of the agent, as read when the last order timed out. It is
// not part of the contract.
const lastActions = "last_actions"

func actionRecords(list []fsm.AgentAction) []Action {
	out := make([]Action, 0, len(list))
	for _, a := range list {
		out = append(out, Action{
			TaskID: a.TaskID, Type: a.Type, Status: a.Status, Error: a.Error,
			CreatedAt: clock(a.CreatedAt * 1e9), StartedAt: clock(a.StartedAt * 1e9), EndedAt: clock(a.EndedAt * 1e9),
		})
	}
	return out
}

func statusInfo(w *fsm.Workload) StatusInfo {
	s := StatusInfo{ActualState: string(w.Actual.State), LastUpdated: stamp(w.UpdatedAt)}
	if w.Status == fsm.StatusFailed || w.Status == fsm.StatusRetryPending {
		s.FailureReason = orElse(w.Reason.Message, orElse(w.Actual.Message, w.Reason.Code))
	}
	if w.Reason.Code != "" || w.Reason.Message != "" {
		s.Reason = &ReasonInfo{
			Code: w.Reason.Code, Message: w.Reason.Message, Retryable: w.Reason.Retryable,
			LastTransition: stamp(w.Reason.At), NextRetryAt: stamp(w.Retry.NextAt),
		}
	}
	return s
}

func specOf(w *Workload) *WorkloadSpec {
	return &WorkloadSpec{
		ID: w.ID, Name: w.Name, Type: w.Type, RevisionID: w.RevisionID,
		Image: w.Image, Command: w.Command, CommandList: w.CommandList,
		Compose: w.Compose, ComposeYAML: w.ComposeYAML, ProjectName: w.ProjectName,
		GitRepo: w.GitRepo, GitBranch: w.GitBranch, GitToken: w.GitToken, EnvVars: w.EnvVars,
		Resources: w.Resources, DesiredState: w.DesiredState, Labels: w.Labels, CreatedAt: w.CreatedAt,
		LocalPath: w.LocalPath, Ports: w.Ports, Volumes: w.Volumes,
		Network: w.Network, RestartPolicy: w.RestartPolicy, VM: w.VM,
	}
}

func statusOf(w *Workload) *WorkloadStatus {
	return &WorkloadStatus{
		ID: w.ID, AssignedNode: w.AssignedNode, NodeID: w.NodeID, Status: w.Status,
		Metadata: w.Metadata, Retry: w.Retry, StatusInfo: w.StatusInfo,
	}
}

func retryOf(w *fsm.Workload) Retry {
	return Retry{Attempts: w.Retry.Attempts, MaxAttempts: w.Retry.MaxAttempts, NextRetryAt: stamp(w.Retry.NextAt)}
}

func (p *Projection) retry(w *fsm.Workload) KV {
	return KV{p.keys.key(dirRetries, w.ID), encode(retryOf(w))}
}

func (p *Projection) assignment(w *fsm.Workload) KV {
	key := p.keys.key(dirAssignments, w.ID)
	if w.Node == "" {
		return KV{Key: key}
	}
	return KV{key, encode(assignmentOf(w))}
}

func assignmentOf(w *fsm.Workload) Assignment {
	a := Assignment{WorkloadID: w.ID, NodeID: w.Node, Reason: "placed", CreatedAt: stamp(w.AssignedAt)}
	if w.PreviousNode != "" {
		a.Reason = "moved from " + w.PreviousNode
	}
	return a
}

// Node returns all keys of a node: its record, its status and its lease. a is the sum of the resources that
// are reserved on the node.
func (p *Projection) Node(n *fsm.Node, a fsm.Alloc, shard string) []KV {
	lease := "expired"
	if n.Up {
		lease = "granted"
	}
	key := p.keys.key(dirNodes, n.ID)
	return []KV{
		p.nodeRecord(n, a, shard),
		// The values are plain text, because legacy v1 schedulers would read a JSON object below this prefix as
		// a node.
		{key + nodeStatusEnd, []byte(n.Status())},
		{key + nodeLeaseEnd, fmt.Appendf(nil, "%d %s %s", n.Facts.LeaseSeconds, lease, clock(n.UpdatedAt))},
	}
}

// NodeGone returns the keys of a removed node, with nil values.
func (p *Projection) NodeGone(id string) []KV {
	key := p.keys.key(dirNodes, id)
	return []KV{{Key: key}, {Key: key + nodeStatusEnd}, {Key: key + nodeLeaseEnd}}
}

func (p *Projection) nodeRecord(n *fsm.Node, a fsm.Alloc, shard string) KV {
	f := &n.Facts
	host, portText, err := net.SplitHostPort(f.Endpoint)
	if err != nil {
		host, portText = f.Endpoint, ""
	}
	port, _ := strconv.Atoi(portText) // if the endpoint has no port, the port is 0
	r := &Node{
		NodeID: n.ID, IPAddress: host, Username: "agent", Hostname: n.ID, OSName: "linux", KernelVersion: "unknown",
		Status: string(n.Status()), Timestamp: f.Timestamp,
		TotalCPU: cores(f.CPU), TotalMemory: f.Memory,
		AvailableCPU: cores(max(f.CPU-a.CPU, 0)), AvailableMemory: max(f.Memory-a.Memory, 0),
		LastHeartbeat: stamp(n.LastHeartbeat), StatusReason: n.Reason, StatusUpdatedBy: n.UpdatedBy,
		StatusUpdatedAt: stamp(n.UpdatedAt), Labels: labelMap(n.Labels()),
		AgentPort: port, AgentGRPCPort: port, AgentEndpoint: f.Endpoint,
		SupportedTypes: f.Types, SupportedStorage: f.StorageDrivers,
		Extension: &NodeExtension{
			EngineID: f.EngineID, AgentVersion: f.AgentVersion, InstanceID: f.InstanceID, Protocol: f.Protocol,
			SelfFencing: f.SelfFencing, LeaseSeconds: f.LeaseSeconds, Taints: taintRecords(f.Taints),
			Cordoned: n.Cordoned, Draining: n.Draining, JobsUntil: n.JobsUntil, Fenced: n.Fenced,
		},
	}
	for _, pool := range f.Pools {
		r.Extension.Pools = append(r.Extension.Pools, Pool{pool.Name, pool.Type, pool.Total})
	}
	for _, l := range n.Set.Labels {
		r.Extension.SetLabels = append(r.Extension.SetLabels, NodeKey{Taint{Key: l.Key, Value: l.Value}, l.Removed})
	}
	for _, t := range n.Set.Taints {
		r.Extension.SetTaints = append(r.Extension.SetTaints, NodeKey{taintRecord(t.Taint), t.Removed})
	}
	if shard != "" {
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels["scheduler_shard"] = shard
	}
	if p.domain != "" {
		r.DomainName = n.ID + "." + p.domain
	}
	return KV{p.keys.key(dirNodes, n.ID), encode(r)}
}

// Namespace returns the record of a namespace. If n is nil, the Value is nil, which removes the record.
func (p *Projection) Namespace(name string, n *fsm.Namespace) KV {
	key := p.keys.key(dirNamespaces, name)
	if n == nil || n.ModifyIndex == 0 { // the default namespace has no record until a user changes it
		return KV{Key: key}
	}
	return KV{key, encode(&Namespace{
		Name: n.Name, Description: n.Description, Users: n.Users, MaxPriority: n.MaxPriority, AllowScaling: n.AllowScaling, NodeLabels: labelMap(n.NodeLabels),
		Quota:     Quota{CPUMillicores: n.Quota.CPU, MemoryMiB: n.Quota.Memory, DiskGB: n.Quota.Disk, Workloads: n.Quota.Workloads, Devices: n.Quota.Devices, Volumes: n.Quota.Volumes, VolumeGB: n.Quota.VolumeGB},
		CreatedAt: stamp(n.CreatedAt), UpdatedAt: stamp(n.UpdatedAt), UpdatedBy: n.UpdatedBy,
	})}
}

// Bundle returns the record with the files of a Compose stack. If b is nil, the Value is nil, which removes
// the record.
func (p *Projection) Bundle(digest string, b *fsm.Bundle) KV {
	kv := KV{Key: p.keys.key(dirBundles, digest)}
	if b != nil {
		kv.Value = b.Data
	}
	return kv
}

// Event returns the record of an event.
func (p *Projection) Event(e *fsm.Event) KV {
	r := &Event{
		ID: eventID(e), Type: e.Type, WorkloadID: e.Workload, NodeID: e.Node, Reason: e.Reason, Timestamp: stamp(e.At),
	}
	if len(e.Details) > 0 || e.Message != "" || e.By != "" || e.Namespace != "" {
		r.Details = make(map[string]any, len(e.Details)+3)
		if e.Namespace != "" {
			r.Details["namespace"] = e.Namespace
		}
		if e.Message != "" {
			r.Details["message"] = e.Message
		}
		if e.By != "" {
			r.Details["by"] = e.By
		}
		for _, d := range e.Details {
			r.Details[d.Key] = d.Value
		}
	}
	return KV{p.keys.event(e), encode(r)}
}

// Drift returns the drift record for an event of type DriftDetected or DriftResolved. The record of an open
// drift shows its current values (openDrift). The record of a resolved drift is written from its newest event
// and stays until that event is removed because of its age or number.
func (p *Projection) Drift(e *fsm.Event) KV {
	r := &Drift{NodeID: e.Node, WorkloadID: e.Workload, DriftType: e.Reason, DetectedAt: stamp(e.At)}
	for _, d := range e.Details {
		switch d.Key {
		case "scheduler_status":
			r.SchedulerStatus = d.Value
		case "agent_status":
			r.AgentStatus = d.Value
		case "action":
			r.Action = d.Value
		case "resolved":
			r.Resolved = d.Value == "true"
		case "last_error":
			r.LastError = d.Value
		case "detected_at":
			if ns, err := strconv.ParseInt(d.Value, 10, 64); err == nil {
				r.DetectedAt = stamp(ns)
			}
		}
	}
	return KV{p.keys.drift(e), encode(r)}
}

// floor returns the sequence number and the key of the oldest event that etcd has to keep, by the limits of
// number and age. If no event is kept, it returns the sequence number of the next event and the end of the
// prefix.
func (p *Projection) floor(v fsm.View) (seq uint64, key string) {
	info := v.Info()
	at := func(seq uint64) (e *fsm.Event) {
		v.Events(seq-1, func(x *fsm.Event) bool { e = x; return false })
		return e
	}
	low := uint64(1)
	if info.EventSeq >= p.maxEvents {
		low = info.EventSeq - p.maxEvents + 1
	}
	oldest := info.Clock - int64(p.maxAge)
	// The clock of the state never goes back, so the events are also sorted by time.
	n := sort.Search(int(info.EventSeq+1-low), func(i int) bool {
		e := at(low + uint64(i))
		return e == nil || e.At >= oldest
	})
	if e := at(low + uint64(n)); e != nil {
		return e.Seq, p.keys.event(e)
	}
	return info.EventSeq + 1, string(p.keys) + prefixEnd(dirEvents)
}

// section is one directory of the mirror with all its records, sorted by key.
type section struct {
	dir string
	all iter.Seq[KV]
}

// sections returns the directories of the mirror with the records that one state has in them.
func (p *Projection) sections(v fsm.View) []section {
	workloads := func(kv func(*fsm.Workload) KV) iter.Seq[KV] {
		return func(yield func(KV) bool) {
			v.Workloads("", func(w *fsm.Workload) bool {
				x := kv(w)
				return x.Value == nil || yield(x)
			})
		}
	}
	none := func(func(KV) bool) {}
	out := []section{
		{dirNodes, slices.Values(p.nodes(v))},
		{dirWorkloads, workloads(func(w *fsm.Workload) KV {
			return KV{p.keys.key(dirWorkloads, w.ID), encode(p.whole(w))}
		})},
		{dirSpecs, none},
		{dirStatuses, none},
		{dirAssignments, workloads(p.assignment)},
		{dirRetries, workloads(p.retry)},
		{dirEvents, func(yield func(KV) bool) {
			seq, _ := p.floor(v)
			v.Events(seq-1, func(e *fsm.Event) bool { return yield(p.Event(e)) })
		}},
	}
	if p.layout == LayoutBoth {
		out[2].all = workloads(func(w *fsm.Workload) KV {
			return KV{p.keys.key(dirSpecs, w.ID), encode(specOf(p.whole(w)))}
		})
		out[3].all = workloads(func(w *fsm.Workload) KV {
			return KV{p.keys.key(dirStatuses, w.ID), encode(statusOf(p.whole(w)))}
		})
	}
	out = append(out, section{dirNamespaces, func(yield func(KV) bool) {
		v.Namespaces(func(n *fsm.Namespace) bool {
			x := p.Namespace(n.Name, n)
			return x.Value == nil || yield(x)
		})
	}})
	out = append(out, section{dirBundles, func(yield func(KV) bool) {
		v.Bundles(func(b *fsm.Bundle) bool { return yield(p.Bundle(b.Digest, b)) })
	}})
	out = append(out, p.extras(v)...)
	// The section of the drifts must be the last one, because catchUpDrifts takes the last section
	// and compares only that.
	return append(out, section{dirDrifts, slices.Values(p.drifts(v))})
}

// All returns all keys and values that the mirror holds for one state, directory by directory.
func (p *Projection) All(v fsm.View) iter.Seq[KV] {
	return func(yield func(KV) bool) {
		for _, s := range p.sections(v) {
			for kv := range s.all {
				if !yield(kv) {
					return
				}
			}
		}
	}
}

// nodes returns the keys of all nodes. It sorts them, because keys such as "a/lease" do
// not sort in the order of the node ids.
func (p *Projection) nodes(v fsm.View) (out []KV) {
	shard := v.Info().Shard
	v.Nodes("", func(n *fsm.Node) bool {
		out = append(out, p.Node(n, v.Alloc(n.ID), shard)...)
		return true
	})
	slices.SortFunc(out, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// drifts returns the drift records. If several events have the same key, the record is made from
// the newest one.
func (p *Projection) drifts(v fsm.View) (out []KV) {
	newest := p.driftEvents(v)
	for _, e := range newest {
		out = append(out, p.Drift(e))
	}
	slices.SortFunc(out, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (p *Projection) driftEvents(v fsm.View) map[string]*fsm.Event {
	out := map[string]*fsm.Event{}
	seq, _ := p.floor(v)
	v.Events(seq-1, func(e *fsm.Event) bool {
		if tellsOfDrift(e) {
			out[p.keys.drift(e)] = e
		}
		return true
	})
	maps.Copy(out, p.openDrifts(v))
	return out
}

// openDrifts returns the open drifts as events with their current values, by key. The limits of number and
// age, which remove old events, never remove the records of open drifts.
func (p *Projection) openDrifts(v fsm.View) map[string]*fsm.Event {
	out := map[string]*fsm.Event{}
	v.Drifts("", func(d *fsm.Drift) bool {
		e := openDrift(v, d)
		out[p.keys.drift(e)] = e
		return true
	})
	return out
}

func openDrift(v fsm.View, d *fsm.Drift) *fsm.Event {
	return &fsm.Event{
		Seq: v.Info().EventSeq, At: d.DetectedAt, Type: fsm.EventDriftDetected, Node: d.Node, Workload: d.Workload, Reason: d.Type,
		Details: []fsm.Label{{Key: "action", Value: d.Action}, {Key: "agent_status", Value: d.AgentStatus}, {Key: "scheduler_status", Value: d.SchedulerStatus}},
	}
}

// tellsOfDrift reports whether an event says that a drift began or ended.
func tellsOfDrift(e *fsm.Event) bool {
	// An event about an instance that a returned node still runs has the type DriftDetected too, but opens no
	// drift: the node is ordered at once to remove the instance.
	return (e.Type == fsm.EventDriftDetected || e.Type == fsm.EventDriftResolved) && e.Reason != fsm.CodeLeftBehind
}

func demandRecord(d *fsm.Demand) Demand {
	out := Demand{
		CPUMillicores: d.CPU, MemoryMiB: d.Memory, DiskGB: d.Disk, Pool: d.Pool, StorageDrivers: d.StorageDrivers,
		Labels: labelMap(d.Labels), Tolerations: taintRecords(d.Tolerations), Group: d.Group,
		Exclusive: d.Exclusive, OnLostLease: d.OnLostLease, Priority: d.Priority, MACAddresses: d.MACs,
		Placement: placementRecord(d.Placement), Tags: labelMap(d.Tags), Surge: d.Surge,
	}
	for _, dev := range d.Devices {
		if out.Devices == nil {
			out.Devices = map[string]int64{}
		}
		out.Devices[dev.Name] = dev.Count
	}
	if r := d.Reschedule; r != nil {
		out.Reschedule = &Reschedule{r.Attempts, r.Interval}
	}
	if t := d.Template; t != nil {
		out.Template = &Template{Kind: t.Kind}
		if c := t.Cron; c != nil {
			out.Template = &Template{t.Kind, c.Schedule, c.Zone, c.Concurrency, c.StartingDeadline, c.KeepSucceeded, c.KeepFailed}
		}
	}
	if a := d.Autoscale; a != nil {
		out.Autoscale = &Autoscale{a.Min, a.Max, a.CPU}
	}
	if j := d.Job; j != nil {
		out.Job = &Job{j.Parallelism, j.Deadline, j.SuccessCodes, j.TTL}
	}
	for _, p := range d.Ports {
		out.Ports = append(out.Ports, Port{p.Port, p.Protocol, p.Address})
	}
	for _, p := range d.PortNames {
		out.PortNames = append(out.PortNames, PortName{p.Name, p.ContainerPort, p.Protocol, p.HostPort})
	}
	for _, c := range d.Constraints {
		out.Constraints = append(out.Constraints, Constraint{c.Key, c.Op, c.Values})
	}
	return out
}

// resultRecord converts the result of a finished job; nil if there is none.
func resultRecord(r *fsm.JobResult) *JobResult {
	if r == nil {
		return nil
	}
	out := &JobResult{Succeeded: r.Succeeded, At: r.At, Node: r.Node, Code: r.Code, Message: r.Message}
	if x := r.Exit; x != nil {
		out.Exit = &Exit{x.Code, x.StartedAt, x.EndedAt, x.Output}
	}
	return out
}

func taintRecord(t fsm.Taint) Taint {
	return Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, Seconds: t.Seconds, Since: stamp(t.Since)}
}

func taintRecords(list []fsm.Taint) (out []Taint) {
	for _, t := range list {
		out = append(out, taintRecord(t))
	}
	return out
}

func labelMap(list []fsm.Label) map[string]string {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list))
	for _, l := range list {
		m[l.Key] = l.Value
	}
	return m
}

func cores(millicores int64) float64 { return float64(millicores) / 1000 }

// clock formats Unix nanoseconds as RFC 3339 with nanoseconds, and 0 as "".
func clock(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// encode returns v as JSON. It panics if v cannot be encoded; all shapes of this package can.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("mirror: encode %T: %v", v, err))
	}
	return b
}

// prefixEnd returns the first key after all keys with the prefix, which must end in '/'.
func prefixEnd(prefix string) string { return prefix[:len(prefix)-1] + "0" }
