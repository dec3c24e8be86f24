package main

import (
	"context"
	"fmt"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

const (
	balanceNodes     = 5000
	balanceFresh     = 500 // nodes that have joined and have no workloads yet
	balanceWorkloads = 50_000
	balanceMoves     = 1000
)

// rebalance5k measures one search for moves, as persysctl rebalance --preview runs it. Half of the
// workloads are members of groups of ten. The search must find as many moves as its limit allows, and the
// target of each move must be a node that has just joined.
func rebalance5k(ctx context.Context, _ *env) (result, error) {
	w, err := newWorld()
	for i := 0; i < balanceNodes && err == nil; i++ {
		err = w.register(&commandv1.RegisterNode{
			Id: fmt.Sprintf("node-%04d", i), Endpoint: fmt.Sprintf("10.0.%d.%d:50051", i/250, i%250), CpuMillicores: 16_000, MemoryMib: 65_536,
			Types: []string{"container"}, Protocol: 1, InstanceId: fmt.Sprint("i-", i), EngineId: fmt.Sprint("e-", i),
			Labels: []*commandv1.Label{{Key: "zone", Value: fmt.Sprintf("z%d", i%9)}},
		})
	}
	for first := 0; first < balanceWorkloads && err == nil && ctx.Err() == nil; first += 500 {
		ids := numbered("w-%05d", first, 500)
		puts := make([]*commandv1.WorkloadPut, len(ids))
		for i, id := range ids {
			d := &commandv1.Demand{Type: "container", CpuMillicores: 800, MemoryMib: 3000}
			if n := first + i; n%20 < 10 {
				d.Group = fmt.Sprint("g", n/20)
			}
			puts[i] = &commandv1.WorkloadPut{Id: id, Spec: []byte("spec"), Content: fmt.Sprintf("c1:%064x", i), Desired: "Running", Demand: d}
		}
		err = w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: puts}}})
		if err == nil {
			err = w.assign(ids, func(i int) string { return fmt.Sprintf("node-%04d", (first+i)%(balanceNodes-balanceFresh)) })
		}
		var reports []*commandv1.WorkloadReport
		for _, id := range ids {
			reports = append(reports, w.running(id))
		}
		if err == nil {
			err = w.report(reports...)
		}
	}
	if err != nil || ctx.Err() != nil {
		return result{}, fmt.Errorf("making the workloads: %w", err)
	}
	view := w.view()
	limits := sched.BalanceLimits{Moves: balanceMoves, MinGain: sched.WholeNode / 10, Now: view.Info().Clock}
	began := time.Now()
	found := sched.Rebalance(view, limits, sched.Tuning{})
	took := time.Since(began)
	if n := len(found.Moves); n != balanceMoves {
		return result{}, fmt.Errorf("%d moves were found, want %d", n, balanceMoves)
	}
	for _, m := range found.Moves {
		if m.To < fmt.Sprintf("node-%04d", balanceNodes-balanceFresh) {
			return result{}, fmt.Errorf("workload %s moves to %s, which is not new", m.Workload, m.To)
		}
	}
	running := view.StatusCount(fsm.StatusRunning)
	return result{ours: took.Seconds(), unit: "s", goal: 2, lower: true,
		note: fmt.Sprintf("%d workloads run, %d may move; deviation of the loads from %.1f %% to %.1f %%", running, found.Movable,
			float64(found.Before.Deviation)*100/sched.WholeNode, float64(found.After.Deviation)*100/sched.WholeNode)}, nil
}
