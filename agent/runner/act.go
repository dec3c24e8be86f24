package runner

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/health"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/volume"
)

// running is an act under way.
type running struct {
	whole, start context.Context
	cancelWhole  context.CancelFunc
	cancelStart  context.CancelFunc // cancels only the driver's Ensure
}

func (r *running) interrupt(starting bool) {
	if starting {
		r.cancelStart()
	} else {
		r.cancelWhole()
	}
}

// begin starts an act in a goroutine. r.mu must be held.
func (r *Runner) begin(a *core.Act) {
	run := &running{}
	run.whole, run.cancelWhole = context.WithCancel(r.life)
	run.start, run.cancelStart = context.WithCancel(run.whole)
	r.running[a] = run
	r.Spawn(func() {
		done := core.Done{Act: a}
		e := r.perform(run, a, &done)
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

// perform carries out an act. It returns the first engine of the act, or nil.
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
	err := r.carryOut(ctx, run, e, a)
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

func failure(err error) *core.Failed {
	if err == nil {
		return nil
	}
	return &core.Failed{Class: driver.ClassOf(err), Message: err.Error()}
}

// carryOut carries out an act on its engines. A panic of a driver counts as a failure of the
// workload.
func (r *Runner) carryOut(ctx context.Context, run *running, e *engine, a *core.Act) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a step panicked", "workload", a.ID, "do", a.Verb.String(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = driver.Errorf(driver.RuntimeError, a.Verb.String(), "the agent failed while it carried this out; its log says where")
		}
	}()
	id := driver.ID(a.ID)
	generation := driver.Generation{} // of an order; an act on an orphan has none
	if a.Intent != nil {
		generation = a.Intent.Generation
	}
	r.log.Debug("step", "workload", a.ID, "do", a.Verb.String(), "generation", generation.String())
	if a.Verb == core.Remove || a.Verb == core.RemoveFormer {
		for _, kind := range a.Kinds {
			if err := r.removeFrom(ctx, a, kind); err != nil {
				return err
			}
		}
		if a.Verb == core.RemoveFormer {
			return nil
		}
		return r.cfg.Storage.Release(ctx, a.ID, volume.Fate(a.Fate))
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StepTimeout)
	defer cancel()
	if e == nil {
		return driver.Errorf(driver.RuntimeError, "apply", "runtime not available: %s", a.Kinds[0])
	}
	switch a.Verb {
	case core.Halt, core.Restart:
		if err := e.drv.Halt(ctx, id, a.Grace); err != nil || a.Verb == core.Halt {
			return err
		}
	case core.Recreate:
		if err := remover(e.drv, a.Fate)(ctx, id); err != nil || !a.Intent.Running() {
			return err
		}
	}
	return r.ensure(ctx, run, e, a)
}

// remover returns the driver's Remove. For a workload that may continue on another node it returns
// Leave instead, if the driver has it: Leave keeps the resources that the workload may use there.
func remover(d driver.Driver, fate core.Fate) func(context.Context, driver.ID) error {
	l, ok := d.(driver.Leaver)
	if !ok || !fate.Keep && !fate.KeepShared {
		return d.Remove
	}
	return func(ctx context.Context, id driver.ID) error { return l.Leave(ctx, id, fate.Keep) }
}

// removeFrom removes a workload from one engine. It then lists the engine, so that an older list
// cannot bring the instance back.
func (r *Runner) removeFrom(ctx context.Context, a *core.Act, kind driver.Kind) error {
	e := r.engines.get(kind)
	if e == nil {
		return driver.Errorf(driver.RuntimeError, "delete", "runtime not available: %s", kind)
	}
	limited, cancel := context.WithTimeout(ctx, r.cfg.StepTimeout)
	defer cancel()
	if err := remover(e.drv, a.Fate)(limited, driver.ID(a.ID)); err != nil {
		return err
	}
	return r.refresh(ctx, e)
}

// ensure attaches the workload's volumes, ensures the instance, and then releases volumes that the
// specification no longer names.
func (r *Runner) ensure(ctx context.Context, run *running, e *engine, a *core.Act) error {
	in := a.Intent
	body := spec.Of(in)
	specs := spec.Volumes(body)
	volumes, err := r.cfg.Storage.Attach(ctx, in.ID, in.Type, specs)
	if err != nil {
		return err
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(run.start, cancel)()
	err = e.drv.Ensure(within, driver.Spec{
		ID: driver.ID(in.ID), Revision: in.RevisionID, Content: in.EngineContent, Generation: in.Generation,
		ClusterID: a.Cluster, NodeID: r.cfg.Core.Node, Running: in.Running(), Body: body, Labels: in.Labels,
		Exclusive: in.Exclusive, Volumes: volumes, DiskLimit: in.Traits.DiskLimit,
	})
	if err != nil {
		return err
	}
	return r.cfg.Storage.Trim(ctx, in.ID, specs)
}

// check starts a health check or updates its addresses.
func (r *Runner) check(w core.Watch) {
	o := w.Observed
	t := health.Target{
		ID: driver.ID(w.Intent.ID), Instance: w.Instance, Started: o.StartedAt, Addresses: o.Addresses, Ports: o.Ports,
		Check: proto.CloneOf(spec.Of(w.Intent).GetHealthCheck()),
	}
	t.Execer, _ = r.Driver(w.Intent.Type).(driver.Execer)
	r.checks.Watch(t)
}
