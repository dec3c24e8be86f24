package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

// actionGC is the kind of a task that records a removal.
const actionGC = "collect_garbage"

// bucketImages holds the images that this agent pulled, by name, or by id where a newer one has the name
// now: no other is ever removed.
const bucketImages = "images"

// pulled notes an image that a driver pulled. One that lost its name thereby is ours if the name is.
func (a *Agent) pulled(ref, before string) {
	err := a.store.update(func(w write) error {
		if before != "" {
			if !w.has(bucketImages, ref) {
				return nil
			}
			ref = before
		}
		return w.put(bucketImages, ref, driver.PulledImage{Ref: ref, At: time.Now().UTC()})
	})
	if err != nil {
		a.log.Error("noting a pulled image", "image", ref, "err", err)
	}
}

func (s *store) images() ([]driver.PulledImage, error) {
	var out []driver.PulledImage
	err := s.db.View(func(tx *bolt.Tx) error {
		return each(tx, bucketImages, func(_ string, p *driver.PulledImage) error {
			out = append(out, *p)
			return nil
		})
	})
	slices.SortFunc(out, func(a, b driver.PulledImage) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Ref, b.Ref)) })
	return out, err
}

// findings of one look for garbage.
type findings struct {
	items   []finding
	skipped []string // what was not looked at, and why
}

type finding struct {
	driver.Garbage
	from    string // a kind of driver, "agent" or "storage"
	collect func(context.Context) error
	removed bool
	err     error
}

// gcRuns keeps looks for garbage one at a time.
type gcRuns struct {
	mu sync.Mutex
	at time.Time // of the last periodic one
}

// lookForGarbage changes nothing. What cannot be told for certain, because a runtime does not answer,
// is skipped and said so: it never counts as absent.
func (a *Agent) lookForGarbage(ctx context.Context) findings {
	var out findings
	healthy := true
	pulled, err := a.store.images()
	if err != nil {
		out.skipped = append(out.skipped, "images: "+err.Error())
	}
	budget := a.cfg.GC.ImageBudget
	if budget == 0 || err != nil {
		budget = -1
	}
	q := driver.GarbageQuery{Wanted: a.owns, Busy: a.inWork, Settled: a.cfg.GC.Settled, Pulled: pulled, ImageBudget: budget}
	for _, e := range a.allEngines() {
		kind := string(e.drv.Kind())
		items, err := a.garbageOf(ctx, e, q)
		if err != nil {
			healthy = false
			out.skipped = append(out.skipped, kind+": "+err.Error())
			continue
		}
		for _, g := range items {
			c := e.drv.(driver.Collector)
			f := finding{Garbage: g, from: kind, collect: func(ctx context.Context) error { return c.Collect(ctx, g) }}
			if ref, ok := strings.CutPrefix(g.Name, "image "); g.Kind == driver.ImageFile || g.Kind == driver.Record && ok {
				if g.Kind == driver.ImageFile {
					ref = g.Name
				}
				f.collect = func(ctx context.Context) error {
					if err := c.Collect(ctx, g); err != nil {
						return err
					}
					return a.store.update(func(w write) error { return w.drop(bucketImages, ref) })
				}
			}
			out.items = append(out.items, f)
		}
	}
	if !healthy {
		out.skipped = append(out.skipped, "records and volumes: a runtime does not answer")
		return out
	}
	now := time.Now()
	out.items = append(out.items, a.oldRecords(now)...)
	for _, v := range a.storage.List() {
		if v.Phase != volume.Released || v.Retain || len(v.Users) > 0 || now.Sub(v.ReleasedAt) < a.cfg.GC.VolumesAfter || v.ReleasedAt.IsZero() {
			continue
		}
		id := v.ID
		out.items = append(out.items, finding{
			Garbage: driver.Garbage{Kind: driver.OldVolume, Name: id, Workload: driver.ID(v.Owner),
				Reason: fmt.Sprintf("released %s ago, not to be retained", now.Sub(v.ReleasedAt).Round(time.Second))},
			from: "storage", collect: func(ctx context.Context) error { return a.storage.Delete(ctx, id) },
		})
	}
	return out
}

// garbageOf asks one driver, after it proved that its engine answers.
func (a *Agent) garbageOf(ctx context.Context, e *engine, q driver.GarbageQuery) ([]driver.Garbage, error) {
	c, ok := e.drv.(driver.Collector)
	if !ok {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.ListTimeout)
	defer cancel()
	capacity, err := e.drv.Probe(limited)
	if err != nil {
		return nil, err
	}
	if !capacity.Healthy {
		return nil, fmt.Errorf("%s", capacity.Reason)
	}
	if err := a.refresh(limited, e); err != nil {
		return nil, err
	}
	return c.Garbage(limited, q)
}

func (a *Agent) inWork(id driver.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.tombs[string(id)]; t != nil && !t.Done {
		return true
	}
	w := a.workloads[string(id)]
	return w != nil && (w.task.open() || w.busy != "" || a.queue.running(string(id)))
}

// oldRecords are orders that failed for good and left nothing. Our schedulers decide about these
// themselves; existing ones leave it to agents.
func (a *Agent) oldRecords(now time.Time) []finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.control == nil || a.meta.Epoch.owned() {
		return nil
	}
	var out []finding
	for id, w := range a.workloads {
		in, f := w.intent, w.fail
		if in == nil || in.Deleting || w.observed != nil || w.task.open() || !f.Final || f.At.IsZero() || now.Sub(f.At) < a.cfg.GC.FailedAfter {
			continue
		}
		out = append(out, finding{
			Garbage: driver.Garbage{Kind: driver.Record, Name: id, Workload: driver.ID(id),
				Reason: fmt.Sprintf("failed %s ago, and nothing of it is here", now.Sub(f.At).Round(time.Second))},
			from: "agent", collect: func(ctx context.Context) error { return a.forgetFailed(ctx, id, in) },
		})
	}
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// forgetFailed drops an order if it still is the one that failed. Its volumes are kept.
func (a *Agent) forgetFailed(ctx context.Context, id string, in *intent) error {
	if err := a.storage.Release(ctx, id, volume.Fate{Keep: true}); err != nil {
		return err
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	a.mu.Lock()
	w := a.workloads[id]
	same := w != nil && w.intent == in && w.observed == nil
	a.mu.Unlock()
	if !same {
		return nil
	}
	if err := a.store.update(func(tx write) error { return tx.forget(id) }); err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.workloads, id)
	a.mu.Unlock()
	return nil
}

// collectGarbage looks and, unless dry, removes what it found, each removal with a line of history that
// the schedulers turn into an event.
func (a *Agent) collectGarbage(ctx context.Context, dry, orphans bool, by string) findings {
	a.gc.mu.Lock()
	defer a.gc.mu.Unlock()
	start := time.Now()
	out := a.lookForGarbage(ctx)
	for i := range out.items {
		f := &out.items[i]
		if dry || f.Kind == driver.Orphan && (!orphans || a.owns(f.Workload)) || a.inWork(f.Workload) || ctx.Err() != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, a.cfg.StepTimeout)
		f.err = f.collect(limited)
		cancel()
		f.removed = f.err == nil
		a.recordRemoval(f, by)
	}
	if !dry {
		a.metrics.collected(time.Since(start))
	}
	return out
}

// recordRemoval makes a removal part of the task history.
func (a *Agent) recordRemoval(f *finding, by string) {
	now := time.Now()
	text := fmt.Sprintf("%s %s: %s", f.Kind, f.Name, f.Reason)
	if by != "" {
		text += "; asked for by " + by
	}
	if f.err != nil {
		text += ": not removed: " + f.err.Error()
		a.log.Warn("garbage was not removed", "kind", f.Kind, "name", f.Name, "workload", string(f.Workload), "err", f.err)
	} else {
		a.metrics.collectedOne(string(f.Kind))
		a.log.Info("garbage removed", "kind", f.Kind, "name", f.Name, "workload", string(f.Workload), "reason", f.Reason)
	}
	t := newTask(actionGC, string(f.Workload), now)
	t.ID = fmt.Sprintf("gc-%s-%s-%d", f.Kind, f.Name, now.UnixNano())
	t = t.started(now).ended(text, f.err != nil, now)
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	if err := a.store.update(func(tx write) error { return tx.task(t) }); err != nil {
		a.log.Error("storing the task history", "err", err)
	}
	a.mu.Lock()
	a.history.put(t)
	a.mu.Unlock()
}

// periodicGC runs at the start and then at its interval.
func (a *Agent) periodicGC(ctx context.Context, now time.Time) {
	if a.cfg.GC.Every <= 0 {
		return
	}
	a.gc.mu.Lock()
	due := now.Sub(a.gc.at) >= a.cfg.GC.Every
	if due {
		a.gc.at = now
	}
	a.gc.mu.Unlock()
	if !due {
		return
	}
	if out := a.collectGarbage(ctx, false, a.cfg.GC.Orphans, ""); len(out.skipped) > 0 {
		a.log.Info("garbage was not looked for everywhere", "skipped", strings.Join(out.skipped, "; "))
	}
}

// CollectGarbage looks for what is no longer needed and, unless it is a dry run, removes it.
func (s service) CollectGarbage(ctx context.Context, req *agentv1.CollectGarbageRequest) (*agentv1.CollectGarbageResponse, error) {
	if err := s.fenceOrder(req.GetEpoch(), req.GetNodeId()); err != nil {
		return nil, err
	}
	found := s.collectGarbage(ctx, req.GetDryRun(), req.GetOrphans(), req.GetBy())
	out := &agentv1.CollectGarbageResponse{Skipped: found.skipped}
	for _, f := range found.items {
		g := &agentv1.Garbage{
			Kind: string(f.Kind), Name: f.Name, WorkloadId: string(f.Workload), Reason: f.Reason, Bytes: f.Bytes, From: f.from, Removed: f.removed,
		}
		if f.err != nil {
			g.Error = f.err.Error()
		}
		out.Items = append(out.Items, g)
	}
	return out, nil
}

// fenceOrder judges who asks for something that changes the machine.
func (a *Agent) fenceOrder(epoch *agentv1.Epoch, node string) error {
	if no := judgeNode(a.cfg.NodeID, node); no != nil {
		return status.Error(codes.FailedPrecondition, no.message)
	}
	if epoch == nil && a.cfg.Control != nil && a.Epoch().owned() {
		return status.Error(codes.FailedPrecondition, "epoch: is missing, and this node belongs to a cluster whose schedulers name theirs")
	}
	return a.fenceRead(epoch)
}

// ListVolumes tells the managed volumes of this machine.
func (s service) ListVolumes(_ context.Context, req *agentv1.ListVolumesRequest) (*agentv1.ListVolumesResponse, error) {
	if err := s.fenceRead(req.GetEpoch()); err != nil {
		return nil, err
	}
	out := &agentv1.ListVolumesResponse{MissingDrivers: s.storage.Lacks()}
	for _, v := range s.storage.List() {
		m := &agentv1.VolumeInfo{
			Id: v.ID, Name: v.Name, Driver: v.Driver, SizeGb: v.SizeGB, Pool: v.Pool, Form: string(v.Form), Phase: string(v.Phase),
			RetainPolicy: "Delete", LastError: v.Error, Owner: v.Owner, CreatedAt: unix(v.CreatedAt), ReleasedAt: unix(v.ReleasedAt),
		}
		if v.Retain {
			m.RetainPolicy = "Retain"
		}
		for _, u := range v.Users {
			m.WorkloadIds = append(m.WorkloadIds, u.WorkloadID)
		}
		out.Volumes = append(out.Volumes, m)
	}
	return out, nil
}

// DeleteVolume deletes a volume that no workload uses.
func (s service) DeleteVolume(ctx context.Context, req *agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error) {
	if err := s.fenceOrder(req.GetEpoch(), req.GetNodeId()); err != nil {
		return nil, err
	}
	f := &finding{Garbage: driver.Garbage{Kind: driver.OldVolume, Name: req.GetId(), Reason: "deleted on request"}}
	for _, v := range s.storage.List() {
		if v.ID == req.GetId() {
			f.Workload = driver.ID(v.Owner)
		}
	}
	f.err = s.storage.Delete(ctx, req.GetId())
	switch {
	case errors.Is(f.err, volume.ErrNoVolume):
		return nil, status.Errorf(codes.NotFound, "volume %q not found on node %q", req.GetId(), s.cfg.NodeID)
	case f.err != nil:
		return nil, status.Error(codes.FailedPrecondition, f.err.Error())
	}
	s.recordRemoval(f, req.GetBy())
	return &agentv1.DeleteVolumeResponse{}, nil
}
