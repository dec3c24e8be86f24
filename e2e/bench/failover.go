package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// gap hurts the leader while one client writes without pause, and measures from
// the blow to the first write that began after it and was acknowledged.
func gap(ctx context.Context, write func(context.Context) error, hurt func()) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := write(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	hurt()
	for ctx.Err() == nil {
		cctx, done := context.WithTimeout(ctx, 10*time.Second)
		err := write(cctx)
		done()
		if err == nil {
			return time.Since(began), nil
		}
	}
	return 0, errors.New("no write was acknowledged within 20 s")
}

// failover kills the leader's process, again and again.
func failover(ctx context.Context, e *env) (result, error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return result{}, err
	}
	defer g.close()
	ours, err := ourGaps(ctx, g, 20, func(l *process) { l.kill() }, func(l *process) error { return g.start(l) })
	if err != nil {
		return result{}, err
	}
	et, err := startEtcd(ctx, e.etcd, e.folder())
	if err != nil {
		return result{}, err
	}
	defer et.close()
	peer, err := etcdGaps(ctx, et, 7, func(m *etcdMember) { m.kill() }, func(m *etcdMember) error { return et.start(m) })
	if err != nil {
		return result{}, err
	}
	return result{ours: median(ours).Seconds() * 1000, peer: median(peer).Seconds() * 1000, unit: "ms", goal: 700, lower: true,
		note: fmt.Sprintf("20 kills, worst %s; etcd with its defaults, 7 kills, worst %s", ms(slices.Max(ours)), ms(slices.Max(peer)))}, nil
}

// failoverHang stops the leader's process without killing it.
func failoverHang(ctx context.Context, e *env) (result, error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return result{}, err
	}
	defer g.close()
	sig := func(p *process, s syscall.Signal) error { return p.cmd.Process.Signal(s) }
	ours, err := ourGaps(ctx, g, 5,
		func(l *process) { _ = sig(l, syscall.SIGSTOP) }, func(l *process) error { return sig(l, syscall.SIGCONT) })
	if err != nil {
		return result{}, err
	}
	et, err := startEtcd(ctx, e.etcd, e.folder())
	if err != nil {
		return result{}, err
	}
	defer et.close()
	peer, err := etcdGaps(ctx, et, 3,
		func(m *etcdMember) { _ = m.cmd.Process.Signal(syscall.SIGSTOP) },
		func(m *etcdMember) error { return m.cmd.Process.Signal(syscall.SIGCONT) })
	if err != nil {
		return result{}, err
	}
	return result{ours: median(ours).Seconds() * 1000, peer: median(peer).Seconds() * 1000, unit: "ms", goal: 5000, lower: true,
		note: fmt.Sprintf("worst %s; etcd worst %s; a client has to notice by itself that nobody answers", ms(slices.Max(ours)), ms(slices.Max(peer)))}, nil
}

func ourGaps(ctx context.Context, g *group, n int, hurt func(*process), mend func(*process) error) ([]time.Duration, error) {
	conn, err := dial.Dial(ctx, dial.Options{Addrs: g.addrs, Insecure: true})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := controlv1.NewAgentControlClient(conn)
	var seq atomic.Int64
	write := func(ctx context.Context) error {
		r, err := client.ApplyWorkload(ctx, applyRequest(0, int(seq.Add(1))))
		if err == nil && !r.GetSuccess() {
			return errors.New(r.GetErrorMessage())
		}
		return err
	}
	var out []time.Duration
	for range n {
		l, err := g.leader(ctx, 20*time.Second)
		if err != nil {
			return nil, err
		}
		if err := g.caughtUp(ctx); err != nil {
			return nil, err
		}
		d, err := gap(ctx, write, func() { hurt(l) })
		if err != nil {
			return nil, err
		}
		out = append(out, d)
		if err := mend(l); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// caughtUp waits until all replicas have applied the same log: a kill before that
// would measure something else.
func (g *group) caughtUp(ctx context.Context) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		var first uint64
		same := true
		for i, p := range g.replicas {
			st, err := status(ctx, p.addr)
			if err != nil {
				same = false
				break
			}
			if i == 0 {
				first = st.GetAppliedIndex()
			}
			same = same && st.GetAppliedIndex()+5 > first && first+5 > st.GetAppliedIndex()
		}
		if same {
			return nil
		}
		wait(ctx, 20*time.Millisecond)
	}
	return errors.New("the replicas did not catch up within 20 s")
}

func etcdGaps(ctx context.Context, et *etcdGroup, n int, hurt func(*etcdMember), mend func(*etcdMember) error) ([]time.Duration, error) {
	c, err := et.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	seq := 0
	write := func(ctx context.Context) error {
		seq++
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Put(ctx, "failover", fmt.Sprint(seq))
		return err
	}
	var out []time.Duration
	for range n {
		m, err := et.leader(ctx)
		if err != nil {
			return nil, err
		}
		d, err := gap(ctx, write, func() { hurt(m) })
		if err != nil {
			return nil, err
		}
		out = append(out, d)
		if err := mend(m); err != nil {
			return nil, err
		}
		wait(ctx, 500*time.Millisecond)
	}
	return out, nil
}

// transfer hands leadership over on purpose.
func transfer(ctx context.Context, e *env) (result, error) {
	return withBoth(ctx, e, func(g *group, et *etcdGroup) (result, error) {
		conn, err := dial.Dial(ctx, dial.Options{Addrs: g.addrs, Insecure: true})
		if err != nil {
			return result{}, err
		}
		defer conn.Close()
		var ours, peer []time.Duration
		for range 20 {
			if _, err := g.leader(ctx, 10*time.Second); err != nil {
				return result{}, err
			}
			if err := g.caughtUp(ctx); err != nil {
				return result{}, err
			}
			cctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			began := time.Now()
			_, err := clusterv1.NewClusterClient(conn).TransferLeadership(cctx, &clusterv1.TransferLeadershipRequest{})
			cancel()
			if err != nil {
				return result{}, err
			}
			ours = append(ours, time.Since(began))
		}
		for range 10 {
			d, err := moveEtcdLeader(ctx, et)
			if err != nil {
				return result{}, err
			}
			peer = append(peer, d)
		}
		return result{ours: median(ours).Seconds() * 1000, peer: median(peer).Seconds() * 1000, unit: "ms", goal: 50, lower: true,
			note: fmt.Sprintf("20 transfers, worst %s", ms(slices.Max(ours)))}, nil
	})
}

func moveEtcdLeader(ctx context.Context, et *etcdGroup) (time.Duration, error) {
	m, err := et.leader(ctx)
	if err != nil {
		return 0, err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, DialTimeout: 2 * time.Second})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	st, err := c.Status(ctx, m.client)
	if err != nil {
		return 0, err
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return 0, err
	}
	for _, other := range list.Members {
		if other.ID != st.Header.MemberId {
			began := time.Now()
			_, err := c.MoveLeader(ctx, other.ID)
			return time.Since(began), err
		}
	}
	return 0, errors.New("etcd has one member only")
}

// soakElections applies at full load for ten minutes; the term must not change.
func soakElections(ctx context.Context, e *env) (result, error) {
	g, err := e.startGroup(ctx)
	if err != nil {
		return result{}, err
	}
	defer g.close()
	l, err := g.leader(ctx, 10*time.Second)
	if err != nil {
		return result{}, err
	}
	before, err := status(ctx, l.addr)
	if err != nil {
		return result{}, err
	}
	o, err := g.applyLoad(ctx, l.addr, warm, 10*time.Minute)
	if err != nil {
		return result{}, err
	}
	after, err := status(ctx, l.addr)
	if err != nil {
		return result{}, err
	}
	return result{ours: float64(after.GetTerm() - before.GetTerm()), unit: "elections", goal: 0, lower: true,
		note: fmt.Sprintf("%.0f applies/s for ten minutes", o.rate)}, nil
}
