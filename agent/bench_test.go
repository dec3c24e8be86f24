package agent

import (
	"context"
	"fmt"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// BenchmarkAcknowledge measures how long the agent takes to store an order on disk and to answer it. Carrying
// the order out is not measured.
func BenchmarkAcknowledge(b *testing.B) {
	r := newRig(b).start()
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		out, err := r.api.ApplyWorkload(ctx, &agentv1.ApplyWorkloadRequest{
			Id: fmt.Sprintf("w-%d", i%100), Spec: container("sim/run"), Content: "c1:a",
			Epoch: epoch(1), Generation: gen(uint64(i + 1)),
		})
		if err != nil || !out.Applied {
			b.Fatal(out, err)
		}
	}
}

// BenchmarkHeartbeat measures how long the agent takes to make the workload reports of a full heartbeat, with
// 50 workloads.
func BenchmarkHeartbeat(b *testing.B) {
	r := newRig(b, under(leader())).start()
	for i := range 50 {
		r.apply(fmt.Sprintf("w-%d", i), "sim/run", by(1), at(1))
	}
	for i := range 50 {
		r.reaches(fmt.Sprintf("w-%d", i), running)
	}
	b.ReportAllocs()
	for b.Loop() {
		statuses := r.a.session.Reports()
		if len(statuses) != 50 {
			b.Fatal(len(statuses))
		}
	}
}
