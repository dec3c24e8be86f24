package mirror

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// JSON shapes of docs/contract/state-etcd.md, "Value shapes". Times are RFC 3339 with up to
// nine decimals; an unset time is 0001-01-01T00:00:00Z. The key "persys" is not part of the
// contract. It holds the data that has no documented key, so that an import of this mirror
// loses nothing. Legacy v1 peers ignore it.

// Time is written as RFC 3339. When it is read, the zone may be missing (then UTC), a blank
// may replace the T, and the text may be empty.
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
	AvailableCPU     float64           `json:"availableCpu"`    // unallocated cores
	AvailableMemory  int64             `json:"availableMemory"` // unallocated MiB
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

	Own *OwnNode `json:"persys,omitempty"`
}

// NodeUse is the measured use of a node. The mirror does not store it and writes {}.
type NodeUse struct {
	CPU    float64 `json:"cpu_usage,omitempty"`
	Memory float64 `json:"memory_usage,omitempty"`
	Disk   float64 `json:"disk_usage,omitempty"`
}

// Runtime describes a hypervisor or container engine. The mirror writes empty strings.
type Runtime struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Version string `json:"version,omitempty"`
}

// Swarm is the state of Docker Swarm. The mirror writes it as not active.
type Swarm struct {
	Active         bool   `json:"active"`
	NodeID         string `json:"nodeId"`
	Role           string `json:"role"`
	Status         string `json:"status"`
	ManagerAddress string `json:"managerAddress,omitempty"`
}

// OwnNode holds the data of a node that has no documented key.
type OwnNode struct {
	Pools        []OwnPool  `json:"pools,omitempty"`
	Taints       []OwnTaint `json:"taints,omitempty"`
	EngineID     string     `json:"engineId,omitempty"`
	AgentVersion string     `json:"agentVersion,omitempty"`
	InstanceID   string     `json:"instanceId,omitempty"`
	Protocol     uint32     `json:"protocol,omitempty"`
	SelfFencing  bool       `json:"selfFencing,omitempty"`
	LeaseSeconds int64      `json:"leaseSeconds,omitempty"`
	Cordoned     bool       `json:"cordoned,omitempty"`
	Draining     bool       `json:"draining,omitempty"`
	Fenced       bool       `json:"fenced,omitempty"`
}

// OwnPool is a storage pool. Sizes are in GB.
type OwnPool struct {
	Name    string `json:"name"`
	Type    string `json:"type,omitempty"`
	TotalGB int64  `json:"totalGb"`
}

// OwnTaint is a taint of a node or a toleration of a workload.
type OwnTaint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect,omitempty"`
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
	Ports          []string          `json:"ports,omitempty"`   // host:container/proto
	Volumes        []string          `json:"volumes,omitempty"` // host:container[:ro]
	ManagedVolumes []ManagedVolume   `json:"managedVolumes,omitempty"`
	Network        string            `json:"network,omitempty"`
	RestartPolicy  string            `json:"restartPolicy,omitempty"`
	Logs           string            `json:"logs,omitempty"` // never written, because it is unbounded
	Metadata       map[string]any    `json:"metadata,omitempty"`
	Retry          Retry             `json:"retry"`
	StatusInfo     StatusInfo        `json:"statusInfo"`
	Usage          json.RawMessage   `json:"usage,omitempty"` // never written, because heartbeats must not cause writes
	VM             *VM               `json:"vm,omitempty"`

	Own *OwnWorkload `json:"persys,omitempty"`
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

// OwnWorkload holds those data of a workload for which the contract has no key: the sealed
// specification and the resources that the planner counts for it.
type OwnWorkload struct {
	Spec           []byte    `json:"spec,omitempty"` // base64
	Content        string    `json:"content"`
	CallerRevision string    `json:"callerRevision,omitempty"`
	Restarts       uint32    `json:"restarts,omitempty"`
	Namespace      string    `json:"namespace,omitempty"` // empty: namespace "default"
	Demand         OwnDemand `json:"demand"`
	Cut            bool      `json:"cut,omitempty"` // the constraints were omitted because the record was too large
}

// Namespace is the record under /persys/namespaces/<name>.
type Namespace struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Quota       OwnQuota `json:"quota"`
	Users       []string `json:"users,omitempty"`
	CreatedAt   Time     `json:"createdAt"`
	UpdatedAt   Time     `json:"updatedAt"`
	UpdatedBy   string   `json:"updatedBy,omitempty"`
}

// OwnQuota is the quota of a namespace; 0: unlimited.
type OwnQuota struct {
	CPUMillicores int64 `json:"cpuMillicores,omitempty"`
	MemoryMiB     int64 `json:"memoryMib,omitempty"`
	DiskGB        int64 `json:"diskGb,omitempty"`
	Workloads     int64 `json:"workloads,omitempty"`
}

// OwnDemand is the resource demand of a workload, in the units of its field names.
type OwnDemand struct {
	CPUMillicores  int64             `json:"cpuMillicores,omitempty"`
	MemoryMiB      int64             `json:"memoryMib,omitempty"`
	DiskGB         int64             `json:"diskGb,omitempty"`
	Pool           string            `json:"pool,omitempty"`
	StorageDrivers []string          `json:"storageDrivers,omitempty"`
	Ports          []OwnPort         `json:"ports,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Constraints    []OwnConstraint   `json:"constraints,omitempty"`
	Tolerations    []OwnTaint        `json:"tolerations,omitempty"`
	Group          string            `json:"group,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"onLostLease,omitempty"`
	Priority       int32             `json:"priority,omitempty"`
	PortNames      []OwnPortName     `json:"portNames,omitempty"`
}

// OwnPortName is a named port of a workload.
type OwnPortName struct {
	Name          string `json:"name"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostPort      uint16 `json:"hostPort,omitempty"`
}

// OwnAction is a task of an agent, in the metadata of a workload. Times are RFC 3339.
type OwnAction struct {
	TaskID    string `json:"taskId"`
	Type      string `json:"actionType"`
	Status    string `json:"status"`
	Error     string `json:"error,omitempty"`
	CreatedAt string `json:"createdAt,omitempty"`
	StartedAt string `json:"startedAt,omitempty"`
	EndedAt   string `json:"endedAt,omitempty"`
}

// OwnPort is a host port.
type OwnPort struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

// OwnConstraint is a placement rule.
type OwnConstraint struct {
	Key    string   `json:"key"`
	Op     string   `json:"op"`
	Values []string `json:"values,omitempty"`
}

// Retry is the record under /retries/<workload>. It is also part of Workload.
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
