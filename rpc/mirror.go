package rpc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// defaultEtcd is the etcd that AttachMirror and ImportMirror use if the request names no etcd (contract/env.md).
const defaultEtcd = "localhost:2379"

// probeLimit is the time limit within which all replicas probe an etcd.
const probeLimit = 6 * time.Second

func mirrorEndpoints(asked []string) []string {
	if len(asked) == 0 {
		return []string{defaultEtcd}
	}
	return asked
}

// AttachMirror implements the call of cluster.v1: it attaches an etcd, to which the cluster then copies its state (the
// mirror).
func (s *Server) AttachMirror(ctx context.Context, req *clusterv1.AttachMirrorRequest) (*clusterv1.AttachMirrorResponse, error) {
	m, err := s.mirror()
	if err != nil {
		return nil, err
	}
	if at, settings := m.Endpoints(); settings {
		return nil, errorf(KindPrecondition, "ETCD_ENDPOINTS of the schedulers names the etcd already: %s. To choose another, change that setting, restart the schedulers, then `persysctl mirror detach`", strings.Join(at, ", "))
	}
	out := &clusterv1.AttachMirrorResponse{Endpoints: mirrorEndpoints(req.GetEndpoints())}
	if err := m.Check(out.GetEndpoints()); err != nil {
		return nil, errorf(KindInvalid, "endpoints: %w", err)
	}
	out.Replicas = s.ProbeMirrors(ctx, out.GetEndpoints())
	id, err := SameEtcd(out.GetReplicas(), req.GetOverwrite())
	if err != nil {
		return nil, errorf(KindPrecondition, "the etcd was not attached: %w", err)
	}
	out.Etcd = strconv.FormatUint(id, 16)
	_, err = s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_AttachMirror{AttachMirror: &commandv1.AttachMirror{
		Endpoints: out.GetEndpoints(), EtcdClusterId: id,
	}}})
	if err != nil {
		return nil, err
	}
	s.log.Warn("a mirror was attached", "by", callOf(ctx).who(), "etcd", out.GetEtcd(), "endpoints", out.GetEndpoints())
	if req.GetOverwrite() {
		if err := m.Restore(ctx); err != nil {
			return nil, errorf(KindPrecondition, "the etcd is attached, but could not be written: %w; `persysctl recovery restore` tries again", err)
		}
	}
	return out, nil
}

// DetachMirror implements the call of cluster.v1: it ends the mirror (the copy of the state in etcd). The records in
// etcd stay.
func (s *Server) DetachMirror(ctx context.Context, req *clusterv1.DetachMirrorRequest) (*clusterv1.DetachMirrorResponse, error) {
	if s.store.View().Info().AttachedEtcd() == 0 {
		return nil, errorf(KindPrecondition, "no etcd is attached; `persysctl mirror status`")
	}
	_, err := s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DetachMirror{DetachMirror: &commandv1.DetachMirror{}}})
	if err != nil {
		return nil, err
	}
	out := &clusterv1.DetachMirrorResponse{}
	if m := s.cfg.Mirror; m != nil {
		out.Endpoints, _ = m.Endpoints()
	}
	return out, nil
}

// MirrorStatus implements the call of cluster.v1: it returns the state of the mirror and which schedulers reach its
// etcd.
func (s *Server) MirrorStatus(ctx context.Context, _ *clusterv1.MirrorStatusRequest) (*clusterv1.MirrorStatusResponse, error) {
	out := &clusterv1.MirrorStatusResponse{Mirror: "off"}
	if id := s.store.View().Info().AttachedEtcd(); id != 0 {
		out.AttachedEtcd = strconv.FormatUint(id, 16)
	}
	m, err := s.attached()
	if err != nil {
		out.Reason = err.Error()
		return out, nil
	}
	out.Mirror, out.Reason, out.Index = m.Health()
	out.Endpoints, out.FromSettings = m.Endpoints()
	out.Replicas = s.ProbeMirrors(ctx, nil)
	return out, nil
}

// ProbeMirror implements the call of cluster.v1: the replica that was called contacts an etcd.
func (s *Server) ProbeMirror(ctx context.Context, req *clusterv1.ProbeMirrorRequest) (*clusterv1.MirrorProbe, error) {
	self := s.replica.Self()
	out := &clusterv1.MirrorProbe{Replica: self.Name, ReplicaId: self.ID}
	endpoints := req.GetEndpoints()
	m, err := s.mirror()
	if err == nil && len(endpoints) == 0 {
		if endpoints, _ = m.Endpoints(); len(endpoints) == 0 {
			err = fmt.Errorf("no etcd is attached and ETCD_ENDPOINTS is not set on scheduler %s", self.Name)
		}
	}
	if err == nil {
		err = m.Check(endpoints)
	}
	if err == nil {
		out.EtcdClusterId, err = m.Probe(ctx, endpoints)
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out, nil
}

// ProbeMirrors makes all replicas contact an etcd at the same time. Without endpoints, each replica contacts
// the etcd in its own settings. A replica that does not answer is listed with an error.
func (s *Server) ProbeMirrors(ctx context.Context, endpoints []string) []*clusterv1.MirrorProbe {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	var replicas []*fsm.Replica
	s.store.View().Replicas(func(r *fsm.Replica) bool {
		replicas = append(replicas, r)
		return true
	})
	out := make([]*clusterv1.MirrorProbe, len(replicas))
	req := &clusterv1.ProbeMirrorRequest{Endpoints: endpoints}
	var wg sync.WaitGroup
	for i, r := range replicas {
		wg.Go(func() {
			p, err := s.probeAt(ctx, r, req)
			if err != nil {
				p = &clusterv1.MirrorProbe{Error: "the scheduler does not answer: " + err.Error()}
			}
			p.Replica, p.ReplicaId = r.Name, r.ID
			out[i] = p
		})
	}
	wg.Wait()
	return out
}

func (s *Server) probeAt(ctx context.Context, r *fsm.Replica, req *clusterv1.ProbeMirrorRequest) (*clusterv1.MirrorProbe, error) {
	if r.ID == s.replica.Self().ID {
		return s.ProbeMirror(ctx, req)
	}
	conn, err := s.peers.conn(r.GRPCAddr)
	if err != nil {
		return nil, err
	}
	return clusterv1.NewClusterClient(conn).ProbeMirror(ctx, req)
}

// SameEtcd returns the cluster id of the etcd that the probes of all replicas reached. It returns an error if a probe
// reached no etcd, or if two probes reached different etcd clusters. Unless foreign is true, it also returns an error
// if a probe found records that another program has written.
func SameEtcd(probes []*clusterv1.MirrorProbe, foreign bool) (uint64, error) {
	if len(probes) == 0 {
		return 0, errorf(KindUnavailable, "no scheduler has announced itself yet; `persysctl status`")
	}
	var wrong []string
	first := probes[0]
	for _, p := range probes {
		switch {
		case p.GetEtcdClusterId() == 0:
			wrong = append(wrong, fmt.Sprintf("scheduler %s: %s", p.GetReplica(), p.GetError()))
		case p.GetError() != "" && !foreign:
			wrong = append(wrong, fmt.Sprintf("scheduler %s: %s; --overwrite replaces them", p.GetReplica(), p.GetError()))
		case first.GetEtcdClusterId() != 0 && p.GetEtcdClusterId() != first.GetEtcdClusterId():
			wrong = append(wrong, fmt.Sprintf("scheduler %s reaches etcd cluster %x at these endpoints, and scheduler %s reaches another one, %x", first.GetReplica(), first.GetEtcdClusterId(), p.GetReplica(), p.GetEtcdClusterId()))
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return 0, fmt.Errorf("every scheduler must reach the same etcd: %s", strings.Join(slices.Compact(wrong), "; "))
	}
	return first.GetEtcdClusterId(), nil
}
