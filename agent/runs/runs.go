// Package runs lets many callers share few runs of one function.
package runs

import (
	"context"
	"sync"
)

// Shared is runs of one function: every caller gets a run that began after its call, and
// any number of callers wait for the same one. At most one runs at a time.
type Shared struct {
	Run func() error

	mu   sync.Mutex
	next *flight // accepted, not begun
	busy bool
}

type flight struct {
	done chan struct{}
	err  error
}

// Fresh waits for a run that begins after the call. Where none is due, spawn starts a goroutine for it.
func (c *Shared) Fresh(ctx context.Context, spawn func(func())) error {
	c.mu.Lock()
	f := c.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		c.next = f
		if !c.busy {
			c.busy = true
			spawn(c.loop)
		}
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Shared) loop() {
	for {
		c.mu.Lock()
		f := c.next
		c.next = nil
		c.busy = f != nil
		c.mu.Unlock()
		if f == nil {
			return
		}
		f.err = c.Run()
		close(f.done)
	}
}
