package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// Run is the time from a start of a container to its end, according to the events of the Docker engine.
type Run struct {
	Workload, Node, Container string
	From, To                  time.Time // start and end of the run; To is zero while it lasts
}

// Runs records from the engine's events when each container of a cluster started and ended.
type Runs struct {
	stop func()
	done chan struct{}

	mu   sync.Mutex
	list []Run
	err  error
}

// Watch begins to record when the containers of a cluster start and end. Close ends the recording.
func (e *Engine) Watch(ctx context.Context, clusterID string) *Runs {
	ctx, cancel := context.WithCancel(ctx)
	r := &Runs{stop: cancel, done: make(chan struct{})}
	stream := e.cli.Events(ctx, client.EventsListOptions{Filters: make(client.Filters).
		Add("type", "container").Add("event", "start", "die").Add("label", driver.LabelCluster+"="+clusterID)})
	go func() {
		defer close(r.done)
		for {
			select {
			case m := <-stream.Messages:
				r.record(string(m.Action), m.Actor.ID, m.Actor.Attributes, time.Unix(0, m.TimeNano))
			case err := <-stream.Err:
				r.mu.Lock()
				if ctx.Err() == nil {
					r.err = fmt.Errorf("the engine's events ended: %w", err)
				}
				r.mu.Unlock()
				return
			}
		}
	}()
	return r
}

// Close ends the recording.
func (r *Runs) Close() {
	r.stop()
	<-r.done
}

func (r *Runs) record(action, id string, labels map[string]string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if action == "start" {
		r.list = append(r.list, Run{Workload: labels[driver.LabelWorkload], Node: labels[driver.LabelNode], Container: id, From: at})
		return
	}
	for i := range r.list {
		if r.list[i].Container == id && r.list[i].To.IsZero() {
			r.list[i].To = at
		}
	}
}

// Of returns the runs of one workload so far, in the order of their start.
func (r *Runs) Of(workload string) ([]Run, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.list)
	out = slices.DeleteFunc(out, func(x Run) bool { return x.Workload != workload })
	slices.SortStableFunc(out, func(a, b Run) int { return a.From.Compare(b.From) })
	return out, r.err
}

// Overlaps returns every pair of runs that overlap in time, that is, of instances that ran at the same time.
func Overlaps(runs []Run) [][2]Run {
	var out [][2]Run
	for i, a := range runs {
		for _, b := range runs[i+1:] {
			if a.To.IsZero() || b.From.Before(a.To) {
				out = append(out, [2]Run{a, b})
			}
		}
	}
	return out
}
