package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The schema is what the decoder does: it is taken from the decoder's own tables
// by letting it decode nodes that ask back. A probe stands for any value of one
// kind; the decoder's basic functions tell it what they would have read. So a
// field that the decoder learns is in the schema, and one that it forgets is not.
// What Validate adds (words, ranges) and what people want to read stands in notes,
// by the fields' paths on the wire.

// probe is what the decoder told about one kind of value.
type probe struct {
	rejected bool
	schema   object
}

type object = map[string]any

// note is what the decoder's tables do not say of a field.
type note struct {
	what      string
	words     []string // the only ones, without regard to case
	low, high int64    // of a whole number, when high > low
	example   any
}

// SchemaID is the schema's own name; gateways serve it at /schema/workload.json.
const SchemaID = "https://persys.dev/schema/workload.json"

// Schema is the JSON Schema (2020-12) of a specification file: one workload, a
// list of workloads, or a Compose file as it is.
func Schema() ([]byte, error) {
	data, err := json.MarshalIndent(schema(), "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

func schema() object {
	d := &decoder{places: map[string]place{}, seen: map[string]string{}, notes: notes()}
	n := &node{kind: mapping, probe: &probe{}}
	d.document(n)
	workload := n.probe.schema
	workload["description"] = "A workload: a container, a Compose stack or a virtual machine."
	ref := object{"$ref": "#/$defs/workload"}
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID,
		"title": "Persys workload",
		// Told apart by what they are, so that an editor complains about the right one.
		"if": object{"type": "array"}, "then": object{"items": object{"anyOf": []any{object{"type": "null"}, ref}}},
		"else": object{
			"if":   object{"type": "object", "required": []any{"services"}, "not": object{"anyOf": required("id", "workload_id", "workloadId", "container", "compose", "vm", "spec")}},
			"then": object{"description": "A Compose file as it is; it becomes one stack."},
			"else": object{"anyOf": []any{object{"type": "null"}, ref}},
		},
		"$defs": object{"workload": workload},
	}
}

func required(names ...string) []any {
	var out []any
	for _, n := range names {
		out = append(out, object{"required": []any{n}})
	}
	return out
}

// takes tells the probe whether its kind is read here, and as what.
func (p *probe) takes(ok bool, as func() object) {
	if !ok {
		p.rejected = true
		return
	}
	p.schema = as()
}

func pairsOf(k kind) object {
	value := object{"type": []any{"string", "number", "boolean", "null"}}
	if k == mapping {
		return object{"type": "object", "additionalProperties": value}
	}
	return object{"type": "array", "items": object{"anyOf": []any{
		object{"type": "string", "pattern": "="},
		object{"type": "object", "additionalProperties": anyText(), "minProperties": 1, "maxProperties": 1},
	}}}
}

// object tells the probe about a mapping with these fields.
func (p *probe) object(d *decoder, k kind, fields []field) {
	if k != mapping {
		p.rejected = true
		return
	}
	properties := object{}
	for i := range fields {
		f := &fields[i]
		for j, name := range strings.Fields(f.names) {
			s := d.describe(f.wire, func(n *node) { f.set(name, n, where{f.wire, name}) })
			if j == 0 {
				d.annotate(s, f.wire)
				if d.visited != nil {
					d.visited(f.wire)
				}
			}
			properties[name] = s
			if camel := camelCase(name); camel != name {
				properties[camel] = s
			}
		}
	}
	p.schema = object{"type": "object", "properties": properties, "additionalProperties": false}
}

// describe lets the decoder read a value of every kind and returns what it took.
func (d *decoder) describe(wire string, set func(*node)) object {
	var options []any
	for _, k := range []kind{scalar, sequence, mapping} {
		n := &node{kind: k, probe: &probe{}}
		set(n)
		if n.probe.rejected {
			continue
		}
		s := n.probe.schema
		if s == nil {
			switch k {
			case scalar:
				s = anyText()
			case sequence:
				s = object{"type": "array"}
			case mapping:
				s = object{"type": "object"}
			}
		}
		if k == scalar {
			d.limit(s, wire)
		}
		options = append(options, s)
	}
	return object{"anyOf": append(options, object{"type": "null"})} // null is unset
}

func anyText() object { return object{"type": []any{"string", "number", "boolean"}} }

func wholeNumber() object {
	return object{"type": []any{"integer", "string"}, "pattern": `^\s*[+-]?[0-9]+\s*$`}
}

func eitherWay() object {
	return object{"type": []any{"boolean", "string"}, "pattern": anyCase("true", "false")}
}

// anyCase matches words without regard to case; JSON Schema has no flag for it.
func anyCase(words ...string) string {
	var alternatives []string
	for _, w := range words {
		var b strings.Builder
		for _, r := range w {
			up, low := strings.ToUpper(string(r)), strings.ToLower(string(r))
			if up == low {
				b.WriteString(string(r))
			} else {
				b.WriteString("[" + low + up + "]")
			}
		}
		alternatives = append(alternatives, b.String())
	}
	return `^\s*(` + strings.Join(alternatives, "|") + `)?\s*$`
}

// stripped is a wire path without the places in lists.
func stripped(wire string) string {
	var b strings.Builder
	for _, part := range strings.Split(wire, "[") {
		_, after, inside := strings.Cut(part, "]")
		if inside {
			b.WriteString("[]" + after)
		} else {
			b.WriteString(part)
		}
	}
	return b.String()
}

func (d *decoder) note(wire string) (note, bool) {
	n, ok := d.notes[stripped(wire)]
	return n, ok
}

// limit adds the words and the range of a value.
func (d *decoder) limit(s object, wire string) {
	n, ok := d.note(wire)
	if !ok {
		return
	}
	if len(n.words) > 0 {
		words := make([]any, len(n.words))
		for i, w := range n.words {
			words[i] = w
		}
		delete(s, "type")
		s["anyOf"] = []any{object{"enum": words}, object{"type": "string", "pattern": anyCase(n.words...)}}
	}
	if n.high > n.low {
		s["minimum"], s["maximum"] = n.low, n.high
	}
}

func (d *decoder) annotate(s object, wire string) {
	n, _ := d.note(wire)
	if n.what != "" {
		s["description"] = n.what
	}
	if n.example != nil {
		s["examples"] = []any{n.example}
	}
}

func camelCase(s string) string {
	var b strings.Builder
	up := false
	for _, r := range s {
		switch {
		case r == '_':
			up = true
			continue
		case up:
			b.WriteString(strings.ToUpper(string(r)))
		default:
			b.WriteRune(r)
		}
		up = false
	}
	return b.String()
}

// SchemaFields lists the fields of the schema by their wire paths, and those
// without a description.
func SchemaFields() (all, undescribed []string) {
	known := notes()
	d := &decoder{places: map[string]place{}, seen: map[string]string{}, notes: known}
	paths := map[string]bool{}
	d.visited = func(wire string) { paths[stripped(wire)] = true }
	d.document(&node{kind: mapping, probe: &probe{}})
	for p := range paths {
		all = append(all, p)
		if known[p].what == "" {
			undescribed = append(undescribed, p)
		}
	}
	slices.Sort(all)
	slices.Sort(undescribed)
	return all, undescribed
}

// value is a document as the schema's validator takes it. A scalar's quotes are
// not known any more; the schema takes a text wherever it takes a number.
func (n *node) value() any {
	switch n.kind {
	case scalar:
		switch strings.ToLower(n.text) {
		case "true":
			return true
		case "false":
			return false
		}
		if v, err := strconv.ParseInt(n.text, 10, 64); err == nil {
			return json.Number(strconv.FormatInt(v, 10))
		}
		return n.text
	case sequence:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = item.value()
		}
		return out
	case mapping:
		out := make(map[string]any, len(n.entries))
		for _, e := range n.own() {
			out[e.key] = e.value.value()
		}
		return out
	}
	return nil
}

// whereIs finds the place of an instance location; for a key that is too many it is
// the key's own.
func (n *node) whereIs(location []string, extra string) (line, col int, shown string) {
	line, col = n.line, n.col
	for _, part := range location {
		switch n.kind {
		case mapping:
			found := false
			for _, e := range n.own() {
				if e.key == part {
					n, line, col, found = e.value, e.value.line, e.value.col, true
					break
				}
			}
			if !found {
				return line, col, shown
			}
			shown = join(shown, part)
		case sequence:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(n.items) {
				return line, col, shown
			}
			n = n.items[i]
			line, col = n.line, n.col
			shown += fmt.Sprintf("[%d]", i)
		default:
			return line, col, shown
		}
	}
	if extra != "" && n.kind == mapping {
		for _, e := range n.own() {
			if e.key == extra {
				return e.line, e.col, shown
			}
		}
	}
	return line, col, shown
}
