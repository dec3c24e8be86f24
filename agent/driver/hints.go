package driver

import (
	"context"
	"sync"
)

// Hints is a queue of ids of workloads that may have changed; an id is in the queue at most once. A slow reader
// does not block Add. Use NewHints; the zero value is not usable.
type Hints struct {
	mu    sync.Mutex
	set   map[ID]struct{}
	order []ID
	wake  chan struct{}
}

// NewHints returns an empty queue.
func NewHints() *Hints {
	return &Hints{set: make(map[ID]struct{}), wake: make(chan struct{}, 1)}
}

// Add records that id may have changed; it never blocks.
func (h *Hints) Add(id ID) {
	h.mu.Lock()
	if _, dup := h.set[id]; !dup {
		h.set[id] = struct{}{}
		h.order = append(h.order, id)
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Send sends the queued ids to the channel out until ctx ends, then closes out.
func (h *Hints) Send(ctx context.Context, out chan<- ID) {
	defer close(out)
	for {
		id, ok := h.take()
		if !ok {
			select {
			case <-h.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case out <- id:
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hints) take() (ID, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.order) == 0 {
		return "", false
	}
	id := h.order[0]
	h.order = h.order[1:]
	delete(h.set, id)
	return id, true
}
