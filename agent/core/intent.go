package core

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Intent is the last order for one workload: its desired state. The JSON names are those of the
// state file. A published Intent is immutable; a change makes a new Intent.
type Intent struct {
	ID           string        `json:"id"`
	Type         workload.Kind `json:"type"`
	RevisionID   string        `json:"revision_id"`
	DesiredState string        `json:"desired_state"` // running, stopped
	CreatedAt    time.Time     `json:"created_at"`
	UpdatedAt    time.Time     `json:"updated_at"`

	Generation workload.Generation `json:"generation,omitzero"`
	// Content is the scheduler's id of the specification. It is empty for schedulers that send none.
	Content string `json:"content,omitempty"`
	// SpecHash is this agent's hash of the specification. It identifies an unchanged specification
	// that another scheduler sends under a different Content.
	SpecHash string `json:"spec_hash,omitempty"`
	// EngineContent is the content label of the instance. It changes with the specification, and
	// when the engine may or may not restart the instance by itself.
	EngineContent string `json:"engine_content,omitempty"`
	// LegacyRevision and LegacyContent are set if this agent took over the state file of a legacy v1
	// agent. An instance without content label and with the revision label LegacyRevision was made
	// by that agent and has the content LegacyContent.
	LegacyRevision string            `json:"legacy_revision,omitempty"`
	LegacyContent  string            `json:"legacy_content,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"on_lost_lease,omitempty"`
	// Deleting: the workload must be removed. Purge also removes volumes with the retain policy.
	Deleting bool `json:"deleting,omitempty"`
	Purge    bool `json:"purge,omitempty"`
	// KeepVolumes: the workload continues on another node, so the delete keeps all volumes.
	// KeepShared: the sender cannot tell whether it does, so the delete keeps volumes that other
	// nodes can reach. Both stay set if a new order arrives before the delete is carried out.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Recreate: the workload was applied again before its delete was carried out.
	Recreate bool `json:"recreate,omitempty"`
	// Restart: a forced restart is pending.
	Restart bool `json:"restart,omitempty"`
	// PreviousTypes are former types of the workload whose instances must still be removed.
	PreviousTypes []workload.Kind `json:"previous_types,omitempty"`

	// Traits are the properties of the specification that the core needs.
	Traits Traits `json:"-"`
	// Body is the specification as an agent API message. The core does not read it.
	Body any `json:"-"`
}

// Traits are the properties of a specification that the core needs.
type Traits struct {
	RestartPolicy string // of a container: "", no, on-failure, always, unless-stopped
	// Promises are the resources reserved by placement: millicores, MiB, GiB.
	Promises [3]int64
	// DiskLimit is the maximum disk use in bytes; 0 means no limit.
	DiskLimit int64
	// HealthCheck is a text that changes with the health check; empty if there is none.
	HealthCheck string
}

// Running reports whether the desired state is running.
func (in *Intent) Running() bool { return in.DesiredState == "running" }

// Guarded reports whether the workload must be stopped when the lease ends.
func (in *Intent) Guarded() bool { return in.Exclusive && in.OnLostLease == "stop" }

// WaitsAfterRestart reports whether the workload is not started after a restart of the agent until
// it is ordered again or observed running. The schedulers may have placed it on another node
// meanwhile.
func (in *Intent) WaitsAfterRestart() bool { return in.Exclusive && in.Running() }

// keepsEnded reports whether the restart policy keeps an ended workload stopped. For on-failure the
// engine restarts the instance itself, except for exclusive workloads, which the agent restarts.
func (in *Intent) keepsEnded(o *workload.Observed) bool {
	switch in.Traits.RestartPolicy {
	case "no":
		return true
	case "on-failure":
		return !in.Exclusive || o == nil || o.State != workload.Failed
	}
	return false
}

func (in *Intent) desired(asked bool, o *workload.Observed) desired {
	return desired{
		running: in.Running(), content: in.EngineContent, deleting: in.Deleting,
		recreate: in.Recreate, restart: in.Restart, asked: asked, keepEnded: in.keepsEnded(o),
	}
}

// observed converts an engine's answer into an observation for this intent.
func (in *Intent) observed(o *workload.Observed) observation {
	if o == nil {
		return observation{state: workload.Absent}
	}
	content := o.Content
	if content == "" {
		content = in.LegacyContentOf(o)
	}
	return observation{state: o.State, content: content, current: content == "" && o.Revision == in.RevisionID}
}

// LegacyContentOf returns the content of an instance made by a legacy v1 agent. It is empty for
// other instances.
func (in *Intent) LegacyContentOf(o *workload.Observed) string {
	switch {
	case in.LegacyRevision == "":
	case o.Revision == in.LegacyRevision:
		return in.LegacyContent
	case (in.Type == workload.Compose || in.Type == workload.VM) && o.Revision == "" && !o.Owned:
		// Legacy v1 agents put no labels on stacks and machines: a stack is known by its folder, a
		// machine by its name.
		return in.LegacyContent
	}
	return ""
}

// restartCounter returns n of a revision c1-<16 hex>-r<n>, or 0 if the revision has another form. A
// higher counter with the same content requests a restart.
func restartCounter(revision string) int {
	if !strings.HasPrefix(revision, "c1-") {
		return 0
	}
	i := strings.LastIndex(revision, "-r")
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(revision[i+2:])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// exclusively is appended to the content of an instance that its engine must not restart by itself.
// The restart policy of an instance cannot be changed, so a workload that becomes exclusive or
// ordinary is replaced in place and keeps its volumes. VMs get no suffix, because no engine starts a
// VM by itself.
const exclusively = "+exclusive"

// follow makes the intent for an order. old is the previous intent, or nil. The differences between
// the two determine the work.
func follow(old *Intent, o Order, now time.Time) *Intent {
	state := "running"
	if !o.Running {
		state = "stopped"
	}
	next := &Intent{
		ID: o.ID, Type: o.Kind, RevisionID: o.Revision, DesiredState: state, CreatedAt: now, UpdatedAt: now,
		Generation: o.Generation, Content: o.Content, SpecHash: o.SpecHash, Labels: maps.Clone(o.Labels),
		Exclusive: o.Exclusive, OnLostLease: o.OnLostLease, Traits: o.Traits, Body: o.Body,
	}
	next.EngineContent = cmp.Or(next.Content, next.SpecHash)
	if next.Exclusive && o.Kind != workload.VM {
		next.EngineContent += exclusively
	}
	if old == nil {
		return next
	}
	next.CreatedAt = old.CreatedAt
	next.LegacyRevision, next.LegacyContent = old.LegacyRevision, old.LegacyContent
	next.Recreate = old.Recreate || old.Deleting
	next.PreviousTypes = old.PreviousTypes
	if next.Recreate || len(old.PreviousTypes) > 0 {
		next.KeepVolumes, next.KeepShared = old.KeepVolumes, old.KeepShared
	}
	if old.Type != o.Kind {
		// If the type changed back before the first change was carried out, the removal of that
		// instance may have begun.
		next.Recreate = slices.Contains(old.PreviousTypes, o.Kind)
		next.PreviousTypes = slices.DeleteFunc(append(slices.Clone(old.PreviousTypes), old.Type), func(k workload.Kind) bool { return k == o.Kind })
		return next
	}
	if next.Generation == (workload.Generation{}) {
		next.Generation = old.Generation
	}
	if next.sameSpec(old) {
		// The fencer stops only labelled instances. An instance of a legacy v1 agent has no labels
		// and must be replaced before it is guarded.
		unmarked := next.Guarded() && !old.Guarded() && old.EngineContent == old.LegacyContent
		if (next.Exclusive == old.Exclusive || o.Kind == workload.VM) && !unmarked {
			next.EngineContent = old.EngineContent
		} else if old.Exclusive && !next.Exclusive && old.EngineContent == next.EngineContent {
			// Earlier versions did not append the suffix.
			next.EngineContent += "+ordinary"
		}
		next.Restart = old.Restart || restartCounter(next.RevisionID) > restartCounter(old.RevisionID)
	}
	return next
}

// removed clears the volume flags of a delete after it was carried out.
func (in *Intent) removed() {
	if !in.Recreate && len(in.PreviousTypes) == 0 {
		in.KeepVolumes, in.KeepShared = false, false
	}
}

// sameSpec reports whether both intents have the same specification.
func (in *Intent) sameSpec(old *Intent) bool {
	if in.Type != old.Type {
		return false
	}
	return in.SpecHash == old.SpecHash || in.Content != "" && in.Content == old.Content
}

// sameEffect reports whether both intents require the same actions of an engine. old may be nil.
func (in *Intent) sameEffect(old *Intent) bool {
	return old != nil && in.Type == old.Type && in.EngineContent == old.EngineContent && in.Running() == old.Running() && in.Recreate == old.Recreate
}

// sameOrder reports whether in requests nothing beyond old.
func (in *Intent) sameOrder(old *Intent) bool {
	return !old.Deleting && in.sameSpec(old) && in.EngineContent == old.EngineContent && in.DesiredState == old.DesiredState &&
		in.Recreate == old.Recreate && in.Restart == old.Restart && slices.Equal(in.PreviousTypes, old.PreviousTypes)
}

// sameRecord reports whether in need not be stored because old is equal.
func (in *Intent) sameRecord(old *Intent) bool {
	return in.sameOrder(old) && in.RevisionID == old.RevisionID && in.Generation == old.Generation &&
		in.Content == old.Content && in.Exclusive == old.Exclusive && in.OnLostLease == old.OnLostLease &&
		in.Traits.HealthCheck == old.Traits.HealthCheck
}

// maxPromise limits one promise, so that sums of promises do not overflow.
const maxPromise = 1 << 40

func (in *Intent) promises() (out [3]int64) {
	for i, n := range in.Traits.Promises {
		out[i] = max(0, min(n, maxPromise))
	}
	return out
}
