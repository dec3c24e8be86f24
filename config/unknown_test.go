package config

import (
	"slices"
	"testing"
)

func TestUnknownVariablesAreReported(t *testing.T) {
	var cfg struct {
		Labels string   `env:"PERSYS_NODE_LABELS"`
		Join   []string `env:"SCHEDULER_JOIN"`
		Old    string   `env:"SCHEDULER_REAPPLY_GUARD" usage:"ignored: no longer needed"`
	}
	l, err := New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, variable, want string }{
		{"a known variable", "SCHEDULER_JOIN=a", ""},
		{"a variable that names a file with the value of a setting", "SCHEDULER_JOIN_FILE=/run/token", ""},
		{"a variable that is known and ignored", "SCHEDULER_REAPPLY_GUARD=1", ""},
		{"a variable of another program", "HOME=/root", ""},
		{"the variable that names the settings file", "PERSYS_CONFIG_FILE=a.yaml", ""},
		{"a variable with a missing word", "PERSYS_LABELS=a=b", "PERSYS_LABELS is no setting of this program; did you mean PERSYS_NODE_LABELS?"},
		{"a variable with a wrong letter", "SCHEDULER_JOIM=a", "SCHEDULER_JOIM is no setting of this program; did you mean SCHEDULER_JOIN?"},
		{"an unknown variable without a similar one", "PERSYS_XYZZY_FROBNICATE=1", "PERSYS_XYZZY_FROBNICATE is no setting of this program"},
		{"an unknown variable that ends in _PORT", "PERSYS_XYZZY_FROBNICATE_PORT=80", "PERSYS_XYZZY_FROBNICATE_PORT is no setting of this program"},
		{"a variable that Kubernetes sets for a service", "PERSYS_SCHEDULER_PORT_8085_TCP_ADDR=10.0.0.1", ""},
		{"a variable that Kubernetes sets for the port of a service", "PERSYS_SCHEDULER_PORT=tcp://10.0.0.1:8085", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			if got := l.Unknown(Sources{Variables: []string{c.variable}}, "PERSYS_CONFIG_FILE"); !slices.Equal(got, want) {
				t.Errorf("Unknown returned %q, want %q", got, want)
			}
		})
	}
}
