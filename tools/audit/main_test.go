package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExceptionsMatchFindings(t *testing.T) {
	excuses, err := readExcuses("# a comment\nG1 a.go 2 it is so\nG2 * - bounded where it is read\nG3 b.go 1 nobody needs it\nG4 * - nobody needs it\n")
	if err != nil {
		t.Fatal(err)
	}
	found := []finding{{Rule: "G1", File: "a.go", Line: "1"}, {Rule: "G1", File: "a.go", Line: "2"}, {Rule: "G2", File: "x.go", Line: "3"}}
	got := judge(found, excuses)
	if len(got) != 2 || !strings.Contains(got[0], "exceptions:4") || !strings.Contains(got[1], "exceptions:5") {
		t.Errorf("exceptions without findings: %q", got)
	}
	found = append(found, finding{Rule: "G1", File: "a.go", Line: "4", Details: "new"}, finding{Rule: "G1", File: "c.go", Line: "5"})
	got = judge(found, excuses[:2])
	if len(got) != 4 || !strings.Contains(strings.Join(got, "\n"), "a.go:4: G1: new") {
		t.Errorf("findings without exceptions: %q", got)
	}
	for _, bad := range []string{"G1 a.go", "G1 a.go 0 for some good reason", "G1 * 3 for some good reason", "G1 a.go 1 x y z\nG1 a.go 1 x y z"} {
		if _, err := readExcuses(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestVulnerabilities(t *testing.T) {
	report := `{"config":{}} {"osv":{"id":"GO-1"}}
{"finding":{"osv":"GO-1","trace":[{"module":"m","version":"v1"}]}}
{"finding":{"osv":"GO-1","fixed_version":"v2","trace":[{"module":"m","version":"v1","package":"p","function":"F"}]}}
{"finding":{"osv":"GO-2","trace":[{"module":"m","version":"v1","package":"p"}]}}`
	called, present, err := readFindings(strings.NewReader(report))
	if err != nil || present != 1 || called["GO-1"].fixed != "v2" || len(called) != 1 {
		t.Fatalf("%v, %d, %v", called, present, err)
	}
	if got := weigh(called, nil); len(got) != 1 || !strings.Contains(got[0], "m@v1 p.F") {
		t.Errorf("without an exception: %q", got)
	}
	if got := weigh(called, map[string]int{"GO-1": 1}); len(got) != 0 {
		t.Errorf("with an exception: %q", got)
	}
	if got := weigh(nil, map[string]int{"GO-1": 7}); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "exceptions:7") }) {
		t.Errorf("an exception without a finding: %q", got)
	}
}

// The lists of exceptions beside this program can be parsed.
func TestListsOfExceptionsAreValid(t *testing.T) {
	excuses, err := readExcuses(gosecExceptions)
	if err != nil {
		t.Error(err)
	}
	for _, e := range excuses {
		if _, err := os.Stat(filepath.Join("..", "..", e.file)); e.file != anywhere && err != nil {
			t.Errorf("gosec.exceptions:%d: %v: write the new path", e.line, err)
		}
	}
	if _, err := readReasons(vulnExceptions); err != nil {
		t.Error(err)
	}
}

func TestDatabase(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "index"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index", "db.json"), []byte(`{"modified":"2026-08-21T10:00:00Z"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if at, err := changed(context.Background(), "file://"+dir); err != nil || at.Year() != 2026 {
		t.Errorf("%v, %v", at, err)
	}
	if _, err := changed(context.Background(), "file://"+dir+"/no"); err == nil {
		t.Error("a missing database gives no error")
	}
	if _, err := changed(context.Background(), "http://127.0.0.1:1"); err == nil {
		t.Error("a database that does not answer gives no error")
	}
}
