package workload

import (
	"fmt"
	"strconv"
	"strings"
	"time"
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

// Generation fences assignments. A higher incarnation wins, then a higher sequence.
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

// State is the actual state of a workload. The first five are the agent API's ActualState.
type State string

// The states.
const (
	Pending State = "Pending" // being started or restarted by the engine
	Running State = "Running"
	Stopped State = "Stopped" // created but not started, stopped, or ended with exit code 0
	Failed  State = "Failed"  // ended with another exit code, or could not start
	Unknown State = "Unknown" // the engine reports a state that we do not know
	Absent  State = "Absent"  // never in a List; callers use it for an ID that List does not return
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
	// Owned is true if the instance carries our cluster and node labels. An instance without
	// these labels is listed only if the agent's store claims it. The agent then adopts it by
	// writing its RuntimeID and content to the store.
	Owned bool

	State State
	// Class says why a Failed workload failed; empty in other states.
	Class Class
	// Message is one short line for people.
	Message string
	// Health is the result of the runtime's health check; empty if there is none.
	Health Health
	// ExitCode of the last exit; meaningful only if FinishedAt is set.
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
	// Parts are the engine's ids of the containers of a stack; empty for a workload of one instance.
	Parts []string
	// DiskCapped: the engine enforces the disk limit of the instance.
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

// Worse returns the worse of two results; empty counts as no result.
func (h Health) Worse(o Health) Health {
	for _, x := range [...]Health{Unhealthy, Starting, Healthy} {
		if h == x || o == x {
			return x
		}
	}
	return ""
}

// Under returns the observation as reported for a desired state. A workload that should be stopped
// and ended with an error is reported as Stopped, with the error in its message
// (contract/semantics.md, section 10). Otherwise a kill after the grace period would read as a failure.
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
	// Port is the port inside the workload.
	Port     int
	Protocol string // tcp or udp
}

// MaxMetadata bounds a value in Observed.Metadata, in bytes: it travels in every heartbeat.
const MaxMetadata = 4 << 10

// Bound cuts s to its last MaxMetadata bytes, at a rune boundary. The end is kept because the end
// of an error output names the cause.
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
