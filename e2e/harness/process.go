package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that can be started repeatedly with the same command line. Its methods are safe for
// concurrent use.
type Process struct {
	Name string
	Path string
	Args []string
	Env  []string // complete environment of the process
	Dir  string   // working directory; default: that of this process
	Log  string   // path of the file with the output of all runs
	GID  uint32   // group id; 0 means that of this process
	// Clock is the offset of the program's clock. With a positive offset the clock is ahead. See
	// CanShiftClock.
	Clock time.Duration

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the last started process has exited
	err  error         // error with which the last run ended
}

// Start starts the program. It must not be running.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil && !closed(p.done) {
		return fmt.Errorf("%s is already running", p.Name)
	}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.Stdout, cmd.Stderr = out, out
	// The program gets a process group of its own, so that Ctrl-C on a terminal does not reach it. The
	// kernel kills it when this process dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.SysProcAttr.Ptrace = p.Clock != 0
	if p.GID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(os.Getuid()), Gid: p.GID, NoSetGroups: true}
	}
	started := make(chan error)
	done := make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, so this goroutine stays on its
		// thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		err := cmd.Start()
		if err == nil && p.Clock != 0 {
			if err = shiftClock(cmd.Process.Pid, p.Clock); err != nil {
				err = errors.Join(err, cmd.Process.Kill())
				_ = cmd.Wait()
			}
		}
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	p.cmd, p.done, p.err = cmd, done, nil
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Running reports whether the program has been started and has not exited. A paused program is running.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done != nil && !closed(p.done)
}

// PID returns the process id of the last run, or 0 before the first.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Done returns a channel that is closed when the program exits; nil before the first run.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil || closed(p.done) {
		return fmt.Errorf("%s is not running", p.Name)
	}
	// Signal the whole group. The kernel has not given its id to another process meanwhile, because this process
	// has not yet waited for its end (wait(2)).
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s: %s: %w", p.Name, sig, err)
	}
	return nil
}

// Kill sends SIGKILL and waits until the program has exited.
func (p *Process) Kill() error {
	if !p.Running() {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil && p.Running() {
		return err
	}
	<-p.Done()
	return nil
}

// Pause sends SIGSTOP. The program keeps its memory and its connections but does not run.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Continue sends SIGCONT.
func (p *Process) Continue() error { return p.signal(syscall.SIGCONT) }

// Interrupt sends SIGINT, as Ctrl-C does.
func (p *Process) Interrupt() error { return p.signal(syscall.SIGINT) }

// Terminate sends SIGTERM and waits until the program has exited. If it does not exit within limit,
// Terminate sends SIGKILL. It returns an error in that case and if the program fails.
func (p *Process) Terminate(limit time.Duration) error {
	if !p.Running() {
		return nil
	}
	if err := p.signal(syscall.SIGTERM); err != nil && p.Running() {
		return err
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.Done():
		return p.exitError()
	case <-t.C:
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, limit), p.Kill())
	}
}

func (p *Process) exitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Wait waits until the program exits and returns its exit code, or -1 if a signal
// ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	done := p.Done()
	if done == nil {
		return 0, fmt.Errorf("%s was never started", p.Name)
	}
	select {
	case <-done:
	case <-ctx.Done():
		return 0, fmt.Errorf("%s still runs: %w", p.Name, ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode(), nil
}

// Restart kills the program if it runs, and starts it with the same command line.
func (p *Process) Restart() error {
	if err := p.Kill(); err != nil {
		return err
	}
	return p.Start()
}

// maxTail bounds the bytes that Tail reads.
const maxTail = 64 << 10

// Tail returns the last lines of the output, at most n.
func (p *Process) Tail(n int) string {
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > maxTail {
		if _, err := f.Seek(-maxTail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTail))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Output returns the output of all runs so far.
func (p *Process) Output() (string, error) {
	text, err := os.ReadFile(p.Log)
	return string(text), err
}

// alarms match output that makes every test fail: data races and panics. The last pattern matches the stack
// trace that a program logs when it recovers from a panic.
var alarms = []*regexp.Regexp{
	regexp.MustCompile("WARNING: DATA RACE"), regexp.MustCompile("(?m)^panic: "), regexp.MustCompile("fatal error: "), regexp.MustCompile(`\[running\]:`),
}

// Alarms returns the data races and panics in the output, with the text around each.
func (p *Process) Alarms() []string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, a := range alarms {
		if at := a.FindIndex(text); at != nil {
			begin, end := max(0, at[0]-300), min(len(text), at[0]+3000)
			out = append(out, fmt.Sprintf("%s (%s): %s", p.Name, filepath.Base(p.Log), bytes.TrimSpace(text[begin:end])))
		}
	}
	return out
}
