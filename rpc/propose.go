package rpc

import (
	"context"
	"encoding/binary"
	"hash/fnv"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// frozen returns why user mutations are refused now, "" if they are accepted.
func (s *Server) frozen() string {
	info := s.store.View().Info()
	if info.Mode.Frozen() {
		return "the cluster is in mode " + string(info.Mode) + ": " + info.ModeReason
	}
	return s.replica.Frozen()
}

// head makes the head of a user's command. A request about a group becomes one command per member.
// Each command has an id derived from the request id and the member, so that a repeated request
// finds the receipts of its commands even if some members are gone by then.
func (s *Server) head(ctx context.Context, request, member string) (*commandv1.Head, error) {
	h := &commandv1.Head{At: s.now().UnixNano(), From: callOf(ctx).from}
	h.By, h.Via = callOf(ctx).by()
	if in := s.scopeOf(ctx); !in.everywhere() {
		if h.Namespaces = in.names; in.nowhere() {
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
		// Keep the time and version bits: receipts are ordered by them.
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(member))
		binary.BigEndian.PutUint32(id[12:], binary.BigEndian.Uint32(id[12:])^sum.Sum32())
	}
	h.Request = id[:]
	return h, nil
}

// propose commits one command of a user and returns the verdict of the state machine.
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

// commit is propose with a refusal as an error.
func (s *Server) commit(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	r, err := s.propose(ctx, request, c)
	if err == nil {
		err = r.Err()
	}
	return r, err
}

// change is commit without the result.
func (s *Server) change(ctx context.Context, request string, c *commandv1.Command) error {
	_, err := s.commit(ctx, request, c)
	return err
}

// mutate is commit for commands that the state machine refuses while the cluster is frozen.
func (s *Server) mutate(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	if err := s.refuseFrozen(); err != nil {
		return fsm.Result{}, err
	}
	return s.commit(ctx, request, c)
}

// refuseFrozen returns an error while user mutations are refused.
func (s *Server) refuseFrozen() error {
	if why := s.frozen(); why != "" {
		return errorf(KindPrecondition, "%s", why)
	}
	return nil
}

// proposeAll commits the commands of one request. index is the highest of their log indexes;
// refused is the first reason for which the state machine refused one, "" if it refused none. A
// stale request id and a missing permission are errors of the call.
func (s *Server) proposeAll(ctx context.Context, cmds []fsm.Command) (index uint64, refused string, err error) {
	results, err := s.replica.Propose(ctx, cmds...)
	if err != nil {
		return 0, "", err
	}
	for _, r := range results {
		index = max(index, r.Index)
		if r.Kind == fsm.TooOld || r.Kind == fsm.Denied {
			return 0, "", r.Err()
		}
		if err := r.Err(); err != nil && refused == "" {
			refused = err.Error()
		}
	}
	return index, refused, nil
}
