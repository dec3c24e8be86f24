package fsm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestStatusesAndEventTypesAreComplete: the lists of statuses and event types, with which the API validates
// filters, have every constant of types.go.
func TestStatusesAndEventTypesAreComplete(t *testing.T) {
	listed := map[string][]string{"Event": EventTypes(), "Status": nil, "Node": nil}
	for _, w := range Statuses() {
		listed["Status"] = append(listed["Status"], string(w))
	}
	for _, w := range NodeStatuses() {
		listed["Node"] = append(listed["Node"], string(w))
	}
	file, err := parser.ParseFile(token.NewFileSet(), "types.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, name := range v.Names {
				kind := "Event"
				if of, ok := v.Type.(*ast.Ident); ok {
					kind = strings.TrimSuffix(of.Name, "Status")
					if of.Name == "Status" {
						kind = "Status"
					}
				} else if !strings.HasPrefix(name.Name, "Event") {
					continue
				}
				if lit, ok := v.Values[i].(*ast.BasicLit); ok {
					word, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					want[kind] = append(want[kind], word)
				}
			}
		}
	}
	for kind, have := range listed {
		if !slices.Equal(have, want[kind]) {
			t.Errorf("%s:\n have %q\n want %q", kind, have, want[kind])
		}
	}
}
