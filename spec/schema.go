package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The JSON Schema of specifications is generated from the decoder. A probe is a node that stands for any
// value of one kind. When the decoder reads a probe, it records which values it accepts. So a new field of
// the decoder appears in the schema, and a removed field disappears. The function notes has, for each field,
// a description and what Validate allows (a list of words or a range).

// probe stands for any value of one kind and records whether and how the decoder accepts it.
type probe struct {
	rejected bool
	schema   object
}

type object = map[string]any

// note holds the parts of a field's schema that cannot be derived from the decoder.
type note struct {
	what      string
	words     []string // the words that the field may have, in upper or lower case; empty = any text
	low, high int64    // range of a whole number; if high is not above low, the range is not limited
	pattern   string   // further texts that a field with words may have, as a regular expression
	example   any
}

// SchemaID is the id of the schema. Gateways serve the schema at /schema/workload.json.
const SchemaID = "https://persys.dev/schema/workload.json"

// Schema returns the JSON Schema (2020-12) of a specification file: one workload, a list of
// workloads, or a plain Compose file.
func Schema() ([]byte, error) {
	data, err := json.MarshalIndent(schema(), "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

func schema() object {
	d := &decoder{places: map[string]place{}, seen: map[string]string{}, notes: notes(), defs: newDefinitions()}
	n := &node{kind: mapping, probe: &probe{}}
	d.document(n)
	workload := n.probe.schema
	d.defs.byName["workload"] = workload
	workload["description"] = "A workload: a container, a Compose stack or a virtual machine."
	ref := object{"$ref": "#/$defs/workload"}
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID,
		"title": "Persys workload",
		// if and else distinguish the three forms (list, Compose file, specification), so that an editor reports only
		// the errors of the form that the author uses.
		"if": object{"type": "array"}, "then": object{"items": object{"anyOf": []any{object{"type": "null"}, ref}}},
		"else": object{
			"if":   object{"type": "object", "required": []any{"services"}, "not": object{"anyOf": required("id", "workload_id", "workloadId", "container", "compose", "vm", "spec")}},
			"then": object{"description": "A plain Compose file; it becomes one stack."},
			"else": object{"anyOf": []any{object{"type": "null"}, ref}},
		},
		"$defs": d.defs.byName,
	}
}

func required(names ...string) []any {
	var out []any
	for _, n := range names {
		out = append(out, object{"required": []any{n}})
	}
	return out
}

// takes records whether the decoder accepts a value of the probe's kind for this field (ok). The function as returns
// the schema of the accepted values.
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

// object records that the decoder accepts a mapping with these fields.
func (p *probe) object(d *decoder, k kind, fields []field) {
	if k != mapping {
		p.rejected = true
		return
	}
	properties := object{}
	for i := range fields {
		f := &fields[i]
		for j, name := range strings.Fields(f.names) {
			full := d.describe(f.wire, func(n *node) { f.set(name, n, where{f.wire, name}) })
			s := d.defs.ref(f.wire, full)
			if j == 0 {
				if d.documented != nil {
					d.documented(f, full)
				}
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

// definitions holds each distinct schema of a field once. Most fields occur several times: under other names,
// in camel case, and again below `spec`.
type definitions struct {
	byName object
	names  map[string]string // for each schema, as JSON: the name of its definition
}

func newDefinitions() *definitions {
	d := &definitions{byName: object{}, names: map[string]string{}}
	for name, s := range map[string]object{"text": anyText(), "integer": wholeNumber(), "boolean": trueOrFalse()} {
		d.ref(name, orNull(s))
	}
	return d
}

// ref returns a reference to the definition of schema s, and defines it if necessary. The definition is named
// after the last part of the field's wire path, or after the whole path if that name is taken.
func (d *definitions) ref(wire string, s object) object {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // no error is possible: s contains only strings, numbers, lists and maps
	}
	name, known := d.names[string(text)]
	if !known {
		path := strings.NewReplacer("spec.", "", "[]", "").Replace(stripped(wire))
		if name = path[strings.LastIndexByte(path, '.')+1:]; d.byName[name] != nil || name == "workload" {
			name = path
		}
		d.names[string(text)], d.byName[name] = name, s
	}
	return object{"$ref": "#/$defs/" + name}
}

// describe makes the decoder read one probe of every kind, and returns the schema of the kinds that it
// accepts.
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
	return orNull(options...)
}

// orNull returns a schema that accepts one of the options, or null, which leaves the field unset.
func orNull[T any](options ...T) object {
	all := make([]any, 0, len(options)+1)
	for _, o := range options {
		all = append(all, o)
	}
	return object{"anyOf": append(all, object{"type": "null"})}
}

func anyText() object { return object{"type": []any{"string", "number", "boolean"}} }

func wholeNumber() object {
	return object{"type": []any{"integer", "string"}, "pattern": `^\s*[+-]?[0-9]+\s*$`}
}

func trueOrFalse() object {
	return object{"type": []any{"boolean", "string"}, "pattern": anyCase("true", "false")}
}

// anyCase returns a regular expression that matches the words in any case. The patterns of JSON Schema have
// no flag for that.
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

// stripped removes the list indexes from a wire path.
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

// limit adds to schema s the allowed words, the minimum and the maximum of the field with the given wire
// path.
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
		forms := []any{object{"enum": words}, object{"type": "string", "pattern": anyCase(n.words...)}}
		if n.pattern != "" {
			forms = append(forms, object{"type": "string", "pattern": n.pattern})
		}
		s["anyOf"] = forms
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

// SchemaFields returns the wire paths of all fields of the schema, and of those that have no description.
func SchemaFields() (all, undescribed []string) {
	known := notes()
	d := &decoder{places: map[string]place{}, seen: map[string]string{}, notes: known, defs: newDefinitions()}
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

// value converts a document to Go values for the schema validator. The tree does not record whether a scalar
// was quoted, so the schema accepts a string wherever it accepts a number.
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

// whereIs returns the line, column and path of the value at location, a path that the schema validator
// reports. If extra names an unknown key, line and column are those of the key.
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
