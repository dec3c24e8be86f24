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

// Intent is the last order for one workload: what should be true of it. The JSON names are those of the
// state file. A published Intent is never changed; a new one replaces it.
type Intent struct {
	ID           string        `json:"id"`
	Type         workload.Kind `json:"type"`
	RevisionID   string        `json:"revision_id"`
	DesiredState string        `json:"desired_state"` // running, stopped
	CreatedAt    time.Time     `json:"created_at"`
	UpdatedAt    time.Time     `json:"updated_at"`

	Generation workload.Generation `json:"generation,omitzero"`
	// Content is the scheduler's name for the specification; empty from schedulers without one.
	Content string `json:"content,omitempty"`
	// SpecHash is this agent's name for it. It recognizes the same specification under the name of
	// another scheduler.
	SpecHash string `json:"spec_hash,omitempty"`
	// EngineContent is the content label of the instance. It changes only with the specification, or
	// with who may start the instance.
	EngineContent string `json:"engine_content,omitempty"`
	// An instance without content label whose revision label is LegacyRevision has LegacyContent: a
	// legacy v1 agent made it, and this agent took over its state file.
	LegacyRevision string            `json:"legacy_revision,omitempty"`
	LegacyContent  string            `json:"legacy_content,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"on_lost_lease,omitempty"`
	// Deleting: to be removed. Purge also removes volumes that are to be retained.
	Deleting bool `json:"deleting,omitempty"`
	Purge    bool `json:"purge,omitempty"`
	// KeepVolumes: deleted here because the workload lives on elsewhere, so no volume is deleted.
	// KeepShared: the sender of the delete cannot tell, so no volume that other nodes can reach is
	// deleted. Both stay in force if a new order comes before the delete is carried out.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Recreate: ordered anew before its delete was carried out.
	Recreate bool `json:"recreate,omitempty"`
	// Restart: a forced restart is due.
	Restart bool `json:"restart,omitempty"`
	// PreviousTypes still have an instance to remove, because the type changed.
	PreviousTypes []workload.Kind `json:"previous_types,omitempty"`

	// Traits are what the core has to know of the specification.
	Traits Traits `json:"-"`
	// Body is the specification in the form of the agent API. The core only passes it on.
	Body any `json:"-"`
}

// Traits are what the core has to know of a specification.
type Traits struct {
	RestartPolicy string // of a container: "", no, on-failure, always, unless-stopped
	// Promises are what placement reserved: millicores, MiB, GiB.
	Promises [3]int64
	// DiskLimit is how many bytes the workload may occupy; 0 is no limit.
	DiskLimit int64
	// HealthCheck is the health check as text that changes with it; empty if there is none.
	HealthCheck string
}

// Running reports whether the workload is to run.
func (in *Intent) Running() bool { return in.DesiredState == "running" }

// Guarded reports whether the workload is to be stopped when the lease ends.
func (in *Intent) Guarded() bool { return in.Exclusive && in.OnLostLease == "stop" }

// WaitsAfterRestart reports whether a new process leaves the workload alone until it is ordered again,
// or seen to run: the schedulers may have placed it elsewhere meanwhile.
func (in *Intent) WaitsAfterRestart() bool { return in.Exclusive && in.Running() }

// keepsEnded reports whether the restart policy says that an ended workload stays ended. The engine
// itself carries out the restarts of on-failure, except those of exclusive workloads, which are the
// agent's.
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

// observed matches an engine's answer with the intent.
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

// LegacyContentOf is the content of an instance that a legacy v1 agent made; empty if it did not.
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

// restartCounter reads n of a revision c1-<16 hex>-r<n>; 0 if there is none. A higher counter under the
// same content asks for a restart.
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

// exclusively ends the content of an instance that its engine must not start by itself. An engine keeps
// the restart policy of an instance, so a workload that becomes exclusive, or ordinary, is replaced in
// place, with its volumes. No engine starts a VM by itself, so VMs go without.
const exclusively = "+exclusive"

// follow makes the intent that an order leaves behind old (nil: none). The differences show whether
// anything has to be done.
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
		// If the type changed back before the first change was carried out, its removal may have begun.
		next.Recreate = slices.Contains(old.PreviousTypes, o.Kind)
		next.PreviousTypes = slices.DeleteFunc(append(slices.Clone(old.PreviousTypes), old.Type), func(k workload.Kind) bool { return k == o.Kind })
		return next
	}
	if next.Generation == (workload.Generation{}) {
		next.Generation = old.Generation
	}
	if next.sameSpec(old) {
		// The fencer stops only instances with our labels, so an instance of a legacy v1 agent is
		// replaced before it is guarded.
		unmarked := next.Guarded() && !old.Guarded() && old.EngineContent == old.LegacyContent
		if (next.Exclusive == old.Exclusive || o.Kind == workload.VM) && !unmarked {
			next.EngineContent = old.EngineContent
		} else if old.Exclusive && !next.Exclusive && old.EngineContent == next.EngineContent {
			// Earlier versions did not add the ending.
			next.EngineContent += "+ordinary"
		}
		next.Restart = old.Restart || restartCounter(next.RevisionID) > restartCounter(old.RevisionID)
	}
	return next
}

// removed takes off what remained of a delete, once it is carried out.
func (in *Intent) removed() {
	if !in.Recreate && len(in.PreviousTypes) == 0 {
		in.KeepVolumes, in.KeepShared = false, false
	}
}

// sameSpec: an engine would see no difference.
func (in *Intent) sameSpec(old *Intent) bool {
	if in.Type != old.Type {
		return false
	}
	return in.SpecHash == old.SpecHash || in.Content != "" && in.Content == old.Content
}

// sameEffect: an engine has the same to do. old may be nil.
func (in *Intent) sameEffect(old *Intent) bool {
	return old != nil && in.Type == old.Type && in.EngineContent == old.EngineContent && in.Running() == old.Running() && in.Recreate == old.Recreate
}

// sameOrder: the order asks for nothing new.
func (in *Intent) sameOrder(old *Intent) bool {
	return !old.Deleting && in.sameSpec(old) && in.EngineContent == old.EngineContent && in.DesiredState == old.DesiredState &&
		in.Recreate == old.Recreate && in.Restart == old.Restart && slices.Equal(in.PreviousTypes, old.PreviousTypes)
}

// sameRecord: nothing has to be stored either.
func (in *Intent) sameRecord(old *Intent) bool {
	return in.sameOrder(old) && in.RevisionID == old.RevisionID && in.Generation == old.Generation &&
		in.Content == old.Content && in.Exclusive == old.Exclusive && in.OnLostLease == old.OnLostLease &&
		in.Traits.HealthCheck == old.Traits.HealthCheck
}

// maxPromise bounds one promise, so that sums of them do not overflow.
const maxPromise = 1 << 40

func (in *Intent) promises() (out [3]int64) {
	for i, n := range in.Traits.Promises {
		out[i] = max(0, min(n, maxPromise))
	}
	return out
}
