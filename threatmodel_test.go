package compute_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const threatModel = "docs/architecture/threat-model.md"

// attackers are the words in the first column of the threat model's table of attacks. Each kind of attacker
// must have rows.
var attackers = []string{
	"stranger", "viewer", "confined operator", "compromised agent", "compromised gateway", "join token", "malicious image", "malicious stack",
	"malicious git repository", "malicious registry", "etcd", "page of another site", "reader of logs",
}

// assets are the words in the second column.
var assets = []string{"workloads and data", "secrets", "keys", "identities and rights", "machines", "availability", "audit log", "all"}

// TestEachAttackHasATest: each row of the table of attacks names an asset, and tests in the package that it gives, or says that the
// attack is not stopped. No kind of attacker is missing.
func TestEachAttackHasATest(t *testing.T) {
	_, table, _ := strings.Cut(read(t, threatModel), "## Attackers, attacks and protections")
	table, _, _ = strings.Cut(table, "\n## ")
	group := regexp.MustCompile("^(?:`([\\w./-]+)` )?((?:(?:Test|Fuzz)\\w+(?: \\([^)]*\\))?(?:, )?)+)$")
	names, rows := "", 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 5 || strings.HasPrefix(line, "| Attacker") || strings.HasPrefix(line, "|---") {
			if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") && !strings.HasPrefix(line, "| Attacker") {
				t.Errorf("a row with %d cells: %s", len(cells), line)
			}
			continue
		}
		rows++
		names += strings.ToLower(cells[0]) + "\n"
		attack, shown := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[4])
		if !slices.Contains(assets, cells[1]) {
			t.Errorf("%q endangers %q, which is none of %v", attack, cells[1], assets)
		}
		if shown == "–" {
			if !strings.Contains(cells[3], "not stopped") {
				t.Errorf("%q has no test", attack)
			}
			continue
		}
		for _, part := range strings.Split(shown, "; ") {
			m := group.FindStringSubmatch(part)
			if m == nil {
				t.Errorf("the row of the attack %q names its tests as %q; write them as: `package` TestName, TestOther; …", attack, part)
				continue
			}
			for _, test := range citedTest.FindAllString(m[2], -1) {
				if !declares(t, m[1], test) {
					t.Errorf("%q is shown by %s, which package %q does not have", attack, test, m[1])
				}
			}
		}
	}
	for _, who := range attackers {
		if !strings.Contains(names, who) {
			t.Errorf("no row is about the attacker %q", who)
		}
	}
	if rows < 50 {
		t.Errorf("only %d rows were read", rows)
	}
}

// declares reports whether a package has a test; "" is the package at the root.
func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
