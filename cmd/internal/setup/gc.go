package setup

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// The state is long-lived and requests are short-lived garbage: a few hundred MB
// per second under load. With Go's default, which collects when the heap has
// doubled, a replica with few records would walk them ten times a second. So the
// room between collections is what makes them come every tooOften to seldom, up to
// roomMax, and never less than what is in use. It does not follow the records: memory
// that grows by more than they do is touched for the first time, which costs more than
// a collection on machines whose host gives it then (ADR 30).
const (
	roomMax  = 512 << 20
	tooOften = 2 * time.Second
	seldom   = 5 * time.Second
)

// pacer chooses the room after each collection.
type pacer struct {
	max  uint64 // bytes
	room uint64
}

// next takes the bytes in use after a collection, and the time since the one
// before, and returns GOGC.
func (p *pacer) next(live uint64, since time.Duration) int {
	live = max(live, 1<<20)
	switch {
	case since < tooOften:
		p.room *= 2
	case since > seldom:
		p.room /= 2
	}
	p.room = max(live, min(p.room, p.max))
	return int(p.room * 100 / live)
}

// PaceGC has collections come when they pay, from now on. An operator who set
// GOGC is obeyed instead.
func PaceGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(300)
	p := &pacer{max: roomMax}
	if total := memoryTotal(); total > 0 {
		p.max = min(p.max, total/8)
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	last := time.Now()
	// Every collection finds an object that nobody holds.
	type sentinel struct{ _ [16]byte }
	var after func(*sentinel)
	after = func(s *sentinel) {
		now := time.Now()
		metrics.Read(sample)
		debug.SetGCPercent(p.next(sample[0].Value.Uint64(), now.Sub(last)))
		last = now
		runtime.SetFinalizer(s, after)
	}
	runtime.SetFinalizer(&sentinel{}, after)
}

// memoryTotal is what this process may use at most, bytes; 0 if it cannot be
// told.
func memoryTotal() uint64 {
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64); err == nil {
			return n
		}
	}
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}
