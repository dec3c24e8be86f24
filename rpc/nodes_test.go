package rpc

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

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

func TestParseEndpoint(t *testing.T) {
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
			is(t, "refused", err != nil, c.want == "")
			if err != nil {
				is(t, "kind", edgeKind(err), KindInvalid)
			}
		})
	}
}

func TestRegisterNode(t *testing.T) {
	for _, c := range []struct {
		fact     string
		frozen   bool
		req      func(*controlv1.RegisterNodeRequest)
		code     codes.Code
		accepted bool
	}{
		{"a good registration is accepted", false, func(*controlv1.RegisterNodeRequest) {}, codes.OK, true},
		{"a blank id is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.NodeId = " \t" }, codes.InvalidArgument, false},
		{"a missing endpoint is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.GrpcEndpoint = "" }, codes.InvalidArgument, false},
		{"a broken endpoint is an invalid argument", false, func(r *controlv1.RegisterNodeRequest) { r.GrpcEndpoint = "nowhere" }, codes.InvalidArgument, false},
		{"no CPU is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.CpuTotalMillicores = 0 }, codes.OK, false},
		{"negative memory is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.MemoryTotalMb = -1 }, codes.OK, false},
		{"no capabilities are not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities = nil }, codes.OK, false},
		{"all CPU reserved is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Capabilities.CpuReservedMillicores = 4000 }, codes.OK, false},
		{"more taints than a node may have are not accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Capabilities.Taints = make([]*controlv1.Taint, 257)
		}, codes.OK, false},
		{"a label too large for the log is not accepted", false, func(r *controlv1.RegisterNodeRequest) {
			r.Labels = map[string]string{"note": strings.Repeat("x", 2<<20)}
		}, codes.OK, false},
		{"a malformed id is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "a/b" }, codes.OK, false},
		{"another cluster's node is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.ClusterId = "c2" }, codes.OK, false},
		{"our own cluster's node is accepted", false, func(r *controlv1.RegisterNodeRequest) { r.ClusterId = "c1" }, codes.OK, true},
		{"another shard's node is not accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Shard = "west" }, codes.OK, false},
		{"our own shard's node is accepted", false, func(r *controlv1.RegisterNodeRequest) { r.Shard = "default" }, codes.OK, true},
		{"an existing agent is accepted", false, func(r *controlv1.RegisterNodeRequest) {
			*r = controlv1.RegisterNodeRequest{NodeId: "old", GrpcEndpoint: ":50051", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1, MemoryTotalMb: 1}}
		}, codes.OK, true},
		{"a new node is not accepted in a frozen mode", true, func(*controlv1.RegisterNodeRequest) {}, codes.OK, false},
		{"a known node is accepted in a frozen mode", true, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "a" }, codes.OK, true},
		{"a blank id is an invalid argument in a frozen mode too", true, func(r *controlv1.RegisterNodeRequest) { r.NodeId = "" }, codes.InvalidArgument, false},
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
				is(t, "has a reason", r.GetReason() != "", true)
			}
			if c.accepted {
				is(t, "reason", r.GetReason(), "registered")
				is(t, "interval", r.GetHeartbeatIntervalSeconds(), 3)
				is(t, "lease", r.GetLeaseSeconds(), 10)
				is(t, "lease in the future", r.GetLeaseExpiresAt().AsTime().After(time.Now()), true)
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
	is(t, "CPU less what is reserved", n.Facts.CPU, 3500)
	is(t, "memory less what is reserved", n.Facts.Memory, 7680)
	is(t, "labels", fmt.Sprint(n.Facts.Labels), "[{scheduler_shard blue} {storage.ceph-rbd true} {zone z1}]")
	is(t, "storage drivers", fmt.Sprint(n.Facts.StorageDrivers), "[ceph-rbd local]")
	is(t, "pools", fmt.Sprint(n.Facts.Pools), "[{root local 100}]")

	before := g.view().Info().Index
	again := registration("n")
	again.Timestamp = timestamppb.New(time.Now().Add(time.Hour))
	r, err := g.control(0).RegisterNode(ctxFor(t), again)
	ok(t, err)
	is(t, "accepted", r.GetAccepted(), true)
	is(t, "log entries of an unchanged registration", g.view().Info().Index-before, 0)
	again.Labels["zone"] = "z2"
	_, err = g.control(0).RegisterNode(ctxFor(t), again)
	ok(t, err)
	is(t, "log entries of a changed one", g.view().Info().Index-before, 1)
}

func TestHeartbeat(t *testing.T) {
	for _, c := range []struct {
		fact   string
		frozen bool
		req    *controlv1.HeartbeatRequest
		code   codes.Code
		drain  bool
	}{
		{"of a known node is acknowledged", false, &controlv1.HeartbeatRequest{NodeId: "a"}, codes.OK, false},
		{"that names our cluster is acknowledged", false, &controlv1.HeartbeatRequest{NodeId: "a", ClusterId: "c1"}, codes.OK, false},
		{"of another cluster's node is refused", false, &controlv1.HeartbeatRequest{NodeId: "a", ClusterId: "c2"}, codes.FailedPrecondition, false},
		{"of another cluster's node that is not known here is refused", false, &controlv1.HeartbeatRequest{NodeId: "x", ClusterId: "c2"}, codes.FailedPrecondition, false},
		{"with a blank id is an invalid argument", false, &controlv1.HeartbeatRequest{NodeId: " "}, codes.InvalidArgument, false},
		{"of an unknown node is not found", false, &controlv1.HeartbeatRequest{NodeId: "x"}, codes.NotFound, false},
		{"in a frozen mode is acknowledged, and drains", true, &controlv1.HeartbeatRequest{NodeId: "a"}, codes.OK, true},
		{"of an unknown node in a frozen mode is not found", true, &controlv1.HeartbeatRequest{NodeId: "x"}, codes.NotFound, false},
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
	is(t, "ports", fmt.Sprint(web.Ports), "[{32768 80 tcp}]")
	is(t, "gone", hb.Reports[1].Gone, true)
	bad := hb.Reports[2].Observation
	is(t, "failure", fmt.Sprintln(bad.State, bad.Failure, bad.Code, bad.Message, bad.Retryable), "Failed 2 IMAGE_NOT_FOUND no such image true\n")
	is(t, "a state that nobody knows", hb.Reports[3].Observation.State, fsm.ActualUnknown)

	_, err = g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
	ok(t, err)
	is(t, "usage that was not sent", g.replicas[0].lastBeat(t).Used.CPU, 1)
}

// TestAFailureByItsEnumAlone: for agents that send no failure class, the enum decides about
// retries.
func TestAFailureByItsEnumAlone(t *testing.T) {
	for reason, want := range map[controlv1.FailureReason]string{
		controlv1.FailureReason_FAILURE_REASON_UNSPECIFIED: "",
		controlv1.FailureReason_IMAGE_PULL_FAILED:          "IMAGE_PULL_FAILED",
		controlv1.FailureReason_IMAGE_NOT_FOUND:            "INVALID_IMAGE",
		controlv1.FailureReason_INSUFFICIENT_RESOURCES:     "INSUFFICIENT_RESOURCES",
		controlv1.FailureReason_INVALID_SPEC:               "INVALID_SPECIFICATION",
		controlv1.FailureReason_RUNTIME_ERROR:              "RUNTIME_ERROR",
		controlv1.FailureReason_NETWORK_ERROR:              "NETWORK_ERROR",
		controlv1.FailureReason_STORAGE_ERROR:              "STORAGE_ERROR",
		controlv1.FailureReason_VM_BOOT_FAILED:             "VM_BOOT_FAILED",
		controlv1.FailureReason(99):                        "99",
	} {
		st := &controlv1.WorkloadStatus{WorkloadId: "web", State: "Failed", FailureReason: reason}
		is(t, "code of "+reason.String(), reported(st).Observation.Code, want)
		st.Reason = &controlv1.ReasonDetail{Code: "PORT_BIND_CONFLICT"}
		is(t, "detail with "+reason.String(), reported(st).Observation.Code, "PORT_BIND_CONFLICT")
		st.Reason, st.State = nil, "Running"
		is(t, "code of what runs", reported(st).Observation.Code, "")
	}
}

// TestAWordThatIsTooLong: long status texts are cut before they are compared or stored.
func TestAWordThatIsTooLong(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	st := &controlv1.WorkloadStatus{
		WorkloadId: "web", State: "Failed", Message: long, Reason: &controlv1.ReasonDetail{Code: long},
		Addresses: slices.Repeat([]string{long}, 1000),
		Ports:     slices.Repeat([]*controlv1.Port{{HostPort: 80, ContainerPort: 80, Protocol: long}}, 1000),
	}
	o := reported(st).Observation
	if len(o.Message) != maxReportMessage || len(o.Code) != maxReportCode || len(o.Addresses) != maxReportList || len(o.Addresses[0]) > maxReportAddress ||
		len(o.Ports) != maxReportList || len(o.Ports[0].Protocol) > 8 {
		t.Errorf("message %d, code %d, %d addresses, %d ports", len(o.Message), len(o.Code), len(o.Addresses), len(o.Ports))
	}
	if !utf8.ValidString(o.Message) {
		t.Error("it was cut in a character")
	}
}

// TestUsageThatCannotBe: impossible usage figures do not refuse the heartbeat.
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

// TestWorkloadUsageThatCannotBe: impossible figures are replaced by the nearest possible ones.
func TestWorkloadUsageThatCannotBe(t *testing.T) {
	got := used([]*controlv1.WorkloadUsageSnapshot{
		{WorkloadId: "a", CpuPercent: math.NaN(), MemoryBytes: -1, DiskReadBytes: math.MinInt64},
		{WorkloadId: "b", CpuPercent: math.Inf(1), MemoryBytes: 7, NetRxBytes: -7},
		{WorkloadId: "c", CpuPercent: math.Inf(-1)},
	})
	for i, want := range []string{"0 0 0", fmt.Sprint(float64(bounds.MaxCPU/10), 7, 0), "0 0 0"} {
		u := got[i]
		if text := fmt.Sprint(u.CPUPercent, u.Memory, u.DiskRead+u.NetReceived); text != want {
			t.Errorf("%s: %s, want %s", u.Workload, text, want)
		}
	}
}

// TestWhatANodeReserves: an invalid reservation is refused by its field name.
func TestWhatANodeReserves(t *testing.T) {
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
			t.Errorf("%q, want %q", r.GetReason(), c.want)
		}
	}
}

func TestAnExistingAgentsListIsComplete(t *testing.T) {
	g := newGroup(t, 1)
	_, err := g.control(0).RegisterNode(ctxFor(t), &controlv1.RegisterNodeRequest{NodeId: "old", GrpcEndpoint: ":1", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1, MemoryTotalMb: 1}})
	ok(t, err)
	_, err = g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "old", WorkloadStatuses: []*controlv1.WorkloadStatus{{WorkloadId: "web", State: "Running", LastTransition: timestamppb.Now()}}})
	ok(t, err)
	hb := g.replicas[0].lastBeat(t)
	is(t, "full", hb.Full, true)
	is(t, "protocol", hb.Protocol, 0)
	is(t, "generation", hb.Reports[0].Observation.Generation.IsZero(), true)
	is(t, "observed at is set", hb.Reports[0].Observation.At > 0, true)
}
