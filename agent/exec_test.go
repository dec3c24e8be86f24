package agent

import (
	"context"
	"errors"
	"io"
	"net"
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

// sessions is an agent with a workload, and a client of its API.
func sessions(t *testing.T, change ...func(*Config)) (*rig, agentv1.AgentServiceClient) {
	t.Helper()
	l := bufconn.Listen(1 << 20) // no socket, so that a synctest bubble can wait for it
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

// heard is the output of a session until it ends.
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

func TestSessions(t *testing.T) {
	r, c := sessions(t)
	command := func(words ...string) *agentv1.ExecOpen {
		return &agentv1.ExecOpen{WorkloadId: "web", Command: words, NodeId: "node-a"}
	}
	t.Run("outputs and the exit code come back", func(t *testing.T) {
		out, bad, code, err := heard(open(t, c, command("sh", "-c", "echo good; err bad; exit 3")))
		if out != "good\n" || bad != "bad\n" || code != 3 || err != nil {
			t.Errorf("%q, %q, exit code %d, %v", out, bad, code, err)
		}
	})
	t.Run("input and its end go in", func(t *testing.T) {
		o := command("cat")
		o.Input = true
		s := open(t, c, o)
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("one ")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("two")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_EndInput{EndInput: true}})
		if out, _, code, err := heard(s); out != "one two" || code != 0 || err != nil {
			t.Errorf("%q, exit code %d, %v", out, code, err)
		}
	})
	t.Run("a caller that says no more has ended the input", func(t *testing.T) {
		o := command("cat")
		o.Input = true
		s := open(t, c, o)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, _, code, err := heard(s); code != 0 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	})
	t.Run("signals and sizes reach the command", func(t *testing.T) {
		s := open(t, c, command("sh", "-c", "echo waiting; sleep 600"))
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Signal{Signal: "TERM"}})
		if _, _, code, err := heard(s); code != 143 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
		o := command("sh")
		o.Tty, o.Input, o.Size = true, true, &agentv1.TerminalSize{Rows: 20, Columns: 60}
		s = open(t, c, o)
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("size\r")}})
		say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte("exit\r")}})
		if out, _, code, err := heard(s); !strings.Contains(out, "20 60\r\n") || code != 0 || err != nil {
			t.Errorf("%q, exit code %d, %v", out, code, err)
		}
	})
	t.Run("a caller that goes away ends the command", func(t *testing.T) {
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
			t.Errorf("%q, exit code %d, %v", out, code, err)
		}
	})
	for _, x := range []struct {
		fact string
		open *agentv1.ExecOpen
		code codes.Code
		says string
	}{
		{"an unknown workload", &agentv1.ExecOpen{WorkloadId: "none", Command: []string{"true"}}, codes.NotFound, "none"},
		{"another node", &agentv1.ExecOpen{WorkloadId: "web", Command: []string{"true"}, NodeId: "node-b"}, codes.FailedPrecondition, "node-b"},
		{"no command", &agentv1.ExecOpen{WorkloadId: "web"}, codes.InvalidArgument, "command"},
		{"no id", &agentv1.ExecOpen{Command: []string{"true"}}, codes.InvalidArgument, "workload_id"},
		{"no such service", &agentv1.ExecOpen{WorkloadId: "web", Service: "db", Command: []string{"true"}}, codes.InvalidArgument, "db"},
		{"no first message", nil, codes.InvalidArgument, "open"},
	} {
		t.Run(x.fact+" is refused", func(t *testing.T) {
			if _, _, _, err := heard(open(t, c, x.open)); status.Code(err) != x.code || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%v, want %s with %q", err, x.code, x.says)
			}
		})
	}
	t.Run("the agent's end is that of its sessions, and not of the workload", func(t *testing.T) {
		s := open(t, c, command("sleep", "600"))
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		r.halt()
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("a session holds the agent for %s", d)
		}
		if _, _, _, err := heard(s); status.Code(err) != codes.Unavailable {
			t.Errorf("it ended with %v", err)
		}
		if r.observed("web").State != "Running" {
			t.Error("the workload does not run any more")
		}
	})
}

func TestIdleSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 3 * time.Second
		_, c := sessions(t, func(cfg *Config) { cfg.SessionIdle = idle })
		o := &agentv1.ExecOpen{WorkloadId: "web", Command: []string{"cat"}, Input: true}
		s := open(t, c, o)
		for range 4 { // input and output keep the session
			time.Sleep(idle - time.Millisecond) // shorter than the idle time
			say(t, s, &agentv1.ExecRequest{Message: &agentv1.ExecRequest_Input{Input: []byte(".")}})
		}
		said := time.Now()
		out, _, _, err := heard(s)
		if out != "...." || status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "PERSYS_EXEC_IDLE_TIMEOUT") {
			t.Errorf("%q, %v", out, err)
		}
		if silent := time.Since(said); silent != idle {
			t.Errorf("it ended after %s of silence, want %s", silent, idle)
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
