package runner

import (
	"context"
	"sync"
)

// flight runs one function for many callers. Every caller waits for a run that starts after its call. Callers
// that wait for the next run share it. At most one run is active.
type flight struct {
	run func() error

	mu   sync.Mutex
	next *pass // run that was requested and has not started
	busy bool
}

type pass struct {
	done chan struct{}
	err  error
}

// fresh waits for the end of a run that starts after the call. If no run is active, it starts one in a
// goroutine, with spawn.
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
