package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/swarm"
	docker "github.com/moby/moby/client"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
)

const (
	fifty      = 50
	fiftyImage = "persys/hello:bench"
	fiftyLabel = "persys.bench"
	fiftyLimit = 6 * time.Minute // time limit for each of the compared programs
	// All containers get the same limits, with Persys and without: an engine starts containers without limits
	// faster, so the comparison would be unfair.
	fiftyCPU    = 10 // CPU limit of each container in millicores
	fiftyMemory = 16 // memory limit of each container in MiB
)

// fiftyLimits are the resource limits that the agent sets on each container.
func fiftyLimits() container.Resources {
	return container.Resources{NanoCPUs: fiftyCPU * 1e6, CPUShares: fiftyCPU * 1024 / 1000, Memory: fiftyMemory << 20, MemorySwap: fiftyMemory << 20}
}

// fiftyFigures are the seconds from the request to fifty running containers, all on the same engine.
type fiftyFigures struct {
	ours, raw, swarm float64
	workers          int     // number of concurrent workers with which plain Docker calls are fastest
	free             float64 // seconds of plain Docker calls without resource limits
}

func containers50(ctx context.Context, e *env) (result, error) {
	f, err := e.fiftyFigures(ctx)
	return result{ours: f.ours, peer: f.raw, unit: "s", goal: 1 / 1.2, goalIsRatio: true, lower: true,
		note: fmt.Sprintf("one agent, one scheduler; raw is create and start, %d at a time; without limits on CPU and memory %.1f s, 8 at a time", f.workers, f.free)}, err
}

func containers50Swarm(ctx context.Context, e *env) (result, error) {
	f, err := e.fiftyFigures(ctx)
	return result{ours: f.ours, peer: f.swarm, unit: "s", goal: 2, goalIsRatio: true, lower: true,
		note: "a service of fifty replicas on a bridge network, like the containers of Persys"}, err
}

// benchEngine opens the Docker engine and builds an image of a program. The function done removes the image.
func benchEngine(ctx context.Context, image, pkg string) (eng *harness.Engine, done func() error, err error) {
	eng, err = harness.OpenEngine(ctx)
	if err != nil {
		return nil, nil, err
	}
	release, err := eng.Alone(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	if err := eng.BuildGo(ctx, image, pkg, nil); err != nil {
		release()
		return nil, nil, errors.Join(err, eng.Close())
	}
	return eng, func() error {
		defer release()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(eng.RemoveImage(last, image), eng.Close())
	}, nil
}

func (e *env) fiftyFigures(ctx context.Context) (f fiftyFigures, err error) {
	if e.fifty != nil {
		return *e.fifty, nil
	}
	eng, done, err := benchEngine(ctx, fiftyImage, "./examples/hello")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, done()) }()
	cli, err := docker.New(docker.FromEnv)
	if err != nil {
		return f, err
	}
	defer cli.Close()
	if _, err := fiftyRaw(ctx, cli, 8, container.Resources{}); err != nil { // this run only warms up
		return f, err
	}
	if f.free, err = fiftyRaw(ctx, cli, 8, container.Resources{}); err != nil {
		return f, err
	}
	// Measure the engine without Persys before and after Persys, so that other load of the machine affects both.
	for _, workers := range []int{8, 16, 32, fifty} {
		took, err := fiftyRaw(ctx, cli, workers, fiftyLimits())
		if err != nil {
			return f, err
		}
		if f.raw == 0 || took < f.raw {
			f.raw, f.workers = took, workers
		}
		if workers != 16 {
			continue
		}
		if f.ours, err = e.fiftyOurs(ctx, eng, nil); err != nil {
			return f, err
		}
	}
	if f.swarm, err = fiftySwarm(ctx, cli); err != nil {
		return f, err
	}
	e.fifty = &f
	return f, nil
}

// fiftyRaw creates and starts containers with the API of the engine and returns the seconds that it took.
func fiftyRaw(ctx context.Context, cli *docker.Client, workers int, limits container.Resources) (took float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fiftyLimit)
	defer cancel()
	ids := make([]string, fifty)
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), fiftyLimit)
		defer cancel()
		err = errors.Join(err, removeAll(last, cli, ids))
	}()
	began := time.Now()
	err = inParallel(fifty, workers, func(i int) error {
		made, err := cli.ContainerCreate(ctx, docker.ContainerCreateOptions{
			Name:       fmt.Sprintf("persys-bench-%d", i),
			Config:     &container.Config{Image: fiftyImage, Labels: map[string]string{fiftyLabel: "raw"}},
			HostConfig: &container.HostConfig{Resources: limits},
		})
		if err != nil {
			return err
		}
		ids[i] = made.ID
		_, err = cli.ContainerStart(ctx, made.ID, docker.ContainerStartOptions{})
		return err
	})
	return time.Since(began).Seconds(), err
}

// inParallel calls do for each number below count, with workers calls at a time.
func inParallel(count, workers int, do func(i int) error) error {
	next := make(chan int)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = do(i)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

func removeAll(ctx context.Context, cli *docker.Client, ids []string) error {
	return inParallel(len(ids), 8, func(i int) error {
		if ids[i] == "" {
			return nil
		}
		_, err := cli.ContainerRemove(ctx, ids[i], docker.ContainerRemoveOptions{Force: true})
		return err
	})
}

// fiftySwarm creates a Docker Swarm service with fifty replicas on this machine and returns the seconds until all run.
func fiftySwarm(ctx context.Context, cli *docker.Client) (took float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fiftyLimit)
	defer cancel()
	if _, err := cli.SwarmInit(ctx, docker.SwarmInitOptions{ListenAddr: "127.0.0.1:0", AdvertiseAddr: "127.0.0.1", ForceNewCluster: false}); err != nil {
		return 0, fmt.Errorf("docker swarm init: %w", err)
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, lerr := cli.SwarmLeave(last, docker.SwarmLeaveOptions{Force: true})
		err = errors.Join(err, lerr)
	}()
	replicas := uint64(fifty)
	began := time.Now()
	made, err := cli.ServiceCreate(ctx, docker.ServiceCreateOptions{Spec: swarm.ServiceSpec{
		Annotations: swarm.Annotations{Name: "persys-bench", Labels: map[string]string{fiftyLabel: "swarm"}},
		TaskTemplate: swarm.TaskSpec{
			ContainerSpec: &swarm.ContainerSpec{Image: fiftyImage},
			Resources:     &swarm.ResourceRequirements{Limits: &swarm.Limit{NanoCPUs: fiftyCPU * 1e6, MemoryBytes: fiftyMemory << 20}},
		},
		Mode: swarm.ServiceMode{Replicated: &swarm.ReplicatedService{Replicas: &replicas}},
	}})
	if err != nil {
		return 0, fmt.Errorf("docker service create: %w", err)
	}
	running := func() (int, error) {
		tasks, err := cli.TaskList(ctx, docker.TaskListOptions{Filters: make(docker.Filters).Add("service", made.ID)})
		n := 0
		for _, t := range tasks.Items {
			if t.Status.State == swarm.TaskStateRunning {
				n++
			}
		}
		return n, err
	}
	for {
		n, err := running()
		if err != nil {
			return 0, err
		}
		if n == fifty {
			break
		}
		if wait(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return 0, fmt.Errorf("%d of %d tasks run: %w", n, fifty, ctx.Err())
		}
	}
	took = time.Since(began).Seconds()
	_, err = cli.ServiceRemove(ctx, made.ID, docker.ServiceRemoveOptions{})
	for err == nil {
		var left docker.ContainerListResult
		left, err = cli.ContainerList(ctx, docker.ContainerListOptions{All: true, Filters: make(docker.Filters).Add("label", "com.docker.swarm.service.id="+made.ID)})
		if len(left.Items) == 0 {
			break
		}
		if wait(ctx, 200*time.Millisecond); ctx.Err() != nil {
			err = ctx.Err()
		}
	}
	return took, err
}

// oneAgent is a cluster of one scheduler and one agent, which uses the Docker engine of this machine.
type oneAgent struct {
	agent *harness.Agent
	admin clusterv1.ClusterClient
}

// withOneAgent calls do with a scheduler and an agent, and removes both and all containers afterwards.
func (e *env) withOneAgent(ctx context.Context, eng *harness.Engine, do func(context.Context, oneAgent) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fiftyLimit)
	defer cancel()
	g, err := e.startGroup(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	st, err := g.Status(ctx, 0)
	if err != nil {
		return err
	}
	agent, err := g.StartAgent(ctx, harness.AgentOptions{})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, agent.Kill(), agent.SignalFencers(syscall.SIGKILL), eng.RemoveAll(last, st.GetClusterId()))
	}()
	admin, err := g.Admin(0)
	if err != nil {
		return err
	}
	return do(ctx, oneAgent{agent: agent, admin: admin})
}

// apply applies workloads in one call and returns the seconds until done is true for each of them.
func (o oneAgent) apply(ctx context.Context, spec *controlv1.WorkloadSpec, ids []string, done func(*controlv1.WorkloadView) bool) (took float64, err error) {
	watch, err := o.admin.WatchWorkloads(ctx, &clusterv1.WatchWorkloadsRequest{})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := applySmall(ctx, o.admin, spec, ids...); err != nil {
		return 0, err
	}
	ended := map[string]bool{}
	for len(ended) < len(ids) {
		m, err := watch.Recv()
		if err != nil {
			return 0, fmt.Errorf("%d of %d workloads are done: %w", len(ended), len(ids), err)
		}
		w := m.GetWorkload()
		if w.GetStatus() == "Failed" {
			return 0, fmt.Errorf("%s failed: %s", w.GetWorkloadId(), w.GetReason().GetMessage())
		}
		if done(w) {
			ended[w.GetWorkloadId()] = true
		}
	}
	return time.Since(began).Seconds(), nil
}

// fiftyOurs applies fifty containers in one call to a scheduler with one agent and waits until all run. It
// returns the number of seconds. If then is set, it is called while the containers run.
func (e *env) fiftyOurs(ctx context.Context, eng *harness.Engine, then func(context.Context, *harness.Agent) error) (took float64, err error) {
	err = e.withOneAgent(ctx, eng, func(ctx context.Context, o oneAgent) error {
		spec := containerSpec(fiftyImage, &controlv1.ResourceRequirements{CpuMillicores: fiftyCPU, MemoryMb: fiftyMemory})
		took, err = o.apply(ctx, spec, numbered("bench-%d", 0, fifty), func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Running" })
		if err == nil && then != nil {
			err = then(ctx, o.agent)
		}
		return err
	})
	return took, err
}
