package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// echo is a fake agent's side of a session. It sends its input back, and exits with code 7 at the end of the
// input.
func echo(stream grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	o := m.GetOpen()
	if o.GetCommand() != nil && o.GetCommand()[0] == "refused" {
		return status.Error(codes.FailedPrecondition, "the workload does not run")
	}
	if err := stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Opened{Opened: &agentv1.ExecOpened{IdleSeconds: 900}}}); err != nil {
		return err
	}
	say := func(text, to string) error {
		return stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Output{Output: &agentv1.LogChunk{Data: []byte(text), Stream: to}}})
	}
	if err := say(fmt.Sprintf("%s %q %v %s %s;", o.GetWorkloadId(), o.GetCommand(), o.GetConsole(), o.GetNodeId(), o.GetBy()), "stderr"); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) || m.GetEndInput() {
			return stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Exit{Exit: &agentv1.ExecExit{Code: 7}}})
		}
		if err != nil {
			return err
		}
		if err := say(string(m.GetInput())+m.GetSignal()+fmt.Sprint(m.GetResize().GetRows())+";", "stdout"); err != nil {
			return err
		}
	}
}

func (f *fakeAgent) Exec(stream grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error {
	if f.exec == nil {
		return f.UnimplementedAgentServiceServer.Exec(stream)
	}
	return f.exec(stream)
}

func openAt(t *testing.T, c clusterv1.ClusterClient, o *clusterv1.ExecOpen) clusterv1.Cluster_ExecClient {
	t.Helper()
	return openWith(t, ctxFor(t), c, o)
}

func openWith(t *testing.T, ctx context.Context, c clusterv1.ClusterClient, o *clusterv1.ExecOpen) clusterv1.Cluster_ExecClient {
	t.Helper()
	s, err := c.Exec(ctx)
	ok(t, err)
	if err := s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: o}}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return s
}

// heard reads a session to its end and returns its output, its error output and its exit code.
func heard(s clusterv1.Cluster_ExecClient) (out, bad string, code int32, err error) {
	code = -1
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, bad, code, nil
		}
		if err != nil {
			return out, bad, code, err
		}
		switch b := m.GetMessage().(type) {
		case *clusterv1.ExecResponse_Output:
			if b.Output.GetStream() == "stderr" {
				bad += string(b.Output.GetData())
			} else {
				out += string(b.Output.GetData())
			}
		case *clusterv1.ExecResponse_Exit:
			code = b.Exit.GetCode()
		}
	}
}

// viaOf returns the identity of the gateway that an event names, without the part after "?" that describes its
// certificate.
func viaOf(e *fsm.Event) string {
	for _, l := range e.Details {
		if l.Key == "via" {
			id, _, _ := strings.Cut(l.Value, "?")
			return id
		}
	}
	return ""
}

// viewer admits a user who has the access level viewer.
func viewer(g *group, name string) {
	g.t.Helper()
	g.do(&commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
		Role: "user", Name: name, Access: "viewer", KeySha256: make([]byte, 32), Fingerprint: strings.Repeat("0", 64), IssuedAt: 1, NotAfter: 2,
	}}})
}

// kept returns the events that the cluster's state contains at present.
func kept(g *group) (out []*fsm.Event) {
	g.view().Events(0, func(e *fsm.Event) bool { out = append(out, e); return true })
	return out
}

// audited returns the stored audit events of sessions and refusals, one line each.
func audited(g *group) (out []string) {
	for _, e := range kept(g) {
		if e.Type == fsm.EventSessionOpened || e.Type == fsm.EventSessionClosed || e.Type == fsm.EventCallRefused {
			line := e.Type + " " + e.Workload + "@" + e.Node + " " + e.Message
			for _, l := range e.Details {
				if l.Key == "call" || l.Key == "service" || l.Key == "tty" {
					line += " " + l.Key + "=" + l.Value
				}
			}
			out = append(out, line)
		}
	}
	return out
}

func awaitAudit(t *testing.T, g *group, want ...string) {
	t.Helper()
	testbed.Within(t, testbed.Patience, "the record", func() error {
		if got := audited(g); !slices.Equal(got, want) {
			return fmt.Errorf("the audit events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// TestCommandLinesAreKeptAsAHash: unless AuditCommands is set, the audit log must contain only the program of a
// session and a hash of its command line, and none of the arguments.
func TestCommandLinesAreKeptAsAHash(t *testing.T) {
	g := newGroup(t, 1, func(_ int, c *Config) { c.AuditCommands = false })
	sum := sha256.Sum256([]byte(`mysql -phunter2`))
	got := g.replicas[0].server.recorded(&clusterv1.ExecOpen{Command: []string{"mysql", "-phunter2"}})
	is(t, "audit text of a command with an argument", got, "mysql, 1 arguments, sha256 of the command line "+hex.EncodeToString(sum[:]))
	is(t, "audit text of a console", g.replicas[0].server.recorded(&clusterv1.ExecOpen{Console: true}), "console")
	f := g.agent(t, 1)
	f.exec = echo
	g.put(t, web("web"), "n")
	s := openAt(t, g.cluster(0), &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"mysql", "-phunter2"}, Input: true})
	ok(t, s.CloseSend())
	_, bad, exit, err := heard(s)
	ok(t, err)
	is(t, "exit code", exit, 7)
	is(t, "whether the agent gets the arguments of the command", strings.Contains(bad, "-phunter2"), true)
	awaitAudit(t, g, "SessionOpened web@n "+got+" call=exec", "SessionClosed web@n exit code 7 call=exec")
}

func TestExecSessionsAreRelayedAndRecorded(t *testing.T) {
	command := func(words ...string) *clusterv1.ExecOpen {
		return &clusterv1.ExecOpen{WorkloadId: "web", Command: words, Input: true}
	}
	t.Run("a session is relayed between caller and agent, and recorded", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		f.exec = echo
		o := command("sh", "-c", "a b")
		o.Tty, o.Service = true, "db"
		s := openAt(t, g.cluster(0), o)
		first, err := s.Recv()
		ok(t, err)
		is(t, "node", first.GetOpened().GetNodeId(), "n")
		is(t, "idle", first.GetOpened().GetIdleSeconds(), 900)
		awaitAudit(t, g, `SessionOpened web@n sh -c "a b" call=exec service=db tty=true`)
		ok(t, s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Input{Input: []byte("hello")}}))
		ok(t, s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Signal{Signal: "INT"}}))
		ok(t, s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Resize{Resize: &clusterv1.TerminalSize{Rows: 5}}}))
		ok(t, s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_EndInput{EndInput: true}}))
		out, bad, code, err := heard(s)
		ok(t, err)
		is(t, "out", out, "hello0;INT0;5;")
		is(t, "asked", bad, `web ["sh" "-c" "a b"] false n `+anonymous+";")
		is(t, "exit code", code, 7)
		awaitAudit(t, g, `SessionOpened web@n sh -c "a b" call=exec service=db tty=true`, `SessionClosed web@n exit code 7 call=exec service=db tty=true`)
	})
	t.Run("if the caller closes its side of the stream, the input of the session ends", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		f.exec = echo
		s := openAt(t, g.cluster(0), &clusterv1.ExecOpen{WorkloadId: "web", Console: true})
		ok(t, s.CloseSend())
		_, bad, code, err := heard(s)
		ok(t, err)
		is(t, "exit code", code, 7)
		is(t, "asked", strings.Contains(bad, "web [] true n"), true)
		awaitAudit(t, g, "SessionOpened web@n console call=console", "SessionClosed web@n exit code 7 call=console")
	})
	t.Run("if the caller disconnects, the session ends", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		ended := make(chan error, 1)
		f.exec = func(s grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error {
			err := echo(s)
			ended <- err
			return err
		}
		s := openAt(t, g.cluster(0), command("sh"))
		_, err := s.Recv()
		ok(t, err)
		g.replicas[0].conn.Close()
		select {
		case err := <-ended:
			is(t, "gRPC code with which the agent's stream ends", status.Code(err), codes.Canceled)
		case <-time.After(5 * time.Second):
			t.Fatal("the agent must notice the end of the session, but did not")
		}
		awaitAudit(t, g, "SessionOpened web@n sh call=exec", "SessionClosed web@n the caller disconnected call=exec")
	})
	t.Run("if the agent refuses a session, the caller gets the agent's error", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		f.exec = echo
		_, _, _, err := heard(openAt(t, g.cluster(0), command("refused")))
		code(t, err, codes.FailedPrecondition)
		awaitAudit(t, g, "SessionOpened web@n refused call=exec", "SessionClosed web@n agent of node n: the workload does not run call=exec")
	})
	t.Run("a session is not opened if its event cannot be committed", func(t *testing.T) {
		g, f, _, _ := agentWorld(t, 1)
		f.exec = func(grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error {
			t.Error("the agent was called, although the event of the session could not be committed")
			return nil
		}
		g.elect(-1)
		_, _, _, err := heard(openAt(t, g.cluster(0), command("sh")))
		code(t, err, codes.Unavailable)
	})
	for _, c := range []struct {
		fact string
		open *clusterv1.ExecOpen
		code codes.Code
		says string
	}{
		{"the error about an agent without sessions names the agent's version", command("sh"), codes.FailedPrecondition, "v9"},
		{"a session in an unknown workload is not found", &clusterv1.ExecOpen{WorkloadId: "x", Command: []string{"sh"}}, codes.NotFound, "x"},
		{"a session in a workload that is on no node is refused", &clusterv1.ExecOpen{WorkloadId: "idle", Command: []string{"sh"}}, codes.FailedPrecondition, "why idle"},
		{"no command", &clusterv1.ExecOpen{WorkloadId: "web"}, codes.InvalidArgument, "command"},
		{"a session with both a console and a command is refused", &clusterv1.ExecOpen{WorkloadId: "web", Console: true, Command: []string{"sh"}}, codes.InvalidArgument, "console"},
		{"a session with a command line above the limit is refused", command("sh", strings.Repeat("x", maxExecBytes)), codes.ResourceExhausted, "65540 bytes"},
		{"a session with a terminal size above the limit is refused", &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"sh"}, Size: &clusterv1.TerminalSize{Rows: 1 << 16}}, codes.InvalidArgument, "size"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g, _, _, _ := agentWorld(t, 1)
			g.place("idle", "")
			_, _, _, err := heard(openAt(t, g.cluster(0), c.open))
			code(t, err, c.code)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("the session returned error %v, want an error that contains %q", err, c.says)
			}
		})
	}
}

// TestConsoleThroughAFollower: a console session runs through the replica that was called, even if that is a
// follower. Only the audit events need the leader, and the leader may change during the session.
func TestConsoleThroughAFollower(t *testing.T) {
	g := newGroup(t, 3)
	f := g.agent(t, 1)
	g.put(t, web("web"), "n")
	f.exec = echo
	for _, asked := range []int{1, 2} {
		g.elect(0)
		before := len(audited(g))
		s := openAt(t, g.cluster(asked), &clusterv1.ExecOpen{WorkloadId: "web", Console: true, Tty: true, Input: true})
		first, err := s.Recv()
		ok(t, err)
		is(t, "node", first.GetOpened().GetNodeId(), "n")
		g.elect(-1)
		ok(t, s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Input{Input: []byte("ping")}}))
		m, err := s.Recv()
		// Skip the first message of the fake agent, which is a copy of the request.
		for err == nil && m.GetOutput().GetStream() == "stderr" {
			is(t, "asked", string(m.GetOutput().GetData()), "web [] true n "+anonymous+";")
			m, err = s.Recv()
		}
		ok(t, err)
		is(t, "output of the session while there is no leader", string(m.GetOutput().GetData()), "ping0;")
		g.elect(2)
		ok(t, s.CloseSend())
		_, _, code, err := heard(s)
		ok(t, err)
		is(t, "exit code", code, 7)
		testbed.Within(t, testbed.Patience, "the record", func() error {
			got := audited(g)[before:]
			if !slices.Equal(got, []string{"SessionOpened web@n console call=console tty=true", "SessionClosed web@n exit code 7 call=console tty=true"}) {
				return fmt.Errorf("the audit events of the session are %q", got)
			}
			return nil
		})
	}
}

// TestExecRecordsFromAnyReplica: a follower asks the leader, with the follower's own identity, to commit the
// audit events of a session. The events also name callers who were refused, and users of a gateway.
func TestExecRecordsFromAnyReplica(t *testing.T) {
	g, dialAs := tlsGroup(t)
	viewer(g, "vera")
	g.place("web", "a")
	unreached := []string{"SessionOpened web@a sh call=exec", "SessionClosed web@a agent of node a: "}
	for name, want := range map[string]struct {
		cert, by string
		md       []string
		code     codes.Code
		lines    []string // expected beginnings of the lines that the function audited returns
	}{
		"a user":                     {"user/ada", "persys://c1/user/ada", nil, codes.Unavailable, unreached},
		"a gateway":                  {"gateway/g", "persys://c1/gateway/g", nil, codes.Unavailable, unreached},
		"a user of a gateway":        {"gateway/g", "persys://c1/user/ada", []string{dial.KeyOnBehalf, "persys://c1/user/ada"}, codes.Unavailable, unreached},
		"a user with a token":        {"gateway/g", "oidc:https://idp#eve", []string{dial.KeyUser, "oidc:https://idp#eve"}, codes.Unavailable, unreached},
		"narrowed":                   {"gateway/g", "oidc:https://idp#eve", []string{dial.KeyUser, "oidc:https://idp#eve", dial.KeyNamespaces, fsm.DefaultNamespace}, codes.Unavailable, unreached},
		"an agent":                   {"agent/a", "persys://c1/agent/a", nil, codes.PermissionDenied, []string{`CallRefused @ agent "a" may not exec call=exec`}},
		"a viewer through a gateway": {"gateway/g", "persys://c1/user/vera", []string{dial.KeyOnBehalf, "persys://c1/user/vera"}, codes.PermissionDenied, []string{`CallRefused @ user "vera" (called through gateway "g") may not exec: this needs the permission exec`}},
	} {
		before := len(kept(g))
		cc := clusterv1.NewClusterClient(dialAs(1, want.cert))
		_, _, _, err := heard(openWith(t, metadata.AppendToOutgoingContext(ctxFor(t), want.md...), cc, &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"sh"}}))
		code(t, err, want.code)
		is(t, name+": number of events about the session", len(kept(g))-before, len(want.lines))
		lines := audited(g)
		for i, line := range want.lines {
			if got := lines[len(lines)-len(want.lines)+i]; !strings.HasPrefix(got, line) {
				t.Errorf("%s: the audit event of the session is %q, want it to begin with %q", name, got, line)
			}
			e := kept(g)[before+i]
			by, _, _ := strings.Cut(e.By, "?")
			is(t, name+": caller in the audit event", by, want.by)
			is(t, name+": gateway in the audit event", viaOf(e), map[bool]string{true: "persys://c1/gateway/g"}[want.md != nil])
			is(t, "whether the event has the caller's address", slices.Contains(e.Details, fsm.Label{Key: "from", Value: "127.0.0.1"}), true)
		}
	}
	// Only schedulers may ask the leader to commit an audit event of a session.
	_, err := clusterv1.NewClusterClient(dialAs(0, "user/admin")).RecordSession(ctxFor(t), &clusterv1.RecordSessionRequest{Type: fsm.EventSessionClosed, By: "persys://c1/user/ada"})
	code(t, err, codes.PermissionDenied)
}
