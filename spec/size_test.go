package spec

import (
	"strings"
	"testing"
	"time"
)

// TestLargeFilesAreReadInTime: a file with the maximum size or the maximum nesting depth must be parsed or refused
// within a time limit.
func TestLargeFilesAreReadInTime(t *testing.T) {
	cases := map[string]string{
		"a Compose file of the maximum size":   "id: s\ncompose:\n  inline: |\n    services: {a: {image: x}}\n" + strings.Repeat("    # a comment that fills the file to the limit\n", 10000),
		"a list of 12,000 environment entries": "id: s\ncontainer:\n  image: x\n  env:\n" + strings.Repeat("    - AAAAAAAAAAAAAAAA=bbbbbbbbbbbbbbbbbbbbb\n", 12000),
		"many documents":                       strings.Repeat("---\n", MaxFile/16),
		"small workloads": func() string {
			var b strings.Builder
			for i := range 5000 {
				b.WriteString("---\nid: w" + strings.Repeat("x", i%50) + string(rune('a'+i%26)) + "\ndesired: stop\n")
			}
			return b.String()
		}(),
		"one very long line": "id: " + strings.Repeat("a", MaxFile/4),
		"open quote":         "id: \"" + strings.Repeat("a\n", MaxFile/8),
		"anchors":            "id: a\ncontainer: &a {image: x}\n" + strings.Repeat("x: &b [*a, *a]\n", 20000),
		"merges":             "id: a\nx: &a {" + strings.Repeat("k: 1, ", 20) + "}\ny: {<<: [" + strings.Repeat("*a,", 12000) + "]}\n",
		"aliases":            strings.Repeat("---\nid: a\nx: &x ["+strings.Repeat("a,", 430)+"]\ny: ["+strings.Repeat("*x,", 430)+"]\n", 1500),
		"flow":               "id: a\nmetadata: {" + strings.Repeat("a: b, ", 80000) + "}\n",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := Parse("f", []byte(text), Options{})
			t.Logf("Parse read %d bytes in %v and returned %.100v", len(text), time.Since(start), err)
			if d := time.Since(start); d > 30*time.Second {
				t.Errorf("Parse took %v, want at most 30 s", d)
			}
		})
	}
}
