package sim

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy/asks"
)

// Driver implements driver.Driver for one node that uses a simulated Engine.
type Driver struct {
	engine   *Engine
	identity driver.Identity
}

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Signaler = (*Driver)(nil)
)

// Driver returns the driver of one node for the engine e. Any number of nodes may share an engine.
// identity.Owns is called under the engine's lock, so it must not call a driver of the same engine.
func (e *Engine) Driver(identity driver.Identity) *Driver {
	return &Driver{engine: e, identity: identity}
}

// Kind returns Options.Kind.
func (d *Driver) Kind() driver.Kind { return d.engine.opt.Kind }

// call runs f under the engine's lock. It returns an error if the engine is down or ctx has ended.
func (d *Driver) call(ctx context.Context, op string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return &driver.Error{Class: driver.UnknownError, Op: op, Err: err}
	}
	return d.engine.with(op, func() error {
		if reason, err := d.engine.store.down(); err != nil {
			return err
		} else if reason != "" {
			return driver.Errorf(driver.RuntimeUnhealthy, op, "the simulated engine is down: %s", reason)
		}
		return f()
	})
}

// Probe implements driver.Driver.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) {
	out := driver.Capacity{Version: "sim/1"}
	err := d.call(ctx, "probe", func() (err error) {
		out.EngineID, err = d.engine.store.id()
		return err
	})
	if err != nil {
		out.Reason = err.Error()
		return out, err
	}
	out.Healthy = true
	return out, nil
}

// names returns the possible names of a workload's instance, the preferred one first: its id, and its id with
// the node's name.
func (d *Driver) names(id driver.ID) []string {
	return []string{string(id), string(id) + "--" + d.identity.NodeID}
}

// find returns our instance of a workload.
func (d *Driver) find(id driver.ID) (record, bool, error) {
	for _, name := range d.names(id) {
		r, ok, err := d.engine.store.get(name)
		if err != nil {
			return record{}, false, err
		}
		if ok && d.ours(r) && r.Labels[driver.LabelWorkload] == string(id) {
			return r, true, nil
		}
	}
	return record{}, false, nil
}

func (d *Driver) ours(r record) bool {
	ownership := d.identity.Of(r.Labels)
	return ownership == driver.Owned || ownership == driver.Claimed
}

// Ensure implements driver.Driver. It returns at once; while a slow start lasts, the state is Pending.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	b, err := bodyOf(d.Kind(), spec)
	if err != nil {
		return err
	}
	want, err := behaviourOf(b)
	if err != nil {
		return err
	}
	return d.call(ctx, "ensure", func() error {
		have, ok, err := d.find(spec.ID)
		if err != nil {
			return err
		}
		if !ok || cmp.Or(have.Labels[driver.LabelContent], d.adopted(have, spec)) != spec.Content {
			if have, err = d.make(spec, b, want, have); err != nil {
				return err
			}
		}
		active := have.at(d.engine.opt.Mono()).active()
		switch {
		case spec.Running && !active:
			return d.engine.start(have)
		case !spec.Running && active:
			return d.engine.end(have, 0, "")
		}
		return nil
	})
}

// adopted returns the content (hash of the specification) of an instance that has no content label. It is the
// content of spec if the instance has the revision of spec, and "" otherwise.
func (d *Driver) adopted(r record, spec driver.Spec) string {
	if revision := r.Labels[driver.LabelRevision]; revision != "" && revision == spec.Revision {
		return spec.Content
	}
	return ""
}

// judge returns an error if the policies forbid a resource of the machine that a workload needs, as the real
// drivers do. It does not check Compose stacks, because the simulated driver does not load them.
func judge(spec driver.Spec) error {
	if c := spec.Body.GetContainer(); c != nil {
		return spec.Judge(driver.Container, asks.Container(c, asks.Image(c.GetImage())), nil)
	}
	if v := spec.Body.GetVm(); v != nil {
		return spec.Judge(driver.VM, asks.VM(v, asks.Machine{Names: []string{string(spec.ID)}}), nil)
	}
	return nil
}

// make stores a new record (simulated instance) for spec. The new record replaces old and keeps its name. If
// there is no old record, the new one gets a free name.
func (d *Driver) make(spec driver.Spec, b body, want behaviour, old record) (record, error) {
	if want.fail != "" {
		return record{}, driver.Errorf(want.fail, "ensure", "image %s: simulated failure", b.image)
	}
	if want.flaky > 0 && d.engine.failsAgain(spec.ID, want.flaky) {
		return record{}, driver.Errorf(driver.RuntimeError, "ensure", "image %s: simulated failure number %d", b.image, want.flaky)
	}
	if err := judge(spec); err != nil {
		return record{}, err
	}
	name := old.Name
	if name == "" {
		var err error
		if name, err = d.freeName(spec.ID); err != nil {
			return record{}, err
		}
	} else if err := d.engine.end(old, 0, ""); err != nil {
		return record{}, err
	}
	n, err := d.engine.store.sequence()
	if err != nil {
		return record{}, err
	}
	r := record{
		Name: name, RuntimeID: fmt.Sprintf("%012x", n), Image: b.image, Behaviour: want,
		Labels: driver.Labels(d.Kind(), spec, b.labels),
	}
	if err := d.engine.store.put(r); err != nil {
		return record{}, err
	}
	d.engine.hintRecord(r)
	return r, nil
}

func (d *Driver) freeName(id driver.ID) (string, error) {
	for _, name := range d.names(id) {
		holder, ok, err := d.engine.store.get(name)
		if err != nil {
			return "", err
		}
		if !ok {
			return name, nil
		}
		if d.identity.Of(holder.Labels) != driver.Sibling {
			return "", driver.Errorf(driver.NameConflict, "ensure",
				"name %q of workload %q is taken by instance %s (image %s), which is not ours", name, id, holder.RuntimeID, holder.Image)
		}
	}
	return "", driver.Errorf(driver.NameConflict, "ensure", "every possible name of workload %q is used by another agent of the cluster: %q", id, d.names(id))
}

// failsAgain is called by Ensure for a workload with the image sim/flaky. It returns true for the first
// calls, as many as the parameter times says, and counts them. Then it returns false once, and the count
// begins anew.
func (e *Engine) failsAgain(id driver.ID, times int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed[id] < times {
		e.failed[id]++
		return true
	}
	delete(e.failed, id)
	return false
}

// stopGrace is how long an instance may take to stop before it is killed.
const stopGrace = 30 * time.Second

// Signal implements driver.Signaler. The signal becomes a line of the instance's output.
func (d *Driver) Signal(ctx context.Context, id driver.ID, _, signal string) error {
	return d.call(ctx, "signal", func() error {
		r, ok, err := d.find(id)
		now := d.engine.opt.Mono()
		if err != nil || !ok || !r.at(now).active() {
			return err
		}
		d.engine.say(&r, now, "sim: received "+signal)
		return d.engine.store.put(r)
	})
}

// Halt implements driver.Driver. It takes as long as the workload's behaviour needs to stop, but at most the
// grace period.
func (d *Driver) Halt(ctx context.Context, id driver.ID, most time.Duration) error {
	grace := max(most, 0)
	if most == driver.OwnGrace {
		grace = stopGrace
	}
	var delay time.Duration
	var running bool
	err := d.call(ctx, "halt", func() error {
		r, ok, err := d.find(id)
		running = ok && r.at(d.engine.opt.Mono()).active()
		delay = r.Behaviour.StopDelay
		return err
	})
	if err != nil || !running {
		return err
	}
	code := 0
	if delay > grace {
		delay, code = grace, 137
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return d.call(ctx, "halt", func() error {
		r, ok, err := d.find(id)
		if err != nil || !ok {
			return err
		}
		return d.engine.end(r, code, "")
	})
}

// Remove implements driver.Driver. A running workload is killed at once.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	return d.call(ctx, "remove", func() error {
		r, ok, err := d.find(id)
		if err != nil || !ok {
			return err
		}
		if err := d.engine.end(r, 0, ""); err != nil {
			return err
		}
		if err := d.engine.store.remove(r.Name); err != nil {
			return err
		}
		d.engine.hintRecord(r)
		return nil
	})
}

// List implements driver.Driver.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	var records []record
	err := d.call(ctx, "list", func() (err error) {
		records, err = d.engine.store.all()
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]driver.Observed, 0, len(records))
	for _, r := range records {
		if d.ours(r) {
			out = append(out, d.observe(r))
		}
	}
	slices.SortFunc(out, func(a, b driver.Observed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, nil
}

// Look implements driver.Looker.
func (d *Driver) Look(ctx context.Context, id driver.ID) (*driver.Observed, error) {
	all, err := d.List(ctx)
	if i := slices.IndexFunc(all, func(o driver.Observed) bool { return o.ID == id }); i >= 0 {
		return &all[i], err
	}
	return nil, err
}

func (d *Driver) observe(r record) driver.Observed {
	p := r.at(d.engine.opt.Mono())
	o := driver.FromLabels(r.Labels)
	o.Owned = d.identity.Of(r.Labels) == driver.Owned
	o.State, o.RestartCount = p.state, p.restarts
	o.RuntimeID, o.Name = r.RuntimeID, r.Name
	o.Metadata = map[string]string{"container.id": r.RuntimeID, "container.image": driver.Bound(r.Image)}
	if r.Started && r.Refused == "" {
		o.StartedAt = r.shown(p.started)
		o.Metadata["container.started_at"] = o.StartedAt.Format(time.RFC3339)
	}
	if p.finished {
		o.FinishedAt, o.ExitCode = r.shown(p.ended), p.code
		o.Metadata["container.finished_at"] = o.FinishedAt.Format(time.RFC3339)
		o.Metadata["container.exit_code"] = strconv.Itoa(p.code)
	}
	switch {
	case p.state == driver.Failed:
		o.Class = cmp.Or(r.Class, driver.RuntimeError)
		o.Message = cmp.Or(r.Refused, r.Note, fmt.Sprintf("exited with code %d", p.code))
		o.Metadata["failure_reason"], o.Metadata["failure_message"] = string(o.Class), o.Message
	case p.state == driver.Pending && p.restarts > 0:
		o.Message = fmt.Sprintf("restarting after exit code %d (restart %d)", p.code, p.restarts)
	case p.state == driver.Pending:
		o.Message = "starting"
	case p.state == driver.Running:
		o.Message = "running"
		o.Addresses, o.Ports = []string{"127.0.0.1"}, slices.Clone(r.Behaviour.Ports)
	case p.finished:
		o.Message = "exited with code 0"
	default:
		o.Message = "created, not started"
	}
	return o
}

// Logs implements driver.Driver. The lines are those that the simulation wrote at starts and stops.
func (d *Driver) Logs(ctx context.Context, id driver.ID, options driver.LogOptions) (io.ReadCloser, error) {
	first, err := d.output(ctx, id)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.copyOutput(ctx, pw, id, first, options)
		pw.Close()
	}()
	return &logReader{PipeReader: pr, stop: func() {
		cancel()
		pr.CloseWithError(io.ErrClosedPipe)
		<-done
	}}, nil
}

// output returns the record of an instance. The record contains the lines that the instance has printed up to
// now.
func (d *Driver) output(ctx context.Context, id driver.ID) (record, error) {
	var out record
	err := d.call(ctx, "logs", func() error {
		r, ok, err := d.find(id)
		if err == nil && !ok {
			err = driver.Errorf(driver.RuntimeResourceMissing, "logs", "workload %q not found", id)
		}
		out = r
		return err
	})
	return out, err
}

const followInterval = 50 * time.Millisecond

// copyOutput writes an instance's output to w and follows it. It returns when the instance ends, is replaced
// or is removed, or when the reader closes the stream.
func (d *Driver) copyOutput(ctx context.Context, w io.Writer, id driver.ID, r record, options driver.LogOptions) {
	lines := r.Output
	if options.Tail > 0 {
		lines = lines[max(0, len(lines)-options.Tail):]
	}
	last := options.Since
	for {
		for _, l := range lines {
			if l.At.Before(last) {
				continue
			}
			last = l.At.Add(1)
			if options.Seen != nil {
				options.Seen(l.At)
			}
			text := l.Text + "\n"
			if options.Timestamps {
				text = l.At.Format(time.RFC3339Nano) + " " + text
			}
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
		if !options.Follow || !r.at(d.engine.opt.Mono()).active() {
			return
		}
		timer := time.NewTimer(followInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		again, err := d.output(ctx, id)
		if err != nil || again.RuntimeID != r.RuntimeID {
			return
		}
		r, lines = again, again.Output
	}
}

type logReader struct {
	*io.PipeReader
	once sync.Once
	stop func()
}

func (r *logReader) Close() error {
	r.once.Do(r.stop)
	return nil
}
