package docs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// pages lists every page with a command block, in reading order. Each page starts in the state in which
// the previous page left the machines.
var pages = []string{
	"docs/guides/quick-start.md",
	"README.md",
	"docs/guides/recipes.md",
	"docs/guides/production.md",
	"docs/guides/containers.md",
	"docs/guides/operations.md",
	"docs/guides/troubleshooting.md",
	"docs/guides/discovery.md",
	"docs/guides/backup.md",
}

// elsewhere lists folders whose pages are not checked, because they contain no commands for users.
var elsewhere = []string{"docs/contract/", "docs/adr/"}

// distEnv is the environment variable that names the folder with the output of make release.
const distEnv = "DOCS_PACKAGES"

// TestDocs makes a release, sets up three machines from its packages as the quick
// start says, and runs every command block of every page.
func TestDocs(t *testing.T) {
	root, err := testbed.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocks := parseAll(t, root)
	if !testbed.HasOwnNetwork() {
		outside(t, root)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	image := t.TempDir()
	must(t, os.WriteFile(filepath.Join(image, "Dockerfile"), []byte("FROM scratch\nCOPY hello /hello\nENTRYPOINT [\"/hello\"]\n"), 0o644))
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(image, "hello"), "./examples/hello")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the image: %v\n%s", err, out)
	}
	env, err := exec.CommandContext(ctx, "go", "env", "-changed", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB").Output()
	must(t, err)
	lab, err := NewLab(ctx, LabOptions{Dir: t.TempDir(), Packages: os.Getenv(distEnv), Root: root, Image: image, ImageRef: "persys/hello:demo", Env: goEnv(string(env))})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, lab.Add(ctx, "s1", "s2", "s3", laptop))
	on := "s1"
	for _, page := range pages {
		ok := t.Run(page, func(t *testing.T) {
			for _, b := range blocks[page] {
				if b.By != "" {
					continue
				}
				if b.On != "" {
					on = b.On
				}
				began := time.Now()
				out, err := lab.Run(ctx, on, b)
				if err != nil {
					t.Fatalf("page %s, line %d: the block on machine %s failed: %v\n%s\n--- output\n%s\n--- logs\n%s", page, b.Line, on, err, b.Text, out, lab.Logs(2000))
				}
				t.Logf("%s:%d on %s, %v:\n%s", page, b.Line, on, time.Since(began).Round(10*time.Millisecond), out)
			}
		})
		if !ok {
			return // stop here, because the following pages need the state that this page leaves
		}
	}
}

// TestEveryBlockIsRun checks that a test runs each command block of each page. It needs
// no machines.
func TestEveryBlockIsRun(t *testing.T) {
	root, err := testbed.Root(t.Context())
	must(t, err)
	parseAll(t, root)
}

// parseAll parses every page and checks that a test runs each block.
func parseAll(t *testing.T, root string) map[string][]Block {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	must(t, err)
	more, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	must(t, err)
	all = append(append(all, more...), filepath.Join(root, "README.md"))
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	known := map[string]bool{}
	sources, err := filepath.Glob(filepath.Join(root, "e2e", "*_test.go"))
	must(t, err)
	libvirt, err := filepath.Glob(filepath.Join(root, "*", "*", "*", "*_test.go"))
	must(t, err)
	here, err := filepath.Glob(filepath.Join(root, "e2e", "*", "*_test.go"))
	must(t, err)
	for _, file := range slices.Concat(sources, libvirt, here) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range tests.FindAllStringSubmatch(string(text), -1) {
			known[m[1]] = true
		}
	}
	out := map[string][]Block{}
	for _, file := range all {
		page, err := filepath.Rel(root, file)
		must(t, err)
		if slices.ContainsFunc(elsewhere, func(dir string) bool { return strings.HasPrefix(page, dir) }) {
			continue
		}
		text, err := os.ReadFile(file)
		must(t, err)
		blocks, err := Parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", page, err)
			continue
		}
		for _, b := range blocks {
			if b.By != "" && !known[b.By] {
				t.Errorf("%s:%d: there is no test %s", page, b.Line, b.By)
			}
			if b.By == "" && !slices.Contains(pages, page) {
				t.Errorf("%s:%d: no test runs this block (see e2e/docs/doc.go): add the page to the list of pages, or name the test that runs the block", page, b.Line)
			}
		}
		out[page] = blocks
	}
	if t.Failed() {
		t.FailNow()
	}
	return out
}

// outside makes the release and runs the test again in a network namespace of its own.
func outside(t *testing.T, root string) {
	t.Helper()
	lacks := ""
	switch {
	case os.Getuid() != 0:
		lacks = "machines of this test are network namespaces, which need root"
	case runtime.GOARCH != "amd64":
		lacks = "the pages name packages for amd64"
	default:
		for _, program := range []string{"dockerd", "docker-compose", "ip", "nsenter", "dig", "curl", "dpkg-deb"} {
			if _, err := exec.LookPath(program); err != nil {
				lacks = err.Error()
			}
		}
	}
	if lacks != "" {
		testbed.Need(t, "a machine on which the commands of the docs can be run", errors.New(lacks))
	}
	dist := os.Getenv(distEnv)
	if dist == "" {
		dist = filepath.Join(t.TempDir(), "dist")
		release := exec.CommandContext(t.Context(), "hack/release.sh")
		release.Dir = root
		release.Env = append(os.Environ(), "ARCHES=amd64", "IMAGES=none", "DIST="+dist, "VERSION=v0.0.1-docs")
		if out, err := release.CombinedOutput(); err != nil {
			t.Fatalf("hack/release.sh: %v\n%s", err, out)
		}
		checkRelease(t, dist)
	}
	testbed.OwnNetwork(t, distEnv+"="+dist)
}

// checkRelease checks the checksums, versions, packages and bills of materials of make release.
func checkRelease(t *testing.T, dist string) {
	t.Helper()
	if out, err := command(t, dist, "sha256sum", "--check", "--quiet", "SHA256SUMS"); err != nil {
		t.Errorf("checking SHA256SUMS of the release failed: %v\n%s", err, out)
	}
	for platform, program := range map[string]string{"darwin": "persysctl", "windows": "persysctl.exe"} {
		archive := "persysctl_v0.0.1-docs_" + platform + "_amd64.tar.gz"
		if out, err := command(t, dist, "tar", "-tf", archive); err != nil || strings.TrimSpace(out) != program {
			t.Errorf("%s holds %q, want %s: %v", archive, out, program, err)
		}
	}
	for program, args := range map[string][]string{
		"persys-scheduler": {"--version"}, "persys-agent": {"--version"}, "persys-gateway": {"--version"}, "persysctl": {"version"},
		"persys": {"agent", "--version"},
	} {
		if out, err := command(t, dist, "linux_amd64/"+program, args...); err != nil || !strings.Contains(out, "v0.0.1-docs") {
			t.Errorf("the program %s does not print the version of this release: %v %s", program, err, out)
		}
	}
	debs, err := filepath.Glob(filepath.Join(dist, "persys_*_amd64.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("the release has the Debian packages %v (error %v)", debs, err)
	}
	out, err := command(t, dist, "dpkg-deb", "--contents", debs[0])
	for _, want := range []string{"./usr/bin/persys\n", "./usr/bin/persys-scheduler -> persys\n", "./usr/bin/persys-agent -> persys\n", "./usr/bin/persys-gateway -> persys\n", "./usr/bin/persysctl -> persys\n", "./lib/systemd/system/persys-fencer.service\n", "./etc/persys/agent.env\n"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("the package %s does not contain the file %q (error %v); it contains:\n%s", debs[0], want, err, out)
		}
	}
	if rpms, err := filepath.Glob(filepath.Join(dist, "persys-0*.x86_64.rpm")); err != nil || len(rpms) != 1 {
		t.Errorf("the release has the RPM packages %v (error %v)", rpms, err)
	}
	sbom, err := os.ReadFile(filepath.Join(dist, "sbom", "persys_linux_amd64.cdx.json"))
	if err != nil || !strings.Contains(string(sbom), `"CycloneDX"`) || !strings.Contains(string(sbom), "google.golang.org/grpc") {
		t.Errorf("the bill of materials of persys is missing or lacks gRPC: %v, %d bytes", err, len(sbom))
	}
	// An Alpine package is a signature, control data and files, each a compressed archive, one behind the other.
	apks, err := filepath.Glob(filepath.Join(dist, "persys_*_x86_64.apk"))
	if err != nil || len(apks) != 1 {
		t.Fatalf("the release has the Alpine packages %v (error %v)", apks, err)
	}
	if out, err := command(t, dist, "tar", "--warning=no-unknown-keyword", "--ignore-zeros", "-tzf", apks[0]); err != nil || !strings.Contains(out, "usr/bin/persys-agent\n") || strings.Contains(out, "systemd") {
		t.Errorf("%s: %v\n%s", apks[0], err, out)
	}
}

func command(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if strings.Contains(name, "/") {
		cmd.Path = filepath.Join(dir, name)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// goEnv parses "K='v'" lines of go env. The caches are passed explicitly: the commands run with another
// HOME, that of the simulated laptop, where Go's caches would be empty.
func goEnv(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out = append(out, k+"="+strings.Trim(v, "'"))
		}
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
