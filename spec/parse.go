package spec

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Limits of the input.
const (
	// MaxSpec is the largest encoded WorkloadSpec, in bytes (RULES, "Sizes").
	MaxSpec = 512 << 10
	// MaxFile is the largest text that Parse accepts, in bytes.
	MaxFile = 4 << 20
)

// Options of Parse.
type Options struct {
	// ReadFile reads the files that `compose: {file: …}` and `cloud_init: {user_data_file: …}`
	// name, relative to the specification. If it is nil, such fields are refused: a server must not
	// read files for a caller.
	ReadFile func(path string) ([]byte, error)
	// Name is the name of the stack that a Compose file becomes. It takes precedence over the
	// `name` in the file, and DefaultName is used if there is neither.
	Name, DefaultName string
	// Env returns the variables of a Compose file, from the file .env beside it. It may be nil.
	Env func() (map[string]string, error)
}

// Parse reads one or more YAML or JSON documents, checks them, and returns one request for each, in
// order. Its error is Errors: every fault of every document, with file, line and column. The
// requests are not normalised; Prepare does that.
func Parse(file string, data []byte, options Options) ([]*controlv1.ApplyWorkloadRequest, error) {
	var all Errors
	if len(data) > MaxFile {
		all = append(all, FieldError{File: file, Rule: fmt.Sprintf("file is %d bytes, at most %d are read", len(data), MaxFile)})
		return nil, all
	}
	var out []*controlv1.ApplyWorkloadRequest
	ids := map[string]int{}
	for _, c := range documents(strings.TrimPrefix(string(data), "\ufeff")) {
		if len(all) >= maxErrors {
			break
		}
		if c.blank() {
			continue
		}
		root, err := c.tree()
		if err != nil {
			var at FieldError
			if !errors.As(err, &at) {
				at = FieldError{Line: c.line + 1, Column: 1, Rule: err.Error()}
			}
			at.File = file
			all = append(all, at)
			continue
		}
		roots := []*node{root}
		if root.kind == sequence {
			roots = root.items
		}
		for _, n := range roots {
			if n.kind == null {
				continue
			}
			d := &decoder{file: file, options: options, places: map[string]place{}, seen: map[string]string{}}
			var req *controlv1.ApplyWorkloadRequest
			isCompose := n == root && isComposeFile(root)
			if isCompose {
				req = d.stack(n, c)
			} else {
				req = d.document(n)
			}
			if len(d.errs) == 0 {
				d.validate(req)
			} else if !isCompose {
				d.addMissed(bySchema(n))
			}
			if id := req.GetWorkloadId(); id != "" {
				if line, twice := ids[id]; twice && len(d.errs) < maxErrors {
					p := d.place("workload_id")
					d.errs = append(d.errs, FieldError{Line: p.line, Column: p.col, Field: p.shown, Value: id,
						Rule: fmt.Sprintf("is used twice in this file, first on line %d", line)})
				} else {
					ids[id] = d.place("workload_id").line
				}
			}
			d.errs.byPlace()
			for _, e := range d.errs {
				e.File = file
				all = append(all, e)
			}
			out = append(out, req)
		}
	}
	if len(out) == 0 && len(all) == 0 {
		all = append(all, FieldError{File: file, Rule: "holds no workload"})
	}
	if len(all) > 0 {
		return nil, all[:min(len(all), maxErrors)]
	}
	return out, nil
}

// addMissed adds those faults whose position has no fault yet.
func (d *decoder) addMissed(faults Errors) {
	for _, f := range faults {
		near := func(e FieldError) bool { return e.Line == f.Line && e.Column == f.Column }
		if len(d.errs) < maxErrors && !slices.ContainsFunc(d.errs, near) {
			d.errs = append(d.errs, f)
		}
	}
}

type place struct {
	line, col int
	shown     string
}

// decoder turns one document into a request. It records the position of each field, so that faults
// found by Validate get a line.
type decoder struct {
	file    string
	options Options
	errs    Errors
	places  map[string]place  // by wire path
	seen    map[string]string // wire path to the name that was used in the document

	// Used only to generate the schema (schema.go).
	notes   map[string]note
	defs    *definitions // shared schemas of fields
	visited func(wire string)
}

// where is a path in the document: the wire path and the path as the author wrote it.
type where struct{ wire, shown string }

func (a where) index(i int) where {
	s := "[" + strconv.Itoa(i) + "]"
	return where{a.wire + s, a.shown + s}
}

func (a where) key(k string) where { return where{a.wire + "." + k, join(a.shown, k)} }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// field is a possible entry of a mapping. names holds our name first, then those of the wire and of
// other tools, separated by blanks. set is called with the name that was used.
type field struct {
	names string
	wire  string
	set   func(name string, n *node, at where)
}

func (d *decoder) fail(n *node, at where, rule, value string) {
	if n.probe != nil {
		return // a probe has no value
	}
	if len(d.errs) < maxErrors {
		d.errs = append(d.errs, FieldError{Line: n.line, Column: n.col, Field: at.shown, Rule: rule, Value: value, path: at.wire})
	}
}

// object decodes a mapping with a table of fields.
func (d *decoder) object(n *node, here where, fields []field) {
	if n.probe != nil {
		n.probe.object(d, n.kind, fields)
		return
	}
	switch n.kind {
	case null:
		return
	case scalar, sequence:
		d.fail(n, here, "must be a mapping, not "+n.kind.String(), n.text)
		return
	}
	byName := make(map[string]*field, 2*len(fields))
	var known []string
	for i := range fields {
		for _, name := range strings.Fields(fields[i].names) {
			byName[name] = &fields[i]
			known = append(known, name)
		}
	}
	for _, e := range n.own() {
		key := &node{line: e.line, col: e.col}
		name := snake(e.key)
		f := byName[name]
		if f == nil {
			if len(d.errs) < maxErrors {
				d.errs = append(d.errs, FieldError{Line: e.line, Column: e.col, Field: here.shown,
					Rule: fmt.Sprintf("unknown field %q", shorten(e.key)), Suggestion: nearest(name, known)})
			}
			continue
		}
		sub := where{f.wire, join(here.shown, e.key)}
		if earlier, twice := d.seen[f.wire]; twice {
			d.fail(key, sub, fmt.Sprintf("is set twice, first as %q", earlier), "")
			continue
		}
		if e.value.kind == null {
			continue // null leaves the field unset
		}
		d.seen[f.wire] = sub.shown
		d.places[f.wire] = place{e.value.line, e.value.col, sub.shown}
		f.set(name, e.value, sub)
	}
}

// snake converts the lowerCamelCase of protobuf's JSON to wire names.
func snake(s string) string {
	if len(s) > 64 || strings.IndexFunc(s, func(r rune) bool { return r >= 'A' && r <= 'Z' }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// list calls item for each entry of a list.
func (d *decoder) list(n *node, here where, item func(n *node, at where)) {
	if n.probe != nil {
		n.probe.takes(n.kind == sequence, func() object {
			return object{"type": "array", "items": d.describe(here.wire+"[]", func(n *node) { item(n, where{here.wire + "[]", ""}) })}
		})
		return
	}
	if n.kind != sequence {
		d.fail(n, here, "must be a list, not "+n.kind.String(), n.text)
		return
	}
	for i, v := range n.items {
		sub := here.index(i)
		d.places[sub.wire] = place{v.line, v.col, sub.shown}
		item(v, sub)
	}
}

func (d *decoder) str(n *node, here where) string {
	if n.probe != nil {
		n.probe.takes(n.kind == scalar, anyText)
		return ""
	}
	switch n.kind {
	case scalar:
		return n.text
	case null:
		return ""
	}
	d.fail(n, here, "must be a text, not "+n.kind.String(), "")
	return ""
}

func (d *decoder) integer(n *node, here where, bits int) int64 {
	if n.probe != nil {
		n.probe.takes(n.kind == scalar, wholeNumber)
		return 0
	}
	if n.kind == scalar {
		if v, err := strconv.ParseInt(strings.TrimSpace(n.text), 10, bits); err == nil {
			return v
		} else if errors.Is(err, strconv.ErrRange) {
			d.fail(n, here, "is out of range", n.text)
			return 0
		}
	}
	d.fail(n, here, "must be a whole number", n.text)
	return 0
}

func (d *decoder) boolean(n *node, here where) bool {
	if n.probe != nil {
		n.probe.takes(n.kind == scalar, trueOrFalse)
		return false
	}
	switch strings.ToLower(n.text) {
	case "true":
		return true
	case "false":
		return false
	}
	d.fail(n, here, "must be true or false", n.text)
	return false
}

// words reads a list of strings.
func (d *decoder) words(n *node, here where) []string {
	var out []string
	d.list(n, here, func(n *node, at where) { out = append(out, d.str(n, at)) })
	return out
}

// pairs reads a map of strings: a mapping, or a list of KEY=VALUE.
func (d *decoder) pairs(n *node, here where, secret bool) map[string]string {
	if n.probe != nil {
		n.probe.takes(n.kind != scalar, func() object { return pairsOf(n.kind) })
		return nil
	}
	out := map[string]string{}
	put := func(n *node, key, value string) {
		sub := here.key(key)
		if _, twice := out[key]; twice {
			d.fail(n, sub, "is set twice", "")
			return
		}
		d.places[sub.wire] = place{n.line, n.col, sub.shown}
		out[key] = value
	}
	switch n.kind {
	case mapping:
		for _, e := range n.own() {
			if e.value.kind != scalar && e.value.kind != null {
				d.fail(e.value, here.key(e.key), "must be a text, not "+e.value.kind.String(), "")
				continue
			}
			put(&node{line: e.line, col: e.col}, e.key, e.value.text)
		}
	case sequence:
		for i, item := range n.items {
			sub := here.index(i)
			if own := item.own(); len(own) == 1 && own[0].value.kind == scalar {
				put(item, own[0].key, own[0].value.text)
				continue
			}
			key, value, ok := strings.Cut(item.text, "=")
			if item.kind != scalar || !ok {
				shown := item.text
				if secret {
					shown = ""
				}
				d.fail(item, sub, "must be KEY=VALUE", shown)
				continue
			}
			put(item, key, value)
		}
	default:
		d.fail(n, here, "must be a mapping or a list of KEY=VALUE", "")
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// place returns the position of a field by its wire path, or that of the nearest enclosing field.
func (d *decoder) place(path string) place {
	for p := path; p != ""; {
		if at, ok := d.places[p]; ok {
			return at
		}
		cut := strings.LastIndexAny(p, ".[")
		if cut < 0 {
			break
		}
		p = p[:cut]
	}
	return d.places[""]
}

func (d *decoder) validate(req *controlv1.ApplyWorkloadRequest) {
	for _, e := range Validate(req) {
		p := d.place(e.path)
		e.Line, e.Column = p.line, p.col
		if p.shown != "" && d.places[e.path].shown != "" {
			e.Field = p.shown
		} else {
			e.Field = strings.TrimPrefix(e.Field, "spec.")
		}
		d.errs = append(d.errs, e)
	}
}
