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

// Settings of an agent that never change.
type Settings struct {
	Node string
	// Standalone: there are no schedulers, and orders without epoch are always taken.
	Standalone bool
	// Fencer: there is a fencer. Without one, orders that need it are refused.
	Fencer bool
	// Threshold is the share of Room, in percent, that may be promised. It only appears in refusals.
	Threshold int
	// Concurrency is how many workloads are worked on at a time.
	Concurrency int
	Policy      Policy
	// StopGrace is what a workload gets to end by itself.
	StopGrace time.Duration
}

// State is everything that an agent knows. Make one with Restore. It is never changed in place. Any number
// of goroutines may read it while one at a time calls Step with it.
type State struct {
	Settings
	Meta     Meta
	Draining bool
	// Bound is the cluster id on the labels of new instances.
	Bound string
	// Version of the newest change to report.
	Version uint64

	rebinding string // cluster of the Rebind under way
	bounds    uint64 // counts engines
	engines   []Engine
	workloads *btree.Map[string, *Workload]
	tombs     *btree.Map[string, *Tombstone]
	tasks     *btree.Map[string, *Task] // by Task.key, oldest first
	jobs      *btree.Map[string, job]
	fencer    fencer
	armed     time.Time
}

// Engine is what is known of one engine.
type Engine struct {
	Kind     workload.Kind
	Bound    uint64 // changes when another driver takes its place
	Probed   bool
	Healthy  bool
	EngineID string
	Reason   string // why it is not healthy
	Listed   bool   // some list succeeded
	Trouble  string // why the last list failed; empty if it did not
}

// Works reports whether the engine can run workloads now.
func (e Engine) Works() bool { return e.Probed && e.Healthy && e.Trouble == "" }

// Cause says why the engine does not work.
func (e Engine) Cause() string {
	switch {
	case e.Trouble != "":
		return e.Trouble
	case !e.Probed:
		return "not asked yet"
	}
	return e.Reason
}

// Workload is what is known of one id. A published Workload is never changed.
type Workload struct {
	ID string
	// Intent is nil for an instance with our labels that nobody ordered: it is reported and left alone.
	Intent   *Intent
	Kind     workload.Kind
	Observed *workload.Observed // nil: the engine does not list it
	Seen     time.Time          // of the last look; zero before the first
	Failure  Failure
	Task     *Task // the newest
	Status   *Status

	lookedAt time.Time // beginning of the last look at it alone
	memory   memory
	busy     string // what a driver is busy with
	health   string // state of its health check
	detail   string
	watched  string // instance of the health check
	// checkedOn has the addresses of the health check.
	checkedOn *workload.Observed
	version   uint64 // of Status
}

// memory is what the process remembers of a workload. It is not stored.
type memory struct {
	asked  bool // an order came since the last attempt
	waits  bool // see desired.waits
	lapsed bool // see desired.lapsed
	over   excess
}

// excess says that an instance occupies more than its disk limit. It is stopped, and stays so until the
// order or the instance changes. The zero value says nothing.
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

// SavedStatus is the last report of a workload and its failures, stored so that both survive a restart.
type SavedStatus struct {
	Status  *Status
	Failure Failure
}

// degree of the trees.
const degree = 16

// Restore is the State of a process that begins with a file.
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
		latest[t.Workload] = t
	}
	for _, in := range saved.Intents {
		w := &Workload{ID: in.ID, Intent: in, Kind: in.Type, Task: latest[in.ID]}
		w.memory.asked = w.Task.Open() // acknowledged, and perhaps not begun
		w.memory.waits = in.WaitsAfterRestart() && !set.Standalone
		if st, ok := saved.Status[in.ID]; ok {
			w.Failure, w.Status = st.Failure, st.Status
			// If the clock has been set back, the next attempt would be too far away.
			if limit := now.Add(set.Policy.Max); w.Failure.Next.After(limit) {
				w.Failure.Next = limit
			}
		}
		s.workloads.Set(in.ID, w)
	}
	for _, t := range saved.Tombstones {
		if w, ok := s.workloads.Get(t.ID); ok && !w.Intent.Deleting && !t.Done {
			t = t.closed() // earlier versions left it open when its workload was ordered anew
		}
		s.tombs.Set(t.ID, t)
	}
	return s
}

// Label is the cluster id to label instances with, before any answer of a scheduler. unbound is for an
// agent that knows none.
func (s State) Label(unbound string) string {
	switch {
	case s.Meta.Engine != "" && s.workloads.Len() > 0:
		return s.Meta.Engine
	case s.Meta.Epoch.ClusterID != "":
		return s.Meta.Epoch.ClusterID
	}
	return unbound
}

// Get is one workload; nil if there is none.
func (s State) Get(id string) *Workload {
	w, _ := s.workloads.Get(id)
	return w
}

// Intent is the order for a workload; nil if there is none.
func (s State) Intent(id string) *Intent {
	if w := s.Get(id); w != nil {
		return w.Intent
	}
	return nil
}

// Tombstone of a workload; nil if there is none.
func (s State) Tombstone(id string) *Tombstone {
	t, _ := s.tombs.Get(id)
	return t
}

// Workloads are all workloads, by id.
func (s State) Workloads() iter.Seq[*Workload] { return values(s.workloads) }

// Tombstones are all tombstones, by id.
func (s State) Tombstones() iter.Seq[*Tombstone] { return values(s.tombs) }

// Tasks are the history, oldest first.
func (s State) Tasks() iter.Seq[*Task] { return values(s.tasks) }

// TasksNewestFirst are the history, newest first.
func (s State) TasksNewestFirst() iter.Seq[*Task] {
	return func(yield func(*Task) bool) { s.tasks.Reverse(func(_ string, t *Task) bool { return yield(t) }) }
}

func values[V any](m *btree.Map[string, V]) iter.Seq[V] {
	return func(yield func(V) bool) { m.Scan(func(_ string, v V) bool { return yield(v) }) }
}

// Len is the number of workloads.
func (s State) Len() int { return s.workloads.Len() }

// Ordered reports whether there are orders.
func (s State) ordered() bool {
	for w := range s.Workloads() {
		if w.Intent != nil {
			return true
		}
	}
	return false
}

// Guards reports whether some order is to end with the lease.
func (s State) Guards() bool {
	for w := range s.Workloads() {
		if w.Intent != nil && w.Intent.Guarded() {
			return true
		}
	}
	return false
}

// Engines are the engines, containers first.
func (s State) Engines() []Engine { return s.engines }

// Engine of a kind.
func (s State) Engine(kind workload.Kind) (Engine, bool) {
	for _, e := range s.engines {
		if e.Kind == kind {
			return e, true
		}
	}
	return Engine{}, false
}

// EngineID is the id under which host ports are reserved: that of the container engine, or of the first
// engine that has one.
func (s State) EngineID() string {
	for _, e := range s.engines {
		if e.EngineID != "" {
			return e.EngineID
		}
	}
	return ""
}

// Working reports whether something is to be done about a workload now: nobody else should touch it.
func (s State) Working(id string) bool {
	if s.Tombstone(id).open() {
		return true
	}
	w := s.Get(id)
	return w != nil && (w.Task.Open() || w.busy != "") || s.InWork(id)
}

// InWork reports whether an Act on a workload is under way.
func (s State) InWork(id string) bool {
	j, _ := s.jobs.Get(id)
	return j.busy()
}

// Depth is how many workloads are due, now or later, or in work.
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

// LegacyContent is the content of an instance without content label, if this agent took it over.
func (s State) LegacyContent(id, runtimeID string) (string, bool) {
	w := s.Get(id)
	if w == nil || w.Intent == nil || w.Observed == nil || w.Observed.RuntimeID != runtimeID {
		return "", false
	}
	content := w.Intent.LegacyContentOf(w.Observed)
	return content, content != ""
}

// Taken reports whether a workload was taken over from a legacy v1 agent. Instances that were ordered
// since have our labels.
func (s State) Taken(kind workload.Kind, id string) bool {
	in := s.Intent(id)
	return in != nil && in.LegacyContent != "" && (in.Type == kind || slices.Contains(in.PreviousTypes, kind))
}

// MeasuredLimit is the disk limit, in bytes, that the agent has to keep for an instance; 0 if there is
// none, or its engine keeps it.
func (s State) MeasuredLimit(o *workload.Observed) int64 {
	in := s.Intent(string(o.ID))
	if in == nil || o.DiskCapped {
		return 0
	}
	return in.Traits.DiskLimit
}

// Promised is what all orders reserve together: millicores, MiB, GiB.
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

// FailedSince are orders that failed for good before a time and have no instance, by id. It is empty
// where the schedulers know epochs: those decide about failed orders themselves, and legacy v1 schedulers
// leave it to agents.
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

// ObservedOn are the instances that an engine showed last, by id.
func (s State) ObservedOn(kind workload.Kind) (out []workload.Observed) {
	for w := range s.Workloads() {
		if w.Kind == kind && w.Observed != nil {
			out = append(out, *w.Observed)
		}
	}
	return out
}

// SelfFencing says what is registered of the fencer: whether it works, and within how many seconds after
// the end of a lease it has stopped everything.
func (s State) SelfFencing() (bool, time.Duration) {
	if !s.Settings.Fencer || !s.fencer.alive {
		return false, 0
	}
	return true, lease.Bound(s.fencer.grace)
}

// repeated is how long a full report repeats what was deleted.
const repeated = 10 * time.Minute

// Changes are the workloads whose report is newer than a version, or all, and the tombstones that are
// worth reporting; both by id. epochs is false for a legacy v1 scheduler: it would take a tombstone, or
// an instance without order, for a workload of this node.
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

// Waiting reports whether a workload waits for a newer order: after a restart of the agent, or after the
// end of a lease.
func (w *Workload) Waiting() bool { return w.memory.waits || w.memory.lapsed }

// settled reports whether a workload is in the state that its intent asks for.
func (w *Workload) settled() bool {
	want := workload.Stopped
	if w.Intent.Running() {
		want = workload.Running
	}
	return w.Status != nil && w.Status.State == want
}

// ending reports whether an instance is being removed from this machine, or was a moment ago, or is to be
// stopped or replaced: until then it may bind a port.
func (s State) ending(now time.Time) bool {
	for t := range s.Tombstones() {
		if !t.Done || now.Sub(t.DeletedAt) < lingers {
			return true
		}
	}
	for w := range s.Workloads() {
		in := w.Intent
		if in == nil || w.Failure.Final {
			continue
		}
		if len(in.PreviousTypes) > 0 {
			return true
		}
		if o := in.observed(w.Observed); (in.Recreate || !in.Running()) && (o.state == workload.Running || o.state == workload.Pending) {
			return true
		}
	}
	return false
}

// order of engines: containers, stacks, machines.
func sortEngines(list []Engine) {
	rank := func(k workload.Kind) int {
		return slices.Index([]workload.Kind{workload.Container, workload.Compose, workload.VM}, k)
	}
	slices.SortFunc(list, func(a, b Engine) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
}
