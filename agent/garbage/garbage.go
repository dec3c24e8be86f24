// Package garbage finds and removes resources that a node no longer needs: instances without an order,
// images that the agent pulled, released volumes, and records of orders that failed permanently.
//
//   - Only resources of this agent are removed, and none that a workload uses or that an action is changing.
//   - If an engine does not answer, none of its resources is removed. No record and no volume is
//     removed either. The result says so.
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

// Config configures when garbage is collected, and how old each kind of garbage must be.
type Config struct {
	// Every is the time between periodic runs; 0 = no periodic runs.
	Every time.Duration
	// Orphans: periodic runs also remove orphans, which are instances with our labels but without an order.
	Orphans bool
	// FailedAfter is how long ago a workload must have failed permanently before the agent drops its order.
	// Only legacy v1 schedulers leave this to agents. Default 1 h.
	FailedAfter time.Duration
	// VolumesAfter is how long data stays before it is deleted: a volume without retain policy after no
	// workload uses it any more, and the disks of a virtual machine after it moved to another node. Default 72
	// h.
	VolumesAfter time.Duration
	// Settled is the minimum age at which an unused resource is removed as garbage; default 1 min.
	Settled time.Duration
	// ImageBudget is how many bytes of images may stay that the agent pulled and no workload uses; 0 = no
	// limit.
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
	ListTimeout time.Duration // time limit of each call to an engine
	StepTimeout time.Duration // time limit for the removal of one resource

	mu sync.Mutex
	at time.Time // time of the last periodic run
}

// Findings is the result of one run: the garbage that it found and what it could not check.
type Findings struct {
	Items   []Finding
	Skipped []string // engines and other sources that were not searched, each with the reason
}

// Finding is one piece of garbage.
type Finding struct {
	driver.Garbage
	From    string // where the garbage was found: a kind of driver, "agent" or "storage"
	collect func(context.Context) error
	Removed bool
	Err     error
}

// look finds garbage and changes nothing. It skips an engine that does not answer. It then skips records and
// volumes too, because an instance on that engine may use them.
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
	q := driver.GarbageQuery{Wanted: c.Runner.Owns, Busy: c.inWork, Settled: c.Settled, LeftFor: c.VolumesAfter, Pulled: pulled, ImageBudget: budget}
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
		if len(v.Users) > 0 || !isOld(&v.Volume, now, c.VolumesAfter) {
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

// isOld reports whether a volume was released long ago and is not to be kept. A copy that a move has made, or set aside, is
// never garbage: it may be the only one.
func isOld(v *volume.Volume, now time.Time, after time.Duration) bool {
	return v.Phase == volume.Released && !v.Idle() && v.Copy.IsZero() && !v.Kept() && !v.ReleasedAt.IsZero() && now.Sub(v.ReleasedAt) >= after
}

// garbageOf returns the garbage that one driver finds, or an error if its engine does not answer.
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

// oldRecords returns orders that failed permanently and have no instance. It returns orders only if the
// schedulers are legacy v1 schedulers, which leave such orders to agents. Our schedulers handle failed
// orders themselves.
func (c *Collector) oldRecords(now time.Time) []Finding {
	var out []Finding
	for _, w := range c.Runner.State().FailedSince(now.Add(-c.FailedAfter)) {
		out = append(out, Finding{
			Garbage: driver.Garbage{Kind: driver.Record, Name: w.ID, Workload: driver.ID(w.ID),
				Reason: fmt.Sprintf("failed %s ago, and has no instance on this node", now.Sub(w.Failure.At).Round(time.Second))},
			From: "agent", collect: func(ctx context.Context) error {
				// Only the order is dropped, and the volumes must stay. So release them with Keep.
				if err := c.Storage.Release(ctx, w.ID, volume.Retention{Keep: true}); err != nil {
					return err
				}
				_, err := c.Runner.Do(core.Forget{Intent: w.Intent})
				return err
			},
		})
	}
	return out
}

// Collect finds garbage and, unless dry is set, removes it. by is the person who requested the collection,
// and may be empty.
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

// Record adds the removal of a resource to the agent's history (its tasks), from which schedulers make events.
// by is the person who requested it.
func (c *Collector) Record(f *Finding, by string) {
	now := time.Now()
	text := fmt.Sprintf("%s %s: %s", f.Kind, f.Name, f.Reason)
	if by != "" {
		text += "; removal requested by " + by
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
		c.Logger.Error("could not store the task history", "err", err)
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
		c.Logger.Info("some engines or records were not searched for garbage", "skipped", strings.Join(out.Skipped, "; "))
	}
}
