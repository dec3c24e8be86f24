package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// Exec pretends to run one of these commands: say, cat, wait and broken.
func (f *fake) Exec(stream clusterv1.Cluster_ExecServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	open := m.GetOpen()
	f.mu.Lock()
	f.requests = append(f.requests, open)
	f.mu.Unlock()
	if f.find(open.GetWorkloadId()) == nil {
		return status.Errorf(codes.NotFound, "exec: workload %q not found; `persysctl list` shows all", open.GetWorkloadId())
	}
	if len(open.GetCommand()) > 0 && open.GetCommand()[0] == "leaderless" {
		return dial.Error(codes.Unavailable, dial.ReasonNoLeader, "the record of the session needs a leader")
	}
	say := func(to, text string) error {
		return stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Output{Output: &clusterv1.LogChunk{Data: []byte(text), Stream: to}}})
	}
	exit := func(code int32) error {
		return stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Exit{Exit: &clusterv1.ExecExit{Code: code}}})
	}
	if err := stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Opened{Opened: &clusterv1.ExecOpened{NodeId: "node-a"}}}); err != nil {
		return err
	}
	if open.GetConsole() {
		open.Command = []string{"cat"}
	}
	switch open.GetCommand()[0] {
	case "say":
		return errors.Join(say("stdout", "good\n"), say("stderr", "bad\n"), exit(3))
	case "broken":
		return errors.Join(say("stdout", "half\n"), status.Error(codes.Unavailable, "agent of node node-a: gone"))
	case "idle":
		return status.Error(codes.DeadlineExceeded, "the session was ended: nothing was said for 15m0s")
	}
	if open.GetCommand()[0] == "wait" {
		if err := say("stdout", "waiting\n"); err != nil {
			return err
		}
	}
	for { // "cat" and "wait" read the client's messages until the client ends
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.requests = append(f.requests, m)
		f.mu.Unlock()
		switch b := m.GetMessage().(type) {
		case *clusterv1.ExecRequest_Input:
			err = say("stdout", strings.ToUpper(string(b.Input)))
		case *clusterv1.ExecRequest_Resize:
			err = say("stdout", fmt.Sprintf("%d by %d\n", b.Resize.GetRows(), b.Resize.GetColumns()))
		case *clusterv1.ExecRequest_EndInput:
			if open.GetCommand()[0] == "cat" {
				return exit(0)
			}
		case *clusterv1.ExecRequest_Signal:
			return exit(130)
		}
		if err != nil {
			return err
		}
	}
}

// execWays maps each kind of connection, to a scheduler and to a gateway, to the flags of persysctl that select it.
func execWays(t *testing.T, f *fake) map[string][]string {
	return map[string][]string{"straight": {"--insecure", "-s", f.addr}, "gateway": {"-s", behind(t, f, 10*time.Second)}}
}

func TestExecRunsCommands(t *testing.T) {
	f := start(t, nil)
	for way, to := range execWays(t, f) {
		t.Run(way, func(t *testing.T) { testExec(t, f, to) })
	}
}

func testExec(t *testing.T, f *fake, to []string) {
	for _, c := range []struct {
		fact, in        string
		args            []string
		code            int
		stdout, stderrs string
	}{
		{"output and exit code of persysctl are those of the command", "", []string{"exec", "web-0", "--", "say", "-x"}, 3, "good\n", "bad\n"},
		{"the dashes may be left out", "", []string{"exec", "web-0", "say"}, 3, "good\n", "bad\n"},
		{"the input and its end are passed on", "abc", []string{"exec", "-i", "web-0", "--", "cat"}, 0, "ABC", ""},
		{"an unknown workload", "", []string{"exec", "nothing", "--", "say"}, exitNotFound, "", "hint: persysctl list"},
		{"no command", "", []string{"exec", "web-0"}, exitUsage, "", "COMMAND is missing"},
		{"a leader that is missing", "", []string{"exec", "web-0", "--", "leaderless"}, exitUnavailable, "", "hint: persysctl status"},
		{"a session that broke off", "", []string{"exec", "web-0", "--", "broken"}, exitBroken, "half\n", "node-a: gone"},
		{"an idle session", "", []string{"exec", "web-0", "--", "idle"}, exitBroken, "", "nothing was said"},
		{"the session of a console without a terminal ends when the input ends", "abc", []string{"console", "web-0"}, 0, "ABC", ""},
	} {
		t.Run(c.fact, func(t *testing.T) {
			s := newSession(t)
			s.in = strings.NewReader(c.in)
			code := s.run(nil, append(slices.Clone(to), c.args...)...)
			if code != c.code || s.stdout.String() != c.stdout || !strings.Contains(s.stderr.String(), c.stderrs) {
				t.Errorf("exit %d, stdout %q, stderr %q", code, s.stdout.String(), s.stderr.String())
			}
		})
	}
	s := newSession(t)
	s.run(nil, append(to, "exec", "-t", "--service", "db", "web-0", "--", "say", "-i", "x y")...)
	if o := last[*clusterv1.ExecOpen](f); strings.Join(o.GetCommand(), "|") != "say|-i|x y" || o.GetService() != "db" || !o.GetTty() || o.GetInput() {
		t.Errorf("asked for %v", o)
	}
}

// keyboard gives the session a terminal on which the test types keys.
func (s *session) keyboard(t *testing.T) (keys *io.PipeWriter, resized chan struct{}, raw *int) {
	in, keys := io.Pipe()
	t.Cleanup(func() { _ = in.Close() })
	resized, raw = make(chan struct{}, 1), new(int)
	s.in, s.inTerm = in, true
	s.raw = func() (func(), error) { *raw++; return func() { *raw += 10 }, nil }
	s.size = func() (int, int) { return 77, 31 }
	s.resized = func(context.Context) <-chan struct{} { return resized }
	return keys, resized, raw
}

// prints waits until the output of the session contains text.
func (s *session) prints(t *testing.T, text string) {
	t.Helper()
	testbed.Within(t, testbed.Patience, "the output", func() error {
		if !s.stdout.Has(text) {
			return fmt.Errorf("stdout is %q and lacks %q", s.stdout.String(), text)
		}
		return nil
	})
}

func TestExecOnATerminal(t *testing.T) {
	f := start(t, nil)
	for way, to := range execWays(t, f) {
		t.Run(way, func(t *testing.T) { testExecOnATerminal(t, f, to) })
	}
}

func testExecOnATerminal(t *testing.T, f *fake, to []string) {
	s := newSession(t)
	keys, resized, raw := s.keyboard(t)
	done := make(chan int, 1)
	go func() { done <- s.run(nil, append(to, "exec", "-it", "web-0", "--", "cat")...) }()
	fmt.Fprint(keys, "hello\r")
	s.prints(t, "HELLO\r")
	resized <- struct{}{}
	s.prints(t, "31 by 77")
	_ = keys.Close()
	if code := <-done; code != 0 || *raw != 11 {
		t.Errorf("persysctl ended with exit code %d and set raw mode %d times; want the terminal set up and restored once", code, *raw)
	}
	if z := last[*clusterv1.ExecOpen](f).GetSize(); z.GetRows() != 31 || z.GetColumns() != 77 {
		t.Errorf("opened with size %v", z)
	}
}

func TestAConsoleIsLeftByItsKeys(t *testing.T) {
	f := start(t, nil)
	for way, to := range execWays(t, f) {
		t.Run(way, func(t *testing.T) { testConsoleIsLeft(t, f, to) })
	}
}

func testConsoleIsLeft(t *testing.T, f *fake, to []string) {
	s := newSession(t)
	keys, _, raw := s.keyboard(t)
	done := make(chan int, 1)
	go func() { done <- s.run(nil, append(to, "console", "web-0")...) }()
	fmt.Fprint(keys, "root\r")
	s.prints(t, "ROOT\r")
	fmt.Fprint(keys, "\x1d")
	if code := <-done; code != 0 || *raw != 11 || !strings.Contains(s.stderr.String(), "Ctrl-] leaves") {
		t.Errorf("exit %d, raw %d, %q", code, *raw, s.stderr.String())
	}
}

func TestCtrlCGoesToTheCommand(t *testing.T) {
	f := start(t, nil)
	for way, to := range execWays(t, f) {
		t.Run(way, func(t *testing.T) { testCtrlCGoesToTheCommand(t, f, to) })
	}
}

func testCtrlCGoesToTheCommand(t *testing.T, f *fake, to []string) {
	s := newSession(t)
	keys, _, _ := s.keyboard(t) // persysctl must not read the keyboard without the flag -i
	defer keys.Close()
	ctx, interrupt := context.WithCancel(s.ctx)
	defer interrupt()
	s.ctx = ctx
	done := make(chan int, 1)
	go func() { done <- s.run(nil, append(to, "exec", "web-0", "--", "wait")...) }()
	s.prints(t, "waiting")
	interrupt()
	if code := <-done; code != 130 || last[*clusterv1.ExecRequest](f).GetSignal() != "INT" {
		t.Errorf("persysctl ended with exit code %d after the signals %v; want the command's 130 after INT", code, last[*clusterv1.ExecRequest](f))
	}
}

// deaf simulates the stream of a session whose command reads no input: Send blocks, as flow control makes it block on a
// real connection.
type deaf struct {
	clusterv1.ClusterClient
	grpc.ClientStream
	ctx    context.Context
	opened bool
	full   chan struct{}
}

func (d *deaf) Exec(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[clusterv1.ExecRequest, clusterv1.ExecResponse], error) {
	d.ctx = ctx
	return d, nil
}

func (d *deaf) Send(m *clusterv1.ExecRequest) error {
	if m.GetOpen() != nil {
		return nil
	}
	select {
	case d.full <- struct{}{}:
	default:
	}
	<-d.ctx.Done()
	return io.EOF
}

func (d *deaf) Recv() (*clusterv1.ExecResponse, error) {
	if !d.opened {
		d.opened = true
		return &clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Opened{Opened: &clusterv1.ExecOpened{NodeId: "node-a"}}}, nil
	}
	<-d.ctx.Done()
	return nil, status.FromContextError(context.Canceled).Err()
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// If a command reads no input, the stream is blocked and the signal for Ctrl-C does not reach the command either.
// After Ctrl-C, the session must nevertheless end, when the grace period is over.
func TestCtrlCEndsASessionThatTakesNoInput(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	d := &deaf{full: make(chan struct{}, 1)}
	c := &cli{cluster: d, grace: time.Millisecond}
	c.in, c.out, c.err = endless{}, io.Discard, io.Discard
	done := make(chan error, 1)
	go func() {
		done <- c.session(ctx, &clusterv1.ExecOpen{WorkloadId: "web-0", Command: []string{"sleep"}, Input: true})
	}()
	<-d.full
	interrupt()
	if f := c.explain(<-done, false); f.code != exitInterrupted {
		t.Errorf("the command ended with exit code %d: %s", f.code, f.Error())
	}
}
