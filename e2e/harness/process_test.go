package harness

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// TestAlarmsFindRacesAndPanics: Alarms finds races, crashes and recovered panics in the output of a program.
func TestAlarmsFindRacesAndPanics(t *testing.T) {
	survived := func(handler func(*strings.Builder) slog.Handler) string {
		var b strings.Builder
		slog.New(handler(&b)).Error("it panicked", "panic", "oh", "stack", string(debug.Stack()))
		return b.String()
	}
	for text, want := range map[string]bool{
		"all is well\n":                                      false,
		"a word: no panic: really\n":                         false,
		"panic: in the first line\n":                         true,
		"all is well\npanic: oh\n\ngoroutine 1 [running]:\n": true,
		"fatal error: concurrent map writes\n":               true,
		"WARNING: DATA RACE\n":                               true,
		survived(func(b *strings.Builder) slog.Handler { return slog.NewTextHandler(b, nil) }): true,
		survived(func(b *strings.Builder) slog.Handler { return slog.NewJSONHandler(b, nil) }): true,
	} {
		p := Process{Name: "x", Log: filepath.Join(t.TempDir(), "log")}
		if err := os.WriteFile(p.Log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := p.Alarms(); (len(got) > 0) != want {
			t.Errorf("%.60q: %s", text, fmt.Sprint(got))
		}
	}
}
