package fencer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
)

// Runtime lists and stops workloads on the engines of this machine.
type Runtime interface {
	// Running returns those workloads of a list that run, or may run because their state is unknown. The
	// error names the engines that did not answer.
	Running(ctx context.Context, cluster string, of []lease.Workload) ([]lease.Workload, error)
	Halt(ctx context.Context, cluster string, w lease.Workload, grace time.Duration) error
}

// Options of a fencer.
type Options struct {
	// Dir is the folder that holds the socket and the files of the agent and of the fencers. The folder holds
	// nothing else.
	Dir     string
	Runtime Runtime
	// Stops are the kinds of workloads (container, stack, VM) that Runtime can stop, now or once their engine
	// has started. nil means that they are not known.
	Stops []driver.Kind
	// Grace is how long a workload may take to stop after it was asked to; then the fencer kills it.
	Grace time.Duration
	// UntilIdle: the fencer ends when its agent is dead and no workload has to be stopped, now or at the end
	// of the lease.
	UntilIdle bool
	// IdleFor is how long a fencer with UntilIdle waits for a restarted agent before it ends; default
	// 10 s.
	IdleFor time.Duration
	// Beat, if set, is called five times a second. If the supervisor gets no such signal for a while, it ends
	// this process and starts another one.
	Beat func()
	// Second starts the second fencer process. That process must continue if this one ends.
	Second  func() (*os.Process, error)
	Version string
	Logger  *slog.Logger
}

// ErrEnough is the error of Run if two fencer processes of the node run already.
var ErrEnough = errors.New("there are two fencers already")

// Fencer is one of the two fencer processes of a node, which stop leased workloads when the lease ends.
type Fencer struct {
	opt    Options
	boot   string
	self   lease.Process
	retire context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	state  lease.State
	second bool // a second fencer process runs
}

// tick is the interval at which a fencer checks the clock. It is much shorter than lease.Margin.
const tick = 200 * time.Millisecond

// Run works as a fencer until ctx ends, or until the fencer is no longer needed.
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
	f := &Fencer{opt: opt, boot: boot, self: self, retire: retire,
		state: lease.State{Settings: lease.Settings{Grace: opt.Grace, UntilIdle: opt.UntilIdle, IdleFor: opt.IdleFor}}}
	lock, err := f.claim(ctx)
	// Release the lock file of this fencer last: until then no other process can become the first or the
	// second fencer in its place.
	defer func() {
		retire()
		f.work.Wait()
		if lock != nil {
			lock.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := f.load(); err != nil {
		return err
	}
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		f.tick(ctx)
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

// claim takes the lock file of the first fencer, or else the lock file of the second. A second fencer waits
// in the background for the lock of the first.
func (f *Fencer) claim(ctx context.Context) (*os.File, error) {
	first, err := lockFile(filepath.Join(f.opt.Dir, firstLock))
	if err == nil {
		if err := f.lead(ctx); err != nil {
			return nil, errors.Join(err, first.Close())
		}
		return first, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, err
	}
	second, err := lockFile(filepath.Join(f.opt.Dir, secondLock))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrEnough
	}
	if err != nil {
		return nil, err
	}
	f.work.Go(func() {
		for ctx.Err() == nil {
			lock, err := lockFile(filepath.Join(f.opt.Dir, firstLock))
			if err == nil {
				f.opt.Logger.Info("the first fencer has ended; this process is the first fencer now")
				second.Close() // another process may have become the second fencer in the meantime, so try again
				if err := f.lead(ctx); err != nil {
					f.opt.Logger.Error("could not take over as the first fencer", "error", err)
					f.retire()
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

// lead begins the work of the first fencer: it serves the socket and keeps a second fencer process running.
func (f *Fencer) lead(ctx context.Context) error {
	l, err := listen(f.opt.Dir)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	have, err := load(f.opt.Dir, f.boot)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	// Remove temporary lease files of killed fencers. If the second fencer is just writing one, its rename
	// fails and it writes the file again.
	left, _ := filepath.Glob(filepath.Join(f.opt.Dir, nextLeases))
	for _, path := range left {
		_ = os.Remove(path)
	}
	f.state.Lease, f.state.First = have, true
	f.work.Go(func() { f.serve(ctx, l) })
	if f.opt.Second != nil {
		f.work.Go(func() { f.keepSecond(ctx) })
	}
	return nil
}

// at returns a path of the file called name in dir that is short enough for a Unix socket address. The path is
// valid until done is called.
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
	l.SetUnlinkOnClose(false) // closing must not remove the socket file, which may belong to another fencer by then
	return l, os.Chmod(filepath.Join(dir, socketFile), 0o600)
}

// keepSecond starts a second fencer process, and starts another one whenever it ends.
func (f *Fencer) keepSecond(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := f.opt.Second()
		if err != nil {
			f.opt.Logger.Error("could not start the second fencer, which takes over if this one dies", "error", err)
		} else {
			f.setSecond(true)
			ended := make(chan struct{})
			go func() { _, _ = p.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-ctx.Done():
				// This process ends normally, so it ends the second fencer too. If this process were
				// killed, the second fencer would continue.
				_ = p.Kill()
				<-ended
			}
			f.setSecond(false)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// load reads the lease file.
func (f *Fencer) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, err := load(f.opt.Dir, f.boot)
	f.state.Lease = have
	return err
}

func (f *Fencer) setSecond(there bool) {
	f.mu.Lock()
	f.second = there
	f.mu.Unlock()
}

func (f *Fencer) serve(ctx context.Context, l net.Listener) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				f.opt.Logger.Error("could not accept a connection of the agent", "error", err)
				f.retire() // no agent can reach this fencer, so it ends and the second fencer takes over
			}
			return
		}
		f.work.Go(func() { f.talk(ctx, conn) })
	}
}

// talk serves one connection of an agent: each line from the agent gets one line as answer.
func (f *Fencer) talk(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 16<<20)
	answer := json.NewEncoder(conn)
	for lines.Scan() {
		var in lease.Renewal
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			return
		}
		out := f.take(in)
		if err := answer.Encode(out); err != nil {
			return
		}
		if in.Retire {
			f.opt.Logger.Info("this fencer ends, because a fencer of another version replaces it")
			f.retire()
			return
		}
	}
}

// take applies one renewal of the lease by the agent, and returns the answer.
func (f *Fencer) take(in lease.Renewal) lease.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := lease.Status{Grace: f.opt.Grace}
	if in.Boot != f.boot {
		out.Error = "the agent's message is from another start of the machine: " + in.Boot
	} else if !in.Retire {
		next, effects := lease.Step(f.state, Now(), in)
		for _, e := range effects {
			switch e := e.(type) {
			case lease.Save:
				if err := save(f.opt.Dir, next.Lease); err != nil {
					return f.sign(lease.Status{Grace: f.opt.Grace, Error: fmt.Sprintf("the lease was not stored: %v", err)})
				}
			case lease.Answer:
				out = e.Status
			}
		}
		f.state = next
	}
	return f.sign(out)
}

// sign adds the facts about this fencer (such as its process and version) to an answer. It is
// called with mu held.
func (f *Fencer) sign(out lease.Status) lease.Status {
	out.Version, out.Fencer, out.Second, out.Stops = f.opt.Version, f.self, f.second, f.opt.Stops
	return out
}

// tick applies the input lease.Tick. If State.ReadsFile requires it, tick reads the lease file first.
func (f *Fencer) tick(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.ReadsFile(Now()) {
		have, err := load(f.opt.Dir, f.boot)
		if err != nil {
			f.opt.Logger.Error("could not read the lease file", "error", err)
			return
		}
		f.state.Lease = have
	}
	f.step(ctx, lease.Tick{AgentAlive: Alive(f.state.Lease.Agent)})
}

// step applies an input to the state of the lease and carries out the effects that result. It is called with mu
// held.
func (f *Fencer) step(ctx context.Context, in lease.Input) {
	var effects []lease.Effect
	f.state, effects = lease.Step(f.state, Now(), in)
	for _, e := range effects {
		switch e := e.(type) {
		case lease.Save:
			if err := save(f.opt.Dir, f.state.Lease); err != nil {
				f.opt.Logger.Error("could not write the lease file", "error", err)
			}
		case lease.Lapse:
			f.opt.Logger.Warn("the lease has ended: stopping the workloads that may not run without one",
				"workloads", len(f.state.Lease.ToStop), "first", f.state.First)
		case lease.Kill:
			f.opt.Logger.Warn("the agent does not confirm that its lease has ended: killing it", "pid", e.Agent.PID)
			if err := Kill(e.Agent); err != nil && !errors.Is(err, os.ErrProcessDone) {
				f.opt.Logger.Error("could not kill the agent", "error", err)
			}
		case lease.Look:
			f.work.Go(func() { f.look(ctx, e) })
		case lease.Halt:
			f.work.Go(func() { f.halt(ctx, e) })
		case lease.Stopped:
			f.opt.Logger.Info("all workloads of the lease that ended are stopped", "workloads", e.Workloads)
		case lease.Exit:
			f.retire()
		}
	}
}

func (f *Fencer) look(ctx context.Context, look lease.Look) {
	within, cancel := context.WithTimeout(ctx, look.Patience)
	defer cancel()
	running, err := f.opt.Runtime.Running(within, look.Cluster, look.Of)
	if err != nil && ctx.Err() == nil {
		f.opt.Logger.Error("could not ask the engines which workloads run", "error", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step(ctx, lease.Looked{Look: look, Running: running, Failed: err != nil, AgentAlive: Alive(f.state.Lease.Agent)})
}

func (f *Fencer) halt(ctx context.Context, h lease.Halt) {
	within, cancel := context.WithTimeout(ctx, f.opt.Grace+30*time.Second)
	defer cancel()
	f.opt.Logger.Warn("stopping the workload, because the lease has ended", "workload", h.Workload.ID)
	err := f.opt.Runtime.Halt(within, h.Cluster, h.Workload, h.Grace)
	if err != nil && ctx.Err() == nil {
		f.opt.Logger.Error("could not stop the workload, trying again", "workload", h.Workload.ID, "error", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step(ctx, lease.Halted{Workload: h.Workload})
}
