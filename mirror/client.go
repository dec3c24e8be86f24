package mirror

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Endpoint holds the addresses and credentials of an etcd cluster.
type Endpoint struct {
	Addresses []string // host:port or URL of each member
	Username  string   // name of the etcd user; empty: no authentication; set together with Password
	Password  string
	TLS       *tls.Config // nil: no TLS
}

// Etcd is the part of the etcd client API that the mirror uses. clientv3.Client and
// Client implement it.
type Etcd interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
	Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error)
}

// Client is an etcd client that connects lazily. clientv3.New logs in at once and
// fails while etcd is down; Client logs in at the first call that reaches etcd.
type Client struct {
	config clientv3.Config
	made   chan *clientv3.Client // holds one value: the clientv3 client after the first login, nil before
	closed context.Context
	close  context.CancelFunc
}

// loginLimit is the timeout of the login.
const loginLimit = 3 * time.Second

// Dial returns a Client without contacting the server. Connection and login errors
// are returned by the first call, which must have a deadline. The caller must call
// Close. Dial fails if there is no address, or only one of user name and password.
func Dial(e Endpoint) (*Client, error) {
	switch {
	case len(e.Addresses) == 0:
		return nil, errors.New("etcd: no endpoint is given")
	case (e.Username == "") != (e.Password == ""):
		return nil, errors.New("etcd: user name and password must be given together")
	}
	c := &Client{
		config: clientv3.Config{
			Endpoints: e.Addresses, Username: e.Username, Password: e.Password, TLS: e.TLS,
			DialTimeout: loginLimit, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: callLimit,
			// The etcd library would log to stderr. The mirror needs no such log, because every call returns
			// its error.
			Logger: zap.NewNop(),
		},
		made: make(chan *clientv3.Client, 1),
	}
	c.closed, c.close = context.WithCancel(context.Background())
	c.config.Context = c.closed
	c.made <- nil
	return c, nil
}

// Close closes the connection and cancels all running calls.
func (c *Client) Close() error {
	c.close()
	made := <-c.made
	defer func() { c.made <- nil }()
	if made == nil {
		return nil
	}
	if err := made.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

// client returns the clientv3 client and creates it if there is none.
func (c *Client) client(ctx context.Context) (*clientv3.Client, error) {
	var made *clientv3.Client
	select {
	case made = <-c.made:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { c.made <- made }() // put the client back also after an error: the next call needs it, and Close must close its connection
	if c.closed.Err() != nil {
		return nil, errors.New("etcd: the client is closed")
	}
	if made == nil {
		var err error
		if made, err = clientv3.New(c.config); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// Get reads a key or a range.
func (c *Client) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	made, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	r, err := made.Get(ctx, key, opts...)
	c.denied(made, err)
	return r, err
}

// denied closes the clientv3 client made after a permission error, so that the next call logs in
// again. A connection that was opened before authentication was enabled has no login token. On such
// a connection etcd takes the common name of the client certificate as the user, who has no rights,
// so every later call would be refused.
func (c *Client) denied(made *clientv3.Client, err error) {
	if c.config.Username == "" || !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return
	}
	now := <-c.made
	if now == made {
		now = nil
		_ = made.Close() // the caller returns the permission error, which matters more than an error of Close
	}
	c.made <- now
}

// Compact removes all revisions before the given one from etcd's history.
func (c *Client) Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	made, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	r, err := made.Compact(ctx, revision, opts...)
	c.denied(made, err)
	return r, err
}

// Txn returns a transaction. It is sent to etcd by Commit.
func (c *Client) Txn(ctx context.Context) clientv3.Txn { return &transaction{c: c, ctx: ctx} }

type transaction struct {
	c               *Client
	ctx             context.Context
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

func (t *transaction) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cmps...)
	return t
}
func (t *transaction) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}
func (t *transaction) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise = append(t.otherwise, ops...)
	return t
}

func (t *transaction) Commit() (*clientv3.TxnResponse, error) {
	made, err := t.c.client(t.ctx)
	if err != nil {
		return nil, err
	}
	r, err := made.Txn(t.ctx).If(t.cmps...).Then(t.then...).Else(t.otherwise...).Commit()
	t.c.denied(made, err)
	return r, err
}
