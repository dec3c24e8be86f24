package sim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/driver"
)

var (
	_ driver.Execer   = (*Driver)(nil)
	_ driver.Consoler = (*Driver)(nil)
)

// Exec implements driver.Execer: it runs one of the commands listed in doc.go.
func (d *Driver) Exec(ctx context.Context, id driver.ID, o driver.ExecOptions) (driver.Session, error) {
	if o.Service != "" && d.Kind() != driver.Compose {
		return nil, driver.Errorf(driver.InvalidSpecification, "exec", "service %q: a workload of kind %s has no services", o.Service, d.Kind())
	}
	r, err := d.active(ctx, "exec", id)
	if err != nil {
		return nil, err
	}
	s := d.begin(id, r, o.TTY, o.Input, o.Size)
	s.run(func(p *process) int { return p.command(o.Command) })
	return s, nil
}

// Console implements driver.Consoler: it opens a shell that first prints a greeting.
func (d *Driver) Console(ctx context.Context, id driver.ID, o driver.ConsoleOptions) (driver.Session, error) {
	r, err := d.active(ctx, "console", id)
	if err != nil {
		return nil, err
	}
	s := d.begin(id, r, true, true, o.Size)
	s.console = true
	s.run(func(p *process) int {
		fmt.Fprintf(p.out, "sim: console of %s\n", id)
		return p.shell()
	})
	return s, nil
}

// active returns the record of a running instance.
func (d *Driver) active(ctx context.Context, op string, id driver.ID) (record, error) {
	r, err := d.output(ctx, id)
	if err != nil {
		return r, err
	}
	if r.at(d.engine.opt.Mono()).state != driver.Running {
		return r, driver.Errorf(driver.RuntimeResourceMissing, op, "workload %q does not run", id)
	}
	return r, nil
}

// session is a session with a simulated command. It ends when the command or its instance ends.
type session struct {
	ctx     context.Context
	cancel  context.CancelFunc
	tty     bool
	console bool
	input   bool
	pieces  chan driver.Output
	ended   chan struct{} // closed when the program has ended; the channel pieces stays open, because Write may still echo input
	in      *io.PipeReader
	typed   *io.PipeWriter
	typing  []byte // characters typed on the terminal since the last complete line
	tasks   sync.WaitGroup

	mu     sync.Mutex
	code   int // exit code of the program
	killed int // exit code if a signal or the end of the instance killed the command; 0 if it was not killed
	size   driver.TerminalSize
}

// process holds the input and the outputs of a simulated program.
type process struct {
	s        *session
	out, err io.Writer
	in       *bufio.Reader
}

func (d *Driver) begin(id driver.ID, r record, tty, input bool, size driver.TerminalSize) *session {
	s := &session{tty: tty, input: input, size: size, pieces: make(chan driver.Output, 256), ended: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.in, s.typed = io.Pipe()
	if !input {
		_ = s.typed.Close()
	}
	s.tasks.Go(func() { // end the command when its instance ends
		ticker := time.NewTicker(followInterval)
		defer ticker.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-ticker.C:
			}
			again, err := d.output(s.ctx, id)
			if s.ctx.Err() == nil && (err == nil && (again.RuntimeID != r.RuntimeID || !again.at(d.engine.opt.Mono()).active()) ||
				driver.ClassOf(err) == driver.RuntimeResourceMissing) {
				s.kill(int(unix.SIGKILL))
			}
		}
	})
	return s
}

func (s *session) run(program func(*process) int) {
	p := &process{s: s, out: outlet{s, false}, err: outlet{s, true}, in: bufio.NewReader(s.in)}
	s.tasks.Go(func() {
		code := program(p)
		s.mu.Lock()
		s.code = code
		s.mu.Unlock()
		s.cancel()
		_ = s.in.CloseWithError(io.ErrClosedPipe)
		close(s.ended)
	})
}

// outlet is an io.Writer for the stdout or stderr of a simulated program. It passes what is written to the
// session.
type outlet struct {
	s      *session
	stderr bool
}

func (o outlet) Write(p []byte) (int, error) {
	data := bytes.Clone(p)
	if o.s.tty {
		data = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
	}
	select {
	case o.s.pieces <- driver.Output{Data: data, Stderr: o.stderr && !o.s.tty}:
		return len(p), nil
	case <-o.s.ctx.Done():
		return 0, io.ErrClosedPipe
	}
}

// Output implements driver.Session.
func (s *session) Output() (driver.Output, error) {
	select {
	case piece := <-s.pieces:
		return piece, nil
	case <-s.ended:
	}
	select {
	case piece := <-s.pieces: // output that was written before the program ended
		return piece, nil
	default:
		return driver.Output{}, io.EOF
	}
}

// Write implements driver.Session. A terminal echoes the input, delivers it line by line, and handles ^C,
// ^D and the erase key itself.
func (s *session) Write(p []byte) (int, error) {
	if !s.input {
		return 0, errors.New("the session was opened without input")
	}
	if !s.tty {
		return s.typed.Write(p)
	}
	show := func(text string) { _, _ = (outlet{s, false}).Write([]byte(text)) } // a write fails only if the session has ended
	for _, b := range p {
		switch b {
		case 3:
			s.kill(int(unix.SIGINT))
			return len(p), nil
		case 4:
			_ = s.typed.Close()
			continue
		case 8, 0x7f:
			if len(s.typing) > 0 {
				s.typing = s.typing[:len(s.typing)-1]
				show("\b \b")
			}
			continue
		case '\r':
			b = '\n'
		}
		show(string([]byte{b}))
		if s.typing = append(s.typing, b); b != '\n' {
			continue
		}
		if _, err := s.typed.Write(s.typing); err != nil {
			return 0, err
		}
		s.typing = s.typing[:0]
	}
	return len(p), nil
}

// CloseWrite implements driver.Session.
func (s *session) CloseWrite() error { return s.typed.Close() }

// Resize implements driver.Session.
func (s *session) Resize(_ context.Context, z driver.TerminalSize) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = z
	return nil
}

// Signal implements driver.Session. Every signal ends the simulated command.
func (s *session) Signal(_ context.Context, name string) error {
	number := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if number == 0 || s.console {
		return driver.Errorf(driver.InvalidSpecification, "signal", "signal %q is not simulated", name)
	}
	s.kill(int(number))
	return nil
}

func (s *session) kill(signal int) {
	s.mu.Lock()
	if s.killed == 0 && s.ctx.Err() == nil {
		s.killed = 128 + signal
	}
	s.mu.Unlock()
	s.cancel()
	_ = s.typed.CloseWithError(io.ErrClosedPipe)
}

// Exit implements driver.Session.
func (s *session) Exit(context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.console {
		return 0, nil
	}
	if s.killed != 0 {
		return s.killed, nil
	}
	return s.code, nil
}

// Close implements driver.Session.
func (s *session) Close() error {
	s.kill(int(unix.SIGHUP))
	s.tasks.Wait()
	return nil
}

// command runs one simulated program and returns its exit code.
func (p *process) command(args []string) int {
	rest := args[1:]
	switch args[0] {
	case "true":
		return 0
	case "false":
		return 1
	case "echo":
		fmt.Fprintln(p.out, strings.Join(rest, " "))
		return 0
	case "err":
		fmt.Fprintln(p.err, strings.Join(rest, " "))
		return 0
	case "exit":
		return number(rest, 0)
	case "size":
		p.s.mu.Lock()
		z := p.s.size
		p.s.mu.Unlock()
		fmt.Fprintln(p.out, z.Rows, z.Columns)
		return 0
	case "sleep":
		select {
		case <-time.After(time.Duration(number(rest, 1)) * time.Second):
		case <-p.s.ctx.Done():
		}
		return 0
	case "cat":
		if _, err := io.Copy(p.out, p.in); err != nil {
			return 1
		}
		return 0
	case "sh":
		if len(rest) == 2 && rest[0] == "-c" {
			return p.line(rest[1])
		}
		return p.shell()
	}
	fmt.Fprintf(p.err, "sim: %s: command not found\n", args[0])
	return 127
}

func number(args []string, otherwise int) int {
	if len(args) == 0 {
		return otherwise
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	return n
}

// line runs the commands of one line, separated by "; ".
func (p *process) line(text string) (code int) {
	for part := range strings.SplitSeq(text, ";") {
		if args := strings.Fields(part); len(args) > 0 {
			code = p.command(args)
		}
	}
	return code
}

// shell runs the commands of its input line by line, until the input ends or a line contains an exit command.
func (p *process) shell() (code int) {
	for p.s.ctx.Err() == nil {
		if p.s.tty {
			if _, err := io.WriteString(p.out, "$ "); err != nil {
				return code
			}
		}
		text, err := p.in.ReadString('\n')
		if args := strings.Fields(text); len(args) > 0 && args[0] == "exit" {
			return number(args[1:], code)
		}
		code = p.line(text)
		if err != nil {
			return code
		}
	}
	return code
}
