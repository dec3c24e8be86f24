package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// env is what benches share: binaries, built once, and a folder.
type env struct {
	root      string // of the checkout
	dir       string
	scheduler string
	etcd      string
	namers    *namers // nil until a DNS bench starts them
	fifty     *fiftyFigures
	quiet     *agentFigures
	count     int
}

func newEnv(ctx context.Context) (*env, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return nil, errors.New("run it from the root of the repository: go run ./e2e/bench")
	}
	dir, err := os.MkdirTemp("", "persys-bench-")
	if err != nil {
		return nil, err
	}
	return &env{root: root, dir: dir}, nil
}

func (e *env) close() {
	if e.namers != nil {
		e.namers.close()
	}
	_ = os.RemoveAll(e.dir)
}

func (e *env) folder() string {
	e.count++
	return filepath.Join(e.dir, fmt.Sprint("run", e.count))
}

func (e *env) build(ctx context.Context) error {
	if e.scheduler == "" {
		bin, err := e.program(ctx, "scheduler")
		if err != nil {
			return err
		}
		e.scheduler = bin
	}
	if e.etcd == "" {
		bin, err := testbed.Server(ctx, "etcd")
		if err != nil {
			return fmt.Errorf("building etcd: %w", err)
		}
		e.etcd = bin
	}
	return nil
}

// group is three scheduler processes with the shipped defaults.
type group struct {
	bin      string
	replicas []*process
	addrs    []string
}

type process struct {
	name, addr string
	dns        string
	args, env  []string
	log        string
	cmd        *exec.Cmd
}

func (e *env) startGroup(ctx context.Context) (*group, error) {
	if err := e.build(ctx); err != nil {
		return nil, err
	}
	ports, err := harness.FreePorts(15)
	if err != nil {
		return nil, err
	}
	dir := e.folder()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	g := &group{bin: e.scheduler}
	var join []string
	for i := range 3 {
		join = append(join, fmt.Sprintf("127.0.0.1:%d", ports[i*5+3]))
	}
	for i := range 3 {
		p := ports[i*5 : i*5+5]
		name := fmt.Sprint("s", i+1)
		proc := &process{
			name: name, addr: fmt.Sprintf("127.0.0.1:%d", p[0]), dns: fmt.Sprintf("127.0.0.1:%d", p[4]), log: filepath.Join(dir, name+".log"),
			args: []string{"-insecure", "--name", name, "--data-dir", filepath.Join(dir, name), "--bootstrap-expect", "3",
				"--join", strings.Join(join, ","), "--grpc-port", fmt.Sprint(p[0]), "--metrics-port", fmt.Sprint(p[1]),
				"--raft-addr", fmt.Sprintf("127.0.0.1:%d", p[2]), "--gossip-addr", join[i], "--log-level", "warn"},
			env: append(os.Environ(), "ETCD_ENDPOINTS=none"),
		}
		proc.args = append(proc.args, "--dns-addr", proc.dns)
		g.replicas, g.addrs = append(g.replicas, proc), append(g.addrs, proc.addr)
		if err := g.start(proc); err != nil {
			g.close()
			return nil, err
		}
	}
	if _, err := g.leader(ctx, 30*time.Second); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *group) start(p *process) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(g.bin, p.args...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = p.env, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p.cmd.Start()
}

func (p *process) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

func (g *group) pids() (out []int) {
	for _, p := range g.replicas {
		if p.cmd != nil {
			out = append(out, p.cmd.Process.Pid)
		}
	}
	return out
}

func (g *group) close() {
	for _, p := range g.replicas {
		p.kill()
	}
}

// leader waits until every running replica names the same leader, and returns it.
func (g *group) leader(ctx context.Context, within time.Duration) (*process, error) {
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		named := map[string]int{}
		running := 0
		for _, p := range g.replicas {
			if p.cmd == nil {
				continue
			}
			running++
			if st, err := status(ctx, p.addr); err == nil && st.GetLeaderAddr() != "" {
				named[st.GetLeaderAddr()]++
			}
		}
		for _, p := range g.replicas {
			if p.cmd != nil && named[p.addr] == running {
				return p, nil
			}
		}
		wait(ctx, 20*time.Millisecond)
	}
	return nil, fmt.Errorf("the schedulers agreed on no leader within %s; see the logs in %s", within, filepath.Dir(g.replicas[0].log))
}

func status(ctx context.Context, addr string) (*clusterv1.StatusResponse, error) {
	cs, done, err := dialAll(addr, 1)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return clusterv1.NewClusterClient(cs[0]).Status(ctx, &clusterv1.StatusRequest{}, grpc.WaitForReady(true))
}
