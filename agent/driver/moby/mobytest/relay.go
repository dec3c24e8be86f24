package mobytest

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"github.com/persys/compute/testbed"
)

// Relay is a proxy between a driver and an engine on a Unix socket. A test can interrupt the connection.
type Relay struct {
	path, target string

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
	wg    sync.WaitGroup
}

// NewRelay opens a relay to the engine to which cli is connected. The engine must listen on a Unix socket.
func NewRelay(t *testing.T, cli *client.Client) *Relay {
	t.Helper()
	target, ok := strings.CutPrefix(cli.DaemonHost(), "unix://")
	if !ok {
		testbed.Need(t, "an engine on a Unix socket", fmt.Errorf("the engine is at %s", cli.DaemonHost()))
	}
	r := &Relay{path: filepath.Join(t.TempDir(), "relay.sock"), target: target}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Cut(); r.wg.Wait() })
	return r
}

// Host returns the address of the relay, to use as the engine's address in a driver.
func (r *Relay) Host() string { return "unix://" + r.path }

// Restore makes the engine reachable again.
func (r *Relay) Restore(t *testing.T) {
	t.Helper()
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
}

func (r *Relay) open() error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", r.path)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.l = l
	r.mu.Unlock()
	r.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(context.Background(), "unix", r.target)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			cut := r.l != l
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			if cut { // the connection was accepted while the relay was being interrupted
				_, _ = in.Close(), out.Close()
			}
			r.wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			r.wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	return nil
}

// Cut makes the engine unreachable: the relay closes all connections and refuses new ones.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.l != nil {
		_ = r.l.Close()
	}
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.l, r.conns = nil, nil
}
