package driver

import (
	"context"
	"io"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Driver runs workloads of one kind on one engine. The package comment states the contract.
//
// Errors are *Error, except that a cancelled or expired context may be reported as such.
type Driver interface {
	// Kind never changes.
	Kind() Kind

	// Probe asks the engine whether it can run anything now. An engine that answers but cannot
	// work is Capacity{Healthy: false} with a reason; one that does not answer is the same plus
	// an error of class RuntimeUnhealthy.
	Probe(ctx context.Context) (Capacity, error)

	// Ensure makes spec true: creates, replaces, starts or stops until this content is in the
	// desired state, and does nothing when it already is. It returns when the engine has accepted
	// the last step, which for a start is not yet "the workload is healthy".
	Ensure(ctx context.Context, spec Spec) error

	// Halt stops the workload and keeps it, so that a later Ensure starts the same instance.
	// After grace (0 means at once) it is killed. Stopping what is stopped or absent succeeds.
	Halt(ctx context.Context, id ID, grace time.Duration) error

	// Remove stops the workload if needed and deletes it with everything the driver made for it.
	// Removing what is absent succeeds.
	Remove(ctx context.Context, id ID) error

	// List returns every workload of ours on the engine, one entry for each ID, sorted by ID.
	List(ctx context.Context) ([]Observed, error)

	// Events sends the IDs of workloads that may have changed, until ctx ends; then the channel
	// is closed. They are hints: coalesced, possibly late or spurious, missing while the engine is
	// away. The empty ID means that anything may have changed (sent after a reconnection).
	Events(ctx context.Context) (<-chan ID, error)

	// Logs returns the workload's output, stdout and stderr merged in the order the engine
	// delivers them, as plain text without framing. The reader must be closed. With Follow it
	// ends when the workload stops or ctx ends.
	Logs(ctx context.Context, id ID, options LogOptions) (io.ReadCloser, error)
}

// Spec is what should be true of one workload.
type Spec struct {
	ID ID
	// Revision is what schedulers call this version; informative.
	Revision string
	// Content identifies the specification (DESIGN.md, decision 17). Equal content is never
	// recreated. It must not be empty.
	Content string
	// Generation fences assignments; a driver only records it.
	Generation Generation
	ClusterID  string
	NodeID     string
	// Running is the desired state: running or stopped.
	Running bool
	Body    *agentv1.WorkloadSpec
	// Labels are added to the body's own labels. Keys starting with LabelPrefix are ignored.
	Labels map[string]string
	// Exclusive: it may be placed elsewhere while this machine is down, so the engine must not start
	// it by itself, not even when it restarts; the caller does.
	Exclusive bool
	// Volumes are the body's managed volumes, in its order.
	Volumes []Volume
	// DiskLimit is how many bytes the workload may occupy beyond its image; 0 is no limit. A driver
	// whose engine can keep it asks it to, and says so in Observed.DiskCapped; else the agent measures.
	DiskLimit int64
}

// Validate checks what every driver needs. The error is of class InvalidSpecification and names
// the field.
func (s Spec) Validate() error {
	switch {
	case s.ID == "":
		return Errorf(InvalidSpecification, "ensure", "id: must not be empty")
	case s.Content == "":
		return Errorf(InvalidSpecification, "ensure", "content: must not be empty (workload %q)", s.ID)
	case s.ClusterID == "":
		return Errorf(InvalidSpecification, "ensure", "cluster_id: must not be empty (workload %q)", s.ID)
	case s.NodeID == "":
		return Errorf(InvalidSpecification, "ensure", "node_id: must not be empty (workload %q)", s.ID)
	case s.Body.GetSpec() == nil:
		return Errorf(InvalidSpecification, "ensure", "spec: one of container, compose and vm must be set (workload %q)", s.ID)
	}
	return nil
}

// Capacity is what an engine says of itself.
type Capacity struct {
	// EngineID is the same for all agents on one engine and differs between engines: host ports
	// are reserved per engine.
	EngineID string
	Version  string
	Healthy  bool
	// Reason is one short line, set when not healthy.
	Reason string
}

// LogOptions selects output.
type LogOptions struct {
	Follow bool
	// Tail is the number of last lines to begin with; 0 or less means all.
	Tail int
	// Since drops older lines; zero means all.
	Since time.Time
	// Service is one of a Compose stack's; empty means all.
	Service string
	// Timestamps puts an RFC 3339 time with nanoseconds and a space before every line.
	Timestamps bool
	// Seen, if set, is told the time of every line, by the engine's clock, before the line is read:
	// a reader that breaks off goes on from there. Not all engines know it of all workloads.
	Seen func(time.Time)
}
