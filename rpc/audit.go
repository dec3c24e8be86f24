package rpc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// record asks the leader to commit an audit event. It makes this request with this replica's own identity.
func (s *Server) record(ctx context.Context, req *clusterv1.RecordSessionRequest) error {
	const full = clusterv1.Cluster_RecordSession_FullMethodName
	c := &call{caller: caller{id: pki.Anonymous()}, method: methods[full]}
	if s.cfg.TLS != nil {
		c.id = s.cfg.TLS.Identity()
	}
	// Drop the metadata of the caller: the request comes from this replica, not from the user, and is not
	// limited to the user's namespaces.
	ctx, cancel := context.WithTimeout(withCall(metadata.NewIncomingContext(ctx, nil), c), execOpening)
	defer cancel()
	_, err := s.atLeader(ctx, c, full, req, func(ctx context.Context, _ any) (any, error) { return s.RecordSession(ctx, req) })
	return err
}

// RecordSession implements the call of cluster.v1: it commits an audit event for another replica.
func (s *Server) RecordSession(ctx context.Context, req *clusterv1.RecordSessionRequest) (*clusterv1.RecordSessionResponse, error) {
	switch req.GetType() {
	case fsm.EventSessionOpened, fsm.EventSessionClosed, fsm.EventCallRefused, fsm.EventCallMade:
	default:
		return nil, errorf(KindInvalid, "type: %q must be a session or call event", req.GetType())
	}
	a := &commandv1.Audit{Type: req.GetType(), Message: req.GetMessage(), Workload: req.GetWorkloadId(), Node: req.GetNodeId()}
	for _, k := range slices.Sorted(maps.Keys(req.GetDetails())) {
		a.Details = append(a.Details, &commandv1.Label{Key: k, Value: req.GetDetails()[k]})
	}
	cmd := &commandv1.Command{
		Head: &commandv1.Head{At: s.now().UnixNano(), By: clip(req.GetBy(), 512), From: clipFrom(req.GetFrom()), Via: clip(req.GetVia(), 512)},
		Body: &commandv1.Command_Audit{Audit: a},
	}
	results, err := s.replica.Propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if err := results[0].Err(); err != nil {
		return nil, err
	}
	return &clusterv1.RecordSessionResponse{Index: results[0].Index}, nil
}

// audited calls the function do, which makes a change outside the replicated log, such as a transfer of leadership. The
// parameter what describes the change. Before the call, it commits an audit event that names the caller. If do fails,
// it commits another event.
func (s *Server) audited(ctx context.Context, node, what string, do func() error) error {
	c := callOf(ctx)
	if c.id.Role == pki.RoleScheduler {
		return do()
	}
	by, via := c.by()
	req := &clusterv1.RecordSessionRequest{
		Type: fsm.EventCallMade, By: by, Via: via, From: c.from, NodeId: node, Message: clip(what, 512), Details: map[string]string{"call": c.op},
	}
	if err := s.record(ctx, req); err != nil {
		return fmt.Errorf("the audit event could not be committed, so nothing was done: %w", err)
	}
	err := do()
	if err == nil {
		return nil
	}
	req.Details["error"] = clip(status.Convert(edge("", err)).Message(), 512)
	last, done := context.WithTimeout(context.WithoutCancel(ctx), execLastWord)
	defer done()
	if rerr := s.record(last, req); rerr != nil {
		s.log.Warn("could not record the failure of a call in the audit log", "by", by, "from", c.from, "call", c.op, "err", rerr)
	}
	return err
}

// refuse records that a change was refused because the caller lacks a right, and returns why, the error of the
// refusal. A follower's state may be out of date, so a follower forwards the call to the leader if req is not nil;
// then the leader decides, and records a refusal. For each caller, the first refusals within a minute get a record
// each; further refusals share one record with their number.
func (s *Server) refuse(ctx context.Context, c *call, full string, req any, why error) (any, error) {
	if kind := edgeKind(why); c.repetition == repeatable || kind != KindPermission && kind != KindUnauthenticated {
		return nil, why
	}
	beat := c.op == methods[controlv1.AgentControl_Heartbeat_FullMethodName].op
	if !s.refusals.note(c.caller, beat, func(n int, together bool) error { return s.recordRest(c, n, together) }) {
		return nil, why
	}
	to, known := s.replica.Leader()
	here := known && to.ID == s.replica.Self().ID
	if c.class == leader && !here {
		if known && req != nil && !c.forwarded && s.cfg.TLS != nil {
			if resp, err := s.forward(ctx, c, to, s.replica.LeaderChanged(), full, req); err == nil || status.Code(err) == codes.PermissionDenied {
				return resp, err
			}
		}
		return nil, why
	}
	ctx, cancel := context.WithTimeout(ctx, execLastWord)
	defer cancel()
	var err error
	if here {
		_, err = s.propose(withCall(ctx, c), "", &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: fsm.EventCallRefused, Message: clip(why.Error(), 512), Details: []*commandv1.Label{{Key: "call", Value: c.op}},
		}}})
	} else {
		by, via := c.by()
		err = s.record(ctx, &clusterv1.RecordSessionRequest{
			Type: fsm.EventCallRefused, By: by, Via: via, From: c.from, Message: clip(why.Error(), 512), Details: map[string]string{"call": c.op},
		})
	}
	if err != nil {
		s.refusals.unrecorded(c.caller, beat)
		s.log.Warn("could not record a refused call in the audit log; it is counted and recorded later", "by", c.who(), "from", c.from, "call", c.op, "err", err)
	}
	return nil, why
}

// recordRest records how many refusals of a caller were not recorded one by one. If together is true, n counts the
// refusals of all callers for whom no separate count was kept, and the record names no caller.
func (s *Server) recordRest(c *call, n int, together bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), execLastWord)
	defer cancel()
	req := &clusterv1.RecordSessionRequest{
		Type: fsm.EventCallRefused, From: c.from,
		Message: fmt.Sprintf("%d more calls were refused within a minute", n), Details: map[string]string{"call": c.op, "more": strconv.Itoa(n)},
	}
	if req.By, req.Via = c.by(); together {
		req.By, req.Via, req.From, req.Details = "", "", "", map[string]string{"more": strconv.Itoa(n)}
		req.Message = fmt.Sprintf("%d more calls of other callers were refused within a minute", n)
	}
	err := s.record(ctx, req)
	if err != nil {
		s.log.Warn("could not record refused calls in the audit log; another attempt follows", "by", req.By, "from", req.From, "refusals", n, "err", err)
	}
	return err
}
