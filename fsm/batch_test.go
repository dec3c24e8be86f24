package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// TestBatchIsConcatenation: the concatenated encodings of several commands decode as one Batch.
func TestBatchIsConcatenation(t *testing.T) {
	in := []Command{put("web"), barrier(), register("a"), setMode("normal", "")}
	var b []byte
	for _, c := range in {
		var err error
		if b, err = AppendCommand(b, c); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(&commandv1.Batch{Commands: in})
	if err != nil || !bytes.Equal(whole, b) {
		t.Errorf("the concatenated frames are %x, want the encoded batch %x (error %v)", b, whole, err)
	}
	out, err := DecodeBatch(b)
	if err != nil || len(out) != len(in) {
		t.Fatalf("DecodeBatch returned %d commands and error %v, want all commands of the log entry", len(out), err)
	}
	for i := range in {
		if !proto.Equal(in[i], out[i]) {
			t.Errorf("command %d is %v, was %v", i, out[i], in[i])
		}
	}
}

// TestDecodedCommandsStandAlone: a decoded command of any size shares no memory with the
// bytes that it was decoded from.
func TestDecodedCommandsStandAlone(t *testing.T) {
	for _, size := range []int{0, 1, smallFrame / 2, smallFrame, 10 * smallFrame} {
		in := put("web", func(p *commandv1.WorkloadPut) { p.Spec = bytes.Repeat([]byte{7}, size) })
		b, err := AppendCommand(nil, in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := DecodeBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		if len(out) != 1 || !proto.Equal(in, out[0]) {
			t.Errorf("with a spec of %d bytes the decoded command is %v, want %v", size, out, in)
		}
	}
}

// TestDecoderMatchesProtobuf: DecodeBatch decodes each command of an entry to the same message
// as the protobuf runtime, with the fields in any order.
func TestDecoderMatchesProtobuf(t *testing.T) {
	part := func(c *commandv1.Command) []byte {
		b, err := proto.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	head := part(&commandv1.Command{Head: &commandv1.Head{By: "ann", At: 7}})
	web := part(&commandv1.Command{Body: put("web").Body})
	group := part(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
		GroupOf: "g", Workloads: []*commandv1.WorkloadPut{{Id: "g-0"}, {Id: "g-1"}},
	}}})
	rest := part(&commandv1.Command{Body: barrier().Body})
	var b []byte
	var want []*commandv1.Command
	for _, parts := range [][][]byte{
		{head, web}, {web}, {web, head}, {head, group}, {group, web}, {head, head, web}, {rest}, {rest, web}, {web, rest}, {head, web, rest},
	} {
		frame := bytes.Join(parts, nil)
		c := &commandv1.Command{}
		if err := proto.Unmarshal(frame, c); err != nil {
			t.Fatal(err)
		}
		want = append(want, c)
		b = protowire.AppendBytes(append(b, commandsTag), frame)
	}
	got, err := DecodeBatch(b)
	if err != nil || len(got) != len(want) {
		t.Fatalf("DecodeBatch returned %d commands and error %v, want all commands of the log entry", len(got), err)
	}
	for i := range want {
		if !proto.Equal(want[i], got[i]) {
			t.Errorf("command %d is %v, want %v as the protobuf runtime decodes it", i, got[i], want[i])
		}
	}
}

// TestRecordsCopyDecoderMessages: records share no memory with the log entry or with a Decoder, which reuses its
// messages. The state is the same as with commands from DecodeBatch.
func TestRecordsCopyDecoderMessages(t *testing.T) {
	var b []byte
	for i := range 20 {
		c := put(fmt.Sprintf("w%d", i%7), hostPort(uint32(80+i)), func(p *commandv1.WorkloadPut) {
			p.Content = fmt.Sprintf("c1:%064d", i)
			p.Namespace, p.CallerRevision = [...]string{"", "dev"}[i%2], fmt.Sprint("rev-", i)
			p.Demand.StoragePool, p.Demand.Labels = fmt.Sprint("pool-", i), []*commandv1.Label{{Key: "zone", Value: fmt.Sprint(i)}}
			if i%5 == 0 {
				p.Demand, p.Spec = &commandv1.Demand{Type: "vm"}, nil
			}
		})
		c.Head = &commandv1.Head{Request: requestAt(epoch0, uint32(i)), At: epoch0 + int64(i), By: fmt.Sprint("ann-", i/3), From: fmt.Sprint("10.0.0.", i), Via: fmt.Sprint("gate-", i/4)}
		for _, c := range []Command{c, barrier()} {
			var err error
			if b, err = AppendCommand(b, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	base := formed(t, "a").s
	alone, err := DecodeBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	want := base.Begin()
	for _, c := range alone {
		want.Apply(Meta{99, 1}, c)
	}
	var d Decoder
	got := base.Begin()
	n, err := d.Open(b)
	if err != nil || n != len(alone) {
		t.Fatalf("DecodeBatch returned %d commands and error %v, want all commands of the log entry", n, err)
	}
	for range n {
		c, err := d.Next()
		if err != nil {
			t.Fatal(err)
		}
		got.Apply(Meta{99, 1}, c)
	}
	clear(b)
	mustEqualStates(t, "built from reused messages", want.Commit(), got.Commit())
	if err := got.Commit().Check(); err != nil {
		t.Error(err)
	}
}

func TestDecodeBatchRefusals(t *testing.T) {
	frame := func(c *commandv1.Command) []byte {
		b, err := proto.Marshal(&commandv1.Batch{Commands: []*commandv1.Command{c}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	future := &commandv1.Command{}
	future.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte("new")))
	for _, c := range []struct {
		name    string
		data    []byte
		unknown bool
	}{
		{"a command of a newer version is refused", frame(future), true},
		{"a command without a body is refused", frame(&commandv1.Command{}), true},
		{"an unknown field of the batch is refused", protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1), true},
		{"a truncated frame is refused", []byte{0x0a, 0x05, 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := DecodeBatch(c.data); err == nil || errors.Is(err, ErrUnknownCommand) != c.unknown {
				t.Errorf("DecodeBatch returned error %v, want an error that is ErrUnknownCommand: %t", err, c.unknown)
			}
		})
	}
	if _, err := AppendCommand(nil, &commandv1.Command{}); !errors.Is(err, ErrUnknownCommand) {
		t.Errorf("AppendCommand of a command without a body returned error %v, want ErrUnknownCommand", err)
	}
	if out, err := DecodeBatch(nil); err != nil || len(out) != 0 {
		t.Errorf("DecodeBatch of an empty log entry returned %v and error %v, want no commands and no error", out, err)
	}
}

// TestDecodeBatchSeesEveryDepth: DecodeBatch refuses an unknown field in every message that a
// command can hold.
func TestDecodeBatchSeesEveryDepth(t *testing.T) {
	body := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("body")
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 5000, protowire.VarintType), 1)
	planted := 0
	for i := range body.Fields().Len() {
		arm := body.Fields().Get(i)
		var plant func(m protoreflect.Message, path string, root *commandv1.Command)
		plant = func(m protoreflect.Message, path string, root *commandv1.Command) {
			m.SetUnknown(unknown)
			b, err := proto.Marshal(&commandv1.Batch{Commands: []*commandv1.Command{root}})
			m.SetUnknown(nil)
			if err != nil {
				t.Fatal(err)
			}
			planted++
			if _, err := DecodeBatch(b); !errors.Is(err, ErrUnknownCommand) {
				t.Errorf("an unknown field in %s must be refused with ErrUnknownCommand, got error %v", path, err)
			}
			fields := m.Descriptor().Fields()
			for j := range fields.Len() {
				fd := fields.Get(j)
				if fd.IsPacked() {
					t.Errorf("%s.%s is packed: DecodeBatch relies on the shortest encoding of known fields", path, fd.Name())
				}
				if fd.Message() == nil || fd.ContainingOneof() != nil {
					continue
				}
				if fd.IsList() {
					plant(m.Mutable(fd).List().AppendMutable().Message(), path+"."+string(fd.Name()), root)
				} else {
					plant(m.Mutable(fd).Message(), path+"."+string(fd.Name()), root)
				}
			}
		}
		root := &commandv1.Command{}
		inner := root.ProtoReflect().Mutable(arm).Message()
		plant(inner, string(arm.Name()), root)
		plant(root.ProtoReflect(), "command", root)
	}
	if planted < 50 {
		t.Errorf("only %d message types were tested, want at least 50", planted)
	}
}

// TestEveryArmHasARule: the command types of the proto file, the table armRules and the function armOf agree.
func TestEveryArmHasARule(t *testing.T) {
	body := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("body")
	is(t, "number of rules in armRules", len(armRules), body.Fields().Len())
	for i := range body.Fields().Len() {
		fd := body.Fields().Get(i)
		c := &commandv1.Command{}
		c.ProtoReflect().Mutable(fd)
		is(t, "ArmName of the command", ArmName(c), string(fd.Name()))
		is(t, string(fd.Name())+" number", arm(fd.Name()).rule().number, uint32(fd.Number()))
		w := formed(t, "a")
		if res := w.do(c); res.Kind == Unsupported {
			t.Errorf("Apply has no rule for %s", fd.Name())
		}
	}
}

func FuzzDecodeBatch(f *testing.F) {
	for _, c := range []Command{put("web", hostPort(80)), register("a"), barrier(), assign(), report(&commandv1.WorkloadReport{Workload: "web"})} {
		b, err := AppendCommand(nil, c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x0a, 0x00})
	base := formed(f, "a").s
	f.Fuzz(func(t *testing.T, b []byte) {
		commands, err := DecodeBatch(b)
		if slow := proto.Unmarshal(b, &commandv1.Batch{}); err == nil && slow != nil {
			t.Fatalf("DecodeBatch must refuse these bytes as the protobuf runtime does: %v", slow)
		}
		if err != nil {
			return
		}
		tx := base.Begin()
		for _, c := range commands {
			tx.Apply(Meta{99, 1}, c)
		}
		s := tx.Commit()
		if err := s.Check(); err != nil {
			t.Fatalf("after commands %v the invariants must hold, but Check returned %v", commands, err)
		}
		if _, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, s))); err != nil {
			t.Fatalf("a snapshot of the state after %v must be readable, but ReadSnapshot returned %v", commands, err)
		}
	})
}

func FuzzReadSnapshot(f *testing.F) {
	w := formed(f, "a", "b")
	f.Add(snapshotBytes(f, New()))
	f.Add(snapshotBytes(f, w.s))
	w.place("web", "a", hostPort(80))
	w.ok(w.evict("web", CodeDraining, false))
	w.as(requestAt(w.now, 1), put("db"))
	f.Add(snapshotBytes(f, w.s))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ReadSnapshot(bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, s)))
		if err != nil {
			t.Fatal(err)
		}
		mustEqualStates(t, "written again", s, again)
	})
}
