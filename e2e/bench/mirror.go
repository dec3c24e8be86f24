package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/mirror"
)

const (
	mirrorWorkloads = 20_000
	mirrorNodes     = 20
	mirrorBatch     = 100 // changes of one log entry
	mirrorRun       = 15 * time.Second
	mirrorAhead     = 20 // log entries that may wait: the feed forgets older ones
	mirrorOps       = 100
	lagRate         = 1000 // changes per second
)

// mirrorWorld is a state that changes, and the mirror of it in one local etcd that
// syncs its log as it does by default.
type mirrorWorld struct {
	st     *store.Store
	index  uint64
	now    int64
	etcd   *exec.Cmd
	url    string
	client *mirror.Client
	m      *mirror.Mirror
	stop   context.CancelFunc
	done   chan struct{}
}

// attachedTo stands for the replicated fact.
type attachedTo struct{}

func (attachedTo) Attached() (uint64, bool)                   { return 0, false }
func (attachedTo) MarkAttached(context.Context, uint64) error { return nil }

func startMirror(ctx context.Context, e *env) (w *mirrorWorld, err error) {
	if err := e.build(ctx); err != nil {
		return nil, err
	}
	ports, err := harness.FreePorts(2)
	if err != nil {
		return nil, err
	}
	w = &mirrorWorld{st: store.New(fsm.New()), now: time.Now().UnixNano(), url: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), done: make(chan struct{})}
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	w.etcd = exec.Command(e.etcd, "--name=m", "--data-dir="+filepath.Join(e.folder(), "etcd"), "--listen-client-urls="+w.url, "--advertise-client-urls="+w.url,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=m="+peer, "--log-level=error")
	w.etcd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.etcd.Stdout, w.etcd.Stderr = io.Discard, io.Discard
	if err := w.etcd.Start(); err != nil {
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
	if w.client, err = mirror.Dial(mirror.Endpoint{Addresses: []string{w.url}}); err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if w.m, err = mirror.New(mirror.Options{}, mirror.Deps{
		Store: w.st, Etcd: w.client, Confirm: func(context.Context) error { return nil }, Attachment: attachedTo{}, Describe: describeBench, Log: log,
	}); err != nil {
		return nil, err
	}
	mctx, stop := context.WithCancel(ctx)
	w.stop = stop
	go func() {
		defer close(w.done)
		_ = w.m.Run(mctx, fsm.Epoch{Incarnation: 1000, Term: 1}) // it ends with its context
	}()
	return w, w.caughtUp(ctx)
}

// describeBench reads a specification, as the scheduler's own does.
func describeBench(w *fsm.Workload) mirror.Fields {
	s := &controlv1.WorkloadSpec{}
	if s.UnmarshalVT(w.Spec) != nil {
		return mirror.Fields{}
	}
	c := s.GetContainer()
	return mirror.Fields{Image: c.GetImage(), Command: c.GetCommand(), EnvVars: c.GetEnv(), RestartPolicy: c.GetRestartPolicy(), Metadata: s.GetMetadata()}
}

func (w *mirrorWorld) do(list ...fsm.Command) error {
	w.index++
	tx := w.st.State().Begin()
	tx.Expect(len(list))
	for _, c := range list {
		w.now += int64(time.Microsecond)
		c.Head = &commandv1.Head{At: w.now, By: "bench", Epoch: &commandv1.Epoch{Incarnation: 1000, Term: 1}}
		if res, _ := tx.Apply(fsm.Meta{Index: w.index, Term: 1}, c); res.Err() != nil {
			return res.Err()
		}
	}
	changes := tx.Changes()
	w.st.Publish(tx.Commit(), changes)
	return nil
}

func (w *mirrorWorld) name(i int) string { return fmt.Sprintf("w%05d", i%mirrorWorkloads) }

func (w *mirrorWorld) fill() error {
	list := []fsm.Command{{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "bench", Incarnation: 1000}}}}
	for i := range mirrorNodes {
		list = append(list, &commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: fmt.Sprint("n", i), Endpoint: "127.0.0.1:1", CpuMillicores: 1_000_000, MemoryMib: 1_000_000, Types: []string{"container"}, Protocol: 1}}})
	}
	if err := w.do(list...); err != nil {
		return err
	}
	spec, err := (&controlv1.WorkloadSpec{
		Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 10, MemoryMb: 16}, Metadata: map[string]string{"team": "blue"},
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "registry.example/team/app:1.2.3", Command: []string{"app", "--serve"},
			Env: map[string]string{"A": strings.Repeat("x", 40), "B": strings.Repeat("y", 40)}, RestartPolicy: "always"}},
	}).MarshalVT()
	if err != nil {
		return err
	}
	for first := 0; first < mirrorWorkloads; first += 1000 {
		put := &commandv1.PutWorkloads{}
		for i := first; i < first+1000; i++ {
			put.Workloads = append(put.Workloads, &commandv1.WorkloadPut{
				Id: w.name(i), Spec: spec, Content: "c1:" + strings.Repeat("0", 64), Desired: "Running",
				Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 16}})
		}
		if err := w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: put}}); err != nil {
			return err
		}
		assign := &commandv1.Assign{}
		for i := first; i < first+1000; i++ {
			assign.Assignments = append(assign.Assignments, &commandv1.Assignment{Workload: w.name(i), Node: fmt.Sprint("n", i%mirrorNodes), IfGeneration: w.generation(i)})
		}
		if err := w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: assign}}); err != nil {
			return err
		}
	}
	return nil
}

func (w *mirrorWorld) generation(i int) *commandv1.Generation {
	x, _ := w.st.View().Workload(w.name(i))
	return &commandv1.Generation{Incarnation: x.Generation.Incarnation, Sequence: x.Generation.Sequence}
}

// change reports another state of n workloads, from the i-th on: each changes its
// record and leaves an event.
func (w *mirrorWorld) change(i, n int) error {
	r := &commandv1.Report{}
	for k := i; k < i+n; k++ {
		r.Reports = append(r.Reports, &commandv1.WorkloadReport{
			Workload: w.name(k), Node: fmt.Sprint("n", k%mirrorWorkloads%mirrorNodes), Generation: w.generation(k), Acknowledged: true,
			State: [...]string{"Running", "Stopped"}[(k/mirrorWorkloads)%2], ObservedAt: w.now,
		})
	}
	return w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: r}})
}

// caughtUp waits until etcd holds everything.
func (w *mirrorWorld) caughtUp(ctx context.Context) error {
	for deadline := time.Now().Add(2 * time.Minute); ctx.Err() == nil; wait(ctx, 5*time.Millisecond) {
		s := w.m.Stats()
		switch {
		case s.Index >= w.index && s.Health.State == mirror.Healthy:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the mirror does not catch up: %s %s", s.Health.State, s.Health.Reason)
		}
	}
	return ctx.Err()
}

func (w *mirrorWorld) close() {
	if w.stop != nil {
		w.stop()
		<-w.done
	}
	if w.client != nil {
		_ = w.client.Close()
	}
	_ = w.etcd.Process.Kill()
	_ = w.etcd.Wait()
}

// mirrorRate changes workloads as fast as the mirror follows. The peer is etcd's
// own client, which puts the same records and events, as many to a transaction.
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
		return result{}, errors.New("the feed was outrun: the mirror compared everything anew")
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

// plainPuts is how many changed records a plain client writes per second: the
// record and the event of each, in transactions of the same number of operations.
func (w *mirrorWorld) plainPuts(ctx context.Context) (float64, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{w.url}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	view, p := w.st.View(), w.m.Projection()
	event := []byte(nil)
	view.Events(view.Info().EventSeq-1, func(e *fsm.Event) bool { event = p.Event(e).Value; return false })
	began, n := time.Now(), 0
	for time.Since(began) < mirrorRun && ctx.Err() == nil {
		ops := make([]clientv3.Op, 0, mirrorOps)
		for len(ops) < mirrorOps-1 {
			x, _ := view.Workload(w.name(n))
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

// mirrorLag changes a thousand records per second and takes the worst age of a
// change that etcd did not hold yet.
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
