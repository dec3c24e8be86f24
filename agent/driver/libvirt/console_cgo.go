//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/persys/compute/agent/driver"
	lv "libvirt.org/go/libvirt"
)

// console implements hypervisor. It opens a libvirt connection of its own for the stream, so that a silent
// guest blocks no other call.
func (v *connection) console(ctx context.Context, uuid string) (io.ReadWriteCloser, error) {
	var mu sync.Mutex
	var opened *stream
	wanted := true
	line, err := ask(ctx, v, "console", reads, func(*lv.Connect) (io.ReadWriteCloser, error) {
		c, err := lv.NewConnect(v.uri)
		if err != nil {
			return nil, err
		}
		s, err := openConsole(c, uuid)
		if err != nil {
			_, cerr := c.Close()
			return nil, errors.Join(err, cerr)
		}
		_ = c.SetKeepAlive(5, 3)
		mu.Lock()
		defer mu.Unlock()
		if opened = s; !wanted {
			return nil, s.Close()
		}
		return s, nil
	})
	if err != nil { // the stream is open, or opening it continues in the background
		mu.Lock()
		defer mu.Unlock()
		wanted = false
		if opened != nil {
			err = errors.Join(err, opened.Close())
		}
	}
	return line, err
}

// stream is the byte stream of an attached console.
type stream struct {
	c    *lv.Connect
	s    *lv.Stream
	once sync.Once
	use  sync.RWMutex
	over bool
}

func openConsole(c *lv.Connect, uuid string) (*stream, error) {
	d, err := c.LookupDomainByUUIDString(uuid)
	if err != nil {
		return nil, err
	}
	defer d.Free()
	s, err := c.NewStream(0)
	if err != nil {
		return nil, err
	}
	if err := d.OpenConsole("", s, lv.DOMAIN_CONSOLE_FORCE); err != nil {
		return nil, errors.Join(err, s.Free())
	}
	return &stream{c: c, s: s}, nil
}

func (s *stream) Read(p []byte) (int, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.over {
		return 0, io.EOF
	}
	n, err := s.s.Recv(p)
	if err != nil || n == 0 {
		return 0, io.EOF // the guest has ended, or Close was called
	}
	return n, nil
}

func (s *stream) Write(p []byte) (int, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.over {
		return 0, io.ErrClosedPipe
	}
	sent := 0
	for sent < len(p) {
		n, err := s.s.Send(p[sent:])
		if err != nil {
			return sent, driver.Errorf(driver.RuntimeError, "console", "%w", err)
		}
		sent += n
	}
	return sent, nil
}

// Close ends a blocked Read.
func (s *stream) Close() error {
	s.once.Do(func() {
		_ = s.s.Abort()
		s.use.Lock()
		defer s.use.Unlock()
		s.over = true
		_ = s.s.Free()
		_, _ = s.c.Close()
	})
	return nil
}
