package fsm

import (
	"bytes"
	"fmt"
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
		t.Errorf("the audit log keeps %d refused calls, the oldest is %s; want MaxAuditRefusals, the oldest from index 101", len(refusals), refusals[0])
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
				t.Errorf("audit log %s: %d records, want %d", l, len(got), len(want))
			}
			if again.AuditLast(l) != s.AuditLast(l) || again.r.audit.of(l).head != s.r.audit.of(l).head {
				t.Errorf("audit log %s must keep its last number and hash in a snapshot, but one of them changed", l)
			}
		}
	})
	t.Run("Check finds a changed audit record", func(t *testing.T) {
		tx := s.Begin()
		tx.r.audit = tx.r.audit.clone()
		a := &tx.r.audit.changes
		a.records.At(a.records.Len() - 1).Event.By = "somebody else"
		if err := tx.Commit().Check(); err == nil || !strings.Contains(err.Error(), "wrong hash") {
			t.Errorf("Check returned %v", err)
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
		t.Errorf("the audit log keeps %d records of %d bytes, the oldest has number %d; want 10, 10000 and 41", n, a.bytes, a.records.At(0).Number)
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
	is(t, "records of security", len(want), 3)

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
	long := strings.Repeat("x", 1024) // the bound of the bytes is reached before that of the number
	for i := range MaxAuditChangeBytes / len(long) {
		kind := []string{EventSessionOpened, EventSecretShown, EventCallMade}[i%3]
		attack(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: kind, Namespace: "shop", Message: long, Details: []*commandv1.Label{{Key: "call", Value: "remove replica"}}}}})
	}
	s := tx.Commit()
	if got := auditOf(s, AuditSecurity); !slices.Equal(got, want) {
		t.Errorf("after %d updates of a confined operator, the log of security has %.300q, want %q", updates, got, want)
	}
	if a := s.r.audit.changes; a.records.At(0).Number < updates {
		t.Errorf("the log of changes still has record %d, so it was never full", a.records.At(0).Number)
	}
}

// TestSecurityEvents: every event of a call that needs an administrative permission is in the log of security.
func TestSecurityEvents(t *testing.T) {
	for kind, want := range map[string]AuditLog{
		EventRoleBound: AuditSecurity, EventNamespaceChanged: AuditSecurity, EventTokenCreated: AuditSecurity, EventSecretShown: AuditSecurity,
		EventWorkloadUpdated: AuditChanges, EventSessionOpened: AuditChanges, EventCertificateRenewed: AuditChanges, EventConsoleLinked: AuditChanges,
		EventCallRefused: AuditRefusals, EventMutation: AuditRefusals,
	} {
		tx := formed(t).s.Begin()
		tx.caller = "192.0.2.1"
		is(t, kind, tx.auditLogOf(&Event{Type: kind}), want)
	}
	tx := formed(t).s.Begin()
	is(t, "an event that no call caused", tx.auditLogOf(&Event{Type: EventTokenDeleted}), "")
	is(t, "a restore", tx.auditLogOf(&Event{Type: EventClusterRestored}), AuditSecurity)
	tx.caller, tx.joinedAgain = "192.0.2.1", true
	is(t, "a join that was made before", tx.auditLogOf(&Event{Type: EventJoined}), AuditChanges)
}
