package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// withGateway runs a benchmark on three schedulers and a gateway, which answers at addr.
func withGateway(ctx context.Context, e *env, fn func(g *group, addr string) (result, error)) (result, error) {
	return withGroup(ctx, e, func(g *group) (r result, err error) {
		bins, err := e.programs()
		if err != nil {
			return r, err
		}
		port, err := harness.FreePort()
		if err != nil {
			return r, err
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		gateway := &harness.Process{Name: "gateway", Path: bins.Gateway, Log: filepath.Join(g.Dir, "gateway.log"),
			Env: append(os.Environ(), "PERSYS_INSECURE=true", "PERSYS_GATEWAY_HTTP_ADDR="+addr, "PERSYS_GATEWAY_PUBLIC_ADDR=none", "LOG_LEVEL=error",
				"PERSYS_SCHEDULER_ADDR="+strings.Join(g.Addrs(), ","))}
		if err := gateway.Start(); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, gateway.Kill()) }()
		return fn(g, addr)
	})
}

// tenThousand applies 10,000 workloads, w-00000 to w-09999.
func (g *group) tenThousand(ctx context.Context) error {
	admin, err := g.AnyAdmin(ctx)
	if err != nil {
		return err
	}
	return applySmall(ctx, admin, containerSpec("nginx:1.27", &controlv1.ResourceRequirements{CpuMillicores: 100, MemoryMb: 64}), numbered("w-%05d", 0, 10_000)...)
}

const hopCalls = 3000

// gatewayHop compares the time of a GetClusterSummary call to the leader over gRPC with that of the same call through a
// gateway over HTTP. It makes one call at a time, alternately in the two ways.
func gatewayHop(ctx context.Context, e *env) (result, error) {
	return withGateway(ctx, e, func(g *group, addr string) (result, error) {
		client, err := g.Any(ctx)
		if err != nil {
			return result{}, err
		}
		tr := &http.Transport{MaxIdleConnsPerHost: 1}
		defer tr.CloseIdleConnections()
		web := &http.Client{Transport: tr, Timeout: 10 * time.Second}
		straight := func(ctx context.Context) error {
			_, err := client.GetClusterSummary(ctx, &controlv1.GetClusterSummaryRequest{})
			return err
		}
		through := func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/summary", nil)
			if err != nil {
				return err
			}
			resp, err := web.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				return err
			}
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("the gateway answered %s, want 200", resp.Status)
			}
			return nil
		}
		if err := testbed.Poll(ctx, 20*time.Second, "an answer of the gateway", through); err != nil {
			return result{}, err
		}
		var direct, hop []time.Duration
		for i := range hopCalls {
			for _, way := range []struct {
				call func(context.Context) error
				into *[]time.Duration
			}{{straight, &direct}, {through, &hop}} {
				began := time.Now()
				if err := way.call(ctx); err != nil {
					return result{}, err
				}
				if i >= hopCalls/10 { // the first calls are not measured: they warm up the programs
					*way.into = append(*way.into, time.Since(began))
				}
			}
		}
		d, h := median(direct), median(hop)
		return result{ours: (h - d).Seconds() * 1000, unit: "ms", goal: 0.5, lower: true,
			note: fmt.Sprintf("median of %d calls in turns: %s directly, %s through the gateway", len(hop), ms(d), ms(h))}, nil
	})
}

// list10k measures the time from the start of persysctl list to its first line.
func list10k(ctx context.Context, e *env) (result, error) {
	return withGroup(ctx, e, func(g *group) (result, error) {
		bins, err := e.programs()
		if err != nil {
			return result{}, err
		}
		if err := g.tenThousand(ctx); err != nil {
			return result{}, err
		}
		var first, whole []time.Duration
		for range 9 {
			cmd := exec.CommandContext(ctx, bins.Ctl, "list")
			cmd.Env, cmd.Stderr = g.CtlEnv(), os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				return result{}, err
			}
			began := time.Now()
			if err := cmd.Start(); err != nil {
				return result{}, err
			}
			var one [1]byte
			_, err = io.ReadFull(out, one[:])
			first = append(first, time.Since(began))
			_, _ = io.Copy(io.Discard, out)
			if werr := cmd.Wait(); err == nil {
				err = werr
			}
			if err != nil {
				return result{}, fmt.Errorf("persysctl list: %w", err)
			}
			whole = append(whole, time.Since(began))
		}
		return result{ours: median(first).Seconds() * 1000, unit: "ms", goal: 200, lower: true,
			note: fmt.Sprintf("start of the program to its first byte, median of 9; all 10,000 lines after %s", ms(median(whole)))}, nil
	})
}
