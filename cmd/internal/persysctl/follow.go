package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

const (
	// patience is how long follow tries without success to reopen a stream that has worked before.
	patience = time.Minute
	// attempts is the maximum number of times that follow opens a stream that has never worked.
	attempts = 5
	// settled is the time after which follow treats an open stream as working, even if no message has arrived. A
	// stream that has worked is reopened for longer after a failure.
	settled = 5 * time.Second
	// pause is the time that follow waits before it opens a stream again.
	pause = 200 * time.Millisecond
)

// receiver is the part of a gRPC stream with which follow reads its messages.
type receiver[M proto.Message] interface{ Recv() (M, error) }

// errOpen means that a stream could not be opened at any scheduler.
var errOpen = errors.New("no stream")

// follow passes each message of a stream to take, until the stream ends, take returns an error or ctx ends.
// After a broken connection it calls open again. The new stream may come from another replica, and open
// must request only messages after those that take has received.
func follow[M proto.Message](ctx context.Context, c *cli, open func(context.Context) (receiver[M], error), take func(M) error) error {
	worked, failed, last := false, 0, time.Now()
	for {
		opened, heard := time.Now(), false
		refused, err := drainStream(ctx, open, func(m M) error {
			heard = true
			return take(m)
		})
		if heard || time.Since(opened) > settled && !errors.Is(err, errOpen) {
			worked, failed, last = true, 0, time.Now()
		}
		failed++
		switch {
		case refused:
			return err
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) != codes.Unavailable, !worked && (failed == attempts || errors.Is(err, errOpen)), time.Since(last) > patience:
			return c.explain(err, false)
		}
		if c.verbose {
			fmt.Fprintln(c.err, c.errPaint.Paint(screen.Dim, "the stream broke and is opened again: "+screen.Clean(status.Convert(err).Message())))
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// drainStream opens a stream and passes its messages to take until it ends. refused is true if err comes from take and
// not from the stream.
func drainStream[M proto.Message](ctx context.Context, open func(context.Context) (receiver[M], error), take func(M) error) (refused bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return false, &openError{err}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return false, err
		}
		if err := take(m); err != nil {
			return true, err
		}
	}
}

// openError is the error of a stream that could not be opened. errors.Is finds errOpen in it.
type openError struct{ err error }

func (e *openError) Error() string { return e.err.Error() }

func (e *openError) Unwrap() error { return e.err }

func (e *openError) Is(target error) bool { return target == errOpen }

func (e *openError) GRPCStatus() *status.Status { return status.Convert(e.err) }

// watched is one value of a watch of workloads. A watch first sends a value for every workload that exists, then one
// value with both fields empty, and then a value for every change.
type watched struct {
	view *controlv1.WorkloadView
	gone string // id of a deleted workload
}

// watch calls take with the present state of the workloads and then with every change, also after broken
// connections. An id in ids for which no workload exists is reported as gone.
func (c *cli) watch(ctx context.Context, req *clusterv1.WatchWorkloadsRequest, ids []string, take func(watched) error) error {
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	var seen map[string]bool // ids received since the stream was opened; nil once the present state of all workloads has arrived
	open := func(ctx context.Context) (receiver[*clusterv1.WorkloadChange], error) {
		seen = map[string]bool{}
		return c.cluster.WatchWorkloads(ctx, req)
	}
	return follow(ctx, c, open, func(m *clusterv1.WorkloadChange) error {
		req.MinIndex = max(req.GetMinIndex(), m.GetIndex())
		id := m.GetWorkload().GetWorkloadId()
		switch {
		case m.GetSynced():
			for _, id := range slices.SortedFunc(maps.Keys(known), screen.Natural) {
				if seen != nil && !seen[id] {
					delete(known, id)
					if err := take(watched{gone: id}); err != nil {
						return err
					}
				}
			}
			seen = nil
			return take(watched{})
		case m.GetDeleted():
			delete(known, id)
			return take(watched{gone: id})
		}
		known[id] = true
		if seen != nil {
			seen[id] = true
		}
		return take(watched{view: m.GetWorkload()})
	})
}
