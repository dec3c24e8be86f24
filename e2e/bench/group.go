package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// env is the state that benchmarks share: the programs, which are built once, and a folder.
type env struct {
	dir      string
	programs func() (harness.Binaries, error) // as they are released
	etcd     func() (string, error)           // path of the program
	namers   *namers                          // nil until a DNS benchmark starts them
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
			return harness.Build(ctx, harness.BuildOptions{Dir: filepath.Join(dir, "bin"),
				Programs: []string{harness.SchedulerProgram, harness.AgentProgram, harness.CtlProgram, harness.GatewayProgram}})
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

// startGroup starts n schedulers. The logs of a group that fails are in the folder of the benchmark.
func (e *env) startGroup(ctx context.Context, n int, more ...string) (*group, error) {
	bins, err := e.programs()
	if err != nil {
		return nil, err
	}
	dir, err := e.folder()
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"LOG_LEVEL": "warn"}
	for i := 0; i+1 < len(more); i += 2 {
		settings[more[i]] = more[i+1]
	}
	c, err := harness.Start(ctx, harness.Options{Schedulers: n, Binaries: bins, Dir: dir, SchedulerEnv: settings})
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

// applySmall applies containers of 100 millicores and 64 MiB, or of the resources given, in calls of 500.
func applySmall(ctx context.Context, admin clusterv1.ClusterClient, image string, resources *controlv1.ResourceRequirements, ids ...string) error {
	for len(ids) > 0 {
		req := &clusterv1.ApplyWorkloadsRequest{}
		n := min(500, len(ids))
		for _, id := range ids[:n] {
			req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "Running", Spec: &controlv1.WorkloadSpec{
				Type: "container", Resources: resources, Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: image}},
			}})
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
