package dial

import (
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/persys/compute/api/control/v1"
)

func TestCodecSpeaksProtobuf(t *testing.T) {
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = 'x'
	}
	for name, m := range map[string]proto.Message{
		"a message with generated encoders": &controlv1.ApplyWorkloadRequest{WorkloadId: "web", RequestId: "r", Spec: &controlv1.WorkloadSpec{
			Type: "container", Metadata: map[string]string{"a": "b"},
			Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "i", Command: []string{"x", "y"}}},
		}},
		"a large message":                      &controlv1.ApplyWorkloadRequest{WorkloadId: string(long)},
		"a message without generated encoders": &healthpb.HealthCheckRequest{Service: "s"},
		"an empty message":                     &controlv1.GetClusterSummaryRequest{},
		"a message with unknown fields":        unknown(t),
	} {
		t.Run(name, func(t *testing.T) {
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			out, err := Codec().Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			back := m.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(out.Materialize(), back); err != nil || !proto.Equal(back, m) {
				t.Errorf("the protobuf runtime decoded the message as %v with error %v, want %v", back, err, m)
			}
			got := m.ProtoReflect().New().Interface()
			// Split the message into two buffers, as the transport may do.
			half := len(want) / 2
			parts := mem.BufferSlice{mem.SliceBuffer(want[:half]), mem.SliceBuffer(want[half:])}
			if err := Codec().Unmarshal(parts, got); err != nil || !proto.Equal(got, m) {
				t.Errorf("the codec decoded a message in two buffers as %v with error %v, want %v", got, err, m)
			}
		})
	}
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer([]byte{0xff})}, &controlv1.GetNodeRequest{}); err == nil {
		t.Error("the codec must refuse invalid bytes, but decoded them")
	}
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer([]byte{0x0a, 0x01, 0xff})}, &controlv1.GetNodeRequest{}); err == nil {
		t.Error("the codec must refuse a string that is not UTF-8, but decoded it")
	}
}

// unknown returns a request with a field that this version does not know.
func unknown(t *testing.T) *controlv1.GetNodeRequest {
	t.Helper()
	raw, err := proto.Marshal(&controlv1.ApplyWorkloadRequest{WorkloadId: "n", DesiredState: "Stopped"})
	if err != nil {
		t.Fatal(err)
	}
	m := &controlv1.GetNodeRequest{}
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	return m
}
