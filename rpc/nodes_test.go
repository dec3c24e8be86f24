package rpc

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
)

func registration(id string) *controlv1.RegisterNodeRequest {
	return &controlv1.RegisterNodeRequest{
		NodeId: id, GrpcEndpoint: "10.0.0.1:50051", AgentVersion: "v1", InstanceId: "i-" + id,
		Labels: map[string]string{"zone": "z1", "storage.ceph-rbd": "true"},
		Capabilities: &controlv1.NodeCapabilities{
			CpuTotalMillicores: 4000, MemoryTotalMb: 8192, CpuReservedMillicores: 500, MemoryReservedMb: 512, Protocol: 1,
			SupportedWorkloadTypes: []string{"container"}, StoragePools: []*controlv1.StoragePool{{Name: "root", Type: "local", TotalGb: 100}},
		},
		Timestamp: timestamppb.Now(),
	}
}

func TestEndpointsAreParsed(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"10.0.0.1:50051", "10.0.0.1:50051"},
		{" host.example:1 ", "host.example:1"},
		{":50051", "127.0.0.1:50051"},
		{"[::1]:50051", "[::1]:50051"},
		{"fe80::1:50051", "[fe80::1]:50051"},
		{"[]:80", "127.0.0.1:80"},
		{"", ""},
		{"host", ""},
		{"host:", ""},
		{"host:0", ""},
		{"host:65536", ""},
		{"host:http", ""},
	} {
		t.Run(fmt.Sprintf("%q", c.in), func(t *testing.T) {
			got, err := parseEndpoint(c.in)
			is(t, "endpoint", got, c.want)
			is(t, "whether the endpoint was refused", err != nil, c.want == "")
			if err != nil {
				is(t, "kind of the error", edgeKind(err), KindInvalid)
			}
		})
	}
}

func TestRegistrationsAreAcceptedAndRefused(t *testing.T) {
	for _, c := range []struct {
		fact     string
		frozen   bool
		req      func(*controlv1.RegisterNodeRequest)
		code     codes.Code
		accepted bool
	}{
		{"a valid registration is accepted", false, func(*controlv1.RegisterNodeRequest) {}, codes.OK, true},
		{"a registration with a blank id is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.NodeId = " \t" }, codes.InvalidArgument, false},
		{"a registration without an endpoint is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.GrpcEndpoint = "" }, codes.InvalidArgument, false},
		{"a registration with a malformed endpoint is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.GrpcEndpoint = "nowhere" }, codes.InvalidArgument, false},
		{"a registration without CPU is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.CpuTotalMillicores = 0 }, codes.OK, false},
		{"a registration with negative memory is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.MemoryTotalMb = -1 }, codes.OK, false},
		{"a registration without capabilities is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities = nil }, codes.OK, false},
		{"a registration that reserves all CPU is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.CpuReservedMillicores = 4000 }, codes.OK, false},
		{"a registration with too many taints is not accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Capabilities.Taints = make([]*controlv1.Taint, 257)
		}, codes.OK, false},
		{"a registration with an unknown effect of a taint is not accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Capabilities.Taints = []*controlv1.Taint{{Key: "k", Effect: "Never"}}
		}, codes.OK, false},
		{"a registration with a taint with seconds is accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Capabilities.Taints = []*controlv1.Taint{{Key: "k", Effect: "NoExecute", Seconds: 5}}
		}, codes.OK, true},
		{"a registration with a label that is too large is not accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Labels = map[string]string{"note": strings.Repeat("x", 2<<20)}
		}, codes.OK, false},
		{"a registration with a malformed id is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "a/b" }, codes.OK, false},
		{"a registration of another cluster's node is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.ClusterId = "c2" }, codes.OK, false},
		{"a registration of a legacy v1 agent may name any cluster", false, func(r *controlv1.RegisterNodeRequest) { r.ClusterId, r.Capabilities.Protocol = "c2", 0 }, codes.OK, true},
		{"a registration of this cluster's node is accepted", false, func(r *controlv1.RegisterNodeRequest) { r.ClusterId = "c1" }, codes.OK, true},
		{"a registration of another shard's node is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Shard = "west" }, codes.OK, false},
		{"a registration of this shard's node is accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Shard = "default" }, codes.OK, true},
		{"a registration of a legacy v1 agent is accepted", false, func(r *controlv1.RegisterNodeRequest) {
			*r = controlv1.RegisterNodeRequest{NodeId: "old", GrpcEndpoint: ":50051", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1, MemoryTotalMb: 1}}
		}, codes.OK, true},
		{"in a mode that refuses changes, a new node is not accepted", true, func(*controlv1.RegisterNodeRequest) {}, codes.OK, false},
		{"in a mode that refuses changes, a known node is accepted", true, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "a" }, codes.OK, true},
		{"in a mode that refuses changes, a blank id is an invalid argument", true, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "" }, codes.InvalidArgument, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 1)
			if c.frozen {
				g.mode(fsm.ModeDegraded)
			}
			req := registration("n")
			c.req(req)
			r, err := g.control(0).RegisterNode(ctxFor(t), req)
			code(t, err, c.code)
			is(t, "accepted", r.GetAccepted(), c.accepted)
			if err == nil {
				is(t, "whether the answer has a reason", r.GetReason() != "", true)
			}
			if c.accepted {
				is(t, "reason", r.GetReason(), "registered")
				is(t, "interval", r.GetHeartbeatIntervalSeconds(), 3)
				is(t, "lease", r.GetLeaseSeconds(), 10)
				is(t, "whether the lease ends in the future", r.GetLeaseExpiresAt().AsTime().After(time.Now()), true)
				is(t, "epoch", r.GetEpoch().GetClusterId(), "c1")
				is(t, "leader", r.GetLeaderAddr(), g.replicas[0].addr)
				is(t, "schedulers", len(r.GetSchedulerAddrs()), 1)
			}
		})
	}
}

func TestRegistrationKeepsTheFacts(t *testing.T) {
	g := newGroup(t, 2)
	_, err := g.control(1).RegisterNode(ctxFor(t), registration("n"))
	ok(t, err)
	n, found := g.view().Node("n")
	is(t, "found", found, true)
	is(t, "CPU without the reserved part", n.Facts.CPU, 3500)
	is(t, "memory without the reserved part", n.Facts.Memory, 7680)
	is(t, "labels", fmt.Sprint(n.Facts.Labels), "[{scheduler_shard blue} {storage.ceph-rbd true} {zone z1}]")
	is(t, "storage drivers", fmt.Sprint(n.Facts.StorageDrivers), "[ceph-rbd local]")
	is(t, "pools", fmt.Sprint(n.Facts.Pools), "[{root local 100}]")

	before := g.view().Info().Index
	again := registration("n")
	again.Timestamp = timestamppb.New(time.Now().Add(time.Hour))
	r, err := g.control(0).RegisterNode(ctxFor(t), again)
	ok(t, err)
	is(t, "accepted", r.GetAccepted(), true)
	is(t, "number of log entries of an unchanged registration", g.view().Info().Index-before, 0)
	again.Labels["zone"] = "z2"
	_, err = g.control(0).RegisterNode(ctxFor(t), again)
	ok(t, err)
	is(t, "number of log entries of a changed registration", g.view().Info().Index-before, 1)
}

func TestHeartbeatsAreAcknowledgedAndRefused(t *testing.T) {
	for _, c := range []struct {
		fact   string
		frozen bool
		req    *controlv1.HeartbeatRequest
		code   codes.Code
		drain  bool
	}{
		{"a heartbeat of a known node is acknowledged", false, &controlv1.HeartbeatRequest{NodeId: "a"}, codes.OK, false},
		{"a heartbeat that names this cluster is acknowledged", false, &controlv1.HeartbeatRequest{NodeId: "a", ClusterId: "c1"}, codes.OK, false},
		{"a heartbeat of another cluster's node is refused", false, &controlv1.HeartbeatRequest{NodeId: "a", ClusterId: "c2"}, codes.FailedPrecondition, false},
		{"a heartbeat of an unknown node of another cluster is refused", false, &controlv1.HeartbeatRequest{NodeId: "x", ClusterId: "c2"}, codes.FailedPrecondition, false},
		{"a heartbeat with a blank id is an invalid argument", false, &controlv1.HeartbeatRequest{NodeId: " "}, codes.InvalidArgument, false},
		{"a heartbeat of an unknown node is not found", false, &controlv1.HeartbeatRequest{NodeId: "x"}, codes.NotFound, false},
		{"in a mode that refuses changes, a heartbeat is acknowledged and drains the node", true, &controlv1.HeartbeatRequest{NodeId: "a"}, codes.OK, true},
		{"in a mode that refuses changes, a heartbeat of an unknown node is not found", true, &controlv1.HeartbeatRequest{NodeId: "x"}, codes.NotFound, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 2)
			if c.frozen {
				g.mode(fsm.ModeDegraded)
			}
			for i := range g.replicas {
				r, err := g.control(i).Heartbeat(ctxFor(t), c.req)
				code(t, err, c.code)
				is(t, "acknowledged", r.GetAcknowledged(), c.code == codes.OK)
				is(t, "drain", r.GetDrainNode(), c.drain)
				if c.code == codes.FailedPrecondition {
					is(t, "message", strings.Contains(status.Convert(err).Message(), "node "+c.req.GetNodeId()+" belongs to cluster c2, this is cluster c1"), true)
				}
			}
		})
	}
}

func TestHeartbeatReachesTheLoop(t *testing.T) {
	g := newGroup(t, 2)
	req := &controlv1.HeartbeatRequest{
		NodeId: "a", Sequence: 7, Usage: &controlv1.NodeUsage{CpuUsedMillicores: 1, MemoryUsedMb: 2, DiskUsedGb: 3, NetRxBytes: 4, NetTxBytes: 5},
		WorkloadStatuses: []*controlv1.WorkloadStatus{
			{WorkloadId: "web", State: "running", Generation: &controlv1.Generation{Incarnation: 1, Sequence: 9},
				Ports: []*controlv1.Port{{HostPort: 32768, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 70000, ContainerPort: 1}}},
			{WorkloadId: "gone", Absent: true},
			{WorkloadId: "bad", State: "Failed", FailureReason: controlv1.FailureReason_IMAGE_NOT_FOUND, Reason: &controlv1.ReasonDetail{Code: "IMAGE_NOT_FOUND", Message: "no such image", Retryable: true}},
			{WorkloadId: "odd", State: "levitating"},
		},
	}
	_, err := g.control(1).Heartbeat(ctxFor(t), req)
	ok(t, err)
	hb := g.replicas[0].lastBeat(t)
	is(t, "sequence", hb.Sequence, 7)
	is(t, "full", hb.Full, false)
	is(t, "usage", hb.Used, sched.NodeUsage{CPU: 1, Memory: 2, Disk: 3, NetReceived: 4, NetSent: 5})
	shown, err := g.control(0).GetNode(ctxFor(t), &controlv1.GetNodeRequest{NodeId: "a"})
	ok(t, err)
	is(t, "network shown", fmt.Sprint(shown.GetNode().GetUsage().GetNetRxBytes(), shown.GetNode().GetUsage().GetNetTxBytes()), "4 5")
	web := hb.Reports[0].Observation
	is(t, "state", web.State, fsm.ActualRunning)
	is(t, "generation", web.Generation, fsm.Generation{Incarnation: 1, Sequence: 9})
	is(t, "ports", fmt.Sprint(web.Ports), "[{32768 80 tcp }]")
	is(t, "gone", hb.Reports[1].Gone, true)
	bad := hb.Reports[2].Observation
	is(t, "failure", fmt.Sprintln(bad.State, bad.Failure, bad.Code, bad.Message, bad.Retryable), "Failed 2 IMAGE_NOT_FOUND no such image true\n")
	is(t, "actual state after a report with an unknown state name", hb.Reports[3].Observation.State, fsm.ActualUnknown)

	_, err = g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
	ok(t, err)
	is(t, "CPU usage after a heartbeat that reports no usage, which keeps the last one", g.replicas[0].lastBeat(t).Used.CPU, 1)
}

// TestUsageThatCannotBe: a heartbeat reports an impossible resource usage, such as a negative number. It must not be
// refused, because the node's lease depends on it.
func TestUsageThatCannotBe(t *testing.T) {
	g := newGroup(t, 1)
	for _, c := range []struct {
		used *controlv1.NodeUsage
		want sched.NodeUsage
	}{
		{&controlv1.NodeUsage{CpuUsedMillicores: -1, MemoryUsedMb: math.MinInt64, DiskUsedGb: -3, NetRxBytes: -1, NetTxBytes: -1}, sched.NodeUsage{}},
		{&controlv1.NodeUsage{CpuUsedMillicores: math.MaxInt64, MemoryUsedMb: math.MaxInt64, DiskUsedGb: math.MaxInt64},
			sched.NodeUsage{CPU: bounds.MaxCPU, Memory: bounds.MaxMemory, Disk: bounds.MaxDisk}},
	} {
		r, err := g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a", Usage: c.used})
		ok(t, err)
		is(t, "acknowledged", r.GetAcknowledged(), true)
		hb := g.replicas[0].lastBeat(t)
		is(t, "usage", hb.Used, c.want)
	}
}

// TestInvalidReservationsNameTheirField: the refusal of a registration with an invalid reservation names the
// field.
func TestInvalidReservationsNameTheirField(t *testing.T) {
	g := newGroup(t, 1)
	for _, c := range []struct {
		set  func(*controlv1.NodeCapabilities)
		want string
	}{
		{func(c *controlv1.NodeCapabilities) { c.DiskReservedGb = -1 }, "capabilities.disk_reserved_gb -1 must be 0 to"},
		{func(c *controlv1.NodeCapabilities) { c.ResourceThresholdPercent = 101 }, "capabilities.resource_threshold_percent 101 must be 0 (all) to 100"},
		{func(c *controlv1.NodeCapabilities) { c.CpuReservedMillicores = -1 }, "capabilities.cpu_reserved_millicores -1 must be from 0"},
		{func(c *controlv1.NodeCapabilities) { c.CpuReservedMillicores = c.CpuTotalMillicores }, "must be from 0 to below cpu_total_millicores"},
		{func(c *controlv1.NodeCapabilities) { c.MemoryReservedMb = math.MinInt64 }, "capabilities.memory_reserved_mb"},
		{func(c *controlv1.NodeCapabilities) { c.MemoryTotalMb = math.MaxInt64 }, "capabilities.memory_total_mb 9223372036854775807 must be at most"},
		{func(c *controlv1.NodeCapabilities) { c.CpuTotalMillicores = -5 }, "capabilities.cpu_total_millicores -5 must be above 0"},
	} {
		req := registration("n")
		c.set(req.Capabilities)
		r, err := g.control(0).RegisterNode(ctxFor(t), req)
		ok(t, err)
		if r.GetAccepted() || !strings.Contains(r.GetReason(), c.want) {
			t.Errorf("the registration was refused with the reason %q, want one that contains %q", r.GetReason(), c.want)
		}
	}
}

func TestALegacyAgentsListIsComplete(t *testing.T) {
	g := newGroup(t, 1)
	_, err := g.control(0).RegisterNode(ctxFor(t), &controlv1.RegisterNodeRequest{NodeId: "old", GrpcEndpoint: ":1", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1, MemoryTotalMb: 1}})
	ok(t, err)
	_, err = g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "old", WorkloadStatuses: []*controlv1.WorkloadStatus{{WorkloadId: "web", State: "Running", LastTransition: timestamppb.Now()}}})
	ok(t, err)
	hb := g.replicas[0].lastBeat(t)
	is(t, "full", hb.Full, true)
	is(t, "protocol", hb.Protocol, 0)
	is(t, "generation", hb.Reports[0].Observation.Generation.IsZero(), true)
	is(t, "whether the report has a time", hb.Reports[0].Observation.At > 0, true)
}

// TestLabelAndTaintNode: users can set labels and taints through any replica. A later registration of the
// node keeps them. Each change of them is in the audit log.
func TestLabelAndTaintNode(t *testing.T) {
	g := newGroup(t, 2)
	_, err := g.control(0).RegisterNode(ctxFor(t), registration("n")) // the agent registers the node with the label zone=z1
	ok(t, err)
	r, err := g.cluster(1).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{NodeId: "n", Labels: map[string]string{"zone": "z9", "rack": "1"}})
	ok(t, err)
	is(t, "zone", r.GetNode().GetLabels()["zone"], "z9")
	is(t, "set", strings.Join(r.GetNode().GetSetLabels(), " "), "rack zone")
	r, err = g.cluster(1).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{NodeId: "n", Remove: []string{"zone", "rack"}})
	ok(t, err)
	is(t, "zone", r.GetNode().GetLabels()["zone"], "")
	is(t, "removed", strings.Join(r.GetNode().GetRemovedLabels(), " "), "zone")
	r, err = g.cluster(0).TaintNode(ctxFor(t), &clusterv1.TaintNodeRequest{NodeId: "n", Taints: []*controlv1.Taint{{Key: "repair", Effect: "NoExecute", Seconds: 60}}})
	ok(t, err)
	is(t, "taints", fmt.Sprint(len(r.GetNode().GetTaints()), r.GetNode().GetTaints()[0].GetSeconds(), r.GetNode().GetTaints()[0].GetSince() != nil), "1 60 true")
	_, err = g.control(0).RegisterNode(ctxFor(t), registration("n"))
	ok(t, err)
	n, err := g.control(1).GetNode(ctxFor(t), &controlv1.GetNodeRequest{NodeId: "n"})
	ok(t, err)
	is(t, "labels and taints after a registration", fmt.Sprintf("%q %d", n.GetNode().GetLabels()["zone"], len(n.GetNode().GetTaints())), `"" 1`)
	for fact, err := range map[string]error{
		"no node":                     second(g.cluster(0).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{Labels: map[string]string{"a": "b"}})),
		"no label":                    second(g.cluster(0).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{NodeId: "n"})),
		"a label with a reserved key": second(g.cluster(0).LabelNode(ctxFor(t), &clusterv1.LabelNodeRequest{NodeId: "n", Labels: map[string]string{"node.id": "b"}})),
		"no effect":                   second(g.cluster(0).TaintNode(ctxFor(t), &clusterv1.TaintNodeRequest{NodeId: "n", Taints: []*controlv1.Taint{{Key: "k"}}})),
	} {
		t.Run(fact, func(t *testing.T) { code(t, err, codes.InvalidArgument) })
	}
	var audited []string
	g.view().Audit(fsm.AuditChanges, 0, func(_ fsm.AuditHash, r *fsm.AuditRecord) bool {
		audited = append(audited, r.Event.Type+" "+r.Event.Message)
		return true
	})
	if all := strings.Join(audited, "\n"); !strings.Contains(all, "NodeLabelsChanged rack=1, zone=z9") || !strings.Contains(all, "NodeTaintsChanged repair:NoExecute:60") {
		t.Errorf("the audit log is\n%s\nwant one record about the changed labels and one about the changed taints", all)
	}
}

// TestLabelsOfPolicies: a policy is bound to all nodes with a certain label. Only users who may change policies must
// be able to change this label of a node, because the change decides whether the policy applies.
func TestLabelsOfPolicies(t *testing.T) {
	g, as := tlsGroup(t)
	admin, ada := clusterv1.NewClusterClient(as(0, "user/admin")), clusterv1.NewClusterClient(as(0, "user/ada"))
	ok(t, second(admin.BindPolicy(ctxFor(t), &clusterv1.BindPolicyRequest{Policy: "restricted", NodeLabel: "role=control"})))
	is(t, "number of policies that apply to a node with the label role=control", len(g.view().NodePolicies(&fsm.Node{Facts: fsm.NodeFacts{Labels: []fsm.Label{{Key: "role", Value: "control"}}}})), 1)
	for _, c := range []struct {
		fact string
		who  clusterv1.ClusterClient
		req  *clusterv1.LabelNodeRequest
		code codes.Code
	}{
		{"an operator may set a label to which no policy is bound", ada, &clusterv1.LabelNodeRequest{NodeId: "a", Labels: map[string]string{"zone": "x"}}, codes.OK},
		{"an operator may not set the role label", ada, &clusterv1.LabelNodeRequest{NodeId: "a", Labels: map[string]string{"role": "worker"}}, codes.PermissionDenied},
		{"an operator may not remove the role label", ada, &clusterv1.LabelNodeRequest{NodeId: "a", Remove: []string{"role"}}, codes.PermissionDenied},
		{"an admin may set the role label", admin, &clusterv1.LabelNodeRequest{NodeId: "a", Labels: map[string]string{"role": "control"}}, codes.OK},
	} {
		t.Run(c.fact, func(t *testing.T) { code(t, second(c.who.LabelNode(ctxFor(t), c.req)), c.code) })
	}
}
