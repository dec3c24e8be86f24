package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// AuditLog names one of the three audit logs. Each log has its own bounds. So ordinary events and refused
// calls cannot push out the records of changes, and ordinary changes cannot push out the records of the
// security log.
type AuditLog string

// The audit logs.
const (
	// AuditSecurity has the changes of rights, limits, trust and membership of the cluster: see
	// securityTypes. Callers who are confined to namespaces, or who have only the built-in roles viewer and
	// operator, cannot fill it with records.
	AuditSecurity AuditLog = "security"
	AuditChanges  AuditLog = "changes"  // other calls that changed the state, and consoles or commands that users opened in workloads
	AuditRefusals AuditLog = "refusals" // refused joins, refused calls, and mutations that changed nothing
)

// AuditLogs lists the audit logs.
func AuditLogs() []AuditLog { return []AuditLog{AuditSecurity, AuditChanges, AuditRefusals} }

// Limits of each audit log. When a limit is exceeded, the oldest records are dropped.
const (
	MaxAuditSecurity      = 20_000
	MaxAuditSecurityBytes = 16 << 20
	MaxAuditChanges       = 50_000
	MaxAuditChangeBytes   = 32 << 20
	MaxAuditRefusals      = 10_000
	MaxAuditRefusalsBytes = 8 << 20
)

// AuditHash is the hash of an audit record.
type AuditHash [sha256.Size]byte

// HashAudit returns the hash of an audit record: SHA-256 over the hash of the record before it, its number
// and its content.
func HashAudit(before AuditHash, number uint64, e *Event) AuditHash {
	b := encoder(slices.Clone(before[:]))
	b = binary.LittleEndian.AppendUint64(b, number)
	b.event(e)
	return sha256.Sum256(b)
}

// AuditRecord is one record of an audit log.
type AuditRecord struct {
	Number uint64 // position in the audit log: 1, 2, 3, without gaps
	Event  Event
	Hash   AuditHash
}

// size returns the size of a record in bytes, as the bounds of the audit logs count it.
func (r *AuditRecord) size() int {
	e := &r.Event
	n := 256 + len(e.Type) + len(e.Workload) + len(e.Node) + len(e.Namespace) + len(e.Reason) + len(e.Message) + len(e.By)
	for _, d := range e.Details {
		n += 32 + len(d.Key) + len(d.Value)
	}
	return n
}

// auditLog holds the records of one audit log.
type auditLog struct {
	records    *queue[AuditRecord]
	last       uint64 // number of the newest audit record
	bytes      int    // size of the kept audit records in bytes
	base, head AuditHash
}

type auditLogs struct{ security, changes, refusals auditLog }

func newAuditLogs() auditLogs {
	empty := func() auditLog { return auditLog{records: &queue[AuditRecord]{}} }
	return auditLogs{empty(), empty(), empty()}
}

func (a *auditLogs) of(l AuditLog) *auditLog {
	switch l {
	case AuditSecurity:
		return &a.security
	case AuditChanges:
		return &a.changes
	case AuditRefusals:
		return &a.refusals
	}
	return nil
}

func (a *auditLogs) clone() auditLogs {
	c := *a
	for _, l := range AuditLogs() {
		c.of(l).records = a.of(l).records.Clone()
	}
	return c
}

func (a *auditLogs) copy() auditLogs {
	c := *a
	for _, l := range AuditLogs() {
		c.of(l).records = a.of(l).records.Copy()
	}
	return c
}

func (l AuditLog) bounds() (records, bytes int) {
	switch l {
	case AuditSecurity:
		return MaxAuditSecurity, MaxAuditSecurityBytes
	case AuditChanges:
		return MaxAuditChanges, MaxAuditChangeBytes
	}
	return MaxAuditRefusals, MaxAuditRefusalsBytes
}

// add appends an event and then drops the oldest records until the audit log is within its bounds.
func (a *auditLog) add(e Event, records, bytes int) {
	r := AuditRecord{Number: a.last + 1, Event: e, Hash: HashAudit(a.head, a.last+1, &e)}
	a.last, a.head = r.Number, r.Hash
	a.records.Append(r)
	a.bytes += r.size()
	for n := a.records.Len(); n > 1 && (n > records || a.bytes > bytes); n-- {
		gone := a.records.At(0)
		a.base = gone.Hash
		a.bytes -= gone.size()
		a.records.Drop(n - 1)
	}
}

// auditLogOf returns the audit log into which an event is copied; "" for none. It copies events
// caused by an API call, events in which a replica reports API calls that it handled, and both
// events of a preemption (one for the workload that gains the place, one for the workload that
// loses it).
func (t *Tx) auditLogOf(e *Event) AuditLog {
	switch e.Type {
	case EventJoinRefused, EventCallRefused, EventMutation:
		return AuditRefusals
	case EventCoreDNSLost, EventCoreDNSBack, EventReplicaCopied:
		return ""
	case EventPreemption:
		return AuditChanges // a preemption is audited although no user requested it: it may take resources from another team
	}
	if t.isSecurity(e) {
		return AuditSecurity
	}
	if t.caller != "" || e.Reason == CodePreempted && e.Type == EventWorkloadEvicted || slices.Contains(auditTypes[:], e.Type) {
		return AuditChanges
	}
	return ""
}

// securityTypes lists the types of the events that belong into the log AuditSecurity if a call of an unconfined caller
// caused them. Events that ordinary use can cause thousands of times, such as renewed certificates, sessions, links to
// the console and shown secrets, are not in the list. isSecurity decides about joins.
var securityTypes = [...]string{
	EventRoleCreated, EventRoleChanged, EventRoleDeleted, EventRoleBound, EventRoleUnbound,
	EventAccountCreated, EventAccountRotated, EventAccountDeleted,
	EventTokenCreated, EventTokenDeleted, EventRevoked,
	EventAuthorityAdded, EventAuthorityDropped, EventClusterKeyPinned, EventClusterKeyRotation, EventGossipRing,
	EventNamespaceCreated, EventNamespaceChanged, EventNamespaceDeleted,
	EventPolicyCreated, EventPolicyChanged, EventPolicyDeleted, EventPolicyBound, EventPolicyUnbound,
	EventModeChanged, EventMirrorAttached, EventMirrorDetached, EventMirrorRestored,
	EventReplicaRemoved, EventNodeFenced, EventNodeRemoved,
}

// auditedCalls lists the calls that are not commands of the Raft log, but whose events belong into
// AuditSecurity. Each call has the name that its audit event has.
var auditedCalls = [...]string{"transfer leadership", "remove replica"}

// isSecurity reports whether an event belongs into the log AuditSecurity.
func (t *Tx) isSecurity(e *Event) bool {
	switch e.Type {
	case EventClusterRestored, EventClusterRecovered:
		return true // a restore and a recovery are not commands of the log, so t.caller is empty here
	case EventCallMade:
		return len(t.confined) == 0 && slices.ContainsFunc(e.Details, func(d Label) bool { return d.Key == "call" && slices.Contains(auditedCalls[:], d.Value) })
	case EventJoined:
		// Log the join only if it uses up its token, so that each token adds at most one record. t.confined
		// is not checked: every caller can limit its own call to namespaces, and could so keep its join out of
		// this log.
		return t.caller != "" && t.usedUp
	}
	return t.caller != "" && len(t.confined) == 0 && slices.Contains(securityTypes[:], e.Type)
}

func (t *Tx) addAudit(e *Event) {
	l := t.auditLogOf(e)
	if l == "" {
		return
	}
	if t.owned&ownAuditLogs == 0 {
		t.r.audit = t.r.audit.copy()
		t.owned |= ownAuditLogs
	}
	records, bytes := l.bounds()
	t.r.audit.of(l).add(*e, records, bytes)
}

// Audit calls fn for each record that an audit log still has and whose number is above after,
// oldest first. fn also gets the hash of the preceding record.
func (s State) Audit(l AuditLog, after uint64, fn func(before AuditHash, r *AuditRecord) bool) {
	a := s.r.audit.of(l)
	if a == nil {
		return
	}
	before, n := a.base, a.records.Len()
	first := a.last - uint64(n) + 1
	i := 0
	if after >= first {
		i = int(min(after-first+1, uint64(n)))
		if i > 0 {
			before = a.records.At(i - 1).Hash
		}
	}
	for ; i < n; i++ {
		r := a.records.At(i)
		if !fn(before, r) {
			return
		}
		before = r.Hash
	}
}

// AuditLast returns the number of the newest record of an audit log; 0 if it never had one.
func (s State) AuditLast(l AuditLog) uint64 {
	if a := s.r.audit.of(l); a != nil {
		return a.last
	}
	return 0
}

// writeAudit writes the audit logs into a snapshot.
func (s State) writeAudit(out *snapshotWriter) {
	for _, l := range AuditLogs() {
		a := s.r.audit.of(l)
		if a.last == 0 {
			continue
		}
		out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_AuditLog{AuditLog: &commandv1.AuditLogRecord{
			Log: string(l), Last: a.last, Base: a.base[:], Head: a.head[:],
		}}})
		s.Audit(l, 0, func(_ AuditHash, r *AuditRecord) bool {
			return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_AuditEntry{AuditEntry: &commandv1.AuditEntryRecord{
				Log: string(l), Event: eventPB(&r.Event),
			}}})
		})
	}
}

// readAuditLog reads three values of an audit log from a snapshot: the number of its last record,
// the hash before its first record, and the hash of its last record. readAuditEntry reads one
// record. derive checks that the hash chain over the records ends with the hash of the last one.
func (t *Tx) readAuditLog(r *commandv1.AuditLogRecord) error {
	a := t.r.audit.of(AuditLog(r.GetLog()))
	switch {
	case a == nil:
		return fmt.Errorf("audit log %q is unknown: %w", clip(r.GetLog()), ErrNewer)
	case a.last != 0:
		return fmt.Errorf("audit log %s is there twice", r.GetLog())
	case r.GetLast() == 0 || len(r.GetBase()) != sha256.Size || len(r.GetHead()) != sha256.Size:
		return fmt.Errorf("audit log %s lacks its last number or its hashes", r.GetLog())
	}
	a.last, a.base, a.head = r.GetLast(), AuditHash(r.GetBase()), AuditHash(r.GetHead())
	return nil
}

func (t *Tx) readAuditEntry(r *commandv1.AuditEntryRecord) error {
	a := t.r.audit.of(AuditLog(r.GetLog()))
	if a == nil || a.last == 0 {
		return fmt.Errorf("the snapshot has an entry of audit log %q before the log itself", clip(r.GetLog()))
	}
	rec := AuditRecord{Event: *eventOf(r.GetEvent())}
	a.records.Append(rec)
	a.bytes += rec.size()
	return nil
}

// chainAudit numbers the audit records that were read from a snapshot, and computes the hash of each from the hash of
// the record before it.
func (t *Tx) chainAudit() error {
	for _, l := range AuditLogs() {
		a := t.r.audit.of(l)
		n := uint64(a.records.Len())
		if n > a.last {
			return fmt.Errorf("audit log %s has %d entries, but the number of the last one is %d", l, n, a.last)
		}
		before := a.base
		whole := &queue[AuditRecord]{}
		for i := range a.records.Len() {
			r := *a.records.At(i)
			r.Number = a.last - n + uint64(i) + 1
			r.Hash = HashAudit(before, r.Number, &r.Event)
			before = r.Hash
			whole.Append(r)
		}
		if before != a.head {
			return fmt.Errorf("audit log %s: the last hash is %x, not %x: records were changed", l, before[:8], a.head[:8])
		}
		a.records = whole
	}
	return nil
}

// audit checks the numbers, hashes and sizes of the audit logs.
func (c *checker) audit() {
	for _, l := range AuditLogs() {
		a := c.s.r.audit.of(l)
		records, bytes := l.bounds()
		c.must(a.records.Len() <= records && (a.bytes <= bytes || a.records.Len() == 1), "audit log %s has %d records of %d bytes, more than its bounds", l, a.records.Len(), a.bytes)
		before, size := a.base, 0
		c.s.Audit(l, 0, func(_ AuditHash, r *AuditRecord) bool {
			c.must(r.Hash == HashAudit(before, r.Number, &r.Event), "record %d of audit log %s has a wrong hash", r.Number, l)
			before, size = r.Hash, size+r.size()
			return true
		})
		c.must(before == a.head && size == a.bytes, "audit log %s: the hash of its last record differs from the stored hash, or its records have %d bytes, not %d", l, size, a.bytes)
	}
}
