package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// documented describes one field of a specification file, for the generated reference page.
type documented struct {
	wire, name string // wire path, and the name in a file
	aliases    []string
	forms      []string
	note       note
}

// Reference returns docs/reference/workload.md: every field of a specification file, with its forms, its
// limits and an example. The text is generated from the decoder, as the JSON Schema is.
func Reference() []byte {
	var all []documented
	seen := map[string]int{}
	d := &decoder{places: map[string]place{}, seen: map[string]string{}, notes: notes(), defs: newDefinitions()}
	d.documented = func(f *field, s object) {
		wire := stripped(f.wire)
		names := strings.Fields(f.names)
		if i, again := seen[wire]; again {
			for _, n := range names {
				if n != all[i].name && !slices.Contains(all[i].aliases, n) {
					all[i].aliases = append(all[i].aliases, n)
				}
			}
			return
		}
		seen[wire] = len(all)
		all = append(all, documented{wire: wire, name: names[0], aliases: names[1:], forms: forms(s), note: d.notes[wire]})
	}
	d.document(&node{kind: mapping, probe: &probe{}})
	shown := pathsIn(all)
	sections := []string{"", "resources", "container", "compose", "vm", "health_check", "job", "update"}
	of := map[string][]documented{}
	for _, f := range all {
		if f.wire == "spec" {
			continue
		}
		top, _, below := strings.Cut(shown[f.wire], ".")
		if !below || !slices.Contains(sections, top) {
			top = ""
		}
		of[top] = append(of[top], f)
	}
	var b strings.Builder
	b.WriteString("# Workload file, field by field\n\nWritten by `make reference` from the decoder of specification files. The [JSON Schema](workload.schema.json) says the same to an editor. [Coming from Compose, Swarm, Nomad, Proxmox, Incus](../guides/coming-from.md) names the equivalents of other systems.\n\nA field may also have the names in brackets: those of other tools, and those of the API. Names in lowerCamelCase are accepted too. Every rule is checked at apply, with file, line and column.\n")
	for _, section := range sections {
		list := of[section]
		slices.SortFunc(list, func(a, b documented) int { return strings.Compare(shown[a.wire], shown[b.wire]) })
		title := "Workload"
		if section != "" {
			title = section
		}
		fmt.Fprintf(&b, "\n## %s\n\n| Field | Form | Meaning | Example |\n|---|---|---|---|\n", title)
		for _, f := range list {
			name := "`" + shown[f.wire] + "`"
			if len(f.aliases) > 0 {
				name += " (`" + strings.Join(f.aliases, "`, `") + "`)"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, strings.Join(f.forms, ", "), cell(f.meaning()), f.example())
		}
	}
	return []byte(b.String())
}

// pathsIn maps the wire path of each field to its path in a file.
func pathsIn(all []documented) map[string]string {
	// The decoder describes the fields below a field before the field itself. So sort by depth.
	byDepth := slices.Clone(all)
	slices.SortStableFunc(byDepth, func(a, b documented) int { return strings.Count(a.wire, ".") - strings.Count(b.wire, ".") })
	shown := map[string]string{"spec": "", "spec.compose.git": "compose.git"}
	for _, f := range byDepth {
		if f.wire == "spec" {
			continue
		}
		parent, list := strings.CutSuffix(f.wire[:max(0, strings.LastIndexByte(f.wire, '.'))], "[]")
		at := shown[parent]
		if list {
			at += "[]"
		}
		shown[f.wire] = join(at, f.name)
	}
	return shown
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// meaning returns the description of a field, with its allowed words and its range.
func (f *documented) meaning() string {
	out := f.note.what
	if len(f.note.words) > 0 {
		out += " One of: " + strings.Join(f.note.words, ", ") + "."
	}
	if f.note.high > f.note.low {
		out += fmt.Sprintf(" %d to %d.", f.note.low, f.note.high)
	}
	return out
}

// example returns the example of a field as YAML in one line. A field without an example of its own gets its
// first allowed word, or a number in its range.
func (f *documented) example() string {
	v := f.note.example
	switch {
	case v != nil:
	case len(f.note.words) > 0:
		v = f.note.words[0]
	case f.note.high > f.note.low:
		v = max(f.note.low, 1)
	case slices.Equal(f.forms, []string{"true or false"}):
		v = true
	default:
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // an example contains only strings, numbers, lists and maps
	}
	out := string(text)
	if s, plain := v.(string); plain {
		out = s
	}
	return "`" + f.name + ": " + cell(out) + "`"
}

// forms returns the kinds of YAML values that a field accepts, as words.
func forms(s object) (out []string) {
	options, _ := s["anyOf"].([]any)
	for _, o := range options {
		switch kind := o.(object)["type"]; {
		case kind == nil:
			out = append(out, "word")
		case kind == "array":
			out = append(out, "list")
		case kind == "object":
			out = append(out, "mapping")
		case kind == "null":
		case slices.Equal(kind.([]any), wholeNumber()["type"].([]any)):
			out = append(out, "number")
		case slices.Equal(kind.([]any), trueOrFalse()["type"].([]any)):
			out = append(out, "true or false")
		default:
			out = append(out, "text")
		}
	}
	return out
}
