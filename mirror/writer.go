package mirror

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Limits of a transaction.
const (
	maxOps   = 100
	maxBytes = 1 << 20

	opCost     = 24   // upper bound of the bytes that protobuf adds to one operation
	cursorCost = 2048 // upper bound of the bytes of the cursor operation and the comparisons
)

// errFenced means that the cursor in etcd is not the value that this writer wrote last, so another writer has
// written.
var errFenced = errors.New("the cursor in etcd is not the one that this replica wrote last")

// writer collects operations and sends them in transactions that etcd refuses if the cursor has changed. A
// writer must not be used after an error, because its cursor may be outdated.
type writer struct {
	server  server
	keys    keyspace
	owner   owner
	cluster string
	cur     cursor
	tried   *string // cursor value of the last transaction
	count   func(records int)

	ops   []clientv3.Op
	bytes int
	sent  int // number of bytes sent since the session began
}

// full reports whether the current transaction has no room for kv.
func (w *writer) full(kv KV) bool {
	return len(w.ops)+1 >= maxOps || w.bytes+len(kv.Key)+len(kv.Value)+opCost+cursorCost > maxBytes
}

// add adds one record to the transaction. The caller must commit first if the transaction is full.
func (w *writer) add(kv KV) {
	if kv.Value == nil {
		w.ops = append(w.ops, clientv3.OpDelete(kv.Key))
	} else {
		w.ops = append(w.ops, clientv3.OpPut(kv.Key, string(kv.Value)))
	}
	w.bytes += len(kv.Key) + len(kv.Value) + opCost
}

// addRange adds an operation that removes every key in [from, until).
func (w *writer) addRange(from, until string) {
	w.ops = append(w.ops, clientv3.OpDelete(from, clientv3.WithRange(until)))
	w.bytes += len(from) + len(until) + opCost
}

// claim writes the first cursor of this writer and the owner key, if the cursor and the owner in etcd
// are still those in f.
func (w *writer) claim(ctx context.Context, f found, next cursor) error {
	w.cur = f.cursor
	cmps := []clientv3.Cmp{same(w.keys.cursor(w.cluster), f.cursor.raw), same(w.keys.owner(), f.owner.raw)}
	if f.owner.raw != w.owner.raw {
		w.ops = append(w.ops, clientv3.OpPut(w.keys.owner(), w.owner.raw))
		if f.owner.ClusterID != "" { // the cursor of the cluster that owned this prefix before is deleted
			w.ops = append(w.ops, clientv3.OpDelete(w.keys.cursor(f.owner.ClusterID)))
		}
	}
	return w.send(ctx, cmps, next)
}

// commit sends the collected operations together with the cursor next as one transaction.
func (w *writer) commit(ctx context.Context, next cursor) error {
	return w.send(ctx, []clientv3.Cmp{same(w.keys.cursor(w.cluster), w.cur.raw), same(w.keys.owner(), w.owner.raw)}, next)
}

// send repeats one transaction until it succeeds, until etcd refuses it, or until the time limit for retries
// is over. Retries are safe: every attempt compares the same value and writes the same next value, so at most
// one attempt takes effect.
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
		case !r.Succeeded && firstValue(r, 0) != next.raw: // if etcd has the new cursor value although this attempt failed, an earlier attempt took effect
			return fmt.Errorf("%w: %s", errFenced, orElse(firstValue(r, 0), "etcd has no cursor"))
		}
		w.count(len(w.ops))
		w.sent += w.bytes + cursorCost
		w.cur, w.ops, w.bytes = next, w.ops[:0], 0
		return nil
	})
}

// same returns the condition that a key still has the value raw; if raw is "", that the key does not exist.
func same(key, raw string) clientv3.Cmp {
	if raw == "" {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(key), "=", raw)
}

// step is one key that must be changed in etcd, because its values in the state and in etcd differ.
type step struct {
	kv  KV // value in the state; nil: the key must not exist
	old []byte
}

// differences compares sections (directories with their records) with etcd page by page, and calls fn for
// every key that differs. It returns the number of equal keys.
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
	// until reports to fn all keys of etcd before key: they are not in the state. It returns the entry of key
	// in etcd, or nil if there is none. The key "" stands for the end of the section.
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
