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

	// Halt stops the workload and keeps the instance, so that a later Ensure starts it again.
	// After grace (0 means at once) the workload is killed. Halting a stopped or absent workload succeeds.
	Halt(ctx context.Context, id ID, grace time.Duration) error

	// Remove stops the workload if needed and deletes it with everything the driver made for it.
	// Removing an absent workload succeeds.
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

// Spec is the desired state of one workload.
type Spec struct {
	ID ID
	// Revision is the scheduler's name of this version; for information only.
	Revision string
	// Content identifies the specification (spec/DESIGN.md). Equal content is never
	// recreated. It must not be empty.
	Content string
	// Generation fences assignments; a driver only records it.
	Generation Generation
	ClusterID  string
	NodeID     string
	// Running is the desired state: running or stopped.
	Running bool
	Body    *agentv1.WorkloadSpec
	// Labels are added to the body's own labels. Keys that start with LabelPrefix are ignored.
	Labels map[string]string
	// Exclusive workloads may be placed elsewhere while this machine is down. The engine must not
	// start them by itself, not even when it restarts; the agent does.
	Exclusive bool
	// Volumes are the body's managed volumes, in its order.
	Volumes []Volume
	// DiskLimit is how many bytes the workload may occupy beyond its image; 0 is no limit. If the
	// engine can enforce the limit, the driver sets it there and reports Observed.DiskCapped.
	// Otherwise the agent measures.
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

// Capacity describes an engine.
type Capacity struct {
	// EngineID identifies the engine; agents on the same engine report the same id. Host ports
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
	// Service names one service of a Compose stack; empty means all.
	Service string
	// Timestamps puts an RFC 3339 time with nanoseconds and a space before every line.
	Timestamps bool
	// Seen, if set, is called with the engine's timestamp of every line before the line is read, so
	// that a reader can resume after an interruption. Not all engines know the times of all lines.
	Seen func(time.Time)
}
