package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/driver"
)

// Runtime is the engines as a guard needs them.
type Runtime interface {
	// Running lists what is not known to be stopped, of all kinds it can ask; err tells of those that
	// it could not.
	Running(ctx context.Context, cluster string, of []Workload) ([]Workload, error)
	Halt(ctx context.Context, cluster string, w Workload, grace time.Duration) error
}

// Options of a guard.
type Options struct {
	// Dir is a folder of its own, in which agent and guards meet.
	Dir     string
	Runtime Runtime
	// Stops are the kinds that Runtime can be asked for, now or once their engine is there; nil = not known.
	Stops []driver.Kind
	// Grace is what a workload gets to end by itself.
	Grace time.Duration
	// UntilIdle ends the guard when its agent is dead and nothing is left to stop.
	UntilIdle bool
	// IdleFor is how long it waits for another agent then; default 10 s: one that is being restarted
	// finds it.
	IdleFor time.Duration
	// Beat, if set, is called at every look at the clock: a supervisor that no longer hears it ends this
	// process and starts another one.
	Beat func()
	// Second starts the second guard. The process must outlive its starter's death.
	Second  func() (*os.Process, error)
	Version string
	Logger  *slog.Logger
}

// ErrEnough is returned where two guards are there already.
var ErrEnough = errors.New("there are two guards already")

// Guard is one of the two.
type Guard struct {
	opt  Options
	boot string
	self Process

	mu     sync.Mutex
	lease  *lease
	first  bool
	second bool // there is one
	due    due
	quiet  time.Duration // since when there is nothing to do and nobody to do it for; 0 = there is
	busy   map[Workload]bool
	retire context.CancelFunc
	work   sync.WaitGroup
}

// due is a lapse that an agent is to confirm, and since when it has been known to this guard.
type due struct {
	agent  Process
	lapses uint64
	since  time.Duration
}

// tick is how often a guard looks at the clock: well within Margin.
const tick = 200 * time.Millisecond

// Run guards until ctx ends, or the guard is no longer needed.
func Run(ctx context.Context, opt Options) error {
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	if opt.IdleFor == 0 {
		opt.IdleFor = 10 * time.Second
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return err
	}
	boot, err := BootID()
	if err != nil {
		return err
	}
	self, err := Self()
	if err != nil {
		return err
	}
	ctx, retire := context.WithCancel(ctx)
	defer retire()
	g := &Guard{opt: opt, boot: boot, self: self, busy: map[Workload]bool{}, retire: retire}
	lock, err := g.claim(ctx)
	// The place is given up last: until then nobody else takes it.
	defer func() {
		retire()
		g.work.Wait()
		if lock != nil {
			lock.Close()
		}
	}()
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.lease, err = load(opt.Dir, boot)
	g.mu.Unlock()
	if err != nil {
		return err
	}
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		if !g.step(ctx) {
			return nil
		}
		if opt.Beat != nil {
			opt.Beat()
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return nil
}

// claim takes the place of the first, or else that of the second, who waits in the background for
// the other place.
func (g *Guard) claim(ctx context.Context) (*os.File, error) {
	first, err := lockFile(filepath.Join(g.opt.Dir, firstLock))
	if err == nil {
		if err := g.lead(ctx); err != nil {
			return nil, errors.Join(err, first.Close())
		}
		return first, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, err
	}
	second, err := lockFile(filepath.Join(g.opt.Dir, secondLock))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrEnough
	}
	if err != nil {
		return nil, err
	}
	g.work.Go(func() {
		for ctx.Err() == nil {
			lock, err := lockFile(filepath.Join(g.opt.Dir, firstLock))
			if err == nil {
				g.opt.Logger.Info("the first guard has ended; this is the first now")
				second.Close() // for the next second
				if err := g.lead(ctx); err != nil {
					g.opt.Logger.Error("guard", "error", err)
					g.retire()
				}
				<-ctx.Done()
				lock.Close()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
		}
	})
	return second, nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lead begins the work of the first: the socket and the second.
func (g *Guard) lead(ctx context.Context) error {
	l, err := listen(g.opt.Dir)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	have, err := load(g.opt.Dir, g.boot)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	// Of guards that were killed. What the second writes at this moment it writes again.
	left, _ := filepath.Glob(filepath.Join(g.opt.Dir, nextLeases))
	for _, path := range left {
		_ = os.Remove(path)
	}
	g.lease, g.first = have, true
	g.work.Go(func() { g.serve(ctx, l) })
	if g.opt.Second != nil {
		g.work.Go(func() { g.keepSecond(ctx) })
	}
	return nil
}

// at is a path to the folder that is short enough for a socket, whatever the folder's own is.
func at(dir, name string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name, func() { d.Close() }, nil
}

func listen(dir string) (net.Listener, error) {
	if err := os.Remove(filepath.Join(dir, socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	path, done, err := at(dir, socketFile)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then the name may be the next one's
	return l, os.Chmod(filepath.Join(dir, socketFile), 0o600)
}

// keepSecond keeps a second guard alive.
func (g *Guard) keepSecond(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := g.opt.Second()
		if err != nil {
			g.opt.Logger.Error("starting the second guard", "error", err)
		} else {
			g.setSecond(true)
			ended := make(chan struct{})
			go func() { _, _ = p.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-ctx.Done():
				// It is ours: it ends with us when we retire, and not when we are killed.
				_ = p.Kill()
				<-ended
			}
			g.setSecond(false)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (g *Guard) setSecond(there bool) {
	g.mu.Lock()
	g.second = there
	g.mu.Unlock()
}

func (g *Guard) serve(ctx context.Context, l net.Listener) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				g.opt.Logger.Error("guard", "error", err)
				g.retire() // nobody can reach it: let the second take over
			}
			return
		}
		g.work.Go(func() { g.talk(ctx, conn) })
	}
}

// talk answers each line with one.
func (g *Guard) talk(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 16<<20)
	answer := json.NewEncoder(conn)
	for lines.Scan() {
		var in Feed
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			return
		}
		out := g.take(in)
		if err := answer.Encode(out); err != nil {
			return
		}
		if in.Retire {
			g.opt.Logger.Info("retiring, for a guard of another version")
			g.retire()
			return
		}
	}
}

// take is one word of the agent.
func (g *Guard) take(in Feed) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := State{Version: g.opt.Version, Guard: g.self, Grace: g.opt.Grace, Second: g.second, Stops: g.opt.Stops}
	if in.Boot != g.boot {
		out.Error = "the agent names another start of the machine: " + in.Boot
		return out
	}
	if !in.Retire {
		was := *g.lease
		g.lease.feed(in, Now())
		if err := g.lease.save(g.opt.Dir); err != nil {
			*g.lease = was // it must not hold what the second cannot know
			out.Error = fmt.Sprintf("the lease was not stored: %v", err)
			return out
		}
	}
	now := g.lease.state()
	out.Deadline, out.Lapses, out.Lapsed, out.Guarded = now.Deadline, now.Lapses, now.Lapsed, now.Guarded
	return out
}

// step looks at the clock and does what is due. It reports false when the guard is not needed any more.
func (g *Guard) step(ctx context.Context) bool {
	now := Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.first {
		// Nothing is told to the second: what it needs is in the file, when its time has come.
		if now < g.lease.Deadline+SecondWaits && !g.lease.idle() && !g.lease.Lapsed {
			return true
		}
		have, err := load(g.opt.Dir, g.boot)
		if err != nil {
			g.opt.Logger.Error("guard", "error", err)
			return true
		}
		g.lease = have
		now -= SecondWaits
	}
	if g.lease.lapse(now) {
		g.opt.Logger.Warn("the lease has ended: stopping what is not to run without one", "workloads", len(g.lease.Condemned), "first", g.first)
		if err := g.lease.save(g.opt.Dir); err != nil {
			g.opt.Logger.Error("guard", "error", err)
		}
	}
	l := g.lease
	if l.Lapsed && l.Confirmed < l.Lapses {
		if g.due.agent != l.Agent || g.due.lapses != l.Lapses { // a process that has just started has its own time
			g.due = due{l.Agent, l.Lapses, Now()}
		}
		if late := Now() - g.due.since; late > KillAfter && l.Agent.Alive() {
			g.opt.Logger.Warn("the agent does not confirm that its lease has ended: killing it", "pid", l.Agent.PID)
			if err := l.Agent.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				g.opt.Logger.Error("killing the agent", "error", err)
			}
		}
	}
	if len(l.Condemned) > 0 {
		g.stopAll(ctx)
	}
	return g.needed(now)
}

// needed: an agent lives, or there is something to stop.
func (g *Guard) needed(now time.Duration) bool {
	if !g.opt.UntilIdle || !g.lease.idle() || g.lease.Agent.Alive() {
		g.quiet = 0
		return true
	}
	if g.quiet == 0 {
		g.quiet = now
	}
	return now-g.quiet < g.opt.IdleFor
}

// stopAll stops what is condemned, each in a goroutine of its own, and forgets what is known to be
// stopped once its agent cannot start it any more. It is called with mu held.
func (g *Guard) stopAll(ctx context.Context) {
	if g.busy[Workload{}] {
		return // one look at a time
	}
	g.busy[Workload{}] = true
	cluster, of := g.lease.Cluster, slices.Clone(g.lease.Condemned)
	lapses := g.lease.Lapses
	// Who waits for an engine that is slow to say what runs does not stop it in time.
	patience := 10 * time.Second
	if Now() < g.lease.Deadline+Bound(g.opt.Grace) {
		patience = time.Second
	}
	g.work.Go(func() {
		within, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		running, err := g.opt.Runtime.Running(within, cluster, of)
		if err != nil && ctx.Err() == nil {
			g.opt.Logger.Error("asking what runs", "error", err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.busy, Workload{})
		if err != nil {
			running = of // what cannot be seen is stopped all the same
		}
		for _, w := range running {
			if g.busy[w] || !slices.Contains(g.lease.Condemned, w) {
				continue
			}
			g.busy[w] = true
			// Counted from the deadline: who comes late, after the first or a whole generation of guards
			// was lost, has no time of its own to give.
			grace := min(max(g.lease.Deadline+g.opt.Grace-Now(), 0), g.opt.Grace)
			g.work.Go(func() { g.halt(ctx, cluster, w, grace) })
		}
		// An agent that has confirmed starts nothing by itself, and one that is dead does not either.
		l := g.lease
		if err == nil && len(running) == 0 && l.Lapses == lapses && slices.Equal(l.Condemned, of) &&
			(l.Confirmed == l.Lapses || !l.Agent.Alive()) && g.first {
			g.opt.Logger.Info("everything that lapsed is stopped", "workloads", len(of))
			l.Condemned = nil
			if err := l.save(g.opt.Dir); err != nil {
				g.opt.Logger.Error("guard", "error", err)
			}
		}
	})
}

func (g *Guard) halt(ctx context.Context, cluster string, w Workload, grace time.Duration) {
	within, cancel := context.WithTimeout(ctx, g.opt.Grace+30*time.Second)
	defer cancel()
	g.opt.Logger.Warn("stopping: the lease has ended", "workload", w.ID)
	err := g.opt.Runtime.Halt(within, cluster, w, grace)
	if err != nil && ctx.Err() == nil {
		g.opt.Logger.Error("stopping failed, trying again", "workload", w.ID, "error", err)
	}
	g.mu.Lock()
	delete(g.busy, w)
	g.mu.Unlock()
}

// Drivers is a Runtime over drivers. New is asked for those of a cluster at the first use, and again while
// they lack a kind that is asked for: a runtime may have come to the machine after its guard.
type Drivers struct {
	New func(cluster string) ([]driver.Driver, error)

	mu      sync.Mutex
	cluster string
	list    []driver.Driver
}

func (d *Drivers) of(cluster string, workloads ...Workload) ([]driver.Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// What no driver can see is not known to be stopped.
	lacks := func(list []driver.Driver) error {
		for _, w := range workloads {
			if !slices.ContainsFunc(list, func(drv driver.Driver) bool { return drv.Kind() == w.Kind }) {
				return fmt.Errorf("this guard has no runtime for %s", w.Kind)
			}
		}
		return nil
	}
	if d.cluster != cluster {
		d.cluster, d.list = cluster, nil
	}
	if d.list != nil && lacks(d.list) == nil {
		return d.list, nil
	}
	made, err := d.New(cluster)
	if err != nil {
		return nil, err
	}
	for _, drv := range made {
		if !slices.ContainsFunc(d.list, func(have driver.Driver) bool { return have.Kind() == drv.Kind() }) {
			d.list = append(d.list, drv)
		} else if c, ok := drv.(io.Closer); ok { // the one that is there may be at work
			_ = c.Close()
		}
	}
	return d.list, lacks(d.list)
}

// Running implements Runtime.
func (d *Drivers) Running(ctx context.Context, cluster string, of []Workload) ([]Workload, error) {
	list, err := d.of(cluster, of...)
	if err != nil {
		return nil, err
	}
	var out []Workload
	var errs []error
	for _, drv := range list {
		if !slices.ContainsFunc(of, func(w Workload) bool { return w.Kind == drv.Kind() }) {
			continue
		}
		seen, err := drv.List(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, o := range seen {
			w := Workload{drv.Kind(), o.ID}
			if slices.Contains(of, w) && o.State != driver.Stopped && (o.State != driver.Failed || len(o.Parts) > 1) {
				out = append(out, w)
			}
		}
	}
	return out, errors.Join(errs...)
}

// Halt implements Runtime.
func (d *Drivers) Halt(ctx context.Context, cluster string, w Workload, grace time.Duration) error {
	list, err := d.of(cluster, w)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(drv driver.Driver) bool { return drv.Kind() == w.Kind })
	return list[i].Halt(ctx, w.ID, grace)
}
