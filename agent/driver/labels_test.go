package driver_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestImagesCannotSetLabelsOfAgents: each label that an agent reads from a container is set on every container, because
// a container inherits the labels of its image that it does not have itself. All such labels are declared in labels.go.
func TestImagesCannotSetLabelsOfAgents(t *testing.T) {
	set := driver.ContainerLabels(driver.Container, driver.Spec{ID: "a", Body: &agentv1.WorkloadSpec{}}, map[string]string{"persys.job": "true"})
	if set[driver.LabelNamespace] != driver.DefaultNamespace || set[driver.LabelJob] != "" {
		t.Errorf("ContainerLabels returned %v, want the default namespace, and an empty persys.job although the user set it", set)
	}
	if project, ok := set["com.docker.compose.project"]; !ok || project != "" {
		t.Errorf("ContainerLabels returned %v, want an empty com.docker.compose.project", set)
	}
	raw, err := os.ReadFile("labels.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\t?(?:const )?\w+ += (?:LabelPrefix \+ "|"persys\.)(\w+)"`).FindAllStringSubmatch(string(raw), -1)
	if len(declared) != 16 {
		t.Errorf("labels.go declares %d labels, want 16: adapt the regular expression or the number", len(declared))
	}
	for _, m := range declared {
		name := driver.LabelPrefix + m[1]
		if _, ok := set[name]; !ok && name != driver.LabelFiles { // agents do not read LabelFiles
			t.Errorf("label %s is not set on every container, so an image can set it", name)
		}
	}
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := regexp.MustCompile(`LabelPrefix \+|"persys\.\w+"`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := elsewhere.Find(raw); m != nil && !strings.HasSuffix(file, "_test.go") && !strings.HasSuffix(filepath.Dir(file), "test") {
			t.Errorf("%s contains the label %s: declare it in labels.go and set it in ContainerLabels", file, m)
		}
	}
}
