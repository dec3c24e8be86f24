package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

// diskLimit is how many bytes a workload may occupy: the disk that it was promised, without what its
// local volumes of a fixed size take of it. 0 is no limit; a virtual machine's disks have sizes of their
// own.
func (in *intent) diskLimit() int64 {
	const gib = 1 << 30
	var promised int64
	switch s := in.spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		promised = s.Container.GetDiskGb()
	case *agentv1.WorkloadSpec_Compose:
		promised = s.Compose.GetDiskGb()
	}
	for _, v := range volumesOf(in.spec) {
		if d := v.GetDriver(); d == "" || d == volume.Local {
			promised -= v.GetSizeGb()
		}
	}
	return max(0, min(promised, 1<<30)) * gib
}

// diskShown is what the status says of a limit.
func diskShown(limit int64, capped bool) string {
	by := "measured"
	if capped {
		by = "kept by the engine"
	}
	return fmt.Sprintf("%d GiB, %s", limit>>30, by)
}

// fullMeasure is every how many measurements the workloads without a limit are measured too, for people.
const fullMeasure = 10

// measureDisks finds out what workloads occupy, until ctx ends.
func (a *Agent) measureDisks(ctx context.Context) error {
	return a.each(ctx, a.cfg.DiskInterval, func(n int, e *engine) { a.measureDisk(ctx, e, n%fullMeasure == 0) })
}

// measureDisk measures the workloads of one engine that have a limit of ours, or all of them.
func (a *Agent) measureDisk(ctx context.Context, e *engine, all bool) {
	meter, ok := e.drv.(driver.DiskMeter)
	if !ok {
		return
	}
	of := a.observedBy(e)
	if !all {
		of = slices.DeleteFunc(of, func(o driver.Observed) bool { return a.measuredLimit(&o) == 0 })
	}
	if len(of) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, max(a.cfg.DiskInterval, time.Second))
	defer cancel()
	seen, err := meter.Occupied(limited, of)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			a.log.Debug("measuring disks", "kind", e.drv.Kind(), "err", err)
		}
		return // nothing is stopped for what is not known
	}
	a.used.Occupy(seen)
	now := time.Now()
	for _, o := range of {
		bytes, ok := seen[o.ID]
		if !ok {
			continue
		}
		limit := a.measuredLimit(&o)
		if limit > 0 {
			folders, err := a.storage.Folders(limited, string(o.ID))
			if err != nil {
				continue
			}
			bytes += folders
		}
		a.judgeDisk(&o, bytes, limit, now)
	}
}

// measuredLimit is the limit that the agent itself has to keep; 0 if there is none.
func (a *Agent) measuredLimit(o *driver.Observed) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[string(o.ID)]
	if w == nil || w.intent == nil || o.DiskCapped {
		return 0
	}
	return w.intent.diskLimit()
}

// judgeDisk holds what an instance occupies against its limit. One beyond it is stopped; one that was,
// and is not any more because somebody made room in its volumes or raised the limit, may run again.
func (a *Agent) judgeDisk(o *driver.Observed, bytes, limit int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[string(o.ID)]
	if w == nil || w.intent == nil || w.observed == nil || w.observed.RuntimeID != o.RuntimeID {
		return
	}
	was := w.over.of(w.intent.EngineContent, w.observed)
	over := limit > 0 && bytes > limit
	switch {
	case over == was:
		return
	case over:
		const mib = 1 << 20
		w.over = Excess{Content: w.intent.EngineContent, Instance: o.RuntimeID, At: now, Message: fmt.Sprintf(
			"disk: it occupies %d MiB, its limit is %d MiB; stopped. Give it more disk, or delete it and apply it anew", bytes/mib, limit/mib)}
		a.log.Warn("stopping a workload that is over its disk limit", "workload", w.id, "bytes", bytes, "limit", limit)
	default:
		w.over, w.fail = Excess{}, failure{}
	}
	a.queue.add(w.id, now)
}
