package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	lv "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"github.com/google/uuid"

	"github.com/persys/compute/agent/driver"
)

// endpoint is a parsed libvirt URI.
type endpoint struct {
	// sockets are the paths at which the daemon may listen. The first socket that accepts a connection is used.
	sockets []string
	// hypervisor is the part of the URI that the driver sends to the daemon: the URI without its
	// transport.
	hypervisor lv.ConnectURI
}

// parseURI looks for the daemon where libvirt's own client does: the daemon for one hypervisor (virtqemud) comes before
// libvirtd.
func parseURI(uri string) (endpoint, error) {
	refuse := func(format string, args ...any) (endpoint, error) {
		return endpoint{}, driver.Errorf(driver.InvalidConfiguration, "libvirt", format, args...)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return refuse("%w", err)
	}
	kind, transport, _ := strings.Cut(u.Scheme, "+")
	if kind == "" || u.Path == "" {
		return refuse("the URI %q must have a hypervisor and a path: use qemu:///system", uri)
	}
	if u.Host != "" || transport != "" && transport != "unix" {
		return refuse("the URI %q must name libvirt on this machine, because disks are local files: "+
			"use qemu:///system, or qemu+unix:///system?socket=PATH", uri)
	}
	e := endpoint{hypervisor: lv.RemoteURI(u)}
	if socket := u.Query().Get("socket"); socket != "" {
		e.sockets = []string{socket}
		return e, nil
	}
	names := []string{"virt" + kind + "d-sock", "libvirt-sock"}
	switch mode := u.Query().Get("mode"); mode {
	case "", "auto":
	case "direct":
		names = names[:1]
	case "legacy":
		names = names[1:]
	default:
		return refuse("the URI %q has mode %q; it must be auto, direct or legacy", uri, mode)
	}
	dir := "/run/libvirt"
	if u.Path == "/session" {
		if dir, err = sessionDir(); err != nil {
			return refuse("the URI %q needs a folder for the sockets of this user: %w", uri, err)
		}
	}
	for _, name := range names {
		e.sockets = append(e.sockets, filepath.Join(dir, name))
	}
	return e, nil
}

// sessionDir returns the folder with the sockets of the daemons that the user runs.
func sessionDir() (string, error) {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		var err error
		if dir, err = os.UserCacheDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "libvirt"), nil
}

// missing returns the error that no socket of the endpoint exists.
func (e endpoint) missing() error {
	return fmt.Errorf("no libvirt daemon listens at %s: install libvirt and QEMU (Debian: libvirt-daemon-system and qemu-system-x86) "+
		"and start the daemon (systemctl start libvirtd or virtqemud.socket)", strings.Join(e.sockets, " or "))
}

// dial connects to the first socket that accepts a connection.
func (e endpoint) dial(ctx context.Context) (net.Conn, error) {
	err := e.missing()
	for _, path := range e.sockets {
		var d net.Dialer
		conn, refused := d.DialContext(ctx, "unix", path)
		if refused == nil {
			return conn, nil
		}
		if !errors.Is(refused, fs.ErrNotExist) {
			err = refused
		}
	}
	return nil, err
}

// Available returns an error if there is no socket of a libvirt daemon on this machine, or if the URI names none. An
// empty uri means the default URI. Available does not contact the daemon.
func Available(uri string) error {
	e, err := parseURI(cmp.Or(uri, defaultURI))
	if err != nil {
		return err
	}
	for _, path := range e.sockets {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%w", e.missing())
}

// connection implements hypervisor over one libvirt connection at a time. It opens a new connection when the
// old one is lost.
type connection struct {
	uri     string
	at      endpoint
	timeout time.Duration
	log     *slog.Logger

	// While there is a connection, the driver sends the daemon a short call at the interval checkEvery. If the daemon
	// does not answer within checkWithin, the driver closes the connection. All calls that wait for an answer then
	// fail, and the next call opens a new connection.
	checkEvery, checkWithin time.Duration

	ctx context.Context // ends when the driver is closed
	end context.CancelFunc

	dialing chan struct{} // semaphore: one goroutine at a time opens a connection

	mu       sync.Mutex
	link     *link
	watchers map[int]func(string)
	nextID   int
	known    *facts // what libvirt and QEMU can do, as read over this connection
}

// link is one connection to the daemon.
type link struct {
	*lv.Libvirt
	ctx  context.Context // ends when the connection is lost or closed
	lose context.CancelFunc
}

// wire is the socket of a link. It calls lose when the daemon closes the socket.
type wire struct {
	net.Conn
	lose context.CancelFunc
}

func (w wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.lose()
	}
	return n, err
}

func connect(uri string, timeout time.Duration, log *slog.Logger) (hypervisor, error) {
	at, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	return &connection{
		uri: uri, at: at, timeout: timeout, log: log, ctx: ctx, end: end, dialing: make(chan struct{}, 1), watchers: map[int]func(string){},
		checkEvery: 5 * time.Second, checkWithin: 15 * time.Second, // the times of keep-alives that libvirt's own clients use
	}, nil
}

func (v *connection) close() error {
	v.mu.Lock()
	l := v.link
	v.link = nil
	v.mu.Unlock()
	if l != nil {
		l.close()
	}
	v.end()
	return nil
}

// close ends the connection. It tells the daemon first, because the daemon logs an error if a connection just
// breaks.
func (l *link) close() {
	limit := time.AfterFunc(time.Second, l.lose)
	defer limit.Stop()
	_ = l.ConnectClose()
	l.lose()
}

// open opens a connection and calls the function setup with it. When ctx ends before both are done, the connection is
// closed. The function wrap, which may be nil, wraps the socket.
func (v *connection) open(ctx context.Context, wrap func(net.Conn) net.Conn, setup func(*link) error) (*link, error) {
	conn, err := v.at.dial(ctx)
	if err != nil {
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s: %w", v.uri, err)
	}
	live, lose := context.WithCancel(v.ctx)
	context.AfterFunc(live, func() { _ = conn.Close() })
	var socket net.Conn = wire{conn, lose}
	if wrap != nil {
		socket = wrap(socket)
	}
	l := &link{Libvirt: lv.NewWithDialer(dialers.NewAlreadyConnected(socket)), ctx: live, lose: lose}
	inTime := context.AfterFunc(ctx, lose)
	if err = l.ConnectToURI(v.at.hypervisor); err != nil {
		err = driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s: %w", v.uri, err)
	} else {
		err = setup(l)
	}
	if !inTime() {
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s does not answer within %s", v.uri, v.timeout)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// living returns the open connection, or nil.
func (v *connection) living() *link {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.link; l != nil && l.ctx.Err() == nil {
		return l
	}
	v.link, v.known = nil, nil
	return nil
}

// get returns the open connection, or opens one.
func (v *connection) get() (*link, error) {
	if l := v.living(); l != nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(v.ctx, v.timeout)
	defer cancel()
	// One goroutine connects at a time, without holding mu: a daemon that hangs or is still starting may
	// accept a connection and never answer.
	select {
	case v.dialing <- struct{}{}:
		defer func() { <-v.dialing }()
	case <-ctx.Done():
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s does not answer within %s", v.uri, v.timeout)
	}
	if v.ctx.Err() != nil {
		return nil, driver.Errorf(driver.RuntimeError, "libvirt", "the driver is closed")
	}
	if l := v.living(); l != nil {
		return l, nil
	}
	l, err := v.open(ctx, nil, func(l *link) error {
		events, err := l.LifecycleEvents(l.ctx)
		if err != nil {
			v.log.Warn("libvirt delivers no events: guests are only polled", "err", err)
			return nil
		}
		go func() {
			for e := range events {
				v.tell(e.Dom.Name)
			}
		}()
		return nil
	})
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.link, v.known = l, nil
	v.mu.Unlock()
	go v.attend(l)
	return l, nil
}

// attend checks the daemon until the connection ends, and reports the beginning and the end of the connection to the
// watchers.
func (v *connection) attend(l *link) {
	v.tell("")
	tick := time.NewTicker(v.checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			v.tell("")
			return
		case <-tick.C:
			limit := time.AfterFunc(v.checkWithin, l.lose)
			_, _ = l.ConnectGetLibVersion() // any answer shows that the daemon works
			limit.Stop()
		}
	}
}

func (v *connection) tell(name string) {
	v.mu.Lock()
	fns := make([]func(string), 0, len(v.watchers))
	for _, fn := range v.watchers {
		fns = append(fns, fn)
	}
	v.mu.Unlock()
	for _, fn := range fns {
		fn(name)
	}
}

// watch implements hypervisor: it calls fn with the domains that may have changed. While the daemon is down,
// it tries to connect every second.
func (v *connection) watch(ctx context.Context, fn func(string)) error {
	v.mu.Lock()
	id := v.nextID
	v.nextID++
	v.watchers[id] = fn
	v.mu.Unlock()
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			_, _ = v.get()
			select {
			case <-tick.C:
			case <-ctx.Done():
				v.mu.Lock()
				delete(v.watchers, id)
				v.mu.Unlock()
				return
			}
		}
	}()
	return nil
}

// These durations limit how long a call of libvirt may continue after its caller's context has ended. Calls
// that change something may continue longer than reads, so that the change is completed.
const (
	reads   = time.Duration(0)
	changes = 10 * time.Second
)

// ask calls the function work with the open connection and returns its result. When ctx ends, ask waits for
// work no longer than the duration after.
func ask[T any](ctx context.Context, v *connection, op string, after time.Duration, work func(*lv.Libvirt) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	out := make(chan answer, 1)
	go func() {
		l, err := v.get()
		if err != nil {
			out <- answer{none, err}
			return
		}
		value, err := work(l.Libvirt)
		if lost(err) {
			l.lose()
		}
		out <- answer{value, classify(op, err)}
	}()
	limit := time.NewTimer(v.timeout)
	defer limit.Stop()
	gone := ctx.Done()
	var patience <-chan time.Time
	for {
		select {
		case a := <-out:
			return a.value, a.err
		case <-limit.C:
			return none, driver.Errorf(driver.RuntimeUnhealthy, op, "libvirt does not answer within %s", v.timeout)
		case <-gone:
			if after == 0 {
				return none, ctx.Err()
			}
			gone = nil
			timer := time.NewTimer(after)
			defer timer.Stop()
			patience = timer.C
		case <-patience:
			return none, ctx.Err()
		}
	}
}

// act is like ask, for a call that returns no result.
func act(ctx context.Context, v *connection, op string, work func(*lv.Libvirt) error) error {
	_, err := ask(ctx, v, op, changes, func(c *lv.Libvirt) (struct{}, error) { return struct{}{}, work(c) })
	return err
}

// lookup returns the domain that has this uuid.
func lookup(c *lv.Libvirt, id string) (lv.Domain, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return lv.Domain{}, err
	}
	return c.DomainLookupByUUID(lv.UUID(parsed))
}

// on looks up the domain with the given UUID, and calls the function work with it. The time limits are those of act.
func on(ctx context.Context, v *connection, op, id string, work func(*lv.Libvirt, lv.Domain) error) error {
	return act(ctx, v, op, func(c *lv.Libvirt) error {
		d, err := lookup(c, id)
		if err != nil {
			return err
		}
		return work(c, d)
	})
}
