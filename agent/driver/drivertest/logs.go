package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

func testLogs(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "logs", s.Steady(1))
	s.ensure(t, d, spec)
	testbed.Within(t, s.Patience, "the log contains the first line of the workload", func() error {
		if text := s.logs(t, d, spec.ID, driver.LogOptions{}); !strings.Contains(text, s.LogLine) {
			return fmt.Errorf("the log lacks the line %q: %q", s.LogLine, text)
		}
		return nil
	})
	stamped := s.logs(t, d, spec.ID, driver.LogOptions{Timestamps: true, Tail: 1})
	lines := strings.Split(strings.TrimSpace(stamped), "\n")
	if len(lines) != 1 {
		t.Fatalf("with Tail 1 the log has %d lines: %q", len(lines), stamped)
	}
	stamp, _, _ := strings.Cut(lines[0], " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
		t.Errorf("with Timestamps set, the log line %q does not begin with a time: %v", lines[0], err)
	}
	// The driver calls Seen with the time of each line. A reader that resumes with Since set to that time
	// misses no line.
	var seen time.Time
	plain := s.logs(t, d, spec.ID, driver.LogOptions{Seen: func(at time.Time) { seen = at }})
	if began, err := time.Parse(time.RFC3339Nano, stamp); err == nil && seen.Before(began) || seen.After(time.Now().Add(time.Minute)) {
		t.Errorf("Seen reported %s for the last line, want %s", seen, stamp)
	}
	if strings.Contains(plain, stamp) || !strings.Contains(plain, s.LogLine) {
		t.Errorf("the log with Seen but without Timestamps is %q", plain)
	}
	if again := s.logs(t, d, spec.ID, driver.LogOptions{Since: seen.Truncate(time.Second)}); !strings.HasSuffix(plain, again) || again == "" {
		t.Errorf("the log since %s is %q, want the end of the whole log %q", seen.Truncate(time.Second), again, plain)
	}
	if later := s.logs(t, d, spec.ID, driver.LogOptions{Since: time.Now().Add(time.Hour)}); later != "" {
		t.Errorf("the log since a future time is %q, want no lines", later)
	}
}

func (s *suite) logs(t *testing.T, d driver.Driver, id driver.ID, options driver.LogOptions) string {
	t.Helper()
	return Logs(s.ctx, t, d, id, options)
}

// Logs returns the output of a workload, read to its end.
func Logs(ctx context.Context, t testing.TB, d driver.Driver, id driver.ID, options driver.LogOptions) string {
	t.Helper()
	rc, err := d.Logs(ctx, id, options)
	if err != nil {
		t.Fatalf("Logs: %v", err)
	}
	text, err := io.ReadAll(rc)
	if err := errors.Join(err, rc.Close()); err != nil {
		t.Fatalf("reading logs: %v", err)
	}
	return string(text)
}

func testLogsFollow(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "follow", s.Steady(1))
	s.ensure(t, d, spec)
	rc, err := d.Logs(s.ctx, spec.ID, driver.LogOptions{Follow: true})
	if err != nil {
		t.Fatalf("Logs: %v", err)
	}
	defer rc.Close()
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(rc)
		done <- result{text, err}
	}()
	s.await(t, d, spec.ID, driver.Running)
	select {
	case r := <-done:
		t.Fatalf("the log stream ended while the workload runs: %q, %v", r.text, r.err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := d.Halt(s.ctx, spec.ID, 5*time.Second); err != nil {
		t.Fatalf("Halt: %v", err)
	}
	select {
	case r := <-done:
		if r.err != nil || !strings.Contains(string(r.text), s.LogLine) {
			t.Errorf("the followed log is %q, error %v; want the line %q", r.text, r.err, s.LogLine)
		}
	case <-time.After(s.Patience):
		t.Fatal("the log stream does not end when the workload ends")
	}
}

func testLogsAbsent(t *testing.T, s *suite) {
	rc, err := s.Open(t, nodeA).Logs(s.ctx, driver.ID(s.Prefix+"never"), driver.LogOptions{})
	if err == nil {
		rc.Close()
	}
	wantClass(t, err, driver.RuntimeResourceMissing)
}
