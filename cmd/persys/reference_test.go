package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/api/rest"
	"github.com/persys/compute/telemetry"
)

func TestSampleEnvIsCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := writeSample(&want); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../sample.env")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("sample.env is not up to date: run make sample-env")
	}
}

func TestMetricsReferenceIsCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := writeMetrics(&want); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("docs/reference/metrics.md is not up to date: run make reference")
	}
}

func TestAPIReferenceIsCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := writeAPI(&want, rest.OpenAPI); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("docs/reference/api.md is not up to date: run make reference")
	}
	for _, text := range []string{"### POST /v1/plan\n", "| `level` (query) | one of READ_LEVEL_LINEARIZABLE", "a stream of [v1Event](#v1event)", "### v1FieldChange\n"} {
		if !strings.Contains(want.String(), text) {
			t.Errorf("the reference page does not contain %q", text)
		}
	}
}

// The programs export every metric in the tables of docs/contract with the name, type and labels given there,
// because dashboards of legacy v1 installations query them.
func TestContractMetricsAreExported(t *testing.T) {
	page, err := os.ReadFile("../../docs/contract/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## 15. Metrics\n")
	if !ok {
		t.Fatal("semantics.md has no section 15")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	have := map[string]telemetry.Metric{}
	for _, p := range exported() {
		for _, m := range p.metrics {
			if _, twice := have[m.Name]; twice {
				t.Errorf("metric %s is declared twice", m.Name)
			}
			have[m.Name] = m
		}
	}
	aside := regexp.MustCompile(` *\(.*\)`)
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "persys_") {
			continue
		}
		rows++
		name, kind := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		var labels []string
		if l := strings.TrimSpace(aside.ReplaceAllString(cells[3], "")); l != "—" {
			labels = strings.Split(strings.ReplaceAll(l, " ", ""), ",")
		}
		m, ok := have[name]
		switch {
		case !ok:
			t.Errorf("metric %s is not exported", name)
		case string(m.Kind) != kind:
			t.Errorf("metric %s is a %s, the contract says %s", name, m.Kind, kind)
		case !slices.Equal(slices.Sorted(slices.Values(m.Labels)), slices.Sorted(slices.Values(labels))):
			t.Errorf("metric %s has labels %v, the contract says %v", name, m.Labels, labels)
		}
	}
	if rows != 37 {
		t.Errorf("read %d metrics from the contract, want 37: has its format changed?", rows)
	}
}
