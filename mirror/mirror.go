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
	Domain string // DOMAIN, for the field domainName of nodes; default: that field is omitted

	MaxEvents int           // number of events to keep, at most fsm.MaxEvents (the default)
	MaxAge    time.Duration // maximum age of an event by the clock of the state; default 7 days

	ProbeEvery   time.Duration // time between two probes; default 3 s
	CallLimit    time.Duration // timeout of one call; default 5 s
	WriteBound   time.Duration // timeout of one transaction with all its retries; default 30 s
	AuditEvery   time.Duration // time between two full comparisons; default 1 h
	CompactEvery time.Duration // time between two compactions; default 5 min
	// CompactBytes is the number of written bytes after which etcd is compacted before CompactEvery is over. It
	// keeps a high write rate from filling etcd (default quota 2 GiB). Default 128 MiB.
	CompactBytes int
}

// Attachment reads and sets, in the replicated state, which etcd is attached: the only one to which the
// mirror may write. The methods are safe for concurrent use.
type Attachment interface {
	// Attached returns the id of the only etcd cluster that may be written, and whether that etcd has held a
	// complete mirror. The id is 0 if any etcd may be written.
	Attached() (etcdCluster uint64, held bool)
	// MarkAttached records that an etcd cluster has held a complete mirror. After an error the mirror calls
	// MarkAttached again. The call may take long: the mirror goes on writing meanwhile.
	MarkAttached(ctx context.Context, etcdCluster uint64) error
}

// Deps holds what a Mirror needs from its caller. OnHealth, Describe and Extra are optional.
type Deps struct {
	Store *store.Store
	// Etcd is the client of etcd. The Mirror sets a deadline on every call.
	Etcd Etcd
	// Confirm returns nil if this replica still leads (cluster/DESIGN.md). The mirror calls it before the
	// first cursor of a session is written.
	Confirm    func(context.Context) error
	Attachment Attachment
	Describe   Describe
	Extra      Extra // additional keys; nil: none
	// OnHealth is called when the state of the mirror changes; see ModeFor. Calls do not overlap. If the
	// state changes several times during a call, only the last state is passed on. OnHealth may block until a
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

	running     atomic.Pointer[chan struct{}] // a channel that is closed when the current Run ends; nil: Run is not running
	restores    chan *restore
	probed      chan string // passes the cursor value that the last probe read to the session
	etcdCluster atomic.Uint64

	mu      sync.Mutex
	judge   judge
	stats   Stats
	behind  time.Time // time when the oldest change that is not in etcd was taken from the feed; zero if there is none
	taken   uint64    // index of the last batch that was taken from the feed
	takenAt time.Time
	changed chan struct{}
	written chan struct{} // wakes the goroutine that records the attachment; capacity 1
}

// Stats are counters and gauges for metrics.
type Stats struct {
	Health       Health
	Index        uint64        // index of the state in etcd
	LagIndex     uint64        // log entries that are not in etcd yet; 0 if there are no unwritten changes
	Lag          time.Duration // the oldest unwritten change is at most this old; 0 if there is none
	Records      uint64        // number of keys written or removed
	Transactions uint64
	Comparisons  uint64 // number of full comparisons
	Fenced       uint64 // number of transactions that etcd refused because another writer had changed the cursor
	Errors       uint64 // number of failed calls, including retries and probes
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
		return nil, fmt.Errorf("mirror: MaxEvents: %d is not in 0 to %d, the number of events that the state keeps", o.MaxEvents, fsm.MaxEvents)
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
		written:  make(chan struct{}, 1),
	}, nil
}

// Projection returns the mapping of this mirror from records to keys.
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
	writer  string // random id of this leadership term, part of its cursor values
	last    string // last cursor value that is known to be in etcd
	tried   string // cursor value of the last transaction, which may or may not have taken effect
	restore *restore
	fenced  bool // the last session ended with errFenced: etcd had another cursor
}

var (
	errRestore    = errors.New("Restore was called")
	errRunning    = errors.New("mirror: Run is running already")
	errNotRunning = errors.New("mirror: Run is not running on this replica: call the leader")
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
	m.judge, m.behind, m.taken = newJudge(time.Now), time.Now(), 0
	m.mu.Unlock()
	// OnHealth of a later leadership term must not be called with the health of this term.
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.judge = newJudge(time.Now)
	}()

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.probe(ctx, st.cluster) })
	wg.Go(func() { m.tell(ctx) })
	wg.Go(func() { m.attach(ctx) })
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

// session runs one session (synchronise etcd, then follow the change feed) until it ends.
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
	select {
	case m.written <- struct{}{}:
	default:
	}
	if st.restore != nil {
		st.restore.done <- nil
		st.restore = nil
	}
	return s.stream(ctx)
}

// ended handles the error that ended a session. If done is true, Run must return. If pause is true, Run
// waits before the next session.
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
		m.deps.Log.Warn("another writer has changed the mirror in etcd; it is read again", "error", err, "epoch", st.epoch.String())
		return false, again // two sessions in a row were fenced, so another process also writes
	case errors.Is(err, ErrEmptied), errors.Is(err, ErrForeignData), errors.Is(err, ErrOtherEtcd):
		m.judged(func(j *judge) bool { return j.found(err) })
	case errors.Is(err, errUnconfirmed):
		m.deps.Log.Warn("the mirror does not write yet; it waits and tries again", "error", err, "epoch", st.epoch.String())
	default:
		m.judged(func(j *judge) bool { return j.failed(err) })
	}
	return false, true
}

// probe reads the cursor every ProbeEvery and updates the health. If the session waits for changes, probe
// passes the cursor to the session, which checks it.
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
			default: // the session is busy writing, and its transactions check the cursor themselves
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// judged updates the health. If the state of the mirror changed, it wakes the goroutine that runs tell.
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

// tell calls OnHealth with the present health whenever the state of the mirror has changed.
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

// attach records in the replicated state, once etcd has held the whole state, that the mirror is attached
// to this etcd. It tries again until that succeeds, and records the attachment again after an operator has
// ended it (detach).
func (m *Mirror) attach(ctx context.Context) {
	tick := time.NewTicker(m.options.ProbeEvery)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.written:
		case <-tick.C:
		}
		m.mu.Lock()
		synced := m.judge.synced
		m.mu.Unlock()
		id := m.etcdCluster.Load()
		pin, held := m.deps.Attachment.Attached()
		if !synced || id == 0 || held && pin == id || samePin(pin, id) != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, 3*m.options.CallLimit)
		err := m.deps.Attachment.MarkAttached(limited, id)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			logged = ""
		case err.Error() != logged:
			logged = err.Error()
			m.deps.Log.Warn("the attached etcd could not be recorded yet: until then the loss of etcd does not change the mode", "error", err)
		}
	}
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

// pending records, for the metrics, that the changes up to index were taken from the feed and wait
// to be written.
func (m *Mirror) pending(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.takenAt = index, time.Now()
	if m.behind.IsZero() {
		m.behind = m.takenAt
	}
}

// mirrored records, for the metrics, that etcd holds all changes up to index. The changes after index, if
// there are any, are in the last batch that was taken from the feed.
func (m *Mirror) mirrored(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Index = index
	if m.behind = (time.Time{}); m.taken > index {
		m.behind = m.takenAt
	}
}

// lost records, for the metrics, that the mirror writes no more changes from now on.
func (m *Mirror) lost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind.IsZero() {
		m.behind = time.Now()
	}
}
