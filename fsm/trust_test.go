package fsm

import (
	"strings"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
)

const day = 24 * 60 * minute

// hash returns 32 bytes of which the first is b.
func hash(b byte) []byte { return append([]byte{b}, make([]byte, 31)...) }

func print64(s string) string { return strings.Repeat(s, 64) }

func pin(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_PinClusterKey{PinClusterKey: &commandv1.PinClusterKey{KeyId: id}}}
}

func authority(digit string, active, end int64) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: &commandv1.PutAuthority{
		Id: print64(digit), RootId: print64("f"), Cert: []byte{1}, Root: []byte{2}, SealedKey: "sealed", ActiveAt: active, NotAfter: end,
	}}}
}

func dropAuthority(digit string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DropAuthority{DropAuthority: &commandv1.DropAuthority{Id: print64(digit)}}}
}

func joinToken(w *world, id, role string, opts ...func(*commandv1.PutToken)) Command {
	b := &commandv1.PutToken{Id: id, SecretSha256: hash(1), Role: role, Uses: 1, ExpiresAt: w.now + 60*minute}
	if role == "user" {
		b.Access = "viewer"
	}
	for _, f := range opts {
		f(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutToken{PutToken: b}}
}

func uses(n uint32) func(*commandv1.PutToken) { return func(b *commandv1.PutToken) { b.Uses = n } }

func dropToken(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DropToken{DropToken: &commandv1.DropToken{Id: id}}}
}

// join returns a command that admits an identity with a token. opts change the command.
func join(w *world, tok, role, name string, opts ...func(*commandv1.Admit)) Command {
	b := &commandv1.Admit{
		Token: tok, SecretSha256: hash(1), Role: role, Name: name, KeySha256: hash(7), Fingerprint: print64("a"),
		IssuedAt: w.now + second, NotAfter: w.now + day,
	}
	if tok == "" {
		b.SecretSha256 = nil
	}
	for _, f := range opts {
		f(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_Admit{Admit: b}}
}

func keyOf(b byte) func(*commandv1.Admit) {
	return func(a *commandv1.Admit) { a.KeySha256 = hash(b) }
}

func revoke(role, name, print string) Command {
	return &commandv1.Command{Body: &commandv1.Command_Revoke{Revoke: &commandv1.Revoke{Role: role, Name: name, Fingerprint: print, Reason: "stolen"}}}
}

func events(s State, kind string) (out []*Event) {
	s.Events(0, func(e *Event) bool {
		if e.Type == kind {
			out = append(out, e)
		}
		return true
	})
	return out
}

func proveTrust(t *testing.T, facts []fact) {
	t.Helper()
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a")) })
	}
}

func TestClusterKey(t *testing.T) {
	proveTrust(t, []fact{
		{"the first cluster key cannot be replaced", func(t *testing.T, w *world) {
			w.ok(pin("00112233aabbccdd"))
			is(t, "verdict on the repeated command", w.do(pin("00112233aabbccdd")).Kind, AlreadyDone)
			refused(t, w.do(pin("ffffffffffffffff")), Conflict, "00112233aabbccdd", "ffffffffffffffff")
			is(t, "ClusterKeyID in the state", w.s.Info().ClusterKeyID, "00112233aabbccdd")
		}},
		{"a malformed id of a cluster key is refused", func(t *testing.T, w *world) {
			refused(t, w.do(pin("00112233AABBCCDD")), Invalid, "key_id")
			refused(t, w.do(pin("")), Invalid, "key_id")
		}},
		{"the cluster key may be pinned in a frozen mode", func(t *testing.T, w *world) {
			w.ok(setMode("degraded", "etcd is away"))
			w.ok(pin("00112233aabbccdd"))
		}},
	})
}

func TestCertificateAuthorities(t *testing.T) {
	issuer := func(w *world, at int64) string {
		a, ok := w.s.Issuer(at)
		if !ok {
			return ""
		}
		return a.ID[:1]
	}
	proveTrust(t, []fact{
		{"the authority that became active last issues certificates", func(t *testing.T, w *world) {
			end := w.now + 10*day
			is(t, "issuing authority before any is stored", issuer(w, w.now), "")
			w.ok(authority("1", w.now, end))
			w.ok(authority("2", w.now+day, end))
			is(t, "issuing authority at the present time", issuer(w, w.now), "1")
			is(t, "issuing authority after the second one became active", issuer(w, w.now+2*day), "2")
			is(t, "issuing authority after both have expired", issuer(w, end), "")
		}},
		{"the issuing authority cannot be dropped", func(t *testing.T, w *world) {
			w.ok(authority("1", w.now, w.now+10*day))
			refused(t, w.do(dropAuthority("1")), Conflict, "install another CA first")
			w.ok(authority("2", w.now, w.now+10*day))
			w.ok(dropAuthority("1"))
			refused(t, w.do(dropAuthority("1")), NotFound, "does not exist")
		}},
		{"the activation time of an authority can be changed", func(t *testing.T, w *world) {
			w.ok(authority("1", w.now+day, w.now+10*day))
			is(t, "verdict on the repeated command", w.do(authority("1", w.now-second+day, w.now+10*day)).Kind, AlreadyDone)
			w.ok(authority("1", w.now, w.now+10*day))
			is(t, "issuing authority at the present time", issuer(w, w.now), "1")
		}},
		{"an expired authority is refused", func(t *testing.T, w *world) {
			refused(t, w.do(authority("1", w.now-day, w.now)), Invalid, "not_after")
			refused(t, w.do(authority("1", w.now+day, w.now+day)), Invalid, "active_at")
		}},
		{"the number of authorities is bounded", func(t *testing.T, w *world) {
			for i := range MaxAuthorities {
				w.ok(authority(string("0123456789"[i]), w.now, w.now+day))
			}
			refused(t, w.do(authority("9", w.now, w.now+day)), Conflict, "at most 8")
		}},
	})
}

func TestJoinTokens(t *testing.T) {
	proveTrust(t, []fact{
		{"a token with one use admits one identity", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.ok(join(w, "t1", "agent", "n1"))
			refused(t, w.do(join(w, "t1", "agent", "n2", keyOf(8))), Denied, "used up")
			is(t, "number of events Joined", len(events(w.s, EventJoined)), 1)
			is(t, "node in the event of the refused join", events(w.s, EventJoinRefused)[0].Node, "n2")
			a, ok := w.s.Admission("agent", "n1")
			is(t, `agent "n1" has an admission with token "t1"`, ok && a.Token == "t1", true)
		}},
		{"a repeated admission with the same key gets the same answer", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.ok(join(w, "t1", "agent", "n1"))
			w.ok(join(w, "t1", "agent", "n1"))
			refused(t, w.do(join(w, "t1", "agent", "n1", keyOf(8))), Denied, "used up")
		}},
		{"a wrong secret is refused and uses up no admission", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			refused(t, w.do(join(w, "t1", "agent", "n1", func(a *commandv1.Admit) { a.SecretSha256 = hash(2) })), Denied, "secret")
			w.ok(join(w, "t1", "agent", "n1"))
		}},
		{"an unknown or deleted token is refused", func(t *testing.T, w *world) {
			refused(t, w.do(join(w, "t1", "agent", "n1")), NotFound, "does not belong to this cluster")
			w.ok(joinToken(w, "t1", "agent"))
			w.ok(dropToken("t1"))
			refused(t, w.do(join(w, "t1", "agent", "n1")), NotFound, "deleted")
			is(t, "number of events JoinRefused", len(events(w.s, EventJoinRefused)), 2)
		}},
		{"an expired token is refused as expired", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.now += 61 * minute
			refused(t, w.do(join(w, "t1", "agent", "n1")), Denied, "expired at")
		}},
		{"a token is valid for one role", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			refused(t, w.do(join(w, "t1", "scheduler", "s1")), Denied, "role agent")
		}},
		{"a token grants one access level", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "user"))
			admin := func(a *commandv1.Admit) { a.Access = "admin" }
			refused(t, w.do(join(w, "t1", "user", "ada", admin)), Denied, "viewer", "admin")
		}},
		{"a token may be valid for one name only", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent", func(b *commandv1.PutToken) { b.Name = "n1" }))
			refused(t, w.do(join(w, "t1", "agent", "n2")), Denied, `"n1"`, `"n2"`)
			w.ok(join(w, "t1", "agent", "n1"))
		}},
		{"a token with several uses cannot replace an existing identity", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent", uses(5)))
			w.ok(join(w, "t1", "agent", "n1"))
			refused(t, w.do(join(w, "t1", "agent", "n1", keyOf(8))), Denied, "exists already")
			refused(t, w.do(join(w, "t1", "agent", "a", keyOf(9))), Denied, "exists already")
			w.ok(revoke("agent", "n3", ""))
			refused(t, w.do(join(w, "t1", "agent", "n3", keyOf(9))), Denied, "revoked")
			w.ok(joinToken(w, "t2", "agent", func(b *commandv1.PutToken) { b.Name = "n1" }))
			w.ok(join(w, "t2", "agent", "n1", keyOf(8)))
		}},
		{"a token grants hosts, and renewals keep them", func(t *testing.T, w *world) {
			hosts := []string{"gw.example.com", "192.0.2.1"}
			with := func(list ...string) func(*commandv1.Admit) {
				return func(a *commandv1.Admit) { a.Hosts = list }
			}
			w.ok(joinToken(w, "t1", "gateway", func(b *commandv1.PutToken) { b.Hosts = hosts }))
			refused(t, w.do(join(w, "t1", "gateway", "g1")), Denied, "gw.example.com")
			refused(t, w.do(join(w, "t1", "gateway", "g1", with("bank.example.com"))), Denied, "bank.example.com")
			w.ok(join(w, "t1", "gateway", "g1", with(hosts...)))
			refused(t, w.do(join(w, "", "gateway", "g1", with(append(hosts, "x")...))), Denied, "renewal")
			w.ok(join(w, "", "gateway", "g1", with(hosts...)))
			a, _ := w.s.Admission("gateway", "g1")
			is(t, "hosts of the admission", strings.Join(a.Hosts, " "), strings.Join(hosts, " "))
			for _, bad := range [][]string{{"*.example.com"}, {""}, {"a b"}, {"fe80::1%eth0"}, make([]string, MaxTokenHosts+1)} {
				refused(t, w.do(joinToken(w, "t2", "gateway", func(b *commandv1.PutToken) { b.Hosts = bad })), Invalid, "hosts")
			}
			refused(t, w.do(joinToken(w, "t2", "user", func(b *commandv1.PutToken) { b.Hosts = hosts })), Invalid, "hosts")
		}},
		{"no token admits user admin", func(t *testing.T, w *world) {
			refused(t, w.do(joinToken(w, "t1", "user", func(b *commandv1.PutToken) { b.Name = "admin" })), Invalid, "reserved")
			w.ok(joinToken(w, "t1", "user"))
			viewer := func(a *commandv1.Admit) { a.Access = "viewer" }
			refused(t, w.do(join(w, "t1", "user", "admin", viewer)), Denied, "reserved")
			w.ok(joinToken(w, "t2", "agent", func(b *commandv1.PutToken) { b.Name = "admin" }))
			w.ok(join(w, "", "user", "admin", viewer)) // admitted without a token, as when the first scheduler forms the cluster
		}},
		{"invalid tokens are refused", func(t *testing.T, w *world) {
			refused(t, w.do(joinToken(w, "t1", "root")), Invalid, "role")
			refused(t, w.do(joinToken(w, "t1", "agent", uses(0))), Invalid, "uses")
			refused(t, w.do(joinToken(w, "t1", "agent", uses(MaxTokenUses+1))), Invalid, "uses")
			refused(t, w.do(joinToken(w, "t1", "agent", uses(2), func(b *commandv1.PutToken) { b.Name = "n1" })), Invalid, "can be used once")
			refused(t, w.do(joinToken(w, "t1", "agent", func(b *commandv1.PutToken) { b.Access = "admin" })), Invalid, "access")
			refused(t, w.do(joinToken(w, "t1", "user", func(b *commandv1.PutToken) { b.Access = "god" })), Invalid, "access")
			refused(t, w.do(joinToken(w, "t1", "user", func(b *commandv1.PutToken) { b.Name = "anonymous" })), Invalid, "reserved")
			refused(t, w.do(joinToken(w, "t1", "agent", func(b *commandv1.PutToken) { b.ExpiresAt = w.now })), Invalid, "expires_at")
			refused(t, w.do(joinToken(w, "t1", "agent", func(b *commandv1.PutToken) { b.ExpiresAt += int64(MaxTokenLife) })), Invalid, "expires_at")
			refused(t, w.do(joinToken(w, "t1", "agent", func(b *commandv1.PutToken) { b.SecretSha256 = nil })), Invalid, "secret")
			w.ok(joinToken(w, "t1", "agent"))
			refused(t, w.do(joinToken(w, "t1", "agent")), Conflict, "exists")
		}},
		{"tokens that expired long ago are dropped", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.now += int64(MaxTokenLife) + 2*60*minute
			w.ok(joinToken(w, "t2", "agent"))
			_, ok := w.s.Token("t1")
			is(t, `the expired token "t1" has a record`, ok, false)
		}},
	})
}

func TestRenewalAndRevocation(t *testing.T) {
	proveTrust(t, []fact{
		{"a certificate is renewed", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.ok(join(w, "t1", "agent", "n1"))
			w.ok(join(w, "", "agent", "n1", keyOf(8)))
			a, _ := w.s.Admission("agent", "n1")
			is(t, "token in the admission after the renewal", a.Token, "t1")
			is(t, "number of events CertificateRenewed", len(events(w.s, EventCertificateRenewed)), 1)
		}},
		{"a certificate from before a revocation is not renewed", func(t *testing.T, w *world) {
			w.ok(joinToken(w, "t1", "agent"))
			w.ok(join(w, "t1", "agent", "n1"))
			w.ok(revoke("agent", "n1", ""))
			refused(t, w.do(join(w, "", "agent", "n1", keyOf(8))), Denied, "revoked")
			refused(t, w.do(join(w, "t1", "agent", "n1")), Denied, "revoked")
			w.ok(joinToken(w, "t2", "agent", func(b *commandv1.PutToken) { b.Name = "n1" }))
			w.now += second
			w.ok(join(w, "t2", "agent", "n1", keyOf(8)))
			w.ok(join(w, "", "agent", "n1", keyOf(9)))
		}},
		{"a renewal cannot raise the access level", func(t *testing.T, w *world) {
			viewer := func(a *commandv1.Admit) { a.Access = "viewer" }
			admin := func(a *commandv1.Admit) { a.Access = "admin" }
			w.ok(joinToken(w, "t1", "user"))
			w.ok(join(w, "t1", "user", "ada", viewer))
			refused(t, w.do(join(w, "", "user", "ada", admin)), Denied, "viewer", "admin")
		}},
		{"one certificate is revoked by its fingerprint", func(t *testing.T, w *world) {
			w.ok(revoke("", "", print64("a")))
			_, ok := w.s.RevokedCertificate(print64("a"))
			is(t, "the certificate is revoked", ok, true)
			_, ok = w.s.RevokedCertificate(print64("b"))
			is(t, "another certificate is revoked", ok, false)
			refused(t, w.do(revoke("agent", "a", print64("a"))), Invalid, "not both")
			refused(t, w.do(revoke("", "", "abc")), Invalid, "fingerprint")
			refused(t, w.do(revoke("agent", "../x", "")), Invalid, "name")
		}},
		{"the trust version grows with every change", func(t *testing.T, w *world) {
			before := w.s.Info().TrustVersion
			w.ok(revoke("agent", "n1", ""))
			is(t, "the revocation raises the trust version", w.s.Info().TrustVersion > before, true)
		}},
	})
}

func TestAuditEventsOfCallers(t *testing.T) {
	from := func(w *world, c Command) Command {
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/ada", From: "10.1.2.3:4567", Request: requestAt(w.now, uint32(w.index))}
		return c
	}
	last := func(w *world) *Event {
		var e *Event
		w.s.EventsBack(func(x *Event) bool { e = x; return false })
		return e
	}
	proveTrust(t, []fact{
		{"an event names the caller and its address", func(t *testing.T, w *world) {
			w.ok(from(w, put("web")))
			e := events(w.s, EventWorkloadCreated)[0]
			is(t, "caller in the event", e.By, "persys://c/user/ada")
			is(t, "detail from of the event", e.Details[len(e.Details)-1], Label{"from", "10.1.2.3:4567"})
		}},
		{"an event names the gateway", func(t *testing.T, w *world) {
			through := func(c Command) Command {
				c = from(w, c)
				c.Head.Via = "persys://c/gateway/g"
				return c
			}
			w.ok(through(put("api")))
			is(t, "detail of the event WorkloadCreated", w.eventOf(EventWorkloadCreated).Details[1], Label{"via", "persys://c/gateway/g"})
			w.ok(from(w, put("db")))
			is(t, "number of details in the event of a call without a gateway", len(w.eventOf(EventWorkloadCreated).Details), 1)
		}},
		{"a refused command is audited", func(t *testing.T, w *world) {
			refused(t, w.do(from(w, setDesired("none", "Stopped"))), NotFound)
			e := last(w)
			is(t, "type of the event", e.Type, EventMutation)
			is(t, "result in the event", e.Reason, "not found")
			is(t, "detail command of the event", e.Details[0], Label{"command", "set_desired"})
			is(t, "detail from of the event", e.Details[1], Label{"from", "10.1.2.3:4567"})
		}},
		{"a command without changes is audited", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(from(w, put("web")))
			is(t, "type of the event", last(w).Type, EventMutation)
			is(t, "result in the event", last(w).Reason, "ok")
		}},
		{"a repeated request is not audited again", func(t *testing.T, w *world) {
			c := from(w, setDesired("none", "Stopped"))
			w.do(c)
			n := w.s.Info().EventSeq
			is(t, "the answer comes from a receipt", w.do(c).Duplicate, true)
			is(t, "EventSeq in the state", w.s.Info().EventSeq, n)
		}},
		{"commands of the leader are not audited", func(t *testing.T, w *world) {
			n := w.s.Info().EventSeq
			w.do(setDesired("none", "Stopped"))
			is(t, "EventSeq in the state", w.s.Info().EventSeq, n)
		}},
		{"audit records of refusals by the API are kept", func(t *testing.T, w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventCallRefused, Message: "m"}}})
			is(t, "type of the event", last(w).Type, EventCallRefused)
			refused(t, w.do(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventNodeLost}}}), Invalid, "type")
		}},
		{"audit records of sessions are kept", func(t *testing.T, w *world) {
			opened := &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventSessionOpened, Message: "sh", Workload: "web", Node: "a"}}}
			w.ok(opened)
			is(t, "type of the event", last(w).Type, EventSessionOpened)
			is(t, "workload and node of the event SessionOpened", last(w).Workload+" on "+last(w).Node, "web on a")
		}},
	})
}

// trust draws a random command about certificates, tokens or admissions. Its names come from small
// sets, so that many commands are about an existing record.
func (g *stream) trust() Command {
	w := &world{now: g.now}
	digit := g.pick("authority", "1", "2", "3")
	tok, role, name := g.pick("token", "t1", "t2"), g.pick("role", "agent", "agent", "scheduler", "user"), g.pick("name", "a", "n1", "n2")
	switch g.n("trust", 0, 9) {
	case 0:
		return pin(g.odd("key", "x", "00112233aabbccdd", "ffeeddccbbaa9988"))
	case 1:
		return authority(digit, g.now+int64(g.n("active", -1, 1))*day, g.now+int64(g.n("end", 0, 3))*day)
	case 2:
		return dropAuthority(digit)
	case 3, 4:
		return joinToken(w, tok, role, uses(uint32(g.n("uses", 0, 3))))
	case 5:
		return dropToken(tok)
	case 6, 7:
		return join(w, tok, role, name, keyOf(byte(g.n("key", 1, 2))), func(a *commandv1.Admit) {
			if role == "user" {
				a.Access = "viewer"
			}
		})
	case 8:
		return revoke(g.pick("of", "agent", "user"), name, "")
	}
	if g.bool("level") {
		return setLevel(FeatureLevel)
	}
	return putReplica(g.pick("replica", "r1", "r2"), FeatureLevel)
}

// TestRestoredIdentities: a newly formed cluster has only the identities of its scheduler and admin, and gets
// the others from the backup. A restore into the running cluster that made the backup adds no identities.
func TestRestoredIdentities(t *testing.T) {
	user := func(w *world, name, access string) {
		token := ""
		if name != adminName { // only the admin is admitted without a token
			token = name
			w.ok(joinToken(w, name, "user", func(b *commandv1.PutToken) { b.Access = access }))
		}
		w.ok(join(w, token, "user", name, func(a *commandv1.Admit) { a.Access = access }))
	}
	w := formed(t)
	user(w, "ada", "viewer")
	user(w, "admin", "viewer")
	w.ok(joinToken(w, "t2", "scheduler"))
	w.ok(join(w, "t2", "scheduler", "s2"))
	backup := w.s
	fresh := formedAgain(w)
	user(fresh, "admin", "admin")
	s := restored(t, backup, fresh.s)
	for name, want := range map[string]string{"ada": "viewer", "admin": "admin"} {
		a, ok := s.Admission("user", name)
		is(t, name, ok && a.Access == want, true)
	}
	anew := fresh.withState(s)
	anew.now = later
	anew.ok(joinToken(anew, "t3", "scheduler", uses(2)))
	anew.ok(join(anew, "t3", "scheduler", "s2"))
	now := formed(t)
	user(now, "bob", "viewer")
	_, ok := restored(t, backup, now.s).Admission("user", "ada")
	is(t, "the restored cluster has an identity that only the backup has", ok, false)
}

// TestMaxTokenLife: MaxTokenLife is the limit that the help text of persysctl states.
func TestMaxTokenLife(t *testing.T) { is(t, "life", MaxTokenLife, 168*time.Hour) }
