package workload

import (
	"math"
	"time"

	"github.com/persys/compute/order"
)

// Kind is a type of workload. The values are those of the control API and of the health check's
// runtime_status map.
type Kind string

// The kinds of workloads.
const (
	Container Kind = "container"
	Compose   Kind = "compose"
	VM        Kind = "vm"
)

// OwnGrace, given as the time limit of a stop, means that the workload may take the time that its specification
// names, or the default time of its driver.
const OwnGrace = time.Duration(math.MaxInt64)

// ID is a workload id: [A-Za-z0-9][A-Za-z0-9_.-]{0,127}.
type ID string

// Generation is the number of an order for a workload. Agents refuse an order that is older than the one that
// they have.
type Generation = order.Generation

// State is the actual state of a workload. The first five values are those of ActualState in the
// agent API.
type State string

// The states of a workload.
const (
	Pending State = "Pending" // the engine is starting or restarting the workload
	Running State = "Running"
	Stopped State = "Stopped" // the instance was created but not started, or stopped, or ended with exit code 0
	Failed  State = "Failed"  // the instance ended with another exit code, or could not start
	Unknown State = "Unknown" // the engine reports a state that we do not know
	Absent  State = "Absent"  // List never returns this state; callers use it for an ID that List does not return
)

// Observed is one workload as its engine reports it.
type Observed struct {
	ID ID
	// Revision, Content and Generation are those of the specification from which the instance was created.
	// Content is empty if a legacy v1 agent created the instance.
	Revision   string
	Content    string
	Generation Generation
	ClusterID  string
	NodeID     string
	// Owned is true if the instance carries the labels of our cluster and node. A driver lists an instance
	// without these labels only if the agent's store has a record of its workload. The agent then adopts the
	// instance: it stores its RuntimeID and its content.
	Owned bool

	State State
	// Class says why the workload failed; it is empty in states other than Failed.
	Class Class
	// Message describes the state in one short line for people.
	Message string
	// Health is the result of the runtime's health check; empty if there is none.
	Health Health
	// ExitCode is the code of the last exit. It is valid only if FinishedAt is set.
	ExitCode int
	// StartedAt and FinishedAt are the times of the last start and the last exit. Zero means that the time is
	// not known, or that the event has not happened yet.
	StartedAt  time.Time
	FinishedAt time.Time
	// Output is the last lines of output of a container of a job that has ended, at most MaxMetadata bytes.
	Output       string
	RestartCount int
	// Completed is set for a stack if every part has ended with success, and no restart policy starts a part
	// again.
	Completed bool
	// KeepEnded is set for a failed stack if the restart policies of its failed parts start none of them again.
	KeepEnded bool
	// PartlyRunning is set for a failed stack of which some parts run, or may run, and for a stack of which no part runs
	// and some are paused.
	PartlyRunning bool

	// Addresses are the workload's own IP addresses. Ports are the host's ports that are forwarded to
	// the workload.
	Addresses []string
	Ports     []Port

	// RuntimeID is the engine's id of the instance. It changes exactly when the workload is recreated. Name
	// is the engine's name of the instance.
	RuntimeID string
	Name      string
	// Parts are the engine's ids of the containers of a stack. It is empty for a workload that is a single
	// instance.
	Parts []string
	// DiskCapped: the engine enforces the disk limit of the instance.
	DiskCapped bool
	// Labels are all of the instance's labels.
	Labels map[string]string
	// Metadata has the status keys of contract/semantics.md section 11 (container.id, …). Each value has at
	// most MaxMetadata bytes.
	Metadata map[string]string
}

// Health is the result of a health check.
type Health string

// The results of health checks.
const (
	Healthy   Health = "healthy"
	Starting  Health = "starting"
	Unhealthy Health = "unhealthy"
)

// Worse returns the worse of two results. An empty result is ignored.
func (h Health) Worse(o Health) Health {
	for _, x := range [...]Health{Unhealthy, Starting, Healthy} {
		if h == x || o == x {
			return x
		}
	}
	return ""
}

// Under returns the observation as it is reported to the schedulers if the desired state is running, or if it
// is stopped. If the workload should be stopped and its instance ended with an error, it is reported as
// Stopped, with the error in the message (contract/semantics.md, section 10). Without this rule, an instance
// that was killed because it did not stop within its grace period would be reported as Failed. A stack that should be
// stopped, and of which one service has failed while others run, is reported as Running.
func (o Observed) Under(running bool) Observed {
	switch {
	case running || o.State != Failed:
	case o.PartlyRunning:
		o.State, o.Class = Running, ""
	default:
		o.State, o.Class = Stopped, ""
	}
	return o
}

// Port is one port of the host that is forwarded to a workload.
type Port struct {
	// HostIP is the address of the host; empty means all addresses.
	HostIP   string
	HostPort int
	// Port is the port inside the workload.
	Port     int
	Protocol string // "tcp" or "udp"
}

// WaitingFor is the prefix of a driver's progress text while the driver only waits for a dependency of a
// workload. The agent's limit of concurrent actions does not include a workload that only waits.
const WaitingFor = "waiting for "

// MaxMetadata is the maximum size of a value in Observed.Metadata, in bytes. The values are sent in every
// heartbeat.
const MaxMetadata = 4 << 10

// Bound shortens s to at most its last MaxMetadata bytes, without cutting a UTF-8 character. It keeps the end,
// because the end of an error output names the cause.
func Bound(s string) string { return Tail(s, MaxMetadata) }

// Tail shortens s to its end, at most as many bytes as most says, without cutting a UTF-8 character.
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
