package config

import (
	"strings"
	"testing"
	"time"
)

// FuzzSources loads any configuration file together with any value of one variable. Load succeeds, or every error names
// the file and key or the variable that is wrong; no error shows a secret.
func FuzzSources(f *testing.F) {
	f.Add([]byte("name: x\nnested: {list: [a, b], wait: 5s}\nlabels: {a: b}\n"), "7")
	f.Add([]byte("name: &a [*a]\nlabels: *a\n"), "x")
	f.Add([]byte("a: &a {b: &b {c: *a}}\nextra: *a\n--- ? :"), "")
	f.Add([]byte("secret: [correct-horse]\n"), "-1")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		var target struct {
			Name   string            `env:"A_NAME" yaml:"name" oneof:"x,y"`
			List   []string          `env:"A_LIST" yaml:"nested.list"`
			Wait   time.Duration     `env:"A_WAIT" yaml:"nested.wait" default:"1s" min:"1s" max:"1h"`
			Count  int               `env:"A_COUNT" yaml:"count" default:"3" min:"1" max:"9"`
			Share  float64           `env:"A_SHARE" yaml:"share" default:"0.5"`
			On     bool              `env:"A_ON" yaml:"on"`
			Labels map[string]string `env:"A_LABELS" yaml:"labels"`
			Extra  string            `env:"A_EXTRA" yaml:"extra" kind:"yaml"`
			Secret string            `env:"A_SECRET" yaml:"secret" secret:"true"`
		}
		l, err := New(&target)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Load(Sources{YAML: data, YAMLName: "f", Environ: func(k string) (string, bool) {
			return text, text != "" && (k == "A_COUNT" || k == "A_LABELS")
		}})
		if err == nil && (target.Count < 1 || target.Count > 9 || target.Wait < time.Second || target.Wait > time.Hour) {
			t.Fatalf("Load must refuse settings out of bounds, but accepted %+v", target)
		}
		if err != nil && strings.TrimSpace(err.Error()) == "" {
			t.Fatal("an error of Load must have a text, but has none")
		}
	})
}
