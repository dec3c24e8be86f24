//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	lv "libvirt.org/go/libvirt"
)

// Built reports whether this binary was built with libvirt support.
const Built = true

// Available returns an error if this machine cannot run virtual machines. It does not contact libvirt's
// daemon. The shared library libvirt is loaded at the first use; if the library is missing at that time, this
// process does not search for it again.
func Available() error {
	if _, err := lv.GetVersion(); err != nil {
		return driver.Errorf(driver.InvalidConfiguration, "libvirt", "libvirt's client library is not installed (libvirt.so.0; Debian: libvirt0): %w", err)
	}
	return nil
}

// loop runs libvirt's event loop while any connection needs it. libvirt allows one event loop per process,
// hence the package variable.
var loop struct {
	register sync.Once
	err      error

	mu    sync.Mutex
	users int
	stop  chan struct{}
	done  chan struct{}
}

func enterLoop() error {
	loop.register.Do(func() { loop.err = lv.EventRegisterDefaultImpl() })
	if loop.err != nil {
		return loop.err
	}
	loop.mu.Lock()
	defer loop.mu.Unlock()
	if loop.users++; loop.users > 1 {
		return nil
	}
	stop, done := make(chan struct{}), make(chan struct{})
	loop.stop, loop.done = stop, done
	// One iteration of the loop blocks until an event arrives. This timer makes an event every 200 ms, so
	// that the loop notices when it must stop.
	timer, err := lv.EventAddTimeout(200, func(int) {})
	if err != nil {
		loop.users--
		return err
	}
	go func() {
		defer close(done)
		defer func() { _ = lv.EventRemoveTimeout(timer) }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := lv.EventRunDefaultImpl(); err != nil {
				select { // without the event loop the connection has no keep-alives, but calls still work
				case <-time.After(time.Second):
				case <-stop:
					return
				}
			}
		}
	}()
	return nil
}

func leaveLoop() {
	loop.mu.Lock()
	defer loop.mu.Unlock()
	if loop.users--; loop.users == 0 {
		close(loop.stop)
		<-loop.done
	}
}

// connection implements hypervisor over one libvirt connection at a time. It opens a new connection when the
// old one is lost.
type connection struct {
	uri     string
	timeout time.Duration
	log     *slog.Logger

	dialing chan struct{} // semaphore: one goroutine at a time opens a connection

	mu       sync.Mutex
	link     *link
	closed   bool
	watchers map[int]func(string)
	nextID   int
	known    *facts // what libvirt and QEMU can do, as read over this connection
}

// link is one connection. Each call of libvirt holds a reference to it, so that the connection is not freed
// during the call.
type link struct {
	c    *lv.Connect
	refs atomic.Int64
	dead atomic.Bool
}

func (l *link) release() {
	if l.refs.Add(-1) == 0 {
		_, _ = l.c.Close()
	}
}

func connect(uri string, timeout time.Duration, log *slog.Logger) (hypervisor, error) {
	if err := enterLoop(); err != nil {
		return nil, driver.Errorf(driver.RuntimeError, "libvirt", "event loop: %w", err)
	}
	return &connection{uri: uri, timeout: timeout, log: log, dialing: make(chan struct{}, 1), watchers: map[int]func(string){}}, nil
}

func (v *connection) close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return nil
	}
	v.closed = true
	l := v.link
	v.link = nil
	v.mu.Unlock()
	if l != nil {
		l.release()
	}
	leaveLoop()
	return nil
}

// living returns the open connection, or nil. The caller must release it.
func (v *connection) living() (*link, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, driver.Errorf(driver.RuntimeError, "libvirt", "the driver is closed")
	}
	if l := v.link; l != nil {
		if alive, err := l.c.IsAlive(); err == nil && alive && !l.dead.Load() {
			l.refs.Add(1)
			return l, nil
		}
		v.link, v.known = nil, nil
		l.release()
	}
	return nil, nil
}

// get returns the open connection, or opens one. The caller must release it.
func (v *connection) get() (*link, error) {
	if l, err := v.living(); l != nil || err != nil {
		return l, err
	}
	// One goroutine connects at a time, without holding mu: a daemon that hangs or is still starting may
	// accept a connection and never answer.
	select {
	case v.dialing <- struct{}{}:
		defer func() { <-v.dialing }()
	case <-time.After(v.timeout):
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s does not answer within %s", v.uri, v.timeout)
	}
	if l, err := v.living(); l != nil || err != nil {
		return l, err
	}
	c, err := lv.NewConnect(v.uri)
	if err != nil {
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "libvirt", "%s: %w", v.uri, err)
	}
	l := &link{c: c}
	l.refs.Store(2) // one reference for v.link and one for the caller
	// If the daemon does not answer keep-alives for 15 s, libvirt closes the connection, and the driver treats
	// the daemon as unreachable.
	_ = c.SetKeepAlive(5, 3)
	_ = c.RegisterCloseCallback(func(_ *lv.Connect, _ lv.ConnectCloseReason) {
		l.dead.Store(true)
		go v.tell("") // this callback runs in the event loop and must not block, and tell takes a lock
	})
	if _, err := c.DomainEventLifecycleRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventLifecycle) {
		if name, err := d.GetName(); err == nil {
			v.tell(name)
		}
	}); err != nil {
		v.log.Warn("libvirt delivers no events: guests are only polled", "err", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		l.refs.Store(1)
		l.release()
		return nil, driver.Errorf(driver.RuntimeError, "libvirt", "the driver is closed")
	}
	v.link, v.known = l, nil
	go v.tell("") // tell takes a lock, so it runs outside of the event loop
	return l, nil
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
			if l, err := v.get(); err == nil {
				l.release()
			}
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
func ask[T any](ctx context.Context, v *connection, op string, after time.Duration, work func(*lv.Connect) (T, error)) (T, error) {
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
		defer l.release()
		value, err := work(l.c)
		if lost(err) {
			l.dead.Store(true)
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

// act is ask for work without a result.
func act(ctx context.Context, v *connection, op string, work func(*lv.Connect) error) error {
	_, err := ask(ctx, v, op, changes, func(c *lv.Connect) (struct{}, error) { return struct{}{}, work(c) })
	return err
}

// on calls the function work with the domain that has this uuid.
func on(ctx context.Context, v *connection, op, uuid string, work func(*lv.Domain) error) error {
	return act(ctx, v, op, func(c *lv.Connect) error {
		d, err := c.LookupDomainByUUIDString(uuid)
		if err != nil {
			return err
		}
		defer d.Free()
		return work(d)
	})
}

// lost reports whether err means that the connection is lost.
func lost(err error) bool {
	var e lv.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case lv.ERR_NO_CONNECT, lv.ERR_INVALID_CONN, lv.ERR_RPC, lv.ERR_NO_SERVER:
		return true
	}
	// libvirt has no separate error code for other errors of the connection, such as "client socket is closed",
	// "End of file while reading data" and "Cannot recv data". They are recognised by libvirt's error
	// domain, the part of libvirt that reports them.
	return e.Domain == lv.FROM_RPC || e.Domain == lv.FROM_REMOTE
}

// classify returns an error of libvirt as a *driver.Error with a class; op is the operation that failed.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var typed *driver.Error
	if errors.As(err, &typed) {
		return err
	}
	var e lv.Error
	if !errors.As(err, &e) {
		return driver.Errorf(driver.RuntimeError, op, "%w", err)
	}
	text := strings.ToLower(e.Message)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	if refusesQuota(text) {
		return driver.Errorf(driver.InvalidConfiguration, op, "%w", &noQuota{e.Message})
	}
	switch e.Code {
	case lv.ERR_NO_DOMAIN, lv.ERR_NO_NETWORK, lv.ERR_NO_STORAGE_POOL, lv.ERR_NO_STORAGE_VOL:
		return driver.Errorf(driver.RuntimeResourceMissing, op, "%s: %w", e.Message, errAbsent)
	case lv.ERR_XML_ERROR, lv.ERR_XML_DETAIL, lv.ERR_CONFIG_UNSUPPORTED, lv.ERR_XML_INVALID_SCHEMA, lv.ERR_INVALID_ARG:
		return driver.Errorf(driver.InvalidConfiguration, op, "%w", err)
	case lv.ERR_NO_MEMORY:
		return driver.Errorf(driver.InsufficientResources, op, "%w", err)
	}
	class := driver.RuntimeError
	switch {
	case has("state change lock"):
		// Another call usually holds the domain's lock, and has released it by the next attempt. There is one
		// exception: if libvirt 9.0 is killed after it recorded the start of a domain and before QEMU's
		// process exists, it holds the domain's lock forever after its own restart, and again after every
		// second restart, because it still finds the recorded start.
		return driver.Errorf(class, op, "%w; if this error persists, libvirt's daemon was killed during a start: stop it, remove the domain's file from /run/libvirt/qemu, and start it again", err)
	case lost(err):
		class = driver.RuntimeUnhealthy
	case has("cannot allocate memory", "cannot set up guest memory"):
		class = driver.InsufficientResources
	case has("no space left"):
		class = driver.StorageFull
	case has("cannot access storage file", "failed to get \"write\" lock", "failed to get shared", "storage source"):
		class = driver.StorageAttachFailed
	case has("already exists with uuid", "is already active as"):
		return driver.Errorf(driver.NameConflict, op, "%s: %w", e.Message, errTaken)
	}
	return driver.Errorf(class, op, "%w", err)
}

func (v *connection) facts(ctx context.Context) (*facts, error) {
	v.mu.Lock()
	known := v.known
	alive := v.link != nil && !v.link.dead.Load()
	v.mu.Unlock()
	if known != nil && alive {
		// Call libvirt, because a cached connection does not show that the daemon has just died.
		_, err := ask(ctx, v, "probe", reads, (*lv.Connect).GetLibVersion)
		if err == nil {
			return known, nil
		}
		if driver.ClassOf(err) == driver.RuntimeUnhealthy {
			return nil, err
		}
	}
	f, err := ask(ctx, v, "probe", reads, func(c *lv.Connect) (*facts, error) {
		text, err := c.GetCapabilities()
		if err != nil {
			return nil, err
		}
		arch, uuid, machines, err := hostcaps.GuestTypes(text)
		if err != nil {
			return nil, err
		}
		host, err := c.GetHostname()
		if err != nil {
			return nil, err
		}
		f := &facts{engine: "libvirt:" + uuid + ":" + host, arch: arch}
		lib, err := c.GetLibVersion()
		if err != nil {
			return nil, err
		}
		hyper, err := c.GetVersion()
		if err != nil {
			return nil, err
		}
		f.version = "libvirt " + version(lib) + ", QEMU " + version(hyper)
		for kind, machine := range machines {
			text, err := c.GetDomainCapabilities("", arch, machine, kind, 0)
			if lost(err) {
				return nil, err
			}
			if err != nil {
				continue // QEMU may support the next machine type
			}
			m, err := hostcaps.ReadMachine(text)
			if err != nil {
				return nil, err
			}
			if m.Type == "" {
				m.Type = machine
			}
			switch kind {
			case "kvm":
				f.kvm = m
			case "qemu":
				f.tcg = m
			}
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	if f.kvm != nil || f.tcg != nil { // without KVM and emulation the facts are not cached, because QEMU may be installed while the agent runs
		v.mu.Lock()
		v.known = f
		v.mu.Unlock()
	}
	return f, nil
}

// version formats a version number of libvirt, which is 1,000,000 × major + 1,000 × minor + release.
func version(n uint32) string { return fmt.Sprintf("%d.%d.%d", n/1000000, n/1000%1000, n%1000) }

// readDomain reads a domain with several calls. The domain may start or end between two calls, so readDomain
// repeats them until the answers are consistent.
func readDomain(d *lv.Domain) (*domain, error) {
	out := &domain{}
	var err error
	if out.name, err = d.GetName(); err != nil {
		return nil, err
	}
	if out.uuid, err = d.GetUUIDString(); err != nil {
		return nil, err
	}
	if out.persistent, err = d.IsPersistent(); err != nil {
		return nil, err
	}
	for range 10 {
		if out.config, err = d.GetXMLDesc(lv.DOMAIN_XML_INACTIVE); err != nil {
			return nil, err
		}
		if out.live, err = d.GetXMLDesc(0); err != nil {
			return nil, err
		}
		state, reason, err := d.GetState()
		if err != nil {
			return nil, err
		}
		if out.active, err = d.IsActive(); err != nil {
			return nil, err
		}
		out.state, out.reason = int(state), reason
		off := out.state == stateShutoff || out.state == stateCrashed && !out.active
		if off != out.active {
			break
		}
	}
	if !out.active {
		out.live = ""
	}
	return out, nil
}

func (v *connection) domains(ctx context.Context) ([]domain, error) {
	return ask(ctx, v, "list", reads, func(c *lv.Connect) ([]domain, error) {
		all, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}
		var out []domain
		for i := range all {
			defer all[i].Free()
			d, err := readDomain(&all[i])
			if gone(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, *d)
		}
		return out, nil
	})
}

// gone reports whether err means that the domain or volume does not exist.
func gone(err error) bool {
	var e lv.Error
	return errors.As(err, &e) && (e.Code == lv.ERR_NO_DOMAIN || e.Code == lv.ERR_NO_STORAGE_VOL)
}

func (v *connection) domain(ctx context.Context, name string) (*domain, error) {
	return ask(ctx, v, "look up", reads, func(c *lv.Connect) (*domain, error) {
		d, err := c.LookupDomainByName(name)
		if err != nil {
			return nil, err
		}
		defer d.Free()
		return readDomain(d)
	})
}

func (v *connection) define(ctx context.Context, xml string) error {
	return act(ctx, v, "define", func(c *lv.Connect) error {
		d, err := c.DomainDefineXMLFlags(xml, 0)
		if err != nil {
			return err
		}
		return d.Free()
	})
}

func (v *connection) undefine(ctx context.Context, uuid string) error {
	return on(ctx, v, "undefine", uuid, func(d *lv.Domain) error {
		return d.UndefineFlags(lv.DOMAIN_UNDEFINE_MANAGED_SAVE | lv.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA |
			lv.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA | lv.DOMAIN_UNDEFINE_NVRAM)
	})
}

func (v *connection) start(ctx context.Context, uuid string) error {
	return on(ctx, v, "start", uuid, func(d *lv.Domain) error {
		// libvirt must not start the domain at boot: the schedulers decide where the workload runs after a
		// reboot.
		if err := d.SetAutostart(false); err != nil {
			return err
		}
		flags, err := startFlags(d)
		if err != nil {
			return err
		}
		err = d.CreateWithFlags(flags)
		if active, aerr := d.IsActive(); err != nil && aerr == nil && active {
			return nil // another caller has started the domain
		}
		return err
	})
}

// startFlags returns the flags for a start of the domain. If a memory image was saved (by a person, or when
// the host shut down) under an earlier definition, the flags force a fresh boot. Otherwise libvirt would
// resume the image with disks that no longer match it.
func startFlags(d *lv.Domain) (lv.DomainCreateFlags, error) {
	saved, err := d.HasManagedSaveImage(0)
	if err != nil || !saved {
		return 0, err
	}
	config, err := d.GetXMLDesc(lv.DOMAIN_XML_INACTIVE)
	if err != nil {
		return 0, err
	}
	text, _ := d.ManagedSaveGetXMLDesc(0) // if this call fails, the variable text is empty: libvirt cannot read the saved image, so it cannot resume it either
	is, was := readRecord(config), readRecord(text)
	if is == nil || was != nil && was.Instance == is.Instance {
		return 0, nil
	}
	return lv.DOMAIN_START_FORCE_BOOT, nil
}

func (v *connection) resume(ctx context.Context, uuid string) error {
	return on(ctx, v, "resume", uuid, func(d *lv.Domain) error { return d.Resume() })
}

func (v *connection) shutdown(ctx context.Context, uuid string) error {
	return on(ctx, v, "stop", uuid, func(d *lv.Domain) error { return d.ShutdownFlags(lv.DOMAIN_SHUTDOWN_ACPI_POWER_BTN) })
}

func (v *connection) destroy(ctx context.Context, uuid string) error {
	return on(ctx, v, "stop", uuid, func(d *lv.Domain) error {
		err := d.DestroyFlags(0)
		if active, aerr := d.IsActive(); err != nil && aerr == nil && !active {
			return nil
		}
		return err
	})
}

func (v *connection) note(ctx context.Context, uuid, element string, live bool) error {
	return on(ctx, v, "note", uuid, func(d *lv.Domain) error {
		where := lv.DOMAIN_AFFECT_CONFIG
		if live {
			where |= lv.DOMAIN_AFFECT_LIVE
		}
		return d.SetMetadata(lv.DOMAIN_METADATA_ELEMENT, element, "persys", namespace, where)
	})
}

func (v *connection) transient(ctx context.Context, xml string) error {
	return act(ctx, v, "start", func(c *lv.Connect) error {
		d, err := c.DomainCreateXML(xml, lv.DOMAIN_START_AUTODESTROY)
		if err != nil {
			return err
		}
		return d.Free()
	})
}

func (v *connection) addresses(ctx context.Context, uuid string, agent bool) ([]address, error) {
	return ask(ctx, v, "addresses", reads, func(c *lv.Connect) ([]address, error) {
		d, err := c.LookupDomainByUUIDString(uuid)
		if err != nil {
			return nil, err
		}
		defer d.Free()
		var out []address
		add := func(from []lv.DomainInterface) {
			for _, f := range from {
				a := address{name: f.Name, mac: f.Hwaddr}
				for _, ip := range f.Addrs {
					a.ips = append(a.ips, ip.Addr)
				}
				out = append(out, a)
			}
		}
		leases, err := d.ListAllInterfaceAddresses(lv.DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE)
		add(leases)
		if agent {
			// Without a timeout libvirt waits forever for the guest agent, and each waiting call takes one of
			// only five that a connection may have at a time.
			_ = d.AgentSetResponseTimeout(int(agentWait/time.Second), 0)
			inside, aerr := d.ListAllInterfaceAddresses(lv.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
			if aerr == nil {
				err = nil
				add(inside)
			}
		}
		return out, err
	})
}

func (v *connection) network(ctx context.Context, name string) (string, error) {
	return ask(ctx, v, "network", changes, func(c *lv.Connect) (string, error) {
		n, err := c.LookupNetworkByName(name)
		if err != nil {
			return "", err
		}
		defer n.Free()
		if up, err := n.IsActive(); err != nil {
			return "", err
		} else if !up {
			if err := n.Create(); err != nil {
				if up, aerr := n.IsActive(); aerr != nil || !up {
					return "", fmt.Errorf("starting network %s: %w", name, err)
				}
			}
		}
		return n.GetXMLDesc(0)
	})
}

func (v *connection) bridge(_ context.Context, name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", filepath.Base(name), "bridge"))
	return err == nil
}

func (v *connection) stats(ctx context.Context) ([]stat, error) {
	return ask(ctx, v, "stats", reads, func(c *lv.Connect) ([]stat, error) {
		all, err := c.GetAllDomainStats(nil,
			lv.DOMAIN_STATS_CPU_TOTAL|lv.DOMAIN_STATS_BALLOON|lv.DOMAIN_STATS_BLOCK|lv.DOMAIN_STATS_INTERFACE,
			lv.CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE|lv.CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		var out []stat
		for _, s := range all {
			defer s.Domain.Free()
			one := stat{at: now, disk: -1}
			if one.name, err = s.Domain.GetName(); err != nil {
				continue
			}
			if s.Cpu != nil {
				one.cpu = time.Duration(s.Cpu.Time)
			}
			if b := s.Balloon; b != nil {
				one.memoryLimit = int64(b.Maximum) << 10
				one.memory = int64(b.Current) << 10
				if b.RssSet { // if libvirt knows it, report the memory that QEMU's process takes from the machine
					one.memory = int64(b.Rss) << 10
				}
			}
			for _, b := range s.Block {
				one.read += int64(b.RdBytes)
				one.write += int64(b.WrBytes)
				if b.AllocationSet {
					one.disk = max(one.disk, 0) + int64(b.Allocation)
				}
			}
			for _, n := range s.Net {
				one.rx += int64(n.RxBytes)
				one.tx += int64(n.TxBytes)
			}
			out = append(out, one)
		}
		return out, nil
	})
}
