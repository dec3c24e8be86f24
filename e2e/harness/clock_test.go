package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// TestProcessHasShiftedClock: a program with a shifted clock sees another time, and its timers are unchanged.
func TestProcessHasShiftedClock(t *testing.T) {
	testbed.Need(t, "another process's clock", CanShiftClock())
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	const program = "package main\n\nimport \"time\"\n\nfunc main() {\n\tt := time.Now()\n\ttime.Sleep(20 * time.Millisecond)\n\tprintln(time.Now().Unix(), time.Since(t).Milliseconds())\n}\n"
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "clock")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		p := &Process{Name: "clock", Path: bin, Log: filepath.Join(dir, by.String()), Clock: by}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(t.Context()); code != 0 || err != nil {
			t.Fatalf("%d %v", code, err)
		}
		says, slept, _ := strings.Cut(p.Tail(1), " ")
		at, err := strconv.ParseInt(says, 10, 64)
		if d := time.Unix(at, 0).Sub(time.Now().Add(by)).Abs(); err != nil || d > 10*time.Second {
			t.Errorf("with a clock shifted by %s the program prints %s, which is off by %s: %v", by, says, d, err)
		}
		if ms, err := strconv.Atoi(slept); err != nil || ms < 20 || ms > 2000 {
			t.Errorf("with a clock shifted by %s the program slept %s ms: %v", by, slept, err)
		}
	}
}
