package guard

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Workload is one that is guarded.
type Workload struct {
	Kind driver.Kind `json:"kind"`
	ID   driver.ID   `json:"id"`
}

// lease is what guards know; it is the content of the file.
type lease struct {
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"` // on labels
	Agent   Process `json:"agent"`
	// Instance is the agent's file. Another one knows nothing of what is guarded.
	Instance string `json:"instance,omitempty"`
	// Deadline is the end of the lease by Now. Lapses counts the leases that ended while something was
	// guarded, Confirmed how many of them the agent knows of.
	Deadline  time.Duration `json:"deadline"`
	Lapses    uint64        `json:"lapses"`
	Confirmed uint64        `json:"confirmed"`
	// Lapsed: the deadline has passed, and no lease has begun since.
	Lapsed bool `json:"lapsed"`
	// Guarded is to be stopped at the deadline; Condemned was guarded at a deadline that passed.
	Guarded   []Workload `json:"guarded,omitempty"`
	Condemned []Workload `json:"condemned,omitempty"`
}

// idle: nothing is to be stopped, now or later.
func (l *lease) idle() bool { return len(l.Guarded) == 0 && len(l.Condemned) == 0 }

// lapse ends the lease if its time has come. It reports whether it did.
func (l *lease) lapse(now time.Duration) bool {
	if l.Lapsed || len(l.Guarded) == 0 || now < l.Deadline {
		return false
	}
	l.end()
	return true
}

// end ends the lease.
func (l *lease) end() {
	l.Lapsed = true
	l.Lapses++
	l.Condemned = union(l.Condemned, l.Guarded)
	l.Guarded = nil
}

// feed takes over what the agent says. Under a lapse that it has not confirmed it is only heard.
func (l *lease) feed(in Feed, now time.Duration) {
	l.lapse(now)
	l.Agent = in.Agent
	// An agent that lost its file, and its node's identity with it, would drop what it has never heard
	// of from the list; the schedulers will have placed it elsewhere by the end of the former lease.
	if l.Instance != "" && l.Instance != in.Instance && !l.Lapsed && len(l.Guarded) > 0 {
		l.end()
	}
	l.Instance = in.Instance
	if in.Ask {
		return
	}
	l.Cluster = in.Cluster
	l.Confirmed = max(l.Confirmed, min(in.Lapses, l.Lapses))
	if l.Confirmed < l.Lapses {
		return
	}
	l.Guarded = slices.Clone(in.Guarded)
	sort(l.Guarded)
	// Of a copy: if this cannot be stored, the lease is again what it was (Guard.take).
	l.Condemned = slices.DeleteFunc(slices.Clone(l.Condemned), func(w Workload) bool { return slices.Contains(l.Guarded, w) })
	l.Deadline, l.Lapsed = max(l.Deadline, in.Deadline), false
	l.lapse(now) // a deadline that has passed already is none
}

func union(a, b []Workload) []Workload {
	out := append(slices.Clone(a), b...)
	sort(out)
	return slices.Compact(out)
}

func sort(list []Workload) {
	slices.SortFunc(list, func(a, b Workload) int {
		return strings.Compare(string(a.Kind)+"/"+string(a.ID), string(b.Kind)+"/"+string(b.ID))
	})
}

// Book is what guards know, with their rules and without files, clocks and processes: a simulator
// holds them against random histories.
type Book struct{ l lease }

// Feed takes one word of the agent.
func (b *Book) Feed(in Feed, now time.Duration) State {
	b.l.feed(in, now)
	return b.l.state()
}

// Lapse ends the lease if its time has come. It reports whether it did.
func (b *Book) Lapse(now time.Duration) bool { return b.l.lapse(now) }

// Deadline is the end of the lease.
func (b *Book) Deadline() time.Duration { return b.l.Deadline }

// Condemned is what is to be stopped now.
func (b *Book) Condemned() []Workload { return slices.Clone(b.l.Condemned) }

// Confirmed reports whether the agent knows of every lapse.
func (b *Book) Confirmed() bool { return b.l.Confirmed == b.l.Lapses }

// Stopped forgets what was condemned: it is known to be stopped, and nothing starts it by itself.
func (b *Book) Stopped() { b.l.Condemned = nil }

// state is what holds now.
func (l *lease) state() State {
	return State{Deadline: l.Deadline, Lapses: l.Lapses, Lapsed: l.Lapsed, Guarded: slices.Clone(l.Guarded)}
}

// The files of a guard's folder.
const (
	leaseFile  = "lease.json"
	nextLeases = leaseFile + ".*.new" // while they are written
	socketFile = "guard.sock"
	firstLock  = "first.lock"
	secondLock = "second.lock"
)

// load reads the file; none, or one of an earlier start of the machine, is an empty lease. So is one that
// cannot be understood: within one start it is replaced whole, but a machine that loses its power may keep
// the name of a file that it never wrote.
func load(dir, boot string) (*lease, error) {
	l := &lease{Boot: boot}
	raw, err := os.ReadFile(filepath.Join(dir, leaseFile))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	var have lease
	if err := json.Unmarshal(raw, &have); err != nil || have.Boot != boot {
		return l, nil
	}
	return &have, nil
}

// save replaces the file in one step. Two guards may do so at one moment, each with a file of its own.
func (l *lease) save(dir string) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(dir, nextLeases) // mode 0600
	if err != nil {
		return err
	}
	_, err = next.Write(raw)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), filepath.Join(dir, leaseFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// Feed is what an agent tells its guard.
type Feed struct {
	Agent   Process `json:"agent"`
	Boot    string  `json:"boot"`
	Cluster string  `json:"cluster"`
	// Instance is the id of the agent's file.
	Instance string `json:"instance"`
	// Deadline is the end of the lease by Now, counted from when it was asked for.
	Deadline time.Duration `json:"deadline"`
	// Lapses that the agent knows of. To name one is to promise that nothing guarded is being started.
	Lapses uint64 `json:"lapses"`
	// Guarded is all that the agent may run under this lease.
	Guarded []Workload `json:"guarded,omitempty"`
	// Ask changes nothing: an agent that has just started has no lease of its own yet.
	Ask bool `json:"ask,omitempty"`
	// Retire asks the guards to end, for others of another version.
	Retire bool `json:"retire,omitempty"`
}

// State is a guard's answer: what holds now.
type State struct {
	Version  string        `json:"version"`
	Guard    Process       `json:"guard"`
	Deadline time.Duration `json:"deadline"`
	Lapses   uint64        `json:"lapses"`
	Lapsed   bool          `json:"lapsed"`
	Grace    time.Duration `json:"grace"`
	// Second: there are two guards.
	Second bool `json:"second"`
	// Stops are the kinds that the guard can stop; nil from one that does not say.
	Stops   []driver.Kind `json:"stops"`
	Guarded []Workload    `json:"guarded,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Lacks are those of kinds that the guard says it cannot stop.
func (s State) Lacks(kinds []driver.Kind) []driver.Kind {
	if s.Stops == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k driver.Kind) bool { return slices.Contains(s.Stops, k) })
}
