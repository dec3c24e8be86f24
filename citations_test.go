package compute_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tracked lists the files of the repository: those in git's index, and new files that git does not ignore.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for _, file := range strings.Fields(string(out)) {
		if _, err := os.Stat(file); err == nil { // a deleted file stays in the index until the commit
			files = append(files, file)
		}
	}
	return files
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	citedPage    = regexp.MustCompile(`([\w./-]*\w\.md)\b(?:,? (?:section (\d+)|"([^"]+)"))?`)
	citedSource  = regexp.MustCompile(`(?:^|[\s(\x60])([\w./-]*\w\.(?:go|proto))\b`)
	citedTest    = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w+)\(`)
	numbered     = regexp.MustCompile(`\b[Dd]ecision \d+`)
	citedRecord  = regexp.MustCompile(`\bADR (\d+)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksInPagesResolve follows each link of each page to a file of the repository and to a heading in it.
func TestLinksInPagesResolve(t *testing.T) {
	for _, page := range tracked(t) {
		if !strings.HasSuffix(page, ".md") {
			continue
		}
		for _, m := range markdownLink.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // the link is an address on the network
			}
			file := page
			if target != "" {
				file = path.Join(path.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], file)
			}
		}
	}
}

// TestCitationsResolve looks up each page, section, decision record, source file and test that a comment
// or a page cites. A page is cited by its path from the root, from docs/, or from the folder of the file that
// cites it. A source file may also be cited by the end of its path.
func TestCitationsResolve(t *testing.T) {
	files := tracked(t)
	records, tests := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, ".go") {
			for _, m := range declaredTest.FindAllStringSubmatch(read(t, file), -1) {
				tests[m[1]] = true
			}
		}
		if dir, name := path.Split(file); dir == "docs/adr/" && len(name) > 4 {
			records[strings.TrimLeft(name[:4], "0")] = true
		}
	}
	for _, file := range files {
		prose := proseOf(t, file)
		for _, m := range citedPage.FindAllStringSubmatch(prose, -1) {
			if path.Base(m[1]) == "NAME.md" {
				continue // NAME stands for any page
			}
			cited := firstExisting(m[1], "docs/"+m[1], path.Join(path.Dir(file), m[1]))
			switch {
			case cited == "":
				t.Errorf("%s cites %s, which does not exist", file, m[1])
			case m[2] != "" && !slices.ContainsFunc(headings(read(t, cited)), func(h string) bool { return strings.HasPrefix(h, m[2]+".") }):
				t.Errorf("%s cites section %s of %s, which has no such section", file, m[2], cited)
			case m[3] != "" && !hasPart(read(t, cited), m[3]):
				t.Errorf("%s cites %q in %s, which has no heading, bold word or table row of that name", file, m[3], cited)
			}
		}
		for _, name := range citedTest.FindAllString(prose, -1) {
			if name != "TestName" && !tests[name] { // TestName is a placeholder
				t.Errorf("%s cites %s, which does not exist", file, name)
			}
		}
		if m := numbered.FindString(prose); m != "" {
			t.Errorf("%s cites %q: cite the DESIGN.md of the package", file, m)
		}
		for _, m := range citedRecord.FindAllStringSubmatch(prose, -1) {
			if !records[m[1]] {
				t.Errorf("%s cites ADR %s, which docs/adr does not have", file, m[1])
			}
		}
		for _, m := range citedSource.FindAllStringSubmatch(prose, -1) {
			beside := path.Join(path.Dir(file), m[1])
			if !slices.ContainsFunc(files, func(f string) bool { return f == m[1] || f == beside || strings.HasSuffix(f, "/"+m[1]) }) {
				t.Errorf("%s cites %s, which does not exist", file, m[1])
			}
		}
	}
}

// proseOf returns the parts of a file that people read: a page, the comments of a program, the
// comment lines of a configuration. Line breaks are spaces, so that a citation may be wrapped.
func proseOf(t *testing.T, file string) string {
	t.Helper()
	switch filepath.Ext(file) {
	case ".md":
		if strings.HasPrefix(file, "docs/reference/") {
			return "" // the file is generated from the programs
		}
		return read(t, file)
	case ".go":
		if generated(file) {
			return ""
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, group := range parsed.Comments {
			text = append(text, strings.Join(strings.Fields(group.Text()), " "))
		}
		return strings.Join(text, "\n")
	case ".proto":
		return commentLines(read(t, file), "//")
	case ".sh", ".yaml", ".yml", ".service", ".env", ".mk":
		return commentLines(read(t, file), "#")
	}
	if path.Base(file) == "Makefile" {
		return commentLines(read(t, file), "#")
	}
	return ""
}

func commentLines(text, mark string) string {
	var out []string
	for line := range strings.Lines(text) {
		if _, comment, ok := strings.Cut(line, mark); ok {
			out = append(out, strings.TrimSpace(comment))
		}
	}
	return strings.Join(out, " ")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func firstExisting(files ...string) string {
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && !info.IsDir() {
			return file
		}
	}
	return ""
}

// hasPart reports whether a page has a heading, a bold word at the start of a line or a table row that begins with name.
func hasPart(page, name string) bool {
	return regexp.MustCompile(`(?mi)^(?:#+ +.*|\*\*|\| )` + regexp.QuoteMeta(name)).MatchString(page)
}

func headings(page string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		out = append(out, strings.TrimSpace(m[1]))
	}
	return out
}

// anchors are the headings of a page as GitHub names them in links. A second heading of the same name gets "-1".
func anchors(page string) []string {
	var out []string
	seen := map[string]int{}
	for _, h := range headings(page) {
		a := strings.ReplaceAll(strings.ToLower(notInAnchors.ReplaceAllString(h, "")), " ", "-")
		if n := seen[a]; n > 0 {
			out = append(out, fmt.Sprintf("%s-%d", a, n))
		} else {
			out = append(out, a)
		}
		seen[a]++
	}
	return out
}

var journeyFunction = regexp.MustCompile("`((?:[a-z0-9]+/)*[a-z0-9]+)\\.([A-Za-z]\\w*(?:\\.[A-Za-z]\\w*)?)`")

// TestJourneyNamesFunctions looks up each function on the page docs/architecture/journey.md, written as
// folder.Function or folder.Type.Method.
func TestJourneyNamesFunctions(t *testing.T) {
	const page = "docs/architecture/journey.md"
	known := map[string]map[string]bool{}
	found := 0
	for _, m := range journeyFunction.FindAllStringSubmatch(read(t, page), -1) {
		dir, name := m[1], m[2]
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			if !strings.Contains(dir, "/") {
				continue // the cell names a package or a type
			}
			t.Errorf("%s names %s.%s, and there is no folder %s", page, dir, name, dir)
			continue
		}
		if known[dir] == nil {
			known[dir] = functionsIn(t, dir)
		}
		if !known[dir][name] {
			t.Errorf("%s names %s.%s, which does not exist", page, dir, name)
		}
		found++
	}
	if found < 20 {
		t.Errorf("%s names only %d functions", page, found)
	}
}

// functionsIn returns the functions, types, methods and interface methods that a folder declares outside
// of tests, as Function, Type or Type.Method.
func functionsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := n.Name.Name
				if n.Recv != nil {
					recv := n.Recv.List[0].Type
					if star, ok := recv.(*ast.StarExpr); ok {
						recv = star.X
					}
					if index, ok := recv.(*ast.IndexExpr); ok {
						recv = index.X
					}
					if id, ok := recv.(*ast.Ident); ok {
						name = id.Name + "." + name
					}
				}
				out[name] = true
			case *ast.TypeSpec:
				out[n.Name.Name] = true
				if face, ok := n.Type.(*ast.InterfaceType); ok {
					for _, method := range face.Methods.List {
						for _, name := range method.Names {
							out[n.Name.Name+"."+name.Name] = true
						}
					}
				}
			}
			return true
		})
	}
	return out
}

var mapRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| ([^|]+) \\|$")

// TestTheMapInDesignIsCurrent compares the map in docs/DESIGN.md with mayImport.
func TestTheMapInDesignIsCurrent(t *testing.T) {
	const page = "docs/DESIGN.md"
	text := read(t, page)
	if words := len(strings.Fields(text)); words > 1500 {
		t.Errorf("%s has %d words, at most 1500: it is the one page to read first", page, words)
	}
	_, section, _ := strings.Cut(text, "## Map\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{}
	for _, m := range mapRow.FindAllStringSubmatch(section, -1) {
		rows[m[1]] = m[2]
	}
	for _, rule := range mayImport {
		want := "–"
		if len(rule.imports) > 0 {
			want = "`" + strings.Join(rule.imports, "`, `") + "`"
		}
		if got := rows[rule.part]; got != want {
			t.Errorf("%s: the row of %s says that it may import %q, mayImport says %q", page, rule.part, got, want)
		}
		delete(rows, rule.part)
	}
	for part := range rows {
		t.Errorf("%s has a row for %s, which mayImport does not have", page, part)
	}
}

// TestGlossary: the glossary has at most 60 terms, each in one line of its table, sorted.
func TestGlossary(t *testing.T) {
	var terms []string
	for _, line := range strings.Split(read(t, "docs/glossary.md"), "\n")[6:] {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			terms = append(terms, strings.ToLower(strings.TrimSpace(cells[1])))
		} else if line != "" {
			t.Errorf("a line of the glossary is not a row of its table: %s", line)
		}
	}
	if len(terms) > 60 || len(terms) < 20 {
		t.Errorf("the glossary has %d terms, want at most 60", len(terms))
	}
	if !slices.IsSorted(terms) {
		t.Error("the terms of the glossary are not sorted")
	}
}
