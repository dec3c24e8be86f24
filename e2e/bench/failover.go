package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

func median[T cmp.Ordered](d []T) T {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// gap calls fail, which makes the leader fail, while one client writes without pause. It returns the time
// from the fault to the acknowledgement of the first write that began after the fault.
func gap(ctx context.Context, write func(context.Context) error, fail func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := write(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := fail(); err != nil {
		return 0, err
	}
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

// failover kills the leader again and again, and measures each gap in the acknowledged writes.
func failover(ctx context.Context, e *env) (result, error) {
	return gaps(ctx, e, 20, 7, 700, (*harness.Process).Kill, (*harness.Process).Start)
}

// failoverHang freezes the leader with SIGSTOP again and again, and measures each gap in the acknowledged
// writes.
func failoverHang(ctx context.Context, e *env) (result, error) {
	return gaps(ctx, e, 5, 3, 5000, (*harness.Process).Pause, (*harness.Process).Continue)
}

// gaps measures n gaps in the acknowledged writes of Persys, and as many gaps in those of etcd as the
// parameter peers says. fail makes the leader fail and repair repairs it. The goal is in milliseconds.
func gaps(ctx context.Context, e *env, n, peers int, goal float64, fail, repair func(*harness.Process) error) (result, error) {
	return withBoth(ctx, e, func(g *group, et *etcdGroup) (result, error) {
		ours, err := ourGaps(ctx, g, n, fail, repair)
		if err != nil {
			return result{}, err
		}
		peer, err := etcdGaps(ctx, et, peers, fail, repair)
		if err != nil {
			return result{}, err
		}
		return result{ours: median(ours).Seconds() * 1000, peer: median(peer).Seconds() * 1000, unit: "ms", goal: goal, lower: true,
			note: fmt.Sprintf("%d faults, worst %s; etcd with its defaults, %d faults, worst %s", n, ms(slices.Max(ours)), peers, ms(slices.Max(peer)))}, nil
	})
}

func ourGaps(ctx context.Context, g *group, n int, fail, repair func(*harness.Process) error) ([]time.Duration, error) {
	write, err := g.writes(ctx)
	if err != nil {
		return nil, err
	}
	var out []time.Duration
	for range n {
		l, err := g.leader(ctx)
		if err != nil {
			return nil, err
		}
		if err := g.caughtUp(ctx); err != nil {
			return nil, err
		}
		d, err := gap(ctx, write, func() error { return fail(l.Process) })
		if err != nil {
			return nil, err
		}
		out = append(out, d)
		if err := repair(l.Process); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// writes returns a function that applies one workload through any scheduler that answers.
func (g *group) writes(ctx context.Context) (func(context.Context) error, error) {
	client, err := g.Any(ctx)
	if err != nil {
		return nil, err
	}
	var seq atomic.Int64
	return func(ctx context.Context) error {
		r, err := client.ApplyWorkload(ctx, applyRequest(0, int(seq.Add(1))))
		if err == nil && !r.GetSuccess() {
			return errors.New(r.GetErrorMessage())
		}
		return err
	}, nil
}

// caughtUp waits until all replicas have applied the same log. If a replica were behind, the measured gap
// would include the time that it needs to catch up.
func (g *group) caughtUp(ctx context.Context) error {
	return testbed.Poll(ctx, 20*time.Second, "the replicas to catch up", func(ctx context.Context) error {
		var applied []uint64
		for i := range g.Schedulers {
			st, err := g.Status(ctx, i)
			if err != nil {
				return err
			}
			applied = append(applied, st.GetAppliedIndex())
		}
		if slices.Max(applied)-slices.Min(applied) >= 5 {
			return fmt.Errorf("the members have applied entries up to %v", applied)
		}
		return nil
	})
}

func etcdGaps(ctx context.Context, et *etcdGroup, n int, fail, repair func(*harness.Process) error) ([]time.Duration, error) {
	write, done, err := et.writes(time.Second)
	if err != nil {
		return nil, err
	}
	defer done()
	var out []time.Duration
	for range n {
		m, err := et.leader(ctx)
		if err != nil {
			return nil, err
		}
		d, err := gap(ctx, write, func() error { return fail(m.Process) })
		if err != nil {
			return nil, err
		}
		out = append(out, d)
		if err := repair(m.Process); err != nil {
			return nil, err
		}
		wait(ctx, 500*time.Millisecond)
	}
	return out, nil
}

// writes returns a function that makes a write within a limit, and a function that closes its client.
func (g *etcdGroup) writes(limit time.Duration) (write func(context.Context) error, done func(), err error) {
	c, err := g.dial()
	if err != nil {
		return nil, nil, err
	}
	seq := 0
	return func(ctx context.Context) error {
		seq++
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		_, err := c.Put(ctx, "failover", fmt.Sprint(seq))
		return err
	}, func() { _ = c.Close() }, nil
}

// transfer measures for how long no write is acknowledged when leadership is transferred by a command.
func transfer(ctx context.Context, e *env) (result, error) {
	return withBoth(ctx, e, func(g *group, et *etcdGroup) (result, error) {
		admin, err := g.AnyAdmin(ctx)
		if err != nil {
			return result{}, err
		}
		var ours, peer []time.Duration
		for range 20 {
			if _, err := g.leader(ctx); err != nil {
				return result{}, err
			}
			if err := g.caughtUp(ctx); err != nil {
				return result{}, err
			}
			cctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			began := time.Now()
			_, err := admin.TransferLeadership(cctx, &clusterv1.TransferLeadershipRequest{})
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
	c, err := dialEtcd(m.client)
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

// soakElections applies workloads at full load for ten minutes. There must be no election: the Raft term must
// not change.
func soakElections(ctx context.Context, e *env) (result, error) {
	return withGroup(ctx, e, func(g *group) (result, error) {
		l, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		before, err := g.Status(ctx, l.Index)
		if err != nil {
			return result{}, err
		}
		o, err := g.applyLoad(ctx, l.GRPC, warm, 10*time.Minute)
		if err != nil {
			return result{}, err
		}
		after, err := g.Status(ctx, l.Index)
		return result{ours: float64(after.GetTerm() - before.GetTerm()), unit: "elections", goal: 0, lower: true,
			note: fmt.Sprintf("%.0f applies/s for ten minutes", o.rate)}, err
	})
}
