package fsm

import (
	"bytes"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Limits of sessions at the web console.
const (
	// MaxConsoles is the maximum number of sessions of the web console; MaxConsolesOfUser is the
	// maximum for one user.
	MaxConsoles       = 10_000
	MaxConsolesOfUser = 50
	// MaxConsoleCodeLife is the longest lifetime of the one-time code with which a browser opens a
	// session of the web console.
	MaxConsoleCodeLife = time.Hour
	// MaxConsoleLife is the longest lifetime of a session.
	MaxConsoleLife = 24 * time.Hour
	maxConsoleFrom = 64 // bytes
)

// Console is a session of a person at the web console. The person creates it by a call with a
// certificate, and opens it in a browser with a one-time code. A record in the state is never
// modified; a change stores a new record.
type Console struct {
	ID, User      string
	CodeHash      []byte // SHA-256 of the one-time code
	TokenHash     []byte // SHA-256 of the session's token; nil until the session is open
	From          string // address from which the session was opened
	CreatedAt     int64  // all times are Unix nanoseconds
	CodeExpiresAt int64
	OpenedAt      int64 // 0 until the session is open
	ExpiresAt     int64
}

// Console returns one session of the web console.
func (s State) Console(id string) (*Console, bool) { return s.r.consoles.Get(id) }

// Consoles calls fn for each session of the web console, in the order of ids.
func (s State) Consoles(fn func(*Console) bool) {
	s.r.consoles.Scan(func(_ string, c *Console) bool { return fn(c) })
}

// Over reports whether the session can no longer be used at time now, in Unix nanoseconds.
func (c *Console) Over(now int64) bool {
	return c.ExpiresAt <= now || c.OpenedAt == 0 && c.CodeExpiresAt <= now
}

// fault describes the first invalid field of a session; "" if every field is valid.
func (c *Console) fault() string {
	switch {
	case !bounds.ValidID(c.ID):
		return "id: " + quoted(c.ID) + " does not match " + bounds.IDRule
	case len(c.CodeHash) != 32:
		return "code_sha256: " + decimal(len(c.CodeHash)) + " bytes, must have 32"
	case (c.OpenedAt == 0) != (len(c.TokenHash) == 0) || len(c.TokenHash) != 0 && len(c.TokenHash) != 32:
		return "token_sha256: " + decimal(len(c.TokenHash)) + " bytes, an open session must have 32"
	case len(c.From) > maxConsoleFrom:
		return "from: " + decimal(len(c.From)) + " bytes, limit " + decimal(maxConsoleFrom)
	}
	if res := checkPrincipal("user", c.User, "", false); res.Kind != OK {
		return res.Reason
	}
	return ""
}

func (t *Tx) linkConsole(b *commandv1.LinkConsole) Result {
	now := t.r.info.Clock
	c := &Console{
		ID: strings.Clone(b.GetId()), User: strings.Clone(b.GetUser()), CodeHash: bytes.Clone(b.GetCodeSha256()),
		CreatedAt: now, CodeExpiresAt: b.GetCodeExpiresAt(), ExpiresAt: b.GetExpiresAt(),
	}
	if fault := c.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	switch {
	case c.CodeExpiresAt <= now || c.CodeExpiresAt > now+int64(MaxConsoleCodeLife):
		return refuse(Invalid, "code_expires_at: %s is not within %s from now", clockText(c.CodeExpiresAt), MaxConsoleCodeLife)
	case c.ExpiresAt < c.CodeExpiresAt || c.ExpiresAt > now+int64(MaxConsoleLife):
		return refuse(Invalid, "expires_at: %s is not between the end of the code and %s from now", clockText(c.ExpiresAt), MaxConsoleLife)
	}
	if _, known := t.r.consoles.Get(c.ID); known {
		return refuse(Conflict, "session %s exists already", c.ID)
	}
	t.dropConsoles("", func(old *Console) bool { return old.Over(now) })
	own := 0
	t.state().Consoles(func(old *Console) bool {
		if old.User == c.User {
			own++
		}
		return true
	})
	switch {
	case own >= MaxConsolesOfUser:
		return refuse(Conflict, "user %q has %d sessions at the console, at most %d: end one with persysctl session end", c.User, own, MaxConsolesOfUser)
	case t.r.consoles.Len() >= MaxConsoles:
		return refuse(Conflict, "there are %d sessions at the console, at most %d: end some with persysctl session end", t.r.consoles.Len(), MaxConsoles)
	}
	t.storeConsole(c)
	t.event(Event{Type: EventConsoleLinked, Message: c.ID, Details: []Label{{"expires_at", clockText(c.ExpiresAt)}, {"name", c.User}}})
	return Result{}
}

func (t *Tx) openConsole(b *commandv1.OpenConsole) Result {
	now := t.r.info.Clock
	old, ok := t.r.consoles.Get(b.GetId())
	switch {
	case !ok || !bytes.Equal(old.CodeHash, b.GetCodeSha256()):
		return refuse(Denied, "the link is wrong or its session has ended: persysctl console makes a new one")
	case old.OpenedAt != 0:
		return refuse(Denied, "the link was used already, at %s from %s: persysctl console makes a new one", clockText(old.OpenedAt), old.From)
	case old.Over(now):
		return refuse(Denied, "the link expired at %s: persysctl console makes a new one", clockText(old.CodeExpiresAt))
	}
	c := *old
	c.TokenHash, c.From, c.OpenedAt = bytes.Clone(b.GetTokenSha256()), strings.Clone(b.GetFrom()), now
	if fault := c.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	t.storeConsole(&c)
	t.event(Event{Type: EventConsoleOpened, Message: c.ID, Details: details(Label{"from", c.From}, Label{"name", c.User})})
	return Result{}
}

func (t *Tx) endConsole(b *commandv1.EndConsole) Result {
	switch id, user := b.GetId(), b.GetUser(); {
	case (id == "") == (user == ""):
		return refuse(Invalid, "id and user: exactly one must be set")
	case id != "":
		if _, ok := t.r.consoles.Get(id); !ok {
			return refuse(NotFound, "session %q does not exist: persysctl session list shows them", clip(id))
		}
		t.dropConsoles("", func(c *Console) bool { return c.ID == id })
	case t.dropConsoles("", func(c *Console) bool { return c.User == user }) == 0:
		return Result{Kind: AlreadyDone}
	}
	return Result{}
}

// endConsolesOf ends the sessions of a user whose identity, or whose present certificate, is revoked.
func (t *Tx) endConsolesOf(r *Revocation) {
	t.dropConsoles(CodeRevoked, func(c *Console) bool {
		a, known := t.r.admissions.Get(pair("user", c.User))
		return r.Role == "user" && r.Name == c.User || r.Fingerprint != "" && known && a.Fingerprint == r.Fingerprint
	})
}

// CodeRevoked is the reason code of the end of a session whose user was revoked.
const CodeRevoked = "Revoked"

// dropConsoles removes the sessions for which match returns true, and returns their number. It
// writes an event for each removed session that could still be used.
func (t *Tx) dropConsoles(reason string, match func(*Console) bool) int {
	var gone []*Console
	t.state().Consoles(func(c *Console) bool {
		if match(c) {
			gone = append(gone, c)
		}
		return true
	})
	for _, c := range gone {
		own(t, &t.r.consoles, ownConsoles).Delete(c.ID)
		t.trustChanged("console:"+c.ID, nil)
		if !c.Over(t.r.info.Clock) {
			t.event(Event{Type: EventConsoleEnded, Message: c.ID, Reason: reason, Details: []Label{{"name", c.User}}})
		}
	}
	return len(gone)
}

func (t *Tx) storeConsole(c *Console) {
	own(t, &t.r.consoles, ownConsoles).Set(c.ID, c)
	t.trustChanged("console:"+c.ID, func(e *encoder) { e.console(c) })
}

func (c *checker) consoles() {
	c.s.Consoles(func(v *Console) bool {
		c.must(v.fault() == "", "session %s of the console: %s", clip(v.ID), v.fault())
		return true
	})
}

func consolePB(c *Console) *commandv1.ConsoleRecord {
	return &commandv1.ConsoleRecord{
		Link: &commandv1.LinkConsole{
			Id: c.ID, User: c.User, CodeSha256: c.CodeHash, CodeExpiresAt: c.CodeExpiresAt, ExpiresAt: c.ExpiresAt,
		},
		TokenSha256: c.TokenHash, From: c.From, CreatedAt: c.CreatedAt, OpenedAt: c.OpenedAt,
	}
}

func consoleOf(m *commandv1.ConsoleRecord) *Console {
	l := m.GetLink()
	return &Console{
		ID: l.GetId(), User: l.GetUser(), CodeHash: bytes.Clone(l.GetCodeSha256()), CodeExpiresAt: l.GetCodeExpiresAt(), ExpiresAt: l.GetExpiresAt(),
		TokenHash: bytes.Clone(m.GetTokenSha256()), From: m.GetFrom(), CreatedAt: m.GetCreatedAt(), OpenedAt: m.GetOpenedAt(),
	}
}

func (e *encoder) console(c *Console) {
	for _, s := range [...]string{c.ID, c.User, c.From} {
		e.str(s)
	}
	e.bytes(c.CodeHash)
	e.bytes(c.TokenHash)
	e.i64(c.CreatedAt)
	e.i64(c.CodeExpiresAt)
	e.i64(c.OpenedAt)
	e.i64(c.ExpiresAt)
}
