package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlValue is the value of a key in the YAML file, as the text that an environment variable would have.
type yamlValue struct {
	text   string
	source string // where the value is: "file:line: key"
}

// yamlKeys returns the values of the configuration file by their dotted keys. Unknown keys are errors.
func (l *Loader) yamlKeys(from Sources) (map[string]yamlValue, Errors) {
	if len(bytes.TrimSpace(from.YAML)) == 0 {
		return nil, nil
	}
	name := orElse(from.YAMLName, "configuration file")
	if len(from.YAML) > MaxFile {
		return nil, Errors{fmt.Errorf("%s: %d bytes, at most %d", name, len(from.YAML), MaxFile)}
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(from.YAML))
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, Errors{fmt.Errorf("%s: %w", name, err)}
	}
	w := &walker{name: name, known: map[string]*setting{}, out: map[string]yamlValue{}}
	for _, s := range l.settings {
		if s.YAML != "" {
			w.known[s.YAML] = s
		}
	}
	if len(doc.Content) > 0 {
		w.walk(doc.Content[0], "", 0)
	}
	return w.out, w.errs
}

type walker struct {
	name  string
	known map[string]*setting
	out   map[string]yamlValue
	errs  Errors
}

func (w *walker) fail(n *yaml.Node, format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf("%s:%d: %s", w.name, n.Line, fmt.Sprintf(format, args...)))
}

func (w *walker) walk(n *yaml.Node, path string, depth int) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if depth > 20 {
		w.fail(n, "nested deeper than 20")
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if s := w.known[path]; s != nil && path != "" {
		w.take(n, path, s)
		return
	}
	if n.Kind != yaml.MappingNode {
		if path == "" {
			w.fail(n, "must be a mapping of settings")
		} else {
			w.unknown(n, path)
		}
		return
	}
	if path != "" && !w.prefix(path) {
		w.unknown(n, path)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		if path != "" {
			key = path + "." + key
		}
		w.walk(n.Content[i+1], key, depth+1)
	}
}

func (w *walker) prefix(path string) bool {
	for k := range w.known {
		if strings.HasPrefix(k, path+".") {
			return true
		}
	}
	return false
}

func (w *walker) unknown(n *yaml.Node, path string) {
	keys := make([]string, 0, len(w.known))
	for k := range w.known {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	hint := ""
	if near := nearest(path, keys); near != "" {
		hint = fmt.Sprintf(", did you mean %q?", near)
	}
	w.fail(n, "unknown key %q%s", path, hint)
}

func (w *walker) take(n *yaml.Node, path string, s *setting) {
	if _, twice := w.out[path]; twice {
		w.fail(n, "key %q is set twice", path)
		return
	}
	source := fmt.Sprintf("%s:%d: %s", w.name, n.Line, path)
	scalar := func(n *yaml.Node) (string, bool) {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		return n.Value, n.Kind == yaml.ScalarNode
	}
	if s.Type == "yaml" {
		// The setting takes a structure, so pass the value on as YAML text.
		text, err := yaml.Marshal(n)
		if err != nil {
			w.fail(n, "%s: %v", path, err)
			return
		}
		w.out[path] = yamlValue{string(text), source}
		return
	}
	switch n.Kind {
	case yaml.ScalarNode:
		w.out[path] = yamlValue{n.Value, source}
	case yaml.SequenceNode:
		if s.Type != "list" {
			w.fail(n, "%s: must be a single value, not a list", path)
			return
		}
		var items []string
		for _, item := range n.Content {
			text, ok := scalar(item)
			if !ok || strings.Contains(text, ",") {
				w.fail(item, "%s: must be a list of values without commas", path)
				return
			}
			items = append(items, text)
		}
		w.out[path] = yamlValue{strings.Join(items, ","), source}
	case yaml.MappingNode:
		if s.Type != "map" {
			w.fail(n, "%s: must be a value, not a mapping", path)
			return
		}
		var pairs []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			text, ok := scalar(n.Content[i+1])
			if !ok || strings.ContainsAny(text+n.Content[i].Value, ",") {
				w.fail(n.Content[i], "%s: must be a mapping of values without commas", path)
				return
			}
			pairs = append(pairs, n.Content[i].Value+"="+text)
		}
		w.out[path] = yamlValue{strings.Join(pairs, ","), source}
	}
}

// nearest returns the known name with the smallest edit distance. If more than a third of the letters differ,
// it returns "".
func nearest(name string, known []string) string {
	best, least := "", 1+max(1, len(name)/3)
	if len(name) > 100 {
		return ""
	}
	for _, k := range known {
		row := make([]int, len(k)+1)
		for j := range row {
			row[j] = j
		}
		for i := 1; i <= len(name); i++ {
			diagonal := row[0]
			row[0] = i
			for j := 1; j <= len(k); j++ {
				cost := diagonal
				if name[i-1] != k[j-1] {
					cost++
				}
				diagonal = row[j]
				row[j] = min(cost, row[j]+1, row[j-1]+1)
			}
		}
		if row[len(k)] < least {
			best, least = k, row[len(k)]
		}
	}
	return best
}
