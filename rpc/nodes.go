package rpc

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
)

// RegisterNode implements control.v1.
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
	if wrong := foreign(id, req.GetClusterId(), info.ClusterID); wrong != "" {
		return refuse(wrong)
	}
	if want := req.GetShard(); want != "" && info.Shard != "" && want != info.Shard {
		return refuse("node " + id + " belongs to shard " + want + ", this is shard " + info.Shard + " of cluster " + info.ClusterID)
	}
	caps := req.GetCapabilities()
	if wrong := reserves(caps); wrong != "" {
		return refuse(wrong)
	}
	cmd := s.registration(id, endpoint, req)
	if wrong := bounds.OversizedNode(cmd); wrong != "" {
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
	s.agents.redial(id, endpoint, 0) // before the leader gives it orders
	lease, err := s.leader.Registered(ctx, id)
	if err != nil {
		return nil, s.leading(err)
	}
	out := &controlv1.RegisterNodeResponse{
		Accepted:                 true,
		Reason:                   "registered",
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		ClusterId:                info.ClusterID,
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    s.epoch(lease.Epoch),
	}
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// foreign says what is wrong with a node that belongs to cluster want and asks this
// one; "" if nothing is, or either has no id.
func foreign(node, want, here string) string {
	if want == "" || here == "" || want == here {
		return ""
	}
	return "node " + node + " belongs to cluster " + want + ", this is cluster " + here
}

// leading maps the leader's own errors.
func (s *Server) leading(err error) error {
	var unknown interface{ NotFound() bool }
	if errors.As(err, &unknown) {
		return errorf(KindNotFound, "%w", err)
	}
	return errorf(KindNotLeader, "%w", err)
}

// wholeSeconds of a lease: rounded down, because a node must never think that it has
// longer than the leader does.
func wholeSeconds(ns int64) int32 {
	if ns > 0 && ns < int64(time.Second) {
		return 1 // below what the settings allow
	}
	return int32(ns / int64(time.Second))
}

func seconds(ns int64) int32 { return int32((ns + int64(time.Second) - 1) / int64(time.Second)) }

func (s *Server) epoch(e fsm.Epoch) *controlv1.Epoch {
	info := s.store.View().Info()
	return &controlv1.Epoch{ClusterId: info.ClusterID, Shard: info.Shard, Incarnation: e.Incarnation, Term: e.Term}
}

// schedulers lists where replicas answer, and where the leader does.
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

// parseEndpoint splits at the last colon, trims brackets and completes an empty
// host (contract/wire-control.md, RegisterNodeRequest).
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

func (s *Server) registration(id, endpoint string, req *controlv1.RegisterNodeRequest) *commandv1.RegisterNode {
	caps := req.GetCapabilities()
	labels := maps.Clone(req.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	if s.cfg.Shard != "" {
		labels["scheduler_shard"] = s.cfg.Shard
	}
	drivers := slices.Clone(caps.GetSupportedStorageDrivers())
	for k, v := range labels {
		if d, ok := strings.CutPrefix(k, "storage."); ok && strings.EqualFold(v, "true") {
			drivers = append(drivers, d)
		}
	}
	cmd := &commandv1.RegisterNode{
		Id:             id,
		Endpoint:       endpoint,
		CpuMillicores:  offered(caps, caps.GetCpuTotalMillicores(), caps.GetCpuReservedMillicores()),
		MemoryMib:      offered(caps, caps.GetMemoryTotalMb(), caps.GetMemoryReservedMb()),
		Types:          caps.GetSupportedWorkloadTypes(),
		StorageDrivers: drivers,
		EngineId:       caps.GetEngineId(),
		AgentVersion:   req.GetAgentVersion(),
		InstanceId:     req.GetInstanceId(),
		Protocol:       caps.GetProtocol(),
		SelfFencing:    caps.GetSelfFencing(),

		FenceBoundSeconds: caps.GetFenceBoundSeconds(),
	}
	if ts := req.GetTimestamp(); ts != nil {
		cmd.Timestamp = ts.AsTime().UTC().Format(time.RFC3339)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		cmd.Labels = append(cmd.Labels, &commandv1.Label{Key: k, Value: labels[k]})
	}
	for i, p := range caps.GetStoragePools() {
		kept := int64(0)
		if i == 0 {
			kept = caps.GetDiskReservedGb()
		}
		cmd.Pools = append(cmd.Pools, &commandv1.Pool{Name: p.GetName(), Type: p.GetType(), TotalGb: offered(caps, p.GetTotalGb(), kept)})
	}
	for _, t := range caps.GetTaints() {
		cmd.Taints = append(cmd.Taints, &commandv1.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect()})
	}
	return cmd
}

// registered reports whether the state already holds these facts of a node that
// is up, so that registering again writes nothing.
func (s *Server) registered(id string, cmd *commandv1.RegisterNode) bool {
	n, ok := s.store.View().Node(id)
	return ok && n.SameFacts(cmd)
}

// Heartbeat implements control.v1.
func (s *Server) Heartbeat(ctx context.Context, req *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	view := s.store.View()
	// A node of this id may be known here too: it is not this one.
	if wrong := foreign(id, req.GetClusterId(), view.Info().ClusterID); wrong != "" {
		return nil, errorf(KindPrecondition, "%s", wrong)
	}
	node, ok := view.Node(id)
	if !ok {
		return nil, errorf(KindNotFound, "node %q is not registered", id)
	}
	hb := sched.Heartbeat{
		Node:       id,
		ReceivedAt: s.now().UnixNano(),
		Full:       req.GetFull() || node.Facts.Protocol == 0,
		Protocol:   node.Facts.Protocol,
		Sequence:   req.GetSequence(),
	}
	hb.Used = usageOf(req.GetUsage())
	if req.GetUsage() == nil {
		hb.Used, _ = s.leader.UsageOf(id) // stays as it was
	}
	hb.PoolsUsed = poolsUsed(node, req.GetUsage())
	hb.Reports = make([]sched.Reported, 0, len(req.GetWorkloadStatuses()))
	for _, st := range req.GetWorkloadStatuses() {
		hb.Reports = append(hb.Reports, reported(st))
	}
	hb.Usage = used(req.GetWorkloadUsage())
	s.agents.redial(id, node.Facts.Endpoint, 0)
	lease, err := s.leader.Heartbeat(ctx, hb)
	if err != nil {
		return nil, s.leading(err)
	}
	out := &controlv1.HeartbeatResponse{
		Acknowledged:             true,
		DrainNode:                lease.Drain,
		LeaseExpiresAt:           timestamppb.New(time.Unix(0, lease.ExpiresAt)),
		HeartbeatIntervalSeconds: seconds(lease.Interval),
		LeaseSeconds:             wholeSeconds(lease.Duration),
		Epoch:                    s.epoch(lease.Epoch),
		SendFull:                 lease.SendFull,
	}
	out.SchedulerAddrs, out.LeaderAddr = s.schedulers()
	return out, nil
}

// reported reads one status of a heartbeat, from our agents or existing ones.
func reported(st *controlv1.WorkloadStatus) sched.Reported {
	g := st.GetGeneration()
	r := sched.Reported{
		Workload: st.GetWorkloadId(),
		Revision: st.GetRevisionId(),
		Gone:     st.GetAbsent(),
		Observation: fsm.Observation{
			State:        actual(st.GetState()),
			Generation:   fsm.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()},
			Code:         st.GetReason().GetCode(),
			Message:      st.GetMessage(),
			Failure:      int32(st.GetFailureReason()),
			Retryable:    st.GetReason().GetRetryable(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Health:       healthOf(st.GetHealth()),
		},
	}
	if r.Observation.Message == "" {
		r.Observation.Message = st.GetReason().GetMessage()
	}
	if why := st.GetFailureReason(); why != 0 && r.Observation.Code == "" && r.Observation.State == fsm.ActualFailed {
		r.Observation.Code = codeOf(why)
	}
	for _, p := range st.GetPorts() {
		if validPort(p.GetHostPort()) && validPort(p.GetContainerPort()) {
			r.Observation.Ports = append(r.Observation.Ports, fsm.PortBinding{
				HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()), Protocol: p.GetProtocol(),
			})
		}
	}
	bounded(&r.Observation)
	if ts := st.GetObservedAt(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	} else if ts := st.GetLastTransition(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	}
	return r
}

// codeOf is the failure class that says as much as the enum, for agents that send no detail.
func codeOf(r controlv1.FailureReason) string {
	switch r {
	case controlv1.FailureReason_IMAGE_NOT_FOUND:
		return "INVALID_IMAGE"
	case controlv1.FailureReason_INVALID_SPEC:
		return "INVALID_SPECIFICATION"
	}
	return r.String() // the others stop no retries, and need no other name
}

// healthOf reads what an agent says of health checks; a word that is not known is
// no health.
func healthOf(v string) string {
	switch v {
	case "", fsm.Healthy, fsm.Unhealthy, fsm.HealthStarting:
		return v
	}
	return fsm.Unhealthy
}

func validPort(n int32) bool { return n >= 1 && n <= 65535 }

// actual reads a state name as existing and our own agents send it.
func actual(v string) fsm.Actual {
	for _, a := range []fsm.Actual{fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualPending, fsm.ActualMissing} {
		if strings.EqualFold(v, string(a)) {
			return a
		}
	}
	return fsm.ActualUnknown
}
