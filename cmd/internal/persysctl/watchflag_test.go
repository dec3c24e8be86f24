package persysctl

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/testbed"
)

// watching runs a command with --watch until stop is called.
func watching(t *testing.T, s *session, f *fake, args ...string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- runWith(ctx, &cli{world: s.world, pace: 5 * time.Millisecond}, append([]string{"--insecure", "-s", f.addr}, args...))
	}()
	return func() int { cancel(); return <-done }
}

func TestWatchShowsChanges(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	stop := watching(t, s, f, "nodes", "--watch")
	testbed.Until(t, "the first view", func() bool { return strings.Contains(s.stdout.String(), "node-b") })
	looks := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.requests)
	}
	n := looks()
	testbed.Until(t, "ten more reads of the list", func() bool { return looks() > n+10 })
	if got := strings.Count(s.stdout.String(), "NODE "); got != 1 {
		t.Errorf("an output that did not change was printed %d times:\n%s", got, s.stdout.String())
	}
	f.mu.Lock()
	for range 3 {
		f.fail["ListNodes"] = append(f.fail["ListNodes"], dial.Error(codes.Unavailable, dial.ReasonNoAgent, "everybody sleeps"))
	}
	f.mu.Unlock()
	testbed.Until(t, "a failure that passes is told", func() bool { return strings.Contains(s.stderr.String(), "everybody sleeps") })
	f.mu.Lock()
	f.nodes = f.nodes[:1]
	f.mu.Unlock()
	testbed.Until(t, "the change", func() bool { return strings.Count(s.stdout.String(), "NODE ") == 2 })
	if code := stop(); code != 0 {
		t.Errorf("Ctrl-C ended the command with exit code %d: %s", code, s.stderr.String())
	}
	if got := strings.Count(s.stderr.String(), "everybody sleeps"); got != 1 {
		t.Errorf("the failure was printed %d times", got)
	}
}

// TestWatchSaysThatItIsStale: if the answers are stale, every output of --watch says so, not only the first output.
func TestWatchSaysThatItIsStale(t *testing.T) {
	for _, args := range [][]string{{"nodes", "-w"}, {"top", "nodes", "-w"}} {
		t.Run(args[0], func(t *testing.T) {
			f, s := start(t, nil), newSession(t).terminal(100, 30)
			f.stale = true
			stop := watching(t, s, f, args...)
			testbed.Until(t, "three drawings", func() bool { return strings.Count(s.stdout.String(), "Ctrl-C") >= 3 })
			if code := stop(); code != 0 {
				t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
			}
			for i, view := range strings.Split(s.stdout.String(), "(Ctrl-C ends)")[:3] {
				if !strings.Contains(view, "stale, 3s old") {
					t.Errorf("output %d lacks the note that it is stale:\n%s", i+1, view)
				}
			}
		})
	}
}

func TestWatchOnATerminalIsInPlace(t *testing.T) {
	f, s := start(t, nil), newSession(t).terminal(100, 30)
	stop := watching(t, s, f, "status", "-w")
	testbed.Until(t, "two drawings", func() bool {
		return strings.Contains(s.stdout.String(), "\x1b[") && strings.Contains(s.stdout.String(), "A\r\x1b[2K")
	})
	if code := stop(); code != 0 {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}

// TestWatchFitsATerminalThatIsMadeNarrower: after the terminal became narrower, --watch draws below the old
// output, because wrapped lines cannot be redrawn in place.
func TestWatchFitsATerminalThatIsMadeNarrower(t *testing.T) {
	for _, args := range [][]string{{"nodes", "-w"}, {"top", "nodes", "-w"}} {
		t.Run(args[0], func(t *testing.T) {
			f, s := start(t, nil), newSession(t).terminal(120, 30)
			var width atomic.Int32
			width.Store(120)
			s.size = func() (int, int) { return int(width.Load()), 30 }
			escapes := regexp.MustCompile("\x1b\\[[0-9;]*[a-zA-Z]|\r")
			stop := watching(t, s, f, args...)
			testbed.Until(t, "a drawing", func() bool { return strings.Contains(s.stdout.String(), "Ctrl-C") })
			width.Store(50)
			testbed.Until(t, "an output that fits the terminal", func() bool {
				views := strings.Split(s.stdout.String(), "(Ctrl-C ends)")
				last := strings.Split(views[max(0, len(views)-2)], "\n")
				return !slices.ContainsFunc(last, func(line string) bool {
					return utf8.RuneCountInString(escapes.ReplaceAllString(line, "")) >= 50
				})
			})
			if code := stop(); code != 0 {
				t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
			}
		})
	}
}

func TestWatchEndsWithAMistake(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	if code := s.run(f, "nodes", "-w", "--status", "Redy"); code != exitUsage || !strings.Contains(s.stderr.String(), "must be one of") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}

// outdated reports that a generated file is out of date. In CI it fails the test. On other machines it only
// logs, because a developer regenerates the files when a change is finished.
func outdated(t *testing.T, format string, args ...any) {
	t.Helper()
	if testbed.Judged() {
		t.Errorf(format, args...)
		return
	}
	t.Logf("NOT CURRENT: "+format, args...)
}

// TestReferenceIsCurrent: docs/reference/persysctl.md is up to date with the commands, and
// docs/reference/workload.md with the
// decoder of specification files.
func TestReferenceIsCurrent(t *testing.T) {
	dir, s := t.TempDir(), newSession(t)
	s.env["SOURCE_DATE_EPOCH"] = "1763640000"
	if code := s.run(nil, "docs", dir, "--man"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	want, err := os.ReadFile(filepath.Join(dir, "persysctl.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"persysctl.md", "workload.md"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile("../../../docs/reference/" + name)
		if err != nil || string(have) != string(want) {
			outdated(t, "docs/reference/%s is not up to date: run make reference (%v)", name, err)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man1", "*.1"))
	if err != nil || len(pages) < 30 {
		t.Errorf("there are %d manual pages, error %v", len(pages), err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "man1", "persysctl-apply.1"))
	if err != nil || !strings.Contains(string(page), `.TH "PERSYSCTL-APPLY" "1"`) && !strings.Contains(string(page), `.TH "PERSYSCTL"`) {
		t.Errorf("%v: %.200s", err, page)
	}
	for _, e := range exitCodes() {
		if !strings.Contains(string(want), e.meaning) {
			t.Errorf("the reference does not explain the exit code %d: %s", e.code, e.meaning)
		}
	}
}

// TestSchemaIsCurrent: the published JSON schema of specifications has the same fields as the decoder, and
// describes each of them.
func TestSchemaIsCurrent(t *testing.T) {
	s := newSession(t)
	if code := s.run(nil, "schema"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	have, err := os.ReadFile("../../../docs/reference/workload.schema.json")
	if err != nil || string(have) != s.stdout.String() {
		outdated(t, "docs/reference/workload.schema.json is not up to date: run make reference (%v)", err)
	}
	if _, missing := spec.SchemaFields(); len(missing) > 0 {
		outdated(t, "spec/schemanotes.go says nothing of %v", missing)
	}
}

// TestHelpFitsTheTerminal: no line of a help text is wider than the terminal.
func TestHelpFitsTheTerminal(t *testing.T) {
	for _, topic := range []string{"exit-codes", "connection"} {
		s := newSession(t)
		if code := s.run(nil, "help", topic); code != 0 {
			t.Fatal(s.stderr.String())
		}
		for _, line := range strings.Split(s.stdout.String(), "\n") {
			if len([]rune(line)) > 100 {
				t.Errorf("the help of %s has a line of %d columns: %s", topic, len([]rune(line)), line)
			}
		}
	}
}
