package fsm

import (
	"bufio"
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/fsm/rollout"
)

// fill sets every field of the value v, at any depth, to a random value. Lists get 0 to 3 elements.
func fill(rt *rapid.T, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rt, v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.String:
		v.SetString(rapid.StringMatching(`[a-zA-Z0-9][a-z0-9]{0,6}`).Draw(rt, path))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(rt, path))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(rapid.Int32().Draw(rt, path)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(rapid.Uint8Min(1).Draw(rt, path)))
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(rt, path+" length")
		if n == 0 {
			return // an empty list is stored as nil
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(rt, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(rt, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Pointer:
		switch v.Type() {
		// Do not fill these fields, because the snapshot record of their owner does not contain them: former
		// specifications have records of their own, and merged keys are computed.
		case reflect.TypeFor[*history](), reflect.TypeFor[*mergedKeys]():
		case reflect.TypeFor[*Demand](), reflect.TypeFor[*Observation](), reflect.TypeFor[*Job](), reflect.TypeFor[*Exit](), reflect.TypeFor[*JobResult](), reflect.TypeFor[*Template](), reflect.TypeFor[*Cron](), reflect.TypeFor[*TemplateState](), reflect.TypeFor[*Run](), reflect.TypeFor[*Placement](), reflect.TypeFor[*Autoscale](), reflect.TypeFor[*Reschedule](), reflect.TypeFor[*Moved](): // records may hold these pointers, because the records they point to never change
			v.Set(reflect.New(v.Type().Elem()))
			fill(rt, v.Elem(), path)
		default:
			rt.Fatalf("field %s: a record must not hold a %s", path, v.Type())
		}
	default:
		rt.Fatalf("field %s: a record must not hold a %s", path, v.Kind())
	}
}

// sortLabels sorts the labels of a filled demand, as demandOf does.
func sortLabels(d *Demand) {
	for i := range d.Labels {
		d.Labels[i].Key = fmt.Sprintf("k%d", i)
	}
}

// TestRecordsSurviveTheSnapshotCodec: a snapshot keeps every field of every record. The test
// fails for a new field that is missing in records.go.
func TestRecordsSurviveTheSnapshotCodec(t *testing.T) {
	same := func(rt *rapid.T, a, b any) {
		if !reflect.DeepEqual(a, b) {
			rt.Fatalf("a record must be the same after a snapshot:\nwrote %+v\nread  %+v", a, b)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		var w Workload
		fill(rt, reflect.ValueOf(&w).Elem(), "Workload")
		sortLabels(w.Demand)
		got, err := workloadOf(workloadPB(&w))
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, w, *got)

		h := &history{number: rapid.Uint64().Draw(rt, "number"), at: rapid.Int64().Draw(rt, "at"), by: rapid.String().Draw(rt, "by")}
		for i := range rapid.IntRange(0, MaxRevisions).Draw(rt, "former") {
			h.former[i] = &Revision{}
			fill(rt, reflect.ValueOf(h.former[i]).Elem(), "Workload.history")
			h.sizes[i] = uint32(len(h.former[i].Spec))
		}
		w.history = h
		read, err := historyOf(&w, historyPB(&w))
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, w.history, read)

		var n Node
		fill(rt, reflect.ValueOf(&n).Elem(), "Node")
		n.merge()
		same(rt, n, *nodeRecordOf(nodePB(&n)))

		var r Residual
		fill(rt, reflect.ValueOf(&r).Elem(), "Residual")
		sortLabels(&r.Demand)
		res, err := residualOf(residualPB(&r))
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, r, *res)

		var rep Replica
		fill(rt, reflect.ValueOf(&rep).Elem(), "Replica")
		same(rt, rep, replicaOf(rep.PB()))

		var e Event
		fill(rt, reflect.ValueOf(&e).Elem(), "Event")
		same(rt, e, *eventOf(eventPB(&e)))

		var m Info
		fill(rt, reflect.ValueOf(&m).Elem(), "Info")
		same(rt, m, infoOf(infoPB(&m)))

		var a Authority
		fill(rt, reflect.ValueOf(&a).Elem(), "Authority")
		same(rt, a, *authorityOf(authorityPB(&a)))

		var tok Token
		fill(rt, reflect.ValueOf(&tok).Elem(), "Token")
		same(rt, tok, *tokenOf(tokenPB(&tok)))

		var ad Admission
		fill(rt, reflect.ValueOf(&ad).Elem(), "Admission")
		same(rt, ad, *admissionOf(admissionPB(&ad)))

		var rev Revocation
		fill(rt, reflect.ValueOf(&rev).Elem(), "Revocation")
		same(rt, rev, *revocationOf(revocationPB(&rev)))

		var verdict Result
		fill(rt, reflect.ValueOf(&verdict).Elem(), "Result")
		verdict.Skipped, verdict.Duplicate = 0, false // a receipt does not store these two fields, so they are empty after reading
		var writer outcomes
		rc := receipts.Receipt{Seq: 4, Request: [16]byte{1, 2, 3}, At: 5, Answer: slices.Clone(writer.of(&verdict, 7))}
		back, err := receiptOf(receiptPB(rc), &writer)
		if err != nil {
			rt.Fatal(err)
		}
		same(rt, rc, back)
		same(rt, verdict, resultOf(outcomeOf(rc)))
		for _, rc := range []receipts.Receipt{rc, done(rc, &writer)} {
			var fast, slow bytes.Buffer
			out := snapshotWriter{w: bufio.NewWriter(&fast), sum: xxhash.New()}
			out.receipt(rc)
			ref := snapshotWriter{w: bufio.NewWriter(&slow), sum: xxhash.New()}
			ref.record(&commandv1.SnapshotRecord{Record: &commandv1.SnapshotRecord_Receipt{Receipt: receiptPB(rc)}})
			if out.err != nil || ref.err != nil || out.w.Flush() != nil || ref.w.Flush() != nil {
				rt.Fatal(out.err, ref.err)
			}
			if !bytes.Equal(fast.Bytes(), slow.Bytes()) || out.sum.Sum64() != ref.sum.Sum64() || out.records != 1 {
				rt.Fatalf("the fast writer of receipts wrote\n%x\nwant the same bytes as the general writer:\n%x", fast.Bytes(), slow.Bytes())
			}
		}
	})
}

// done returns receipt rc with an encoded answer, which w encodes.
func done(rc receipts.Receipt, w *outcomes) receipts.Receipt {
	res := resultOf(outcomeOf(rc))
	res.Kind, res.Reason, res.Index = OK, "", max(1, res.Index)
	rc.Answer = slices.Clone(w.of(&res, outcomeOf(rc).GetRequestHash()))
	return rc
}

// TestDigestCoversEveryField: a change of any single field of a record changes the digest.
func TestDigestCoversEveryField(t *testing.T) {
	full := func(v any) {
		deepSet(reflect.ValueOf(v).Elem())
	}
	var w Workload
	var n Node
	var r Residual
	var rep Replica
	var e Event
	var m Info
	var a Authority
	var tok Token
	var ad Admission
	var rev Revocation
	for _, v := range []any{&w, &n, &r, &rep, &e, &m, &a, &tok, &ad, &rev} {
		full(v)
	}
	m.ClusterKeyID, m.TrustVersion = "k", 1 // these fields are part of the digest only if they are set
	m.GossipRing, m.GossipVersion = "r", 1
	for _, c := range []struct {
		record any
		encode func(*encoder)
		except string // field that encode leaves out, because the digest covers it elsewhere
	}{
		{&w, func(b *encoder) { b.workload(&w) }, ""},
		{&n, func(b *encoder) { b.node(&n) }, ""},
		{&r, func(b *encoder) { b.residual(&r) }, ""},
		{&rep, func(b *encoder) { b.replica(&rep) }, ""},
		{&e, func(b *encoder) { b.event(&e) }, ""},
		{&m, func(b *encoder) { b.info(&m) }, "Info.Digest"},
		{&a, func(b *encoder) { b.authority(&a) }, ""},
		{&tok, func(b *encoder) { b.token(&tok) }, ""},
		{&ad, func(b *encoder) { b.admission(&ad) }, ""},
		{&rev, func(b *encoder) { b.revocation(&rev) }, ""},
	} {
		var before encoder
		c.encode(&before)
		name := reflect.TypeOf(c.record).Elem().Name()
		fields := 0
		eachLeaf(reflect.ValueOf(c.record).Elem(), name, func(path string, change func() (undo func())) {
			fields++
			undo := change()
			var after encoder
			c.encode(&after)
			undo()
			if bytes.Equal(before, after) != (path == c.except) {
				t.Errorf("a change of field %s changes the encoding for the digest: %v, want the opposite", path, !bytes.Equal(before, after))
			}
		})
		if fields < reflect.TypeOf(c.record).Elem().NumField() {
			t.Errorf("only %[2]d fields of record %[1]s were tested, want all fields", name, fields)
		}
	}
}

// TestDigestCoversTheUpdateStrategy: the digest covers the update strategy of a workload, whether or not the
// workload uses secrets or configs.
func TestDigestCoversTheUpdateStrategy(t *testing.T) {
	for _, objects := range [][]ObjectUse{nil, {{Kind: "secret", Name: "db"}}} {
		var w Workload
		deepSet(reflect.ValueOf(&w).Elem())
		w.Objects = objects
		var without, with encoder
		without.workload(&w)
		w.Update = rollout.Policy{MaxParallel: 2}
		with.workload(&w)
		if bytes.Equal(without, with) {
			t.Errorf("the digest of a workload with %d objects does not cover its update strategy", len(objects))
		}
	}
}

// TestDigestTellsAPolicyFromAConfinedCaller: a policy may have the name of the tag of another field.
func TestDigestTellsAPolicyFromAConfinedCaller(t *testing.T) {
	var w Workload
	deepSet(reflect.ValueOf(&w).Elem())
	seen := map[string]string{}
	for _, p := range []string{"", "confined", "own"} {
		for _, c := range []bool{false, true} {
			var e encoder
			w.Policy, w.Confined = p, c
			e.workload(&w)
			name := fmt.Sprintf("policy %q, confined %t", p, c)
			if other, ok := seen[string(e)]; ok {
				t.Errorf("%s and %s have the same encoding", other, name)
			}
			seen[string(e)] = name
		}
	}
}

// deepSet fills a value for the test: every list gets one element and every pointer is allocated, so that
// eachLeaf reaches all fields.
func deepSet(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			deepSet(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		deepSet(v.Index(0))
	case reflect.Pointer:
		if v.Type() != reflect.TypeFor[*history]() && v.Type() != reflect.TypeFor[*mergedKeys]() {
			v.Set(reflect.New(v.Type().Elem()))
			deepSet(v.Elem())
		}
	}
}

// eachLeaf calls visit for every scalar field of the value v, at any depth, and once for every list.
func eachLeaf(v reflect.Value, path string, visit func(string, func() func())) {
	set := func(to reflect.Value) func() func() {
		return func() func() {
			old := reflect.New(v.Type()).Elem()
			old.Set(v)
			v.Set(to)
			return func() { v.Set(old) }
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachLeaf(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
		}
	case reflect.Slice:
		visit(path+" (length)", set(reflect.Zero(v.Type())))
		eachLeaf(v.Index(0), path+"[0]", visit)
	case reflect.String:
		visit(path, set(reflect.ValueOf(v.String()+"x").Convert(v.Type())))
	case reflect.Bool:
		visit(path, set(reflect.ValueOf(!v.Bool())))
	case reflect.Int, reflect.Int32, reflect.Int64:
		visit(path, set(reflect.ValueOf(v.Int()+1).Convert(v.Type())))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		visit(path, set(reflect.ValueOf(v.Uint()+1).Convert(v.Type())))
	case reflect.Pointer:
		switch v.Type() {
		case reflect.TypeFor[*history](), reflect.TypeFor[*mergedKeys](): // skipped: these fields are derived from records that the digest covers
		case reflect.TypeFor[*Demand](), reflect.TypeFor[*Observation](), reflect.TypeFor[*Job](), reflect.TypeFor[*Exit](), reflect.TypeFor[*JobResult](), reflect.TypeFor[*Template](), reflect.TypeFor[*Cron](), reflect.TypeFor[*TemplateState](), reflect.TypeFor[*Run](), reflect.TypeFor[*Placement](), reflect.TypeFor[*Autoscale](), reflect.TypeFor[*Reschedule](), reflect.TypeFor[*Moved]():
			eachLeaf(v.Elem(), path, visit)
		default:
			panic(path + " is a " + v.Type().String())
		}
	default:
		panic(path + " is a " + v.Kind().String())
	}
}

// TestDigestDiffersBetweenHistories: different sequences of commands have different digests.
func TestDigestDiffersBetweenHistories(t *testing.T) {
	base := formed(t, "a").s
	after := func(m Meta, c Command) uint64 {
		s, _, _ := base.Apply(m, c)
		return s.Info().Digest
	}
	here := Meta{50, 1}
	same := after(here, put("web"))
	if same != after(here, put("web")) {
		t.Error("the same command on the same state must give the same digest, but gave two")
	}
	for _, c := range []struct {
		name string
		got  uint64
	}{
		{"another log index", after(Meta{51, 1}, put("web"))},
		{"another workload", after(here, put("db"))},
		{"other content of the workload", after(here, put("web", content("c1:ffff")))},
		{"another command without changes", after(here, barrier())},
		{"a refused command", after(here, setDesired("web", "Running"))},
		{"a command that is refused for another reason", after(here, setDesired("web", "Odd"))},
	} {
		if c.got == same {
			t.Errorf("a log that differs by %s must have another digest, but has the same", c.name)
		}
	}
}

// TestSnapshotRefusals: the error for a corrupt snapshot names the defect.
func TestSnapshotRefusals(t *testing.T) {
	w := formed(t, "a", "b")
	w.place("web", "a", hostPort(80))
	w.as(requestAt(w.now, 1), put("db"))
	good := snapshotBytes(t, w.s)
	if _, err := ReadSnapshot(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	edit := func(fn func([]byte) []byte) []byte { return fn(bytes.Clone(good)) }
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "header"},
		{"a file that is no snapshot is refused", []byte("\x05hello world"), "header"},
		{"another magic number in the header is refused", edit(func(b []byte) []byte { b[3] = 'q'; return b }), "magic"},
		{"a snapshot that is cut in the middle is refused", good[:len(good)/2], "ends within or before"},
		{"a snapshot without its last byte is refused", good[:len(good)-1], "ends within or before the record"},
		{"a byte after the trailer is refused", append(bytes.Clone(good), 0), "bytes follow the trailer"},
		{"a flipped bit of a spec is refused", edit(func(b []byte) []byte { b[bytes.Index(b, []byte("spec of web"))] ^= 1; return b }), "checksum"},
		{"a length over the limit is refused", append(bytes.Clone(good[:1+int(good[0])]), 0xff, 0xff, 0xff, 0xff, 0x0f), "bytes, at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadSnapshot(bytes.NewReader(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ReadSnapshot returned error %v, want one that contains %q", err, c.want)
			}
		})
	}
	t.Run("ReadSnapshot refuses a snapshot with any flipped bit", func(t *testing.T) {
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			if _, err := ReadSnapshot(bytes.NewReader(bad)); err == nil {
				t.Fatalf("bit %d of byte %d was flipped, so ReadSnapshot must fail, but it accepted the snapshot", i%8, i)
			}
		}
	})
}

// TestLongNamesInSnapshots: a reason that quotes a long name is clipped to valid UTF-8, and a
// snapshot that holds it can be read.
func TestLongNamesInSnapshots(t *testing.T) {
	long := strings.Repeat("x", clipped-1) + "\u00e4\u00e4"
	for name, ask := range map[string]func(*world) Command{
		"a join token":           func(w *world) Command { return join(w, long, "agent", "a") },
		"a namespace":            func(*world) Command { return putNamespace(long) },
		"a workload's namespace": func(*world) Command { return put("web", inNamespace(long)) },
		"a namespace to delete":  func(*world) Command { return dropNamespace(long) },
	} {
		t.Run(name, func(t *testing.T) {
			w := formed(t)
			c := ask(w)
			c.Head = &commandv1.Head{Request: requestAt(w.now, 1), At: w.now, By: "tester", From: "10.0.0.9"}
			res := w.do(c)
			if res.Err() == nil || !utf8.ValidString(res.Reason) {
				t.Errorf("the command returned %s with reason %q, want a refusal with valid UTF-8", res.Kind, res.Reason)
			}
			if _, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s))); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSnapshotInvariants: ReadSnapshot refuses a snapshot with a correct checksum whose records
// break an invariant.
func TestSnapshotInvariants(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(w *world)
		want  string
	}{
		{"a workload on an unknown node is refused", func(w *world) { w.workload("web").Node = "z" }, `node "z"`},
		{"a status that does not match the record is refused", func(w *world) { w.workload("web").Status = StatusFailed }, "status Failed"},
		{"a generation that was never issued is refused", func(w *world) { w.workload("web").Generation.Sequence = 999 }, "generation"},
		{"an unknown desired state is refused", func(w *world) { w.workload("web").Desired = "Odd" }, "Odd"},
		{"a fenced node that is up is refused", func(w *world) { w.node("a").Fenced = true }, "fenced and up"},
		{"a newer feature level is refused", func(w *world) { w.s.r.info.FeatureLevel = FeatureLevel + 1 }, "feature level"},
		{"a tombstone of a workload that exists is refused", func(w *world) {
			w.s.r.tombstones.Set("web", &Tombstone{Workload: "web", Generation: w.workload("web").Generation})
		}, "a record and a tombstone"},
		{"a tombstone with a generation that was never issued is refused", func(w *world) {
			w.s.r.tombstones.Set("dead", &Tombstone{Workload: "dead", Generation: Generation{Incarnation: 1 << 60, Sequence: 1}})
		}, "tombstone of dead has generation"},
		{"an unknown mode is refused", func(w *world) { w.s.r.info.Mode = "odd" }, "mode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a")
			w.place("web", "a")
			c.spoil(w)
			_, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ReadSnapshot returned error %v, want one that contains %q", err, c.want)
			}
		})
	}
}

// TestCheckFindsCorruptIndexes: Check finds a defect in every index and sum that is derived from the records.
func TestCheckFindsCorruptIndexes(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(r *root)
	}{
		{"byNode", func(r *root) { r.byNode.Delete("a/web") }},
		{"byGroup", func(r *root) { r.byGroup.Set("g/none", struct{}{}) }},
		{"byOwner", func(r *root) { r.byOwner.Set("nightly/none", struct{}{}) }},
		{"byLabel", func(r *root) { r.byLabel.Set("web/w/Web", struct{}{}) }},
		{"byRule", func(r *root) { r.byRule.Set("web", struct{}{}) }},
		{"byMAC", func(r *root) { r.byMAC.Set("52:54:00:00:00:01/web", struct{}{}) }},
		{"byIngress", func(r *root) { r.byIngress.Set("8080/tcp/web", struct{}{}) }},
		{"pending", func(r *root) { r.pending.Clear() }},
		{"unacked", func(r *root) { r.unacked.Delete("web") }},
		{"retryDue", func(r *root) { r.retryDue.Set("12345678web", struct{}{}) }},
		{"residualsOf", func(r *root) { r.residualsOf.Set("web/b", struct{}{}) }},
		{"ports", func(r *root) { r.ports.Clear() }},
		{"tombstonesByAge", func(r *root) { r.tombstonesByAge.Set("12345678web", struct{}{}) }},
		{"alloc", func(r *root) { r.alloc.Set("a", &Alloc{CPU: 1}) }},
		{"counted", func(r *root) { r.statuses[0]++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			w.place("web", "a", hostPort(80))
			w.ok(put("db"))
			c.spoil(w.s.r)
			if err := w.s.Check(); err == nil || !strings.Contains(err.Error(), c.name) {
				t.Errorf("Check returned error %v, want one that contains %q", err, c.name)
			}
		})
	}
}
