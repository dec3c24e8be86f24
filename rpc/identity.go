package rpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// caller is the origin of a call.
type caller struct {
	id        pki.Identity // the identity that the call is made for; zero for a stranger
	forwarded bool         // another replica forwarded the call
	relayed   bool         // the forwarding replica proved to be a scheduler by its certificate
	from      string       // address from which the call was first made
	behalf    pki.Identity // for a gateway, the user that it acts for; zero if it names none
	issued    time.Time    // when the certificate of that user was issued
	user      string       // for a gateway, its user as an OIDC token names it
	narrow    []string     // the namespaces that the caller limits this call to; empty for no limit
}

// call is a call in progress: its caller, its row of the policy table and, for a read, the read
// level.
type call struct {
	caller
	method
	level level
	least uint64 // lowest log index that the answer must reflect
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call that ctx belongs to. Outside of a call it returns the zero call, which
// has no rights.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// identity is the caller's identity as text, for metadata and for the head of commands.
func (c caller) identity() string {
	if c.id.IsAnonymous() {
		return anonymous
	}
	if c.id.IsZero() {
		return stranger
	}
	return c.id.String()
}

// by returns the user for the history, and the gateway through which the user called, "" if none.
func (c caller) by() (who, via string) {
	switch {
	case !c.behalf.IsZero():
		return c.behalf.String(), c.identity()
	case c.user != "":
		return c.user, c.identity()
	}
	return c.identity(), ""
}

// who returns the user for log lines.
func (c caller) who() string {
	who, _ := c.by()
	return who
}

// anonymous is the text form of the anonymous admin, who makes every call under -insecure.
var anonymous = pki.Anonymous().String()

// stranger stands for a caller without a certificate, which may enrol and do nothing else.
const stranger = "stranger"

// identify determines the caller. A forwarded identity is believed only if the forwarder has a
// scheduler's certificate. Under -insecure every caller is the anonymous admin.
func (s *Server) identify(ctx context.Context) (caller, error) {
	c, err := s.certified(ctx)
	if err == nil && s.cfg.TLS != nil {
		if err = onBehalf(ctx, &c); err == nil {
			err = s.standing(c)
		}
	}
	return c, err
}

// certified determines the caller from its certificate.
func (s *Server) certified(ctx context.Context) (caller, error) {
	hop := told(ctx, dial.KeyHop) != ""
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, errorf(KindUnauthenticated, "the connection has no peer address")
	}
	from := clipFrom(limits.HostOf(p.Addr))
	if s.cfg.TLS == nil {
		if hop {
			if v := told(ctx, dial.KeyFrom); v != "" {
				from = clipFrom(v)
			}
		}
		return caller{id: pki.Anonymous(), forwarded: hop, from: from}, nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return caller{}, errorf(KindUnauthenticated, "the connection from %s is not TLS", p.Addr)
	}
	if s.cfg.Enrol && len(info.State.PeerCertificates) == 0 {
		return caller{from: from}, nil // authorize limits it to Enrol
	}
	id, err := s.cfg.TLS.Identify(info.State)
	if err != nil {
		return caller{}, errorf(KindUnauthenticated, "the certificate from %s: %w", p.Addr, err)
	}
	if err := s.ours(id); err != nil {
		return caller{}, err
	}
	text := told(ctx, dial.KeyForwardedIdentity)
	if text == "" {
		return caller{id: id, forwarded: hop, from: from}, nil
	}
	if id.Role != pki.RoleScheduler {
		return caller{}, errorf(KindPermission, "%s %q may not speak for others: %s is trusted only from a scheduler", id.Role, id.ID, dial.KeyForwardedIdentity)
	}
	if v := told(ctx, dial.KeyFrom); v != "" {
		from = clipFrom(v)
	}
	if text == stranger {
		return caller{forwarded: true, relayed: true, from: from}, nil
	}
	on, err := pki.ParseIdentity(text)
	if err != nil {
		return caller{}, errorf(KindInvalid, "%s: %w", dial.KeyForwardedIdentity, err)
	}
	return caller{id: on, forwarded: true, relayed: true, from: from}, nil
}

// clipFrom bounds the length of a caller's address.
func clipFrom(v string) string { return clip(v, 64) }

// ours refuses a certificate of another cluster. It compares the cluster name with that of our own
// certificate, because certificates are named before the cluster has an id.
func (s *Server) ours(id pki.Identity) error {
	own := s.cfg.TLS.Identity().Cluster
	if s.store.View().Info().ClusterID == "" || id.Cluster == "" || own == "" || own == id.Cluster {
		return nil
	}
	return errorf(KindPermission, "the certificate of %s belongs to cluster %q, this is %q", id.CommonName, id.Cluster, own)
}

// authorize applies the policy table.
func (s *Server) authorize(c caller, full string) (method, error) {
	m, ok := methods[full]
	if !ok {
		return m, errorf(KindPermission, "no rule allows %s", full)
	}
	if c.id.IsZero() {
		if m.allow&strangers == 0 {
			return m, errorf(KindUnauthenticated, "%s needs a certificate: join the cluster with a token from `persysctl token create`", m.op)
		}
		return m, nil
	}
	if s.rolesOf(c.id)&m.allow == 0 {
		return m, errorf(KindPermission, "%s %q may not %s", c.id.Role, c.id.ID, m.op)
	}
	if !c.behalf.IsZero() && s.rolesOf(c.behalf)&m.allow == 0 {
		return m, errorf(KindPermission, "%s %q may not %s (called through %s %q)", c.behalf.Role, c.behalf.ID, m.op, c.id.Role, c.id.ID)
	}
	return m, s.checkNamespaces(c, m)
}

// clip cuts a text to at most most bytes without splitting a UTF-8 character.
func clip(v string, most int) string {
	if len(v) <= most {
		return v
	}
	return strings.ToValidUTF8(v[:most], "")
}

// speaksFor refuses an agent that acts for a node other than its own.
func (s *Server) speaksFor(ctx context.Context, node string) error {
	c := callOf(ctx)
	if c.id.Role != pki.RoleAgent || c.id.SpeaksFor(node) {
		return nil
	}
	_, err := s.refuse(ctx, c, "", nil, errorf(KindPermission, "agent %q may not act as node %q", c.id.ID, clip(node, 128)))
	return err
}

// told returns the first value of a metadata key of the call, "" if there is none.
func told(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// enter counts a call against the limits of its caller. Calls that schedulers forward were counted
// by the replica that received them. There are no limits under -insecure, because callers cannot be
// told apart.
func (s *Server) enter(c caller) (*limits.Entry, error) {
	if s.cfg.TLS == nil || c.relayed || c.id.Role == pki.RoleScheduler {
		return nil, nil
	}
	who := limits.Peer{Kind: string(c.id.Role), Name: c.id.ID}
	if c.id.IsZero() {
		who = limits.Peer{Kind: "host", Name: c.from}
	}
	e, err := s.callers.Enter(who)
	switch {
	case errors.Is(err, limits.ErrRate):
		return nil, errorf(KindBusy, "%w: at most %d (SCHEDULER_LIMIT_CALLS); try again in a moment", err, s.cfg.Limits.Calls)
	case err != nil:
		return nil, errorf(KindBusy, "%w: at most %d (SCHEDULER_LIMIT_CONCURRENT)", err, s.cfg.Limits.Concurrent)
	}
	return e, nil
}
