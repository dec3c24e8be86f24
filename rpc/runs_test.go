package rpc

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
)

// TestRunsAreStartedOnce: StartRun starts one run per key, with the parameters in its environment, and refuses
// wrong parameters.
func TestRunsAreStartedOnce(t *testing.T) {
	var held Keys
	g := newGroup(t, 2, func(_ int, c *Config) { held = c.Keys })
	req := web("encode")
	req.RequestId = requestID(t)
	req.Spec.Group, req.Spec.Kind = "", spec.KindJob
	req.Spec.Job = &controlv1.JobSpec{Parameterized: &controlv1.ParameterizedSpec{Parameters: []*controlv1.ParameterSpec{{Name: "file", Required: true}}}}
	req.Spec.GetContainer().Ports, req.Spec.GetContainer().RestartPolicy = nil, ""
	r, err := g.control(1).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "applied", r.GetErrorMessage(), "")

	start := func(key string, parameters map[string]string) (*clusterv1.StartRunResponse, error) {
		return g.cluster(1).StartRun(ctxFor(t), &clusterv1.StartRunRequest{WorkloadId: "encode", Key: key, Parameters: parameters, RequestId: requestID(t)})
	}
	_, err = start("k", nil)
	code(t, err, codes.InvalidArgument)
	is(t, "whether the error names the missing parameter", strings.Contains(err.Error(), "parameters.file: is required"), true)
	first, err := start("k", map[string]string{"file": "a.wav"})
	ok(t, err)
	again, err := start("k", map[string]string{"file": "a.wav"})
	ok(t, err)
	is(t, "run id of a second start with the same key", again.GetRunId(), first.GetRunId())
	is(t, "unchanged", again.GetUnchanged(), true)
	other, err := start("other", map[string]string{"file": "a.wav"})
	ok(t, err)
	is(t, "whether another key starts another run", other.GetRunId() != first.GetRunId(), true)

	w, _ := g.view().Workload(first.GetRunId())
	plain, err := spec.Unseal(w.SpecID(), w.Spec, sealer(held))
	ok(t, err)
	is(t, "parameter", plain.GetContainer().GetEnv()["PERSYS_PARAM_FILE"], "a.wav")
	v, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: first.GetRunId()})
	ok(t, err)
	is(t, "owner", v.GetWorkload().GetOwner(), "encode")
	y, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "encode"})
	ok(t, err)
	is(t, "whether Why says that the job waits for calls", strings.Contains(y.GetReasonMessage(), "waits for calls"), true)

	_, err = g.cluster(1).StartRun(ctxFor(t), &clusterv1.StartRunRequest{WorkloadId: "none", RequestId: requestID(t)})
	code(t, err, codes.NotFound)
}

// TestRunsOfAStoredReservedLabel: a job that was stored with a reserved label, before such labels were refused, still
// runs.
func TestRunsOfAStoredReservedLabel(t *testing.T) {
	var held Keys
	g := newGroup(t, 1, func(_ int, c *Config) { held, c.Stacks = c.Keys, stack.NewLoader(stack.Options{}) })
	g.elect(0)
	container := web("container")
	container.Spec.GetContainer().Labels = map[string]string{"persxs.namespace": "bank"}
	container.Spec.GetContainer().Ports, container.Spec.GetContainer().RestartPolicy = nil, ""
	compose := composeRequest("compose", "services: {web: {image: a, labels: {persys.namespace: bank}}}\n")
	for _, req := range []*controlv1.ApplyWorkloadRequest{container, compose} {
		req.Spec.Group, req.Spec.Kind = "", spec.KindJob
		req.Spec.Job = &controlv1.JobSpec{Parameterized: &controlv1.ParameterizedSpec{Parameters: []*controlv1.ParameterSpec{{Name: "file"}}}}
		prepared, err := spec.Prepare(req, sealer(held))
		ok(t, err)
		w := prepared.Command.GetPutWorkloads().GetWorkloads()[0]
		w.Spec = bytes.ReplaceAll(w.Spec, []byte("persxs."), []byte("persys.")) // Prepare checks the labels of containers, but not of stacks
		is(t, "stored", g.do(prepared.Command).Kind, fsm.OK)
		_, err = g.cluster(0).StartRun(ctxFor(t), &clusterv1.StartRunRequest{WorkloadId: req.GetWorkloadId(), Key: "k", RequestId: requestID(t)})
		if err != nil {
			t.Errorf("the run of job %q, which was stored with a reserved label, was refused: %v", req.GetWorkloadId(), err)
		}
	}
}
