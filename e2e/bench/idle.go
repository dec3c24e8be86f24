package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
)

const idleAgents = 100

func idle(ctx context.Context, e *env) (result, error) {
	rss, cpu, err := idleFigures(ctx, e)
	return result{ours: rss, unit: "MiB", goal: 100, lower: true,
		note: fmt.Sprintf("the largest of three replicas; %d agents; the busiest used %.1f %% of a core", idleAgents, cpu)}, err
}

func idleCPU(ctx context.Context, e *env) (result, error) {
	rss, cpu, err := idleFigures(ctx, e)
	return result{ours: cpu, unit: "percent_of_a_core", goal: 8, lower: true,
		note: fmt.Sprintf("the busiest of three replicas; %d agents; the largest held %.0f MiB", idleAgents, rss)}, err
}

// idleFigures returns the resident memory (MiB) and the CPU (percent of a core) of the replica that uses
// the most of each. It measures for 20 s while agents send heartbeats at the default interval.
func idleFigures(ctx context.Context, e *env) (rss, cpu float64, err error) {
	_, err = withGroup(ctx, e, func(g *group) (result, error) {
		actx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		client, err := g.Any(actx)
		if err != nil {
			return result{}, err
		}
		endpoint, end, err := emptyAgents()
		if err != nil {
			return result{}, err
		}
		defer end()
		failed := make(chan error, idleAgents)
		for i := range idleAgents {
			wg.Go(func() {
				if err := simpleAgent(actx, client, i, endpoint); err != nil && actx.Err() == nil {
					failed <- err
				}
			})
		}
		wait(ctx, 5*time.Second)
		const window = 20 * time.Second
		all, err := usageOf(ctx, window, g.pids()...)
		if err != nil {
			return result{}, err
		}
		for _, u := range all {
			rss, cpu = max(rss, u.mib), max(cpu, u.seconds/window.Seconds()*100)
		}
		select {
		case err = <-failed:
			err = fmt.Errorf("an agent failed: %w", err)
		default:
		}
		return result{}, err
	})
	return rss, cpu, err
}

// simpleAgent registers an agent without workloads and sends its heartbeats at the interval that the
// schedulers set. The server at endpoint answers the schedulers' calls to this agent.
func simpleAgent(ctx context.Context, c controlv1.AgentControlClient, i int, endpoint string) error {
	id := fmt.Sprintf("idle-%03d", i)
	every, err := register(ctx, c, id, i, endpoint)
	if err != nil {
		return err
	}
	wait(ctx, every*time.Duration(i)/idleAgents)
	for ctx.Err() == nil {
		if err := heartbeat(ctx, c, id); err != nil {
			return err
		}
		wait(ctx, every)
	}
	return nil
}
