package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// ApplyWorkload implements the call of control.v1. If a well-formed request is refused, the refusal is in the
// response and not a gRPC error (contract/wire-control.md, "Outcomes per RPC").
func (s *Server) ApplyWorkload(ctx context.Context, req *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadResponse, error) {
	out := s.apply(ctx, []*controlv1.ApplyWorkloadRequest{req}, nil, nil)
	return out[0].resp, out[0].err
}

// outcome is the result of one apply: a response, which may be a refusal, or a gRPC error.
type outcome struct {
	resp *controlv1.ApplyWorkloadResponse
	err  error
}

func refused(r controlv1.FailureReason, message string) outcome {
	return outcome{resp: &controlv1.ApplyWorkloadResponse{FailureReason: r, ErrorMessage: message}}
}

// apply checks each request and commits all valid requests together. joins(i) reports whether request i may share a log
// command with other requests. It may if its request id was derived from the id of the call; see deriveRequestIDs.
// joins is nil if the call consists of a single request. If the requests are for single members of a group with an
// autoscaler, autoscale holds the settings of that autoscaler, which the members keep; otherwise it is nil.
func (s *Server) apply(ctx context.Context, reqs []*controlv1.ApplyWorkloadRequest, joins func(int) bool, autoscale *fsm.Autoscale) []outcome {
	out := make([]outcome, len(reqs))
	if frozen := s.frozenBeforeLog(true); frozen != "" {
		for i := range out {
			out[i] = refused(controlv1.FailureReason_RUNTIME_ERROR, frozen)
		}
		return out
	}
	b := batch{s: s, reqs: reqs, back: make([][]*controlv1.TakenBack, len(reqs)), autoscale: autoscale}
	unjudged := false
	for i := range reqs {
		if err := ctx.Err(); err != nil { // the caller has given up before anything was stored
			for i := range out {
				out[i] = outcome{err: status.FromContextError(err).Err()}
			}
			return out
		}
		if err := b.add(ctx, i, joins); err != nil {
			out[i], unjudged = refusal(err), true
			if frozen := s.frozenBeforeLog(false); frozen != "" {
				out[i] = refused(controlv1.FailureReason_RUNTIME_ERROR, frozen)
			}
		}
	}
	if len(b.cmds) == 0 {
		return out
	}
	results, err := s.replica.Propose(ctx, b.cmds...)
	if err != nil {
		for _, of := range b.of {
			for _, i := range of {
				out[i] = outcome{err: err}
				if errors.Is(err, ErrTooLarge) {
					out[i] = refused(controlv1.FailureReason_INVALID_SPEC, err.Error())
				}
			}
		}
		return out
	}
	for n, r := range results {
		for k, i := range b.of[n] {
			if out[i].err != nil || (out[i].resp != nil && !out[i].resp.GetSuccess()) {
				continue // skip this command: an earlier command of the same request was refused
			}
			out[i] = merge(out[i].resp, b.verdict(n, k, r))
			s.rolling(reqs[i], out[i].resp)
			s.tagged(out[i].resp)
			if resp := out[i].resp; resp.GetSuccess() && !r.Duplicate && b.back[i] != nil {
				resp.TakesBack = b.back[i]
			}
		}
	}
	if unjudged {
		callOf(ctx).judged = false
	}
	return out
}

// never is the argument joins of apply for requests that must not share a log command.
func never(int) bool { return false }

// refusal converts an error to an outcome. The error must have occurred before a command was proposed to the log.
func refusal(err error) outcome {
	var bad spec.Errors
	switch {
	case errors.As(err, &bad):
		return refused(controlv1.FailureReason_INVALID_SPEC, bad.Error())
	case errors.Is(err, spec.ErrBlankID):
		return outcome{err: &Error{Kind: KindInvalid, Err: err}}
	case errors.Is(err, spec.ErrNoKey):
		return refused(controlv1.FailureReason_RUNTIME_ERROR, err.Error())
	}
	return outcome{err: err}
}

// merge adds the state machine's result for a command (applied, or the reason of its refusal) to the response of the
// request.
func merge(have *controlv1.ApplyWorkloadResponse, r fsm.Result) outcome {
	switch r.Kind {
	case fsm.OK, fsm.AlreadyDone:
	case fsm.TooOld, fsm.Denied, fsm.OtherRevision, fsm.OtherRequest:
		return outcome{err: r.Err()}
	case fsm.Invalid, fsm.NotAllowed:
		return refused(controlv1.FailureReason_INVALID_SPEC, r.Reason)
	case fsm.OverQuota:
		return refused(controlv1.FailureReason_INSUFFICIENT_RESOURCES, advised(r.Reason))
	default:
		return refused(controlv1.FailureReason_RUNTIME_ERROR, r.Reason)
	}
	if have == nil {
		have = &controlv1.ApplyWorkloadResponse{Success: true, Unchanged: true}
	}
	have.Index = max(have.Index, r.Index)
	for _, it := range r.Items {
		if it.Deleted {
			have.Unchanged = false
			have.RemovedWorkloadIds = append(have.RemovedWorkloadIds, it.ID)
			continue
		}
		have.WorkloadIds = append(have.WorkloadIds, it.ID)
		have.Generation = wire.Control(it.Generation)
		have.RevisionId = it.Revision
		have.Unchanged = have.Unchanged && it.Unchanged
	}
	return outcome{resp: have}
}

// applyCommands makes the log commands of one request. Most requests need only one command.
func (s *Server) applyCommands(ctx context.Context, req *controlv1.ApplyWorkloadRequest) ([]fsm.Command, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, spec.ErrBlankID
	}
	desired := spec.DesiredState(req.GetDesiredState())
	if req.GetSpec() == nil {
		return s.desireCommands(ctx, id, desired, req.GetIfRevision(), req.GetRequestId())
	}
	if desired == fsm.DesiredDeleted {
		return s.deleteCommands(ctx, id, false, false, req.GetIfRevision(), req.GetRequestId())
	}
	prepared, err := s.prepare(ctx, req, nil, true)
	if err != nil {
		return nil, err
	}
	c := prepared.Command
	s.withIngressNetwork(c.GetPutWorkloads())
	if c.Head, err = s.head(ctx, req.GetRequestId(), ""); err != nil {
		return nil, err
	}
	return []fsm.Command{c}, nil
}

// Parsing a request needs up to 300 times its size in memory. So a request larger than smallRequest waits until, with
// it, the requests that are being parsed at the same time have at most parseRoom bytes together.
const (
	smallRequest = 16 << 10
	parseRoom    = 2 << 20
)

// parse waits until a text of size bytes may be parsed. When the text is parsed, leave must be called so that the next
// request can be parsed.
func (s *Server) parse(ctx context.Context, size int) (leave func(), err error) {
	if size <= smallRequest {
		return func() {}, nil
	}
	n := min(int64(size), parseRoom)
	if err := s.parsing.Acquire(ctx, n); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return func() { s.parsing.Release(n) }, nil
}

// prepare parses a request, seals its secrets, loads its Compose stack, and checks the specification and the stack. by
// is the policy that the workload must not break; nil means the policy that applies to the caller and the workload's
// namespace. strict is false for a specification that was stored before, see stack.Source. If the request has secrets and
// there is no cluster key yet, prepare waits for the key.
func (s *Server) prepare(ctx context.Context, req *controlv1.ApplyWorkloadRequest, by *policy.Policy, strict bool) (spec.Prepared, error) {
	leave, err := s.parse(ctx, req.SizeVT())
	if err != nil {
		return spec.Prepared{}, err
	}
	defer leave()
	if req, err = s.keepSecrets(ctx, req); err != nil {
		return spec.Prepared{}, err
	}
	if by == nil {
		by = s.policyOf(ctx, req)
	}
	defaults := spec.Defaults{Cluster: s.store.View().Info().ClusterID}
	if by != nil {
		defaults.CPU, defaults.Memory = by.DefaultCPU, by.DefaultMemory
	}
	if req.GetSpec().GetAutoscale() != nil {
		if defaults.Members, err = s.membersNow(ctx, strings.TrimSpace(req.GetWorkloadId())); err != nil {
			return spec.Prepared{}, err
		}
	}
	var project *loadedStack
	defaults.Stack = func() (_ *spec.LoadedStack, err error) {
		if project == nil {
			project, err = s.loadStack(ctx, req, strict)
		}
		if project == nil || err != nil {
			return nil, err
		}
		return stackIn(project)
	}
	prepared, err := withKey(ctx, s, func() (spec.Prepared, error) { return spec.PrepareWith(req, sealer(s.cfg.Keys), defaults) })
	if err != nil {
		return prepared, err
	}
	if put := prepared.Command.GetPutWorkloads(); put != nil {
		if err = conditional(put, req.GetIfRevision()); err == nil {
			err = judgeStack(req, project, put)
		}
		if err == nil {
			err = s.runIDs(ctx, put)
		}
		if err == nil {
			err = spec.UnknownLabels(req.GetSpec(), s.hasLabel)
		}
		if err == nil {
			err = s.unknownDevices(req.GetSpec(), put)
		}
		if err == nil {
			err = s.usedPorts(req.GetSpec(), put)
		}
		if err == nil {
			err = s.unknownNetworks(ctx, req.GetSpec(), put)
		}
		if err == nil {
			err = s.knownObjects(req.GetSpec(), project, put)
		}
	}
	return prepared, err
}

// hasLabel reports whether any node has a label with this key. While the cluster has no nodes, hasLabel returns true
// for every key, so that nothing is refused or warned about.
func (s *Server) hasLabel(key string) bool {
	v := s.store.View()
	found := v.NodeCount() == 0 || key == fsm.NodeIDLabel // every node has this label
	v.Nodes("", func(n *fsm.Node) bool {
		found = found || slices.ContainsFunc(n.Labels(), func(l fsm.Label) bool { return l.Key == key })
		return !found
	})
	return found
}

// runIDs returns an error if a new workload would take the id of a run that a cron will create: the run could then not
// be created.
func (s *Server) runIDs(ctx context.Context, put *commandv1.PutWorkloads) error {
	v, in := s.store.View(), s.scopeOf(ctx)
	for _, w := range put.GetWorkloads() {
		if _, known := v.Workload(w.GetId()); known {
			continue
		}
		if of, ok := v.Workload(sched.CronOf(w.GetId())); ok && of.IsCron() {
			if !in.Has(of.In()) { // a caller does not learn of crons in other namespaces
				return spec.Errors{{Field: "workload_id", Value: w.GetId(), Rule: "is kept for a run of a cron: choose another id"}}
			}
			return spec.Errors{{Field: "workload_id", Value: w.GetId(),
				Rule: "is the id of a run of cron " + of.ID + " at that time: choose another id, or start a run with persysctl cron trigger " + of.ID}}
		}
	}
	return nil
}

// unknownDevices returns an error if a specification reserves or names devices that no node offers. While the cluster
// has no nodes, it returns no error, because the first node may offer the devices.
func (s *Server) unknownDevices(w *controlv1.WorkloadSpec, put *commandv1.PutWorkloads) error {
	v := s.store.View()
	var asks []policy.Ask
	if list := put.GetWorkloads(); len(list) > 0 { // all members of a group ask for the same
		for _, a := range list[0].GetDemand().GetAsks() {
			if a.GetRule() == policy.RuleDevice {
				asks = append(asks, policy.Ask{Rule: a.GetRule(), Value: a.GetValue(), Field: a.GetField()})
			}
		}
	}
	if v.NodeCount() == 0 || len(asks)+len(w.GetResources().GetDevices()) == 0 {
		return nil
	}
	var offered []string
	v.Nodes("", func(n *fsm.Node) bool {
		for _, d := range n.Facts.Devices {
			if !slices.Contains(offered, d.Name) {
				offered = append(offered, d.Name)
			}
		}
		return true
	})
	slices.Sort(offered)
	return spec.UnknownDevices(w, asks, offered)
}

// usedPorts returns an error if a workload publishes a host port at which programs of the cluster listen, as far as
// agents and schedulers report their ports; see fsm.PortUser.
func (s *Server) usedPorts(of *controlv1.WorkloadSpec, put *commandv1.PutWorkloads) error {
	if len(put.GetWorkloads()) == 0 { // all members of a group publish the same ports
		return nil
	}
	v := s.store.View()
	return spec.UsedPorts(of, put.GetWorkloads()[0], func(p fsm.HostPort, every bool) (program, node string) {
		v.Nodes("", func(n *fsm.Node) bool {
			user := fsm.PortUser(v, n, p)
			if user != "" && program == "" {
				program, node = user, n.ID
			}
			if every && user == "" {
				program = ""
			}
			return every == (user != "")
		})
		return program, node
	})
}

// keyWait is how long an apply waits for the cluster key. A new cluster, or a scheduler that has just joined,
// has the key within a second. keyLook is the interval at which the apply looks for the key.
const (
	keyWait = 3 * time.Second
	keyLook = 20 * time.Millisecond
)

// withKey calls fn, which seals or opens secrets. If this replica lacks the cluster key, it waits for the key and calls
// fn once more.
func withKey[T any](ctx context.Context, s *Server, fn func() (T, error)) (T, error) {
	v, err := fn()
	if errors.Is(err, spec.ErrNoKey) && s.awaitKey(ctx) {
		return fn()
	}
	return v, err
}

// awaitKey waits, for at most keyWait, until this replica has the cluster key, and reports whether it has.
func (s *Server) awaitKey(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	look := time.NewTicker(keyLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if sealer(s.cfg.Keys) != nil {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// sealer returns the cluster key, or nil if there is none. A missing key is no error here, because specifications
// without secrets do not need the key.
func sealer(k Keys) spec.Sealer {
	if key, err := k.Key(); err == nil {
		return key
	}
	return nil
}

// targets returns the ids of the workloads that id selects, and the view in which it found them. The members
// of a group are read from the state of a leader that has confirmed its leadership. For a single workload any
// view is recent enough, because the state machine checks the workload again.
func (s *Server) targets(ctx context.Context, id string) ([]string, fsm.View, error) {
	view := s.store.View()
	if _, ok := view.Workload(id); ok {
		return []string{id}, view, nil
	}
	view, err := s.latest(ctx)
	if err != nil {
		return nil, nil, err
	}
	return selected(view, id), view, nil
}

// selected returns the ids of the workloads that id selects: the workload itself, or the members of a group
// that was created with a count. If there is no such workload, it returns id itself, so that the state
// machine reports the error.
func selected(view fsm.View, id string) (ids []string) {
	if _, known := view.Workload(id); !known {
		view.Group(id, func(w *fsm.Workload) bool {
			if fsm.MadeByCount(id, w.ID) {
				ids = append(ids, w.ID)
			}
			return true
		})
	}
	if len(ids) == 0 {
		ids = []string{id}
	}
	return ids
}

func (s *Server) desireCommands(ctx context.Context, id string, desired fsm.Desired, condition, request string) ([]fsm.Command, error) {
	if desired == fsm.DesiredDeleted {
		return s.deleteCommands(ctx, id, false, false, condition, request)
	}
	return s.each(ctx, id, condition, request, func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: string(desired), IfRevision: condition}}}
	})
}

func (s *Server) deleteCommands(ctx context.Context, id string, force, keep bool, condition, request string) ([]fsm.Command, error) {
	return s.each(ctx, id, condition, request, func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: force, IfRevision: condition, KeepVolumes: keep}}}
	})
}

// each creates one command for each workload that id selects. A request about a group ends with a barrier command that
// has the id of the request. If the request is repeated later, the receipt (stored answer) of the barrier proves that
// the whole request was applied, even if the group no longer exists then.
func (s *Server) each(ctx context.Context, id, condition, request string, make func(string) *commandv1.Command) ([]fsm.Command, error) {
	if err := checkCondition(condition); err != nil {
		return nil, err
	}
	targets, view, err := s.targets(ctx, id)
	if err != nil {
		return nil, err
	}
	group := targets[0] != id
	if group && condition != "" {
		return nil, errGroupCondition(condition)
	}
	barrier := &commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}
	if barrier.Head, err = s.head(ctx, request, ""); err != nil {
		return nil, err
	}
	if _, known := view.Workload(id); !group && !known && answered(view, request) {
		return []fsm.Command{barrier}, nil // a repeated request: the receipt has the answer
	}
	var cmds []fsm.Command
	for _, target := range targets {
		c, member := make(target), ""
		if group {
			member = target
		}
		if c.Head, err = s.head(ctx, request, member); err != nil {
			return nil, err
		}
		cmds = append(cmds, c)
	}
	if group && len(barrier.GetHead().GetRequest()) > 0 {
		cmds = append(cmds, barrier)
	}
	return cmds, nil
}

// answered reports whether the state has a receipt (a stored answer) for this request id.
func answered(view fsm.View, request string) bool {
	id, err := parseRequestID(request)
	if err != nil {
		return false
	}
	_, done := view.Receipt(id, 0)
	return done
}

// DeleteWorkload implements the call of control.v1. It marks the workload for deletion. The record is removed
// when no node runs the workload any more.
func (s *Server) DeleteWorkload(ctx context.Context, req *controlv1.DeleteWorkloadRequest) (*controlv1.DeleteWorkloadResponse, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if why := s.frozenBeforeLog(id != ""); why != "" {
		return &controlv1.DeleteWorkloadResponse{ErrorMessage: why}, nil
	}
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	cmds, err := s.deleteCommands(ctx, id, req.GetForce(), req.GetKeepVolumes(), req.GetIfRevision(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	// A former delete that keeps the volumes stays in force.
	before, _ := s.store.View().Workload(id)
	kept := req.GetKeepVolumes() || before != nil && before.Desired == fsm.DesiredDeleted && before.KeepVolumes
	index, refused, err := s.proposeAll(ctx, cmds)
	return &controlv1.DeleteWorkloadResponse{Success: refused == "", ErrorMessage: refused, Index: index, VolumesKept: refused == "" && kept}, err
}

// RetryWorkload implements the call of control.v1: it makes a workload, or the members of a group, start
// again.
func (s *Server) RetryWorkload(ctx context.Context, req *controlv1.RetryWorkloadRequest) (*controlv1.RetryWorkloadResponse, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if why := s.frozenBeforeLog(id != ""); why != "" {
		return &controlv1.RetryWorkloadResponse{Reason: why}, nil
	}
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	if w, ok := s.store.View().Workload(id); ok && w.IsSystem() && s.scopeOf(ctx).Has(w.In()) {
		return &controlv1.RetryWorkloadResponse{Reason: fmt.Sprintf("%q is a system workload and is not run itself: its members run, such as %s-NODE; "+
			"`persysctl list --group %s` lists them", id, id, id)}, nil
	}
	cmds, err := s.retryCommands(ctx, id, req.GetRestart(), req.GetIfRevision(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	results, err := s.replica.Propose(ctx, cmds...)
	if err != nil {
		return nil, err
	}
	out := &controlv1.RetryWorkloadResponse{Accepted: true, Unchanged: true}
	for _, r := range results {
		switch why := r.Err(); {
		case failsCall(r):
			return nil, why
		case why != nil && out.Accepted:
			out.Accepted, out.Reason = false, why.Error()
		case r.Kind == fsm.AlreadyDone && out.Reason == "":
			out.Reason = r.Reason
		}
		out.Index = max(out.Index, r.Index)
		out.Unchanged = out.Unchanged && !slices.ContainsFunc(r.Items, func(it fsm.Item) bool { return !it.Unchanged })
	}
	if out.Accepted && !out.Unchanged {
		out.Reason = "" // say that the refusal is about some members of the group only
	}
	out.Unchanged = out.Unchanged && out.Accepted
	return out, nil
}

// retryCommands creates the commands that retry or restart the workloads that id selects.
func (s *Server) retryCommands(ctx context.Context, id string, restart bool, condition, request string) ([]fsm.Command, error) {
	return s.each(ctx, id, condition, request, func(id string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id, IfNeeded: !restart, IfRevision: condition}}}
	})
}
