package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// Accounts are the identities of programs, such as CI systems. A gateway passes the bearer token of an
// account on to the schedulers, which store the token's hash. For an account with an OIDC issuer the gateway
// verifies the token itself and sends the name of the account.

const (
	// accountsFresh is the maximum age of the list of accounts with which the gateway compares an OIDC token. An old
	// list lets no deleted account in, because the schedulers check the account of each call.
	accountsFresh = 10 * time.Second
	// issuerRetry is the time between two attempts to read the configuration of an issuer that did not answer.
	issuerRetry = 10 * time.Second
	// maxIssuers is the maximum number of issuers whose verifiers are kept.
	maxIssuers = 64
)

// accounts verifies OIDC tokens of the issuers that the accounts of a cluster name.
type accounts struct {
	ctx context.Context // ends when the gateway is closed; carries the HTTP client for calls to issuers

	mu        sync.Mutex
	lists     map[string]accountList // the key is the cluster id
	verifiers map[string]*issuer     // the key is the URL of the issuer
}

type accountList struct {
	accounts []*clusterv1.Account
	at       time.Time
}

// issuer holds the token verifier of one OIDC issuer. The mutex mu is locked while the issuer's configuration is read,
// so that only one goroutine reads it.
type issuer struct {
	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	failed   time.Time
	err      error
}

func newAccounts(ctx context.Context) *accounts {
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: issuerTimeout})
	return &accounts{ctx: ctx, lists: map[string]accountList{}, verifiers: map[string]*issuer{}}
}

// issuerOf reads the issuer of a token, without verifying the token.
func issuerOf(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Issuer string `json:"iss"`
	}
	if !ok || err != nil || json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// errNoAccount means that no account has the issuer of a token.
var errNoAccount = errors.New("no account of this cluster has the issuer of the bearer token; `persysctl account list` shows them")

// judge verifies a token and returns the account whose issuer, audience and claims the token has.
func (a *accounts) judge(ctx context.Context, b *backend, token string) (caller, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	from := issuerOf(token)
	if from == "" {
		return caller{}, errNoAccount
	}
	list, err := a.of(ctx, b)
	if err != nil {
		return caller{}, fmt.Errorf("%w: the accounts of the cluster are not known: %w", errNoIssuer, err)
	}
	list = slices.DeleteFunc(slices.Clone(list), func(x *clusterv1.Account) bool { return x.GetIssuer() != from })
	if len(list) == 0 {
		return caller{}, errNoAccount
	}
	verifier, err := a.verifier(from)
	if err != nil {
		return caller{}, fmt.Errorf("%w: %w", errNoIssuer, err)
	}
	id, err := verifier.Verify(ctx, token)
	if keysMissing(err) {
		return caller{}, fmt.Errorf("%w: issuer %s: %w", errNoIssuer, from, err)
	}
	if err != nil {
		return caller{}, fmt.Errorf("the bearer token: %w", err)
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return caller{}, fmt.Errorf("the bearer token's claims: %w", err)
	}
	list = slices.DeleteFunc(list, func(x *clusterv1.Account) bool {
		return !slices.Contains(id.Audience, x.GetAudience()) || !carries(claims, x.GetClaims())
	})
	switch len(list) {
	case 0:
		return caller{}, fmt.Errorf("the bearer token of %s has the audience and the claims of no account; `persysctl account list` shows the audience and claims of each account", from)
	case 1:
		name := list[0].GetName()
		return caller{name: fmt.Sprintf("account %q", name), account: name}, nil
	}
	return caller{}, fmt.Errorf("the bearer token has the claims of the accounts %q and %q; give them claims that exclude each other", list[0].GetName(), list[1].GetName())
}

// carries reports whether the claims of a token, in has, include all claims that an account requires, in needs.
func carries(has map[string]any, needs map[string]string) bool {
	for name, want := range needs {
		switch v := has[name].(type) {
		case string:
			if v != want {
				return false
			}
		case bool:
			if strconv.FormatBool(v) != want {
				return false
			}
		case float64:
			if strconv.FormatFloat(v, 'f', -1, 64) != want {
				return false
			}
		case []any:
			if !slices.Contains(v, any(want)) {
				return false
			}
		default:
			return false
		}
	}
	return len(needs) > 0
}

// of returns the accounts of a cluster.
func (a *accounts) of(ctx context.Context, b *backend) ([]*clusterv1.Account, error) {
	a.mu.Lock()
	have, ok := a.lists[b.ID]
	a.mu.Unlock()
	if ok && time.Since(have.at) < accountsFresh {
		return have.accounts, nil
	}
	r, err := clusterv1.NewClusterClient(b.lead).ListAccounts(ctx, &clusterv1.ListAccountsRequest{})
	if status.Code(err) == codes.Unimplemented {
		err = nil // a legacy v1 scheduler has no accounts
	}
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists[b.ID] = accountList{r.GetAccounts(), time.Now()}
	return r.GetAccounts(), nil
}

// verifier returns the verifier of an issuer that an account names. All callers share the result and the error, so the
// request to the issuer does not end with the context of one caller.
func (a *accounts) verifier(url string) (*oidc.IDTokenVerifier, error) {
	a.mu.Lock()
	i := a.verifiers[url]
	if i == nil {
		if len(a.verifiers) >= maxIssuers {
			clear(a.verifiers) // drops the verifiers of issuers that no account names any more; verifiers still in use are created again
		}
		i = &issuer{}
		a.verifiers[url] = i
	}
	a.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil || time.Since(i.failed) < issuerRetry {
		return i.verifier, i.err
	}
	ctx, cancel := context.WithTimeout(a.ctx, issuerTimeout)
	defer cancel()
	provider, err := oidc.NewProvider(ctx, url)
	if err != nil {
		i.err, i.failed = fmt.Errorf("issuer %s: %w", url, err), time.Now()
		return nil, i.err
	}
	// Set SkipClientIDCheck, because the function judge compares the audience of the token with that of each account.
	// The verifier fetches the issuer's keys later too, so it gets the gateway's context and not ctx, which ends with
	// this function.
	i.verifier, i.err = provider.VerifierContext(a.ctx, &oidc.Config{SkipClientIDCheck: true}), nil
	return i.verifier, nil
}

// confirm asks the schedulers who the caller is, and returns an error for a caller without any role. It is needed
// because the token of an account or of a session may be wrong, and legacy v1 schedulers, which have neither accounts
// nor sessions nor role bindings, would not check the token.
func (r *request) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := clusterv1.NewClusterClient(r.backend.lead).GetAccess(r.tell(ctx), &clusterv1.GetAccessRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return status.Errorf(codes.PermissionDenied, "%s has the role %s, and the schedulers of this cluster know no other roles", r.name, r.role)
	case err != nil:
		return err
	case r.isAccount() && !strings.HasPrefix(got.GetIdentity(), "account:"), r.console != "" && userOf(got.GetIdentity()) == "", !r.unproven() && got.GetIdentity() != r.user:
		return status.Errorf(codes.PermissionDenied, "%s is not known to the schedulers", r.name)
	case len(got.GetGrants()) == 0 && r.console == "":
		return status.Errorf(codes.PermissionDenied, "%s has no role: an admin binds one (persysctl role bind)", r.name)
	}
	return nil
}
