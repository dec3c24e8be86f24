package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// The kinds of references from a stack to files.
const (
	kindInclude = "include"
	kindExtends = "extends"
	kindEnv     = "env_file"
	kindLabels  = "label_file"
	kindSecret  = "secret"
	kindConfig  = "config"
	kindBind    = "bind"
)

// ref is a file or folder to which a stack refers.
type ref struct {
	kind     string
	path     string // path relative to the stack's folder
	file, at string
	line     int
	optional bool // true if the stack loads even if the file is missing
}

// walker lists the files to which the Compose files of a stack refer. It reads the Compose files as
// compose-go does, and finds at least the files that compose-go will read. A reference that leads out of the
// folder is a fault, so compose-go, which runs only without faults, stays inside the folder.
type walker struct {
	f        *folder
	profiles []string
	refs     []ref
	faults   Faults
	done     map[string]bool
	docs     map[string][]*yaml.Node // parsed documents by file name, to find the lines of faults
	used     map[string]bool         // names of variables that the stack looked up
}

// scope holds the context in which a Compose file is read: the folder to which its paths are relative, its
// variables, and how deep it is nested in include and extends.
type scope struct {
	base    string
	env     types.Mapping
	depth   int
	extends bool // true if the file is read because another file extends one of its services
}

// walk reads a file and all files that it includes or extends.
func (w *walker) walk(name string, in scope) {
	key := strings.Join([]string{name, in.base, strconv.FormatBool(in.extends), strconv.Itoa(len(in.env))}, "\x00")
	if w.done[key] || len(w.faults) >= maxFaults {
		return
	}
	w.done[key] = true
	if in.depth > maxIncludes {
		w.faults.add(Fault{File: name, Rule: fmt.Sprintf("is included or extended through more than %d files", maxIncludes)})
		return
	}
	data, err := w.f.text(name)
	if err != nil {
		w.faults.add(fileFault(name, err))
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			if !errors.Is(err, io.EOF) {
				w.faults.add(yamlFault(name, err))
			}
			return
		}
		w.docs[name] = append(w.docs[name], &doc)
		w.document(name, &doc, in)
	}
}

func (w *walker) document(name string, doc *yaml.Node, in scope) {
	var model map[string]any
	if err := doc.Decode(&model); err != nil {
		w.faults.add(yamlFault(name, err))
		return
	}
	lookup := w.lookup(in.env)
	cfg, err := interpolation.Interpolate(model, interpolation.Options{LookupValue: lookup, Substitute: template.Substitute})
	if err != nil {
		w.variables(name, doc, lookup, err)
		return
	}
	if !in.extends {
		w.includes(name, doc, cfg, in)
	}
	services, _ := cfg["services"].(map[string]any)
	for _, s := range slices.Sorted(maps.Keys(services)) {
		if service, ok := services[s].(map[string]any); ok {
			w.service(name, doc, s, service, in)
		}
	}
	for _, of := range []struct{ section, kind string }{{"secrets", kindSecret}, {"configs", kindConfig}} {
		entries, _ := cfg[of.section].(map[string]any)
		for _, e := range slices.Sorted(maps.Keys(entries)) {
			entry, _ := entries[e].(map[string]any)
			if file, ok := entry["file"].(string); ok {
				w.refer(name, doc, []string{of.section, e, "file"}, of.kind, in.base, file, true)
			}
		}
	}
	volumes, _ := cfg["volumes"].(map[string]any)
	for _, v := range slices.Sorted(maps.Keys(volumes)) {
		entry, _ := volumes[v].(map[string]any)
		opts, _ := entry["driver_opts"].(map[string]any)
		if device, ok := opts["device"].(string); ok && opts["o"] == "bind" && relative(device) {
			w.refer(name, doc, []string{"volumes", v, "driver_opts", "device"}, kindBind, in.base, device, false)
		}
	}
}

// lookup returns a function that looks up a variable and records that the stack uses it.
func (w *walker) lookup(env types.Mapping) func(string) (string, bool) {
	return func(name string) (string, bool) {
		w.used[name] = true
		v, ok := env[name]
		return v, ok
	}
}

// variables adds a fault for each value in which a required variable is not set, or in which the syntax of a
// variable is wrong.
func (w *walker) variables(name string, doc *yaml.Node, lookup template.Mapping, found error) {
	before := len(w.faults)
	eachScalar(doc, nil, func(at []string, n *yaml.Node) {
		if !strings.Contains(n.Value, "$") {
			return
		}
		_, err := template.Substitute(n.Value, lookup)
		var missing *template.MissingRequiredError
		switch {
		case errors.As(err, &missing):
			rule := "needs the variable " + missing.Variable + ", which is not set or empty"
			if missing.Reason != "" {
				rule += " (" + missing.Reason + ")"
			}
			w.faults.add(Fault{File: name, Line: n.Line, At: strings.Join(at, "."), Rule: rule + "; set it in the file .env beside the Compose file or in compose.env"})
		case err != nil:
			w.faults.add(Fault{File: name, Line: n.Line, At: strings.Join(at, "."), Rule: "is no valid use of a variable; want ${NAME}, or $$ for a dollar sign"})
		}
	})
	if len(w.faults) == before {
		w.faults.add(Fault{File: name, Rule: firstLine(found)})
	}
}

func (w *walker) includes(name string, doc *yaml.Node, cfg map[string]any, in scope) {
	list, _ := cfg["include"].([]any)
	for i, item := range list {
		at := []string{"include", strconv.Itoa(i)}
		entry, ok := item.(map[string]any)
		if !ok {
			entry = map[string]any{"path": item}
		}
		// Other keys are refused, because compose-go also reads keys such as PATH, which this code would
		// overlook.
		if !onlyKeys(entry, "path", "project_directory", "env_file") {
			w.faults.add(Fault{File: name, Line: lineOf(doc, at), At: strings.Join(at, "."), Rule: "may have path, project_directory and env_file only"})
			continue
		}
		// For a file in a nested include, compose-go resolves the paths of these two keys from different
		// folders. If a path has no "..", it stays inside the stack's folder in both cases.
		nested := func(p string) bool { return in.depth > 0 && slices.Contains(strings.Split(p, "/"), "..") }
		base := ""
		if dir, ok := entry["project_directory"].(string); ok && dir != "" {
			p, err := inside(in.base, dir)
			if err == nil && nested(dir) {
				err = problem("must not contain .. in a file that another file includes")
			}
			if err != nil {
				w.fault(name, doc, append(at, "project_directory"), dir, err)
				continue
			}
			base = p
		}
		env := in.env
		files := texts(entry["env_file"])
		for _, f := range files {
			if f == "/dev/null" {
				continue // skip /dev/null: as env_file it means no file
			}
			if nested(f) {
				w.fault(name, doc, append(at, "env_file"), f, problem("must not contain .. in a file that another file includes"))
				continue
			}
			if p, ok := w.refer(name, doc, append(at, "env_file"), kindEnv, in.base, f, false); ok {
				env = w.merged(name, doc, append(at, "env_file"), p, env)
			}
		}
		for j, p := range texts(entry["path"]) {
			target, ok := w.refer(name, doc, append(at, "path"), kindInclude, in.base, p, false)
			if !ok {
				continue
			}
			if j == 0 && base == "" {
				base = path.Dir(target)
			}
			if j == 0 && len(files) == 0 {
				own := path.Join(base, envName)
				if mode, err := w.f.kind(own); err != nil && !errors.Is(err, missing) {
					w.fault(name, doc, at, own, err)
				} else if err == nil && !mode.IsDir() {
					w.refs = append(w.refs, ref{kind: kindEnv, path: own, file: name, line: lineOf(doc, at), at: strings.Join(at, ".")})
					env = w.merged(name, doc, at, own, env)
				}
			}
			w.walk(target, scope{base: base, env: env, depth: in.depth + 1})
		}
	}
}

func onlyKeys(m map[string]any, keys ...string) bool {
	for k := range m {
		if !slices.Contains(keys, k) {
			return false
		}
	}
	return true
}

// merged returns the variables in env, together with those that the env file named file sets.
func (w *walker) merged(name string, doc *yaml.Node, at []string, file string, env types.Mapping) types.Mapping {
	data, err := w.f.text(file)
	if err != nil {
		w.fault(name, doc, at, file, err)
		return env
	}
	own, err := dotenv.ParseWithLookup(bytes.NewReader(data), w.lookup(env))
	if err != nil {
		w.faults.add(Fault{File: file, Rule: envRule})
		return env
	}
	return env.Clone().Merge(own)
}

const envRule = "must consist of KEY=VALUE lines"

func (w *walker) service(name string, doc *yaml.Node, s string, service map[string]any, in scope) {
	at := func(keys ...string) []string { return append([]string{"services", s}, keys...) }
	if extends, ok := service["extends"].(map[string]any); ok {
		if file, ok := extends["file"].(string); ok {
			if target, ok := w.refer(name, doc, at("extends", "file"), kindExtends, in.base, file, false); ok {
				w.walk(target, scope{base: path.Dir(target), env: in.env, depth: in.depth + 1, extends: true})
			}
		}
	}
	// If a service is not enabled by a profile, Compose reads no other files for it. For a service in an
	// extended file, the profiles of the service that extends it decide.
	if profiles := texts(service["profiles"]); len(profiles) > 0 && !in.extends && !slices.ContainsFunc(profiles, w.enabled) {
		return
	}
	switch v := service["environment"].(type) {
	case []any:
		for _, item := range v {
			if k := fmt.Sprint(item); !strings.Contains(k, "=") {
				w.used[k] = true
			}
		}
	case map[string]any:
		for k, value := range v {
			w.used[k] = w.used[k] || value == nil
		}
	}
	w.lists(name, doc, s, service)
	w.healthTest(name, doc, s, service)
	switch v := service["env_file"].(type) {
	case string:
		w.refer(name, doc, at("env_file"), kindEnv, in.base, v, in.extends)
	case []any:
		for i, item := range v {
			switch item := item.(type) {
			case string:
				w.refer(name, doc, at("env_file", strconv.Itoa(i)), kindEnv, in.base, item, in.extends)
			case map[string]any:
				if p, ok := item["path"].(string); ok {
					w.refer(name, doc, at("env_file", strconv.Itoa(i)), kindEnv, in.base, p, in.extends || fmt.Sprint(item["required"]) == "false")
				}
			}
		}
	}
	for i, p := range texts(service["label_file"]) {
		keys := at("label_file")
		if _, list := service["label_file"].([]any); list {
			keys = at("label_file", strconv.Itoa(i))
		}
		w.refer(name, doc, keys, kindLabels, in.base, p, in.extends)
	}
	volumes, _ := service["volumes"].([]any)
	for i, v := range volumes {
		if source, ok := bindSource(v); ok && relative(source) {
			w.refer(name, doc, at("volumes", strconv.Itoa(i)), kindBind, in.base, source, in.extends)
		}
	}
}

func (w *walker) enabled(profile string) bool {
	return slices.Contains(w.profiles, profile) || slices.Contains(w.profiles, "*")
}

// bindSource returns the path on the host if an entry of volumes is a bind mount.
func bindSource(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		source, _, ok := strings.Cut(v, ":")
		return source, ok && (strings.HasPrefix(source, ".") || strings.HasPrefix(source, "/") || strings.HasPrefix(source, "~"))
	case map[string]any:
		source, ok := v["source"].(string)
		return source, ok && v["type"] == "bind"
	}
	return "", false
}

// relative reports whether a written path is relative, and so means a path in the stack's folder.
func relative(p string) bool { return !path.IsAbs(p) }

// refer records a reference to a file. If the file can be used, it returns the path of the file in the
// stack's folder.
func (w *walker) refer(name string, doc *yaml.Node, at []string, kind, base, written string, optional bool) (string, bool) {
	p, err := inside(base, written)
	if err != nil {
		w.fault(name, doc, at, written, err)
		return "", false
	}
	mode, err := w.f.kind(p)
	r := ref{kind: kind, path: p, file: name, line: lineOf(doc, at), at: strings.Join(at, "."), optional: optional}
	switch {
	case errors.Is(err, missing) && (optional || kind == kindBind):
		// Do not add a fault for a missing source of a bind mount here: on a node it may be a data folder
		// that the stack fills. The method loading.refs decides whether it is a fault.
		w.refs = append(w.refs, r)
		return "", false
	case err != nil:
		w.fault(name, doc, at, written, err)
		return "", false
	case mode.IsDir() && kind != kindBind:
		w.fault(name, doc, at, written, special(fs.ModeDir))
		return "", false
	}
	w.refs = append(w.refs, r)
	return p, true
}

func (w *walker) fault(name string, doc *yaml.Node, at []string, written string, err error) {
	w.faults.add(Fault{File: name, Line: lineOf(doc, at), At: strings.Join(at, "."), Rule: w.f.rule(written, err)})
}

// rule returns the text of a fault: the path as it is written in the Compose file, and the reason why the file
// cannot be used.
func (f *folder) rule(written string, err error) string {
	rule := strconv.Quote(written) + " " + err.Error()
	switch {
	case !errors.Is(err, missing):
	case f.whole:
		rule += "; put it there, or write its content into the Compose file (configs.content, environment)"
	default:
		rule += "; apply the Compose file with persysctl from the folder that has it, write the content into the Compose file (configs.content, environment), or keep the stack in a Git repository"
	}
	return rule
}

// texts returns a value that is a string or a list of strings as a list.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, item := range v {
			if s, ok := item.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return text
}
