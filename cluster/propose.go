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
	// entryLimit bounds a log entry of several commands. A command larger than that, up to commandLimit, is
	// an entry of its own. Both in bytes.
	entryLimit   = 256 << 10
	commandLimit = 1 << 20
	// queueBytes and queueCalls bound the calls that wait for an entry.
	queueBytes = 32 << 20
	queueCalls = 1 << 16
	// minPipelined is the number of queued bytes from which they follow an entry that is still under way.
	// Less waits and grows, because an entry costs every replica two fsyncs, however small it is.
	minPipelined = 64 << 10
)

// State of a call. The caller may give up a queued call. Once the coalescer has taken the call, its outcome
// is that of Raft.
const (
	callQueued = iota
	callTaken
	callAbandoned
)

// call is one Propose, or one part of a Propose that is larger than an entry.
type call struct {
	frames []byte
	n      int
	state  atomic.Int32
	done   chan struct{} // capacity 1, reused with the call

	results []fsm.Result
	index   uint64
	term    uint64
	err     error
}

type entry struct {
	future raft.ApplyFuture
	calls  []*call
	began  time.Time
	size   int // bytes
	n      int // commands
}

// proposer coalesces concurrent calls into log entries. One goroutine makes entries, another collects
// answers in order. While an entry is under way, later calls are gathered into the next one, which follows
// at once only if it is large. At most Timing.InFlight entries are under way. So bytes and fsyncs bound the
// throughput, not the number of callers.
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
// commands of one call are applied one after another, but they are no transaction. When Propose returns,
// this replica's Store shows their effects. It never waits longer than ctx.
//
// After ErrNotLeader, ErrBusy, ErrTooLarge and ErrClosed nothing has changed. ErrUnknownOutcome: the
// deadline passed, or leadership was lost, after Raft got the commands.
func (n *Node) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	results, _, _, err := n.prop.propose(ctx, cmds)
	return results, err
}

func (p *proposer) propose(ctx context.Context, cmds []fsm.Command) (results []fsm.Result, index, term uint64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, 0, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if p.n.raft.State() != raft.Leader {
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
	if err := p.enqueue(calls); err != nil {
		for _, c := range calls {
			p.recycle(c)
		}
		return nil, 0, 0, err
	}
	if len(calls) == 1 {
		c := calls[0]
		if err := c.wait(ctx); err != nil {
			return nil, 0, 0, err
		}
		results, index, term, err = c.results, c.index, c.term, c.err
		p.recycle(c)
		return results, index, term, err
	}
	// A large call has several parts. If a later part fails after an earlier one was handed over, the
	// outcome of the whole call is unknown.
	committed := false
	for i, c := range calls {
		werr := c.wait(ctx)
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

// encode runs in the caller's goroutine, so that encoding scales with the number of callers.
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
	if p.n.restoring.Load() { // under mu, see settle
		p.mu.Unlock()
		return fmt.Errorf("%w: a backup is being restored", ErrBusy)
	}
	if waiting := len(p.queue) - p.head; waiting > 0 && (waiting+len(calls) > queueCalls || p.bytes+size > queueBytes) {
		p.mu.Unlock()
		return fmt.Errorf("%w: %d calls with %d bytes wait", ErrBusy, waiting, p.bytes)
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

// ready reports whether the next entry is to be sent. The caller holds mu.
func (p *proposer) ready() bool {
	if p.head == len(p.queue) {
		return false
	}
	return p.inFlight == 0 || p.inFlight < cap(p.sent) && p.bytes >= minPipelined
}

// wait returns when the outcome is in c, or with an error if ctx ends first. A call that was given up must
// not be reused: other goroutines may still write to it.
func (c *call) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(callQueued, callAbandoned) {
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	return unknown(ctx.Err())
}

// take removes queued calls of up to one entry from the queue if an entry is to be sent; with force it
// always does.
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

// coalesce turns calls into entries until stop is closed.
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
			// No timeout is needed: the library's queue is longer than the InFlight limit.
			began := time.Now()
			p.sent <- entry{p.n.raft.Apply(data, 0), calls, began, size, commands}
		}
	}
}

// collect answers the calls of each entry, in order.
func (p *proposer) collect() {
	for e := range p.sent {
		err := e.future.Error()
		var a *applied
		if err == nil {
			switch r := e.future.Response().(type) {
			case *applied:
				a = r
			case error:
				// Committed, but this replica could not apply it.
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

// settle is called once new calls are refused. It waits until the accepted ones are answered: Raft has not
// got all of them yet, and the state to restore from must contain them.
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

// translate maps Raft's errors to "did not happen" and "unknown outcome".
func (p *proposer) translate(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return p.n.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: leadership is being handed over", ErrNotLeader)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrBusy
	default:
		return unknown(err)
	}
}

// refuse fails the calls that are still queued; none of them was handed to Raft.
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

// head is the Head of the node's own commands.
func (n *Node) head(epoch fsm.Epoch) *commandHead { return newHead(epoch, time.Now()) }
