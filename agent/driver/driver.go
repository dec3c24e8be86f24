package driver

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Kind is a type of workload. The values are those of the control API and of the health check's
// runtime_status map.
type Kind string

// The kinds.
const (
	Container Kind = "container"
	Compose   Kind = "compose"
	VM        Kind = "vm"
)

// ID is a workload id: [A-Za-z0-9][A-Za-z0-9_.-]{0,127}.
type ID string

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

// Generation is an assignment's fence: a later incarnation wins, then a later sequence.
type Generation struct {
	Incarnation uint64
	Sequence    uint64
}

// String is the form on labels: "<incarnation>.<sequence>".
func (g Generation) String() string {
	return strconv.FormatUint(g.Incarnation, 10) + "." + strconv.FormatUint(g.Sequence, 10)
}

// Less orders generations.
func (g Generation) Less(other Generation) bool {
	if g.Incarnation != other.Incarnation {
		return g.Incarnation < other.Incarnation
	}
	return g.Sequence < other.Sequence
}

// ParseGeneration reads the form that String writes.
func ParseGeneration(s string) (Generation, error) {
	left, right, ok := strings.Cut(s, ".")
	if !ok {
		return Generation{}, fmt.Errorf("generation %q: want <incarnation>.<sequence>", s)
	}
	incarnation, err := strconv.ParseUint(left, 10, 64)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: incarnation: %w", s, err)
	}
	sequence, err := strconv.ParseUint(right, 10, 64)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: sequence: %w", s, err)
	}
	return Generation{Incarnation: incarnation, Sequence: sequence}, nil
}

// State is what a workload does now. The first five are the agent API's ActualState.
type State string

// The states.
const (
	Pending State = "Pending" // being started or restarted by the engine
	Running State = "Running"
	Stopped State = "Stopped" // created but not started, stopped, or ended with exit code 0
	Failed  State = "Failed"  // ended with another exit code, or could not start
	Unknown State = "Unknown" // the engine has no word for it that we know
	Absent  State = "Absent"  // never in a List; what a caller says of an ID that is not in it
)

// Observed is one workload as the engine has it.
type Observed struct {
	ID ID
	// Revision, Content and Generation are those of the spec that created the instance. Content
	// is empty on an instance that an agent without our labels made.
	Revision   string
	Content    string
	Generation Generation
	ClusterID  string
	NodeID     string
	// Owned is true if the instance carries our cluster and node. It is false for one without
	// these labels, which is listed because our own store claims it: to be adopted, by writing
	// its RuntimeID and content in the store.
	Owned bool

	State State
	// Class says why a Failed workload failed; empty in other states.
	Class Class
	// Message is one short line for people.
	Message string
	// Health is what the runtime's health checks say of what runs; empty where nothing is checked.
	Health Health
	// ExitCode is of the last end; meaningful only if FinishedAt is set.
	ExitCode int
	// Zero times are unknown or not yet.
	StartedAt    time.Time
	FinishedAt   time.Time
	RestartCount int

	// Addresses are those of the workload itself, Ports what the host forwards to it.
	Addresses []string
	Ports     []Port

	// RuntimeID changes exactly when the workload is recreated. Name is the engine's name for it.
	RuntimeID string
	Name      string
	// Parts are the engine's ids of what a workload of several parts is made of; empty for one of one.
	Parts []string
	// DiskCapped: the engine itself keeps the instance within its disk limit.
	DiskCapped bool
	// Labels are all of the instance's labels.
	Labels map[string]string
	// Metadata are the status keys of contract/semantics.md section 11 (container.id, …), each
	// value at most MaxMetadata bytes.
	Metadata map[string]string
}

// Health is a verdict of health checks.
type Health string

// The verdicts.
const (
	Healthy   Health = "healthy"
	Starting  Health = "starting"
	Unhealthy Health = "unhealthy"
)

// Worse is the one of two that says less good; empty says nothing.
func (h Health) Worse(o Health) Health {
	for _, x := range [...]Health{Unhealthy, Starting, Healthy} {
		if h == x || o == x {
			return x
		}
	}
	return ""
}

// Under is the observation as reported for a desired state: a workload that should be stopped and
// ended with an error is stopped, and its message keeps the error (contract/semantics.md,
// section 10). A kill after the grace period would else read as a failure.
func (o Observed) Under(running bool) Observed {
	if !running && o.State == Failed {
		o.State, o.Class = Stopped, ""
	}
	return o
}

// Port is one forwarded port.
type Port struct {
	// HostIP is empty for all addresses.
	HostIP   string
	HostPort int
	// Port is inside the workload.
	Port     int
	Protocol string // tcp or udp
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

// MaxMetadata bounds a value in Observed.Metadata, in bytes: it travels in every heartbeat.
const MaxMetadata = 4 << 10

// Bound cuts s to its last MaxMetadata bytes, at a rune boundary: of an error output the end
// matters.
func Bound(s string) string { return Tail(s, MaxMetadata) }

// Tail is Bound for another number of bytes.
func Tail(s string, most int) string {
	if len(s) <= most {
		return s
	}
	s = s[len(s)-most:]
	for i := 0; i < len(s) && i < 4; i++ {
		if s[i]&0xC0 != 0x80 {
			return s[i:]
		}
	}
	return s
}
