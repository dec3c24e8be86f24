package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// env holds what all benchmarks share: the paths of the programs, which are built once, and a folder for
// data.
type env struct {
	dir      string
	programs func() (harness.Binaries, error) // builds the programs as they are released
	etcd     func() (string, error)           // returns the path of the etcd program
	namers   *namers                          // nil until the first DNS benchmark starts them
	fifty    *fiftyFigures
	quiet    *agentFigures
	count    int
}

func newEnv(ctx context.Context) (*env, error) {
	dir, err := os.MkdirTemp("", "persys-bench-")
	if err != nil {
		return nil, err
	}
	return &env{
		dir: dir,
		programs: sync.OnceValues(func() (harness.Binaries, error) {
			return harness.Build(ctx, harness.BuildOptions{Dir: filepath.Join(dir, "bin")})
		}),
		etcd: sync.OnceValues(func() (string, error) { return testbed.Server(ctx, "etcd") }),
	}, nil
}

func (e *env) close() {
	if e.namers != nil {
		e.namers.close()
	}
	_ = os.RemoveAll(e.dir)
}

// folder creates a new folder for one part of a benchmark.
func (e *env) folder() (string, error) {
	e.count++
	dir := filepath.Join(e.dir, fmt.Sprint("run", e.count))
	return dir, os.MkdirAll(dir, 0o700)
}

// group is a cluster with default settings, without agents unless a benchmark adds them.
type group struct{ *harness.Cluster }

// startGroup starts n schedulers. more has further settings as name, value, name, value. If the start
// fails, the logs are in the folder of the benchmark.
func (e *env) startGroup(ctx context.Context, n int, more ...string) (*group, error) {
	settings := map[string]string{}
	for i := 0; i+1 < len(more); i += 2 {
		settings[more[i]] = more[i+1]
	}
	return e.startWith(ctx, harness.Options{Schedulers: n, SchedulerEnv: settings})
}

// startWith starts schedulers as opt says, with the log level "warn" unless opt sets another.
func (e *env) startWith(ctx context.Context, opt harness.Options) (g *group, err error) {
	if opt.Binaries, err = e.programs(); err != nil {
		return nil, err
	}
	if opt.Dir, err = e.folder(); err != nil {
		return nil, err
	}
	settings := map[string]string{"LOG_LEVEL": "warn"}
	maps.Copy(settings, opt.SchedulerEnv)
	opt.SchedulerEnv = settings
	c, err := harness.Start(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &group{c}, nil
}

// withGroup runs a benchmark on three schedulers.
func withGroup(ctx context.Context, e *env, fn func(*group) (result, error)) (r result, err error) {
	g, err := e.startGroup(ctx, 3)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	return fn(g)
}

// leader waits until all schedulers agree on a leader, and returns it.
func (g *group) leader(ctx context.Context) (*harness.Scheduler, error) {
	if err := g.WaitReady(ctx, 30*time.Second); err != nil {
		return nil, err
	}
	i, err := g.WaitLeader(ctx, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return g.Schedulers[i], nil
}

func (g *group) pids() (out []int) {
	for _, s := range g.Schedulers {
		if s.Running() {
			out = append(out, s.PID())
		}
	}
	return out
}

// applySmall applies workloads with the same specification, in calls of 500.
func applySmall(ctx context.Context, admin clusterv1.ClusterClient, spec *controlv1.WorkloadSpec, ids ...string) error {
	for len(ids) > 0 {
		req := &clusterv1.ApplyWorkloadsRequest{}
		n := min(500, len(ids))
		for _, id := range ids[:n] {
			req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "Running", Spec: spec})
		}
		resp, err := admin.ApplyWorkloads(ctx, req)
		if err != nil {
			return err
		}
		for i, r := range resp.GetResults() {
			if !r.GetSuccess() {
				return fmt.Errorf("workload %s was refused: %s", ids[i], r.GetErrorMessage())
			}
		}
		ids = ids[n:]
	}
	return nil
}

// containerSpec is the specification of a container with nothing but an image and resources.
func containerSpec(image string, resources *controlv1.ResourceRequirements) *controlv1.WorkloadSpec {
	return &controlv1.WorkloadSpec{Type: "container", Resources: resources, Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: image}}}
}
