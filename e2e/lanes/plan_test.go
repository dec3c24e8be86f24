package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestRulesAreValidated(t *testing.T) {
	for text, want := range map[string]string{
		"# a comment\n\nTestA docker it publishes a port\n":        "",
		"TestX host it publishes a port\n":                         "lanes.txt:1: there is no test TestX",
		"TestA docker it publishes\nTestA full it waits\n":         "lanes.txt:2: TestA is listed twice",
		"TestA alone it measures time\n":                           `lanes.txt:1: the lane is "alone": it must be one of [early docker libvirt full]`,
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
	tests := []string{"TestA", "TestDocker", "TestVM", "TestLong", "TestWaits", "TestB"}
	rules := map[string]rule{"TestDocker": {laneDocker, "ports"}, "TestVM": {laneLibvirt, "bridges"}, "TestLong": {laneEarly, "long"}, "TestWaits": {laneFull, "waits"}}
	for name, c := range map[string]struct {
		opt  options
		want plan
	}{
		"make test":      {options{}, plan{namespaced: []string{"TestLong", "TestA", "TestB"}, host: [][]string{{"TestDocker"}, {"TestVM"}}, left: []string{"TestWaits"}}},
		"make test-full": {options{full: true}, plan{namespaced: []string{"TestLong", "TestWaits", "TestA", "TestB"}, host: [][]string{{"TestDocker"}, {"TestVM"}}}},
		"make e2e NAME":  {options{match: regexp.MustCompile("A|Docker")}, plan{namespaced: []string{"TestA"}, host: [][]string{{"TestDocker"}, nil}}},
	} {
		if got := arrange(tests, rules, c.opt); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	p := arrange(tests, rules, options{}).inOrder()
	if want := [][]string{{"TestDocker", "TestVM", "TestLong", "TestA", "TestB"}}; len(p.namespaced) > 0 || !reflect.DeepEqual(p.host, want) {
		t.Errorf("without namespaces: %+v, want %v one after another", p, want)
	}
}
