package dial

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/api/strict"
)

// Codec returns the gRPC codec of every Persys program. It encodes and decodes protobuf with the generated
// code if a message has such code, and with the protobuf runtime otherwise. Format and name are those of
// gRPC's own codec. Codec is passed to each server and connection and not registered, so that other users of
// gRPC in the process keep their codec.
func Codec() encoding.CodecV2 {
	return &codec{other: encoding.GetCodecV2(protocodec.Name)}
}

type codec struct {
	other   encoding.CodecV2
	schemas sync.Map // cache of schemas: protoreflect.MessageType to *strict.Schema
}

func (c *codec) schema(m proto.Message) *strict.Schema {
	t := m.ProtoReflect().Type()
	if s, ok := c.schemas.Load(t); ok {
		return s.(*strict.Schema)
	}
	s, _ := c.schemas.LoadOrStore(t, strict.Of(t.Descriptor()))
	return s.(*strict.Schema)
}

// generated is implemented by messages for which the vtproto plugin has generated code.
type generated interface {
	proto.Message
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

func (c *codec) Name() string { return protocodec.Name }

func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(generated)
	if !ok {
		return c.other.Marshal(v)
	}
	n := m.SizeVT()
	if mem.IsBelowBufferPoolingThreshold(n) {
		b := make([]byte, n)
		if _, err := m.MarshalToSizedBufferVT(b); err != nil {
			return nil, fmt.Errorf("encode %T: %w", v, err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(n)
	if _, err := m.MarshalToSizedBufferVT((*buf)[:n]); err != nil {
		pool.Put(buf)
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(generated)
	if !ok {
		return c.other.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	// The generated decoders do not check that strings are valid UTF-8. If a string with invalid UTF-8 got into the
	// state, every answer that contains it would fail.
	err := c.schema(m).Check(buf.ReadOnlyData(), false)
	if err == nil {
		// The generated decoder copies all strings and bytes, so gRPC may use the buffer again afterwards.
		err = m.UnmarshalVT(buf.ReadOnlyData())
	}
	if err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}
