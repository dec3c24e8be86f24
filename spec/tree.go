package spec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

type kind uint8

const (
	null kind = iota
	scalar
	mapping
	sequence
)

func (k kind) String() string {
	return [...]string{"nothing", "a value", "a mapping", "a list"}[k]
}

// node is a value of a YAML document with its position. Aliases are resolved: they share the node of their anchor. The
// decoder visits such a node once for each alias, and each visit adds the node's values to the number that maxEntries
// limits.
type node struct {
	kind      kind
	line, col int
	text      string // text of a scalar with quotes and escapes resolved
	block     bool   // true if the text is a literal block (|), which begins on the next line of the document
	entries   []entry
	items     []*node

	probe *probe // the probe, if the node stands for any value of a kind (schema.go)
}

type entry struct {
	key       string
	line, col int
	value     *node
}

// Bounds of documents, which the YAML library requires. The library is recursive, so the nesting depth is
// limited to limit its stack. Its time grows with the square of the number of tokens (0.2 s for 50,000).
// Values are counted with aliases resolved.
const (
	maxDepth   = 200
	maxTokens  = 50_000
	maxEntries = 200_000
)

// chunk is the text of one document.
type chunk struct {
	text string
	line int // line number in the file at which the chunk begins, from 0
}

// documents splits a file at its `---` lines into documents. In YAML such a line ends any scalar, so no
// parser is needed, and a syntax error in one document does not hide faults in others.
func documents(data string) []chunk {
	var out []chunk
	start, startLine, line := 0, 0, 0
	cut := func(end int) {
		text := data[start:end]
		if isDocumentMark(text) {
			text = "   " + text[3:] // replace the dashes by blanks, so that the columns of the text after them stay right
		}
		out = append(out, chunk{text, startLine})
	}
	for pos := 0; pos < len(data); line++ {
		if pos > 0 && isDocumentMark(data[pos:]) {
			cut(pos)
			start, startLine = pos, line
		}
		end := strings.IndexByte(data[pos:], '\n')
		if end < 0 {
			break
		}
		pos += end + 1
	}
	cut(len(data))
	return out
}

func isDocumentMark(s string) bool {
	return strings.HasPrefix(s, "---") && (len(s) == 3 || strings.IndexByte(" \t\r\n", s[3]) >= 0)
}

// blank reports whether a document has only comments and directives.
func (c chunk) blank() bool {
	for l := range strings.Lines(c.text) {
		l = strings.TrimSpace(l)
		if l != "" && l[0] != '#' && l[0] != '%' && l != "..." {
			return false
		}
	}
	return true
}

// shallow returns an error if the text is nested deeper than any specification. It also counts brackets
// inside quotes, which are balanced in practice.
func (c chunk) shallow() error {
	depth := 0
	for i := 0; i < len(c.text); i++ {
		switch c.text[i] {
		case '[', '{':
			if depth++; depth > maxDepth {
				return fmt.Errorf("nested deeper than %d", maxDepth)
			}
		case ']', '}':
			depth = max(0, depth-1)
		}
	}
	for l := range strings.Lines(c.text) {
		marks := 0
		l = strings.TrimLeft(l, " \t")
		for len(l) > 1 && strings.IndexByte("-?:&!", l[0]) >= 0 {
			word, rest, _ := strings.Cut(l, " ")
			if word == "" || rest == "" {
				break
			}
			if marks++; marks > maxDepth/4 {
				return fmt.Errorf("nested deeper than %d", maxDepth/4)
			}
			l = strings.TrimLeft(rest, " \t")
		}
	}
	return nil
}

// tree parses one document into nodes. The error is a FieldError with a position.
func (c chunk) tree() (root *node, err error) {
	// A panic of the YAML library on malicious input must not end a scheduler.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, FieldError{Line: c.line + 1, Column: 1, Rule: "cannot be read as YAML or JSON"}
		}
	}()
	if err := c.shallow(); err != nil {
		return nil, FieldError{Line: c.line + 1, Column: 1, Rule: err.Error()}
	}
	text := c.text
	if t := strings.TrimLeft(text, " \t\r\n"); t != "" && (t[0] == '{' || t[0] == '[') {
		// JSON may be indented with tabs, which YAML forbids. A raw tab inside a JSON string is illegal
		// anyway, so all tabs are replaced.
		text = strings.ReplaceAll(text, "\t", " ")
	}
	tokens := lexer.Tokenize(text)
	if len(tokens) > maxTokens {
		return nil, FieldError{Line: c.line + 1, Column: 1, Rule: fmt.Sprintf("document has %d tokens, at most %d", len(tokens), maxTokens)}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, c.syntax(err)
	}
	b := &builder{line: c.line, anchors: map[string]anchor{}}
	for _, d := range file.Docs {
		if d == nil || d.Body == nil {
			continue
		}
		if root != nil {
			n, err := b.node(d.Body, 0)
			if err == nil && n.kind != null {
				err = FieldError{Line: n.line, Column: n.col, Rule: `a second document must begin with a line "---"`}
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		if root, err = b.node(d.Body, 0); err != nil {
			return nil, err
		}
	}
	if root == nil {
		root = &node{line: c.line + 1, col: 1}
	}
	return root, nil
}

func (c chunk) syntax(err error) FieldError {
	out := FieldError{Line: c.line + 1, Column: 1, Rule: "not valid YAML or JSON"}
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) {
		out.Rule += ": " + syntax.Message
		if t := syntax.Token; t != nil && t.Position != nil {
			out.Line, out.Column = c.line+t.Position.Line, t.Position.Column
		}
	}
	return out
}

type builder struct {
	line    int
	anchors map[string]anchor
	entries int
}

// anchor is a value that YAML aliases refer to, with its number of entries.
type anchor struct {
	value   *node
	entries int
}

// count adds entries to the number of values that the document has so far. If the sum exceeds maxEntries, it returns
// an error.
func (b *builder) count(entries int, t *token.Token) error {
	if b.entries += entries; b.entries > maxEntries {
		return b.fail(t, fmt.Sprintf("more than %d values, including those that aliases stand for", maxEntries))
	}
	return nil
}

func (b *builder) fail(t *token.Token, rule string) error {
	e := FieldError{Line: b.line + 1, Column: 1, Rule: rule}
	if t != nil && t.Position != nil {
		e.Line, e.Column = b.line+t.Position.Line, t.Position.Column
	}
	return e
}

func (b *builder) place(t *token.Token) (line, col int) {
	if t == nil || t.Position == nil {
		return b.line + 1, 1
	}
	return b.line + t.Position.Line, t.Position.Column
}

func (b *builder) node(n ast.Node, depth int) (*node, error) {
	if n == nil {
		return &node{line: b.line + 1, col: 1}, nil
	}
	if depth > maxDepth {
		return nil, b.fail(n.GetToken(), fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	before := b.entries
	if err := b.count(1, n.GetToken()); err != nil {
		return nil, err
	}
	out := &node{}
	out.line, out.col = b.place(n.GetToken())
	switch n := n.(type) {
	case *ast.NullNode:
		return out, nil
	case *ast.StringNode:
		out.kind, out.text = scalar, n.Value
	case *ast.LiteralNode:
		out.kind = scalar
		if n.Value != nil {
			out.text = n.Value.Value
		}
		out.block = n.Start != nil && strings.HasPrefix(n.Start.Value, "|")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		// The text stays as it is written: 0.10 may be a version, and 0x1F the value of an environment
		// variable.
		out.kind, out.text = scalar, n.GetToken().Value
	case *ast.TagNode:
		return b.node(n.Value, depth+1)
	case *ast.AnchorNode:
		value, err := b.node(n.Value, depth+1)
		if err != nil {
			return nil, err
		}
		if n.Name != nil {
			b.anchors[n.Name.GetToken().Value] = anchor{value, b.entries - before}
		}
		return value, nil
	case *ast.AliasNode:
		name := ""
		if n.Value != nil {
			name = n.Value.GetToken().Value
		}
		of, ok := b.anchors[name]
		if !ok {
			return nil, b.fail(n.GetToken(), fmt.Sprintf("no anchor &%s before this alias", name))
		}
		return of.value, b.count(of.entries, n.GetToken())
	case *ast.SequenceNode:
		out.kind = sequence
		for _, v := range n.Values {
			item, err := b.node(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}
	case *ast.MappingNode:
		out.kind = mapping
		for i, v := range n.Values {
			if i == 0 {
				out.line, out.col = b.place(v.Key.GetToken())
			}
			if err := b.entry(out, v, depth); err != nil {
				return nil, err
			}
		}
	case *ast.MappingValueNode:
		out.kind = mapping
		out.line, out.col = b.place(n.Key.GetToken())
		if err := b.entry(out, n, depth); err != nil {
			return nil, err
		}
	default:
		return nil, b.fail(n.GetToken(), fmt.Sprintf("%s is not supported here", n.Type()))
	}
	return out, nil
}

func (b *builder) entry(into *node, v *ast.MappingValueNode, depth int) error {
	value, err := b.node(v.Value, depth+1)
	if err != nil {
		return err
	}
	if v.Key.IsMergeKey() {
		line, col := b.place(v.Key.GetToken())
		for _, e := range into.entries {
			if strings.HasPrefix(e.key, mergedKey) && (e.line != line || e.col != col) {
				return b.fail(v.Key.GetToken(), fmt.Sprintf("<< is set twice, first on line %d; merge several mappings as a list: <<: [*a, *b]", e.line))
			}
		}
		return b.merge(into, value, v.Key.GetToken())
	}
	key, err := b.node(v.Key, depth+1)
	if err != nil {
		return err
	}
	if key.kind != scalar {
		return b.fail(v.Key.GetToken(), "a key must be a plain word")
	}
	if value.kind == null && v.Value != nil {
		value.line, value.col = key.line, key.col
	}
	into.entries = append(into.entries, entry{key: key.text, line: key.line, col: key.col, value: value})
	return nil
}

// merge adds the entries of one mapping (from), which YAML's `<<` names, to another mapping (into). If both
// have the same key, the entry of into takes precedence, wherever in the mapping the `<<` is; see own.
func (b *builder) merge(into, from *node, t *token.Token) error {
	switch from.kind {
	case mapping:
		line, col := b.place(t)
		for _, e := range from.own() {
			into.entries = append(into.entries, entry{key: mergedKey + e.key, line: line, col: col, value: e.value})
		}
		return nil
	case sequence:
		for _, item := range from.items {
			if item.kind != mapping {
				return b.fail(t, "<< takes a mapping or a list of mappings")
			}
			if err := b.merge(into, item, t); err != nil {
				return err
			}
		}
		return nil
	}
	return b.fail(t, "<< takes a mapping or a list of mappings")
}

// mergedKey is the prefix of the keys of entries that were added by `<<`.
const mergedKey = "\x00"

// own returns the entries of a mapping. It includes an entry that was added by `<<` only if neither the
// mapping itself nor an earlier `<<` has its key.
func (n *node) own() []entry {
	plain := true
	for _, e := range n.entries {
		if strings.HasPrefix(e.key, mergedKey) {
			plain = false
			break
		}
	}
	if plain {
		return n.entries
	}
	have := map[string]bool{}
	out := make([]entry, 0, len(n.entries))
	for _, e := range n.entries {
		if !strings.HasPrefix(e.key, mergedKey) {
			have[e.key] = true
			out = append(out, e)
		}
	}
	for _, e := range n.entries {
		if key, merged := strings.CutPrefix(e.key, mergedKey); merged && !have[key] {
			have[key] = true
			e.key = key
			out = append(out, e)
		}
	}
	return out
}
