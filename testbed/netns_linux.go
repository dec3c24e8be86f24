package testbed

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a new network namespace, with a thread in it that runs functions one at a time. It needs root.
type Namespace struct {
	Handle netns.NsHandle
	work   chan func()
}

// NewNamespace makes a network namespace. It lasts until Close, or longer if a socket or another thread is still in it.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.Handle, err = netns.Get()
		}
		if err != nil {
			ready <- fmt.Errorf("cannot make a network namespace: %w", err)
			return
		}
		ready <- nil
		for f := range n.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return n, nil
}

// Do runs f in the namespace.
func (n *Namespace) Do(f func() error) error {
	done := make(chan error)
	n.work <- func() { done <- f() }
	return <-done
}

// Close ends the thread of the namespace.
func (n *Namespace) Close() {
	close(n.work)
	_ = n.Handle.Close()
}
