package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/api/strict"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/fsm/rollout"
)

const (
	snapshotMagic  = "persys-snapshot"
	snapshotFormat = 1
	// maxRecord is the maximum size of one record in bytes. The largest records hold a specification of 1
	// MiB, or the answer to the largest command.
	maxRecord = 8 << 20
)

// ErrSnapshot is wrapped by errors about the content of a snapshot. Errors of the reader that delivers the
// snapshot are returned as they are.
var ErrSnapshot = errors.New("snapshot is not usable")

// ErrNewer is wrapped by the error about a snapshot that a newer version wrote. That error also wraps
// ErrSnapshot.
var ErrNewer = errors.New("upgrade this replica")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSnapshot, fmt.Sprintf(format, args...))
}

func newer(format string, args ...any) error {
	return fmt.Errorf("%w: %w", broken(format, args...), ErrNewer)
}

// WriteSnapshot writes the state as a stream: header, records, and a trailer. The trailer has the number of
// records and the xxhash64 of all bytes before it. The state is immutable, so WriteSnapshot takes no lock and
// does not delay writers.
func (s State) WriteSnapshot(w io.Writer) error {
	out := snapshotWriter{w: bufio.NewWriterSize(w, 1<<16), sum: xxhash.New()}
	info := s.r.info
	out.put(&commandv1.SnapshotHeader{Magic: snapshotMagic, Format: snapshotFormat, Index: info.Index, Term: info.Term})
	out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Meta{Meta: infoPB(&info)}})
	s.Nodes("", func(n *Node) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Node{Node: nodePB(n)}})
	})
	s.Bundles(func(b *Bundle) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Bundle{Bundle: &commandv1.Bundle{Digest: b.Digest, Data: b.Data}}})
	})
	s.Objects(func(o *Object) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Object{Object: ObjectPB(o)}})
	})
	s.Workloads("", func(wl *Workload) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Workload{Workload: workloadPB(wl)}})
	})
	s.Residuals("", func(r *Residual) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Residual{Residual: residualPB(r)}})
	})
	s.Replicas(func(r *Replica) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Replica{Replica: r.PB()}})
	})
	s.Authorities(func(a *Authority) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Authority{Authority: authorityPB(a)}})
	})
	s.Tokens(func(t *Token) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Token{Token: tokenPB(t)}})
	})
	s.Admissions(func(a *Admission) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Admitted{Admitted: admissionPB(a)}})
	})
	s.Revocations(func(r *Revocation) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Revocation{Revocation: revocationPB(r)}})
	})
	s.Tombstones(func(g *Tombstone) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Tombstone{Tombstone: tombstonePB(g)}})
	})
	s.r.audits.Scan(func(_ string, a *NodeAudit) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_NodeAudit{NodeAudit: &commandv1.NodeAuditRecord{
			Node: a.Node, EndedAt: a.EndedAt, Tasks: a.Tasks,
		}}})
	})
	s.Drifts("", func(d *Drift) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Drift{Drift: driftPB(d)}})
	})
	s.r.namespaces.Scan(func(_ string, n *Namespace) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Namespace{Namespace: namespacePB(n)}})
	})
	s.r.policies.Scan(func(_ string, p *Policy) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Policy{Policy: policyPB(p)}})
	})
	s.Roles(func(r *Role) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Role{Role: rolePB(r)}})
	})
	s.Accounts(func(a *Account) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Account{Account: accountPB(a)}})
	})
	s.Consoles(func(c *Console) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Console{Console: consolePB(c)}})
	})
	s.Bindings(func(b *Binding) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_RoleBinding{RoleBinding: bindingPB(b)}})
	})
	s.Networks(func(n *Network) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Network{Network: networkPB(n)}})
	})
	s.Volumes(func(v *Volume) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Volume{Volume: VolumePB(v)}})
	})
	s.Moves(func(m *Move) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Move{Move: movePB(m)}})
	})
	s.Workloads("", func(w *Workload) bool {
		return w.history == nil || out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Revisions{Revisions: historyPB(w)}})
	})
	s.r.rollouts.Scan(func(_ string, r *rollout.Rollout) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Rollout{Rollout: r.PB()}})
	})
	s.Events(0, func(e *Event) bool {
		return out.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Event{Event: eventPB(e)}})
	})
	s.writeAudit(&out)
	s.r.receipts.Scan(func(r receipts.Receipt) bool {
		return out.receipt(r)
	})
	out.put(&commandv1.SnapshotTrailer{Records: out.records, Checksum: out.sum.Sum64()})
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("write snapshot at index %d: %w", info.Index, out.err)
	}
	return nil
}

type snapshotWriter struct {
	w       *bufio.Writer
	sum     *xxhash.Digest
	buf     []byte
	scratch []byte
	records uint64
	err     error
}

func (o *snapshotWriter) record(m *commandv1.SnapshotRecord) bool {
	o.records++
	return o.put(m)
}

// receiptField is the protobuf field number of a receipt in SnapshotRecord, and answerField is that
// of the answer in ReceiptRecord.
const (
	receiptField = 5
	answerField  = 4
)

// receipt writes the same bytes as the method record does for receiptPB(r), but faster, because there may be
// a million receipts. An answer of kind OK without a reason is copied as it is stored. Other answers are
// decoded and encoded again, because a reason may hold invalid UTF-8.
func (o *snapshotWriter) receipt(r receipts.Receipt) bool {
	if o.err != nil {
		return false
	}
	if len(r.Answer) == 0 || r.Answer[0] != answerIndexTag {
		return o.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Receipt{Receipt: receiptPB(r)}})
	}
	o.records++
	b := o.scratch[:0]
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendBytes(b, r.Request[:])
	if r.Seq != 0 {
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		b = protowire.AppendVarint(b, r.Seq)
	}
	if r.At != 0 {
		b = protowire.AppendTag(b, 3, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(r.At))
	}
	b = protowire.AppendTag(b, answerField, protowire.BytesType)
	b = protowire.AppendBytes(b, r.Answer)
	o.scratch = b
	inner := protowire.SizeTag(receiptField) + protowire.SizeBytes(len(b))
	o.buf = protowire.AppendVarint(o.buf[:0], uint64(inner))
	o.buf = protowire.AppendTag(o.buf, receiptField, protowire.BytesType)
	o.buf = protowire.AppendBytes(o.buf, b)
	return o.flush()
}

func (o *snapshotWriter) put(m proto.Message) bool {
	if o.err != nil {
		return false
	}
	opts := proto.MarshalOptions{Deterministic: true}
	o.buf = protowire.AppendVarint(o.buf[:0], uint64(opts.Size(m)))
	opts.UseCachedSize = true
	if o.buf, o.err = opts.MarshalAppend(o.buf, m); o.err != nil {
		return false
	}
	return o.flush()
}

// flush writes the encoded message in buf to the snapshot.
func (o *snapshotWriter) flush() bool {
	if _, o.err = o.w.Write(o.buf); o.err != nil {
		return false
	}
	_, o.err = o.sum.Write(o.buf)
	return o.err == nil
}

// ReadSnapshot reads a snapshot. It returns the state only if magic, format, every record, their
// number, the checksum and all invariants (Check) are right. Errors about the content wrap
// ErrSnapshot and name the record.
func ReadSnapshot(r io.Reader) (State, error) {
	in := snapshotReader{r: bufio.NewReaderSize(r, 1<<16), sum: xxhash.New()}
	var header commandv1.SnapshotHeader
	if err := in.next(&header, "header"); err != nil {
		return State{}, err
	}
	if header.GetMagic() != snapshotMagic {
		return State{}, broken("magic is %q, must be %q", clip(header.GetMagic()), snapshotMagic)
	}
	if header.GetFormat() != snapshotFormat {
		if header.GetFormat() > snapshotFormat {
			return State{}, newer("format is %d, this version reads %d", header.GetFormat(), snapshotFormat)
		}
		return State{}, broken("format is %d, this version reads %d", header.GetFormat(), snapshotFormat)
	}
	t := &Tx{r: *New().r}
	sum, err := in.records(t)
	if err != nil {
		return State{}, err
	}
	if err := in.trailer(sum); err != nil {
		return State{}, err
	}
	info := &t.r.info
	switch {
	case !in.meta:
		return State{}, broken("the snapshot has no meta record")
	case info.Index != header.GetIndex() || info.Term != header.GetTerm():
		return State{}, broken("the header says index %d and term %d, but the meta record %d and %d", header.GetIndex(), header.GetTerm(), info.Index, info.Term)
	case info.FeatureLevel > FeatureLevel:
		return State{}, newer("feature level is %d, this version knows %d", info.FeatureLevel, FeatureLevel)
	}
	if err := t.chainAudit(); err != nil {
		return State{}, broken("%s", err.Error())
	}
	if err := t.derive(); err != nil {
		return State{}, err
	}
	s := t.Commit()
	if err := s.Check(); err != nil {
		return State{}, broken("%s", err.Error())
	}
	return s, nil
}

type snapshotReader struct {
	r     *bufio.Reader
	sum   *xxhash.Digest
	buf   []byte
	count uint64
	meta  bool
	tail  []byte // the encoded trailer
}

// frame reads the next length-delimited message of the snapshot into buf.
func (in *snapshotReader) frame(what string) error {
	size, err := binary.ReadUvarint(in.r)
	if err != nil {
		return in.fail(what, err)
	}
	if size > maxRecord {
		return broken("%s has %d bytes, at most %d", what, size, maxRecord)
	}
	if uint64(cap(in.buf)) < size {
		in.buf = make([]byte, size)
	}
	in.buf = in.buf[:size]
	if _, err := io.ReadFull(in.r, in.buf); err != nil {
		return in.fail(what, err)
	}
	return nil
}

func (in *snapshotReader) fail(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return broken("it ends within or before the %s", what)
	}
	return fmt.Errorf("read snapshot: %s: %w", what, err)
}

// account adds the message in buf, with its length prefix, to the checksum.
func (in *snapshotReader) account() {
	var b [binary.MaxVarintLen64]byte
	_, _ = in.sum.Write(protowire.AppendVarint(b[:0], uint64(len(in.buf)))) // writing to a hash never fails
	_, _ = in.sum.Write(in.buf)
}

func (in *snapshotReader) next(m proto.Message, what string) error {
	if err := in.frame(what); err != nil {
		return err
	}
	if err := proto.Unmarshal(in.buf, m); err != nil {
		return broken("%s: %s", what, err)
	}
	in.account()
	return nil
}

// records reads up to the trailer and leaves the bytes of the trailer in tail. It returns the checksum of
// everything before the trailer. The first byte distinguishes a record from the trailer: a record is one field
// of wire type bytes, and the trailer starts with a varint field.
func (in *snapshotReader) records(t *Tx) (uint64, error) {
	for {
		what := fmt.Sprintf("record %d", in.count+1)
		if err := in.frame(what); err != nil {
			return 0, err
		}
		if len(in.buf) == 0 || protowire.Type(in.buf[0]&7) == protowire.VarintType || protowire.Type(in.buf[0]&7) == protowire.Fixed64Type {
			in.tail = in.buf
			return in.sum.Sum64(), nil
		}
		err := recordSchema.Check(in.buf, true)
		var rec commandv1.SnapshotRecord
		if err == nil {
			err = rec.UnmarshalVT(in.buf)
		}
		if errors.Is(err, strict.ErrUnknownField) || err == nil && rec.Record == nil {
			return 0, newer("%s holds a field that this version does not know", what)
		}
		if err != nil {
			return 0, broken("%s: %s", what, err)
		}
		in.account()
		in.count++
		if err := in.load(t, &rec); err != nil {
			return 0, fmt.Errorf("%w: %s: %w", ErrSnapshot, what, err)
		}
	}
}

func (in *snapshotReader) trailer(sum uint64) error {
	var trailer commandv1.SnapshotTrailer
	if err := proto.Unmarshal(in.tail, &trailer); err != nil {
		return broken("trailer: %s", err)
	}
	if trailer.GetRecords() != in.count {
		return broken("the trailer counts %d records, but the snapshot has %d", trailer.GetRecords(), in.count)
	}
	if trailer.GetChecksum() != sum {
		return broken("the checksum is %016x, but the trailer says %016x", sum, trailer.GetChecksum())
	}
	switch _, err := in.r.ReadByte(); {
	case err == nil:
		return broken("bytes follow the trailer")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read snapshot: after the trailer: %w", err)
	}
	return nil
}

// load stores one record that was read from a snapshot in its table.
func (in *snapshotReader) load(t *Tx, rec *commandv1.SnapshotRecord) error {
	var dup bool
	var key any
	switch r := rec.GetRecord().(type) {
	case *commandv1.SnapshotRecord_Meta:
		dup, key = in.meta, "meta"
		in.meta = true
		t.r.info = infoOf(r.Meta)
	case *commandv1.SnapshotRecord_Workload:
		w, err := workloadOf(r.Workload)
		if err != nil {
			return err
		}
		_, dup = t.r.workloads.Set(w.ID, w)
		key = w.ID
	case *commandv1.SnapshotRecord_Node:
		n := nodeRecordOf(r.Node)
		if !bounds.ValidID(n.ID) {
			return fmt.Errorf("node id %q does not match %s", clip(n.ID), bounds.IDRule)
		}
		_, dup = t.r.nodes.Set(n.ID, n)
		key = n.ID
	case *commandv1.SnapshotRecord_Residual:
		res, err := residualOf(r.Residual)
		if err != nil {
			return err
		}
		key = pair(res.Node, res.Workload)
		_, dup = t.r.residuals.Set(pair(res.Node, res.Workload), res)
	case *commandv1.SnapshotRecord_Replica:
		rep := replicaOf(r.Replica)
		_, dup = t.r.replicas.Set(rep.ID, &rep)
		key = rep.ID
	case *commandv1.SnapshotRecord_Authority:
		a := authorityOf(r.Authority)
		_, dup = t.r.authorities.Set(a.ID, a)
		key = a.ID
	case *commandv1.SnapshotRecord_Token:
		tok := tokenOf(r.Token)
		_, dup = t.r.tokens.Set(tok.ID, tok)
		key = tok.ID
	case *commandv1.SnapshotRecord_Admitted:
		a := admissionOf(r.Admitted)
		_, dup = t.r.admissions.Set(pair(a.Role, a.Name), a)
		key = pair(a.Role, a.Name)
	case *commandv1.SnapshotRecord_Revocation:
		rev := revocationOf(r.Revocation)
		_, dup = t.r.revocations.Set(rev.key(), rev)
		key = rev.key()
	case *commandv1.SnapshotRecord_Tombstone:
		g, err := tombstoneOf(r.Tombstone)
		if err != nil {
			return err
		}
		_, dup = t.r.tombstones.Set(g.Workload, g)
		key = g.Workload
	case *commandv1.SnapshotRecord_NodeAudit:
		a := &NodeAudit{
			Node: r.NodeAudit.GetNode(), EndedAt: r.NodeAudit.GetEndedAt(),
			Tasks: convert(r.NodeAudit.GetTasks(), func(s string) string { return s }),
		}
		_, dup = t.r.audits.Set(a.Node, a)
		key = a.Node
	case *commandv1.SnapshotRecord_Drift:
		d := driftOf(r.Drift)
		_, dup = t.r.drifts.Set(d.key(), d)
		key = d.key()
	case *commandv1.SnapshotRecord_Namespace:
		n := namespaceRecordOf(r.Namespace)
		_, dup = t.r.namespaces.Set(n.Name, n)
		key = n.Name
	case *commandv1.SnapshotRecord_Policy:
		p := policyRecordOf(r.Policy)
		_, dup = t.r.policies.Set(p.Name, p)
		key = p.Name
	case *commandv1.SnapshotRecord_Role:
		v := roleOf(r.Role)
		_, dup = t.r.roles.Set(v.Name, v)
		key = v.Name
	case *commandv1.SnapshotRecord_Account:
		a := accountOf(r.Account)
		_, dup = t.r.accounts.Set(a.Name, a)
		key = a.Name
	case *commandv1.SnapshotRecord_Console:
		c := consoleOf(r.Console)
		_, dup = t.r.consoles.Set(c.ID, c)
		key = c.ID
	case *commandv1.SnapshotRecord_Network:
		n, err := networkOf(r.Network)
		if err != nil {
			return err
		}
		_, dup = t.r.networks.Set(n.key(), n)
		key = n.key()
	case *commandv1.SnapshotRecord_RoleBinding:
		b := bindingRecordOf(r.RoleBinding)
		_, dup = t.r.bindings.Set(b.key(), b)
		key = b.key()
	case *commandv1.SnapshotRecord_Bundle:
		b := &Bundle{Digest: r.Bundle.GetDigest(), Data: r.Bundle.GetData()}
		_, dup = t.r.bundles.Set(b.Digest, b)
		key = clip(b.Digest)
	case *commandv1.SnapshotRecord_Object:
		o := ObjectOf(r.Object)
		if len(o.Versions) == 0 {
			return fmt.Errorf("%s %q has no version", clip(o.Kind), clip(o.Name))
		}
		_, dup = t.r.objects.Set(o.key(), o)
		key = clip(o.key())
	case *commandv1.SnapshotRecord_Volume:
		v := VolumeOf(r.Volume)
		_, dup = t.r.volumes.Set(v.key(), v)
		key = clip(v.key())
	case *commandv1.SnapshotRecord_Move:
		m := moveOf(r.Move)
		if w, ok := t.r.workloads.Get(m.Workload); ok && demandEqual(w.Demand, m.Demand) {
			m.Demand = w.Demand // both records share the demand, as before
		}
		_, dup = t.r.moves.Set(m.Workload, m)
		key = clip(m.Workload)
	case *commandv1.SnapshotRecord_Revisions:
		id := r.Revisions.GetWorkload()
		w, ok := t.r.workloads.Get(id)
		if !ok {
			return fmt.Errorf("the snapshot has revisions of workload %q, which does not exist", clip(id))
		}
		h, err := historyOf(w, r.Revisions)
		if err != nil {
			return err
		}
		key, dup = id, w.history != nil
		w.history = h // no reader has this record yet, so it may be changed
	case *commandv1.SnapshotRecord_Rollout:
		ro := rollout.Of(r.Rollout)
		_, dup = t.r.rollouts.Set(ro.Group, ro)
		key = ro.Group
	case *commandv1.SnapshotRecord_Event:
		e := eventOf(r.Event)
		if n := t.r.events.Len(); n > 0 && e.Seq != t.r.events.At(n-1).Seq+1 {
			return fmt.Errorf("event %d is in the snapshot twice, or not in its order", e.Seq)
		}
		t.r.events.Append(*e)
	case *commandv1.SnapshotRecord_AuditLog:
		return t.readAuditLog(r.AuditLog)
	case *commandv1.SnapshotRecord_AuditEntry:
		return t.readAuditEntry(r.AuditEntry)
	case *commandv1.SnapshotRecord_Receipt:
		rc, err := receiptOf(r.Receipt, &t.outcomes)
		if err != nil {
			return err
		}
		if !t.r.receipts.Append(rc) {
			return fmt.Errorf("receipt %d of request %x is in the snapshot twice, or not in its order", rc.Seq, rc.Request)
		}
	default:
		return fmt.Errorf("unknown kind %T", r)
	}
	if dup {
		return fmt.Errorf("%v is there twice", key)
	}
	return nil
}

// derive builds every index from the tables of records. It first checks the references between records on
// which the indexes rely.
func (t *Tx) derive() error {
	s := t.state()
	err := t.deriveBundles()
	if err != nil {
		return err
	}
	s.Residuals("", func(r *Residual) bool {
		n, ok := t.r.nodes.Get(r.Node)
		if !ok {
			err = broken("residual of workload %q is on node %q, which does not exist", r.Workload, r.Node)
			return false
		}
		t.r.residualsOf.Set(pair(r.Workload, r.Node), struct{}{})
		t.claimResidual(r, n, +1)
		return true
	})
	if err != nil {
		return err
	}
	s.Workloads("", func(w *Workload) bool {
		if _, ok := t.r.nodes.Get(w.Node); w.Node != "" && !ok {
			err = broken("workload %q is on node %q, which does not exist", w.ID, w.Node)
			return false
		}
		t.reindex(nil, w)
		return true
	})
	s.Objects(func(o *Object) bool {
		t.countBytes(o.In(), o.bytes(), 0)
		return true
	})
	s.Moves(func(m *Move) bool {
		t.claimMove(m, t.reservedOn(m), +1)
		return true
	})
	s.Volumes(func(v *Volume) bool {
		t.countVolume(v.In(), +1, v.amounts())
		return true
	})
	t.r.namespaces.Scan(func(_ string, n *Namespace) bool {
		t.indexUsers(n, true)
		return true
	})
	t.r.policies.Scan(func(_ string, p *Policy) bool {
		t.indexPolicy(nil, p)
		return true
	})
	t.r.rollouts.Scan(func(group string, r *rollout.Rollout) bool {
		t.countRollout(r, +1)
		if r.Active() {
			t.r.rolling.Set(group, struct{}{})
		}
		return true
	})
	s.Tombstones(func(g *Tombstone) bool {
		t.r.tombstonesByAge.Set(tombstoneKey(g), struct{}{})
		return true
	})
	return err
}

// clipped is the maximum number of bytes of a caller's text that a message quotes.
const clipped = 64

// clip shortens a caller's text so that a message can quote it. It may cut a multi-byte character.
func clip(s string) string {
	if len(s) > clipped {
		return s[:clipped]
	}
	return s
}
