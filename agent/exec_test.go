package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// sessions starts an agent with a workload in which commands can be run, and returns a client of its API.
func sessions(t *testing.T, change ...func(*Config)) (*rig, agentv1.AgentServiceClient) {
	t.Helper()
	l := bufconn.Listen(1 << 20) // a listener without socket, so that a synctest bubble can wait for it
	r := newRig(t, append(change, func(c *Config) { c.Listener = l })...)
	r.start()
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec())),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.apply("web", "sim/run")
	r.reaches("web", running)
	return r, agentv1.NewAgentServiceClient(conn)
}

func open(t *testing.T, c agentv1.AgentServiceClient, o *agentv1.ExecOpen) agentv1.AgentService_ExecClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := c.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first := &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Signal{Signal: "INT"}}
	if o != nil {
		first.Message = &agentv1.ExecRequest_Open{Open: o}
	}
	say(t, stream, first)
	return stream
}

func say(t *testing.T, stream agentv1.AgentService_ExecClient, m *agentv1.ExecRequest) {
	t.Helper()
	if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// heard reads a session until it ends. It returns the standard output (out), the error output (bad) and the
// exit code, which is -1 if the session reported none.
func heard(stream agentv1.AgentService_ExecClient) (out, bad string, code int32, err error) {
	code = -1
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out, bad, code, nil
		case err != nil:
			return out, bad, code, err
		}
		switch b := m.GetMessage().(type) {
		case *agentv1.ExecResponse_Output:
			if b.Output.GetStream() == "stderr" {
				bad += string(b.Output.GetData())
			} else {
				out += string(b.Output.GetData())
			}
		case *agentv1.ExecResponse_Exit:
			code = b.Exit.GetCode()
		}
	}
}

// TestLogOfASessionHasNoArguments: the agent logs the program of a session and the number of arguments, because
// arguments may contain secrets.
func TestLogOfASessionHasNoArguments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	_, c := sessions(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(file, nil)) })
	for _, id := range []string{"web", "none"} { // there is no workload "none", so its session is refused
		_, _, _, _ = heard(open(t, c, &agentv1.ExecOpen{WorkloadId: id, Command: []string{"sh", "-c", "exit 0", "hunter2"}, NodeId: "node-a"}))
	}
	testbed.Until(t, "the sessions are logged", func() bool {
		raw, err := os.ReadFile(path)
		log := string(raw)
		if strings.Contains(log, "hunter2") {
			t.Fatalf("the log contains an argument: %s", log)
		}
		return err == nil && strings.Contains(log, "session closed") && strings.Contains(log, "session refused") && strings.Contains(log, "program=sh arguments=3")
	})
}

func TestExecSessionsPassInputAndOutput(t *testing.T) {
	r, c := sessions(t)
	command := func(words ...string) *agentv1.ExecOpen {
		return &agentv1.ExecOpen{WorkloadId: "web", Command: words, NodeId: "node-a"}
	}
	t.Run("the caller gets both outputs and the exit code", func(t *testing.T) {
		out, bad, code, err := heard(open(t, c, command("sh", "-c", "echo good; err bad; exit 3")))
		if out != "good\n" || bad != "bad\n" || code != 3 || err != nil {
			t.Errorf("the command's standard output is %q, its error output %q, its exit code %d, the error %v; want good, bad, 3 and no error", out, bad, code, err)
		}
	})
	t.Run("input and the end of input reach the command", func(t *testing.T) {
		o := command("cat")
		o.Input = true
		s := open(t, c, o)
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("one ")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("two")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_EndInput{EndInput: true}})
		if out, _, code, err := heard(s); out != "one two" || code != 0 || err != nil {
			t.Errorf("the output of the session is %q, exit code %d, error %v; want the input \"one two\" and code 0", out, code, err)
		}
	})
	t.Run("the end of the caller's stream ends the input", func(t *testing.T) {
		o := command("cat")
		o.Input = true
		s := open(t, c, o)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, _, code, err := heard(s); code != 0 || err != nil {
			t.Errorf("the command ended with exit code %d, error %v; want the end of its input and code 0", code, err)
		}
	})
	t.Run("signals and terminal sizes reach the command", func(t *testing.T) {
		s := open(t, c, command("sh", "-c", "echo waiting; sleep 600"))
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Signal{Signal: "TERM"}})
		if _, _, code, err := heard(s); code != 143 || err != nil {
			t.Errorf("after the signal the session reports exit code %d and error %v", code, err)
		}
		o := command("sh")
		o.Tty, o.Input, o.Size = true, true, &agentv1.TerminalSize{Rows: 20, Columns: 60}
		s = open(t, c, o)
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("size\r")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("exit\r")}})
		if out, _, code, err := heard(s); !strings.Contains(out, "20 60\r\n") || code != 0 || err != nil {
			t.Errorf("the output of the session is %q, exit code %d, error %v; want the terminal size 20 60 and code 0", out, code, err)
		}
	})
	t.Run("the command ends when the caller disconnects", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.Exec(ctx)
		if err != nil {
			t.Fatal(err)
		}
		say(t, stream, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Open{Open: command("sleep", "600")}})
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		testbed.Until(t, "the end of the session", func() bool { return r.a.server.Sessions() == 0 })
	})
	t.Run("a console greets", func(t *testing.T) {
		s := open(t, c, &agentv1.ExecOpen{WorkloadId: "web", Console: true, Input: true})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("exit\r")}})
		if out, _, code, err := heard(s); !strings.Contains(out, "console of web") || code != 0 || err != nil {
			t.Errorf("the output of the session is %q, exit code %d, error %v; want the greeting \"console of web\" and code 0", out, code, err)
		}
	})
	for _, x := range []struct {
		fact string
		open *agentv1.ExecOpen
		code codes.Code
		says string
	}{
		{"an unknown workload", &agentv1.ExecOpen{WorkloadId: "none", Command: []string{"true"}}, codes.NotFound, "none"},
		{"a session addressed to another node is refused", &agentv1.ExecOpen{WorkloadId: "web", Command: []string{"true"}, NodeId: "node-b"}, codes.FailedPrecondition, "node-b"},
		{"no command", &agentv1.ExecOpen{WorkloadId: "web"}, codes.InvalidArgument, "command"},
		{"no workload id", &agentv1.ExecOpen{Command: []string{"true"}}, codes.InvalidArgument, "workload_id"},
		{"a session in a service that the stack does not have is refused", &agentv1.ExecOpen{WorkloadId: "web", Service: "db", Command: []string{"true"}}, codes.InvalidArgument, "db"},
		{"no first message", nil, codes.InvalidArgument, "open"},
	} {
		t.Run(x.fact+" is refused", func(t *testing.T) {
			if _, _, _, err := heard(open(t, c, x.open)); status.Code(err) != x.code || !strings.Contains(err.Error(), x.says) {
				t.Errorf("Exec returned %v, want %s with %q", err, x.code, x.says)
			}
		})
	}
	t.Run("a stop of the agent ends its sessions but not the workload", func(t *testing.T) {
		s := open(t, c, command("sleep", "600"))
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		r.halt()
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("an open session delayed the stop of the agent by %s, want at most 3 s", d)
		}
		if _, _, _, err := heard(s); status.Code(err) != codes.Unavailable {
			t.Errorf("the session ended with %v, want Unavailable", err)
		}
		if r.observed("web").State != "Running" {
			t.Error("the stop of the agent stopped the workload too, want that it keeps running")
		}
	})
}

func TestIdleSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 3 * time.Second
		_, c := sessions(t, func(cfg *Config) { cfg.SessionIdle = idle })
		o := &agentv1.ExecOpen{WorkloadId: "web", Command: []string{"cat"}, Input: true}
		s := open(t, c, o)
		for range 4 { // input and output keep the session open
			time.Sleep(idle - time.Millisecond) // a pause that is shorter than the idle time
			say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte(".")}})
		}
		said := time.Now()
		out, _, _, err := heard(s)
		if out != "...." || status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "PERSYS_EXEC_IDLE_TIMEOUT") {
			t.Errorf("the idle session ended with output %q and error %v; want the output of the command, and an error that names the setting for the idle time", out, err)
		}
		if silent := time.Since(said); silent != idle {
			t.Errorf("the session ended after %s of silence, want %s", silent, idle)
		}
	})
}

func TestSessionsCanBeForbidden(t *testing.T) {
	_, c := sessions(t, func(cfg *Config) { cfg.NoSessions = true })
	_, _, _, err := heard(open(t, c, &agentv1.ExecOpen{WorkloadId: "web", Command: []string{"true"}}))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "PERSYS_EXEC_ENABLED") {
		t.Error(err)
	}
}
