package mirror

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// JSON shapes of docs/contract/state-etcd.md, "Value shapes". Times are RFC 3339 with up to nine decimals; an
// unset time is 0001-01-01T00:00:00Z. The key "persys" is not part of the contract. It holds the data that
// has no documented key, so that an import of what this mirror wrote loses nothing. Legacy v1 peers ignore
// it.

// Time is written as RFC 3339. When it is read, the zone may be missing (then UTC), a blank may stand instead
// of the T, and the text may be empty.
type Time struct{ time.Time }

// timeForms are the accepted layouts, tried in order. Fractional seconds are accepted in
// all of them.
var timeForms = [...]string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 -0700 MST", "2006-01-02 15:04:05"}

// UnmarshalJSON accepts all forms that legacy v1 peers write. null and "" are the unset
// time.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		t.Time = time.Time{}
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("time: %w", err)
	}
	if s = strings.TrimSpace(s); s == "" {
		t.Time = time.Time{}
		return nil
	}
	for _, form := range timeForms {
		if v, err := time.Parse(form, s); err == nil {
			t.Time = v.UTC()
			return nil
		}
	}
	return fmt.Errorf("time: %q is not RFC 3339", s)
}

// stamp converts Unix nanoseconds to a Time; 0 is unset.
func stamp(ns int64) Time {
	if ns == 0 {
		return Time{}
	}
	return Time{time.Unix(0, ns).UTC()}
}

// Node is the record under /nodes/<id>.
type Node struct {
	NodeID           string            `json:"nodeId"`
	IPAddress        string            `json:"ipAddress"`
	Username         string            `json:"username"`
	Hostname         string            `json:"hostname"`
	OSName           string            `json:"osName"`
	KernelVersion    string            `json:"kernelVersion"`
	Status           string            `json:"status"`
	Timestamp        string            `json:"timestamp"`
	Resources        NodeUse           `json:"resources"`
	TotalCPU         float64           `json:"totalCpu"`        // cores
	TotalMemory      int64             `json:"totalMemory"`     // MiB
	AvailableCPU     float64           `json:"availableCpu"`    // cores that no workload reserves
	AvailableMemory  int64             `json:"availableMemory"` // MiB of memory that no workload reserves
	Hypervisor       Runtime           `json:"hypervisor"`
	ContainerEngine  Runtime           `json:"containerEngine"`
	DockerSwarm      Swarm             `json:"dockerSwarm"`
	LastHeartbeat    Time              `json:"lastHeartbeat"`
	StatusReason     string            `json:"statusReason,omitempty"`
	StatusUpdatedBy  string            `json:"statusUpdatedBy,omitempty"`
	StatusUpdatedAt  Time              `json:"statusUpdatedAt"`
	Labels           map[string]string `json:"labels,omitempty"`
	AgentPort        int               `json:"agentPort"`
	AgentGRPCPort    int               `json:"agentGrpcPort,omitempty"`
	AgentEndpoint    string            `json:"agentEndpoint,omitempty"`
	SupportedTypes   []string          `json:"supportedWorkloadTypes,omitempty"`
	SupportedStorage []string          `json:"supportedStorageDrivers,omitempty"`
	DomainName       string            `json:"domainName,omitempty"`

	Extension *NodeExtension `json:"persys,omitempty"`
}

// NodeUse is the measured use of a node's resources. The mirror does not know it and writes {}.
type NodeUse struct {
	CPU    float64 `json:"cpu_usage,omitempty"`
	Memory float64 `json:"memory_usage,omitempty"`
	Disk   float64 `json:"disk_usage,omitempty"`
}

// Runtime describes a hypervisor or container engine. The mirror does not know it and writes empty strings.
type Runtime struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Version string `json:"version,omitempty"`
}

// Swarm is the state of Docker Swarm on a node. The mirror always writes that it is not active.
type Swarm struct {
	Active         bool   `json:"active"`
	NodeID         string `json:"nodeId"`
	Role           string `json:"role"`
	Status         string `json:"status"`
	ManagerAddress string `json:"managerAddress,omitempty"`
}

// NodeExtension holds the data of a node for which the contract has no key.
type NodeExtension struct {
	Pools        []Pool  `json:"pools,omitempty"`
	Taints       []Taint `json:"taints,omitempty"`
	EngineID     string  `json:"engineId,omitempty"`
	AgentVersion string  `json:"agentVersion,omitempty"`
	InstanceID   string  `json:"instanceId,omitempty"`
	Protocol     uint32  `json:"protocol,omitempty"`
	SelfFencing  bool    `json:"selfFencing,omitempty"`
	LeaseSeconds int64   `json:"leaseSeconds,omitempty"`
	Cordoned     bool    `json:"cordoned,omitempty"`
	Draining     bool    `json:"draining,omitempty"`
	JobsUntil    int64   `json:"jobsUntil,omitempty"` // Unix nanoseconds
	Fenced       bool    `json:"fenced,omitempty"`

	SetLabels []NodeKey `json:"setLabels,omitempty"`
	SetTaints []NodeKey `json:"setTaints,omitempty"`
}

// Pool is a storage pool. Sizes are in GB.
type Pool struct {
	Name    string `json:"name"`
	Type    string `json:"type,omitempty"`
	TotalGB int64  `json:"totalGb"`
}

// Taint is a taint of a node or a toleration of a workload.
type Taint struct {
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`
	Effect  string `json:"effect,omitempty"`
	Seconds uint32 `json:"seconds,omitempty"` // only for NoExecute: workloads leave this number of seconds after Since
	Since   Time   `json:"since,omitzero"`    // only for NoExecute: when the node got the taint
}

// NodeKey is a label or taint that a user has set, or removed if Removed is set.
type NodeKey struct {
	Taint
	Removed bool `json:"removed,omitempty"`
}

// Workload is the record under /workloads/<id>.
type Workload struct {
	ID             string            `json:"id,omitempty"`
	Name           string            `json:"name"`
	Type           string            `json:"type"`
	RevisionID     string            `json:"revisionId,omitempty"`
	AssignedNode   string            `json:"assignedNode,omitempty"`
	Image          string            `json:"image,omitempty"`
	Command        string            `json:"command,omitempty"`
	CommandList    []string          `json:"commandList,omitempty"`
	Compose        string            `json:"compose,omitempty"`
	ComposeYAML    string            `json:"composeYaml,omitempty"`
	ProjectName    string            `json:"projectName,omitempty"`
	GitRepo        string            `json:"gitRepo,omitempty"`
	GitBranch      string            `json:"gitBranch,omitempty"`
	GitToken       string            `json:"gitToken,omitempty"`
	EnvVars        map[string]string `json:"envVars,omitempty"`
	Resources      Resources         `json:"resources"`
	NodeID         string            `json:"nodeId,omitempty"`
	Status         string            `json:"status"`
	DesiredState   string            `json:"desiredState,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	CreatedAt      Time              `json:"createdAt"`
	LocalPath      string            `json:"localPath,omitempty"`
	Ports          []string          `json:"ports,omitempty"`   // ports, each in the form host:container/proto
	Volumes        []string          `json:"volumes,omitempty"` // mounts, each in the form host:container[:ro]
	ManagedVolumes []ManagedVolume   `json:"managedVolumes,omitempty"`
	Network        string            `json:"network,omitempty"`
	RestartPolicy  string            `json:"restartPolicy,omitempty"`
	Logs           string            `json:"logs,omitempty"` // never written, because logs may be of any size
	Metadata       map[string]any    `json:"metadata,omitempty"`
	Retry          Retry             `json:"retry"`
	StatusInfo     StatusInfo        `json:"statusInfo"`
	Usage          json.RawMessage   `json:"usage,omitempty"` // not written, because a heartbeat must not cause a write
	VM             *VM               `json:"vm,omitempty"`

	Extension *WorkloadExtension `json:"persys,omitempty"`
}

// WorkloadSpec is the record under /workloads-spec/<id>.
type WorkloadSpec struct {
	ID            string            `json:"id,omitempty"`
	Name          string            `json:"name,omitempty"`
	Type          string            `json:"type,omitempty"`
	RevisionID    string            `json:"revisionId,omitempty"`
	Image         string            `json:"image,omitempty"`
	Command       string            `json:"command,omitempty"`
	CommandList   []string          `json:"commandList,omitempty"`
	Compose       string            `json:"compose,omitempty"`
	ComposeYAML   string            `json:"composeYaml,omitempty"`
	ProjectName   string            `json:"projectName,omitempty"`
	GitRepo       string            `json:"gitRepo,omitempty"`
	GitBranch     string            `json:"gitBranch,omitempty"`
	GitToken      string            `json:"gitToken,omitempty"`
	EnvVars       map[string]string `json:"envVars,omitempty"`
	Resources     Resources         `json:"resources"`
	DesiredState  string            `json:"desiredState,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	CreatedAt     Time              `json:"createdAt"`
	LocalPath     string            `json:"localPath,omitempty"`
	Ports         []string          `json:"ports,omitempty"`
	Volumes       []string          `json:"volumes,omitempty"`
	Network       string            `json:"network,omitempty"`
	RestartPolicy string            `json:"restartPolicy,omitempty"`
	VM            *VM               `json:"vm,omitempty"`
}

// WorkloadStatus is the record under /workloads-status/<id>.
type WorkloadStatus struct {
	ID           string         `json:"id,omitempty"`
	AssignedNode string         `json:"assignedNode,omitempty"`
	NodeID       string         `json:"nodeId,omitempty"`
	Status       string         `json:"status,omitempty"`
	Logs         string         `json:"logs,omitempty"`
	Metadata     map[string]any `json:"metadata,omitempty"`
	Retry        Retry          `json:"retry"`
	StatusInfo   StatusInfo     `json:"statusInfo"`
}

// Resources are the resources that a workload requests.
type Resources struct {
	CPU    float64 `json:"cpu_usage,omitempty"`    // cores
	Memory float64 `json:"memory_usage,omitempty"` // MiB
	Disk   int64   `json:"disk_usage,omitempty"`   // GiB
}

// StatusInfo is the reported state of a workload.
type StatusInfo struct {
	ActualState   string      `json:"actualState,omitempty"`
	LastUpdated   Time        `json:"lastUpdated"`
	FailureReason string      `json:"failureReason,omitempty"`
	Reason        *ReasonInfo `json:"reason,omitempty"`
}

// ReasonInfo is the reason for the state of a workload.
type ReasonInfo struct {
	Code           string `json:"code,omitempty"`
	Message        string `json:"message,omitempty"`
	Retryable      bool   `json:"retryable,omitempty"`
	LastTransition Time   `json:"lastTransition"`
	NextRetryAt    Time   `json:"nextRetryAt"`
}

// ManagedVolume is a volume that the node creates.
type ManagedVolume struct {
	Name         string `json:"name,omitempty"`
	Driver       string `json:"driver,omitempty"`
	SizeGB       int64  `json:"sizeGb,omitempty"`
	AccessMode   string `json:"accessMode,omitempty"`
	FSType       string `json:"fsType,omitempty"`
	MountPath    string `json:"mountPath,omitempty"`
	ReadOnly     bool   `json:"readOnly,omitempty"`
	RetainPolicy string `json:"retainPolicy,omitempty"`
}

// Volume is the record of legacy v1 peers under /volumes/<driver>:<name>.
type Volume struct {
	Name         string `json:"name"`
	Driver       string `json:"driver"`
	SizeGB       int64  `json:"sizeGb"`
	AccessMode   string `json:"accessMode"`
	FSType       string `json:"fsType"`
	RetainPolicy string `json:"retainPolicy"`
}

// VolumeUse is the record of legacy v1 peers under /attachments/<node>/<workload>/<volume>.
type VolumeUse struct {
	VolumeID   string `json:"volumeId"`
	WorkloadID string `json:"workloadId"`
	MountPath  string `json:"mountPath"`
	ReadOnly   bool   `json:"readOnly"`
	Phase      string `json:"phase"`
}

// VM is a virtual machine.
type VM struct {
	Name            string            `json:"name,omitempty"`
	VCPUs           int64             `json:"vcpus,omitempty"`
	MemoryMB        int64             `json:"memoryMb,omitempty"`
	Disks           []VMDisk          `json:"disks,omitempty"`
	Networks        []VMNetwork       `json:"networks,omitempty"`
	CloudInit       string            `json:"cloudInit,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	CloudInitConfig *CloudInit        `json:"cloudInitConfig,omitempty"`
	ManagedVolumes  []ManagedVolume   `json:"managedVolumes,omitempty"`
}

// VMDisk is a disk of a VM.
type VMDisk struct {
	Path   string `json:"path,omitempty"`
	Device string `json:"device,omitempty"`
	Format string `json:"format,omitempty"`
	SizeGB int64  `json:"sizeGb,omitempty"`
	Type   string `json:"type,omitempty"`
	Boot   bool   `json:"boot,omitempty"`
}

// VMNetwork is a network interface of a VM.
type VMNetwork struct {
	Network    string `json:"network,omitempty"`
	MACAddress string `json:"macAddress,omitempty"`
	IPAddress  string `json:"ipAddress,omitempty"`
}

// CloudInit is the first-boot configuration of a VM. The mirror writes its fields sealed.
type CloudInit struct {
	UserData      string `json:"userData,omitempty"`
	MetaData      string `json:"metaData,omitempty"`
	NetworkConfig string `json:"networkConfig,omitempty"`
	VendorData    string `json:"vendorData,omitempty"`
}

// WorkloadExtension holds the data of a workload for which the contract has no key: the sealed
// specification, and the resources that the planner reserves for it.
type WorkloadExtension struct {
	Spec           []byte     `json:"spec,omitempty"` // base64
	Content        string     `json:"content"`
	CallerRevision string     `json:"callerRevision,omitempty"`
	Restarts       uint32     `json:"restarts,omitempty"`
	Adopted        string     `json:"adopted,omitempty"`   // adopted revision: for a workload imported from legacy v1 schedulers, the revision that the node already runs
	Namespace      string     `json:"namespace,omitempty"` // empty: namespace "default"
	Bundle         string     `json:"bundle,omitempty"`    // digest of the files under /persys/bundles
	JobSince       int64      `json:"jobSince,omitempty"`  // first assignment of a job, Unix nanoseconds
	JobResult      *JobResult `json:"jobResult,omitempty"`
	Owner          string     `json:"owner,omitempty"`       // template that the workload was created from
	SealedFor      string     `json:"sealedFor,omitempty"`   // id for which the secrets in spec are sealed; empty: the id of the workload
	ScheduledAt    int64      `json:"scheduledAt,omitempty"` // time of the schedule of a run, Unix nanoseconds
	RunKey         string     `json:"runKey,omitempty"`      // key of the user who started the run
	Demand         Demand     `json:"demand"`
	Cut            bool       `json:"cut,omitempty"` // the constraints were omitted because the record was too large
}

// Namespace is the record under /persys/namespaces/<name>.
type Namespace struct {
	Name         string            `json:"name"`
	Description  string            `json:"description,omitempty"`
	Quota        Quota             `json:"quota"`
	Users        []string          `json:"users,omitempty"`
	MaxPriority  int32             `json:"maxPriority,omitempty"`
	AllowScaling bool              `json:"allowScaling,omitempty"`
	NodeLabels   map[string]string `json:"nodeLabels,omitempty"` // labels that nodes must carry to run its workloads
	CreatedAt    Time              `json:"createdAt"`
	UpdatedAt    Time              `json:"updatedAt"`
	UpdatedBy    string            `json:"updatedBy,omitempty"`
}

// Quota is the quota of a namespace; 0: unlimited.
type Quota struct {
	CPUMillicores int64 `json:"cpuMillicores,omitempty"`
	MemoryMiB     int64 `json:"memoryMib,omitempty"`
	DiskGB        int64 `json:"diskGb,omitempty"`
	Workloads     int64 `json:"workloads,omitempty"`
	Devices       int64 `json:"devices,omitempty"`
	Volumes       int64 `json:"volumes,omitempty"`
	VolumeGB      int64 `json:"volumeGb,omitempty"`
}

// Demand is the resource demand of a workload, in the units of its field names.
type Demand struct {
	CPUMillicores  int64             `json:"cpuMillicores,omitempty"`
	MemoryMiB      int64             `json:"memoryMib,omitempty"`
	DiskGB         int64             `json:"diskGb,omitempty"`
	Pool           string            `json:"pool,omitempty"`
	Devices        map[string]int64  `json:"devices,omitempty"`
	StorageDrivers []string          `json:"storageDrivers,omitempty"`
	Ports          []Port            `json:"ports,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Constraints    []Constraint      `json:"constraints,omitempty"`
	Tolerations    []Taint           `json:"tolerations,omitempty"`
	Group          string            `json:"group,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"onLostLease,omitempty"`
	Priority       int32             `json:"priority,omitempty"`
	PortNames      []PortName        `json:"portNames,omitempty"`
	MACAddresses   []string          `json:"macAddresses,omitempty"`
	Job            *Job              `json:"job,omitempty"`      // set for a job
	Template       *Template         `json:"template,omitempty"` // set for a template, from which runs are created
	Placement      *Placement        `json:"placement,omitempty"`
	Reschedule     *Reschedule       `json:"reschedule,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Autoscale      *Autoscale        `json:"autoscale,omitempty"`
	Surge          bool              `json:"surge,omitempty"` // an extra member of a group, which exists only during an update
}

// Autoscale holds the settings of the autoscaler of a group.
type Autoscale struct {
	Min uint32 `json:"min"`
	Max uint32 `json:"max"`
	CPU uint32 `json:"cpu"`
}

// Reschedule limits the moves of a workload off nodes that cannot run it. Interval is in nanoseconds.
type Reschedule struct {
	Attempts int32 `json:"attempts"`
	Interval int64 `json:"interval"`
}

// Placement holds the placement rules of a workload: spread and affinity.
type Placement struct {
	Spread     []Spread   `json:"spread,omitempty"`
	Affinities []Affinity `json:"affinities,omitempty"`
	Policy     string     `json:"policy,omitempty"`
}

// Spread is one spread rule.
type Spread struct {
	By      string `json:"by"`
	MaxSkew int32  `json:"maxSkew"`
	Must    bool   `json:"must,omitempty"`
}

// Affinity is one affinity or anti-affinity rule. It has one of Node, Workload, Group and Tag.
type Affinity struct {
	Anti     bool        `json:"anti,omitempty"`
	Node     *Constraint `json:"node,omitempty"`
	Workload string      `json:"workload,omitempty"`
	Group    string      `json:"group,omitempty"`
	Tag      *Tag        `json:"tag,omitempty"`
	By       string      `json:"by,omitempty"`
	Must     bool        `json:"must,omitempty"`
	Weight   int32       `json:"weight,omitempty"`
}

// Tag is a tag that an affinity rule names.
type Tag struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
}

// Template says when runs are created from a template. Durations are nanoseconds.
type Template struct {
	Kind             string `json:"kind"`
	Schedule         string `json:"schedule,omitempty"`
	TimeZone         string `json:"timeZone,omitempty"`
	Concurrency      string `json:"concurrency,omitempty"`
	StartingDeadline int64  `json:"startingDeadline,omitempty"`
	KeepSucceeded    uint32 `json:"keepSucceeded,omitempty"`
	KeepFailed       uint32 `json:"keepFailed,omitempty"`
}

// Job holds the settings of a job. Durations are nanoseconds.
type Job struct {
	Parallelism  uint32  `json:"parallelism,omitempty"`
	Deadline     int64   `json:"deadline,omitempty"`
	SuccessCodes []int32 `json:"successCodes,omitempty"`
	TTL          int64   `json:"ttl,omitempty"`
}

// JobResult is the result of a finished job. Times are Unix nanoseconds.
type JobResult struct {
	Succeeded bool   `json:"succeeded"`
	At        int64  `json:"at"`
	Exit      *Exit  `json:"exit,omitempty"`
	Node      string `json:"node,omitempty"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Exit is how an instance ended. Times are Unix nanoseconds.
type Exit struct {
	Code      int32  `json:"code"`
	StartedAt int64  `json:"startedAt,omitempty"`
	EndedAt   int64  `json:"endedAt,omitempty"`
	Output    string `json:"output,omitempty"`
}

// PortName is a named port of a workload.
type PortName struct {
	Name          string `json:"name"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostPort      uint16 `json:"hostPort,omitempty"`
}

// Action is a task of an agent, in the metadata of a workload. Times are RFC 3339.
type Action struct {
	TaskID    string `json:"taskId"`
	Type      string `json:"actionType"`
	Status    string `json:"status"`
	Error     string `json:"error,omitempty"`
	CreatedAt string `json:"createdAt,omitempty"`
	StartedAt string `json:"startedAt,omitempty"`
	EndedAt   string `json:"endedAt,omitempty"`
}

// Port is a host port.
type Port struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	Address  string `json:"address,omitempty"`
}

// Constraint is a placement rule.
type Constraint struct {
	Key    string   `json:"key"`
	Op     string   `json:"op"`
	Values []string `json:"values,omitempty"`
}

// Retry is the record under /retries/<workload>. The record under /workloads/<id> also contains it.
type Retry struct {
	Attempts    int32 `json:"attempts"`
	MaxAttempts int32 `json:"maxAttempts"`
	NextRetryAt Time  `json:"nextRetryAt"`
}

// Assignment is the record under /assignments/<workload>.
type Assignment struct {
	WorkloadID string `json:"workloadId"`
	NodeID     string `json:"nodeId"`
	Reason     string `json:"reason"`
	CreatedAt  Time   `json:"createdAt"`
}

// Event is the record under /events/<id>; the id is <time>-<sequence>.
type Event struct {
	ID         string         `json:"id"`
	Type       string         `json:"type"`
	WorkloadID string         `json:"workloadId,omitempty"`
	NodeID     string         `json:"nodeId,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Timestamp  Time           `json:"timestamp"`
	Details    map[string]any `json:"details,omitempty"`
}

// Drift is the record under /drifts/<node>/<workload>/<type>.
type Drift struct {
	NodeID          string `json:"nodeId"`
	WorkloadID      string `json:"workloadId"`
	DriftType       string `json:"driftType"`
	DetectedAt      Time   `json:"detectedAt"`
	SchedulerStatus string `json:"schedulerStatus,omitempty"`
	AgentStatus     string `json:"agentStatus,omitempty"`
	Action          string `json:"action,omitempty"`
	Resolved        bool   `json:"resolved"`
	LastError       string `json:"lastError,omitempty"`
}
