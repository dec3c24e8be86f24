package testbed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A server is built again when any file of its module has changed, and only then.
func TestBuiltForEachState(t *testing.T) {
	module, bins := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := func() string {
		t.Helper()
		at, err := build(t.Context(), module, ".", filepath.Join(bins, "server"))
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
		t.Errorf("nothing changed, and it is another file: %v", err)
	}
	write("go.sum", "")
	second := made()
	write("main.go", "package main\n\nfunc main() { println(1) }\n")
	third := made()
	if first == second || second == third {
		t.Errorf("built as %s, %s, %s", first, second, third)
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
		t.Errorf("there is %v, want %s", got, third)
	}
	write("main.go", "package main\n\nfunc main() { nothing }\n")
	if _, err := build(t.Context(), module, ".", filepath.Join(bins, "server")); err == nil || !strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("what does not compile: %v", err)
	}
	if got := left(); !slices.Equal(got, []string{third}) {
		t.Errorf("after a failed build there is %v, want %s", got, third)
	}
}

// One holds the lock, and the next gets it when that one lets go.
func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	release, err := Lock(t.Context(), time.Second, file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(t.Context(), 10*time.Millisecond, file); err == nil || !strings.Contains(err.Error(), "somebody else holds it") {
		t.Errorf("held twice: %v", err)
	}
	release()
	if release, err = Lock(t.Context(), time.Second, file); err != nil {
		t.Fatal(err)
	}
	release()
}

func TestServerNames(t *testing.T) {
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
