package setup

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHugePages: a part of the address space is named for huge pages, and none of it is
// in memory before it is used.
func TestHugePages(t *testing.T) {
	raw, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || strings.Contains(string(raw), "[never]") || underRace {
		if HugePages() == nil {
			t.Error("some were given where there are none to have")
		}
		return
	}
	before := named(t)
	if err := HugePages(); err != nil {
		t.Fatal(err)
	}
	if got, want := named(t)-before, min(heapAhead, int(memoryTotal()/4))>>10; got < want {
		t.Errorf("%d KiB are named, want %d", got, want)
	}
	if held := resident(t); held > 100<<10 {
		t.Errorf("%d KiB are in memory", held)
	}
}

// A process that may not have so much address space is not ended for asking.
func TestHugePagesAreNotForced(t *testing.T) {
	if underRace {
		return // the detector itself needs more than could be allowed here
	}
	if why := bounded(1 << 30); why != "" {
		t.Logf("this process is bounded already: %s", why)
		return
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 3 << 30, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_AS, &old); err != nil {
			t.Error(err)
		}
	}()
	if why := bounded(1 << 30); !strings.Contains(why, "address space") {
		t.Errorf("with 3 GiB of address space: %q", why)
	}
}

// named is how many KiB of this process may be in huge pages ("hg").
func named(t *testing.T) (kib int) {
	size := 0
	for _, f := range smaps(t) {
		switch {
		case f[0] == "Size:":
			size = number(t, f[1])
		case f[0] == "VmFlags:" && strings.Contains(strings.Join(f, " ")+" ", " hg "):
			kib += size
		}
	}
	return kib
}

func resident(t *testing.T) (kib int) {
	for _, f := range smaps(t) {
		if f[0] == "Anonymous:" {
			kib += number(t, f[1])
		}
	}
	return kib
}

func smaps(t *testing.T) (lines [][]string) {
	raw, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
