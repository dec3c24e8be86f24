package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

// service is persys.agent.v1.AgentService over an Agent (contract/wire-agent.md).
type service struct {
	agentv1.UnimplementedAgentServiceServer
	*Agent
}

// Register puts the agent's API on a server, with reflection and the standard health service.
// Run does so by itself when it has a Listener.
func (a *Agent) Register(s *grpc.Server) {
	agentv1.RegisterAgentServiceServer(s, a.API())
	h := health.NewServer()
	h.SetServingStatus(agentv1.AgentService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	reflection.Register(s)
}

// API is the agent's service, for callers in the same process.
func (a *Agent) API() agentv1.AgentServiceServer { return service{Agent: a} }

// storeFailed is the answer when an order could not be made durable. It is an error and not a
// refusal: the same order may be taken later.
func storeFailed(err error) error {
	return status.Errorf(codes.Internal, "the order was not stored: %v", err)
}

// ApplyWorkload stores and queues an order. See contract/wire-agent.md, "Behaviour".
func (s service) ApplyWorkload(ctx context.Context, req *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	s.ordered(ctx, req.GetId())
	if err := s.coverOrder(ctx, req); err != nil {
		return nil, err
	}
	out, no, err := s.apply(req)
	if err != nil {
		return nil, storeFailed(err)
	}
	if no != nil {
		s.metrics.refused(no)
		s.log.Warn("apply refused", "workload", req.GetId(), "reason", no.message)
		out = &agentv1.ApplyWorkloadResponse{Message: no.message, Fenced: no.fenced}
		if no.class != "" {
			out.Status = &agentv1.WorkloadStatus{
				Id: req.GetId(), Type: req.GetType(), RevisionId: req.GetRevisionId(), Message: no.message,
				ActualState: agentv1.ActualState_ACTUAL_STATE_FAILED,
				Metadata:    map[string]string{"failure_reason": string(no.class), "failure_message": no.message},
			}
		}
		if no.fenced {
			out.HighestEpoch = s.Epoch().proto()
		}
	}
	return out, nil
}

// admit passes the first fence and remembers the epoch. It is called with intentMu held and
// returns the meta record to store with the order, nil if it did not change.
func (a *Agent) admit(epoch *agentv1.Epoch, node, instance string) (*meta, *refusal) {
	if no := judgeNode(a.cfg.NodeID, node); no != nil {
		return nil, no
	}
	a.mu.Lock()
	m := a.meta
	a.mu.Unlock()
	if no := judgeInstance(m.InstanceID, instance); no != nil {
		return nil, no
	}
	next, no := judgeEpoch(m.Epoch, a.cfg.Control == nil, epoch)
	if no != nil || next == m.Epoch {
		return nil, no
	}
	m.Epoch = next
	return &m, nil
}

// commit stores an order's changes and, in the same transaction, the epoch it came with; then it
// makes the epoch the one in memory. It is called with intentMu held.
func (a *Agent) commit(m *meta, fn func(write) error) error {
	err := a.store.update(func(w write) error {
		if m != nil {
			if err := w.meta(*m); err != nil {
				return err
			}
		}
		return fn(w)
	})
	if err != nil || m == nil {
		return err
	}
	a.mu.Lock()
	a.meta.Epoch = m.Epoch
	a.mu.Unlock()
	if err := a.rebind(a.life); err != nil {
		a.log.Error("drivers", "error", err)
	}
	return nil
}

// keepEpoch stores the epoch of an order that is refused for another reason: the leadership was
// heard all the same.
func (a *Agent) keepEpoch(m *meta, no *refusal) (*agentv1.ApplyWorkloadResponse, *refusal, error) {
	if m == nil {
		return nil, no, nil
	}
	return nil, no, a.commit(m, func(write) error { return nil })
}

func checkApply(req *agentv1.ApplyWorkloadRequest) (driver.Kind, *refusal) {
	if err := checkID("id", req.GetId()); err != nil {
		return "", refusedf("%v", err)
	}
	if req.Spec == nil {
		return "", refusedf("spec: one of container, compose and vm must be set")
	}
	n := proto.Size(req.Spec)
	if text := req.Spec.GetCompose().GetComposeYaml(); !strings.Contains(text, ":") {
		n -= len(text) / 4 // schedulers send it in base64, which has no colon, and measure it without
	}
	if n > maxSpec {
		return "", refusedf("spec: %d bytes, limit %d", n, maxSpec)
	}
	kind, err := kindOf(req.Type, req.Spec)
	if err != nil {
		return "", refusedf("%v", err)
	}
	switch req.OnLostLease {
	case "", "keep", "stop":
	default:
		return "", refusedf("on_lost_lease: %q is not keep or stop", req.OnLostLease)
	}
	return kind, nil
}

// checkApply also asks whether this agent has the guard that an order needs.
func (a *Agent) checkApply(req *agentv1.ApplyWorkloadRequest) (driver.Kind, *refusal) {
	if req.GetOnLostLease() == "stop" && a.cfg.Guard == nil {
		return "", refusedf("on_lost_lease: stop needs a self-fencing node, this one is not: PERSYS_GUARD is off")
	}
	kind, no := checkApply(req)
	if no == nil && req.GetOnLostLease() == "stop" && req.GetDesiredState() != agentv1.DesiredState_DESIRED_STATE_STOPPED {
		a.mu.Lock()
		defer a.mu.Unlock()
		if slices.Contains(a.fence.lacks, kind) {
			return "", refusedf("on_lost_lease: stop: the settings of this node's guard leave out what it would have to stop: %s", kind)
		}
	}
	return kind, no
}

// apply judges an order, makes it durable, and queues it. Exactly one result is set.
func (a *Agent) apply(req *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, *refusal, error) {
	kind, no := a.checkApply(req)
	if no != nil {
		return nil, no, nil
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	m, no := a.admit(req.Epoch, req.NodeId, req.InstanceId)
	if no != nil {
		return nil, no, nil
	}
	standalone := a.cfg.Control == nil
	now := time.Now()
	a.mu.Lock()
	w, tomb, draining := a.workloads[req.Id], a.tombs[req.Id], a.draining
	_, runnable := a.engines[kind]
	var old *intent
	var open *task
	var left driver.Kind
	fits := false
	if w != nil {
		old, open, left = w.intent, w.task, w.kind
		fits = old != nil && !open.open() && settledAs(w)
	}
	a.mu.Unlock()
	var held, buried driver.Generation
	if old != nil {
		held = old.Generation
	}
	if tomb != nil {
		buried = tomb.Generation
	}
	if no := judgeApply(req.Id, held, buried, generationFrom(req.Generation), standalone); no != nil {
		return a.keepEpoch(m, no)
	}
	if draining && old == nil {
		return a.keepEpoch(m, refusedf("node %q is draining: it takes no new workloads", a.cfg.NodeID))
	}
	if !runnable {
		return a.keepEpoch(m, refusedf("runtime not available: %s", kind))
	}
	next, err := follow(a.store.key, old, kind, req, now)
	if err != nil {
		return a.keepEpoch(m, refusedf("%v", err))
	}
	if no := a.room(next, old); no != nil {
		return a.keepEpoch(m, no)
	}
	done := tomb.ordered()
	if old == nil && done != nil {
		next.Recreate = true // the delete is not carried out yet
		next.KeepVolumes, next.KeepShared = tomb.KeepVolumes, tomb.KeepShared
	}
	if old == nil && left != "" && left != kind {
		next.PreviousTypes = []driver.Kind{left}
		next.KeepVolumes = next.KeepVolumes || done == nil // of an orphan, whose volumes nobody has deleted
	}
	skip := old != nil && next.sameOrder(old) && fits
	newer := old == nil || old.Generation.Less(next.Generation)
	if skip && next.sameRecord(old) && m == nil {
		a.mu.Lock()
		a.release(w, newer, now)
		a.mu.Unlock()
		return a.skipped(w), nil, nil
	}
	var t *task
	var tasks []*task
	if !skip {
		t = newTask(actionApply, req.Id, now)
		tasks = superseding(open, t, now)
	}
	err = a.commit(m, func(tx write) error {
		if done != nil {
			if err := tx.tombstone(done); err != nil {
				return err
			}
		}
		return errors.Join(all(tasks, tx.task), tx.intent(next))
	})
	if err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	// absorb may have added or dropped an instance without order meanwhile.
	if w = a.workloads[req.Id]; w == nil {
		w = &workload{id: req.Id}
		a.workloads[req.Id] = w
	}
	if w.kind != kind {
		w.kind, w.observed = kind, nil
	}
	w.intent = next
	if w.interrupt != nil && !next.sameEffect(old) {
		w.interrupt()
	}
	if t := a.tombs[req.Id].ordered(); t != nil { // or absorb opened it again
		a.tombs[req.Id] = t
	}
	a.release(w, newer, now)
	if skip {
		a.publish(w, now)
		a.mu.Unlock()
		return a.skipped(w), nil, nil
	}
	for _, t := range tasks {
		a.history.put(t)
	}
	w.task, w.asked, w.fail = t, true, failure{}
	a.publish(w, now)
	a.mu.Unlock()
	a.queue.add(req.Id, now)
	return &agentv1.ApplyWorkloadResponse{
		Applied: true, Message: "queued",
		Status: &agentv1.WorkloadStatus{
			Id: req.Id, Type: kindType(kind), RevisionId: next.RevisionID, DesiredState: desiredState(next),
			ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING, Message: "queued",
			CreatedAt: unix(next.CreatedAt), UpdatedAt: now.Unix(),
			Metadata:   map[string]string{"task_id": t.ID, "task_status": t.Status},
			Generation: generationProto(next.Generation), Content: next.Content,
		},
	}, nil, nil
}

// release ends a workload's wait for an order. One that is guarded waits for a newer order than it
// has: the same one may be from before it was stopped. It is called with mu held.
func (a *Agent) release(w *workload, newer bool, now time.Time) {
	if (w.waits || w.lapsed) && (newer || !w.intent.guarded()) {
		w.waits, w.lapsed = false, false
		a.queue.add(w.id, now)
	}
}

func desiredState(in *intent) agentv1.DesiredState {
	if in.running() {
		return agentv1.DesiredState_DESIRED_STATE_RUNNING
	}
	return agentv1.DesiredState_DESIRED_STATE_STOPPED
}

// settledAs: the workload is in the state that its intent asks for.
func settledAs(w *workload) bool {
	want := agentv1.ActualState_ACTUAL_STATE_STOPPED
	if w.intent.running() {
		want = agentv1.ActualState_ACTUAL_STATE_RUNNING
	}
	return w.report.status.GetActualState() == want
}

func (a *Agent) skipped(w *workload) *agentv1.ApplyWorkloadResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &agentv1.ApplyWorkloadResponse{Applied: true, Skipped: true, Message: "unchanged", Status: w.report.status}
}

// DeleteWorkload stores and queues a delete.
func (s service) DeleteWorkload(ctx context.Context, req *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
	s.ordered(ctx, req.GetId())
	out, no, err := s.delete(req)
	if err != nil {
		return nil, storeFailed(err)
	}
	if no != nil {
		s.metrics.refused(no)
		s.log.Warn("delete refused", "workload", req.GetId(), "reason", no.message)
		out = &agentv1.DeleteWorkloadResponse{Message: no.message, Fenced: no.fenced}
		if no.fenced {
			out.HighestEpoch = s.Epoch().proto()
		}
	}
	return out, nil
}

func (a *Agent) delete(req *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, *refusal, error) {
	if err := checkID("id", req.GetId()); err != nil {
		return nil, refusedf("%v", err), nil
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	m, no := a.admit(req.Epoch, req.NodeId, req.InstanceId)
	if no != nil {
		return nil, no, nil
	}
	now := time.Now()
	a.mu.Lock()
	w, tomb := a.workloads[req.Id], a.tombs[req.Id]
	known := len(a.engines) > 0
	for _, e := range a.engines {
		known = known && e.listed
	}
	var old *intent
	var open *task
	if w != nil {
		old, open = w.intent, w.task
	}
	if open == nil {
		open = a.history.openFor(req.Id)
	}
	a.mu.Unlock()
	in := generationFrom(req.Generation)
	if old != nil {
		if no := judgeDelete(req.Id, old.Generation, in, a.cfg.Control == nil); no != nil {
			_, no, err := a.keepEpoch(m, no)
			return nil, no, err
		}
	}
	grave := tombstone{ID: req.Id, Generation: in, DeletedAt: now, KeepVolumes: req.KeepVolumes}
	// A legacy v1 scheduler also deletes what it has placed elsewhere, and does not say so.
	grave.KeepShared = req.Epoch == nil && a.cfg.Control != nil
	if old != nil && grave.Generation.Less(old.Generation) {
		grave.Generation = old.Generation // a standalone agent is told none
	}
	if tomb != nil && grave.Generation.Less(tomb.Generation) {
		grave.Generation = tomb.Generation
	}
	if w == nil && known && (tomb == nil || tomb.Done) {
		if m == nil && tomb != nil && grave.Generation == tomb.Generation {
			return gone(), nil, nil // said before
		}
		return a.absent(m, grave)
	}
	out := &agentv1.DeleteWorkloadResponse{Success: true, Message: "queued"}
	again := old != nil && old.Deleting || old == nil && tomb != nil && !tomb.Done
	if again && m == nil && grave.Generation == tomb.Generation && (old == nil || !req.Purge || old.Purge) &&
		grave.KeepVolumes == tomb.KeepVolumes && grave.KeepShared == tomb.KeepShared {
		return out, nil, nil
	}
	t := newTask(actionDelete, req.Id, now)
	if again && open.open() && open.Action == actionDelete {
		t = open // the same work
	}
	tasks := superseding(open, t, now)
	var next *intent
	if old != nil {
		deleting := *old
		deleting.Deleting, deleting.Purge, deleting.UpdatedAt = true, old.Purge || req.Purge, now
		deleting.KeepVolumes, deleting.KeepShared = grave.KeepVolumes, grave.KeepShared
		if deleting.Generation.Less(in) {
			deleting.Generation = in
		}
		next = &deleting
	}
	err := a.commit(m, func(tx write) error {
		if err := all(tasks, tx.task); err != nil {
			return err
		}
		if next != nil {
			if err := tx.intent(next); err != nil {
				return err
			}
		}
		return tx.tombstone(&grave)
	})
	if err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	a.tombs[req.Id] = &grave
	for _, t := range tasks {
		a.history.put(t)
	}
	if w = a.workloads[req.Id]; w != nil {
		w.task = t
		if next != nil {
			w.intent, w.fail = next, failure{}
			if w.interrupt != nil {
				w.interrupt()
			}
		}
		a.publish(w, now)
	}
	a.mu.Unlock()
	a.queue.add(req.Id, now)
	return out, nil, nil
}

// absent answers a delete of what is not there. The tombstone is stored all the same: an older
// apply may still be on its way.
func (a *Agent) absent(m *meta, grave tombstone) (*agentv1.DeleteWorkloadResponse, *refusal, error) {
	grave.Done = true
	if err := a.commit(m, func(tx write) error { return tx.tombstone(&grave) }); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	a.version++
	grave.version = a.version
	a.tombs[grave.ID] = &grave
	a.mu.Unlock()
	a.signal()
	return gone(), nil, nil
}

func gone() *agentv1.DeleteWorkloadResponse {
	return &agentv1.DeleteWorkloadResponse{Success: true, Absent: true, Message: "nothing of it is here"}
}

// fenceRead judges the epoch of a read. A read harms nothing, so one without epoch is answered;
// a deposed leader is told.
func (a *Agent) fenceRead(epoch *agentv1.Epoch) error {
	if epoch == nil {
		return nil
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	m, no := a.admit(epoch, "", "")
	if no != nil {
		a.metrics.refused(no)
		return status.Error(codes.FailedPrecondition, no.message)
	}
	if m == nil {
		return nil
	}
	if err := a.commit(m, func(write) error { return nil }); err != nil {
		return storeFailed(err)
	}
	return nil
}

func notFound(id string) error {
	// Legacy v1 schedulers look for the words, not for the code.
	return status.Errorf(codes.NotFound, "status not found: workload %q", id)
}

// GetWorkloadStatus answers from memory, which events and looks keep up to date.
func (s service) GetWorkloadStatus(_ context.Context, req *agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
	if err := checkID("id", req.GetId()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.fenceRead(req.GetEpoch()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workloads[req.Id]
	if w == nil || w.report.status == nil {
		return nil, notFound(req.Id)
	}
	st := w.report.status
	if r, ok := s.used.Get(driver.ID(req.Id)); ok {
		st = proto.Clone(st).(*agentv1.WorkloadStatus) // published ones are shared
		st.Usage = &agentv1.WorkloadUsageSnapshot{
			WorkloadId: req.Id, Type: kindType(r.Kind), CpuPercent: percent(r), MemoryBytes: r.Memory,
			DiskReadBytes: r.DiskRead, DiskWriteBytes: r.DiskWrite, NetRxBytes: r.NetReceived, NetTxBytes: r.NetSent,
			CollectedAt: r.At.Unix(), Source: r.Source,
		}
	}
	return &agentv1.GetWorkloadStatusResponse{Status: st}, nil
}

// ListWorkloads answers from memory, sorted by id.
func (s service) ListWorkloads(_ context.Context, req *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	if err := s.fenceRead(req.GetEpoch()); err != nil {
		return nil, err
	}
	return &agentv1.ListWorkloadsResponse{Workloads: s.statuses(req.GetType())}, nil
}

// HealthCheck says how the engines were when they were last asked.
func (s service) HealthCheck(context.Context, *agentv1.HealthCheckRequest) (*agentv1.HealthCheckResponse, error) {
	usage := s.host.Usage()
	out := &agentv1.HealthCheckResponse{
		Healthy: true, Version: s.cfg.Version, RuntimeStatus: map[string]string{},
		MemoryUtilization: usage.MemoryPercent, CpuUtilization: usage.CPUPercent, DiskUtilization: usage.DiskPercent,
		NodeId: s.cfg.NodeID,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.ClusterId = s.meta.Epoch.ClusterID
	out.EngineId = engineID(s.engines)
	for kind, why := range s.cfg.NotOffered {
		out.RuntimeStatus[string(kind)] = "not offered: " + why
	}
	for kind, e := range s.engines {
		out.RuntimeStatus[string(kind)] = "healthy"
		if !e.healthy() {
			out.Healthy = false
			out.RuntimeStatus[string(kind)] = "unhealthy: " + valid(e.cause())
		}
	}
	return out, nil
}

// engineID is the id under which host ports are reserved: that of the container engine, or of
// whatever engine there is.
func engineID(engines map[driver.Kind]*engine) string {
	for _, e := range inOrder(engines) {
		if e.capacity.EngineID != "" {
			return e.capacity.EngineID
		}
	}
	return ""
}

// ListActions answers from the stored history.
func (s service) ListActions(_ context.Context, req *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	if req.GetLimit() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d must not be negative", req.GetLimit())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &agentv1.ListActionsResponse{Actions: s.history.query(req)}, nil
}

// onEngine is a workload and the engine that it runs on; the error is for the caller.
func (s service) onEngine(id string) (*workload, *engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workloads[id]
	if w == nil {
		return nil, nil, notFound(id)
	}
	e := s.engines[w.kind]
	if e == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "runtime not available: %s", w.kind)
	}
	return w, e, nil
}

// Logs streams a workload's output as the driver gives it, stdout and stderr merged.
func (s service) Logs(req *agentv1.LogsRequest, stream grpc.ServerStreamingServer[agentv1.LogChunk]) error {
	if err := checkID("id", req.GetId()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if req.TailLines < 0 || req.SinceUnixSeconds < 0 {
		return status.Errorf(codes.InvalidArgument, "tail_lines %d, since_unix_seconds %d: must not be negative", req.TailLines, req.SinceUnixSeconds)
	}
	_, e, err := s.onEngine(req.Id)
	if err != nil {
		return err
	}
	options := driver.LogOptions{Follow: req.Follow, Tail: int(req.TailLines), Timestamps: req.Timestamps, Service: req.Service}
	if req.SinceUnixSeconds > 0 {
		options.Since = time.Unix(req.SinceUnixSeconds, 0)
	}
	var seen atomic.Int64
	options.Seen = func(at time.Time) { seen.Store(at.UnixNano()) }
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	reader, err := e.drv.Logs(ctx, driver.ID(req.Id), options)
	if err != nil {
		return logError(req.Id, err)
	}
	defer reader.Close()
	// Closing is what ends a blocked Read of a driver that does not watch its context.
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	buffer := make([]byte, 32<<10)
	for {
		n, err := reader.Read(buffer)
		if n > 0 {
			at := seen.Load()
			if at == 0 {
				at = time.Now().UnixNano()
			}
			if err := stream.Send(&agentv1.LogChunk{Data: buffer[:n], Stream: "stdout", AtUnixNanos: at}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return logError(req.Id, err)
		}
	}
}

func logError(id string, err error) error {
	code := codes.Unknown
	switch driver.ClassOf(err) {
	case driver.RuntimeUnhealthy, driver.NetworkUnreachable, driver.NetworkTimeout:
		code = codes.Unavailable
	case driver.RuntimeResourceMissing:
		code = codes.NotFound
	case driver.InvalidSpecification:
		code = codes.InvalidArgument
	}
	return status.Error(code, fmt.Sprintf("logs of workload %q: %v", id, err))
}
