package agent

import (
	"sync"
	"time"
)

// queue says which workloads to look at, and when. A workload is worked on by one goroutine at a
// time; asking again meanwhile makes for one more look afterwards.
type queue struct {
	wake chan struct{}

	mu   sync.Mutex
	due  map[string]time.Time
	busy map[string]bool
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), due: map[string]time.Time{}, busy: map[string]bool{}}
}

// add asks for a look at or after a time; the earliest of several counts.
func (q *queue) add(id string, at time.Time) {
	q.mu.Lock()
	old, ok := q.due[id]
	earlier := !ok || at.Before(old)
	if earlier {
		q.due[id] = at
	}
	q.mu.Unlock()
	if earlier {
		nudge(q.wake)
	}
}

// take marks up to limit due workloads, in total, as being worked on. next is when the next one
// is due; zero when only the end of current work can make one.
func (q *queue) take(now time.Time, limit int) (ids []string, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, at := range q.due {
		switch {
		case q.busy[id]:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case len(q.busy) < limit:
			delete(q.due, id)
			q.busy[id] = true
			ids = append(ids, id)
		}
	}
	return ids, next
}

func (q *queue) done(id string) {
	q.mu.Lock()
	delete(q.busy, id)
	q.mu.Unlock()
	nudge(q.wake)
}

func (q *queue) running(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy[id]
}

func (q *queue) depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.due) + len(q.busy)
}
