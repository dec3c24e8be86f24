package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// agentFigures are of one agent with fifty containers that do nothing.
type agentFigures struct {
	rss, cpu           float64 // MiB, percent of a core
	guards             int
	guardRSS, guardCPU float64 // MiB and percent of a core of all its guards together
}

func agentIdle(ctx context.Context, e *env) (result, error) {
	f, err := e.agentFigures(ctx)
	return result{ours: f.rss, unit: "MiB", goal: 40, lower: true,
		note: fmt.Sprintf("%d containers; its %d guards hold %.0f MiB together", fifty, f.guards, f.guardRSS)}, err
}

func agentIdleCPU(ctx context.Context, e *env) (result, error) {
	f, err := e.agentFigures(ctx)
	return result{ours: f.cpu, unit: "percent_of_a_core", goal: 1, lower: true,
		note: fmt.Sprintf("%d containers; its %d guards use %.2f %% together", fifty, f.guards, f.guardCPU)}, err
}

// agentFigures measures over a minute: what is done every so often falls into it.
func (e *env) agentFigures(ctx context.Context) (f agentFigures, err error) {
	if e.quiet != nil {
		return *e.quiet, nil
	}
	eng, done, err := fiftyEngine(ctx)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, done()) }()
	_, err = e.fiftyOurs(ctx, eng, func(ctx context.Context, agent *harness.Agent) error {
		const settles, window = 20 * time.Second, time.Minute
		wait(ctx, settles)
		guards := agent.Guards()
		pids := append([]int{agent.PID()}, guards...)
		before := make([]float64, len(pids))
		for i, pid := range pids {
			if before[i], err = cpuSeconds(pid); err != nil {
				return err
			}
		}
		wait(ctx, window)
		for i, pid := range pids {
			after, err := cpuSeconds(pid)
			if err != nil {
				return err
			}
			mib, err := residentMiB(pid)
			if err != nil {
				return err
			}
			cpu := (after - before[i]) / window.Seconds() * 100
			if i == 0 {
				f.rss, f.cpu = mib, cpu
			} else {
				f.guardRSS, f.guardCPU = f.guardRSS+mib, f.guardCPU+cpu
			}
		}
		f.guards = len(guards)
		return ctx.Err()
	})
	if err == nil {
		e.quiet = &f
	}
	return f, err
}

const (
	beatWorkloads = 200
	beatsMetric   = `persys_agent_heartbeats_total{call="heartbeat"`
)

// heartbeat200 counts all that an agent does between two heartbeats as the price of one.
func heartbeat200(ctx context.Context, e *env) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	bins, err := harness.Build(ctx, harness.BuildOptions{Dir: e.folder()})
	if err != nil {
		return r, err
	}
	c, err := harness.Start(ctx, harness.Options{Schedulers: 1, Binaries: bins, Dir: e.folder(),
		SchedulerEnv: map[string]string{"SCHEDULER_HEARTBEAT_INTERVAL": "1s"}})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	agent, err := c.StartAgent(ctx, harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_GUARD": "off"}})
	if err != nil {
		return r, err
	}
	admin, err := c.Admin(0)
	if err != nil {
		return r, err
	}
	req := &clusterv1.ApplyWorkloadsRequest{}
	for i := range beatWorkloads {
		req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{
			WorkloadId: fmt.Sprintf("beat-%d", i), DesiredState: "Running",
			Spec: &controlv1.WorkloadSpec{Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 1, MemoryMb: 4},
				Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "sim/any"}}},
		})
	}
	if _, err := admin.ApplyWorkloads(ctx, req); err != nil {
		return r, err
	}
	control, err := c.Control(0)
	if err != nil {
		return r, err
	}
	err = testbed.Poll(ctx, 2*time.Minute, "all workloads to run", func(ctx context.Context) error {
		list, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Status: "Running"})
		if n := len(list.GetWorkloads()); err == nil && n < beatWorkloads {
			err = fmt.Errorf("%d of %d run", n, beatWorkloads)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	wait(ctx, 10*time.Second)
	const window = time.Minute
	before, err := cpuSeconds(agent.PID())
	if err != nil {
		return r, err
	}
	from, err := harness.Metric(ctx, agent.HTTP, beatsMetric)
	if err != nil {
		return r, err
	}
	wait(ctx, window)
	after, err := cpuSeconds(agent.PID())
	if err != nil {
		return r, err
	}
	to, err := harness.Metric(ctx, agent.HTTP, beatsMetric)
	if err != nil {
		return r, err
	}
	beats := to - from
	if beats < window.Seconds()/2 {
		return r, fmt.Errorf("only %.0f heartbeats in %s", beats, window)
	}
	return result{ours: (after - before) / beats * 1000, unit: "ms", goal: 5, lower: true,
		note: fmt.Sprintf("%.0f heartbeats in %s; all that the agent did meanwhile is counted", beats, window)}, ctx.Err()
}
