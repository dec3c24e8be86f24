package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// rounds is the number of turns in which Persys and the peer (the program that it is compared with) are measured
// alternately. With many short turns, other load of the machine affects both equally.
const rounds = 8

// against measures Persys (ours) and the peer (the program that it is compared with) in turns and returns the
// mean of each. Before each measurement the load runs for some time without being measured. This time is
// longer in the first turn, because the processes then allocate memory.
func against(ctx context.Context, ours, peer func(warm time.Duration) (load, error)) (o, p load, err error) {
	for round := range rounds {
		before := warm
		if round == 0 {
			before = warmFirst
		}
		a, err := ours(before)
		if err != nil {
			return o, p, fmt.Errorf("the load on Persys: %w", err)
		}
		b, err := peer(before)
		if err != nil {
			return o, p, fmt.Errorf("the load on the peer: %w", err)
		}
		o.rate, p.rate = o.rate+a.rate/rounds, p.rate+b.rate/rounds
		o.p50, p.p50 = o.p50+a.p50/rounds, p.p50+b.p50/rounds
		o.p99, p.p99 = o.p99+a.p99/rounds, p.p99+b.p99/rounds
		o.cpu, p.cpu = o.cpu+a.cpu/rounds, p.cpu+b.cpu/rounds
		o.own, p.own = o.own+a.own/rounds, p.own+b.own/rounds
	}
	return o, p, ctx.Err()
}

// A new process writes to fresh memory until its first garbage collections. The speed of such writes
// differs much between machines, so each process warms up before it is measured.
const (
	warmFirst = 14 * time.Second
	warm      = 500 * time.Millisecond
	measure   = time.Second
)

// withBoth runs a benchmark on three schedulers and on an etcd with three members.
func withBoth(ctx context.Context, e *env, fn func(*group, *etcdGroup) (result, error)) (result, error) {
	return withGroup(ctx, e, func(g *group) (r result, err error) {
		et, err := e.startEtcd(ctx, 3)
		if err != nil {
			return r, err
		}
		defer et.close()
		return fn(g, et)
	})
}

// applyUnary measures the rate of calls to the leader that apply one workload each, and compares it with puts
// to etcd.
func applyUnary(ctx context.Context, e *env) (result, error) {
	return withBoth(ctx, e, func(g *group, et *etcdGroup) (result, error) {
		l, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		size := proto.Size(applyRequest(1, 1))
		o, p, err := against(ctx,
			func(warm time.Duration) (load, error) { return g.applyLoad(ctx, l.GRPC, warm, measure) },
			func(warm time.Duration) (load, error) { return et.putLoad(ctx, size, 1, warm, measure) })
		return result{ours: o.rate, peer: p.rate, unit: "applies/s", goal: 1.3, goalIsRatio: true,
			note: fmt.Sprintf("%d callers, %d bytes; ours p50 %s p99 %s, etcd p50 %s p99 %s; %s",
				callers, size, ms(o.p50), ms(o.p99), ms(p.p50), ms(p.p99), cpuNote(o, p))}, err
	})
}

// manyEach is the number of workloads per call, as in persysctl apply. manyCallers is chosen so that as many
// workloads are being applied at the same time as puts are in the benchmark of etcd, whose callers send 16
// puts in a transaction.
const (
	manyEach    = 256
	manyCallers = callers * 16 / manyEach
)

// applyMany measures calls that each apply many workloads, and compares them with etcd transactions of 16 puts.
func applyMany(ctx context.Context, e *env) (result, error) {
	return withBoth(ctx, e, func(g *group, et *etcdGroup) (result, error) {
		l, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		size := proto.Size(applyRequest(1, 1))
		o, p, err := against(ctx,
			func(warm time.Duration) (load, error) {
				return g.manyLoad(ctx, l.GRPC, manyCallers, manyEach, warm, measure)
			},
			func(warm time.Duration) (load, error) { return et.putLoad(ctx, size, 16, warm, measure) })
		return result{ours: o.rate, peer: p.rate, unit: "applies/s", goal: 2, goalIsRatio: true,
			note: fmt.Sprintf("%d callers of %d applies per call, p99 %s; etcd with %d callers of 16-put transactions, p99 %s; %d bytes each; %s",
				manyCallers, manyEach, ms(o.p99), callers, ms(p.p99), size, cpuNote(o, p))}, err
	})
}

// applyHop compares applies through a follower, which forwards them, with applies that are sent to the
// leader.
func applyHop(ctx context.Context, e *env) (result, error) {
	return withGroup(ctx, e, func(g *group) (result, error) {
		l, err := g.leader(ctx)
		if err != nil {
			return result{}, err
		}
		follower := g.Schedulers[(l.Index+1)%len(g.Schedulers)]
		o, p, err := against(ctx,
			func(warm time.Duration) (load, error) { return g.applyLoad(ctx, follower.GRPC, warm, measure) },
			func(warm time.Duration) (load, error) { return g.applyLoad(ctx, l.GRPC, warm, measure) })
		return result{ours: o.rate, peer: p.rate, unit: "applies/s", goal: 0.4, goalIsRatio: true,
			note: fmt.Sprintf("p50 through a follower %s, directly at the leader %s", ms(o.p50), ms(p.p50))}, err
	})
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000) }

// cpuNote formats the CPU time per write of Persys and of the program that the benchmark compares it with.
func cpuNote(o, p load) string {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return fmt.Sprintf("CPU per write %.1fµs in the servers and %.1fµs in the load generator, etcd %.1fµs and %.1fµs",
		us(o.cpu), us(o.own), us(p.cpu), us(p.own))
}
