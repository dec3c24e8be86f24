package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// auditOf returns the records of an audit log as text.
func auditOf(s State, l AuditLog) (out []string) {
	s.Audit(l, 0, func(_ AuditHash, r *AuditRecord) bool {
		out = append(out, fmt.Sprintf("%d %s %s", r.Number, r.Event.Type, r.Event.Message))
		return true
	})
	return out
}

func refusedCall(from string, n int) *commandv1.Command {
	return &commandv1.Command{
		Head: &commandv1.Head{At: second, By: "persys://c/user/vera", From: from},
		Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventCallRefused, Message: fmt.Sprint("refused ", n)}},
	}
}

// TestAuditOutlivesEvents: neither ordinary events nor refused calls push a change out of the audit log.
func TestAuditOutlivesEvents(t *testing.T) {
	w := formed(t)
	change := put("web")
	change.Head = &commandv1.Head{At: w.now, By: "persys://c/user/ada", From: "192.0.2.7"}
	w.ok(change)
	changes := auditOf(w.s, AuditChanges)
	if len(changes) == 0 {
		t.Fatal("the audit log must keep the record of the change, but it has none")
	}
	tx := w.s.Begin()
	for i := range MaxAuditRefusals + 100 {
		tx.Apply(Meta{Index: w.s.Info().Index + 1 + uint64(i), Term: 1}, refusedCall("192.0.2.9", i))
	}
	s := tx.Commit()
	if got := auditOf(s, AuditChanges); len(got) < len(changes) || got[0] != changes[0] {
		t.Errorf("the audit log of changes begins with %v, want %v", got, changes)
	}
	refusals := auditOf(s, AuditRefusals)
	if len(refusals) != MaxAuditRefusals || refusals[0] != fmt.Sprintf("101 %s refused 100", EventCallRefused) {
		t.Errorf("the audit log \"refusals\" has %d records, the oldest is %s; want MaxAuditRefusals records, of which the oldest has number 101", len(refusals), refusals[0])
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	t.Run("a snapshot keeps the audit logs", func(t *testing.T) {
		var b bytes.Buffer
		if err := s.WriteSnapshot(&b); err != nil {
			t.Fatal(err)
		}
		again, err := ReadSnapshot(&b)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range AuditLogs() {
			if got, want := auditOf(again, l), auditOf(s, l); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("after a snapshot, audit log %s has %d records, want the same %d as before", l, len(got), len(want))
			}
			if again.AuditLast(l) != s.AuditLast(l) || again.r.audit.of(l).head != s.r.audit.of(l).head {
				t.Errorf("audit log %s must keep its last number and hash in a snapshot, but the number or the hash changed", l)
			}
		}
	})
	t.Run("Check finds a changed audit record", func(t *testing.T) {
		tx := s.Begin()
		tx.r.audit = tx.r.audit.clone()
		a := &tx.r.audit.changes
		a.records.At(a.records.Len() - 1).Event.By = "somebody else"
		if err := tx.Commit().Check(); err == nil || !strings.Contains(err.Error(), "wrong hash") {
			t.Errorf("Check of an audit log with a changed record returned error %v, want one that says \"wrong hash\"", err)
		}
	})
}

// TestAuditIsBoundedByBytes: long records push the oldest records out before the maximum number of
// records is reached.
func TestAuditIsBoundedByBytes(t *testing.T) {
	a := newAuditLogs().changes
	for i := range 50 {
		a.add(Event{Seq: uint64(i), Message: strings.Repeat("x", 744)}, 100, 10_000)
	}
	if n := a.records.Len(); n != 10 || a.bytes != 10_000 || a.records.At(0).Number != 41 {
		t.Errorf("the audit log keeps %d records of %d bytes, the oldest has number %d; want 10 records of 10000 bytes, the oldest with number 41", n, a.bytes, a.records.At(0).Number)
	}
}

// TestOrdinaryUpdatesKeepSecurityRecords: a confined operator makes more updates, joins and sessions than the log of
// changes can hold. The records of an admin stay.
func TestOrdinaryUpdatesKeepSecurityRecords(t *testing.T) {
	w := formed(t)
	admin := func(c Command) Command {
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/admin", From: "192.0.2.1"}
		return c
	}
	w.ok(admin(putNamespace("shop")))
	w.ok(admin(putRole("shopper", "read", "deploy")))
	w.ok(admin(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
		Type: EventCallMade, Message: "replica s3", Details: []*commandv1.Label{{Key: "call", Value: "remove replica"}}}}}))
	want := auditOf(w.s, AuditSecurity)
	is(t, "number of records in the security log", len(want), 3)

	confined := func(c Command) Command {
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/vera", From: "192.0.2.9", Namespaces: []string{"shop"}}
		return c
	}
	tx := w.s.Begin()
	index := w.s.Info().Index
	attack := func(c Command) {
		t.Helper()
		index++
		if res, _ := tx.Apply(Meta{Index: index, Term: 1}, confined(c)); res.Kind != OK {
			t.Fatal(res.Reason)
		}
	}
	const updates = 3000
	for i := range updates {
		attack(put("web", inNamespace("shop"), specOf(1+i%2)))
	}
	long := strings.Repeat("x", 1024) // the log reaches its limit of bytes before its limit of records
	for i := range MaxAuditChangeBytes / len(long) {
		kind := []string{EventSessionOpened, EventSecretShown, EventCallMade}[i%3]
		attack(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: kind, Namespace: "shop", Message: long, Details: []*commandv1.Label{{Key: "call", Value: "remove replica"}}}}})
	}
	s := tx.Commit()
	if got := auditOf(s, AuditSecurity); !slices.Equal(got, want) {
		t.Errorf("after %d updates of a confined operator, the security log has %.300q, want %q", updates, got, want)
	}
	if a := s.r.audit.changes; a.records.At(0).Number < updates {
		t.Errorf("the log of changes still has record %d, so it was never full", a.records.At(0).Number)
	}
}

// TestAuditLogOfAnEvent: an event is copied into one audit log, by its type and by the call that caused it.
func TestAuditLogOfAnEvent(t *testing.T) {
	for kind, want := range map[string]AuditLog{
		EventRoleBound: AuditSecurity, EventTokenCreated: AuditSecurity,
		EventWorkloadUpdated: AuditChanges, EventSessionOpened: AuditChanges, EventCertificateRenewed: AuditChanges, EventConsoleLinked: AuditChanges, EventSecretShown: AuditChanges,
		EventCallRefused: AuditRefusals, EventMutation: AuditRefusals,
	} {
		tx := formed(t).s.Begin()
		tx.caller = "192.0.2.1"
		is(t, kind, tx.auditLogOf(&Event{Type: kind}), want)
	}
	tx := formed(t).s.Begin()
	is(t, "audit log of an event that no call caused", tx.auditLogOf(&Event{Type: EventTokenDeleted}), "")
	is(t, "audit log of the event of a restore", tx.auditLogOf(&Event{Type: EventClusterRestored}), AuditSecurity)
}

// TestJoinsInTheSecurityLog: the security log has one join of each token, even if the caller limits the call
// to namespaces. The other joins with the same token, and repeats of a join, are in the log of changes.
func TestJoinsInTheSecurityLog(t *testing.T) {
	w := formed(t)
	log := func(c Command) AuditLog {
		t.Helper()
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/anonymous", From: "192.0.2.9", Namespaces: []string{"shop"}}
		tx := w.s.Begin()
		w.index++
		res, _ := tx.Apply(Meta{w.index, w.term}, c)
		w.s = tx.Commit()
		if res.Kind != OK {
			t.Fatal(res.Reason)
		}
		return tx.auditLogOf(events(w.s, EventJoined)[len(events(w.s, EventJoined))-1])
	}
	viewer := func(a *commandv1.Admit) { a.Access = "viewer" }
	w.ok(joinToken(w, "one", "user"))
	is(t, "audit log of a join with a token of one use", log(join(w, "one", "user", "ada", viewer)), AuditSecurity)
	is(t, "audit log of a repeated join with that token", log(join(w, "one", "user", "ada", viewer)), AuditChanges)
	w.ok(joinToken(w, "three", "agent", uses(3)))
	is(t, "audit log of the first join with a token of three uses", log(join(w, "three", "agent", "a")), AuditChanges)
	is(t, "audit log of the second join with that token", log(join(w, "three", "agent", "b")), AuditChanges)
	is(t, "audit log of the third join, which uses up the token", log(join(w, "three", "agent", "c")), AuditSecurity)
	is(t, "audit log of a repeat of the third join", log(join(w, "three", "agent", "c")), AuditChanges)
}

// ordinaryCommands lists the commands about the whole cluster whose events are not in the security log, with
// the reason.
var ordinaryCommands = map[arm]string{
	"init_cluster":         "a scheduler sends it once",
	"register_node":        "agents send it",
	"put_replica":          "schedulers send it",
	"set_feature_level":    "the leader sends it",
	"reseal":               "the leader sends it",
	"cordon_node":          "the role operator may send it",
	"drain_node":           "the role operator may send it",
	"label_node":           "the role operator may send it",
	"taint_node":           "the role operator may send it",
	"move_workloads":       "the role operator may send it",
	"set_rebalance_policy": "the role operator may send it",
	"link_console":         "every person may send it",
	"open_console":         "every person may send it",
	"end_console":          "every person may send it",
}

// alsoCaused lists events that a command of TestSecurityEvents causes besides its own event in the security
// log.
var alsoCaused = []string{EventWorkloadEvicted, EventVolumeDeleted, EventDriftResolved, EventDataDiscarded, EventConsoleEnded}

// TestSecurityEvents: the security log has the audited events of every command that confined callers may not
// send. The exceptions are the commands in ordinaryCommands and the events in alsoCaused. The commands come
// from the golden corpus.
func TestSecurityEvents(t *testing.T) {
	seen, missing := map[arm]bool{}, map[string]bool{}
	runs := []func(*world){func(w *world) { // the golden corpus lacks these commands
		w.ok(attachMirror(7, "a:2379"))
		w.ok(detachMirror())
	}}
	for _, sc := range scenarios {
		runs = append(runs, sc.run)
	}
	for _, run := range runs {
		w := formed(t)
		run(w)
		s := New()
		for i, c := range w.log {
			a := armOf(c)
			if a.planned() || slices.Contains(within[:], a) {
				s, _, _ = s.Apply(Meta{uint64(i + 1), w.term}, c)
				continue
			}
			c.Head.From = "192.0.2.1"
			tx := s.Begin()
			_, changes := tx.Apply(Meta{uint64(i + 1), w.term}, c)
			for _, change := range changes {
				if change.Table != TableEvent {
					continue
				}
				switch e := change.NewEvent(); tx.auditLogOf(e) {
				case AuditSecurity:
					seen[a] = true
				case AuditChanges:
					if ordinaryCommands[a] == "" && !slices.Contains(alsoCaused, e.Type) {
						missing[e.Type+" of "+string(a)] = true
					}
				}
			}
			s = tx.Commit()
		}
	}
	for _, e := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("event %s is in the log of changes, want the security log", e)
	}
	for _, r := range armRules {
		switch reason := ordinaryCommands[r.name]; {
		case r.planned || slices.Contains(within[:], r.name):
		case reason == "" && !seen[r.name]:
			t.Errorf("no event of %s is in the security log", r.name)
		case reason != "" && seen[r.name]:
			t.Errorf("an event of %s is in the security log, so ordinaryCommands must not list it", r.name)
		}
	}
}

// TestUnknownAuditLog: a snapshot with an audit log of a later version says that the replica must be upgraded.
func TestUnknownAuditLog(t *testing.T) {
	w := formed(t)
	c := putNamespace("shop")
	c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/admin", From: "192.0.2.1"}
	w.ok(c)
	later := bytes.ReplaceAll(snapshotBytes(t, w.s), []byte(AuditSecurity), []byte("laterlog"))
	_, err := ReadSnapshot(bytes.NewReader(later))
	if !errors.Is(err, ErrNewer) || !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), `audit log "laterlog" is unknown: upgrade this replica`) {
		t.Errorf("a snapshot with an unknown audit log returned error %v, want ErrNewer", err)
	}
}
