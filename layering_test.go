package compute_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/persys/compute"

// mayImport lists for each part of the project the other parts that it may import directly. It is the
// map in docs/DESIGN.md. "x/..." means x and everything below it. The first row that matches a package
// counts, and a part may always import itself. A part that builds commands also needs api/command,
// because fsm.Command is a message of that package.
var mayImport = []struct {
	part    string
	imports []string
}{
	{"api/...", nil},
	{"access", nil},
	{"policy", nil},
	{"policy/document", []string{"policy"}},
	// The asks (privileges) of containers, Compose projects and virtual machines.
	{"policy/asks", []string{"policy", "api/agent/...", "stack/service"}},
	{"engine", nil},
	{"schedule", nil},
	{"order", nil},
	// Schedulers and agents convert generations for the APIs. Package fsm must not import the APIs.
	{"order/wire", []string{"order", "api/agent/...", "api/control/..."}},
	{"fsm/bounds", []string{"api/command/..."}},
	{"fsm/quota", nil},
	{"fsm/receipts", nil},
	{"fsm/rollout", []string{"api/command/..."}},
	{"fsm", []string{"api/command/...", "api/strict", "fsm/bounds", "fsm/quota", "fsm/receipts", "fsm/rollout", "order", "policy"}},
	{"fsm/...", []string{"fsm", "api/command/..."}},
	{"sched", []string{"fsm", "fsm/rollout", "policy", "schedule", "api/command/..."}},
	{"sched/control", []string{"sched", "fsm", "order", "api/command/..."}},
	{"sched/leader/...", []string{"sched", "sched/control", "fsm", "fsm/store", "api/command/..."}},
	{"sched/...", []string{"sched", "fsm"}},
	{"pki/...", nil},
	// The meaning of a specification: parse, validate, hash, seal, translate, show.
	{"spec/...", []string{"api/control/...", "api/agent/...", "api/command/...", "engine", "fsm", "fsm/bounds", "fsm/rollout", "order/wire", "pki/...", "policy/...", "schedule", "stack/bundle", "stack/service"}},
	// Loads Compose stacks, for schedulers, agents and persysctl alike.
	{"stack/service", []string{"engine", "policy", "api/agent/..."}},
	{"stack/...", []string{"child", "engine", "policy"}},
	{"config/...", []string{"engine"}},
	{"telemetry/...", nil},
	{"child", nil},
	{"testbed/...", nil},
	{"rpc/dial/...", []string{"api/...", "pki/..."}},
	{"hosts", nil},
	{"rpc/limits/...", []string{"hosts"}},
	{"cluster/...", []string{"api/command/...", "fsm/...", "hosts", "pki/..."}},
	{"dnsserver/...", []string{"fsm/...", "telemetry"}},
	{"mirror/...", []string{"fsm/...", "policy/...", "api/command/..."}},
	{"agent/workload", []string{"order"}},
	{"agent/fencer/lease", []string{"agent/workload"}},
	{"agent/core", []string{"agent/workload", "agent/fencer/lease"}},
	{"agent/session/heartbeat", []string{"agent/core"}},
	// Test support that drivers share.
	{"agent/driver/moby/mobytest", []string{"agent/driver", "pki", "testbed"}},
	{"agent/driver/libvirt/libvirttest", []string{"testbed"}},
	{"agent/driver/drivertest", []string{"agent/driver", "api/agent/...", "testbed"}},
	{"agent/driver/...", []string{"api/agent/...", "agent/workload", "child", "engine", "order", "policy/...", "stack/..."}},
	// The agent's state file and the orders in it depend neither on drivers that run engines nor on
	// schedulers.
	{"agent/spec", []string{"agent/core", "agent/workload", "agent/volume", "api/agent/...", "order", "pki/..."}},
	{"agent/store", []string{"agent/core", "agent/spec", "agent/workload", "agent/driver", "agent/volume", "api/agent/...", "pki/..."}},
	{"agent/...", []string{"api/...", "engine", "order/...", "pki/...", "policy/...", "rpc/dial/...", "rpc/limits", "telemetry"}},
	{"rpc/...", []string{"access", "api/...", "fsm/...", "hosts", "order/...", "sched", "spec/...", "pki/...", "policy/...", "stack/..."}},
	{"gateway/...", []string{"api/...", "rpc/dial/...", "rpc/limits", "pki/...", "telemetry"}},
	{"replica/keyring", []string{"api/command/...", "fsm/...", "pki"}},
	{"replica/coredns", []string{"fsm"}},
	{"replica/auditsink", []string{"fsm", "pki", "rpc"}},
	{"replica/mirrorspec", []string{"api/agent/...", "api/control/...", "fsm", "mirror", "spec"}},
	// A whole scheduler, for cmd/internal/schedulerd, cmd/persys and other programs that embed one.
	{"replica", []string{"api/...", "cluster", "config", "dnsserver", "fsm/...", "mirror", "pki/...", "replica/...", "rpc/...", "sched", "sched/control", "sched/leader", "spec", "stack", "telemetry"}},
	{"cmd/...", []string{"..."}},
	{"examples/...", nil},
	{"sim/...", []string{"..."}},
	{"e2e/...", []string{"..."}},
}

// nobodyImports lists parts that no other part may import: programs, simulator, failure tests.
var nobodyImports = []string{"cmd/...", "sim/...", "e2e/..."}

// neverReach lists packages that a part may not import, not even indirectly. The protobuf runtime and
// the B-tree import neither net nor math/rand, so the pure parts need no exception.
var neverReach = []struct {
	part   string
	never  []string
	reason string
}{
	{"access", impure, "decisions on permissions are computed from values only"},
	{"policy", impure, "the state machine uses it, and must give the same answer on every replica"},
	{"order", impure, "the state machine uses it, and must give the same answer on every replica"},
	{"fsm/...", impure, "the state machine must give the same answer on every replica and at every replay"},
	{"sched", impure, "planning is a pure step over its input, so that simulator, dry run and production share it"},
	{"agent/workload", impure, "the agent's core imports it, and the core is a pure step over its input"},
	{"agent/core", impure, "the agent's decisions are a pure step, so that simulator and production share them"},
	{"agent/fencer/lease", impure, "the fencer's decisions are a pure step, which the simulator drives on virtual clocks"},
	{"agent/overlay/plan", impure, "the plan for networks is a pure function, so that a test can start it from any damaged machine"},
	{"sched/control", impure, "the leader's control loop is a pure step over its inputs, so that the simulator drives the same code"},
	{"api/command/...", []string{"google.golang.org/grpc/..."}, "the messages of the log contain no gRPC service, because the state machine imports them"},
	{"agent/...", []string{module + "/fsm/...", module + "/sched/...", module + "/cluster/..."}, "an agent depends on the API, never on packages of the control plane, because both are upgraded separately"},
	{"cluster/...", []string{module + "/rpc/..."}, "cluster does not depend on the API; rpc declares the interfaces that it uses, and replica connects both"},
	{"rpc/...", []string{module + "/cluster/..."}, "rpc declares the interfaces that it uses; replica passes cluster as their implementation"},
	{"cmd/...", []string{module + "/testbed/..."}, "no program contains test support"},
	{"replica/...", []string{module + "/cmd/...", module + "/testbed/..."}, "a scheduler can be embedded: the programs import it"},
}

var impure = []string{"net", "math/rand/...", "crypto/rand", "github.com/hashicorp/...", "google.golang.org/grpc/..."}

// drivers must not import each other. Shared code belongs in agent/driver.
var drivers = []string{"docker", "compose", "libvirt", "sim"}

// pure lists packages whose own files use no clock, randomness, goroutine or map order.
// fsm/store is not among them (it may block), nor is sched/leader (it owns the loop and the clock).
var pure = []string{"access", "order", "policy", "schedule", "fsm", "fsm/bounds", "fsm/quota", "fsm/receipts", "fsm/rollout", "sched", "sched/control", "agent/workload", "agent/fencer/lease", "agent/core", "agent/session/heartbeat", "agent/message", "agent/overlay/plan", "rpc/message"}

var (
	forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "model", "models"}
	maxFileLines   = 800
)

// listed holds the fields of go list -json that the test reads.
type listed struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	Deps       []string
	Error      *struct{ Err string }
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Dir,Standard,Imports,Deps,Error", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
	return all
}

// match reports whether path is pattern, or below it when pattern ends in "/...".
func match(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}

func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, path) })
}

// ours returns the path of a package below the module, and whether the package is in the module.
func ours(path string) (string, bool) {
	return strings.CutPrefix(path, module+"/")
}

func TestImportsFollowTheMap(t *testing.T) {
	all := list(t)
	byPath := map[string]listed{}
	for _, p := range all {
		byPath[p.ImportPath] = p
	}
	for _, p := range all {
		part, ok := ours(p.ImportPath)
		if !ok {
			continue
		}
		if p.Error != nil {
			t.Errorf("%s: %s", part, p.Error.Err)
		}
		directImports(t, part, p)
		for _, rule := range neverReach {
			if !match(rule.part, part) {
				continue
			}
			for _, dep := range p.Deps {
				if matchAny(rule.never, dep) {
					t.Errorf("%s reaches %s (%s): %s", part, dep, strings.Join(chain(byPath, p.ImportPath, dep), " → "), rule.reason)
					break // report only the first forbidden package, because it often imports the others
				}
			}
		}
		for _, a := range drivers {
			for _, b := range drivers {
				other := module + "/agent/driver/" + b
				if a != b && match("agent/driver/"+a+"/...", part) && slices.ContainsFunc(p.Deps, func(d string) bool { return match(other+"/...", d) }) {
					t.Errorf("%s reaches agent/driver/%s: a driver imports no other driver; shared code belongs in agent/driver", part, b)
				}
			}
		}
	}
}

func directImports(t *testing.T, part string, p listed) {
	i := slices.IndexFunc(mayImport, func(r struct {
		part    string
		imports []string
	}) bool {
		return match(r.part, part)
	})
	if i < 0 {
		t.Errorf("%s is not in the map: add it to docs/DESIGN.md and to mayImport, or move it", part)
		return
	}
	rule := mayImport[i]
	for _, imp := range p.Imports {
		to, ok := ours(imp)
		if !ok || match(rule.part, to) {
			continue
		}
		switch {
		case matchAny(nobodyImports, to) && !sameRoot(part, to):
			t.Errorf("%s imports %s: nothing imports programs, the simulator or the failure tests", part, to)
		case !matchAny(rule.imports, to):
			t.Errorf("%s imports %s: %s may import only %s", part, to, rule.part, orNothing(rule.imports))
		}
	}
}

func sameRoot(a, b string) bool {
	x, _, _ := strings.Cut(a, "/")
	y, _, _ := strings.Cut(b, "/")
	return x == y
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "libraries, nothing of the project"
	}
	return strings.Join(list, ", ")
}

// chain returns a chain of imports from one package to another, for the failure message.
func chain(byPath map[string]listed, from, to string) []string {
	before := map[string]string{from: ""}
	queue := []string{from}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if at == to {
			var path []string
			for ; at != ""; at = before[at] {
				path = append(path, at)
			}
			slices.Reverse(path)
			return path
		}
		for _, next := range byPath[at].Imports {
			if _, seen := before[next]; !seen {
				before[next] = at
				queue = append(queue, next)
			}
		}
	}
	return []string{from, "…", to}
}

// TestPurePackagesReachNothingImpure checks the source of the pure packages for impure code that imports do not show.
func TestPurePackagesReachNothingImpure(t *testing.T) {
	for _, part := range pure {
		t.Run(part, func(t *testing.T) {
			cfg := &packages.Config{
				Context: t.Context(),
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
					packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax | packages.NeedExportFile,
			}
			pkgs, err := packages.Load(cfg, "./"+part)
			if err != nil {
				t.Fatal(err)
			}
			for _, pkg := range pkgs {
				for _, e := range pkg.Errors {
					t.Errorf("%s: %v", part, e)
				}
				for _, finding := range impurities(pkg.Fset, pkg.Syntax, pkg.TypesInfo) {
					t.Error(finding)
				}
			}
		})
	}
}

const (
	whyClock   = "the leader chooses the time and passes it in"
	whyRandom  = "ids and random choices are made by the caller and passed in"
	whyOutside = "the pure core touches nothing outside its arguments"
	whyWaits   = "the pure core never waits and starts nothing"
	whyOrder   = "map order differs between replicas; use a B-tree, a sorted slice, or slices.Sorted(maps.Keys(m))"
)

var impureImports = map[string]string{
	"context": whyWaits, "os": whyOutside, "os/exec": whyOutside, "io/fs": whyOutside, "syscall": whyOutside,
	"sync": whyWaits, "sync/atomic": whyWaits,
	"math/rand": whyRandom, "math/rand/v2": whyRandom, "crypto/rand": whyRandom, "github.com/google/uuid": whyRandom,
}

// impureFuncs are functions of packages that the pure core may otherwise use.
var impureFuncs = map[string]map[string]string{
	"time": {"Now": whyClock, "Since": whyClock, "Until": whyClock, "Sleep": whyWaits, "After": whyWaits, "AfterFunc": whyWaits,
		"Tick": whyWaits, "NewTimer": whyWaits, "NewTicker": whyWaits},
	"maps": {"Keys": whyOrder, "Values": whyOrder, "All": whyOrder},
}

// impurities lists impure code, each with its position and the reason.
func impurities(fset *token.FileSet, files []*ast.File, info *types.Info) []string {
	var findings []string
	add := func(pos token.Pos, what, why string) {
		p := fset.Position(pos)
		findings = append(findings, fmt.Sprintf("%s:%d: %s: %s", filepath.Base(p.Filename), p.Line, what, why))
	}
	for _, file := range files {
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if why, ok := impureImports[path]; ok {
				add(imp.Pos(), "imports "+path, why)
			}
		}
		sorted := map[ast.Node]bool{} // arguments of slices.Sorted and similar functions, which fix the order
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				add(n.Pos(), "go statement", whyWaits)
			case *ast.SelectStmt:
				add(n.Pos(), "select statement", whyWaits)
			case *ast.SendStmt:
				add(n.Pos(), "send on a channel", whyWaits)
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					add(n.Pos(), "receive from a channel", whyWaits)
				}
			case *ast.RangeStmt:
				if t := info.TypeOf(n.X); t != nil && isMap(t) {
					add(n.Pos(), "ranges over a map", whyOrder)
				}
			case *ast.CallExpr:
				if pkg, name := callee(info, n.Fun); pkg == "slices" && strings.HasPrefix(name, "Sorted") && len(n.Args) > 0 {
					if arg, ok := n.Args[0].(*ast.CallExpr); ok {
						sorted[arg.Fun] = true
					}
				}
			case *ast.SelectorExpr:
				pkg, name := callee(info, n)
				if why, ok := impureFuncs[pkg][name]; ok && (pkg != "maps" || !sorted[n]) {
					add(n.Pos(), "uses "+pkg+"."+name, why)
				}
			}
			return true
		})
	}
	return findings
}

func isMap(t types.Type) bool {
	if p, ok := t.(*types.TypeParam); ok {
		t = p.Constraint()
	}
	switch u := t.Underlying().(type) {
	case *types.Map:
		return true
	case *types.Interface: // the interface is a constraint, and its union may contain a map
		for i := range u.NumEmbeddeds() {
			switch e := u.EmbeddedType(i).(type) {
			case *types.Union:
				for j := range e.Len() {
					if isMap(e.Term(j).Type()) {
						return true
					}
				}
			default:
				if isMap(e) {
					return true
				}
			}
		}
	}
	return false
}

// callee returns package path and name of a function or variable of another package.
func callee(info *types.Info, fun ast.Expr) (pkg, name string) {
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if id, ok := sel.X.(*ast.Ident); ok {
		if p, ok := info.Uses[id].(*types.PkgName); ok {
			return p.Imported().Path(), sel.Sel.Name
		}
	}
	return "", ""
}

// TestPurityRulesFindViolations checks the purity rules themselves: each rule must report the violation in a sample.
func TestPurityRulesFindViolations(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"a map range is found", `func f(m map[string]int) { for range m {} }`, "ranges over a map"},
		{"a named map range is found", `type M map[string]int; func f(m M) { for range m {} }`, "ranges over a map"},
		{"a generic map range is found", `func f[M ~map[string]int](m M) { for range m {} }`, "ranges over a map"},
		{"a slice range is allowed", `func f(m []int) { for range m {} }`, ""},
		{"a goroutine is found", `func f() { go f() }`, "go statement"},
		{"a select is found", `func f() { select {} }`, "select statement"},
		{"a send is found", `func f(c chan int) { c <- 1 }`, "send on a channel"},
		{"a receive is found", `func f(c chan int) { <-c }`, "receive from a channel"},
		{"the clock is found", `import "time"; func f() time.Time { return time.Now() }`, "uses time.Now"},
		{"the clock as a value is found", `import clock "time"; var f = clock.Now`, "uses time.Now"},
		{"a duration is allowed", `import "time"; const d = time.Second`, ""},
		{"unsorted keys are found", `import "maps"; func f(m map[string]int) { for range maps.Keys(m) {} }`, "uses maps.Keys"},
		{"sorted keys are allowed", `import ("maps"; "slices"); func f(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }`, ""},
		{"the file system is found", `import "os"; var f = os.Getenv`, "imports os"},
		{"a context is found", `import "context"; func f(context.Context) {}`, "imports context"},
		{"randomness is found", `import "math/rand/v2"; var f = rand.Int`, "imports math/rand/v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := &packages.Config{
				Context: t.Context(),
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
					packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax | packages.NeedExportFile,
			}
			file := filepath.Join(t.TempDir(), "case.go")
			if err := os.WriteFile(file, []byte("package p; "+c.src+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			pkgs, err := packages.Load(cfg, "file="+file)
			if err != nil || len(pkgs) != 1 || len(pkgs[0].Errors) > 0 {
				t.Fatalf("the code of the test case does not compile: %v %v", err, pkgs)
			}
			got := strings.Join(impurities(pkgs[0].Fset, pkgs[0].Syntax, pkgs[0].TypesInfo), "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// TestPackageNamesAndFileSizes checks the names of packages, the length of files, and that no file has an init
// function. Generated files are exempt.
func TestPackageNamesAndFileSizes(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if notOurs(path) {
				return filepath.SkipDir
			}
			if slices.Contains(forbiddenNames, name) {
				t.Errorf("%s: name a package after its content, not %q", path, name)
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || generated(name) {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := bytes.Count(src, []byte("\n"))
		if lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: split it by subject", path, lines, maxFileLines)
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: wiring is done in cmd, where it can be read", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTestsSkipOnlyThroughNeed checks that tests skip only through testbed.Need, which fails with
// CI=true. The Skip of rapid, on a variable named rt, only draws another case and is allowed.
func TestTestsSkipOnlyThroughNeed(t *testing.T) {
	skip := regexp.MustCompile(`(\w+)\.(?:Skip|Skipf|SkipNow)\(|Getenv\("CI"\)`)
	eachLine(t, func(place, line string) {
		if m := skip.FindStringSubmatch(line); m != nil && m[1] != "rt" && !strings.HasPrefix(place, "testbed/") {
			t.Errorf("%s: %s: use testbed.Need to say which part is missing", place, line)
		}
	})
}

// TestJoinedTextsHaveASpace finds texts that are joined without a space, such as "node " + id + "is lost".
func TestJoinedTextsHaveASpace(t *testing.T) {
	joined := regexp.MustCompile(`[\w)\]] \+ "[A-Za-z]+ [a-z]`)
	eachLine(t, func(place, line string) {
		if !strings.Contains(place, "_test.go") && joined.MatchString(line) && !strings.Contains(line, "`") {
			t.Errorf("%s: %s: begin the text after + with a space", place, line)
		}
	})
}

// eachLine calls f for each line of the source files that people write, with its place ("file:line").
func eachLine(t *testing.T, f func(place, line string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && notOurs(path):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || generated(path) || path == "layering_test.go":
			return nil
		}
		src, err := os.ReadFile(path)
		n := 0
		for line := range strings.Lines(string(src)) {
			n++
			f(fmt.Sprintf("%s:%d", path, n), strings.TrimSpace(line))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// generated reports whether a file is generated from another one.
func generated(path string) bool {
	return strings.HasSuffix(path, ".pb.go") || strings.HasSuffix(path, ".pb.gw.go")
}

// notOurs reports whether a folder holds build output, downloads or recorded data.
func notOurs(dir string) bool {
	name := filepath.Base(dir)
	return dir != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "artifacts")
}
