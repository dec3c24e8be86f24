package cluster

import (
	"sync"
	"time"
)

// diskWatch measures the writes of a log store: the age of unfinished writes, the usual duration of a write,
// and the slowest write of the last minute.
type diskWatch struct {
	mu     sync.Mutex
	next   uint64
	under  map[uint64]time.Time // start times of the writes in progress
	usual  time.Duration        // moving average of the duration of a write
	counts uint64               // number of finished writes
	slow   [6]time.Duration     // slowest write in each of the last six 10-second slots
	slot   int64                // number of the present 10-second slot
}

const (
	slotLength = 10 * time.Second
	// usualWeight is the weight of the moving average: a new write changes it by 1/usualWeight of the difference.
	usualWeight = 8
)

// begin records a write that has started. The returned function records its end.
func (d *diskWatch) begin() (end func()) {
	began := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.under == nil {
		d.under = map[uint64]time.Time{}
	}
	d.next++
	id := d.next
	d.under[id] = began
	return func() { d.finish(id, began, time.Now()) }
}

func (d *diskWatch) finish(id uint64, began, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.under, id)
	took := now.Sub(began)
	d.turn(now)
	at := d.slot % int64(len(d.slow))
	d.slow[at] = max(d.slow[at], took)
	if d.counts++; d.counts == 1 {
		d.usual = took
	}
	d.usual += (min(took, time.Second) - d.usual) / usualWeight
}

// turn clears the 10-second slots that are older than a minute. The caller holds mu.
func (d *diskWatch) turn(now time.Time) {
	slot := now.UnixNano() / int64(slotLength)
	for n := max(d.slot+1, slot-int64(len(d.slow))+1); n <= slot; n++ {
		d.slow[n%int64(len(d.slow))] = 0
	}
	d.slot = slot
}

// pending returns the age of the oldest unfinished write; 0 if all writes have finished.
func (d *diskWatch) pending(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	var oldest time.Duration
	for _, began := range d.under {
		oldest = max(oldest, now.Sub(began))
	}
	return oldest
}

// slowest returns the duration of the longest write of the last minute.
func (d *diskWatch) slowest(now time.Time) (longest time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn(now)
	for _, took := range d.slow {
		longest = max(longest, took)
	}
	return longest
}

// typical returns the moving average of the durations of writes; 0 before enough writes have finished.
func (d *diskWatch) typical() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts < usualWeight {
		return 0
	}
	return d.usual
}
