package spec

import (
	"strings"
	"testing"

	"github.com/persys/compute/fsm"
)

func TestHealthCheck(t *testing.T) {
	const web = "id: web\ncontainer: {image: 'nginx:1'}\n"
	plain, checked := parseOne(t, web), parseOne(t, web+"health_check: {command: 'pg_isready -q', interval: 1m, timeout_seconds: 4, retries: 2}\n")
	a, err := Content(plain.GetSpec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Content(checked.GetSpec(), nil)
	if err != nil || a == b {
		t.Errorf("a check must change the content, or it would never reach an agent: %s, %s, %v", a, b, err)
	}
	got := ToAgent(fsm.Bare("web"), checked.GetSpec()).GetSpec().GetHealthCheck()
	if strings.Join(got.GetCommand(), "|") != "pg_isready|-q" || got.GetIntervalSeconds() != 60 || got.GetTimeoutSeconds() != 4 || got.GetRetries() != 2 {
		t.Errorf("the agent is told %v", got)
	}
	for check, want := range map[string]string{
		"{port: 80}":                        "exactly one of",
		"{http: /x, tcp: true, port: 80}":   "exactly one of",
		"{http: /x}":                        "health_check.port",
		"{http: x, port: 80}":               "health_check.http",
		"{tcp: true, port: 70000}":          "health_check.port",
		"{command: true, service: db}":      "health_check.service",
		"{tcp: true, port: 1, retries: -1}": "health_check.retries",
	} {
		if _, err := Parse("t.yaml", []byte(web+"health_check: "+check+"\n"), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want something of %q", check, err, want)
		}
	}
	if _, err := Parse("t.yaml", []byte(web+"health_check: {tcp: true, port: 80, interval: 1500ms}\n"), Options{}); err == nil || !strings.Contains(err.Error(), "interval") {
		t.Errorf("half seconds: %v", err)
	}
}
