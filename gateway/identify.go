package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// identify returns the caller of a request, by its bearer token or, without one, by the session cookie of the
// console, or else by its client certificate.
func (g *Gateway) identify(r *http.Request, b *backend) (caller, error) {
	if g.opt.TLS == nil {
		return caller{name: pki.Anonymous().String(), role: Admin}, nil
	}
	if token := bearer(r); token != "" {
		return g.byToken(r.Context(), token, b)
	}
	if token := g.sessionToken(r); dial.IsConsoleToken(token) {
		if _, ok := dial.ConsoleOfToken(token); !ok {
			return caller{}, errors.New("the session of the console is not valid: `persysctl console` makes a new one")
		}
		return caller{name: "the session of the console", console: token}, nil
	} else if token != "" {
		who, err := g.opt.Tokens.judge(r.Context(), token)
		if err != nil && !errors.Is(err, errNoIssuer) {
			err = fmt.Errorf("the session of the console has ended, sign in again: %w", err)
		}
		return who, err
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return caller{}, errors.New("no client certificate and no bearer token; send one of them")
	}
	id, err := g.opt.TLS.Identify(*r.TLS)
	if err != nil {
		return caller{}, fmt.Errorf("the client certificate: %w", err)
	}
	c := caller{name: id.String()}
	if id.Role == pki.RoleUser {
		c.identity, c.issued = id.String(), pki.IssueTime(r.TLS.PeerCertificates[0], id)
	}
	return c, nil
}

// byToken returns the caller to whom a bearer token belongs: an account, or a user of the configured issuer.
func (g *Gateway) byToken(ctx context.Context, token string, b *backend) (caller, error) {
	if dial.IsAccountToken(token) {
		name, ok := dial.AccountOfToken(token)
		if !ok || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return caller{}, errors.New("the bearer token has the prefix of account tokens, but is not valid: `persysctl account rotate` makes one")
		}
		return caller{name: fmt.Sprintf("account %q", name), token: token}, nil
	}
	err := errors.New("bearer tokens of users are refused, because auth.oidc.issuer is not set: use a client certificate")
	if g.opt.Tokens != nil {
		var who caller
		if who, err = g.opt.Tokens.judge(ctx, token); err == nil {
			return who, nil
		}
	}
	who, aerr := g.accounts.judge(ctx, b, token)
	if errors.Is(aerr, errNoAccount) {
		return caller{}, err
	}
	return who, aerr
}

// unknown answers a request without an identity: 401, or 503 while tokens cannot be verified.
func unknown(w http.ResponseWriter, err error) {
	if errors.Is(err, errNoIssuer) {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="persys"`)
	refuse(w, http.StatusUnauthorized, err.Error())
}

// namespaceName is the rule for names of namespaces (docs/RULES.md, "Ids").
var namespaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func bearer(r *http.Request) string {
	if kind, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(kind, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// Tokens verifies OIDC bearer tokens: the signature with the issuer's published
// keys, the issuer, the audience and the expiry. The role comes from a claim.
type Tokens struct {
	opt      TokenOptions
	provider atomic.Pointer[provider] // nil until the issuer has answered
	roles    map[string]Role          // values of the claim and the roles that they give
	// spaces maps a claim value to the namespaces in which a caller with this value has rights.
	spaces map[string][]string
	// everywhere holds the claim values that give a caller rights in every namespace.
	everywhere map[string]bool
}

// provider holds what the gateway has read from the configuration of the OIDC issuer.
type provider struct {
	verifier *oidc.IDTokenVerifier
	endpoint oauth2.Endpoint
	scopes   []string // scopes of a login
}

// issuerTimeout is the deadline of a request to an issuer.
const issuerTimeout = 10 * time.Second

// TokenOptions configure Tokens.
type TokenOptions struct {
	Issuer   string            // issuer's URL; the gateway reads /.well-known/openid-configuration below it
	Audience string            // client id that tokens must name as their audience
	Claim    string            // name of the claim, whose value is a string or a list of strings; default "groups"
	Roles    map[string]string // values of the claim, each with the role viewer, operator or admin
	// Namespaces maps claim values to namespaces, several separated by +. A caller may act only in the
	// namespaces to which the caller's claim values map. "all" stands for every namespace, and the claim
	// value "*" for every caller. A caller without any mapped value has no rights. An admin may act
	// everywhere.
	Namespaces map[string]string
	Client     *http.Client // client for calls to the issuer; default a client with the timeout issuerTimeout
	Log        *slog.Logger
}

// errNoIssuer means that a token could not be verified because the OIDC issuer has not answered yet, so that its keys
// are not known. The token may be valid.
var errNoIssuer = errors.New("bearer tokens cannot be verified yet, because their issuer has not answered: use a client certificate, or try again")

// NewTokens reads the issuer's configuration. If the issuer does not answer, Run tries again. Keys are
// fetched and renewed when tokens need them.
func NewTokens(ctx context.Context, opt TokenOptions) (*Tokens, error) {
	opt.Client = cmp.Or(opt.Client, &http.Client{Timeout: issuerTimeout})
	opt.Claim, opt.Log = cmp.Or(opt.Claim, "groups"), cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	t := &Tokens{opt: opt, roles: map[string]Role{}, spaces: map[string][]string{}, everywhere: map[string]bool{}}
	if opt.Audience == "" {
		return nil, errors.New("auth.oidc.audience must be set, so that tokens for other services are rejected")
	}
	for value, name := range opt.Roles {
		role, err := ParseRole(name)
		if err != nil {
			return nil, fmt.Errorf("auth.oidc.roles: %q: %w", value, err)
		}
		t.roles[value] = role
	}
	for value, names := range opt.Namespaces {
		if names == allNamespaces {
			t.everywhere[value] = true
			continue
		}
		t.spaces[value] = strings.Split(names, "+")
		for _, n := range t.spaces[value] {
			if !namespaceName.MatchString(n) || n == allNamespaces {
				return nil, fmt.Errorf("auth.oidc.namespaces: %q: %q must be one namespace, several namespaces joined by +, or only the word all", value, names)
			}
		}
	}
	if !dial.SecureIssuer(opt.Issuer) {
		return nil, fmt.Errorf("auth.oidc.issuer %q must be a URL that begins with https://; http:// is for loopback only, because the keys that sign tokens are read from there", opt.Issuer)
	}
	var other *oidc.IssuerMismatchError
	if err := t.discover(ctx); errors.As(err, &other) {
		return nil, err
	}
	return t, nil
}

func (t *Tokens) discover(ctx context.Context) error {
	ctx = oidc.ClientContext(ctx, t.opt.Client)
	dctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	found, err := oidc.NewProvider(dctx, t.opt.Issuer)
	var offers struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err == nil {
		err = found.Claims(&offers)
	}
	if err != nil {
		return fmt.Errorf("auth.oidc.issuer %q: %w", t.opt.Issuer, err)
	}
	p := &provider{verifier: found.VerifierContext(ctx, &oidc.Config{ClientID: t.opt.Audience}), endpoint: found.Endpoint(), scopes: []string{oidc.ScopeOpenID}}
	for _, s := range []string{"profile", "email", "groups"} {
		if slices.Contains(offers.Scopes, s) {
			p.scopes = append(p.scopes, s)
		}
	}
	t.provider.Store(p)
	return nil
}

// Run reads the issuer's configuration until the issuer has answered. It returns when ctx ends.
func (t *Tokens) Run(ctx context.Context) {
	said := ""
	for pause := time.Second; t.provider.Load() == nil; pause = min(2*pause, 30*time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		switch err := t.discover(ctx); {
		case err == nil:
			t.opt.Log.Info("the issuer of bearer tokens has answered: tokens are accepted now", "issuer", t.opt.Issuer)
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			t.opt.Log.Warn("bearer tokens are refused until their issuer answers; the gateway asks the issuer again", "err", err)
		}
	}
	<-ctx.Done()
}

// Values of TokenOptions.Namespaces with a special meaning.
const (
	allNamespaces = "all" // allows every namespace
	anyGroup      = "*"   // matches every caller
)

// keysMissing reports whether a token was not verified because the keys of its issuer could not be fetched. The
// OIDC library returns no typed error for that.
func keysMissing(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "failed to verify signature: fetching keys ")
}

// verify checks a token's signature, issuer, audience and expiry. It returns errNoIssuer if the issuer does not
// answer.
func (t *Tokens) verify(ctx context.Context, token string) (*oidc.IDToken, map[string]any, error) {
	p := t.provider.Load()
	if p == nil {
		return nil, nil, errNoIssuer
	}
	id, err := p.verifier.Verify(ctx, token)
	if keysMissing(err) {
		return nil, nil, fmt.Errorf("%w: %w", errNoIssuer, err)
	}
	if err != nil {
		return nil, nil, err
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	return id, claims, nil
}

func (t *Tokens) judge(ctx context.Context, token string) (caller, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	id, claims, err := t.verify(ctx, token)
	if errors.Is(err, errNoIssuer) {
		return caller{}, err
	}
	if err != nil {
		return caller{}, fmt.Errorf("the bearer token: %w", err)
	}
	c := caller{name: "user " + id.Subject, user: tokenUser(id.Issuer, id.Subject)}
	var values []any
	switch v := claims[t.opt.Claim].(type) {
	case []any:
		values = v
	case string:
		values = []any{v}
	}
	if c.groups, err = groupsOf(values); err != nil {
		return caller{}, fmt.Errorf("the bearer token's claim %q: %w", t.opt.Claim, err)
	}
	everywhere := t.everywhere[anyGroup]
	c.namespaces = append(c.namespaces, t.spaces[anyGroup]...)
	for _, v := range values {
		if s, ok := v.(string); ok && s != anyGroup {
			c.role = max(c.role, t.roles[s])
			c.namespaces = append(c.namespaces, t.spaces[s]...)
			everywhere = everywhere || t.everywhere[s]
		}
	}
	switch {
	case c.role == Admin || everywhere:
		c.namespaces = nil
	case len(c.namespaces) == 0 && c.role > Nobody:
		// The caller has no namespace. Do not send an empty list, because the schedulers would take it as every
		// namespace; take the role away instead.
		c.role, c.name = Nobody, c.name+", whom auth.oidc.namespaces gives no namespace,"
	}
	slices.Sort(c.namespaces)
	c.namespaces = slices.Compact(c.namespaces)
	return c, nil
}

// groupsOf encodes the groups of a token for the schedulers.
func groupsOf(values []any) (string, error) {
	var groups []string
	for _, v := range values {
		if s, ok := v.(string); ok && s != "" {
			groups = append(groups, s)
		}
	}
	return dial.EncodeGroups(groups)
}

// tokenUser returns the name of a token's user in the cluster's history: oidc:ISSUER#SUBJECT.
func tokenUser(issuer, subject string) string {
	u, err := url.Parse(issuer)
	if err != nil || subject == "" {
		return "" // NewTokens has parsed the issuer, so only the subject can be empty
	}
	u.Fragment = subject
	return "oidc:" + u.String()
}
