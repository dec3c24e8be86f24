package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// defaultAccountTokenLife is the validity of an account's bearer token.
const defaultAccountTokenLife = 24 * time.Hour

const (
	accountPrefix = "account:" // prefix of the name of an account in the history
	// unknownAccount is the name, in the audit log, of every caller whose token does not belong to the
	// claimed account. With one name for all of them, their refusals share one record.
	unknownAccount = accountPrefix + "?"
)

// account is the service account for which a gateway calls, and the proof: the account's bearer token, or the
// gateway's statement that it has verified an OIDC token of the account.
type account struct {
	name   string
	hash   []byte // SHA-256 of the bearer token that the caller presents
	issuer bool   // true if the gateway has verified an OIDC token of the account's issuer
}

// accountOf reads from the metadata the account for which a gateway calls: from the account's bearer token, which
// checkAccount compares with the state, or from the name of an account whose OIDC token the gateway has verified.
func accountOf(ctx context.Context) (a account, ok bool, err error) {
	token, name := told(ctx, dial.KeyAccountToken), told(ctx, dial.KeyAccount)
	switch {
	case token != "":
		n, valid := dial.AccountOfToken(token)
		if !valid {
			return account{}, false, errorf(KindUnauthenticated, "the bearer token is not one of an account: `persysctl account create` makes one")
		}
		hash := sha256.Sum256([]byte(token))
		return account{name: n, hash: hash[:]}, true, nil
	case name != "":
		return account{name: name, issuer: true}, true, nil
	}
	return account{}, false, nil
}

// checkAccount returns an error if the token does not prove that the caller may act as the account.
func (s *Server) checkAccount(v fsm.View, c account) error {
	a, ok := v.Account(c.name)
	switch {
	case !ok, !c.issuer && subtle.ConstantTimeCompare(a.SecretHash, c.hash) != 1:
		return errorf(KindUnauthenticated, "the token of account %q: %w: it is wrong, was replaced, or the account was deleted; `persysctl account rotate %s` makes a new token", clip(c.name, 128), errNotAdmitted, clip(c.name, 128))
	case c.issuer && a.Issuer == "":
		return errorf(KindUnauthenticated, "account %q acts by its own bearer token, not by the token of an OIDC issuer", a.Name)
	case !c.issuer && a.ExpiresAt <= s.clock().UnixNano():
		return errorf(KindUnauthenticated, "the token of account %q expired at %s: `persysctl account rotate %s` makes a new one", a.Name, time.Unix(0, a.ExpiresAt).UTC().Format(time.RFC3339), a.Name)
	}
	return nil
}

// accountCheckEvery is the time between two checks of the account of an open stream.
const accountCheckEvery = 2 * time.Second

// awaitAccount waits until an account loses its right to act, for example because it is deleted, and returns the
// reason. It returns nil if ctx ends first.
func (s *Server) awaitAccount(ctx context.Context, a account) error {
	return awaitError(ctx, accountCheckEvery, func() error { return s.checkAccount(s.store.View(), a) })
}

func accountView(a *fsm.Account) *clusterv1.Account {
	out := &clusterv1.Account{
		Name: a.Name, Description: a.Description, Issuer: a.Issuer, Audience: a.Audience, CreatedAt: timestamppb.New(time.Unix(0, a.CreatedAt)), CreatedBy: a.CreatedBy,
	}
	if a.ExpiresAt != 0 {
		out.ExpiresAt = timestamppb.New(time.Unix(0, a.ExpiresAt))
	}
	for _, c := range a.Claims {
		if out.Claims == nil {
			out.Claims = map[string]string{}
		}
		out.Claims[c.Key] = c.Value
	}
	return out
}

// ListAccounts implements cluster.v1. It returns no tokens, because tokens are not stored.
func (s *Server) ListAccounts(ctx context.Context, _ *clusterv1.ListAccountsRequest) (*clusterv1.ListAccountsResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.ListAccountsResponse{Index: r.index}
	r.Accounts(func(a *fsm.Account) bool {
		out.Accounts = append(out.Accounts, accountView(a))
		return true
	})
	return out, nil
}

// CreateAccount implements cluster.v1. The token is derived from the request id, so a repeated request returns
// the same token.
func (s *Server) CreateAccount(ctx context.Context, req *clusterv1.CreateAccountRequest) (*clusterv1.AccountTokenResponse, error) {
	put := &commandv1.PutAccount{Name: req.GetName(), Description: req.GetDescription(), Issuer: req.GetIssuer(), Audience: req.GetAudience()}
	for _, k := range slices.Sorted(maps.Keys(req.GetClaims())) {
		put.Claims = append(put.Claims, &commandv1.Label{Key: k, Value: req.GetClaims()[k]})
	}
	if req.GetRole() != "" {
		put.Binding = &commandv1.BindRole{
			Role: req.GetRole(), Kind: fsm.SubjectAccount, Name: req.GetName(), Everywhere: req.GetEverywhere(), Namespaces: req.GetNamespaces(),
		}
		if err := s.grantable(ctx, put.Binding); err != nil {
			return nil, err
		}
	} else if req.GetEverywhere() || len(req.GetNamespaces()) > 0 {
		return nil, errorf(KindInvalid, "role: name the role that the account has in these namespaces")
	}
	switch {
	case put.Issuer == "" && (put.Audience != "" || len(put.Claims) > 0):
		return nil, errorf(KindInvalid, "issuer: an account with an audience or claims needs the issuer of its tokens")
	case put.Issuer == "":
		return s.putToken(ctx, put, req.GetTtlSeconds(), req.GetRequestId())
	case req.GetTtlSeconds() != 0:
		return nil, errorf(KindInvalid, "ttl_seconds: leave it out, because the issuer sets the validity of the tokens of this account")
	}
	// Accept only a secure issuer URL, because the keys that verify tokens are read from that URL.
	if !dial.SecureIssuer(put.GetIssuer()) {
		return nil, errorf(KindInvalid, "issuer: %q must be a URL that begins with https://; http:// is for loopback only", clip(put.GetIssuer(), 128))
	}
	return s.putToken(ctx, put, 0, req.GetRequestId())
}

// RotateAccount implements cluster.v1. The new token gives the rights of the account to the caller, so the caller must
// have all of these rights.
func (s *Server) RotateAccount(ctx context.Context, req *clusterv1.RotateAccountRequest) (*clusterv1.AccountTokenResponse, error) {
	err := s.mayGrant(ctx, "rotate the token of account "+clip(req.GetName(), 128), bound(s.store.View(), fsm.SubjectAccount, req.GetName())...)
	if err != nil {
		return nil, err
	}
	return s.putToken(ctx, &commandv1.PutAccount{Name: req.GetName(), Rotate: true}, req.GetTtlSeconds(), req.GetRequestId())
}

// putToken commits a command that creates or changes an account. If the account has no OIDC issuer, putToken gives it
// a new bearer token.
func (s *Server) putToken(ctx context.Context, put *commandv1.PutAccount, ttl int64, request string) (*clusterv1.AccountTokenResponse, error) {
	out := &clusterv1.AccountTokenResponse{}
	if most := int64(fsm.MaxAccountTokenLife / time.Second); ttl < 0 || ttl > most {
		return nil, errorf(KindInvalid, "ttl_seconds: %d is not in 1..%d", ttl, most)
	}
	if put.GetIssuer() == "" {
		life := time.Duration(ttl) * time.Second
		if life == 0 {
			life = defaultAccountTokenLife
		}
		key, err := s.cfg.Keys.Key()
		if err != nil {
			return nil, errorf(KindPrecondition, "%w", err)
		}
		_, secret, err := key.TokenSecret("account/" + request)
		if err != nil {
			return nil, errorf(KindInternal, "%w", err)
		}
		out.Token = dial.AccountToken(put.GetName(), secret)
		hash := sha256.Sum256([]byte(out.Token))
		put.SecretSha256, put.ExpiresAt = hash[:], s.clock().Add(life).Truncate(time.Second).UnixNano()
	}
	r, err := s.commit(ctx, request, &commandv1.Command{Body: &commandv1.Command_PutAccount{PutAccount: put}})
	if err != nil {
		return nil, err
	}
	view, err := s.store.At(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	a, ok := view.Account(put.GetName())
	if !ok || put.GetIssuer() == "" && subtle.ConstantTimeCompare(a.SecretHash, put.GetSecretSha256()) != 1 {
		return nil, errorf(KindPrecondition, "the token that this request made was replaced, or its account deleted")
	}
	out.Account, out.Index = accountView(a), r.Index
	return out, nil
}

// DeleteAccount implements cluster.v1.
func (s *Server) DeleteAccount(ctx context.Context, req *clusterv1.DeleteAccountRequest) (*clusterv1.RoleResponse, error) {
	return s.aboutRole(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteAccount{DeleteAccount: &commandv1.DeleteAccount{Name: req.GetName()}}})
}

// actsAs stores in c the account for which a gateway calls; the account's rights then apply to the call.
func (s *Server) actsAs(c *caller, a account) error {
	if c.id.Role != pki.RoleGateway {
		return errorf(KindPermission, "%s %q may not act for an account: only gateways may send %s and %s", c.id.Role, c.id.ID, dial.KeyAccount, dial.KeyAccountToken)
	}
	c.account = a
	*c = s.named(*c, false)
	return nil
}

// named sets the account's name in c, for the audit log. If the account was not accepted (accepted is false) and this
// replica's state does not have it, the name is unknownAccount. named must be called again after the rights were
// checked, because that check may have brought the state up to date.
func (s *Server) named(c caller, accepted bool) caller {
	if c.account.name == "" {
		return c
	}
	c.user = accountPrefix + c.account.name
	if !accepted && s.checkAccount(s.store.View(), c.account) != nil {
		c.user = unknownAccount
	}
	return c
}
