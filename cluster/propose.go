package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

const (
	// entryLimit is the largest size in bytes of a log entry with several commands. A larger command, up to
	// commandLimit bytes, becomes an entry of its own.
	entryLimit   = 256 << 10
	commandLimit = 1 << 20
	// queueBytes and queueCalls limit the size and the number of the calls that wait to be put into an
	// entry.
	queueBytes = 32 << 20
	queueCalls = 1 << 16
	// minPipelined is the number of queued bytes from which the next entry is sent while another entry is
	// still in progress. Fewer bytes wait for more calls, because an entry of any size costs every replica
	// two fsyncs.
	minPipelined = 64 << 10
)

// States of a call. While the call is queued, its caller may give up. Once the method coalesce has
// put the call into a log entry, the call has the outcome of that entry.
const (
	callQueued = iota
	callTaken
	callAbandoned
)

// call is one Propose, or a part of a Propose that is larger than one log entry.
type call struct {
	frames []byte
	n      int
	state  atomic.Int32
	done   chan struct{} // signals that the result is set; capacity 1; reused with the call

	results []fsm.Result
	index   uint64
	term    uint64
	err     error
}

type entry struct {
	future raft.ApplyFuture
	calls  []*call
	began  time.Time
	size   int // size of the call's commands in bytes
	n      int // number of commands in the call
}

// proposer combines concurrent calls into log entries. One goroutine makes the entries, another goroutine collects the
// answers in order. While an entry is in progress, later calls are gathered into the next entry, which is sent at once
// only if it is large. At most Timing.InFlight entries are in progress. So bytes and fsyncs limit the throughput, not
// the number of callers.
type proposer struct {
	n    *Node
	pool sync.Pool
	sent chan entry
	wake chan struct{}

	mu       sync.Mutex
	queue    []*call
	head     int
	bytes    int
	inFlight int
	closed   bool

	entries, commands atomic.Uint64
}

func newProposer(n *Node, inFlight int) *proposer {
	p := &proposer{
		n:    n,
		sent: make(chan entry, inFlight),
		wake: make(chan struct{}, 1),
	}
	p.pool.New = func() any { return &call{done: make(chan struct{}, 1)} }
	return p
}

// Propose commits commands and returns the verdicts of the state machine, one per command, in order. The
// commands of one call are applied one after another, but not as a transaction. When Propose returns, this
// replica's Store shows their effects. It never waits longer than ctx.
//
// After ErrNotLeader, ErrBusy, ErrTooLarge and ErrClosed nothing has changed. ErrUnknownOutcome means that
// the deadline passed, or leadership was lost, after Raft got the commands.
func (n *Node) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	results, _, _, err := n.prop.propose(ctx, cmds)
	return results, err
}

func (p *proposer) propose(ctx context.Context, cmds []fsm.Command) (results []fsm.Result, index, term uint64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, 0, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if !p.n.IsLeader() {
		if p.n.halted.Load() {
			return nil, 0, 0, p.n.stoppedErr()
		}
		return nil, 0, 0, p.n.notLeader()
	}
	if len(cmds) == 0 {
		return nil, 0, 0, nil
	}
	calls, err := p.encode(cmds)
	if err != nil {
		return nil, 0, 0, err
	}
	stalled := p.n.stall.started()
	if err := p.enqueue(calls); err != nil {
		for _, c := range calls {
			p.recycle(c)
		}
		return nil, 0, 0, err
	}
	if len(calls) == 1 {
		c := calls[0]
		if err := c.wait(ctx, stalled); err != nil {
			return nil, 0, 0, err
		}
		results, index, term, err = c.results, c.index, c.term, c.err
		p.recycle(c)
		return results, index, term, err
	}
	// A large call consists of several parts. If a part fails after an earlier part was handed to Raft, the
	// outcome of the whole call is unknown.
	committed := false
	for i, c := range calls {
		werr := c.wait(ctx, stalled)
		if werr == nil {
			werr = c.err
		}
		if werr != nil {
			for _, rest := range calls[i+1:] {
				if !rest.state.CompareAndSwap(callQueued, callAbandoned) {
					committed = true
				}
			}
			if committed && !errors.Is(werr, ErrUnknownOutcome) {
				werr = unknown(werr)
			}
			return nil, 0, 0, werr
		}
		committed = true
		results = append(results, c.results...)
		index, term = c.index, c.term
		p.recycle(c)
	}
	return results, index, term, nil
}

// encode encodes the commands into calls of at most one entry each. It runs in the caller's goroutine, so
// that many callers encode in parallel.
func (p *proposer) encode(cmds []fsm.Command) ([]*call, error) {
	c := p.fresh()
	calls := []*call{c}
	for i, cmd := range cmds {
		before := len(c.frames)
		frames, err := fsm.AppendCommand(c.frames, cmd)
		if err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		c.frames = frames
		size := len(frames) - before
		if size > commandLimit {
			return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, size, commandLimit)
		}
		if before > 0 && len(frames) > entryLimit {
			next := p.fresh()
			next.frames = append(next.frames, frames[before:]...)
			next.n = 1
			c.frames = frames[:before]
			c = next
			calls = append(calls, c)
			continue
		}
		c.n++
	}
	return calls, nil
}

func (p *proposer) fresh() *call {
	c := p.pool.Get().(*call)
	c.frames = c.frames[:0]
	c.n = 0
	c.state.Store(callQueued)
	c.results, c.err, c.index, c.term = nil, nil, 0, 0
	return c
}

func (p *proposer) recycle(c *call) {
	if cap(c.frames) <= 64<<10 {
		p.pool.Put(c)
	}
}

func (p *proposer) enqueue(calls []*call) error {
	size := 0
	for _, c := range calls {
		size += len(c.frames)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return p.n.stoppedErr()
	}
	if p.n.restoring.Load() { // read this while holding mu, because settle relies on that
		p.mu.Unlock()
		return fmt.Errorf("%w: a backup is being restored", ErrBusy)
	}
	if waiting := len(p.queue) - p.head; waiting > 0 && (waiting+len(calls) > queueCalls || p.bytes+size > queueBytes) {
		p.mu.Unlock()
		return fmt.Errorf("%w: %d calls with %d bytes are waiting", ErrBusy, waiting, p.bytes)
	}
	p.queue = append(p.queue, calls...)
	p.bytes += size
	ready := p.ready()
	p.mu.Unlock()
	if ready {
		p.rouse()
	}
	return nil
}

func (p *proposer) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// ready reports whether the next entry is to be sent now. The caller holds mu.
func (p *proposer) ready() bool {
	if p.head == len(p.queue) {
		return false
	}
	return p.inFlight == 0 || p.inFlight < cap(p.sent) && p.bytes >= minPipelined
}

// wait returns nil once c has its outcome, or an error if ctx ends or the log disk hangs (stalled is closed)
// before that. After an error, the caller must not reuse c, because other goroutines may still write to it.
func (c *call) wait(ctx context.Context, stalled <-chan struct{}) error {
	refused, cause := ErrBusy, errStalled
	select {
	case <-c.done:
		return nil
	case <-stalled:
		refused = ErrNotLeader
	case <-ctx.Done():
		cause = ctx.Err()
	}
	if c.state.CompareAndSwap(callQueued, callAbandoned) {
		return fmt.Errorf("%w: %w", refused, cause)
	}
	return unknown(cause)
}

// take removes calls for one entry from the queue if the entry is to be sent now. If force is true, it removes them in
// any case.
func (p *proposer) take(force bool) (calls []*call, size, commands int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !force && !p.ready() {
		return nil, 0, 0
	}
	for p.head < len(p.queue) {
		c := p.queue[p.head]
		if len(calls) > 0 && size+len(c.frames) > entryLimit {
			break
		}
		p.queue[p.head] = nil
		p.head++
		p.bytes -= len(c.frames)
		if !c.state.CompareAndSwap(callQueued, callTaken) {
			continue
		}
		calls = append(calls, c)
		size += len(c.frames)
		commands += c.n
	}
	if p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
	if len(calls) > 0 {
		p.inFlight++
	}
	return calls, size, commands
}

// coalesce puts queued calls into log entries until stop is closed.
func (p *proposer) coalesce(stop <-chan struct{}) {
	defer close(p.sent)
	var (
		pack   packer
		frames []byte
	)
	for {
		select {
		case <-stop:
			p.refuse()
			return
		case <-p.wake:
		}
		for {
			calls, size, commands := p.take(false)
			if len(calls) == 0 {
				break
			}
			frames = frames[:0]
			for _, c := range calls {
				frames = append(frames, c.frames...)
			}
			data := pack.pack(frames)
			p.entries.Add(1)
			p.commands.Add(uint64(commands))
			// Raft's Apply gets no timeout: the library's queue is longer than InFlight, so Apply does not
			// block.
			began := time.Now()
			p.sent <- entry{p.n.raft.Apply(data, 0), calls, began, size, commands}
		}
	}
}

// collect answers the calls of each log entry when Raft has committed the entry, in order.
func (p *proposer) collect() {
	for e := range p.sent {
		err := e.future.Error()
		var a *applied
		if err == nil {
			switch r := e.future.Response().(type) {
			case *applied:
				a = r
			case error:
				// The entry is committed, but this replica could not apply it.
				err = unknown(r)
			}
		} else {
			err = p.translate(err)
		}
		p.n.cfg.Metrics.Commit(e.n, e.size, time.Since(e.began), err)
		p.mu.Lock()
		p.inFlight--
		ready := p.ready()
		p.mu.Unlock()
		if ready {
			p.rouse()
		}
		off := 0
		for _, c := range e.calls {
			if err != nil {
				c.err = err
			} else {
				c.results = a.results[off : off+c.n : off+c.n]
				c.index, c.term = a.index, a.term
				off += c.n
			}
			c.done <- struct{}{}
		}
	}
}

// settle is called before a restore, when new calls are already refused. It waits until the calls that were accepted
// earlier are answered, because the restore must start from a state that contains them.
func (p *proposer) settle(ctx context.Context) error {
	for {
		p.mu.Lock()
		settled := p.head == len(p.queue) && p.inFlight == 0
		p.mu.Unlock()
		if settled {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		case <-p.n.ctx.Done():
			return p.n.stoppedErr()
		case <-time.After(time.Millisecond):
		}
	}
}

// translate turns an error of Raft into an error that says "nothing happened" or into ErrUnknownOutcome.
func (p *proposer) translate(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return p.n.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: leadership is being transferred", ErrNotLeader)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrBusy
	default:
		return unknown(err)
	}
}

// refuse answers the calls that are still queued with an error. None of them was handed to Raft.
func (p *proposer) refuse() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for {
		calls, _, _ := p.take(true)
		if len(calls) == 0 {
			return
		}
		for _, c := range calls {
			c.err = p.n.stoppedErr()
			c.done <- struct{}{}
		}
	}
}

// head returns the head of a command that this node itself proposes.
func (n *Node) head(epoch fsm.Epoch) *commandHead { return newHead(epoch, time.Now()) }
