package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/order"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

const (
	clients   = 8
	workloads = 12
	// opLimit is the time limit of one attempt. patience is the time limit of all attempts of one
	// operation.
	opLimit  = 2 * time.Second
	patience = 15 * time.Second
	// pace is the shortest time between the beginnings of two operations of one client.
	pace = 4 * time.Millisecond
)

// traffic is eight clients that apply unique content to a dozen workloads and read it back through random
// replicas. Clients with an even number repeat an operation under its request id until they know its
// outcome, as our own programs do. The other clients do not repeat an operation with an unknown outcome, as legacy
// clients do.
type traffic struct {
	t       *testing.T
	c       *harness.Cluster
	rec     *recorder
	stop    context.CancelFunc
	wg      sync.WaitGroup
	acked   atomic.Int64
	unknown atomic.Int64
	failed  atomic.Int64 // number of calls that were refused without any effect
	freezes atomic.Bool  // the cluster is frozen at times, so clients expect refusals
	held    atomic.Bool  // the clients pause
}

// load starts the traffic. Its method end stops it; so does the end of the test.
func load(t *testing.T, c *harness.Cluster) *traffic {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	tr := &traffic{t: t, c: c, rec: newRecorder(), stop: stop}
	for i := range clients {
		tr.wg.Go(func() { tr.client(ctx, i) })
	}
	t.Cleanup(func() { stop(); tr.wg.Wait() })
	return tr
}

// end stops the clients, reads every workload once more through every replica, and checks the
// history.
func (tr *traffic) end() {
	tr.t.Helper()
	tr.stop()
	tr.wg.Wait()
	for w := range workloads {
		for via := range tr.c.Schedulers {
			if !tr.c.Schedulers[via].Running() {
				continue
			}
			o := op{Client: clients, Workload: workloadName(w), Via: via}
			if !tr.read(tr.t.Context(), &o, via) {
				tr.t.Errorf("the last read of %s through %s failed: %s", o.Workload, tr.c.Schedulers[via].Name, o.Error)
				return
			}
		}
	}
	ops := tr.rec.all()
	tr.t.Logf("%d operations: %d applies acknowledged, %d of unknown outcome, %d refused without effect",
		len(ops), tr.acked.Load(), tr.unknown.Load(), tr.failed.Load())
	judge(tr.t, ops)
}

func workloadName(i int) string { return fmt.Sprintf("w%02d", i) }

// more waits until n further writes have been acknowledged since the call.
func (tr *traffic) more(n int64, limit time.Duration) {
	tr.t.Helper()
	want := tr.acked.Load() + n
	must(tr.t, testbed.Poll(tr.t.Context(), limit, fmt.Sprintf("waiting for %d more acknowledged applies", n), func(context.Context) error {
		if got := tr.acked.Load(); got < want {
			return fmt.Errorf("%d applies of the clients are still to be acknowledged", want-got)
		}
		return nil
	}))
}

func (tr *traffic) client(ctx context.Context, id int) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if tr.held.Load() {
			continue
		}
		via := rand.IntN(len(tr.c.Schedulers))
		if n == 0 {
			via = id % len(tr.c.Schedulers)
		}
		o := op{Client: id, Workload: workloadName(rand.IntN(workloads)), Via: via}
		if rand.IntN(3) == 0 {
			tr.read(ctx, &o, via)
			continue
		}
		o.Write = fmt.Sprintf("c%d-%d", id, n)
		tr.write(ctx, &o, via, id%2 == 0)
	}
}

// contentSpec returns the spec of a small container. Different contents give different revisions.
func contentSpec(content string) *controlv1.WorkloadSpec {
	return &controlv1.WorkloadSpec{
		Type:      "container",
		Resources: &controlv1.ResourceRequirements{CpuMillicores: 10, MemoryMb: 8},
		Workload:  &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "persys/none:1"}},
		Metadata:  map[string]string{"content": content},
	}
}

// write applies one workload. If insist is set, it repeats the call until the outcome is known.
func (tr *traffic) write(ctx context.Context, o *op, via int, insist bool) {
	id, err := uuid.NewV7()
	if err != nil {
		tr.t.Error(err)
		return
	}
	req := &controlv1.ApplyWorkloadRequest{WorkloadId: o.Workload, Spec: contentSpec(o.Write), RevisionId: o.Write, RequestId: id.String()}
	o.Call = tr.rec.now()
	deadline := time.Now().Add(patience)
	happened := false // happened is true if an attempt may have been committed
	for {
		control, err := tr.c.Control(via)
		if err != nil {
			tr.t.Error(err)
			return
		}
		// Do not use the client's context: when the test ends it, a call that it interrupts would have an unknown
		// outcome.
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opLimit)
		resp, err := control.ApplyWorkload(actx, req)
		cancel()
		if err == nil {
			o.Return = tr.rec.now()
			if !resp.GetSuccess() && tr.freezes.Load() && strings.Contains(resp.GetErrorMessage(), "in mode") {
				o.Return = 0 // the outcome stays unknown, because an earlier attempt may have been committed
				pause(ctx, 20*time.Millisecond)
				break
			}
			if !resp.GetSuccess() {
				tr.t.Errorf("apply of %s through %s was refused: %s", o.Workload, tr.c.Schedulers[via].Name, resp.GetErrorMessage())
				return
			}
			o.Gen, o.Index = order.GenerationOf(resp.GetGeneration()), resp.GetIndex()
			tr.acked.Add(1)
			tr.rec.add(*o)
			return
		}
		if !harmless(err) {
			happened = true
			o.Error = err.Error()
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted && code != codes.DeadlineExceeded && code != codes.ResourceExhausted {
			tr.t.Errorf("apply of %s through %s: %v", o.Workload, tr.c.Schedulers[via].Name, err)
		}
		if !insist || time.Now().After(deadline) {
			break
		}
		via = (via + 1) % len(tr.c.Schedulers)
		pause(ctx, 10*time.Millisecond)
	}
	if !happened {
		tr.failed.Add(1)
		return
	}
	tr.unknown.Add(1)
	tr.rec.add(*o)
}

// harmless reports whether the error of a write shows that the write was not applied. If it were wrong about
// an error, the linearizability check would fail.
func harmless(err error) bool {
	switch dial.Reason(err) {
	case dial.ReasonNoLeader, dial.ReasonNotLeader:
		return true
	}
	return status.Code(err) == codes.ResourceExhausted
}

// read gets a workload with a linearizable read. It returns false, and records nothing, if no
// replica answers.
func (tr *traffic) read(ctx context.Context, o *op, via int) bool {
	control, err := tr.c.Control(via)
	if err != nil {
		tr.t.Error(err)
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opLimit)
	defer cancel()
	o.Call = tr.rec.now()
	resp, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: o.Workload, Level: controlv1.ReadLevel_READ_LEVEL_LINEARIZABLE})
	switch status.Code(err) {
	case codes.OK:
		w := resp.GetWorkload()
		o.Found, o.Read, o.Gen, o.Index = true, w.GetSpec().GetMetadata()["content"], order.GenerationOf(w.GetGeneration()), w.GetIndex()
		if w.GetCallerRevisionId() != o.Read {
			tr.t.Errorf("workload %s has content %q but the revision of %q", o.Workload, o.Read, w.GetCallerRevisionId())
		}
		if resp.GetStale() {
			tr.t.Errorf("a linearizable read of workload %s is marked stale", o.Workload)
		}
	case codes.NotFound:
	default:
		o.Error = err.Error()
		return false
	}
	o.Return = tr.rec.now()
	tr.rec.add(*o)
	return true
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// gap returns for how long no write was acknowledged around the time at. The gap begins with the last
// acknowledgement before at. It ends with the first acknowledgement of an apply that began after at.
func (tr *traffic) gap(at int64) time.Duration {
	var last, first int64
	for _, o := range tr.rec.acks() {
		if o.Return <= at {
			last = o.Return
		}
		if o.Call >= at && first == 0 {
			first = o.Return
		}
	}
	if last == 0 || first == 0 {
		tr.t.Error("applies must be acknowledged both before and after the failure")
	}
	return time.Duration(first - last)
}
