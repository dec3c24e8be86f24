package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func linkConsole(id, user string, code, end int64) Command {
	return &commandv1.Command{Body: &commandv1.Command_LinkConsole{LinkConsole: &commandv1.LinkConsole{
		Id: id, User: user, CodeSha256: hash(1), CodeExpiresAt: code, ExpiresAt: end,
	}}}
}

func openConsole(id string, code byte) Command {
	return &commandv1.Command{Body: &commandv1.Command_OpenConsole{OpenConsole: &commandv1.OpenConsole{
		Id: id, CodeSha256: hash(code), TokenSha256: hash(9), From: "10.0.0.7",
	}}}
}

func endConsole(id, user string) Command {
	return &commandv1.Command{Body: &commandv1.Command_EndConsole{EndConsole: &commandv1.EndConsole{Id: id, User: user}}}
}

func TestConsoles(t *testing.T) {
	hour := 3600 * second
	link := func(w *world, id, user string) Command { return linkConsole(id, user, w.now+600*second, w.now+12*hour) }
	there := func(w *world, id string) bool { _, ok := w.s.Console(id); return ok }
	proveTrust(t, []fact{
		{"a code opens its session once", func(t *testing.T, w *world) {
			w.ok(link(w, "s1", "ada"))
			refused(t, w.do(openConsole("s1", 2)), Denied, "wrong")
			refused(t, w.do(openConsole("s2", 1)), Denied, "wrong")
			w.ok(openConsole("s1", 1))
			c, _ := w.s.Console("s1")
			is(t, "the session is open, with its user, token and address", c.OpenedAt == w.now && c.From == "10.0.0.7" && c.TokenHash[0] == 9 && c.User == "ada", true)
			refused(t, w.do(openConsole("s1", 1)), Denied, "used already", "10.0.0.7")
		}},
		{"a one-time code expires before its session", func(t *testing.T, w *world) {
			w.ok(link(w, "s1", "ada"))
			w.now += 600 * second
			refused(t, w.do(openConsole("s1", 1)), Denied, "expired")
		}},
		{"one-time codes and sessions have a maximum lifetime", func(t *testing.T, w *world) {
			refused(t, w.do(linkConsole("s1", "ada", w.now, w.now+hour)), Invalid, "code_expires_at")
			refused(t, w.do(linkConsole("s1", "ada", w.now+2*hour, w.now+3*hour)), Invalid, "code_expires_at")
			refused(t, w.do(linkConsole("s1", "ada", w.now+second, w.now+25*hour)), Invalid, "expires_at")
			refused(t, w.do(linkConsole("s1", "ada", w.now+hour, w.now+second)), Invalid, "expires_at")
			refused(t, w.do(linkConsole("s 1", "ada", w.now+hour, w.now+hour)), Invalid, "id")
			refused(t, w.do(linkConsole("s1", "", w.now+hour, w.now+hour)), Invalid, "name")
		}},
		{"a command ends one session, or all sessions of a user", func(t *testing.T, w *world) {
			for _, id := range []string{"s1", "s2", "s3"} {
				w.ok(link(w, id, "ada"))
			}
			w.ok(link(w, "s4", "bob"))
			refused(t, w.do(endConsole("", "")), Invalid, "exactly one")
			refused(t, w.do(endConsole("s9", "")), NotFound, "s9")
			w.ok(endConsole("s2", ""))
			is(t, "session s1 is kept, and session s2 is removed", there(w, "s1") && !there(w, "s2"), true)
			w.ok(endConsole("", "ada"))
			is(t, "sessions s1 and s3 of ada are removed, and session s4 of bob is kept", !there(w, "s1") && !there(w, "s3") && there(w, "s4"), true)
			is(t, "verdict on the repeated command", w.do(endConsole("", "ada")).Kind, AlreadyDone)
		}},
		{"the sessions of a revoked user, or of a revoked certificate, end", func(t *testing.T, w *world) {
			for i, name := range []string{adminName, "ada", "bob"} {
				w.ok(join(w, "", "user", name, func(b *commandv1.Admit) {
					b.Access, b.Fingerprint = "admin", print64(decimal(i))
				}))
				w.ok(link(w, "of-"+name, name))
			}
			w.ok(revoke("user", "ada", ""))
			w.ok(revoke("", "", print64("2")))
			is(t, "the session of admin is kept, and those of the revoked ada and bob end", there(w, "of-admin") && !there(w, "of-ada") && !there(w, "of-bob"), true)
			is(t, "number of events ConsoleEnded", len(events(w.s, EventConsoleEnded)), 2)
		}},
		{"a session that was not opened in time does not count against the maximum", func(t *testing.T, w *world) {
			for i := range MaxConsolesOfUser {
				w.ok(link(w, "s"+decimal(i), "ada"))
			}
			refused(t, w.do(link(w, "more", "ada")), Conflict, "session end")
			w.ok(openConsole("s0", 1))
			w.now += 600 * second
			w.ok(link(w, "more", "ada"))
			is(t, "session s0, which is open, is kept, and session s1, whose code has expired, is removed", there(w, "s0") && !there(w, "s1"), true)
		}},
	})
}

// TestConsolesDoNotReturnFromABackup: after a restore, the token of a session that ended after the
// backup was made is not valid.
func TestConsolesDoNotReturnFromABackup(t *testing.T) {
	w := formed(t)
	w.ok(linkConsole("old", "ada", w.now+600*second, w.now+3600*second))
	w.ok(openConsole("old", 1))
	fresh := formedAgain(w)
	fresh.ok(linkConsole("now", "ada", fresh.now+600*second, fresh.now+3600*second))
	s, err := Restored(w.s, fresh.s, RestoreInfo{At: fresh.now, By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	_, old := s.Console("old")
	_, now := s.Console("now")
	is(t, "the ended session is gone, and the present session is kept", !old && now, true)
}

// consolesScenario is a scenario of the golden corpus: sessions of the web console.
func consolesScenario(w *world) {
	link := func(id, user string) { w.do(linkConsole(id, user, w.now+600*second, w.now+3600*second)) }
	w.do(join(w, "", "user", adminName, func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = "admin", w.now, w.now+second }))
	w.do(join(w, "", "user", "ada", func(b *commandv1.Admit) { b.Access, b.IssuedAt, b.NotAfter = "viewer", w.now, w.now+3600*second }))
	link("s1", "ada")
	link("s1", "ada")
	link("s2", "ada")
	link("s3", adminName)
	link("", "ada")
	w.do(openConsole("s1", 1))
	w.do(openConsole("s1", 1))
	w.do(openConsole("s2", 3))
	w.do(endConsole("s2", ""))
	w.do(endConsole("s2", ""))
	w.do(endConsole("", "bob"))
	w.do(revoke("user", "ada", ""))
	w.now += 600 * second
	w.do(openConsole("s3", 1))
	link("s4", adminName)
	w.do(openConsole("s4", 1))
	w.do(endConsole("", adminName))
}
