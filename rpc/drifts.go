package rpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// ListDrifts implements the call of cluster.v1: it lists the open drifts (differences between nodes and the
// state).
func (s *Server) ListDrifts(ctx context.Context, req *clusterv1.ListDriftsRequest) (*clusterv1.ListDriftsResponse, error) {
	switch req.GetType() {
	case "", fsm.DriftOrphan, fsm.DriftState, fsm.DriftRevision, fsm.DriftMissing:
	default:
		return nil, errorf(KindInvalid, "type %q must be %s, %s, %s or %s", req.GetType(), fsm.DriftOrphan, fsm.DriftState, fsm.DriftRevision, fsm.DriftMissing)
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if id := req.GetNodeId(); id != "" {
		if _, ok := r.Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", id)
		}
	}
	out := &clusterv1.ListDriftsResponse{Index: r.index}
	in := s.scopeOf(ctx)
	r.Drifts(req.GetNodeId(), func(d *fsm.Drift) bool {
		if req.GetWorkloadId() != "" && req.GetWorkloadId() != d.Workload || req.GetType() != "" && req.GetType() != d.Type {
			return true
		}
		if w, ok := r.Workload(d.Workload); !in.Everywhere() && (!ok || !in.Has(w.In())) {
			return true // an orphan without a record has no known namespace
		}
		out.Drifts = append(out.Drifts, &clusterv1.Drift{
			NodeId: d.Node, WorkloadId: d.Workload, Type: d.Type, SchedulerStatus: d.SchedulerStatus, AgentStatus: d.AgentStatus,
			Action: d.Action, Repairs: int32(d.Repairs), DetectedAt: timestamppb.New(time.Unix(0, d.DetectedAt)),
		})
		return true
	})
	return out, nil
}

// AdoptDrift implements the call of cluster.v1: it makes a workload from an orphan (an instance on a node
// without a record in the state).
func (s *Server) AdoptDrift(ctx context.Context, req *clusterv1.AdoptDriftRequest) (*clusterv1.DriftActionResponse, error) {
	adopt := &commandv1.AdoptDrift{Node: req.GetNodeId(), Workload: req.GetWorkloadId()}
	if w := req.GetWorkload(); w != nil {
		put, files, err := s.onePut(ctx, w)
		if err != nil {
			return nil, err
		}
		if put.GetId() != req.GetWorkloadId() {
			return nil, errorf(KindInvalid, "workload.workload_id %q must be that of the orphan, %q", put.GetId(), req.GetWorkloadId())
		}
		adopt.Put, adopt.Bundle = put, files
	}
	return s.driftAction(ctx, req, &commandv1.Command{Body: &commandv1.Command_AdoptDrift{AdoptDrift: adopt}})
}

// onePut converts an apply request to the message that stores its workload, as a part of a log command. The request
// must describe exactly one workload.
func (s *Server) onePut(ctx context.Context, w *controlv1.ApplyWorkloadRequest) (*commandv1.WorkloadPut, *commandv1.Bundle, error) {
	if w.GetSpec() == nil {
		return nil, nil, errorf(KindInvalid, "workload.spec is missing: an orphan that the cluster does not know needs a full specification")
	}
	prepared, err := s.prepare(ctx, w, nil, true)
	if err != nil {
		return nil, nil, errorf(KindInvalid, "%w", err)
	}
	puts := prepared.Command.GetPutWorkloads()
	if len(puts.GetWorkloads()) != 1 || puts.GetGroupOf() != "" {
		return nil, nil, errorf(KindInvalid, "workload.spec.count makes %d workloads, but an orphan is one workload", len(puts.GetWorkloads()))
	}
	var files *commandv1.Bundle
	if b := puts.GetBundles(); len(b) > 0 {
		files = b[0]
	}
	return puts.GetWorkloads()[0], files, nil
}

// DeleteDrift implements the call of cluster.v1: it removes an orphan (an instance without a record in the
// state) from its node.
func (s *Server) DeleteDrift(ctx context.Context, req *clusterv1.DeleteDriftRequest) (*clusterv1.DriftActionResponse, error) {
	return s.driftAction(ctx, req, &commandv1.Command{Body: &commandv1.Command_DropOrphan{
		DropOrphan: &commandv1.DropOrphan{Node: req.GetNodeId(), Workload: req.GetWorkloadId()},
	}})
}

// orphanRequest is a request about one orphan, an instance on a node without a record in the state.
type orphanRequest interface {
	GetNodeId() string
	GetWorkloadId() string
	GetRequestId() string
}

func (s *Server) driftAction(ctx context.Context, req orphanRequest, c *commandv1.Command) (*clusterv1.DriftActionResponse, error) {
	switch {
	case strings.TrimSpace(req.GetNodeId()) == "":
		return nil, errBlankNode
	case strings.TrimSpace(req.GetWorkloadId()) == "":
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	r, err := s.mutate(ctx, req.GetRequestId(), c)
	if err != nil {
		return nil, err
	}
	return &clusterv1.DriftActionResponse{Index: r.Index}, nil
}
