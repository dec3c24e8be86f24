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
	"google.golang.org/grpc/status"

	"github.com/persys/compute/pki"
)

// identify returns the caller of a request, by its bearer token or else by its
// client certificate.
func (g *Gateway) identify(r *http.Request) (caller, error) {
	if g.opt.TLS == nil {
		return caller{name: pki.Anonymous().String(), role: Admin}, nil
	}
	if token := bearer(r); token != "" {
		if g.opt.Tokens == nil {
			return caller{}, errors.New("bearer tokens are not taken: auth.oidc.issuer is not set; use a client certificate")
		}
		return g.opt.Tokens.judge(r.Context(), token)
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
		// The schedulers know the role better; see caller.role.
		c.role, c.identity, c.issued = Operator, id.String(), pki.IssueTime(r.TLS.PeerCertificates[0], id)
		if id.IsAdmin() {
			c.role = Admin
		}
	}
	return c, nil
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
	verifier atomic.Pointer[oidc.IDTokenVerifier] // nil until the issuer has answered
	roles    map[string]Role                      // claim value to role
	// spaces are the namespaces that a claim value restricts its caller to.
	spaces map[string][]string
}

// TokenOptions configure Tokens.
type TokenOptions struct {
	Issuer   string            // URL; its /.well-known/openid-configuration is read
	Audience string            // client id that tokens must name as their audience
	Claim    string            // default "groups": a string or a list of strings
	Roles    map[string]string // claim value to viewer, operator or admin
	// Namespaces maps claim values to namespaces, several with + between them. A caller with
	// such values may act in every namespace that any of its values maps to, and in no other.
	// An admin acts everywhere.
	Namespaces map[string]string
	Client     *http.Client // default http.DefaultClient
	Log        *slog.Logger
}

// errNoIssuer is a fault of the gateway's surroundings and not of the caller.
var errNoIssuer = errors.New("bearer tokens cannot be verified yet, because their issuer has not answered: use a client certificate, or try again")

// NewTokens reads the issuer's configuration; if the issuer does not answer, Run goes on
// trying. Keys are fetched and renewed as tokens need them.
func NewTokens(ctx context.Context, opt TokenOptions) (*Tokens, error) {
	opt.Claim, opt.Log = cmp.Or(opt.Claim, "groups"), cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	t := &Tokens{opt: opt, roles: map[string]Role{}, spaces: map[string][]string{}}
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
		t.spaces[value] = strings.Split(names, "+")
		for _, n := range t.spaces[value] {
			if !namespaceName.MatchString(n) {
				return nil, fmt.Errorf("auth.oidc.namespaces: %q: %q must be a namespace, or several with + between them", value, names)
			}
		}
	}
	if u, err := url.Parse(opt.Issuer); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("auth.oidc.issuer %q must be a URL that begins with https:// or http://", opt.Issuer)
	}
	var other *oidc.IssuerMismatchError
	if err := t.discover(ctx); errors.As(err, &other) {
		return nil, err
	}
	return t, nil
}

func (t *Tokens) discover(ctx context.Context) error {
	if t.opt.Client != nil {
		ctx = oidc.ClientContext(ctx, t.opt.Client)
	}
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	provider, err := oidc.NewProvider(dctx, t.opt.Issuer)
	if err != nil {
		return fmt.Errorf("auth.oidc.issuer %q: %w", t.opt.Issuer, err)
	}
	t.verifier.Store(provider.VerifierContext(ctx, &oidc.Config{ClientID: t.opt.Audience}))
	return nil
}

// Run reads the issuer's configuration until it has answered, and returns when ctx ends.
func (t *Tokens) Run(ctx context.Context) {
	said := ""
	for pause := time.Second; t.verifier.Load() == nil; pause = min(2*pause, 30*time.Second) {
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
			t.opt.Log.Warn("bearer tokens are refused until their issuer answers; it is tried again", "err", err)
		}
	}
	<-ctx.Done()
}

func (t *Tokens) judge(ctx context.Context, token string) (caller, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	verifier := t.verifier.Load()
	if verifier == nil {
		return caller{}, errNoIssuer
	}
	id, err := verifier.Verify(ctx, token)
	if err != nil {
		return caller{}, fmt.Errorf("the bearer token: %w", err)
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return caller{}, fmt.Errorf("the bearer token's claims: %w", err)
	}
	c := caller{name: "user " + id.Subject, user: tokenUser(id.Issuer, id.Subject)}
	var values []any
	switch v := claims[t.opt.Claim].(type) {
	case []any:
		values = v
	case string:
		values = []any{v}
	}
	for _, v := range values {
		if s, ok := v.(string); ok {
			c.role = max(c.role, t.roles[s])
			c.namespaces = append(c.namespaces, t.spaces[s]...)
		}
	}
	if c.role == Admin {
		c.namespaces = nil
	}
	slices.Sort(c.namespaces)
	c.namespaces = slices.Compact(c.namespaces)
	return c, nil
}

// tokenUser is the name of a token's user in the cluster's history: oidc:ISSUER#SUBJECT.
func tokenUser(issuer, subject string) string {
	u, err := url.Parse(issuer)
	if err != nil || subject == "" {
		return "" // NewTokens has parsed the issuer, so only the subject can be empty
	}
	u.Fragment = subject
	return "oidc:" + u.String()
}

// protoError is the message of a protojson error, without its prefix.
func protoError(err error) string {
	text := status.Convert(err).Message()
	// The library varies a space at random, to keep programs from comparing its text.
	text = strings.ReplaceAll(text, "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}
