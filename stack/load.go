package stack

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// envName is the name of the file, in the folder of a Compose file, that sets variables for the Compose file.
const envName = ".env"

// loaded is the result of a load: the canonical model of compose-go, from which bind makes the project, and
// the values that were read from the files env_file and label_file.
type loaded struct {
	Faults   Faults `json:",omitempty"`
	Dir      string // working folder from which the paths in the model start
	Project  string
	Model    []byte // the canonical model of compose-go as YAML
	Env      map[string]string
	Services map[string]resolved
	// Refs are the files and folders below the stack's folder that the stack uses.
	Refs []Ref `json:",omitempty"`
	// Used are the names of the variables in Env that the stack uses, sorted.
	Used []string `json:",omitempty"`
	// Warnings are the warnings of compose-go and of the checks in judge.go, without duplicates.
	Warnings []string `json:",omitempty"`
}

// Ref is a file or folder below the stack's folder that the stack uses.
type Ref struct {
	Path string
	// Bind is set if the path is the source of a bind mount. Secret is set if the file contains a secret or
	// environment variables.
	Bind, Secret bool
	// Missing is set if the path does not exist.
	Missing bool
	File    string
	Line    int
	At      string
}

type resolved struct {
	Environment types.MappingWithEquals
	Labels      types.Labels
	SecurityOpt []string
}

// load loads a stack in this process. dir is the stack's folder on the disk. If load returns an error, this
// machine has a problem; mistakes in the stack are faults in out.
func load(ctx context.Context, src Source, dir string) (out *loaded, err error) {
	defer func() {
		// compose-go panics if some values have a wrong type.
		if r := recover(); r != nil {
			out, err = &loaded{Faults: Faults{{Rule: fmt.Sprintf("cannot be read by Compose: %v", r)}}}, nil
		}
	}()
	f := &folder{files: src.Files, whole: src.Folder != ""}
	if dir != Root { // true if the stack has a folder on disk
		if f.root, err = os.OpenRoot(dir); err != nil {
			return nil, err
		}
		defer f.root.Close()
	}
	l := &loading{src: src, dir: dir, f: f, env: types.Mapping{}, used: map[string]bool{}, labelled: map[string]Fault{}}
	l.run(ctx)
	if len(l.faults) > 0 {
		return &loaded{Faults: l.faults.ordered()}, nil
	}
	return l.out, nil
}

type loading struct {
	src    Source
	dir    string
	f      *folder
	env    types.Mapping
	used   map[string]bool // names of variables that the stack looked up, whether they are set or not
	faults Faults
	out    *loaded
	// labelled holds the file and the line of each label that a label_file sets, by the keys of the label.
	labelled map[string]Fault
}

func (l *loading) run(ctx context.Context) {
	l.environment()
	names := l.configs()
	if len(l.faults) > 0 {
		return
	}
	if l.src.Project == "" {
		if l.src.Project = l.projectName(names[0]); len(l.faults) > 0 {
			return
		}
	}
	l.env["COMPOSE_PROJECT_NAME"] = l.src.Project
	profiles := Profiles(l.env)
	w := &walker{f: l.f, profiles: profiles, done: map[string]bool{}, docs: map[string][]*yaml.Node{}, used: l.used}
	details := types.ConfigDetails{WorkingDir: l.dir, Environment: l.env}
	for _, name := range names {
		w.walk(name, scope{base: ".", env: l.env})
		text, err := l.f.text(name)
		if err != nil {
			break // skip the file: the walker has already recorded its fault
		}
		details.ConfigFiles = append(details.ConfigFiles, types.ConfigFile{Filename: filepath.Join(l.dir, name), Content: text})
	}
	if l.faults = w.faults; len(l.faults) > 0 {
		return
	}
	fail := func(err error) { l.faults.add(explain(loadFault(err, l.dir, names[0], w.docs, l.src.Mask))) }
	opts := loader.ToOptions(&details, options(l.src.Project, profiles))
	model, err := loader.LoadModelWithContext(ctx, details, options(l.src.Project, profiles)...)
	if err != nil {
		fail(err)
		return
	}
	text, err := yaml.Marshal(model)
	if err != nil {
		fail(err)
		return
	}
	p, err := loader.ModelToProject(model, opts, details)
	if err != nil {
		fail(err)
		return
	}
	p = p.WithoutUnnecessaryResources()
	l.out = &loaded{Dir: l.dir, Project: l.src.Project, Model: text, Env: l.env, Services: map[string]resolved{}}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		l.resolve(&s)
		l.profile(&s)
		p.Services[name] = s
		l.out.Services[name] = resolved{s.Environment, s.Labels, s.SecurityOpt}
	}
	j := judge{p: p, dir: l.dir, main: names[0], docs: w.docs, faults: l.faults, grace: l.src.MaxStopGrace, job: l.src.Job, mask: l.src.Mask, labelled: l.labelled, addresses: map[string]string{}}
	j.all()
	if l.src.Strict {
		j.labels()
	}
	l.faults, l.out.Warnings = j.faults, j.warnings
	l.refs(p, w.refs) // the method refs adds faults for files that cannot be used
	l.used["COMPOSE_PROFILES"] = true
	for name, used := range l.used {
		if _, set := l.env[name]; used && set && name != "COMPOSE_PROJECT_NAME" {
			l.out.Used = append(l.out.Used, name)
		}
	}
	slices.Sort(l.out.Used)
}

// refs stores in the result the files to which the stack refers (parameter all). It leaves out bind mounts,
// secrets and configs that are not in the loaded project p, for example those of a service that is only a
// template for extends.
func (l *loading) refs(p *types.Project, all []ref) {
	used, readOnly := map[string]bool{}, map[string]bool{}
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			used[v.Source] = true
			readOnly[v.Source] = readOnly[v.Source] || v.ReadOnly
		}
	}
	for _, v := range p.Volumes {
		used[v.DriverOpts["device"]] = true
	}
	for _, s := range p.Secrets {
		used[s.File] = true
		l.used[s.Environment] = true
	}
	for _, c := range p.Configs {
		used[c.File] = true
		l.used[c.Environment] = true
	}
	for _, r := range all {
		if (r.kind == kindBind || r.kind == kindSecret || r.kind == kindConfig) && !used[filepath.Join(l.dir, r.path)] {
			continue
		}
		_, err := l.f.kind(r.path)
		if at := filepath.Join(l.dir, r.path); err != nil && r.kind == kindBind && l.src.Strict && (readOnly[at] || path.Ext(strings.TrimLeft(path.Base(r.path), ".")) != "") {
			// With Strict, a missing source of a bind mount is a fault if it is mounted read-only or looks
			// like a file. In other cases the missing source may be a folder that the stack's containers
			// fill, so it is no fault.
			l.faults.add(Fault{File: r.file, Line: r.line, At: r.at, Rule: l.f.rule("./"+r.path, err)})
		}
		if err != nil && (r.kind == kindSecret || r.kind == kindConfig) {
			l.faults.add(Fault{File: r.file, Line: r.line, At: r.at, Rule: l.f.rule(r.path, err)})
		}
		l.out.Refs = append(l.out.Refs, Ref{Path: r.path, Bind: r.kind == kindBind, Secret: r.kind == kindSecret || r.kind == kindEnv,
			Missing: err != nil, File: r.file, Line: r.line, At: r.at})
	}
}

// projectName returns the name that Compose gives to a project.
func (l *loading) projectName(main string) string {
	name, at := l.env["COMPOSE_PROJECT_NAME"], Fault{At: "COMPOSE_PROJECT_NAME"}
	if name == "" {
		name, at = l.nameIn(main)
	}
	if name == "" {
		name = FolderName(filepath.Base(l.src.Folder))
	}
	if name == "" {
		l.faults.add(Fault{File: main, Rule: "needs a name for its stack: the key name, COMPOSE_PROJECT_NAME, or --name NAME"})
	} else if loader.NormalizeProjectName(name) != name {
		at.Rule = fmt.Sprintf("%q cannot be the name of a Compose project: want lower-case letters, digits, - and _, beginning with a letter or digit; try %s", name, loader.NormalizeProjectName(name))
		l.faults.add(at)
	}
	return name
}

// nameIn returns the value of the key name in a Compose file, with its variables replaced. It also returns
// the place of the key, for faults.
func (l *loading) nameIn(file string) (string, Fault) {
	at := Fault{File: file, At: "name"}
	text, err := l.f.text(file)
	if err != nil {
		return "", at // ignore the error: the walker reads the same file later and adds the fault
	}
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil {
		return "", at
	}
	at.Line = lineOf(&doc, []string{"name"})
	var named struct {
		Name string `yaml:"name"`
	}
	if doc.Decode(&named) != nil {
		return "", at
	}
	name, err := template.Substitute(named.Name, l.lookup)
	if err != nil {
		at.Rule = firstLine(err)
		l.faults.add(at)
	}
	return name, at
}

// lookup returns the value of a variable and records that the stack uses it.
func (l *loading) lookup(name string) (string, bool) {
	l.used[name] = true
	v, ok := l.env[name]
	return v, ok
}

// FolderName converts the name of a folder to a project name, as Compose does.
func FolderName(folder string) string {
	if name := loader.NormalizeProjectName(folder); len(name) <= 128 {
		return name
	}
	return ""
}

// options returns the options with which compose-go is called. They switch off its reading of env_file and
// label_file, because this package reads these files itself.
func options(project string, profiles []string) []func(*loader.Options) {
	return []func(*loader.Options){loader.WithProfiles(profiles), loader.WithDiscardEnvFiles, func(o *loader.Options) {
		o.SetProjectName(project, true)
		o.ResolvePaths = true
		o.SkipResolveEnvironment, o.SkipResolveLabels = true, true
	}}
}

// Profiles returns the profiles that the variables of a stack enable.
func Profiles(env map[string]string) []string {
	var out []string
	for p := range strings.SplitSeq(env["COMPOSE_PROFILES"], ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// environment sets the variables of a stack. If a service has `env_file: .env`, but the file .env was not sent
// with the stack, the variables in Source.Env are used as the content of that file.
func (l *loading) environment() {
	text, err := l.f.text(envName)
	switch {
	case err == nil && l.src.DotEnv:
		own, err := ParseEnv(text, nil)
		if err != nil {
			l.faults.add(fileFault(envName, err))
		}
		maps.Copy(l.env, own)
	case err == nil, errors.Is(err, missing), !l.src.DotEnv:
	default:
		l.faults.add(fileFault(envName, err))
		return
	}
	maps.Copy(l.env, l.src.Env)
	maps.Copy(l.env, l.src.Shell)
	if own := err == nil || l.src.Folder != ""; len(l.src.Env) == 0 || own && !l.src.DotEnv {
		return
	}
	var b bytes.Buffer
	b.Write(text)
	for _, k := range slices.Sorted(maps.Keys(l.src.Env)) {
		fmt.Fprintf(&b, "\n%s=%s", k, quoteEnv(l.src.Env[k]))
	}
	files := maps.Clone(l.f.files)
	if files == nil {
		files = map[string][]byte{}
	}
	files[envName] = b.Bytes()
	l.f.files = files
}

// quoteEnv quotes the value of a variable so that ParseEnv gives it back unchanged.
func quoteEnv(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`, "\r", `\r`).Replace(v) + `"`
}

// ParseEnv parses a text of KEY=VALUE lines as Compose does, and skips a byte order mark. The lines may use
// variables, which outer looks up. The error names the line and repeats no value.
func ParseEnv(text []byte, outer func(string) (string, bool)) (map[string]string, error) {
	if outer == nil {
		outer = func(string) (string, bool) { return "", false }
	}
	env, err := dotenv.ParseWithLookup(bytes.NewReader(text), outer)
	if err == nil {
		return env, nil
	}
	if n := lastLine(err.Error()); n > 0 {
		return nil, &misplaced{n, envRule}
	}
	return nil, errors.New(envRule)
}

// configs returns the names of the Compose files to load: those in Source.Compose, or else those that Compose
// looks for.
func (l *loading) configs() []string {
	if len(l.src.Compose) > 0 {
		return l.src.Compose
	}
	if named := l.env["COMPOSE_FILE"]; named != "" {
		sep := ":"
		if s := l.env["COMPOSE_PATH_SEPARATOR"]; s != "" {
			sep = s
		}
		var out []string
		for name := range strings.SplitSeq(named, sep) {
			p, err := inside(".", name)
			if err == nil {
				_, err = l.f.kind(p)
			}
			if err != nil {
				l.faults.add(Fault{At: "COMPOSE_FILE", Rule: fmt.Sprintf("%q %v", name, err)})
				continue
			}
			out = append(out, p)
		}
		return out
	}
	var out []string
	for _, candidates := range [][]string{cli.DefaultFileNames, cli.DefaultOverrideFileNames} {
		for _, name := range candidates {
			if _, err := l.f.kind(name); err == nil {
				out = append(out, name)
				break
			}
		}
		if len(out) == 0 {
			l.faults.add(Fault{Rule: "there is none of " + strings.Join(cli.DefaultFileNames, ", ") + "; name the file in the variable COMPOSE_FILE"})
			return nil
		}
	}
	return out
}

// resolve reads env_file and label_file of a service. It does the same as compose-go's
// WithServicesEnvironmentResolved and WithServicesLabelsResolved, but reads the files through folder.
func (l *loading) resolve(s *types.ServiceConfig) {
	s.Environment = s.Environment.Resolve(l.lookup)
	environment := s.Environment.ToMapping()
	lookup := func(k string) (string, bool) {
		if v, ok := l.lookup(k); ok {
			return v, true
		}
		if v, ok := s.Environment[k]; ok && v != nil {
			return *v, true
		}
		return "", false
	}
	for _, f := range s.EnvFiles {
		l.mapping(f.Path, f.Format, bool(f.Required), environment, lookup)
	}
	s.Environment = environment.ToMappingWithEquals().OverrideBy(s.Environment)
	s.EnvFiles = nil
	labels := types.Mapping{}
	for _, f := range s.LabelFiles {
		l.mapping(f, "", true, labels, labels.Resolve)
		l.places(s, f)
	}
	if len(labels) > 0 {
		maps.Copy(labels, s.Labels)
		s.Labels = types.Labels(labels)
	}
}

// mapping reads a file that env_file or label_file names, and adds its values to vars.
func (l *loading) mapping(file, format string, required bool, vars types.Mapping, lookup dotenv.LookupFn) {
	rel, ok := strings.CutPrefix(file, l.dir+"/")
	if !ok {
		l.faults.add(Fault{File: path.Base(file), Rule: outside})
		return
	}
	text, err := l.f.text(rel)
	switch {
	case errors.Is(err, missing) && !required:
	case err != nil:
		l.faults.add(fileFault(rel, err))
	default:
		var own map[string]string
		switch format {
		case "":
			own, err = ParseEnv(text, lookup)
		case "raw":
			own = rawEnv(text, lookup)
		default:
			err = errors.New("has a format that is not supported: leave format out, or set it to raw")
		}
		if err != nil {
			l.faults.add(fileFault(rel, err))
		}
		maps.Copy(vars, own)
	}
}

// places records, for each label in a label_file of a service, the file and the line, so that a fault can name them. A
// label in the Compose file overrides the same label in a label_file.
func (l *loading) places(s *types.ServiceConfig, file string) {
	rel := strings.TrimPrefix(file, l.dir+"/")
	text, err := l.f.text(rel)
	if err != nil {
		return // mapping has recorded the fault
	}
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		n++
		key := line
		if end := strings.IndexAny(line, "=:"); end >= 0 {
			key = line[:end]
		}
		key = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(key), "export "))
		if _, overridden := s.Labels[key]; !overridden {
			l.labelled["services."+s.Name+".labels."+key] = Fault{File: rel, Line: n}
		}
	}
}

// rawEnv parses a file of KEY=VALUE lines in which quotes and "$" have no meaning. A name without "=" gets
// the value that is already set.
func rawEnv(text []byte, lookup dotenv.LookupFn) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		k, v, ok := strings.Cut(line, "=")
		if k == "" || strings.HasPrefix(k, "#") {
			continue
		}
		if !ok {
			if v, ok = lookup(k); !ok {
				continue
			}
		}
		out[k] = v
	}
	return out
}

// profile checks the file FILE of an option seccomp=FILE, and makes its path absolute. Compose reads that
// file when it makes the container.
func (l *loading) profile(s *types.ServiceConfig) {
	for i, opt := range s.SecurityOpt {
		file, ok := strings.CutPrefix(opt, "seccomp=")
		if !ok {
			file, ok = strings.CutPrefix(opt, "seccomp:")
		}
		if !ok || file == "unconfined" || file == "builtin" {
			continue
		}
		at := fmt.Sprintf("services.%s.security_opt.%d", s.Name, i)
		rel, err := inside(".", file)
		var text []byte
		if err == nil {
			text, err = l.f.text(rel)
		}
		if err == nil && !json.Valid(text) {
			err = problem("is no JSON")
		}
		if err != nil {
			l.faults.add(Fault{At: at, Rule: strconv.Quote(file) + " " + err.Error()})
			continue
		}
		s.SecurityOpt[i] = "seccomp=" + l.dir + "/" + rel
		l.out.Refs = append(l.out.Refs, Ref{Path: rel, At: at})
	}
}

// bind makes the project from a loaded model. The paths of the project start at src.Root.
func bind(src Source, l *loaded) (*types.Project, error) {
	var model map[string]any
	if err := yaml.Unmarshal(l.Model, &model); err != nil {
		return nil, err
	}
	details := types.ConfigDetails{WorkingDir: l.Dir, Environment: l.Env}
	set := options(l.Project, Profiles(l.Env))
	opts := loader.ToOptions(&details, append(set, func(o *loader.Options) { o.SkipConsistencyCheck = true })) // skip the consistency check, which was made when the model was loaded
	p, err := loader.ModelToProject(model, opts, details)
	if err != nil {
		return nil, err
	}
	for name, r := range l.Services {
		s := p.Services[name]
		s.Environment, s.Labels, s.SecurityOpt, s.EnvFiles = r.Environment, r.Labels, r.SecurityOpt, nil
		p.Services[name] = s
	}
	p = p.WithoutUnnecessaryResources()
	root := cmp.Or(src.Root, Root)
	move(p, l.Dir, root, cmp.Or(src.Kept, root))
	return p, nil
}

// move changes the paths of a loaded stack that begin with the folder given as from. Paths of files that
// Compose reads, or that containers only read, then begin with kept; all other paths begin with to. move
// changes only paths that Compose or the engine uses.
func move(p *types.Project, from, to, kept string) {
	under := func(path, to string) string {
		if rest, ok := strings.CutPrefix(path, from); ok && (rest == "" || rest[0] == '/') {
			return to + rest
		}
		return path
	}
	moved := func(path string) string { return under(path, to) }
	p.WorkingDir = moved(p.WorkingDir)
	for i, path := range p.ComposeFiles {
		p.ComposeFiles[i] = moved(path)
	}
	for name, service := range p.Services {
		for i, v := range service.Volumes {
			service.Volumes[i].Source = moved(v.Source)
		}
		for i, f := range service.LabelFiles {
			service.LabelFiles[i] = moved(f)
		}
		for i, opt := range service.SecurityOpt {
			if file, ok := strings.CutPrefix(opt, "seccomp="); ok {
				service.SecurityOpt[i] = "seccomp=" + under(file, kept)
			}
		}
		p.Services[name] = service
	}
	for _, v := range p.Volumes {
		if device, ok := v.DriverOpts["device"]; ok {
			v.DriverOpts["device"] = moved(device)
		}
	}
	for name, c := range p.Configs {
		c.File = under(c.File, kept)
		p.Configs[name] = c
	}
	for name, s := range p.Secrets {
		s.File = under(s.File, kept)
		p.Secrets[name] = s
	}
}
