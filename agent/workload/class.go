package workload

// Class is the kind of a failure. Its names are the values of the metadata key failure_reason that
// legacy v1 agents use (contract/semantics.md, section 9). They never change.
type Class string

// The classes.
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
)

// Classes returns all classes, in the contract's order.
func Classes() []Class {
	return []Class{
		ImagePullTimeout, ImagePullAuthFailed, InvalidImage, NetworkTimeout, NetworkUnreachable,
		DNSResolutionFailed, InsufficientResources, StorageFull, ResourceQuotaExceeded,
		InvalidSpecification, InvalidConfiguration, PortBindConflict, RuntimeError,
		RuntimeUnhealthy, UnknownError, RuntimeResourceMissing, StorageProvisionFailed,
		StorageAttachFailed, CloudInitInvalid,
	}
}

// Transient reports whether the same call may succeed later with the same spec.
func (c Class) Transient() bool {
	switch c {
	case ImagePullTimeout, NetworkTimeout, NetworkUnreachable, DNSResolutionFailed,
		RuntimeUnhealthy, RuntimeError, UnknownError:
		return true
	}
	return false
}

// Permanent reports whether only a new spec can help: the agent and the scheduler stop retrying.
// Classes that are neither transient nor permanent (credentials, space, quota) may be mended on the
// machine, so they are retried slowly.
func (c Class) Permanent() bool {
	switch c {
	case InvalidImage, InvalidSpecification, InvalidConfiguration, PortBindConflict:
		return true
	}
	return false
}

// FailureReason is the control API's enum name for the class on a workload of kind.
func (c Class) FailureReason(kind Kind) string {
	switch c {
	case "":
		return "FAILURE_REASON_UNSPECIFIED"
	case ImagePullTimeout, ImagePullAuthFailed:
		return "IMAGE_PULL_FAILED"
	case InvalidImage:
		return "IMAGE_NOT_FOUND"
	case InsufficientResources, ResourceQuotaExceeded:
		return "INSUFFICIENT_RESOURCES"
	case StorageFull, StorageProvisionFailed, StorageAttachFailed:
		return "STORAGE_ERROR"
	case NetworkTimeout, NetworkUnreachable, DNSResolutionFailed:
		return "NETWORK_ERROR"
	case InvalidSpecification, InvalidConfiguration, PortBindConflict, CloudInitInvalid:
		return "INVALID_SPEC"
	}
	if kind == VM && c == RuntimeError {
		return "VM_BOOT_FAILED"
	}
	return "RUNTIME_ERROR"
}
