package translate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/spec"
)

var updateGolden = flag.Bool("update", false, "write the golden files")

// input reads a file of testdata.
func input(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// checkGolden compares a translation with a golden file, and checks that the workload file is valid.
func checkGolden(t *testing.T, name string, r *Result) {
	t.Helper()
	if reqs, err := spec.Parse(name, r.YAML, spec.Options{}); err != nil || len(reqs) != r.Workloads {
		t.Errorf("the workload file has %d workloads, want %d; it is refused: %v", len(reqs), r.Workloads, err)
	}
	var b strings.Builder
	b.Write(r.YAML)
	fmt.Fprintf(&b, "=== networks %v secrets %v\n", r.Networks, r.Secrets)
	for _, c := range r.Configs {
		fmt.Fprintf(&b, "=== config %s: %q\n", c.Name, c.Data)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%s: %s: %s\n", n.Workload, n.Field, n.Text)
	}
	path := filepath.Join("testdata", name+".golden")
	if *updateGolden {
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want := string(input(t, name+".golden")); b.String() != want {
		t.Errorf("%s differs (go test ./cmd/internal/translate -update writes it); got:\n%s", path, b.String())
	}
}

func TestSwarm(t *testing.T) {
	var services []json.RawMessage
	if err := json.Unmarshal(input(t, "swarm.json"), &services); err != nil {
		t.Fatal(err)
	}
	r, err := Swarm(SwarmInput{Services: services, Networks: map[string]string{"n1": "back"}, Configs: map[string][]byte{"nginx-conf": []byte("events {}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "swarm", r)
}

func TestNomad(t *testing.T) {
	for _, name := range []string{"nomad", "batch"} {
		t.Run(name, func(t *testing.T) {
			r, err := Nomad(input(t, name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			checkGolden(t, name, r)
		})
	}
}

// TestInputThatIsNoJob: for input that is not a job or service, the error says what the input should be.
func TestInputThatIsNoJob(t *testing.T) {
	for in, want := range map[string]string{
		"[]":                       "cannot unmarshal array",
		"{}":                       "nomad job inspect",
		`{"Job": {"ID": "empty"}}`: `TaskGroups: the job "empty" has none`,
	} {
		if _, err := Nomad([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the translation of %s returned %v, want an error with %q", in, err, want)
		}
	}
}

// FuzzTranslate: no input makes a translation panic, and its YAML has one valid document for each workload.
func FuzzTranslate(f *testing.F) {
	for _, name := range []string{"nomad.json", "batch.json", "swarm.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		var services []json.RawMessage
		if json.Unmarshal(data, &services) == nil {
			for _, s := range services {
				f.Add([]byte(s))
			}
			continue
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		swarm, errSwarm := Swarm(SwarmInput{Services: []json.RawMessage{data}})
		nomad, errNomad := Nomad(data)
		for _, r := range []*Result{swarm, nomad} {
			if r == nil {
				continue
			}
			d := yaml.NewDecoder(bytes.NewReader(r.YAML))
			for i := range r.Workloads {
				var w map[string]any
				if err := d.Decode(&w); err != nil {
					t.Fatalf("workload %d is no YAML: %v (%v, %v)\n%s", i, err, errSwarm, errNomad, r.YAML)
				}
			}
		}
	})
}
