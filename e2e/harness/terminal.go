package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/testbed"
)

// Terminal is a pseudo terminal and the program that runs on it.
type Terminal struct {
	master, tty *os.File
	cmd         *exec.Cmd
	done        chan struct{}

	mu  sync.Mutex
	out strings.Builder
}

// OpenTerminal runs persysctl on a new terminal of the given size.
func (c *Cluster) OpenTerminal(ctx context.Context, env []string, rows, columns uint16, args ...string) (*Terminal, error) {
	t, err := NewTerminal(rows, columns)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, c.opt.Binaries.Ctl, args...)
	cmd.Env = append(env, "TERM=xterm")
	if err := t.Run(cmd); err != nil {
		return nil, errors.Join(err, t.tty.Close(), t.master.Close())
	}
	return t, t.tty.Close() // close the program's end of the terminal in this process, so that the terminal closes when the program exits
}

// NewTerminal opens a terminal without a program.
func NewTerminal(rows, columns uint16) (*Terminal, error) {
	master, tty, err := pty(rows, columns)
	if err != nil {
		return nil, fmt.Errorf("a terminal: %w", err)
	}
	t := &Terminal{master: master, tty: tty, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		buf := make([]byte, 4096)
		for { // Read fails when all processes have closed the other end of the terminal
			n, err := master.Read(buf)
			t.mu.Lock()
			t.out.Write(buf[:n])
			t.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return t, nil
}

// Run starts a program on the terminal.
func (t *Terminal) Run(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.tty, t.tty, t.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	t.cmd = cmd
	return cmd.Start()
}

// Resize changes the size of a terminal of NewTerminal; its program gets SIGWINCH.
func (t *Terminal) Resize(rows, columns uint16) error {
	return unix.IoctlSetWinsize(int(t.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
}

// Settings returns the termios(3) settings of a terminal of NewTerminal.
func (t *Terminal) Settings() (unix.Termios, error) {
	got, err := unix.IoctlGetTermios(int(t.tty.Fd()), unix.TCGETS)
	if err != nil {
		return unix.Termios{}, err
	}
	return *got, nil
}

// pty opens a pseudo terminal (pty(7)).
func pty(rows, columns uint16) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd))
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}

// Type sends text to the program as keyboard input.
func (t *Terminal) Type(text string) error {
	_, err := t.master.WriteString(text)
	return err
}

// Screen returns all output so far.
func (t *Terminal) Screen() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.String()
}

// Shows waits until the output contains text.
func (t *Terminal) Shows(ctx context.Context, limit time.Duration, text string) error {
	return testbed.Poll(ctx, limit, fmt.Sprintf("the terminal to show %q", text), func(context.Context) error {
		if s := t.Screen(); !strings.Contains(s, text) {
			return fmt.Errorf("the terminal shows %q", s)
		}
		return nil
	})
}

// Close is End followed by Hide.
func (t *Terminal) Close(limit time.Duration) (int, error) {
	code, err := t.End(limit)
	return code, errors.Join(err, t.Hide())
}

// End waits until the program exits and returns its exit code. After limit it kills the program and
// returns an error. The terminal stays open.
func (t *Terminal) End(limit time.Duration) (int, error) {
	kill := time.AfterFunc(limit, func() { _ = t.cmd.Process.Kill() })
	err := t.cmd.Wait()
	late := !kill.Stop()
	var exit *exec.ExitError
	switch {
	case late:
		err = fmt.Errorf("the program had not exited after %s; the terminal shows %q", limit, t.Screen())
	case errors.As(err, &exit):
		err = nil
	}
	return t.cmd.ProcessState.ExitCode(), err
}

// Hide closes the terminal.
func (t *Terminal) Hide() error {
	if err := t.tty.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	<-t.done // wait until the program's last output has been read
	return t.master.Close()
}
