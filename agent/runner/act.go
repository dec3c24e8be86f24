package runner

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/health"
	"github.com/persys/compute/agent/memfile"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/volume"
)

// running is an action that is in progress, with the functions to cancel it.
type running struct {
	whole, start context.Context
	cancelWhole  context.CancelFunc
	cancelStart  context.CancelFunc // cancels only the driver's Ensure, not the whole action
	limit        *time.Timer        // ends the action when its driver has reported no progress for StepTimeout
	stalled      atomic.Bool
}

func (r *running) interrupt(starting bool) {
	if starting {
		r.cancelStart()
	} else {
		r.cancelWhole()
	}
}

// begin starts a driver's action in a goroutine. r.mu must be held.
func (r *Runner) begin(a *core.Act) {
	run := &running{}
	run.whole, run.cancelWhole = context.WithCancel(r.life)
	run.start, run.cancelStart = context.WithCancel(run.whole)
	run.limit = time.AfterFunc(r.cfg.StepTimeout, func() {
		run.stalled.Store(true)
		run.cancelWhole()
	})
	r.running[a] = run
	r.Spawn(func() {
		done := core.Done{Act: a}
		e := r.perform(run, a, &done)
		run.limit.Stop()
		run.cancelStart()
		run.cancelWhole()
		r.mu.Lock()
		delete(r.running, a)
		r.mu.Unlock()
		if r.life.Err() != nil {
			return // the agent is stopping, so the error is not a failure of the workload
		}
		r.do(done)
		r.missed(e, a.ID)
	})
}

// moved handles a driver's report of progress for a workload. The time limit StepTimeout of the action then
// starts anew.
func (r *Runner) moved(id, text string) {
	r.do(core.Progress{ID: id, Text: text})
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, run := range r.running {
		if a.ID == id {
			run.limit.Reset(r.cfg.StepTimeout)
		}
	}
}

// perform carries out an action and fills done with its result. It returns the engine of the action's first kind, or
// nil if this agent has no such engine.
func (r *Runner) perform(run *running, a *core.Act, done *core.Done) *engine {
	began := time.Now()
	var e *engine
	if len(a.Kinds) > 0 {
		e = r.engines.get(a.Kinds[0])
	}
	if a.Verb == core.Look {
		var err error
		if e == nil {
			err = driver.Errorf(driver.RuntimeError, "look", "runtime not available: %s", a.Kinds[0])
		} else {
			done.Observed, done.Began, done.Whole, err = r.lookAt(run.whole, e, a.ID)
		}
		done.Failed = failure(err)
		return e
	}
	name := a.Verb.String()
	if a.Verb == core.Remove {
		name = "delete"
	}
	ctx, end := r.span(run.whole, a.ID, name)
	err := r.carryOut(ctx, run, e, a, done)
	if err != nil && run.stalled.Load() {
		err = driver.Errorf(driver.RuntimeUnhealthy, name, "the driver has reported no progress for %s: %w", r.cfg.StepTimeout, err)
	}
	end(err)
	done.Failed = failure(err)
	switch {
	case err != nil || a.Verb == core.RemoveFormer:
	case a.Verb == core.Remove:
		r.cfg.Metrics.Deleted(time.Since(began))
	default:
		r.cfg.Metrics.Applied(time.Since(began), a.Verb == core.Recreate || a.Verb == core.Ensure && a.Absent)
	}
	return e
}

// endJob stops the instance of a job that is going to be removed, and inspects it. An error is only logged: the
// removal stops the instance too, and only the exit code and the output of the job are lost.
func (r *Runner) endJob(ctx context.Context, e *engine, a *core.Act) *driver.Observed {
	err := halt(ctx, e.drv, a)
	var o *driver.Observed
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, r.cfg.ListTimeout)
		defer cancel()
		o, err = inspect(limited, e.drv, driver.ID(a.ID))
	}
	if err != nil {
		r.log.Warn("the exit code and the output of a job that is stopped are not known", "workload", a.ID, "error", err)
	}
	return o
}

// inspect returns the instance of a workload; nil if there is none. If the driver cannot inspect a single
// workload, inspect lists all instances of the engine.
func inspect(ctx context.Context, d driver.Driver, id driver.ID) (*driver.Observed, error) {
	if one, ok := d.(driver.Looker); ok {
		return one.Look(ctx, id)
	}
	list, err := d.List(ctx)
	for _, o := range list {
		if o.ID == id {
			return &o, err
		}
	}
	return nil, err
}

func failure(err error) *core.Failed {
	if err == nil {
		return nil
	}
	return &core.Failed{Class: driver.ClassOf(err), Message: err.Error(), Started: driver.StartedOf(err)}
}

// carryOut carries out an action on its engines. A panic of a driver is reported as a failure of the workload.
func (r *Runner) carryOut(ctx context.Context, run *running, e *engine, a *core.Act, done *core.Done) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a driver panicked", "workload", a.ID, "do", a.Verb.String(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = driver.Errorf(driver.RuntimeError, a.Verb.String(), "the driver crashed (panicked) during this action; see the agent's log")
		}
	}()
	id := driver.ID(a.ID)
	generation := driver.Generation{} // generation of the order; zero for an action on an instance without order
	if a.Intent != nil {
		generation = a.Intent.Generation
	}
	r.log.Debug("step", "workload", a.ID, "do", a.Verb.String(), "generation", generation.String())
	if a.Verb == core.Remove || a.Verb == core.RemoveFormer {
		for _, kind := range a.Kinds {
			if err := r.removeFrom(ctx, a, kind, done); err != nil {
				return err
			}
		}
		if a.Verb == core.RemoveFormer {
			return nil
		}
		if in := a.Intent; in != nil {
			body := spec.Of(in)
			if err := r.cfg.Storage.SetPolicies(a.ID, body.GetNamespace(), in.Type, spec.Volumes(body)); err != nil {
				return err
			}
		}
		if err := r.cfg.Files.Remove(a.ID); err != nil {
			return driver.Errorf(driver.RuntimeError, "delete", "delete secrets and configs: %w", err)
		}
		return r.cfg.Storage.Release(ctx, a.ID, volume.Retention(a.Retention))
	}
	if e == nil {
		return driver.Errorf(driver.RuntimeError, "apply", "runtime not available: %s", a.Kinds[0])
	}
	switch a.Verb {
	case core.Refresh:
		return r.refreshFiles(ctx, e, a.Intent)
	case core.Halt, core.Restart:
		if err := halt(ctx, e.drv, a); err != nil || a.Verb == core.Halt {
			return err
		}
	case core.Recreate:
		if err := remover(e.drv, a.Retention)(ctx, id); err != nil || !a.Intent.Running() {
			return err
		}
	}
	return r.ensure(ctx, run, e, a)
}

// halt stops a workload. If the workload is restarted because of a failed health check, the driver may stop only its
// unhealthy parts (services).
func halt(ctx context.Context, d driver.Driver, a *core.Act) error {
	id := driver.ID(a.ID)
	if h, ok := d.(driver.UnhealthyHalter); ok && a.Heals {
		return h.HaltUnhealthy(ctx, id, a.Grace)
	}
	return d.Halt(ctx, id, a.Grace)
}

// remover returns the method of a driver that removes a workload: RemoveInstance if its volumes are kept, Leave if the
// workload may continue on another node, each if the driver has it, otherwise Remove. Leave keeps the resources that
// the workload may use on the other node.
func remover(d driver.Driver, retention core.Retention) func(context.Context, driver.ID) error {
	if v, ok := d.(driver.VolumeOwner); ok && retention.Retain {
		return v.RemoveInstance
	}
	l, ok := d.(driver.Leaver)
	if !ok || !retention.Keep && !retention.KeepShared {
		return d.Remove
	}
	return func(ctx context.Context, id driver.ID) error { return l.Leave(ctx, id, retention.Keep) }
}

// removeFrom removes a workload from one engine. It then lists the engine again, so that the core does not use
// an older list that still contains the instance.
func (r *Runner) removeFrom(ctx context.Context, a *core.Act, kind driver.Kind, done *core.Done) error {
	e := r.engines.get(kind)
	if e == nil {
		return driver.Errorf(driver.RuntimeError, "delete", "runtime not available: %s", kind)
	}
	if n, ok := e.drv.(driver.Namespaced); ok && a.Intent != nil {
		other, err := n.Foreign(ctx, driver.ID(a.ID), spec.Of(a.Intent).GetNamespace())
		if err != nil {
			return err
		}
		if other {
			r.log.Warn("kept an instance that has the id of a deleted workload but belongs to another namespace", "workload", a.ID)
			return r.refresh(ctx, e)
		}
	}
	if a.Ends && kind == a.Intent.Type {
		done.Observed = r.endJob(ctx, e, a)
	}
	if err := remover(e.drv, a.Retention)(ctx, driver.ID(a.ID)); err != nil {
		return err
	}
	return r.refresh(ctx, e)
}

// ensure attaches the workload's volumes and makes or starts its instance. Then it releases volumes that the
// specification no longer names.
func (r *Runner) ensure(ctx context.Context, run *running, e *engine, a *core.Act) error {
	in := a.Intent
	body := spec.Of(in)
	specs := spec.Volumes(body)
	rules, err := r.cfg.Ceiling.rules(in)
	if err != nil {
		return err
	}
	volumes, err := r.cfg.Storage.Attach(ctx, in.ID, body.GetNamespace(), in.Type, specs)
	if err != nil {
		return err
	}
	files, err := r.files(in)
	if err != nil {
		return err
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(run.start, cancel)()
	err = e.drv.Ensure(within, driver.Spec{
		ID: driver.ID(in.ID), Revision: in.RevisionID, Content: in.EngineContent, Generation: in.Generation,
		ClusterID: a.Cluster, NodeID: r.cfg.Core.Node, Running: in.Running(), Body: body, Labels: in.Labels,
		Legacy: in.RunsLegacy(), Exclusive: in.Exclusive, Volumes: volumes, Files: files, DiskLimit: in.Traits.DiskLimit, Rules: rules,
		Repeats: a.Repeats,
	})
	if err != nil {
		return err
	}
	if err := r.cfg.Files.Trim(in.ID, files); err != nil {
		return driver.Errorf(driver.RuntimeError, "ensure", "delete former secrets and configs: %w", err)
	}
	return r.cfg.Storage.Trim(ctx, in.ID, body.GetNamespace(), specs)
}

// files writes a workload's files in memory and returns their paths. It also writes the files if the
// workload must be stopped: an engine refuses to create a container, even one that is not started, if a
// mounted file is missing.
func (r *Runner) files(in *core.Intent) ([]string, error) {
	files := filesOf(in)
	if len(files) == 0 {
		return nil, nil
	}
	paths, err := r.cfg.Files.Put(in.ID, in.EngineContent, files)
	if err != nil {
		return nil, driver.Errorf(driver.RuntimeError, "ensure", "writing the secrets and configs: %w", err)
	}
	return paths, nil
}

// filesOf returns the in-memory files (secrets and configs) of a workload.
func filesOf(in *core.Intent) (out []memfile.File) {
	for _, f := range spec.MemoryFiles(spec.Of(in)) {
		file := memfile.File{
			Mode: os.FileMode(f.GetMode()).Perm(), UID: int(f.GetUid()), GID: int(f.GetGid()), Data: f.GetData(), InPlace: f.GetSignal() != "",
		}
		if f.GetValueId() != "" {
			file.Key = fmt.Sprintf("%q %q %q %o %d %d", f.GetService(), f.GetTarget(), f.GetValueId(), f.GetMode(), f.GetUid(), f.GetGid())
		}
		out = append(out, file)
	}
	return out
}

// refreshFiles changes the files in memory of a running workload, and sends the signal of each file to its
// containers. It also signals for files that have not changed: if an agent was killed after it wrote a file and
// before it sent the signal, its next process cannot know which files the container has read.
func (r *Runner) refreshFiles(ctx context.Context, e *engine, in *core.Intent) error {
	if _, err := r.files(in); err != nil {
		return err
	}
	d, ok := e.drv.(driver.Signaler)
	if !ok {
		return driver.Errorf(driver.InvalidConfiguration, "signal", "the runtime %s cannot signal workloads", in.Type)
	}
	type target struct{ service, signal string }
	sent := map[target]bool{}
	for _, f := range spec.MemoryFiles(spec.Of(in)) {
		to := target{f.GetService(), f.GetSignal()}
		if to.signal == "" || sent[to] {
			continue
		}
		sent[to] = true
		if err := d.Signal(ctx, driver.ID(in.ID), to.service, to.signal); err != nil {
			return err
		}
	}
	return nil
}

// check starts the health check of an instance, or gives it new addresses.
func (r *Runner) check(w core.Watch) {
	o := w.Observed
	t := health.Target{
		ID: driver.ID(w.Intent.ID), Instance: w.Instance, Started: o.StartedAt, Addresses: o.Addresses, Ports: o.Ports,
		Check: proto.CloneOf(spec.Of(w.Intent).GetHealthCheck()),
	}
	t.Execer, _ = r.Driver(w.Intent.Type).(driver.Execer)
	r.checks.Watch(t)
}
