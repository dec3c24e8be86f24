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

// MaxFile bounds the size of a file named in X_FILE and of a YAML file, in bytes.
const MaxFile = 1 << 20

// Sources are the places that settings come from. The zero value reads nothing.
type Sources struct {
	// Environ looks up a variable.
	Environ func(name string) (string, bool)
	// Variables are the environment as os.Environ gives it. Only Unknown reads it.
	Variables []string
	// YAML is the content of a configuration file, YAMLName its name in errors. Empty: no file.
	ReadFile func(path string) ([]byte, error)
	// System reads the environment and files of this process.
	YAML     []byte
	YAMLName string
}

// WithYAML adds a configuration file. With must, a missing file is an error.
func System() Sources {
	return Sources{Environ: os.LookupEnv, Variables: os.Environ(), ReadFile: readFile}
}

// Do not trust the size: that of a pipe or a mounted secret may be 0.
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
	// Errors are all errors of the settings.
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, MaxFile)
	}
	return data, nil
}

// Error returns one line per error.
type Errors []error

// Unwrap makes errors.Is look into each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Loader reads the settings of one program.
func (e Errors) Unwrap() []error { return e }

// Setting is one row of the reference.
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

// Go name, dotted
type Setting struct {
	Field    string   // the first that is set wins
	Env      []string // the rule for values, in words; may be empty
	Flag     string
	Short    string
	YAML     string
	Type     string
	Default  string
	Usage    string
	Rule     string // Name is the name of the setting in errors: its variable, else its flag, else its YAML key.
	Secret   bool
	Required bool
}

// Ignored reports whether the setting is known and has no effect, so that existing environments and files
// need no change.
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

// New reads the tags of the struct that target points to. An error is a mistake in the struct, not in the
// settings.
func (s Setting) Ignored() bool { return strings.HasPrefix(s.Usage, "ignored") }

// Defaults sets the struct that target points to to its defaults.
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

// unambiguous returns an error if two settings have the same name.
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

// AddFlags declares a flag for every setting that has one.
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

// Args rewrites long flags with one dash (`-insecure`), which the contract allows, to the form that pflag
// reads. It only changes flags that were added: -abc stays three short flags. Values of flags and
// everything after "--" stay as they are.
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

// the next argument is its value, whatever it looks like
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
			i++ // flagValue holds the text of a flag; Load checks it with the other settings.
		}
	}
	return out
}

// a repeated flag adds values
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
		text = f.text + "," + text // Load fills the struct. Call it after the flags are parsed. On error, which is Errors, the struct must not be used.
	}
	f.text, f.set = text, true
	return nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// find returns the first source that sets the setting. An empty source means that none does.
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

// the content has no effect
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
				return "", name + "_FILE", nil // Source returns where a setting (by its Go name, dotted) came from: "--flag", "VARIABLE", "VARIABLE_FILE (path)", "file.yaml: key", "default of …", or "" if nothing is set.
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

// Set reports whether any source but the default set the setting.
func (l *Loader) Source(field string) string {
	for _, s := range l.settings {
		if s.Field == field {
			return s.source
		}
	}
	return ""
}

// given reports whether a source is other than the default.
func (l *Loader) Set(field string) bool {
	return given(l.Source(field))
}

const byDefault = "default of "

// Ignored lists, after Load, the settings that were given and have no effect, with source and reason.
func given(source string) bool { return source != "" && !strings.HasPrefix(source, byDefault) }

// Describe lists all settings, in the order of the struct.
func (l *Loader) Ignored() (out []string) {
	for _, s := range l.settings {
		if s.Ignored() && given(s.source) {
			out = append(out, s.source+" is "+s.Usage)
		}
	}
	return out
}

// Values returns the loaded settings for a log line or a support bundle, by name. Secrets that are set are
// "***".
func (l *Loader) Describe() []Setting {
	out := make([]Setting, len(l.settings))
	for i, s := range l.settings {
		out[i] = s.Setting
		out[i].Env = append([]string(nil), s.Env...)
	}
	return out
}

// Values are the loaded settings for a log line or a support bundle: name to
// value, secrets as "***" when set.
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
