package spec

import (
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// TestDefaultOnUnhealthy: a system workload is restarted when it is unhealthy unless its file says keep, a service only if
// its file says restart, and a job never.
func TestDefaultOnUnhealthy(t *testing.T) {
	for _, c := range []struct {
		name, text, stored, ordered string
	}{
		{"a service", "", "", ""},
		{"a service whose file says keep", "on_unhealthy: keep", "", ""},
		{"a service whose file says restart", "on_unhealthy: Restart", "restart", "restart"},
		{"a system workload whose file says nothing", "kind: system", "", "restart"},
		{"a system workload whose file says restart", "kind: System\non_unhealthy: restart", "", "restart"},
		{"a system workload whose file says keep", "kind: system\non_unhealthy: keep", "keep", ""},
		{"a job", "kind: job", "", ""},
		{"a job on every node", "kind: job\njob: {every_node: true}", "", ""},
		{"a parameterized job", "kind: job\njob: {parameterized: {}}", "", ""},
		{"a cron", "kind: cron\ncron: {schedule: '@daily'}", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := parseOne(t, "id: web\ncontainer: {image: 'nginx:1'}\n"+c.text+"\n")
			Normalise(r.Spec)
			if got := r.Spec.OnUnhealthy; got != c.stored {
				t.Errorf("on_unhealthy is stored as %q, want %q", got, c.stored)
			}
			if got := ToAgent(&fsm.Workload{ID: "web"}, r.Spec).GetOnUnhealthy(); got != c.ordered {
				t.Errorf("the agent gets on_unhealthy %q, want %q", got, c.ordered)
			}
		})
	}
}

func TestOnUnhealthy(t *testing.T) {
	const web = "id: web\ncontainer: {image: 'nginx:1'}\n"
	plain := parseOne(t, web)
	keep := parseOne(t, web+"on_unhealthy: Keep\n")
	restart := parseOne(t, web+"on_unhealthy: restart\n")
	contents := map[string]bool{}
	for _, r := range []*controlv1.ApplyWorkloadRequest{plain, keep, restart} {
		Normalise(r.Spec)
		c, err := Content(r.Spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		contents[c] = true
	}
	if len(contents) != 2 || keep.Spec.OnUnhealthy != "" {
		t.Errorf("on_unhealthy: keep is stored as %q, want an empty text; the three specifications have %d different content hashes, want 2", keep.Spec.OnUnhealthy, len(contents))
	}
	for text, want := range map[string]string{
		"on_unhealthy: reboot":             "on_unhealthy",
		"kind: job\non_unhealthy: restart": "on_unhealthy: is for services",
	} {
		if _, err := Parse("t.yaml", []byte(web+text+"\n"), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse of a file with %q returned error %v, want an error that contains %q", text, err, want)
		}
	}
}
