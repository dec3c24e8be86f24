package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/persys/compute/rpc/dial"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

const (
	callers  = 256
	conns    = 8 // number of connections of the load generator, the same for both systems
	keySpace = 10_000

	gcPercent = 1000 // GOGC of the load generator while it runs
)

// load holds the figures of one measurement in which many callers write: the rate of writes, their delays and
// the CPU time of the servers.
type load struct {
	rate     float64 // acknowledged writes per second
	p50, p99 time.Duration
	cpu, own time.Duration // CPU time per write: of the servers, and of the load generator
}

// drive runs n callers that make calls with the function do for the time warm+d, and counts the writes that
// are acknowledged after warm. do makes one call and returns the number of its writes. The result also has
// the CPU time of the servers, whose process ids are pids. Unlike the rate, it hardly depends on other load
// of the machine.
func drive(ctx context.Context, pids []int, n int, warm, d time.Duration, do func(ctx context.Context, caller, seq int) (int, error)) (load, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Collect garbage less often. The load generator has a small heap. With the default setting Go would
	// collect it all the time and use a fifth as much CPU time as the servers.
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	var measuring atomic.Bool
	var done atomic.Int64
	var failed atomic.Pointer[error]
	samples := make([][]time.Duration, n)
	var wg sync.WaitGroup
	for c := range n {
		wg.Go(func() {
			for seq := 0; ctx.Err() == nil; seq++ {
				began := time.Now()
				k, err := do(ctx, c, seq)
				if err != nil {
					if ctx.Err() == nil && failed.CompareAndSwap(nil, &err) {
						cancel()
					}
					return
				}
				if measuring.Load() {
					done.Add(int64(k))
					samples[c] = append(samples[c], time.Since(began))
				}
			}
		})
	}
	wait(ctx, warm)
	measuring.Store(true)
	began, used, own := time.Now(), cpuOf(pids...), cpuOf(os.Getpid())
	wait(ctx, d)
	measuring.Store(false)
	took := time.Since(began)
	used, own = cpuOf(pids...)-used, cpuOf(os.Getpid())-own
	cancel()
	wg.Wait()
	if e := failed.Load(); e != nil {
		return load{}, *e
	}
	all := slices.Concat(samples...)
	slices.Sort(all)
	out := load{rate: float64(done.Load()) / took.Seconds()}
	if len(all) > 0 {
		out.p50, out.p99 = all[len(all)/2], all[len(all)*99/100]
		each := float64(time.Second) / float64(done.Load())
		out.cpu, out.own = time.Duration(used*each), time.Duration(own*each)
	}
	return out, nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// dialAll opens n plaintext connections to one address.
func dialAll(addr string, n int) ([]*grpc.ClientConn, func(), error) {
	var out []*grpc.ClientConn
	closeAll := func() {
		for _, c := range out {
			_ = c.Close()
		}
	}
	for range n {
		c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec())))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		out = append(out, c)
	}
	return out, closeAll, nil
}

// applyRequest returns a request to apply a small container. Its content depends on caller and seq, so each
// request is a real change.
func applyRequest(caller, seq int) *controlv1.ApplyWorkloadRequest {
	return &controlv1.ApplyWorkloadRequest{
		WorkloadId: fmt.Sprintf("bench-%05d", (caller*7919+seq*104729)%keySpace),
		Spec: &controlv1.WorkloadSpec{
			Type:      "container",
			Resources: &controlv1.ResourceRequirements{CpuMillicores: 100, MemoryMb: 64},
			Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{
				Image:   "registry.example/team/web:1.27",
				Command: []string{"/bin/web", "--instance", fmt.Sprintf("%d-%d", caller, seq)},
			}},
		},
	}
}

// applyLoad measures calls that each apply one workload, to the replica at addr. It does not measure during
// the time warm, but during d.
func (g *group) applyLoad(ctx context.Context, addr string, warm, d time.Duration) (load, error) {
	cs, done, err := dialAll(addr, conns)
	if err != nil {
		return load{}, err
	}
	defer done()
	clients := make([]controlv1.AgentControlClient, len(cs))
	for i, c := range cs {
		clients[i] = controlv1.NewAgentControlClient(c)
	}
	return drive(ctx, g.pids(), callers, warm, d, func(ctx context.Context, c, seq int) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		r, err := clients[c%conns].ApplyWorkload(ctx, applyRequest(c, seq))
		if err == nil && !r.GetSuccess() {
			err = errors.New(r.GetErrorMessage())
		}
		return 1, err
	})
}

// manyLoad measures calls to one replica of g, each of which applies several workloads (the parameter each).
// As many writes are in flight as in the benchmark of etcd.
func (g *group) manyLoad(ctx context.Context, addr string, callers, each int, warm, d time.Duration) (load, error) {
	cs, done, err := dialAll(addr, conns)
	if err != nil {
		return load{}, err
	}
	defer done()
	clients := make([]clusterv1.ClusterClient, len(cs))
	for i, c := range cs {
		clients[i] = clusterv1.NewClusterClient(c)
	}
	return drive(ctx, g.pids(), callers, warm, d, func(ctx context.Context, c, seq int) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		req := &clusterv1.ApplyWorkloadsRequest{Workloads: make([]*controlv1.ApplyWorkloadRequest, each)}
		for i := range req.Workloads {
			req.Workloads[i] = applyRequest(c, seq*each+i)
		}
		r, err := clients[c%conns].ApplyWorkloads(ctx, req)
		if err != nil {
			return 0, err
		}
		for _, one := range r.GetResults() {
			if !one.GetSuccess() {
				return 0, errors.New(one.GetErrorMessage())
			}
		}
		return len(r.GetResults()), nil
	})
}
