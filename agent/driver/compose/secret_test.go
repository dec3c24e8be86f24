package compose

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// The loader ends some errors with the wrong value. Values from the environment and from the file are masked,
// and the error still names what is wrong.
func TestErrorsRepeatNoValues(t *testing.T) {
	d, err := New(Options{ClusterID: "c", NodeID: "n", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, c := range map[string]struct{ port, text string }{
		"in the environment": {"c4nary-port", `services: {api: {image: "a:1", ports: ["${PORT}:80"]}}`},
		"in the file":        {"80", `services: {api: {image: "a:1", ports: ["c4nary-port:80"]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			body := &agentv1.ComposeSpec{ComposeYaml: c.text, Env: map[string]string{"PORT": c.port}}
			spec := driver.Spec{ID: "w", Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: body}}}
			_, err := d.load(t.Context(), spec, "w", "")
			err = masked(err, body.Env)
			if err == nil || strings.Contains(err.Error(), "c4nary") || !strings.Contains(err.Error(), "hostPort") || driver.ClassOf(err) != driver.InvalidSpecification {
				t.Errorf("%v", err)
			}
		})
	}
}
