package workload

// Class is the kind of a failure. Most values are those that legacy v1 agents send under the metadata key
// failure_reason (contract/semantics.md, section 9); the others are new. The values never change.
type Class string

// The classes of failures.
const (
	ImagePullTimeout       Class = "IMAGE_PULL_TIMEOUT"
	ImagePullAuthFailed    Class = "IMAGE_PULL_AUTH_FAILED"
	InvalidImage           Class = "INVALID_IMAGE"
	NetworkTimeout         Class = "NETWORK_TIMEOUT"
	NetworkUnreachable     Class = "NETWORK_UNREACHABLE"
	DNSResolutionFailed    Class = "DNS_RESOLUTION_FAILED"
	InsufficientResources  Class = "INSUFFICIENT_RESOURCES"
	StorageFull            Class = "STORAGE_FULL"
	ResourceQuotaExceeded  Class = "RESOURCE_QUOTA_EXCEEDED"
	InvalidSpecification   Class = "INVALID_SPECIFICATION"
	InvalidConfiguration   Class = "INVALID_CONFIGURATION"
	PortBindConflict       Class = "PORT_BIND_CONFLICT"
	RuntimeError           Class = "RUNTIME_ERROR"
	RuntimeUnhealthy       Class = "RUNTIME_UNHEALTHY"
	UnknownError           Class = "UNKNOWN_ERROR"
	RuntimeResourceMissing Class = "RUNTIME_RESOURCE_MISSING"
	StorageProvisionFailed Class = "STORAGE_PROVISION_FAILED"
	StorageAttachFailed    Class = "STORAGE_ATTACH_FAILED"
	CloudInitInvalid       Class = "CLOUD_INIT_INVALID"

	// NameConflict means that another object on the engine has the name that the workload needs. Legacy v1
	// agents do not have this class.
	NameConflict Class = "NAME_CONFLICT"
	// ImageNotOnNode means that the engine lacks an image which it may not or cannot pull. Legacy v1 agents do not
	// have this class.
	ImageNotOnNode Class = "IMAGE_NOT_ON_NODE"
)

// Classes returns all classes: first those of the contract with legacy v1 peers, in the order of the contract,
// then the new ones.
func Classes() []Class {
	return []Class{
		ImagePullTimeout, ImagePullAuthFailed, InvalidImage, NetworkTimeout, NetworkUnreachable,
		DNSResolutionFailed, InsufficientResources, StorageFull, ResourceQuotaExceeded,
		InvalidSpecification, InvalidConfiguration, PortBindConflict, RuntimeError,
		RuntimeUnhealthy, UnknownError, RuntimeResourceMissing, StorageProvisionFailed,
		StorageAttachFailed, CloudInitInvalid, NameConflict, ImageNotOnNode,
	}
}

// Cause says where the cause of a failure lies: in the workload, outside of it, or in its specification. It
// decides whether and how long the failed action is retried.
type Cause uint8

// The causes of failures.
const (
	// OfProgram: the workload itself fails, or the cause is unknown. After a few attempts the agent stops
	// trying.
	OfProgram Cause = iota
	// Passing: the cause is outside the workload and may end by itself. Examples are a port that another
	// program holds, an unreachable registry or engine, a full disk, and missing credentials. The action is
	// retried until it succeeds or the order changes.
	Passing
	// Final: every attempt with this specification fails, so there is no retry.
	Final
)

// Cause returns the cause that failures of this class have. Package sched has the same table for the
// failures in agents' reports.
func (c Class) Cause() Cause {
	switch c {
	case InvalidImage, InvalidSpecification, InvalidConfiguration, CloudInitInvalid:
		return Final
	case ImagePullTimeout, ImagePullAuthFailed, NetworkTimeout, NetworkUnreachable, DNSResolutionFailed,
		InsufficientResources, StorageFull, PortBindConflict, RuntimeUnhealthy, RuntimeResourceMissing,
		StorageProvisionFailed, StorageAttachFailed, NameConflict, ImageNotOnNode:
		return Passing
	}
	return OfProgram
}

// OfNode reports whether failures of this class belong to the node, so that the workload may succeed on another
// node. It is false for a failure of the engine, because the agent then does not know which instances still run
// on this node. It is also false for refused credentials, because every node gets the same credentials with the
// order.
func (c Class) OfNode() bool {
	return c.Cause() == Passing && c != RuntimeUnhealthy && c != ImagePullAuthFailed
}

// FailureReason returns the name of this class in the control API's enum, for a workload of the given kind.
func (c Class) FailureReason(kind Kind) string {
	switch c {
	case "":
		return "FAILURE_REASON_UNSPECIFIED"
	case ImagePullTimeout, ImagePullAuthFailed:
		return "IMAGE_PULL_FAILED"
	case InvalidImage, ImageNotOnNode:
		return "IMAGE_NOT_FOUND"
	case InsufficientResources, ResourceQuotaExceeded:
		return "INSUFFICIENT_RESOURCES"
	case StorageFull, StorageProvisionFailed, StorageAttachFailed:
		return "STORAGE_ERROR"
	case NetworkTimeout, NetworkUnreachable, DNSResolutionFailed:
		return "NETWORK_ERROR"
	case InvalidSpecification, InvalidConfiguration, PortBindConflict, CloudInitInvalid, NameConflict:
		return "INVALID_SPEC"
	}
	if kind == VM && c == RuntimeError {
		return "VM_BOOT_FAILED"
	}
	return "RUNTIME_ERROR"
}
