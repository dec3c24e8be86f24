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

// Options are the settings of a Mirror. A zero value selects the default.
type Options struct {
	Prefix string // ETCD_PREFIX; default: no prefix
	Layout Layout // MIRROR_LAYOUT; default LayoutWhole
	Domain string // DOMAIN, for domainName of nodes; default: domainName is omitted

	MaxEvents int           // events to keep, at most fsm.MaxEvents (the default)
	MaxAge    time.Duration // maximum age of an event by the clock of the state; default 7 days

	ProbeEvery   time.Duration // interval of probes; default 3 s
	CallLimit    time.Duration // timeout of one call; default 5 s
	WriteBound   time.Duration // timeout of one transaction with all its retries; default 30 s
	AuditEvery   time.Duration // interval of full comparisons; default 1 h
	CompactEvery time.Duration // interval of compactions; default 5 min
	// CompactBytes is the number of written bytes that triggers an earlier compaction, so
	// that many writes do not fill etcd (default quota 2 GiB). Default 128 MiB.
	CompactBytes int
}

// Attachment reads and sets the replicated record MirrorAttached. The record exists once an
// etcd cluster has held a complete mirror. The methods are safe for concurrent use.
type Attachment interface {
	// Attached returns the id of the attached etcd cluster; ok is false if there is none.
	Attached() (etcdCluster uint64, ok bool)
	// MarkAttached commits the record. The mirror calls it again after an error.
	MarkAttached(ctx context.Context, etcdCluster uint64) error
}

// Deps are the dependencies of a Mirror. OnHealth, Describe and Extra are optional.
type Deps struct {
	Store *store.Store
	// Etcd is the client. The Mirror sets a deadline on every call.
	Etcd Etcd
	// Confirm returns nil if this replica still leads (cluster/DESIGN.md). The mirror
	// calls it before it writes its first cursor of a session.
	Confirm    func(context.Context) error
	Attachment Attachment
	Describe   Describe
	Extra      Extra // additional keys; nil: none
	// OnHealth is called when the state of the mirror changes; see ModeFor. Calls do not
	// overlap, and states that are outdated by then are skipped. It may block until a
	// proposal is committed.
	OnHealth func(context.Context, Health)
	Log      *slog.Logger
}

// Mirror writes the state to one etcd cluster while this replica leads. Its methods are
// safe for concurrent use.
type Mirror struct {
	options Options
	deps    Deps
	proj    *Projection
	server  server

	running     atomic.Pointer[chan struct{}] // closed when the current Run ends; nil: not running
	restores    chan *restore
	probed      chan string // cursor value that the last probe read
	etcdCluster atomic.Uint64

	mu      sync.Mutex
	judge   judge
	stats   Stats
	behind  time.Time // time at which the oldest unwritten change was taken from the feed; zero: none
	taken   uint64    // index of the last batch from the feed
	takenAt time.Time
	marked  uint64 // etcd cluster for which MarkAttached succeeded in this leadership term
	changed chan struct{}
}

// Stats are counters and gauges for metrics.
type Stats struct {
	Health       Health
	Index        uint64        // index of the state in etcd
	LagIndex     uint64        // log entries that are not in etcd yet; 0 if there are no unwritten changes
	Lag          time.Duration // upper bound of the age of the oldest unwritten change; 0 if there is none
	Records      uint64        // keys written or removed
	Transactions uint64
	Comparisons  uint64 // full comparisons
	Fenced       uint64 // transactions refused because another writer changed the cursor
	Errors       uint64 // failed calls, including retries and probes
	Sessions     uint64
	Probe        time.Duration // duration of the last probe
}

// New returns a Mirror. It makes no calls to etcd. It returns an error if an option is
// invalid or a required dependency is missing.
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

// Projection returns the mapping from records to keys that this mirror uses.
func (m *Mirror) Projection() *Projection { return m.proj }

// Running reports whether Run is running on this replica.
func (m *Mirror) Running() bool { return m.running.Load() != nil }

// Stats returns the current statistics.
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

// leaderTerm is the state that the sessions of one leadership term share.
type leaderTerm struct {
	epoch   fsm.Epoch
	cluster string
	writer  string // random id of this leadership term in cursor values
	last    string // last cursor value that was confirmed as written
	tried   string // cursor value of the last transaction; it may or may not have been written
	restore *restore
	fenced  bool // the last session ended with errFenced
}

var (
	errRestore    = errors.New("a restore was asked for")
	errRunning    = errors.New("mirror: Run is running already")
	errNotRunning = errors.New("mirror: this replica does not write the mirror now: ask the one that leads")
)

// Run writes the state to etcd until ctx ends. ctx should end with the leadership term.
// Run returns the error of ctx, store.ErrClosed, or ErrDeposed if etcd holds a later
// epoch and the leadership is not confirmed. Run does not return when etcd fails or is
// down: it retries, and Stats shows the Health.
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
	st := &leaderTerm{epoch: epoch, cluster: info.ClusterID, writer: hex.EncodeToString(nonce)}
	m.mu.Lock()
	m.judge, m.behind, m.taken, m.marked = newJudge(time.Now), time.Now(), 0, 0
	m.mu.Unlock()
	// OnHealth of a later term must not be called with the state of this term.
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
			req.done <- err // the session failed before the restore was complete
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

// formed waits until the state machine has a cluster id.
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

// session runs one session until it ends.
func (m *Mirror) session(ctx context.Context, st *leaderTerm) error {
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

// ended handles the error of a session. done: Run must return. pause: wait before the
// next session.
func (m *Mirror) ended(st *leaderTerm, err error) (done, pause bool) {
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
		return false, again // fenced twice in a row: another process also writes
	case errors.Is(err, ErrEmptied), errors.Is(err, ErrForeignData):
		m.judged(func(j *judge) bool { return j.found(err) })
	case errors.Is(err, errUnconfirmed):
		m.deps.Log.Warn("the mirror waits", "error", err, "epoch", st.epoch.String())
	default:
		m.judged(func(j *judge) bool { return j.failed(err) })
	}
	return false, true
}

// probe reads the cursor every ProbeEvery and updates the health. It passes the value to
// the session if the session is idle.
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
			default: // the session is writing; its transaction checks the cursor
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// judged updates the health and wakes tell if the state changed.
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

// tell calls OnHealth with the current health after each change of state.
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

// attach commits MirrorAttached. The caller has written the whole state to etcd.
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

func (m *Mirror) newWriter(st *leaderTerm) writer {
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

// pending records that a batch up to index was taken from the feed.
func (m *Mirror) pending(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.takenAt = index, time.Now()
	if m.behind.IsZero() {
		m.behind = m.takenAt
	}
}

// mirrored records that etcd holds all changes up to index. If newer changes exist, the
// oldest of them was taken with the last batch.
func (m *Mirror) mirrored(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Index = index
	if m.behind = (time.Time{}); m.taken > index {
		m.behind = m.takenAt
	}
}

// lost records that changes are no longer written from now on.
func (m *Mirror) lost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind.IsZero() {
		m.behind = time.Now()
	}
}
