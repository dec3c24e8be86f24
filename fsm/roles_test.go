package fsm

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func putRole(name string, permissions ...string) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutRole{PutRole: &commandv1.PutRole{Name: name, Permissions: permissions}}}
}

func deleteRole(name string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteRole{DeleteRole: &commandv1.DeleteRole{Name: name}}}
}

// bindRole returns a command that binds a role to a subject, written as KIND/NAME. The namespace "*" means
// all namespaces.
func (w *world) bindRole(role, subject string, namespaces ...string) Command {
	b := roleBinding(role, subject, namespaces...)
	if r, ok := w.s.Role(role); ok {
		b.RoleVersion = r.ModifyIndex
	}
	return &commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: b}}
}

func roleBinding(role, subject string, namespaces ...string) *commandv1.BindRole {
	kind, name, _ := strings.Cut(subject, "/")
	b := &commandv1.BindRole{Role: role, Kind: kind, Name: name, Namespaces: namespaces}
	if slices.Equal(namespaces, []string{"*"}) {
		b.Namespaces, b.Everywhere = nil, true
	}
	return b
}

func unbindRole(role, subject string) Command {
	b := roleBinding(role, subject)
	b.Remove = true
	return &commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: b}}
}

func putAccount(name string, expires int64, opts ...func(*commandv1.PutAccount)) Command {
	b := &commandv1.PutAccount{Name: name, SecretSha256: bytes.Repeat([]byte{1}, 32), ExpiresAt: expires}
	for _, o := range opts {
		o(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutAccount{PutAccount: b}}
}

func deleteAccount(name string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteAccount{DeleteAccount: &commandv1.DeleteAccount{Name: name}}}
}

func rotating(b *commandv1.PutAccount) { b.Rotate, b.SecretSha256 = true, bytes.Repeat([]byte{2}, 32) }

func byIssuer(b *commandv1.PutAccount) {
	b.SecretSha256, b.ExpiresAt, b.Issuer, b.Audience = nil, 0, "https://ci.example", "persys"
	b.Claims = []*commandv1.Label{{Key: "repository", Value: "shop/web"}}
}

// bindingsOf returns the bindings of a subject as text, each as ROLE:NAMESPACES.
func (w *world) bindingsOf(subject string) string {
	kind, name, _ := strings.Cut(subject, "/")
	var out []string
	w.s.BindingsOf(kind, name, func(b *Binding) bool {
		in := "*"
		if !b.Everywhere {
			in = strings.Join(b.Namespaces, ",")
		}
		out = append(out, b.Role+":"+in)
		return true
	})
	return strings.Join(out, " ")
}

// detailsOf returns the details of an event as text.
func detailsOf(e *Event) string {
	var out []string
	for _, l := range e.Details {
		out = append(out, l.Key+"="+l.Value)
	}
	return strings.Join(out, " ")
}

func TestRolesAndBindings(t *testing.T) {
	proveTrust(t, []fact{
		{"built-in roles cannot be changed or deleted", func(t *testing.T, w *world) {
			for _, name := range []string{"viewer", "operator", "admin", "none"} {
				refused(t, w.do(putRole(name, "read")), Invalid, "built-in")
			}
			refused(t, w.do(deleteRole("admin")), Conflict, "built in")
		}},
		{"a role needs permissions and a valid name", func(t *testing.T, w *world) {
			refused(t, w.do(putRole("ci")), Invalid, "permissions")
			refused(t, w.do(putRole("a/b", "read")), Invalid, "name")
		}},
		{"a put that names an earlier version of the role is refused", func(t *testing.T, w *world) {
			w.ok(putRole("ci", "read"))
			stale := putRole("ci", "deploy")
			stale.GetPutRole().IfVersion = new(uint64)
			refused(t, w.do(stale), StaleGeneration, "role", "version")
			is(t, "verdict on a put of a role with the same content", w.do(putRole("ci", "read")).Kind, AlreadyDone)
		}},
		{"a bound role cannot be deleted", func(t *testing.T, w *world) {
			w.ok(putRole("ci", "read"))
			w.ok(w.bindRole("ci", "user/ada", "*"))
			refused(t, w.do(deleteRole("ci")), Conflict, "ada", "unbind")
			w.ok(unbindRole("ci", "user/ada"))
			w.ok(deleteRole("ci"))
		}},
		{"a binding replaces the present binding of the same role", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			w.ok(putNamespace("bank"))
			w.ok(w.bindRole("operator", "group//team/a", "shop"))
			w.ok(w.bindRole("viewer", "group//team/a", "*"))
			w.ok(w.bindRole("viewer", "group//team/a/b", "*"))
			w.ok(w.bindRole("operator", "group//team/a", "bank", "shop"))
			is(t, "role bindings of group//team/a", w.bindingsOf("group//team/a"), "operator:bank,shop viewer:*")
		}},
		{"a binding to an unknown role, namespace, account or kind is refused", func(t *testing.T, w *world) {
			refused(t, w.do(w.bindRole("ci", "user/ada", "*")), NotFound, "role", "ci")
			refused(t, w.do(w.bindRole("viewer", "user/ada", "shop")), NotFound, "shop")
			refused(t, w.do(w.bindRole("viewer", "account/ci", "*")), NotFound, "account")
			refused(t, w.do(w.bindRole("viewer", "robot/ci", "*")), Invalid, "kind")
			refused(t, w.do(w.bindRole("viewer", "user/", "*")), Invalid, "name")
			refused(t, w.do(w.bindRole("viewer", "user/ada")), Invalid, "namespaces")
			refused(t, w.do(unbindRole("viewer", "user/ada")), NotFound, "not bound")
			w.ok(w.bindRole("viewer", "user/oidc:https://id.example#7", "*"))
		}},
		{"a binding is refused if the role has changed since its permissions were compared", func(t *testing.T, w *world) {
			w.ok(putRole("ci", "read"))
			c := w.bindRole("ci", "user/ada", "*")
			w.ok(putRole("ci", "read", "trust"))
			refused(t, w.do(c), StaleGeneration, "ci", "changed")
		}},
		{"a deleted namespace leaves all bindings", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			w.ok(putNamespace("bank"))
			w.ok(w.bindRole("viewer", "user/ada", "shop", "bank"))
			w.ok(w.bindRole("operator", "user/ada", "shop"))
			w.ok(dropNamespace("shop"))
			is(t, "role bindings of user/ada", w.bindingsOf("user/ada"), "viewer:bank")
			is(t, "details of the event about the binding that lost a namespace", detailsOf(w.eventOf(EventRoleBound)), "kind=user name=ada namespace_count=1 namespaces=bank")
		}},
		{"the event of a binding has the number of namespaces, or * for all", func(t *testing.T, w *world) {
			w.ok(w.bindRole("viewer", "user/ada", "*"))
			is(t, "details of the event about a binding for all namespaces", detailsOf(w.eventOf(EventRoleBound)), "kind=user name=ada namespaces=*")
			w.ok(putNamespace("all"))
			w.ok(putNamespace("shop"))
			w.ok(w.bindRole("viewer", "user/ada", "all", "shop"))
			is(t, "details of the event about a binding for two namespaces", detailsOf(w.eventOf(EventRoleBound)), "kind=user name=ada namespace_count=2 namespaces=all,shop")
		}},
		{"a caller confined to a namespace may change no role", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			refused(t, w.do(confined(putRole("ci", "read"), "shop")), Denied, "put_role")
			refused(t, w.do(confined(w.bindRole("admin", "user/tester", "shop"), "shop")), Denied, "bind_role")
		}},
	})
}

func TestTheLastTrustedPersonStays(t *testing.T) {
	// admitted issues a certificate to a user, valid for one hour from now.
	admitted := func(w *world, name, access string) {
		w.ok(join(w, "", "user", name, func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = access, w.now, w.now+3600*second }))
	}
	proveTrust(t, []fact{
		{"the only admin cannot be revoked", func(t *testing.T, w *world) {
			admitted(w, adminName, "admin")
			admitted(w, "ada", "operator")
			refused(t, w.do(revoke("user", adminName, "")), Conflict, "trust", "token create")
			_, gone := w.s.RevokedIdentity("user", adminName)
			is(t, `user "admin" is revoked`, gone, false)
			admitted(w, "bob", "admin")
			w.ok(revoke("user", adminName, ""))
			refused(t, w.do(revoke("user", "bob", "")), Conflict, "trust")
		}},
		{"a bound role with trust counts as a trusted person, and the last one cannot be removed, narrowed or emptied", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			admitted(w, adminName, "admin")
			admitted(w, "ada", "none")
			w.ok(putRole("keys", "trust"))
			w.ok(w.bindRole("keys", "user/ada", "*"))
			w.ok(revoke("user", adminName, ""))
			refused(t, w.do(unbindRole("keys", "user/ada")), Conflict, "trust")
			refused(t, w.do(w.bindRole("keys", "user/ada", "shop")), Conflict, "trust")
			refused(t, w.do(putRole("keys", "read")), Conflict, "trust")
			is(t, "role bindings of user/ada", w.bindingsOf("user/ada"), "keys:*")
			r, _ := w.s.Role("keys")
			is(t, "permissions of the role", strings.Join(r.Permissions, ","), "trust")
			refused(t, w.do(revoke("user", "ada", "")), Conflict, "trust")
		}},
		{"the last trusted person cannot join with less access, and the refused join uses up no token", func(t *testing.T, w *world) {
			admitted(w, adminName, "admin")
			admitted(w, "bob", "admin")
			w.ok(revoke("user", adminName, ""))
			w.ok(joinToken(w, "t1", "user", func(b *commandv1.PutToken) { b.Name, b.Access = "bob", "operator" }))
			again := func() Command {
				return join(w, "t1", "user", "bob", keyOf(9), func(b *commandv1.Admit) { b.Access = "operator" })
			}
			refused(t, w.do(again()), Conflict, "trust", "token create")
			a, _ := w.s.Admission("user", "bob")
			tok, _ := w.s.Token("t1")
			is(t, `access level of user "bob" after the refused join`, a.Access, "admin")
			is(t, `uses that join token "t1" has left after the refused join`, tok.Uses, 1)
			is(t, "detail of the event JoinRefused", w.eventOf(EventJoinRefused).Details[0].Value, "bob")
			admitted(w, "eve", "admin")
			w.ok(again())
			refused(t, w.do(revoke("user", "eve", "")), Conflict, "trust")
		}},
		{"an expired certificate, a group or an account is no trusted person", func(t *testing.T, w *world) {
			admitted(w, adminName, "admin")
			admitted(w, "bob", "admin")
			w.now += 7200 * second
			w.ok(barrier())
			w.ok(w.bindRole("admin", "group/admins", "*"))
			refused(t, w.do(revoke("user", adminName, "")), Conflict, "trust")
		}},
		{"a cluster without admissions needs no trusted person", func(t *testing.T, w *world) {
			w.ok(w.bindRole("admin", "user/ada", "*"))
			w.ok(unbindRole("admin", "user/ada"))
		}},
	})
}

// TestTokensOfUsersWhoGetMoreRightsAreDeleted: if a user gets more rights, the unused join tokens of that user
// are deleted. The maker of such a token needed only the rights that the user had at that time.
func TestTokensOfUsersWhoGetMoreRightsAreDeleted(t *testing.T) {
	made := func(w *world) {
		for _, name := range []string{"dave", "eve"} {
			w.ok(joinToken(w, "for-"+name, "user", func(b *commandv1.PutToken) { b.Name, b.Access = name, "none" }))
		}
	}
	left := func(w *world) string {
		var out []string
		w.s.Tokens(func(tok *Token) bool { out = append(out, tok.ID); return true })
		return strings.Join(out, " ")
	}
	const both = "for-dave for-eve"
	proveTrust(t, []fact{
		{"a binding of a role to the user deletes the token", func(t *testing.T, w *world) {
			made(w)
			w.ok(w.bindRole("viewer", "user/dave", "*"))
			is(t, "join tokens that are left", left(w), "for-eve")
			e := w.eventOf(EventTokenDeleted)
			is(t, "message, reason and user of the event about the deleted token", e.Message+" "+e.Reason+" "+e.Details[0].Value, "for-dave RightsChanged dave")
			refused(t, w.do(join(w, "for-dave", "user", "dave", func(b *commandv1.Admit) { b.Access = "none" })), NotFound, "deleted")
		}},
		{"more permissions of a bound role delete the token", func(t *testing.T, w *world) {
			w.ok(putRole("ci", "read", "logs"))
			w.ok(w.bindRole("ci", "user/dave", "*"))
			w.ok(w.bindRole("ci", "group/eve", "*"))
			made(w)
			w.ok(putRole("ci", "read"))
			is(t, "join tokens that are left after the role lost permissions", left(w), both)
			w.ok(putRole("ci", "read", "deploy"))
			is(t, "join tokens that are left", left(w), "for-eve")
		}},
		{"a release of the user from the last namespace deletes the token", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop", users("dave")))
			w.ok(putNamespace("bank", users("dave")))
			made(w)
			w.ok(putNamespace("shop"))
			is(t, "join tokens that are left while another namespace lists the user", left(w), both)
			w.ok(putNamespace("bank", func(b *commandv1.PutNamespace) { b.Release = []string{"dave"} }))
			is(t, "join tokens that are left", left(w), "for-eve")
		}},
		{"a second namespace that lists the user deletes the token", func(t *testing.T, w *world) {
			made(w)
			w.ok(putNamespace("shop", users("dave")))
			is(t, "join tokens that are left after the first namespace lists the user", left(w), both)
			w.ok(putNamespace("bank", users("dave", "eve")))
			is(t, "join tokens that are left", left(w), "for-eve")
		}},
		{"an unbinding, a binding of a group, and a binding after the use of the token keep the tokens", func(t *testing.T, w *world) {
			w.ok(w.bindRole("viewer", "user/dave", "*"))
			made(w)
			w.ok(unbindRole("viewer", "user/dave"))
			w.ok(w.bindRole("viewer", "group/dave", "*"))
			is(t, "join tokens that are left", left(w), both)
			w.ok(join(w, "for-dave", "user", "dave", func(b *commandv1.Admit) { b.Access = "none" }))
			w.ok(w.bindRole("viewer", "user/dave", "*"))
			is(t, "join tokens that are left after the user has joined", left(w), both)
		}},
	})
}

func TestAccounts(t *testing.T) {
	hour := 3600 * second
	proveTrust(t, []fact{
		{"an account is created with its role, and deleted with its bindings", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			w.ok(putAccount("ci", w.now+hour, func(b *commandv1.PutAccount) { b.Binding = roleBinding("operator", "account/ci", "shop") }))
			is(t, "role bindings of account/ci", w.bindingsOf("account/ci"), "operator:shop")
			refused(t, w.do(putAccount("ci", w.now+hour)), Conflict, "exists", "rotate")
			w.ok(deleteAccount("ci"))
			is(t, "role bindings of account/ci", w.bindingsOf("account/ci"), "")
			refused(t, w.do(deleteAccount("ci")), NotFound, "ci")
		}},
		{"a put of an account with a binding of another subject is refused", func(t *testing.T, w *world) {
			refused(t, w.do(putAccount("ci", w.now+hour, func(b *commandv1.PutAccount) { b.Binding = roleBinding("operator", "user/ada", "*") })), Invalid, "binding")
			_, there := w.s.Account("ci")
			is(t, `account "ci" has a record`, there, false)
		}},
		{"the lifetime of a bearer token is limited", func(t *testing.T, w *world) {
			refused(t, w.do(putAccount("ci", w.now)), Invalid, "expires_at")
			refused(t, w.do(putAccount("ci", w.now+31*24*hour)), Invalid, "expires_at")
		}},
		{"a rotation replaces the hash and the expiry time only", func(t *testing.T, w *world) {
			refused(t, w.do(putAccount("ci", w.now+hour, rotating)), NotFound, "ci")
			w.ok(putAccount("ci", w.now+hour))
			before, _ := w.s.Account("ci")
			w.ok(putAccount("ci", w.now+2*hour, rotating))
			a, _ := w.s.Account("ci")
			is(t, "first byte of the new token's hash", a.SecretHash[0], byte(2))
			is(t, "the rotation moves the expiry time and keeps the creation time", a.ExpiresAt > before.ExpiresAt && a.CreatedAt == before.CreatedAt, true)
		}},
		{"an account of an issuer needs claims and an audience, and has no token", func(t *testing.T, w *world) {
			w.ok(putAccount("ci", 0, byIssuer))
			refused(t, w.do(putAccount("ci", w.now+hour, rotating)), Conflict, "no bearer token")
			refused(t, w.do(putAccount("ci2", 0, byIssuer, func(b *commandv1.PutAccount) { b.Claims = nil })), Invalid, "claims")
			refused(t, w.do(putAccount("ci2", 0, byIssuer, func(b *commandv1.PutAccount) { b.Audience = "" })), Invalid, "audience")
			refused(t, w.do(putAccount("ci2", w.now+hour, func(b *commandv1.PutAccount) { b.Issuer = "https://ci" })), Invalid, "either")
		}},
	})
}

// TestRestoredAccountsNeedNewTokens: after a restore, the token of an account that only the backup has is
// expired, because it may have been replaced or deleted after the backup was made.
func TestRestoredAccountsNeedNewTokens(t *testing.T) {
	w := formed(t)
	w.ok(putAccount("bot", w.now+24*3600*second, func(b *commandv1.PutAccount) { b.Binding = roleBinding("operator", "account/bot", "*") }))
	w.ok(putAccount("ci", 0, byIssuer, func(b *commandv1.PutAccount) { b.Binding = roleBinding("viewer", "account/ci", "*") }))
	w.ok(putAccount("both", w.now+24*3600*second, func(b *commandv1.PutAccount) { b.Binding = roleBinding("admin", "account/both", "*") }))
	fresh := formedAgain(w)
	fresh.ok(putAccount("both", fresh.now+24*3600*second))
	end, _ := fresh.s.Account("both")
	s, err := Restored(w.s, fresh.s, RestoreInfo{At: fresh.now, By: "tester"}) // a time at which the bearer token is still valid
	if err != nil {
		t.Fatal(err)
	}
	fresh.s = s
	bot, _ := fresh.s.Account("bot")
	is(t, `the bearer token of account "bot" has expired`, bot.ExpiresAt > 0 && bot.ExpiresAt <= fresh.s.Info().Clock, true)
	is(t, `role bindings of account "bot"`, fresh.bindingsOf("account/bot"), "operator:*")
	ci, _ := fresh.s.Account("ci")
	is(t, `expiry time of account "ci", which has no bearer token`, ci.ExpiresAt, 0)
	both, _ := fresh.s.Account("both")
	is(t, `expiry time of account "both", which is that of the present state`, both.ExpiresAt, end.ExpiresAt)
	is(t, `role bindings of account "both", which has none in the present state`, fresh.bindingsOf("account/both"), "")
}

// rolesScenario is a scenario of the golden corpus: commands about roles, bindings and accounts.
func rolesScenario(w *world) {
	w.do(putNamespace("shop"))
	w.do(join(w, "", "user", adminName, func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = "admin", w.now, w.now+second }))
	w.do(join(w, "", "user", "ada", func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = "none", w.now, w.now+3600*second }))
	w.do(putRole("ci", "read", "deploy"))
	w.do(putRole("ci", "deploy", "read"))
	w.do(putRole("admin", "read"))
	w.do(putRole("keys", "trust"))
	w.do(w.bindRole("ci", "group/team", "shop"))
	w.do(w.bindRole("ci", "group/team", "default", "shop"))
	w.do(w.bindRole("ci", "user/ada", "nowhere"))
	w.do(deleteRole("ci"))
	w.do(revoke("user", adminName, ""))
	w.do(w.bindRole("keys", "user/ada", "*"))
	w.do(revoke("user", adminName, ""))
	w.do(unbindRole("keys", "user/ada"))
	w.do(putAccount("bot", w.now+3600*second, func(b *commandv1.PutAccount) { b.Binding = roleBinding("viewer", "account/bot", "shop") }))
	w.do(putAccount("bot", w.now+7200*second, rotating))
	w.do(putAccount("ci", 0, byIssuer))
	w.do(w.bindRole("operator", "account/ci", "*"))
	w.do(dropNamespace("shop"))
	w.do(deleteAccount("ci"))
	w.do(unbindRole("ci", "group/team"))
	w.do(deleteRole("ci"))
	w.do(joinToken(w, "for-dave", "user", func(b *commandv1.PutToken) { b.Name, b.Access = "dave", "none" }))
	w.do(w.bindRole("viewer", "user/dave", "*"))
	w.do(join(w, "for-dave", "user", "dave", func(b *commandv1.Admit) { b.Access = "none" }))
	w.do(join(w, "", "user", "bob", func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = "admin", w.now, w.now+3600*second }))
	w.do(unbindRole("keys", "user/ada"))
	w.do(joinToken(w, "for-bob", "user", func(b *commandv1.PutToken) { b.Name, b.Access = "bob", "operator" }))
	w.do(join(w, "for-bob", "user", "bob", func(b *commandv1.Admit) { b.Access = "operator" }))
}
