package ui

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Messages that the feed sends to the model.
type (
	// workloadsMsg contains changed workloads or, if whole is true, all workloads.
	workloadsMsg struct {
		changes []*clusterv1.WorkloadChange
		whole   bool
	}
	eventsMsg []*clusterv1.Event
	nodesMsg  []*controlv1.NodeView
	statusMsg *clusterv1.StatusResponse
	// lostMsg reports that a source of data has failed and will be opened again or, with a nil error, that
	// the source works again.
	lostMsg struct {
		what string
		err  error
	}
	logMsg struct {
		id   string
		data []byte
	}
	logEndMsg struct {
		id  string
		err error
	}
)

const (
	again     = time.Second           // pause before a failed source of data is opened again
	poll      = 2 * time.Second       // interval between two reads of the nodes and the cluster status, for which the API has no stream
	settled   = 2 * time.Second       // time after which an open stream counts as working, even if no message has arrived
	gather    = 50 * time.Millisecond // changes that arrive within this time are shown together
	pastTail  = 200                   // number of past events that the view loads at its start
	firstPage = 1000                  // number of nodes per page of a list
	logTail   = 500                   // number of past lines of a log that are loaded first
	most      = 4096                  // maximum number of changes per message to the model
)

// feed turns the API's streams into messages for the model.
type feed struct {
	opt  Options
	send func(tea.Msg)
	wg   sync.WaitGroup

	mu      sync.Mutex
	stopLog context.CancelFunc
}

func (f *feed) start(ctx context.Context) {
	f.wg.Go(func() { f.keep(ctx, "workloads", f.workloads) })
	f.wg.Go(func() { f.keep(ctx, "events", f.events()) })
	f.wg.Go(func() { f.keep(ctx, "nodes", f.nodes) })
	f.wg.Go(func() { f.keep(ctx, "status", f.status) })
}

func (f *feed) wait() { f.wg.Wait() }

// keep runs the function source, which reads one kind of data from the API, and runs it again whenever it ends. what
// is the name of the data in messages to the user.
func (f *feed) keep(ctx context.Context, what string, source func(context.Context) error) {
	for {
		err := source(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("the stream ended")
		}
		f.send(lostMsg{what, err})
		if !sleep(ctx, again) {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// workloads sends all workloads to the model, and then their changes.
func (f *feed) workloads(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.opt.Cluster.WatchWorkloads(ctx, &clusterv1.WatchWorkloadsRequest{Namespace: f.opt.Namespace})
	if err != nil {
		return err
	}
	synced := false
	var first []*clusterv1.WorkloadChange
	return gathered(ctx, stream.Recv, func(list []*clusterv1.WorkloadChange) {
		if synced {
			f.send(workloadsMsg{changes: list})
			return
		}
		first = append(first, list...)
		i := slices.IndexFunc(first, (*clusterv1.WorkloadChange).GetSynced)
		if i < 0 {
			return
		}
		synced = true
		f.send(lostMsg{what: "workloads"})
		f.send(workloadsMsg{changes: first[:i], whole: true})
		if rest := first[i+1:]; len(rest) > 0 {
			f.send(workloadsMsg{changes: rest})
		}
		first = nil
	})
}

// events returns a source that sends events to the model. When it is started again, it continues after the
// last event.
func (f *feed) events() func(context.Context) error {
	req := &clusterv1.EventsRequest{Tail: pastTail, Follow: true, Namespace: f.opt.Namespace}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := f.opt.Cluster.Events(ctx, req)
		if err != nil {
			return err
		}
		silence := time.AfterFunc(settled, func() {
			f.send(lostMsg{what: "events"})
			f.send(eventsMsg(nil))
		})
		defer silence.Stop()
		return gathered(ctx, stream.Recv, func(list []*clusterv1.Event) {
			req.AfterSeq, req.Tail = list[len(list)-1].GetSeq(), 0
			f.send(lostMsg{what: "events"})
			f.send(eventsMsg(list))
		})
	}
}

// gathered reads a stream with recv and passes its messages to take. Messages that arrive within the time gather are
// passed in one call, so that the screen is not redrawn for each message.
func gathered[M any](ctx context.Context, recv func() (M, error), take func([]M)) error {
	items := make(chan M)
	ended := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		for {
			m, err := recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case items <- m:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	})
	var list []M
	flush := time.NewTimer(time.Hour)
	defer flush.Stop()
	hand := func() {
		if len(list) > 0 {
			take(list)
			list = nil
		}
	}
	for {
		select {
		case m := <-items:
			if len(list) == 0 {
				flush.Reset(gather)
			}
			if list = append(list, m); len(list) >= most {
				hand()
			}
		case <-flush.C:
			hand()
		case err := <-ended:
			hand()
			return err
		}
	}
}

func (f *feed) nodes(ctx context.Context) error {
	for {
		var all []*controlv1.NodeView
		req := &controlv1.ListNodesRequest{PageSize: firstPage}
		for {
			r, err := call(ctx, f.opt, f.opt.Control.ListNodes, req)
			if err != nil {
				return err
			}
			all = append(all, r.GetNodes()...)
			if r.GetNextPageToken() == "" || r.GetNextPageToken() == req.GetPageToken() {
				break
			}
			req.PageToken = r.GetNextPageToken()
		}
		f.send(lostMsg{what: "nodes"})
		f.send(nodesMsg(all))
		if !sleep(ctx, poll) {
			return ctx.Err()
		}
	}
}

func (f *feed) status(ctx context.Context) error {
	for {
		r, err := call(ctx, f.opt, f.opt.Cluster.Status, &clusterv1.StatusRequest{})
		if err != nil {
			return err
		}
		f.send(lostMsg{what: "status"})
		f.send(statusMsg(r))
		if !sleep(ctx, poll) {
			return ctx.Err()
		}
	}
}

// logs starts to send the output of a workload to the model. It first stops reading the output of the workload before,
// if any.
func (f *feed) logs(ctx context.Context, id string) {
	ctx, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	if f.stopLog != nil {
		f.stopLog()
	}
	f.stopLog = cancel
	f.mu.Unlock()
	f.wg.Go(func() {
		defer cancel()
		stream, err := f.opt.Cluster.Logs(ctx, &clusterv1.LogsRequest{WorkloadId: id, Follow: true, TailLines: logTail})
		if err == nil {
			err = gathered(ctx, stream.Recv, func(list []*clusterv1.LogChunk) {
				var data []byte
				for _, c := range list {
					data = append(data, c.GetData()...)
				}
				f.send(logMsg{id, data})
			})
		}
		if ctx.Err() == nil {
			f.send(logEndMsg{id, err})
		}
	})
}

func (f *feed) endLogs() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopLog != nil {
		f.stopLog()
		f.stopLog = nil
	}
}
