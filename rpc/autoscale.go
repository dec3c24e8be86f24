package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// autoscaler is the name of the caller in the commands and events of the autoscaler.
const autoscaler = "autoscaler"

// Autoscale changes the number of members of a group to count, for the leader's autoscaler. It returns an error if the
// present number is not from. Quotas, policies and the shares of the state are checked as for a call of the user who
// applied the group.
func (s *Server) Autoscale(ctx context.Context, group string, from, count int, reason string) error {
	view, err := s.latest(ctx)
	if err != nil {
		return err
	}
	c, err := s.scaling(ctx, view, group, count)
	if err != nil {
		return err
	}
	c.Autoscaled, c.From, c.Reason = true, new(uint32(from)), clip(reason, 200)
	results, err := s.replica.Propose(ctx, &commandv1.Command{
		Head: &commandv1.Head{At: s.now().UnixNano(), By: autoscaler, NamespaceShare: fsm.NamespaceShare, RoomReserve: fsm.AdminReserve},
		Body: &commandv1.Command_ScaleGroup{ScaleGroup: c},
	})
	if err != nil {
		return err
	}
	return results[0].Err()
}

// membersNow returns the number of members of a group, from the state of a leader that has confirmed its
// leadership; nil if there is no such group.
func (s *Server) membersNow(ctx context.Context, group string) (*int, error) {
	view, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	have := fsm.Members(view, group)
	if len(have) == 0 {
		return nil, nil
	}
	return new(fsm.Count(have)), nil
}

// autoscaleView adds the present CPU use and the last decision, which only the leader knows, to the settings of a
// group's autoscaler.
func (s *Server) autoscaleView(w *fsm.Workload, out *controlv1.AutoscaleStatus) *controlv1.AutoscaleStatus {
	if out == nil {
		return nil
	}
	d, ok := s.leader.AutoscaleOf(w.Demand.Group)
	if !ok {
		return out
	}
	if out.Count, out.Measured = int32(d.Members), int32(d.Measured); d.Use >= 0 {
		out.CpuPercent = new(d.Use)
	}
	out.Decision, out.DecidedAt = d.Reason, timestamppb.New(time.Unix(0, d.At))
	if out.LastChange = d.LastChange; d.ChangedAt != 0 {
		out.ChangedAt = timestamppb.New(time.Unix(0, d.ChangedAt))
	}
	return out
}
