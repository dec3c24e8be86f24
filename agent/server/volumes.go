package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/garbage"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

// CollectGarbage finds garbage and, unless it is a dry run, removes it.
func (s *Server) CollectGarbage(ctx context.Context, req *agentv1.CollectGarbageRequest) (*agentv1.CollectGarbageResponse, error) {
	if err := s.fence(req.GetEpoch(), req.GetNodeId(), true); err != nil {
		return nil, err
	}
	found := s.cfg.Garbage.Collect(ctx, req.GetDryRun(), req.GetOrphans(), req.GetBy())
	out := &agentv1.CollectGarbageResponse{Skipped: found.Skipped}
	for _, f := range found.Items {
		g := &agentv1.Garbage{
			Kind: string(f.Kind), Name: f.Name, WorkloadId: string(f.Workload), Reason: f.Reason, Bytes: f.Bytes, From: f.From, Removed: f.Removed,
		}
		if f.Err != nil {
			g.Error = f.Err.Error()
		}
		out.Items = append(out.Items, g)
	}
	return out, nil
}

// ListVolumes lists the managed volumes of this machine.
func (s *Server) ListVolumes(_ context.Context, req *agentv1.ListVolumesRequest) (*agentv1.ListVolumesResponse, error) {
	if err := s.fence(req.GetEpoch(), "", false); err != nil {
		return nil, err
	}
	out := &agentv1.ListVolumesResponse{MissingDrivers: s.cfg.Storage.Lacks()}
	for _, v := range s.cfg.Storage.List() {
		m := &agentv1.VolumeInfo{
			Id: v.ID, Name: v.Name, Driver: v.Driver, SizeGb: v.SizeGB, Pool: v.Pool, Form: string(v.Form), Phase: string(v.Phase),
			RetainPolicy: "Delete", LastError: v.Error, Owner: v.Owner, Namespace: v.In(), CreatedAt: unix(v.CreatedAt), ReleasedAt: unix(v.ReleasedAt),
		}
		if v.Kept() {
			m.RetainPolicy = "Retain"
		}
		for _, u := range v.Users {
			m.WorkloadIds = append(m.WorkloadIds, u.WorkloadID)
		}
		out.Volumes = append(out.Volumes, m)
	}
	return out, nil
}

// DeleteVolume deletes a managed volume of this machine that no workload uses.
func (s *Server) DeleteVolume(ctx context.Context, req *agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error) {
	if err := s.fence(req.GetEpoch(), req.GetNodeId(), true); err != nil {
		return nil, err
	}
	f := &garbage.Finding{Garbage: driver.Garbage{Kind: driver.OldVolume, Name: req.GetId(), Reason: "deleted on request"}}
	for _, v := range s.cfg.Storage.List() {
		if v.ID == req.GetId() {
			f.Workload = driver.ID(v.Owner)
		}
	}
	f.Err = s.cfg.Storage.Delete(ctx, req.GetId())
	switch {
	case errors.Is(f.Err, volume.ErrNoVolume):
		return nil, status.Errorf(codes.NotFound, "volume %q not found on node %q", req.GetId(), s.cfg.NodeID)
	case f.Err != nil:
		return nil, status.Error(codes.FailedPrecondition, f.Err.Error())
	}
	s.cfg.Garbage.Record(f, req.GetBy())
	return &agentv1.DeleteVolumeResponse{}, nil
}

// ReadVolume sends the files of a volume to the agent of the node to which the volume moves.
func (s *Server) ReadVolume(stream agentv1.AgentService_ReadVolumeServer) error {
	caller := ""
	if s.cfg.Authorize != nil {
		id, err := s.callerIdentity(stream.Context(), *s.cfg.Authorize)
		if err != nil {
			return status.Error(codes.Unauthenticated, err.Error())
		}
		if id.Role != pki.RoleAgent || id.Mapped || id.ID == "" {
			return status.Errorf(codes.PermissionDenied, "%s %q may not copy volumes: only the agent of the node to which they move may", id.Role, id.ID)
		}
		caller = id.ID
	}
	return s.cfg.Moves.Serve(stream, caller)
}
