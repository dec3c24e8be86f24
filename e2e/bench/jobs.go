package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	docker "github.com/moby/moby/client"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
)

const (
	jobCount = 100
	jobImage = "persys/probe:bench"
)

// jobs measures one-shot containers from the apply to the recorded exit code. The peer creates, starts, waits for and
// removes the same containers with the API of the engine.
func jobs(ctx context.Context, e *env) (r result, err error) {
	eng, done, err := benchEngine(ctx, jobImage, "./agent/driver/moby/mobytest/probe")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, done()) }()
	cli, err := docker.New(docker.FromEnv)
	if err != nil {
		return r, err
	}
	defer cli.Close()
	if _, err := jobsRaw(ctx, cli, 8); err != nil { // this run only warms up
		return r, err
	}
	var ours, raw float64
	best := 0
	// Measure the engine without Persys before and after Persys, so that other load of the machine affects both.
	for _, workers := range []int{4, 8, 16, 32} {
		took, err := jobsRaw(ctx, cli, workers)
		if err != nil {
			return r, err
		}
		if best == 0 || took < raw {
			raw, best = took, workers
		}
		if workers != 8 {
			continue
		}
		if ours, err = e.jobsOurs(ctx, eng); err != nil {
			return r, err
		}
	}
	return result{ours: jobCount / ours, peer: jobCount / raw, unit: "jobs/s", goal: 0.9, goalIsRatio: true,
		note: fmt.Sprintf("%d jobs in one apply, one agent, one scheduler; raw is create, start, wait and remove, %d at a time", jobCount, best)}, nil
}

// jobsOurs applies the jobs in one call and returns the seconds until the records of all have their results.
func (e *env) jobsOurs(ctx context.Context, eng *harness.Engine) (took float64, err error) {
	err = e.withOneAgent(ctx, eng, func(ctx context.Context, o oneAgent) error {
		spec := containerSpec(jobImage, &controlv1.ResourceRequirements{CpuMillicores: fiftyCPU, MemoryMb: fiftyMemory})
		spec.Kind = "job"
		spec.GetContainer().Command = []string{"exit", "0"}
		took, err = o.apply(ctx, spec, numbered("job-%d", 0, jobCount), func(w *controlv1.WorkloadView) bool { return w.GetJobResult().GetSucceeded() })
		return err
	})
	return took, err
}

// jobsRaw runs the containers with the API of the engine and returns the seconds that it took.
func jobsRaw(ctx context.Context, cli *docker.Client, workers int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, fiftyLimit)
	defer cancel()
	began := time.Now()
	err := inParallel(jobCount, workers, func(i int) error { return jobRaw(ctx, cli, fmt.Sprintf("persys-bench-%d", i)) })
	return time.Since(began).Seconds(), err
}

// jobRaw runs one container to its end and removes it.
func jobRaw(ctx context.Context, cli *docker.Client, name string) (err error) {
	made, err := cli.ContainerCreate(ctx, docker.ContainerCreateOptions{
		Name:       name,
		Config:     &container.Config{Image: jobImage, Cmd: []string{"exit", "0"}, Labels: map[string]string{fiftyLabel: "raw"}},
		HostConfig: &container.HostConfig{Resources: fiftyLimits()},
	})
	if err != nil {
		return err
	}
	defer func() {
		_, rerr := cli.ContainerRemove(context.WithoutCancel(ctx), made.ID, docker.ContainerRemoveOptions{Force: true})
		err = errors.Join(err, rerr)
	}()
	wait := cli.ContainerWait(ctx, made.ID, docker.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := cli.ContainerStart(ctx, made.ID, docker.ContainerStartOptions{}); err != nil {
		return err
	}
	select {
	case end := <-wait.Result:
		if end.StatusCode != 0 {
			return fmt.Errorf("%s ended with exit code %d", name, end.StatusCode)
		}
		return nil
	case err := <-wait.Error:
		return err
	}
}
