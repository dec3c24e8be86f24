// Audit runs gosec over the code of released programs, and govulncheck over all packages.
// Findings that are not faults are listed with a reason in gosec.exceptions or
// vulnerabilities.exceptions beside this file. An exception without a finding is an error.
//
//	audit gosec BINARY           from the root of the repository
//	audit govulncheck BINARY
//
// The database of vulnerabilities is GOVULNDB, or https://vuln.go.dev. If it does not
// answer, audit prints a warning. This is not an error, because no change in this
// repository could fix it.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed gosec.exceptions
var gosecExceptions string

//go:embed vulnerabilities.exceptions
var vulnExceptions string

// notShipped are the folders without code of released programs, relative to the root.
var notShipped = []string{
	"e2e", "sim", "examples", "agent/driver/drivertest", "agent/driver/libvirt/libvirttest",
	"agent/driver/moby/mobytest", "pki/vault/vaulttest", "testbed",
}

const (
	liveDatabase = "https://vuln.go.dev"
	askFor       = 10 * time.Second
	mostTime     = 20 * time.Minute
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: audit gosec|govulncheck BINARY")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), mostTime)
	defer cancel()
	var faults []string
	var err error
	switch os.Args[1] {
	case "gosec":
		faults, err = gosec(ctx, os.Args[2])
	case "govulncheck":
		faults, err = govulncheck(ctx, os.Args[2])
	default:
		err = fmt.Errorf("%q is neither gosec nor govulncheck", os.Args[1])
	}
	for _, f := range faults {
		fmt.Fprintln(os.Stderr, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "audit:", err)
	}
	if err != nil || len(faults) > 0 {
		os.Exit(1)
	}
}

// --- gosec ---

type finding struct {
	Rule    string `json:"rule_id"`
	Details string `json:"details"`
	File    string `json:"file"`
	Line    string `json:"line"`
}

func gosec(ctx context.Context, binary string) ([]string, error) {
	excuses, err := readExcuses(gosecExceptions)
	if err != nil {
		return nil, fmt.Errorf("gosec.exceptions: %w", err)
	}
	args := []string{"-fmt", "json", "-quiet", "-no-fail", "-exclude-generated", "-tags", "libvirt_dlopen"}
	raw, err := run(ctx, binary, append(args, "./...")...)
	if err != nil {
		return nil, err
	}
	var report struct {
		Issues []finding
		Faults map[string][]struct{ Error string } `json:"Golang errors"`
		Stats  struct{ Files, Lines int }
	}
	if err := json.Unmarshal(raw, &report); err != nil {
		return nil, fmt.Errorf("gosec's report: %w", err)
	}
	if len(report.Faults) > 0 || report.Stats.Files == 0 {
		return nil, fmt.Errorf("gosec read %d files and could not read %v", report.Stats.Files, report.Faults)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for i := range report.Issues {
		f := &report.Issues[i]
		if f.File, err = filepath.Rel(root, f.File); err != nil {
			return nil, err
		}
	}
	issues := slices.DeleteFunc(report.Issues, func(f finding) bool {
		return slices.ContainsFunc(notShipped, func(d string) bool { return strings.HasPrefix(f.File, d+"/") })
	})
	faults := judge(issues, excuses)
	fmt.Printf("gosec: %d files, %d lines: %d findings in shipped code, %d not explained\n", report.Stats.Files, report.Stats.Lines, len(issues), len(faults))
	return faults, nil
}

// excuse is an exception: a number of findings of a rule in one file, or all findings of
// the rule if the file is *.
type excuse struct {
	rule, file string
	count      int // findings in the file
	line       int
}

const anywhere = "*"

// readExcuses parses lines of rule, file, count and reason; # begins a comment.
func readExcuses(text string) ([]excuse, error) {
	var out []excuse
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 6 {
			return nil, fmt.Errorf("line %d: must be a rule, a file, a count and a reason of some words", n)
		}
		e := excuse{rule: words[0], file: words[1], line: n}
		var err error
		if e.file != anywhere {
			if e.count, err = strconv.Atoi(words[2]); err != nil || e.count < 1 {
				return nil, fmt.Errorf("line %d: count %q must be a number above 0", n, words[2])
			}
		} else if words[2] != "-" {
			return nil, fmt.Errorf("line %d: count %q must be - for every file", n, words[2])
		}
		if slices.ContainsFunc(out, func(o excuse) bool { return o.rule == e.rule && o.file == e.file }) {
			return nil, fmt.Errorf("line %d: %s %s is there twice", n, e.rule, e.file)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

// judge returns the findings without an exception and the exceptions without a finding.
func judge(found []finding, excuses []excuse) []string {
	type place struct{ rule, file string }
	by := map[place][]finding{}
	everywhere := map[string]bool{}
	for _, e := range excuses {
		if e.file == anywhere {
			everywhere[e.rule] = false
		}
	}
	for _, f := range found {
		if _, ok := everywhere[f.Rule]; ok {
			everywhere[f.Rule] = true
			continue
		}
		at := place{f.Rule, f.File}
		by[at] = append(by[at], f)
	}
	var faults []string
	for _, e := range excuses {
		at := place{e.rule, e.file}
		switch have := len(by[at]); {
		case e.file == anywhere && !everywhere[e.rule]:
			faults = append(faults, fmt.Sprintf("gosec.exceptions:%d: nothing needs %s any more: take it out", e.line, e.rule))
		case e.file == anywhere:
		case have < e.count:
			faults = append(faults, fmt.Sprintf("gosec.exceptions:%d: %s explains %d findings of %s, there are %d", e.line, e.file, e.count, e.rule, have))
			delete(by, at)
		case have == e.count:
			delete(by, at)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(by), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.rule, b.rule))
	}) {
		for _, f := range by[at] {
			faults = append(faults, fmt.Sprintf("%s:%s: %s: %s", f.File, f.Line, f.Rule, f.Details))
		}
	}
	return faults
}

// --- govulncheck ---

func govulncheck(ctx context.Context, binary string) ([]string, error) {
	excuses, err := readReasons(vulnExceptions)
	if err != nil {
		return nil, fmt.Errorf("vulnerabilities.exceptions: %w", err)
	}
	db := cmp.Or(os.Getenv("GOVULNDB"), liveDatabase)
	of, err := changed(ctx, db)
	if err != nil {
		fmt.Fprintf(os.Stderr, "\n*** govulncheck: NOT CHECKED: the database of vulnerabilities does not answer: %v\n"+
			"*** Set GOVULNDB to a copy of it (file:///...), or run `make audit` where %s is reached.\n\n", err, liveDatabase)
		return nil, nil
	}
	raw, err := run(ctx, binary, "-db", db, "-tags", "libvirt_dlopen", "-format", "json", "./...")
	if err != nil {
		return nil, err
	}
	called, present, err := readFindings(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	faults := weigh(called, excuses)
	fmt.Printf("govulncheck: %s as of %s (%s old): %d vulnerabilities that our code reaches, %d more in what it is built from; %d not explained\n",
		db, of.Format(time.DateOnly), time.Since(of).Round(time.Hour), len(called), present, len(faults))
	return faults, nil
}

// changed returns the time of the last change of a database.
func changed(ctx context.Context, db string) (at time.Time, err error) {
	const index = "/index/db.json"
	var raw []byte
	if dir, ok := strings.CutPrefix(db, "file://"); ok {
		raw, err = os.ReadFile(filepath.FromSlash(dir + index))
	} else {
		raw, err = get(ctx, db+index)
	}
	if err != nil {
		return at, err
	}
	var has struct{ Modified time.Time }
	if err := json.Unmarshal(raw, &has); err != nil {
		return at, fmt.Errorf("%s%s: %w", db, index, err)
	}
	return has.Modified, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, 1<<20))
}

// readReasons parses lines of an id and a reason; # begins a comment.
func readReasons(text string) (map[string]int, error) {
	out := map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if !strings.HasPrefix(words[0], "GO-") || len(words) < 4 {
			return nil, fmt.Errorf("line %d: must be GO-… and a reason of some words", n)
		}
		out[words[0]] = n
	}
	return out, lines.Err()
}

// vulnerability is a vulnerability in a function that our code calls.
type vulnerability struct{ id, where, fixed string }

// readFindings parses the output of govulncheck. It returns the vulnerabilities in functions
// that our code calls, by id, and the number of all others.
func readFindings(r io.Reader) (called map[string]vulnerability, present int, err error) {
	called = map[string]vulnerability{}
	all := map[string]bool{}
	d := json.NewDecoder(r)
	for {
		var m struct {
			Finding *struct {
				OSV   string `json:"osv"`
				Fixed string `json:"fixed_version"`
				Trace []struct{ Module, Version, Package, Function string }
			}
		}
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, 0, fmt.Errorf("govulncheck's report: %w", err)
		}
		f := m.Finding
		if f == nil || len(f.Trace) == 0 {
			continue
		}
		all[f.OSV] = true
		if at := f.Trace[0]; at.Function != "" {
			called[f.OSV] = vulnerability{f.OSV, fmt.Sprintf("%s@%s %s.%s", at.Module, at.Version, at.Package, at.Function), f.Fixed}
		}
	}
	return called, len(all) - len(called), nil
}

func weigh(called map[string]vulnerability, reasons map[string]int) []string {
	var faults []string
	for _, id := range slices.Sorted(maps.Keys(called)) {
		if v := called[id]; reasons[id] == 0 {
			faults = append(faults, fmt.Sprintf("%s: %s, fixed in %s: https://pkg.go.dev/vuln/%s", id, v.where, cmp.Or(v.fixed, "no version yet"), id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		if _, ok := called[id]; !ok {
			faults = append(faults, fmt.Sprintf("vulnerabilities.exceptions:%d: nothing needs %s any more: take it out", reasons[id], id))
		}
	}
	return faults
}

func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	var out, fault bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(fault.Bytes()))
	}
	return out.Bytes(), nil
}
