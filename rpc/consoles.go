package rpc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// A session of the web console belongs to a person with a certificate. The person makes it with LinkConsole, and a
// gateway opens it with the one-time code and gets its token. A call of a gateway that carries the token has the
// rights of this person.

const (
	// consoleCodeLife is the validity of the one-time code that opens a session.
	consoleCodeLife = 10 * time.Minute
	// defaultConsoleLife is the validity of a session.
	defaultConsoleLife = 12 * time.Hour
)

// consoleCall is the session of the web console with which a gateway calls.
type consoleCall struct {
	id   string
	hash [sha256.Size]byte // SHA-256 of the token that the gateway presents
}

// consoleOf returns the session of the web console to which a gateway's token belongs, or an error if there is no such
// session or it has ended.
func (s *Server) consoleOf(v fsm.View, c consoleCall) (*fsm.Console, error) {
	got, ok := v.Console(c.id)
	switch {
	case !ok || got.OpenedAt == 0 || subtle.ConstantTimeCompare(got.TokenHash, c.hash[:]) != 1:
		return nil, errorf(KindUnauthenticated, "the session of the console: %w: it was ended; `persysctl console` makes a new one", errNotAdmitted)
	case got.ExpiresAt <= s.clock().UnixNano():
		return nil, errorf(KindUnauthenticated, "the session of the console expired at %s: `persysctl console` makes a new one", time.Unix(0, got.ExpiresAt).UTC().Format(time.RFC3339))
	}
	return got, nil
}

// throughConsole records in the caller the user whose session a gateway presents.
func (s *Server) throughConsole(ctx context.Context, c *caller, token string) error {
	if c.id.Role != pki.RoleGateway {
		return errorf(KindPermission, "%s %q may not use a session of the console: only gateways may send %s", c.id.Role, c.id.ID, dial.KeyConsole)
	}
	id, ok := dial.ConsoleOfToken(token)
	if !ok {
		return errorf(KindUnauthenticated, "the session of the console is not valid: `persysctl console` makes a new one")
	}
	call := consoleCall{id: id, hash: sha256.Sum256([]byte(token))}
	got, err := s.consoleOf(s.store.View(), call)
	if err != nil && s.unknownAccounts.Allow() && s.confirmed(ctx, time.Now()) == nil {
		got, err = s.consoleOf(s.store.View(), call) // the session may have been opened a moment ago
	}
	if err != nil {
		return err
	}
	c.behalf = pki.Identity{Cluster: s.cfg.TLS.Identity().Cluster, Role: pki.RoleUser, ID: got.User}
	c.issued, c.console = time.Unix(0, got.CreatedAt), call
	return nil
}

// awaitConsole waits until a session of the console ends, and returns the reason. It returns nil if ctx ends first.
func (s *Server) awaitConsole(ctx context.Context, c consoleCall) error {
	return awaitError(ctx, accountCheckEvery, func() error {
		_, err := s.consoleOf(s.store.View(), c)
		return err
	})
}

func consoleView(c *fsm.Console) *clusterv1.ConsoleSession {
	out := &clusterv1.ConsoleSession{
		Id: c.ID, User: c.User, From: c.From, CreatedAt: timestamppb.New(time.Unix(0, c.CreatedAt)),
		CodeExpiresAt: timestamppb.New(time.Unix(0, c.CodeExpiresAt)), ExpiresAt: timestamppb.New(time.Unix(0, c.ExpiresAt)),
	}
	if c.OpenedAt != 0 {
		out.OpenedAt = timestamppb.New(time.Unix(0, c.OpenedAt))
	}
	return out
}

// certifiedUser returns the user with a certificate who makes a call, directly or through a gateway.
func (c caller) certifiedUser() (string, bool) {
	switch {
	case !c.behalf.IsZero():
		return c.behalf.ID, true
	case c.id.Role == pki.RoleUser && !c.id.IsAnonymous():
		return c.id.ID, true
	}
	return "", false
}

// LinkConsole implements cluster.v1. The code is derived from the request id and the user, so a repeated request of this
// user returns the same code. Gateways may not call it: a gateway can name any user, and the session would outlive the
// revocation of the gateway.
func (s *Server) LinkConsole(ctx context.Context, req *clusterv1.LinkConsoleRequest) (*clusterv1.LinkConsoleResponse, error) {
	c := callOf(ctx).caller
	user, ok := c.certifiedUser()
	most := int64(fsm.MaxConsoleLife / time.Second)
	switch {
	case c.id.IsAnonymous():
		return nil, errorf(KindPrecondition, "this cluster runs with -insecure: its console needs no session, open http://127.0.0.1:8551/ui/ on the machine of the gateway")
	case !ok:
		return nil, errorf(KindPermission, "%s has no certificate: only people with a certificate of the cluster make sessions of the console; use the button \"Sign in\" of the console", c.person())
	case c.console.id != "":
		return nil, errorf(KindPermission, "a session of the console cannot make another one: run `persysctl console`")
	case req.GetTtlSeconds() < 0 || req.GetTtlSeconds() > most:
		return nil, errorf(KindInvalid, "ttl_seconds: %d is not in 0..%d", req.GetTtlSeconds(), most)
	}
	life := time.Duration(req.GetTtlSeconds()) * time.Second
	life = max(cmp.Or(life, defaultConsoleLife), time.Minute)
	code, id, err := s.consoleSecret("console-link/"+user+"/"+req.GetRequestId(), "")
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256([]byte(code))
	now := s.clock()
	r, err := s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_LinkConsole{LinkConsole: &commandv1.LinkConsole{
		Id: id, User: user, CodeSha256: hash[:], CodeExpiresAt: now.Add(min(life, consoleCodeLife)).UnixNano(), ExpiresAt: now.Add(life).UnixNano(),
	}}})
	if err != nil {
		return nil, err
	}
	got, err := s.storedConsole(ctx, id, r.Index) // not found if another user has used the request id
	if err != nil {
		return nil, err
	}
	return &clusterv1.LinkConsoleResponse{Session: consoleView(got), Code: code, Hosts: s.consoleHosts(), Index: r.Index}, nil
}

// consoleSecret derives a secret from a request id. For session "" the result is the one-time code of a new session, with
// the id of that session. Otherwise it is the token of the given session.
func (s *Server) consoleSecret(request, session string) (token, id string, err error) {
	key, err := s.cfg.Keys.Key()
	if err != nil {
		return "", "", errorf(KindPrecondition, "%w", err)
	}
	id, secret, err := key.TokenSecret(request)
	if err != nil {
		return "", "", errorf(KindInternal, "%w", err)
	}
	id = cmp.Or(session, id)
	return dial.ConsoleToken(id, secret), id, nil
}

// storedConsole returns a session of the web console from the state at a log index.
func (s *Server) storedConsole(ctx context.Context, id string, index uint64) (*fsm.Console, error) {
	view, err := s.store.At(ctx, index)
	if err != nil {
		return nil, err
	}
	got, ok := view.Console(id)
	if !ok {
		return nil, errorf(KindPrecondition, "the session was ended meanwhile: `persysctl console` makes a new one")
	}
	return got, nil
}

// consoleHosts returns names and addresses under which a gateway may listen: those of the gateways' join tokens, and
// the machines of the schedulers.
func (s *Server) consoleHosts() (hosts []string) {
	v := s.store.View()
	v.Admissions(func(a *fsm.Admission) bool {
		if a.Role == string(pki.RoleGateway) {
			hosts = append(hosts, a.Hosts...)
		}
		return true
	})
	endpoints, _ := s.schedulers()
	for _, e := range endpoints {
		if host, _, err := net.SplitHostPort(e); err == nil {
			hosts = append(hosts, host)
		}
	}
	var out []string
	for _, h := range hosts {
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

// OpenConsole implements cluster.v1. A wrong code is refused without an entry in the log, because everybody who
// reaches a gateway can send one.
func (s *Server) OpenConsole(ctx context.Context, req *clusterv1.OpenConsoleRequest) (*clusterv1.OpenConsoleResponse, error) {
	if c := callOf(ctx).caller; c.id.Role != pki.RoleGateway || !c.behalf.IsZero() || c.user != "" {
		return nil, errorf(KindPermission, "%s may not open a session of the console: only a gateway opens one, in a call that names no user", c.person())
	}
	id, ok := dial.ConsoleOfToken(req.GetCode())
	if !ok {
		return nil, errorf(KindPermission, "the link is not complete: copy it again from `persysctl console`")
	}
	hash := sha256.Sum256([]byte(req.GetCode()))
	if got, known := s.store.View().Console(id); !known || subtle.ConstantTimeCompare(got.CodeHash, hash[:]) != 1 {
		return nil, errorf(KindPermission, "the link is wrong or its session has ended: `persysctl console` makes a new one")
	}
	token, _, err := s.consoleSecret("console-session/"+req.GetRequestId(), id)
	if err != nil {
		return nil, err
	}
	th := sha256.Sum256([]byte(token))
	r, err := s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_OpenConsole{OpenConsole: &commandv1.OpenConsole{
		Id: id, CodeSha256: hash[:], TokenSha256: th[:], From: clipFrom(req.GetFrom()),
	}}})
	if err != nil {
		return nil, err
	}
	got, err := s.storedConsole(ctx, id, r.Index)
	if err != nil {
		return nil, err
	}
	return &clusterv1.OpenConsoleResponse{Session: consoleView(got), Token: token, Index: r.Index}, nil
}

// ListConsoles implements cluster.v1.
func (s *Server) ListConsoles(ctx context.Context, _ *clusterv1.ListConsolesRequest) (*clusterv1.ListConsolesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	c := callOf(ctx).caller
	user, _ := c.certifiedUser()
	all := s.scopeOfCaller(c, access.Trust).Everywhere()
	out := &clusterv1.ListConsolesResponse{Index: r.index}
	now := s.clock().UnixNano()
	r.Consoles(func(v *fsm.Console) bool {
		if !v.Over(now) && (all || v.User == user) {
			out.Sessions = append(out.Sessions, consoleView(v))
		}
		return true
	})
	slices.SortStableFunc(out.GetSessions(), func(a, b *clusterv1.ConsoleSession) int {
		return cmp.Or(cmp.Compare(a.GetUser(), b.GetUser()), a.GetCreatedAt().AsTime().Compare(b.GetCreatedAt().AsTime()))
	})
	return out, nil
}

// EndConsole implements cluster.v1.
func (s *Server) EndConsole(ctx context.Context, req *clusterv1.EndConsoleRequest) (*clusterv1.EndConsoleResponse, error) {
	c := callOf(ctx).caller
	own, ok := c.certifiedUser()
	of := req.GetUser()
	if got, known := s.store.View().Console(req.GetId()); known && req.GetId() != "" {
		of = got.User
	}
	if !(ok && of == own) && !s.scopeOfCaller(c, access.Trust).Everywhere() {
		return nil, errorf(KindPermission, "%s may end only their own sessions of the console: to end sessions of other users needs the permission %s in every namespace; `persysctl session list` shows your sessions", c.person(), access.Trust)
	}
	r, err := s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_EndConsole{EndConsole: &commandv1.EndConsole{
		Id: req.GetId(), User: req.GetUser(),
	}}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.EndConsoleResponse{Index: r.Index}, nil
}
