package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

type sample struct {
	Port     int               `env:"GRPC_PORT" flag:"grpc-port" yaml:"grpc_port" kind:"port" default:"8085" usage:"control API port"`
	AnyPort  int               `env:"DNS_PORT" kind:"port" min:"0" default:"8053" usage:"DNS port"`
	Insecure bool              `env:"INSECURE" flag:"insecure" short:"i" yaml:"insecure" bool:"word" default:"false" usage:"no TLS"`
	Enabled  bool              `env:"ENABLED" default:"true" usage:"on"`
	Every    time.Duration     `env:"EVERY" yaml:"loop.every" seconds:"true" default:"5s" min:"100ms" usage:"period"`
	TTL      time.Duration     `env:"TTL" default:"24h" usage:"lifetime"`
	Peers    []string          `env:"PEERS" flag:"peer" yaml:"peers" usage:"peers"`
	Labels   map[string]string `env:"LABELS" yaml:"labels" usage:"labels"`
	State    string            `env:"STATE_PATH,STATE_STORE_PATH" yaml:"state" default:"/var/lib/x" usage:"file"`
	Level    string            `env:"LOG_LEVEL" flag:"log-level" default:"info" oneof:"debug,info,warn,error" usage:"level"`
	Token    string            `env:"TOKEN" yaml:"vault.token" secret:"true" usage:"token"`
	Pin      int               `env:"PIN" secret:"true" usage:"pin"`
	Ratio    float64           `env:"RATIO" default:"0.5" min:"0" max:"1" usage:"share"`
	Nested   struct {
		Depth uint16 `env:"DEPTH" default:"3" usage:"depth"`
	}
	Note string // a field without tags is not a setting
}

func env(pairs ...string) func(string) (string, bool) {
	m := map[string]string{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

func files(pairs ...string) func(string) ([]byte, error) {
	get := env(pairs...)
	return func(p string) ([]byte, error) {
		if v, ok := get(p); ok {
			return []byte(v), nil
		}
		return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}
}

func load(t *testing.T, from Sources, args ...string) (sample, *Loader, error) {
	t.Helper()
	var s sample
	l, err := New(&s)
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	l.AddFlags(flags)
	if err := flags.Parse(l.Args(args)); err != nil {
		return s, l, err
	}
	err = l.Load(from)
	return s, l, err
}

func TestSourcesTakePrecedenceInOrder(t *testing.T) {
	yaml := []byte("grpc_port: 4\nstate: /yaml\n")
	all := Sources{
		Environ:  env("GRPC_PORT=2", "GRPC_PORT_FILE=/port", "STATE_STORE_PATH=/second"),
		ReadFile: files("/port=3\n"),
		YAML:     yaml, YAMLName: "c.yaml",
	}
	fileOnly := all
	fileOnly.Environ = env("GRPC_PORT= ", "GRPC_PORT_FILE=/port")
	yamlOnly := Sources{YAML: yaml, YAMLName: "c.yaml"}
	cases := []struct {
		name   string
		from   Sources
		args   []string
		want   int
		source string
	}{
		{"a flag takes precedence over an environment variable", all, []string{"--grpc-port=1"}, 1, "--grpc-port"},
		{"an environment variable takes precedence over a file", all, nil, 2, "GRPC_PORT"},
		{"a blank flag counts as not set", all, []string{"--grpc-port="}, 2, "GRPC_PORT"},
		{"a blank variable counts as not set, and a file takes precedence over YAML", fileOnly, nil, 3, "GRPC_PORT_FILE (/port)"},
		{"YAML takes precedence over the default", yamlOnly, nil, 4, "c.yaml:1: grpc_port"},
		{"default", Sources{}, nil, 8085, "default of GRPC_PORT"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, l, err := load(t, c.from, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if s.Port != c.want || l.Source("Port") != c.source {
				t.Errorf("the port is %d from source %q, want %d from %q", s.Port, l.Source("Port"), c.want, c.source)
			}
		})
	}
	s, l, err := load(t, all)
	if err != nil || s.State != "/second" || !l.Set("State") || l.Set("TTL") {
		t.Errorf("a setting with two variables has the value %q; Set returned %v for it and %v for a setting at its default; want /second, true and false", s.State, l.Set("State"), err)
	}
}

func TestValuesAreParsed(t *testing.T) {
	s, _, err := load(t, Sources{Environ: env("EVERY=30", "INSECURE=TRUE", "ENABLED=0", "PEERS=a, b,,c", "LABELS=k=v,k2=v=2", "DNS_PORT=0", "LOG_LEVEL=WARN", "TTL=1h30m", "DEPTH=65535", "TOKEN= t ")})
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Port: 8085, Insecure: true, Every: 30 * time.Second, TTL: 90 * time.Minute, Peers: []string{"a", "b", "c"},
		Labels: map[string]string{"k": "v", "k2": "v=2"}, State: "/var/lib/x", Level: "warn", Token: "t", Ratio: 0.5}
	want.Nested.Depth = 65535
	if !reflect.DeepEqual(s, want) {
		t.Errorf("the loaded settings are\n%+v\nwant\n%+v", s, want)
	}
	s, _, err = load(t, Sources{YAML: []byte("peers: [x, y]\nlabels: {a: b}\nloop:\n  every: 90\nvault:\n  token: s\n")}, "--peer", "p", "--peer", "q")
	if err != nil || !reflect.DeepEqual(s.Peers, []string{"p", "q"}) || s.Labels["a"] != "b" || s.Every != 90*time.Second || s.Token != "s" {
		t.Errorf("the settings loaded from YAML are %+v, error %v; want those of the environment", s, err)
	}
}

func TestBadValuesAreRefused(t *testing.T) {
	cases := []struct {
		name string
		from Sources
		args []string
		want string
	}{
		{"a port that is too large", Sources{Environ: env("GRPC_PORT=70000")}, nil, `GRPC_PORT: must be a whole number from 1 to 65535, got "70000"`},
		{"port zero", Sources{Environ: env("GRPC_PORT=0")}, nil, `GRPC_PORT: must be`},
		{"a file with a port that is not a number", Sources{Environ: env("GRPC_PORT_FILE=/p"), ReadFile: files("/p=x")}, nil, `GRPC_PORT_FILE (/p): must be`},
		{"missing file", Sources{Environ: env("TOKEN_FILE=/none"), ReadFile: files()}, nil, `TOKEN_FILE: open /none`},
		{"a number for a setting that must be true or false", Sources{Environ: env("INSECURE=1")}, nil, `INSECURE: must be true or false, got "1"`},
		{"a word for a setting that must be true or false", Sources{Environ: env("ENABLED=yes")}, nil, `ENABLED: must be true or false, got "yes"`},
		{"a duration without a unit", Sources{Environ: env("TTL=5")}, nil, `TTL: must be a duration such as 1m30s`},
		{"negative duration", Sources{Environ: env("TTL=-5s")}, nil, `not negative, got "-5s"`},
		{"a duration below the minimum", Sources{Environ: env("EVERY=1ms")}, nil, `at least 100ms, got "1ms"`},
		{"a number of seconds that is too large", Sources{Environ: env("EVERY=99999999999999")}, nil, `EVERY: must be a duration`},
		{"a map with an entry that is no pair", Sources{Environ: env("LABELS=a=b,c")}, nil, `LABELS: must be key=value pairs`},
		{"a word that is not one of the allowed words", Sources{Environ: env("LOG_LEVEL=loud")}, nil, `LOG_LEVEL: must be one of debug, info, warn, error, got "loud"`},
		{"a number above the maximum", Sources{Environ: env("RATIO=2")}, nil, `RATIO: must be a number, at least 0, at most 1, got "2"`},
		{"a flag that is not a number", Sources{}, []string{"--grpc-port=x"}, `must be a whole number from 1 to 65535`},
		{"unknown YAML key", Sources{YAML: []byte("grpc_prot: 1\n"), YAMLName: "c.yaml"}, nil, `c.yaml:1: unknown key "grpc_prot", did you mean "grpc_port"?`},
		{"unknown nested YAML key", Sources{YAML: []byte("loop:\n  evry: 1s\n"), YAMLName: "c.yaml"}, nil, `c.yaml:2: unknown key "loop.evry", did you mean "loop.every"?`},
		{"broken YAML", Sources{YAML: []byte("a: [\n"), YAMLName: "c.yaml"}, nil, `c.yaml: yaml:`},
		{"YAML list for a value", Sources{YAML: []byte("state: [a]\n"), YAMLName: "c.yaml"}, nil, `c.yaml:1: state: must be a single value`},
		{"invalid value in a YAML file", Sources{YAML: []byte("state: a\ngrpc_port: no\n"), YAMLName: "c.yaml"}, nil, `c.yaml:2: grpc_port: must be`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.from, c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load returned the error\n%v\nwant\n%s", err, c.want)
			}
		})
	}
}

func TestAllErrorsAtOnceAndNoSecret(t *testing.T) {
	_, _, err := load(t, Sources{Environ: env("GRPC_PORT=x", "TTL=y", "PIN=hunter2")})
	var all Errors
	if !errors.As(err, &all) || len(all) != 3 {
		t.Fatalf("Load must return three errors at once, got %v", err)
	}
	if strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "PIN: the value must be a whole number") {
		t.Errorf("the errors of Load must not contain the value of a secret setting, but are %q", err)
	}
}

func TestFlagsWithASingleDashWork(t *testing.T) {
	cases := []struct{ in, want string }{
		{"-insecure", "--insecure"},
		{"-insecure=false", "--insecure=false"},
		{"-grpc-port 9 -insecure", "--grpc-port 9 --insecure"},
		{"--grpc-port -insecure", "--grpc-port -insecure"}, // the second argument is the value of the flag --grpc-port and not a flag
		{"-i", "-i"},
		{"-unknown x", "-unknown x"},
		{"-- -insecure", "-- -insecure"},
		{"run -insecure -", "run --insecure -"},
	}
	for _, c := range cases {
		t.Run(c.in, func(t *testing.T) {
			l, err := New(&sample{})
			if err != nil {
				t.Fatal(err)
			}
			l.AddFlags(pflag.NewFlagSet("x", pflag.ContinueOnError))
			if got := strings.Join(l.Args(strings.Fields(c.in)), " "); got != c.want {
				t.Errorf("Args rewrote the arguments to %q, want %q", got, c.want)
			}
		})
	}
}

func TestFlagsWorkWithCobra(t *testing.T) {
	var s sample
	l, err := New(&s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return l.Load(Sources{}) }}
	l.AddFlags(cmd.Flags())
	cmd.SetArgs(l.Args([]string{"-insecure", "-grpc-port=7", "-log-level", "debug"}))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if !s.Insecure || s.Port != 7 || s.Level != "debug" {
		t.Errorf("the parsed settings are %+v, want insecure, port 7 and level debug", s)
	}
}

func TestSampleEnvDescribesASetting(t *testing.T) {
	l, err := New(&sample{})
	if err != nil {
		t.Fatal(err)
	}
	var dotenv strings.Builder
	if err := SampleEnv(&dotenv, l.Describe()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(dotenv.String(), "# control API port (a whole number from 1 to 65535)\n#GRPC_PORT=8085\n") {
		t.Errorf("the sample must describe GRPC_PORT with its default, but is:\n%s", dotenv.String())
	}
}

func TestValuesHideSecrets(t *testing.T) {
	_, l, err := load(t, Sources{Environ: env("TOKEN=hunter2", "PEERS=a,b")})
	if err != nil {
		t.Fatal(err)
	}
	v := l.Values()
	if v["TOKEN"] != "***" || v["PEERS"] != "a,b" || v["TTL"] != "24h0m0s" {
		t.Errorf("Values returned %v, want *** in place of secrets", v)
	}
}

func TestUnsupportedStructsAreRefused(t *testing.T) {
	cases := map[string]any{
		"pointer to a struct": sample{},
		"is not supported": &struct {
			A complex64 `env:"A"`
		}{},
		"default": &struct {
			A int `env:"A" default:"x"`
		}{},
		"belongs to both": &struct {
			A string `env:"KEY"`
			B string `env:"KEY_FILE"`
		}{},
		"kind": &struct {
			A int `env:"A" kind:"prot"`
		}{},
	}
	for want, target := range cases {
		t.Run(want, func(t *testing.T) {
			if _, err := New(target); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("New returned the error %v, want one that contains %q", err, want)
			}
		})
	}
}

func TestMissingRequiredSettingsAreRefused(t *testing.T) {
	var s struct {
		Name string `env:"NAME" required:"true" usage:"who"`
	}
	l, err := New(&s)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Load(Sources{Environ: env("NAME=  ")}); err == nil || !strings.Contains(err.Error(), "NAME: must be set (who)") {
		t.Errorf("Load without the required setting returned %v, want an error that names NAME", err)
	}
}

func TestWithYAMLReadsAFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := System().WithYAML(filepath.Join(dir, "none"), false); err != nil {
		t.Errorf("WithYAML with a missing optional file returned the error %v, want none", err)
	}
	if _, err := System().WithYAML(filepath.Join(dir, "none"), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("WithYAML with a missing required file returned %v, want an error that names the file", err)
	}
	if _, err := System().WithYAML(dir, false); err == nil {
		t.Error("WithYAML must refuse a directory, but read it")
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, MaxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := System().WithYAML(big, true); err == nil {
		t.Error("WithYAML must refuse a file larger than MaxFile, but read it")
	}
}

// TestLoadNeverPanics checks, for any environment, that Load succeeds or that its errors name variables.
func TestLoadNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := map[string]string{}
		for _, k := range []string{"GRPC_PORT", "EVERY", "TTL", "LABELS", "RATIO", "DEPTH", "INSECURE"} {
			m[k] = rapid.String().Draw(t, k)
		}
		var s sample
		l, err := New(&s)
		if err != nil {
			t.Fatal(err)
		}
		yaml := []byte(rapid.String().Draw(t, "yaml"))
		err = l.Load(Sources{Environ: func(k string) (string, bool) { v, ok := m[k]; return v, ok }, YAML: yaml})
		if err == nil && (s.Port < 1 || s.Port > 65535 || s.Every < 100*time.Millisecond || s.Ratio < 0 || s.Ratio > 1) {
			t.Fatalf("Load must refuse the variables %v, but accepted them as the settings %+v", m, s)
		}
	})
}

func TestStructuredSettingsAreYAML(t *testing.T) {
	var c struct {
		Clusters string `env:"CLUSTERS" yaml:"scheduler.clusters" kind:"yaml"`
	}
	l, err := New(&c)
	if err != nil {
		t.Fatal(err)
	}
	err = l.Load(Sources{YAML: []byte("scheduler:\n  clusters:\n    - id: a\n      schedulers: [{id: s1, address: \"h:1\"}]\n"), YAMLName: "c.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "- id: a\n  schedulers: [{id: s1, address: \"h:1\"}]"; c.Clusters != want {
		t.Errorf("the setting with the kind yaml has the value %q, want %q", c.Clusters, want)
	}
	err = l.Load(Sources{Environ: func(string) (string, bool) { return "[", true }})
	if err == nil || !strings.Contains(err.Error(), "CLUSTERS: must be YAML") {
		t.Errorf("Load of a value that is not YAML returned the error %v, want an error that names CLUSTERS and the rule", err)
	}
}

func TestIgnoredSettingsAreReported(t *testing.T) {
	var s struct {
		Old    string `env:"OLD" yaml:"old" usage:"ignored: nobody needs it"`
		Secret string `env:"OLD_KEY" secret:"true" usage:"ignored"`
		Known  bool   `env:"KNOWN" default:"true" usage:"ignored"`
		Used   string `env:"USED" usage:"used"`
	}
	l, err := New(&s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from Sources
		want []string
	}{
		{Sources{}, nil},
		{Sources{Environ: env("USED=1", "OLD= ")}, nil},
		{Sources{Environ: env("OLD=5s", "OLD_KEY=swordfish")}, []string{"OLD is ignored: nobody needs it", "OLD_KEY is ignored"}},
		{Sources{Environ: env("OLD_KEY_FILE=/gone"), ReadFile: files()}, []string{"OLD_KEY_FILE is ignored"}},
		{Sources{YAML: []byte("old: 5s"), YAMLName: "f.yaml"}, []string{"f.yaml:1: old is ignored: nobody needs it"}},
	} {
		if err := l.Load(c.from); err != nil {
			t.Fatal(err)
		}
		if got := l.Ignored(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("with the sources %+v, Ignored returned %q, want %q", c.from, got, c.want)
		}
	}
}

func TestDefaultsIgnoreTheEnvironment(t *testing.T) {
	t.Setenv("LOG_LEVEL", "debug")
	var s sample
	if err := Defaults(&s); err != nil {
		t.Fatal(err)
	}
	if s.Port != 8085 || !s.Enabled || s.Every != 5*time.Second || s.Level != "info" || s.Nested.Depth != 3 || s.Token != "" {
		t.Errorf("Defaults set the fields to %+v, want only the default values and no values of the environment", s)
	}
	if Defaults(s) == nil {
		t.Error("Defaults must refuse a struct that is not a pointer, but accepted it")
	}
}
