package driver

import (
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/order"
)

// Types and values of package workload, which drivers share with the agent's core. Package workload documents
// them.
type (
	Kind       = workload.Kind
	ID         = workload.ID
	Generation = workload.Generation
	State      = workload.State
	Observed   = workload.Observed
	Health     = workload.Health
	Port       = workload.Port
	Class      = workload.Class
	Cause      = workload.Cause
)

// See workload.Kind.
const (
	Container = workload.Container
	Compose   = workload.Compose
	VM        = workload.VM
)

// See workload.State.
const (
	Pending = workload.Pending
	Running = workload.Running
	Stopped = workload.Stopped
	Failed  = workload.Failed
	Unknown = workload.Unknown
	Absent  = workload.Absent
)

// See workload.Health.
const (
	Healthy   = workload.Healthy
	Starting  = workload.Starting
	Unhealthy = workload.Unhealthy
)

// See workload.Class.
const (
	ImagePullTimeout       = workload.ImagePullTimeout
	ImagePullAuthFailed    = workload.ImagePullAuthFailed
	InvalidImage           = workload.InvalidImage
	NetworkTimeout         = workload.NetworkTimeout
	NetworkUnreachable     = workload.NetworkUnreachable
	DNSResolutionFailed    = workload.DNSResolutionFailed
	InsufficientResources  = workload.InsufficientResources
	StorageFull            = workload.StorageFull
	ResourceQuotaExceeded  = workload.ResourceQuotaExceeded
	InvalidSpecification   = workload.InvalidSpecification
	InvalidConfiguration   = workload.InvalidConfiguration
	PortBindConflict       = workload.PortBindConflict
	RuntimeError           = workload.RuntimeError
	RuntimeUnhealthy       = workload.RuntimeUnhealthy
	UnknownError           = workload.UnknownError
	RuntimeResourceMissing = workload.RuntimeResourceMissing
	StorageProvisionFailed = workload.StorageProvisionFailed
	StorageAttachFailed    = workload.StorageAttachFailed
	CloudInitInvalid       = workload.CloudInitInvalid
	NameConflict           = workload.NameConflict
	ImageNotOnNode         = workload.ImageNotOnNode
)

// See workload.Cause.
const (
	OfProgram = workload.OfProgram
	Passing   = workload.Passing
	Final     = workload.Final
)

// OwnGrace, passed to Halt, means that the workload gets its own grace period without an upper
// limit.
const OwnGrace = workload.OwnGrace

// MaxMetadata is the maximum size in bytes of a value in Observed.Metadata.
const MaxMetadata = workload.MaxMetadata

// Classes returns all classes of failures, in the order of the contract (docs/contract).
func Classes() []Class { return workload.Classes() }

// ParseGeneration parses a generation (the number of an order) from the form that Generation.String writes.
func ParseGeneration(s string) (Generation, error) { return order.ParseGeneration(s) }

// Bound cuts s to at most its last MaxMetadata bytes. The result starts with a whole UTF-8 character.
func Bound(s string) string { return workload.Bound(s) }
