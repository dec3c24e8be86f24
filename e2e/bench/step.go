package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

const (
	stepWorkloads = 100_000
	stepNodes     = 1000
	stepCount     = 5000
)

// planner runs planning steps on a state that is kept in memory. Its simulated nodes carry out every order.
type planner struct {
	*world
	cache *sched.Cache
}

// step runs one planning step and returns the plan and the time that it took.
func (p *planner) step() (sched.Step, time.Duration) {
	in := sched.World{State: p.view(), Changes: p.takeChanges(), Live: allLive{}, Now: p.now, Epoch: worldEpoch}
	began := time.Now()
	out := sched.Next(in, p.cache)
	return out, time.Since(began)
}

// allLive is a liveness table for the planner. It says that every node is alive and that no order waits for
// its answer.
type allLive struct{}

func (allLive) Expired(int64, func(sched.NodeID, int64) bool)  {}
func (allLive) Returned(int64, func(sched.NodeID, int64) bool) {}
func (allLive) NextExpiry() int64                              { return 0 }
func (allLive) DownSince(string) int64                         { return 0 }
func (allLive) Outstanding(sched.Order) bool                   { return false }

// MoveReport implements sched.Liveness: no volume moves.
func (allLive) MoveReport(sched.NodeID, string) (sched.MoveReport, bool) {
	return sched.MoveReport{}, false
}

// Heard implements sched.Liveness.
func (allLive) Heard(sched.NodeID) int64 { return 0 }

// step100k brings 100,000 workloads to their desired state. Then, before each planning step, the status of
// one workload changes. The cost of a step must depend on the changes, not on the size of the state.
func step100k(ctx context.Context, _ *env) (result, error) {
	p, err := converged(ctx)
	if err != nil {
		return result{}, err
	}
	took := make([]time.Duration, 0, stepCount)
	for i := 0; i < stepCount && ctx.Err() == nil; i++ {
		report := p.running(fmt.Sprintf("w-%06d", i*7919%stepWorkloads))
		report.Message = fmt.Sprintf("it has run for %d rounds", i)
		if err := p.report(report); err != nil {
			return result{}, err
		}
		out, d := p.step()
		if len(out.Commands)+len(out.Orders) > 0 {
			return result{}, fmt.Errorf("a converged state leads to %d commands and %d orders, want none", len(out.Commands), len(out.Orders))
		}
		took = append(took, d)
	}
	if ctx.Err() != nil {
		return result{}, ctx.Err()
	}
	slices.Sort(took)
	ms := func(q int) float64 { return took[len(took)*q/1000].Seconds() * 1000 }
	return result{ours: ms(990), unit: "ms", goal: 1, lower: true,
		note: fmt.Sprintf("99th percentile of %d steps over %d converged workloads on %d nodes, one of which had a new report; median %.4f ms, longest %.3f ms",
			len(took), stepWorkloads, stepNodes, ms(500), took[len(took)-1].Seconds()*1000)}, nil
}

// converged lets the planner place all workloads and reports them as running, until a step plans nothing.
func converged(ctx context.Context) (*planner, error) {
	w, err := newWorld()
	w.keepChanges = true
	for i := 0; i < stepNodes && err == nil; i++ {
		err = w.register(&commandv1.RegisterNode{
			Id: fmt.Sprintf("node-%04d", i), Endpoint: fmt.Sprintf("10.0.%d.%d:50051", i/250, i%250), CpuMillicores: 64_000, MemoryMib: 262_144,
			Types: []string{"container"}, Protocol: 1, InstanceId: fmt.Sprint("i-", i), EngineId: fmt.Sprint("e-", i),
		})
	}
	for i := 0; i < stepWorkloads && err == nil; i += 500 {
		err = w.workloads([]byte("spec"), 100, 64, numbered("w-%06d", i, 500)...)
	}
	p := &planner{world: w, cache: sched.NewCache()}
	for err == nil && ctx.Err() == nil {
		out, _ := p.step()
		for _, c := range out.Commands {
			if err := w.do(c); err != nil {
				return nil, err
			}
		}
		for orders := range slices.Chunk(out.Orders, 1000) {
			var reports []*commandv1.WorkloadReport
			for _, o := range orders {
				reports = append(reports, w.running(o.Workload))
			}
			if err := w.report(reports...); err != nil {
				return nil, err
			}
		}
		if len(out.Commands)+len(out.Orders) == 0 {
			if n := w.view().StatusCount(fsm.StatusRunning); n != stepWorkloads {
				return nil, fmt.Errorf("%d of %d workloads run", n, stepWorkloads)
			}
			return p, nil
		}
	}
	return nil, errors.Join(err, ctx.Err())
}
