package runner

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
)

// each calls the function do for every engine, once per interval. The first calls are made after the first
// sweep (a list of the instances on all engines). n counts the intervals, from 0.
func (r *Runner) each(every time.Duration, do func(n int, e *engine)) {
	select {
	case <-r.looked:
	case <-r.life.Done():
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		for _, e := range r.engines.list() {
			do(n, e)
		}
		select {
		case <-r.life.Done():
			return
		case <-tick.C:
		}
	}
}

// observedBy returns the instances on an engine, as last observed, ordered by id.
func (r *Runner) observedBy(e *engine) []driver.Observed {
	if r.engines.get(e.drv.Kind()) != e {
		return nil
	}
	return r.State().ObservedOn(e.drv.Kind())
}

// measure asks the drivers for the resource usage of workloads. Heartbeats, metrics and the API read
// the last result without waiting.
func (r *Runner) measure() {
	r.each(r.cfg.UsageInterval, func(_ int, e *engine) {
		meter, ok := e.drv.(driver.Meter)
		if !ok {
			return
		}
		limited, cancel := context.WithTimeout(r.life, r.cfg.UsageInterval)
		defer cancel()
		seen, err := meter.Usage(limited, r.observedBy(e))
		if err != nil {
			// If the measurement fails, the previous result is kept. Its time shows how old it is.
			if !errors.Is(err, context.Canceled) {
				r.log.Debug("could not measure the resource usage of workloads", "kind", e.drv.Kind(), "error", err)
			}
			return
		}
		r.used.Observe(e.drv.Kind(), seen)
	})
}

// fullMeasure: every tenth measurement includes workloads without a disk limit. The disk use of such workloads
// is only displayed, so it is measured less often.
const fullMeasure = 10

// measureDisks measures the disk use of workloads at the interval DiskInterval.
func (r *Runner) measureDisks() {
	r.each(r.cfg.DiskInterval, func(n int, e *engine) { r.measureDisk(r.life, e, n%fullMeasure == 0) })
}

// measureDisk measures the disk use of the workloads of one engine. If all is set, it measures all
// workloads; if not, only those whose disk limit the agent must enforce.
func (r *Runner) measureDisk(ctx context.Context, e *engine, all bool) {
	meter, ok := e.drv.(driver.DiskMeter)
	if !ok {
		return
	}
	of := r.observedBy(e)
	if !all {
		of = slices.DeleteFunc(of, func(o driver.Observed) bool { return r.State().MeasuredLimit(&o) == 0 })
	}
	if len(of) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, max(r.cfg.DiskInterval, time.Second))
	defer cancel()
	seen, err := meter.Occupied(limited, of)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			r.log.Debug("could not measure the disk use of workloads", "kind", e.drv.Kind(), "err", err)
		}
		return // if the measurement failed, no workload is stopped
	}
	r.used.Occupy(seen)
	for _, o := range of {
		bytes, ok := seen[o.ID]
		if !ok {
			continue
		}
		limit := r.State().MeasuredLimit(&o)
		if limit > 0 {
			folders, err := r.cfg.Storage.Folders(limited, string(o.ID))
			if err != nil {
				continue
			}
			bytes += folders
		}
		r.do(core.Measured{ID: string(o.ID), RuntimeID: o.RuntimeID, Bytes: bytes, Limit: limit})
	}
}
