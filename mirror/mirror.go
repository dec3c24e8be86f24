package mirror

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Options are the mirror's settings; the zero value of each is its default.
type Options struct {
	Prefix string // ETCD_PREFIX; default empty
	Layout Layout // MIRROR_LAYOUT; default LayoutWhole
	Domain string // DOMAIN, for the nodes' domainName; default: that key is left out

	MaxEvents int           // events kept; default and at most fsm.MaxEvents
	MaxAge    time.Duration // of events, by the state's clock; default 7 days

	ProbeEvery   time.Duration // default 3 s
	CallLimit    time.Duration // deadline of one call; default 5 s
	WriteBound   time.Duration // of one transaction with its repetitions; default 30 s
	AuditEvery   time.Duration // full comparison although nothing is wrong; default 1 h
	CompactEvery time.Duration // revisions older than this are given up; default 5 min
	// CompactBytes is after how much was written they are given up earlier, so that
	// a busy hour does not fill etcd, of which 2 GiB is the default quota; default
	// 128 MiB.
	CompactBytes int
}

// Attachment is the replicated fact MirrorAttached: that some etcd has held the
// whole mirror once. Its methods may be called from any goroutine.
type Attachment interface {
	// Attached returns the id of that etcd cluster, and false if there was none.
	Attached() (etcdCluster uint64, ok bool)
	// MarkAttached commits the fact. It is called again until it succeeds.
	MarkAttached(ctx context.Context, etcdCluster uint64) error
}

// Deps is what a Mirror works with. All but OnHealth, Describe and
// Extra are required.
type Deps struct {
	Store *store.Store
	// Etcd is the client. The Mirror gives every call a deadline.
	Etcd Etcd
	// Confirm proves that this replica still leads (cluster/DESIGN.md). It is
	// asked before the cursor is taken over.
	Confirm    func(context.Context) error
	Attachment Attachment
	Describe   Describe
	Extra      Extra // further keys; nil = none
	// OnHealth is told of every change of state, the newest only, one call at a
	// time; see ModeFor. It may block for as long as a proposal takes.
	OnHealth func(context.Context, Health)
	Log      *slog.Logger
}

// Mirror writes the state to one etcd while this replica leads. Its methods may
// be called from any goroutine.
type Mirror struct {
	options Options
	deps    Deps
	proj    *Projection
	server  server

	running     atomic.Pointer[chan struct{}] // closed when the present Run ends; nil = there is none
	restores    chan *restore
	probed      chan string // what the newest probe read under the cursor key
	etcdCluster atomic.Uint64

	mu      sync.Mutex
	judge   judge
	stats   Stats
	behind  time.Time // when the oldest change that is not in etcd was taken; zero = none
	taken   uint64    // index of the newest batch that was taken from the feed
	takenAt time.Time
	marked  uint64 // etcd cluster of which MarkAttached succeeded in this stint
	changed chan struct{}
}

// Stats are figures for metrics.
type Stats struct {
	Health       Health
	Index        uint64        // of the state that etcd holds
	LagIndex     uint64        // log entries not in etcd yet; 0 while idle
	Lag          time.Duration // age of the oldest change that is not in etcd, at most; 0 while idle
	Records      uint64        // keys written or removed
	Transactions uint64
	Comparisons  uint64 // full ones
	Fenced       uint64 // transactions refused because of the cursor
	Errors       uint64 // calls that failed, repetitions and probes included
	Sessions     uint64
	Probe        time.Duration // of the newest probe
}

// New checks the options and makes a Mirror. Nothing is called before Run.
func New(o Options, d Deps) (*Mirror, error) {
	keys, err := newKeyspace(o.Prefix)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Layout == "":
		o.Layout = LayoutWhole
	case o.Layout != LayoutWhole && o.Layout != LayoutBoth:
		return nil, fmt.Errorf("MIRROR_LAYOUT: %q is neither %s nor %s", o.Layout, LayoutWhole, LayoutBoth)
	}
	if o.MaxEvents < 0 || o.MaxEvents > fsm.MaxEvents {
		return nil, fmt.Errorf("mirror: events to keep: %d is not in 0 to %d, of which the state keeps as many", o.MaxEvents, fsm.MaxEvents)
	}
	if d.Store == nil || d.Etcd == nil || d.Confirm == nil || d.Attachment == nil || d.Log == nil {
		return nil, errors.New("mirror: Store, Etcd, Confirm, Attachment and Log are required")
	}
	if err := checkExtra(d.Extra); err != nil {
		return nil, err
	}
	if d.Describe == nil {
		d.Describe = func(*fsm.Workload) Fields { return Fields{} }
	}
	if d.OnHealth == nil {
		d.OnHealth = func(context.Context, Health) {}
	}
	if o.MaxEvents == 0 {
		o.MaxEvents = fsm.MaxEvents
	}
	if o.CompactBytes <= 0 {
		o.CompactBytes = 128 << 20
	}
	defaults := [...]struct {
		at *time.Duration
		to time.Duration
	}{
		{&o.MaxAge, 7 * 24 * time.Hour}, {&o.ProbeEvery, 3 * time.Second}, {&o.CallLimit, callLimit},
		{&o.WriteBound, 6 * callLimit}, {&o.AuditEvery, time.Hour}, {&o.CompactEvery, 5 * time.Minute},
	}
	for _, x := range defaults {
		if *x.at <= 0 {
			*x.at = x.to
		}
	}
	return &Mirror{
		options: o, deps: d,
		proj: &Projection{
			keys: keys, layout: o.Layout, domain: o.Domain, describe: d.Describe, extra: d.Extra,
			maxEvents: uint64(o.MaxEvents), maxAge: o.MaxAge,
		},
		server:   server{kv: d.Etcd, limit: o.CallLimit, bound: o.WriteBound, pause: o.CallLimit / 10, errors: new(atomic.Uint64)},
		restores: make(chan *restore),
		probed:   make(chan string),
		judge:    newJudge(time.Now),
		changed:  make(chan struct{}, 1),
	}, nil
}

// Projection maps the records that this mirror writes.
func (m *Mirror) Projection() *Projection { return m.proj }

// Running says whether this replica writes the mirror now.
func (m *Mirror) Running() bool { return m.running.Load() != nil }

// Stats are the present figures.
func (m *Mirror) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Health, s.Errors = m.judge.health, m.server.errors.Load()
	if !m.behind.IsZero() {
		s.Lag = time.Since(m.behind)
		if index := m.deps.Store.View().Info().Index; index > s.Index {
			s.LagIndex = index - s.Index
		}
	}
	return s
}

// stint is what sessions of one leader's stint share.
type stint struct {
	epoch   fsm.Epoch
	cluster string
	writer  string // random; tells this stint's cursors from all others
	last    string // cursor that was written last, as far as is known
	tried   string // cursor that may have been written since
	restore *restore
	fenced  bool // the last session ended so
}

var (
	errRestore    = errors.New("a restore was asked for")
	errRunning    = errors.New("mirror: Run is running already")
	errNotRunning = errors.New("mirror: this replica does not write the mirror now: ask the one that leads")
)

// Run mirrors for as long as the context lives, which should end with the
// leader's stint. It returns the context's error, ErrDeposed if etcd shows a
// later leader and this leadership could not be confirmed, or store.ErrClosed.
// An etcd that is away or fails ends nothing: Run goes on trying, and Health
// says so.
func (m *Mirror) Run(ctx context.Context, epoch fsm.Epoch) error {
	ended := make(chan struct{})
	if !m.running.CompareAndSwap(nil, &ended) {
		return errRunning
	}
	defer close(ended)
	defer m.running.Store(nil)
	nonce := make([]byte, 8)
	if _, err := rand.Read(nonce); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	info, err := m.formed(ctx)
	if err != nil {
		return err
	}
	st := &stint{epoch: epoch, cluster: info.ClusterID, writer: hex.EncodeToString(nonce)}
	m.mu.Lock()
	m.judge, m.behind, m.taken, m.marked = newJudge(time.Now), time.Now(), 0, 0
	m.mu.Unlock()
	// A later stint may be asked for its judgement before it has begun to judge.
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.judge = newJudge(time.Now)
	}()

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.probe(ctx, st.cluster) })
	wg.Go(func() { m.tell(ctx) })
	defer wg.Wait()
	defer cancel()
	defer func() {
		if st.restore != nil {
			st.restore.done <- errNotRunning
		}
	}()
	for {
		err := m.session(ctx, st)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if req := st.restore; req != nil && !errors.Is(err, errRestore) {
			req.done <- err // it ended before it was reached
			st.restore = nil
		}
		if done, pause := m.ended(st, err); done {
			return err
		} else if !pause {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case st.restore = <-m.restores:
		case <-time.After(m.options.ProbeEvery):
		}
	}
}

// formed waits until the cluster has its identity.
func (m *Mirror) formed(ctx context.Context) (fsm.Info, error) {
	for index := uint64(0); ; {
		v, err := m.deps.Store.At(ctx, index)
		if err != nil {
			return fsm.Info{}, err
		}
		info := v.Info()
		if info.ClusterID != "" {
			return info, nil
		}
		index = info.Index + 1
	}
}

// session runs one session to its end.
func (m *Mirror) session(ctx context.Context, st *stint) error {
	m.mu.Lock()
	m.stats.Sessions++
	m.mu.Unlock()
	s := &session{m: m, st: st}
	defer func() {
		if s.feed != nil {
			s.feed.Close()
		}
	}()
	if err := s.open(ctx, st.restore != nil); err != nil {
		return err
	}
	st.fenced = false
	m.judged((*judge).caughtUp)
	if st.restore != nil {
		st.restore.done <- nil
		st.restore = nil
	}
	return s.stream(ctx)
}

// ended judges how a session ended: whether the stint is over, and if not,
// whether to wait before the next one.
func (m *Mirror) ended(st *stint, err error) (done, pause bool) {
	again := st.fenced
	st.fenced = errors.Is(err, errFenced)
	m.lost()
	switch {
	case errors.Is(err, ErrDeposed), errors.Is(err, store.ErrClosed):
		return true, false
	case errors.Is(err, errRestore), errors.Is(err, store.ErrCompacted):
		return false, false
	case st.fenced:
		m.mu.Lock()
		m.stats.Fenced++
		m.mu.Unlock()
		m.deps.Log.Warn("the mirror is read again", "error", err, "epoch", st.epoch.String())
		return false, again // two in a row: somebody else writes as well
	case errors.Is(err, ErrEmptied), errors.Is(err, ErrForeignData):
		m.judged(func(j *judge) bool { return j.found(err) })
	case errors.Is(err, errUnconfirmed):
		m.deps.Log.Warn("the mirror waits", "error", err, "epoch", st.epoch.String())
	default:
		m.judged(func(j *judge) bool { return j.failed(err) })
	}
	return false, true
}

// probe reads cursor and owner at a steady pace: what cannot be read is judged,
// and what was read goes to a session that has nothing better to do.
func (m *Mirror) probe(ctx context.Context, cluster string) {
	tick := time.NewTicker(m.options.ProbeEvery)
	defer tick.Stop()
	for {
		start := time.Now()
		r, err := m.server.once(ctx, m.proj.keys.cursor(cluster))
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		m.stats.Probe = time.Since(start)
		m.mu.Unlock()
		m.judged(func(j *judge) bool { return j.probed(err) })
		if err == nil {
			m.etcdCluster.Store(r.Header.GetClusterId())
			raw := ""
			if len(r.Kvs) > 0 {
				raw = string(r.Kvs[0].Value)
			}
			select {
			case m.probed <- raw:
			default: // a write is under way and notices by itself
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// judged updates the judgement and wakes tell when it changed.
func (m *Mirror) judged(update func(*judge) bool) {
	m.mu.Lock()
	changed := update(&m.judge)
	h := m.judge.health
	m.mu.Unlock()
	if !changed {
		return
	}
	m.deps.Log.Info("the mirror's state changed", "state", h.State, "reason", h.Reason)
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// tell calls OnHealth with the newest judgement whenever it changed.
func (m *Mirror) tell(ctx context.Context) {
	told := Starting
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		}
		m.mu.Lock()
		h := m.judge.health
		m.mu.Unlock()
		if h.State != told {
			told = h.State
			m.deps.OnHealth(ctx, h)
		}
	}
}

// attach commits MirrorAttached once etcd holds the whole.
func (m *Mirror) attach(ctx context.Context, etcdCluster uint64) {
	m.mu.Lock()
	marked := m.marked
	m.mu.Unlock()
	if known, ok := m.deps.Attachment.Attached(); marked == etcdCluster || ok && known == etcdCluster || etcdCluster == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.options.CallLimit)
	defer cancel()
	if err := m.deps.Attachment.MarkAttached(ctx, etcdCluster); err != nil {
		m.deps.Log.Warn("that the mirror is attached could not be recorded yet", "error", err)
		return
	}
	m.mu.Lock()
	m.marked = etcdCluster
	m.mu.Unlock()
}

func (m *Mirror) newWriter(st *stint) writer {
	return writer{
		server: m.server, keys: m.proj.keys, owner: ownerOf(st.cluster), cluster: st.cluster,
		tried: &st.tried,
		count: func(records int) {
			m.mu.Lock()
			m.stats.Records += uint64(records)
			m.stats.Transactions++
			m.mu.Unlock()
		},
	}
}

func (m *Mirror) compared() {
	m.mu.Lock()
	m.stats.Comparisons++
	m.mu.Unlock()
}

// pending notes that the changes up to an index were taken from the feed.
func (m *Mirror) pending(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.takenAt = index, time.Now()
	if m.behind.IsZero() {
		m.behind = m.takenAt
	}
}

// mirrored notes that etcd holds everything up to an index. What it lacks now
// was not taken before the newest batch.
func (m *Mirror) mirrored(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Index = index
	if m.behind = (time.Time{}); m.taken > index {
		m.behind = m.takenAt
	}
}

// lost notes that etcd falls behind from now on.
func (m *Mirror) lost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind.IsZero() {
		m.behind = time.Now()
	}
}
