package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestRulesAreValidated(t *testing.T) {
	for text, want := range map[string]string{
		"# a comment\n\nTestA host it publishes a port\n":          "",
		"TestX host it publishes a port\n":                         "lanes.txt:1: there is no test TestX",
		"TestA host it publishes\nTestA full it waits\n":           "lanes.txt:2: TestA is listed twice",
		"TestA alone it measures time\n":                           `lanes.txt:1: the lane is "alone": it must be one of [early host shared full]`,
		"TestA full\n":                                             "lanes.txt:1: TestA has no reason",
		"TestB early it takes two minutes\nTestA full   \n# end\n": "lanes.txt:2: TestA has no reason",
	} {
		path := filepath.Join(t.TempDir(), "lanes.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readRules(path, []string{"TestA", "TestB"})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTestsAreArrangedByLane(t *testing.T) {
	tests := []string{"TestA", "TestDocker", "TestReads", "TestLong", "TestWaits", "TestB", "TestChecks"}
	rules := map[string]rule{"TestDocker": {laneHost, "ports"}, "TestLong": {laneEarly, "long"}, "TestWaits": {laneFull, "waits"},
		"TestReads": {laneShared, "one cluster"}, "TestChecks": {laneShared, "one cluster"}}
	for name, c := range map[string]struct {
		opt  options
		want plan
	}{
		"make test":      {options{}, plan{shared: []string{"TestReads", "TestChecks"}, namespaced: []string{"TestLong", "TestA", "TestB"}, host: []string{"TestDocker"}, left: []string{"TestWaits"}}},
		"make test-full": {options{full: true}, plan{shared: []string{"TestReads", "TestChecks"}, namespaced: []string{"TestLong", "TestWaits", "TestA", "TestB"}, host: []string{"TestDocker"}}},
		"make e2e NAME":  {options{match: regexp.MustCompile("A$|Docker")}, plan{namespaced: []string{"TestA"}, host: []string{"TestDocker"}}},
	} {
		if got := arrange(tests, rules, c.opt); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	p := arrange(tests, rules, options{}).inOrder()
	if want := []string{"TestDocker", "TestReads", "TestChecks", "TestLong", "TestA", "TestB"}; len(p.namespaced)+len(p.shared) > 0 || !reflect.DeepEqual(p.host, want) {
		t.Errorf("without network namespaces the plan is %+v, want the tests %v one after another", p, want)
	}
}

// TestLanesFileMatchesTheTests: lanes.txt is valid, every test that takes the Docker engine is in the lane host, and
// exactly the tests that use the shared cluster are in the lane shared.
func TestLanesFileMatchesTheTests(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d test files: %v", len(files), err)
	}
	var tests []string
	calls := map[string]map[string]bool{"theEngine": {}, "sharedCluster": {}} // function to the tests that call it
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			tests = append(tests, fn.Name.Name)
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if id, ok := call.Fun.(*ast.Ident); ok && calls[id.Name] != nil {
						calls[id.Name][fn.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	rules, err := readRules("../lanes.txt", tests)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests {
		if calls["theEngine"][name] && rules[name].lane != laneHost {
			t.Errorf("test %s uses the Docker engine of the machine: list it in e2e/lanes.txt with the lane %s", name, laneHost)
		}
		if calls["sharedCluster"][name] != (rules[name].lane == laneShared) {
			t.Errorf("test %s: the tests of the lane %s in e2e/lanes.txt must be those that call sharedCluster", name, laneShared)
		}
	}
}

// TestOnlyFailuresOfTheSharedClusterFail: several tests run in one process, and the process fails if one test does. A test
// that passed or was skipped must not be reported as failed.
func TestOnlyFailuresOfTheSharedClusterFail(t *testing.T) {
	script := filepath.Join(t.TempDir(), "e2e.test")
	text := "#!/bin/sh\ncat <<'END'\n--- PASS: TestReads (0.10s)\n=== RUN   TestNeeds\n--- SKIP: TestNeeds (0.00s)\n" +
		"--- FAIL: TestChecks (0.20s)\nFAIL\nEND\nexit 1\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &runner{binary: script, dir: t.TempDir(), out: io.Discard}
	r.process(t.Context(), []string{"TestReads", "TestNeeds", "TestChecks", "TestNeverRan"}, false)
	if want := []string{"TestChecks", "TestNeverRan"}; !reflect.DeepEqual(r.failed, want) {
		t.Errorf("these tests failed: %v, want %v", r.failed, want)
	}
}
