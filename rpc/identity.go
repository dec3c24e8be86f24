package rpc

import (
	"context"
	"runtime/debug"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// caller is who makes a call and how it came here.
type caller struct {
	id        pki.Identity // on whose behalf
	forwarded bool         // one hop is behind it
}

// call is one call under way: who makes it, by which row of the table, and, for
// reads, how fresh the answer must be.
type call struct {
	caller
	method
	level    level
	least    uint64      // log index that the answer must reflect
	trailers metadata.MD // of the leader, when it answered
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call that ctx belongs to; the zero call, which may nothing,
// outside of one.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// identity is the caller's for metadata and for the audit line of a command.
func (c caller) identity() string {
	if c.id.IsAnonymous() {
		return anonymous
	}
	return c.id.String()
}

// anonymous is Identity.String of the anonymous admin, who makes every call
// under -insecure.
var anonymous = pki.Anonymous().String()

// identify reads who calls. A forwarded identity is believed only from a
// certificate of a scheduler; under -insecure everybody is the anonymous admin.
func (s *Server) identify(ctx context.Context) (caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	hop := first(md, dial.KeyHop) != ""
	if s.cfg.TLS == nil {
		return caller{id: pki.Anonymous(), forwarded: hop}, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, errorf(KindUnauthenticated, "the connection names no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return caller{}, errorf(KindUnauthenticated, "the connection from %s is not TLS", p.Addr)
	}
	id, err := s.cfg.TLS.Identify(info.State)
	if err != nil {
		return caller{}, errorf(KindUnauthenticated, "the certificate from %s: %w", p.Addr, err)
	}
	if own := s.store.View().Info().ClusterID; id.Cluster != "" && own != "" && !s.sameCluster(id) {
		return caller{}, errorf(KindPermission, "the certificate of %s belongs to cluster %q, this is %q", id.CommonName, id.Cluster, s.cfg.TLS.Identity().Cluster)
	}
	text := first(md, dial.KeyForwardedIdentity)
	if text == "" {
		return caller{id: id, forwarded: hop}, nil
	}
	if id.Role != pki.RoleScheduler {
		return caller{}, errorf(KindPermission, "%s %q may not speak for others: %s is trusted only from a scheduler", id.Role, id.ID, dial.KeyForwardedIdentity)
	}
	on, err := pki.ParseIdentity(text)
	if err != nil {
		return caller{}, errorf(KindInvalid, "%s: %w", dial.KeyForwardedIdentity, err)
	}
	return caller{id: on, forwarded: true}, nil
}

// sameCluster compares a certificate with our own: the name in certificates is
// chosen when they are made, before the cluster has an id.
func (s *Server) sameCluster(id pki.Identity) bool {
	own := s.cfg.TLS.Identity().Cluster
	return own == "" || own == id.Cluster
}

// authorize applies the table.
func (s *Server) authorize(c caller, full string) (method, error) {
	m, ok := methods[full]
	if !ok {
		return m, errorf(KindPermission, "no rule allows %s", full)
	}
	if m.allow == anybody {
		return m, nil
	}
	if roles(c.id)&m.allow == 0 {
		return m, errorf(KindPermission, "%s %q may not %s", c.id.Role, c.id.ID, m.op)
	}
	return m, nil
}

// speaksFor refuses an agent that acts as a node other than its own.
func speaksFor(ctx context.Context, node string) error {
	id := callOf(ctx).id
	if id.Role == pki.RoleAgent && !id.SpeaksFor(node) {
		return errorf(KindPermission, "agent %q may not act as node %q", id.ID, node)
	}
	return nil
}

func first(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func stack() string { return string(debug.Stack()) }
