package agentd

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// resident are the bytes of files that this process has mapped and in memory.
func resident(t *testing.T) (kib int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "RssFile:"); ok {
			if _, err := fmt.Sscan(text, &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib
}

// A program that has started gives back most of its code, and goes on with the rest.
func TestPagesOfTheProgramAreGivenBack(t *testing.T) {
	spans, err := programSpans()
	if err != nil || len(spans) == 0 {
		t.Fatalf("%d mappings of the program: %v", len(spans), err)
	}
	before := resident(t)
	if err := dropPages(); err != nil {
		t.Fatal(err)
	}
	after := resident(t)
	if after > before*4/5 {
		t.Errorf("%d KiB of files are resident, before it were %d", after, before)
	}
	t.Logf("%d KiB of files resident before, %d after", before, after)
}
