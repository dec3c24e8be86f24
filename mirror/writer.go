package mirror

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Bounds of a transaction (RULES, "Sizes").
const (
	maxOps   = 100
	maxBytes = 1 << 20

	opCost     = 24   // protobuf framing of one operation, at most
	cursorCost = 2048 // the cursor's operation and the comparisons, at most
)

// errFenced means that the cursor is not the one that this writer wrote last.
var errFenced = errors.New("the cursor in etcd is not the one written last")

// writer collects operations and sends them in fenced transactions. After an
// error it must not be used again: its idea of the cursor may be wrong.
type writer struct {
	server  server
	keys    keyspace
	owner   owner
	cluster string
	cur     cursor
	tried   *string // the value that the newest transaction would write
	count   func(records int)

	ops   []clientv3.Op
	bytes int
	sent  int // bytes, since the session began
}

// full says whether one more record has to wait for the next transaction.
func (w *writer) full(kv KV) bool {
	return len(w.ops)+1 >= maxOps || w.bytes+len(kv.Key)+len(kv.Value)+opCost+cursorCost > maxBytes
}

// add takes one record. The caller commits first when the writer is full.
func (w *writer) add(kv KV) {
	if kv.Value == nil {
		w.ops = append(w.ops, clientv3.OpDelete(kv.Key))
	} else {
		w.ops = append(w.ops, clientv3.OpPut(kv.Key, string(kv.Value)))
	}
	w.bytes += len(kv.Key) + len(kv.Value) + opCost
}

// addRange removes every key in [from, until).
func (w *writer) addRange(from, until string) {
	w.ops = append(w.ops, clientv3.OpDelete(from, clientv3.WithRange(until)))
	w.bytes += len(from) + len(until) + opCost
}

// claim makes the cursor ours, if etcd still is as it was found.
func (w *writer) claim(ctx context.Context, f found, next cursor) error {
	w.cur = f.cursor
	cmps := []clientv3.Cmp{same(w.keys.cursor(w.cluster), f.cursor.raw), same(w.keys.owner(), f.owner.raw)}
	if f.owner.raw != w.owner.raw {
		w.ops = append(w.ops, clientv3.OpPut(w.keys.owner(), w.owner.raw))
		if f.owner.ClusterID != "" { // the former owner's place to resume from means nothing any more
			w.ops = append(w.ops, clientv3.OpDelete(w.keys.cursor(f.owner.ClusterID)))
		}
	}
	return w.send(ctx, cmps, next)
}

// commit sends what was collected and advances the cursor.
func (w *writer) commit(ctx context.Context, next cursor) error {
	return w.send(ctx, []clientv3.Cmp{same(w.keys.cursor(w.cluster), w.cur.raw), same(w.keys.owner(), w.owner.raw)}, next)
}

// send repeats one transaction until it is known to be in etcd, or refused, or
// the bound is reached. Repeating is safe: both attempts compare the same value
// and write the same next one, so at most one of them takes effect.
func (w *writer) send(ctx context.Context, cmps []clientv3.Cmp, next cursor) error {
	next.Seq = w.cur.Seq + 1
	next.raw = string(encode(&next))
	*w.tried = next.raw
	key := w.keys.cursor(w.cluster)
	then := append(w.ops, clientv3.OpPut(key, next.raw))
	otherwise := []clientv3.Op{clientv3.OpGet(key)}
	return w.server.repeat(ctx, func() error {
		r, err := w.server.txn(ctx, cmps, then, otherwise)
		switch {
		case err != nil:
			return err
		case !r.Succeeded && firstValue(r, 0) != next.raw: // else an earlier attempt arrived after all
			return fmt.Errorf("%w: %s", errFenced, orElse(firstValue(r, 0), "there is none"))
		}
		w.count(len(w.ops))
		w.sent += w.bytes + cursorCost
		w.cur, w.ops, w.bytes = next, w.ops[:0], 0
		return nil
	})
}

// same compares a key with what was read there, "" being nothing.
func same(key, raw string) clientv3.Cmp {
	if raw == "" {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(key), "=", raw)
}

// step is what a difference found for one key.
type step struct {
	kv  KV // what it ought to be, Value nil = not there
	old []byte
}

// differences compares sections with what etcd holds, page by page, and calls fn
// for every key that is not as it ought to be. It returns how many are.
func differences(ctx context.Context, s server, keys keyspace, sections []section, fn func(step) error) (equal int, err error) {
	for _, sec := range sections {
		n, err := compareSection(ctx, s, keys, sec, fn)
		equal += n
		if err != nil {
			return equal, err
		}
	}
	return equal, nil
}

func compareSection(ctx context.Context, s server, keys keyspace, sec section, fn func(step) error) (equal int, err error) {
	have := s.pages(string(keys)+sec.dir, string(keys)+prefixEnd(sec.dir))
	// until removes what etcd has below a key and returns what it has there.
	until := func(key string) (*mvccpb.KeyValue, error) {
		for {
			kv, err := have.peek(ctx)
			if err != nil || kv == nil || key != "" && string(kv.Key) > key {
				return nil, err
			}
			have.advance()
			if string(kv.Key) == key {
				return kv, nil
			}
			if err := fn(step{kv: KV{Key: string(kv.Key)}, old: kv.Value}); err != nil {
				return nil, err
			}
		}
	}
	for want := range sec.all {
		kv, err := until(want.Key)
		if err != nil {
			return equal, err
		}
		if kv != nil && string(kv.Value) == string(want.Value) {
			equal++
			continue
		}
		st := step{kv: want}
		if kv != nil {
			st.old = kv.Value
		}
		if err := fn(st); err != nil {
			return equal, err
		}
	}
	_, err = until("")
	return equal, err
}
