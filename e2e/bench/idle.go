package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

const idleAgents = 100

func idle(ctx context.Context, e *env) (result, error) {
	rss, cpu, err := idleFigures(ctx, e)
	return result{ours: rss, unit: "MiB", goal: 100, lower: true,
		note: fmt.Sprintf("the largest of three replicas; %d agents; the busiest used %.1f %% of a core", idleAgents, cpu)}, err
}

func idleCPU(ctx context.Context, e *env) (result, error) {
	rss, cpu, err := idleFigures(ctx, e)
	return result{ours: cpu, unit: "percent_of_a_core", goal: 5, lower: true,
		note: fmt.Sprintf("the busiest of three replicas; %d agents; the largest held %.0f MiB", idleAgents, rss)}, err
}

// idleFigures lets agents heartbeat as told and measures the replicas over 20 s.
func idleFigures(ctx context.Context, e *env) (rss, cpu float64, err error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer g.close()
	actx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	conn, err := dial.Dial(actx, dial.Options{Addrs: g.addrs, Insecure: true})
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	client := controlv1.NewAgentControlClient(conn)
	endpoint, end, err := emptyAgents()
	if err != nil {
		return 0, 0, err
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
	before := make([]float64, len(g.replicas))
	for i, p := range g.replicas {
		if before[i], err = cpuSeconds(p.cmd.Process.Pid); err != nil {
			return 0, 0, err
		}
	}
	const window = 20 * time.Second
	wait(ctx, window)
	for i, p := range g.replicas {
		after, err := cpuSeconds(p.cmd.Process.Pid)
		if err != nil {
			return 0, 0, err
		}
		mib, err := residentMiB(p.cmd.Process.Pid)
		if err != nil {
			return 0, 0, err
		}
		rss, cpu = max(rss, mib), max(cpu, (after-before[i])/window.Seconds()*100)
	}
	select {
	case err := <-failed:
		return 0, 0, fmt.Errorf("an agent failed: %w", err)
	default:
	}
	return rss, cpu, ctx.Err()
}

// simpleAgent registers and heartbeats as it is told, with nothing to report; at endpoint somebody
// answers for it.
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

// cpuSeconds is the time a process has spent on CPUs (proc(5), stat fields 14, 15).
func cpuSeconds(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, err // clock ticks are 100 per second on Linux
}

func residentMiB(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status names no VmRSS", pid)
}
