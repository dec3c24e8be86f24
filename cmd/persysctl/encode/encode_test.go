package encode

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec"
)

// TestYAMLKeepsStringsAndNumbersApart: a YAML parser, even of YAML 1.1, reads a string that looks like another type
// back as a string, and a number as a number.
func TestYAMLKeepsStringsAndNumbersApart(t *testing.T) {
	env := map[string]string{}
	for _, s := range []string{"no", "Yes", "on", "true", "null", "~", "1", "1.5", "0x1f", "1e3", "2026-11-20", "", " x", "a: b", "# c", "- d", "line\nbreak", "*", "&a", "'q'", "\"", "\t"} {
		env[s+"key"] = s
	}
	spec := &controlv1.WorkloadSpec{Type: "container", Resources: &controlv1.ResourceRequirements{CpuMillicores: 1 << 40},
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "x", Env: env, RestartPolicy: "no"}}}
	data, err := YAML(spec, false)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Resources struct {
			CPU int64 `yaml:"cpu_millicores"`
		}
		Container struct {
			Env    map[string]any
			Policy any `yaml:"restart_policy"`
		}
	}
	if err := yaml.Unmarshal(data, &back); err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	for k, want := range env {
		if got := back.Container.Env[k]; got != want {
			t.Errorf("%q was encoded and decoded again as %#v", want, got)
		}
	}
	if back.Resources.CPU != 1<<40 || back.Container.Policy != "no" {
		t.Errorf("got %+v", back)
	}
	if !strings.Contains(string(data), `restart_policy: "no"`) {
		t.Errorf("the restart policy no must be quoted, or a YAML 1.1 reader reads it as a boolean:\n%s", data)
	}
}

func TestEmptyListsAreEncoded(t *testing.T) {
	empty := &controlv1.ListWorkloadsResponse{}
	if data, err := YAML(empty, true); err != nil || string(data) != "workloads: []\n" {
		t.Errorf("the YAML is %q, error %v", data, err)
	}
	data, err := JSON(empty, false)
	var back map[string]any
	if err != nil || json.Unmarshal(data, &back) != nil || back["workloads"] == nil {
		t.Errorf("the JSON is %q, error %v", data, err)
	}
}

func TestTimesAreEncodedInRFC3339(t *testing.T) {
	w := &controlv1.WorkloadView{CreatedAt: timestamppb.New(time.Date(2026, 11, 20, 12, 0, 0, 5000, time.UTC))}
	if data, err := YAML(w, false); err != nil || string(data) != "created_at: 2026-11-20T12:00:00.000005Z\n" {
		t.Errorf("the encoded time is %q, error %v", data, err)
	}
}

// TestFilesAreReadBack: the decoder of workload files reads each file of File back as the same request.
func TestFilesAreReadBack(t *testing.T) {
	names, err := filepath.Glob("../../../examples/*")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, name := range names {
		if ext := filepath.Ext(name); ext != ".yaml" && ext != ".json" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		reqs, err := spec.Parse(name, data, spec.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range reqs {
			want.RevisionId, want.DesiredState = "r: 1", "stopped"
			for _, normal := range []bool{false, true} {
				if normal {
					spec.Normalise(want.Spec)
				}
				text, err := File(want)
				if err != nil {
					t.Fatal(err)
				}
				got, err := spec.Parse(name, text, spec.Options{})
				if err != nil || len(got) != 1 || !proto.Equal(got[0], want) {
					t.Errorf("%s: File writes\n%s\nwhich is read as %v, %v", name, text, got, err)
				}
				read++
			}
		}
	}
	if read < 20 {
		t.Errorf("only %d files were written", read)
	}
}
