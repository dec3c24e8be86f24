package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// errUnconfirmed means that leadership could not be confirmed at this time. Run continues
// until its context ends.
var errUnconfirmed = errors.New("leadership is not confirmed")

// session synchronises etcd with the state once and then follows the change feed. It ends
// at the first error. The next session starts from the contents of etcd at that time.
type session struct {
	m  *Mirror
	st *leaderTerm
	w  writer

	feed   *store.Cursor
	index  uint64 // etcd holds all changes up to this index
	fed    uint64 // index of the last batch that was read from the feed
	dirty  uint64 // some records in etcd may be newer than index, up to this index; 0: none is newer
	floor  string // key of the oldest event in etcd; "" if it is not known
	drifts map[string]uint64
	// revision is etcd's revision when the session started, compactTo its revision at the last
	// compaction by this session. A compaction removes only the revisions before the previous
	// compaction, so etcd keeps the history of one interval.
	revision, compactTo int64
	compacted           int // number of bytes that were sent up to the last compaction (writer.sent)
}

// open reads the cursor, writes the cursor of this term and synchronises etcd with the state. stream then
// follows the feed. If force is set, open overwrites the contents of etcd even if the function decide
// forbids it.
func (s *session) open(ctx context.Context, force bool) error {
	v := s.m.deps.Store.View()
	info := v.Info()
	f, err := s.m.server.look(ctx, s.m.proj.keys, s.st.cluster)
	if err != nil {
		return err
	}
	pin, attached := s.m.deps.Attachment.Attached()
	if err := samePin(pin, f.etcdCluster); err != nil {
		return err
	}
	act, err := decide(f, standing{
		cluster: s.st.cluster, epoch: s.st.epoch, index: info.Index, digest: info.Digest, layout: s.m.proj.layout, shape: s.m.proj.shape(),
		empty: v.WorkloadCount() == 0, attached: attached,
		mismatch: s.st.last != "" && f.cursor.raw != s.st.last && f.cursor.raw != s.st.tried,
	})
	if force {
		act, err = actCompare, nil
	}
	unconfirmed := s.confirm(ctx)
	switch {
	case errors.Is(err, ErrDeposed) && unconfirmed == nil:
		return fmt.Errorf("%w: its cursor is of epoch %s, later than the confirmed leader's %s", ErrForeignData, f.cursor.epoch(), s.st.epoch)
	case err != nil:
		return err
	case unconfirmed != nil:
		return fmt.Errorf("%w: %w", errUnconfirmed, unconfirmed)
	}
	s.revision = f.revision
	if act == actResume {
		switch s.feed, err = s.m.deps.Store.Changes(f.cursor.Index); {
		case errors.Is(err, store.ErrCompacted):
			act = actCompare
		case err != nil:
			return err
		}
	}
	next := cursor{Format: format, Layout: s.m.proj.layout, Shape: s.m.proj.shape(), Writer: s.st.writer, Incarnation: s.st.epoch.Incarnation, Term: s.st.epoch.Term, Digest: digestText(0)}
	s.w = s.m.newWriter(s.st)
	if act == actResume {
		next.Index, next.Upto, next.Digest, next.Complete = f.cursor.Index, f.cursor.Upto, f.cursor.Digest, true
		s.index, s.fed, s.dirty = next.Index, next.Index, next.Upto
		if err := s.w.claim(ctx, f, next); err != nil {
			return err
		}
		err = s.catchUpDrifts(ctx, v)
	} else {
		s.m.deps.Log.Info("the mirror is compared with the whole state", "index", info.Index, "epoch", s.st.epoch.String())
		if s.feed, err = s.m.deps.Store.Changes(info.Index); err != nil {
			return err
		}
		if err := s.w.claim(ctx, f, next); err != nil {
			return err
		}
		err = s.compareAll(ctx, v)
		s.fed = info.Index
	}
	if err != nil {
		return err
	}
	s.st.last = s.w.cur.raw
	s.m.etcdCluster.Store(f.etcdCluster)
	return nil
}

func (s *session) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.m.options.CallLimit)
	defer cancel()
	return s.m.deps.Confirm(ctx)
}

// commit sends the collected operations and the cursor next, which must be derived from the current cursor.
func (s *session) commit(ctx context.Context, next cursor) error {
	if err := s.w.commit(ctx, next); err != nil {
		return err
	}
	s.st.last = s.w.cur.raw
	return nil
}

// reached returns the cursor for a state that etcd holds completely. If some records in etcd are newer, its
// Upto is set.
func (s *session) reached(info fsm.Info) cursor {
	next := s.w.cur
	next.Index, next.Digest, next.Complete, next.Upto = info.Index, digestText(info.Digest), true, 0
	if s.dirty > info.Index {
		next.Upto = s.dirty
	}
	return next
}

// add adds one record to the current transaction. If the transaction is full, add commits it first.
func (s *session) add(ctx context.Context, kv KV, upto uint64) error {
	if len(kv.Value) > maxValue {
		return fmt.Errorf("mirror: record %s has %d bytes, at most %d fit into a transaction", kv.Key, len(kv.Value), maxValue)
	}
	if s.w.full(kv) {
		next := s.w.cur
		next.Upto = max(next.Upto, upto)
		if err := s.commit(ctx, next); err != nil {
			return err
		}
	}
	s.w.add(kv)
	return nil
}

// compareAll makes etcd equal to a state. It compares all keys.
func (s *session) compareAll(ctx context.Context, v fsm.View) error {
	info := v.Info()
	_, err := differences(ctx, s.m.server, s.m.proj.keys, s.m.proj.sections(v), func(st step) error {
		return s.add(ctx, st.kv, info.Index)
	})
	if err != nil {
		return err
	}
	s.dirty = max(s.dirty, info.Index)
	if err := s.commit(ctx, s.reached(info)); err != nil {
		return err
	}
	s.index = info.Index
	s.noteHistory(v)
	s.m.compared()
	return nil
}

// catchUpDrifts compares only the drift records. They cannot be resumed from the change feed: when retention
// drops an event, its drift record is removed too, and the feed has no change for that.
func (s *session) catchUpDrifts(ctx context.Context, v fsm.View) error {
	s.noteHistory(v)
	sections := s.m.proj.sections(v)
	_, err := differences(ctx, s.m.server, s.m.proj.keys, sections[len(sections)-1:], func(st step) error {
		return s.add(ctx, st.kv, v.Info().Index)
	})
	if err != nil || len(s.w.ops) == 0 {
		return err
	}
	next := s.w.cur
	next.Upto = max(next.Upto, v.Info().Index)
	return s.commit(ctx, next)
}

// noteHistory stores in s.drifts from which event each drift record of a state comes. It also resets
// s.floor, the oldest event in etcd, so that the next batch removes old events: if the session continued
// after an existing cursor, etcd may hold events that are too old.
func (s *session) noteHistory(v fsm.View) {
	s.drifts, s.floor = map[string]uint64{}, ""
	for key, e := range s.m.proj.driftEvents(v) {
		s.drifts[key] = e.Seq
	}
}

// touched has the records that a batch of changes has changed, each record once however often it
// changed.
type touched struct {
	order     []string                 // changed workloads, in the order of their first change
	workloads map[string]*fsm.Workload // record before the batch, by id; nil: the workload did not exist
	nodes     map[string]bool          // changed nodes by id; true: the node record changed; false: only its allocated resources changed
	events    []*fsm.Event
	drifts    map[string]*fsm.Drift // drifts that are open after the batch, by key
	// namespaces and bundles hold the records after the batch, by name or digest; nil: the record was
	// deleted.
	namespaces map[string]*fsm.Namespace
	bundles    map[string]*fsm.Bundle
}

func collect(changes []fsm.Change) touched {
	t := touched{workloads: map[string]*fsm.Workload{}, nodes: map[string]bool{}, drifts: map[string]*fsm.Drift{}, namespaces: map[string]*fsm.Namespace{}, bundles: map[string]*fsm.Bundle{}}
	promised := func(node string) {
		if node != "" && !t.nodes[node] {
			t.nodes[node] = false
		}
	}
	for i := range changes {
		switch c := &changes[i]; c.Table {
		case fsm.TableWorkload:
			if _, ok := t.workloads[c.Key]; !ok {
				t.workloads[c.Key] = c.OldWorkload()
				t.order = append(t.order, c.Key)
			}
			before, after := c.OldWorkload(), c.NewWorkload()
			if before != nil && after != nil && before.Node == after.Node &&
				before.Demand.CPU == after.Demand.CPU && before.Demand.Memory == after.Demand.Memory {
				continue
			}
			for _, w := range [...]*fsm.Workload{before, after} {
				if w != nil {
					promised(w.Node)
				}
			}
		case fsm.TableResidual:
			for _, r := range [...]*fsm.Residual{c.OldResidual(), c.NewResidual()} {
				if r != nil {
					promised(r.Node)
				}
			}
		case fsm.TableNode:
			t.nodes[c.Key] = true
		case fsm.TableNamespace:
			t.namespaces[c.Key] = c.NewNamespace()
		case fsm.TableBundle:
			t.bundles[c.Key] = c.NewBundle()
		case fsm.TableDrift:
			if t.drifts[c.Key] = c.NewDrift(); c.NewDrift() == nil {
				delete(t.drifts, c.Key) // a closed drift is written with the event that reports it
			}
		case fsm.TableEvent:
			t.events = append(t.events, c.NewEvent())
		}
	}
	return t
}

// apply writes one batch: every changed record, with its value in the view of the batch. If etcd may already
// hold newer records than the last batch (exact is false), apply writes all keys of the changed records, also
// those whose values the batch did not change.
func (s *session) apply(ctx context.Context, b store.Batch) error {
	exact := s.fed >= s.dirty
	s.fed = b.Index
	if b.Index <= s.index {
		return nil // the changes of this batch are in etcd already, written by the full comparison
	}
	p, t := s.m.proj, collect(b.Changes)
	for digest, bundle := range t.bundles {
		if err := s.add(ctx, p.Bundle(digest, bundle), b.Index); err != nil {
			return err
		}
	}
	for _, id := range t.order {
		before := t.workloads[id]
		w, ok := b.View.Workload(id)
		var kvs []KV
		switch {
		case !ok && before == nil && exact:
		case !ok:
			kvs = p.Gone(id)
		default:
			kvs = p.records(w)
			if !exact || before == nil && w.Node != "" || before != nil && assignmentOf(before) != assignmentOf(w) {
				kvs = append(kvs, p.assignment(w))
			}
			if !exact || before == nil || retryOf(before) != retryOf(w) {
				kvs = append(kvs, p.retry(w))
			}
		}
		if err := s.addAll(ctx, kvs, b.Index); err != nil {
			return err
		}
	}
	shard := b.View.Info().Shard
	for id, changed := range t.nodes {
		n, ok := b.View.Node(id)
		var kvs []KV
		switch {
		case ok && (changed || !exact):
			kvs = p.Node(n, b.View.Alloc(id), shard)
		case ok:
			kvs = []KV{p.nodeRecord(n, b.View.Alloc(id), shard)}
		default:
			kvs = p.NodeGone(id)
		}
		if err := s.addAll(ctx, kvs, b.Index); err != nil {
			return err
		}
	}
	for name, n := range t.namespaces {
		if err := s.add(ctx, p.Namespace(name, n), b.Index); err != nil {
			return err
		}
	}
	if err := s.addAll(ctx, p.extraChanges(b.View, b.Changes), b.Index); err != nil {
		return err
	}
	if err := s.history(ctx, b.View, t); err != nil {
		return err
	}
	if err := s.commit(ctx, s.reached(b.View.Info())); err != nil {
		return err
	}
	s.index = b.Index
	return nil
}

func (s *session) addAll(ctx context.Context, kvs []KV, upto uint64) error {
	for _, kv := range kvs {
		if err := s.add(ctx, kv, upto); err != nil {
			return err
		}
	}
	return nil
}

// history writes new events and changed drifts, and removes events and drift records that are too old to be
// kept.
func (s *session) history(ctx context.Context, v fsm.View, t touched) error {
	p, index := s.m.proj, v.Info().Index
	oldest, floor := p.floor(v)
	newest := map[string]*fsm.Event{}
	for _, e := range t.events {
		if e.Seq < oldest {
			if tellsOfDrift(e) {
				s.drifts[p.keys.drift(e)] = e.Seq // the record of an open drift is written further below, with its current values
			}
			continue
		}
		if err := s.add(ctx, p.Event(e), index); err != nil {
			return err
		}
		if tellsOfDrift(e) {
			newest[p.keys.drift(e)] = e
		}
	}
	for _, d := range t.drifts {
		e := openDrift(v, d)
		newest[p.keys.drift(e)] = e
	}
	for key, e := range newest {
		s.drifts[key] = e.Seq
		if err := s.add(ctx, p.Drift(e), index); err != nil {
			return err
		}
	}
	if floor == s.floor {
		return nil
	}
	var open map[string]*fsm.Event // the open drifts, listed when the first drift with an expired event is found
	for key, seq := range s.drifts {
		// The event of this drift is too old to be kept. If the drift is open, its record is written again,
		// otherwise the record is deleted. Drifts that this batch has already written are skipped, because an
		// etcd transaction must not put one key twice.
		if _, written := newest[key]; written || seq >= oldest {
			continue
		}
		if open == nil {
			open = p.openDrifts(v)
		}
		if e, stays := open[key]; stays {
			s.drifts[key] = e.Seq
			if err := s.add(ctx, p.Drift(e), index); err != nil {
				return err
			}
		} else {
			delete(s.drifts, key)
			if err := s.add(ctx, KV{Key: key}, index); err != nil {
				return err
			}
		}
	}
	// The removal of a range of keys is a single operation of the transaction, whatever the number
	// of keys.
	from := string(p.keys) + dirEvents
	if s.w.full(KV{Key: from + floor}) {
		next := s.w.cur
		next.Upto = max(next.Upto, index)
		if err := s.commit(ctx, next); err != nil {
			return err
		}
	}
	s.w.addRange(from, floor)
	s.floor = floor
	return nil
}

// taken is the result of one read of the change feed.
type taken struct {
	store.Batch
	err error
}

// follow starts a goroutine that reads batches from the feed, one ahead of the writer, until ctx ends or the
// feed fails. The goroutine then closes the returned channel.
func (s *session) follow(ctx context.Context) <-chan taken {
	out := make(chan taken)
	go func() {
		defer close(out)
		for {
			b, err := s.feed.Next(ctx)
			if err == nil {
				s.m.pending(b.Index)
			}
			select {
			case out <- taken{b, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// stream writes the changes from the change feed to etcd until an error occurs or ctx ends.
func (s *session) stream(ctx context.Context) error {
	defer s.feed.Close()
	ctx, cancel := context.WithCancel(ctx)
	batches := s.follow(ctx)
	defer func() {
		cancel()
		for range batches { // wait until the goroutine of follow has ended
		}
	}()
	o := &s.m.options
	chores := time.NewTicker(o.ProbeEvery)
	defer chores.Stop()
	audit := time.NewTicker(o.AuditEvery)
	defer audit.Stop()
	compact := time.NewTicker(o.CompactEvery)
	defer compact.Stop()
	s.m.mirrored(s.index)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case b, ok := <-batches:
			switch {
			case !ok:
				return context.Cause(ctx)
			case b.err != nil:
				return b.err
			}
			if err := s.apply(ctx, b.Batch); err != nil {
				return err
			}
			s.m.mirrored(s.index)
			if s.w.sent-s.compacted >= o.CompactBytes {
				s.compact(ctx)
				compact.Reset(o.CompactEvery)
			}
		case raw := <-s.m.probed:
			if raw == s.w.cur.raw {
				continue
			}
			// The probe may have read the cursor before the session's last write, so the session reads it
			// again.
			f, err := s.m.server.look(ctx, s.m.proj.keys, s.st.cluster)
			if err != nil {
				return err
			}
			if f.cursor.raw != s.w.cur.raw || f.owner.raw != s.w.owner.raw {
				return fmt.Errorf("%w: %s", errFenced, orElse(f.cursor.raw, "etcd has no cursor"))
			}
		case req := <-s.m.restores:
			s.st.restore = req
			return errRestore
		case <-chores.C:
			if err := s.trim(ctx); err != nil {
				return err
			}
		case <-audit.C:
			if err := s.compareAll(ctx, s.m.deps.Store.View()); err != nil {
				return err
			}
		case <-compact.C:
			s.compact(ctx)
		}
	}
}

// trim removes events and drift records that are too old. It is for times without changes, when no batch
// removes them.
func (s *session) trim(ctx context.Context) error {
	if err := s.history(ctx, s.m.deps.Store.View(), touched{}); err != nil || len(s.w.ops) == 0 {
		return err
	}
	return s.commit(ctx, s.w.cur)
}

// compact removes from etcd's history the revisions before the last compaction. Without compaction, etcd
// keeps every version of every key and fills up, unless its auto-compaction is enabled.
func (s *session) compact(ctx context.Context) {
	s.compacted = s.w.sent
	to := s.compactTo
	f, err := s.m.server.look(ctx, s.m.proj.keys, s.st.cluster)
	if err != nil {
		return // an error of the compaction is ignored, because the next probe updates the health
	}
	s.compactTo = f.revision
	if to == 0 {
		to = s.revision
	}
	if err := s.m.server.compact(ctx, to); err != nil {
		s.m.deps.Log.Warn("old revisions in etcd were not compacted; etcd may run out of space", "error", err)
	}
}
