package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/oauth2"
)

func TestCarriesClaims(t *testing.T) {
	for _, x := range []struct {
		name string
		has  any
		want string
		ok   bool
	}{
		{"a string", "shop", "shop", true},
		{"another string", "bank", "shop", false},
		{"a boolean", true, "true", true},
		{"a small number", float64(7), "7", true},
		{"a number of nine digits", float64(123456789), "123456789", true},
		{"a number of 22 digits", 1e21, "1000000000000000000000", true},
		{"a fraction", 0.5, "0.5", true},
		{"another number", float64(8), "7", false},
		{"no claim", nil, "7", false},
	} {
		if got := carries(map[string]any{"c": x.has}, map[string]string{"c": x.want}); got != x.ok {
			t.Errorf("claim %s: carries of value %v and needed value %q is %t, want %t", x.name, x.has, x.want, got, x.ok)
		}
	}
}

// TestCallsToIssuersHaveATimeout: the HTTP client with which a gateway calls the OIDC issuers of accounts must have a
// timeout, so that an issuer that hangs does not block calls.
func TestCallsToIssuersHaveATimeout(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := newAccounts(ctx)
	if _, err := a.verifier(s.URL); err == nil {
		t.Fatal("verifier succeeded for an issuer that serves no configuration")
	}
	if c, ok := a.ctx.Value(oauth2.HTTPClient).(*http.Client); !ok || c.Timeout <= 0 || c.Timeout > time.Minute {
		t.Errorf("the client for issuers is %v, want one with a timeout", c)
	}
}
