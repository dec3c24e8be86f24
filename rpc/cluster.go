package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/scope"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Status implements cluster.v1: this replica's own picture, never forwarded.
func (s *Server) Status(context.Context, *clusterv1.StatusRequest) (*clusterv1.StatusResponse, error) {
	v := s.store.View()
	info := v.Info()
	out := &clusterv1.StatusResponse{
		ClusterId:        info.ClusterID,
		Incarnation:      info.Incarnation,
		Shard:            info.Shard,
		Mode:             string(info.Mode),
		ModeReason:       info.ModeReason,
		ModePinned:       info.ModePinned,
		AppliedIndex:     info.Index,
		Digest:           info.Digest,
		FeatureLevel:     info.FeatureLevel,
		Nodes:            int32(v.NodeCount()),
		Workloads:        int32(v.WorkloadCount()),
		WorkloadsRunning: int32(v.StatusCount(fsm.StatusRunning)),
		SelfId:           s.replica.Self().ID,
		Version:          s.cfg.Version,
		StartedAt:        timestamppb.New(s.started),
	}
	if info.ModeChangedAt > 0 {
		out.ModeChangedAt = timestamppb.New(time.Unix(0, info.ModeChangedAt))
	}
	if why := s.replica.Frozen(); why != "" && !info.Mode.Frozen() {
		out.Mode, out.ModeReason = string(fsm.ModeDegraded), why
	}
	v.Nodes("", func(n *fsm.Node) bool {
		if n.Status() == fsm.NodeReady {
			out.NodesReady++
		}
		return true
	})
	s.replica.Describe(out)
	return out, nil
}

// SetMode implements cluster.v1: the break-glass. The mode that a person asks
// for holds until somebody asks for another one or for auto; normal also ends
// being pinned when the mirror is healthy.
func (s *Server) SetMode(ctx context.Context, req *clusterv1.SetModeRequest) (*clusterv1.SetModeResponse, error) {
	info := s.store.View().Info()
	set := &commandv1.SetMode{Mode: req.GetMode(), Reason: req.GetReason(), Pinned: info.FeatureLevel >= 2}
	switch fsm.Mode(req.GetMode()) {
	case fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery:
	case modeAuto:
		set.Mode, set.Pinned, set.Unpin = string(info.Mode), false, info.FeatureLevel >= 2
	default:
		return nil, errorf(KindInvalid, "mode %q must be %s, %s, %s or %s", req.GetMode(), fsm.ModeNormal, fsm.ModeDegraded, fsm.ModeRecovery, modeAuto)
	}
	r, err := s.propose(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: set}})
	if err != nil {
		return nil, err
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return &clusterv1.SetModeResponse{Mode: set.GetMode(), Index: r.Index}, nil
}

// modeAuto gives the mode back to the leader's judgement.
const modeAuto = "auto"

// TransferLeadership implements cluster.v1.
func (s *Server) TransferLeadership(ctx context.Context, req *clusterv1.TransferLeadershipRequest) (*clusterv1.TransferLeadershipResponse, error) {
	to := ""
	if req.GetReplica() != "" {
		r, err := s.replicaNamed(req.GetReplica())
		if err != nil {
			return nil, err
		}
		if to = r.ID; to == s.replica.Self().ID {
			// It is there already; only the leader gets here.
			return &clusterv1.TransferLeadershipResponse{LeaderId: to}, nil
		}
	}
	began := time.Now()
	err := s.noted(ctx, "", "leadership to "+cmp.Or(clip(req.GetReplica(), 128), "any replica"), func() error { return s.replica.TransferLeadership(ctx, to) })
	if err != nil {
		return nil, err
	}
	out := &clusterv1.TransferLeadershipResponse{TookMs: time.Since(began).Milliseconds()}
	if l, ok := s.replica.Leader(); ok {
		out.LeaderId = l.ID
	}
	return out, nil
}

// RemoveReplica implements cluster.v1.
func (s *Server) RemoveReplica(ctx context.Context, req *clusterv1.RemoveReplicaRequest) (*clusterv1.RemoveReplicaResponse, error) {
	r, err := s.replicaNamed(req.GetReplica())
	if err != nil {
		return nil, err
	}
	if req.GetLeave() && req.GetForce() {
		return nil, errorf(KindInvalid, "force and leave exclude one another: a replica that is asked to leave is never forced")
	}
	err = s.noted(ctx, "", "replica "+r.Name, func() error {
		if req.GetLeave() {
			return s.replica.Dismiss(ctx, r.ID)
		}
		return s.replica.RemoveReplica(ctx, r.ID, req.GetForce())
	})
	if err != nil {
		return nil, err
	}
	return &clusterv1.RemoveReplicaResponse{}, nil
}

// replicaNamed finds a replica by id or name.
func (s *Server) replicaNamed(v string) (*fsm.Replica, error) {
	var found *fsm.Replica
	s.store.View().Replicas(func(r *fsm.Replica) bool {
		if r.ID == v || r.Name == v {
			found = r
		}
		return found == nil
	})
	if found == nil {
		return nil, errorf(KindNotFound, "replica %q not found; `persysctl status` lists them", v)
	}
	return found, nil
}

// ClusterKey implements cluster.v1: for schedulers only, by the table. Any replica
// answers with what it has.
func (s *Server) ClusterKey(context.Context, *clusterv1.ClusterKeyRequest) (*clusterv1.ClusterKeyResponse, error) {
	key, candidate, err := s.cfg.Keys.Offered()
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	return &clusterv1.ClusterKeyResponse{Exported: key.Export(), Candidate: candidate}, nil
}

var errBlankNode = errorf(KindInvalid, "node_id must not be blank")

// nodeAction commits one command about a node and answers with its new view.
func (s *Server) nodeAction(ctx context.Context, id, request string, c *commandv1.Command) (*clusterv1.NodeActionResponse, error) {
	if id == "" {
		return nil, errBlankNode
	}
	if why := s.frozen(); why != "" {
		return nil, errorf(KindPrecondition, "%s", why)
	}
	r, err := s.propose(ctx, request, c)
	if err != nil {
		return nil, err
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	view, err := s.store.At(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.NodeActionResponse{Index: r.Index}
	if n, ok := view.Node(id); ok {
		out.Node = s.nodeView(view, n)
	}
	return out, nil
}

// CordonNode implements cluster.v1.
func (s *Server) CordonNode(ctx context.Context, req *clusterv1.CordonNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_CordonNode{
		CordonNode: &commandv1.CordonNode{Id: req.GetNodeId(), On: req.GetOn()},
	}})
}

// DrainNode implements cluster.v1; with preview it only says what would move where.
func (s *Server) DrainNode(ctx context.Context, req *clusterv1.DrainNodeRequest) (*clusterv1.NodeActionResponse, error) {
	if req.GetNodeId() == "" {
		return nil, errBlankNode
	}
	view := s.store.View()
	n, ok := view.Node(req.GetNodeId())
	if !ok {
		return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", req.GetNodeId())
	}
	var moves []*clusterv1.PlannedMove
	if req.GetOn() {
		for _, m := range sched.PlanDrain(view, n.ID, s.cfg.Tuning) {
			moves = append(moves, &clusterv1.PlannedMove{WorkloadId: m.Workload, ToNodeId: m.To, Reason: m.Message})
		}
	}
	if req.GetPreview() {
		return &clusterv1.NodeActionResponse{Node: s.nodeView(view, n), Index: view.Info().Index, Moves: moves}, nil
	}
	out, err := s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DrainNode{
		DrainNode: &commandv1.DrainNode{Id: req.GetNodeId(), On: req.GetOn()},
	}})
	if err != nil {
		return nil, err
	}
	out.Moves = moves
	return out, nil
}

// RemoveNode implements cluster.v1.
func (s *Server) RemoveNode(ctx context.Context, req *clusterv1.RemoveNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_RemoveNode{
		RemoveNode: &commandv1.RemoveNode{Id: req.GetNodeId(), Force: req.GetForce()},
	}})
}

// FenceNode implements cluster.v1: the operator states that whatever the node ran
// is dead.
func (s *Server) FenceNode(ctx context.Context, req *clusterv1.FenceNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_FenceNode{
		FenceNode: &commandv1.FenceNode{Id: req.GetNodeId()},
	}})
}

// Why implements cluster.v1 from this replica's state.
func (s *Server) Why(ctx context.Context, req *clusterv1.WhyRequest) (*clusterv1.WhyResponse, error) {
	view, err := s.store.At(ctx, req.GetMinIndex())
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	if id := req.GetNodeId(); id != "" {
		if _, ok := view.Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", id)
		}
	}
	ex := sched.Explain(view, w, s.cfg.Tuning)
	out := &clusterv1.WhyResponse{
		WorkloadId:     w.ID,
		Status:         string(w.Status),
		ReasonCode:     w.Reason.Code,
		ReasonMessage:  w.Reason.Message,
		AssignedNodeId: w.Node,
		ChosenNodeId:   ex.Node,
		Hint:           hint(w, &ex),
		Index:          view.Info().Index,
		LastActions:    spec.LastActions(w),
	}
	out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, req.GetNodeId())
	if r, ok := view.Rollout(w.Demand.Group); ok && w.Reason.Code == "" && r.Turn(view.Seen, w.ID) != "" {
		out.ReasonCode, out.ReasonMessage = "Rollout", r.Turn(view.Seen, w.ID)
	}
	return out, nil
}

func countsOf(ex *sched.Explanation) (out []*clusterv1.ReasonCount) {
	for _, c := range ex.Counts {
		out = append(out, &clusterv1.ReasonCount{Filter: c.Filter, Reason: c.Reason, Nodes: int32(c.Nodes)})
	}
	return out
}

// verdictsOf every node, or of one.
func verdictsOf(ex *sched.Explanation, node string) (out []*clusterv1.NodeVerdict) {
	for _, v := range ex.Nodes {
		if node != "" && v.Node != node {
			continue
		}
		out = append(out, &clusterv1.NodeVerdict{
			NodeId: v.Node, Feasible: v.Fits, Filter: v.Filter, Reason: v.Reason, Score: float64(v.Score.Total), ScoreParts: scoreParts(v.Score),
		})
	}
	return out
}

// hint is the command to type next, when there is one.
func hint(w *fsm.Workload, ex *sched.Explanation) string {
	switch {
	case w.Reason.Code == fsm.CodeAwaitFailover:
		return "persysctl node fence " + w.Node
	case w.Retry.Terminal:
		return "persysctl retry " + w.ID
	case w.Node == "" && w.Desired == fsm.DesiredStopped:
		return "persysctl start " + w.ID
	case w.Node == "" && ex.Total == 0:
		return "persysctl nodes"
	case w.Node != "" && w.Status == fsm.StatusFailed:
		return "persysctl logs " + w.ID
	}
	return ""
}

// holder finds the node that has a workload, as this replica knows it. A caller
// that has just applied it sends the index of that answer along.
func (s *Server) holder(ctx context.Context, id string) (*fsm.Node, error) {
	var c call
	if _, err := c.wish(ctx, nil); err != nil {
		return nil, err
	}
	limited, cancel := withDeadline(ctx)
	defer cancel()
	view, err := s.store.At(limited, c.least)
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, id)
	if err != nil {
		return nil, err
	}
	if w.Node == "" {
		return nil, errorf(KindPrecondition, "workload %q is on no node (%s); `persysctl why %s` says why", id, w.Status, id)
	}
	n, ok := view.Node(w.Node)
	if !ok {
		return nil, errorf(KindNotFound, "node %q of workload %q is not registered", w.Node, id)
	}
	return n, nil
}

// wholeLog bounds the reading of a log that is not followed.
const wholeLog = 10 * time.Minute

// Logs implements cluster.v1: passes the agent's stream through.
func (s *Server) Logs(req *clusterv1.LogsRequest, out clusterv1.Cluster_LogsServer) error {
	ctx := out.Context()
	n, err := s.holder(ctx, req.GetWorkloadId())
	if err != nil {
		return err
	}
	if !req.GetFollow() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wholeLog)
		defer cancel()
	}
	in, err := s.agents.logs(ctx, n, &agentv1.LogsRequest{
		Id: req.GetWorkloadId(), Follow: req.GetFollow(), TailLines: max(0, req.GetTailLines()),
		Timestamps: req.GetTimestamps(), SinceUnixSeconds: req.GetSinceUnixSeconds(), Service: req.GetService(),
	})
	if err != nil {
		return agentError(n.ID, err)
	}
	for {
		c, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if status.Code(err) == codes.Unimplemented {
			return errorf(KindPrecondition, "the agent of node %s (version %s) cannot stream logs", n.ID, n.Facts.AgentVersion)
		}
		if err != nil {
			return agentError(n.ID, err)
		}
		if err := out.Send(&clusterv1.LogChunk{Data: c.GetData(), Stream: c.GetStream(), AtUnixNanos: c.GetAtUnixNanos()}); err != nil {
			return err
		}
	}
}

// ListActions implements cluster.v1.
func (s *Server) ListActions(ctx context.Context, req *clusterv1.ListActionsRequest) (*clusterv1.ListActionsResponse, error) {
	n, err := s.holder(ctx, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	acts, err := s.agents.actions(ctx, n, req.GetWorkloadId(), req.GetLimit())
	if err != nil {
		return nil, agentError(n.ID, err)
	}
	out := &clusterv1.ListActionsResponse{NodeId: n.ID}
	for _, a := range acts {
		out.Actions = append(out.Actions, &clusterv1.Action{
			TaskId: a.GetTaskId(), WorkloadId: a.GetWorkloadId(), ActionType: a.GetActionType(),
			Status: a.GetStatus(), Error: a.GetError(),
			CreatedAt: unix(a.GetCreatedAt()), StartedAt: unix(a.GetStartedAt()), EndedAt: unix(a.GetEndedAt()),
		})
	}
	return out, nil
}

// unix reads seconds; legacy v1 agents send large negative numbers for "not yet".
func unix(sec int64) *timestamppb.Timestamp {
	if sec <= 0 {
		return nil
	}
	return timestamppb.New(time.Unix(sec, 0))
}

// eventView renders one event for the API.
func eventView(e *fsm.Event) *clusterv1.Event {
	out := &clusterv1.Event{
		Seq: e.Seq, Index: e.Index, At: timestamppb.New(time.Unix(0, e.At)), Type: e.Type,
		WorkloadId: e.Workload, NodeId: e.Node, Reason: e.Reason, Message: e.Message, By: e.By,
		Namespace: e.In(),
	}
	if len(e.Details) > 0 {
		out.Details = make(map[string]string, len(e.Details))
		for i, d := range e.Details {
			// A change of state has a "from" of its own; then the caller's comes first.
			if d.Key == "from" && i+1 < len(e.Details) && e.Details[i+1].Key == "from" {
				d.Key = "caller"
			}
			out.Details[d.Key] = d.Value
		}
	}
	return out
}

func eventMatches(req *clusterv1.EventsRequest, in scope.Scope, e *fsm.Event) bool {
	of := e.In()
	// Of what is about no workload, those who are confined see nothing but their namespaces.
	return (in.Everywhere() || of != "" && in.Has(of)) && (req.GetNamespace() == "" || req.GetNamespace() == of) &&
		(req.GetWorkloadId() == "" || req.GetWorkloadId() == e.Workload) &&
		(req.GetNodeId() == "" || req.GetNodeId() == e.Node) &&
		(len(req.GetTypes()) == 0 || slices.Contains(req.GetTypes(), e.Type))
}

// scoreParts shows what a score is made of; lower is better.
func scoreParts(sc sched.Score) []string {
	return []string{
		"load=" + strconv.FormatInt(sc.Load, 10),
		"added=" + strconv.FormatInt(sc.Added, 10),
		"group=" + strconv.FormatInt(sc.Group, 10),
		"taint=" + strconv.FormatInt(sc.Taint, 10),
	}
}
