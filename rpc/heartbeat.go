package rpc

import (
	"context"
	"errors"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
)

// Heartbeat implements the call of control.v1: it handles the heartbeat of a node.
func (s *Server) Heartbeat(ctx context.Context, req *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	view := s.store.View()
	// A node of another cluster may have the same id as a node of this cluster.
	if wrong := foreign(id, req.GetClusterId(), view.Info().ClusterID); wrong != "" {
		return nil, errorf(KindPrecondition, "%s", wrong)
	}
	node, ok := view.Node(id)
	if !ok {
		// A new leader may not have applied its whole log yet, so its state may lack a registered node. The leader's
		// loop answers only when the log is applied.
		if _, err := s.leader.Heartbeat(ctx, sched.Heartbeat{Node: id, ReceivedAt: s.now().UnixNano()}); err != nil {
			return nil, s.leading(err)
		}
		if node, ok = s.store.View().Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q is not registered", id)
		}
	}
	hb := message.Heartbeat(node, req, s.now().UnixNano())
	if req.GetUsage() == nil {
		hb.Used, _ = s.leader.UsageOf(id) // nil keeps the last reported usage, because this heartbeat reports none
	}
	s.agents.redial(id, node.Facts.Endpoint, 0)
	lease, err := s.leader.Heartbeat(ctx, hb)
	if err != nil {
		return nil, s.leading(err)
	}
	out := message.HeartbeatResponse(s.store.View().Info(), lease)
	out.Networks = s.networksFor(node, lease.Epoch, req)
	out.Moves = movesFor(s.store.View(), id)
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// leading converts errors of package leader, to errors of this package: "not found" stays, and every other error means
// that this replica does not lead.
func (s *Server) leading(err error) error {
	var unknown interface{ NotFound() bool }
	if errors.As(err, &unknown) {
		return errorf(KindNotFound, "%w", err)
	}
	return errorf(KindNotLeader, "%w", err)
}
