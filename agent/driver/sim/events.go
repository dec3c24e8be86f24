package sim

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
)

// watcher serves one call of Events. If a call in the same process changes an instance, the watcher sends a
// hint at once. If the simulated behaviour changes an instance (such as a crash after a delay), the watcher
// sends a hint at that time. The watcher does not see changes by other processes that share the engine's
// folder.
type watcher struct {
	driver *Driver
	hints  *driver.Hints

	mu   sync.Mutex
	due  schedule
	wake chan struct{}
}

type appointment struct {
	at time.Duration
	id driver.ID
}

type schedule []appointment

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at < s[j].at }
func (s schedule) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)        { *s = append(*s, x.(appointment)) }
func (s *schedule) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// Events implements driver.Driver.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	w := &watcher{driver: d, hints: driver.NewHints(), wake: make(chan struct{}, 1)}
	d.engine.mu.Lock()
	d.engine.watchers[w] = struct{}{}
	d.engine.mu.Unlock()
	var records []record
	err := d.call(ctx, "events", func() (err error) {
		records, err = d.engine.store.all()
		return err
	})
	if err != nil && driver.ClassOf(err) != driver.RuntimeUnhealthy {
		d.engine.forget(w)
		return nil, err
	}
	for _, r := range records {
		if d.ours(r) {
			w.plan(r)
		}
	}
	out := make(chan driver.ID)
	go w.hints.Send(ctx, out)
	go func() {
		defer d.engine.forget(w)
		w.run(ctx)
	}()
	return out, nil
}

func (e *Engine) forget(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers, w)
}

// hintRecord tells the watchers of the node that owns the instance r that the instance may have changed.
func (e *Engine) hintRecord(r record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		if w.driver.ours(r) {
			w.hints.Add(driver.ID(r.Labels[driver.LabelWorkload]))
			w.plan(r)
		}
	}
}

func (e *Engine) hint(id driver.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		w.hints.Add(id)
	}
}

// plan schedules an event for the time at which the simulated behaviour changes the instance r next.
func (w *watcher) plan(r record) {
	next := r.at(w.driver.engine.opt.Mono()).next
	if next == 0 {
		return
	}
	w.mu.Lock()
	heap.Push(&w.due, appointment{next, driver.ID(r.Labels[driver.LabelWorkload])})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run sends the scheduled events when they are due. It uses one timer for all of them.
func (w *watcher) run(ctx context.Context) {
	engine := w.driver.engine
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := engine.opt.Mono()
		wait := time.Hour
		var due []driver.ID
		w.mu.Lock()
		for len(w.due) > 0 {
			if w.due[0].at > now {
				wait = w.due[0].at - now
				break
			}
			due = append(due, heap.Pop(&w.due).(appointment).id)
		}
		w.mu.Unlock()
		for _, id := range due {
			w.hints.Add(id)
			// Plan the next hint only if the engine is up. After an outage no planned hints are needed,
			// because the watcher then sends the hint that any workload may have changed.
			if r, err := w.driver.output(ctx, id); err == nil {
				w.plan(r)
			}
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}
