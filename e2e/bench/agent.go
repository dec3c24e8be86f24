package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// agentFigures are the measured memory and CPU of one agent with fifty idle containers.
type agentFigures struct {
	rss, cpu             float64 // memory in MiB, and CPU use in percent of a core
	fencers              int
	fencerRSS, fencerCPU float64 // memory and CPU use of all the agent's fencers together
}

func agentIdle(ctx context.Context, e *env) (result, error) {
	f, err := e.agentFigures(ctx)
	return result{ours: f.rss, unit: "MiB", goal: 40, lower: true,
		note: fmt.Sprintf("%d containers; its %d fencers hold %.0f MiB together", fifty, f.fencers, f.fencerRSS)}, err
}

func agentIdleCPU(ctx context.Context, e *env) (result, error) {
	f, err := e.agentFigures(ctx)
	return result{ours: f.cpu, unit: "percent_of_a_core", goal: 1, lower: true,
		note: fmt.Sprintf("%d containers; its %d fencers use %.2f %% together", fifty, f.fencers, f.fencerCPU)}, err
}

// agentFigures measures the memory and CPU of an agent with fifty containers, and of its fencers. It measures for a
// minute, so that every periodic task runs meanwhile.
func (e *env) agentFigures(ctx context.Context) (f agentFigures, err error) {
	if e.quiet != nil {
		return *e.quiet, nil
	}
	eng, done, err := benchEngine(ctx, fiftyImage, "./examples/hello")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, done()) }()
	_, err = e.fiftyOurs(ctx, eng, func(ctx context.Context, agent *harness.Agent) error {
		const settles, window = 20 * time.Second, time.Minute
		wait(ctx, settles)
		fencers := agent.Fencers()
		all, err := usageOf(ctx, window, append([]int{agent.PID()}, fencers...)...)
		if err != nil {
			return err
		}
		percent := func(u usage) float64 { return u.seconds / window.Seconds() * 100 }
		f = agentFigures{rss: all[0].mib, cpu: percent(all[0]), fencers: len(fencers)}
		for _, u := range all[1:] {
			f.fencerRSS, f.fencerCPU = f.fencerRSS+u.mib, f.fencerCPU+percent(u)
		}
		return nil
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

// heartbeat200 measures the CPU time that an agent with 200 workloads needs for each heartbeat that it sends.
func heartbeat200(ctx context.Context, e *env) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	g, err := e.startGroup(ctx, 1, "SCHEDULER_HEARTBEAT_INTERVAL", "1s")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	agent, err := g.StartAgent(ctx, harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_FENCER": "off"}})
	if err != nil {
		return r, err
	}
	admin, err := g.Admin(0)
	if err != nil {
		return r, err
	}
	if err := applySmall(ctx, admin, containerSpec("sim/any", &controlv1.ResourceRequirements{CpuMillicores: 1, MemoryMb: 8}), numbered("beat-%d", 0, beatWorkloads)...); err != nil {
		return r, err
	}
	control, err := g.Control(0)
	if err != nil {
		return r, err
	}
	err = testbed.Poll(ctx, 2*time.Minute, "all workloads to run", func(ctx context.Context) error {
		list, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Status: "Running"})
		if n := len(list.GetWorkloads()); err == nil && n < beatWorkloads {
			err = fmt.Errorf("%d of %d workloads run", n, beatWorkloads)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	wait(ctx, 10*time.Second)
	const window = time.Minute
	from, err := harness.Metric(ctx, agent.HTTP, beatsMetric)
	if err != nil {
		return r, err
	}
	used, err := usageOf(ctx, window, agent.PID())
	if err != nil {
		return r, err
	}
	to, err := harness.Metric(ctx, agent.HTTP, beatsMetric)
	if err != nil {
		return r, err
	}
	beats := to - from
	if beats < window.Seconds()/2 {
		return r, fmt.Errorf("the agent sent only %.0f heartbeats in %s", beats, window)
	}
	return result{ours: used[0].seconds / beats * 1000, unit: "ms", goal: 5, lower: true,
		note: fmt.Sprintf("%.0f heartbeats in %s; the figure contains all work of the agent in this time", beats, window)}, nil
}
