package stack

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxNodes bounds how many YAML values a search visits. Aliases can repeat a value very often.
const maxNodes = 200_000

// lineOf returns the line of a value of a YAML document. at holds the keys and list indices that lead to the
// value. If there is no such value, lineOf returns the line of the innermost existing value that would contain
// it.
func lineOf(doc *yaml.Node, at []string) int {
	n, line := doc, 0
	if n != nil && n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, key := range at {
		for n != nil && n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n == nil {
			break
		}
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					line, next = n.Content[i].Line, n.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		}
		n = next
	}
	return line
}

// eachScalar calls f for each scalar below a YAML node. It skips aliases, because their values are at another
// place of the text.
func eachScalar(n *yaml.Node, at []string, f func(at []string, n *yaml.Node)) {
	left := maxNodes
	var visit func(n *yaml.Node, at []string)
	visit = func(n *yaml.Node, at []string) {
		if left--; left < 0 {
			return
		}
		switch n.Kind {
		case yaml.DocumentNode:
			for _, c := range n.Content {
				visit(c, at)
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				visit(n.Content[i+1], append(at[:len(at):len(at)], n.Content[i].Value))
			}
		case yaml.SequenceNode:
			for i, c := range n.Content {
				visit(c, append(at[:len(at):len(at)], strconv.Itoa(i)))
			}
		case yaml.ScalarNode:
			f(at, n)
		}
	}
	visit(n, at)
}

// textForm is a pattern for error texts of compose-go that name a place in the Compose file. The field at is
// a function that converts groups 1 and 2 of the pattern to that place.
type textForm struct {
	text *regexp.Regexp
	at   func(docs []*yaml.Node, a, b string) []string
}

// textForms returns the patterns for error texts of compose-go. The first pattern that matches gives the place
// of the error. If the file has no such place, the innermost existing place that would contain it is used.
func textForms() []textForm {
	keys := func(at string) []string {
		return strings.FieldsFunc(at, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
	}
	return []textForm{
		{regexp.MustCompile(`^(?:([\w.-]+) )?additional properties '([^']*)' not allowed`), func(_ []*yaml.Node, a, b string) []string { return append(keys(a), b) }},
		{regexp.MustCompile(`service "([\w.-]+)" (?:refers to|depends on) undefined \w+ "?([\w.-]+)`), func(docs []*yaml.Node, a, b string) []string {
			return holding(docs, []string{"services", a}, b)
		}},
		{regexp.MustCompile(`cycle detected: ([\w.-]+) -> ([\w.-]+)`), func(_ []*yaml.Node, a, b string) []string {
			return []string{"services", a, "depends_on", b}
		}},
		{regexp.MustCompile(`for container and host Ports: (\S+) and (\S+)`), func(docs []*yaml.Node, a, b string) []string {
			return holding(docs, nil, b+":"+a)
		}},
		{regexp.MustCompile(`\b((?:services|networks|volumes|secrets|configs)(?:[.\[][\w-]+\]?)+)()`), func(_ []*yaml.Node, a, _ string) []string { return keys(a) }},
		{regexp.MustCompile(`\bservice "?([\w.-]+)"?()`), func(_ []*yaml.Node, a, _ string) []string { return []string{"services", a} }},
	}
}

// holding searches below a path for the first scalar or key that equals a value or contains it, and returns
// its path.
func holding(docs []*yaml.Node, below []string, value string) []string {
	for _, same := range []bool{true, false} {
		for _, doc := range docs {
			var found []string
			eachScalar(doc, nil, func(at []string, n *yaml.Node) {
				if found != nil || len(at) < len(below) || !slices.Equal(at[:len(below)], below) {
					return
				}
				key := slices.Index(at[len(below):], value)
				switch {
				case key >= 0 && len(at) > len(below)+1:
					found = at[:len(below)+key+1]
				case n.Value == value, !same && strings.Contains(n.Value, value):
					found = at
				}
			})
			if found != nil {
				return found
			}
		}
	}
	return below
}

// disabled returns the first profile that a service names, or "". It is called for a service that compose-go
// left out because none of its profiles is enabled.
func disabled(docs map[string][]*yaml.Node, service string) (profile string) {
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		for _, doc := range docs[name] {
			eachScalar(doc, nil, func(at []string, n *yaml.Node) {
				if len(at) >= 3 && at[0] == "services" && at[1] == service && at[2] == "profiles" && profile == "" {
					profile = n.Value
				}
			})
		}
	}
	return profile
}

// yamlFault makes the fault for a file that is not valid YAML.
func yamlFault(name string, err error) Fault {
	f := Fault{File: name, Rule: firstLine(err)}
	f.Line = lastLine(f.Rule)
	if cut := strings.LastIndex(f.Rule, ": "); cut >= 0 && len(f.Rule)-cut > 8 {
		f.Rule = f.Rule[cut+2:]
	}
	f.Rule = "is not valid YAML: " + f.Rule
	return f
}

// loadFault makes a fault from an error of compose-go. If the error text names a place, the fault has its line.
// Paths in the error are relative to dir. If mask is set, the text of the fault contains no value of the stack.
func loadFault(err error, dir, main string, docs map[string][]*yaml.Node, mask bool) Fault {
	f := placed(err, dir, main, docs)
	if mask && !strings.Contains(f.Rule, "additional properties") { // keep the text: "additional properties" is followed by keys, not values
		f.Rule = withoutLast(quoted().ReplaceAllString(f.Rule, `"…"`), docs)
	}
	return f
}

// quoted matches a quoted value in the text of an error.
func quoted() *regexp.Regexp { return regexp.MustCompile(`"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'`) }

// withoutLast masks the part of an error text after the last colon, if that part occurs in the stack's files.
// Some errors of compose-go end with the invalid value from the file, without quotes.
func withoutLast(text string, docs map[string][]*yaml.Node) string {
	i := strings.LastIndex(text, ": ")
	if i < 0 || len(text)-i-2 < shortest {
		return text
	}
	found := false
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		for _, doc := range docs[name] {
			eachScalar(doc, nil, func(_ []string, n *yaml.Node) { found = found || strings.Contains(n.Value, text[i+2:]) })
		}
	}
	if found {
		return text[:i+2] + "…"
	}
	return text
}

// shortest is the length of the shortest value that is masked. Shorter values are not masked: they occur by
// chance in any text, and are hardly secrets.
const shortest = 4

// Masked returns a text in which each value of a stack's environment is replaced by "…". If a value has several
// lines, each of its lines is also replaced where it occurs alone.
func Masked(text string, env map[string]string) string {
	var pairs []string
	values := slices.Collect(maps.Values(env))
	// Mask the longest value first, because a value may contain another one.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	for _, v := range values {
		for _, part := range append([]string{v}, strings.Split(v, "\n")...) {
			if len(part) >= shortest {
				pairs = append(pairs, part, "…")
			}
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// placed makes a fault from an error of compose-go. The fault contains the file and line of the mistake if the
// error text is enough to find them.
func placed(err error, dir, main string, docs map[string][]*yaml.Node) Fault {
	text := strings.TrimSpace(err.Error())
	text = strings.TrimPrefix(text, "decoding failed due to the following error(s):")
	text = firstLine(plainText(strings.TrimSpace(text)))
	text = strings.ReplaceAll(text, dir+"/", "")
	text = strings.TrimSuffix(text, ": invalid compose project")
	f := Fault{File: main}
	if rest, ok := strings.CutPrefix(text, "validating "); ok {
		if file, rule, ok := strings.Cut(rest, ": "); ok {
			f.File, text = file, rule
		}
	}
	f.Rule = text
	if f.Line = lastLine(text); f.Line > 0 {
		return f
	}
	// In this error text of compose-go, the service and the key are in the wrong order.
	if m := regexp.MustCompile(`services\.(\S+): can't set container_name and (\S+) as`).FindStringSubmatch(text); m != nil {
		f.At, f.Rule = "services."+m[2]+".container_name", "is one name for several containers ("+m[1]+"); remove container_name or the replicas"
		f.line(docs, []string{"services", m[2], "container_name"})
		return f
	}
	if m := regexp.MustCompile(`depends on undefined service "([\w.-]+)"`).FindStringSubmatch(text); m != nil {
		if profile := disabled(docs, m[1]); profile != "" {
			f.Rule += ", which is behind the profile " + profile + ": enable it with COMPOSE_PROFILES=" + profile
		}
	}
	for _, form := range textForms() {
		if m := form.text.FindStringSubmatch(text); m != nil {
			if f.line(docs, form.at(docs[f.File], m[1], m[2])); f.Line > 0 {
				return f
			}
		}
	}
	if cut := strings.LastIndex(text, ": "); cut >= 0 && len(text)-cut > 4 {
		f.find(docs, text[cut+2:])
	}
	return f
}

// lastLine returns the line number that an error text names last; 0 if it names none.
func lastLine(text string) int {
	all := regexp.MustCompile(`(?:line (\d+):|at L(\d+))`).FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	n, _ := strconv.Atoi(last[1] + last[2])
	return n
}

type plainText string

func (t plainText) Error() string { return string(t) }

// line sets the line of a fault to the line of the value at the path keys, in the first file that has such
// a value.
func (f *Fault) line(docs map[string][]*yaml.Node, keys []string) {
	for _, doc := range docs[f.File] {
		if line := lineOf(doc, keys); line > 0 {
			f.Line = line
			return
		}
	}
}

// find looks in the Compose files for YAML scalars that contain the given value. If there is exactly one, find sets the
// file and the line of the fault to those of this scalar.
func (f *Fault) find(docs map[string][]*yaml.Node, value string) {
	found := 0
	for _, doc := range docs[f.File] {
		eachScalar(doc, nil, func(at []string, n *yaml.Node) {
			if strings.Contains(n.Value, value) {
				found++
				f.Line, f.At = n.Line, strings.Join(at, ".")
			}
		})
	}
	if found != 1 {
		f.Line, f.At = 0, ""
	}
}
