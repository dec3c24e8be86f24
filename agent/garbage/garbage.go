// Package garbage finds and removes what a node no longer needs: instances that nobody ordered, images that
// the agent pulled, released volumes, records of orders that failed for good.
//
//   - Only things of this agent are removed, and none that a workload uses or that is being worked on.
//   - If an engine does not answer, nothing of it is removed, and the answer says so.
//   - Each removal is a task in the history, which the schedulers turn into an event.
package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/volume"
)

// Config says what counts as garbage, and when.
type Config struct {
	// Every is the time between runs; 0 means that only a person starts one.
	Every time.Duration
	// Orphans are also removed by periodic runs: instances of ours that nobody ordered.
	Orphans bool
	// FailedAfter forgets a workload that failed for good this long ago, if the schedulers are legacy v1
	// ones, which leave that to agents; default 1 h.
	FailedAfter time.Duration
	// VolumesAfter deletes a volume without retain policy that was released this long ago; default 72 h.
	VolumesAfter time.Duration
	// Settled is how old a thing is before it can be garbage; default 1 min.
	Settled time.Duration
	// ImageBudget is how many bytes of images that the agent pulled may lie unused; 0 = any number.
	ImageBudget int64
}

// Collector finds and removes garbage, one run at a time.
type Collector struct {
	Config
	Runner      *runner.Runner
	Store       *store.Store
	Storage     *volume.Manager
	Metrics     *metrics.Metrics // may be nil
	Logger      *slog.Logger
	ListTimeout time.Duration // bounds the questions to one engine
	StepTimeout time.Duration // bounds one removal

	mu sync.Mutex
	at time.Time // of the last periodic run
}

// Findings are the garbage that one run found.
type Findings struct {
	Items   []Finding
	Skipped []string // places that were not searched, and why
}

// Finding is one piece of garbage.
type Finding struct {
	driver.Garbage
	From    string // a kind of driver, "agent" or "storage"
	collect func(context.Context) error
	Removed bool
	Err     error
}

// look finds garbage and changes nothing. A runtime that does not answer is skipped: its workloads do not
// count as absent.
func (c *Collector) look(ctx context.Context) Findings {
	var out Findings
	healthy := true
	pulled, err := c.Store.Images()
	if err != nil {
		out.Skipped = append(out.Skipped, "images: "+err.Error())
	}
	budget := c.ImageBudget
	if budget == 0 || err != nil {
		budget = -1
	}
	q := driver.GarbageQuery{Wanted: c.Runner.Owns, Busy: c.inWork, Settled: c.Settled, Pulled: pulled, ImageBudget: budget}
	for _, drv := range c.Runner.Drivers() {
		kind := string(drv.Kind())
		items, err := c.garbageOf(ctx, drv, q)
		if err != nil {
			healthy = false
			out.Skipped = append(out.Skipped, kind+": "+err.Error())
			continue
		}
		for _, g := range items {
			from := drv.(driver.Collector)
			f := Finding{Garbage: g, From: kind, collect: func(ctx context.Context) error { return from.Collect(ctx, g) }}
			if ref, ok := strings.CutPrefix(g.Name, "image "); g.Kind == driver.ImageFile || g.Kind == driver.Record && ok {
				if g.Kind == driver.ImageFile {
					ref = g.Name
				}
				f.collect = func(ctx context.Context) error {
					if err := from.Collect(ctx, g); err != nil {
						return err
					}
					return c.Store.DropImage(ref)
				}
			}
			out.Items = append(out.Items, f)
		}
	}
	if !healthy {
		out.Skipped = append(out.Skipped, "records and volumes: a runtime does not answer")
		return out
	}
	now := time.Now()
	out.Items = append(out.Items, c.oldRecords(now)...)
	for _, v := range c.Storage.List() {
		if v.Phase != volume.Released || v.Retain || len(v.Users) > 0 || now.Sub(v.ReleasedAt) < c.VolumesAfter || v.ReleasedAt.IsZero() {
			continue
		}
		id := v.ID
		out.Items = append(out.Items, Finding{
			Garbage: driver.Garbage{Kind: driver.OldVolume, Name: id, Workload: driver.ID(v.Owner),
				Reason: fmt.Sprintf("released %s ago, not to be retained", now.Sub(v.ReleasedAt).Round(time.Second))},
			From: "storage", collect: func(ctx context.Context) error { return c.Storage.Delete(ctx, id) },
		})
	}
	return out
}

// garbageOf asks one driver, after its engine has answered.
func (c *Collector) garbageOf(ctx context.Context, drv driver.Driver, q driver.GarbageQuery) ([]driver.Garbage, error) {
	from, ok := drv.(driver.Collector)
	if !ok {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, c.ListTimeout)
	defer cancel()
	capacity, err := drv.Probe(limited)
	if err != nil {
		return nil, err
	}
	if !capacity.Healthy {
		return nil, fmt.Errorf("%s", capacity.Reason)
	}
	if err := c.Runner.Refresh(limited, drv.Kind()); err != nil {
		return nil, err
	}
	return from.Garbage(limited, q)
}

func (c *Collector) inWork(id driver.ID) bool { return c.Runner.State().Working(string(id)) }

// oldRecords are orders that failed for good and left nothing. Our schedulers decide about these
// themselves; legacy v1 schedulers leave it to agents.
func (c *Collector) oldRecords(now time.Time) []Finding {
	var out []Finding
	for _, w := range c.Runner.State().FailedSince(now.Add(-c.FailedAfter)) {
		out = append(out, Finding{
			Garbage: driver.Garbage{Kind: driver.Record, Name: w.ID, Workload: driver.ID(w.ID),
				Reason: fmt.Sprintf("failed %s ago, and nothing of it is here", now.Sub(w.Failure.At).Round(time.Second))},
			From: "agent", collect: func(ctx context.Context) error {
				// Its volumes are kept.
				if err := c.Storage.Release(ctx, w.ID, volume.Fate{Keep: true}); err != nil {
					return err
				}
				_, err := c.Runner.Do(core.Forget{Intent: w.Intent})
				return err
			},
		})
	}
	return out
}

// Collect finds garbage and, unless dry, removes it. by is the person who asked, and may be empty.
func (c *Collector) Collect(ctx context.Context, dry, orphans bool, by string) Findings {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	out := c.look(ctx)
	for i := range out.Items {
		f := &out.Items[i]
		if dry || f.Kind == driver.Orphan && (!orphans || c.Runner.Owns(f.Workload)) || c.inWork(f.Workload) || ctx.Err() != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, c.StepTimeout)
		f.Err = f.collect(limited)
		cancel()
		f.Removed = f.Err == nil
		c.Record(f, by)
	}
	if !dry {
		c.Metrics.Collected(time.Since(start))
	}
	return out
}

// Record adds a removal to the task history.
func (c *Collector) Record(f *Finding, by string) {
	now := time.Now()
	text := fmt.Sprintf("%s %s: %s", f.Kind, f.Name, f.Reason)
	if by != "" {
		text += "; asked for by " + by
	}
	if f.Err != nil {
		text += ": not removed: " + f.Err.Error()
		c.Logger.Warn("garbage was not removed", "kind", f.Kind, "name", f.Name, "workload", string(f.Workload), "err", f.Err)
	} else {
		c.Metrics.CollectedOne(string(f.Kind))
		c.Logger.Info("garbage removed", "kind", f.Kind, "name", f.Name, "workload", string(f.Workload), "reason", f.Reason)
	}
	t := core.NewTask(core.ActionGC, string(f.Workload), now)
	t.ID = fmt.Sprintf("gc-%s-%s-%d", f.Kind, f.Name, now.UnixNano())
	t = t.Started(now).Ended(text, f.Err != nil, now)
	if _, err := c.Runner.Do(core.Record{Task: t}); err != nil {
		c.Logger.Error("storing the task history", "err", err)
	}
}

// Periodic collects garbage if Every has passed since the last periodic run.
func (c *Collector) Periodic(ctx context.Context, now time.Time) {
	if c.Every <= 0 {
		return
	}
	c.mu.Lock()
	due := now.Sub(c.at) >= c.Every
	if due {
		c.at = now
	}
	c.mu.Unlock()
	if !due {
		return
	}
	if out := c.Collect(ctx, false, c.Orphans, ""); len(out.Skipped) > 0 {
		c.Logger.Info("garbage was not looked for everywhere", "skipped", strings.Join(out.Skipped, "; "))
	}
}
