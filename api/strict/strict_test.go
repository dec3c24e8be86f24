package strict

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCheck(t *testing.T) {
	request := Of((&controlv1.ApplyWorkloadRequest{}).ProtoReflect().Descriptor())
	good := &controlv1.ApplyWorkloadRequest{WorkloadId: "wéb", RequestId: "r", Spec: &controlv1.WorkloadSpec{
		Type: "container", Metadata: map[string]string{"k": "v"}, Count: new(int32(3)),
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "img", Command: []string{"a"}}},
	}}
	future := proto.CloneOf(good)
	future.Spec.GetContainer().ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4242, protowire.VarintType), 1))
	// The fault is in field 2 (spec) → field 10 (container) → field 1 (image).
	bad := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte("\xff"))
	bad = protowire.AppendBytes(protowire.AppendTag(nil, 10, protowire.BytesType), bad)
	bad = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), bad)
	key := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte("\xfe"))
	key = protowire.AppendBytes(protowire.AppendTag(nil, 20, protowire.BytesType), key)
	key = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), key)
	for name, c := range map[string]struct {
		bytes []byte
		exact bool
		want  error
	}{
		"a valid message is accepted":                                    {encode(t, good), true, nil},
		"an empty message is accepted":                                   {nil, true, nil},
		"an unknown field in a nested message is refused with exact":     {encode(t, future), true, ErrUnknownField},
		"an unknown field in a nested message is accepted without exact": {encode(t, future), false, nil},
		"a string in a nested message that is not UTF-8 is refused":      {bad, false, ErrNotUTF8},
		"a map key that is not UTF-8 is refused":                         {key, false, ErrNotUTF8},
		"a field of another wire type counts as unknown":                 {protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), true, ErrUnknownField},
	} {
		t.Run(name, func(t *testing.T) {
			if err := request.Check(c.bytes, c.exact); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if err := request.Check([]byte{0x0a, 0x05, 'x'}, false); err == nil {
		t.Error("Check must refuse a message whose last bytes are missing, but accepted it")
	}
}

// FuzzAgainstRuntime compares Check with the protobuf runtime: Check accepts the bytes that the runtime
// accepts, and refuses those that it refuses.
func FuzzAgainstRuntime(f *testing.F) {
	s := Of((&commandv1.Batch{}).ProtoReflect().Descriptor())
	f.Add(encode(f, &commandv1.Batch{Commands: []*commandv1.Command{{Head: &commandv1.Head{By: "x", At: 1}, Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}}}))
	f.Add([]byte{0x0a, 0x02, 0x52, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m commandv1.Batch
		runtime := proto.Unmarshal(b, &m)
		if own := s.Check(b, false); (own == nil) != (runtime == nil) {
			t.Errorf("for the bytes %x Check returns %v and the protobuf runtime returns %v; both must accept or both must refuse", b, own, runtime)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	s := Of((&controlv1.ApplyWorkloadRequest{}).ProtoReflect().Descriptor())
	raw := encode(b, &controlv1.ApplyWorkloadRequest{WorkloadId: "web", Spec: &controlv1.WorkloadSpec{Type: "container",
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "img", Command: []string{"a", "b"}}}}})
	for b.Loop() {
		if err := s.Check(raw, true); err != nil {
			b.Fatal(err)
		}
	}
}
