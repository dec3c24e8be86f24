package rpc

import (
	"context"
	"net"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
)

// RegisterNode implements the call of control.v1: it registers a node.
func (s *Server) RegisterNode(ctx context.Context, req *controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	endpoint, err := parseEndpoint(req.GetGrpcEndpoint())
	if err != nil {
		return nil, err
	}
	info := s.store.View().Info()
	refuse := func(reason string) (*controlv1.RegisterNodeResponse, error) {
		return &controlv1.RegisterNodeResponse{Reason: reason, ClusterId: info.ClusterID}, nil
	}
	// A legacy v1 agent may name any cluster, because the contract does not enforce the cluster id.
	if wrong := foreign(id, req.GetClusterId(), info.ClusterID); wrong != "" && req.GetCapabilities().GetProtocol() > 0 {
		return refuse(wrong)
	}
	if want := req.GetShard(); want != "" && info.Shard != "" && want != info.Shard {
		return refuse("node " + id + " belongs to shard " + want + ", this is shard " + info.Shard + " of cluster " + info.ClusterID)
	}
	cmd, wrong := message.Registration(s.store.View(), s.cfg.Shard, id, endpoint, req)
	if wrong != "" {
		return refuse(wrong)
	}
	if !s.registered(id, cmd) {
		r, err := s.propose(ctx, "", &commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: cmd}})
		if err != nil {
			return nil, err
		}
		if err := r.Err(); err != nil {
			return refuse(err.Error())
		}
	}
	s.agents.redial(id, endpoint, 0) // dial the node again before the leader sends orders
	lease, err := s.leader.Registered(ctx, id)
	if err != nil {
		return nil, s.leading(err)
	}
	out := message.RegistrationResponse(s.store.View().Info(), lease)
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// foreign returns an error text if a node belongs to another cluster. It returns "" if both ids are equal, or if the
// node or this cluster has no cluster id.
func foreign(node, want, here string) string {
	if want == "" || here == "" || want == here {
		return ""
	}
	return "node " + node + " belongs to cluster " + want + ", this is cluster " + here
}

func (s *Server) epoch(e fsm.Epoch) *controlv1.Epoch { return message.Epoch(s.store.View().Info(), e) }

// schedulers returns the gRPC addresses of all replicas and of the leader.
func (s *Server) schedulers() (all []string, leader string) {
	s.store.View().Replicas(func(r *fsm.Replica) bool {
		if r.GRPCAddr != "" {
			all = append(all, r.GRPCAddr)
		}
		return true
	})
	if to, ok := s.replica.Leader(); ok {
		leader = to.GRPCAddr
	}
	return all, leader
}

// parseEndpoint splits an endpoint into host and port at the last colon, removes brackets around the host,
// and replaces an empty host by 127.0.0.1 (contract/wire-control.md, RegisterNodeRequest).
func parseEndpoint(v string) (string, error) {
	v = strings.TrimSpace(v)
	i := strings.LastIndexByte(v, ':')
	if v == "" || i < 0 {
		return "", errorf(KindInvalid, "grpc_endpoint %q must be host:port", v)
	}
	host, port := strings.Trim(v[:i], "[]"), v[i+1:]
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", errorf(KindInvalid, "grpc_endpoint %q: port %q must be 1 to 65535", v, port)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// registered reports whether the node is up and the state has the same facts about it as the registration.
// In that case the registration needs no log entry.
func (s *Server) registered(id string, cmd *commandv1.RegisterNode) bool {
	n, ok := s.store.View().Node(id)
	return ok && n.SameFacts(cmd)
}
