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

// Intent is the stored last order for one workload, with its desired state. The JSON names are those of the
// state file. An Intent is never changed in place; each change makes a new Intent.
type Intent struct {
	ID           string        `json:"id"`
	Type         workload.Kind `json:"type"`
	RevisionID   string        `json:"revision_id"`
	DesiredState string        `json:"desired_state"` // "running" or "stopped"
	CreatedAt    time.Time     `json:"created_at"`
	UpdatedAt    time.Time     `json:"updated_at"`

	Generation workload.Generation `json:"generation,omitzero"`
	// Run is the generation of the order that asked for the present run, and RunSince the time at which the agent accepted
	// that order. Later orders may renew it (Order.SameSince). They are zero in records of earlier versions.
	Run      workload.Generation `json:"run,omitzero"`
	RunSince time.Time           `json:"run_since,omitzero"`
	// Content is the hash with which the scheduler identifies the specification. It is empty for
	// schedulers that send none.
	Content string `json:"content,omitempty"`
	// SpecHash is this agent's hash of the specification. It identifies an unchanged specification
	// that another scheduler sends under a different Content.
	SpecHash string `json:"spec_hash,omitempty"`
	// EngineContent is the content label of the instance. It changes with the specification. It also changes
	// when the workload becomes exclusive or stops being exclusive, because the engine must not restart an
	// exclusive instance by itself.
	EngineContent string `json:"engine_content,omitempty"`
	// LegacyRevision and LegacyContent are set if this agent took over the state file of a legacy v1 agent.
	// An instance that has no content label but the revision label LegacyRevision was made by that agent. Its
	// content is LegacyContent.
	LegacyRevision string            `json:"legacy_revision,omitempty"`
	LegacyContent  string            `json:"legacy_content,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"on_lost_lease,omitempty"`
	OnUnhealthy    string            `json:"on_unhealthy,omitempty"`
	// Policies are the policy documents that a scheduler applied to the workload: the policy of its namespace,
	// if any, then those of this node. Confined means two things: a scheduler that knows policies sent the
	// order, and the specification may come from a user who is not an admin.
	Policies []string `json:"policies,omitempty"`
	Confined bool     `json:"confined,omitempty"`
	// Deleting: the workload must be removed. Purge: volumes whose policy is retain are removed too.
	Deleting bool `json:"deleting,omitempty"`
	Purge    bool `json:"purge,omitempty"`
	// KeepVolumes: the workload continues on another node, so the delete keeps all volumes. KeepShared: the
	// order does not say whether the workload continues on another node, so the delete keeps volumes that
	// other nodes can reach. Both stay set if a new order arrives before the delete is carried out.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Retain: the delete keeps only the named volumes, until a person deletes them. Like KeepVolumes, it
	// stays set if a new order arrives before the delete is carried out.
	Retain bool `json:"retain,omitempty"`
	// Recreate: a new order arrived before the delete of the workload was carried out, so a new instance must
	// be made.
	Recreate bool `json:"recreate,omitempty"`
	// Restart: a forced restart is pending.
	Restart bool `json:"restart,omitempty"`
	// Refresh: files that the running instance reads from memory must be replaced, without a new
	// instance.
	Refresh bool `json:"refresh,omitempty"`
	// Heal: the restart of the unhealthy instance has begun, and no action has started the instance since. It is
	// stored before the instance is stopped, so that a restarted agent continues the restart.
	Heal bool `json:"heal,omitempty"`
	// PreviousTypes are the types (such as container) that the workload had before and whose instances must
	// still be removed.
	PreviousTypes []workload.Kind `json:"previous_types,omitempty"`

	// Traits are the properties of the specification that the core needs.
	Traits Traits `json:"-"`
	// Body is the specification as an agent API message. The core does not read it.
	Body any `json:"-"`
}

// Traits are the properties of a specification that the core needs.
type Traits struct {
	RestartPolicy string // restart policy of a container: "", no, on-failure, always, unless-stopped
	MaxRestarts   int32  // with on-failure, the number of restarts after which the engine gives up; 0 = no limit
	Job           bool   // the workload is a job, whose failed runs the schedulers repeat
	// Promises are the resources that schedulers reserve for the workload on its node: CPU in millicores,
	// memory in MiB, disk in GiB.
	Promises [3]int64
	// DiskLimit is the maximum disk use in bytes; 0 means no limit.
	DiskLimit int64
	// HealthCheck is a text that changes with the health check; empty if there is none.
	HealthCheck string
	// LiveFiles is a hash of the files that can be replaced while the instance runs, because they are in
	// memory; empty if there are none. It is not stored on disk, because it is a hash of secrets without a
	// key, so that secrets could be guessed from it.
	LiveFiles string
}

// Running reports whether the desired state is running.
func (in *Intent) Running() bool { return in.DesiredState == "running" }

// restarts reports whether a forced restart, or a new instance after a delete that was not carried out, is pending. An end of
// the present instance is then not that of the run that the order asks for.
func (in *Intent) restarts() bool { return in.Restart || in.Recreate }

// Leased reports whether the workload must be stopped when the lease ends.
func (in *Intent) Leased() bool { return in.Exclusive && in.OnLostLease == "stop" }

// WaitsAfterRestart reports whether the workload is not started after a restart of the agent until it is
// ordered again or observed running. The schedulers may have placed the workload on another node during the
// restart.
func (in *Intent) WaitsAfterRestart() bool { return in.Exclusive && in.Running() }

// keepsEnded reports whether the restart policy keeps an ended workload stopped. With on-failure the engine
// restarts the instance itself, except for exclusive workloads, which the agent restarts. For a stack the
// driver decides, because only the driver knows the restart policies of its services.
func (in *Intent) keepsEnded(o *workload.Observed) bool {
	if o != nil && (o.Completed || o.KeepEnded) {
		return true
	}
	switch in.Traits.RestartPolicy {
	case "no":
		return true
	case "on-failure":
		return !in.Exclusive || o == nil || o.State != workload.Failed
	}
	return false
}

// neverAgain reports whether a failed container stays as it is once its engine has stopped restarting it. That
// is so if its restart policy is no and it is not a job, or if its policy is on-failure with a limit of restarts.
func (t Traits) neverAgain() bool {
	return t.RestartPolicy == "no" && !t.Job || t.RestartPolicy == "on-failure" && t.MaxRestarts > 0
}

// run returns the generation of the order that asked for the present run.
func (in *Intent) run() workload.Generation { return cmp.Or(in.Run, in.Generation) }

// sameRun reports whether the intent in, which replaces old, asks for the same run: it repeats the order of old, or renews it
// with another generation (the parameter since is Order.SameSince). Orders without a generation always ask for a new run.
func (in *Intent) sameRun(old *Intent, since workload.Generation) bool {
	none := workload.Generation{}
	repeats := in.Generation == old.Generation || since != none && !old.Generation.Less(since)
	return repeats && in.Generation != none && in.Running() && in.sameButFiles(old)
}

// ranFor reports whether the instance o has ended and was created, or started again, for the run that this order asks for.
// The order is then carried out already, and must not start the instance again. The agent accepted the first order for that
// run at the time ordered (the zero time if the agent does not know it). ranFor returns false for an order of a legacy v1
// scheduler, which has no generation. It does not use the start time of a stack: the services of a stack start one after
// another, so that time does not tell whether all of them have started.
func (in *Intent) ranFor(o *workload.Observed, ordered time.Time) bool {
	if o == nil || o.FinishedAt.IsZero() || in.Generation == (workload.Generation{}) || !in.keepsEnded(o) {
		return false
	}
	again := !ordered.IsZero() && o.StartedAt.After(ordered) && in.fits(in.observed(o)) && in.Type != workload.Compose && !in.restarts()
	return again || !o.Generation.Less(in.run()) && !in.Generation.Less(o.Generation)
}

// ordered returns when the agent accepted the first order for the present run, and the zero time if that is not known.
func (w *Workload) ordered() time.Time {
	switch {
	case w.Intent != nil && !w.Intent.RunSince.IsZero():
		return w.Intent.RunSince
	case w.Task == nil:
		return time.Time{}
	}
	return w.Task.CreatedAt
}

func (w *Workload) desired() desired {
	in, o := w.Intent, w.Observed
	// After its restart the agent resumes orders that it had not finished. If the job of such an order has
	// already run, it is not run again.
	asked := w.memory.asked && !in.ranFor(o, w.ordered())
	return desired{
		running: in.Running(), content: in.EngineContent, deleting: in.Deleting,
		recreate: in.Recreate, restart: in.Restart, refresh: in.Refresh, asked: asked, keepEnded: in.keepsEnded(o),
	}
}

// observed returns those facts in an engine's report about an instance that decide needs.
func (in *Intent) observed(o *workload.Observed) observation {
	if o == nil {
		return observation{state: workload.Absent}
	}
	content := o.Content
	if content == "" {
		content = in.LegacyContentOf(o)
	}
	return observation{state: o.State, content: content, current: content == "" && o.Revision == in.RevisionID, partly: o.PartlyRunning}
}

// fits reports whether o is an instance that was made for this intent.
func (in *Intent) fits(o observation) bool {
	return o.state != workload.Absent && (o.content == in.EngineContent || o.current)
}

// anyRevision is the LegacyRevision of a workload that was taken over from a legacy v1 agent whose record of
// the workload is lost. An instance of the workload may then have any revision label.
const anyRevision = "*"

// RunsLegacy reports whether an instance that a legacy v1 agent made satisfies this intent.
func (in *Intent) RunsLegacy() bool {
	return in.LegacyRevision != "" && in.LegacyContent == in.EngineContent
}

// LegacyContentOf returns the content of an instance made by a legacy v1 agent. It is empty for
// other instances.
func (in *Intent) LegacyContentOf(o *workload.Observed) string {
	switch {
	case in.LegacyRevision == "":
	case o.Revision == in.LegacyRevision, in.LegacyRevision == anyRevision && in.Type == workload.Container:
		return in.LegacyContent
	case (in.Type == workload.Compose || in.Type == workload.VM) && o.Revision == "" && !o.Owned:
		// Legacy v1 agents put no labels on stacks and virtual machines. A stack is recognized by its folder,
		// a virtual machine by its name.
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

// exclusively is appended to the content label of an instance that its engine must not restart by itself. The
// restart policy of an instance cannot be changed. So if a workload becomes exclusive or stops being exclusive,
// its instance is replaced on this node and keeps its volumes. VMs get no suffix, because no engine starts a VM
// by itself.
const exclusively = "+exclusive"

// follow returns the intent for the order o. old is the intent that it replaces, or nil. The differences
// between both set flags such as Restart and Recreate.
func follow(old *Intent, o Order, now time.Time) *Intent {
	state := "running"
	if !o.Running {
		state = "stopped"
	}
	next := &Intent{
		ID: o.ID, Type: o.Kind, RevisionID: o.Revision, DesiredState: state, CreatedAt: now, UpdatedAt: now,
		Generation: o.Generation, Content: o.Content, SpecHash: o.SpecHash, Labels: maps.Clone(o.Labels),
		Exclusive: o.Exclusive, OnLostLease: o.OnLostLease, OnUnhealthy: o.OnUnhealthy, Policies: o.Policies, Confined: o.Confined, Traits: o.Traits, Body: o.Body,
	}
	next.Run, next.RunSince = o.Generation, now
	next.EngineContent = cmp.Or(next.Content, next.SpecHash)
	if next.Exclusive && o.Kind != workload.VM {
		next.EngineContent += exclusively
	}
	if old == nil {
		if o.Adopts { // the record of the legacy v1 agent is lost, so any revision of the instance is accepted
			next.LegacyRevision, next.LegacyContent = anyRevision, next.EngineContent
		}
		return next
	}
	next.CreatedAt = old.CreatedAt
	next.Heal = old.Heal && next.OnUnhealthy == OnUnhealthyRestart
	next.LegacyRevision, next.LegacyContent = old.LegacyRevision, old.LegacyContent
	next.Recreate = old.Recreate || old.Deleting
	next.PreviousTypes = old.PreviousTypes
	if next.Recreate || len(old.PreviousTypes) > 0 {
		next.KeepVolumes, next.KeepShared, next.Retain = old.KeepVolumes, old.KeepShared, old.Retain
	}
	if old.Type != o.Kind {
		// The type of the workload was changed, and is now changed back. The removal of the instance of this
		// type may have begun, so make a new instance.
		next.Recreate = slices.Contains(old.PreviousTypes, o.Kind)
		next.PreviousTypes = slices.DeleteFunc(append(slices.Clone(old.PreviousTypes), old.Type), func(k workload.Kind) bool { return k == o.Kind })
		return next
	}
	if next.Generation == (workload.Generation{}) {
		next.Generation = old.Generation
		next.Run = old.Generation
	}
	if o.Adopts && old.legacy() {
		// Keep the specification in the agent's own record, which is complete. The specification in the order
		// was imported from a legacy v1 scheduler, which leaves out the volumes and adds labels.
		next.SpecHash, next.Labels, next.Traits, next.Body = old.SpecHash, old.Labels, old.Traits, old.Body
	}
	if next.sameSpec(old) {
		// The fencer stops only labelled instances. An instance of a legacy v1 agent has no labels. So it
		// must be replaced when the workload becomes leased (stopped when the lease ends).
		unmarked := next.Leased() && !old.Leased() && old.EngineContent == old.LegacyContent
		if (next.Exclusive == old.Exclusive || o.Kind == workload.VM) && !unmarked {
			next.EngineContent = old.EngineContent
		} else if old.Exclusive && !next.Exclusive && old.EngineContent == next.EngineContent {
			// Earlier versions did not append +exclusive, so the content label of an exclusive instance
			// equals that of an ordinary instance. Give the ordinary workload another label, so that the
			// instance is replaced.
			next.EngineContent += "+ordinary"
		}
		next.Restart = old.Restart || restartCounter(next.RevisionID) > restartCounter(old.RevisionID)
	}
	if next.sameSpec(old) || o.Kind == workload.Compose { // a stack keeps the containers of services that have not changed
		next.Refresh = next.Traits.LiveFiles != "" && (old.Refresh || next.Traits.LiveFiles != old.Traits.LiveFiles)
	}
	if o.Generation != (workload.Generation{}) && next.sameRun(old, o.SameSince) {
		next.Run, next.RunSince = old.run(), old.RunSince
	}
	return next
}

// legacy reports whether the specification still comes from the state file of a legacy v1 agent.
func (in *Intent) legacy() bool {
	return in.LegacyContent != "" && in.SpecHash == in.LegacyContent && in.EngineContent == in.LegacyContent
}

// removed is called after a delete was carried out. It clears KeepVolumes, KeepShared and Retain, unless
// further instances of the workload must be removed.
func (in *Intent) removed() {
	if !in.Recreate && len(in.PreviousTypes) == 0 {
		in.KeepVolumes, in.KeepShared, in.Retain = false, false, false
	}
}

// sameSpec reports whether the intents in and old have the same specification.
func (in *Intent) sameSpec(old *Intent) bool {
	if in.Type != old.Type {
		return false
	}
	return in.SpecHash == old.SpecHash || in.Content != "" && in.Content == old.Content
}

// sameEffect reports whether the intents in and old require the same instance, so that no action on the engine
// is needed. old may be nil.
func (in *Intent) sameEffect(old *Intent) bool {
	return old != nil && in.Type == old.Type && in.EngineContent == old.EngineContent && in.Running() == old.Running() && in.Recreate == old.Recreate
}

// sameOrder reports whether the intents in and old ask the agent for the same work, so that a repeated
// order can be skipped.
func (in *Intent) sameOrder(old *Intent) bool {
	return in.sameButFiles(old) && !in.Refresh && !old.Refresh
}

// sameButFiles reports the same as sameOrder, but ignores changed files in memory (Refresh).
func (in *Intent) sameButFiles(old *Intent) bool {
	return !old.Deleting && in.sameSpec(old) && in.EngineContent == old.EngineContent && in.DesiredState == old.DesiredState &&
		in.Recreate == old.Recreate && in.Restart == old.Restart && slices.Equal(in.PreviousTypes, old.PreviousTypes)
}

// sameRecord reports whether the stored intent old equals in, so that in need not be stored.
func (in *Intent) sameRecord(old *Intent) bool {
	return in.sameOrder(old) && in.RevisionID == old.RevisionID && in.Generation == old.Generation &&
		in.Content == old.Content && in.Exclusive == old.Exclusive && in.OnLostLease == old.OnLostLease && in.OnUnhealthy == old.OnUnhealthy &&
		in.Traits.HealthCheck == old.Traits.HealthCheck && in.Confined == old.Confined && slices.Equal(in.Policies, old.Policies)
}

// maxPromise limits what a workload may reserve of one resource, so that sums over all workloads do not
// overflow.
const maxPromise = 1 << 40

func (in *Intent) promises() (out [3]int64) {
	for i, n := range in.Traits.Promises {
		out[i] = max(0, min(n, maxPromise))
	}
	return out
}
