package rpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/testbed"
)

// ownCA is a group of two replicas whose certificates come from the CA in their state.
type ownCA struct {
	*group
	t     testing.TB
	root  *pki.Root
	auth  *pki.Authority
	key   *pki.Key
	files []*pki.Files

	mu    sync.Mutex
	ahead time.Duration
}

func (w *ownCA) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.ahead)
}

// forward sets the clock of the schedulers forward by the duration d.
func (w *ownCA) forward(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += d
}

func newOwnCA(t testing.TB) *ownCA { return newOwnCAWith(t, func(*Config) {}) }

func newOwnCAWith(t testing.TB, change func(*Config)) *ownCA {
	t.Helper()
	w := &ownCA{t: t}
	var err error
	w.root, err = pki.NewRoot("home", time.Now())
	ok(t, err)
	w.auth, err = w.root.NewAuthority("home", time.Now())
	ok(t, err)
	w.group = newGroup(t, 2, func(i int, c *Config) {
		w.files = append(w.files, w.signed(pki.Identity{Role: pki.RoleScheduler, ID: fmt.Sprintf("s%d", i)}))
		c.TLS, c.Enrol, c.Now = w.files[i], true, w.now
		c.Gossip = func() []string { return []string{"10.0.0.1:8088"} }
		w.key, err = c.Keys.Key()
		ok(t, err)
		change(c)
	})
	w.do(&commandv1.Command{Body: &commandv1.Command_PinClusterKey{PinClusterKey: &commandv1.PinClusterKey{KeyId: w.key.ID()}}})
	put, err := SealAuthority(w.key, w.auth, time.Now().Add(-time.Minute))
	ok(t, err)
	w.do(&commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: put}})
	for _, f := range w.files {
		w.admit(f, "")
	}
	return w
}

// admit records a certificate's holder in the state as admitted, as a join does.
func (w *ownCA) admit(f *pki.Files, access string) {
	w.t.Helper()
	id, leaf := f.Identity(), f.Leaf()
	w.do(&commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
		Role: string(id.Role), Name: id.ID, Access: access, KeySha256: pki.KeyHash(leaf), Fingerprint: pki.Fingerprint(leaf.Raw),
		IssuedAt: pki.IssuedAt(leaf).UnixNano(), NotAfter: leaf.NotAfter.UnixNano(),
	}}})
}

// holds returns a certificate whose holder is admitted: user "admin" as an admin, every other user as an
// operator.
func (w *ownCA) holds(id pki.Identity) *pki.Files {
	w.t.Helper()
	f := w.signed(id)
	switch {
	case id.Role != pki.RoleUser:
		w.admit(f, "")
	case id.ID == pki.AdminID:
		w.admit(f, "admin")
	default:
		w.admit(f, "operator")
	}
	return f
}

// signed returns a certificate of the cluster's CA whose holder is not admitted.
func (w *ownCA) signed(id pki.Identity) *pki.Files {
	w.t.Helper()
	keyPEM, csr, err := pki.NewRequest([]string{"127.0.0.1"})
	ok(w.t, err)
	issued, err := w.auth.Sign(csr, id, pki.Hosts{Requested: true}, time.Now(), 24*time.Hour)
	ok(w.t, err)
	return w.kept(keyPEM, issued.Chain, pki.EncodeCerts(w.root.Cert.Raw))
}

func (w *ownCA) kept(keyPEM, chain, roots []byte) *pki.Files {
	w.t.Helper()
	k := pki.IdentityStore{Dir: w.t.TempDir()}
	ok(w.t, k.Save(keyPEM, chain, roots))
	p := k.Paths()
	f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Now: w.now})
	ok(w.t, err)
	return f
}

func (w *ownCA) dial(i int, cfg *tls.Config) *grpc.ClientConn {
	w.t.Helper()
	c, err := grpc.NewClient(w.replicas[i].addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	ok(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *ownCA) as(i int, f *pki.Files) *grpc.ClientConn {
	return w.dial(i, f.ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}, Role: pki.RoleScheduler}))
}

func (w *ownCA) admin(i int) clusterv1.TrustClient {
	return clusterv1.NewTrustClient(w.as(i, w.holds(pki.Identity{Role: pki.RoleUser, ID: "admin"})))
}

func (w *ownCA) token(req *clusterv1.CreateTokenRequest) pki.JoinToken {
	w.t.Helper()
	r, err := w.admin(0).CreateToken(ctxFor(w.t), req)
	ok(w.t, err)
	tok, err := pki.ParseJoinToken(r.GetToken())
	ok(w.t, err)
	return tok
}

// enrol requests a certificate with a join token from replica i, over a connection without a client
// certificate.
func (w *ownCA) enrol(i int, tok pki.JoinToken, name string) (*pki.Files, *clusterv1.EnrolResponse, error) {
	return w.enrolAs(i, tok, name, "127.0.0.1")
}

// enrolAs is like enrol, with a list of hosts for the certificate.
func (w *ownCA) enrolAs(i int, tok pki.JoinToken, name string, hosts ...string) (*pki.Files, *clusterv1.EnrolResponse, error) {
	keyPEM, csr, err := pki.NewRequest(hosts)
	ok(w.t, err)
	c := clusterv1.NewTrustClient(w.dial(i, tok.ClientConfig("127.0.0.1", w.now)))
	r, err := c.Enrol(ctxFor(w.t), &clusterv1.EnrolRequest{TokenId: tok.ID, Secret: tok.Secret, Name: name, Csr: csr})
	if err != nil {
		return nil, nil, err
	}
	return w.kept(keyPEM, r.GetChain(), r.GetRoots()), r, nil
}

func (w *ownCA) lastEvent(typ string) *fsm.Event {
	w.t.Helper()
	var found *fsm.Event
	w.view().EventsBack(func(e *fsm.Event) bool {
		if e.Type == typ {
			found = e
		}
		return found == nil
	})
	if found == nil {
		w.t.Fatalf("event %s must be recorded, but is not", typ)
	}
	return found
}

func (w *ownCA) count(typ string) (n int) {
	w.view().Events(0, func(e *fsm.Event) bool {
		if e.Type == typ {
			n++
		}
		return true
	})
	return n
}

func TestProgramsJoinWithTokens(t *testing.T) {
	w := newOwnCA(t)
	for i, where := range []string{"leader", "follower"} {
		t.Run("an agent joins with a token, asked at the "+where, func(t *testing.T) {
			name := "node-" + where
			f, r, err := w.enrol(i, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), name)
			ok(t, err)
			is(t, "cluster", r.GetCluster(), "home")
			is(t, "a cluster key for an agent", r.GetClusterKey(), "")
			is(t, "number of scheduler addresses in the answer", len(r.GetSchedulers()), 2)
			id := f.Identity()
			is(t, "role", id.Role, pki.RoleAgent)
			is(t, "name", id.ID, name)
			_, err = controlv1.NewAgentControlClient(w.as(i, f)).RegisterNode(ctxFor(t), registration(name))
			ok(t, err)
			_, err = controlv1.NewAgentControlClient(w.as(i, f)).RegisterNode(ctxFor(t), registration("a"))
			code(t, err, codes.PermissionDenied)
			e := w.lastEvent(fsm.EventJoined)
			is(t, "node in the event of the join", e.Node, name)
			is(t, "caller in the event of the join", e.By, stranger)
			is(t, "whether the event has the caller's address", slices.Contains(e.Details, fsm.Label{Key: "from", Value: "127.0.0.1"}), true)
		})
	}
	t.Run("a scheduler gets the cluster key and where to join", func(t *testing.T) {
		_, r, err := w.enrol(1, w.token(&clusterv1.CreateTokenRequest{Role: "scheduler"}), "s9")
		ok(t, err)
		is(t, "key", r.GetClusterKey(), w.key.Export())
		is(t, "gossip", fmt.Sprint(r.GetGossip()), "[10.0.0.1:8088]")
	})
	t.Run("a certificate contains the hosts of the token and no other requested hosts", func(t *testing.T) {
		for i, role := range []string{"gateway", "agent"} {
			f, _, err := w.enrolAs(i, w.token(&clusterv1.CreateTokenRequest{Role: role, Name: "h1", Hosts: []string{"gw.example.com", "192.0.2.7"}}), "h1", "bank.example.com", "192.0.2.8")
			ok(t, err)
			for n := range 2 {
				for host, named := range map[string]bool{"h1": true, "gw.example.com": true, "192.0.2.7": true, "bank.example.com": false, "192.0.2.8": false} {
					if err := f.Leaf().VerifyHostname(host); (err == nil) != named {
						t.Errorf("whether certificate number %d of the %s is valid for host %s: %t, want %t", n, role, host, err == nil, named)
					}
				}
				keyPEM, csr, err := pki.NewRequest([]string{"bank.example.com"})
				ok(t, err)
				r, err := clusterv1.NewTrustClient(w.as(1-i, f)).Renew(ctxFor(t), &clusterv1.RenewRequest{Csr: csr})
				ok(t, err)
				f = w.kept(keyPEM, r.GetChain(), r.GetRoots())
			}
		}
		f, _, err := w.enrol(1, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "free.example.com")
		ok(t, err)
		if f.Leaf().VerifyHostname("free.example.com") == nil {
			t.Error("a program with a token without a name got a certificate for the DNS name free.example.com, want none")
		}
		_, err = w.admin(0).CreateToken(ctxFor(t), &clusterv1.CreateTokenRequest{Role: "agent", Hosts: []string{"persys-scheduler.example.com"}})
		code(t, err, codes.InvalidArgument)
	})
	t.Run("a user who joins has the access level of the token", func(t *testing.T) {
		f, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "user", Name: "vic", Access: "viewer"}), "vic")
		ok(t, err)
		c := controlv1.NewAgentControlClient(w.as(1, f))
		_, err = c.ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{})
		ok(t, err)
		before := w.count(fsm.EventCallRefused)
		for i, where := range []string{"leader", "follower"} {
			_, err = controlv1.NewAgentControlClient(w.as(i, f)).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: where})
			code(t, err, codes.PermissionDenied)
			e := w.lastEvent(fsm.EventCallRefused)
			is(t, "whether the event names the refused call", slices.Contains(e.Details, fsm.Label{Key: "call", Value: "delete workload"}), true)
			is(t, "whether the event has the caller's address", slices.Contains(e.Details, fsm.Label{Key: "from", Value: "127.0.0.1"}), true)
			if !strings.HasPrefix(e.By, "persys://home/user/vic?") {
				t.Errorf("the event names caller %q, want user vic of cluster home", e.By)
			}
			is(t, "number of events of refused calls after a call at the "+where, w.count(fsm.EventCallRefused)-before, i+1)
		}
	})

	t.Run("a token for a user needs a name and an access, and is not for admin", func(t *testing.T) {
		for _, c := range []struct{ name, access, want string }{
			{"", "viewer", "needs both"}, {"eve", "", "needs both"}, {"admin", "admin", "reserved"},
		} {
			_, err := w.admin(1).CreateToken(ctxFor(t), &clusterv1.CreateTokenRequest{Role: "user", Name: c.name, Access: c.access})
			code(t, err, codes.InvalidArgument)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("a token with name %q and access %q returned %v, want an error that contains the text of the case", c.name, c.access, err)
			}
		}
	})
	agent := func(uses uint32) pki.JoinToken {
		return w.token(&clusterv1.CreateTokenRequest{Role: "agent", Uses: uses})
	}
	used := agent(1)
	_, _, err := w.enrol(0, used, "used-1")
	ok(t, err)
	deleted := agent(1)
	_, err = w.admin(1).DeleteToken(ctxFor(t), &clusterv1.DeleteTokenRequest{Id: deleted.ID})
	ok(t, err)
	guessed := agent(1)
	guessed.Secret = make([]byte, 32)
	named := w.token(&clusterv1.CreateTokenRequest{Role: "agent", Name: "node-x"})
	for _, c := range []struct {
		fact string
		tok  pki.JoinToken
		name string
		code codes.Code
		want string
	}{
		{"a token that is used up", used, "used-2", codes.PermissionDenied, "is used up"},
		{"a token that was deleted", deleted, "n", codes.NotFound, "was deleted"},
		{"a token with a guessed secret", guessed, "n", codes.PermissionDenied, "the secret is wrong"},
		{"a token for another node", named, "thief", codes.PermissionDenied, `is for agent "node-x"`},
		{"a name that exists", agent(1), "node-leader", codes.PermissionDenied, "exists already"},
		{"the name of a node that registered", agent(1), "b", codes.PermissionDenied, "exists already"},
	} {
		t.Run(c.fact+" is refused, with an event", func(t *testing.T) {
			_, _, err := w.enrol(1, c.tok, c.name)
			code(t, err, c.code)
			if !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("the join returned %v, want an error that contains %q", err, c.want)
			}
			if e := w.lastEvent(fsm.EventJoinRefused); !strings.Contains(e.Message, c.want) {
				t.Errorf("the event of the refused join has the message %q, want one with %q", e.Message, c.want)
			}
		})
	}
	t.Run("a program does not send its token to a scheduler of another cluster", func(t *testing.T) {
		tok := agent(1)
		tok.Root = strings.Repeat("0", 64)
		_, _, err := w.enrol(0, tok, "n")
		code(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), "not a scheduler of the cluster") {
			t.Errorf("Enrol at a scheduler of another cluster returned %v, want that it is not a scheduler of the cluster", err)
		}
	})
	t.Run("a repeated request returns the same token", func(t *testing.T) {
		req := &clusterv1.CreateTokenRequest{Role: "gateway", RequestId: requestID(t)}
		first, err := w.admin(0).CreateToken(ctxFor(t), req)
		ok(t, err)
		again, err := w.admin(1).CreateToken(ctxFor(t), req)
		ok(t, err)
		is(t, "token", again.GetToken(), first.GetToken())
	})
	t.Run("no list of tokens contains a secret", func(t *testing.T) {
		r, err := w.admin(1).ListTokens(ctxFor(t), &clusterv1.ListTokensRequest{})
		ok(t, err)
		if len(r.GetTokens()) == 0 || strings.Contains(r.String(), string(named.Secret)) {
			t.Errorf("the list of tokens must not be empty and must contain no secret of a token, but is %s", r)
		}
	})
	t.Run("a token is valid while schedulers have certificates of the former root", func(t *testing.T) {
		root, err := pki.NewRoot("home", time.Now())
		ok(t, err)
		next, err := root.NewAuthority("home", time.Now())
		ok(t, err)
		put, err := SealAuthority(w.key, next, time.Now())
		ok(t, err)
		w.do(&commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: put}})
		f, _, err := w.enrol(1, agent(1), "late-root")
		ok(t, err)
		if err := f.Leaf().CheckSignatureFrom(next.Cert); err != nil {
			t.Errorf("the issued certificate is not signed by the new CA: %v", err)
		}
	})
	t.Run("a token that expired is refused, with an event", func(t *testing.T) {
		tok := agent(1)
		w.forward(2 * time.Hour)
		_, _, err := w.enrol(0, tok, "late")
		code(t, err, codes.PermissionDenied)
		if e := w.lastEvent(fsm.EventJoinRefused); !strings.Contains(e.Message, "expired at") {
			t.Errorf("the event of the refused join has the message %q, want that the token expired", e.Message)
		}
	})
}

// TestStrangersMayOnlyEnrol: a caller without a certificate may make no call but Enrol.
func TestStrangersMayOnlyEnrol(t *testing.T) {
	w := newOwnCA(t)
	c := w.dial(1, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}).ClientConfig("127.0.0.1", w.now))
	for service, info := range w.replicas[1].server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + service + "/" + m.Name
			if full == clusterv1.Trust_Enrol_FullMethodName {
				continue
			}
			// Send an empty message, which is valid for every protobuf type.
			s, err := c.NewStream(ctxFor(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
			ok(t, err)
			_ = s.SendMsg(&emptypb.Empty{})
			_ = s.CloseSend()
			err = s.RecvMsg(&emptypb.Empty{})
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("call %s without a certificate returned %v, want Unauthenticated", full, err)
			}
		}
	}
	_, err := clusterv1.NewTrustClient(c).Enrol(with(t, dial.KeyForwardedIdentity, "persys://home/user/admin"), &clusterv1.EnrolRequest{TokenId: "x"})
	if code := status.Code(err); code == codes.OK || strings.Contains(err.Error(), "admin") {
		t.Errorf("Enrol with a forwarded identity returned %v, want a refusal that does not name the admin", err)
	}
	before := w.count(fsm.EventJoinRefused)
	_, err = clusterv1.NewTrustClient(c).Enrol(ctxFor(t), &clusterv1.EnrolRequest{TokenId: strings.Repeat("\u00e4", 100)})
	code(t, err, codes.InvalidArgument)
	is(t, "number of refused joins on record", w.count(fsm.EventJoinRefused), before)
	_, err = healthpb.NewHealthClient(w.as(1, w.files[0])).Check(ctxFor(t), &healthpb.HealthCheckRequest{})
	ok(t, err)
}

func TestRenewAndRevoke(t *testing.T) {
	w := newOwnCA(t)
	f, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "n1")
	ok(t, err)
	renew := func(i int, f *pki.Files) (*pki.Files, error) {
		keyPEM, csr, err := pki.NewRequest(nil)
		ok(t, err)
		r, err := clusterv1.NewTrustClient(w.as(i, f)).Renew(ctxFor(t), &clusterv1.RenewRequest{Csr: csr})
		if err != nil {
			return nil, err
		}
		return w.kept(keyPEM, r.GetChain(), r.GetRoots()), nil
	}
	next, err := renew(1, f)
	ok(t, err)
	is(t, "node id in the renewed certificate", next.Identity().ID, "n1")
	is(t, "whether the renewal returned the same certificate", next.Leaf().Equal(f.Leaf()), false)
	if _, err := renew(0, w.signed(pki.Identity{Role: pki.RoleAgent, ID: "unknown"})); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the renewal of a certificate that was never admitted returned %v, want Unauthenticated", err)
	}

	conn := controlv1.NewAgentControlClient(w.as(1, next))
	_, err = conn.RegisterNode(ctxFor(t), registration("n1"))
	ok(t, err)
	b, err := clusterv1.NewTrustClient(w.as(1, next)).Bundle(ctxFor(t), &clusterv1.BundleRequest{})
	ok(t, err)
	_, err = w.admin(0).Revoke(ctxFor(t), &clusterv1.RevokeRequest{Role: "agent", Name: "n1", Reason: "lost"})
	ok(t, err)
	again, err := clusterv1.NewTrustClient(w.as(1, w.files[0])).Bundle(ctxFor(t), &clusterv1.BundleRequest{Version: b.GetVersion()})
	ok(t, err)
	is(t, "revocations in the bundle", len(again.GetRevocations()), 1)
	is(t, "whether the bundle has another version after the revocation", again.GetVersion() != b.GetVersion(), true)
	same, err := clusterv1.NewTrustClient(w.as(1, w.files[0])).Bundle(ctxFor(t), &clusterv1.BundleRequest{Version: again.GetVersion()})
	ok(t, err)
	is(t, "number of entries in the answer to a caller that has the present version", len(same.GetRevocations())+len(same.GetRoots()), 0)

	if _, err := renew(0, next); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the renewal of a revoked identity returned %v, want Unauthenticated", err)
	}
	for _, f := range w.files { // apply the revocations, as real replicas do when the state changes
		f.Revoke(Revoked(w.view()))
	}
	_, err = conn.Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "n1"})
	code(t, err, codes.Unauthenticated) // the call uses a connection from before the revocation
	if !strings.Contains(err.Error(), "persysctl token create --role agent --name n1") {
		t.Errorf("the error of a revoked agent must name the command that makes a new token, but is: %v", err)
	}
	is(t, "reason in the event of the revocation", w.lastEvent(fsm.EventRevoked).Reason, "lost")
	list, err := w.admin(0).ListIdentities(ctxFor(t), &clusterv1.ListIdentitiesRequest{})
	ok(t, err)
	is(t, "whether the list shows the identity as revoked", list.GetIdentities()[0].GetRevoked(), true)

	_, _, err = w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent", Uses: 9}), "n1")
	code(t, err, codes.PermissionDenied)
	back, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent", Name: "n1"}), "n1")
	ok(t, err)
	_, err = controlv1.NewAgentControlClient(w.as(1, back)).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "n1"})
	ok(t, err)
}

func TestAuthoritiesAreReplaced(t *testing.T) {
	w := newOwnCA(t)
	admin := w.admin(1)
	root, err := pki.NewRoot("home", time.Now())
	ok(t, err)
	next, err := root.NewAuthority("home", time.Now())
	ok(t, err)
	raw, err := next.Key()
	ok(t, err)
	put := &clusterv1.PutAuthorityRequest{Cert: next.Cert.Raw, Root: root.Cert.Raw, Key: raw, AfterSeconds: 3600}
	r, err := admin.PutAuthority(ctxFor(t), put)
	ok(t, err)
	is(t, "whether the authority issues certificates at once", r.GetAuthority().GetIssues(), false)
	is(t, "number of trusted roots", strings.Count(string(Roots(w.view())), "BEGIN"), 2)
	a, _ := w.view().Authority(next.ID())
	if strings.Contains(a.SealedKey, string(raw)) || !strings.HasPrefix(a.SealedKey, "sealed:") {
		t.Error("the state has the authority's key in plain text, want it sealed")
	}
	_, err = admin.DropAuthority(ctxFor(t), &clusterv1.DropAuthorityRequest{Id: w.auth.ID()})
	code(t, err, codes.FailedPrecondition)

	// The new authority is not active yet: the old authority must still issue certificates, and the program must trust
	// both authorities.
	f, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "n1")
	ok(t, err)
	w.forward(2 * time.Hour)
	g, err := func() (*pki.Files, error) {
		keyPEM, csr, err := pki.NewRequest([]string{"127.0.0.1"})
		ok(t, err)
		r, err := clusterv1.NewTrustClient(w.as(0, f)).Renew(ctxFor(t), &clusterv1.RenewRequest{Csr: csr})
		if err != nil {
			return nil, err
		}
		return w.kept(keyPEM, r.GetChain(), r.GetRoots()), nil
	}()
	ok(t, err)
	is(t, "whether the renewed certificate is signed by the new authority", g.Leaf().CheckSignatureFrom(next.Cert) == nil, true)
	_, err = admin.DropAuthority(ctxFor(t), &clusterv1.DropAuthorityRequest{Id: w.auth.ID()})
	ok(t, err)
	is(t, "number of trusted roots after the old authority was dropped", strings.Count(string(Roots(w.view())), "BEGIN"), 1)

	other, err := pki.NewRoot("elsewhere", time.Now())
	ok(t, err)
	foreign, err := other.NewAuthority("elsewhere", time.Now())
	ok(t, err)
	raw, err = foreign.Key()
	ok(t, err)
	_, err = admin.PutAuthority(ctxFor(t), &clusterv1.PutAuthorityRequest{Cert: foreign.Cert.Raw, Root: other.Cert.Raw, Key: raw})
	code(t, err, codes.InvalidArgument)
}

// A repeated request to rotate the gossip key returns the key of the first request. Another rotation is refused until
// the first rotation has ended.
func TestARotationOfTheGossipKeyCanBeRepeated(t *testing.T) {
	w := newOwnCA(t)
	id, keys := requestID(t), [2]string{}
	for i := range keys {
		r, err := w.admin(0).RotateGossip(ctxFor(t), &clusterv1.RotateGossipRequest{RequestId: id})
		ok(t, err)
		keys[i] = r.GetKeyId()
	}
	is(t, "key id of the repeated request", keys[1], keys[0])
	_, err := w.admin(0).RotateGossip(ctxFor(t), &clusterv1.RotateGossipRequest{})
	code(t, err, codes.FailedPrecondition)
}

// Callers without a token can cause only few log entries: the first refusals within a minute are recorded, and further
// refusals are only counted. The rate of joins from one network is limited. A valid token of the cluster still works.
func TestJoinsAreBounded(t *testing.T) {
	w := newOwnCA(t)
	tok := w.token(&clusterv1.CreateTokenRequest{Role: "agent"})
	c := clusterv1.NewTrustClient(w.dial(0, tok.ClientConfig("127.0.0.1", w.now)))
	_, csr, err := pki.NewRequest(nil)
	ok(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[codes.Code]int{}
	before := w.count(fsm.EventJoinRefused)
	for range 8 * joinRate {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			_, err := c.Enrol(ctx, &clusterv1.EnrolRequest{TokenId: "nobody-has-it", Name: "n", Csr: csr})
			mu.Lock()
			defer mu.Unlock()
			seen[status.Code(err)]++
		})
	}
	wg.Wait()
	if seen[codes.NotFound] != refusalEach || seen[codes.PermissionDenied] == 0 || seen[codes.ResourceExhausted] == 0 {
		t.Errorf("the joins without a valid token got these numbers of answers by gRPC code: %v; want %d NotFound, and some PermissionDenied and ResourceExhausted", seen, refusalEach)
	}
	is(t, "refusals in the history", w.count(fsm.EventJoinRefused)-before, refusalEach)
	testbed.Until(t, "a holder of a token joins", func() bool {
		_, _, err := w.enrol(0, tok, "n1")
		return err == nil
	})
}

// TestStreamsOfARevokedIdentityEnd: a stream of a revoked identity ends when its replica learns of the
// revocation, whatever the stream waits for.
func TestStreamsOfARevokedIdentityEnd(t *testing.T) {
	w := newOwnCA(t)
	f := w.agent(t, 1)
	w.place("web", "n")
	// The session at the agent must end too.
	sessions := make(chan string, 8)
	f.logs = func(_ *agentv1.LogsRequest, s grpc.ServerStreamingServer[agentv1.LogChunk]) error {
		defer func() { sessions <- "logs" }()
		err := s.Send(&agentv1.LogChunk{Data: []byte("a line")})
		<-s.Context().Done()
		return err
	}
	f.exec = func(s grpc.BidiStreamingServer[agentv1.ExecRequest, agentv1.ExecResponse]) error {
		defer func() { sessions <- "exec" }()
		return echo(s)
	}
	behind := metadata.AppendToOutgoingContext(ctxFor(t), dial.KeyOnBehalf, "persys://home/user/ops", dial.KeyIssued, strconv.FormatInt(time.Now().UnixNano(), 10))
	ops := w.holds(pki.Identity{Role: pki.RoleUser, ID: "ops"})
	n1, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "n1")
	ok(t, err)
	_, err = w.admin(0).CreateToken(ctxFor(t), &clusterv1.CreateTokenRequest{Role: "agent"})
	ok(t, err)
	user, agent := w.as(1, ops), w.as(1, n1)
	gateway := clusterv1.NewClusterClient(w.as(1, w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"})))
	session := func(c clusterv1.ClusterClient, ctx context.Context, console bool) (receiver, error) {
		o := &clusterv1.ExecOpen{WorkloadId: "web", Console: console, Input: true}
		if !console {
			o.Command = []string{"sh"}
		}
		return openWith(t, ctx, c, o), nil
	}
	streams := map[string]func() (receiver, error){
		"events": func() (receiver, error) {
			return clusterv1.NewClusterClient(user).Events(ctxFor(t), &clusterv1.EventsRequest{Follow: true, Tail: 1})
		},
		"watch": func() (receiver, error) {
			return clusterv1.NewClusterClient(user).WatchWorkloads(ctxFor(t), &clusterv1.WatchWorkloadsRequest{})
		},
		"apply stream":   func() (receiver, error) { return clusterv1.NewClusterClient(user).ApplyStream(ctxFor(t)) },
		"control stream": func() (receiver, error) { return controlv1.NewAgentControlClient(agent).ControlStream(ctxFor(t)) },
		"logs": func() (receiver, error) {
			return clusterv1.NewClusterClient(user).Logs(ctxFor(t), &clusterv1.LogsRequest{WorkloadId: "web", Follow: true})
		},
		"exec":    func() (receiver, error) { return session(clusterv1.NewClusterClient(user), ctxFor(t), false) },
		"console": func() (receiver, error) { return session(clusterv1.NewClusterClient(user), ctxFor(t), true) },
		"events through a gateway": func() (receiver, error) {
			return gateway.Events(behind, &clusterv1.EventsRequest{Follow: true, Tail: 1})
		},
		"logs through a gateway": func() (receiver, error) {
			return gateway.Logs(behind, &clusterv1.LogsRequest{WorkloadId: "web", Follow: true})
		},
		"exec through a gateway": func() (receiver, error) { return session(gateway, behind, false) },
		"health": func() (receiver, error) {
			return healthpb.NewHealthClient(agent).Watch(ctxFor(t), &healthpb.HealthCheckRequest{})
		},
	}
	ended := make(map[string]chan error)
	for name, open := range streams {
		r, err := open()
		ok(t, err)
		end := make(chan error, 1)
		ended[name] = end
		go func() {
			for {
				if err := r.RecvMsg(&anyMessage{}); err != nil {
					end <- err
					return
				}
			}
		}()
	}
	testbed.Within(t, testbed.Patience, "the sessions are open", func() error {
		if n := len(audited(w.group)); n != 3 {
			return fmt.Errorf("%d events of opened sessions are recorded, want 3", n)
		}
		return nil
	})
	for name, end := range ended {
		select {
		case err := <-end:
			t.Fatalf("stream %q ended before an identity was revoked: %v", name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	other := w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "other"}))
	stays, err := clusterv1.NewClusterClient(other).Events(ctxFor(t), &clusterv1.EventsRequest{Follow: true, Tail: 1})
	ok(t, err)
	_, err = stays.Recv()
	ok(t, err)

	for _, id := range []*clusterv1.RevokeRequest{{Role: "user", Name: "ops"}, {Role: "agent", Name: "n1"}} {
		_, err = w.admin(0).Revoke(ctxFor(t), id)
		ok(t, err)
	}
	for _, f := range w.files { // apply the revocations, as real replicas do when the state changes
		f.Revoke(Revoked(w.view()))
	}
	for name, end := range ended {
		select {
		case err := <-end:
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("stream %s ended with %v, want Unauthenticated, because its identity is revoked", name, err)
			}
		case <-time.After(testbed.Patience):
			t.Errorf("stream %s must have ended, but is still open", name)
		}
	}
	_, err = stays.Recv() // this stream of an identity that is not revoked receives the revocations as events
	ok(t, err)
	for range 5 {
		select {
		case <-sessions:
		case <-time.After(testbed.Patience):
			t.Fatal("the agent must end the session of a revoked user, but still runs it")
		}
	}
	_, err = gateway.Status(behind, &clusterv1.StatusRequest{})
	code(t, err, codes.Unauthenticated)
	if err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a call of a revoked user through a gateway returned %v, want an error that says revoked", err)
	}
	// The user was not admitted again after the revocation, so even a newer certificate must be refused.
	later := metadata.AppendToOutgoingContext(ctxFor(t), dial.KeyOnBehalf, "persys://home/user/ops", dial.KeyIssued, strconv.FormatInt(time.Now().Add(time.Second).UnixNano(), 10))
	_, err = gateway.Status(later, &clusterv1.StatusRequest{})
	code(t, err, codes.Unauthenticated)
	_, _, err = w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "user", Name: "ops", Access: "viewer"}), "ops")
	ok(t, err)
	_, err = gateway.Status(later, &clusterv1.StatusRequest{})
	ok(t, err)
}

type receiver interface{ RecvMsg(any) error }

// anyMessage is a message that accepts any encoded content.
type anyMessage struct{ emptypb.Empty }

// TestCallersAreBounded: the calls of one caller are limited. The limit does not affect other callers or
// schedulers.
func TestCallersAreBounded(t *testing.T) {
	refused := map[string]int{}
	var mu sync.Mutex
	w := newOwnCAWith(t, func(c *Config) {
		c.Limits = limits.Limits{Calls: 5, Concurrent: 2}
		c.Limited = func(r string) { mu.Lock(); refused[r]++; mu.Unlock() }
	})
	greedy := clusterv1.NewClusterClient(w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "greedy"})))
	var last error
	for range 30 {
		_, last = greedy.Status(ctxFor(t), &clusterv1.StatusRequest{})
	}
	code(t, last, codes.ResourceExhausted)
	if !strings.Contains(last.Error(), "SCHEDULER_LIMIT_CALLS") {
		t.Errorf("the refusal above the rate limit must name the setting SCHEDULER_LIMIT_CALLS, but is: %v", last)
	}
	modest := clusterv1.NewClusterClient(w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "modest"})))
	_, err := modest.Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
	for range 30 {
		_, err := clusterv1.NewClusterClient(w.as(1, w.files[0])).Status(ctxFor(t), &clusterv1.StatusRequest{})
		ok(t, err)
	}
	control, err := controlv1.NewAgentControlClient(w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "streamer"}))).ControlStream(ctxFor(t))
	ok(t, err)
	var said *controlv1.ControlMessage
	for range 30 { // each message on the stream counts as a call
		ok(t, control.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Delete{Delete: &controlv1.DeleteWorkloadRequest{WorkloadId: "x"}}}))
		said, err = control.Recv()
		ok(t, err)
	}
	is(t, "a message beyond the limit", codes.Code(said.GetError().GetCode()), codes.ResourceExhausted)
	var streams []clusterv1.Cluster_EventsClient
	for range 3 {
		s, err := modest.Events(ctxFor(t), &clusterv1.EventsRequest{Follow: true, Tail: 1})
		ok(t, err)
		streams = append(streams, s)
	}
	ended := 0
	for _, s := range streams {
		if _, err := s.Recv(); status.Code(err) == codes.ResourceExhausted {
			ended++
		}
	}
	is(t, "number of streams that ended because of the limit", ended, 1)
	mu.Lock()
	defer mu.Unlock()
	if refused[limits.ReasonRate] == 0 || refused[limits.ReasonConcurrency] != 1 {
		t.Errorf("the numbers of refusals by limit are %v, want some because of the rate and one because of concurrency", refused)
	}
}

// A repeated request to rotate the cluster key returns the key of the first request. Another rotation is refused until
// the first rotation has ended. Each sealed value can be sealed again.
func TestARotationOfTheClusterKeyCanBeRepeated(t *testing.T) {
	w := newOwnCA(t)
	id, keys := requestID(t), [2]string{}
	for i := range keys {
		r, err := w.admin(0).RotateClusterKey(ctxFor(t), &clusterv1.RotateClusterKeyRequest{RequestId: id})
		ok(t, err)
		keys[i] = r.GetKeyId()
	}
	is(t, "key id of the repeated request", keys[1], keys[0])
	is(t, "next key", w.group.now().Info().NextKeyID, keys[0])
	_, err := w.admin(0).RotateClusterKey(ctxFor(t), &clusterv1.RotateClusterKeyRequest{})
	code(t, err, codes.FailedPrecondition)
}
