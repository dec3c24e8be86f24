// Package strict checks an encoded protobuf message before it is decoded. It finds two faults that the
// generated decoders accept: fields that this version does not know, at any depth, and strings that are not
// UTF-8. It finds both in one pass over the bytes and builds no message.
package strict

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The faults that Check finds; compare with errors.Is. Any other error of Check means that the bytes are not
// a protobuf message.
var (
	ErrUnknownField = errors.New("a field that this version does not know")
	ErrNotUTF8      = errors.New("a string that is not UTF-8")
)

// Schema describes which fields the encoding of one message type may contain. It never changes once made, and
// any number of goroutines may use it.
type Schema struct {
	name string
	low  []field          // the fields with small numbers, indexed by number
	high map[int32]*field // the fields with larger numbers
}

type field struct {
	name    string
	exists  bool
	text    bool
	wire    protowire.Type
	packed  bool
	message *Schema
}

const lowFields = 128

// Of returns the schema of a message type. The schema includes those of all message types that may be nested
// in it.
func Of(d protoreflect.MessageDescriptor) *Schema {
	return of(d, map[protoreflect.FullName]*Schema{})
}

func of(d protoreflect.MessageDescriptor, done map[protoreflect.FullName]*Schema) *Schema {
	if s := done[d.FullName()]; s != nil {
		return s
	}
	s := &Schema{name: string(d.Name()), high: map[int32]*field{}}
	done[d.FullName()] = s
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := field{
			name: string(fd.Name()), exists: true, text: fd.Kind() == protoreflect.StringKind,
			wire: wireType(fd.Kind()), packed: fd.IsList() && fd.Message() == nil && wireType(fd.Kind()) != protowire.BytesType,
		}
		if fd.Message() != nil {
			f.message = of(fd.Message(), done) // for a map field, the message of its entries
		}
		if n := int32(fd.Number()); n < lowFields {
			for int32(len(s.low)) <= n {
				s.low = append(s.low, field{})
			}
			s.low[n] = f
		} else {
			s.high[n] = &f
		}
	}
	return s
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}

// maxDepth is the maximum nesting of messages, the same as in the protobuf runtime.
const maxDepth = 1000

// Check checks the encoding of one message. If exact is set, an unknown field leads to ErrUnknownField. If
// not, unknown fields are skipped, because the sender may have another version.
func (s *Schema) Check(b []byte, exact bool) error { return s.check(b, exact, maxDepth) }

func (s *Schema) check(b []byte, exact bool, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%s is nested deeper than %d", s.name, maxDepth)
	}
	for len(b) > 0 {
		num, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%s: %w", s.name, protowire.ParseError(n))
		}
		if num > protowire.MaxValidNumber {
			return fmt.Errorf("%s: field number %d is not valid", s.name, num)
		}
		b = b[n:]
		f := s.field(int32(num))
		known := f != nil && (wire == f.wire || f.packed && wire == protowire.BytesType)
		if !known && exact {
			return fmt.Errorf("field %d of %s: %w", num, s.name, ErrUnknownField)
		}
		if !known || wire != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, wire, b); n < 0 {
				return fmt.Errorf("%s: %w", s.name, protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("%s.%s: %w", s.name, f.name, protowire.ParseError(n))
		}
		b = b[n:]
		switch {
		case f.text && !utf8.Valid(value):
			return fmt.Errorf("%s.%s: %w", s.name, f.name, ErrNotUTF8)
		case f.message != nil:
			if err := f.message.check(value, exact, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Schema) field(n int32) *field {
	if n >= lowFields {
		return s.high[n]
	}
	if int(n) >= len(s.low) || !s.low[n].exists {
		return nil
	}
	return &s.low[n]
}
