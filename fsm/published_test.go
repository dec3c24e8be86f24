package fsm

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// sum reads every record of a published state and returns a hash of them.
func sum(s State) uint64 {
	h := xxhash.New()
	if err := s.WriteSnapshot(h); err != nil {
		panic(err)
	}
	fmt.Fprint(h, s.Check(), s.r.statuses, s.PendingCount(), s.NextRetry())
	v := s.View()
	note := func(w *Workload) bool { fmt.Fprint(h, w.ID, w.Status); return true }
	v.Pending(note)
	v.Unacknowledged(note)
	v.Group("g", note)
	v.Nodes("", func(n *Node) bool {
		fmt.Fprint(h, n.ID, v.Alloc(n.ID))
		v.WorkloadsOn(n.ID, note)
		return true
	})
	return h.Sum64()
}

// TestPublishedStatesNeverChange: a published state does not change while later commands are applied. Run it
// with -race.
func TestPublishedStatesNeverChange(t *testing.T) {
	w := formed(t, "a", "b")
	for i := range 200 { // enough records that each table needs several B-tree nodes
		w.s, _, _ = w.s.Apply(Meta{uint64(10 + i), 1}, put(fmt.Sprintf("base-%d", i)))
	}
	s := w.s
	type held struct {
		s   State
		sum uint64
	}
	published := make(chan held, 8)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for h := range published {
				for range 3 {
					if got := sum(h.s); got != h.sum {
						t.Errorf("the published state at index %d must not change, but its digest was %x and is %x", h.s.Info().Index, h.sum, got)
					}
				}
			}
		})
	}
	first := held{s, sum(s)}
	for i := range 150 {
		tx := s.Begin()
		meta := Meta{uint64(300 + i), 1}
		tx.Apply(meta, put(fmt.Sprintf("w-%d", i), hostPort(uint32(1000+i))))
		tx.Apply(meta, remove(fmt.Sprintf("base-%d", i), false))
		tx.Apply(meta, register("b", engine(fmt.Sprint(i))))
		s = tx.Commit()
		if i%10 == 0 {
			published <- held{s, sum(s)}
			published <- first
		}
		tx.Apply(meta, put("after-commit")) // this later command must not change the committed state
	}
	close(published)
	readers.Wait()
	is(t, "hash of the first published state", sum(first.s), first.sum)
}

// TestTransactionsOfOneStateAreIndependent: two transactions that begin from one state do not affect each other.
func TestTransactionsOfOneStateAreIndependent(t *testing.T) {
	base := formed(t, "a").s
	before := sum(base)
	one, _, _ := base.Apply(Meta{9, 1}, put("one"))
	two, _, _ := base.Apply(Meta{9, 1}, put("two"))
	one, _, _ = one.Apply(Meta{10, 1}, put("three"))
	is(t, "hash of the state from which both transactions began", sum(base), before)
	for _, c := range []struct {
		s    State
		id   string
		want bool
	}{{one, "one", true}, {one, "two", false}, {one, "three", true}, {two, "one", false}, {two, "two", true}, {two, "three", false}} {
		_, ok := c.s.Workload(c.id)
		is(t, c.id, ok, c.want)
	}
	is(t, "violations that Check finds", one.Check(), nil)
	is(t, "violations that Check finds", two.Check(), nil)
}

// TestPackageIsPure: package fsm uses no clock, randomness, goroutine, I/O, map or mutable variable.
func TestPackageIsPure(t *testing.T) {
	forbidden := map[string]string{
		"context": "package fsm must not wait", "os": "package fsm must not read the machine", "net": "package fsm must not use the network",
		"math/rand": "replicas would differ", "math/rand/v2": "replicas would differ", "crypto/rand": "replicas would differ",
		"sync": "package fsm must not start goroutines", "sync/atomic": "package fsm must not start goroutines",
		"log": "package fsm must return verdicts, not log them", "log/slog": "package fsm must return verdicts, not log them",
	}
	files := token.NewFileSet()
	packages := map[string]*ast.Package{} //nolint:staticcheck // parser.ParseDir is deprecated but suffices: each directory has one package and no build tags
	for _, dir := range []string{".", "quota", "rollout"} {
		found, err := parser.ParseDir(files, dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // ParseDir is deprecated, but each directory has one package and no build tags
		if err != nil || len(found) == 0 {
			t.Fatalf("directory %s has %d Go packages (error %v), want at least one", dir, len(found), err)
		}
		maps.Copy(packages, found)
	}
	at := func(n ast.Node) string { return files.Position(n.Pos()).String() }
	count := 0
	for _, p := range packages {
		for name, f := range p.Files {
			count++
			if data, err := os.ReadFile(name); err != nil || strings.Count(string(data), "\n") > 800 {
				t.Errorf("%s must have at most 800 lines (error %v)", name, err)
			}
			for _, i := range f.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				if why, ok := forbidden[path]; ok {
					t.Errorf("%s imports %s: %s", at(i), path, why)
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
					t.Errorf("%s: package fsm must be pure and may not use goroutines or channels", at(n))
				case *ast.MapType:
					t.Errorf("%s: package fsm must not use Go maps, because their order differs between replicas", at(n))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
						switch n.Sel.Name {
						case "Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "Tick", "AfterFunc", "Local":
							t.Errorf("%s: package fsm must not read a clock; the time comes with the command", at(n))
						}
					}
				case *ast.FuncDecl:
					if n.Name.Name == "init" && n.Recv == nil {
						t.Errorf("%s: package fsm must not have an init function", at(n))
					}
				}
				return true
			})
		}
	}
	if count < 10 {
		t.Errorf("only %d files were checked, want at least 10", count)
	}
}
