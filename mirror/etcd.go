package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callLimit is the default timeout of one call to etcd. Without a deadline the client
// blocks as long as the server is down.
const callLimit = 5 * time.Second

// server calls etcd with a timeout for each call. It also limits how long a failed call is repeated.
type server struct {
	kv    Etcd
	limit time.Duration // timeout of one call
	bound time.Duration // timeout of one operation with all its retries
	pause time.Duration // wait between two retries

	errors *atomic.Uint64 // counts failed calls; nil: failed calls are not counted
}

// failed counts a failed call for the metrics. It ignores calls that the caller cancelled.
func (s server) failed(ctx context.Context) {
	if s.errors != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
		s.errors.Add(1)
	}
}

// once reads a key or a range of keys in one attempt, without retries.
func (s server) once(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.kv.Get(ctx, key, opts...)
	if err != nil {
		s.failed(ctx)
		return nil, fmt.Errorf("etcd get %s: %w", key, err)
	}
	return r, nil
}

func (s server) get(ctx context.Context, key string, opts ...clientv3.OpOption) (r *clientv3.GetResponse, err error) {
	err = s.repeat(ctx, func() error {
		r, err = s.once(ctx, key, opts...)
		return err
	})
	return r, err
}

// repeat calls fn until it succeeds, until it returns an error that is not transient, or until the time
// s.bound has passed.
func (s server) repeat(ctx context.Context, fn func() error) error {
	deadline := time.Now().Add(s.bound)
	for {
		err := fn()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !transient(err) || time.Now().After(deadline):
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(s.pause):
		}
	}
}

func (s server) txn(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.kv.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		s.failed(ctx)
		return nil, fmt.Errorf("etcd transaction: %w", err)
	}
	return r, nil
}

func (s server) compact(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	if _, err := s.kv.Compact(ctx, revision); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		s.failed(ctx)
		return fmt.Errorf("etcd compact %d: %w", revision, err)
	}
	return nil
}

// look reads the cursor key and the owner key at one revision of etcd, and whether etcd holds records of the
// mirror.
func (s server) look(ctx context.Context, ks keyspace, cluster string) (found, error) {
	ops := []clientv3.Op{clientv3.OpGet(ks.cursor(cluster)), clientv3.OpGet(ks.owner())}
	for _, dir := range dataDirs {
		ops = append(ops, clientv3.OpGet(string(ks)+dir, clientv3.WithRange(string(ks)+prefixEnd(dir)), clientv3.WithLimit(1), clientv3.WithKeysOnly()))
	}
	var r *clientv3.TxnResponse
	err := s.repeat(ctx, func() (err error) {
		r, err = s.txn(ctx, nil, ops, nil)
		return err
	})
	if err != nil {
		return found{}, err
	}
	f := found{etcdCluster: r.Header.GetClusterId(), revision: r.Header.GetRevision()}
	if raw := firstValue(r, 0); raw != "" {
		var unreadable error
		f.cursor, unreadable = parseCursor(raw)
		f.unreadable = unreadable != nil
	}
	if raw := firstValue(r, 1); raw != "" {
		f.owner, f.ownerErr = parseOwner(raw)
	}
	for i := range dataDirs {
		f.data = f.data || len(r.Responses[2+i].GetResponseRange().GetKvs()) > 0
	}
	return f, nil
}

// firstValue returns the value of the i-th get of a transaction, or "" if the key does
// not exist. The mirror writes no empty values.
func firstValue(r *clientv3.TxnResponse, i int) string {
	if kvs := r.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
		return string(kvs[0].Value)
	}
	return ""
}

// transient reports whether the same call to etcd may succeed when it is repeated.
func transient(err error) bool {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return false
	case errors.Is(err, context.DeadlineExceeded):
		return true
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code() == codes.Unavailable || e.Code() == codes.DeadlineExceeded || errors.Is(err, rpctypes.ErrTooManyRequests)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

// pager reads a range of keys in pages. It adapts the number of keys per page to the size of the values.
type pager struct {
	server server
	key    string
	end    string
	limit  int64
	page   []*mvccpb.KeyValue
	last   bool
}

// Bounds of the number of keys per page.
const (
	pageStart = 256
	pageMax   = 1024
	pageBytes = 4 << 20 // if a page has more bytes, the next page has half as many keys
)

func (s server) pages(key, end string) *pager {
	return &pager{server: s, key: key, end: end, limit: pageStart}
}

// peek returns the next key and value of the range without consuming it; nil at the end.
func (p *pager) peek(ctx context.Context) (*mvccpb.KeyValue, error) {
	if len(p.page) == 0 && !p.last {
		r, err := p.server.get(ctx, p.key, clientv3.WithRange(p.end), clientv3.WithLimit(p.limit))
		if err != nil {
			return nil, err
		}
		p.page, p.last = r.Kvs, !r.More
		bytes := 0
		for _, kv := range r.Kvs {
			bytes += len(kv.Value)
		}
		switch {
		case bytes > pageBytes && p.limit > 1:
			p.limit /= 2
		case bytes < pageBytes/4 && p.limit < pageMax:
			p.limit *= 2
		}
		if n := len(r.Kvs); n > 0 {
			p.key = string(r.Kvs[n-1].Key) + "\x00"
		}
	}
	if len(p.page) == 0 {
		return nil, nil
	}
	return p.page[0], nil
}

func (p *pager) advance() { p.page = p.page[1:] }
