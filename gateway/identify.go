package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/pki"
)

// identify says who makes a request: the holder of a bearer token, else of a
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
		c.role = Operator
		if id.IsAdmin() {
			c.role = Admin
		}
	}
	return c, nil
}

func bearer(r *http.Request) string {
	if kind, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(kind, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// Tokens judges OIDC bearer tokens: signature by the issuer's published keys,
// issuer, audience and expiry, then the role from a claim.
type Tokens struct {
	verifier *oidc.IDTokenVerifier
	claim    string
	roles    map[string]Role // claim value to role
}

// TokenOptions configure Tokens.
type TokenOptions struct {
	Issuer   string            // URL; its /.well-known/openid-configuration is read
	Audience string            // the client id that tokens must be for
	Claim    string            // default "groups": a string or a list of strings
	Roles    map[string]string // claim value to viewer, operator or admin
	Client   *http.Client      // default http.DefaultClient
}

// NewTokens asks the issuer for its keys' address. They are fetched and renewed
// as tokens need them.
func NewTokens(ctx context.Context, opt TokenOptions) (*Tokens, error) {
	t := &Tokens{claim: opt.Claim, roles: map[string]Role{}}
	if t.claim == "" {
		t.claim = "groups"
	}
	if opt.Audience == "" {
		return nil, errors.New("auth.oidc.audience must be set: a token for another service must not do here")
	}
	for value, name := range opt.Roles {
		role, err := ParseRole(name)
		if err != nil {
			return nil, fmt.Errorf("auth.oidc.roles: %q: %w", value, err)
		}
		t.roles[value] = role
	}
	if opt.Client != nil {
		ctx = oidc.ClientContext(ctx, opt.Client)
	}
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	provider, err := oidc.NewProvider(dctx, opt.Issuer)
	if err != nil {
		return nil, fmt.Errorf("auth.oidc.issuer %q: %w", opt.Issuer, err)
	}
	t.verifier = provider.VerifierContext(ctx, &oidc.Config{ClientID: opt.Audience})
	return t, nil
}

func (t *Tokens) judge(ctx context.Context, token string) (caller, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	id, err := t.verifier.Verify(ctx, token)
	if err != nil {
		return caller{}, fmt.Errorf("the bearer token: %w", err)
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return caller{}, fmt.Errorf("the bearer token's claims: %w", err)
	}
	c := caller{name: "user " + id.Subject}
	var values []any
	switch v := claims[t.claim].(type) {
	case []any:
		values = v
	case string:
		values = []any{v}
	}
	for _, v := range values {
		if s, ok := v.(string); ok {
			c.role = max(c.role, t.roles[s])
		}
	}
	return c, nil
}

// protoError is what protojson says about a body, without its prefix.
func protoError(err error) string {
	text := status.Convert(err).Message()
	// The library varies a space on purpose, so that nobody compares its text.
	text = strings.ReplaceAll(text, "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}
