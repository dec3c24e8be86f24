package core

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Settings are the settings of an agent that do not change while it runs.
type Settings struct {
	Node string
	// Standalone: the agent runs without schedulers, and always accepts orders without a leader's epoch.
	Standalone bool
	// Fencer: a fencer is configured. Without one, orders with on_lost_lease: stop are refused.
	Fencer bool
	// Threshold is the percentage of the node's resources that may be reserved for workloads. Only the texts
	// of refusals use it.
	Threshold int
	// Concurrency is the maximum number of workloads on which actions are in progress at the same time, not
	// counting stacks that wait for a dependency between their own services.
	Concurrency int
	Policy      Policy
}

// State is the complete state of an agent. Restore makes one. A State is never changed in place. Any number of
// goroutines may read a State while another goroutine calls Step with it.
type State struct {
	Settings
	Meta     Meta
	Draining bool
	// Bound is the cluster id that drivers put into the labels of new instances.
	Bound string
	// Version is incremented whenever the report of a workload changes. The changed report gets this version.
	Version uint64

	rebinding string // cluster id for which new drivers were requested (Rebind) and are not made yet
	bounds    uint64 // the highest number given to a driver so far (Engine.Bound)
	engines   []Engine
	workloads *btree.Map[string, *Workload]
	tombs     *btree.Map[string, *Tombstone]
	tasks     *btree.Map[string, *Task] // task history, ordered by Task.key, oldest first
	jobs      *btree.Map[string, job]
	fencer    fencer
	armed     time.Time
}

// Engine is the state of one engine.
type Engine struct {
	Kind     workload.Kind
	Bound    uint64 // identifies the driver of the engine; each new driver gets another value
	Probed   bool
	Healthy  bool
	EngineID string
	Reason   string // why the engine is not healthy
	Listed   bool   // at least one list of the engine's instances succeeded
	Trouble  string // why the last list of the engine's instances failed; empty if it succeeded
	// Devices are the numbers of devices, by CDI kind, that the engine can give to containers. The map never changes.
	Devices map[string]int64
}

// Works reports whether the engine can run workloads now.
func (e Engine) Works() bool { return e.Probed && e.Healthy && e.Trouble == "" }

// Cause returns the reason why the engine cannot run workloads now.
func (e Engine) Cause() string {
	switch {
	case e.Trouble != "":
		return e.Trouble
	case !e.Probed:
		return "the agent has not asked the engine yet"
	}
	return e.Reason
}

// Workload is the state of one workload id. A Workload that is part of a State is never changed; a change
// makes a new Workload.
type Workload struct {
	ID string
	// Intent is nil for an instance that has our labels but no order. Such an instance is reported and not
	// changed.
	Intent   *Intent
	Kind     workload.Kind
	Observed *workload.Observed // the instance as the engine last reported it; nil if there is no instance
	Seen     time.Time          // time of the last observation; zero before the first
	Failure  Failure
	Task     *Task // newest task of the workload
	Status   *Status

	// Healing counts how often the current instance was restarted because it was unhealthy.
	Healing Healing

	lookedAt time.Time // start of the last inspection of this workload alone
	memory   memory
	busy     string // what the driver does for the workload now, as text
	healed   string // why the instance was last restarted because it was unhealthy
	health   string // state of the health check
	detail   string
	watched  string // Watch.Instance of the health check that runs now
	// checkedOn is the observation of the instance from which the health check got its addresses and ports.
	checkedOn *workload.Observed
	version   uint64 // value of State.Version when Status last changed
}

// memory is the part of a workload's state that is not stored.
type memory struct {
	asked  bool // the value for desired.asked
	fresh  bool // no instance was started yet for the last order
	waits  bool // the value for desired.waits
	lapsed bool // the value for desired.lapsed
	// lapsedAt is when the lease ended, by the wall clock, as engines report the ends of instances. If the
	// instance of a lapsed workload ended before this time, it has ended by itself. If it ended later, the
	// fencer or the agent has stopped it. lapsedAt is zero if the time is not known, or if the instance was
	// seen running after the lease ended.
	lapsedAt time.Time
	over     excess
	exit     *Exit // how the removed instance of a job had ended; kept here until the delete is stored
}

// excess records that an instance exceeds its disk limit. The workload is kept stopped until its order or its
// instance changes. The zero value means that the limit is not exceeded.
type excess struct {
	content, instance string
	message           string
	at                time.Time
}

func (x excess) of(content string, o *workload.Observed) bool {
	return x.message != "" && o != nil && x.instance == o.RuntimeID && x.content == content
}

// Saved is the content of an agent's state file.
type Saved struct {
	Meta       Meta
	Intents    []*Intent
	Status     map[string]SavedStatus
	Tasks      []*Task
	Tombstones []*Tombstone
}

// SavedStatus is the last report of a workload, its failures and its restarts, stored so that they survive a
// restart of the agent.
type SavedStatus struct {
	Status  *Status
	Failure Failure
	Healing Healing
}

// degree is the degree of the B-trees that hold the State.
const degree = 16

// Restore makes the State of a new process from its state file.
func Restore(set Settings, saved Saved, now time.Time) State {
	s := State{
		Settings: set, Meta: saved.Meta, workloads: btree.NewMap[string, *Workload](degree), tombs: btree.NewMap[string, *Tombstone](degree),
		tasks: btree.NewMap[string, *Task](degree), jobs: btree.NewMap[string, job](degree),
	}
	latest := map[string]*Task{}
	for _, t := range saved.Tasks {
		s.tasks.Set(t.key(), t)
	}
	for t := range s.Tasks() {
		if t.Action != ActionGC { // a task of garbage collection is not an order for the workload
			latest[t.Workload] = t
		}
	}
	for _, in := range saved.Intents {
		w := &Workload{ID: in.ID, Intent: in, Kind: in.Type, Task: latest[in.ID]}
		w.memory.asked, w.memory.fresh = w.Task.Open(), w.Task.Open() // the order was acknowledged, and possibly was not carried out before the restart
		w.memory.waits = in.WaitsAfterRestart() && !set.Standalone
		if st, ok := saved.Status[in.ID]; ok {
			w.Failure, w.Status, w.Healing = st.Failure, st.Status, st.Healing
			if w.Healing.At.After(now) {
				w.Healing.At = now // the machine's clock was set back
			}
			if w.Task != nil && w.Failure.At.Before(w.Task.CreatedAt) {
				w.Failure = Failure{} // the failure is older than the task's order, which cleared it
			}
			// The machine's clock may have been set back since the time of the next attempt was stored. So
			// limit that time to Policy.Max from now.
			if limit := now.Add(set.Policy.Max); w.Failure.Next.After(limit) {
				w.Failure.Next = limit
			}
		}
		s.workloads.Set(in.ID, w)
	}
	for _, t := range saved.Tombstones {
		if w, ok := s.workloads.Get(t.ID); ok && !w.Intent.Deleting && !t.Done {
			t = t.closed() // earlier versions did not close the tombstone when the workload was applied again
		}
		s.tombs.Set(t.ID, t)
	}
	return s
}

// Label returns the cluster id with which a starting agent labels new instances. It returns unbound if the
// agent knows no cluster id.
func (s State) Label(unbound string) string {
	switch {
	case s.Meta.Engine != "" && s.workloads.Len() > 0:
		return s.Meta.Engine
	case s.Meta.Epoch.ClusterID != "":
		return s.Meta.Epoch.ClusterID
	}
	return unbound
}

// Get returns a workload, or nil.
func (s State) Get(id string) *Workload {
	w, _ := s.workloads.Get(id)
	return w
}

// Intent returns the order for a workload, or nil.
func (s State) Intent(id string) *Intent {
	if w := s.Get(id); w != nil {
		return w.Intent
	}
	return nil
}

// Tombstone returns the record of a workload's delete (its tombstone), or nil.
func (s State) Tombstone(id string) *Tombstone {
	t, _ := s.tombs.Get(id)
	return t
}

// Workloads iterates over all workloads, ordered by id.
func (s State) Workloads() iter.Seq[*Workload] { return values(s.workloads) }

// Tombstones iterates over all records of deleted workloads, ordered by id.
func (s State) Tombstones() iter.Seq[*Tombstone] { return values(s.tombs) }

// Tasks iterates over the task history, oldest first.
func (s State) Tasks() iter.Seq[*Task] { return values(s.tasks) }

// TasksNewestFirst iterates over the history of orders (tasks), newest first.
func (s State) TasksNewestFirst() iter.Seq[*Task] {
	return func(yield func(*Task) bool) { s.tasks.Reverse(func(_ string, t *Task) bool { return yield(t) }) }
}

func values[V any](m *btree.Map[string, V]) iter.Seq[V] {
	return func(yield func(V) bool) { m.Scan(func(_ string, v V) bool { return yield(v) }) }
}

// Len returns the number of workloads.
func (s State) Len() int { return s.workloads.Len() }

// ordered reports whether there is an order for any workload.
func (s State) ordered() bool {
	for w := range s.Workloads() {
		if w.Intent != nil {
			return true
		}
	}
	return false
}

// NeedsFencer reports whether any order has on_lost_lease: stop.
func (s State) NeedsFencer() bool {
	for w := range s.Workloads() {
		if w.Intent != nil && w.Intent.Leased() {
			return true
		}
	}
	return false
}

// Engines returns the engines, sorted: containers, stacks, VMs.
func (s State) Engines() []Engine { return s.engines }

// Engine returns the engine of a kind.
func (s State) Engine(kind workload.Kind) (Engine, bool) {
	for _, e := range s.engines {
		if e.Kind == kind {
			return e, true
		}
	}
	return Engine{}, false
}

// EngineID returns the id that the node registers, so that schedulers reserve host ports once for nodes that
// share an engine: the id of the container engine, or of the first engine that has an id.
func (s State) EngineID() string {
	for _, e := range s.engines {
		if e.EngineID != "" {
			return e.EngineID
		}
	}
	return ""
}

// Devices returns the numbers of devices, by CDI kind, that the container engine can give to containers. Until the engine has
// answered, they are those of the state file.
func (s State) Devices() map[string]int64 {
	if e, ok := s.Engine(workload.Container); ok && e.EngineID != "" {
		return e.Devices
	}
	return s.Meta.Devices
}

// Working reports whether an action on a workload is scheduled or in progress. While it returns true, other
// code must not change the workload's instance or volumes.
func (s State) Working(id string) bool {
	if s.Tombstone(id).open() {
		return true
	}
	w := s.Get(id)
	return w != nil && (w.Task.Open() || w.busy != "") || s.InWork(id)
}

// InWork reports whether an Act (a driver's action) on a workload is in progress.
func (s State) InWork(id string) bool {
	j, _ := s.jobs.Get(id)
	return j.busy()
}

// looks reports whether the Act in progress on a workload only inspects its instance.
func (s State) looks(id string) bool {
	j, _ := s.jobs.Get(id)
	return j.act != nil && j.act.Verb == Look
}

// Depth returns the number of workloads on which an action is in progress or scheduled.
func (s State) Depth() (n int) {
	for j := range values(s.jobs) {
		if j.busy() {
			n++
		}
		if !j.due.IsZero() {
			n++
		}
	}
	return n
}

// LegacyContent returns the content (hash of the specification) of an instance that has no content label,
// because a legacy v1 agent made it.
func (s State) LegacyContent(id, runtimeID string) (string, bool) {
	w := s.Get(id)
	if w == nil || w.Intent == nil || w.Observed == nil || w.Observed.RuntimeID != runtimeID {
		return "", false
	}
	content := w.Intent.LegacyContentOf(w.Observed)
	return content, content != ""
}

// Taken reports whether the agent took over a workload of this kind and id from a legacy v1 agent.
func (s State) Taken(kind workload.Kind, id string) bool {
	in := s.Intent(id)
	return in != nil && in.LegacyContent != "" && (in.Type == kind || slices.Contains(in.PreviousTypes, kind))
}

// MeasuredLimit returns the disk limit in bytes that the agent must enforce for an instance. It is 0
// if there is no limit or the engine enforces it.
func (s State) MeasuredLimit(o *workload.Observed) int64 {
	in := s.Intent(string(o.ID))
	if in == nil || o.DiskCapped {
		return 0
	}
	return in.Traits.DiskLimit
}

// Promised returns the resources reserved by all orders: millicores, MiB, GiB.
func (s State) Promised() (out [3]int64) {
	for w := range s.Workloads() {
		if w.Intent != nil {
			for i, n := range w.Intent.Traits.Promises {
				out[i] += n
			}
		}
	}
	return out
}

// FailedSince returns the orders that failed permanently at or before a time and have no instance, ordered by
// id. It returns no order if the schedulers use epochs, because such schedulers handle failed orders
// themselves. Legacy v1 schedulers leave failed orders to agents.
func (s State) FailedSince(before time.Time) (out []*Workload) {
	if s.Standalone || s.Meta.Epoch.Owned() {
		return nil
	}
	for w := range s.Workloads() {
		in, f := w.Intent, w.Failure
		if in != nil && !in.Deleting && w.Observed == nil && !w.Task.Open() && f.Final && !f.At.IsZero() && !f.At.After(before) {
			out = append(out, w)
		}
	}
	return out
}

// ObservedOn returns the instances last observed on an engine, ordered by id.
func (s State) ObservedOn(kind workload.Kind) (out []workload.Observed) {
	for w := range s.Workloads() {
		if w.Kind == kind && w.Observed != nil {
			out = append(out, *w.Observed)
		}
	}
	return out
}

// SelfFencing returns the facts about the fencer that the node registers with the schedulers: whether the
// fencer works, and the time after the end of a lease within which all workloads with on_lost_lease: stop are
// stopped.
func (s State) SelfFencing() (bool, time.Duration) {
	if !s.Settings.Fencer || !s.fencer.alive {
		return false, 0
	}
	return true, lease.Bound(s.fencer.grace)
}

// repeated is how long a full report to the schedulers still lists a workload as deleted after its deletion.
const repeated = 10 * time.Minute

// Changes returns the workloads, and the tombstones (records of deleted workloads), that a heartbeat has to
// report, both ordered by id. If full is set, it returns all workloads; if not, those whose report is newer
// than the version given as after. epochs is false for a legacy v1 scheduler. Changes then leaves out
// tombstones and instances without order, which such a scheduler would treat as workloads of this node.
func (s State) Changes(full, epochs bool, after uint64, now time.Time) (changed []*Workload, gone []*Tombstone) {
	for w := range s.Workloads() {
		if w.Status != nil && (full || w.version > after) && (epochs || w.Intent != nil) {
			changed = append(changed, w)
		}
	}
	if !epochs {
		return changed, nil
	}
	for t := range s.Tombstones() {
		if t.Done && s.Get(t.ID) == nil && (t.version > after || full && now.Sub(t.DeletedAt) < repeated) {
			gone = append(gone, t)
		}
	}
	return changed, gone
}

// Waiting reports whether a workload waits for a newer order, after a restart of the agent or the
// end of a lease.
func (w *Workload) Waiting() bool { return w.memory.waits || w.memory.lapsed }

// settled reports whether the reported state of a workload is the state that its order demands.
func (w *Workload) settled() bool {
	want := workload.Stopped
	if w.Intent.Running() {
		want = workload.Running
	}
	return w.Status != nil && w.Status.State == want
}

// sortEngines sorts engines: containers, stacks, VMs.
func sortEngines(list []Engine) {
	rank := func(k workload.Kind) int {
		return slices.Index([]workload.Kind{workload.Container, workload.Compose, workload.VM}, k)
	}
	slices.SortFunc(list, func(a, b Engine) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
}
