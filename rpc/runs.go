package rpc

import (
	"context"
	"errors"
	"maps"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack/service"
)

// StartRun implements the call of cluster.v1 on the leader: it starts one run of a cron or of a parameterized
// job. The id of the run is derived from the key in the request, so that a repeated request with the same key starts no
// second run.
func (s *Server) StartRun(ctx context.Context, req *clusterv1.StartRunRequest) (*clusterv1.StartRunResponse, error) {
	id, key := strings.TrimSpace(req.GetWorkloadId()), req.GetKey()
	if key == "" {
		key = req.GetRequestId()
	}
	switch {
	case id == "":
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	case key == "":
		return nil, errorf(KindInvalid, "key: is empty, and so is request_id; set one of them")
	case len(key) > bounds.MaxRunKey:
		return nil, errorf(KindInvalid, "key: has %d bytes, at most %d", len(key), bounds.MaxRunKey)
	}
	view, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, id)
	if err != nil {
		return nil, err
	}
	if !w.IsTemplate() {
		return nil, errorf(KindPrecondition, "workload %q is neither a cron nor a parameterized job: persysctl restart %s runs it again", id, id)
	}
	start := &commandv1.StartRun{Template: id, IfGeneration: fsm.GenerationPB(w.Generation), Run: fsm.HashedID(id, key), Key: key}
	if _, known := view.Workload(start.Run); !known {
		if start.Put, err = s.runPut(ctx, w, start.Run, req); err != nil {
			return nil, err
		}
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_StartRun{StartRun: start}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.StartRunResponse{RunId: start.Run, Index: r.Index, Unchanged: r.Kind == fsm.AlreadyDone, Reason: r.Reason}, nil
}

// runPut returns the part of a command that stores a run, with the parameters and the input of the request. It
// returns nil for a run of a cron, because such a run has the specification of the cron.
func (s *Server) runPut(ctx context.Context, w *fsm.Workload, run string, req *clusterv1.StartRunRequest) (*commandv1.WorkloadPut, error) {
	if w.Demand.Template.Kind != fsm.TemplateDispatch {
		if len(req.GetParameters()) > 0 || req.GetInput() != "" {
			return nil, errorf(KindInvalid, "parameters, input: workload %q is a cron, whose runs take neither", w.ID)
		}
		return nil, nil
	}
	plain, err := withKey(ctx, s, func() (*controlv1.WorkloadSpec, error) { return spec.Unseal(w.SpecID(), w.Spec, sealer(s.cfg.Keys)) })
	if err != nil {
		return nil, err
	}
	if plain, err = spec.Dispatched(plain, req.GetParameters(), req.GetInput()); err != nil {
		return nil, &Error{Kind: KindInvalid, Err: err}
	}
	plain.Namespace = w.In()
	// Remove reserved labels: the job may have been stored by a version that did not refuse them. Agents
	// remove them too.
	maps.DeleteFunc(plain.GetContainer().GetLabels(), func(key, _ string) bool { return service.ReservedLabel(key) != "" })
	apply := &controlv1.ApplyWorkloadRequest{WorkloadId: run, Spec: plain}
	if b, ok := s.store.View().Bundle(w.Bundle); ok {
		if apply.Files, err = spec.OpenFiles(b, sealer(s.cfg.Keys)); err != nil {
			return nil, err
		}
		plain.GetCompose().Files, plain.GetCompose().Bundle = nil, ""
	}
	prepared, err := s.prepare(ctx, apply, nil, false)
	if err != nil {
		var bad spec.Errors
		if errors.As(err, &bad) {
			return nil, &Error{Kind: KindInvalid, Err: bad}
		}
		return nil, err
	}
	// Leave the files out of the command: the run uses the files of the job from which it is made, and the state has
	// these already.
	return prepared.Command.GetPutWorkloads().GetWorkloads()[0], nil
}
