package spec

import (
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
)

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
		t.Errorf("on_unhealthy: keep is stored as %q, want an empty text; the specifications have %d different contents", keep.Spec.OnUnhealthy, len(contents))
	}
	for text, want := range map[string]string{
		"on_unhealthy: reboot":             "on_unhealthy",
		"kind: job\non_unhealthy: restart": "on_unhealthy: is for services",
	} {
		if _, err := Parse("t.yaml", []byte(web+text+"\n"), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q in it", text, err, want)
		}
	}
}
