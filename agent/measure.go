package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/usage"
)

// measure asks the drivers what their workloads use, until ctx ends. Heartbeats, metrics and the API
// read the last answer and never wait for one.
func (a *Agent) measure(ctx context.Context) error {
	return a.each(ctx, a.cfg.UsageInterval, func(_ int, e *engine) { a.measureOne(ctx, e) })
}

// each does something about every engine, for the nth time from 0 on, once all have been looked at and until
// ctx ends.
func (a *Agent) each(ctx context.Context, every time.Duration, do func(n int, e *engine)) error {
	select {
	case <-a.looked:
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		for _, e := range a.allEngines() {
			do(n, e)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// observedBy is what an engine showed last, sorted by id.
func (a *Agent) observedBy(e *engine) []driver.Observed {
	kind := e.drv.Kind()
	var of []driver.Observed
	a.mu.Lock()
	for _, w := range a.workloads {
		if w.kind == kind && w.observed != nil && a.engines[kind] == e {
			of = append(of, *w.observed)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(of, func(x, y driver.Observed) int { return strings.Compare(string(x.ID), string(y.ID)) })
	return of
}

func (a *Agent) measureOne(ctx context.Context, e *engine) {
	meter, ok := e.drv.(driver.Meter)
	if !ok {
		return
	}
	kind, of := e.drv.Kind(), a.observedBy(e)
	limited, cancel := context.WithTimeout(ctx, a.cfg.UsageInterval)
	defer cancel()
	seen, err := meter.Usage(limited, of)
	if err != nil {
		// Of no consequence for anything that runs: the figures grow old, and say how old.
		if !errors.Is(err, context.Canceled) {
			a.log.Debug("measuring workloads", "kind", kind, "error", err)
		}
		return
	}
	a.used.Observe(kind, seen)
}

// percent of one processor; 0 while only one sample is there.
func percent(r usage.Reading) float64 { return max(0, r.Millicores) / 10 }

// workloadUsage are the readings newer than a version, for a heartbeat.
func (a *Agent) workloadUsage(after uint64) ([]*controlv1.WorkloadUsageSnapshot, uint64) {
	fresh, version := a.used.After(after)
	out := make([]*controlv1.WorkloadUsageSnapshot, 0, len(fresh))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range fresh {
		limit, capped := int64(0), false
		if w := a.workloads[string(r.ID)]; w != nil && w.intent != nil {
			limit, capped = w.intent.diskLimit(), w.observed != nil && w.observed.DiskCapped
		}
		out = append(out, &controlv1.WorkloadUsageSnapshot{
			WorkloadId: string(r.ID), Type: string(r.Kind), CpuPercent: percent(r), MemoryBytes: r.Memory,
			DiskReadBytes: r.DiskRead, DiskWriteBytes: r.DiskWrite, NetRxBytes: r.NetReceived, NetTxBytes: r.NetSent,
			CollectedAt: timestamppb.New(r.At), Source: r.Source,
			MemoryLimitBytes: r.MemoryLimit, DiskBytes: max(0, r.Disk), DiskLimitBytes: limit, DiskCapped: capped,
		})
	}
	return out, version
}
