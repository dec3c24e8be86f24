package usage

import (
	"maps"
	"sync"
	"time"
)

// Counters are one measurement of a machine or a workload. Millicores and memory are the present use; the other
// fields count bytes since the machine or the instance started. Histories are computed from these measurements.
type Counters struct {
	Millicores           float64 // negative = unknown
	Memory               int64   // bytes
	NetReceived, NetSent int64   // bytes since the machine or the instance started
}

// Sample is the average use during one step of a Span.
type Sample struct {
	Start                time.Time // start of the step
	Millicores           float64
	Memory               int64 // bytes
	NetReceived, NetSent int64 // bytes per second
}

// Span selects a period that a History covers (the last hour or the last day). It holds the length of the
// period and of the steps into which it is divided.
type Span struct {
	Length, Step time.Duration
}

// The spans of a History.
var (
	Hour = Span{time.Hour, time.Minute}
	Day  = Span{24 * time.Hour, 15 * time.Minute}
)

// maxHistories is the number of workloads whose history is kept. It bounds the memory to about 100 MB; a machine with
// a hundred workloads needs 1 MB.
const maxHistories = 10_000

// History keeps the use of a machine and of its workloads during the last hour and the last day, in memory. It is safe
// for concurrent use.
type History struct {
	mu   sync.Mutex
	rows map[string]*row
}

// row is the history of the machine or of one workload, with its last measurement.
type row struct {
	last     Counters
	at       time.Time // time of the last measurement; zero = none yet
	instance string
	hour     ring
	day      ring
}

// Add adds one measurement. id is the id of a workload, or "" for the machine. If instance differs from the
// one in the previous measurement, the byte counters have restarted at 0. A measurement that is not newer
// than the previous one is ignored.
func (h *History) Add(id, instance string, at time.Time, c Counters) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rows == nil {
		h.rows = map[string]*row{}
	}
	r := h.rows[id]
	if r == nil {
		if len(h.rows) >= maxHistories {
			h.dropOldest()
		}
		r = &row{hour: ring{span: Hour}, day: ring{span: Day}}
		h.rows[id] = r
	}
	span := at.Sub(r.at)
	if !r.at.IsZero() && span <= 0 {
		return
	}
	one := measured{millicores: c.Millicores, memory: float64(c.Memory)}
	if !r.at.IsZero() && r.instance == instance && c.NetReceived >= r.last.NetReceived && c.NetSent >= r.last.NetSent {
		one.received = float64(c.NetReceived-r.last.NetReceived) / span.Seconds()
		one.sent = float64(c.NetSent-r.last.NetSent) / span.Seconds()
	}
	r.last, r.at, r.instance = c, at, instance
	if c.Millicores >= 0 {
		r.hour.add(at, one)
		r.day.add(at, one)
	}
}

// dropOldest drops the history whose last measurement is the oldest.
func (h *History) dropOldest() {
	oldest, found := "", false
	for id, r := range h.rows {
		if !found || r.at.Before(h.rows[oldest].at) {
			oldest, found = id, true
		}
	}
	delete(h.rows, oldest)
}

// Forget drops the histories without a measurement in the last day.
func (h *History) Forget(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.rows, func(_ string, r *row) bool { return now.Sub(r.at) > Day.Length })
}

// List returns the samples of a workload, or of the machine if id is "", oldest first. The last sample
// belongs to the current step, which has not ended. Steps without a measurement are left out.
func (h *History) List(id string, span Span, now time.Time) []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rows[id]
	switch {
	case r == nil:
		return nil
	case span == Day:
		return r.day.list(now)
	default:
		return r.hour.list(now)
	}
}

// measured holds the values of one measurement, or the sums of several, from which averages are computed.
type measured struct{ millicores, memory, received, sent float64 }

// ring holds the newest steps of one span, oldest first.
type ring struct {
	span  Span
	steps []step
}

// step is the sum of the measurements of one step.
type step struct {
	start time.Time
	sum   measured
	count float64
}

func (r *ring) add(at time.Time, m measured) {
	start := at.Truncate(r.span.Step)
	if n := len(r.steps); n == 0 || r.steps[n-1].start.Before(start) {
		if n == int(r.span.Length/r.span.Step) {
			copy(r.steps, r.steps[1:])
			r.steps = r.steps[:n-1]
		}
		r.steps = append(r.steps, step{start: start})
	}
	s := &r.steps[len(r.steps)-1]
	s.sum.millicores += m.millicores
	s.sum.memory += m.memory
	s.sum.received += m.received
	s.sum.sent += m.sent
	s.count++
}

func (r *ring) list(now time.Time) (out []Sample) {
	for _, s := range r.steps {
		if now.Sub(s.start) <= r.span.Length {
			out = append(out, Sample{
				s.start, s.sum.millicores / s.count, int64(s.sum.memory / s.count), int64(s.sum.received / s.count), int64(s.sum.sent / s.count),
			})
		}
	}
	return out
}
