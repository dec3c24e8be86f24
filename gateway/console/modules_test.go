package console

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/testbed"
)

// staticImports matches the static imports of a module. It does not match import(), because a module that is loaded
// later, when import() runs, causes no cycle.
var staticImports = regexp.MustCompile(`(?m)(?:^|\n)(?:import|export)[^;"]*"\./([^"]+)"`)

// modules returns the imports of every module.
func modules(t *testing.T) map[string][]string {
	t.Helper()
	paths, err := fs.Glob(assets, "assets/*.js")
	if err != nil || len(paths) == 0 {
		t.Fatalf("the modules are %v (error %v), want at least one", paths, err)
	}
	out := map[string][]string{}
	for _, path := range paths {
		data, err := assets.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		out[name] = nil
		for _, m := range staticImports.FindAllStringSubmatch(string(data), -1) {
			out[name] = append(out[name], m[1])
		}
	}
	return out
}

// circle returns a cycle of imports: the names of modules, of which the first and the last are the same; nil if there
// is no cycle.
func circle(imports map[string][]string) []string {
	done := map[string]bool{}
	var visit func(path []string) []string
	visit = func(path []string) []string {
		name := path[len(path)-1]
		if i := slices.Index(path, name); i < len(path)-1 {
			return path[i:]
		}
		if done[name] {
			return nil
		}
		for _, next := range imports[name] {
			if found := visit(append(slices.Clone(path), next)); found != nil {
				return found
			}
		}
		done[name] = true
		return nil
	}
	for name := range imports {
		if found := visit([]string{name}); found != nil {
			return found
		}
	}
	return nil
}

func TestImportsFormNoCircle(t *testing.T) {
	imports := modules(t)
	if len(imports["app.js"]) < 5 {
		t.Errorf("app.js imports %v: the test does not see its imports", imports["app.js"])
	}
	for name, list := range imports {
		for _, to := range list {
			if _, ok := imports[to]; !ok {
				t.Errorf("%s imports %s, which does not exist", name, to)
			}
		}
	}
	if found := circle(imports); found != nil {
		t.Errorf("imports form a circle: %s", strings.Join(found, " -> "))
	}
	if circle(map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}}) == nil {
		t.Error("a circle of two modules is not found")
	}
}

func TestModulesAreTypeChecked(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), testbed.Program(t, "tsc"), "--project", ".", "--listFilesOnly").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name := range modules(t) {
		data, err := assets.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(data), "// @ts-check\n") || !strings.Contains(string(out), "/assets/"+name+"\n") {
			t.Errorf("%s: must begin with // @ts-check and be imported by a module that tsconfig.json names", name)
		}
	}
	if out, err := exec.CommandContext(t.Context(), testbed.Program(t, "tsc"), "--project", ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestModulesAreFormatted(t *testing.T) {
	testbed.Program(t, "tsc") // format.js loads TypeScript's formatter, which the package of tsc (node-typescript) contains
	if out, err := exec.CommandContext(t.Context(), testbed.Program(t, "node"), "format.js").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAssetsLoadNothingFromOtherHosts: the files of the console must load nothing from another host, and must not
// insert text from the API into a page as HTML, because it could contain a script.
func TestAssetsLoadNothingFromOtherHosts(t *testing.T) {
	otherHost := regexp.MustCompile(`(?:src|href|url\(|from|import\()\s*[=("']+\s*(?:https?:)?//`)
	asHTML := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`)
	err := fs.WalkDir(assets, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := assets.ReadFile(name)
		for _, rule := range []*regexp.Regexp{otherHost, asHTML} {
			if m := rule.Find(data); m != nil {
				t.Errorf("asset %s has the forbidden text %q", name, m)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
