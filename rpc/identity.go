package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/persys/compute/access"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// caller describes who makes a call, and from where.
type caller struct {
	id        pki.Identity // identity on whose behalf the call is made; zero for a caller without a certificate
	forwarded bool         // true if another replica forwarded the call
	relayed   bool         // the replica that forwarded the call has proved by its certificate that it is a scheduler
	from      string       // network address of the original caller
	behalf    pki.Identity // if the caller is a gateway: the user for whom it calls; zero = none
	issued    time.Time    // when the certificate of the gateway's user was issued
	user      string       // if the caller is a gateway: its user according to an OIDC token
	account   account      // if the caller is a gateway: the account for which it calls; zero = none
	console   consoleCall  // if the caller is a gateway: the session of the web console with which it calls for behalf; zero = none
	groups    []string     // if the caller is a gateway: the groups in its user's OIDC token
	access    string       // if the caller is a gateway: the role that it gives to its user; "" = it sends none
	narrow    []string     // namespaces to which the caller limits this call; empty = no limit
}

// call is a call in progress: its caller, the row of its method in the policy table and, for a read, the read
// level.
type call struct {
	caller
	method
	level level
	least uint64 // lowest log index that the state must have to answer a session read
	hash  uint64 // for a mutation with a receipt: the hash of its request (requestHash)

	// The type judging sets the next two fields. They describe the last attempt of the call.
	judged bool // true if the answer is the verdict of the state machine on the request id
	wrote  bool // the state machine has judged a command of this attempt
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call to which ctx belongs. Outside of a call it returns a zero call, which has no
// rights.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// identity returns the caller's identity as text. In this form it is sent in gRPC metadata and stored as the author of
// log commands.
func (c caller) identity() string {
	if c.id.IsAnonymous() {
		return anonymous
	}
	if c.id.IsZero() {
		return stranger
	}
	return c.id.String()
}

// by returns the user as shown in the history, and the user's gateway; "" if there is no gateway.
func (c caller) by() (who, via string) {
	switch {
	case !c.behalf.IsZero():
		return c.behalf.String(), c.identity()
	case c.user != "":
		return c.user, c.identity()
	}
	return c.identity(), ""
}

// who returns the name of the caller for log lines.
func (c caller) who() string {
	who, _ := c.by()
	return who
}

// subject returns the role and the name of the caller. They stay the same when the caller gets another certificate.
func (c caller) subject() string {
	switch {
	case !c.behalf.IsZero():
		return string(c.behalf.Role) + "/" + c.behalf.ID
	case c.user != "":
		return c.user
	}
	return string(c.id.Role) + "/" + c.id.ID
}

// anonymous is the text form of the anonymous admin: under -insecure every caller is that user.
var anonymous = pki.Anonymous().String()

// stranger is the name of callers without a certificate, who may only make the call Enrol.
const stranger = "stranger"

// identify determines who makes a call. A forwarded identity is accepted only from a caller with a
// scheduler's certificate. Under -insecure every caller is the anonymous admin.
func (s *Server) identify(ctx context.Context) (caller, error) {
	c, err := s.certified(ctx)
	if err == nil && s.cfg.TLS != nil {
		if err = s.onBehalf(ctx, &c); err == nil {
			err = s.standing(c)
		}
	}
	return c, err
}

// certified determines the caller from the certificate of its connection.
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
		return caller{from: from}, nil // a caller without a certificate, which authorize permits only to call Enrol
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
		return caller{}, errorf(KindPermission, "%s %q may not call on behalf of others: %s is trusted only from a scheduler", id.Role, id.ID, dial.KeyForwardedIdentity)
	}
	if err := s.speaksForOthers(ctx, id); err != nil {
		return caller{}, err
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

// clipFrom shortens a caller's address to at most 64 bytes, because a gateway can send any text.
func clipFrom(v string) string { return clip(v, 64) }

// ours returns an error if the caller's certificate was issued for another cluster. It compares the cluster names in
// the certificates of the caller and of this replica. It does not use the cluster's id, because the first certificates
// are issued before the cluster has an id.
func (s *Server) ours(id pki.Identity) error {
	own := s.cfg.TLS.Identity().Cluster
	if s.store.View().Info().ClusterID == "" || id.Cluster == "" || own == "" || own == id.Cluster {
		return nil
	}
	return errorf(KindPermission, "the certificate of %s belongs to cluster %q, this is %q", id.CommonName, id.Cluster, own)
}

// authorize returns the row of the policy table for a method, or an error if the caller must not call the
// method.
func (s *Server) authorize(c caller, full string) (method, error) {
	m, ok := methods[full]
	if !ok {
		return m, errorf(KindPermission, "no rule allows %s", full)
	}
	if c.id.IsZero() {
		if m.callers&strangers == 0 {
			return m, errorf(KindUnauthenticated, "%s needs a certificate: join the cluster with a token from `persysctl token create`", m.op)
		}
		return m, nil
	}
	if c.id.IsAnonymous() {
		return m, nil
	}
	if err := s.checkCaller(s.store.View(), c); err != nil {
		return m, err
	}
	if c.id.Role != pki.RoleUser && callersOf(c.id.Role)&m.callers == 0 {
		return m, errorf(KindPermission, "%s %q may not %s", c.id.Role, c.id.ID, m.op)
	}
	grants, person := s.grantsOf(c)
	if !person {
		return m, checkNamespaces(c, m, access.Everywhere().Narrow(c.narrow))
	}
	in := access.Where(grants, m.permission)
	if in.Nowhere() {
		return m, errorf(KindPermission, "%s may not %s%s", c.person(), m.op, needs(m))
	}
	return m, checkNamespaces(c, m, in.Narrow(c.narrow))
}

// person describes the person who makes a call, and the person's gateway, for error messages.
func (c caller) person() string {
	switch {
	case !c.behalf.IsZero():
		return fmt.Sprintf("%s %q (called through %s %q)", c.behalf.Role, c.behalf.ID, c.id.Role, c.id.ID)
	case c.account.name != "":
		return fmt.Sprintf("account %q (called through %s %q)", clip(c.account.name, 128), c.id.Role, c.id.ID)
	case c.user != "":
		return fmt.Sprintf("user %q (called through %s %q)", c.user, c.id.Role, c.id.ID)
	}
	return fmt.Sprintf("%s %q", c.id.Role, c.id.ID)
}

// needs returns the end of the text of a refusal: the missing permission and the command to run next.
func needs(m method) string {
	if m.permission == access.Never {
		return ""
	}
	return ": this needs the permission " + m.permission.String() + "; `persysctl auth whoami` shows yours"
}

func clip(v string, most int) string { return bounds.Clip(v, most) }

// speaksFor returns an error if the caller is an agent and node is not the node of its certificate.
func (s *Server) speaksFor(ctx context.Context, node string) error {
	c := callOf(ctx)
	if c.id.Role != pki.RoleAgent || c.id.SpeaksFor(node) {
		return nil
	}
	_, err := s.refuse(ctx, c, "", nil, errorf(KindPermission, "agent %q may not act as node %q", c.id.ID, clip(node, 128)))
	return err
}

// told returns the first value of a gRPC metadata key in the request; "" if there is none.
func told(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// enter counts a call against the limits of its caller. A call that a scheduler forwards was counted by the
// replica that received it first. Under -insecure there are no limits, because callers cannot be
// distinguished.
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

// enterStream counts a stream against the limit of the person who opened it, directly or through a gateway.
// Without that limit one person could use all the streams that agents allow to this replica. Streams of
// schedulers are not limited.
func (s *Server) enterStream(c caller) (*limits.Entry, error) {
	who, ok := s.person(c)
	if !ok {
		return nil, nil
	}
	e, err := s.streams.Enter(who)
	switch {
	case errors.Is(err, limits.ErrRate):
		return nil, errorf(KindBusy, "%w: at most %d (SCHEDULER_LIMIT_CALLS); try again in a moment", err, s.cfg.Limits.Calls)
	case err != nil:
		return nil, errorf(KindBusy, "too many concurrent streams (logs, sessions, events, watches) of %s %s: at most %d at one scheduler (SCHEDULER_LIMIT_STREAMS); end some of them", who.Kind, who.Name, s.cfg.Limits.Streams)
	}
	return e, nil
}

// enterNode counts a log stream or session that this replica relays from a node.
func (s *Server) enterNode(node string) (*limits.Entry, error) {
	e, err := s.relays.Enter(limits.Peer{Kind: "node", Name: node})
	if err != nil {
		return nil, errorf(KindBusy, "too many concurrent logs and sessions of node %s through this scheduler: at most %d (SCHEDULER_LIMIT_STREAMS_PER_NODE); end some of them, or ask another scheduler", node, s.cfg.NodeStreams)
	}
	return e, nil
}
