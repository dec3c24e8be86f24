package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/rpc/dial"
)

// Kind is the class of an error that a caller gets. Its numbers are never reused.
type Kind uint8

// Kinds of Error. Each comment names the gRPC code and, in parentheses, the reason in the ErrorInfo of the status.
const (
	KindInternal        Kind = iota // Internal
	KindInvalid                     // InvalidArgument
	KindNotFound                    // NotFound
	KindUnavailable                 // Unavailable: this replica cannot answer the call
	KindNotLeader                   // Unavailable (NOT_LEADER): this replica does not lead
	KindNoLeader                    // Unavailable (NO_LEADER): there is no leader; nothing was applied
	KindUnknownOutcome              // Aborted (UNKNOWN_OUTCOME): repeat the call with the same request id
	KindBusy                        // ResourceExhausted: too many commands wait for the replicated log
	KindTooLarge                    // ResourceExhausted: the request is larger than allowed
	KindPrecondition                // FailedPrecondition: the present state or mode does not allow the call
	KindTooOld                      // Aborted: the request id is older than all stored receipts
	KindPermission                  // PermissionDenied
	KindUnauthenticated             // Unauthenticated
	KindDeadline                    // DeadlineExceeded
	KindCanceled                    // Canceled
	KindAborted                     // Aborted: the state has changed during the call; try again
	KindNoAgent                     // Unavailable (NO_AGENT): a node's agent cannot be reached
	// FailedPrecondition (OTHER_REVISION): the workload has another revision than the condition demands.
	KindOtherRevision
	KindOtherRequest // InvalidArgument (OTHER_REQUEST): the request id was used for another request
)

var kindCodes = [...]codes.Code{
	codes.Internal, codes.InvalidArgument, codes.NotFound, codes.Unavailable, codes.Unavailable,
	codes.Unavailable, codes.Aborted, codes.ResourceExhausted, codes.ResourceExhausted, codes.FailedPrecondition,
	codes.Aborted, codes.PermissionDenied, codes.Unauthenticated, codes.DeadlineExceeded,
	codes.Canceled, codes.Aborted, codes.Unavailable, codes.FailedPrecondition, codes.InvalidArgument,
}

// Error is the error that a caller gets: the operation, the kind of failure and the cause.
type Error struct {
	Op   string // name of the operation, for instance "apply workload"
	Kind Kind
	Err  error
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// Unwrap returns the cause of the error.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus returns the gRPC status of the error; package grpc calls it.
func (e *Error) GRPCStatus() *status.Status {
	switch e.Kind {
	case KindUnknownOutcome:
		return status.Convert(dial.UnknownOutcome(e.Error()))
	case KindNotLeader:
		return status.Convert(dial.Error(codes.Unavailable, dial.ReasonNotLeader, e.Error()))
	case KindNoLeader:
		return status.Convert(dial.Error(codes.Unavailable, dial.ReasonNoLeader, e.Error()))
	case KindOtherRevision:
		return status.Convert(dial.Error(codes.FailedPrecondition, dial.ReasonOtherRevision, e.Error()))
	case KindOtherRequest:
		return status.Convert(dial.Error(codes.InvalidArgument, dial.ReasonOtherRequest, e.Error()))
	}
	if e.Kind == KindNoAgent {
		// The reason NO_AGENT tells clients not to try other replicas, because they would not reach the agent either.
		return status.Convert(dial.Error(codes.Unavailable, dial.ReasonNoAgent, e.Error()))
	}
	return status.New(kindCodes[e.Kind], e.Error())
}

// agentError returns the error of a failed call to a node's agent.
func agentError(node string, err error) error {
	kind := edgeKind(err)
	if kind == KindUnavailable || kind == KindInternal {
		kind = KindNoAgent
	}
	return errorf(kind, "agent of node %s: %s", node, status.Convert(err).Message())
}

func errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Err: fmt.Errorf(format, args...)}
}

// Errors that a Replica wraps in the errors of its methods. The adapter of the Raft node translates the
// node's errors into these.
var (
	ErrNotLeader      = errors.New("this replica is not the leader")
	ErrBusy           = errors.New("too many commands wait for the replicated log")
	ErrTooLarge       = errors.New("the command is too large for the log")
	ErrUnknownOutcome = errors.New("it is not known whether the command was committed")
)

// edge converts an error that leaves the server to an Error, with the operation op and with the kind from edgeKind,
// which determines the gRPC code.
func edge(op string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		if e.Op != "" && e.Error() == err.Error() {
			return e
		}
		return &Error{Op: op, Kind: e.Kind, Err: err} // err wraps e and adds text, which is kept
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if text := err.Error(); advised(text) != text {
		return &Error{Op: op, Kind: kindOf(err), Err: errors.New(advised(text))}
	}
	return &Error{Op: op, Kind: kindOf(err), Err: err}
}

// advised adds the next step to the reason of a refusal by a quota. Other reasons of the state machine have their own.
func advised(reason string) string {
	_, after, ok := strings.Cut(reason, fsm.QuotaRefusal)
	name, err := strconv.QuotedPrefix(after)
	if !ok || err != nil {
		return reason
	}
	return reason + "; delete workloads or volumes, or ask an admin for a larger quota: persysctl namespace set " + strings.Trim(name, `"`)
}

// edgeKind returns the kind of an error. The error may also be a gRPC status that another program sent.
func edgeKind(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if st, ok := status.FromError(err); ok {
		switch dial.Reason(err) {
		case dial.ReasonUnknownOutcome:
			return KindUnknownOutcome
		case dial.ReasonNotLeader:
			return KindNotLeader
		case dial.ReasonNoLeader:
			return KindNoLeader
		case dial.ReasonNoAgent:
			return KindNoAgent
		case dial.ReasonOtherRevision:
			return KindOtherRevision
		case dial.ReasonOtherRequest:
			return KindOtherRequest
		}
		return statusKinds[st.Code()]
	}
	return kindOf(err)
}

// statusKinds maps the codes of gRPC statuses without a Persys reason to kinds. Any other code becomes
// KindInternal.
var statusKinds = map[codes.Code]Kind{
	codes.InvalidArgument:    KindInvalid,
	codes.NotFound:           KindNotFound,
	codes.Unavailable:        KindUnavailable,
	codes.ResourceExhausted:  KindBusy,
	codes.FailedPrecondition: KindPrecondition,
	codes.Aborted:            KindAborted,
	codes.PermissionDenied:   KindPermission,
	codes.Unauthenticated:    KindUnauthenticated,
	codes.DeadlineExceeded:   KindDeadline,
	codes.Canceled:           KindCanceled,
}

func kindOf(err error) Kind {
	var refusal *fsm.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusalKinds[refusal.Kind]
	case errors.Is(err, ErrUnknownOutcome):
		return KindUnknownOutcome
	case errors.Is(err, ErrNotLeader):
		return KindNotLeader
	case errors.Is(err, ErrBusy):
		return KindBusy
	case errors.Is(err, ErrTooLarge):
		return KindTooLarge
	case errors.Is(err, store.ErrClosed):
		return KindUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return KindDeadline
	case errors.Is(err, context.Canceled):
		return KindCanceled
	}
	return KindInternal
}

// refusalKinds maps the results with which the state machine refuses a command to kinds of errors.
var refusalKinds = [...]Kind{
	fsm.OK:              KindInternal,
	fsm.Invalid:         KindInvalid,
	fsm.NotFound:        KindNotFound,
	fsm.Frozen:          KindPrecondition,
	fsm.StaleEpoch:      KindAborted,
	fsm.StaleGeneration: KindAborted,
	fsm.NoCapacity:      KindPrecondition,
	fsm.NotReady:        KindPrecondition,
	fsm.Conflict:        KindPrecondition,
	fsm.TooOld:          KindTooOld,
	fsm.AlreadyDone:     KindInternal,
	fsm.Unsupported:     KindPrecondition,
	fsm.Denied:          KindPermission,
	fsm.OverQuota:       KindPrecondition,
	fsm.NotAllowed:      KindPermission,
	fsm.OtherRevision:   KindOtherRevision,
	fsm.OtherRequest:    KindOtherRequest,
}
