package rpc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

const (
	execOpening  = 30 * time.Second // time limit from the first message until the agent has opened the session
	execFirst    = 10 * time.Second // time limit for the caller's first message
	execLastWord = 10 * time.Second // time limit for recording the end of the session
	maxExecArgs  = 256
	maxExecBytes = 64 << 10 // maximum length of the command line in bytes
)

// Exec implements the call of cluster.v1: it relays a session (a user's command or console) between the
// caller and a workload. An event about the session is committed before the command starts, so that every
// session is in the history. Without a leader no session can be opened.
func (s *Server) Exec(stream clusterv1.Cluster_ExecServer) error {
	open, err := firstOpen(stream)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	n, err := s.holder(ctx, open.GetWorkloadId())
	if err != nil {
		if edgeKind(err) == KindPermission {
			_, err = s.refuse(ctx, callOf(ctx), "", nil, err)
		}
		return err
	}
	entry, err := s.enterNode(n.ID)
	if err != nil {
		return err
	}
	defer entry.Leave()
	note := s.note(ctx, open, n)
	if err := s.record(ctx, note(fsm.EventSessionOpened, s.recorded(open), nil)); err != nil {
		return fmt.Errorf("the session was not opened, because its audit event could not be committed: %w", err)
	}
	began := s.now()
	count := &execCount{}
	code, err := s.session(ctx, cancel, stream, n, open, count)
	message := "exit code " + strconv.Itoa(int(code))
	if err != nil {
		message = status.Convert(edge("", err)).Message()
		if stream.Context().Err() != nil {
			message = "the caller disconnected"
		}
	}
	last, done := context.WithTimeout(context.WithoutCancel(ctx), execLastWord)
	defer done()
	if rerr := s.record(last, note(fsm.EventSessionClosed, message, map[string]string{
		"seconds": strconv.FormatInt(int64(s.now().Sub(began)/time.Second), 10), "output_bytes": strconv.FormatInt(count.out, 10),
	})); rerr != nil {
		s.log.Warn("could not record the end of a session in the audit log", "workload", open.GetWorkloadId(), "node", n.ID, "result", message, "err", rerr)
	}
	return err
}

type execCount struct{ out int64 }

// firstOpen waits for the first message of the caller, which must be the request that opens the session, and validates
// this request.
func firstOpen(stream clusterv1.Cluster_ExecServer) (*clusterv1.ExecOpen, error) {
	type received struct {
		m   *clusterv1.ExecRequest
		err error
	}
	got := make(chan received, 1)
	go func() { // this goroutine ends when the handler returns, because that ends the stream
		m, err := stream.Recv()
		got <- received{m, err}
	}()
	timer := time.NewTimer(execFirst)
	defer timer.Stop()
	var r received
	select {
	case r = <-got:
	case <-timer.C:
		return nil, errorf(KindDeadline, "no first message within %s", execFirst)
	}
	if r.err != nil {
		return nil, r.err
	}
	open := r.m.GetOpen()
	size := 0
	for _, a := range open.GetCommand() {
		size += len(a) + 1
	}
	switch {
	case open == nil:
		return nil, errorf(KindInvalid, "the first message must be open")
	case open.GetWorkloadId() == "":
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	case open.GetConsole() && len(open.GetCommand()) > 0:
		return nil, errorf(KindInvalid, "command must be empty for a console")
	case !open.GetConsole() && (len(open.GetCommand()) == 0 || open.GetCommand()[0] == ""):
		return nil, errorf(KindInvalid, "command must not be empty")
	case len(open.GetCommand()) > maxExecArgs:
		return nil, errorf(KindTooLarge, "command: %d arguments, limit %d", len(open.GetCommand()), maxExecArgs)
	case size > maxExecBytes:
		return nil, errorf(KindTooLarge, "command: %d bytes, limit %d", size, maxExecBytes)
	case open.GetSize().GetRows() > 0xffff || open.GetSize().GetColumns() > 0xffff:
		return nil, errorf(KindInvalid, "size: %d by %d, at most 65535", open.GetSize().GetRows(), open.GetSize().GetColumns())
	}
	return open, nil
}

// recorded returns the text about a session's command for the audit log: the program, and a hash of the command line,
// with which a known command line can be compared. The log does not contain the arguments, because they often contain
// passwords and the log is exported out of the cluster.
func (s *Server) recorded(open *clusterv1.ExecOpen) string {
	line := commandLine(open)
	if s.cfg.AuditCommands || open.GetConsole() {
		return line
	}
	return fmt.Sprintf("%s, %d arguments, sha256 of the command line %x", clip(open.GetCommand()[0], 64), len(open.GetCommand())-1, sha256.Sum256([]byte(line)))
}

// commandLine returns the command of a session as one line, with quotes where needed.
func commandLine(open *clusterv1.ExecOpen) string {
	if open.GetConsole() {
		return "console"
	}
	words := make([]string, len(open.GetCommand()))
	for i, w := range open.GetCommand() {
		if w == "" || strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || r == '"' || r == '\'' || r == '\\' || r == 0x7f }) {
			w = strconv.Quote(w)
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

// note returns a function that commits audit events about one session.
func (s *Server) note(ctx context.Context, open *clusterv1.ExecOpen, n *fsm.Node) func(kind, message string, more map[string]string) *clusterv1.RecordSessionRequest {
	c := callOf(ctx)
	about := map[string]string{"call": "exec"}
	if open.GetConsole() {
		about["call"] = "console"
	}
	if open.GetService() != "" {
		about["service"] = clip(open.GetService(), 128)
	}
	if open.GetTty() {
		about["tty"] = "true"
	}
	by, via := c.by()
	return func(kind, message string, more map[string]string) *clusterv1.RecordSessionRequest {
		details := maps.Clone(about)
		maps.Copy(details, more)
		return &clusterv1.RecordSessionRequest{
			Type: kind, By: by, Via: via, From: c.from, WorkloadId: open.GetWorkloadId(), NodeId: n.ID,
			Message: clip(message, 512), Details: details,
		}
	}
}

// session relays messages between the caller and the agent. ctx is the context of the stream to the agent,
// and cancel ends that stream.
func (s *Server) session(ctx context.Context, cancel context.CancelFunc, stream clusterv1.Cluster_ExecServer, n *fsm.Node, open *clusterv1.ExecOpen, count *execCount) (int32, error) {
	late := time.AfterFunc(execOpening, cancel)
	defer late.Stop()
	fail := func(err error) (int32, error) {
		if status.Code(err) == codes.Unimplemented {
			return 0, errorf(KindPrecondition, "the agent of node %s (version %s) does not support exec", n.ID, n.Facts.AgentVersion)
		}
		if ctx.Err() != nil && stream.Context().Err() == nil {
			return 0, errorf(KindNoAgent, "agent of node %s: no answer within %s", n.ID, execOpening)
		}
		return 0, agentError(n.ID, err)
	}
	out, err := s.agents.exec(ctx, n)
	if err != nil {
		return fail(err)
	}
	c := callOf(ctx)
	err = out.Send(&agentv1.ExecRequest{Message: &agentv1.ExecRequest_Open{Open: &agentv1.ExecOpen{
		WorkloadId: open.GetWorkloadId(), Service: open.GetService(), Command: open.GetCommand(), Tty: open.GetTty(),
		Size: agentSize(open.GetSize()), Input: open.GetInput(), Console: open.GetConsole(), NodeId: n.ID, By: c.who(), From: c.from,
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF from Send, Recv returns the reason
		return fail(err)
	}
	first, err := out.Recv()
	switch {
	case err != nil:
		return fail(err)
	case first.GetOpened() == nil:
		return 0, errorf(KindNoAgent, "agent of node %s: its first message is not of type opened", n.ID)
	case !late.Stop():
		return fail(context.DeadlineExceeded)
	}
	opened := &clusterv1.ExecOpened{NodeId: n.ID, IdleSeconds: first.GetOpened().GetIdleSeconds()}
	if err := stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Opened{Opened: opened}}); err != nil {
		return 0, err
	}
	go func() { // this goroutine ends when the handler returns, because that ends the caller's stream
		if err := execInput(stream, out); err != nil {
			cancel()
		}
	}()
	for {
		m, err := out.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errorf(KindNoAgent, "agent of node %s: the session ended without an exit code", n.ID)
		case err != nil:
			return 0, agentError(n.ID, err)
		}
		switch b := m.GetMessage().(type) {
		case *agentv1.ExecResponse_Output:
			count.out += int64(len(b.Output.GetData()))
			err = stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Output{Output: &clusterv1.LogChunk{Data: b.Output.GetData(), Stream: b.Output.GetStream()}}})
		case *agentv1.ExecResponse_Exit:
			return b.Exit.GetCode(), stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Exit{Exit: &clusterv1.ExecExit{Code: b.Exit.GetCode()}}})
		}
		if err != nil {
			return 0, err
		}
	}
}

func agentSize(z *clusterv1.TerminalSize) *agentv1.TerminalSize {
	if z == nil {
		return nil
	}
	return &agentv1.TerminalSize{Rows: z.GetRows(), Columns: z.GetColumns()}
}

// execInput relays the caller's messages to the agent until the caller has sent the last one. It returns no
// error at the end of the input, because the command may go on.
func execInput(from clusterv1.Cluster_ExecServer, to agentv1.AgentService_ExecClient) error {
	for {
		m, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return to.CloseSend()
		}
		if err != nil {
			return err
		}
		next := &agentv1.ExecRequest{}
		switch b := m.GetMessage().(type) {
		case *clusterv1.ExecRequest_Input:
			next.Message = &agentv1.ExecRequest_Input{Input: b.Input}
		case *clusterv1.ExecRequest_EndInput:
			next.Message = &agentv1.ExecRequest_EndInput{EndInput: b.EndInput}
		case *clusterv1.ExecRequest_Resize:
			next.Message = &agentv1.ExecRequest_Resize{Resize: agentSize(b.Resize)}
		case *clusterv1.ExecRequest_Signal:
			next.Message = &agentv1.ExecRequest_Signal{Signal: b.Signal}
		default:
			continue // refuse a second open message, and a message of a later version
		}
		if err := to.Send(next); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the session has ended, and the agent's answer says why
			}
			return err
		}
	}
}
