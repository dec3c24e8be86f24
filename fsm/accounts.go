package fsm

import (
	"bytes"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Limits of the fields of an Account.
const (
	MaxAccounts = 1000
	// MaxAccountTokenLife is the longest lifetime of an account's bearer token.
	MaxAccountTokenLife = 30 * 24 * time.Hour
	maxClaims           = 16
	maxClaim            = 512 // maximum bytes of a claim's name, and of its value
)

// Account is the identity of a program, such as a CI system. The program presents a bearer token, or a token
// of an OIDC issuer. Its rights come from bindings of roles. A record in the state is never modified; a change stores a new record.
type Account struct {
	Name, Description string
	SecretHash        []byte // SHA-256 of the bearer token; nil if there is none
	ExpiresAt         int64  // when the bearer token expires; all times are Unix nanoseconds
	Issuer, Audience  string // issuer and audience of OIDC tokens that act as this account; "" = no OIDC tokens
	Claims            []Label
	CreatedAt         int64
	CreatedBy         string
	TokenAt           int64 // time at which the bearer token was made
}

// Account returns one account.
func (s State) Account(name string) (*Account, bool) { return s.r.accounts.Get(name) }

// Accounts calls fn for each account, in the order of names.
func (s State) Accounts(fn func(*Account) bool) {
	s.r.accounts.Scan(func(_ string, a *Account) bool { return fn(a) })
}

// fault returns an error text for the first invalid field of an account; "" if every field is
// valid.
func (a *Account) fault() string {
	switch {
	case !bounds.ValidID(a.Name):
		return "name: " + quoted(a.Name) + " does not match " + bounds.IDRule
	case len(a.Description) > maxNamespaceComment:
		return "description: " + decimal(len(a.Description)) + " bytes, limit " + decimal(maxNamespaceComment)
	case (a.Issuer == "") == (len(a.SecretHash) == 0):
		return "issuer: an account has either a bearer token or an OIDC issuer"
	case a.Issuer == "" && len(a.SecretHash) != 32:
		return "secret_sha256: " + decimal(len(a.SecretHash)) + " bytes, must have 32"
	case a.Issuer == "":
		return ""
	case len(a.Issuer) > maxClaim || a.Audience == "" || len(a.Audience) > maxClaim:
		return "issuer and audience: both must have 1 to " + decimal(maxClaim) + " bytes"
	case len(a.Claims) == 0 || len(a.Claims) > maxClaims:
		return "claims: " + decimal(len(a.Claims)) + " entries, must have 1 to " + decimal(maxClaims) + ", because every token of the issuer would act as the account"
	}
	for i, c := range a.Claims {
		if c.Key == "" || c.Value == "" || len(c.Key) > maxClaim || len(c.Value) > maxClaim || i > 0 && a.Claims[i-1].Key >= c.Key {
			return "claims: " + quoted(c.Key) + " must appear once, with a value, and have at most " + decimal(maxClaim) + " bytes"
		}
	}
	return ""
}

// tokenFault says why the expiry time of a new bearer token is invalid; "" if the time is valid.
func (t *Tx) tokenFault(expiresAt int64) string {
	if now := t.r.info.Clock; expiresAt <= now || expiresAt > now+int64(MaxAccountTokenLife) {
		return "expires_at: " + clockText(expiresAt) + " is not within " + MaxAccountTokenLife.String() + " from now"
	}
	return ""
}

func (t *Tx) putAccount(b *commandv1.PutAccount) Result {
	now := t.r.info.Clock
	old, known := t.r.accounts.Get(b.GetName())
	if b.GetRotate() {
		return t.rotateAccount(b, old)
	}
	a := &Account{
		Name: strings.Clone(b.GetName()), Description: strings.Clone(b.GetDescription()), SecretHash: bytes.Clone(b.GetSecretSha256()),
		ExpiresAt: b.GetExpiresAt(), Issuer: strings.Clone(b.GetIssuer()), Audience: strings.Clone(b.GetAudience()), Claims: sortedLabels(b.GetClaims()),
		CreatedAt: now, CreatedBy: t.by,
	}
	if fault := a.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if a.Issuer == "" {
		if fault := t.tokenFault(a.ExpiresAt); fault != "" {
			return refuse(Invalid, "%s", fault)
		}
		a.TokenAt = now
	} else if a.ExpiresAt != 0 {
		return refuse(Invalid, "expires_at: must be 0 for an account with an issuer, which has no bearer token")
	}
	switch {
	case known:
		return refuse(Conflict, "account %q exists already: persysctl account rotate makes a new token for it", a.Name)
	case t.r.accounts.Len() >= MaxAccounts:
		return refuse(Conflict, "there are %d accounts, at most %d: delete some", t.r.accounts.Len(), MaxAccounts)
	}
	var bound *Binding
	if bind := b.GetBinding(); bind != nil {
		var res Result
		if bound, res = t.bindingOf(bind); res.Kind != OK {
			return res
		}
		if bound.Kind != SubjectAccount || bound.Name != a.Name || bind.GetRemove() {
			return refuse(Invalid, "binding: must bind a role to account %q", a.Name)
		}
		if t.r.bindings.Len() >= MaxBindings {
			return refuse(Conflict, "there are %d bindings of roles, at most %d: remove some", t.r.bindings.Len(), MaxBindings)
		}
	}
	t.storeAccount(a)
	t.event(Event{Type: EventAccountCreated, Message: a.Name, Details: details(Label{"expires_at", tokenEnd(a)}, Label{"issuer", a.Issuer})})
	if bound != nil {
		return t.storeBinding(bound, false)
	}
	return Result{}
}

func (t *Tx) rotateAccount(b *commandv1.PutAccount, old *Account) Result {
	switch {
	case old == nil:
		return refuse(NotFound, "account %q does not exist: persysctl account list shows them", clip(b.GetName()))
	case old.Issuer != "":
		return refuse(Conflict, "account %q has no bearer token: tokens of %s act as it", old.Name, old.Issuer)
	}
	a := *old
	a.SecretHash, a.ExpiresAt, a.TokenAt = bytes.Clone(b.GetSecretSha256()), b.GetExpiresAt(), t.r.info.Clock
	fault := a.fault()
	if fault == "" {
		fault = t.tokenFault(a.ExpiresAt)
	}
	if fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	t.storeAccount(&a)
	t.event(Event{Type: EventAccountRotated, Message: a.Name, Details: details(Label{"expires_at", tokenEnd(&a)})})
	return Result{}
}

func tokenEnd(a *Account) string {
	if a.ExpiresAt == 0 {
		return ""
	}
	return clockText(a.ExpiresAt)
}

func (t *Tx) storeAccount(a *Account) {
	own(t, &t.r.accounts, ownAccounts).Set(a.Name, a)
	t.trustChanged("account:"+a.Name, func(e *encoder) { e.account(a) })
}

func (t *Tx) deleteAccount(b *commandv1.DeleteAccount) Result {
	a, ok := t.r.accounts.Get(b.GetName())
	if !ok {
		return refuse(NotFound, "account %q does not exist: persysctl account list shows them", clip(b.GetName()))
	}
	t.dropBindingsOf(SubjectAccount, a.Name)
	own(t, &t.r.accounts, ownAccounts).Delete(a.Name)
	t.trustChanged("account:"+a.Name, nil)
	t.event(Event{Type: EventAccountDeleted, Message: a.Name})
	return Result{}
}

func (c *checker) accounts() {
	c.s.r.accounts.Scan(func(name string, a *Account) bool {
		c.must(a.Name == name && a.fault() == "", "account %q is stored under %q: %s", clip(a.Name), clip(name), a.fault())
		c.must((a.Issuer == "") == (a.ExpiresAt != 0), "account %s with issuer %q has the expiry time %d", clip(name), clip(a.Issuer), a.ExpiresAt)
		return true
	})
}

func accountPB(a *Account) *commandv1.AccountRecord {
	return &commandv1.AccountRecord{
		Put: &commandv1.PutAccount{
			Name: a.Name, Description: a.Description, SecretSha256: a.SecretHash, ExpiresAt: a.ExpiresAt,
			Issuer: a.Issuer, Audience: a.Audience, Claims: convert(a.Claims, labelPB),
		},
		CreatedAt: a.CreatedAt, CreatedBy: a.CreatedBy, TokenAt: a.TokenAt,
	}
}

func accountOf(m *commandv1.AccountRecord) *Account {
	p := m.GetPut()
	return &Account{
		Name: p.GetName(), Description: p.GetDescription(), SecretHash: bytes.Clone(p.GetSecretSha256()), ExpiresAt: p.GetExpiresAt(),
		Issuer: p.GetIssuer(), Audience: p.GetAudience(), Claims: convert(p.GetClaims(), labelOf),
		CreatedAt: m.GetCreatedAt(), CreatedBy: m.GetCreatedBy(), TokenAt: m.GetTokenAt(),
	}
}

func (e *encoder) account(a *Account) {
	for _, s := range [...]string{a.Name, a.Description, a.Issuer, a.Audience, a.CreatedBy} {
		e.str(s)
	}
	e.bytes(a.SecretHash)
	e.labels(a.Claims)
	e.i64(a.ExpiresAt)
	e.i64(a.CreatedAt)
	e.i64(a.TokenAt)
}
