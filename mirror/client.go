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

// Endpoint says how to reach an etcd.
type Endpoint struct {
	Addresses []string // host:port or URL
	Username  string   // with a password, or none for neither
	Password  string
	TLS       *tls.Config // nil = plain
}

// Etcd is what the mirror needs of an etcd client; clientv3's is one, Client too.
type Etcd interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
	Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error)
}

// Client is an Etcd that needs no server to be made. The library's own
// logs in while it is made, which fails while etcd is away; this one does so at
// the first call that gets through.
type Client struct {
	config clientv3.Config
	made   chan *clientv3.Client // holds one value; nil until logged in
	closed context.Context
	close  context.CancelFunc
}

// loginLimit bounds the login, which knows no other deadline.
const loginLimit = 3 * time.Second

// Dial makes a Client. It does not wait for the server: whoever uses the client
// learns from the first call, which must have a deadline. Close it at the end.
func Dial(e Endpoint) (*Client, error) {
	switch {
	case len(e.Addresses) == 0:
		return nil, errors.New("etcd: no endpoint is given")
	case (e.Username == "") != (e.Password == ""):
		return nil, errors.New("etcd: user name and password go together")
	}
	c := &Client{
		config: clientv3.Config{
			Endpoints: e.Addresses, Username: e.Username, Password: e.Password, TLS: e.TLS,
			DialTimeout: loginLimit, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: callLimit,
			// Its own logger writes to stderr; errors come back from every call.
			Logger: zap.NewNop(),
		},
		made: make(chan *clientv3.Client, 1),
	}
	c.closed, c.close = context.WithCancel(context.Background())
	c.config.Context = c.closed
	c.made <- nil
	return c, nil
}

// Close ends the connection and every call.
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

// client is the library's client, made now if need be.
func (c *Client) client(ctx context.Context) (*clientv3.Client, error) {
	var made *clientv3.Client
	select {
	case made = <-c.made:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { c.made <- made }() // also where the caller gets none: Close ends it
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

// denied forgets a login with which something was not permitted, so that the next
// call makes another. A connection from before authentication was turned on has
// none, and where clients show certificates etcd then takes the certificate's name
// for the user's: it would be refused for ever.
func (c *Client) denied(made *clientv3.Client, err error) {
	if c.config.Username == "" || !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return
	}
	now := <-c.made
	if now == made {
		now = nil
		_ = made.Close() // what it was to say was said
	}
	c.made <- now
}

// Compact gives up old revisions.
func (c *Client) Compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	made, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	r, err := made.Compact(ctx, revision, opts...)
	c.denied(made, err)
	return r, err
}

// Txn begins a transaction, which reaches etcd with Commit.
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
