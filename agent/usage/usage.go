// Package usage computes the current resource usage of workloads from the counters that drivers read.
// Callers get the last result at once; none waits for a measurement.
package usage

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Reading is the resource usage of one workload.
type Reading struct {
	driver.Usage
	Kind driver.Kind
	// Millicores is the processor use between the two newest measurements; -1 while there is only one.
	Millicores float64
	// Version is a number that grows with every new reading in the Table. With it a caller can ask for only
	// those readings that are newer than the ones which it has.
	Version uint64
}

// Table holds the newest reading of every workload. It is safe for concurrent use.
type Table struct {
	mu      sync.Mutex
	version uint64
	rows    map[driver.ID]Reading
}

// Observe adds the measurements that a driver made of its workloads. If a workload of this kind is missing in
// seen, it has ended, and Observe drops its reading.
func (t *Table) Observe(kind driver.Kind, seen []driver.Usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[driver.ID]Reading{}
	}
	there := make(map[driver.ID]bool, len(seen))
	for _, u := range seen {
		there[u.ID] = true
		t.version++
		old, had := t.rows[u.ID]
		next := Reading{Usage: u, Kind: kind, Millicores: -1, Version: t.version}
		if span := u.At.Sub(old.At); had && old.Kind == kind && old.Instance == u.Instance && span > 0 && u.CPU >= old.CPU {
			next.Millicores = 1000 * float64(u.CPU-old.CPU) / float64(span)
		}
		if u.Disk < 0 && had && old.Instance == u.Instance {
			next.Disk = old.Disk // keep the last disk use, because disks are measured less often
		}
		t.rows[u.ID] = next
	}
	maps.DeleteFunc(t.rows, func(id driver.ID, r Reading) bool { return r.Kind == kind && !there[id] })
}

// Occupy adds how many bytes workloads occupy on disk. Workloads without a reading are ignored.
func (t *Table) Occupy(bytes map[driver.ID]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, n := range bytes {
		if r, ok := t.rows[id]; ok && r.Disk != n {
			t.version++
			r.Disk, r.Version = n, t.version
			t.rows[id] = r
		}
	}
}

// After returns the readings whose Version is higher than the given one, ordered by workload id. It also
// returns the version of the newest reading.
func (t *Table) After(version uint64) ([]Reading, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Reading
	for _, r := range t.rows {
		if r.Version > version {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Reading) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out, t.version
}

// Get returns the newest reading of one workload.
func (t *Table) Get(id driver.ID) (Reading, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.rows[id]
	return r, ok
}

// Fresh is the age up to which a reading is shown as current usage.
const Fresh = time.Minute

// Unmeasured reports whether the reading does not show the current CPU use: there is only one measurement,
// or the newest one is not Fresh.
func (r Reading) Unmeasured(now time.Time) bool { return r.Millicores < 0 || now.Sub(r.At) > Fresh }

// Percent returns the processor use in percent of one processor. It is 0 while there is only one measurement.
func (r Reading) Percent() float64 { return max(0, r.Millicores) / 10 }
