package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/health"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/rpc/limits"
)

// Agent runs the workloads of one machine. New opens its file, Run does the work.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	store   *store
	factory Factory
	metrics *metrics
	host    host.Host
	queue   *queue
	control Control
	server  *grpc.Server
	storage *volume.Manager
	gc      gcRuns
	ownDisk bool // the default pool is not the machine's own disk

	life   context.Context // of Run; ends everything
	tasks  sync.WaitGroup  // every goroutine that Run does not wait for by itself
	facts  atomic.Bool     // what is registered changed
	dirty  chan struct{}   // a report changed
	unkept chan struct{}   // a report is to be stored
	met    chan struct{}   // closed once the guard has been asked, or there is none
	feed   chan struct{}   // the guard has to be told something
	told   chan struct{}   // closed and replaced after each exchange with the guard; mu guards it
	looked chan struct{}   // closed after the first look at everything
	first  sync.Once

	sessions atomic.Int32  // that people have open
	process  lease.Process // this one
	bootID   string        // of the machine
	checks   *health.Checker

	// intentMu serialises changes of intents, tombstones and the epoch: judge, disk, memory. It is
	// taken before mu and may be held across the disk, never across an engine.
	intentMu sync.Mutex

	// mu guards what follows, for work in memory only.
	mu        sync.Mutex
	meta      meta
	workloads map[string]*workload
	tombs     map[string]*tombstone
	history   *history
	used      usage.Table // what workloads use; it has a lock of its own
	engines   map[driver.Kind]*engine
	bound     string // cluster id on labels
	version   uint64 // of the newest change to report
	unsaved   map[string]bool
	origins   map[string]*origin // traced orders that are being carried out
	fence     fenceState
	draining  bool
	session   SessionState
}

// workload is what the agent knows of one id. The agent's lock guards it.
type workload struct {
	id string
	// intent is nil for an instance that carries our labels without an order: it is reported and
	// left alone.
	intent   *intent
	kind     driver.Kind
	observed *driver.Observed // nil: the engine does not list it
	seen     time.Time        // of the last List, or look at it alone
	lookedAt time.Time        // beginning of the last look at it alone
	hinted   bool             // its engine says that it may have changed since the last look began
	fail     failure
	asked    bool
	waits    bool   // desired.waits
	lapsed   bool   // desired.lapsed
	over     Excess // desired.over
	task     *task  // the newest
	busy     string // with what a driver is, while it is
	// interrupt ends what a driver does for the present intent, for an order that wants something else: what
	// nobody wants any more is not waited for. It may be nil.
	interrupt context.CancelFunc
	// report is the last one published, version when.
	report  report
	version uint64
}

// New opens the agent's file and makes it ready; nothing runs yet. An agent that is not run must
// be closed.
func New(cfg Config, factory Factory) (*Agent, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	measured := cfg.Host
	if measured == nil {
		var err error
		if measured, err = host.New("/"); err != nil {
			return nil, fmt.Errorf("agent: measuring the machine: %w", err)
		}
	}
	st, err := openStore(cfg.StatePath, cfg.Volatile)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, log: cfg.Logger, store: st, factory: factory, host: measured, control: cfg.Control,
		queue: newQueue(), dirty: make(chan struct{}, 1), unkept: make(chan struct{}, 1), looked: make(chan struct{}),
		workloads: map[string]*workload{}, tombs: map[string]*tombstone{}, unsaved: map[string]bool{},
		origins: map[string]*origin{}, met: make(chan struct{}), feed: make(chan struct{}, 1), told: make(chan struct{}),
	}
	if cfg.Guard != nil {
		if a.process, err = fencer.Self(); err == nil {
			a.bootID, err = fencer.BootID()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("agent: guard: %w", err), st.close())
		}
	}
	if err := errors.Join(a.restore(), a.openStorage()); err != nil {
		return nil, errors.Join(fmt.Errorf("state file %s: %w", cfg.StatePath, err), st.close())
	}
	if a.metrics, err = newMetrics(cfg.Metrics, a); err != nil {
		return nil, errors.Join(fmt.Errorf("agent: metrics: %w", err), st.close())
	}
	return a, nil
}

// Close releases the file of an agent that was never run; after Run it does nothing.
func (a *Agent) Close() error { return a.store.close() }

// restore fills memory from the file, and seals what it holds in plain: all of it where an existing
// agent wrote it, the text of stacks where an earlier version did.
func (a *Agent) restore() error {
	saved, err := a.store.load()
	if err != nil {
		return err
	}
	if err := a.named(&saved); err != nil {
		return err
	}
	a.meta = saved.meta
	if want := a.cfg.ClusterID; want != "" {
		if known := a.meta.Epoch.ClusterID; known != "" && known != want {
			return fmt.Errorf("it belongs to cluster %q, the configuration names %q", known, want)
		}
		a.meta.Epoch.ClusterID = want
	}
	if want := a.cfg.Shard; want != "" {
		if known := a.meta.Epoch.Shard; known != "" && known != want {
			return fmt.Errorf("it belongs to shard %q, PERSYS_SCHEDULER_SHARD names %q", known, want)
		}
		a.meta.Epoch.Shard = want
	}
	a.history = newHistory(saved.tasks)
	latest := map[string]*task{}
	for _, t := range a.history.list {
		latest[t.Workload] = t
	}
	var plain []*intent
	for _, in := range saved.intents {
		if !in.sealed() {
			if err := in.seal(a.store.key); err != nil {
				return err
			}
			plain = append(plain, in)
		}
		w := &workload{id: in.ID, intent: in, kind: in.Type, task: latest[in.ID]}
		w.asked = w.task.open() // acknowledged, and perhaps not begun
		w.waits = in.waitsAfterRestart() && a.control != nil
		if st, ok := saved.status[in.ID]; ok {
			w.fail = st.Failure
			// No attempt is further away, unless the clock has been set back since.
			if limit := time.Now().Add(a.cfg.RetryMax); w.fail.Next.After(limit) {
				w.fail.Next = limit
			}
			w.report = st.report(in)
		}
		a.workloads[in.ID] = w
	}
	for _, t := range saved.tombstones {
		if w := a.workloads[t.ID]; w != nil && !w.intent.Deleting {
			t.Done = true // earlier versions left it open when its workload was ordered anew
		}
		a.tombs[t.ID] = t
	}
	if len(plain) == 0 {
		return nil
	}
	a.log.Info("sealing secrets of the state file that are in plain", "workloads", len(plain))
	return a.store.update(func(w write) error { return all(plain, w.intent) })
}

// named keeps the name of the node with its workloads: under another one they would be taken for a lost
// node's, and run elsewhere as well.
func (a *Agent) named(s *saved) error {
	known, now := s.meta.Node, a.cfg.NodeID
	if known == now {
		return nil
	}
	if n := len(s.intents); known != "" && n > 0 {
		return fmt.Errorf("it holds %d workloads of node %q, and this node would be %q (PERSYS_NODE_ID, agent_config.yaml, else the host name): set PERSYS_NODE_ID=%s, or drain %s before it gets another name",
			n, known, now, known, known)
	}
	s.meta.Node = now
	return a.store.update(func(w write) error { return w.meta(s.meta) })
}

// cluster is the id to put on labels at the start.
func (a *Agent) cluster() string {
	switch {
	case a.meta.Engine != "" && len(a.workloads) > 0:
		return a.meta.Engine
	case a.meta.Epoch.ClusterID != "":
		return a.meta.Epoch.ClusterID
	}
	return Unbound
}

// Run works until ctx ends, then returns nil, or until something fails that cannot be mended.
// Workloads keep running. It may be called once; it closes the file and the listener.
func (a *Agent) Run(ctx context.Context) (err error) {
	life, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.tasks.Wait()
		a.mu.Lock()
		engines := a.engines
		a.engines = nil
		a.mu.Unlock()
		a.retire(engines, nil)
		err = errors.Join(err, a.flush(), a.store.close())
	}()
	a.checks = health.New(life, a.spawn, a.checked)
	a.intentMu.Lock()
	a.life = life
	err = a.bind(life, a.cluster())
	a.intentMu.Unlock()
	if err != nil {
		if a.cfg.Listener != nil {
			err = errors.Join(err, a.cfg.Listener.Close())
		}
		return fmt.Errorf("agent: drivers: %w", err)
	}
	if a.cfg.Guard == nil && !a.holdsGuarded() {
		close(a.met)
	} else if a.holdsGuarded() {
		a.meetGuard(life) // before anything is touched
	}
	a.spawn(func() { a.storage.Mount(life) }) // beside the rest: a file server that is away keeps no node away
	now := time.Now()
	a.mu.Lock()
	for id := range a.workloads {
		a.queue.add(id, now)
	}
	for id, t := range a.tombs {
		if !t.Done {
			a.queue.add(id, now)
		}
	}
	a.mu.Unlock()

	failed := make(chan error, 3)
	run := func(what string, fn func(context.Context) error) {
		a.spawn(func() {
			if err := fn(life); err != nil && life.Err() == nil {
				failed <- fmt.Errorf("agent: %s: %w", what, err)
			}
		})
	}
	if a.cfg.Listener != nil {
		a.serve(life, a.cfg.Listener, failed)
	}
	run("host", a.host.Run)
	run("usage", a.measure)
	run("disk usage", a.measureDisks)
	run("guard", a.mindGuard)
	if a.control != nil {
		run("session", a.converse)
	}
	run("statuses", a.keepStatuses)
	run("work", a.pump)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// spawn runs fn as one of the agent's goroutines.
func (a *Agent) spawn(fn func()) { a.tasks.Go(fn) }

// serve starts the API on l and ends it with ctx.
func (a *Agent) serve(ctx context.Context, l net.Listener, failed chan<- error) {
	options := append(limits.ServerOptions(), a.cfg.ServerOptions...)
	options = append(options, grpc.ChainUnaryInterceptor(limits.Unary(a.log)), grpc.ChainStreamInterceptor(limits.Stream(a.log)))
	if a.cfg.Authorize != nil {
		options = append(options, a.authorize(*a.cfg.Authorize)...)
	}
	a.server = grpc.NewServer(options...)
	a.Register(a.server)
	a.spawn(func() {
		if err := a.server.Serve(limits.Listen(l, a.cfg.Limits, a.metrics.limited)); err != nil && ctx.Err() == nil {
			failed <- fmt.Errorf("agent: serving %s: %w", l.Addr(), err)
		}
	})
	a.spawn(func() {
		<-ctx.Done()
		// Log streams would hold a graceful stop for ever; they end with the process anyway.
		stop := time.AfterFunc(time.Second, a.server.Stop)
		a.server.GracefulStop()
		stop.Stop()
	})
}

// signal tells the session that something is worth a heartbeat.
func (a *Agent) signal() { nudge(a.dirty) }

// learn is called with the epoch of a scheduler's answer. It is an error, and the answer does not
// count, if it comes from another cluster or from a leadership that has been superseded.
func (a *Agent) learn(clusterID string, e epochMessage) error {
	got := Epoch{ClusterID: clusterID}
	if e != nil && (e.GetIncarnation() != 0 || e.GetTerm() != 0) {
		got = epochFrom(e)
		if got.ClusterID == "" {
			got.ClusterID = clusterID
		}
	}
	if got.ClusterID == "" {
		return nil // a legacy v1 scheduler
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	a.mu.Lock()
	m := a.meta
	a.mu.Unlock()
	if known := m.Epoch.ClusterID; known != "" && known != got.ClusterID {
		return fmt.Errorf("this node belongs to cluster %q, the answer is from cluster %q", known, got.ClusterID)
	}
	if otherShard(m.Epoch, got) {
		return fmt.Errorf("this node belongs to shard %q, the answer is from shard %q of cluster %q", m.Epoch.Shard, got.Shard, got.ClusterID)
	}
	got.Shard = cmp.Or(got.Shard, m.Epoch.Shard)
	if got.owned() && got.less(m.Epoch) {
		return fmt.Errorf("answered by epoch %s, which %s has superseded", got, m.Epoch)
	}
	if m.Epoch.ClusterID == got.ClusterID && m.Epoch.Shard == got.Shard && !m.Epoch.less(got) {
		return a.rebind(a.life)
	}
	m.Epoch = got
	if err := a.store.update(func(w write) error { return w.meta(m) }); err != nil {
		return fmt.Errorf("remembering epoch %s: %w", got, err)
	}
	a.mu.Lock()
	a.meta.Epoch = got
	a.mu.Unlock()
	return a.rebind(a.life)
}

// flushEvery is how long a changed status waits for others before it is stored: each time waits for the disk,
// and fifty workloads that start change theirs some hundred times. What a crash loses of it, engines tell again,
// but for the failures of that time.
const flushEvery = 500 * time.Millisecond

// keepStatuses stores the statuses that change, until ctx ends; Run stores the last ones.
func (a *Agent) keepStatuses(ctx context.Context) error {
	var problem string
	pause := flushEvery
	for {
		select {
		case <-a.unkept:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		text := ""
		if err := a.flush(); err != nil {
			text = err.Error()
		}
		if pause = flushEvery; text != "" {
			pause = max(pause, a.cfg.RetryBase)
			nudge(a.unkept) // what is unsaved stays in memory
			if text != problem {
				a.log.Error("state file", "error", text) // a full disk is told once, not at every turn
			}
		}
		problem = text
	}
}

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush stores the statuses that changed.
func (a *Agent) flush() error {
	a.intentMu.Lock() // else the status of what is deleted meanwhile would be left behind
	defer a.intentMu.Unlock()
	a.mu.Lock()
	if len(a.unsaved) == 0 {
		a.mu.Unlock()
		return nil
	}
	todo := a.unsaved
	a.unsaved = map[string]bool{}
	var list []savedStatus
	for id := range todo {
		if w := a.workloads[id]; w != nil && w.intent != nil && w.report.status != nil {
			list = append(list, w.save())
		}
	}
	a.mu.Unlock()
	err := a.store.update(func(w write) error { return all(list, w.status) })
	if err == nil {
		return nil
	}
	a.mu.Lock()
	for id := range todo {
		a.unsaved[id] = true
	}
	a.mu.Unlock()
	return fmt.Errorf("storing statuses: %w", err)
}

// Tombstones outlive any order that may still be on its way.
const (
	maxTombstoneAge = 7 * 24 * time.Hour
	maxTombstones   = 100_000
)

// prune forgets history and tombstones beyond their bounds.
func (a *Agent) prune(now time.Time) {
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	a.mu.Lock()
	tasks := a.history.excess(now)
	var tombs []string
	over := len(a.tombs) - maxTombstones
	for id, t := range a.tombs {
		if t.Done && (now.Sub(t.DeletedAt) > maxTombstoneAge || over > 0) {
			tombs = append(tombs, id)
			over--
		}
	}
	a.mu.Unlock()
	if len(tasks)+len(tombs) == 0 {
		return
	}
	err := a.store.update(func(w write) error {
		return errors.Join(all(tasks, w.dropTask), all(tombs, w.dropTombstone))
	})
	if err != nil {
		a.log.Error("pruning the state file", "error", err)
		return
	}
	a.mu.Lock()
	a.history.drop(tasks)
	for _, id := range tombs {
		delete(a.tombs, id)
	}
	a.mu.Unlock()
}

// Epoch is the highest leadership that this agent has seen.
func (a *Agent) Epoch() Epoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.meta.Epoch
}

// Snapshot is every workload's status, as ListWorkloads answers it.
func (a *Agent) Snapshot() []*agentv1.WorkloadStatus {
	return a.statuses(agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED)
}
