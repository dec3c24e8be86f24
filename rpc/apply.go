package rpc

import (
	"context"
	"errors"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// ApplyWorkload implements control.v1. The refusal of a well-formed request is in the response, not
// a gRPC error (contract/wire-control.md, "Outcomes per RPC").
func (s *Server) ApplyWorkload(ctx context.Context, req *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadResponse, error) {
	out := s.apply(ctx, []*controlv1.ApplyWorkloadRequest{req}, never)
	return out[0].resp, out[0].err
}

// outcome is the result of one apply: a response, which may be a refusal, or a gRPC error.
type outcome struct {
	resp *controlv1.ApplyWorkloadResponse
	err  error
}

func refused(r controlv1.FailureReason, message string) outcome {
	return outcome{resp: &controlv1.ApplyWorkloadResponse{FailureReason: r, ErrorMessage: message}}
}

// apply checks requests one by one and commits the valid ones together. A request for which joins
// returns true has a derived request id and may share a command.
func (s *Server) apply(ctx context.Context, reqs []*controlv1.ApplyWorkloadRequest, joins func(int) bool) []outcome {
	out := make([]outcome, len(reqs))
	if frozen := s.frozen(); frozen != "" {
		for i := range out {
			out[i] = refused(controlv1.FailureReason_RUNTIME_ERROR, frozen)
		}
		return out
	}
	b := batch{s: s, reqs: reqs}
	for i := range reqs {
		if err := b.add(ctx, i, joins(i)); err != nil {
			out[i] = refusal(err)
		}
	}
	if len(b.cmds) == 0 {
		return out
	}
	results, err := s.replica.Propose(ctx, b.cmds...)
	if err != nil {
		for _, of := range b.of {
			for _, i := range of {
				out[i] = outcome{err: err}
				if errors.Is(err, ErrTooLarge) {
					out[i] = refused(controlv1.FailureReason_INVALID_SPEC, err.Error())
				}
			}
		}
		return out
	}
	for n, r := range results {
		for k, i := range b.of[n] {
			if out[i].err != nil || (out[i].resp != nil && !out[i].resp.GetSuccess()) {
				continue // an earlier command of the same request was refused
			}
			out[i] = merge(out[i].resp, b.verdict(n, k, r))
			s.rolling(reqs[i], out[i].resp)
		}
	}
	return out
}

// never is for requests that must not share a command.
func never(int) bool { return false }

// refusal maps an error from before the log to an outcome.
func refusal(err error) outcome {
	var bad spec.Errors
	switch {
	case errors.As(err, &bad):
		return refused(controlv1.FailureReason_INVALID_SPEC, bad.Error())
	case errors.Is(err, spec.ErrBlankID):
		return outcome{err: &Error{Kind: KindInvalid, Err: err}}
	case errors.Is(err, spec.ErrNoKey):
		return refused(controlv1.FailureReason_RUNTIME_ERROR, err.Error())
	}
	return outcome{err: err}
}

// merge adds a verdict of the state machine to the response of its request.
func merge(have *controlv1.ApplyWorkloadResponse, r fsm.Result) outcome {
	switch r.Kind {
	case fsm.OK, fsm.AlreadyDone:
	case fsm.TooOld:
		return outcome{err: r.Err()}
	case fsm.Invalid:
		return refused(controlv1.FailureReason_INVALID_SPEC, r.Reason)
	case fsm.OverQuota:
		return refused(controlv1.FailureReason_INSUFFICIENT_RESOURCES, r.Reason)
	case fsm.Denied:
		return outcome{err: r.Err()}
	default:
		return refused(controlv1.FailureReason_RUNTIME_ERROR, r.Reason)
	}
	if have == nil {
		have = &controlv1.ApplyWorkloadResponse{Success: true, Unchanged: true}
	}
	have.Index = max(have.Index, r.Index)
	for _, it := range r.Items {
		have.WorkloadIds = append(have.WorkloadIds, it.ID)
		have.Generation = spec.ControlGeneration(it.Generation)
		have.RevisionId = it.Revision
		have.Unchanged = have.Unchanged && it.Unchanged
	}
	return outcome{resp: have}
}

// applyCommands makes the commands of one request, usually one.
func (s *Server) applyCommands(ctx context.Context, req *controlv1.ApplyWorkloadRequest) ([]fsm.Command, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, spec.ErrBlankID
	}
	desired := spec.DesiredState(req.GetDesiredState())
	if req.GetSpec() == nil {
		return s.desireCommands(ctx, id, desired, req.GetRequestId())
	}
	if desired == fsm.DesiredDeleted {
		return s.deleteCommands(ctx, id, false, req.GetRequestId())
	}
	prepared, err := s.prepare(ctx, req)
	if err != nil {
		return nil, err
	}
	c := prepared.Command
	if c.Head, err = s.head(ctx, req.GetRequestId(), ""); err != nil {
		return nil, err
	}
	return []fsm.Command{c}, nil
}

// prepare parses and seals a request. If the request has secrets and there is no cluster key yet,
// it waits for the key.
func (s *Server) prepare(ctx context.Context, req *controlv1.ApplyWorkloadRequest) (spec.Prepared, error) {
	prepared, err := spec.Prepare(req, sealer(s.cfg.Keys))
	if errors.Is(err, spec.ErrNoKey) && s.awaitKey(ctx) {
		return spec.Prepare(req, sealer(s.cfg.Keys))
	}
	return prepared, err
}

// keyWait is how long an apply waits for the cluster key. A new cluster, or a scheduler that has
// just joined, has the key within a second. keyLook is the poll interval.
const (
	keyWait = 3 * time.Second
	keyLook = 20 * time.Millisecond
)

// awaitKey waits for the cluster key and reports whether it is there.
func (s *Server) awaitKey(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	look := time.NewTicker(keyLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if sealer(s.cfg.Keys) != nil {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// sealer returns the cluster key, or nil if there is none: specifications without secrets do not
// need it.
func sealer(k Keys) spec.Sealer {
	if key, err := k.Key(); err == nil {
		return key
	}
	return nil
}

// targets returns the workloads that an id selects, and the view in which it looked. The members of
// a group are read from a confirmed leader's state. For a single workload any view will do, because
// the state machine checks it again.
func (s *Server) targets(ctx context.Context, id string) ([]string, fsm.View, error) {
	view := s.store.View()
	if _, ok := view.Workload(id); ok {
		return []string{id}, view, nil
	}
	index, err := s.replica.Confirm(ctx)
	if err != nil {
		return nil, nil, err
	}
	if view, err = s.store.At(ctx, index); err != nil {
		return nil, nil, err
	}
	return selected(view, id), view, nil
}

// selected returns the workloads that an id selects: the workload itself, or the members of a group
// that was made with a count. An unknown id selects itself, so that the state machine reports it as
// unknown.
func selected(view fsm.View, id string) (ids []string) {
	if _, known := view.Workload(id); !known {
		view.Group(id, func(w *fsm.Workload) bool {
			if fsm.MadeByCount(id, w.ID) {
				ids = append(ids, w.ID)
			}
			return true
		})
	}
	if len(ids) == 0 {
		ids = []string{id}
	}
	return ids
}

func (s *Server) desireCommands(ctx context.Context, id string, desired fsm.Desired, request string) ([]fsm.Command, error) {
	if desired == fsm.DesiredDeleted {
		return s.deleteCommands(ctx, id, false, request)
	}
	return s.each(ctx, id, request, func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: string(desired)}}}
	})
}

func (s *Server) deleteCommands(ctx context.Context, id string, force bool, request string) ([]fsm.Command, error) {
	return s.each(ctx, id, request, func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: force}}}
	})
}

// each makes one command per selected workload. A request about a group ends with a barrier under
// the request's own id. Its receipt proves that the whole request was applied, even if the group is
// gone when the request is repeated.
func (s *Server) each(ctx context.Context, id, request string, make func(string) *commandv1.Command) ([]fsm.Command, error) {
	targets, view, err := s.targets(ctx, id)
	if err != nil {
		return nil, err
	}
	group := targets[0] != id
	barrier := &commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}
	if barrier.Head, err = s.head(ctx, request, ""); err != nil {
		return nil, err
	}
	if _, known := view.Workload(id); !group && !known && answered(view, request) {
		return []fsm.Command{barrier}, nil // the receipt holds the answer
	}
	var cmds []fsm.Command
	for _, target := range targets {
		c, member := make(target), ""
		if group {
			member = target
		}
		if c.Head, err = s.head(ctx, request, member); err != nil {
			return nil, err
		}
		cmds = append(cmds, c)
	}
	if group && len(barrier.GetHead().GetRequest()) > 0 {
		cmds = append(cmds, barrier)
	}
	return cmds, nil
}

// answered reports whether a request has a receipt.
func answered(view fsm.View, request string) bool {
	id, err := parseRequestID(request)
	if err != nil {
		return false
	}
	_, done := view.Receipt(id)
	return done
}

// DeleteWorkload implements control.v1. It marks the workload for deletion; the record is removed
// once no node holds the workload.
func (s *Server) DeleteWorkload(ctx context.Context, req *controlv1.DeleteWorkloadRequest) (*controlv1.DeleteWorkloadResponse, error) {
	if why := s.frozen(); why != "" {
		return &controlv1.DeleteWorkloadResponse{ErrorMessage: why}, nil
	}
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	cmds, err := s.deleteCommands(ctx, id, req.GetForce(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	index, refused, err := s.proposeAll(ctx, cmds)
	return &controlv1.DeleteWorkloadResponse{Success: refused == "", ErrorMessage: refused, Index: index}, err
}

// RetryWorkload implements control.v1.
func (s *Server) RetryWorkload(ctx context.Context, req *controlv1.RetryWorkloadRequest) (*controlv1.RetryWorkloadResponse, error) {
	if why := s.frozen(); why != "" {
		return &controlv1.RetryWorkloadResponse{Reason: why}, nil
	}
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	cmds, err := s.each(ctx, id, req.GetRequestId(), func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id}}}
	})
	if err != nil {
		return nil, err
	}
	index, refused, err := s.proposeAll(ctx, cmds)
	return &controlv1.RetryWorkloadResponse{Accepted: refused == "", Reason: refused, Index: index}, err
}
