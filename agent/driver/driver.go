package driver

import (
	"context"
	"io"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Driver runs workloads of one kind on one engine. The package comment states the contract.
//
// Errors are *Error, except that a call whose context was cancelled or expired may return the
// context's error.
type Driver interface {
	// Kind returns the kind of workloads, which never changes.
	Kind() Kind

	// Probe asks the engine whether it can run workloads now. If the engine answers but cannot run
	// workloads, Probe returns Capacity{Healthy: false} with a reason. If the engine does not answer,
	// Probe returns the same and an error of class RuntimeUnhealthy.
	Probe(ctx context.Context) (Capacity, error)

	// Ensure creates, replaces, starts or stops the workload's instance until an instance with spec.Content
	// is in the desired state. If it already is, Ensure does nothing. It returns when the engine has accepted
	// the last step; the workload may not be healthy yet.
	Ensure(ctx context.Context, spec Spec) error

	// Halt stops the workload and keeps the instance, so that a later Ensure can start it again. The
	// workload gets the grace period of its specification or else the driver's default, but at most the
	// duration most, and is then killed. If most is 0, the workload is killed at once; if most is
	// OwnGrace, there is no upper bound. Halting a stopped or absent workload succeeds.
	Halt(ctx context.Context, id ID, most time.Duration) error

	// Remove stops the workload if needed, as Halt with OwnGrace does, and deletes it with all resources that
	// the driver made for it. Removing an absent workload succeeds.
	Remove(ctx context.Context, id ID) error

	// List returns every workload on the engine that belongs to this agent, one entry for each ID, sorted by
	// ID.
	List(ctx context.Context) ([]Observed, error)

	// Events sends the IDs of workloads that may have changed. When ctx ends, it closes the channel. An ID
	// only means that the workload may have changed: several changes may cause one event, events may be late
	// or wrong, and there are none while the engine is unreachable. The empty ID means that any workload may
	// have changed; it is sent after a reconnection.
	Events(ctx context.Context) (<-chan ID, error)

	// Logs returns the workload's output, stdout and stderr merged in the order the engine
	// delivers them, as plain text without framing. The reader must be closed. With Follow it
	// ends when the workload stops or ctx ends.
	Logs(ctx context.Context, id ID, options LogOptions) (io.ReadCloser, error)
}

// UnhealthyHalter is implemented by drivers whose workloads consist of parts with their own health
// checks, such as the services of a stack.
type UnhealthyHalter interface {
	// HaltUnhealthy stops the parts of a workload that the engine reports as unhealthy, with the time limit of
	// Halt. If there are none, it stops all parts. The next Ensure starts the stopped parts, whatever their restart
	// policies say.
	HaltUnhealthy(ctx context.Context, id ID, most time.Duration) error
}

// Signaler is implemented by drivers that can send a signal to the processes of a workload.
type Signaler interface {
	// Signal sends a signal, such as SIGHUP, to the main process of each running container of a workload. In a stack
	// these are the containers of the service; service is "" for other workloads. Containers that do not run get no
	// signal, because they read the changed files when they start.
	Signal(ctx context.Context, id ID, service, signal string) error
}

// Spec is the desired state of one workload.
type Spec struct {
	ID ID
	// Revision is the name that the scheduler gives to this version of the specification. Drivers only store
	// it in a label.
	Revision string
	// Content is a hash of the specification (spec/DESIGN.md). An instance with equal content is never
	// recreated. Content must not be empty.
	Content string
	// Legacy means that a legacy v1 agent made this workload, and did not label its instance with a content.
	// The driver treats an instance without a content label as if it had this Content.
	Legacy bool
	// Generation is the number of the scheduler's order. Drivers only store it in a label.
	Generation Generation
	ClusterID  string
	NodeID     string
	// Running is the desired state: true for running, false for stopped.
	Running bool
	Body    *agentv1.WorkloadSpec
	// Labels are set on the instance, in addition to the labels in Body. Keys that start with LabelPrefix are
	// ignored.
	Labels map[string]string
	// Exclusive workloads may be placed on another node while this machine is down. The engine must not
	// start them by itself, not even when it restarts; the agent does.
	Exclusive bool
	// Volumes are the managed volumes that Body names, in the same order.
	Volumes []Volume
	// Files are the paths, on this machine, of the in-memory files that Body names, in the same
	// order.
	Files []string
	// DiskLimit is how many bytes the workload may occupy beyond its image; 0 is no limit. If the engine can
	// enforce the limit, the driver sets it on the engine and List reports Observed.DiskCapped. Otherwise the
	// agent measures the disk use.
	DiskLimit int64
	// Repeats means that the agent starts the workload again by itself, without an order. In a stack, the
	// driver then does not start parts that have ended and whose restart policies keep them ended.
	Repeats bool
	// Rules limit the rights of the workload on this machine; nil allows everything.
	Rules *Rules
}

// Validate checks the rules for a spec that all drivers have in common. The error is of class
// InvalidSpecification and names the field.
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
	// EngineID identifies the engine. Agents on the same engine report the same id, so that the schedulers
	// reserve each host port only once per engine.
	EngineID string
	Version  string
	Healthy  bool
	// Reason says in one short line why the engine is not healthy.
	Reason string
	// Devices are the numbers of devices that the engine can give to containers, by CDI kind.
	Devices map[string]int64
}

// LogOptions selects lines of a workload's output.
type LogOptions struct {
	Follow bool
	// Tail is the number of last lines to begin with; 0 or less means all.
	Tail int
	// Since drops lines that are older than this time; zero keeps all.
	Since time.Time
	// Service names one service of a Compose stack; empty means all.
	Service string
	// Timestamps puts an RFC 3339 time with nanoseconds and a space before every line.
	Timestamps bool
	// Seen, if set, is called with the engine's timestamp of every line before the line is returned. After
	// an interruption, the caller can resume at the last timestamp. Not all engines know the times of all
	// lines.
	Seen func(time.Time)
}
