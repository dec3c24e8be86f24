package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Commands are the commands that the suite can run in a workload of Harness.Steady.
type Commands struct {
	// Say is a command that prints out to stdout and err to stderr, and exits with code.
	Say func(out, err string, code int) []string
	// Cat is a command that copies its input to its output until the input ends.
	Cat []string
	// Wait is a command that prints "waiting" and runs until it gets a signal.
	Wait []string
	// Size is a command that prints the rows and columns of its terminal once they are known.
	Size []string
	// Service is the service in which the commands run, for a Compose stack.
	Service string
}

type namedTest struct {
	name string
	run  func(*testing.T, *suite)
}

// sessionTests test driver.Execer and driver.Consoler.
var sessionTests = []namedTest{
	{"Exec returns a command's outputs and exit code", testExec},
	{"a command receives its input and the end of the input", testExecInput},
	{"a command without input reads the end of input", testExecNoInput},
	{"a signal ends a command", testExecSignal},
	{"a terminal has a size", testExecTerminal},
	{"a missing command is reported", testExecMissing},
	{"a session ends with its workload", testExecHalted},
	{"a closed session ends", testExecClose},
	{"a stopped workload refuses commands", testExecStopped},
	{"a console ends with its workload", testConsole},
}

// output reads the output of a session to its end, and fails the test if the output does not end in
// time.
func (s *suite) output(t *testing.T, x driver.Session) (stdout, stderr string) {
	t.Helper()
	var out, bad strings.Builder
	done := make(chan error, 1)
	go func() {
		for {
			piece, err := x.Output()
			if err != nil {
				done <- err
				return
			}
			if piece.Stderr {
				bad.Write(piece.Data)
			} else {
				out.Write(piece.Data)
			}
		}
	}()
	select {
	case err := <-done:
		if !errors.Is(err, io.EOF) {
			t.Fatalf("Output: %v", err)
		}
	case <-time.After(s.Patience):
		_ = x.Close()
		<-done
		t.Fatalf("the session does not end; its outputs so far are %q and %q", out.String(), bad.String())
	}
	return out.String(), bad.String()
}

func (s *suite) exit(t *testing.T, x driver.Session) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, s.Patience)
	defer cancel()
	code, err := x.Exit(ctx)
	if err != nil {
		t.Fatalf("Exit: %v", err)
	}
	return code
}

// running starts the workload of Harness.Steady, in which commands can run, and returns its driver and id.
func (s *suite) running(t *testing.T, name string) (driver.Driver, driver.ID) {
	t.Helper()
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, name, s.Steady(1))
	s.ensure(t, d, spec)
	s.await(t, d, spec.ID, driver.Running)
	return d, spec.ID
}

func (s *suite) exec(t *testing.T, d driver.Driver, id driver.ID, o driver.ExecOptions) driver.Session {
	t.Helper()
	o.Service = s.Commands.Service
	x, err := d.(driver.Execer).Exec(s.ctx, id, o)
	if err != nil {
		t.Fatalf("Exec(%q): %v", o.Command, err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func testExec(t *testing.T, s *suite) {
	d, id := s.running(t, "exec")
	for _, code := range []int{0, 3} {
		x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Say("good", "bad", code)})
		out, bad := s.output(t, x)
		if out != "good\n" || bad != "bad\n" {
			t.Errorf("the session returned the stdout %q and the stderr %q, want the texts that the command printed", out, bad)
		}
		if got := s.exit(t, x); got != code {
			t.Errorf("the session returned the exit code %d, want %d, that of the command", got, code)
		}
		for range 2 {
			if err := x.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	}
}

func testExecInput(t *testing.T, s *suite) {
	d, id := s.running(t, "execin")
	x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Cat, Input: true})
	text := strings.Repeat("0123456789abcde\n", 16<<10) // the text is larger than the buffers between the session and its caller
	go func() {
		if _, err := io.WriteString(x, text); err != nil {
			t.Errorf("Write: %v", err)
		}
		if err := x.CloseWrite(); err != nil {
			t.Errorf("CloseWrite: %v", err)
		}
	}()
	out, bad := s.output(t, x)
	if out != text || bad != "" {
		t.Errorf("of %d bytes that were sent to the command cat, %d came back, and its stderr is %q", len(text), len(out), bad)
	}
	if code := s.exit(t, x); code != 0 {
		t.Errorf("the exit code of cat is %d, want 0", code)
	}
}

func testExecNoInput(t *testing.T, s *suite) {
	d, id := s.running(t, "execnone")
	x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Cat})
	if out, bad := s.output(t, x); out+bad != "" {
		t.Errorf("the outputs of a command without input are %q and %q, want none", out, bad)
	}
	if code := s.exit(t, x); code != 0 {
		t.Errorf("the exit code of a command without input is %d, want 0", code)
	}
}

func testExecSignal(t *testing.T, s *suite) {
	d, id := s.running(t, "execsig")
	for name, code := range map[string]int{"TERM": 143, "SIGINT": 130, "kill": 137} {
		x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Wait})
		s.waiting(t, x)
		if err := x.Signal(s.ctx, "NONE"); driver.ClassOf(err) != driver.InvalidSpecification {
			t.Errorf("Session.Signal with an unknown signal returned %v, want an error", err)
		}
		if err := x.Signal(s.ctx, name); err != nil {
			t.Fatalf("Signal(%s): %v", name, err)
		}
		s.output(t, x)
		if got := s.exit(t, x); got != code {
			t.Errorf("after the signal %s the exit code is %d, want %d", name, got, code)
		}
	}
}

// waiting waits until the command Commands.Wait, which runs in session x, has printed its line "waiting".
func (s *suite) waiting(t *testing.T, x driver.Session) {
	t.Helper()
	piece, err := x.Output()
	if err != nil || !strings.HasPrefix(string(piece.Data), "waiting") {
		t.Fatalf("the output of the waiting command began with %q, error %v", piece.Data, err)
	}
}

func testExecTerminal(t *testing.T, s *suite) {
	d, id := s.running(t, "exectty")
	x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Size, TTY: true, Input: true, Size: driver.TerminalSize{Rows: 31, Columns: 77}})
	if out, bad := s.output(t, x); out != "31 77\r\n" || bad != "" {
		t.Errorf("the command sees the terminal size %q (stderr %q), want the size of the session", out, bad)
	}
	x = s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Cat, TTY: true, Input: true})
	if err := x.Resize(s.ctx, driver.TerminalSize{Rows: 40, Columns: 100}); err != nil {
		t.Errorf("Resize: %v", err)
	}
	go fmt.Fprint(x, "typed\r")
	var seen strings.Builder
	for strings.Count(seen.String(), "typed") < 2 {
		piece, err := x.Output()
		if err != nil || piece.Stderr {
			t.Fatalf("the terminal shows %q, on stderr: %v, error %v; want the echoed input on stdout", seen.String(), piece.Stderr, err)
		}
		seen.Write(piece.Data)
	}
	fmt.Fprint(x, "\x04") // Ctrl-D, the end of input on a terminal
	s.output(t, x)
	if code := s.exit(t, x); code != 0 {
		t.Errorf("after Ctrl-D the exit code of cat is %d, want 0", code)
	}
}

func testExecMissing(t *testing.T, s *suite) {
	d, id := s.running(t, "execnot")
	x := s.exec(t, d, id, driver.ExecOptions{Command: []string{"/no/such/program"}})
	out, bad := s.output(t, x)
	if code := s.exit(t, x); code != 126 && code != 127 || !strings.Contains(out+bad, "no/such/program") {
		t.Errorf("a session of a command that does not exist has exit code %d and output %q, want 126 or 127 and the reason", code, out+bad)
	}
}

func testExecHalted(t *testing.T, s *suite) {
	d, id := s.running(t, "exechalt")
	x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Wait})
	s.waiting(t, x)
	if err := d.Halt(s.ctx, id, time.Second); err != nil {
		t.Fatalf("Halt: %v", err)
	}
	s.output(t, x)
}

func testExecClose(t *testing.T, s *suite) {
	d, id := s.running(t, "execclose")
	x := s.exec(t, d, id, driver.ExecOptions{Command: s.Commands.Wait})
	s.waiting(t, x)
	if err := x.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s.output(t, x)
	if code := s.exit(t, x); code < 128 {
		t.Errorf("a command whose workload was stopped has exit code %d, want 128 plus the number of a signal", code)
	}
}

func testExecStopped(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "execoff", s.Steady(1))
	for _, when := range []string{"absent", "stopped"} {
		x, err := d.(driver.Execer).Exec(s.ctx, spec.ID, driver.ExecOptions{Command: s.Commands.Cat, Service: s.Commands.Service})
		if err == nil {
			_ = x.Close()
		}
		t.Log(when, err)
		wantClass(t, err, driver.RuntimeResourceMissing)
		spec.Running = false
		s.ensure(t, d, spec)
	}
}

func testConsole(t *testing.T, s *suite) {
	d, id := s.running(t, "console")
	x, err := d.(driver.Consoler).Console(s.ctx, id, driver.ConsoleOptions{Service: s.Commands.Service})
	if err != nil {
		t.Fatalf("Console: %v", err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if err := d.Halt(s.ctx, id, 5*time.Second); err != nil {
		t.Fatalf("Halt: %v", err)
	}
	s.output(t, x)
	if code := s.exit(t, x); code != 0 {
		t.Errorf("the exit code of a console is %d, want 0", code)
	}
}
