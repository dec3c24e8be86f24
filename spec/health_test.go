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
		t.Errorf("an added health check must change the content hash, so that the agent gets the check: hash %s without and %s with it, error %v", a, b, err)
	}
	got := ToAgent(fsm.Bare("web"), checked.GetSpec()).GetSpec().GetHealthCheck()
	if strings.Join(got.GetCommand(), "|") != "pg_isready|-q" || got.GetIntervalSeconds() != 60 || got.GetTimeoutSeconds() != 4 || got.GetRetries() != 2 {
		t.Errorf("ToAgent translates the check to %v, want pg_isready -q every 60 s with timeout 4 s and 2 retries", got)
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
			t.Errorf("a health check %s returned error %v, want an error that contains %q", check, err, want)
		}
	}
	if _, err := Parse("t.yaml", []byte(web+"health_check: {tcp: true, port: 80, interval: 1500ms}\n"), Options{}); err == nil || !strings.Contains(err.Error(), "interval") {
		t.Errorf("a health check interval of 1.5 s must be refused, but got error %v", err)
	}
}
