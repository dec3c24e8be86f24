package runner

import (
	"context"
	"sync"
)

// flight shares the runs of one function: every caller gets a run that began after its call, and any
// number of callers wait for the same one. At most one runs at a time.
type flight struct {
	run func() error

	mu   sync.Mutex
	next *pass // accepted, not begun
	busy bool
}

type pass struct {
	done chan struct{}
	err  error
}

// fresh waits for a run that begins after the call. Where none is due, spawn starts a goroutine for it.
func (f *flight) fresh(ctx context.Context, spawn func(func())) error {
	f.mu.Lock()
	p := f.next
	if p == nil {
		p = &pass{done: make(chan struct{})}
		f.next = p
		if !f.busy {
			f.busy = true
			spawn(f.loop)
		}
	}
	f.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *flight) loop() {
	for {
		f.mu.Lock()
		p := f.next
		f.next = nil
		f.busy = p != nil
		f.mu.Unlock()
		if p == nil {
			return
		}
		p.err = f.run()
		close(p.done)
	}
}
