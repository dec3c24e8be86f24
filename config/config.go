package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// MaxFile is the maximum size, in bytes, of a YAML file and of a file that an X_FILE variable names.
const MaxFile = 1 << 20

// Sources are the places that settings are read from. With the zero value nothing is read.
type Sources struct {
	// Environ looks up an environment variable.
	Environ func(name string) (string, bool)
	// Variables are all environment variables, as os.Environ returns them. Only Unknown uses them.
	Variables []string
	// ReadFile reads a file that an X_FILE variable names.
	ReadFile func(path string) ([]byte, error)
	// YAML is the content of a configuration file, and YAMLName its name in errors. Both are empty if there
	// is no file.
	YAML     []byte
	YAMLName string
}

// System reads the environment and files of this process.
func System() Sources {
	return Sources{Environ: os.LookupEnv, Variables: os.Environ(), ReadFile: readFile}
}

// WithYAML adds a configuration file to the sources. If must is true, a missing file is an error.
func (s Sources) WithYAML(path string, must bool) (Sources, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) && !must {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("configuration file: %w", err)
	}
	s.YAML, s.YAMLName = data, path
	return s, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s: is a directory", path)
	}
	if st.Size() > MaxFile {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", path, st.Size(), MaxFile)
	}
	// Limit the read too, because the size that a pipe or a mounted secret reports may be 0.
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, MaxFile)
	}
	return data, nil
}

// Errors lists all errors that Load found in the settings.
type Errors []error

// Error returns one line per error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As examine each error of the list.
func (e Errors) Unwrap() []error { return e }

// Loader reads the settings of one program.
type Loader struct {
	settings []*setting
	flags    *pflag.FlagSet
}

type setting struct {
	Setting
	value  reflect.Value
	parse  func(text string) (any, error)
	flag   *flagValue
	source string
}

// Setting describes one setting; it is one row of the reference table.
type Setting struct {
	Field    string   // name of the field in Go; nested names are joined with dots
	Env      []string // environment variables; the first that is set wins
	Flag     string
	Short    string
	YAML     string
	Type     string
	Default  string
	Usage    string
	Rule     string // rule for the values of the setting, in words; may be empty
	Secret   bool
	Required bool
}

// Name is the name of the setting in errors: its environment variable, or without a variable its flag, or without both
// its YAML key.
func (s Setting) Name() string {
	switch {
	case len(s.Env) > 0:
		return s.Env[0]
	case s.Flag != "":
		return "--" + s.Flag
	case s.YAML != "":
		return s.YAML
	}
	return s.Field
}

// Ignored reports whether the setting is accepted but has no effect, so that existing environments and files
// need no change.
func (s Setting) Ignored() bool { return strings.HasPrefix(s.Usage, "ignored") }

// New reads the tags of the struct that target points to. It returns an error if the programmer made a
// mistake in a tag; it reads no settings yet.
func New(target any) (*Loader, error) {
	v := reflect.ValueOf(target)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: want a pointer to a struct, got %T", target)
	}
	l := &Loader{}
	if err := l.collect(v.Elem(), ""); err != nil {
		return nil, err
	}
	return l, l.unambiguous()
}

// Defaults sets every field of the struct that target points to to its default.
func Defaults(target any) error {
	l, err := New(target)
	if err != nil {
		return err
	}
	return l.Load(Sources{})
}

func (l *Loader) collect(v reflect.Value, prefix string) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		name := prefix + f.Name
		env, flag, yaml := f.Tag.Get("env"), f.Tag.Get("flag"), f.Tag.Get("yaml")
		if env == "" && flag == "" && yaml == "" {
			if f.Type.Kind() == reflect.Struct {
				if err := l.collect(v.Field(i), name+"."); err != nil {
					return err
				}
			}
			continue
		}
		s := &setting{Setting: Setting{
			Field: name, Env: list(env), Flag: flag, Short: f.Tag.Get("short"), YAML: yaml,
			Default: f.Tag.Get("default"), Usage: f.Tag.Get("usage"),
			Secret: f.Tag.Get("secret") == "true", Required: f.Tag.Get("required") == "true",
		}, value: v.Field(i)}
		if err := s.typed(f); err != nil {
			return fmt.Errorf("config: field %s: %w", name, err)
		}
		if s.Default != "" {
			if _, err := s.parse(s.Default); err != nil {
				return fmt.Errorf("config: field %s: default %q: %w", name, s.Default, err)
			}
		}
		l.settings = append(l.settings, s)
	}
	return nil
}

// unambiguous returns an error if two settings have the same name.
func (l *Loader) unambiguous() error {
	taken := map[string]string{}
	for _, s := range l.settings {
		names := []string{}
		for _, e := range s.Env {
			names = append(names, "env "+e, "env "+e+"_FILE")
		}
		if s.Flag != "" {
			names = append(names, "flag "+s.Flag)
		}
		if s.YAML != "" {
			names = append(names, "yaml "+s.YAML)
		}
		for _, n := range names {
			if other, twice := taken[n]; twice {
				return fmt.Errorf("config: %s belongs to both %s and %s", n, other, s.Field)
			}
			taken[n] = s.Field
		}
	}
	return nil
}

// AddFlags adds a command-line flag for every setting that has one.
func (l *Loader) AddFlags(flags *pflag.FlagSet) {
	l.flags = flags
	for _, s := range l.settings {
		if s.Flag == "" {
			continue
		}
		s.flag = &flagValue{setting: s}
		f := flags.VarPF(s.flag, s.Flag, s.Short, s.Usage)
		if s.value.Kind() == reflect.Bool {
			f.NoOptDefVal = "true"
		}
	}
}

// Args rewrites long flags with one dash (`-insecure`), which the contract with legacy v1 programs allows, to
// the form that pflag reads. It rewrites only flags that the loader has added, so -abc stays three short
// flags. Values of flags and everything after "--" stay as they are.
func (l *Loader) Args(args []string) []string {
	out := make([]string, len(args))
	copy(out, args)
	if l.flags == nil {
		return out
	}
	for i := 0; i < len(out); i++ {
		a := out[i]
		if a == "--" {
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			continue
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(a, "-"), "=")
		f := l.flags.Lookup(name)
		if f == nil || len(name) < 2 {
			continue
		}
		if !strings.HasPrefix(a, "--") {
			out[i] = "-" + a
		}
		if !hasValue && f.NoOptDefVal == "" {
			i++ // skip the next argument, which is the flag's value even if it begins with a dash
		}
	}
	return out
}

// flagValue holds the text of a flag. Load checks the text, together with the other settings.
type flagValue struct {
	setting *setting
	text    string
	set     bool
}

func (f *flagValue) String() string {
	if f == nil || f.setting == nil || f.setting.Secret {
		return ""
	}
	if f.set {
		return f.text
	}
	return f.setting.Default
}

func (f *flagValue) Type() string { return f.setting.Type }

func (f *flagValue) Set(text string) error {
	if blank(text) {
		f.text, f.set = "", false
		return nil
	}
	if _, err := f.setting.parse(text); err != nil {
		return err
	}
	if f.set && (f.setting.Type == "list" || f.setting.Type == "map") {
		text = f.text + "," + text // a list flag that is given again adds to the values
	}
	f.text, f.set = text, true
	return nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// Load reads all settings into the struct. Call it after the flags are parsed. If it returns an error, which
// is of type Errors, the struct must not be used.
func (l *Loader) Load(from Sources) error {
	var errs Errors
	keys, err := l.yamlKeys(from)
	if err != nil {
		errs = append(errs, err...)
	}
	for _, s := range l.settings {
		text, source, err := s.find(from, keys)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.source = source
		if source == "" {
			if s.Required {
				errs = append(errs, fmt.Errorf("%s: must be set (%s)", s.Name(), s.Usage))
			}
			s.value.SetZero()
			continue
		}
		v, err := s.parse(text)
		if err != nil {
			if s.Secret {
				errs = append(errs, fmt.Errorf("%s: the value %w", source, err))
			} else {
				errs = append(errs, fmt.Errorf("%s: %w, got %q", source, err, text))
			}
			continue
		}
		s.value.Set(reflect.ValueOf(v).Convert(s.value.Type()))
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// find returns the text of a setting from the first source that has the setting. If no source has it, the
// returned source is empty.
func (s *setting) find(from Sources, keys map[string]yamlValue) (text, source string, err error) {
	if s.flag != nil && s.flag.set {
		return s.flag.text, "--" + s.Flag, nil
	}
	if from.Environ != nil {
		for _, name := range s.Env {
			if v, ok := from.Environ(name); ok && !blank(v) {
				return strings.TrimSpace(v), name, nil
			}
		}
		for _, name := range s.Env {
			path, ok := from.Environ(name + "_FILE")
			if !ok || blank(path) || from.ReadFile == nil {
				continue
			}
			if s.Ignored() {
				return "", name + "_FILE", nil // a setting that is ignored needs no file, so do not read it
			}
			data, err := from.ReadFile(strings.TrimSpace(path))
			if err != nil {
				return "", "", fmt.Errorf("%s_FILE: %w", name, err)
			}
			if v := strings.TrimRight(string(data), "\r\n"); !blank(v) {
				return v, fmt.Sprintf("%s_FILE (%s)", name, path), nil
			}
		}
	}
	if v, ok := keys[s.YAML]; ok && s.YAML != "" && !blank(v.text) {
		return strings.TrimSpace(v.text), v.source, nil
	}
	if !blank(s.Default) {
		return s.Default, byDefault + s.Name(), nil
	}
	return "", "", nil
}

// Source returns where the value of a setting came from. field is the dotted name of its Go field. The result
// is "--flag", "VARIABLE", "VARIABLE_FILE (path)", "file.yaml: key", "default of …", or "" if nothing is set.
func (l *Loader) Source(field string) string {
	for _, s := range l.settings {
		if s.Field == field {
			return s.source
		}
	}
	return ""
}

// Set reports whether the setting was set by a source other than its default.
func (l *Loader) Set(field string) bool {
	return given(l.Source(field))
}

const byDefault = "default of "

// given reports whether a value came from a source other than the default.
func given(source string) bool { return source != "" && !strings.HasPrefix(source, byDefault) }

// Ignored lists the settings that were given but have no effect, each with its source and the reason. It must be
// called after Load.
func (l *Loader) Ignored() (out []string) {
	for _, s := range l.settings {
		if s.Ignored() && given(s.source) {
			out = append(out, s.source+" is "+s.Usage)
		}
	}
	return out
}

// Describe lists all settings, in the order of the struct.
func (l *Loader) Describe() []Setting {
	out := make([]Setting, len(l.settings))
	for i, s := range l.settings {
		out[i] = s.Setting
		out[i].Env = append([]string(nil), s.Env...)
	}
	return out
}

// Values returns the loaded settings by name, for a log line or a support bundle. In place of a secret it
// returns "***".
func (l *Loader) Values() map[string]string {
	out := make(map[string]string, len(l.settings))
	for _, s := range l.settings {
		text := format(s.value)
		if s.Secret && text != "" {
			text = "***"
		}
		out[s.Name()] = text
	}
	return out
}

func format(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case []string:
		return strings.Join(x, ",")
	case map[string]string:
		pairs := make([]string, 0, len(x))
		for k, v := range x {
			pairs = append(pairs, k+"="+v)
		}
		sort.Strings(pairs)
		return strings.Join(pairs, ",")
	}
	return fmt.Sprint(v.Interface())
}
