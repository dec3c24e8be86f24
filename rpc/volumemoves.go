package rpc

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/sched"
)

// MoveVolume implements the call of cluster.v1: it starts the move of a local volume and of the workload that uses it, or
// ends such a move. Agents copy the data, and the planner takes the move from phase to phase.
func (s *Server) MoveVolume(ctx context.Context, req *clusterv1.MoveVolumeRequest) (*clusterv1.MoveVolumeResponse, error) {
	driver, name, ok := strings.Cut(req.GetId(), ":")
	if !ok || name == "" {
		return nil, errorf(KindInvalid, "id: %q is not DRIVER:NAME; `persysctl volume list` shows the volumes", clip(req.GetId(), 128))
	}
	in := cmp.Or(strings.TrimSpace(req.GetNamespace()), fsm.DefaultNamespace)
	if err := s.mayEnter(ctx, in); err != nil {
		return nil, err
	}
	switch {
	case driver != fsm.DriverLocal:
		return nil, errorf(KindInvalid, "id: a volume of driver %s is not on one node, so it does not move; its workload can move without it", clip(driver, 64))
	case req.GetEnd() == "" && req.GetTo() == "":
		return nil, errorf(KindInvalid, "to: name the node to which the volume moves (--to)")
	}
	v := s.store.View()
	if w := userOf(v, in, name, req.GetNodeId()); w != nil && req.GetEnd() == "" {
		if why := sched.WhyNot(v, w, req.GetTo(), s.cfg.Tuning); why != "" {
			return nil, errorf(KindPrecondition, "workload %q, which moves with the volume, cannot run on node %q: %s", w.ID, clip(req.GetTo(), 128), why)
		}
	}
	if why := s.unproved(v, in, name, req); why != "" {
		return nil, errorf(KindPrecondition, "%s", why)
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{
		Name: name, Namespace: in, From: req.GetNodeId(), To: req.GetTo(), BytesPerSecond: req.GetBytesPerSecond(), End: req.GetEnd(),
	}}})
	if err != nil {
		return nil, err
	}
	out := &clusterv1.MoveVolumeResponse{Index: r.Index}
	if m := fsm.MoveOf(s.store.View(), in, name, req.GetNodeId()); m != nil {
		out.Move = volumeMoveView(m)
	}
	return out, nil
}

// unproved returns why a person may not end a move in this way now: the copy that would be used then is not reported by its
// node. It returns "" if nothing is wrong. Only the leader knows the reports; the state machine checks everything else.
func (s *Server) unproved(v fsm.View, in, name string, req *clusterv1.MoveVolumeRequest) string {
	m := fsm.MoveOf(v, in, name, req.GetNodeId())
	if m == nil {
		return ""
	}
	node, state := m.From, sched.MoveReportKept
	switch {
	case req.GetEnd() == fsm.MoveCancel && (m.Phase == fsm.MovePlaced || m.Phase == fsm.MoveKept):
	case req.GetEnd() == fsm.MoveSettle && m.Phase == fsm.MoveKept:
		node, state = m.To, sched.MoveReportReady
	default:
		return ""
	}
	r, ok := s.leader.MoveReportOf(node, m.Workload)
	if ok && r.Move == m.ID && r.State == state {
		return ""
	}
	why := "node " + node + " has not reported that it has its copy of the volumes of workload " + m.Workload
	if ok && r.Message != "" {
		why += ": " + r.Message
	}
	return why + "; start that node, or use the other copy (" + m.Command(fsm.MoveCancel) + ", or --settle)"
}

// userOf returns the only workload that uses a local volume; nil if there is none or more than one.
func userOf(v fsm.View, in, name, node string) *fsm.Workload {
	x, ok := v.Volume(in, name, fsm.DriverLocal, node)
	if !ok {
		return nil
	}
	users := v.UsersOfVolume(x)
	if len(users) != 1 {
		return nil
	}
	w, _ := v.Workload(users[0])
	return w
}

// volumeMoveView converts the record of a move to the message of the API.
func volumeMoveView(m *fsm.Move) *clusterv1.VolumeMove {
	return &clusterv1.VolumeMove{
		WorkloadId: m.Workload, From: m.From, To: m.To, Phase: string(m.Phase), Reason: m.Reason, By: m.By, Volumes: slices.Clone(m.Volumes),
		StartedAt: timestamppb.New(time.Unix(0, m.StartedAt)), PhaseSince: timestamppb.New(time.Unix(0, m.PhaseSince)),
	}
}

// addProgress adds to a move what its nodes last reported. Only the leader knows it. The progress is that of the copy on To. The
// problem is that of the node for which the move waits in its phase, or else that of the other node, if this node may have one.
func (s *Server) addProgress(m *clusterv1.VolumeMove) {
	if m == nil {
		return
	}
	var nodes []string
	switch fsm.MovePhase(m.GetPhase()) {
	case fsm.MovePlaced, fsm.MoveDone, fsm.MoveUndone:
		nodes = []string{m.GetFrom()}
	case fsm.MoveDropping:
		nodes = []string{m.GetTo()}
	default:
		nodes = []string{m.GetTo(), m.GetFrom()}
	}
	for _, node := range nodes {
		r, ok := s.leader.MoveReportOf(node, m.GetWorkloadId())
		if !ok {
			continue
		}
		if node == m.GetTo() {
			m.TotalBytes, m.DoneBytes, m.SentBytes = r.Total, r.Done, r.Sent
		}
		if m.Problem == "" && r.Message != "" {
			m.Problem = "node " + node + ": " + r.Message
		}
	}
}

// movesFor returns the moves in which a node takes part. The list is complete, and present also if it is empty.
func movesFor(v fsm.View, node string) *controlv1.VolumeMoves {
	out := &controlv1.VolumeMoves{}
	v.Moves(func(m *fsm.Move) bool {
		if m.From != node && m.To != node {
			return true
		}
		x := &controlv1.VolumeMove{
			Id: wire.Control(m.ID), WorkloadId: m.Workload, Namespace: m.In(), Volumes: m.Volumes, From: m.From, To: m.To, Phase: string(m.Phase), BytesPerSecond: m.Rate,
		}
		if from, ok := v.Node(m.From); ok {
			x.Endpoint = from.Facts.Endpoint
		}
		for _, name := range m.Volumes {
			pool := ""
			for _, u := range m.Demand.Volumes {
				if u.Name == name && u.Driver == fsm.DriverLocal {
					pool = u.Pool
				}
			}
			x.Pools = append(x.Pools, pool)
		}
		out.Moves = append(out.Moves, x)
		return true
	})
	return out
}

// copyID converts the id of a copy of a volume for an order; nil for a volume that never moved.
func copyID(g fsm.Generation) *agentv1.Generation {
	if g.IsZero() {
		return nil
	}
	return wire.Agent(g)
}
