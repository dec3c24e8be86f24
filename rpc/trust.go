package rpc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/hosts"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

const (
	// DefaultCertLife is the default validity of a certificate that the cluster issues to a program, and
	// DefaultUserCertLife the default validity of a person's certificate.
	DefaultCertLife     = 7 * 24 * time.Hour
	DefaultUserCertLife = 24 * time.Hour
	// defaultTokenLife is the default validity of a join token.
	defaultTokenLife = time.Hour
	// joinRate is the number of joins per second that one network may request; in a burst, twice as many.
	// Everybody who can connect to the port can request a join.
	joinRate = 20
)

// authorityContext returns the context under which an authority's key is sealed. It binds the sealed key to
// its authority.
func authorityContext(id string) []byte { return []byte("persys/authority/" + id) }

// SealAuthority returns the command that adds a certificate authority to the cluster, with the authority's key
// encrypted under the cluster key.
func SealAuthority(key *pki.Key, a *pki.Authority, activeAt time.Time) (*commandv1.PutAuthority, error) {
	raw, err := a.Key()
	if err != nil {
		return nil, err
	}
	sealed, err := key.Seal(raw, authorityContext(a.ID()))
	if err != nil {
		return nil, err
	}
	end := a.Cert.NotAfter
	if a.Root.NotAfter.Before(end) {
		end = a.Root.NotAfter
	}
	return &commandv1.PutAuthority{
		Id: a.ID(), RootId: pki.Fingerprint(a.Root.Raw), Cert: a.Cert.Raw, Root: a.Root.Raw, SealedKey: sealed,
		ActiveAt: activeAt.UnixNano(), NotAfter: end.UnixNano(),
	}, nil
}

// OpenAuthority decrypts the sealed key of an authority in the state.
func OpenAuthority(key *pki.Key, a *fsm.Authority) (*pki.Authority, error) {
	raw, err := key.Open(a.SealedKey, authorityContext(a.ID))
	if err != nil {
		return nil, fmt.Errorf("the key of authority %s: %w", a.ID[:16], err)
	}
	return pki.ParseAuthority(a.Cert, a.Root, raw)
}

// issuer returns the authority that issues certificates at present, with its key.
func (s *Server) issuer() (*pki.Authority, error) {
	a, ok := s.store.View().Issuer(s.clock().UnixNano())
	if !ok {
		return nil, errorf(KindPrecondition, "this cluster has no CA of its own: `persysctl ca init` makes one, `persysctl ca install` brings it here")
	}
	key, err := s.cfg.Keys.Key()
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	open, err := OpenAuthority(key, a)
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	return open, nil
}

// clock returns the time for certificates and tokens. It is the time of this replica's clock, or the clock in the
// state if that is later, because the clock of a former leader was ahead. Otherwise a certificate that is issued after
// a revocation could have an earlier time than the revocation, and would be refused.
func (s *Server) clock() time.Time {
	now := s.now()
	if at := time.Unix(0, s.store.View().Info().Clock); at.After(now) {
		return at
	}
	return now
}

// Roots returns the trusted root certificates of all authorities in the state, as PEM.
func Roots(v fsm.View) []byte {
	var ders [][]byte
	v.Authorities(func(a *fsm.Authority) bool {
		ders = append(ders, a.Root)
		return true
	})
	return pki.EncodeCerts(ders...)
}

// Revoked returns the revocations in the state.
func Revoked(v fsm.View) *pki.Revoked {
	r := &pki.Revoked{Identities: map[string]time.Time{}, Certificates: map[string]bool{}}
	v.Revocations(func(e *fsm.Revocation) bool {
		if e.Fingerprint != "" {
			r.Certificates[e.Fingerprint] = true
		} else {
			r.Identities[e.Role+"/"+e.Name] = time.Unix(0, e.At)
		}
		return true
	})
	return r
}

// GossipAgainst returns a hash of the revoked schedulers; "" if there are none. A gossip key stores the hash from the
// time when it was made. If the present hash differs, a scheduler was revoked later and may still hold the key. A
// revoked certificate whose role is not known is included in the hash too, because it may be a scheduler's.
func GossipAgainst(v fsm.View) string {
	roles := map[string]string{}
	v.Admissions(func(a *fsm.Admission) bool { roles[a.Fingerprint] = a.Role; return true })
	sum, any := sha256.New(), false
	v.Revocations(func(r *fsm.Revocation) bool {
		of := r.Role
		if r.Fingerprint != "" {
			of = cmp.Or(roles[r.Fingerprint], string(pki.RoleScheduler))
		}
		if of == string(pki.RoleScheduler) {
			any = true
			fmt.Fprintf(sum, "%s/%s/%d\n", r.Name, r.Fingerprint, r.At)
		}
		return true
	})
	if !any {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// SchedulerRevoked reports whether the scheduler called name, or the certificate that the state records for it, is
// revoked.
func SchedulerRevoked(v fsm.View, name string) bool {
	a, known := v.Admission(string(pki.RoleScheduler), name)
	if known {
		if _, gone := v.RevokedCertificate(a.Fingerprint); gone {
			return true
		}
	}
	at, gone := v.RevokedIdentity(string(pki.RoleScheduler), name)
	return gone && (!known || a.IssuedAt <= at.At)
}

// Enrol implements the call of cluster.v1: it issues a certificate for a join token. One log entry checks the
// token, counts its use and serves as the audit event.
func (s *Server) Enrol(ctx context.Context, req *clusterv1.EnrolRequest) (*clusterv1.EnrolResponse, error) {
	c := callOf(ctx)
	network := hosts.NetworkOf(c.from)
	entry, err := s.joins.Enter(limits.Peer{Kind: "network", Name: network})
	if err != nil {
		return nil, errorf(KindBusy, "more than %d joins per second from %s: try again in a moment", joinRate, network)
	}
	defer entry.Leave()
	if n := len(req.GetTokenId()) + len(req.GetName()) + len(req.GetSecret()); n > 1024 || len(req.GetCsr()) > 16<<10 {
		return nil, errorf(KindInvalid, "token, name and secret of %d bytes, csr of %d: limits 1024 and 16384", n, len(req.GetCsr()))
	}
	a, err := s.issuer()
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(req.GetSecret())
	admit := &commandv1.Admit{Token: req.GetTokenId(), SecretSha256: hash[:], Name: req.GetName(), Role: string(pki.RoleAgent)}
	switch {
	case admit.Token == "":
		return nil, errorf(KindInvalid, "token_id must not be blank")
	case !bounds.ValidID(admit.Token): // leave an invalid id out of the history
		return nil, errorf(KindInvalid, "token_id: %.64q does not match %s", admit.Token, bounds.IDRule)
	}
	// The new identity gets the role that is stored with the token.
	holder := false
	if tok, ok := s.store.View().Token(admit.Token); ok {
		admit.Role, admit.Access, admit.Hosts = tok.Role, tok.Access, tok.Hosts
		holder = bytes.Equal(tok.SecretHash, hash[:])
	}
	// The state machine refuses a caller that has no valid token and records the refusal. After the first refusals of
	// such callers, this replica refuses them itself, and one record contains the number of refusals.
	if !holder && !s.refusals.note(c.caller, false, func(n int, together bool) error { return s.recordRest(c, n, together) }) {
		return nil, errorf(KindPermission, "join token %s is not a token of this cluster, or its secret is wrong: `persysctl token create` makes one", admit.Token)
	}
	issued, err := s.issue(ctx, a, req.GetCsr(), admit)
	if err != nil {
		return nil, err
	}
	view := s.store.View()
	out := &clusterv1.EnrolResponse{Chain: issued.Chain, Roots: Roots(view), Cluster: a.Cluster}
	out.Schedulers, _ = s.schedulers()
	if admit.GetRole() == string(pki.RoleScheduler) {
		key, err := s.cfg.Keys.Key()
		if err != nil {
			return nil, errorf(KindPrecondition, "%w", err)
		}
		out.ClusterKey = key.Export()
		if s.cfg.Gossip != nil {
			out.Gossip = s.cfg.Gossip()
		}
		// During a rotation of the cluster key the ring may still be sealed under the former key, which the new
		// scheduler does not have yet.
		if out.GossipRing = view.Info().GossipRing; out.GossipRing != "" {
			sealed, err := Reseal(fsm.SealedValue{Kind: fsm.SealedGossip, Value: []byte(out.GossipRing)}, key)
			if err != nil {
				return nil, errorf(KindPrecondition, "%w", err)
			}
			out.GossipRing = string(sealed)
		}
	}
	return out, nil
}

// issue signs a certificate. It returns the certificate only after it has committed the admission of its
// holder.
func (s *Server) issue(ctx context.Context, a *pki.Authority, csr []byte, admit *commandv1.Admit) (*pki.Issued, error) {
	now := s.clock()
	if rev, ok := s.store.View().RevokedIdentity(admit.GetRole(), admit.GetName()); ok && admit.GetToken() != "" {
		// The new certificate must be later than the revocation, and times in certificates are whole seconds. So use
		// the next full second after the revocation.
		if next := time.Unix(0, rev.At).Truncate(time.Second).Add(time.Second); next.After(now) {
			now = next
		}
	}
	role := pki.Role(admit.GetRole())
	// A scheduler gets all hosts that it requests. It must be trusted anyway, because it also gets the
	// cluster key, with which it can decrypt the CA's key.
	hosts := pki.Hosts{Given: admit.GetHosts(), From: callOf(ctx).from, Requested: role == pki.RoleScheduler}
	issued, err := a.Sign(csr, pki.Identity{Role: role, ID: admit.GetName()}, hosts, now, s.certLife(role))
	if err != nil {
		return nil, errorf(KindInvalid, "%w", err)
	}
	admit.KeySha256, admit.Fingerprint = issued.KeyHash, pki.Fingerprint(issued.Cert.Raw)
	admit.IssuedAt, admit.NotAfter = now.UnixNano(), issued.Cert.NotAfter.UnixNano()
	_, err = s.commit(ctx, "", &commandv1.Command{Body: &commandv1.Command_Admit{Admit: admit}})
	if err != nil {
		return nil, err
	}
	return issued, nil
}

// certLife returns the validity of a new certificate for a role.
func (s *Server) certLife(role pki.Role) time.Duration {
	if role == pki.RoleUser {
		return s.cfg.UserCertLife
	}
	return s.cfg.CertLife
}

// Renew implements the call of cluster.v1: it issues a new certificate for the caller's identity. A caller
// with a certificate of another CA must enrol instead.
func (s *Server) Renew(ctx context.Context, req *clusterv1.RenewRequest) (*clusterv1.RenewResponse, error) {
	id := callOf(ctx).id
	if len(req.GetCsr()) > 16<<10 {
		return nil, errorf(KindInvalid, "csr: %d bytes, limit 16384", len(req.GetCsr()))
	}
	a, err := s.issuer()
	if err != nil {
		return nil, err
	}
	admit := &commandv1.Admit{Role: string(id.Role), Name: id.ID}
	old, ok := s.store.View().Admission(admit.Role, admit.Name)
	if !ok || id.Mapped || id.Cluster != a.Cluster {
		return nil, errorf(KindPrecondition, "%s %q has no certificate of this cluster's CA that could be renewed: `%s` makes a token with which it can join", id.Role, id.ID, id.TokenCommand())
	}
	admit.Access, admit.Hosts = old.Access, old.Hosts
	issued, err := s.issue(ctx, a, req.GetCsr(), admit)
	if err != nil {
		return nil, err
	}
	return &clusterv1.RenewResponse{Chain: issued.Chain, Roots: Roots(s.store.View())}, nil
}

// bundle caches the answer of Bundle until the trust tables in the state change.
type bundle struct {
	of   uint64 // version of the trust tables from which resp was made
	resp *clusterv1.BundleResponse
}

// Bundle implements the call of cluster.v1: it returns the trusted roots and the revocations in this
// replica's state.
func (s *Server) Bundle(_ context.Context, req *clusterv1.BundleRequest) (*clusterv1.BundleResponse, error) {
	v := s.store.View()
	b := s.bundle.Load()
	if at := v.Info().TrustVersion; b == nil || b.of != at {
		b = &bundle{of: at, resp: &clusterv1.BundleResponse{Roots: Roots(v)}}
		// The version of the bundle is a hash of its content, because most changes of the trust tables
		// (tokens, issued certificates) do not change the bundle.
		sum := sha256.New()
		_, _ = sum.Write(b.resp.GetRoots())
		v.Revocations(func(r *fsm.Revocation) bool {
			b.resp.Revocations = append(b.resp.Revocations, revocationView(r))
			for _, part := range []string{r.Role, r.Name, r.Fingerprint} {
				_, _ = sum.Write(append([]byte(part), 0))
			}
			_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(r.At)))
			return true
		})
		b.resp.Version = hex.EncodeToString(sum.Sum(nil)[:8])
		s.bundle.Store(b)
	}
	out := &clusterv1.BundleResponse{Version: b.resp.GetVersion()}
	out.Schedulers, _ = s.schedulers()
	if out.GetVersion() != req.GetVersion() {
		out.Roots, out.Revocations = b.resp.GetRoots(), b.resp.GetRevocations()
	}
	return out, nil
}

func revocationView(r *fsm.Revocation) *clusterv1.Revocation {
	return &clusterv1.Revocation{Role: r.Role, Name: r.Name, Fingerprint: r.Fingerprint, Reason: r.Reason, At: timestamppb.New(time.Unix(0, r.At)), By: r.By}
}

// CreateToken implements the call of cluster.v1. The secret of the token is derived from the request id, so a
// repeated request returns the same token. The cluster stores only a hash of the secret.
func (s *Server) CreateToken(ctx context.Context, req *clusterv1.CreateTokenRequest) (*clusterv1.CreateTokenResponse, error) {
	a, err := s.issuer()
	if err != nil {
		return nil, err
	}
	if !s.cfg.Enrol {
		return nil, errorf(KindPrecondition, "this scheduler's certificate is not from the cluster's CA, so a program that has only a token would not trust it: give it one with `persys-scheduler --join TOKEN` or --init")
	}
	key, err := s.cfg.Keys.Key()
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	if req.GetRole() == string(pki.RoleUser) && (req.GetName() == "" || req.GetAccess() == "") {
		return nil, errorf(KindInvalid, "name %q and access %q: a token for a user needs both", clip(req.GetName(), 128), clip(req.GetAccess(), 128))
	}
	if err := s.mayInvite(ctx, req); err != nil {
		return nil, err
	}
	life := time.Duration(req.GetTtlSeconds()) * time.Second
	if req.GetTtlSeconds() < 0 || req.GetTtlSeconds() > int64(fsm.MaxTokenLife/time.Second) {
		return nil, errorf(KindInvalid, "ttl_seconds: %d is not in 1..%d", req.GetTtlSeconds(), int64(fsm.MaxTokenLife/time.Second))
	}
	if life == 0 {
		life = defaultTokenLife
	}
	hosts := slices.Clone(req.GetHosts())
	if role := pki.Role(req.GetRole()); role != pki.RoleUser && req.GetName() != "" && !slices.Contains(hosts, req.GetName()) {
		hosts = append(hosts, req.GetName())
	}
	for _, h := range hosts {
		if err := pki.ValidHost(pki.Role(req.GetRole()), h); err != nil {
			return nil, errorf(KindInvalid, "hosts: %w", err)
		}
	}
	id, secret, err := key.TokenSecret(req.GetRequestId())
	if err != nil {
		return nil, errorf(KindInternal, "%w", err)
	}
	tok := pki.JoinToken{
		ID: id, Secret: secret, Cluster: a.Cluster, Role: pki.Role(req.GetRole()), Name: req.GetName(), Access: req.GetAccess(),
		Root: pki.Fingerprint(a.Root.Raw), Expires: s.clock().Add(life).UTC().Truncate(time.Second),
	}
	s.store.View().Authorities(func(a *fsm.Authority) bool {
		if a.RootID != tok.Root && !slices.Contains(tok.Roots, a.RootID) {
			tok.Roots = append(tok.Roots, a.RootID)
		}
		return true
	})
	tok.Schedulers, _ = s.schedulers()
	put := &commandv1.PutToken{
		Id: id, SecretSha256: tok.SecretHash(), Role: req.GetRole(), Name: req.GetName(), Access: req.GetAccess(),
		Hosts: hosts, Uses: max(1, req.GetUses()), ExpiresAt: tok.Expires.UnixNano(),
	}
	_, err = s.commit(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutToken{PutToken: put}})
	if err != nil {
		return nil, err
	}
	kept, ok := s.store.View().Token(id)
	if !ok {
		return nil, errorf(KindPrecondition, "the token that an earlier attempt of this request made was deleted")
	}
	// Check again: the user may have got more rights between the first check and the commit. For rights that were added
	// after the commit, the state machine deletes the token. No answer has contained the token's secret yet.
	if err := s.mayInvite(ctx, req); err != nil {
		return nil, err
	}
	tok.Expires = time.Unix(0, kept.ExpiresAt).UTC() // return the committed expiry: a repeated request has computed another one
	text, err := tok.Export()
	if err != nil {
		return nil, errorf(KindInternal, "%w", err)
	}
	return &clusterv1.CreateTokenResponse{Token: text, Info: tokenView(kept)}, nil
}

func tokenView(t *fsm.Token) *clusterv1.TokenInfo {
	return &clusterv1.TokenInfo{
		Id: t.ID, Role: t.Role, Name: t.Name, Access: t.Access, Hosts: t.Hosts, UsesLeft: t.Uses, CreatedBy: t.CreatedBy,
		CreatedAt: timestamppb.New(time.Unix(0, t.CreatedAt)), ExpiresAt: timestamppb.New(time.Unix(0, t.ExpiresAt)),
	}
}

// ListTokens implements the call of cluster.v1. Its answer has no secrets, because they are not stored.
func (s *Server) ListTokens(context.Context, *clusterv1.ListTokensRequest) (*clusterv1.ListTokensResponse, error) {
	out := &clusterv1.ListTokensResponse{}
	s.store.View().Tokens(func(t *fsm.Token) bool {
		out.Tokens = append(out.Tokens, tokenView(t))
		return true
	})
	return out, nil
}

// DeleteToken implements the call of cluster.v1: it deletes a join token, which then cannot be used any more.
func (s *Server) DeleteToken(ctx context.Context, req *clusterv1.DeleteTokenRequest) (*clusterv1.DeleteTokenResponse, error) {
	return &clusterv1.DeleteTokenResponse{}, s.change(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DropToken{
		DropToken: &commandv1.DropToken{Id: req.GetId()},
	}})
}

// ListIdentities implements the call of cluster.v1: it lists the admitted machines and users, with their certificates
// and whether they are revoked.
func (s *Server) ListIdentities(context.Context, *clusterv1.ListIdentitiesRequest) (*clusterv1.ListIdentitiesResponse, error) {
	out := &clusterv1.ListIdentitiesResponse{}
	v := s.store.View()
	v.Admissions(func(a *fsm.Admission) bool {
		_, byPrint := v.RevokedCertificate(a.Fingerprint)
		r, byName := v.RevokedIdentity(a.Role, a.Name)
		out.Identities = append(out.Identities, &clusterv1.IdentityInfo{
			Role: a.Role, Name: a.Name, Access: a.Access, Hosts: a.Hosts, Fingerprint: a.Fingerprint, TokenId: a.Token,
			IssuedAt: timestamppb.New(time.Unix(0, a.IssuedAt)), NotAfter: timestamppb.New(time.Unix(0, a.NotAfter)),
			Revoked: byPrint || byName && a.IssuedAt <= r.At,
		})
		return true
	})
	v.Revocations(func(r *fsm.Revocation) bool {
		out.Revocations = append(out.Revocations, revocationView(r))
		return true
	})
	return out, nil
}

// Revoke implements the call of cluster.v1: it revokes an identity or a certificate.
func (s *Server) Revoke(ctx context.Context, req *clusterv1.RevokeRequest) (*clusterv1.RevokeResponse, error) {
	return &clusterv1.RevokeResponse{}, s.change(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_Revoke{
		Revoke: &commandv1.Revoke{Role: req.GetRole(), Name: req.GetName(), Fingerprint: req.GetFingerprint(), Reason: req.GetReason()},
	}})
}

// ListAuthorities implements the call of cluster.v1: it lists the issuing certificate authorities of the cluster.
func (s *Server) ListAuthorities(context.Context, *clusterv1.ListAuthoritiesRequest) (*clusterv1.ListAuthoritiesResponse, error) {
	out := &clusterv1.ListAuthoritiesResponse{}
	v := s.store.View()
	now, _ := v.Issuer(s.clock().UnixNano())
	v.Authorities(func(a *fsm.Authority) bool {
		out.Authorities = append(out.Authorities, authorityView(a, now))
		return true
	})
	slices.SortStableFunc(out.Authorities, func(a, b *clusterv1.AuthorityInfo) int {
		return a.GetActiveAt().AsTime().Compare(b.GetActiveAt().AsTime())
	})
	return out, nil
}

func authorityView(a, issuer *fsm.Authority) *clusterv1.AuthorityInfo {
	return &clusterv1.AuthorityInfo{
		Id: a.ID, RootId: a.RootID, Issues: issuer != nil && issuer.ID == a.ID,
		ActiveAt: timestamppb.New(time.Unix(0, a.ActiveAt)), NotAfter: timestamppb.New(time.Unix(0, a.NotAfter)),
	}
}

// PutAuthority implements the call of cluster.v1. It encrypts the authority's key before the key gets into
// the log.
func (s *Server) PutAuthority(ctx context.Context, req *clusterv1.PutAuthorityRequest) (*clusterv1.PutAuthorityResponse, error) {
	if err := s.mayReplaceCA(ctx); err != nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(req.GetCert(), req.GetRoot(), req.GetKey())
	if err != nil {
		return nil, errorf(KindInvalid, "%w", err)
	}
	if own := s.ownCluster(); own != "" && a.Cluster != own {
		return nil, errorf(KindInvalid, "the authority is for cluster %q, but the identities of this cluster are for %q", a.Cluster, own)
	}
	const longest = 30 * 24 * time.Hour
	after := time.Duration(req.GetAfterSeconds()) * time.Second
	if req.GetAfterSeconds() < 0 || req.GetAfterSeconds() > int64(longest/time.Second) {
		return nil, errorf(KindInvalid, "after_seconds: %d is not in 0..%d", req.GetAfterSeconds(), int64(longest/time.Second))
	}
	key, err := s.cfg.Keys.Key()
	if err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	put, err := SealAuthority(key, a, s.clock().Add(after))
	if err != nil {
		return nil, errorf(KindInternal, "%w", err)
	}
	if err := s.change(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: put}}); err != nil {
		return nil, err
	}
	v := s.store.View()
	kept, ok := v.Authority(put.GetId())
	if !ok {
		return nil, errorf(KindPrecondition, "authority %s was dropped", put.GetId())
	}
	// An admin may add a new authority to exclude machines that hold stolen certificates of the old one. Such machines
	// may have the gossip key too, so rotate it.
	if _, err := s.rotateGossip(ctx, ""); err != nil {
		s.log.Info("the gossip key was not rotated", "err", err)
	}
	now, _ := v.Issuer(s.clock().UnixNano())
	return &clusterv1.PutAuthorityResponse{Authority: authorityView(kept, now)}, nil
}

// ownCluster returns the name of this cluster in certificates.
func (s *Server) ownCluster() string {
	name := ""
	s.store.View().Authorities(func(a *fsm.Authority) bool {
		if cert, err := x509.ParseCertificate(a.Cert); err == nil && len(cert.Subject.Organization) == 1 {
			name = cert.Subject.Organization[0]
		}
		return name == ""
	})
	if name == "" && s.cfg.TLS != nil {
		name = s.cfg.TLS.Identity().Cluster
	}
	return name
}

// DropAuthority implements the call of cluster.v1: it removes an authority from the state.
func (s *Server) DropAuthority(ctx context.Context, req *clusterv1.DropAuthorityRequest) (*clusterv1.DropAuthorityResponse, error) {
	if err := s.mayReplaceCA(ctx); err != nil {
		return nil, err
	}
	return &clusterv1.DropAuthorityResponse{}, s.change(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DropAuthority{
		DropAuthority: &commandv1.DropAuthority{Id: req.GetId()},
	}})
}

// RotateGossip implements the call of cluster.v1: it starts a rotation of the gossip key.
func (s *Server) RotateGossip(ctx context.Context, req *clusterv1.RotateGossipRequest) (*clusterv1.RotateGossipResponse, error) {
	id, err := s.rotateGossip(ctx, req.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &clusterv1.RotateGossipResponse{KeyId: id}, nil
}

// rotateGossip starts a rotation to a new gossip key and returns the id of the new key. The key leaves this
// process only encrypted under the cluster key.
func (s *Server) rotateGossip(ctx context.Context, request string) (string, error) {
	if s.cfg.TLS == nil {
		return "", errorf(KindPrecondition, "gossip is plain under -insecure: it has no key")
	}
	view := s.store.View()
	info := view.Info()
	key, err := s.cfg.Keys.Key()
	if err != nil {
		return "", errorf(KindPrecondition, "%w", err)
	}
	ring, err := pki.OpenGossipRing(key, info.GossipRing)
	if err != nil {
		return "", errorf(KindPrecondition, "%w", err)
	}
	// A repeated request may arrive while the rotation that it started is still in progress. Then the
	// receipt answers it.
	if ring, err = ring.Add(GossipAgainst(view)); err != nil && !answered(view, request) {
		return "", errorf(KindPrecondition, "%w", err)
	}
	sealed, err := ring.Seal(key)
	if err != nil {
		return "", errorf(KindInternal, "%w", err)
	}
	err = s.change(ctx, request, &commandv1.Command{Body: &commandv1.Command_SetGossipRing{SetGossipRing: &commandv1.SetGossipRing{
		IfVersion: info.GossipVersion, Sealed: sealed, Step: "opens " + ring.Newest(),
	}}})
	if err != nil {
		return "", err
	}
	// For a repeated request the state machine changes nothing, so return the key of the first request from
	// the state.
	if ring, err = pki.OpenGossipRing(key, s.store.View().Info().GossipRing); err != nil {
		return "", errorf(KindInternal, "%w", err)
	}
	return ring.Newest(), nil
}
