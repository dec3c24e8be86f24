package persysctl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/spec"
)

// epoch is the present time in all tests.
var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(epoch.Add(-d)) }

// fake is a scheduler with fixed data. Tests may replace its answers.
type fake struct {
	forged string                                             // if set, records by this identity are changed, as a forger would change them
	renew  func(csr []byte) (*clusterv1.RenewResponse, error) // answers the calls of Renew; if it is nil, they are refused

	controlv1.UnimplementedAgentControlServer
	clusterv1.UnimplementedClusterServer
	addr string

	older      bool // whether the fake acts as an older scheduler, which ignores newer fields
	lastDelete *controlv1.DeleteWorkloadRequest
	mu         sync.Mutex
	fail       map[string][]error // errors that the next calls return, by method
	nodes      []*controlv1.NodeView
	workloads  []*controlv1.WorkloadView
	events     []*clusterv1.Event
	status     *clusterv1.StatusResponse
	why        *clusterv1.WhyResponse
	logs       []*clusterv1.LogChunk
	logBreaks  int    // number of log streams that will break after their last chunk
	logEnds    func() // called when a log stream ends, with mu held; nil does nothing
	moves      []*clusterv1.PlannedMove
	backup     []byte // content of a complete backup file
	restores   []*clusterv1.RestoreBackupRequest
	mirrored   []bool
	imports    []*clusterv1.ImportMirrorRequest
	taken      []byte            // backup data that the last restore received
	refuse     map[string]string // workload id → reason of the refusal
	script     []scene           // what each watch of workloads sends, one scene per watch
	stale      bool
	members    []*controlv1.SystemMembers // members of the system workload "log", one value for each read; the last one stays
	rolls      int                        // number of calls that read the state of a rollout
	rounds     int                        // number of calls of ApplyRebalance
	leaderAt   string                     // address of the leader, sent in trailers
	slow       time.Duration
	watches    []*clusterv1.WatchWorkloadsRequest
	requests   []any
	requestIDs []string
}

// scene is a script for one watch stream of the fake scheduler: it sends the changes and then ends the stream with the
// error err. If err is nil, the stream stays open.
type scene struct {
	pause   time.Duration // delay before the changes
	changes []*clusterv1.WorkloadChange
	err     error
}

func start(t testing.TB, files *pki.Files) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{addr: l.Addr().String(), fail: map[string][]error{}, refuse: map[string]string{}}
	f.fill()
	opts := []grpc.ServerOption{grpc.UnaryInterceptor(f.unary), grpc.StreamInterceptor(f.stream)}
	if files != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(files.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}}))))
	}
	s := grpc.NewServer(opts...)
	controlv1.RegisterAgentControlServer(s, f)
	clusterv1.RegisterClusterServer(s, f)
	clusterv1.RegisterTrustServer(s, trustFake{f: f})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // Serve returns after Stop
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return f
}

func (f *fake) next(full string, ctx context.Context, req any) error {
	f.mu.Lock()
	name := full[strings.LastIndexByte(full, '/')+1:]
	if req != nil {
		f.requests = append(f.requests, req)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	f.requestIDs = append(f.requestIDs, md.Get(dial.KeyRequestID)...)
	slow := f.slow
	var err error
	if list := f.fail[name]; len(list) > 0 {
		err, f.fail[name] = list[0], list[1:]
	}
	f.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return err
}

func (f *fake) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if err := f.next(info.FullMethod, ctx, req); err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (f *fake) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if err := f.next(info.FullMethod, ss.Context(), nil); err != nil {
		return err
	}
	return h(srv, ss)
}

// last returns the last request of type T that the fake scheduler received.
func last[T any](f *fake) (out T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if v, ok := r.(T); ok {
			out = v
		}
	}
	return out
}

func (f *fake) ListNodes(_ context.Context, req *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	out := &controlv1.ListNodesResponse{Index: 42, Stale: f.stale, AgeMs: f.age()}
	for _, n := range f.nodes {
		if n.GetNodeId() <= req.GetPageToken() || len(out.Nodes) > 0 && len(out.Nodes) == int(req.GetPageSize()) {
			continue
		}
		if req.GetStatus() == "" || strings.EqualFold(req.GetStatus(), n.GetStatus()) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	return out, nil
}

func (f *fake) GetNode(_ context.Context, req *controlv1.GetNodeRequest) (*controlv1.GetNodeResponse, error) {
	for _, n := range f.nodes {
		if n.GetNodeId() == req.GetNodeId() {
			return &controlv1.GetNodeResponse{Node: n, Index: 42}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "get node: node %q not found; `persysctl nodes` lists them", req.GetNodeId())
}

func (f *fake) age() int64 {
	if f.stale {
		return 3000
	}
	return 0
}

func (f *fake) find(id string) *controlv1.WorkloadView {
	for _, w := range f.workloads {
		if w.GetWorkloadId() == id {
			return w
		}
	}
	return nil
}

// ListWorkloads returns pages of two workloads, whatever size the request asks for, so that the tests cover paging.
func (f *fake) ListWorkloads(_ context.Context, req *controlv1.ListWorkloadsRequest) (*controlv1.ListWorkloadsResponse, error) {
	out := &controlv1.ListWorkloadsResponse{Index: 42, Stale: f.stale, AgeMs: f.age()}
	for _, w := range f.all() {
		if w.GetWorkloadId() <= req.GetPageToken() || req.GetNodeId() != "" && req.GetNodeId() != w.GetAssignedNodeId() ||
			req.GetGroup() != "" && req.GetGroup() != w.GetGroup() || req.GetStatus() != "" && !strings.EqualFold(req.GetStatus(), w.GetStatus()) ||
			req.GetKind() != "" && !strings.EqualFold(req.GetKind(), cmp.Or(w.GetKind(), spec.KindService)) {
			continue
		}
		n := len(out.Workloads)
		if n == 2 && req.GetLevel() != controlv1.ReadLevel_READ_LEVEL_STALE || n > 0 && n == int(req.GetPageSize()) {
			out.NextPageToken = out.Workloads[n-1].GetWorkloadId()
			break
		}
		out.Workloads = append(out.Workloads, w)
	}
	return out, nil
}

func (f *fake) GetWorkload(_ context.Context, req *controlv1.GetWorkloadRequest) (*controlv1.GetWorkloadResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.members) > 0 && req.GetWorkloadId() == "log" {
		w := view("log", "Running", "", "")
		w.Kind, w.Members = "system", f.members[0]
		f.members = f.members[min(1, len(f.members)-1):]
		return &controlv1.GetWorkloadResponse{Workload: w, Index: 42}, nil
	}
	if w := f.find(req.GetWorkloadId()); w != nil {
		return f.got(req, w), nil
	}
	return nil, status.Errorf(codes.NotFound, "get workload: workload %q not found; `persysctl list` shows all", req.GetWorkloadId())
}

func (f *fake) GetClusterSummary(context.Context, *controlv1.GetClusterSummaryRequest) (*controlv1.GetClusterSummaryResponse, error) {
	return &controlv1.GetClusterSummaryResponse{
		TotalNodes: 3, ReadyNodes: 2, NotReadyNodes: 1, TotalWorkloads: 6, RunningWorkloads: 2, PendingWorkloads: 1, FailedWorkloads: 1,
		RetryPendingWorkloads: 1, StoppedWorkloads: 1, Mode: "normal", LeaderId: "scheduler-2", Index: 42,
	}, nil
}

func (f *fake) ApplyWorkload(_ context.Context, req *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadResponse, error) {
	return f.apply(req), nil
}

func (f *fake) apply(req *controlv1.ApplyWorkloadRequest) *controlv1.ApplyWorkloadResponse {
	id := req.GetWorkloadId()
	if why, ok := f.refuse[id]; ok {
		return &controlv1.ApplyWorkloadResponse{FailureReason: controlv1.FailureReason_INVALID_SPEC, ErrorMessage: why}
	}
	if req.GetSpec() == nil && f.find(id) == nil {
		return &controlv1.ApplyWorkloadResponse{FailureReason: controlv1.FailureReason_RUNTIME_ERROR, ErrorMessage: "no such workload"}
	}
	out := &controlv1.ApplyWorkloadResponse{Success: true, Index: 43, RevisionId: "c1-0123456789abcdef",
		Generation: &controlv1.Generation{Incarnation: 1, Sequence: 9}, WorkloadIds: []string{id}, Unchanged: id == "same"}
	if n := int(req.GetSpec().GetCount()); n > 0 {
		out.WorkloadIds = nil
		for i := range n {
			out.WorkloadIds = append(out.WorkloadIds, id+"-"+string(rune('0'+i)))
		}
	}
	if n := req.GetSpec(); n != nil && n.Count != nil && n.GetCount() == 0 {
		out.WorkloadIds = []string{id + "-0"}
	}
	if req.GetSpec().GetUpdate() != nil {
		out.Rollout = &controlv1.Generation{Incarnation: 1, Sequence: 9}
	}
	if id == "older" {
		out.TakesBack = olderFile
	}
	return out
}

// olderFile is the fake scheduler's answer for an apply of the workload "older": the fields that the apply
// would set back to the values of an earlier revision.
var olderFile = []*controlv1.TakenBack{
	{Field: "desired_state", Before: "Stopped", After: "Running"},
	{Field: "container.image", Before: "web:2", After: "web:1", Revision: 7, By: "persys://c1/user/alice", AppliedAt: before(time.Hour)},
	{Field: "a secret value", Revision: 8, By: "persys://c1/user/bob", AppliedAt: before(time.Minute)},
}

func (f *fake) ApplyWorkloads(_ context.Context, req *clusterv1.ApplyWorkloadsRequest) (*clusterv1.ApplyWorkloadsResponse, error) {
	out := &clusterv1.ApplyWorkloadsResponse{Index: 43}
	for _, w := range req.GetWorkloads() {
		out.Results = append(out.Results, f.apply(w))
	}
	return out, nil
}

func (f *fake) DeleteWorkload(_ context.Context, req *controlv1.DeleteWorkloadRequest) (*controlv1.DeleteWorkloadResponse, error) {
	f.lastDelete = req
	id := req.GetWorkloadId()
	if why, ok := f.refuse[id]; ok {
		return &controlv1.DeleteWorkloadResponse{ErrorMessage: why}, nil
	}
	if f.find(id) == nil && f.find(id+"-0") == nil {
		return &controlv1.DeleteWorkloadResponse{ErrorMessage: "workload " + id + " does not exist"}, nil
	}
	return &controlv1.DeleteWorkloadResponse{Success: true, Index: 44, VolumesKept: (req.GetKeepVolumes() || req.GetWorkloadId() == "old") && !f.older}, nil
}

func (f *fake) RetryWorkload(_ context.Context, req *controlv1.RetryWorkloadRequest) (*controlv1.RetryWorkloadResponse, error) {
	if id := req.GetWorkloadId(); f.find(id) == nil && f.find(id+"-0") == nil {
		return &controlv1.RetryWorkloadResponse{Reason: "no such workload"}, nil
	}
	if v := f.find(req.GetWorkloadId()); v.GetStatus() == "Running" && !req.GetRestart() {
		return &controlv1.RetryWorkloadResponse{Accepted: true, Unchanged: true, Reason: "it runs", Index: 45}, nil
	}
	return &controlv1.RetryWorkloadResponse{Accepted: true, Index: 45}, nil
}

func (f *fake) Status(ctx context.Context, _ *clusterv1.StatusRequest) (*clusterv1.StatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaderAt != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(dial.KeyLeader, f.leaderAt))
	}
	return f.status, nil
}

func (f *fake) Events(req *clusterv1.EventsRequest, out clusterv1.Cluster_EventsServer) error {
	f.mu.Lock()
	f.requests = append(f.requests, req)
	f.mu.Unlock()
	for _, e := range f.events {
		if e.GetSeq() <= req.GetAfterSeq() || req.GetWorkloadId() != "" && req.GetWorkloadId() != e.GetWorkloadId() ||
			req.GetNodeId() != "" && req.GetNodeId() != e.GetNodeId() || len(req.GetTypes()) > 0 && !slices.Contains(req.GetTypes(), e.GetType()) {
			continue
		}
		if err := out.Send(e); err != nil {
			return err
		}
	}
	if req.GetFollow() {
		<-out.Context().Done()
	}
	return nil
}

// Audit returns the audit logs of changes and refusals, made from the events of calls. The log security is empty.
func (f *fake) Audit(_ *clusterv1.AuditRequest, out clusterv1.Cluster_AuditServer) error {
	for _, l := range fsm.AuditLogs() {
		var before fsm.AuditHash
		number := uint64(0)
		for _, e := range f.events {
			refused := e.GetType() == fsm.EventCallRefused || e.GetType() == fsm.EventJoinRefused
			if caller(e) == "" || l == fsm.AuditSecurity || refused != (l == fsm.AuditRefusals) {
				continue
			}
			number++
			previous := before
			r := &clusterv1.AuditRecord{
				Log: string(l), Number: number, PreviousHash: previous[:], EventSeq: e.GetSeq(), AtUnixNanos: e.GetAt().AsTime().UnixNano(),
				Type: e.GetType(), WorkloadId: e.GetWorkloadId(), NodeId: e.GetNodeId(), Reason: e.GetReason(), Message: e.GetMessage(), By: e.GetBy(),
			}
			record := &fsm.Event{
				Seq: r.GetEventSeq(), At: r.GetAtUnixNanos(), Type: r.GetType(), Workload: r.GetWorkloadId(), Node: r.GetNodeId(),
				Reason: r.GetReason(), Message: r.GetMessage(), By: r.GetBy(),
			}
			for _, k := range slices.Sorted(maps.Keys(e.GetDetails())) {
				key := k
				if k == "caller" {
					key = "from"
				}
				r.Details = append(r.Details, &clusterv1.AuditDetail{Key: key, Value: e.GetDetails()[k]})
				record.Details = append(record.Details, fsm.Label{Key: key, Value: e.GetDetails()[k]})
			}
			hash := fsm.HashAudit(before, number, record)
			if r.Hash = hash[:]; r.GetBy() == f.forged {
				r.Message = "forged"
			}
			before = hash
			if err := out.Send(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fake) WatchWorkloads(req *clusterv1.WatchWorkloadsRequest, out clusterv1.Cluster_WatchWorkloadsServer) error {
	f.mu.Lock()
	f.watches = append(f.watches, req)
	var s scene
	if len(f.script) > 0 {
		s, f.script = f.script[0], f.script[1:]
	}
	f.mu.Unlock()
	select {
	case <-time.After(s.pause):
	case <-out.Context().Done():
	}
	for _, c := range s.changes {
		if err := out.Send(c); err != nil {
			return err
		}
	}
	if s.err != nil {
		return s.err
	}
	<-out.Context().Done()
	return nil
}

func (f *fake) PlanWorkloads(_ context.Context, req *clusterv1.PlanWorkloadsRequest) (*clusterv1.PlanWorkloadsResponse, error) {
	out := &clusterv1.PlanWorkloadsResponse{Index: 42}
	for i, w := range req.GetWorkloads() {
		p := &clusterv1.PlannedWorkload{WorkloadId: w.GetWorkloadId(), Action: "create", NodeId: "node-a"}
		switch {
		case w.GetDesiredState() == "deleted":
			p.Action, p.NodeId, p.PresentNodeId = "delete", "", "node-a"
			if w.GetWorkloadId() == "web" {
				p.LocalData = []string{"disk vda", "volume db"}
				p.DeletedData, p.KeptData = []string{"disk vda on node-a"}, []string{"volume db on node-a"}
			}
		case f.refuse[w.GetWorkloadId()] != "":
			p.Action, p.NodeId, p.Reason = "refused", "", f.refuse[w.GetWorkloadId()]
		case i == 1:
			p.Action, p.PresentNodeId, p.Preempts = "replace", "node-a", []string{"batch"}
			p.Changes = []*clusterv1.FieldChange{{Field: "container.image", Before: "nginx:1.27", After: "nginx:1.28"}, {Field: "container.ports[0].host_port", After: "8080"}}
		case w.GetSpec().GetUpdate() != nil:
			for n := range w.GetSpec().GetCount() {
				out.Workloads = append(out.Workloads, &clusterv1.PlannedWorkload{
					WorkloadId: fmt.Sprint(w.GetWorkloadId(), "-", n), Action: "replace", NodeId: "node-a", AtATime: w.GetSpec().GetUpdate().GetMaxParallel(),
					ExtraMembers: map[string]int32{"start-first": 1}[w.GetSpec().GetUpdate().GetOrder()],
					Changes:      []*clusterv1.FieldChange{{Field: "container.image", Before: "nginx:1.27", After: "nginx:1.28"}},
				})
			}
			continue
		case w.GetWorkloadId() == "older":
			p.Action, p.Changes, p.TakesBack = "replace", []*clusterv1.FieldChange{{Field: "container.image", Before: "web:2", After: "web:1"}}, olderFile
		case i == 2:
			p.NodeId, p.Reason = "", "0 of 3 nodes fit: 3 CPU"
		}
		out.Workloads = append(out.Workloads, p)
	}
	return out, nil
}

func (f *fake) ListDrifts(_ context.Context, req *clusterv1.ListDriftsRequest) (*clusterv1.ListDriftsResponse, error) {
	out := &clusterv1.ListDriftsResponse{Index: 42}
	for i, d := range []*clusterv1.Drift{
		{NodeId: "node-a", WorkloadId: "ghost", Type: "orphan_on_agent", AgentStatus: "Running", Action: "operator_investigation"},
		{NodeId: "node-b", WorkloadId: "web-0", Type: "revision_mismatch", SchedulerStatus: "c1-0123456789abcdef", AgentStatus: "c1-fedcba9876543210", Action: "reapply_scheduler_revision", Repairs: 2},
		{NodeId: "node-b", WorkloadId: "web-1", Type: "missing_on_agent", SchedulerStatus: "Running", Action: "retry_and_reconcile"},
	} {
		d.DetectedAt = timestamppb.New(epoch.Add(-time.Duration(i+1) * time.Minute))
		if (req.GetNodeId() == "" || req.GetNodeId() == d.GetNodeId()) && (req.GetWorkloadId() == "" || req.GetWorkloadId() == d.GetWorkloadId()) {
			out.Drifts = append(out.Drifts, d)
		}
	}
	return out, nil
}

func (f *fake) ListVolumes(_ context.Context, req *clusterv1.ListVolumesRequest) (*clusterv1.ListVolumesResponse, error) {
	out := &clusterv1.ListVolumesResponse{}
	if req.GetAskNodes() {
		out.Problems = []*clusterv1.StorageProblem{
			{NodeId: "node-a", Driver: "nfs", Reason: "driver nfs: the kernel of this node has no NFS client"},
			{NodeId: "node-b", Reason: "agent of node node-b: connection refused"},
		}
	}
	for i, v := range []*clusterv1.Volume{
		{NodeId: "node-a", Driver: "local", Name: "data", SizeGb: 10, Form: "image", Phase: "Attached", RetainPolicy: "Delete", State: "InUse", WorkloadIds: []string{"web-0", "web-1"}, Owner: "web-1"},
		{NodeId: "node-a", Driver: "local", Name: "kept", Pool: "fast", Form: "folder", Phase: "Retained", RetainPolicy: "Retain", State: "Unused", UnusedSince: before(time.Hour)},
		{NodeId: "node-c", Driver: "local", Name: "kept", RetainPolicy: "Retain", State: "Unused", ByHand: true, CreatedBy: "ada"},
		{Driver: "nfs", Name: "shared", SizeGb: 5, Form: "folder", Phase: "Released", RetainPolicy: "Delete", State: "Unused", Owner: "api"},
	} {
		v.CreatedAt, v.Id, v.Namespace = timestamppb.New(epoch.Add(-time.Duration(i+1)*time.Hour)), v.Driver+":"+v.Name, "default"
		if !req.GetAskNodes() {
			v.Form, v.Phase = "", ""
		}
		if (req.GetNodeId() == "" || req.GetNodeId() == v.NodeId) && (req.GetName() == "" || req.GetName() == v.Name) {
			out.Volumes = append(out.Volumes, v)
		}
	}
	return out, nil
}

// namespaces returns the fake scheduler's namespaces; one of them exceeds its quota.
func namespaces() []*clusterv1.Namespace {
	return []*clusterv1.Namespace{
		{Name: "default", Quota: &clusterv1.NamespaceAmounts{}, Used: &clusterv1.NamespaceAmounts{CpuMillicores: 750, MemoryMib: 640, Workloads: 5}},
		{
			Name: "shop", Description: "the shop's own", Users: []string{"ada", "bob"}, UpdatedAt: before(time.Hour), UpdatedBy: "persys://c1/user/admin", OverQuota: true, Version: 41, MaxPriority: 7,
			NodeLabels: map[string]string{"pool": "shop"}, MatchingNodes: 2,
			Quota: &clusterv1.NamespaceAmounts{CpuMillicores: 2000, MemoryMib: 1024, Workloads: 3},
			Used:  &clusterv1.NamespaceAmounts{CpuMillicores: 2500, MemoryMib: 512, DiskGb: 10, Workloads: 3},
		},
	}
}

func (f *fake) ListNamespaces(_ context.Context, req *clusterv1.ListNamespacesRequest) (*clusterv1.ListNamespacesResponse, error) {
	out := &clusterv1.ListNamespacesResponse{Index: 7}
	for _, n := range namespaces() {
		if req.GetName() == "" || req.GetName() == n.GetName() {
			out.Namespaces = append(out.Namespaces, n)
		}
	}
	if len(out.GetNamespaces()) == 0 {
		return nil, status.Errorf(codes.NotFound, "namespace %q not found; `persysctl namespace list` shows them", req.GetName())
	}
	return out, nil
}

func (f *fake) PutNamespace(_ context.Context, req *clusterv1.PutNamespaceRequest) (*clusterv1.NamespaceResponse, error) {
	if req.GetName() == "shop" && !slices.Contains(req.GetUsers(), "bob") && !slices.Contains(req.GetRelease(), "bob") {
		return nil, status.Error(codes.FailedPrecondition, `users: no other namespace lists user "bob", who could act in all namespaces without this one: to allow that, persysctl namespace set shop --release bob; otherwise add the user to another namespace first, or revoke the user (persysctl identity revoke)`)
	}
	return &clusterv1.NamespaceResponse{Namespace: &clusterv1.Namespace{Name: req.GetName(), OverQuota: req.GetName() == "shop"}, Index: 8}, nil
}

func (f *fake) DeleteNamespace(_ context.Context, req *clusterv1.DeleteNamespaceRequest) (*clusterv1.DeleteNamespaceResponse, error) {
	if req.GetName() == "shop" {
		return nil, status.Error(codes.FailedPrecondition, `namespace "shop" has 3 workloads: delete them first, and wait until they are gone`)
	}
	return &clusterv1.DeleteNamespaceResponse{Index: 9}, nil
}

func (f *fake) ListPolicies(_ context.Context, req *clusterv1.ListPoliciesRequest) (*clusterv1.ListPoliciesResponse, error) {
	out := &clusterv1.ListPoliciesResponse{Index: 7}
	for _, p := range []*clusterv1.Policy{
		{Name: "baseline", Builtin: true, Description: "ordinary workloads", Document: "name: baseline\nkinds:\n  - '*'\n", Namespaces: []string{"a", "shop"}, Version: 12},
		{Name: "own", Description: "of the shop", Document: "name: own\nkinds:\n  - container\n", NodeLabels: []string{"zone=dmz"}, Version: 14},
	} {
		if req.GetName() == "" || req.GetName() == p.GetName() {
			out.Policies = append(out.Policies, p)
		}
	}
	if len(out.GetPolicies()) == 0 {
		return nil, status.Errorf(codes.NotFound, "policy %q not found; `persysctl policy list` shows them", req.GetName())
	}
	return out, nil
}

func (f *fake) PutPolicy(context.Context, *clusterv1.PutPolicyRequest) (*clusterv1.PolicyResponse, error) {
	return &clusterv1.PolicyResponse{Index: 8}, nil
}

func (f *fake) BindPolicy(context.Context, *clusterv1.BindPolicyRequest) (*clusterv1.PolicyResponse, error) {
	return &clusterv1.PolicyResponse{Index: 9}, nil
}

func (f *fake) DeletePolicy(_ context.Context, req *clusterv1.DeletePolicyRequest) (*clusterv1.PolicyResponse, error) {
	if req.GetName() == "baseline" {
		return nil, status.Error(codes.FailedPrecondition, `policy "baseline" is built in and cannot be deleted`)
	}
	return &clusterv1.PolicyResponse{Index: 10}, nil
}

func (f *fake) DeleteVolume(_ context.Context, req *clusterv1.DeleteVolumeRequest) (*clusterv1.DeleteVolumeResponse, error) {
	if req.GetId() == "local:data" {
		return nil, status.Error(codes.FailedPrecondition, `local volume "data" of node node-a is used by web-0, web-1: first apply these workloads without the volume, or delete them`)
	}
	return &clusterv1.DeleteVolumeResponse{Index: 12}, nil
}

func (f *fake) CreateVolume(_ context.Context, req *clusterv1.CreateVolumeRequest) (*clusterv1.CreateVolumeResponse, error) {
	return &clusterv1.CreateVolumeResponse{Index: 11, Volume: &clusterv1.Volume{Name: req.GetName(), Id: req.GetDriver() + ":" + req.GetName(), SizeGb: req.GetSizeGb()}}, nil
}

func (f *fake) CollectGarbage(ctx context.Context, req *clusterv1.CollectGarbageRequest) (*clusterv1.CollectGarbageResponse, error) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) < 5*time.Minute {
		return nil, status.Error(codes.InvalidArgument, "an agent is given five minutes for it")
	}
	if req.GetNodeId() == "node-b" {
		return &clusterv1.CollectGarbageResponse{Skipped: []string{"container: docker: cannot connect", "records and volumes: a runtime does not answer"}}, nil
	}
	if req.GetNodeId() == "rack-17" {
		return &clusterv1.CollectGarbageResponse{Items: []*clusterv1.Garbage{{Kind: "volume", Name: "local:old", Reason: "released 80h ago", Error: "device is busy"}}}, nil
	}
	dry := req.GetDryRun()
	return &clusterv1.CollectGarbageResponse{Items: []*clusterv1.Garbage{
		{Kind: "orphan", Name: "ghost", WorkloadId: "ghost", Reason: "container 0123456789ab (running) of a workload that nobody ordered"},
		{Kind: "image", Name: "registry.example.com/app:v1", Bytes: 300 << 20, Reason: "unused; 21000 MiB of unused images are more than the budget of 20480 MiB", Removed: !dry},
		{Kind: "project", Name: "shop", WorkloadId: "shop", Reason: "the folder of a stack that no longer exists", Removed: !dry},
	}}, nil
}

func (f *fake) AdoptDrift(_ context.Context, req *clusterv1.AdoptDriftRequest) (*clusterv1.DriftActionResponse, error) {
	if req.GetWorkload() == nil && req.GetWorkloadId() == "ghost" {
		return nil, status.Error(codes.InvalidArgument, "adopt drift: put: workload \"ghost\" is not known here: give its specification, persysctl drift adopt node-a ghost -f FILE")
	}
	return &clusterv1.DriftActionResponse{Index: 43}, nil
}

func (f *fake) DeleteDrift(context.Context, *clusterv1.DeleteDriftRequest) (*clusterv1.DriftActionResponse, error) {
	return &clusterv1.DriftActionResponse{Index: 43}, nil
}

func (f *fake) ListRevisions(_ context.Context, req *clusterv1.ListRevisionsRequest) (*clusterv1.ListRevisionsResponse, error) {
	if f.find(req.GetWorkloadId()) == nil {
		return nil, status.Errorf(codes.NotFound, "list revisions: workload %q not found; `persysctl list` shows all", req.GetWorkloadId())
	}
	if req.GetTo() > 3 {
		return nil, status.Errorf(codes.NotFound, "list revisions: to: revision %d of workload %q is not kept; those are 1 to 3", req.GetTo(), req.GetWorkloadId())
	}
	image := &clusterv1.FieldChange{Field: "container.image", Before: "nginx:1.27", After: "nginx:1.28"}
	out := &clusterv1.ListRevisionsResponse{Index: 42, Revisions: []*clusterv1.WorkloadRevision{
		{Number: 3, RevisionId: "c1-3333333333333333", AppliedAt: before(time.Minute), By: "persys:///user/olga", Present: true, Changes: []*clusterv1.FieldChange{{Field: "a secret value"}}},
		{Number: 2, RevisionId: "c1-2222222222222222", CallerRevisionId: "v2", AppliedAt: before(time.Hour), By: "persys:///user/olga", Changes: []*clusterv1.FieldChange{image}},
		{Number: 1, RevisionId: "c1-1111111111111111", AppliedAt: before(48 * time.Hour)},
	}}
	if req.GetTo() > 0 {
		out.Changes = []*clusterv1.FieldChange{image, {Field: "resources.memory_mb", After: "128"}}
	}
	return out, nil
}

func (f *fake) RollBack(_ context.Context, req *clusterv1.RollBackRequest) (*controlv1.ApplyWorkloadResponse, error) {
	if req.GetWorkloadId() == "web-1" {
		return &controlv1.ApplyWorkloadResponse{ErrorMessage: "the cluster is in mode degraded: the mirror does not answer"}, nil
	}
	return &controlv1.ApplyWorkloadResponse{Success: true, RevisionId: "c1-1111111111111111", Unchanged: req.GetNumber() == 3, Index: 43, WorkloadIds: []string{req.GetWorkloadId()}}, nil
}

func (f *fake) Why(_ context.Context, req *clusterv1.WhyRequest) (*clusterv1.WhyResponse, error) {
	if f.find(req.GetWorkloadId()) == nil {
		return nil, status.Errorf(codes.NotFound, "why: workload %q not found; `persysctl list` shows all", req.GetWorkloadId())
	}
	out := &clusterv1.WhyResponse{WorkloadId: f.why.WorkloadId, Status: f.why.Status, ReasonCode: f.why.ReasonCode,
		ReasonMessage: f.why.ReasonMessage, Counts: f.why.Counts, Hint: f.why.Hint, AssignedNodeId: f.why.AssignedNodeId, Index: 42, Autoscale: f.why.Autoscale,
		LastActions: f.find(req.GetWorkloadId()).GetLastActions()}
	for _, n := range f.why.GetNodes() {
		if req.GetNodeId() == "" || req.GetNodeId() == n.GetNodeId() {
			out.Nodes = append(out.Nodes, n)
		}
	}
	if req.GetNodeId() != "" && len(out.Nodes) == 0 {
		return nil, status.Errorf(codes.NotFound, "why: node %q not found; `persysctl nodes` lists them", req.GetNodeId())
	}
	return out, nil
}

func (f *fake) action(id string) (*clusterv1.NodeActionResponse, error) {
	for _, n := range f.nodes {
		if n.GetNodeId() == id {
			return &clusterv1.NodeActionResponse{Node: n, Index: 46}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "node %q not found", id)
}

func (f *fake) CordonNode(_ context.Context, req *clusterv1.CordonNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return f.action(req.GetNodeId())
}

func (f *fake) LabelNode(_ context.Context, req *clusterv1.LabelNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return f.action(req.GetNodeId())
}

func (f *fake) TaintNode(_ context.Context, req *clusterv1.TaintNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return f.action(req.GetNodeId())
}

func (f *fake) FenceNode(_ context.Context, req *clusterv1.FenceNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return f.action(req.GetNodeId())
}

func (f *fake) RemoveNode(_ context.Context, req *clusterv1.RemoveNodeRequest) (*clusterv1.NodeActionResponse, error) {
	if !req.GetForce() {
		return nil, status.Errorf(codes.FailedPrecondition, "remove node: node %q still has 2 workloads; `persysctl drain %s --wait` moves them", req.GetNodeId(), req.GetNodeId())
	}
	return f.action(req.GetNodeId())
}

func (f *fake) DrainNode(_ context.Context, req *clusterv1.DrainNodeRequest) (*clusterv1.NodeActionResponse, error) {
	out, err := f.action(req.GetNodeId())
	if err == nil && req.GetOn() {
		out.Moves = f.moves
	}
	return out, err
}

func (f *fake) Logs(req *clusterv1.LogsRequest, out clusterv1.Cluster_LogsServer) error {
	f.mu.Lock()
	f.requests = append(f.requests, req)
	w := f.find(req.GetWorkloadId())
	f.mu.Unlock()
	switch {
	case w == nil:
		return status.Errorf(codes.NotFound, "logs: workload %q not found; `persysctl list` shows all", req.GetWorkloadId())
	case w.GetAssignedNodeId() == "":
		return status.Errorf(codes.FailedPrecondition, "logs: workload %q is on no node (Pending); `persysctl why %s` says why", w.GetWorkloadId(), w.GetWorkloadId())
	}
	for _, c := range f.logs {
		if err := out.Send(c); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.logBreaks > 0 {
		f.logBreaks--
		return status.Error(codes.Unavailable, "the replica stops")
	}
	if f.logEnds != nil {
		f.logEnds()
	}
	return nil
}

func (f *fake) ListActions(_ context.Context, req *clusterv1.ListActionsRequest) (*clusterv1.ListActionsResponse, error) {
	return &clusterv1.ListActionsResponse{NodeId: "node-a", Actions: []*clusterv1.Action{
		{TaskId: "0193a1c2-7b1c-7c1e-9a55-0a1b2c3d4e5f", WorkloadId: req.GetWorkloadId(), ActionType: "apply", Status: "failed",
			Error:     "pull registry.example/team/web:1.2: connection refused\nafter 3 attempts, the last one of which took longer than all the others together",
			CreatedAt: before(3 * time.Minute), StartedAt: before(3 * time.Minute), EndedAt: before(2*time.Minute + 48*time.Second)},
		{TaskId: "0193a1c2-7b1c-7c1e-9a55-0a1b2c3d4e60", WorkloadId: req.GetWorkloadId(), ActionType: "apply", Status: "completed",
			CreatedAt: before(time.Minute), StartedAt: before(time.Minute), EndedAt: before(58 * time.Second)},
	}}, nil
}

func (f *fake) SetMode(_ context.Context, req *clusterv1.SetModeRequest) (*clusterv1.SetModeResponse, error) {
	return &clusterv1.SetModeResponse{Mode: req.GetMode(), Index: 47}, nil
}

func (f *fake) TransferLeadership(_ context.Context, req *clusterv1.TransferLeadershipRequest) (*clusterv1.TransferLeadershipResponse, error) {
	return &clusterv1.TransferLeadershipResponse{LeaderId: "r3", TookMs: 12}, nil
}

func (f *fake) RemoveReplica(context.Context, *clusterv1.RemoveReplicaRequest) (*clusterv1.RemoveReplicaResponse, error) {
	return &clusterv1.RemoveReplicaResponse{}, nil
}

// fill sets the fake scheduler's fixed data: at least one object of every kind, some with long names.
func (f *fake) fill() {
	f.nodes = []*controlv1.NodeView{
		{NodeId: "node-a", Status: "Ready", StatusUpdatedAt: before(26 * time.Hour), LastHeartbeat: before(2 * time.Second), GrpcEndpoint: "10.0.0.1:50051",
			TotalCpuCores: 4, ReservedCpuMillicores: 750, TotalMemoryMb: 7900, ReservedMemoryMb: 384, Workloads: 2, AgentVersion: "1.0.0", EngineId: "ENG:1",
			Usage:          &controlv1.NodeUsage{CpuUsedMillicores: 1240, MemoryUsedMb: 5100, DiskUsedGb: 31, NetRxBytes: 3 << 30, NetTxBytes: 700 << 20},
			LeaseExpiresAt: timestamppb.New(epoch.Add(8 * time.Second)), SupportedWorkloadTypes: []string{"container", "compose"},
			Labels: map[string]string{"region": "eu", "disk": "ssd"}, SetLabels: []string{"disk"}, RemovedTaints: []string{"spot"}, StoragePools: []*controlv1.StoragePoolView{{Name: "default", Type: "local", TotalGb: 100, ReservedGb: 5, UsedGb: 12}},
			Devices: []*controlv1.DeviceView{{Name: "nvidia.com/gpu", Total: 4, Reserved: 1}}},
		{NodeId: "node-b", Status: "NotReady", StatusReason: "the lease ended: no heartbeat for 14 s, the last one came over a connection that was closed by the peer",
			StatusUpdatedAt: before(192 * time.Second), LastHeartbeat: before(206 * time.Second), GrpcEndpoint: "10.0.0.2:50051", TotalCpuCores: 2,
			TotalMemoryMb: 2048, AgentVersion: "1.0.0"},
		{NodeId: "rack-17-a-machine-with-a-very-long-name.dc1.example.internal", Status: "Ready", Cordoned: true, StatusUpdatedAt: before(time.Hour),
			LastHeartbeat: before(time.Second), GrpcEndpoint: "10.0.0.3:50051", TotalCpuCores: 128, ReservedCpuMillicores: 12500, TotalMemoryMb: 1 << 20,
			Usage:            &controlv1.NodeUsage{CpuUsedMillicores: 61000, MemoryUsedMb: 700_000, DiskUsedGb: 900},
			ReservedMemoryMb: 40 << 10, Workloads: 71, Taints: []*controlv1.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"}}},
	}
	f.workloads = []*controlv1.WorkloadView{
		{WorkloadId: "batch", Type: "container", DesiredState: "Running", Status: "RetryPending", AssignedNodeId: "node-a", CreatedAt: before(10 * time.Minute),
			LastUpdated: before(5 * time.Second), RetryAttempts: 2, RetryMaxAttempts: 5, RetryNextAt: timestamppb.New(epoch.Add(7 * time.Second)), ImageOrSource: "batch:3",
			Reason:     &controlv1.ReasonDetail{Code: "BackoffWait", Message: "Failed: RuntimeError: exit code 137; attempt 2 of 5 failed, next in 7.0 s"},
			Generation: &controlv1.Generation{Incarnation: 1, Sequence: 7}, RevisionId: "c1-aaaaaaaaaaaaaaaa", AssignmentAcknowledged: true,
			LastActions: []*controlv1.WorkloadAction{
				{TaskId: "apply-batch-2", ActionType: "apply_workload", Status: "running", CreatedAt: before(50 * time.Second), StartedAt: before(50 * time.Second)},
				{TaskId: "apply-batch-1", ActionType: "apply_workload", Status: "failed", Error: "pull batch:3: connection refused", CreatedAt: before(2 * time.Minute),
					StartedAt: before(2 * time.Minute), EndedAt: before(90 * time.Second)},
			}},
		{WorkloadId: "db", Type: "container", DesiredState: "Running", Status: "Pending", CreatedAt: before(95 * time.Second), LastUpdated: before(90 * time.Second),
			ImageOrSource: "registry.example/team/data/postgres-with-extensions@sha256:4f5e6d7c8b9a00112233445566778899aabbccddeeff00112233445566778899",
			Reason:        &controlv1.ReasonDetail{Code: "Unplaced", Message: "0 of 3 nodes fit: 1 lacks memory, 1 is not ready, 1 is cordoned"}, Exclusive: true,
			Generation: &controlv1.Generation{Incarnation: 1, Sequence: 5}},
		{WorkloadId: "evil", Type: "container", DesiredState: "Running", Status: "Failed", AssignedNodeId: "node-a", CreatedAt: before(2 * time.Hour), ImageOrSource: "evil:1",
			Reason: &controlv1.ReasonDetail{Code: "PermanentFailure", Message: "said \x1b[31mred\x1b[0m\nand more; a retry cannot help: correct the configuration"}},
		{WorkloadId: "old", Type: "compose", DesiredState: "Stopped", Status: "Stopped", CreatedAt: before(40 * 24 * time.Hour), ImageOrSource: "inline",
			Reason: &controlv1.ReasonDetail{Code: "UserStop", Message: "stopped by request"}},
		{WorkloadId: "web-0", Type: "container", DesiredState: "Running", Status: "Running", AssignedNodeId: "node-a", Group: "web", CreatedAt: before(3*time.Minute + 12*time.Second),
			LastUpdated: before(3 * time.Minute), ImageOrSource: "hello:demo", Addresses: []string{"172.17.0.2"}, Ports: []*controlv1.Port{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", Name: "http"}, {HostPort: 9090, ContainerPort: 90, Protocol: "tcp", Address: "127.0.0.1"}}, Health: "starting",
			RevisionId: "c1-0123456789abcdef", CallerRevisionId: "rev-1", AssignmentAcknowledged: true, Generation: &controlv1.Generation{Incarnation: 1, Sequence: 3},
			Labels: map[string]string{"tier": "front", "app": "web"}, Priority: 10,
			Usage: &controlv1.WorkloadUsageSnapshot{CpuPercent: 1.25, MemoryBytes: 12 << 20, NetRxBytes: 2048, NetTxBytes: 5 << 20},
			Spec: &controlv1.WorkloadSpec{Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 250, MemoryMb: 128, DiskGb: 1},
				Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "hello:demo", Env: map[string]string{"TOKEN": pki.Redacted, "A": "1"},
					Ports: []*controlv1.Port{{HostPort: 8080, ContainerPort: 80}}, RestartPolicy: "no"}},
				Constraints: []*controlv1.Constraint{{Key: "disk", Operator: "=", Values: []string{"ssd"}}}}},
		{WorkloadId: "web-1", Type: "container", DesiredState: "Running", Status: "Running", AssignedNodeId: "rack-17-a-machine-with-a-very-long-name.dc1.example.internal",
			Usage: &controlv1.WorkloadUsageSnapshot{CpuPercent: 187.5, MemoryBytes: 700 << 20, MemoryLimitBytes: 1 << 30, DiskReadBytes: 3 << 30, DiskWriteBytes: 900 << 10, NetRxBytes: 7,
				DiskBytes: 44 << 20, DiskLimitBytes: 1 << 30, CollectedAt: before(4 * time.Second), Source: "cgroup2"},
			Group: "web", CreatedAt: before(3*time.Minute + 12*time.Second), ImageOrSource: "hello:demo"},
	}
	f.events = []*clusterv1.Event{
		{Seq: 1, Index: 3, At: before(4 * time.Minute), Type: "NodeRegistered", NodeId: "node-a", Message: "10.0.0.1:50051"},
		{Seq: 2, Index: 5, At: before(3*time.Minute + 12*time.Second), Type: "WorkloadCreated", WorkloadId: "web-0", By: "user/admin"},
		{Seq: 3, Index: 6, At: before(3*time.Minute + 11*time.Second), Type: "WorkloadScheduled", WorkloadId: "web-0", NodeId: "node-a", Details: map[string]string{"score": "0.31"}},
		{Seq: 4, Index: 8, At: before(3 * time.Minute), Type: "WorkloadState", WorkloadId: "web-0", NodeId: "node-a", Details: map[string]string{"from": "Scheduled", "to": "Running"}},
		{Seq: 5, Index: 9, At: before(95 * time.Second), Type: "WorkloadUnplaced", WorkloadId: "db", Reason: "Unplaced",
			Message: "0 of 3 nodes fit: 1 lacks memory, 1 is not ready, 1 is cordoned, and this sentence goes on for longer than any screen is wide"},
		{Seq: 6, Index: 10, At: before(36 * time.Hour), Type: "NodeLost", NodeId: "node-b", Reason: "NodeLost", Message: "the lease ended"},
	}
	f.status = &clusterv1.StatusResponse{
		ClusterId: "0193a1c2-7b1c-7c1e-9a55-0a1b2c3d4e5f", Mode: "normal", Term: 4, LastIndex: 1042, CommitIndex: 1042, AppliedIndex: 1042,
		LeaderId: "r2", LeaderAddr: "10.0.1.2:8085", SelfId: "r2", Nodes: 3, NodesReady: 2, Workloads: 6, WorkloadsRunning: 2, Version: "1.0.0",
		Replicas: []*clusterv1.Replica{
			{Id: "r1", Name: "scheduler-1", GrpcAddr: "10.0.1.1:8085", RaftAddr: "10.0.1.1:8086", Role: "voter", Version: "1.0.0", Health: "alive", MatchIndex: 1042},
			{Id: "r2", Name: "scheduler-2", GrpcAddr: "10.0.1.2:8085", RaftAddr: "10.0.1.2:8086", Role: "leader", Version: "1.0.0", Health: "alive", Self: true},
			{Id: "r3", Name: "scheduler-3", GrpcAddr: "10.0.1.3:8085", RaftAddr: "10.0.1.3:8086", Role: "voter", Version: "1.0.0", Health: "dead", MatchIndex: 1001, LastContactMs: 72000},
		},
	}
	f.why = &clusterv1.WhyResponse{WorkloadId: "db", Status: "Pending", ReasonCode: "Unplaced", ReasonMessage: "0 of 3 nodes fit: 1 lacks memory, 1 is not ready, 1 is cordoned",
		Counts: []*clusterv1.ReasonCount{{Filter: "memory", Field: "resources.memory", Reason: "needs more memory than is free", Nodes: 1}, {Filter: "readiness", Reason: "not ready", Nodes: 1}},
		Nodes: []*clusterv1.NodeVerdict{
			{NodeId: "rack-17-a-machine-with-a-very-long-name.dc1.example.internal", Feasible: true, Score: 0.4375, ScoreParts: []string{"spread=0.25", "group=0.1875"}},
			{NodeId: "node-a", Filter: "Memory", Reason: "needs 16 GiB (16384 MiB), 7516 MiB of 7900 MiB are free after what is reserved by 2 workloads"},
			{NodeId: "node-b", Filter: "Ready", Reason: "ready: the node is NotReady"},
		},
		Hint: "persysctl uncordon node-c"}
	f.logs = []*clusterv1.LogChunk{{Data: []byte("listening on :80\n"), Stream: "stdout"}, {Data: []byte("warning: no cache\n"), Stream: "stderr"}}
	f.moves = []*clusterv1.PlannedMove{{WorkloadId: "web-0", ToNodeId: "node-c"}, {WorkloadId: "batch", Reason: "runs on, because no other node takes it: 0/2 nodes fit: 2 memory"},
		{WorkloadId: "db", Reason: "stays, because only this node has volume data", LocalData: []string{"volume data"}}, {WorkloadId: "vm", ToNodeId: "node-c", LocalData: []string{"disk vda"}},
		{WorkloadId: "front", ToNodeId: "node-c", Preempts: []string{"batch-1", "batch-2"}},
		{WorkloadId: "report", StaysUntil: before(-time.Hour), Reason: "node node-a is draining; the job may end there until 2026-03-01T11:00:00Z"}}
}
