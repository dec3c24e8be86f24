package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/rpc/dial"
)

// program builds one of the other programs as it is shipped.
func (e *env) program(ctx context.Context, name string) (string, error) {
	bin := filepath.Join(e.dir, name)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./cmd/"+name)
	cmd.Dir, cmd.Stderr, cmd.Env = e.root, os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return bin, nil
}

// startGateway runs a gateway in front of schedulers until stop is called.
func (e *env) startGateway(ctx context.Context, schedulers []string) (addr string, stop func(), err error) {
	bin, err := e.program(ctx, "gateway")
	if err != nil {
		return "", nil, err
	}
	ports, err := harness.FreePorts(1)
	if err != nil {
		return "", nil, err
	}
	addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
	gw := exec.Command(bin)
	gw.Env = append(os.Environ(), "PERSYS_INSECURE=true", "PERSYS_GATEWAY_HTTP_ADDR="+addr, "PERSYS_GATEWAY_PUBLIC_ADDR=none", "LOG_LEVEL=error",
		"PERSYS_SCHEDULER_ADDR="+strings.Join(schedulers, ","))
	gw.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := gw.Start(); err != nil {
		return "", nil, err
	}
	return addr, func() { _ = gw.Process.Kill(); _ = gw.Wait() }, nil
}

// tenThousand records 10,000 workloads, w-00000 to w-09999.
func tenThousand(ctx context.Context, addrs []string) error {
	conn, err := dial.Dial(ctx, dial.Options{Addrs: addrs, Insecure: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	client := clusterv1.NewClusterClient(conn)
	for n := 0; n < 10_000; n += 500 {
		req := &clusterv1.ApplyWorkloadsRequest{}
		for i := range 500 {
			req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{WorkloadId: fmt.Sprintf("w-%05d", n+i), Spec: &controlv1.WorkloadSpec{
				Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 100, MemoryMb: 64},
				Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "nginx:1.27"}},
			}})
		}
		if _, err := client.ApplyWorkloads(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

const hopCalls = 3000

// gatewayHop asks for the summary in turns, once straight from the leader over
// gRPC and once through a gateway over HTTP, one call at a time.
func gatewayHop(ctx context.Context, e *env) (result, error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return result{}, err
	}
	defer g.close()
	addr, stop, err := e.startGateway(ctx, g.addrs)
	if err != nil {
		return result{}, err
	}
	defer stop()
	conn, err := dial.Dial(ctx, dial.Options{Addrs: g.addrs, Insecure: true})
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	client := controlv1.NewAgentControlClient(conn)
	tr := &http.Transport{MaxIdleConnsPerHost: 1}
	defer tr.CloseIdleConnections()
	web := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	straight := func() error {
		_, err := client.GetClusterSummary(ctx, &controlv1.GetClusterSummaryRequest{})
		return err
	}
	through := func() error {
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
			return fmt.Errorf("the gateway answered %s", resp.Status)
		}
		return nil
	}
	for until := time.Now().Add(20 * time.Second); ; wait(ctx, 50*time.Millisecond) {
		if err = through(); err == nil || time.Now().After(until) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return result{}, err
	}
	var direct, hop []time.Duration
	for i := range hopCalls {
		for _, way := range []struct {
			call func() error
			into *[]time.Duration
		}{{straight, &direct}, {through, &hop}} {
			began := time.Now()
			if err := way.call(); err != nil {
				return result{}, err
			}
			if i >= hopCalls/10 { // the first warm up
				*way.into = append(*way.into, time.Since(began))
			}
		}
	}
	d, h := median(direct), median(hop)
	return result{ours: (h - d).Seconds() * 1000, unit: "ms", goal: 0.5, lower: true,
		note: fmt.Sprintf("median of %d calls in turns: %s straight, %s through the gateway", len(hop), ms(d), ms(h))}, nil
}

// list10k measures from the start of `persysctl list` to its first line.
func list10k(ctx context.Context, e *env) (result, error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return result{}, err
	}
	defer g.close()
	bin, err := e.program(ctx, "persysctl")
	if err != nil {
		return result{}, err
	}
	if err := tenThousand(ctx, g.addrs); err != nil {
		return result{}, err
	}
	var first, whole []time.Duration
	for range 9 {
		cmd := exec.CommandContext(ctx, bin, "list")
		cmd.Env = append(os.Environ(), "PERSYS_INSECURE=true", "PERSYS_SCHEDULER_ADDR="+strings.Join(g.addrs, ","))
		cmd.Stderr = os.Stderr
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
}
