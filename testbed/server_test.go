package testbed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A third-party server must be built again if a file in its folder under tools/ has changed, and only then.
func TestServerIsBuiltForEachState(t *testing.T) {
	module, bins := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := func() string {
		t.Helper()
		at, err := build(t.Context(), module, program{pkg: "."}, filepath.Join(bins, "server"))
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	write("go.mod", "module example.org/server\n\ngo 1.26\n")
	write("main.go", "package main\n\nfunc main() {}\n")
	first := made()
	mark, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(made()); err != nil || !os.SameFile(mark, again) {
		t.Errorf("no file of the module changed, but the program was built again: %v", err)
	}
	write("go.sum", "")
	second := made()
	write("main.go", "package main\n\nfunc main() { println(1) }\n")
	third := made()
	if first == second || second == third {
		t.Errorf("three states of the module were built as %s, %s, %s; want three different files", first, second, third)
	}
	left := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(bins, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(path string) bool { return strings.HasSuffix(path, ".lock") })
	}
	if got := left(); !slices.Equal(got, []string{third}) {
		t.Errorf("the folder has %v, want %s", got, third)
	}
	write("main.go", "package main\n\nfunc main() { nothing }\n")
	if _, err := build(t.Context(), module, program{pkg: "."}, filepath.Join(bins, "server")); err == nil || !strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("building a program that does not compile returned %v, want the compiler's error", err)
	}
	if got := left(); !slices.Equal(got, []string{third}) {
		t.Errorf("after a failed build the folder contains %v, want %s", got, third)
	}
}

// A second Lock on the same file fails while the first is held, and succeeds after the release of the first.
func TestLockIsExclusive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	release, err := Lock(t.Context(), time.Second, file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(t.Context(), 10*time.Millisecond, file); err == nil || !strings.Contains(err.Error(), "another process holds it") {
		t.Errorf("two locks are held at the same time: %v", err)
	}
	release()
	if release, err = Lock(t.Context(), time.Second, file); err != nil {
		t.Fatal(err)
	}
	release()
}

func TestServersHaveModules(t *testing.T) {
	if _, err := Server(t.Context(), "zookeeper"); err == nil || !strings.Contains(err.Error(), "tools/zookeeper") {
		t.Error(err)
	}
	root, err := Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range servers {
		if _, err := os.Stat(filepath.Join(root, "tools", name, "go.mod")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
