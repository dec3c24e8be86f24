package fsm

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Authority is a certificate authority that issues the certificates of this cluster. Its
// private key is sealed under the cluster key. The key of the root is not stored.
type Authority struct {
	ID, RootID string // SHA-256 of the authority's certificates, lower-case hex
	Cert, Root []byte // certificates in DER
	SealedKey  string
	ActiveAt   int64 // Unix nanoseconds; the authority issues certificates from this time on
	NotAfter   int64 // Unix nanoseconds
}

// Token is a join token. A machine or user that presents its secret gets a certificate.
type Token struct {
	ID         string
	SecretHash []byte // SHA-256 of the secret that the token proves
	Role       string
	Name       string   // the only name that may join with the token; "" = any new name
	Access     string   // access level of a user: viewer, operator or admin; "" for other roles
	Hosts      []string // DNS names and IP addresses that the certificate gets
	Uses       uint32   // number of times that the token may still be used
	ExpiresAt  int64    // expiry time; all times are Unix nanoseconds
	CreatedAt  int64
	CreatedBy  string
}

// Admission records the newest certificate that this cluster issued to an identity (a scheduler,
// agent, gateway or user with a name).
type Admission struct {
	Role, Name, Access string
	Token              string   // id of the join token that the identity used
	Hosts              []string // DNS names and IP addresses that the token grants
	KeyHash            []byte   // SHA-256 of the public key of the certificate
	Fingerprint        string   // SHA-256 of the certificate, lower-case hex
	IssuedAt, NotAfter int64    // Unix nanoseconds
}

// Revocation makes certificates invalid: either all certificates that were issued to an identity
// until At, or a single certificate.
type Revocation struct {
	Role, Name  string // the revoked identity; empty if a single certificate is revoked
	Fingerprint string // SHA-256 of the revoked certificate; empty if an identity is revoked
	Reason      string
	At          int64 // Unix nanoseconds
	By          string
}

// Bounds of the tables of tokens, admissions and revocations.
const (
	MaxAuthorities = 8
	MaxTokens      = 1000
	MaxRevocations = 10_000
	MaxTokenUses   = 10_000
	MaxTokenHosts  = 16
	// MaxTokenLife is the longest lifetime of a token.
	MaxTokenLife = 7 * 24 * time.Hour
	maxCertBytes = 16 << 10
)

// adminName is the user who is admitted without a token when a cluster is formed.
const adminName = "admin"

// The roles of identities, and the access levels of identities with the role user.
var (
	trustRoles  = [...]string{"scheduler", "agent", "gateway", "user"}
	trustAccess = [...]string{"viewer", "operator", accessAdmin}
)

const (
	accessAdmin = "admin"
	// AccessNone is the access level of a user whose rights come only from bindings of roles.
	AccessNone = "none"
)

// Authority returns one authority.
func (s State) Authority(id string) (*Authority, bool) { return s.r.authorities.Get(id) }

// Authorities scans the authorities, by id.
func (s State) Authorities(fn func(*Authority) bool) {
	s.r.authorities.Scan(func(_ string, a *Authority) bool { return fn(a) })
}

// Issuer returns the authority that issues certificates at now, in Unix nanoseconds. It is
// the authority with the latest ActiveAt among those that are active and have not expired.
func (s State) Issuer(now int64) (*Authority, bool) {
	var best *Authority
	s.Authorities(func(a *Authority) bool {
		if a.ActiveAt <= now && now < a.NotAfter && (best == nil || a.ActiveAt > best.ActiveAt) {
			best = a
		}
		return true
	})
	return best, best != nil
}

// Token returns one join token.
func (s State) Token(id string) (*Token, bool) { return s.r.tokens.Get(id) }

// Tokens scans the join tokens, by id.
func (s State) Tokens(fn func(*Token) bool) {
	s.r.tokens.Scan(func(_ string, t *Token) bool { return fn(t) })
}

// Admission returns the newest certificate of an identity.
func (s State) Admission(role, name string) (*Admission, bool) {
	return s.r.admissions.Get(pair(role, name))
}

// Admissions calls fn for each identity that has a certificate, by role, then name.
func (s State) Admissions(fn func(*Admission) bool) {
	s.r.admissions.Scan(func(_ string, a *Admission) bool { return fn(a) })
}

// Revocations scans the revocations.
func (s State) Revocations(fn func(*Revocation) bool) {
	s.r.revocations.Scan(func(_ string, r *Revocation) bool { return fn(r) })
}

// RevokedIdentity returns the revocation of an identity, if there is one. Certificates that
// were issued after Revocation.At are valid.
func (s State) RevokedIdentity(role, name string) (*Revocation, bool) {
	return s.r.revocations.Get(pair(role, name))
}

// RevokedCertificate returns the revocation of one certificate.
func (s State) RevokedCertificate(fingerprint string) (*Revocation, bool) {
	return s.r.revocations.Get(fingerprintKey + fingerprint)
}

// fingerprintKey is the prefix of the keys of revoked certificates. Role names contain no colon, so
// these keys differ from those of identities.
const fingerprintKey = "certificate:"

func (r *Revocation) key() string {
	if r.Fingerprint != "" {
		return fingerprintKey + r.Fingerprint
	}
	return pair(r.Role, r.Name)
}

func (t *Tx) pinClusterKey(b *commandv1.PinClusterKey) Result {
	id, info := b.GetKeyId(), &t.r.info
	switch {
	case len(id) != 16 || !lowerHex(id):
		return refuse(Invalid, "key_id: %q is not 16 digits of lower-case hex", clip(id))
	case info.ClusterKeyID == id:
		return Result{Kind: AlreadyDone}
	case info.ClusterKeyID != "":
		return refuse(Conflict, "secrets of this cluster are sealed with key %s, not %s", info.ClusterKeyID, id)
	}
	before := *info
	info.ClusterKeyID = id
	t.infoChanged(before)
	t.event(Event{Type: EventClusterKeyPinned, Message: id})
	return Result{}
}

// Bounds of the fields of the command SetGossipRing, in bytes.
const (
	maxGossipRing = 4 << 10
	maxGossipStep = 128
)

// setGossipRing replaces the gossip keys, unless they changed since the command was planned.
func (t *Tx) setGossipRing(b *commandv1.SetGossipRing) Result {
	info := &t.r.info
	switch {
	case b.GetSealed() == "" || len(b.GetSealed()) > maxGossipRing:
		return refuse(Invalid, "sealed: %d bytes are not in 1..%d", len(b.GetSealed()), maxGossipRing)
	case len(b.GetStep()) > maxGossipStep:
		return refuse(Invalid, "step: %d bytes, limit %d", len(b.GetStep()), maxGossipStep)
	case b.GetIfVersion() != info.GossipVersion:
		return refuse(Conflict, "the gossip keys are at version %d, not %d", info.GossipVersion, b.GetIfVersion())
	}
	before := *info
	info.GossipRing = b.GetSealed()
	info.GossipVersion++
	info.TrustVersion++
	t.infoChanged(before)
	t.event(Event{Type: EventGossipRing, Message: b.GetStep()})
	return Result{}
}

func (t *Tx) putAuthority(b *commandv1.PutAuthority) Result {
	a := authorityOf(b)
	old, ok := t.r.authorities.Get(a.ID)
	switch {
	case !isFingerprint(a.ID):
		return refuse(Invalid, "id: %q is not a SHA-256 in lower-case hex", clip(a.ID))
	case !isFingerprint(a.RootID):
		return refuse(Invalid, "root_id: %q is not a SHA-256 in lower-case hex", clip(a.RootID))
	case len(a.Cert) == 0 || len(a.Cert) > maxCertBytes || len(a.Root) == 0 || len(a.Root) > maxCertBytes:
		return refuse(Invalid, "cert and root: %d and %d bytes, must have 1 to %d", len(a.Cert), len(a.Root), maxCertBytes)
	case a.SealedKey == "" || len(a.SealedKey) > maxCertBytes:
		return refuse(Invalid, "sealed_key: %d bytes, must have 1 to %d", len(a.SealedKey), maxCertBytes)
	case a.NotAfter <= t.r.info.Clock:
		return refuse(Invalid, "not_after: the authority expired at %s", clockText(a.NotAfter))
	case a.ActiveAt >= a.NotAfter:
		return refuse(Invalid, "active_at: %s is not before its end, %s", clockText(a.ActiveAt), clockText(a.NotAfter))
	case ok && old.ActiveAt == a.ActiveAt:
		return Result{Kind: AlreadyDone}
	case !ok && t.r.authorities.Len() >= MaxAuthorities:
		return refuse(Conflict, "there are %d authorities already, at most %d are allowed: drop one that is no longer used", t.r.authorities.Len(), MaxAuthorities)
	}
	own(t, &t.r.authorities, ownAuthorities).Set(a.ID, a)
	t.trustChanged(a.ID, func(e *encoder) { e.authority(a) })
	t.event(Event{Type: EventAuthorityAdded, Message: a.ID, Details: []Label{
		{"active_at", clockText(a.ActiveAt)}, {"not_after", clockText(a.NotAfter)}, {"root", a.RootID}}})
	return Result{}
}

func (t *Tx) dropAuthority(b *commandv1.DropAuthority) Result {
	a, ok := t.r.authorities.Get(b.GetId())
	if !ok {
		return refuse(NotFound, "authority %q does not exist", clip(b.GetId()))
	}
	if now, ok := t.state().Issuer(t.r.info.Clock); ok && now.ID == a.ID {
		return refuse(Conflict, "authority %s issues certificates now: install another CA first (persysctl ca install)", a.ID)
	}
	own(t, &t.r.authorities, ownAuthorities).Delete(a.ID)
	t.trustChanged(a.ID, nil)
	t.event(Event{Type: EventAuthorityDropped, Message: a.ID})
	return Result{}
}

func (t *Tx) putToken(b *commandv1.PutToken) Result {
	now := t.r.info.Clock
	tok := &Token{
		ID: b.GetId(), SecretHash: b.GetSecretSha256(), Role: b.GetRole(), Name: b.GetName(), Access: b.GetAccess(),
		Hosts: convert(b.GetHosts(), strings.Clone), Uses: b.GetUses(), ExpiresAt: b.GetExpiresAt(), CreatedAt: now, CreatedBy: t.by,
	}
	if res := checkPrincipal(tok.Role, tok.Name, tok.Access, true); res.Kind != OK {
		return res
	}
	if fault := hostsFault(tok.Role, tok.Hosts); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	switch {
	case !bounds.ValidID(tok.ID):
		return refuse(Invalid, "id: %q does not match %s", clip(tok.ID), bounds.IDRule)
	case len(tok.SecretHash) != 32:
		return refuse(Invalid, "secret_sha256: %d bytes, must have 32", len(tok.SecretHash))
	case tok.Uses < 1 || tok.Uses > MaxTokenUses:
		return refuse(Invalid, "uses: %d is not in 1..%d", tok.Uses, MaxTokenUses)
	case tok.Role == "user" && tok.Name == adminName:
		return refuse(Invalid, "name: user %q is reserved for the scheduler that formed the cluster, which renews its certificate; choose another name", adminName)
	case tok.Name != "" && tok.Uses != 1:
		return refuse(Invalid, "uses: a token for %s %q can be used once, not %d times", tok.Role, tok.Name, tok.Uses)
	case tok.ExpiresAt <= now || tok.ExpiresAt > now+int64(MaxTokenLife):
		return refuse(Invalid, "expires_at: %s is not within %s from now", clockText(tok.ExpiresAt), MaxTokenLife)
	}
	if _, ok := t.r.tokens.Get(tok.ID); ok {
		return refuse(Conflict, "token %s exists already", tok.ID)
	}
	t.dropExpired(now)
	if n := t.r.tokens.Len(); n >= MaxTokens {
		return refuse(Conflict, "there are %d join tokens, at most %d: delete some", n, MaxTokens)
	}
	t.storeToken(tok)
	t.event(Event{Type: EventTokenCreated, Node: nodeOf(tok.Role, tok.Name), Message: tok.ID, Details: details(
		Label{"access", tok.Access}, Label{"expires_at", clockText(tok.ExpiresAt)}, Label{"hosts", strings.Join(tok.Hosts, ",")}, Label{"name", tok.Name},
		Label{"role", tok.Role}, Label{"uses", strconv.FormatUint(uint64(tok.Uses), 10)})})
	return Result{}
}

func (t *Tx) storeToken(tok *Token) {
	own(t, &t.r.tokens, ownTokens).Set(tok.ID, tok)
	t.trustChanged(tok.ID, func(e *encoder) { e.token(tok) })
}

// dropExpired removes tokens that expired more than MaxTokenLife ago. Until then an expired token is kept,
// so that a caller who uses it gets the right error.
func (t *Tx) dropExpired(now int64) {
	var gone []string
	t.state().Tokens(func(tok *Token) bool {
		if tok.ExpiresAt+int64(MaxTokenLife) < now {
			gone = append(gone, tok.ID)
		}
		return true
	})
	for _, id := range gone {
		own(t, &t.r.tokens, ownTokens).Delete(id)
		t.trustChanged(id, nil)
	}
}

func (t *Tx) dropToken(b *commandv1.DropToken) Result {
	tok, ok := t.r.tokens.Get(b.GetId())
	if !ok {
		return refuse(NotFound, "token %q does not exist", clip(b.GetId()))
	}
	own(t, &t.r.tokens, ownTokens).Delete(tok.ID)
	t.trustChanged(tok.ID, nil)
	t.event(Event{Type: EventTokenDeleted, Message: tok.ID, Details: []Label{{"role", tok.Role}}})
	return Result{}
}

// CodeRightsChanged is the reason why a join token for a user was deleted: the user has more rights now than the token
// was made for.
const CodeRightsChanged = "RightsChanged"

// dropTokensOf deletes the unused join tokens of users whose rights grow. The maker of such a token needed all
// rights that its user had at that time, but may lack the new rights.
func (t *Tx) dropTokensOf(users ...string) {
	var found []*Token
	t.state().Tokens(func(tok *Token) bool {
		if tok.Role == "user" && tok.Uses > 0 && slices.Contains(users, tok.Name) {
			found = append(found, tok)
		}
		return true
	})
	for _, tok := range found {
		own(t, &t.r.tokens, ownTokens).Delete(tok.ID)
		t.trustChanged(tok.ID, nil)
		t.event(Event{Type: EventTokenDeleted, Message: tok.ID, Reason: CodeRightsChanged, Details: []Label{{"name", tok.Name}, {"role", tok.Role}}})
	}
}

// admit checks whether a certificate may be issued, and if so records it. If the caller's token is invalid,
// an event records the refused attempt.
func (t *Tx) admit(b *commandv1.Admit) Result {
	a := admissionOf(b)
	if res := checkPrincipal(a.Role, a.Name, a.Access, false); res.Kind != OK {
		return res
	}
	switch {
	case len(a.KeyHash) != 32:
		return refuse(Invalid, "key_sha256: %d bytes, must have 32", len(a.KeyHash))
	case !isFingerprint(a.Fingerprint):
		return refuse(Invalid, "fingerprint: %q is not a SHA-256 in lower-case hex", clip(a.Fingerprint))
	case a.IssuedAt >= a.NotAfter:
		return refuse(Invalid, "not_after: %s is not after the issue, %s", clockText(a.NotAfter), clockText(a.IssuedAt))
	}
	if fault := hostsFault(a.Role, a.Hosts); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	kind, spent := EventCertificateRenewed, (*Token)(nil)
	var res Result
	if a.Token != "" {
		if !bounds.ValidID(a.Token) {
			return refuse(Invalid, "token: %q does not match %s", clip(a.Token), bounds.IDRule)
		}
		kind = EventJoined
		spent, res = t.spend(a, b.GetSecretSha256())
	} else {
		res = t.mayRenew(a)
	}
	if res.Kind == OK {
		res = t.setAdmission(a)
	}
	if res.Kind != OK {
		if kind == EventJoined {
			t.event(Event{Type: EventJoinRefused, Node: nodeOf(a.Role, a.Name), Reason: res.Kind.String(), Message: res.Reason, Details: []Label{
				{"name", a.Name}, {"role", a.Role}, {"token", clip(a.Token)}}})
		}
		return res
	}
	if spent != nil {
		t.storeToken(spent)
	}
	t.trustChanged(pair(a.Role, a.Name), func(e *encoder) { e.admission(a) })
	t.usedUp = spent != nil && spent.Uses == 0
	t.event(Event{Type: kind, Node: nodeOf(a.Role, a.Name), Message: a.Fingerprint, Details: details(
		Label{"access", a.Access}, Label{"name", a.Name}, Label{"not_after", clockText(a.NotAfter)},
		Label{"role", a.Role}, Label{"token", a.Token})})
	return Result{}
}

// setAdmission replaces the admission of an identity. It refuses a new access level that takes the permission
// trust from the last person who has it.
func (t *Tx) setAdmission(a *Admission) Result {
	had := a.Role == "user" && t.state().hasTrusted()
	m := own(t, &t.r.admissions, ownAdmissions)
	old, again := m.Set(pair(a.Role, a.Name), a)
	if had && again && !t.state().hasTrusted() {
		m.Set(pair(a.Role, a.Name), old)
		return lastTrusted()
	}
	return Result{}
}

// spend checks the join token of an admission and returns a copy with one use less. If the first
// answer was lost, a machine may present the same key and token again. Such a repeat uses up
// nothing, and spend returns no token.
func (t *Tx) spend(a *Admission, secret []byte) (*Token, Result) {
	tok, ok := t.r.tokens.Get(a.Token)
	if !ok {
		return nil, refuse(NotFound, "join token %s does not belong to this cluster, or was deleted", clip(a.Token))
	}
	if !bytes.Equal(tok.SecretHash, secret) {
		return nil, refuse(Denied, "join token %s: the secret is wrong", tok.ID)
	}
	if tok.ExpiresAt <= t.r.info.Clock {
		return nil, refuse(Denied, "join token %s expired at %s", tok.ID, clockText(tok.ExpiresAt))
	}
	if tok.Role != a.Role {
		return nil, refuse(Denied, "join token %s is for role %s, not %s", tok.ID, tok.Role, a.Role)
	}
	if tok.Access != a.Access {
		return nil, refuse(Denied, "join token %s gives access %q, not %q", tok.ID, tok.Access, a.Access)
	}
	if !slices.Equal(tok.Hosts, a.Hosts) {
		return nil, refuse(Denied, "join token %s gives the hosts %q, not %q", tok.ID, tok.Hosts, a.Hosts)
	}
	if a.Role == "user" && a.Name == adminName {
		return nil, refuse(Denied, "user %q is reserved: no token admits it", adminName)
	}
	if tok.Name != "" && tok.Name != a.Name {
		return nil, refuse(Denied, "join token %s is for %s %q, not %q", tok.ID, tok.Role, tok.Name, a.Name)
	}
	old, taken := t.r.admissions.Get(pair(a.Role, a.Name))
	if taken && old.Token == tok.ID && bytes.Equal(old.KeyHash, a.KeyHash) {
		if rev, ok := t.state().RevokedIdentity(a.Role, a.Name); ok && old.IssuedAt <= rev.At {
			return nil, refuse(Denied, "%s %q was revoked at %s", a.Role, a.Name, clockText(rev.At))
		}
		return nil, Result{}
	}
	if tok.Uses == 0 {
		return nil, refuse(Denied, "join token %s is used up", tok.ID)
	}
	if tok.Name == "" {
		// A token that is for any name must not be used to get a certificate under a name that
		// exists already.
		if _, registered := t.r.nodes.Get(a.Name); taken || a.Role == "agent" && registered {
			return nil, refuse(Denied, "%s %q exists already: only a token made for that name lets it join again", a.Role, a.Name)
		}
		if _, revoked := t.state().RevokedIdentity(a.Role, a.Name); revoked {
			return nil, refuse(Denied, "%s %q was revoked: it can join again only with a token for that name", a.Role, a.Name)
		}
	}
	left := *tok
	left.Uses--
	return &left, Result{}
}

// mayRenew checks whether a certificate may replace an earlier one of the same identity.
func (t *Tx) mayRenew(a *Admission) Result {
	old, ok := t.r.admissions.Get(pair(a.Role, a.Name))
	if rev, revoked := t.state().RevokedIdentity(a.Role, a.Name); revoked && (!ok || old.IssuedAt <= rev.At) {
		return refuse(Denied, "%s %q was revoked at %s", a.Role, a.Name, clockText(rev.At))
	}
	if ok && old.Access != a.Access {
		return refuse(Denied, "%s %q has access %q, a renewal cannot change it to %q", a.Role, a.Name, old.Access, a.Access)
	}
	if ok && !slices.Equal(old.Hosts, a.Hosts) {
		return refuse(Denied, "%s %q has the hosts %q, a renewal cannot change them to %q", a.Role, a.Name, old.Hosts, a.Hosts)
	}
	if ok {
		a.Token = old.Token
	}
	return Result{}
}

func (t *Tx) revoke(b *commandv1.Revoke) Result {
	r := &Revocation{
		Role: b.GetRole(), Name: b.GetName(), Fingerprint: b.GetFingerprint(), Reason: b.GetReason(),
		At: t.r.info.Clock, By: t.by,
	}
	switch {
	case r.Fingerprint != "" && (r.Role != "" || r.Name != ""):
		return refuse(Invalid, "fingerprint: give a certificate or an identity, not both")
	case r.Fingerprint != "" && !isFingerprint(r.Fingerprint):
		return refuse(Invalid, "fingerprint: %q is not a SHA-256 in lower-case hex", clip(r.Fingerprint))
	case r.Fingerprint == "":
		if res := checkPrincipal(r.Role, r.Name, "", false); res.Kind != OK {
			return res
		}
	}
	if len(r.Reason) > 1024 {
		return refuse(Invalid, "reason: %d bytes, limit 1024", len(r.Reason))
	}
	if _, again := t.r.revocations.Get(r.key()); !again && t.r.revocations.Len() >= MaxRevocations {
		return refuse(Conflict, "there are %d revocations, at most %d are allowed: replace the certificate authority", t.r.revocations.Len(), MaxRevocations)
	}
	had := t.state().hasTrusted()
	m := own(t, &t.r.revocations, ownRevocations)
	old, again := m.Set(r.key(), r)
	if had && !t.state().hasTrusted() {
		if m.Delete(r.key()); again {
			m.Set(r.key(), old)
		}
		return lastTrusted()
	}
	t.trustChanged(r.key(), func(e *encoder) { e.revocation(r) })
	t.event(Event{Type: EventRevoked, Node: nodeOf(r.Role, r.Name), Reason: r.Reason, Message: r.key()})
	t.endConsolesOf(r)
	return Result{}
}

// auditTypes lists the event types that an Audit command may add.
var auditTypes = [...]string{EventJoinRefused, EventCallRefused, EventSessionOpened, EventSessionClosed, EventMirrorRestored, EventCoreDNSLost, EventCoreDNSBack, EventReplicaCopied, EventCallMade, EventSecretShown}

// maxAuditNamespace is the maximum length in bytes of the namespace of an event that an Audit command adds.
const maxAuditNamespace = 128

func (t *Tx) audit(b *commandv1.Audit) Result {
	if !slices.Contains(auditTypes[:], b.GetType()) {
		return refuse(Invalid, "type: %q must be one of %s", clip(b.GetType()), strings.Join(auditTypes[:], ", "))
	}
	if n := len(b.GetWorkload()) + len(b.GetNode()); n > 256 {
		return refuse(Invalid, "workload and node: %d bytes, limit 256", n)
	}
	if len(b.GetMessage()) > 1024 || len(b.GetDetails()) > 16 {
		return refuse(Invalid, "message and details: %d bytes and %d labels, limits 1024 and 16", len(b.GetMessage()), len(b.GetDetails()))
	}
	t.event(Event{Type: b.GetType(), Namespace: stored(clipTo(b.GetNamespace(), maxAuditNamespace)), Workload: b.GetWorkload(), Node: b.GetNode(), Message: b.GetMessage(), Details: sortedLabels(b.GetDetails())})
	return Result{}
}

// auditRefused adds an event for an API mutation that added none, because it was refused or
// changed nothing.
func (t *Tx) auditRefused(c Command, res Result) {
	t.audited(t.from, armOf(c), res.Kind, res.Reason)
}

// audited is auditRefused for one part of a command, for example one workload of several. from is
// the index in t.changes of the first change that this part made.
func (t *Tx) audited(from int, a arm, kind Kind, reason string) {
	if t.caller == "" ||
		slices.ContainsFunc(t.changes[from:], func(c Change) bool { return c.Table == TableEvent }) {
		return
	}
	t.event(Event{Type: EventMutation, Reason: kind.String(), Message: clipTo(reason, 512), Details: []Label{{"command", string(a)}}})
}

// trustChanged folds a change of a trust table into the digest. fn encodes the new record; if fn is nil, the
// record was removed. Changes of the trust tables are not in the change feed: readers see them in events and
// in the View.
func (t *Tx) trustChanged(key string, fn func(*encoder)) {
	e := encoder(nil)
	e.str(key)
	if fn != nil {
		fn(&e)
	}
	t.r.info.TrustVersion++
	t.sideFold = append(t.sideFold, e...)
}

// checkPrincipal checks role, name and access level of a join token or a certificate. anyName
// allows an empty name.
func checkPrincipal(role, name, access string, anyName bool) Result {
	switch {
	case !slices.Contains(trustRoles[:], role):
		return refuse(Invalid, "role: %q is none of %s", clip(role), strings.Join(trustRoles[:], ", "))
	case name == "" && anyName:
	case !bounds.ValidID(strings.ReplaceAll(name, "@", "-")) || strings.Contains(name, "@") && role != "user":
		return refuse(Invalid, "name: %q does not match %s", clip(name), bounds.IDRule)
	}
	if role == "user" && access == "anonymous" || role != "user" && access != "" ||
		access != "" && access != AccessNone && !slices.Contains(trustAccess[:], access) {
		return refuse(Invalid, "access: %q must be %s for users, and empty for other roles", clip(access), strings.Join(trustAccess[:], ", "))
	}
	if role == "user" && name == "anonymous" {
		return refuse(Invalid, "name: %q is reserved", name)
	}
	return Result{}
}

// hostsFault describes the first invalid entry of a list of hosts; "" if every entry is valid.
func hostsFault(role string, hosts []string) string {
	switch {
	case role == "user" && len(hosts) > 0:
		return "hosts: a user's certificate names no hosts"
	case len(hosts) > MaxTokenHosts:
		return "hosts: " + decimal(len(hosts)) + ", at most " + decimal(MaxTokenHosts)
	}
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h); err != nil && !bounds.ValidID(h) || strings.Contains(h, "%") {
			return "hosts: " + quoted(clip(h)) + " is neither a DNS name nor an IP address"
		}
	}
	return ""
}

// nodeOf returns the node id of an agent's identity, for events; "" for other roles.
func nodeOf(role, name string) string {
	if role == "agent" {
		return name
	}
	return ""
}

// details returns the labels that have a value, sorted by key. It reuses its arguments.
func details(in ...Label) []Label {
	out := in[:0]
	for _, l := range in {
		if l.Value != "" {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func isFingerprint(s string) bool { return len(s) == 64 && lowerHex(s) }

func lowerHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

func clipTo(s string, n int) string { return bounds.Clip(s, n) }
