package compose

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
	stackfile "github.com/persys/compute/stack"
)

func TestNoCredentialsOverPlainHTTP(t *testing.T) {
	kept := func(_, _, host string) (string, string, error) {
		if host == "known.example" {
			return "user", "word", nil
		}
		return "", "", nil
	}
	d, err := New(Options{ClusterID: "c", NodeID: "n", Dir: t.TempDir(), GitCredentials: kept, Loader: stackfile.NewLoader(stackfile.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	for url, refused := range map[string]bool{
		"http://user:word@git.example/a.git":    true,
		"http://token@git.example/a.git":        true,
		"http://known.example/a.git":            true,
		"http://git.example/a.git":              false,
		"https://user:word@git.example/a.git":   false,
		"https://known.example/a.git":           false,
		"http://user:word@127.0.0.1:3000/a.git": false,
		"http://user:word@[::1]:3000/a.git":     false,
		"http://user:word@localhost:3000/a.git": false,
		"http://user:word@localhost.example/a":  true,
		"http://user:word@127.0.0.1.example/a":  true,
	} {
		_, err := d.parseSource("default", &agentv1.ComposeSpec{SourceType: "git", GitRepo: url})
		if (err != nil) != refused || err != nil && (!strings.Contains(err.Error(), "use https") || strings.Contains(err.Error(), "word")) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Some errors of the Compose loader end with the invalid value. In such errors the driver masks values from the
// environment and from the Compose file. The error still names the field.
func TestErrorsRepeatNoValues(t *testing.T) {
	d, err := New(Options{ClusterID: "c", NodeID: "n", Dir: t.TempDir(), Loader: stackfile.NewLoader(stackfile.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, c := range map[string]struct{ port, text string }{
		"a secret in the environment is masked":  {"c4nary-port", `services: {api: {image: "a:1", ports: ["${PORT}:80"]}}`},
		"a secret in the Compose file is masked": {"80", `services: {api: {image: "a:1", ports: ["c4nary-port:80"]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			body := &agentv1.ComposeSpec{ComposeYaml: c.text, Env: map[string]string{"PORT": c.port}}
			spec := driver.Spec{ID: "w", Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: body}}}
			_, err := d.load(t.Context(), spec, "w", "")
			err = moby.Masked(err, body.Env)
			if err == nil || strings.Contains(err.Error(), "c4nary") || !strings.Contains(err.Error(), "hostPort") || driver.ClassOf(err) != driver.InvalidSpecification {
				t.Errorf("the error repeats a secret value or has the wrong class: %v", err)
			}
		})
	}
}
