package mover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/transfer"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/order"
	"github.com/persys/compute/order/wire"
)

// Phases of moves (fsm.MovePhase).
const (
	copying  = "copying"
	stopping = "stopping"
	final    = "final"
	placed   = "placed"
	kept     = "kept"
	done     = "done"
	undone   = "undone"
	dropping = "dropping"
)

// States of reports (sched.MoveReport).
const (
	stateCopying = "copying"
	stateCopied  = "copied"
	stateReady   = "ready"
	stateFailed  = "failed"
	stateKept    = "kept"
	stateHeld    = "held"
	stateDropped = "dropped"
)

// Limits of the copy on the target.
const (
	patience  = 10 * time.Minute // the copy fails if it makes no progress for this long
	firstWait = 500 * time.Millisecond
	lastWait  = 15 * time.Second
	longPass  = 30 * time.Second // after a pass that took longer, another pass follows before the workload is stopped
	maxPasses = 4
	// Copies at the same time, of this node as target and as source each. A last copy does not wait for first copies, because
	// its workload is stopped.
	firstCopies = 2
	lastCopies  = 4

	attempts = 3 // passes that may fail for a checksum, or because files change although the workload is stopped
)

// Config of a Mover.
type Config struct {
	Node    string
	Storage *volume.Manager
	// Workload returns a workload of this node; nil if there is none.
	Workload func(id string) *core.Workload
	// Dial returns a connection to the agent of another node.
	Dial   func(endpoint, node string) (*grpc.ClientConn, error)
	Logger *slog.Logger
}

// Mover carries out this node's part of moves. A nil Mover takes part in none. It is safe for concurrent use.
type Mover struct {
	cfg Config

	mu    sync.Mutex
	life  context.Context // ends with the agent; nil before Run
	heard []*controlv1.VolumeMove
	tasks map[string]*task // by workload
	work  sync.WaitGroup

	pulls, serves bounds
}

// bounds limits the copies of one direction.
type bounds struct{ first, last chan struct{} }

func newBounds() bounds {
	return bounds{first: make(chan struct{}, firstCopies), last: make(chan struct{}, lastCopies)}
}

// of returns the channel from which a copy takes a place by a send.
func (b bounds) of(last bool) chan struct{} {
	if last {
		return b.last
	}
	return b.first
}

// task is this node's part of one move in one phase.
type task struct {
	move   *controlv1.VolumeMove
	id     order.Generation
	cancel context.CancelFunc
	ended  chan struct{} // closed when its goroutine has ended; nil if it has none

	progress progress

	mu             sync.Mutex
	state, message string
}

// progress of all volumes of a pass.
type progress struct {
	mu      sync.Mutex
	volumes []*transfer.Progress
}

func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes = nil
}

func (p *progress) next() *transfer.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := &transfer.Progress{}
	p.volumes = append(p.volumes, x)
	return x
}

func (p *progress) sums() (total, did, sent int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.volumes {
		total, did, sent = total+x.Total.Load(), did+x.Done.Load(), sent+x.Sent.Load()
	}
	return total, did, sent
}

func (t *task) set(state, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state, t.message = state, message
}

func (t *task) get() (state, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state, t.message
}

// New returns a Mover. It does nothing before Run.
func New(cfg Config) *Mover {
	return &Mover{cfg: cfg, tasks: map[string]*task{}, pulls: newBounds(), serves: newBounds()}
}

// Run carries out moves until ctx ends.
func (m *Mover) Run(ctx context.Context) {
	m.mu.Lock()
	m.life = ctx
	m.follow()
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.life = nil
	m.mu.Unlock()
	m.work.Wait()
}

// Heard takes the list of moves in a scheduler's answer. A nil list changes nothing: the answer comes from an older
// scheduler.
func (m *Mover) Heard(list *controlv1.VolumeMoves) {
	if m == nil || list == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = list.GetMoves()
	ids := map[order.Generation]bool{}
	for _, v := range m.heard {
		ids[order.GenerationOf(v.GetId())] = true
	}
	m.cfg.Storage.SetMoves(ids)
	m.follow()
}

// follow compares the list of moves with the tasks. The caller holds the lock.
func (m *Mover) follow() {
	if m.life == nil {
		return
	}
	listed := map[string]bool{}
	for _, v := range m.heard {
		id := v.GetWorkloadId()
		listed[id] = true
		old := m.tasks[id]
		if old != nil && old.id == order.GenerationOf(v.GetId()) && old.move.GetPhase() == v.GetPhase() {
			continue
		}
		t := &task{move: v, id: order.GenerationOf(v.GetId())}
		var before chan struct{}
		if old != nil {
			before = old.ended
			if old.cancel != nil {
				old.cancel()
			}
			if old.id == t.id {
				t.state, t.message = old.get()
			}
		}
		m.tasks[id] = t
		if run := m.part(t); run != nil {
			ctx, cancel := context.WithCancel(m.life)
			t.cancel, t.ended = cancel, make(chan struct{})
			m.work.Go(func() {
				defer close(t.ended)
				defer cancel()
				if before != nil {
					<-before // the former phase must not touch the copy any more
				}
				run(ctx)
			})
		} else if before != nil {
			t.ended = before
		}
	}
	for id, t := range m.tasks {
		if !listed[id] {
			if t.cancel != nil {
				t.cancel()
			}
			delete(m.tasks, id)
		}
	}
}

// part returns what this node does in the phase of a move; nil for nothing.
func (m *Mover) part(t *task) func(context.Context) {
	from, to := t.move.GetFrom() == m.cfg.Node, t.move.GetTo() == m.cfg.Node
	switch phase := t.move.GetPhase(); {
	case to && phase == copying:
		t.state = stateCopying
		return func(ctx context.Context) { m.copy(ctx, t, false) }
	case to && phase == final:
		t.state = stateCopied
		return func(ctx context.Context) { m.copy(ctx, t, true) }
	case to && phase == kept:
		return m.until(t, stateReady, func(context.Context, string) error {
			if !m.complete(t) {
				return errors.New("this node has no complete copy of this move")
			}
			return nil
		})
	case from && (phase == placed || phase == kept):
		return m.until(t, stateKept, func(_ context.Context, name string) error { return m.keep(t, name, false) })
	case from && (phase == undone || phase == dropping):
		return m.until(t, stateHeld, func(_ context.Context, name string) error { return m.keep(t, name, true) })
	case to && phase == undone:
		return m.until(t, "", func(_ context.Context, name string) error {
			return m.cfg.Storage.Retire(t.id, t.move.GetWorkloadId(), namespaceOf(t.move), name)
		})
	case to && phase == dropping, from && phase == done:
		return m.until(t, stateDropped, func(ctx context.Context, name string) error {
			return m.cfg.Storage.DropCopy(ctx, t.id, t.move.GetWorkloadId(), namespaceOf(t.move), name, from)
		})
	}
	t.state = ""
	return nil
}

// Reports returns this node's view of its moves.
func (m *Mover) Reports() []*controlv1.MoveReport {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*controlv1.MoveReport
	for _, id := range slices.Sorted(maps.Keys(m.tasks)) {
		t := m.tasks[id]
		r := &controlv1.MoveReport{WorkloadId: id, Move: wire.Control(t.id)}
		r.State, r.Message = t.get()
		r.TotalBytes, r.DoneBytes, r.SentBytes = t.progress.sums()
		out = append(out, r)
	}
	return out
}

// until returns a task that does a step for each volume of a move, again until all succeed, and then reports a state.
func (m *Mover) until(t *task, state string, step func(ctx context.Context, name string) error) func(context.Context) {
	t.state = ""
	return func(ctx context.Context) {
		for wait := firstWait; ; wait = min(2*wait, lastWait) {
			var err error
			for _, name := range t.move.GetVolumes() {
				err = errors.Join(err, step(ctx, name))
			}
			if err == nil {
				t.set(state, "")
				return
			}
			t.set("", clip(err.Error()))
			if !sleep(ctx, wait) {
				return
			}
		}
	}
}

// keep checks that this node has its copy of a volume that moved away. With back, it takes the copy back into use first.
func (m *Mover) keep(t *task, name string, back bool) error {
	return m.cfg.Storage.KeepCopy(t.id, wasOf(t.move, name), t.move.GetWorkloadId(), namespaceOf(t.move), name, back)
}

// copy copies the volumes of a move to this node, in passes, until one pass is complete. With last, the workload is
// stopped, and the copy is complete when nothing has changed during the pass.
func (m *Mover) copy(ctx context.Context, t *task, last bool) {
	if last && m.complete(t) {
		t.set(stateReady, "")
		return
	}
	moved, faults := time.Now(), 0
	var before int64
	wait := firstWait
	for passes := 1; ; passes++ {
		waited := time.Now()
		select {
		case m.pulls.of(last) <- struct{}{}:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		moved = moved.Add(began.Sub(waited))
		changed, err := m.pass(ctx, t, last)
		<-m.pulls.of(last)
		_, did, sent := t.progress.sums()
		if ctx.Err() != nil {
			return
		}
		if err == nil && last && changed > 0 {
			err = fmt.Errorf("%w: %d files of the volume have changed although the workload is stopped", errChanged, changed)
		}
		if err == nil {
			if !last && time.Since(began) > longPass && passes < maxPasses {
				continue // much may have changed during this pass
			}
			if last {
				t.set(stateReady, "")
			} else {
				t.set(stateCopied, "")
			}
			return
		}
		if errors.Is(err, transfer.ErrCorrupt) || errors.Is(err, errChanged) {
			faults++
		}
		if did+sent != before || status.Code(err) == codes.ResourceExhausted { // the source makes other copies first
			moved, before, wait = time.Now(), did+sent, firstWait
		}
		text := clip(explain(err))
		m.cfg.Logger.Warn("copying a volume", "workload", t.move.GetWorkloadId(), "from", t.move.GetFrom(), "err", err)
		if fatal(err) || faults >= attempts || time.Since(moved) > patience {
			t.set(stateFailed, text)
			return
		}
		state, _ := t.get()
		t.set(state, text)
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, lastWait)
	}
}

var errChanged = errors.New("the volume is in use")

// complete reports whether all copies of a move are complete.
func (m *Mover) complete(t *task) bool {
	for _, name := range t.move.GetVolumes() {
		if !m.cfg.Storage.IsComplete(t.id, namespaceOf(t.move), name) {
			return false
		}
	}
	return true
}

// endpoint returns the address of the agent of From, which may change during a move.
func (m *Mover) endpoint(t *task) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.heard {
		if v.GetWorkloadId() == t.move.GetWorkloadId() && order.GenerationOf(v.GetId()) == t.id {
			return v.GetEndpoint()
		}
	}
	return t.move.GetEndpoint()
}

// pass makes one pass over all volumes of a move. It returns the number of files that changed meanwhile.
func (m *Mover) pass(ctx context.Context, t *task, last bool) (changed int, err error) {
	conn, err := m.cfg.Dial(m.endpoint(t), t.move.GetFrom())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	client := agentv1.NewAgentServiceClient(conn)
	t.progress.begin()
	for i, name := range t.move.GetVolumes() {
		pool := ""
		if pools := t.move.GetPools(); i < len(pools) {
			pool = pools[i]
		}
		n, err := m.passOne(ctx, t, client, name, pool, last)
		if err != nil {
			return changed, fmt.Errorf("volume %q: %w", name, err)
		}
		changed += n
	}
	if !last || changed > 0 {
		return changed, nil
	}
	for _, name := range t.move.GetVolumes() {
		if err := m.cfg.Storage.Complete(t.id, namespaceOf(t.move), name); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (m *Mover) passOne(ctx context.Context, t *task, client agentv1.AgentServiceClient, name, pool string, last bool) (int, error) {
	root, err := m.cfg.Storage.OpenTarget(t.id, t.move.GetWorkloadId(), namespaceOf(t.move), name, pool)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	opts := transfer.Options{
		Open:           &agentv1.VolumeReadOpen{Move: wire.Agent(t.id), WorkloadId: t.move.GetWorkloadId(), Volume: name, Final: last},
		Last:           last,
		BytesPerSecond: t.move.GetBytesPerSecond(), Progress: t.progress.next(),
	}
	r, err := transfer.Pull(ctx, transfer.Tree{Root: root}, opts, func(ctx context.Context) (transfer.TargetStream, error) { return client.ReadVolume(ctx) })
	return r.Changed, err
}

// Serve answers the agent of node caller, which copies a volume from this node. caller is "" if callers are not
// identified.
func (m *Mover) Serve(stream agentv1.AgentService_ReadVolumeServer, caller string) error {
	if m == nil {
		return status.Error(codes.Unimplemented, "this agent does not move volumes")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	v, err := m.admits(open, caller)
	if err != nil {
		return err
	}
	select {
	case m.serves.of(open.GetFinal()) <- struct{}{}:
	default:
		return status.Errorf(codes.ResourceExhausted, "node %s sends other volumes, and not more than %d at the same time", m.cfg.Node, cap(m.serves.of(open.GetFinal())))
	}
	defer func() { <-m.serves.of(open.GetFinal()) }()
	id := order.GenerationOf(open.GetMove())
	root, err := m.cfg.Storage.OpenSource(id, wasOf(v, open.GetVolume()), v.GetWorkloadId(), namespaceOf(v), open.GetVolume(), open.GetFinal())
	if err != nil {
		return status.Error(codes.FailedPrecondition, clip(err.Error()))
	}
	defer root.Close()
	err = transfer.Serve(stream.Context(), transfer.Tree{Root: root}, open, stream)
	switch {
	case errors.Is(err, transfer.ErrLimit), errors.Is(err, transfer.ErrKind):
		return status.Error(codes.FailedPrecondition, clip(err.Error()))
	case err != nil && status.Code(err) == codes.Unknown:
		return status.Error(codes.Unavailable, clip(err.Error()))
	}
	return err
}

// admits returns the move for which a copy is asked, or an error if the schedulers have not told this node of it.
func (m *Mover) admits(open *agentv1.VolumeReadOpen, caller string) (*controlv1.VolumeMove, error) {
	m.mu.Lock()
	i := slices.IndexFunc(m.heard, func(v *controlv1.VolumeMove) bool {
		return v.GetWorkloadId() == open.GetWorkloadId() && order.GenerationOf(v.GetId()) == order.GenerationOf(open.GetMove()) && v.GetFrom() == m.cfg.Node
	})
	var v *controlv1.VolumeMove
	if i >= 0 {
		v = m.heard[i]
	}
	m.mu.Unlock()
	switch {
	case v == nil || open.GetMove() == nil:
		return nil, status.Errorf(codes.Unavailable, "the schedulers have not told node %s of this move of the volumes of workload %q yet", m.cfg.Node, clip(open.GetWorkloadId()))
	case caller != "" && caller != v.GetTo():
		return nil, status.Errorf(codes.PermissionDenied, "node %q may not copy the volumes of workload %q: they move to another node", caller, clip(open.GetWorkloadId()))
	case !slices.Contains(v.GetVolumes(), open.GetVolume()):
		return nil, status.Errorf(codes.PermissionDenied, "the move of workload %q does not have volume %q", v.GetWorkloadId(), clip(open.GetVolume()))
	case open.GetFinal() && v.GetPhase() != final, !open.GetFinal() && v.GetPhase() != copying && v.GetPhase() != stopping && v.GetPhase() != final:
		return nil, status.Errorf(codes.Unavailable, "the move of workload %q is in phase %s", v.GetWorkloadId(), v.GetPhase())
	case open.GetFinal() && m.mayRun(v.GetWorkloadId()):
		return nil, status.Errorf(codes.Unavailable, "workload %q is not stopped yet", v.GetWorkloadId())
	}
	return v, nil
}

// mayRun reports whether a workload runs on this node, or is to run.
func (m *Mover) mayRun(id string) bool {
	w := m.cfg.Workload(id)
	if w == nil {
		return false
	}
	if w.Intent != nil && w.Intent.Running() {
		return true
	}
	if w.Intent != nil && len(w.Intent.PreviousTypes) > 0 { // an instance of the former type may run
		return true
	}
	o := w.Observed
	switch {
	case o == nil || o.State == workload.Absent:
		return false
	case o.State != workload.Stopped && o.State != workload.Failed, o.PartlyRunning:
		return true
	}
	return !o.StartedAt.IsZero() && o.FinishedAt.IsZero() // a paused container is listed as stopped
}

// fatal reports whether a copy cannot succeed although it is tried again.
func fatal(err error) bool {
	if errors.Is(err, transfer.ErrNoSpace) || errors.Is(err, transfer.ErrLimit) || errors.Is(err, transfer.ErrKind) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		return true
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.Unimplemented, codes.PermissionDenied:
		return true
	}
	var refused *driver.Error // from the records of this node's volumes
	return errors.As(err, &refused)
}

// explain returns the text of an error for users.
func explain(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "the disk of the new node is full: " + err.Error()
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return s.Message()
	}
	return err.Error()
}

// wasOf returns the id of the copy of a volume from which a move began.
func wasOf(v *controlv1.VolumeMove, name string) order.Generation {
	if i := slices.Index(v.GetVolumes(), name); i >= 0 && i < len(v.GetCopies()) {
		return order.GenerationOf(v.GetCopies()[i])
	}
	return order.Generation{}
}

func namespaceOf(v *controlv1.VolumeMove) string { return cmp.Or(v.GetNamespace(), "default") }

// clip shortens a text for a message, which must be UTF-8. File names need not be.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 400)], "?") }

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
