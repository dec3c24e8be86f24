package moby

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/driver"
)

// hangUp is how long a command may take to end after it got SIGHUP because its session was closed; then
// it is killed.
const hangUp = 2 * time.Second

// maxPiece is the maximum size in bytes of one piece of a session's output.
const maxPiece = 32 << 10

// Exec starts a command in a running container and returns a session that is connected to the
// command.
func (e *Engine) Exec(ctx context.Context, containerID string, o driver.ExecOptions) (driver.Session, error) {
	call, cancel := e.Call(ctx)
	defer cancel()
	made, err := e.Client.ExecCreate(call, containerID, client.ExecCreateOptions{
		Cmd: o.Command, TTY: o.TTY, AttachStdin: o.Input, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, classifyExec(err)
	}
	got, err := e.Client.ExecAttach(call, made.ID, client.ExecAttachOptions{TTY: o.TTY})
	if err != nil {
		return nil, classifyExec(err)
	}
	s := &session{eng: e, conn: got.HijackedResponse, framed: !o.TTY, container: containerID, exec: made.ID, input: o.Input}
	if o.TTY && o.Size != (driver.TerminalSize{}) {
		// The resize fails if the process does not exist yet, because the engine waits only briefly for it.
		// The error is ignored: a wrong terminal size must not end the session.
		_ = s.Resize(call, o.Size)
	}
	return s, nil
}

// Console connects to a container's first process: the session receives the output from now on. If the
// container has an open standard input, the session writes to it.
func (e *Engine) Console(ctx context.Context, containerID string, size driver.TerminalSize) (driver.Session, error) {
	full, err := e.Inspect(ctx, containerID)
	if err != nil {
		return nil, Classify("console", err)
	}
	if full.State == nil || !full.State.Running {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "console", "container %s does not run", Short(containerID))
	}
	tty, input := false, false
	if full.Config != nil {
		tty, input = full.Config.Tty, full.Config.OpenStdin
	}
	call, cancel := e.Call(ctx)
	defer cancel()
	got, err := e.Client.ContainerAttach(call, containerID, client.ContainerAttachOptions{Stream: true, Stdin: input, Stdout: true, Stderr: true})
	if err != nil {
		return nil, classifyExec(err)
	}
	s := &session{eng: e, conn: got.HijackedResponse, framed: !tty, container: containerID, input: input}
	if tty && size != (driver.TerminalSize{}) {
		_ = s.Resize(call, size)
	}
	return s, nil
}

func classifyExec(err error) error {
	text := strings.ToLower(err.Error())
	if strings.Contains(text, "is not running") || strings.Contains(text, "is paused") || strings.Contains(text, "is restarting") || strings.Contains(text, "no such container") {
		return &driver.Error{Class: driver.RuntimeResourceMissing, Op: "exec", Err: err}
	}
	return Classify("exec", err)
}

// session is the connection to a command or a console in a container: a hijacked HTTP connection to the
// engine. exec is the engine's id of the command; it is empty for a console.
type session struct {
	eng             *Engine
	conn            client.HijackedResponse
	framed          bool // stdout and stderr are multiplexed in one stream of frames
	container, exec string
	input           bool

	frame  uint32 // number of unread bytes of the current frame
	stderr bool
	buffer [maxPiece]byte

	mu     sync.Mutex // guards the fields below
	shut   bool       // CloseWrite was called: the command's input is closed
	ended  bool       // the command has ended
	closed sync.Once
}

// Output implements driver.Session.
func (s *session) Output() (driver.Output, error) {
	for s.framed && s.frame == 0 {
		// A stdcopy frame begins with a header of 8 bytes: the number of the stream, three zero bytes, the
		// length.
		head := s.buffer[:8]
		if _, err := io.ReadFull(s.conn.Reader, head); err != nil {
			return driver.Output{}, ending(err)
		}
		s.stderr, s.frame = head[0] != 1, binary.BigEndian.Uint32(head[4:])
	}
	room := s.buffer[:]
	if s.framed && s.frame < maxPiece {
		room = room[:s.frame]
	}
	n, err := s.conn.Reader.Read(room)
	if s.framed {
		s.frame -= uint32(n)
	}
	if n > 0 {
		return driver.Output{Data: room[:n], Stderr: s.framed && s.stderr}, nil
	}
	return driver.Output{}, ending(err)
}

// ending returns io.EOF if the error means that the connection is closed. It returns other errors unchanged.
func ending(err error) error {
	if err == nil {
		return io.ErrNoProgress
	}
	return io.EOF
}

// Write implements driver.Session.
func (s *session) Write(p []byte) (int, error) {
	if !s.input {
		return 0, errors.New("the session was opened without input")
	}
	return s.conn.Conn.Write(p)
}

// CloseWrite implements driver.Session.
func (s *session) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut || !s.input {
		return nil
	}
	s.shut = true
	if s.exec == "" {
		return nil // for a console do nothing: a user who detaches must not close the workload's input
	}
	return s.conn.CloseWrite()
}

// Resize implements driver.Session.
func (s *session) Resize(ctx context.Context, z driver.TerminalSize) error {
	if s.framed {
		return nil
	}
	ctx, cancel := s.eng.Call(ctx)
	defer cancel()
	if s.exec == "" {
		_, err := s.eng.Client.ContainerResize(ctx, s.container, client.ContainerResizeOptions{Height: uint(z.Rows), Width: uint(z.Columns)})
		return Classify("resize", err)
	}
	_, err := s.eng.Client.ExecResize(ctx, s.exec, client.ExecResizeOptions{Height: uint(z.Rows), Width: uint(z.Columns)})
	return Classify("resize", err)
}

// Signal implements driver.Session. The engine's API cannot signal a command of a session, so this method
// signals the process directly on this machine.
func (s *session) Signal(ctx context.Context, name string) error {
	number := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if number == 0 {
		return driver.Errorf(driver.InvalidSpecification, "signal", "%q is not a signal name", name)
	}
	if s.exec == "" {
		return driver.Errorf(driver.InvalidSpecification, "signal", "a console takes no signals, because it belongs to the workload; use stop or restart")
	}
	_, err := s.kill(ctx, number)
	return err
}

// kill signals the command and its children. It returns whether the command was still running.
func (s *session) kill(ctx context.Context, number syscall.Signal) (bool, error) {
	// The engine reports the process id only shortly after the process has started, so poll.
	limited, done := context.WithTimeout(ctx, hangUp)
	defer done()
	pid, running, err := s.process(ctx)
	for running && err == nil && pid == 0 {
		if !Pause(limited) {
			return true, driver.Errorf(driver.RuntimeError, "signal", "cannot find the command's process on this machine: the engine runs on another machine or in another PID namespace")
		}
		pid, running, err = s.process(ctx)
	}
	if !running || err != nil {
		return running, err
	}
	// runc makes each command the leader of its own session and process group.
	if err := syscall.Kill(-pid, number); errors.Is(err, syscall.ESRCH) {
		err = syscall.Kill(pid, number)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return true, driver.Errorf(driver.RuntimeError, "signal", "%w", err)
		}
	} else if err != nil {
		return true, driver.Errorf(driver.RuntimeError, "signal", "%w", err)
	}
	return true, nil
}

// process returns the command's process id on this machine, and whether the command runs. The id is 0 if
// this machine does not see the process.
func (s *session) process(ctx context.Context) (pid int, running bool, err error) {
	call, cancel := s.eng.Call(ctx)
	defer cancel()
	state, err := s.eng.Client.ExecInspect(call, s.exec, client.ExecInspectOptions{})
	if err != nil {
		return 0, true, Classify("signal", err)
	}
	if !state.Running {
		return 0, false, nil
	}
	full, err := s.eng.Inspect(call, s.container)
	if err != nil {
		return 0, true, Classify("signal", err)
	}
	if full.State == nil || full.State.Pid <= 1 || state.PID <= 1 || !sameMounts(state.PID, full.State.Pid) {
		return 0, true, nil
	}
	return state.PID, true, nil
}

// sameMounts reports whether two processes have the same mount namespace. If it returns false, the engine may
// be on another machine. Its process ids then belong to unrelated processes on this machine, which must not be
// signalled.
func sameMounts(a, b int) bool {
	x, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", a))
	if err != nil {
		return false
	}
	y, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", b))
	self, serr := os.Readlink("/proc/self/ns/mnt")
	return err == nil && serr == nil && x == y && x != self
}

// Exit implements driver.Session.
func (s *session) Exit(ctx context.Context) (int, error) {
	if s.exec == "" {
		return 0, nil
	}
	for {
		call, cancel := s.eng.Call(ctx)
		state, err := s.eng.Client.ExecInspect(call, s.exec, client.ExecInspectOptions{})
		cancel()
		if err != nil {
			return 0, Classify("exec", err)
		}
		if !state.Running {
			s.mu.Lock()
			s.ended = true
			s.mu.Unlock()
			return state.ExitCode, nil
		}
		if !Pause(ctx) {
			// The command has closed its output but still runs, so the session cannot wait for its exit code.
			return 0, driver.Errorf(driver.RuntimeError, "exec", "the command closed its output but still runs: %w", ctx.Err())
		}
	}
}

// Close implements driver.Session.
func (s *session) Close() error {
	s.closed.Do(func() {
		_ = s.conn.Conn.Close() // closing the connection drops unread output, as intended
		s.mu.Lock()
		ended := s.ended
		s.mu.Unlock()
		if s.exec == "" || ended {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*hangUp)
		defer cancel()
		if running, err := s.kill(ctx, syscall.SIGHUP); !running || err != nil {
			return
		}
		grace, done := context.WithTimeout(ctx, hangUp)
		defer done()
		for Pause(grace) {
			state, err := s.eng.Client.ExecInspect(grace, s.exec, client.ExecInspectOptions{})
			if err == nil && !state.Running {
				return
			}
		}
		_, _ = s.kill(ctx, syscall.SIGKILL) // the command was not gone after hangUp; no caller waits for an error of this call
	})
	return nil
}
