package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/telemetry"
	"github.com/persys/compute/testbed"
)

const rulesDir = "../../deploy/prometheus"

var (
	metricUse  = regexp.MustCompile(`\b(persys_(?:scheduler|dns|agent|gateway)_[a-z_]+)(?:\{([^}]*)\})?`)
	labelMatch = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// uses returns the Prometheus expressions of the alert rules and the dashboards in folder deploy, by the file
// or panel that contains them.
func uses(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	rules, err := os.ReadFile(filepath.Join(rulesDir, "persys.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rules)) {
		if expr, ok := strings.CutPrefix(strings.TrimSpace(line), "expr: "); ok {
			out["persys.rules.yml"] = append(out["persys.rules.yml"], expr)
		}
	}
	boards, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(boards) == 0 {
		t.Fatalf("the dashboard files are %v, error %v", boards, err)
	}
	for _, file := range boards {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID, Title string
			Panels     []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(data, &board); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if board.UID == "" || board.Title == "" || len(board.Panels) == 0 {
			t.Errorf("dashboard %s has no uid, no title or no panels", file)
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: panel %q has no query", file, p.Title)
			}
			for _, target := range p.Targets {
				out[filepath.Base(file)] = append(out[filepath.Base(file)], target.Expr)
			}
		}
	}
	return out
}

// A dashboard or alert that uses an unknown metric shows no error and stays empty. So the programs must
// export every metric and label that dashboards and alerts use.
func TestBoardsAndAlertsUseExportedMetrics(t *testing.T) {
	have := map[string]telemetry.Metric{}
	for _, p := range exported() {
		for _, m := range p.metrics {
			have[m.Name] = m
			switch m.Kind {
			case telemetry.KindHistogram:
				have[m.Name+"_bucket"], have[m.Name+"_sum"], have[m.Name+"_count"] = m, m, m
			case telemetry.KindSummary:
				have[m.Name+"_sum"], have[m.Name+"_count"] = m, m
			}
		}
	}
	for where, exprs := range uses(t) {
		for _, expr := range exprs {
			labels := []string{"instance", "job", "le"}
			for _, use := range metricUse.FindAllStringSubmatch(expr, -1) {
				m, ok := have[use[1]]
				if !ok {
					t.Errorf("%s: metric %s is not exported: %s", where, use[1], expr)
					continue
				}
				labels = append(labels, m.Labels...)
				for _, l := range labelMatch.FindAllStringSubmatch(use[2], -1) {
					if !slices.Contains(append([]string{"instance", "job"}, m.Labels...), l[1]) {
						t.Errorf("%s: metric %s has no label %s: %s", where, use[1], l[1], expr)
					}
				}
			}
			for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
				for l := range strings.SplitSeq(by[1], ",") {
					if !slices.Contains(labels, strings.TrimSpace(l)) {
						t.Errorf("%s: no metric in the expression has the label %s: %s", where, l, expr)
					}
				}
			}
		}
	}
}

// Every alert has at least one promtool test in which it fires.
func TestEveryAlertIsProvoked(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(rulesDir, "persys.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(rulesDir, "persys.rules.test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts were read from the rules: did the format of the file change?")
	}
	for _, a := range alerts {
		if !strings.Contains(string(tests), "labels: 'ALERTS{alertname=\""+a[1]+"\",alertstate=\"firing\"") {
			t.Errorf("no test makes alert %s fire", a[1])
		}
	}
}

// Run promtool, a tool of Prometheus, which checks that the alert rules are valid and that they fire in the test cases
// of persys.rules.test.yml.
func TestRulesByPromtool(t *testing.T) {
	testbed.Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"check", "rules", "persys.rules.yml"},
		{"test", "rules", "persys.rules.test.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = rulesDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
