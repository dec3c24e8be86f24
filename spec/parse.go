package spec

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
)

// Limits of the input of Parse.
const (
	// MaxSpec is the maximum size of an encoded WorkloadSpec, in bytes (docs/RULES.md, "Sizes").
	MaxSpec = 512 << 10
	// MaxFile is the maximum size of a text that Parse accepts, in bytes.
	MaxFile = 4 << 20
)

// Options holds the optional inputs of Parse.
type Options struct {
	// ReadFile reads a file that `compose: {file: …}` and `cloud_init: {user_data_file: …}` names. The path
	// is relative to the specification. If ReadFile is nil, such fields are refused: a server must not read
	// files for a caller.
	ReadFile func(path string) ([]byte, error)
	// Name is the name of the stack if the document is a plain Compose file. If it is set, the name that the
	// function Stack returns and the key `name` of the file are ignored.
	Name string
	// Stack loads a Compose file on the machine of its author. If it is nil, variables in a Compose file are
	// not resolved, and files to which it refers are not read.
	Stack func(StackText) (Stack, error)
}

// StackText is a Compose file to load: a document of its own, or the file of `compose: {file: …}`.
type StackText struct {
	File string // file name in the specification; empty for a document of its own
	Text string
	// Name and Env are the name and the environment in the specification. Env is nil for a document of its
	// own.
	Name string
	Env  map[string]string
	Job  bool // whether the stack is a job
}

// Stack is the result of loading a Compose file: the name of the stack, the environment that it
// needs, and the files beside the Compose file.
type Stack struct {
	Name string
	Env  map[string]string
	// MainFile is the name of the Compose file in its folder; empty if the file has no folder. Files is the
	// archive of the files beside it that the stack needs; nil if it needs none.
	MainFile string
	Files    []byte
}

// Parse reads one or more YAML or JSON documents, checks them, and returns one request for each, in order.
// Its error is Errors, with file, line and column of every fault in every document. The requests are not
// normalised; Prepare does that.
func Parse(file string, data []byte, options Options) ([]*controlv1.ApplyWorkloadRequest, error) {
	docs, err := Documents(file, data, options)
	if err != nil {
		return nil, err
	}
	out := make([]*controlv1.ApplyWorkloadRequest, len(docs))
	for i := range docs {
		out[i] = docs[i].Request
	}
	return out, nil
}

// Documents does the same as Parse, but also returns the positions of all fields, so that later errors can be
// located in the file.
func Documents(file string, data []byte, options Options) ([]Document, error) {
	var all Errors
	if len(data) > MaxFile {
		all = append(all, FieldError{File: file, Rule: fmt.Sprintf("file is %d bytes, at most %d are read", len(data), MaxFile)})
		return nil, all
	}
	if line, column, rule := engine.NotText(data); rule != "" {
		return nil, append(all, FieldError{File: file, Line: line, Column: column, Rule: rule})
	}
	var out []Document
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
				d.fileStack(req)
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
				if e.File == "" {
					e.File = file
				}
				all = append(all, e)
			}
			doc := Document{Request: req, file: file, places: d.places}
			if text := req.GetSpec().GetCompose().GetInlineYaml(); text != "" {
				doc.stack = stackPlace{text, d.beside, d.inline}
				if isCompose {
					doc.stack.lines = c.line
				}
			}
			out = append(out, doc)
		}
	}
	if len(out) == 0 && len(all) == 0 {
		all = append(all, FieldError{File: file, Rule: "contains no workload"})
	}
	if len(all) > 0 {
		return nil, all[:min(len(all), maxErrors)]
	}
	return out, nil
}

// addMissed adds the given faults to d.errs, except those at a line and column for which d.errs has a fault
// already.
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

// decoder turns one document into a request. It records the position of each field, so that faults that
// Validate finds later can name their line.
type decoder struct {
	file    string
	options Options
	errs    Errors
	places  map[string]place  // positions of the fields, by wire path
	seen    map[string]string // for each wire path: the name that the author used for the field
	beside  string            // name of the Compose file in compose.file
	envFile map[string]string // variables of env_file
	// labelFile are the labels of label_file, cpuQuota is cpu_quota in microseconds; both are parts of other fields.
	labelFile map[string]string
	cpuQuota  int64
	refused   map[string]string // keys that the fields of a container do not have, with the reason
	inline    int               // number of lines before the text of compose.inline, see stackPlace

	// The next fields are used only to generate the JSON Schema (schema.go).
	notes   map[string]note
	defs    *definitions // shared schemas, each defined once
	visited func(wire string)
	// documented is called with each field and its schema, to generate the reference page.
	documented func(f *field, s object)
}

// where is the path of a value in a document: wire with the API's names of the fields, and shown with the names that
// the author used.
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

// field is an entry that a mapping may have. names holds, separated by blanks, our name of the field, then
// its name in the API and in other tools. set is called with the name that the document uses.
type field struct {
	names string
	wire  string
	set   func(name string, n *node, at where)
}

func (d *decoder) fail(n *node, at where, rule, value string) {
	if n.probe != nil {
		return // a probe (schema.go) stands for any value, so there is none to check
	}
	if len(d.errs) < maxErrors {
		d.errs = append(d.errs, FieldError{Line: n.line, Column: n.col, Field: at.shown, Rule: rule, Value: value, path: at.wire})
	}
}

// object decodes a mapping. fields lists the entries that it may have.
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
			if why := d.refused[name]; why != "" && here.wire == "spec.container" {
				d.fail(key, where{here.wire, join(here.shown, e.key)}, why, "")
				continue
			}
			if len(d.errs) < maxErrors {
				d.errs = append(d.errs, FieldError{Line: e.line, Column: e.col, Field: here.shown,
					Rule: fmt.Sprintf("unknown field %q", shorten(e.key)), Suggestion: engine.Nearest(name, known)})
			}
			continue
		}
		sub := where{f.wire, join(here.shown, e.key)}
		if earlier, twice := d.seen[f.wire]; twice {
			d.fail(key, sub, fmt.Sprintf("is set twice, first as %q", earlier), "")
			continue
		}
		if e.value.kind == null {
			continue // null: the field is not set
		}
		d.seen[f.wire] = sub.shown
		d.places[f.wire] = place{e.value.line, e.value.col, sub.shown}
		f.set(name, e.value, sub)
	}
}

// snake converts a field name from lowerCamelCase (protobuf's JSON form) to snake_case (the API's form).
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

// list reads a list from a document and calls item for each entry.
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

// words reads a list of strings from a document.
func (d *decoder) words(n *node, here where) []string {
	var out []string
	d.list(n, here, func(n *node, at where) { out = append(out, d.str(n, at)) })
	return out
}

// pairs reads a map of strings: a mapping, or a list of KEY=VALUE strings.
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

// place returns the position of a field by its wire path, or of the nearest field around it.
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
