package rpc

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// TestListUsage: the agent of a workload's node, or of the named node, answers with what it measured.
func TestListUsage(t *testing.T) {
	g, f, _, _ := agentWorld(t, 0)
	c := g.cluster(0)
	r, err := c.ListUsage(ctxFor(t), &clusterv1.ListUsageRequest{WorkloadId: "web"})
	ok(t, err)
	is(t, "samples of an agent that keeps none", len(r.GetSamples()), 0)
	var asked string
	f.usage = func(r *agentv1.ListUsageRequest) (*agentv1.ListUsageResponse, error) {
		asked = fmt.Sprintf("%q %v", r.GetWorkloadId(), r.GetDay())
		return &agentv1.ListUsageResponse{StepSeconds: 60, Samples: []*agentv1.UsageSample{{
			Start: 1_790_000_000, CpuMillicores: 250, MemoryBytes: 1 << 20, NetRxBytesPerSecond: 3, NetTxBytesPerSecond: 4,
		}}}, nil
	}
	for _, x := range []struct {
		req  *clusterv1.ListUsageRequest
		want string
	}{
		{&clusterv1.ListUsageRequest{WorkloadId: "web"}, `"web" false`},
		{&clusterv1.ListUsageRequest{NodeId: "n", Day: true}, `"" true`},
	} {
		r, err := c.ListUsage(ctxFor(t), x.req)
		ok(t, err)
		is(t, "workload in the request to the agent, and whether it asks for a day", asked, x.want)
		is(t, "node", r.GetNodeId(), "n")
		is(t, "step in seconds and number of samples", fmt.Sprint(r.GetStepSeconds(), len(r.GetSamples())), "60 1")
		m := r.GetSamples()[0]
		is(t, "start time, CPU, memory and network rates of the sample", fmt.Sprint(m.GetStart().GetSeconds(), m.GetCpuMillicores(), m.GetMemoryBytes(), m.GetNetRxBytesPerSecond(), m.GetNetTxBytesPerSecond()),
			"1790000000 250 1048576 3 4")
	}
	for _, x := range []struct {
		req  *clusterv1.ListUsageRequest
		code codes.Code
		want string
	}{
		{&clusterv1.ListUsageRequest{}, codes.InvalidArgument, "exactly one"},
		{&clusterv1.ListUsageRequest{WorkloadId: "web", NodeId: "n"}, codes.InvalidArgument, "exactly one"},
		{&clusterv1.ListUsageRequest{NodeId: "none"}, codes.NotFound, "persysctl nodes"},
		{&clusterv1.ListUsageRequest{WorkloadId: "none"}, codes.NotFound, "none"},
	} {
		_, err := c.ListUsage(ctxFor(t), x.req)
		says(t, err, x.code, x.want)
	}
}
