package spec

import (
	"fmt"
	"strings"
	"testing"
)

func TestReschedule(t *testing.T) {
	const web = "id: web\ncontainer: {image: 'nginx:1'}\n"
	content := ""
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"reschedule: {}", "3 3600"},
		{"reschedule: {attempts: 0}", "0 3600"},
		{"reschedule: {attempts: 5, interval: 10m}", "5 600"},
	} {
		r := parseOne(t, web+c.text+"\n")
		Normalise(r.Spec)
		got := ""
		if d := DemandOf("web", r.Spec).GetReschedule(); d != nil {
			got = fmt.Sprint(d.GetAttempts(), d.GetInterval()/1e9)
		}
		if got != c.want {
			t.Errorf("a file with %q gives the limit of moves (attempts, interval in seconds) %q, want %q", c.text, got, c.want)
		}
		x, err := Content(r.Spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		if content == "" {
			content = x
		}
		if x != content && !strings.Contains(c.text, "kind") {
			t.Errorf("a file with %q has another content hash, want the same, because no instance is recreated for this field", c.text)
		}
	}
	for text, want := range map[string]string{
		"reschedule: {attempts: 11}":                 "t.yaml:3:24: reschedule.attempts: must be 0 to 10",
		"reschedule: {interval: 5s}":                 "reschedule.interval: must be 60 to 2592000 seconds",
		"reschedule: {interval: soon}":               "reschedule.interval: must be whole seconds",
		"reschedule: {delay: 5s}":                    `unknown field "delay"`,
		"exclusive: true\nreschedule: {attempts: 1}": "reschedule: is not for exclusive workloads",
		"kind: system\nreschedule: {attempts: 1}":    "reschedule: is not for workloads with a member on every node",
	} {
		if _, err := Parse("t.yaml", []byte(web+text+"\n"), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse of a file with %q returned error %v, want an error that contains %q", text, err, want)
		}
	}
}
