package rpc

import (
	"context"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// frozen returns the reason if users' changes are refused at present, because of the cluster's mode or this replica's
// own state; "" if they are accepted.
func (s *Server) frozen() string {
	info := s.store.View().Info()
	if info.Mode.Frozen() {
		return "the cluster is in mode " + string(info.Mode) + ": " + info.ModeReason
	}
	return s.replica.Frozen()
}

// head returns the head of a user's command: its id, author and time. A request about a group becomes one command per
// member, and the id of each command is derived from the request id and the member. So a repeated request finds the
// receipts of its commands even if some members were deleted meanwhile.
func (s *Server) head(ctx context.Context, request, member string) (*commandv1.Head, error) {
	h := &commandv1.Head{At: s.now().UnixNano(), From: callOf(ctx).from}
	h.By, h.Via = callOf(ctx).by()
	h.Unprivileged = s.unprivileged(ctx)
	shares := s.shares(ctx)
	h.NamespaceShare, h.RoomReserve = uint32(shares.Namespace), uint32(shares.Reserve)
	if in := s.scopeOf(ctx); !in.Everywhere() {
		if h.Namespaces = in.Names(); in.Nowhere() {
			h.Namespaces = []string{nowhere}
		}
	}
	if request == "" {
		return h, nil
	}
	id, err := parseRequestID(request)
	if err != nil {
		return nil, err
	}
	if member != "" {
		id = memberID(id, member)
	}
	h.Request, h.RequestHash = id[:], callOf(ctx).hash
	return h, nil
}

// shares returns the part of the size limits of the state that the caller's changes may use.
func (s *Server) shares(ctx context.Context) fsm.RoomShares {
	return fsm.RoomSharesOf(!s.scopeOf(ctx).Everywhere(), s.unprivileged(ctx))
}

// propose commits one command of a user and returns the state machine's result, which may be a refusal.
func (s *Server) propose(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	head, err := s.head(ctx, request, "")
	if err != nil {
		return fsm.Result{}, err
	}
	c.Head = head
	results, err := s.replica.Propose(ctx, c)
	if err != nil {
		return fsm.Result{}, err
	}
	return results[0], nil
}

// commit proposes a command of a user. A refusal by the state machine is returned as an error.
func (s *Server) commit(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	r, err := s.propose(ctx, request, c)
	if err == nil {
		err = r.Err()
	}
	return r, err
}

// change is like commit, but returns only the error.
func (s *Server) change(ctx context.Context, request string, c *commandv1.Command) error {
	_, err := s.commit(ctx, request, c)
	return err
}

// frozenBeforeLog returns the reason why a mutation is refused before it is proposed; "" if it is not refused. In a
// mode that refuses changes, a valid request is still proposed: the state machine refuses it, or answers a repeated
// request from its receipt. An invalid request is refused here, and the error names the mode and not the fault in the
// request, because the mode takes precedence (contract/semantics.md).
func (s *Server) frozenBeforeLog(valid bool) string {
	if valid {
		return s.replica.Frozen()
	}
	return s.frozen()
}

// mutate commits a command of a user. In a mode that refuses changes, it returns an error.
func (s *Server) mutate(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	if why := s.frozenBeforeLog(true); why != "" {
		return fsm.Result{}, errorf(KindPrecondition, "%s", why)
	}
	return s.commit(ctx, request, c)
}

// refuseFrozen returns an error if the mode refuses changes. It is for mutations without a receipt, which do
// not go through the state machine.
func (s *Server) refuseFrozen() error {
	if why := s.frozen(); why != "" {
		return errorf(KindPrecondition, "%s", why)
	}
	return nil
}

// failsCall reports whether a refusal by the state machine must fail the whole call with a gRPC error. Some calls
// return all other refusals in their response.
func failsCall(r fsm.Result) bool {
	switch r.Kind {
	case fsm.TooOld, fsm.Denied, fsm.OtherRevision, fsm.OtherRequest:
		return true
	}
	return false
}

// proposeAll commits the commands of one request. index is the highest of their log indexes. refused is the
// reason of the first refusal by the state machine; "" if there was none. Verdicts for which failsCall is
// true are returned as err.
func (s *Server) proposeAll(ctx context.Context, cmds []fsm.Command) (index uint64, refused string, err error) {
	results, err := s.replica.Propose(ctx, cmds...)
	if err != nil {
		return 0, "", err
	}
	for _, r := range results {
		index = max(index, r.Index)
		if failsCall(r) {
			return 0, "", r.Err()
		}
		if err := r.Err(); err != nil && refused == "" {
			refused = err.Error()
		}
	}
	return index, refused, nil
}
