package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/testbed"
)

const (
	mirrorWorkloads = 20_000
	mirrorNodes     = 20
	mirrorBatch     = 100 // number of changes in one log entry
	mirrorRun       = 15 * time.Second
	mirrorAhead     = 20 // number of log entries that may wait; the change feed drops older ones
	mirrorOps       = 100
	lagRate         = 1000 // changes per second
)

// mirrorWorld is a replicated state that benchmarks change, with a mirror in one local etcd. The etcd has default
// settings and syncs its log to disk.
type mirrorWorld struct {
	*world
	etcd   *etcdGroup
	client *mirror.Client
	m      *mirror.Mirror
	stop   context.CancelFunc
	done   chan struct{}
}

// attachedTo tells the mirror to which etcd the cluster was attached before: to none.
type attachedTo struct{}

func (attachedTo) Attached() (uint64, bool)                   { return 0, false }
func (attachedTo) MarkAttached(context.Context, uint64) error { return nil }

func startMirror(ctx context.Context, e *env) (w *mirrorWorld, err error) {
	w = &mirrorWorld{done: make(chan struct{})}
	if w.world, err = newWorld(); err != nil {
		return nil, err
	}
	if w.etcd, err = e.startEtcd(ctx, 1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err := w.fill(); err != nil {
		return nil, err
	}
	if w.client, err = mirror.Dial(mirror.Endpoint{Addresses: w.etcd.endpoints()}); err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if w.m, err = mirror.New(mirror.Options{}, mirror.Deps{
		Store: w.store, Etcd: w.client, Confirm: func(context.Context) error { return nil }, Attachment: attachedTo{}, Describe: describeBench, Log: log,
	}); err != nil {
		return nil, err
	}
	mctx, stop := context.WithCancel(ctx)
	w.stop = stop
	go func() {
		defer close(w.done)
		_ = w.m.Run(mctx, worldEpoch) // Run returns when its context ends
	}()
	return w, w.caughtUp(ctx)
}

// describeBench returns the fields of a workload's specification that the mirror writes to etcd, as the
// scheduler's function does.
func describeBench(w *fsm.Workload) mirror.Fields {
	s := &controlv1.WorkloadSpec{}
	if s.UnmarshalVT(w.Spec) != nil {
		return mirror.Fields{}
	}
	c := s.GetContainer()
	return mirror.Fields{Image: c.GetImage(), Command: c.GetCommand(), EnvVars: c.GetEnv(), RestartPolicy: c.GetRestartPolicy(), Metadata: s.GetMetadata()}
}

func mirrorName(i int) string { return fmt.Sprintf("w%05d", i%mirrorWorkloads) }

func (w *mirrorWorld) fill() error {
	for i := range mirrorNodes {
		err := w.register(&commandv1.RegisterNode{
			Id: fmt.Sprint("n", i), Endpoint: "127.0.0.1:1", CpuMillicores: 1_000_000, MemoryMib: 1_000_000, Types: []string{"container"}, Protocol: 1})
		if err != nil {
			return err
		}
	}
	spec, err := (&controlv1.WorkloadSpec{
		Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 10, MemoryMb: 16}, Metadata: map[string]string{"team": "blue"},
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "registry.example/team/app:1.2.3", Command: []string{"app", "--serve"},
			Env: map[string]string{"A": strings.Repeat("x", 40), "B": strings.Repeat("y", 40)}, RestartPolicy: "always"}},
	}).MarshalVT()
	for first := 0; first < mirrorWorkloads && err == nil; first += 1000 {
		ids := numbered("w%05d", first, 1000)
		if err = w.workloads(spec, 10, 16, ids...); err == nil {
			err = w.assign(ids, func(i int) string { return fmt.Sprint("n", (first+i)%mirrorNodes) })
		}
	}
	return err
}

// change reports a new status of n workloads, starting with number i. Each report changes the workload's
// record and adds an event.
func (w *mirrorWorld) change(i, n int) error {
	var reports []*commandv1.WorkloadReport
	for k := i; k < i+n; k++ {
		r := w.running(mirrorName(k))
		r.State = [...]string{"Running", "Stopped"}[(k/mirrorWorkloads)%2]
		reports = append(reports, r)
	}
	return w.report(reports...)
}

// caughtUp waits until etcd has every change of the state.
func (w *mirrorWorld) caughtUp(ctx context.Context) error {
	return testbed.Poll(ctx, 2*time.Minute, "the mirror to catch up", func(context.Context) error {
		if s := w.m.Stats(); s.Index < w.index || s.Health.State != mirror.Healthy {
			return fmt.Errorf("the mirror is at %d of %d: %s %s", s.Index, w.index, s.Health.State, s.Health.Reason)
		}
		return nil
	})
}

func (w *mirrorWorld) close() {
	if w.stop != nil {
		w.stop()
		<-w.done
	}
	if w.client != nil {
		_ = w.client.Close()
	}
	w.etcd.close()
}

// mirrorRate changes workloads as fast as the mirror can follow. The peer is a plain etcd client, which
// puts the same records and events in transactions of the same size.
func mirrorRate(ctx context.Context, e *env) (result, error) {
	w, err := startMirror(ctx, e)
	if err != nil {
		return result{}, err
	}
	defer w.close()
	before := w.m.Stats()
	began, n := time.Now(), 0
	for time.Since(began) < mirrorRun && ctx.Err() == nil {
		if err := w.change(n, mirrorBatch); err != nil {
			return result{}, err
		}
		n += mirrorBatch
		for w.m.Stats().LagIndex > mirrorAhead && ctx.Err() == nil {
			time.Sleep(200 * time.Microsecond)
		}
	}
	if err := w.caughtUp(ctx); err != nil {
		return result{}, err
	}
	took, after := time.Since(began).Seconds(), w.m.Stats()
	if after.Comparisons != before.Comparisons {
		return result{}, errors.New("the mirror fell behind the change feed and compared everything again")
	}
	peer, err := w.plainPuts(ctx)
	if err != nil {
		return result{}, err
	}
	return result{
		ours: float64(n) / took, peer: peer, unit: "records/s", goal: 5000,
		note: fmt.Sprintf("%d changed records in %.1f s, %d keys in %d transactions; %.0f keys/s", n, took,
			after.Records-before.Records, after.Transactions-before.Transactions, float64(after.Records-before.Records)/took),
	}, nil
}

// plainPuts returns how many changed records per second an etcd client writes. For each it writes the
// record and the event, in transactions as large as those of the mirror.
func (w *mirrorWorld) plainPuts(ctx context.Context) (float64, error) {
	c, err := w.etcd.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	view, p := w.view(), w.m.Projection()
	event := []byte(nil)
	view.Events(view.Info().EventSeq-1, func(e *fsm.Event) bool { event = p.Event(e).Value; return false })
	began, n := time.Now(), 0
	for time.Since(began) < mirrorRun && ctx.Err() == nil {
		ops := make([]clientv3.Op, 0, mirrorOps)
		for len(ops) < mirrorOps-1 {
			x, _ := view.Workload(mirrorName(n))
			record := p.Workload(x)[0]
			ops = append(ops, clientv3.OpPut("/plain"+record.Key, string(record.Value)),
				clientv3.OpPut(fmt.Sprintf("/plain/events/%012d", n), string(event)))
			n++
		}
		tctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		_, err := c.Txn(tctx).Then(ops...).Commit()
		cancel()
		if err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), ctx.Err()
}

// mirrorLag changes a thousand records per second. The result is the longest time between a change and its
// arrival in etcd.
func mirrorLag(ctx context.Context, e *env) (result, error) {
	w, err := startMirror(ctx, e)
	if err != nil {
		return result{}, err
	}
	defer w.close()
	const slice = 10 * time.Millisecond
	tick := time.NewTicker(slice)
	defer tick.Stop()
	var worst time.Duration
	n := 0
	for began := time.Now(); time.Since(began) < mirrorRun && ctx.Err() == nil; <-tick.C {
		due := int(time.Since(began).Seconds() * lagRate)
		for ; n < due; n++ {
			if err := w.change(n, 1); err != nil {
				return result{}, err
			}
		}
		worst = max(worst, w.m.Stats().Lag)
	}
	if err := w.caughtUp(ctx); err != nil {
		return result{}, err
	}
	return result{
		ours: float64(worst.Microseconds()) / 1000, unit: "ms", goal: 1000, lower: true,
		note: fmt.Sprintf("%d changes at %d/s, one per log entry", n, lagRate),
	}, nil
}
