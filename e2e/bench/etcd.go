package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// etcdGroup is an etcd of the current version with default settings.
type etcdGroup struct{ members []*etcdMember }

type etcdMember struct {
	*harness.Process
	client string // client URL of the member
}

// startEtcd starts an etcd with n members and waits until it accepts a write. data has the data directories
// of the first members; the other members get new folders.
func (e *env) startEtcd(ctx context.Context, n int, data ...string) (g *etcdGroup, err error) {
	bin, err := e.etcd()
	if err != nil {
		return nil, fmt.Errorf("building etcd: %w", err)
	}
	dir, err := e.folder()
	if err != nil {
		return nil, err
	}
	ports, err := harness.FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, url(ports[i])))
	}
	g = &etcdGroup{}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	for i := range n {
		peer, client, name := url(ports[i]), url(ports[n+i]), fmt.Sprintf("m%d", i)
		at := filepath.Join(dir, name)
		if i < len(data) {
			at = data[i]
		}
		m := &etcdMember{client: client, Process: &harness.Process{
			Name: name, Path: bin, Env: os.Environ(), Log: filepath.Join(dir, name+".log"),
			Args: []string{"--name", name, "--data-dir", at,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--initial-cluster", strings.Join(initial, ","), "--log-level", "error", "--quota-backend-bytes", "8589934592"},
		}}
		g.members = append(g.members, m)
		if err := m.Start(); err != nil {
			return nil, err
		}
	}
	c, err := g.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return g, testbed.Poll(ctx, 20*time.Second, "a write to etcd", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Put(ctx, "ready", "1")
		return err
	})
}

func (g *etcdGroup) close() {
	for _, m := range g.members {
		_ = m.Kill()
	}
}

func (g *etcdGroup) pids() (out []int) {
	for _, m := range g.members {
		if m.Running() {
			out = append(out, m.PID())
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

func (g *etcdGroup) dial() (*clientv3.Client, error) { return dialEtcd(g.endpoints()...) }

func dialEtcd(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// leader waits for a leader and returns that member.
func (g *etcdGroup) leader(ctx context.Context) (leader *etcdMember, err error) {
	err = testbed.Poll(ctx, 15*time.Second, "a leader of etcd", func(ctx context.Context) error {
		for _, m := range g.members {
			if !m.Running() {
				continue
			}
			c, err := dialEtcd(m.client)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			st, err := c.Status(ctx, m.client)
			cancel()
			_ = c.Close()
			if err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId {
				leader = m
				return nil
			}
		}
		return errors.New("no member leads")
	})
	return leader, err
}

// putLoad measures puts of values of size bytes at the etcd leader or, with batch above 1, transactions of
// batch puts each. It uses as many callers and connections as the benchmark of Persys, and does not measure
// during the time warm, but during d.
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
		c, err := dialEtcd(m.client)
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
