package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/spec"
	"github.com/persys/compute/testbed"
)

// yamlBlock matches the fences of YAML in a page.
var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestWorkloadsOfPagesAreValid: each YAML block of a page that is a whole workload file, because it has a container, a
// stack or a virtual machine, can be applied. Other blocks show single fields, Compose files or files of other
// programs; they must be YAML.
func TestWorkloadsOfPagesAreValid(t *testing.T) {
	root, err := testbed.Root(t.Context())
	must(t, err)
	guides, err := filepath.Glob(filepath.Join(root, "docs", "guides", "*.md"))
	must(t, err)
	// The specifications name files of the reader's machine, which do not exist here, so this function makes up their content.
	read := func(path string) ([]byte, error) {
		if path == "net.yaml" {
			return []byte("version: 2\n"), nil
		}
		return []byte("#cloud-config\n"), nil
	}
	whole := 0
	for _, file := range append(guides, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range yamlBlock.FindAllStringSubmatchIndex(string(text), -1) {
			block := string(text[m[2]:m[3]])
			page, line := filepath.Base(file), strings.Count(string(text[:m[0]]), "\n")+1
			var top map[string]any
			if err := yaml.Unmarshal([]byte(block), &top); err != nil {
				t.Errorf("%s:%d: %v", page, line, err)
				continue
			}
			if top["container"] == nil && top["compose"] == nil && top["vm"] == nil {
				continue
			}
			whole++
			if top["id"] == nil && top["workload_id"] == nil {
				block = "id: example\n" + block
			}
			if _, err := spec.Parse(page, []byte(block), spec.Options{ReadFile: read}); err != nil {
				t.Errorf("the workload at %s:%d cannot be applied: %v", page, line, err)
			}
		}
	}
	if whole < 20 {
		t.Errorf("found %d workloads in the pages, want at least 20: does the pattern of the fences still match?", whole)
	}
}
