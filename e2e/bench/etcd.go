package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/persys/compute/e2e/harness"
)

// etcdGroup is a three-member etcd of current version with its own defaults.
type etcdGroup struct {
	bin     string
	dir     string
	members []*etcdMember
}

type etcdMember struct {
	name   string
	client string
	args   []string
	cmd    *exec.Cmd
}

func startEtcd(ctx context.Context, bin, dir string) (*etcdGroup, error) {
	g := &etcdGroup{bin: bin, dir: dir}
	ports, err := harness.FreePorts(6)
	if err != nil {
		return nil, err
	}
	var initial []string
	for i := range 3 {
		initial = append(initial, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[i]))
	}
	for i := range 3 {
		peer, client := fmt.Sprintf("http://127.0.0.1:%d", ports[i]), fmt.Sprintf("http://127.0.0.1:%d", ports[3+i])
		m := &etcdMember{name: fmt.Sprintf("m%d", i), client: client}
		m.args = []string{"--name", m.name, "--data-dir", filepath.Join(dir, m.name),
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--initial-cluster", strings.Join(initial, ","), "--log-level", "error", "--quota-backend-bytes", "8589934592"}
		g.members = append(g.members, m)
		if err := g.start(m); err != nil {
			g.close()
			return nil, err
		}
	}
	c, err := g.dial()
	if err != nil {
		g.close()
		return nil, err
	}
	defer c.Close()
	for deadline := time.Now().Add(20 * time.Second); ; {
		cctx, cancel := context.WithTimeout(ctx, time.Second)
		_, err = c.Put(cctx, "ready", "1")
		cancel()
		if err == nil {
			return g, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			g.close()
			return nil, fmt.Errorf("etcd did not become ready: %w", err)
		}
	}
}

func (g *etcdGroup) start(m *etcdMember) error {
	m.cmd = exec.Command(g.bin, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = io.Discard, io.Discard
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return m.cmd.Start()
}

func (m *etcdMember) kill() {
	if m.cmd != nil && m.cmd.Process != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

func (g *etcdGroup) close() {
	for _, m := range g.members {
		m.kill()
	}
}

func (g *etcdGroup) pids() (out []int) {
	for _, m := range g.members {
		if m.cmd != nil {
			out = append(out, m.cmd.Process.Pid)
		}
	}
	return out
}

func (g *etcdGroup) endpoints() []string {
	var out []string
	for _, m := range g.members {
		out = append(out, m.client)
	}
	return out
}

func (g *etcdGroup) dial() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: g.endpoints(), DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// leader finds the member that leads.
func (g *etcdGroup) leader(ctx context.Context) (*etcdMember, error) {
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		for _, m := range g.members {
			if m.cmd == nil {
				continue
			}
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, DialTimeout: time.Second, Logger: zap.NewNop()})
			if err != nil {
				continue
			}
			cctx, cancel := context.WithTimeout(ctx, time.Second)
			st, err := c.Status(cctx, m.client)
			cancel()
			_ = c.Close()
			if err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId {
				return m, nil
			}
		}
		wait(ctx, 20*time.Millisecond)
	}
	return nil, errors.New("etcd has no leader")
}

// putLoad drives puts, or transactions of batch puts, against the leader with the
// same number of callers and connections as ours.
func (g *etcdGroup) putLoad(ctx context.Context, size, batch int, warm, d time.Duration) (load, error) {
	m, err := g.leader(ctx)
	if err != nil {
		return load{}, err
	}
	var clients []*clientv3.Client
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	for range conns {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			return load{}, err
		}
		clients = append(clients, c)
	}
	value := strings.Repeat("x", size)
	key := func(c, seq int) string { return fmt.Sprintf("bench-%05d", (c*7919+seq*104729)%keySpace) }
	return drive(ctx, g.pids(), callers, warm, d, func(ctx context.Context, c, seq int) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		cl := clients[c%conns]
		if batch == 1 {
			_, err := cl.Put(ctx, key(c, seq), value)
			return 1, err
		}
		ops := make([]clientv3.Op, batch)
		for i := range ops {
			ops[i] = clientv3.OpPut(fmt.Sprintf("%s-%02d", key(c, seq), i), value)
		}
		_, err := cl.Txn(ctx).Then(ops...).Commit()
		return batch, err
	})
}
