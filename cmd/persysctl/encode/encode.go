// Package encode writes messages of the API as JSON and YAML. Equal messages give equal
// text.
package encode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// JSON returns a message in protobuf's JSON mapping, with the field names of the proto files. It also writes
// fields with default values, so that lists are always present.
func JSON(m proto.Message, indent bool) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	// protojson varies white space between builds; Compact and Indent remove the difference.
	var out bytes.Buffer
	if indent {
		err = json.Indent(&out, raw, "", "  ")
	} else {
		err = json.Compact(&out, raw)
	}
	if err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// YAML returns the fields of a message that are set as YAML, in the order of the proto file. Unlike protobuf's JSON, it
// writes 64-bit integers as numbers, not as strings. If lists is true, it also writes empty lists of messages.
func YAML(m proto.Message, lists bool) ([]byte, error) {
	return encodeNode(messageNode(m.ProtoReflect(), lists))
}

// File returns a workload file that applies a request: YAML that package spec reads.
func File(req *controlv1.ApplyWorkloadRequest) ([]byte, error) {
	head := messageNode((&controlv1.ApplyWorkloadRequest{WorkloadId: req.GetWorkloadId(), RevisionId: req.GetRevisionId(), DesiredState: req.GetDesiredState()}).ProtoReflect(), false)
	for i := 0; i < len(head.Content); i += 2 {
		switch key := head.Content[i]; key.Value {
		case "workload_id":
			key.Value = "id"
		case "revision_id":
			key.Value = "revision"
		case "desired_state":
			key.Value = "desired"
		}
	}
	body := messageNode(req.GetSpec().ProtoReflect(), false)
	head.Content = append(head.Content, body.Content...)
	return encodeNode(head)
}

func encodeNode(n *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

func scalarNode(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		// Quote words that YAML 1.1 reads as booleans: "no", for example, is also a restart policy.
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func messageNode(m protoreflect.Message, top bool) *yaml.Node {
	if ts, ok := m.Interface().(*timestamppb.Timestamp); ok {
		return scalarNode("!!timestamp", ts.AsTime().Format(time.RFC3339Nano))
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		// Write an empty list too if it is at the top level of an answer, so that a script always finds the list.
		always := top && fd.IsList() && fd.Kind() == protoreflect.MessageKind
		if !m.Has(fd) && !always {
			continue
		}
		n.Content = append(n.Content, textNode(string(fd.Name())), fieldNode(fd, m.Get(fd)))
	}
	return n
}

func fieldNode(fd protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch {
	case fd.IsList():
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.List().Len() {
			n.Content = append(n.Content, valueNode(fd, v.List().Get(i)))
		}
		return n
	case fd.IsMap():
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		var keys []string
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			keys = append(keys, k.String())
			return true
		})
		slices.Sort(keys)
		for _, k := range keys {
			// All maps of the API have string keys.
			value := v.Map().Get(protoreflect.ValueOfString(k).MapKey())
			n.Content = append(n.Content, textNode(k), valueNode(fd.MapValue(), value))
		}
		return n
	}
	return valueNode(fd, v)
}

func valueNode(fd protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return messageNode(v.Message(), false)
	case protoreflect.StringKind:
		return textNode(v.String())
	case protoreflect.BytesKind:
		return textNode(string(v.Bytes()))
	case protoreflect.BoolKind:
		return scalarNode("!!bool", strconv.FormatBool(v.Bool()))
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			return textNode(string(e.Name()))
		}
		return scalarNode("!!int", strconv.Itoa(int(v.Enum())))
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return scalarNode("!!float", strconv.FormatFloat(v.Float(), 'g', -1, 64))
	}
	return scalarNode("!!int", v.String())
}
