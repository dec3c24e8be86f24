package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/spec"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Limits of sessions (a command or console in a workload). They ensure that a session does not wait for a
// hanging engine for ever, and that a forgotten session ends.
const (
	sessionOpening = 25 * time.Second // shorter than the time that schedulers wait for the agent to open a session
	sessionEnding  = 10 * time.Second // how long to wait for the command's exit code after its output has ended
	maxSessions    = 64
)

// The reasons for which the agent itself ends a session.
var (
	errIdle     = errors.New("no input and no output for too long")
	errStopping = errors.New("the agent is stopping")
)

// Exec runs a command in a workload, or connects to the console of the workload. The session ends when the
// command ends, when the caller goes away, after Config.SessionIdle without input and output, and when the
// agent stops. The command does not outlive the session.
func (s *Server) Exec(stream agentv1.AgentService_ExecServer) error {
	if s.cfg.NoSessions {
		return status.Error(codes.FailedPrecondition, "PERSYS_EXEC_ENABLED is false on this node: no command can be run in its workloads")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	o := first.GetOpen()
	if o == nil {
		return status.Error(codes.InvalidArgument, "the first message must be open")
	}
	if err := spec.CheckID("workload_id", o.GetWorkloadId()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if no := core.JudgeNode(s.cfg.NodeID, o.GetNodeId()); no != nil {
		return status.Error(codes.FailedPrecondition, no.Message)
	}
	if n := s.sessions.Add(1); n > maxSessions {
		s.sessions.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d sessions are open on this node, which is the maximum", maxSessions)
	}
	defer s.sessions.Add(-1)

	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.r.Life(), func() { cancel(errStopping) })()
	began := time.Now()
	// Log only the number of the command's arguments, because they may contain secrets.
	program, args := "", 0
	if command := o.GetCommand(); len(command) > 0 {
		program, args = command[0], len(command)-1
	}
	log := s.log.With("workload", o.GetWorkloadId(), "by", o.GetBy(), "from", o.GetFrom(), "program", program, "arguments", args)
	session, err := s.openSession(ctx, o)
	if err != nil {
		log.Warn("session refused", "err", err)
		return sessionError(o.GetWorkloadId(), err)
	}
	defer session.Close()
	// if a call of Output blocks, closing the session ends this call
	defer context.AfterFunc(ctx, func() { session.Close() })()
	log.Info("session opened", "console", o.GetConsole())
	code, err := s.carry(ctx, cancel, stream, session)
	log.Info("session closed", "exit_code", code, "seconds", int(time.Since(began).Seconds()), "err", err)
	return err
}

func (s *Server) openSession(ctx context.Context, o *agentv1.ExecOpen) (driver.Session, error) {
	w, drv, err := s.onEngine(o.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, sessionOpening)
	defer cancel()
	size := sizeOf(o.GetSize())
	if o.GetConsole() {
		c, ok := drv.(driver.Consoler)
		if !ok {
			return nil, status.Errorf(codes.FailedPrecondition, "a %s has no console on this node", w.Kind)
		}
		return c.Console(limited, driver.ID(w.ID), driver.ConsoleOptions{Service: o.GetService(), Size: size})
	}
	x, ok := drv.(driver.Execer)
	if !ok {
		return nil, status.Errorf(codes.FailedPrecondition, "no command can be run in a %s: its console is `persysctl console %s`", w.Kind, w.ID)
	}
	if len(o.GetCommand()) == 0 || o.GetCommand()[0] == "" {
		return nil, status.Error(codes.InvalidArgument, "command: must not be empty")
	}
	return x.Exec(limited, driver.ID(w.ID), driver.ExecOptions{
		Command: o.GetCommand(), Service: o.GetService(), TTY: o.GetTty(), Size: size, Input: o.GetInput(),
	})
}

// carry copies input and output between the caller and the command until the session ends. It calls cancel with
// the reason if it ends the session itself.
func (s *Server) carry(ctx context.Context, cancel context.CancelCauseFunc, stream agentv1.AgentService_ExecServer, session driver.Session) (int, error) {
	var touched atomic.Int64 // time of the last input or output of the session
	touch := func() { touched.Store(time.Now().UnixNano()) }
	touch()
	if idle := s.cfg.SessionIdle; idle > 0 {
		var watch *time.Timer
		watch = time.AfterFunc(idle, func() {
			if left := idle - time.Since(time.Unix(0, touched.Load())); left > 0 {
				watch.Reset(left)
				return
			}
			cancel(errIdle)
		})
		defer watch.Stop()
	}
	if err := stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Opened{
		Opened: &agentv1.ExecOpened{IdleSeconds: int64(s.cfg.SessionIdle / time.Second)},
	}}); err != nil {
		return 0, err
	}
	go func() { // this goroutine ends when the stream ends, and the stream ends when the handler returns
		if err := s.hear(ctx, stream, session, touch); err != nil {
			cancel(err)
		}
	}()
	for {
		out, err := session.Output()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return 0, sessionError("", err)
		}
		touch()
		chunk := &agentv1.LogChunk{Data: out.Data, Stream: "stdout"}
		if out.Stderr {
			chunk.Stream = "stderr"
		}
		if err := stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Output{Output: chunk}}); err != nil {
			return 0, err
		}
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errIdle):
		return 0, status.Errorf(codes.DeadlineExceeded, "the session was ended: no input and no output for %s (PERSYS_EXEC_IDLE_TIMEOUT)", s.cfg.SessionIdle)
	case errors.Is(cause, errStopping):
		return 0, status.Error(codes.Unavailable, "the session was ended: the agent is stopping")
	case ctx.Err() != nil:
		return 0, status.FromContextError(ctx.Err()).Err()
	}
	limited, done := context.WithTimeout(ctx, sessionEnding)
	defer done()
	code, err := session.Exit(limited)
	if err != nil {
		return 0, sessionError("", err)
	}
	return code, stream.Send(&agentv1.ExecResponse{Message: &agentv1.ExecResponse_Exit{Exit: &agentv1.ExecExit{Code: int32(code)}}})
}

// sizeOf returns a terminal's size, at most 65535 rows and columns.
func sizeOf(s *agentv1.TerminalSize) driver.TerminalSize {
	return driver.TerminalSize{Rows: uint16(min(s.GetRows(), math.MaxUint16)), Columns: uint16(min(s.GetColumns(), math.MaxUint16))}
}

// hear reads the caller's messages and applies them to the session: input, signals, terminal sizes. It
// returns nil when the caller has closed its side of the stream.
func (s *Server) hear(ctx context.Context, stream agentv1.AgentService_ExecServer, session driver.Session, touch func()) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return session.CloseWrite()
		}
		if err != nil {
			return err
		}
		touch()
		switch b := m.GetMessage().(type) {
		case *agentv1.ExecRequest_Input:
			// Ignore the error: the command may have ended or closed its input, and the caller learns that
			// from the exit code.
			_, err = session.Write(b.Input)
		case *agentv1.ExecRequest_EndInput:
			err = session.CloseWrite()
		case *agentv1.ExecRequest_Resize:
			err = session.Resize(ctx, sizeOf(b.Resize))
		case *agentv1.ExecRequest_Signal:
			err = session.Signal(ctx, b.Signal)
		}
		if err != nil {
			s.log.Debug("a session's message was not carried out", "err", err)
		}
	}
}

func sessionError(id string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Unknown
	switch driver.ClassOf(err) {
	case driver.RuntimeUnhealthy, driver.NetworkUnreachable, driver.NetworkTimeout:
		code = codes.Unavailable
	case driver.RuntimeResourceMissing:
		code = codes.FailedPrecondition
	case driver.InvalidSpecification, driver.InvalidConfiguration:
		code = codes.InvalidArgument
	}
	if id == "" {
		return status.Error(code, err.Error())
	}
	return status.Error(code, fmt.Sprintf("workload %q: %v", id, err))
}
